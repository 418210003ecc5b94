from __future__ import annotations

import csv
import json

import pytest

from hpcbert.model import Group, Measured, Provenance, Reason, Run, Shape, SpeedupTable
from hpcbert.results.formats import render_exacb, render_perflog
from hpcbert.results.reduce import tabulate

MADE = Provenance("1.2.3", "2026-01-02", "hpcbert collect 'a|b'")


def make_run(repeat: int, throughput: float | None) -> Run:
    reasons = () if throughput else (Reason("loss", "the loss is nan"),)
    valid = throughput is not None
    return Run(repeat, 0, throughput, valid, reasons, "COMPLETED", "sacct", "1.log", ("n1",))


@pytest.fixture
def tables() -> tuple[SpeedupTable, ...]:
    group = Group("oneflow", "bert-base", "fp32", 32, "dlperf-time")
    points = {"1n1g": (140.5, 140.25), "4n8g": (4321.5, None), "8n8g": (None, None)}
    return tabulate(
        [
            Measured(group, Shape.parse(shape), 2, tuple(map(make_run, (1, 2), rates)))
            for shape, rates in points.items()
        ]
    )


def test_a_perflog_has_a_line_for_each_point(tables: tuple[SpeedupTable, ...]) -> None:
    lines = render_perflog(tables, MADE).splitlines()
    assert lines[0].startswith("result|job_completion_time|")
    assert "|throughput_value|throughput_unit|throughput_ref|" in lines[0]
    entries = list(csv.DictReader(lines, delimiter="|"))
    values = [(entry["result"], entry["throughput_value"], entry["nodes"]) for entry in entries]
    assert values == [("pass", "140.375", "1"), ("fail", "4321.5", "4"), ("fail", "", "8")]
    assert {entry["command"] for entry in entries} == {MADE.command}
    assert {entry["throughput_unit"] for entry in entries} == {"samples/s"}


def test_a_report_has_an_entry_for_each_repeat(tables: tuple[SpeedupTable, ...]) -> None:
    report = json.loads(render_exacb(tables, MADE))
    assert report.keys() == {"reporter", "experiment", "data"}
    assert report["reporter"]["tool"] == "hpcbert"
    rates = [(entry["success"], entry["metrics"]["throughput"]) for entry in report["data"]]
    assert rates == [(True, 140.5), (True, 140.25), (True, 4321.5), *[(False, None)] * 3]
    last = report["data"][-1]
    assert (last["nodes"], last["taskspernode"], last["reasons"]) == (8, 8, "loss: the loss is nan")
