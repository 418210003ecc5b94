"""A record of a lab that somebody else wrote makes root end and start nothing."""

import os
import subprocess

import pytest

from hpcbert.errors import UsageError
from hpcbert.lab.lifecycle import _open_journal, down, status
from hpcbert.lab.record import MARK, RECORD, Journal, Lab, LabPlan, load
from hpcbert.system.processes import Process, boot_id, identify
from hpcbert.system.runner import run

MALLORY = 4321
pytestmark = pytest.mark.needs("users")


@pytest.fixture
def victim():
    """A process of root's that belongs to no lab."""
    with subprocess.Popen(["sleep", "600"]) as child:
        process = identify(child.pid)
        assert process
        yield process
        assert process.alive
        child.kill()


def make_lab(directory, victim):
    """Return the remains of a lab whose record names that process."""
    directory.mkdir(mode=0o755)
    named = {"n1": victim, "slurmctld": victim}
    plan = LabPlan(directory)
    return Journal(Lab(plan, "ab12cd34ef", boot_id(), directory, hosts=named, daemons=named)).lab


def take_down(directory):
    return down(directory, run=run, report=lambda _: None).ended


def test_somebodys_record_is_not_believed(tmp_path, victim):
    def show(directory):
        return status(directory, run=run)

    def start(directory):
        return _open_journal(LabPlan(directory), ())

    def link_record(directory):
        (directory / RECORD).rename(directory / "kept.json")
        (directory / RECORD).symlink_to(directory / "kept.json")
        os.chown(directory / RECORD, MALLORY, MALLORY, follow_symlinks=False)

    for number, spoil in enumerate((
        link_record,
        lambda directory: os.chown(directory, MALLORY, MALLORY),
        lambda directory: os.chown(directory / RECORD, MALLORY, MALLORY),
        lambda directory: directory.chmod(0o777),
        lambda directory: (directory / RECORD).chmod(0o666),
    )):  # fmt: skip
        directory = tmp_path / f"{number}"
        make_lab(directory, victim)
        spoil(directory)
        for use in (take_down, show, start):
            with pytest.raises(UsageError, match=r"belongs to|can be changed by"):
                use(directory)
        assert (directory / RECORD).exists()
    # A record of another directory is refused, and nothing is swept from somebody's.
    lab, copy = make_lab(tmp_path / "lab", victim), tmp_path / "copy"
    copy.mkdir()
    (copy / RECORD).write_bytes((lab.directory / RECORD).read_bytes())
    with pytest.raises(UsageError, match="belongs to the lab in"):
        take_down(copy)
    (copy / RECORD).rename(copy / f".{RECORD}.x7")
    os.chown(copy, MALLORY, MALLORY)
    for use in (take_down, load):
        with pytest.raises(UsageError, match="belongs to"):
            use(copy)
    assert (copy / f".{RECORD}.x7").exists()


def test_only_a_marked_process_is_ended(tmp_path, victim):
    """Neither another that the record names nor one whose PID was used again: its start differs."""
    lab, program = make_lab(tmp_path / "lab", victim), tmp_path / "slurmctld"
    program.symlink_to("/bin/sleep")
    with (
        subprocess.Popen(["sleep", "600"], env={MARK: lab.mark}) as marked,
        subprocess.Popen([program, "600"]) as reused,
    ):
        process = identify(reused.pid)
        assert process
        older = Process(process.pid, process.start - 1)
        Journal(lab).note(daemons={**lab.daemons, "slurmctld": older})
        assert take_down(lab.directory) == 1
        assert marked.wait(10) < 0
        assert process.alive
        reused.kill()
