import csv
import re
import statistics
from dataclasses import replace

import pytest
import tomli
from hypothesis import given
from hypothesis import strategies as st

from hpcbert import model
from hpcbert.campaign import store
from hpcbert.errors import UsageError
from hpcbert.results import reduce
from hpcbert.results.formats import FORMATS
from hpcbert.slurm.states import RepeatState, parse_state
from tests.kit import cli
from tests.kit.campaigns import collect_campaigns, report_states
from tests.kit.cases import cases
from tests.kit.logs import DEEPSPEED

MADE = model.Provenance("1.2.3", "2026-01-02T03:04:05Z", "hpcbert collect")
GROUP = model.Group("oneflow", "bert-base", "fp32", 32, "rate")


def make_run(repeat, rate, code="loss", **changes):
    """Return a run of a rate in samples/s; without one, it is invalid for a reason of the code."""
    valid = rate is not None
    reasons = () if valid else (model.Reason(code, "the loss is nan at iteration 7"),)
    log = f"logs/oneflow/bert/bz32/1n1g/bert_b32_fp32_{repeat}.log"
    run = model.Run(repeat, 0, rate, valid, reasons, reduce.FOREIGN, "none", log)
    return replace(run, **changes)


def make_point(shape, rates=(), *, runs=(), **changes):
    """Return a point of these runs, or of one for each rate; so many repeats were asked for."""
    runs = runs or tuple(make_run(n, rate) for n, rate in enumerate(rates, start=1))
    return replace(model.Measured(GROUP, model.Shape.parse(shape), len(runs), runs=runs), **changes)


def make_table(*points, **options):
    (table,) = reduce.tabulate(points, **options)
    return table


def make_row(*rates, shape="1n8g", **changes):
    (row,) = make_table(make_point(shape, rates, **changes)).rows
    return row


def test_speeds_reduce_to_the_table_that_dlperf_printed_and_four_of_five_count():
    rows = make_table(*(make_point(shape, rates) for shape, rates in DEEPSPEED.items())).rows
    assert [row.median for row in rows] == [147.81, 575.07, 1147.9, 2267.55, 4899.37]
    assert [round(row.mean, 2) for row in rows] == [146.31, 577.14, 1155.39, 2288.17, 4893.91]
    assert [round(row.speedup, 2) for row in rows] == [1, 3.89, 7.77, 15.34, 33.15]
    assert [row.shape.gpus for row in rows if "superlinear" in row.flags] == [32]
    assert rows[-1].efficiency == pytest.approx(33.146 / 32, abs=1e-4)
    five = make_point("1n1g", [10.0, 20.0, None, 40.0, 30.0])
    assert make_table(five).rows[0].median == 25.0
    (strict,) = make_table(five, require_all=True).rows
    numbers = (strict.median, strict.mean, strict.min, strict.max, strict.cv, strict.speedup)
    assert set(numbers) == {None}
    assert (strict.ok, strict.flags) == (4, ("incomplete", "no-baseline"))


@given(st.data())
def test_numbers_of_a_row_hang_together(data):
    """Whatever the order of its runs is, and whatever the invalid ones printed."""
    speeds = st.floats(1e-3, 1e7)
    good = data.draw(st.lists(speeds, min_size=1, max_size=9), "rates of valid runs")
    bad = data.draw(st.lists(speeds, max_size=4), "rates of invalid runs")
    row = make_row(*good, shape="1n1g")
    assert row.median == statistics.median(good)
    assert row.min == min(good) <= row.median <= max(good) == row.max
    assert (row.mean, row.speedup) == (pytest.approx(statistics.fmean(good)), 1)
    spread = statistics.stdev(good) / statistics.fmean(good) if len(good) > 1 else None
    assert row.cv == (spread if spread is None else pytest.approx(spread, abs=1e-9))
    runs = [make_run(n, rate) for n, rate in enumerate(good)]
    runs += [replace(make_run(100, None), repeat=100 + n, throughput=x) for n, x in enumerate(bad)]
    runs = data.draw(st.permutations(runs), "runs")
    other = make_row(shape="1n1g", runs=tuple(runs))
    for name in ("median", "mean", "min", "max", "cv"):
        assert getattr(other, name) == getattr(row, name)
    assert (other.ok, other.asked) == (len(good), len(runs))
    assert ("incomplete" in other.flags) == bool(bad)
    many, nodes, gpus = data.draw(st.tuples(speeds, st.integers(1, 64), st.integers(2, 8)))
    points = make_point("1n1g", [good[0]]), make_point(f"{nodes}n{gpus}g", [many])
    base, row = make_table(*points).rows
    assert base.speedup == base.efficiency == 1
    assert row.speedup == many / good[0]
    assert row.efficiency == pytest.approx(many / good[0] / (nodes * gpus))
    assert ("superlinear" in row.flags) == (many / good[0] > nodes * gpus)


def test_rows_go_by_gpus_and_have_a_speedup_over_one_gpu_of_the_same_experiment():
    shapes = ["10n8g", "2n4g", "1n8g", "1n1g", "2n8g", "1n2g"]
    rows = make_table(*(make_point(shape, [1.0]) for shape in shapes)).rows
    assert [str(row.shape) for row in rows] == ["1n1g", "1n2g", "1n8g", "2n4g", "2n8g", "10n8g"]
    other = make_point("1n8g", [2.0], group=replace(GROUP, precision="fp16"))
    tables = reduce.tabulate([make_point("1n1g", [1.0]), other])
    assert [table.group.precision for table in tables] == ["fp32", "fp16"]
    assert tables[1].baseline is None
    with pytest.raises(UsageError, match="1n1g is measured twice"):
        reduce.tabulate([make_point("1n1g", [1.0]), make_point("1n1g", [2.0])])
    # Without one, there is no speedup.
    eight, two_nodes = make_point("1n8g", [10.0]), make_point("2n8g", [20.0])
    for points in ([eight, two_nodes], [make_point("1n1g", [None]), eight]):
        table = make_table(*points)
        assert table.baseline is None
        assert all(row.speedup is None and row.efficiency is None for row in table.rows)
        assert all("no-baseline" in row.flags for row in table.rows)
    values = (("128", ("1n1g",)), ("512", ("1n8g",)))
    for decisive in (False, True):
        other = model.Difference("sequence_length", "points", values, decisive)
        far = make_point("1n8g", [50.0, 51.0], differences=(other,))
        base, row = make_table(make_point("1n1g", [10.0, 10.1]), far).rows
        assert base.speedup == 1
        assert (row.speedup is None) is decisive
        assert ("no-baseline" in row.flags) is decisive


@pytest.mark.needs("published")
def test_published_tables_have_no_outlier_and_few_are_noisy(shared):
    sets: dict[tuple[str, ...], list[float]] = {}
    with (shared / "logs" / "published-runs.tsv").open(newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            key = tuple(row[name] for name in row if name not in ("run", "samples_per_s"))
            sets.setdefault(key, []).append(float(row["samples_per_s"]))
    flags = [make_row(*numbers).flags for numbers in sets.values() if len(numbers) > 1]
    assert len(flags) == 69
    assert sum("outlier" in flag for flag in flags) == 0
    assert sum("noisy" in flag for flag in flags) == 2


@cases
def test_a_row_has_the_flags_of_its_rates(rates, flags):
    row = make_row(*(None if rate == "invalid" else float(rate) for rate in rates))
    assert set(row.flags) - {"no-baseline"} == set(flags)


def test_marks_of_valid_runs_and_of_their_nodes_are_marks_of_their_row():
    marked = make_run(1, 9.0, flags=("overflow-steps",))
    runs = (marked, replace(marked, repeat=2), make_run(3, None, flags=("x",)))
    row = make_row(runs=runs, flags=("accumulation",))
    assert row.flags == ("incomplete", "no-baseline", "accumulation", "overflow-steps")
    for first, second, mixed in (("ab", "ba", False), ("ab", "", False), ("ab", "ac", True)):
        pair = (make_run(1, 1.0, nodes=tuple(first)), make_run(2, 1.0, nodes=tuple(second)))
        assert ("mixed-nodes" in make_row(runs=pair).flags) is mixed


@cases
def test_a_repeat_counts_only_with_all_evidence(*, state, status, log, details, expected, text):
    reasons = (model.Reason(log, "a clause"),) if log else ()
    values = dict(details or {})
    rehearsed = values.pop("rehearsed", False)
    kind = parse_state(state).kind
    submitted = RepeatState(state, kind, "sacct", step_exit=status, **values)
    repeat_state = None if state == reduce.FOREIGN else submitted
    invalid = reduce.find_invalid_reasons(reasons, repeat_state, rehearsed=rehearsed)
    assert tuple(reason.code for reason in invalid) == expected
    assert (text or "") in " ".join(map(str, invalid))


@cases
def test_accumulation_tells_tables_apart_unless_it_follows_from_a_global_batch(places, variants):
    points = []
    for name, count in places.items():
        shape = model.Shape.parse(name[:4])
        xla = name[4:] == "xla"
        points.append(model.Point("deepspeed", "bert-base", shape, "fp32", 32, count, xla))
    groups = [reduce.make_group(point, reduce.Curves(points), "rate") for point in points]
    assert tuple(group.variant for group in groups) == variants


def test_no_form_calls_ranks_on_the_cpu_gpus_and_both_devices_are_two_tables():
    cpu, gpu = replace(GROUP, device="cpu"), GROUP
    rates = {"1n1g": [2.0, 9.0, 1.0], "1n2g": [99.0]}
    ranks = make_table(*(make_point(shape, rates[shape], group=cpu) for shape in rates))
    for name, form in FORMATS.items():
        output = "\n".join([form.write((ranks,), MADE, 0), *form.omissions((ranks,), MADE)])
        assert "cpu" in output.lower(), name
        assert "GPU" not in output, name
        assert "CPU" not in form.write((make_table(make_point("1n1g", [1.0])),), MADE, 0), name
    points = [make_point("1n1g", [1.0], group=cpu), make_point("1n1g", [100.0])]
    tables = reduce.tabulate(points)
    assert [table.group.device for table in tables] == ["cpu", "gpu"]
    assert all(row.speedup == 1.0 for table in tables for row in table.rows)
    assert "ranks (CPU)" in FORMATS["text"].write(tables[:1], MADE, 40)
    markdown = FORMATS["markdown"].write(tables, MADE, 0)
    for part in ("| node_num | rank_num |", "| node_num | gpu_num |", "over all devices"):
        assert part in markdown
    for group, rate, is_named in ((cpu, 80.0, True), (cpu, 99.9, False), (gpu, 80.0, False)):
        table = make_table(make_point("1n1g", [rate, 100.0], group=group))
        assert ("other programs" in FORMATS["text"].write((table,), MADE, 0)) == is_named


def move_to_device(built, device, stated=""):
    """Let a campaign have been asked for on a device, and its logs state one."""
    arrays = built.campaign.arrays
    moved = [replace(array, point=replace(array.point, device=device)) for array in arrays]
    changed = built.change(arrays=tuple(moved))
    changed.finish(of=device, **({"device": stated} if stated else {}))
    return changed


@cases
def test_the_table_is_of_what_was_computed_on(build, device, stated, table):
    """Runs on another device than the one that was asked for are invalid."""
    built = move_to_device(build("1n1g", repeats=2), device, stated)
    (collected,) = collect_campaigns(built.directory, states=report_states()).tables
    (row,) = collected.rows
    if table is None:
        assert row.ok == 0
        assert "device_kind" in row.runs[0].reasons[0].detail
        return
    assert (collected.group.device, row.ok) == (table, 2)
    if device == "auto":
        (built.directory / "manifest.json").unlink()
        (foreign,) = cli.run("collect", built.directory / "logs", "--json").data["tables"]
        assert foreign["device"] == table


def test_two_devices_share_no_table_and_have_a_default_rule_each(build):
    built = build("1n1g", repeats=2)
    other = move_to_device(build("1n1g", repeats=2, name="20261121-pytorch-def"), "gpu")
    recipe = built.directory / store.RECIPE
    default, second = (rule["name"] for rule in tomli.loads(recipe.read_text())["log"]["rules"][:2])
    text = recipe.read_text().replace("[on.cpu]\n", f'[on.cpu]\nrule = "{second}"\n')
    recipe.write_text(text)
    built = move_to_device(built, "cpu")
    result = collect_campaigns(built.directory, other.directory, states=report_states(), rule="")
    rules = {table.group.device: table.group.rule for table in result.tables}
    assert rules == {"cpu": second, "gpu": default}
    (table,) = collect_campaigns(built.directory, states=report_states(), rule=default).tables
    assert table.group.rule == default


@pytest.mark.slow
def test_no_command_calls_ranks_on_the_cpu_gpus(build, tmp_path):
    built = move_to_device(build("1n1g", "1n2g", "2n2g", "4n2g", repeats=2), "cpu", "cpu")
    out, folder = tmp_path / "out", built.directory
    for words in (
        ("collect",), ("explain",), ("predict", "--nodes", "8"), ("compare", folder),
        ("monitor", "--once"), ("report", "--output", out),
    ):  # fmt: skip
        result = cli.run(words[0], folder, *words[1:])
        assert len(result.output) > 50, result
        assert not re.findall(r".*\bGPUs?\b.*", result.output)
    texts = [*out.glob("*.md"), *out.glob("*.html")]
    assert len(texts) == 3
    assert all("CPU" in page.read_text() for page in texts)
    pages = [*texts, *out.glob("*/*.svg"), *out.glob("*/*.csv")]
    assert not [page.name for page in pages if re.search(r"\bGPUs?\b", page.read_text())]
