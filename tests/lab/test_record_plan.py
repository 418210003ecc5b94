from __future__ import annotations

from pathlib import Path

import pytest

from hpcbert.errors import UsageError
from hpcbert.lab.record import SLOTS, LabPlan, Network, root_of
from tests.kit.cases import cases


@cases
def test_a_plan_out_of_bounds_is_refused(wrong: dict[str, int | str]):
    with pytest.raises(UsageError):
        LabPlan(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("gpus", "cpus"), [(8, 32), (1, 4), (0, 4)])
def test_a_node_claims_four_cpus_a_gpu(gpus: int, cpus: int):
    assert LabPlan(gpus_per_node=gpus).cpus == cpus


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
