"""Why the efficiency is what it is: each sentence by its numbers, and what is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.cli.explain import read_bandwidths
from hpcbert.logs.input_wait import read_wait_share
from hpcbert.model import Group, Metrics, Reason, RepeatCount, Row, Run, Shape, SpeedupTable
from hpcbert.results.explain import Observation, count_parameters, explain
from hpcbert.results.metrics import find_model
from tests.kit.campaigns import Build, collect_campaigns, report_states
from tests.kit.cases import cases
from tests.kit.cli import run
from tests.kit.paths import TEMPLATES

GROUP = Group("oneflow", "bert-base", "fp32", 32, "rate")


def make_run(number: int, speed: float | None, nodes: str = "") -> Run:
    valid = speed is not None
    return Run(
        number, 0, speed, valid, (), "COMPLETED", "sacct", f"{number}.log", tuple(nodes.split())
    )


def make_row(shape: str, speed: float, *runs: Run, **changes: Any) -> Row:
    row = Row(Shape.parse(shape), speed, RepeatCount(len(runs), len(runs)), runs=runs)
    return replace(row, **changes)


def test_a_run_that_is_missing_is_of_the_same_device() -> None:
    observations = explain_rows(make_row("1n1g", 1.0), group=replace(GROUP, device="cpu"))
    assert observations["nodes"][0].text.endswith("--precision fp32 --batch-size 32 --device cpu")


@cases
def test_the_command_for_a_missing_run_measures_the_same_point(
    changes: dict[str, Any], words: str
) -> None:
    observations = explain_rows(make_row("1n1g", 1.0), group=replace(GROUP, **changes))
    assert words in observations["nodes"][0].text


def explain_rows(
    *rows: Row, group: Group = GROUP, bandwidths: dict[str, float] | None = None,
    waits: dict[str, list[float]] | None = None,
) -> dict[str, list[Observation]]:  # fmt: skip
    observations = explain(
        SpeedupTable(group, None, rows),
        bandwidths={Shape.parse(name): value for name, value in (bandwidths or {}).items()},
        waits={Shape.parse(name): value for name, value in (waits or {}).items()},
    )
    kinds: dict[str, list[Observation]] = {}
    for observation in observations:
        kinds.setdefault(observation.about, []).append(observation)
    return kinds


def test_what_is_lost_inside_and_between_nodes() -> None:
    observations = explain_rows(
        make_row("1n1g", 100.0),
        make_row("1n8g", 720.0),
        make_row("2n8g", 1296.0),
        make_row("4n8g", 2304.0),
    )
    assert observations["node"][0].numbers["lost"] == pytest.approx(0.1)
    assert "Inside a node 10.0 % is lost".replace(" %", "%") in observations["node"][0].text
    assert [observation.numbers["lost"] for observation in observations["nodes"]] == pytest.approx(
        [0.1, 0.2]
    )
    assert "4n8g loses 20.0%" in observations["nodes"][1].text


@cases
def test_what_is_missing_is_a_run_to_make(
    shapes: tuple[str, ...], about: str, command: str
) -> None:
    observations = explain_rows(*(make_row(shape, 100.0) for shape in shapes))
    (missing,) = [observation for observation in observations[about] if observation.missing]
    assert command in f"{missing.text} "
    assert not missing.numbers


def test_no_numbers_at_all() -> None:
    (finding,) = explain(SpeedupTable(GROUP, None, ()), bandwidths={}, waits={})
    assert "No point has a number" in finding.text


def test_weights_are_those_of_the_published_models() -> None:
    """BERT-Base has 110 million, BERT-Large 340 (Devlin et al. 2018, section 3, without heads)."""
    base, large = find_model("bert-base"), find_model("bert-large")
    assert base is not None
    assert large is not None
    assert count_parameters(base) == 110_106_428
    assert count_parameters(large) == 336_226_108


@cases
def test_all_reduce_alone_against_what_a_step_lost(speed: float, gb: float, words: str) -> None:
    observations = explain_rows(
        make_row("1n8g", 400.0), make_row("2n8g", speed), bandwidths={"2n8g": gb}
    )
    (finding,) = observations["all-reduce"]
    size = 110_106_428 * 4
    alone = 2 * 15 / 16 * size / 10e9
    lost = 16 * 32 / speed - 8 * 32 / 400.0
    assert finding.numbers["alone_seconds"] == pytest.approx(alone)
    assert finding.numbers["lost_seconds"] == pytest.approx(lost)
    if "79%" in words:
        words = f"{1 - lost / alone:.0%} of it is hidden"
    assert words in finding.text


def test_accumulation_reduces_once_in_so_many() -> None:
    group = replace(GROUP, variant="acc4,xla")
    (observation,) = explain_rows(
        make_row("1n8g", 400.0), make_row("2n8g", 790.0), bandwidths={"2n8g": 10.0}
    )["all-reduce"]
    (four,) = explain_rows(
        make_row("1n8g", 400.0), make_row("2n8g", 790.0), group=group, bandwidths={"2n8g": 10.0}
    )["all-reduce"]
    assert four.numbers["lost_seconds"] == pytest.approx(4 * observation.numbers["lost_seconds"])
    assert four.numbers["alone_seconds"] == observation.numbers["alone_seconds"]


def test_the_node_without_which_the_median_rises() -> None:
    runs = (
        make_run(1, 90.0, "n1 n7"), make_run(2, 100.0, "n1 n2"), make_run(3, 101.0, "n3 n4"), make_run(4, 91.0, "n2 n7"),
        make_run(5, 89.0, "n3 n7"), make_run(6, None, "n1 n5"),
    )  # fmt: skip
    (finding,) = explain_rows(make_row("1n8g", 400.0), make_row("2n8g", 91.0, *runs))["slow-node"]
    assert "Without the runs on n7 the median of 2n8g would be 100.50" in finding.text
    assert finding.numbers["gain"] == pytest.approx(100.5 / 91 - 1)
    assert finding.numbers["runs_without"] == 2


def test_no_node_stands_out() -> None:
    runs = tuple(
        make_run(n, 100.0 + n / 10, nodes)
        for n, nodes in enumerate(("a b", "b c", "c d", "d a"), 1)
    )
    (finding,) = explain_rows(make_row("2n8g", 100.25, *runs))["slow-node"]
    assert "No node of 2n8g stands out" in finding.text


def test_the_same_nodes_throughout() -> None:
    runs = tuple(make_run(number, 100.0, "a b") for number in (1, 2, 3))
    (finding,) = explain_rows(make_row("2n8g", 100.0, *runs))["slow-node"]
    assert finding.missing
    assert "--repeats-in array" in finding.text
    assert "slow-node" not in explain_rows(make_row("1n8g", 100.0, *runs))


def test_uneven_steps_and_waits() -> None:
    uneven = Metrics(step_seconds=0.1, step_seconds_p95=0.15)
    observations = explain_rows(
        make_row("1n8g", 400.0, metrics=uneven), waits={"1n8g": [0.2, 0.1, 0.4]}
    )
    assert "one in twenty takes 150.0 ms or more, 50% longer" in observations["steps"][0].text
    assert "1n8g waited 20.0% of the time" in observations["input"][0].text
    even = Metrics(step_seconds=0.1, step_seconds_p95=0.101)
    assert "steps" not in explain_rows(make_row("1n8g", 400.0, metrics=even))


def test_names_with_control_characters_are_plain() -> None:
    runs = tuple(
        make_run(n, speed, nodes) for n, (speed, nodes) in
        enumerate(((50.0, "\x1b[2J"), (100.0, "b"), (100.0, "c"), (50.0, "\x1b[2J")), 1)
    )  # fmt: skip
    observations = explain_rows(make_row("1n8g", 75.0, *runs))
    assert observations["slow-node"][0].text.isprintable()


# --- what logs and nccl-tests say -----------------------------------------------------------


def test_waits_of_the_reference(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text(
        'step 1\nhpcbert-result {"iters": 120, "skip": 20, "samples_per_second": 9.0, '
        '"iteration_seconds_mean": 0.5, "data_wait_seconds": 10.0, "final_loss": 1.0}\n'
    )
    assert read_wait_share(log) == pytest.approx(0.2)
    for text in ("", "hpcbert-result {}\n", log.read_text().replace("10.0", "1e9"),
                 log.read_text().replace('"skip": 20', '"skip": 120')):  # fmt: skip
        log.write_text(text)
        assert read_wait_share(log) is None
    assert read_wait_share(tmp_path / "absent") is None


def test_waits_of_paddle(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    line = "global step: {}, loss: 1, avg_reader_cost: {} sec, avg_batch_cost: {} sec, ips: 1\n"
    log.write_text(line.format(1, 9.0, 10.0) + line.format(2, 0.1, 0.4) + line.format(3, 0.1, 0.4))
    assert read_wait_share(log) == pytest.approx(0.25)
    assert read_wait_share(TEMPLATES / "paddle" / "sample.log") == pytest.approx(
        0.00007 / 0.1201, rel=0.5
    )


def test_bandwidth_is_what_nccl_tests_runs_say_as_their_reason() -> None:
    reason = Reason("rule", "busbw-32M is 11.5 GB/s, which is not a throughput")
    runs = tuple(replace(make_run(n, None), reasons=(reason,)) for n in (1, 2))
    table = SpeedupTable(GROUP, None, (make_row("2n8g", 1.0, *runs),))
    assert read_bandwidths([table]) == {Shape(2, 8): 11.5}


# --- the command ----------------------------------------------------------------------------


def test_the_command(build: Build, empty_directory: None, tmp_path: Path) -> None:
    built = build("1n1g", "1n4g", repeats=3)
    built.finish()
    collect_campaigns(built.directory, states=report_states())
    document = run("explain", built.directory, "--json").document
    (table,) = document["data"]["tables"]
    kinds = {finding["about"] for finding in table["findings"]}
    assert {"node", "nodes", "input"} <= kinds
    run("archive", built.directory, "--output", tmp_path / "a.zip")
    assert run("explain", tmp_path / "a.zip", "--json").document["data"] == document["data"]
    text = run("explain", built.directory).stdout
    assert "Inside a node" in text
    assert "? The loss between nodes is unknown without a run of 2n4g" in text
