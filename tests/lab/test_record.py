"""What a lab writes about itself, and what its plan, its networks and its places are."""

import errno
import os
import shlex
from pathlib import Path

import pytest

from hpcbert.errors import CheckError, HpcbertError, UsageError
from hpcbert.lab import record
from hpcbert.lab.record import MARK, RECORD, SLOTS, Journal, Lab, LabPlan, Network
from hpcbert.system.processes import Process
from tests.kit.cases import cases


def test_every_change_is_read_back_and_an_interrupted_one_is_none(tmp_path, monkeypatch):
    assert record.load(tmp_path) is record.load(tmp_path / "nowhere") is None
    plan = LabPlan(directory=tmp_path, nodes=2)
    journal = Journal(Lab(plan=plan, mark="ab12cd34ef", boot="b", root=Path("/srv"), created=()))
    text = (tmp_path / RECORD).read_text()
    (tmp_path / RECORD).write_text(text.replace('"nodes"', '"of_another_version": 1, "nodes"'))
    assert record.load(tmp_path) == journal.lab
    with pytest.raises(CheckError, match="no network"):
        _ = journal.lab.network
    assert journal.note(slot=3).network.uplink == "hpcbert3"
    journal.note_process("hosts", "n1", None)
    journal.note_process("hosts", "n2", Process(12, 345))
    lab = journal.note_process("daemons", "slurmctld", Process(13, 346))
    assert record.load(tmp_path) == lab
    assert lab.hosts == {"n1": None, "n2": Process(12, 345)}
    assert [path.name for path in tmp_path.iterdir()] == [RECORD]
    assert (MARK in lab.daemon_environment, MARK in lab.environment) == (True, False)

    def fail(_):
        raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(HpcbertError, match="disk full"):
        journal.note(slot=4)
    assert record.load(tmp_path) == lab


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 2}', "\0"])
def test_a_record_that_is_none_is_an_error(tmp_path, text):
    (tmp_path / RECORD).write_text(text)
    with pytest.raises(UsageError, match="not the record"):
        record.load(tmp_path)


@cases
def test_a_plan_out_of_bounds_is_refused(wrong):
    with pytest.raises(UsageError):
        LabPlan(**wrong)


def test_every_slot_is_tried_once_and_no_two_share_a_name_an_address_or_a_port():
    plan, other = LabPlan(directory=Path("/srv/a")), LabPlan(directory=Path("/srv/b"))
    assert sorted(plan.slots()) == list(range(SLOTS))
    assert list(plan.slots()) == list(plan.slots()), "a directory always starts at its own"
    assert next(plan.slots()) != next(other.slots())
    networks = [Network(slot) for slot in range(SLOTS)]
    ports = [port for n in networks for port in (n.controller_port, n.node_port, n.accounting_port)]
    assert len(set(ports)) == len(ports)
    # Linux hands out ports from 32768 on by itself (ip-sysctl, ip_local_port_range).
    assert 1024 < min(ports) <= max(ports) < 32768
    assert len({n.prefix for n in networks}) == len({n.uplink for n in networks}) == SLOTS
    addresses = {networks[3].address(name) for name in LabPlan(nodes=250).node_names}
    assert len(addresses | {networks[3].controller}) == 251
    assert all(address.startswith("198.19.3.") for address in addresses)


def test_files_go_where_the_plan_says_or_where_slurm_and_its_users_can_live(tmp_path, monkeypatch):
    plain = Path("/var/lib/hpcbert-lab")
    assert record.root_of(plain, "ab12") == plain
    elsewhere = Path("/var/tmp/hpcbert-lab-ab12")
    places = ("/var/tmp/a lab", "/var/tmp/a'lab", "/tmp/lab", "/dev/shm/lab")
    for text in (*places, "/var/tmp/" + "long/" * 12):
        assert record.root_of(Path(text), "ab12") == elsewhere, text
    monkeypatch.setattr(record, "NODE_PRIVATE", ())
    monkeypatch.setattr(record, "_LONGEST_ROOT", 1000)
    (tmp_path / "closed").mkdir(mode=0o700)
    assert record.root_of(tmp_path / "closed" / "lab", "ab12") == elsewhere
    for text in ("/srv/other lab", "/var/lib/hpcbert-lab2"):
        words = ["hpcbert", "lab", "down", "--directory", text]
        assert shlex.split(record.command("down", Path(text))) == words
    assert record.command("down", record.DEFAULT_DIRECTORY) == "hpcbert lab down"
