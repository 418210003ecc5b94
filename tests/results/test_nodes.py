"""Slow nodes: no false alarm in clean sets, 10 % less is seen, and what can't be told is not."""

from math import exp
from random import Random

import pytest

from hpcbert.results.document import NodeFacts, ResultSet, Source
from hpcbert.results.nodes import MAX_FALSE_ALARM, compare_nodes, find_detectable, list_history
from hpcbert.results.reduce import tabulate
from tests.kit.cli import run
from tests.results.test_reduce import make_point, make_run


@pytest.mark.slow
def test_slow_nodes_are_named_and_false_alarms_are_as_rare_as_stated():
    def make_rates(random, nodes, spread, **shares):
        """Return the rates of five runs on each node; of some, a share of the others'."""
        means = {f"n{n}": 100 * shares.get(f"n{n}", 1.0) for n in range(1, nodes + 1)}
        return {n: [means[n] * exp(random.gauss(0, spread)) for _ in range(5)] for n in means}

    def list_slow(rates, within=0.02):
        verdicts = compare_nodes(rates, within).verdicts
        return [verdict.node for verdict in verdicts if verdict.state == "slower"]

    for nodes, spread in ((4, 0.005), (4, 0.02), (16, 0.02)):
        random = Random(nodes)
        for _ in range(12):
            rates = make_rates(random, nodes, spread)
            assert list_slow(rates) == [], (nodes, spread)
            rates["n2"] = [0.9 * rate for rate in rates["n2"]]
            assert list_slow(rates) == ["n2"], (nodes, spread)
    # Most runs are steady, some lose a lot: nothing like a normal distribution.
    for nodes in (2, 8):
        random, alarms = Random(1), 0
        for _ in range(500):
            losses = [random.choice((0, 0.01, 0.3)) * random.random() for _ in range(5 * nodes)]
            rates = {f"n{n}": [1 - loss for loss in losses[n::nodes]] for n in range(nodes)}
            alarms += bool(list_slow(rates, within=0))
        assert alarms <= 750 * MAX_FALSE_ALARM, nodes
    # Too few runs give no verdict.
    for counts, states in (
        ((5, 5), {"like", "slower"}), ((4, 4), {"unknown"}), ((5, 3), {"unknown"}),
        ((5,), {"unknown"}), ((5, 5, 5, 1), {"like", "slower", "unknown"}),
    ):  # fmt: skip
        rates = make_rates(Random(2), len(counts), 0.005, n1=0.8)
        rows = zip(rates.items(), counts, strict=True)
        comparison = compare_nodes({node: runs[:count] for (node, runs), count in rows}, 0.02)
        assert {verdict.state for verdict in comparison.verdicts} == states
        assert (comparison.false_alarm is None) == (states == {"unknown"})
    for nodes, spread, loss in ((2, 0.01, 0.04), (4, 0.01, 0.04), (4, 0.03, 0.09), (4, 0.3, None)):
        assert find_detectable((5,) * nodes, spread, 0.02) == loss
    # A quarter may be slow, and a difference that counts as equal names nobody.
    assert list_slow(make_rates(Random(4), 8, 0.01, n3=0.9, n7=0.9)) == ["n3", "n7"]
    rates = make_rates(Random(3), 4, 0.0005, n4=0.985)
    assert (list_slow(rates), list_slow(rates, within=0.01)) == ([], ["n4"])


def test_a_node_is_compared_with_its_campaign_before():
    def make_results(day, driver, shape="1n1g", **rates):
        runs = tuple(make_run(n, rates[node], nodes=(node,)) for n, node in enumerate(rates, 1))
        facts = NodeFacts("d", tuple(rates), {"GPU driver": driver, "GPU": "A100"})
        created = f"2026-11-{day:02}T10:00:00Z"
        environments = (facts,) if driver else ()
        source = Source("campaign", f"c{day}", created=created, environments=environments)
        return ResultSet(tabulate([make_point(shape, runs=runs)]), sources=(source,))

    records = list_history([
        make_results(23, "560", n1=99.0),
        make_results(21, "550", n1=100.0, n2=80.0),
        make_results(22, "", n1=90.0),
        make_results(24, "570", "2n1g", n1=200.0),
        make_results(25, "570", "1n8g", n1=800.0),
    ])  # fmt: skip
    medians = [f"{record.node} {record.campaign} {record.median:g}" for record in records]
    assert medians == ["n1 c21 100", "n1 c22 90", "n1 c23 99", "n1 c25 800", "n2 c21 80"]
    assert [record.ratio for record in records] == pytest.approx([None, 0.9, 1.1, None, None])
    # A campaign without facts in between says nothing.
    changes = [list(map(str, record.changes)) for record in records]
    assert changes == [[], [], ["GPU driver: 550 → 560"], [], []]


def test_a_node_without_runs_is_refused_and_a_damaged_campaign_is_a_warning(build):
    built = build("1n1g", name="20261121T100000Z-pytorch-3f9a1c", jobs=("7",))
    words = ("--runs", built.directory.parent)
    assert run("nodes", *words).returncode == 0
    assert "n9" in run("nodes", "n9", *words, status=2).stderr
    (built.directory / "manifest.json").write_text("{")
    damaged = run("nodes", *words, "--json").document
    assert damaged["exit_code"] == 0
    assert "left out" in damaged["warnings"][0]
