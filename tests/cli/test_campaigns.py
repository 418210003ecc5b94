"""The campaigns of one submission: taken together by name, in a row, and taken up where it stopped."""

import itertools
import os
import shlex
import time
from pathlib import Path

import pytest

from hpcbert.campaign import store
from tests.kit.cases import read_constant
from tests.kit.cli import Cli, run, run_here
from tests.kit.drafts import site
from tests.kit.slurm import Slurm, failed

FILE = read_constant(__file__, "FILE")
ORDER = [("tf2", "Tree"), ("tf2", "Ring"), ("pytorch", "Tree"), ("pytorch", "Ring")]


@pytest.mark.slow
def test_every_command_takes_the_campaigns_of_a_file_by_their_name(tmp_path):
    runs, state = str(tmp_path / "runs"), str(tmp_path / "state")
    variables = {"HOME": str(tmp_path), "HPCBERT_RUNS": runs, "XDG_STATE_HOME": state}
    hpcbert = Cli(tmp_path, {**os.environ, **variables}, run=run_here)

    def list_frameworks(*words):
        campaigns = hpcbert(*words, "--json", status=0).data["campaigns"]
        return [entry["campaign"].split("-")[1] for entry in campaigns]

    def list_variants():
        entries = hpcbert("list", "--json", status=0).data["campaigns"]
        return [(e["framework"], e["variant"].rpartition("NCCL_ALGO=")[2]) for e in entries]

    frameworks = [name for name, _ in ORDER]
    (tmp_path / "week47.toml").write_text(f'name = "week 47"\n{FILE}')
    hpcbert("submit", "week47.toml", "--rehearse", "--force", "--wait", status=0)
    assert list_variants() == ORDER
    hpcbert("note", "week 47", "all of them", status=0)
    for words in (["monitor", "--once"], ["cancel"], ["show"], ["archive"], ["note"]):
        assert list_frameworks(*words, "week 47") == frameworks, words
    assert list_frameworks("monitor", "--once") == frameworks
    for command in ("collect", "retry", "report"):
        assert "rehearsal" in hpcbert(command, "week 47").stderr
    last = hpcbert("logs", "week 47", "--json", status=0).data
    assert f"of {last['campaign']} {last['point']}, " in hpcbert("logs", "week 47").stderr
    wrong_point = hpcbert("logs", "week 47", "--point", "x", status=2).stderr
    assert wrong_point.count(last["point"]) == 1
    assert "sample:" in hpcbert("logs", "week 47", "--follow", status=0).stdout
    assert "Did you mean week 47?" in hpcbert("show", "week 48", status=2).stderr
    assert "evidence" in hpcbert("audit", "week 47", status=4).stderr
    assert "One file" in hpcbert("archive", "week 47", "--output", "a.zip", status=2).stderr
    ends = hpcbert("monitor", "week 47", "--once", status=0).stdout.splitlines()[-len(ORDER) :]
    assert all(line.startswith("rehearsed; ") for line in ends)
    again = hpcbert("submit", "--resume", "week 47", status=0).stdout
    assert (again.count("campaign "), "monitor 'week 47'" in again) == (len(ORDER), True)
    hpcbert("submit", "--like", "week 47", "--wait", status=0)
    assert list_variants() == ORDER * 2
    copies = hpcbert("list", "--json", status=0).data["campaigns"][: len(ORDER)]
    (name,) = {entry["name"] for entry in copies}
    assert name.startswith("week-47-2")
    assert "several frameworks" in hpcbert("submit", "--like", "week 47", "--python", "x").stderr
    for words in ([name], ["week 47"]):
        hpcbert("rm", *words, "--yes", status=0)
    assert list_variants() == []


def test_campaigns_of_a_file_have_one_time_however_long_drafting_is(empty_directory, monkeypatch):
    Path("week47.toml").write_text(FILE)
    monkeypatch.setattr(time, "time", itertools.count(1_800_000_000, 60).__next__)
    words = ("submit", "week47.toml", "--rehearse", "--force", "--dry-run", "--json")
    campaigns = run(*words).data["campaigns"]
    assert len({entry["campaign"].partition("-")[0] for entry in campaigns}) == 1
    assert len({entry["campaign"] for entry in campaigns}) == len(ORDER)
    (name,) = {entry["name"] for entry in campaigns}
    assert name.startswith("week47-2"), "the file has no name"


@pytest.fixture
def slurm(empty_directory, without_slurm, tmp_path, monkeypatch):
    site(tmp_path, "[slurm]\npoll_floor = 0.1\n")
    model = Slurm(first=10)
    for module in ("submit_run", "retry"):
        monkeypatch.setattr(f"hpcbert.cli.{module}.run", model)
    return model


def submit_three(*words, status=0):
    points = "--model bert-tiny,bert-base,bert-large --gpus-per-node 2 --scaling --repeats 1"
    return run("submit", "--fw", "pytorch", *points.split(), "--force", *words, status=status)


def list_dependencies(slurm):
    """Return what each sbatch was told to wait for."""
    options = [[word for word in argv if "--dependency" in word] for argv in slurm.called("sbatch")]
    return [words[0].partition(":")[2] if words else "" for words in options]


@pytest.mark.parametrize("together", [False, True], ids=["in a row", "together"])
def test_a_point_waits_for_the_one_before_unless_all_may_run_at_once(slurm, together):
    result = submit_three(*["--concurrent-points"] * together)
    expected = [""] * 6 if together else ["", "10", "11", "12", "13", "14"]
    assert list_dependencies(slurm) == expected
    line = result.stdout.split("hpcbert monitor ")[1].splitlines()[0]
    first, second, _ = (store.read_manifest(Path(path)) for path in shlex.split(line))
    assert second.after == ("" if together else first.id)
    assert (second.submission, second.position) == (first.id, 1)


def test_what_slurm_refuses_leaves_the_rest_on_disk_to_be_taken_up(slurm):
    refusal = failed("sbatch: error: Batch job submission failed: Invalid account")
    slurm.sbatch = [None, None, refusal]
    result = submit_three("--json", status=3)
    _, second = result.data["campaigns"]
    assert len(second["arrays"]) == 2
    (warning,) = [text for text in result.document["warnings"] if "Not submitted" in text]
    slurm.sbatch = None
    for line in (f"submit --resume {second['campaign']}", warning.partition("hpcbert ")[2]):
        run(*shlex.split(line), status=0)
    manifests = [store.read_manifest(path) for path in Path("runs").iterdir()]
    states = [array.state for manifest in manifests for array in manifest.arrays]
    assert states == ["submitted"] * 6
    assert list_dependencies(slurm)[-4:] == ["11", "12", "13", "14"]


def test_a_cancel_that_fails_midway_names_what_it_cancelled(slurm):
    ids = [campaign["campaign"] for campaign in submit_three("--json").data["campaigns"]]
    slurm.scancel = [None, failed("scancel: error: Slurm temporarily unable"), None]
    result = run("cancel", "--yes", "--json", *ids, status=3)
    assert [campaign["campaign"] for campaign in result.data["campaigns"]] == [ids[0], ids[2]]
    assert ids[1] in result.error["hint"]
