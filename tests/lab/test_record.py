from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hpcbert.errors import CheckError, HpcbertError, UsageError
from hpcbert.lab.record import MARK, RECORD, Journal, Lab, LabPlan, load, lock_lab
from hpcbert.system.processes import Process


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    plan = LabPlan(directory=tmp_path, nodes=2)
    return Journal(
        Lab(plan=plan, mark="ab12cd34ef", boot="b", root=Path("/srv"), created=(tmp_path,))
    )


def test_every_change_is_read_back(journal: Journal):
    assert load(journal.lab.directory) == journal.lab
    journal.note(slot=3)
    journal.note_host("n1", None)
    journal.note_host("n2", Process(12, 345))
    lab = journal.note_daemon("slurmctld", Process(13, 346))
    assert load(lab.directory) == lab
    assert lab.hosts == {"n1": None, "n2": Process(12, 345)}


def test_nothing_but_the_record_is_left_in_the_directory(journal: Journal):
    assert [path.name for path in journal.lab.directory.iterdir()] == [RECORD]


def test_an_interrupted_write_leaves_the_record_before_it(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
):
    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, "disk full")

    before = journal.lab
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(HpcbertError, match="disk full"):
        journal.note(slot=3)
    assert load(before.directory) == before


def test_there_is_no_lab_where_there_is_no_record(tmp_path: Path):
    assert load(tmp_path) is None
    assert load(tmp_path / "nowhere") is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 2}', "\0"])
def test_a_record_that_is_none_is_an_error(tmp_path: Path, text: str):
    (tmp_path / RECORD).write_text(text)
    with pytest.raises(UsageError, match="not the record"):
        load(tmp_path)


def test_a_directory_is_locked_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hpcbert.lab.record.LOCK_PATIENCE", 0.1)
    with (
        lock_lab(tmp_path),
        pytest.raises(CheckError, match="Another process"),
        lock_lab(tmp_path),
    ):
        pass
    with lock_lab(tmp_path):
        pass


def test_the_network_is_missing_until_it_is_there(journal: Journal):
    with pytest.raises(CheckError, match="no network"):
        _ = journal.lab.network
    assert journal.note(slot=4).network.uplink == "hpcbert4"


def test_users_get_no_mark(journal: Journal):
    assert MARK in journal.lab.daemon_environment
    assert MARK not in journal.lab.environment


def test_daemons_start_in_the_order_in_which_they_need_each_other(journal: Journal):
    assert journal.lab.expected_daemons == (
        "munged", "mariadbd", "slurmdbd", "slurmctld", "n1", "n2",
    )  # fmt: skip
