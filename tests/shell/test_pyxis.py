"""The options of pyxis: those that scripts use, those that a release has."""

import itertools
import re
from typing import Any

from hpcbert.commands.checks import check_pyxis, find_submission_obstacles
from hpcbert.container import runtimes
from tests.kit.cases import cases, read_constant
from tests.kit.recipes import SHELL
from tests.kit.scripts import drafted_in, only_script
from tests.kit.slurm import Slurm, failed

HEAD = read_constant(__file__, "HEAD")
IMAGE = "docker://nvcr.io#nvidia/pytorch:20.12-py3"


def check_draft(draft, answer):
    """Return what doctor finds, and what submit does; both ask only srun, and that once.

    A number is a release: srun --help with pyxis 0.RELEASE.
    """
    if isinstance(answer, int):
        names = [name for name, since in runtimes.PYXIS_SINCE.items() if int(since[2:]) <= answer]
        about = "            [pyxis] see --container-env and --container-entrypoint-log\n"
        answer = HEAD + "".join(f"      --{name}=NAME[,NAME...]\n{about}" for name in names)
    slurm = Slurm(srun=answer)
    findings = find_submission_obstacles(draft, run=slurm)
    assert slurm.called("srun") in ([], [("srun", "--help")])
    of_pyxis = [finding for finding in findings if "pyxis" in f"{finding.name} {finding.detail}"]
    return check_pyxis(draft.resolved.site, [draft.resolved.recipe], run=slurm), of_pyxis


def test_the_options_asked_for_are_those_of_the_script(tmp_path):
    for home, entrypoint in itertools.product((True, False), repeat=2):
        switches: Any = {"home": home, "remap_root": home, "entrypoint": entrypoint}
        draft = drafted_in(tmp_path, "pyxis", IMAGE, **switches)
        text = only_script(draft) + (SHELL / "pyxis.bash").read_text()
        used = set(re.findall(r"--((?:no-)?container-[a-z-]+)", text))
        writable = draft.resolved.recipe.image.writable
        options = runtimes.pyxis_options(**switches, writable=writable)
        # Most scripts stay in the image's own directory.
        assert used ^ set(options) <= {"container-workdir"}


@cases
def test_an_older_pyxis_is_named_with_what_it_lacks(release, lacks, tmp_path):
    finding, (other,) = check_draft(drafted_in(tmp_path, "pyxis"), release)
    assert (finding.status, finding.code, finding.remedy) == ("fail", "pyxis", "--runtime enroot")
    assert finding.detail.endswith(", ".join(f"--{name}" for name in lacks))
    assert (other.status, other.name) == ("fail", "pyxis")
    assert "pyxis 0.15 or newer" in other.hint


def test_a_submit_host_that_can_not_tell_refuses_nothing(tmp_path):
    draft = drafted_in(tmp_path, "pyxis")
    for answer, status, detail in (
        (15, "ok", ""),
        (24, "ok", ""),
        (failed("srun: No such file or directory", 127), "warn", "No such file"),
        (failed("", 124), "warn", "no output"),
        (HEAD, "fail", "no --container-image"),  # no plugin
    ):
        finding, others = check_draft(draft, answer)
        assert (finding.status, detail in finding.detail) == (status, True)
        assert [other.status for other in others] == ([] if status == "ok" else ["warn"])
    # The srun of another cluster is not asked.
    tables = {"slurm": {"sbatch_args": ("--clusters=far",)}}
    finding, _ = check_draft(drafted_in(tmp_path, "pyxis", tables=tables), 14)
    assert (finding.status, finding.detail) == ("warn", "not checked: jobs run on cluster far")


def test_an_image_that_every_node_would_import_is_named_once(tmp_path):
    _, (finding,) = check_draft(drafted_in(tmp_path, "pyxis", IMAGE), 24)
    assert finding.status == "warn"
    assert finding.detail.startswith(f"{IMAGE} is not prepared")
    assert "hpcbert prepare --fw pytorch --only image" in finding.hint
    assert check_draft(drafted_in(tmp_path, "enroot", IMAGE), 14)[1] == []
