from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import click
import pytest

from hpcbert.cli.output import Result
from hpcbert.cli.tables import list_shortfalls
from hpcbert.errors import UsageError
from hpcbert.model import Group, Measured, Note, Provenance, Reason, Run, Shape, SpeedupTable
from hpcbert.results import formats
from hpcbert.results.formats import FORMATS, format_of_suffix, render_csv, render_markdown
from hpcbert.results.reduce import tabulate
from hpcbert.results.wording import describe_flags
from tests.kit.campaigns import Build
from tests.kit.cases import cases
from tests.kit.cli import run

MADE = Provenance("1.2.3", "2026-01-02", "hpcbert collect")
GROUP = Group("oneflow", "bert-base", "fp32", 32, "dlperf-time")


def make_run(repeat: int, throughput: float | None, reason: Reason | None = None) -> Run:
    reasons = (reason,) if reason else ()
    log = f"logs/oneflow/bert/bz32/1n1g/bert_b32_fp32_{repeat}.log"
    valid = reason is None
    return Run(repeat, 0, throughput, valid, reasons, "COMPLETED", "sacct", log, ("n1",))


def make_point(group: Group, shape: str, numbers: Sequence[float | None]) -> Measured:
    reason = Reason("loss", "the loss is nan at iteration 7")
    runs = tuple(make_run(n, x, None if x else reason) for n, x in enumerate(numbers, start=1))
    return Measured(group, Shape.parse(shape), len(runs), runs)


@pytest.mark.parametrize(
    ("codes", "exit_code"),
    [((), 0), (("unfinished",), 6), (("loss",), 4), (("loss", "unfinished"), 4)],
    ids=["valid", "running", "invalid", "invalid and running"],
)
def test_what_still_runs_is_not_invalid(codes: tuple[str, ...], exit_code: int) -> None:
    runs = [make_run(1, 100.0)]
    runs += [make_run(n, None, Reason(code, "")) for n, code in enumerate(codes, 2)]
    shortfalls = list_shortfalls(tabulate([Measured(GROUP, Shape(1, 1), len(runs), tuple(runs))]))
    assert [error.code for error in shortfalls] == [
        {"loss": "incomplete"}.get(code, code) for code in codes
    ]
    assert Result(errors=shortfalls, incomplete=bool(codes)).exit_code == exit_code


@pytest.fixture
def tables() -> tuple[SpeedupTable, ...]:
    return tabulate(
        [
            make_point(GROUP, "1n1g", [140.1987654, 140.2, None]),
            make_point(GROUP, "4n8g", [4321.5, 4322.5, 4600.25]),
        ]
    )


@pytest.mark.parametrize("name", FORMATS)
def test_every_form_holds_every_median(name: str, tables: tuple[SpeedupTable, ...]) -> None:
    rendered = FORMATS[name].write(tables, MADE, 0)
    numbers = ("140.2", "4322.5", "4600.25")
    assert all(
        number in rendered.replace(",", "") for number in numbers[: 2 + (name == "csv-runs")]
    )
    assert not rendered.endswith("\n")
    assert ("1.2.3" in rendered) != any(
        "1.2.3" in line for line in FORMATS[name].omissions(tables, MADE)
    )


@pytest.mark.parametrize(
    ("ending", "name"), [(".CSV", "csv"), (".md", "markdown"), (".json", "json"), (".pdf", "")]
)
def test_the_end_of_a_files_name_means_a_form(ending: str, name: str) -> None:
    assert format_of_suffix(ending) == name


def test_the_text_is_aligned_and_says_why(tables: tuple[SpeedupTable, ...]) -> None:
    expected_text = """\
oneflow · bert-base · fp32 · 32 samples per device
rule dlperf-time · speedup to the median of 1n1g

nodes  GPUs  median samples/s            min .. max     cv  speedup  efficiency  repeats  flags
    1     1            140.20      140.20 .. 140.20  0.00%     1.00      100.0%      2/3  incomplete
  ✗ repeat 3  loss: the loss is nan at iteration 7
    4    32          4,322.50  4,321.50 .. 4,600.25  3.64%    30.83       96.3%      3/3  noisy, outlier
  ! repeat 3: outlier (4,600.25, 6.4% above the median)

hpcbert 1.2.3 · 2026-01-02 · hpcbert collect"""
    assert click.unstyle(formats.render_text(tables, MADE)) == expected_text


def test_what_there_is_none_of_is_a_dash() -> None:
    plain = click.unstyle(formats.render_text(tabulate([make_point(GROUP, "1n8g", [None])]), MADE))
    assert "no speedup: there is no valid run of 1n1g" in plain
    assert plain.splitlines()[4].split() == [
        *("1", "8", "-", "-", "-", "-", "-", "0/1", "incomplete,", "no-baseline")
    ]


def test_markdown_begins_with_dlperfs_columns(tables: tuple[SpeedupTable, ...]) -> None:
    lines = render_markdown(tables, MADE).splitlines()
    assert lines[4].startswith("| node_num | gpu_num | samples/s | speedup |")
    assert lines[7].startswith("| 4 | 32 | 4322.50 | 30.83 |")
    assert lines[9] == "* 1n1g, repeat 3 is invalid: loss: the loss is nan at iteration 7"


def test_markdown_shows_text_as_it_is() -> None:
    hostile = "a|b*_`<img src=x>`[x](y)\n# h"
    group = Group(hostile, "m", "fp32", 1, "r", hostile)
    rendered = render_markdown(tabulate([make_point(group, "1n1g", [1.0])]), MADE)
    assert "\\|b\\*\\_\\`\\<img src=x\\>\\`\\[x\\](y) \\# h" in rendered
    assert all(line.count(" | ") in (0, 9) for line in rendered.splitlines())


def test_csv_has_one_line_a_point(tables: tuple[SpeedupTable, ...]) -> None:
    lines = list(csv.DictReader(io.StringIO(render_csv(tables, MADE))))
    assert [line["gpus"] for line in lines] == ["1", "32"]
    assert float(lines[1]["median"]) == 4322.5
    assert float(lines[0]["median"]) == (140.1987654 + 140.2) / 2
    assert lines[0]["reasons"] == "repeat 3: loss: the loss is nan at iteration 7"
    assert (lines[0]["ok"], lines[0]["asked"], lines[0]["flags"]) == ("2", "3", "incomplete")


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_csv_is_no_formula(start: str) -> None:
    group = Group(f"{start}1+1", "m", "fp32", 1, f"{start}cmd|' /C calc'!A0")
    lines = list(
        csv.reader(io.StringIO(render_csv(tabulate([make_point(group, "1n1g", [1])]), MADE)))
    )
    assert len(lines) == 2
    for cell in (lines[1][0], lines[1][5]):
        assert cell[0] in "'1c"


def test_dlperfs_document_has_its_shape_and_rounding_and_is_never_nan(
    tables: tuple[SpeedupTable, ...],
) -> None:
    alone = tabulate([make_point(GROUP, "1n1g", [None]), make_point(GROUP, "1n8g", [10.0])])
    data: Any = json.loads(formats.render_dlperf(alone, MADE))
    assert list(data["bert"]) == ["1n8g"]
    assert data["bert"]["1n8g"]["speedup"] is None
    assert json.loads(formats.render_dlperf(tables, MADE)) == {
        "bert": {
            "1n1g": {
                "average_speed": 140.2,
                "batch_size_per_device": 32,
                "median_speed": 140.2,
                "speedup": 1.0,
            },
            "4n8g": {
                "average_speed": 4414.75,
                "batch_size_per_device": 32,
                "median_speed": 4322.5,
                "speedup": 30.83,
            },
        }
    }


def test_dlperfs_document_can_not_hold_two_tables_of_a_model() -> None:
    other = Group("oneflow", "bert-base", "fp16", 64, "dlperf-time")
    tables = tabulate([make_point(GROUP, "1n1g", [1.0]), make_point(other, "1n1g", [1.0])])
    with pytest.raises(UsageError, match="has several"):
        formats.render_dlperf(tables, MADE)


UNEVEN = "232.73 samples/s in all, 512.00 at the median step; see iterations 41 to 50"


@pytest.fixture
def uneven_tables() -> tuple[SpeedupTable, ...]:
    (first,) = (make_run(1, 232.727),)
    flagged = replace(first, flags=("uneven",), notes=(Note("uneven", UNEVEN),))
    return tabulate([Measured(GROUP, Shape(1, 1), 1, (flagged,))])


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "dlperf-json"])
def test_every_form_has_the_flag_of_an_uneven_window(
    name: str, uneven_tables: tuple[SpeedupTable, ...]
) -> None:
    rendered = click.unstyle(FORMATS[name].write(uneven_tables, MADE, 0))
    assert "uneven" in rendered
    if name in {"text", "markdown", "json"}:
        assert UNEVEN in rendered.replace("\\", "")


def test_marked_repeats_with_the_same_flags_are_together_and_numbers_follow_their_flag() -> None:
    flags = {1: ("short-window",), 2: ("outlier", "uneven", "short-window"), 3: ("short-window",)}
    notes = {2: (Note("uneven", "see 3 to 8"),)}
    runs = tuple(
        replace(make_run(number, 10.0 * number), flags=flags[number], notes=notes.get(number, ()))
        for number in flags
    )
    (table,) = tabulate([Measured(GROUP, Shape(1, 1), 3, runs)])
    assert describe_flags(table.rows[0]) == (
        "2 repeats (1, 3): short-window",
        "repeat 2: outlier (20.00, 0.0% below the median), uneven (see 3 to 8), short-window",
    )


# --- formats of other programs --------------------------------------------------------------------


@pytest.fixture
def mixed_tables() -> tuple[SpeedupTable, ...]:
    rates = {"1n1g": (140.5, 140.25), "4n8g": (4321.5, None), "8n8g": (None, None)}
    return tabulate([make_point(GROUP, shape, speeds) for shape, speeds in rates.items()])


def test_a_perflog_has_a_line_for_each_point(mixed_tables: tuple[SpeedupTable, ...]) -> None:
    lines = formats.render_perflog(mixed_tables, MADE).splitlines()
    assert lines[0].startswith("result|job_completion_time|")
    assert "|throughput_value|throughput_unit|throughput_ref|" in lines[0]
    entries = list(csv.DictReader(lines, delimiter="|"))
    values = [(entry["result"], entry["throughput_value"], entry["nodes"]) for entry in entries]
    assert values == [("pass", "140.375", "1"), ("fail", "4321.5", "4"), ("fail", "", "8")]
    assert {entry["command"] for entry in entries} == {MADE.command}
    assert {entry["throughput_unit"] for entry in entries} == {"samples/s"}


def test_a_report_has_an_entry_for_each_repeat(mixed_tables: tuple[SpeedupTable, ...]) -> None:
    report = json.loads(formats.render_exacb(mixed_tables, MADE))
    assert report.keys() == {"reporter", "experiment", "data"}
    assert report["reporter"]["tool"] == "hpcbert"
    rates = [(entry["success"], entry["metrics"]["throughput"]) for entry in report["data"]]
    assert rates == [(True, 140.5), (True, 140.25), (True, 4321.5), *[(False, None)] * 3]
    last = report["data"][-1]
    assert (last["nodes"], last["taskspernode"]) == (8, 8)
    assert last["reasons"].startswith("loss: the loss is nan")


@cases
def test_a_case_of_junit_passes_if_all_repeats_are_valid(
    codes: tuple[str, ...], asked: int, outcome: str
) -> None:
    runs = tuple(
        make_run(number, None if code else 100.0, Reason(code, 'a<b & "c"\x1b') if code else None)
        for number, code in enumerate(codes, 1)
    )
    tables = tabulate([Measured(GROUP, Shape(4, 8), asked, runs)])
    (suite,) = ET.fromstring(formats.render_cases("x", list(formats.list_cases(tables, ()))))
    (case,) = suite
    assert case.get("name") == "4n8g"
    assert "oneflow" in (case.get("classname") or "")
    assert {child.tag for child in case} - {"system-out"} == {outcome} - {""}
    counts = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    for name, kind in counts.items():
        assert suite.get(name) == str(int(kind == outcome))
    (suite,) = ET.fromstring(formats.render_cases("x", list(formats.list_cases((), ["a: x"]))))
    assert (suite.get("tests"), suite.get("errors")) == ("1", "1")


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["samples", "tokens"])
def test_collect_writes_junit_next_to_any_format(build: Build, tmp_path: Path, unit: str) -> None:
    campaign = build("1n1g", "1n2g", repeats=2, scheduler="local")
    campaign.finish()
    path = tmp_path / "points.xml"
    words = ("--format", "json", "--unit", unit, "--junit", path)
    run("collect", campaign.directory, *words)
    texts = [case.findtext("system-out", "") for case in ET.parse(path).iter("testcase")]
    assert len(texts) == 2
    assert all(f"{unit}/s" in text for text in texts)
    assert run("collect", campaign.directory, "--explain", "--junit", path).returncode == 2
