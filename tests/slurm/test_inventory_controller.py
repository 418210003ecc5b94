"""What a cluster has and allows, as its own commands print it. Tables are as 22.05.8 prints them;
24.11 and 26.05 have the same keys and more."""

from typing import Any

import pytest

from hpcbert.slurm import inventory
from hpcbert.slurm.inventory import parse_resources, read_associations, read_config, read_mpi
from hpcbert.timelimit import TimeLimit
from tests.kit.cases import cases, read_constant


@cases
def test_every_spelling_of_a_resource(text, expected: list[Any]):
    assert list(parse_resources(text)) == [inventory.Resource(*fields) for fields in expected]


@cases
def test_slices_are_told_from_gpus(text, *, sliced):
    assert [resource.sliced for resource in parse_resources(text)] == [sliced]


@cases
def test_what_a_key_of_the_controller_means(line, name, expected):
    value = getattr(read_config(line), name)
    assert (tuple(sorted(value)) if name == "enforced" else value) == expected


@pytest.mark.site("Slurm 20.11 and 21.08 (scripted)")
@cases
def test_types_of_mpi(text, types):
    assert read_mpi(f"\n{text}") == read_mpi(f"Notice\n{text}Ends at\n9:00.\n") == types


def test_partitions_of_the_controller():
    rules = inventory.read_rules(read_constant(__file__, "PARTITIONS"))
    assert set(rules) == {"gpu", "big"}
    gpu, big = rules["gpu"], rules["big"]
    assert (gpu.accounts, gpu.qos, gpu.own_qos, gpu.memory, gpu.reserved) == ((), (), "", "", False)
    assert (gpu.partition.default, gpu.partition.exact) == (True, False)
    (group,) = gpu.partition.groups
    assert (group.count, group.names) == (2, ("n1", "n2"))
    assert [(resource.kind, resource.count) for resource in group.resources] == [("", 8)]
    assert (big.accounts, big.denied_qos, big.groups) == (("a", "b"), ("low",), ("ml",))
    assert (big.own_qos, big.memory) == ("capped", "DefMemPerCPU=4000")
    assert (big.partition.limit, big.partition.most_nodes) == (TimeLimit(86400), 4)
    assert (big.partition.state, big.reserved) == ("drain", True)
    resources = big.partition.groups[0].resources
    assert [(resource.kind, resource.count) for resource in resources] == [("h100", 8)]
    assert [big.takes_qos(account) for account in ("low", "normal")] == [False, True]
    by_gpu = "PartitionName=a JobDefaults=DefMemPerGPU=9 DefMemPerNode=UNLIMITED\n"
    assert inventory.read_rules(by_gpu)["a"].memory == "DefMemPerGPU=9"


def test_rights_of_a_user_and_the_qos_that_replaces_the_limit_of_an_account():
    rights = inventory.Rights(
        own=read_associations("proj|me||gpu|normal,long||00:20:00\nproj|me|||normal|normal|\n"),
        accounts=read_associations("root||||||\nproj||top||normal||\ntop||root||||"),
        qos=inventory.read_qos(read_constant(__file__, "QOS")),
        default=inventory.read_default("you|x\nme|proj\n", "me"),
        known=True,
    )
    association = rights.of("", "gpu")
    assert association is not None
    assert rights.default == "proj"
    assert (association.qos, association.limit) == (("normal", "long"), TimeLimit(1200))
    assert (rights.of("proj", "other"), rights.of("none")) == (rights.own[1], None)
    assert [rights.qos_of("proj", name) for name in ("other", "gpu")] == ["normal", ""]
    assert rights.qos["normal"].flags == ("DenyOnLimit", "OverPartQOS")
    limits = [rights.most_time("proj", "gpu", qos) for qos in ("normal", "long", "short")]
    assert limits == [("QOS normal", TimeLimit(86400)), *[("account proj", TimeLimit(1200))] * 2]
    for qos, of_partition in (("normal", "brief"), ("brief", "normal")):
        limit = rights.most_time("proj", "gpu", qos, of_partition=of_partition)
        assert limit[0] == "QOS normal"
    assert rights.above("proj") == ["proj", "top", "root"]
