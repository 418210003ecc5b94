"""A record of a lab that somebody else wrote makes root end and start nothing."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

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


@pytest.fixture
def lab(tmp_path, victim):
    """The remains of a lab whose record names that process."""
    directory = tmp_path / "lab"
    directory.mkdir(mode=0o755)
    named: dict[str, Process | None] = {"n1": victim, "slurmctld": victim}
    return Journal(
        Lab(LabPlan(directory), "ab12cd34ef", boot_id(), directory, hosts=named, daemons=named)
    ).lab


def take_down(directory: Path) -> int:
    return down(directory, run=run, report=lambda _: None).ended


def link_record(directory: Path) -> None:
    (directory / RECORD).rename(directory / "kept.json")
    (directory / RECORD).symlink_to(directory / "kept.json")
    os.chown(directory / RECORD, MALLORY, MALLORY, follow_symlinks=False)


SPOILT: dict[str, Callable[[Path], None]] = {
    "directory of others": lambda directory: os.chown(directory, MALLORY, MALLORY),
    "record of others": lambda directory: os.chown(directory / RECORD, MALLORY, MALLORY),
    "open directory": lambda directory: directory.chmod(0o777),
    "open record": lambda directory: (directory / RECORD).chmod(0o666),
    "link of others": link_record,
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_somebodys_record_is_not_believed(lab, spoil):
    spoil(lab.directory)
    for use in (
        lambda: take_down(lab.directory),
        lambda: status(lab.directory, run=run),
        lambda: _open_journal(lab.plan, ()),
    ):
        with pytest.raises(UsageError, match=r"belongs to|can be changed by"):
            use()
    assert (lab.directory / RECORD).exists()


def test_a_record_of_another_directory_is_refused_and_nothing_is_swept_from_somebodys(lab):
    copy = lab.directory.with_name("copy")
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


def test_only_a_marked_process_is_ended(lab):
    """Neither another that the record names nor one whose PID was used again: its start differs."""
    program = lab.directory.parent / "slurmctld"
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
