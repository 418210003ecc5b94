"""Ctrl-C, TERM and HUP while arrays are being submitted."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import store
from tests.kit.cli import Cli
from tests.kit.slurm import Answer, Programs
from tests.kit.waiting import CEILING, until

pytestmark = pytest.mark.slow

WORDS = ("submit", "--fw", "pytorch", "--nodes", "2", "--gpus-per-node", "8", "--scaling")


@dataclass
class Interrupted:
    hpcbert: Cli
    slurm: Programs

    def __call__(self, number: int, *words: str, hold: int = 2, **options: Any) -> Any:
        """Submit, and send a signal while sbatch is called for the array of number `hold`."""
        self.slurm.answers(sbatch=[*[None] * hold, Answer(acts=True, waits=True), None])
        with self.hpcbert.start(*WORDS, *words, **options) as child:
            until(lambda: self.slurm.waiting, "sbatch was never called", pause=0.01)
            child.send_signal(number)
            self.slurm.let_go()
            out, complaint = child.communicate(timeout=CEILING)
        return child.returncode, out, complaint

    @property
    def directory(self) -> Path:
        (path,) = store.find_campaigns(self.hpcbert.cwd / "runs")
        return path


@pytest.fixture
def interrupted(hpcbert: Cli, slurm: Programs) -> Interrupted:
    return Interrupted(hpcbert, slurm)


@pytest.mark.parametrize(
    ("number", "hold", "ids"),
    [
        (signal.SIGINT, 2, "100, 101, 102"),
        (signal.SIGTERM, 0, "100"),
        (signal.SIGHUP, 3, "100, 101, 102, 103"),
    ],
    ids=["SIGINT", "SIGTERM", "SIGHUP"],
)
def test_it_says_what_is_queued_and_how_to_go_on(
    interrupted: Interrupted, number: signal.Signals, hold: int, ids: str
) -> None:
    code, out, _ = interrupted(number, "--json", hold=hold)
    document, directory = json.loads(out), interrupted.directory
    assert code == document["exit_code"] == 130
    (error,) = document["errors"]
    assert error["code"] == "interrupted"
    assert f"{hold + 1} of 4 arrays are queued: {ids}." in error["message"]
    assert (f"submit --resume '{directory}'" in error["hint"]) == (hold < 3)
    assert ("hpcbert monitor" in error["hint"]) == (hold == 3)
    assert f"hpcbert cancel '{directory}'" in error["hint"]
    jobs = [array["job_id"] for array in document["data"]["arrays"]]
    assert jobs == [*ids.split(", "), *[None] * (3 - hold)]
    states = [array.state for array in store.read_manifest(directory).arrays]
    assert states == [*["submitted"] * (hold + 1), *["intended"] * (3 - hold)]
    assert not (directory / "lock").exists()


def test_under_nohup_the_end_of_a_connection_is_none(interrupted: Interrupted) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    code, out, _ = interrupted(signal.SIGHUP, preexec_fn=ignore)
    assert code == 0
    assert "4 points" in out


def test_the_monitor_advises_to_go_on_with_the_submission(
    interrupted: Interrupted, hpcbert: Cli
) -> None:
    interrupted(signal.SIGINT)
    advice = "run hpcbert submit --resume CAMPAIGN to continue the submission"
    result = hpcbert("monitor", "--once", str(interrupted.directory))
    never = [line for line in result.stdout.splitlines() if "2n8g" in line]
    assert len(never) == 5
    assert all("it was never submitted" in line for line in never)
    assert f"UNKNOWN: {advice}" in result.stdout
    result = hpcbert("monitor", "--once", "--json", str(interrupted.directory))
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert {event["advice"] for event in events if "2n8g" in event.get("point", "")} == {advice}
