"""Why the efficiency is what it is: each sentence by its numbers, and what is missing."""

from collections import defaultdict
from dataclasses import replace

import pytest

from hpcbert.cli.explain import read_bandwidths
from hpcbert.model import Reason, Shape, Steps
from hpcbert.results.explain import explain
from tests.kit.campaigns import collect_campaigns, report_states
from tests.kit.cases import cases
from tests.kit.cli import run
from tests.results.test_reduce import GROUP, make_point, make_run, make_table


def explain_points(*points, bandwidths=None, waits=None):
    """Return what is observed of points, by what it is about."""
    observations = defaultdict(list)
    for entry in explain(make_table(*points), bandwidths=bandwidths or {}, waits=waits or {}):
        observations[entry.about].append(entry)
    return observations


def test_what_is_lost_inside_and_between_nodes_by_uneven_steps_and_by_waits():
    speeds = {"1n1g": 100.0, "1n8g": 720.0, "2n8g": 1296.0, "4n8g": 2304.0}
    observations = explain_points(*(make_point(shape, [speeds[shape]]) for shape in speeds))
    (inside,), between = observations["node"], observations["nodes"]
    assert inside.numbers["lost"] == pytest.approx(0.1)
    assert "Inside a node 1n8g loses 10.0%" in inside.text
    assert [entry.numbers["lost"] for entry in between] == pytest.approx([0.1, 0.2])
    assert "4n8g loses 20.0%" in between[1].text
    (nothing,) = explain_points(make_point("1n1g", [None]))["nodes"]
    assert "No point has a number" in nothing.text
    uneven, even = (Steps((1, 2, 3), (0.1, 0.1, last), 0, 3) for last in (0.15, 0.101))
    point = make_point("1n8g", [400.0], steps=((1, uneven),))
    observations = explain_points(point, waits={Shape(1, 8): [0.2, 0.1, 0.4]})
    assert "one in twenty takes 150.0 ms or more, 50% longer" in observations["steps"][0].text
    assert "1n8g waited 20.0% of the time" in observations["input"][0].text
    assert "steps" not in explain_points(make_point("1n8g", [400.0], steps=((1, even),)))


@cases
def test_what_is_missing_is_a_run_to_make_of_the_same_point(shapes, changes, about, command):
    group = replace(GROUP, **(changes or {}))
    observations = explain_points(*(make_point(shape, [100.0], group=group) for shape in shapes))
    (missing,) = [observation for observation in observations[about] if observation.missing]
    assert command in f"{missing.text} "
    assert not missing.numbers


@cases
def test_all_reduce_alone_against_what_a_step_lost(speed, words):
    """An accumulated step reduces once in so many."""

    def explain_all_reduce(variant):
        group, speeds = replace(GROUP, variant=variant), {"1n8g": 400.0, "2n8g": speed}
        points = [make_point(shape, [speeds[shape]], group=group) for shape in speeds]
        return explain_points(*points, bandwidths={Shape(2, 8): 10.0})["all-reduce"]

    (entry,) = explain_all_reduce("")
    alone = 2 * 15 / 16 * 110_106_428 * 4 / 10e9
    lost = 16 * 32 / speed - 8 * 32 / 400.0
    assert entry.numbers["alone_seconds"] == pytest.approx(alone)
    assert entry.numbers["lost_seconds"] == pytest.approx(lost)
    assert words.format(hidden=f"{1 - lost / alone:.0%}") in entry.text
    (four,) = explain_all_reduce("acc4,xla")
    assert four.numbers["lost_seconds"] == pytest.approx(4 * lost)
    assert four.numbers["alone_seconds"] == entry.numbers["alone_seconds"]


def test_the_node_without_which_the_median_rises():
    def explain_runs(*rows, shape="2n8g"):
        """Return what is observed of runs of these speeds on these nodes, a letter each."""
        runs = [make_run(n, speed, nodes=tuple(nodes)) for n, (speed, nodes) in enumerate(rows, 1)]
        return explain_points(make_point(shape, runs=tuple(runs)))["slow-node"]

    uneven = ((90.0, "ag"), (100.0, "ab"), (101.0, "cd"), (91.0, "bg"), (89.0, "cg"), (None, "ae"))
    (slow,) = explain_runs(*uneven)
    assert "Without the runs on g the median of 2n8g would be 100.50" in slow.text
    assert slow.numbers["gain"] == pytest.approx(100.5 / 91 - 1)
    assert slow.numbers["runs_without"] == 2
    (none,) = explain_runs((100.1, "ab"), (100.2, "bc"), (100.3, "cd"), (100.4, "da"))
    assert "No node of 2n8g stands out" in none.text
    runs = [(100.0, "ab")] * 3
    (same,) = explain_runs(*runs)
    assert same.missing
    assert "--repeats-in array" in same.text
    assert explain_runs(*runs, shape="1n8g") == []
    (odd,) = explain_runs((50.0, "\x1b"), (100.0, "b"), (100.0, "c"), (50.0, "\x1b"), shape="1n8g")
    assert odd.text.isprintable()


def test_bandwidth_is_what_nccl_tests_runs_say():
    reason = Reason("rule", "busbw-32M is 11.5 GB/s, which is not a throughput")
    runs = tuple(make_run(n, None, reasons=(reason,)) for n in (1, 2))
    table = make_table(make_point("2n8g", runs=runs))
    assert read_bandwidths([table]) == {Shape(2, 8): 11.5}


def test_the_text_says_what_is_lost_and_which_run_is_missing(build, empty_directory):
    built = build("1n1g", "1n4g", repeats=3).finish()
    collect_campaigns(built.directory, states=report_states())
    text = run("explain", built.directory).stdout
    assert "Inside a node" in text
    assert "? Between nodes the loss of 2n4g is unknown without a run of 2n4g" in text
