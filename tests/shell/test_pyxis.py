"""The options of pyxis: those that scripts use, those that a release has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcbert.commands.checks import check_pyxis, find_submission_obstacles
from hpcbert.container import runtimes
from hpcbert.finding import Finding
from hpcbert.script.draft import Draft
from hpcbert.system.runner import Outcome
from tests.kit.cases import cases
from tests.kit.drafts import changed, drafted, reference, settled
from tests.kit.paths import REPOSITORY

pytestmark = pytest.mark.slow

# Of srun 24.11 with pyxis, in its form; the line of an option may name another one.
_HEAD = """\
Usage: srun [OPTIONS(0)... [executable(0) [args(0)...]]]

  -N, --nodes=N               number of nodes on which to run (N = min[-max])
      --container             Path to OCI container bundle

Options provided by plugins:
"""
IMAGE = "docker://nvcr.io#nvidia/pytorch:20.12-py3"


def format_usage(release: int) -> str:
    """Return the output of srun --help with pyxis 0.RELEASE."""
    names = [name for name, since in runtimes.PYXIS_SINCE.items() if int(since[2:]) <= release]
    about = "            [pyxis] see --container-env and --container-entrypoint-log\n"
    return _HEAD + "".join(f"      --{name}=NAME[,NAME...]\n{about}" for name in names)


def draft_with_image(
    tmp_path: Path, image: str = IMAGE, *, clusters: str = "", **container: Any
) -> Draft:
    words = (f"--clusters={clusters}",) if clusters else ()
    site = changed(
        reference(tmp_path),
        scheduler="slurm",
        container={"runtime": "pyxis", **container},
        slurm={"sbatch_args": words},
    )
    return drafted(settled(site, image=image, python="/usr/bin/python3"))


def answer_as_srun(release: int) -> Outcome:
    return Outcome(("srun",), 0, format_usage(release))


def check_draft(draft: Draft, answer: Outcome) -> Finding:
    use = draft.resolved
    return check_pyxis(use.site, [use.recipe], run=lambda argv, **_: answer)


def find_pyxis_findings(draft: Draft, answer: Outcome) -> tuple[list[Finding], list[Sequence[str]]]:
    """Return the findings about a submission where only srun answers, and the calls of srun."""
    calls: list[Sequence[str]] = []

    def run(argv: Sequence[str], **_: Any) -> Outcome:
        if argv[0] != "srun":
            return Outcome(tuple(argv), 127)
        calls.append(argv)
        return answer

    findings = find_submission_obstacles(draft, run=run)
    return [finding for finding in findings if "pyxis" in f"{finding.name} {finding.detail}"], calls


@pytest.mark.parametrize("entrypoint", [True, False])
@pytest.mark.parametrize("home", [True, False])
def test_the_options_asked_for_are_those_of_the_script(
    tmp_path: Path, *, home: bool, entrypoint: bool
) -> None:
    draft = draft_with_image(tmp_path, home=home, entrypoint=entrypoint, remap_root=home)
    (script,) = draft.scripts.values()
    library = (REPOSITORY / "hpcbert" / "shell" / "pyxis.bash").read_text()
    used = set(re.findall(r"--((?:no-)?container-[a-z-]+)", script + library))
    box, recipe = draft.resolved.site.container, draft.resolved.recipe
    flags = runtimes.pyxis_options(
        home=box.home,
        remap_root=box.remap_root,
        entrypoint=box.entrypoint,
        writable=recipe.image.writable,
    )
    # Most scripts stay in the image's own directory.
    assert used - {"container-workdir"} == set(flags) - {"container-workdir"}


@cases
def test_an_older_pyxis_is_named_with_what_it_lacks(
    release: int, lacks: list[str], tmp_path: Path
) -> None:
    finding = check_draft(draft_with_image(tmp_path), answer_as_srun(release))
    assert (finding.status, finding.code, finding.remedy) == ("fail", "pyxis", "--runtime enroot")
    assert finding.detail.endswith(" and ".join(f"--{name}" for name in lacks))
    findings, _ = find_pyxis_findings(
        draft_with_image(tmp_path, "/image.sqsh"), answer_as_srun(release)
    )
    assert [(finding.status, finding.name) for finding in findings] == [("fail", "pyxis")]
    assert "pyxis 0.15 or newer" in finding.hint
    brought = {"container-env": "0.15", "container-writable": "0.11"}
    brought["no-container-entrypoint"] = "0.8"
    assert all(f"{brought[name]} brought --{name}" in finding.hint for name in lacks)


@pytest.mark.parametrize("release", [15, 24])
def test_a_pyxis_that_has_every_option_is_ok(release: int, tmp_path: Path) -> None:
    draft = draft_with_image(tmp_path, "/image.sqsh")
    assert check_draft(draft, answer_as_srun(release)).status == "ok"
    findings, calls = find_pyxis_findings(draft, answer_as_srun(release))
    assert findings == []
    assert calls == [("srun", "--help")]


@pytest.mark.parametrize(
    ("answer", "status", "detail"),
    [
        (Outcome((), 127, "", "srun: No such file or directory"), "warn", "No such file"),
        (Outcome((), 124, "", ""), "warn", "no output"),
        (Outcome((), 0, _HEAD), "fail", "no --container-image"),
    ],
    ids=["no srun", "no answer", "no plugin"],
)
def test_a_submit_host_that_can_not_tell_refuses_nothing(
    answer: Outcome, status: str, detail: str, tmp_path: Path
) -> None:
    draft = draft_with_image(tmp_path, "/image.sqsh")
    finding = check_draft(draft, answer)
    assert (finding.status, detail in finding.detail) == (status, True)
    findings, _ = find_pyxis_findings(draft, answer)
    assert [pyxis_finding.status for pyxis_finding in findings] == ["warn"]


def test_the_srun_of_another_cluster_is_not_asked(tmp_path: Path) -> None:
    draft = draft_with_image(tmp_path, "/image.sqsh", clusters="far")
    finding = check_draft(draft, answer_as_srun(14))
    assert (finding.status, finding.detail) == ("warn", "not checked: jobs run on cluster far")


def test_an_image_that_every_node_would_import_is_named_once(tmp_path: Path) -> None:
    (finding,), _ = find_pyxis_findings(draft_with_image(tmp_path), answer_as_srun(24))
    assert finding.status == "warn"
    assert finding.detail.startswith(f"{IMAGE} is not prepared")
    draft = draft_with_image(tmp_path, runtime="enroot")
    assert find_pyxis_findings(draft, answer_as_srun(14)) == ([], [])
    assert "hpcbert prepare --fw pytorch --only image" in finding.hint
