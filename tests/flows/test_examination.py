"""The doctor's job against a scripted Slurm: what becomes of it, whatever happens."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from hpcbert.errors import Interruption
from hpcbert.flows import doctor
from hpcbert.flows.examination import ExaminationJob, examine
from hpcbert.model import Shape
from tests.kit import drafts
from tests.kit.slurm import Slurm, failed

pytestmark = pytest.mark.slow


def check(folder: Path, patience: float = 0.0) -> ExaminationJob:
    site = drafts.site_of(folder, "[slurm]\npoll_floor = 0.1\n")
    return ExaminationJob(site, (), Shape(2, 1), patience, drafts.SUBMITTER)


def left(folder: Path) -> list[Path]:
    return list((folder / "runs").glob(".doctor-*"))


def test_a_job_that_does_not_start_is_cancelled(tmp_path: Path) -> None:
    slurm = Slurm()
    (found,) = examine(check(tmp_path), run=slurm)
    assert (found.name, found.status) == ("job", "fail")
    assert "did not start" in found.detail
    assert [job.alive() for job in slurm.jobs.values()] == [[]]
    assert not left(tmp_path)


def test_a_job_that_is_refused_is_told(tmp_path: Path) -> None:
    said = "sbatch: error: Batch job submission failed: Invalid qos specification"
    slurm = Slurm(sbatch=failed(said))
    (found,) = examine(check(tmp_path), run=slurm)
    assert "Invalid qos specification" in found.detail
    assert "--resume" not in found.hint
    assert not left(tmp_path)


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
        list(examine(check(tmp_path, 60.0), run=slurm))
    assert interrupted
    assert all(not job.alive() for job in slurm.jobs.values())
    assert not left(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda one: one.name)
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
        list(examine(check(tmp_path, 60.0), run=slurm))
    assert sent
    assert all(not job.alive() for job in slurm.jobs.values())
    assert not left(tmp_path)


def test_an_interrupt_while_sbatch_queues_cancels_what_it_made(tmp_path: Path) -> None:
    slurm = Slurm(dies=True)
    with pytest.raises((KeyboardInterrupt, Interruption)):
        list(examine(check(tmp_path, 60.0), run=slurm))
    assert [job.alive() for job in slurm.jobs.values()] == [[]]


def test_runs_that_can_not_be_made_are_told(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    (found,) = examine(check(tmp_path), run=Slurm())
    assert (found.name, found.remedy) == ("runs (nodes)", "--runs ~/runs")


def test_no_job_is_tried_while_the_controller_is_away(tmp_path: Path) -> None:
    asked = check(tmp_path)
    slurm = Slurm(away={"scontrol"}, sbatch="slurm 22.05.8")
    visit = doctor.Visit(asked.shape, 60.0, asked.submitter)
    found = {one.name: one for one in doctor.examine(asked.site, run=slurm, visit=visit)}
    assert (found["slurmctld"].status, found["job"].status) == ("fail", "fail")
    assert "not tried" in found["job"].detail
    assert slurm.called("sbatch") == [("sbatch", "--version")]
    assert not left(tmp_path)
