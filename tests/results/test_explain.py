"""Why the efficiency is what it is: each sentence by its numbers, and what is missing."""

from collections import defaultdict
from dataclasses import replace

import pytest

from hpcbert.cli.explain import read_bandwidths
from hpcbert.logs.input_wait import read_wait_share
from hpcbert.model import Metrics, Reason, RepeatCount, Row, Shape, SpeedupTable
from hpcbert.results.explain import count_parameters, explain
from hpcbert.results.metrics import find_model
from tests.kit.campaigns import collect_campaigns, report_states
from tests.kit.cases import cases
from tests.kit.cli import run
from tests.kit.paths import TEMPLATES
from tests.results.test_reduce import GROUP, make_run


def make_row(shape, speed, *runs, metrics=None):
    count = RepeatCount(len(runs), len(runs))
    return Row(Shape.parse(shape), speed, count, runs=runs, metrics=metrics)


def explain_rows(*rows, bandwidths=None, waits=None, **changes):
    """Return what is observed of rows, by what it is about."""
    observations = defaultdict(list)
    table = SpeedupTable(replace(GROUP, **changes), None, rows)
    for entry in explain(table, bandwidths=bandwidths or {}, waits=waits or {}):
        observations[entry.about].append(entry)
    return observations


@cases
def test_the_command_for_a_missing_run_measures_the_same_point(changes, words):
    assert words in explain_rows(make_row("1n1g", 1.0), **changes)["nodes"][0].text


def test_what_is_lost_inside_and_between_nodes_by_uneven_steps_and_by_waits(tmp_path):
    speeds = {"1n1g": 100.0, "1n8g": 720.0, "2n8g": 1296.0, "4n8g": 2304.0}
    observations = explain_rows(*(make_row(shape, speed) for shape, speed in speeds.items()))
    (inside,), between = observations["node"], observations["nodes"]
    assert inside.numbers["lost"] == pytest.approx(0.1)
    assert "Inside a node 10.0% is lost" in inside.text
    assert [entry.numbers["lost"] for entry in between] == pytest.approx([0.1, 0.2])
    assert "4n8g loses 20.0%" in between[1].text
    (nothing,) = explain(SpeedupTable(GROUP, None, ()), bandwidths={}, waits={})
    assert "No point has a number" in nothing.text
    uneven = make_row("1n8g", 400.0, metrics=Metrics(step_seconds=0.1, step_seconds_p95=0.15))
    observations = explain_rows(uneven, waits={Shape(1, 8): [0.2, 0.1, 0.4]})
    assert "one in twenty takes 150.0 ms or more, 50% longer" in observations["steps"][0].text
    assert "1n8g waited 20.0% of the time" in observations["input"][0].text
    even = Metrics(step_seconds=0.1, step_seconds_p95=0.101)
    assert "steps" not in explain_rows(make_row("1n8g", 400.0, metrics=even))
    log = tmp_path / "x.log"
    text = (
        'step 1\nhpcbert-result {"iters": 120, "skip": 20, "samples_per_second": 9.0, '
        '"iteration_seconds_mean": 0.5, "data_wait_seconds": 10.0, "final_loss": 1.0}\n'
    )
    line = "global step: {}, loss: 1, avg_reader_cost: {} sec, avg_batch_cost: {} sec, ips: 1\n"
    paddle = "".join(line.format(*row) for row in ((1, 9.0, 10.0), (2, 0.1, 0.4), (3, 0.1, 0.4)))
    for content, share in (
        (text, 0.2), (paddle, 0.25), ("", None), ("hpcbert-result {}\n", None),
        (text.replace("10.0", "1e9"), None), (text.replace('"skip": 20', '"skip": 120'), None),
    ):  # fmt: skip
        log.write_text(content)
        assert read_wait_share(log) == (share and pytest.approx(share))
    assert read_wait_share(tmp_path / "absent") is None
    sample = read_wait_share(TEMPLATES / "paddle" / "sample.log")
    assert sample == pytest.approx(0.00007 / 0.1201, rel=0.5)


@cases
def test_what_is_missing_is_a_run_to_make(shapes, about, command):
    observations = explain_rows(*(make_row(shape, 100.0) for shape in shapes))
    (missing,) = [observation for observation in observations[about] if observation.missing]
    assert command in f"{missing.text} "
    assert not missing.numbers


@cases
def test_all_reduce_alone_against_what_a_step_lost(speed, words):
    """An accumulated step reduces once in so many."""
    rows = make_row("1n8g", 400.0), make_row("2n8g", speed)
    bandwidths = {Shape(2, 8): 10.0}
    (entry,) = explain_rows(*rows, bandwidths=bandwidths)["all-reduce"]
    alone = 2 * 15 / 16 * 110_106_428 * 4 / 10e9
    lost = 16 * 32 / speed - 8 * 32 / 400.0
    assert entry.numbers["alone_seconds"] == pytest.approx(alone)
    assert entry.numbers["lost_seconds"] == pytest.approx(lost)
    assert words.format(hidden=f"{1 - lost / alone:.0%}") in entry.text
    (four,) = explain_rows(*rows, variant="acc4,xla", bandwidths=bandwidths)["all-reduce"]
    assert four.numbers["lost_seconds"] == pytest.approx(4 * lost)
    assert four.numbers["alone_seconds"] == entry.numbers["alone_seconds"]


def test_the_node_without_which_the_median_rises():
    def make_runs(*runs):
        """Return runs of these speeds on these nodes."""
        rows = enumerate(runs, 1)
        return [make_run(n, speed, nodes=tuple(nodes.split())) for n, (speed, nodes) in rows]

    runs = make_runs(
        (90.0, "n1 n7"), (100.0, "n1 n2"), (101.0, "n3 n4"), (91.0, "n2 n7"), (89.0, "n3 n7"),
        (None, "n1 n5"),
    )  # fmt: skip
    (slow,) = explain_rows(make_row("1n8g", 400.0), make_row("2n8g", 91.0, *runs))["slow-node"]
    assert "Without the runs on n7 the median of 2n8g would be 100.50" in slow.text
    assert slow.numbers["gain"] == pytest.approx(100.5 / 91 - 1)
    assert slow.numbers["runs_without"] == 2
    runs = make_runs((100.1, "a b"), (100.2, "b c"), (100.3, "c d"), (100.4, "d a"))
    (none,) = explain_rows(make_row("2n8g", 100.25, *runs))["slow-node"]
    assert "No node of 2n8g stands out" in none.text
    runs = make_runs(*[(100.0, "a b")] * 3)
    (same,) = explain_rows(make_row("2n8g", 100.0, *runs))["slow-node"]
    assert same.missing
    assert "--repeats-in array" in same.text
    assert "slow-node" not in explain_rows(make_row("1n8g", 100.0, *runs))
    runs = make_runs((50.0, "\x1b[2J"), (100.0, "b"), (100.0, "c"), (50.0, "\x1b[2J"))
    assert explain_rows(make_row("1n8g", 75.0, *runs))["slow-node"][0].text.isprintable()


def test_bandwidth_is_what_nccl_tests_runs_say_and_weights_are_those_of_the_published_models():
    """BERT-Base has 110 million, BERT-Large 340 (Devlin et al. 2018, section 3, without heads)."""
    for name, count in (("bert-base", 110_106_428), ("bert-large", 336_226_108)):
        size = find_model(name)
        assert size
        assert count_parameters(size) == count
    reason = Reason("rule", "busbw-32M is 11.5 GB/s, which is not a throughput")
    runs = tuple(make_run(n, None, reasons=(reason,)) for n in (1, 2))
    table = SpeedupTable(GROUP, None, (make_row("2n8g", 1.0, *runs),))
    assert read_bandwidths([table]) == {Shape(2, 8): 11.5}


def test_the_command(build, empty_directory, tmp_path):
    built = build("1n1g", "1n4g", repeats=3)
    built.finish()
    collect_campaigns(built.directory, states=report_states())
    data = run("explain", built.directory, "--json").data
    assert {"node", "nodes", "input"} <= {entry["about"] for entry in data["tables"][0]["findings"]}
    run("archive", built.directory, "--output", tmp_path / "a.zip")
    assert run("explain", tmp_path / "a.zip", "--json").data == data
    text = run("explain", built.directory).stdout
    assert "Inside a node" in text
    assert "? The loss between nodes is unknown without a run of 2n4g" in text
