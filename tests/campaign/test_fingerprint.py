"""Fingerprints, read from anything and compared with each other."""

import csv
import io
import json

import pytest
from hypothesis import given

from hpcbert.campaign import fingerprint
from tests.kit.campaigns import node, write_nodes
from tests.kit.cases import ANY_JSON, cases, read_constant
from tests.kit.cli import rows


def parse(name="n1", **changes):
    (result,) = fingerprint.parse(json.dumps(node(name, **changes)).encode())
    return result


def sample_nodes(*nodes, repeat=1, point="2n8g"):
    return [fingerprint.NodeSample(point, repeat, facts) for facts in nodes]


def test_a_node_in_facts_and_damaged_content_in_none():
    facts, expected = parse().facts, read_constant(__file__, "FACTS")
    assert {name: facts[name] for name in expected} == expected
    assert parse().summary == read_constant(__file__, "SUMMARY")
    many = {f"NCCL_X{number}": "y" * 500 for number in range(1500)}
    bounded = parse(image__environment=many).facts
    assert (len(bounded), max(map(len, bounded.values()))) == (1000, 200)
    # Equal nodes are one fingerprint; a node without a host's part is left out.
    lines = read_constant(__file__, "NODES")
    content = "\n".join(['{"nodes":"n1",cut', *map(json.dumps, lines)])
    pair, single = fingerprint.parse(content.encode())
    assert (pair.nodes, single.nodes) == (("n1", "n2"), ("n3",))
    assert pair.facts == {"kernel": "6.1", "memory, GiB": "1024", "variable NCCL_ALGO": "Ring"}
    digests = (("n1", pair.digest), ("n2", pair.digest), ("n3", single.digest))
    assert fingerprint.list_nodes((pair, single)) == digests
    for damaged in (
        *(b"", b"[]", b'{"nodes":"n1"}', b'{"nodes":3,"host":{}}', b"[" * 100_000, b"\xff\xfe"),
        b'{"nodes":"n1","image":{"os":"x"}}',
        b'{"nodes":"n1","host":{},"x":"' + b"a" * fingerprint.LARGEST + b'"}',
    ):
        assert fingerprint.parse(damaged) == ()


@cases
def test_what_matters_is_a_difference(changes, fact):
    differences = fingerprint.find_differences_within(sample_nodes(parse(), parse("n2", **changes)))
    assert [difference.fact for difference in differences] == ([fact] if fact else [])
    assert (parse(**changes).digest != parse().digest) is bool(fact)
    assert not fact or differences[0].scope == "nodes"


def test_a_node_whose_image_is_unknown_differs_from_no_other():
    assert not fingerprint.find_differences_within(sample_nodes(parse(), parse("n2", image=None)))


@given(ANY_JSON, ANY_JSON, ANY_JSON)
def test_any_json_is_answered(host, image, gpus):
    parts = {"gpus": gpus, "network": gpus, "memory_kb": image}
    for document in ({**node(), "host": host, "image": image}, {**node(), "host": parts}):
        (result,) = fingerprint.parse(json.dumps(document).encode())
        assert (len(result.digest), type(result.summary)) == (12, str)


@pytest.fixture
def built(build):
    """A campaign of the local scheduler, so that nobody has to be asked for states."""
    built = build("1n1g", "2n2g", repeats=2, scheduler="local")
    gpu = node()["host"]["gpus"][:1]
    for repeat in (1, 2):
        built.complete("1n1g", repeat, 10.0)
        built.complete("2n2g", repeat, 38.0)
        write_nodes(built.directory, built.array("1n1g"), repeat, node("n1", host__gpus=gpu))
        write_nodes(built.directory, built.array("2n2g"), repeat, node("n1"), node("n2"))
    return built


def test_another_kernel_is_a_difference_and_equal_nodes_or_damaged_files_are_none(
    built, collect_json
):
    document = collect_json(built.directory)
    for row in rows(document):
        assert (row["flags"], row["differences"]) == ([], [])
    nodes = rows(document)[1]["runs"][0]["environments"]
    assert [entry["node"] for entry in nodes] == ["n1", "n2"]
    assert len({entry["digest"] for entry in nodes}) == 1
    # A point on another kernel than the baseline is flagged; runs that are invalid are not compared.
    (built.directory / "measurements.json").unlink()
    for repeat in (1, 2):
        nodes = [node(name, host__kernel="6.8") for name in ("n1", "n2")]
        write_nodes(built.directory, built.array("2n2g"), repeat, *nodes)
    document = collect_json(built.directory)
    assert rows(document)[0]["flags"] == []
    values = [{"value": "5.15.0-100", "of": ["1n1g"]}, {"value": "6.8", "of": ["2n2g"]}]
    difference = {"fact": "kernel", "scope": "points", "values": values}
    assert rows(document)[1]["differences"] == [difference]
    write_nodes(built.directory, built.array("2n2g"), 2, node("n1"), node("n2"))
    built.log("2n2g", 1, built.text("2n2g", 38.0, last=3))
    assert rows(collect_json(built.directory))[1]["differences"] == []
    # Damaged files are skipped.
    (built.directory / "measurements.json").unlink()
    key = built.array("2n2g").point.key
    first, second = (built.directory / f"env/{key}.{number}.0.nodes.jsonl" for number in (1, 2))
    first.write_bytes(b"\x80\x04\x95.")
    second.unlink()
    second.mkdir()
    built.complete("2n2g", 1, 38.0)
    document = collect_json(built.directory)
    environments = rows(document)[1]["runs"][0]["environments"]
    assert (document["exit_code"], environments) == (0, [])


def test_a_node_with_another_driver_is_flagged_in_every_format(built, collect):
    driver = "12.4\x1b[31m|=1"
    write_nodes(built.directory, built.array("2n2g"), 2, node("n2", host__cuda_driver=driver))
    point = rows(collect(built.directory, "--json").document)[1]
    assert (point["flags"], point["median"] is None) == (["mixed-environment"], False)
    values = [{"value": "12.2", "of": ["n1", "n2"]}, {"value": driver, "of": ["n2"]}]
    assert point["differences"] == [{"fact": "CUDA driver", "scope": "nodes", "values": values}]
    text, markdown, table = (
        collect(built.directory, "--format", form).stdout for form in ("text", "markdown", "csv")
    )
    assert "2n2g: CUDA driver differs between nodes: 12.2 (n1, n2); 12.4�[31m|=1 (n2)" in text
    sentence = "CUDA driver differs between nodes: 12.2 (n1, n2); 12.4�\\[31m\\|=1 (n2)"
    assert f"* 2n2g: {sentence}" in markdown
    line = list(csv.DictReader(io.StringIO(table)))[1]
    assert line["flags"] == "mixed-environment"
    assert line["differences"].startswith("CUDA driver differs")
    assert "\x1b" not in text + markdown + table
