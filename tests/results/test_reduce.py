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
from hpcbert.logs.arithmetic import median
from hpcbert.model import Difference, Group, Measured, Point, Reason, Row, Run, Shape, SpeedupTable
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


def make_run(
    repeat: int, throughput: float | None, *, nodes: tuple[str, ...] = (), bad: bool = False
) -> Run:
    bad = bad or throughput is None
    reasons = (Reason("loss", "the loss is nan"),) if bad else ()
    return Run(repeat, 0, throughput, not bad, reasons, FOREIGN, "none", f"{repeat}.log", nodes)


def make_point(shape: str, numbers: Sequence[float | None], repeats: int = 0) -> Measured:
    runs = tuple(make_run(n, number) for n, number in enumerate(numbers, start=1))
    return Measured(GROUP, Shape.parse(shape), repeats or len(runs), runs)


def reduce_points(*points: Measured, require_all: bool = False) -> tuple[Row, ...]:
    (table,) = tabulate(points, require_all=require_all)
    return table.rows


def test_the_speeds_that_dlperf_printed_reduce_to_its_table() -> None:
    table = reduce_points(*(make_point(shape, numbers) for shape, numbers in DEEPSPEED.items()))
    assert [row.median for row in table] == [147.81, 575.07, 1147.9, 2267.55, 4899.37]
    means = [round(row.mean or 0, 2) for row in table]
    assert means == [146.31, 577.14, 1155.39, 2288.17, 4893.91]
    assert [round(row.speedup or 0, 2) for row in table] == [1, 3.89, 7.77, 15.34, 33.15]
    assert [row.shape.gpus for row in table if "superlinear" in row.flags] == [32]
    assert table[-1].efficiency == pytest.approx(33.146 / 32, abs=1e-4)


@pytest.mark.parametrize(
    ("numbers", "expected"), [([3.0], 3), ([4.0, 2.0], 3), ([1.0, 9.0, 2.0], 2)]
)
def test_the_median_of_an_even_count_is_between_the_middle_two(
    numbers: list[float], expected: float
) -> None:
    assert median(numbers) == expected


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


def test_a_point_without_a_good_run_has_no_numbers() -> None:
    (row,) = reduce_points(make_point("1n8g", [None, None]))
    assert (row.median, row.mean, row.min, row.max, row.cv) == (None,) * 5
    assert (row.ok, row.asked) == (0, 2)


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


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        *((speeds, False) for speeds in DEEPSPEED.values()),
        ((100.0, 100.1, 99.9, 100.0, 96.0), True),
        ((100.0, 100.1, 99.9, 100.0, 104.0), False),
        ((100.0, 100.1, 99.9, 100.0, 106.0), True),
        ((100.0, 103.0, 98.0, 102.0, 95.0), False),
        ((100.0, 100.1, 99.9, 100.0, 100.5), False),
        ((100.0, 105.0, 95.0, 110.0, 90.0), False),
        ((100.0, 100.0, 100.0, 100.0, 90.0), True),
        ((100.0, 50.0), False),
        ((), False),
    ],
)
def test_outliers_are_what_spread_does_not_explain(
    numbers: tuple[float, ...], *, expected: bool
) -> None:
    low, high = expected_range(list(numbers))
    assert any(not low <= number <= high for number in numbers) is expected


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
    (row,) = reduce_points(Measured(GROUP, Shape(1, 8), 3, runs))
    assert row.flags == ("incomplete", "no-baseline", "overflow-steps")


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


def test_marks_of_the_measuring_are_kept() -> None:
    marked = Measured(GROUP, Shape(1, 1), 1, (make_run(1, 1.0),), ("accumulation",))
    assert reduce_points(marked)[0].flags == ("single-run", "accumulation")


BAD_LOG = (Reason("incomplete", "the log ends at iteration 57 of 120"),)
NO_LOG = (Reason("no-log", "1.log can't be read"),)


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        (Evidence("COMPLETED", 0, ()), []),
        (Evidence(FOREIGN, None, ()), []),
        (Evidence(FOREIGN, None, BAD_LOG), ["incomplete"]),
        (Evidence("COMPLETED", 0, BAD_LOG), ["incomplete"]),
        (Evidence("COMPLETED", 0, NO_LOG), ["no-log"]),
        (Evidence("COMPLETED", None, ()), ["exit"]),
        (Evidence("COMPLETED", 1, ()), ["exit"]),
        (Evidence("FAILED", 1, BAD_LOG), ["state", "exit", "incomplete"]),
        (Evidence("FAILED", 0, ()), ["state"]),
        (Evidence("TIMEOUT", None, BAD_LOG), ["state", "incomplete"]),
        (Evidence("CANCELLED", None, NO_LOG), ["state"]),
        (Evidence("NODE_FAIL", None, ()), ["state"]),
        (Evidence("RUNNING", None, BAD_LOG, over=False), ["state"]),
        (Evidence("UNKNOWN", None, NO_LOG, over=False), ["state"]),
        (Evidence("COMPLETED", 0, (), rehearsed=True), ["rehearsal"]),
        (Evidence("FAILED", 1, (Reason("rehearsal", "x"),)), ["rehearsal"]),
    ],
)
def test_a_repeat_counts_only_with_all_evidence(evidence: Evidence, expected: list[str]) -> None:
    assert [reason.code for reason in find_invalid_reasons(evidence)] == expected


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


# --- Published ------------------------------------------------------------------------------------


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def shape_of(row: dict[str, str]) -> Shape:
    return Shape(int(row["nodes"]), int(row["gpus"]) // int(row["nodes"]))


def make_table_key(row: dict[str, str]) -> tuple[str, ...]:
    """Return what a set of runs and its published table have in common."""
    framework = row["framework"].partition("(")[0]
    return (row["source"].partition("#")[0], framework, row["precision"], row["batch_per_gpu"])


def make_tables(path: Path) -> dict[tuple[str, ...], SpeedupTable]:
    sets: dict[tuple[str, ...], dict[Shape, list[Run]]] = {}
    for row in read_rows(path):
        runs = sets.setdefault(make_table_key(row), {}).setdefault(shape_of(row), [])
        speed = float(row["samples_per_s"])
        runs.append(Run(len(runs) + 1, 0, speed, True, (), "-", "none", ""))
    speedup_tables = {}
    for key, shapes in sets.items():
        group = Group(key[1], "bert", key[2], int(key[3]), "printed")
        points = [Measured(group, shape, len(runs), tuple(runs)) for shape, runs in shapes.items()]
        (speedup_tables[key],) = tabulate(points)
    return speedup_tables


@pytest.mark.needs("published")
def test_every_published_median_and_speedup_recomputes_from_its_runs(shared: Path) -> None:
    # OneFlow's report of 2020-08-22 lists more values than the seven runs of a set here, 14 or 8 for a
    # cell: which seven its medians are of can't be told.
    ambiguous = {("oneflow", "24"), ("oneflow", "48")}
    published: dict[tuple[str, ...], dict[str, list[dict[str, str]]]] = {}
    for row in read_rows(shared / "logs" / "published.tsv"):
        published.setdefault(make_table_key(row), {}).setdefault(row["source"], []).append(row)
    speedup_tables = make_tables(shared / "logs" / "published-runs.tsv")
    assert len(speedup_tables) >= 13
    for key, table in speedup_tables.items():
        if (key[1], key[3]) in ambiguous:
            continue
        ours = {row.shape: row for row in table.rows}
        agreeing = [source for source, cells in published[key].items() if agree(cells, ours)]
        assert agreeing, key


def agree(cells: list[dict[str, str]], ours: dict[Shape, Row]) -> bool:
    """Say whether a published table has our medians, and our speedups to its rounding."""
    for cell in cells:
        row = ours.get(shape_of(cell))
        if row is None:
            return False
        if row.median != pytest.approx(float(cell["samples_per_s"]), abs=0.011):
            return False
        if cell["speedup"]:
            published = pytest.approx(float(cell["speedup"]), rel=5e-4, abs=0.011)
            if row.speedup != published:
                return False
    return True
