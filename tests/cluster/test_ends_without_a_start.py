"""Jobs that never start, on a real cluster: refused if possible, and every end is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcbert.lab.record import Lab
from tests.kit.cases import cases
from tests.kit.cli import Cli, CliResult
from tests.kit.waiting import unqueued, until

POINT = ("--fw", "pytorch", "--device", "gpu", "--gpus-per-node", 1, "--repeats", 2)
# A job that waits for as long as the test needs.
LATER = "--sbatch-arg=--begin=now+1hour"


@pytest.fixture
def submit(hpcbert: Cli, lab: Lab) -> Any:
    def submitted(*words: object, status: int | None = 0) -> CliResult:
        return hpcbert("submit", *POINT, "--json", *words, status=status)

    return submitted


def wait_for_empty_queue(hpcbert: Cli, result: CliResult) -> Path:
    """Wait until none of a campaign's jobs is in the queue; return its directory."""
    where = Path(result.data["directory"])

    def over() -> bool:
        return unqueued(hpcbert.run(["squeue", "--noheader", "--format=%j"]), where.name)

    until(over, "jobs are still queued", pause=0.2)
    return where


def state(hpcbert: Cli, where: Path) -> str:
    """Return the campaign's state in `list`, which equals that of `show`."""
    listed = {
        campaign["campaign"]: campaign["state"]
        for campaign in hpcbert("list", "--json").data["campaigns"]
    }
    assert hpcbert("show", "--json", where).data["state"] == listed[where.name]
    return str(listed[where.name])


@cases
def test_what_plan_knows_to_be_impossible_submit_refuses(
    hpcbert: Cli, submit: Any, words: tuple[object, ...]
) -> None:
    plan = hpcbert("plan", *POINT, *words, "--rehearse", "--json")
    assert plan.returncode == 5, plan.output
    result = submit(*words, "--rehearse", status=2)
    sentences = [error["message"] for error in plan.document["errors"]]
    assert result.error["message"] in sentences
    assert hpcbert("list", "--json").data["campaigns"] == []


def test_a_campaign_file_is_checked_too(hpcbert: Cli, submit: Any) -> None:
    text = (
        'schema = 1\nframeworks = "pytorch"\ndevice = "gpu"\nshapes = ["1n1g", "4n1g"]\n'
        'repeats = 2\n[slurm]\nexclude = "n4"\n'
    )
    path = hpcbert.cwd / "campaign.toml"
    hpcbert.run(["tee", str(path)], stdin=text)
    result = hpcbert("submit", path, "--rehearse", "--json", status=2)
    assert "node configuration is not available" in result.error["message"]
    assert "exclude fewer" in result.error["hint"]


def test_what_slurm_gives_as_the_reason_is_shown_and_kept(hpcbert: Cli, submit: Any) -> None:
    where = wait_for_empty_queue(hpcbert, submit("--nodes", 4, "--exclude", "n4", "--force"))
    assert state(hpcbert, where) == "waiting"
    result = hpcbert("monitor", where)
    assert "BadConstraints" in result.output
    assert "hpcbert retry" not in result.output
    assert state(hpcbert, where) == "ended"
    assert "BadConstraints" in hpcbert("show", where).stdout
    assert "BadConstraints" in hpcbert("collect", where).output
    assert state(hpcbert, where) == "incomplete"


@pytest.mark.parametrize("program", ["hpcbert", "scancel"])
def test_a_campaign_that_was_cancelled_while_it_waited_has_ended(
    hpcbert: Cli, submit: Any, program: str
) -> None:
    submission = submit("--nodes", 1, "--force", LATER)
    where = Path(submission.data["directory"])
    assert state(hpcbert, where) == "waiting"
    if program == "hpcbert":
        hpcbert("cancel", "--yes", where, status=0)
    else:
        assert hpcbert.run(["scancel", submission.data["arrays"][0]["job_id"]]).ok
        wait_for_empty_queue(hpcbert, submission)
        hpcbert("monitor", where)
    assert state(hpcbert, where) == "ended"
    assert "CANCELLED: was cancelled" in hpcbert("show", where).stdout


def test_points_behind_a_job_that_failed_have_ended(hpcbert: Cli, submit: Any, lab: Lab) -> None:
    words = ("--nodes", 2, "--preflight", "--rehearse", "--force")
    site = Path(lab.environment["HPCBERT_SITE"]).read_text()
    # The preflight's program is missing, so that it fails.
    site += '\n[frameworks.nccl-tests]\noptions = { program = "/no/program" }\n'
    hpcbert.run(["tee", str(hpcbert.cwd / "site.toml")], stdin=site)
    submission = submit(*words, "--site", hpcbert.cwd / "site.toml")
    where = wait_for_empty_queue(hpcbert, submission)
    hpcbert("monitor", where)
    assert state(hpcbert, where) in {"ended", "rehearsed"}
