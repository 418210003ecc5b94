"""The doctor's job against a scripted Slurm: what becomes of it, whatever happens."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.commands import doctor
from hpcbert.config.site import Site
from hpcbert.errors import Interruption
from hpcbert.finding import Finding
from hpcbert.model import Shape
from hpcbert.slurm import state_sources
from hpcbert.system.runner import Outcome, Runner
from tests.kit import drafts
from tests.kit.slurm import Slurm, failed

pytestmark = pytest.mark.slow


def site_in(folder: Path) -> Site:
    return drafts.site(folder, "[slurm]\npoll_floor = 0.1\n")


def examine(folder: Path, slurm: Runner, patience: float = 0.0) -> list[Finding]:
    visit = doctor.Visit(Shape(2, 1), patience, drafts.SUBMITTER)
    return list(doctor.examine_nodes(site_in(folder), (), visit, run=slurm))


def find_leftovers(folder: Path) -> list[Path]:
    return list((folder / "runs").glob(".doctor-*"))


def test_a_job_that_does_not_start_is_cancelled(tmp_path: Path) -> None:
    slurm = Slurm()
    (finding,) = examine(tmp_path, slurm)
    assert (finding.name, finding.status) == ("job", "fail")
    assert "did not start" in finding.detail
    assert [job.alive() for job in slurm.jobs.values()] == [[]]
    assert not find_leftovers(tmp_path)


# Slurm 22.05.8 gives the second, when a prolog ends with status 1.
@pytest.mark.parametrize("reason", ["launch failed requeued held", "JobHeldAdmin"])
def test_a_failed_prolog_is_the_finding_with_its_nodes(reason: str, tmp_path: Path) -> None:
    """A job that a prolog failed waits in held state, and its node is drained."""
    slurm = Slurm(sinfo="n2|Prolog error\n")

    def hold(argv: Sequence[str], **options: Any) -> Outcome:
        outcome = slurm(argv, **options)
        return replace(outcome, stdout=outcome.stdout.replace("|None|", f"|{reason}|"))

    (finding,) = examine(tmp_path, hold)
    assert (finding.code, finding.nodes, finding.remedy) == ("prolog", ("n2",), "--exclude n2")


def test_a_job_whose_script_bash_never_reads_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file ends bash on the nodes only."""
    monkeypatch.setenv("BASH_ENV", "/etc/start")
    slurm = Slurm(srun="")

    def end(_: str) -> None:
        for job in slurm.jobs.values():
            job.end("COMPLETED")

    slurm.before = end
    monkeypatch.setattr(doctor, "_OUTPUT_SECONDS", 0.0)
    monkeypatch.setattr(state_sources, "VISIBILITY_DELAY", 0.0)
    (finding,) = examine(tmp_path, slurm)
    assert (finding.name, finding.remedy) == ("BASH_ENV", "unset BASH_ENV")
    assert "/etc/start" in finding.detail


def test_a_job_that_is_refused_is_told(tmp_path: Path) -> None:
    message = "sbatch: error: Batch job submission failed: Invalid qos specification"
    slurm = Slurm(sbatch=failed(message))
    (finding,) = examine(tmp_path, slurm)
    assert "Invalid qos specification" in finding.detail
    assert "--resume" not in finding.hint
    assert not find_leftovers(tmp_path)


@pytest.mark.parametrize("moment", ["sbatch", "sacct"])
def test_who_interrupts_leaves_no_job_behind(tmp_path: Path, moment: str) -> None:
    slurm = Slurm()
    interrupted: list[str] = []

    def interrupt(program: str) -> None:
        if program == moment and not interrupted and (moment != "sacct" or slurm.jobs):
            interrupted.append(program)
            raise KeyboardInterrupt

    slurm.before = interrupt
    with pytest.raises((KeyboardInterrupt, Interruption)):
        examine(tmp_path, slurm, 60.0)
    assert interrupted
    assert all(not job.alive() for job in slurm.jobs.values())
    assert not find_leftovers(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda member: member.name)
def test_a_signal_that_ends_doctor_leaves_no_job_behind(
    tmp_path: Path, number: signal.Signals
) -> None:
    slurm = Slurm()
    sent: list[str] = []

    def send(program: str) -> None:
        if program == "sacct" and slurm.jobs and not sent:
            sent.append(program)
            signal.raise_signal(number)

    slurm.before = send
    with pytest.raises(KeyboardInterrupt):
        examine(tmp_path, slurm, 60.0)
    assert sent
    assert all(not job.alive() for job in slurm.jobs.values())
    assert not find_leftovers(tmp_path)


def test_an_interrupt_while_sbatch_queues_cancels_what_it_made(tmp_path: Path) -> None:
    slurm = Slurm(dies=True)
    with pytest.raises((KeyboardInterrupt, Interruption)):
        examine(tmp_path, slurm, 60.0)
    assert [job.alive() for job in slurm.jobs.values()] == [[]]


def test_runs_that_can_not_be_made_are_told(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    (finding,) = examine(tmp_path, Slurm())
    assert (finding.name, finding.remedy) == ("runs (nodes)", "--runs ~/runs")


def test_no_job_is_tried_while_the_controller_is_away(tmp_path: Path) -> None:
    slurm = Slurm(away={"scontrol"}, sbatch="slurm 22.05.8")
    visit = doctor.Visit(Shape(2, 1), 60.0, drafts.SUBMITTER)
    findings = {
        finding.name: finding
        for finding in doctor.examine(site_in(tmp_path), run=slurm, visit=visit)
    }
    assert (findings["slurmctld"].status, findings["job"].status) == ("fail", "fail")
    assert "not tried" in findings["job"].detail
    assert slurm.called("sbatch") == [("sbatch", "--version")]
    assert not find_leftovers(tmp_path)
