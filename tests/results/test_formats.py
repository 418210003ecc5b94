import csv
import io
import json
import sys
from xml.etree import ElementTree as ET

import click
import pytest

from hpcbert import __version__
from hpcbert.cli.output import Result
from hpcbert.cli.tables import list_shortfalls
from hpcbert.errors import UsageError
from hpcbert.model import Group, Note
from hpcbert.results import formats
from hpcbert.results.reduce import tabulate
from hpcbert.results.wording import describe_flags
from tests.kit.cases import cases, read_constant
from tests.kit.cli import run
from tests.kit.logs import write_logs
from tests.results.test_reduce import MADE, make_point, make_run

REASON = "loss: the loss is nan at iteration 7"
RATES = {"1n1g": (140.1987654, 140.2, None), "4n8g": (4321.5, 4322.5, 4600.25)}
TABLES = tabulate(make_point(shape, numbers) for shape, numbers in RATES.items())


def test_every_form_holds_every_median_and_the_text_is_aligned_and_says_why():
    note = "232.73 samples/s in all, 512.00 at the median step; see iterations 41 to 50"
    flagged = make_run(1, 232.727, flags=("uneven",), notes=(Note("uneven", note),))
    uneven = tabulate([make_point("1n1g", runs=(flagged,))])
    for name, form in formats.FORMATS.items():
        rendered = form.write(TABLES, MADE, 0)
        numbers = ("140.2", "4322.5", "4600.25")[: 2 + (name == "csv-runs")]
        assert all(number in rendered.replace(",", "") for number in numbers), name
        assert not rendered.endswith("\n"), name
        omissions = form.omissions(TABLES, MADE)
        assert ("1.2.3" in rendered) != any("1.2.3" in line for line in omissions), name
        if name != "dlperf-json":
            rendered = click.unstyle(form.write(uneven, MADE, 0))
            assert "uneven" in rendered, name
            assert name not in {"text", "markdown", "json"} or note in rendered.replace("\\", "")
    text = click.unstyle(formats.render_text(TABLES, MADE))
    assert text == read_constant(__file__, "TEXT").rstrip()
    plain = click.unstyle(formats.render_text(tabulate([make_point("1n8g", [None])]), MADE))
    assert "no speedup: there is no valid run of 1n1g" in plain
    cells = ["1", "8", *"------", "0/1", "incomplete,", "no-baseline"]
    assert plain.splitlines()[3].split() == cells


def test_markdown_and_csv_show_text_as_it_is_and_have_no_formula():
    lines = formats.render_markdown(TABLES, MADE).splitlines()
    assert lines[2].startswith("| node_num | gpu_num | samples/s | speedup |")
    assert lines[5].startswith("| 4 | 32 | 4322.50 | 30.83 |")
    assert lines[8] == f"* 1n1g, repeat 3 left out: {REASON}"
    hostile = "a|b*_`<img src=x>`[x](y)\n# h"
    group = Group(hostile, "m", "fp32", 1, "r", hostile)
    rendered = formats.render_markdown(tabulate([make_point("1n1g", [1.0], group=group)]), MADE)
    assert "\\|b\\*\\_\\`\\<img src=x\\>\\`\\[x\\](y) \\# h" in rendered
    assert all(line.count(" | ") in (0, 9) for line in rendered.splitlines())
    first, second = csv.DictReader(io.StringIO(formats.render_csv(TABLES, MADE)))
    assert (first["gpus"], second["gpus"]) == ("1", "32")
    assert float(first["median"]) == (140.1987654 + 140.2) / 2
    assert float(second["median"]) == 4322.5
    assert first["reasons"] == f"repeat 3: {REASON}"
    assert (first["ok"], first["asked"], first["flags"]) == ("2", "3", "incomplete")
    for start in ("=", "+", "-", "@", "\t", "\r", "\n"):
        group = Group(f"{start}1+1", "m", "fp32", 1, f"{start}cmd|' /C calc'!A0")
        tables = tabulate([make_point("1n1g", [1.0], group=group)])
        _, line = csv.reader(io.StringIO(formats.render_csv(tables, MADE)))
        assert all(cell[0] in "'1c" for cell in (line[0], line[5]))


def test_documents_for_other_programs_have_their_shapes_and_are_never_nan():
    assert json.loads(formats.render_dlperf(TABLES, MADE)) == read_constant(__file__, "DLPERF")
    alone = tabulate([make_point("1n1g", [None]), make_point("1n8g", [10.0])])
    data = json.loads(formats.render_dlperf(alone, MADE))
    assert list(data["bert"]) == ["1n8g"]
    assert data["bert"]["1n8g"]["speedup"] is None
    other = Group("oneflow", "bert-base", "fp16", 64, "rate")
    two = tabulate([make_point("1n1g", [1.0]), make_point("1n1g", [1.0], group=other)])
    with pytest.raises(UsageError, match="has several"):
        formats.render_dlperf(two, MADE)
    rates = {"1n1g": (140.5, 140.25), "4n8g": (4321.5, None), "8n8g": (None, None)}
    mixed = tabulate([make_point(shape, numbers) for shape, numbers in rates.items()])
    lines = formats.render_perflog(mixed, MADE).splitlines()
    assert lines[0].startswith("result|job_completion_time|")
    assert "|throughput_value|throughput_unit|throughput_ref|" in lines[0]
    entries = list(csv.DictReader(lines, delimiter="|"))
    values = [(entry["result"], entry["throughput_value"], entry["nodes"]) for entry in entries]
    assert values == [("pass", "140.375", "1"), ("fail", "4321.5", "4"), ("fail", "", "8")]
    assert {(entry["command"], entry["throughput_unit"]) for entry in entries} == {
        (MADE.command, "samples/s")
    }
    report = json.loads(formats.render_exacb(mixed, MADE))
    assert report.keys() == {"reporter", "experiment", "data"}
    assert report["reporter"]["tool"] == "hpcbert"
    numbers = [(entry["success"], entry["metrics"]["throughput"]) for entry in report["data"]]
    assert numbers == [(True, 140.5), (True, 140.25), (True, 4321.5), *[(False, None)] * 3]
    last = report["data"][-1]
    assert (last["nodes"], last["taskspernode"]) == (8, 8)
    assert last["reasons"].startswith("loss: the loss is nan")


def test_repeats_with_the_same_flags_are_together_and_numbers_follow_their_flag():
    flags = {1: ("short-window",), 2: ("outlier", "uneven", "short-window"), 3: ("short-window",)}
    notes = {2: (Note("uneven", "see 3 to 8"),)}
    repeats = tuple(make_run(n, 10.0 * n, flags=flags[n], notes=notes.get(n, ())) for n in flags)
    (table,) = tabulate([make_point("1n1g", runs=repeats)])
    assert describe_flags(table.rows[0]) == (
        "2 repeats (1, 3): short-window",
        "repeat 2: outlier (20.00, +0.0% from the median), uneven (see 3 to 8), short-window",
    )


@cases
def test_what_still_runs_is_not_invalid_and_junit_passes_only_valid_points(
    codes, asked, outcome, exit_code
):
    runs = tuple(
        make_run(n, None if code else 100.0, code, log='a<b & "c"\x1b')
        for n, code in enumerate(codes, 1)
    )
    tables = tabulate([make_point("4n8g", runs=runs, asked=asked)])
    shortfalls = list_shortfalls(tables)
    errors = [{"loss": "incomplete"}.get(code, code) for code in codes if code]
    assert [error.code for error in shortfalls[: len(errors)]] == errors
    assert Result(errors=shortfalls).exit_code == exit_code
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


def test_collect_writes_junit_next_to_any_form_in_its_unit(build, tmp_path):
    campaign = build("1n1g", "1n2g", repeats=2, scheduler="local").finish()
    path = tmp_path / "points.xml"
    for unit in ("samples", "tokens"):
        words = ("--format", "json", "--unit", unit, "--junit", path)
        run("collect", campaign.directory, *words)
        texts = [case.findtext("system-out", "") for case in ET.parse(path).iter("testcase")]
        assert len(texts) == 2
        assert all(f"{unit}/s" in text for text in texts)
    assert run("collect", campaign.directory, "--explain", "--junit", path).returncode == 2


def test_every_form_says_how_it_was_made_and_markdown_explains_flags(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/bin/hpcbert", "collect", "my logs", "--token=abc123"])
    logs = write_logs(tmp_path, {"1n1g": [100.0, 100.5, 99.5, 90.0], "1n2g": [180.0]})
    for form in ("text", "wide", "markdown", "csv", "csv-runs", "json", "dlperf-json"):
        result = run("collect", logs, "--format", form, "--skip", "40")
        output = (result.stdout if form != "dlperf-json" else result.stderr).replace("\\", "")
        parts = ("clock", "iterations 41 to 120", __version__, "hpcbert collect 'my logs'")
        assert [part for part in parts if part not in output] == [], form
        assert "abc123" not in result.output
    text = run("collect", logs, "--format", "markdown").stdout.replace("\\", "")
    assert "min and max are the slowest and the fastest" in text
    assert "* outlier: one run is further from the median" in text
    assert "* single-run: one run" in text
    assert "* superlinear" not in text
    assert "* 1n1g: repeat 4: outlier (90.00, -9.8% from the median)" in text
    (row,) = (line for line in text.splitlines() if "| 2 |" in line)
    assert [cell.strip() for cell in row.split("|")][6:9] == ["", "", ""]
    (row,) = (line for line in run("collect", logs).stdout.splitlines() if "180.00" in line)
    assert row.count("180.00") == 1
    assert "single-run" in row
    # The form for each run has a line for each, the invalid ones too.
    (logs / "pytorch/1n2g/bert_b4_fp32_1.log").write_text("nothing\n")
    table = run("collect", logs, "--format", "csv-runs").stdout
    *lines, invalid = csv.DictReader(io.StringIO(table))
    places = [(line["gpus"], line["repeat"], line["valid"]) for line in (*lines, invalid)]
    assert places == [*(("1", str(n), "yes") for n in range(1, 5)), ("2", "1", "no")]
    throughputs = [float(line["throughput"]) for line in lines]
    assert throughputs == pytest.approx([100.0, 100.5, 99.5, 90.0], rel=1e-5)
    assert lines[3]["flags"] == "outlier"
    assert (invalid["throughput"], bool(invalid["reasons"])) == ("", True)
    assert all(line["log"].endswith(".log") for line in (*lines, invalid))
