"""What a cluster has and allows, as its own commands print it."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbert.slurm.inventory import (
    Controller,
    Resource,
    Rights,
    choose_mpi,
    parse_resources,
    read_associations,
    read_config,
    read_default,
    read_mpi,
    read_partitions,
    read_qos,
    read_rules,
)
from hpcbert.timelimit import TimeLimit
from tests.kit.cases import cases, read_constant

# As 22.05.8 prints them; 24.11 and 26.05 have the same keys and more.
CONFIG = read_constant(__file__, "CONFIG")
MPI = read_constant(__file__, "MPI")
PARTITIONS = read_constant(__file__, "PARTITIONS")


@cases
def test_every_spelling_of_a_resource(text: str, expected: list[list[Any]]) -> None:
    assert list(parse_resources(text)) == [Resource(*fields) for fields in expected]


def test_groups_of_a_partition_are_added_up() -> None:
    partitions = read_partitions(read_constant(__file__, "SINFO"))
    gpu, long = partitions["gpu"], partitions["long"]
    assert (gpu.default, gpu.state, gpu.limit.seconds, gpu.most_nodes) == (True, "up", 86400, None)
    assert [group.names for group in gpu.groups] == [("n1", "n2", "n3"), ("n4",)]
    assert (long.limit.seconds, long.most_nodes) == (None, 2)
    assert set(partitions) == {"gpu", "long"}


@cases
def test_slices_are_told_from_gpus(text: str, *, sliced: bool) -> None:
    assert [resource.sliced for resource in parse_resources(text)] == [sliced]


def test_settings_of_the_controller() -> None:
    assert read_config(CONFIG) == Controller(
        name="lab",
        version="22.05.8",
        most_indices=1000,
        memory="--mem-per-cpu=32000",
        enforced=frozenset({"associations", "limits", "qos"}),
    )


@cases
def test_what_a_key_of_the_controller_means(line: str, name: str, expected: object) -> None:
    value = getattr(read_config(line), name)
    assert (tuple(sorted(value)) if name == "enforced" else value) == expected


@pytest.mark.site("Slurm 20.11 and 21.08 (scripted)")
@cases
def test_types_of_mpi_of_older_releases(text: str, types: tuple[str, ...]) -> None:
    assert read_mpi(f"\n{text}") == types


def test_types_of_mpi() -> None:
    assert read_mpi(MPI) == ("pmix", "none", "cray_shasta", "pmi2", "pmix_v4", "pmix_v3")
    assert read_mpi("srun: error: MPI plugin types are...\nnone\npmi2\n") == ("none", "pmi2")
    assert read_mpi("srun: fatal: no configuration") == ()
    assert read_mpi(f"Notice\n{MPI}Ends at\n9:00.\n") == read_mpi(MPI)


@cases
def test_the_first_wanted_type_that_is_there(
    preferred: tuple[str, ...], offered: tuple[str, ...], expected: str
) -> None:
    assert choose_mpi(preferred, offered) == expected


def test_partitions_of_the_controller() -> None:
    rules = read_rules(PARTITIONS)
    assert set(rules) == {"gpu", "big"}
    gpu, big = rules["gpu"], rules["big"]
    assert (gpu.accounts, gpu.qos, gpu.own_qos, gpu.memory, gpu.reserved) == ((), (), "", "", False)
    assert gpu.partition.default
    assert not gpu.partition.exact
    (group,) = gpu.partition.groups
    assert (group.count, group.names) == (2, ("n1", "n2"))
    assert [(resource.kind, resource.count) for resource in group.resources] == [("", 8)]
    assert (big.accounts, big.denied_qos, big.groups) == (("a", "b"), ("low",), ("ml",))
    assert (big.own_qos, big.memory, big.limit) == ("capped", "--mem-per-cpu=4000", TimeLimit(600))
    assert (big.partition.limit, big.partition.most_nodes) == (TimeLimit(86400), 4)
    assert (big.partition.state, big.reserved) == ("drain", True)
    assert [(resource.kind, resource.count) for resource in big.partition.groups[0].resources] == [
        ("h100", 8)
    ]
    assert [big.takes_account(account) for account in ("a", "c")] == [True, False]
    assert [big.takes_qos(account) for account in ("low", "normal")] == [False, True]


def test_a_partition_may_give_memory_by_gpu() -> None:
    rules = read_rules("PartitionName=a JobDefaults=DefMemPerGPU=9 DefMemPerNode=UNLIMITED\n")
    assert rules["a"].memory == "--mem-per-gpu=9"


RIGHTS = Rights(
    own=read_associations("proj|me||gpu|normal,long||00:20:00\nproj|me|||normal|normal|\n"),
    accounts=read_associations("root||||||\nproj||top||normal||\ntop||root||||"),
    qos=read_qos("normal|DenyOnLimit,OverPartQOS|1-00:00:00|high|cluster\nlong|PartitionTimeLimit|||\nbrief||00:05:00||\n"),
    default=read_default("you|x\nme|proj\n", "me"),
    known=True,
)  # fmt: skip


def test_associations_of_a_user() -> None:
    assert RIGHTS.default == "proj"
    association = RIGHTS.of("", "gpu")
    assert association is not None
    assert (association.qos, association.limit) == (("normal", "long"), TimeLimit(1200))
    assert RIGHTS.of("proj", "other") == RIGHTS.own[1]
    assert RIGHTS.of("none") is None
    assert RIGHTS.qos_of("proj", "other") == "normal"
    assert RIGHTS.qos_of("proj", "gpu") == ""


def test_a_qos_replaces_the_limit_of_an_account() -> None:
    assert RIGHTS.qos["normal"].flags == ("DenyOnLimit", "OverPartQOS")
    assert RIGHTS.most_time("proj", "gpu", "normal") == ("QOS normal", TimeLimit(86400))
    assert RIGHTS.most_time("proj", "gpu", "long") == ("account proj", TimeLimit(1200))
    assert RIGHTS.most_time("proj", "gpu", "short") == ("account proj", TimeLimit(1200))
    precedences = [("normal", "brief"), ("brief", "normal")]
    owners = [
        RIGHTS.most_time("proj", "gpu", qos, of_partition=own_qos)[0]
        for qos, own_qos in precedences
    ]
    assert owners == ["QOS normal", "QOS normal"]
    assert RIGHTS.above("proj") == ["proj", "top", "root"]
