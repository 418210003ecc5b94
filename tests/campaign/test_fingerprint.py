"""Fingerprints, read from anything and held against each other."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbert.campaign.fingerprint import (
    LARGEST,
    Fingerprint,
    NodeSample,
    find_differences_between,
    find_differences_within,
    list_nodes,
    parse,
)
from tests.kit.campaigns import NODE, node, raw, write_nodes

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


def parse_fingerprint(name: str = "n1", **changes: Any) -> Fingerprint:
    (fingerprint,) = parse(raw(name, **changes))
    return fingerprint


def sample_nodes(*nodes: Fingerprint, repeat: int = 1, point: str = "2n8g") -> list[NodeSample]:
    return [NodeSample(point, repeat, fingerprint) for fingerprint in nodes]


def test_a_node_in_facts() -> None:
    facts = parse_fingerprint().facts
    assert facts["GPUs"] == "8"
    assert facts["GPU"] == "NVIDIA A100-SXM4-80GB"
    assert facts["GPU power limit, W"] == "400.00"
    assert facts["memory, GiB"] == "1024"
    assert facts["network"] == "1 x 25000 Mb/s, MTU 1500"
    assert facts["InfiniBand"] == "1 x 200 Gb/sec (4X HDR), InfiniBand"
    assert facts["image"] == "sha256 0123456789ab"
    assert facts["package torch"] == "2.7.0a0+7c8ec84dab.nv25.03"
    assert facts["library libnccl"] == "2.25.1"
    assert facts["variable NCCL_DEBUG"] == "WARN"
    assert parse_fingerprint().summary == (
        "8 x NVIDIA A100-SXM4-80GB, driver 535.104.05, CUDA 12.2, AMD EPYC 7742, 1024 GiB, "
        "Linux 5.15.0-100, image sha256 0123456789ab"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": "n9"},
        {"host__memory_kb": "1055000000"},
        {"host__network": ["ens1f0 physical 25000 1500 up", "eth9 physical 100 1500 down"]},
        {"image__environment__CUDA_VISIBLE_DEVICES": "3"},
        {"image__environment__NCCL_SOCKET_IFNAME": "eth7"},
        {"image__environment__SLURM_JOB_ID": "12"},
        {"image__environment__OTHER": "x"},
        {"host__topology": ["x"]},
    ],
)
def test_what_does_not_matter(changes: dict[str, Any]) -> None:
    assert parse_fingerprint(**changes).digest == parse_fingerprint().digest
    assert not find_differences_within(
        sample_nodes(parse_fingerprint(), parse_fingerprint("n2", **changes))
    )


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"host__gpus": NODE["host"]["gpus"][:7]}, "GPUs"),
        ({"host__kernel": "5.15.0-101"}, "kernel"),
        ({"host__cpu": "Intel"}, "CPU"),
        ({"host__memory_kb": "528000000"}, "memory, GiB"),
        ({"host__infiniband": []}, ""),
        ({"host__infiniband": ["a:1|InfiniBand|100 Gb/sec (2X HDR)|4: ACTIVE"]}, "InfiniBand"),
        ({"host__cuda_driver": "12.4"}, "CUDA driver"),
        ({"image__reference": "a@sha256:" + "1" * 64}, "image"),
        ({"image__packages": ["torch-2.6.0", "numpy-1.26.4"]}, "package torch"),
        ({"image__packages": ["numpy-1.26.4"]}, "package torch"),
        ({"image__libraries": ["libnccl.so.2.21.5"]}, "library libnccl"),
        ({"image__environment__NCCL_ALGO": "Ring"}, "variable NCCL_ALGO"),
        ({"image__environment__NCCL_DEBUG": None}, "variable NCCL_DEBUG"),
        ({"image__environment__OMP_NUM_THREADS": "4"}, "variable OMP_NUM_THREADS"),
        ({"image__environment__PYTORCH_VERSION": "2"}, "variable PYTORCH_VERSION"),
    ],
)
def test_what_matters(changes: dict[str, Any], fact: str) -> None:
    differences = find_differences_within(
        sample_nodes(parse_fingerprint(), parse_fingerprint("n2", **changes))
    )
    assert [difference.fact for difference in differences] == ([fact] if fact else [])
    if fact:
        assert parse_fingerprint(**changes).digest != parse_fingerprint().digest
        assert differences[0].scope == "nodes"


def test_repeats_that_differ_although_their_nodes_agree() -> None:
    new = {"host__kernel": "6.1"}
    runs = [
        *sample_nodes(parse_fingerprint(), parse_fingerprint("n2")),
        *sample_nodes(parse_fingerprint(**new), parse_fingerprint("n2", **new), repeat=2),
    ]
    (difference,) = find_differences_within(runs)
    assert difference.scope == "repeats"
    assert difference.values == (("5.15.0-100", ("repeat 1",)), ("6.1", ("repeat 2",)))


def test_points_that_differ_but_for_the_number_of_gpus() -> None:
    node_samples = sample_nodes(
        parse_fingerprint(host__gpus=NODE["host"]["gpus"][:1]), point="1n1g"
    )
    (difference,) = find_differences_between(
        node_samples, sample_nodes(parse_fingerprint(host__kernel="6.1"))
    )
    assert (difference.fact, difference.scope) == ("kernel", "points")
    assert difference.values == (("5.15.0-100", ("1n1g",)), ("6.1", ("2n8g",)))
    assert not find_differences_between([], node_samples)
    assert not find_differences_between(node_samples, node_samples)


def test_what_is_mixed_within_a_point_says_nothing_of_two() -> None:
    mixed = sample_nodes(parse_fingerprint(), parse_fingerprint("n2", host__kernel="6.1"))
    assert not find_differences_between(sample_nodes(parse_fingerprint(), point="1n1g"), mixed)


def test_what_nobody_could_tell_differs_from_nothing() -> None:
    assert not find_differences_within(
        sample_nodes(
            parse_fingerprint(), parse_fingerprint("n2", host__cuda_driver=None, host__gpus=None)
        )
    )
    assert not find_differences_within(
        sample_nodes(parse_fingerprint(), parse_fingerprint("n2", image=None))
    )


@given(JSON, JSON, JSON)
def test_any_json_is_answered(host: Any, image: Any, gpus: Any) -> None:
    data = {**node(), "host": host, "image": image}
    for document in (data, {**node(), "host": {"gpus": gpus, "network": gpus, "memory_kb": image}}):
        (fingerprint,) = parse(json.dumps(document).encode())
        assert len(fingerprint.digest) == 12
        assert isinstance(fingerprint.summary, str)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b'{"nodes":"n1"}',
        b'{"nodes":3,"host":{}}',
        b'{"nodes":"n1","image":{"os":"x"}}',
        b"[" * 100_000,
        b'{"nodes":"n1","host":{},"x":"' + b"a" * LARGEST + b'"}',
        b"\xff\xfe",
    ],
)
def test_what_is_none_is_none(content: bytes) -> None:
    assert parse(content) == ()


def test_equal_nodes_are_one_fingerprint() -> None:
    """What only one node has is in lines of its own; a node without a host's part is left out."""
    lines = [
        {"nodes": "n3 n1 n2", "host": {"kernel": "6.1"}},
        {"nodes": "n1", "host": {"memory_kb": "1055916032"}},
        {"nodes": "n2", "host": {"memory_kb": "1055916000"}},
        {"nodes": "n3", "host": {"memory_kb": "2111832064"}},
        {"nodes": "n1 n2 n3 n4", "image": {"environment": {"NCCL_ALGO": "Ring"}}},
    ]
    raw_lines = b"\n".join(json.dumps(line).encode() for line in lines)
    pair, single = parse(b'{"nodes":"n1",cut\n' + raw_lines)
    assert (pair.nodes, single.nodes) == (("n1", "n2"), ("n3",))
    assert pair.facts == {"kernel": "6.1", "memory, GiB": "1024", "variable NCCL_ALGO": "Ring"}
    assert list_nodes((pair, single)) == (
        ("n1", pair.digest), ("n2", pair.digest), ("n3", single.digest)
    )  # fmt: skip


def test_facts_are_bounded() -> None:
    many = {f"NCCL_X{number}": "y" * 500 for number in range(1500)}
    fingerprint = parse_fingerprint(image__environment=many)
    assert len(fingerprint.facts) <= 1000
    assert all(len(text) <= 200 for text in fingerprint.facts.values())


# --- Collected ------------------------------------------------------------------------------------


@pytest.fixture
def built(build: Any) -> Any:
    """A campaign of the local scheduler, so that nobody has to be asked for states."""
    built = build("1n1g", "2n2g", repeats=2, scheduler="local")
    for repeat in (1, 2):
        for shape, rate in (("1n1g", 10.0), ("2n2g", 38.0)):
            built.complete(shape, repeat, rate)
            names = ("n1",) if shape == "1n1g" else ("n1", "n2")
            write_nodes(
                built.directory, built.array(shape), repeat, *(node(name) for name in names)
            )
    return built


def find_row(document: dict[str, Any], shape: str) -> dict[str, Any]:
    (table,) = document["data"]["tables"]
    match: dict[str, Any] = next(entry for entry in table["rows"] if entry["shape"] == shape)
    return match


def test_equal_nodes_are_no_news(built: Any, collect_json: Any) -> None:
    document = collect_json(built.directory)
    for shape in ("1n1g", "2n2g"):
        assert find_row(document, shape)["flags"] == []
        assert find_row(document, shape)["differences"] == []
    nodes = find_row(document, "2n2g")["runs"][0]["environments"]
    assert [entry["node"] for entry in nodes] == ["n1", "n2"]
    assert len({entry["digest"] for entry in nodes}) == 1


def test_a_node_with_another_driver_is_flagged_in_every_format(built: Any, collect: Any) -> None:
    escape = "\x1b[31m"
    other = node("n2", host__cuda_driver=f"12.4{escape}|=1")
    write_nodes(built.directory, built.array("2n2g"), 2, other)
    document = json.loads(collect(built.directory, "--json").stdout)
    point = find_row(document, "2n2g")
    assert point["flags"] == ["mixed-environment"]
    assert point["differences"] == [
        {
            "fact": "CUDA driver",
            "scope": "nodes",
            "values": [
                {"value": "12.2", "of": ["n1", "n2"]},
                {"value": f"12.4{escape}|=1", "of": ["n2"]},
            ],
        }
    ]
    assert point["median"] is not None
    text = collect(built.directory).stdout
    assert "! CUDA driver differs between nodes: 12.2 (n1, n2); 12.4�[31m|=1 (n2)" in text
    markdown = collect(built.directory, "--format", "markdown").stdout
    assert (
        "* 2n2g: CUDA driver differs between nodes: 12.2 (n1, n2); 12.4�\\[31m\\|=1 (n2)"
        in markdown
    )
    lines = list(csv.DictReader(io.StringIO(collect(built.directory, "--format", "csv").stdout)))
    assert lines[1]["flags"] == "mixed-environment"
    assert lines[1]["differences"].startswith("CUDA driver differs")
    for form in ("text", "markdown", "csv"):
        assert escape not in collect(built.directory, "--format", form).stdout


def test_a_point_on_another_kernel_than_the_baseline_is_flagged(
    built: Any, collect_json: Any
) -> None:
    for repeat in (1, 2):
        nodes = [node(name, host__kernel="6.8") for name in ("n1", "n2")]
        write_nodes(built.directory, built.array("2n2g"), repeat, *nodes)
    document = collect_json(built.directory)
    assert find_row(document, "1n1g")["flags"] == []
    assert find_row(document, "2n2g")["differences"][0]["scope"] == "points"


def test_runs_that_do_not_count_are_not_compared(built: Any, collect_json: Any) -> None:
    built.log("2n2g", 2, built.text("2n2g", 38.0, last=3))
    write_nodes(built.directory, built.array("2n2g"), 2, node("n1", host__kernel="6.8"))
    assert "mixed-environment" not in find_row(collect_json(built.directory), "2n2g")["flags"]


def test_damaged_and_hostile_files_are_passed_over(built: Any, collect_json: Any) -> None:
    folder = built.directory / "env"
    key = built.array("2n2g").point.key
    (folder / f"{key}.1.0.nodes.jsonl").write_bytes(b"\x80\x04\x95.")
    (folder / f"{key}.2.0.nodes.jsonl").unlink()
    (folder / f"{key}.2.0.nodes.jsonl").mkdir()
    document = collect_json(built.directory)
    assert document["exit_code"] == 0
    assert find_row(document, "2n2g")["runs"][0]["environments"] == []
