"""A record of a lab that somebody else wrote makes root end and start nothing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
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
def victim() -> Iterator[Process]:
    """A process of root's that belongs to no lab."""
    with subprocess.Popen(["sleep", "600"]) as child:
        process = identify(child.pid)
        assert process
        yield process
        child.kill()


@pytest.fixture
def lab(tmp_path: Path, victim: Process) -> Lab:
    """The remains of a lab whose record names that process."""
    directory = tmp_path / "lab"
    directory.mkdir(mode=0o755)
    named: dict[str, Process | None] = {"n1": victim, "slurmctld": victim}
    lab = Lab(LabPlan(directory), "ab12cd34ef", boot_id(), directory, hosts=named, daemons=named)
    return Journal(lab).lab


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
def test_somebodys_record_is_not_believed(
    lab: Lab, victim: Process, spoil: Callable[[Path], None]
) -> None:
    spoil(lab.directory)
    for use in (
        lambda: down(lab.directory, run=run, report=lambda _: None),
        lambda: status(lab.directory, run=run),
        lambda: _open_journal(lab.plan, ()),
    ):
        with pytest.raises(UsageError, match=r"belongs to|can be changed by"):
            use()
    assert victim.alive
    assert (lab.directory / RECORD).exists()


def test_a_process_in_the_place_of_another_is_not_ended(lab: Lab, victim: Process) -> None:
    """The PID was used again: the start time differs, although the command is a daemon's."""
    program = lab.directory.parent / "slurmctld"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "600"]) as child:
        process = identify(child.pid)
        assert process
        older = Process(process.pid, process.start - 1)
        Journal(lab).note(hosts={}, daemons={"slurmctld": older})
        down(lab.directory, run=run, report=lambda _: None)
        assert process.alive
        child.kill()


def test_a_marked_process_is_ended(lab: Lab, victim: Process) -> None:
    """And no other process, although the record names it."""
    with subprocess.Popen(["sleep", "600"], env={MARK: lab.mark}) as child:
        assert down(lab.directory, run=run, report=lambda _: None).ended == 1
        assert child.wait(10) < 0
    assert victim.alive


def test_a_record_of_another_directory_is_refused(lab: Lab, victim: Process) -> None:
    copy = lab.directory.with_name("copy")
    copy.mkdir()
    (copy / RECORD).write_bytes((lab.directory / RECORD).read_bytes())
    with pytest.raises(UsageError, match="belongs to the lab in"):
        down(copy, run=run, report=lambda _: None)
    assert victim.alive


def test_nothing_is_swept_from_somebodys_directory(tmp_path: Path) -> None:
    directory = tmp_path / "lab"
    directory.mkdir()
    unfinished = directory / f".{RECORD}.x7"
    unfinished.touch()
    os.chown(directory, MALLORY, MALLORY)
    with pytest.raises(UsageError, match="belongs to"):
        down(directory, run=run, report=lambda _: None)
    assert unfinished.exists()
    with pytest.raises(UsageError, match="belongs to"):
        load(directory)
