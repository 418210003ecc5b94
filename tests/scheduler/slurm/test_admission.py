"""What sinfo says of partitions, and what a job finds there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.scheduler import create_scheduler
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.slurm.admission import Demand, find_misfits
from hpcbert.slurm.inventory import Resource, parse_resources, read_partitions
from hpcbert.timelimit import TimeLimit
from tests.kit import drafts
from tests.kit.cases import cases
from tests.kit.cluster import Answers, partition

SINFO = """gpu*|up|3|1-00:00:00|1-infinite|gpu:v100:8(S:0-1)|n[1-3]
gpu*|up|1|1-00:00:00|1-infinite|gpu:v100:4|n4
long|up|16|infinite|1-2|gpu:2080ti:8,nvme:1|m[01-16]
cpu|up|2|30:00|1-infinite|(null)|c[1-2]
closed|down|4|infinite|1-infinite|gpu:8|d[1-4]
not a line of sinfo
"""
FOUND = read_partitions(SINFO)
WIDE = read_partitions("wide|up|4|infinite|2-4|gpu:8|w[1-4]\n")
SHARED = Path("/shared/runs")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu:8", [("gpu", "", 8)]),
        ("gpu:v100:8(S:0-1)", [("gpu", "v100", 8)]),
        ("gpu:2080ti:8", [("gpu", "2080ti", 8)]),
        ("gpu:1g.10gb:7(IDX:0-6)", [("gpu", "1g.10gb", 7)]),
        ("gpu:a100:4(S:0,1),gpu:h100:2", [("gpu", "a100", 4), ("gpu", "h100", 2)]),
        ("gpu:v100", [("gpu", "v100", 1)]),
        ("gpu", [("gpu", "", 1)]),
        ("bandwidth:lustre:4K", [("bandwidth", "lustre", 4096)]),
        ("(null)", []),
        ("", []),
    ],
)
def test_resources_are_read_as_slurm_writes_them(
    text: str, expected: list[tuple[str, str, int]]
) -> None:
    assert list(parse_resources(text)) == [Resource(*fields) for fields in expected]


def test_groups_of_a_partition_are_added_up() -> None:
    gpu = FOUND["gpu"]
    assert (gpu.default, gpu.state, gpu.limit.seconds, gpu.most_nodes, gpu.nodes) == (
        *(True, "up", 86400.0, None),
        4,
    )
    assert [group.names for group in gpu.groups] == [("n1", "n2", "n3"), ("n4",)]
    assert (FOUND["long"].limit.seconds, FOUND["long"].most_nodes) == (None, 2)
    assert set(FOUND) == {"gpu", "long", "cpu", "closed"}


def job(
    partition: str = "gpu", nodes: int = 1, minutes: int | None = 60, gres: str = "gpu:8"
) -> Demand:
    return Demand(
        partition,
        nodes,
        TimeLimit(None if minutes is None else minutes * 60),
        parse_resources(gres),
    )


@pytest.mark.parametrize(
    "demand",
    [
        job(),
        job(""),
        job(nodes=3),
        job(nodes=4, gres="gpu:4"),
        job(nodes=4, gres="gpu:v100:4"),
        job(minutes=1440),
        job(minutes=None),
        job("long", 2, 100_000),
        job("cpu", 2, 30, ""),
        job("cpu,long"),
        job("closed,gpu"),
        job("elsewhere,gpu"),
    ],
    ids=[
        *(
            "default",
            "no-partition",
            "three-nodes",
            "fewer-gpus",
            "a-gpu-type",
            "a-day",
            "no-limit",
        ),
        *("long", "cpus", "two-partitions", "a-closed-one-too", "an-unknown-one-too"),
    ],
)
def test_what_fits_a_partition_is_let_through(demand: Demand) -> None:
    assert list(find_misfits([demand], SHARED, FOUND)) == []


@pytest.mark.parametrize(
    ("demand", "name", "detail", "hint"),
    [
        (job("gpus"), "partition", "no partition 'gpus'", "closed, cpu, gpu, long"),
        (job(nodes=4), "nodes", "gpu has 3 nodes with gpu:8; you asked for 4", "long"),
        (job("", 4), "nodes", "gpu has 3 nodes", "--nodes 3"),
        (job(nodes=5, gres="gpu:1"), "nodes", "gpu has 4 nodes; you asked for 5", "--nodes 4"),
        (job("wide"), "nodes", "no job with fewer than 2 nodes; you asked for 1", "--nodes 2"),
        (job("long", 3), "nodes", "allows a job at most 2 nodes", "--nodes 2"),
        (job(gres="gpu:16"), "GPUs", "has gpu:16; its nodes have gpu:v100:4, gpu:v100:8", "fewer"),
        (job(gres="gpu:a100:1"), "GPUs", "No node of partition gpu has gpu:a100:1", "another"),
        (
            job("cpu", minutes=30),
            "GPUs",
            "its nodes have none",
            "Partitions with such nodes: closed, gpu, long",
        ),
        (
            job(minutes=1441),
            "time limit",
            "at most 1-00:00:00; you asked for 1-00:01:00",
            "--time 1-00:00:00",
        ),
        (job("cpu", minutes=31, gres=""), "time limit", "at most 00:30:00", "--time 00:30:00"),
        (job("closed"), "partition", "closed is down", "--partition"),
    ],
    ids=lambda value: value.partition if isinstance(value, Demand) else None,
)
def test_what_fits_none_is_named_with_what_would(
    demand: Demand, name: str, detail: str, hint: str
) -> None:
    (finding,) = find_misfits([demand], SHARED, WIDE if demand.partition == "wide" else FOUND)
    assert (finding.name, finding.status) == (name, "fail")
    assert detail in finding.detail
    assert hint in finding.hint


@pytest.mark.parametrize("place", ["/tmp/x/runs", "/dev/shm/runs", "/run/user/1/runs"])
def test_a_directory_of_this_machine_is_refused_where_nodes_are_others(place: str) -> None:
    (finding,) = find_misfits([job()], Path(place), FOUND)
    assert finding.name == "runs directory"
    assert "local to each machine" in finding.detail


def test_a_link_does_not_hide_where_a_directory_lies(tmp_path: Path) -> None:
    (tmp_path / "runs").symlink_to("/dev/shm")
    (finding,) = find_misfits([job()], tmp_path / "runs", FOUND)
    assert "/dev/shm" in finding.detail


def test_a_cluster_that_is_this_machine_alone_may_use_any_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Here:
        nodename = "c1.example.org"

    monkeypatch.setattr("os.uname", Here)
    alone = read_partitions("gpu*|up|1|infinite|1-infinite|gpu:8|c1\n")
    assert list(find_misfits([job()], Path("/tmp/runs"), alone)) == []


def test_without_an_answer_nothing_is_held_against_a_job() -> None:
    assert (
        list(find_misfits([job("gpus", 99)], Path("/tmp"), read_partitions("sinfo: error"))) == []
    )


@pytest.mark.parametrize(
    ("nodes", "changes", "message"),
    [
        (4, {"exclude": ("n4",)}, "has 3 nodes that fit and are not excluded; you asked for 4"),
        (3, {"exclude": ("n1",), "resources": (Resource("gpu", "", 8),)}, "has 2 nodes"),
        (1, {"nodelist": ("n9", "c1")}, "names c1,n9, which is not in partition gpu"),
        (1, {"nodelist": ("n2",), "exclude": ("n2",)}, "names n2, which is also excluded"),
        (1, {"nodelist": ("n4",), "resources": (Resource("gpu", "", 8),)}, "n4, which lacks"),
    ],
    ids=["too few", "too few of that kind", "unknown", "both", "too small"],
)
def test_nodes_that_a_job_names_or_excludes_must_leave_enough(
    nodes: int, changes: dict[str, Any], message: str
) -> None:
    demand = replace(job(nodes=nodes, gres="gpu:4"), **changes)
    (finding,) = find_misfits([demand], SHARED, FOUND)
    assert (finding.name, finding.status) == ("nodes", "fail")
    assert message in finding.detail


@cases
def test_nodes_that_leave_enough_are_let_through(
    partition: str, nodes: int, changes: dict[str, Any]
) -> None:
    demand = replace(job(partition, nodes, gres=""), **changes)
    assert list(find_misfits([demand], SHARED, FOUND)) == []


@cases
def test_a_campaign_records_that_its_partition_shares_nodes(
    sharing: str, slurm: str, tmp_path: Path, *, shares: bool
) -> None:
    rules = partition().replace("MaxNodes", f"OverSubscribe={sharing} MaxNodes")
    site = drafts.site(tmp_path, f"[slurm]\n{slurm}\n")
    backend = create_scheduler("slurm", SchedulerContext(Answers(partitions=rules)))
    assert backend.fit(drafts.OPTIONS, site, drafts.load()).shares_nodes == shares
