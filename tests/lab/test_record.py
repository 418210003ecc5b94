from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hpcbert.errors import CheckError, HpcbertError, UsageError
from hpcbert.lab.record import MARK, RECORD, SLOTS, Journal, Lab, LabPlan, Network, load, root_of
from hpcbert.system.processes import Process
from tests.kit.cases import cases


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
    assert [path.name for path in lab.directory.iterdir()] == [RECORD]
    assert MARK in lab.daemon_environment
    assert MARK not in lab.environment


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


def test_the_network_is_missing_until_it_is_there(journal: Journal):
    with pytest.raises(CheckError, match="no network"):
        _ = journal.lab.network
    assert journal.note(slot=4).network.uplink == "hpcbert4"


# --- The plan -------------------------------------------------------------------------------------


@cases
def test_a_plan_out_of_bounds_is_refused(wrong: dict[str, int | str]):
    with pytest.raises(UsageError):
        LabPlan(**wrong)  # type: ignore[arg-type]


def test_every_slot_is_tried_once_and_a_directory_always_starts_at_its_own():
    lab_plan, other = LabPlan(directory=Path("/srv/a")), LabPlan(directory=Path("/srv/b"))
    assert sorted(lab_plan.slots()) == list(range(SLOTS))
    assert list(lab_plan.slots()) == list(lab_plan.slots())
    assert next(lab_plan.slots()) != next(other.slots())


def test_no_two_slots_share_a_name_an_address_or_a_port():
    networks = [Network(slot) for slot in range(SLOTS)]
    ports = [port for n in networks for port in (n.controller_port, n.node_port, n.accounting_port)]
    assert len(set(ports)) == len(ports)
    assert min(ports) > 1024
    # Linux hands out ports from 32768 on by itself (ip-sysctl, ip_local_port_range).
    assert max(ports) < 32768
    assert len({n.prefix for n in networks}) == len({n.uplink for n in networks}) == SLOTS


def test_nodes_have_addresses_of_their_own_in_the_subnet():
    network, plan = Network(3), LabPlan(nodes=250)
    addresses = {network.address(name) for name in plan.node_names}
    assert len(addresses | {network.controller}) == 251
    assert all(address.startswith("198.19.3.") for address in addresses)


def test_files_go_where_the_plan_says():
    assert root_of(Path("/var/lib/hpcbert-lab"), "ab") == Path("/var/lib/hpcbert-lab")


@pytest.mark.parametrize(
    "directory",
    ["/var/tmp/a lab", "/var/tmp/a'lab", "/tmp/lab", "/dev/shm/lab", "/var/tmp/" + "long/" * 12],
)
def test_files_go_elsewhere_where_slurm_could_not_live(directory: str):
    assert root_of(Path(directory), "ab12") == Path("/var/tmp/hpcbert-lab-ab12")


def test_files_go_elsewhere_where_job_users_could_not_walk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("hpcbert.lab.record.NODE_PRIVATE", ())
    monkeypatch.setattr("hpcbert.lab.record._LONGEST_ROOT", 1000)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    assert root_of(closed / "lab", "ab") == Path("/var/tmp/hpcbert-lab-ab")
