"""The site that init describes, that a command uses, and that outranks it."""

from pathlib import Path

import pytest

from hpcbert.config.site import read_site
from tests.kit.cases import read_constant
from tests.kit.cli import Cli, run
from tests.kit.slurm import DENIED, Answers, Programs

pytestmark = pytest.mark.slow

SINFO = read_constant(__file__, "SINFO")
SUBMIT = "submit --fw pytorch --gpus-per-node 1 --repeats 1 --scheduler local --nodes"


def cli(folder, answers):
    programs = Programs(folder / "bin", answers)
    return Cli(folder, {"PATH": f"{programs.folder}:/usr/bin:/bin", "HOME": str(folder)})


def test_a_program_reads_what_was_chosen_and_why(tmp_path):
    result = cli(tmp_path, Answers(sinfo=SINFO))("init", "--json", status=0)
    site = read_site(tmp_path / "site.toml", base=tmp_path, env={})
    assert (site.scheduler, site.slurm.partition) == ("slurm", "big")
    assert (site.slurm.gres, site.nodes.gpus_per_node) == ("gpu:2080ti", 8)
    choices = {choice["key"]: choice for choice in result.data["choices"]}
    assert set(choices["slurm.partition"]) == {"key", "value", "why", "others", "flag"}
    assert "the default is cpu (no GPUs" in choices["slurm.partition"]["why"]
    assert choices["slurm.partition"]["flag"] == "--partition"
    assert result.data["detected"]["slurm.partition"] == '"big"'


def test_a_person_is_asked_where_there_is_a_choice_and_only_there(tmp_path):
    words = ("init", "--runtime", "none", "--force")  # The machine may have a runtime: a choice.
    private = Answers(complaints={"sinfo": DENIED, "partitions": DENIED})
    for answers, typed, values in (
        (Answers(sinfo=SINFO), "small\n", ("small", 4)),
        (private, "own\n4\n", ("own", 4)),
    ):
        code, output = cli(tmp_path, answers).on_terminal(*words, answer=typed)
        assert code == 0, output
        assert "(--partition" in output
        assert "Which GPU type" not in output
        site = read_site(tmp_path / "site.toml", base=tmp_path, env={})
        assert (site.slurm.partition, site.nodes.gpus_per_node) == values


def test_the_first_line_names_the_site_and_where_things_go(run_commands):
    lines = {
        "plan --fw pytorch": "campaigns in /",
        "prepare --fw oneflow --dry-run": "programs in /",
        f"{SUBMIT} 1 --dry-run": "campaigns in /",
        f"{SUBMIT} 99": "campaigns in /",
    }
    results = run_commands([line.split() for line in lines])
    documents = run_commands([[*line.split(), "--json"] for line in lines])
    for place, result, document in zip(lines.values(), results, documents, strict=True):
        line = result.stderr.splitlines()[0]
        assert line.startswith("site ")
        assert "site.toml" in line
        assert place in line
        assert "site.toml, hpcbert's own" not in document.stderr


def test_a_lab_that_is_gone_is_named_with_the_remedy(run_commands):
    lines = [["doctor"], ["collect"], ["plan", "--fw", "pytorch"]]
    for names in (["HPCBERT_SITE"], ["HPCBERT_SITE", "SLURM_CONF"]):
        for result in run_commands(lines, **dict.fromkeys(names, "/gone/site.toml")):
            assert result.returncode == 2
            assert "HPCBERT_SITE=/gone/site.toml" in result.stderr
            assert result.stderr.rstrip().endswith(f"unset {' '.join(names)}")


def test_the_newest_campaign_is_not_taken_for_a_refused_one(build, run_commands, tmp_path):
    build("1n1g", scheduler="local").finish()
    later = f"{SUBMIT} 1 --rehearse --wait"
    lines = ["show", f"{SUBMIT} 99", "show", "cancel --yes", later, "show"]
    results = run_commands([line.split() for line in lines], HPCBERT_RUNS=str(tmp_path / "runs"))
    assert [result.returncode for result in results] == [0, 2, 0, 2, 0, 0]
    assert "Name the campaign" in results[3].stderr
    notes = ["made no campaign" in results[place].stderr for place in (0, 2, 5)]
    assert notes == [False, True, False]


def test_init_says_what_outranks_the_file_it_writes(empty_directory, tmp_path, monkeypatch):
    other, init = tmp_path / "other.toml", ("init", "--local", "--force")
    assert run(*init, "--json").document["warnings"] == []
    (warning,) = run(*init, "--output", "elsewhere.toml", "--json").document["warnings"]
    assert "elsewhere.toml" in warning
    other.write_text(Path("site.toml").read_text())
    for path in (other, tmp_path / "absent.toml"):
        monkeypatch.setenv("HPCBERT_SITE", str(path))
        (warning,) = run(*init, "--json", status=0).document["warnings"]
        assert "HPCBERT_SITE" in warning
        assert str(path) in warning
    assert "hpcbert doctor --site site.toml" in run(*init).stdout
    for line in ("frameworks list", "render"):
        assert "absent" in run(*line.split(), "--templates", "absent", status=2).stderr
