from __future__ import annotations

import csv
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbert.errors import UsageError
from hpcbert.model import Difference, Group, Measured, Point, Reason, Row, Run, Shape
from hpcbert.results.reduce import (
    FOREIGN,
    Curves,
    Evidence,
    expected_range,
    find_invalid_reasons,
    make_group,
    tabulate,
)
from tests.kit.cases import cases
from tests.kit.logs import DEEPSPEED

GROUP = Group("deepspeed", "bert-base", "fp32", 32, "rate")
speeds = st.floats(1e-3, 1e7)


def make_point(shape: str, numbers: Sequence[float | None], repeats: int = 0) -> Measured:
    runs = tuple(make_run(n, number) for n, number in enumerate(numbers, start=1))
    return Measured(GROUP, Shape.parse(shape), repeats or len(runs), runs)


def reduce_points(*points: Measured, require_all: bool = False) -> tuple[Row, ...]:
    (table,) = tabulate(points, require_all=require_all)
    return table.rows


def make_run(
    repeat: int, throughput: float | None, *, nodes: tuple[str, ...] = (), bad: bool = False
) -> Run:
    bad = bad or throughput is None
    reasons = (Reason("loss", "the loss is nan"),) if bad else ()
    return Run(repeat, 0, throughput, not bad, reasons, FOREIGN, "none", f"{repeat}.log", nodes)


def test_the_speeds_that_dlperf_printed_reduce_to_its_table() -> None:
    table = reduce_points(*(make_point(shape, numbers) for shape, numbers in DEEPSPEED.items()))
    assert [row.median for row in table] == [147.81, 575.07, 1147.9, 2267.55, 4899.37]
    means = [round(row.mean or 0, 2) for row in table]
    assert means == [146.31, 577.14, 1155.39, 2288.17, 4893.91]
    assert [round(row.speedup or 0, 2) for row in table] == [1, 3.89, 7.77, 15.34, 33.15]
    assert [row.shape.gpus for row in table if "superlinear" in row.flags] == [32]
    assert table[-1].efficiency == pytest.approx(33.146 / 32, abs=1e-4)


@given(st.lists(speeds, min_size=1, max_size=9))
def test_numbers_of_a_row_hang_together(numbers: list[float]) -> None:
    (row,) = reduce_points(make_point("1n1g", numbers))
    assert row.median is not None
    assert row.mean is not None
    assert row.min == min(numbers) <= row.median <= max(numbers) == row.max
    assert row.median == statistics.median(numbers)
    assert row.mean == pytest.approx(statistics.fmean(numbers))
    assert row.speedup == 1
    if len(numbers) > 1:
        expected = statistics.stdev(numbers) / statistics.fmean(numbers)
        assert row.cv == pytest.approx(expected, abs=1e-9)
    else:
        assert row.cv is None


@given(st.lists(speeds, min_size=1, max_size=7), st.randoms())
def test_the_order_of_runs_does_not_matter(numbers: list[float], random: object) -> None:
    shuffled = list(numbers)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    (row,), (other,) = (
        reduce_points(make_point("4n8g", numbers)),
        reduce_points(make_point("4n8g", shuffled)),
    )
    assert (row.median, row.mean, row.cv) == (other.median, other.mean, other.cv)


@given(st.lists(speeds, min_size=1, max_size=5), st.lists(speeds, max_size=4))
def test_runs_that_do_not_count_change_no_number(good: list[float], bad: list[float]) -> None:
    runs = [make_run(n, number) for n, number in enumerate(good)]
    runs += [make_run(100 + n, number, bad=True) for n, number in enumerate(bad)]
    (row,) = reduce_points(Measured(GROUP, Shape(1, 8), len(runs), tuple(runs)))
    (alone,) = reduce_points(make_point("1n8g", good))
    assert (row.median, row.mean, row.min, row.max, row.cv) == (
        alone.median,
        alone.mean,
        alone.min,
        alone.max,
        alone.cv,
    )
    assert (row.ok, row.asked) == (len(good), len(good) + len(bad))
    assert ("incomplete" in row.flags) == bool(bad)


@given(speeds, speeds, st.integers(1, 64), st.integers(1, 8))
def test_speedup_is_the_ratio_to_one_gpu(single: float, many: float, nodes: int, gpus: int) -> None:
    shape = f"{nodes}n{gpus}g"
    if shape == "1n1g":
        return
    base, row = reduce_points(make_point("1n1g", [single]), make_point(shape, [many]))
    assert base.speedup == base.efficiency == 1
    assert row.speedup == many / single
    assert row.efficiency == pytest.approx(many / single / (nodes * gpus))
    assert ("superlinear" in row.flags) == (many / single > nodes * gpus)


def test_four_good_of_five_count_unless_all_are_required() -> None:
    five = make_point("1n1g", [10.0, 20.0, None, 40.0, 30.0])
    (row,) = reduce_points(five)
    assert (row.median, row.ok, row.asked) == (25.0, 4, 5)
    assert row.flags == ("noisy", "incomplete")
    (strict,) = reduce_points(five, require_all=True)
    numbers = (strict.median, strict.mean, strict.min, strict.max, strict.cv, strict.speedup)
    assert set(numbers) == {None}
    assert (strict.ok, strict.flags) == (4, ("incomplete", "no-baseline"))


def test_without_one_gpu_nothing_else_stands_in_for_it() -> None:
    for points in (
        [make_point("1n8g", [10.0]), make_point("2n8g", [20.0])],
        [make_point("1n1g", [None]), make_point("1n8g", [10.0])],
    ):
        (table,) = tabulate(points)
        assert table.baseline is None
        assert all(row.speedup is None and row.efficiency is None for row in table.rows)
        assert all("no-baseline" in row.flags for row in table.rows)


def test_rows_go_by_gpus_then_nodes_and_tables_by_group() -> None:
    shapes = ["10n8g", "2n4g", "1n8g", "1n1g", "2n8g", "1n2g"]
    table = reduce_points(*(make_point(shape, [1.0]) for shape in shapes))
    assert [str(row.shape) for row in table] == ["1n1g", "1n2g", "1n8g", "2n4g", "2n8g", "10n8g"]
    other = Group("deepspeed", "bert-base", "fp16", 32, "rate")
    mixed = [make_point("1n1g", [1.0]), Measured(other, Shape(1, 8), 1, (make_run(1, 2.0),))]
    tables = tabulate(mixed)
    assert [table.group.precision for table in tables] == ["fp32", "fp16"]
    assert tables[1].baseline is None


def test_a_point_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="1n1g is measured twice"):
        tabulate([make_point("1n1g", [1.0]), make_point("1n1g", [2.0])])


@cases
def test_outliers_are_what_spread_does_not_explain(
    numbers: tuple[float, ...], *, expected: bool
) -> None:
    low, high = expected_range(list(numbers))
    assert any(not low <= number <= high for number in numbers) is expected
    for speeds in DEEPSPEED.values():
        low, high = expected_range(list(speeds))
        assert low <= min(speeds) <= max(speeds) <= high


def test_an_outlier_is_marked_by_its_repeat() -> None:
    (row,) = reduce_points(make_point("1n8g", [100.0, 100.2, None, 94.0, 99.9]))
    assert {entry.repeat: entry.flags for entry in row.runs if entry.flags} == {4: ("outlier",)}
    assert "outlier" in row.flags


@pytest.mark.needs("published")
def test_published_tables_have_no_outlier_and_few_are_noisy(shared: Path) -> None:
    sets: dict[tuple[str, ...], list[float]] = {}
    with (shared / "logs" / "published-runs.tsv").open(newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            key = tuple(row[name] for name in row if name not in ("run", "samples_per_s"))
            sets.setdefault(key, []).append(float(row["samples_per_s"]))
    several = [numbers for numbers in sets.values() if len(numbers) > 1]
    flags = [reduce_points(make_point("1n8g", numbers))[0].flags for numbers in several]
    assert len(several) == 69
    assert sum("outlier" in flag for flag in flags) == 0
    assert sum("noisy" in flag for flag in flags) == 2


@cases
def test_rows_whose_runs_scatter_are_noisy(numbers: tuple[float, ...], *, expected: bool) -> None:
    assert ("noisy" in reduce_points(make_point("1n1g", numbers))[0].flags) is expected


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [([9.0], True), ([9.0, None, None], True), ([9.0, 9.1], False), ([None], False)],
)
def test_one_run_never_looks_complete(numbers: list[float | None], *, expected: bool) -> None:
    assert ("single-run" in reduce_points(make_point("1n8g", numbers))[0].flags) is expected


def test_marks_of_runs_are_marks_of_their_row_if_they_count() -> None:
    def marked(repeat: int, *flags: str, bad: bool = False) -> Run:
        return replace(make_run(repeat, 9.0, bad=bad), flags=flags)

    runs = (marked(1, "overflow-steps"), marked(2, "overflow-steps"), marked(3, "x", bad=True))
    (row,) = reduce_points(Measured(GROUP, Shape(1, 8), 3, runs, ("accumulation",)))
    assert row.flags == ("incomplete", "no-baseline", "accumulation", "overflow-steps")


def test_another_experiment_has_no_speedup() -> None:
    values = (("128", ("1n1g",)), ("512", ("1n8g",)))
    for decisive in (False, True):
        other = Difference("sequence_length", "points", values, decisive)
        far = replace(make_point("1n8g", [50.0, 51.0]), differences=(other,))
        base, row = reduce_points(make_point("1n1g", [10.0, 10.1]), far)
        assert base.speedup == 1
        assert (row.speedup is None) is decisive
        assert ("no-baseline" in row.flags) is decisive


def test_runs_on_different_nodes_are_marked() -> None:
    def on(*names: tuple[str, ...]) -> Row:
        runs = tuple(make_run(n, 1.0, nodes=nodes) for n, nodes in enumerate(names))
        return reduce_points(Measured(GROUP, Shape(2, 8), len(runs), runs))[0]

    assert "mixed-nodes" not in on(("a", "b"), ("b", "a")).flags
    assert "mixed-nodes" not in on(("a", "b"), ()).flags
    assert "mixed-nodes" in on(("a", "b"), ("a", "c")).flags


@cases
def test_a_repeat_counts_only_with_all_evidence(
    *, state: str, status: int | None, log: str | None, over: bool | None, rehearsed: bool | None,
    expected: tuple[str, ...],
) -> None:  # fmt: skip
    reasons = (Reason(log, "a clause"),) if log else ()
    evidence = Evidence(state, status, reasons, over=over is not False, rehearsed=bool(rehearsed))
    assert tuple(reason.code for reason in find_invalid_reasons(evidence)) == expected


def test_the_state_is_explained() -> None:
    (reason,) = find_invalid_reasons(Evidence("COMPLETED", 0, (), suspended=7.0))
    assert "suspended for 7 s" in reason.detail
    (reason,) = find_invalid_reasons(
        Evidence("PENDING", None, (), over=False, detail="waits for nodes")
    )
    assert str(reason) == "state: it is PENDING, not COMPLETED: waits for nodes"


def measured_point(shape: str, accumulation: int = 1, xla: bool = False) -> Point:
    return Point("deepspeed", "bert-base", Shape.parse(shape), "fp32", 32, accumulation, xla)


def test_accumulation_tells_tables_apart() -> None:
    points = [measured_point("1n1g", 4), measured_point("1n8g", 4)]
    assert {make_group(member, Curves(points), "rate").variant for member in points} == {"acc4"}
    mixed = [measured_point("1n8g", 4), measured_point("1n8g", 2)]
    assert {make_group(member, Curves(mixed), "rate").variant for member in mixed} == {
        "acc4",
        "acc2",
    }


def test_accumulation_that_follows_from_a_global_batch_makes_one_curve() -> None:
    points = [measured_point("1n1g", 1024), measured_point("1n8g", 128), measured_point("4n8g", 32)]
    assert {make_group(member, Curves(points), "rate").variant for member in points} == {"gbs32768"}
    uneven = [measured_point("1n1g", 10), measured_point("1n8g", 2)]
    assert {make_group(member, Curves(uneven), "rate").variant for member in uneven} == {
        "acc by shape"
    }
    both = [*points, measured_point("1n1g", xla=True)]
    assert make_group(both[-1], Curves(both), "rate").variant == "xla"
