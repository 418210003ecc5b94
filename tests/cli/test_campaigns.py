"""The campaigns of one submission: taken together by name, in a row, and taken up where it stopped."""

import itertools
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hpcbert.campaign import store
from hpcbert.cli import submit_run
from hpcbert.cli.request import chain_drafts
from hpcbert.commands.submit import submit
from hpcbert.model import Shape
from hpcbert.script.draft import draft
from hpcbert.script.plan import plan
from tests.kit.cases import read_constant
from tests.kit.cli import Cli, run, run_here
from tests.kit.drafts import OPTIONS, SUBMITTER, changed, combined, hurried, load, reference
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


def test_the_campaigns_of_a_file_have_one_time_however_long_drafting_takes(
    empty_directory, monkeypatch
):
    Path("week47.toml").write_text(FILE)
    monkeypatch.setattr(time, "time", itertools.count(1_800_000_000, 60).__next__)
    words = ("submit", "week47.toml", "--rehearse", "--force", "--dry-run", "--json")
    campaigns = run(*words).data["campaigns"]
    assert len({entry["campaign"].partition("-")[0] for entry in campaigns}) == 1
    assert len({entry["campaign"] for entry in campaigns}) == len(ORDER)
    (name,) = {entry["name"] for entry in campaigns}
    assert name.startswith("week47-2"), "the file has no name"


@pytest.fixture
def slurm(monkeypatch):
    model = Slurm(first=10)
    monkeypatch.setattr(submit_run, "run", model)
    monkeypatch.setattr("hpcbert.cli.retry.run", model)
    return model


def submit_three(folder, *, together=False):
    """Submit three campaigns of two points each."""
    site, recipe = changed(reference(folder), slurm={"poll_floor": 0.1}), load()
    request = combined(Shape(1, 2), ("fp32",), scaling=True, repeats=1)
    planned, options = plan(recipe, site, request), replace(OPTIONS, concurrent_points=together)
    submitters = [replace(SUBMITTER, token=token) for token in ("aaa", "bbb", "ccc")]
    drafts = [draft(planned, site, recipe, options=options, submitter=who) for who in submitters]
    drafts = [*chain_drafts(drafts)]
    directories = [member.directory for member in drafts]
    return drafts, submit_run.submit_campaigns(directories, site, drafts, retries=None)


def list_dependencies(slurm):
    """Return what each sbatch was told to wait for."""
    options = [[word for word in argv if "--dependency" in word] for argv in slurm.called("sbatch")]
    return [words[0].partition(":")[2] if words else "" for words in options]


@pytest.mark.parametrize("together", [False, True], ids=["in a row", "together"])
def test_a_point_waits_for_the_one_before_unless_all_may_run_at_once(tmp_path, slurm, together):
    drafts, result = submit_three(tmp_path, together=together)
    assert result.exit_code == 0
    expected = [""] * 6 if together else ["", "10", "11", "12", "13", "14"]
    assert list_dependencies(slurm) == expected
    assert len(result.text.split("hpcbert monitor ")[1].splitlines()[0].split("' '")) == 3
    first, second = drafts[0].campaign, drafts[1].campaign
    assert second.after == ("" if together else first.id)
    assert (second.submission, second.position) == (first.id, 1)


def test_what_slurm_refuses_leaves_the_rest_on_disk_to_be_taken_up(tmp_path, slurm):
    refusal = failed("sbatch: error: Batch job submission failed: Invalid account")
    slurm.sbatch = [None, None, refusal]
    drafts, result = submit_three(tmp_path)
    assert result.exit_code == 3
    assert [len(campaign["arrays"]) for campaign in result.data["campaigns"]] == [2, 2]
    (warning,) = [warning for warning in result.warnings if "Not submitted" in warning]
    assert "hpcbert submit --resume" in warning
    assert drafts[2].campaign.id in warning
    slurm.sbatch = None
    for member in drafts[1:]:
        submit(member.directory, hurried(slurm))
    arrays = (array for member in drafts for array in store.read_manifest(member.directory).arrays)
    assert {array.state for array in arrays} == {"submitted"}
    assert list_dependencies(slurm)[-4:] == ["11", "12", "13", "14"]


def test_a_cancel_that_fails_midway_names_what_it_cancelled(tmp_path, slurm):
    drafts, _ = submit_three(tmp_path)
    slurm.scancel = [None, failed("scancel: error: Slurm temporarily unable"), None]
    result = run("cancel", "--yes", "--json", *(member.directory for member in drafts))
    assert result.returncode == 3
    cancelled = [campaign["campaign"] for campaign in result.data["campaigns"]]
    assert cancelled == [drafts[0].campaign.id, drafts[2].campaign.id]
    assert drafts[1].campaign.id in result.error["hint"]
