from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from hpcbert.model import Group, Measured, Reason, Run, Shape
from hpcbert.results.formats import list_cases, render_cases
from hpcbert.results.reduce import tabulate
from tests.kit.cases import cases
from tests.kit.cli import run

GROUP = Group("oneflow", "bert-base", "fp32", 32, "dlperf-time")


def make_run(repeat: int, code: str) -> Run:
    reasons = (Reason(code, 'a<b & "c"\x1b'),) if code else ()
    throughput = None if code else 100.0 + repeat
    return Run(repeat, 0, throughput, not code, reasons, "COMPLETED", "sacct", f"{repeat}.log")


@cases
def test_a_point_passes_if_all_its_repeats_are_valid(
    codes: tuple[str, ...], asked: int, outcome: str
) -> None:
    runs = tuple(make_run(number, code) for number, code in enumerate(codes, 1))
    tables = tabulate([Measured(GROUP, Shape(4, 8), asked, runs)])
    (suite,) = ET.fromstring(render_cases("x", list(list_cases(tables, ()))))
    (case,) = suite
    assert case.get("name") == "4n8g"
    assert "oneflow" in (case.get("classname") or "")
    children = {child.tag for child in case} - {"system-out"}
    assert children == {outcome} - {""}
    counts = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    assert {name: suite.get(name) for name in counts} == {
        name: str(int(kind == outcome)) for name, kind in counts.items()
    }


def test_what_has_no_table_is_an_error_of_its_own() -> None:
    (suite,) = ET.fromstring(render_cases("x", list(list_cases((), ["a: nothing"]))))
    assert (suite.get("tests"), suite.get("errors")) == ("1", "1")


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["samples", "tokens"])
def test_collect_writes_it_next_to_any_format(
    build: Callable[..., Any], tmp_path: Path, unit: str
) -> None:
    campaign = build("1n1g", "1n2g", repeats=2, scheduler="local")
    campaign.finish()
    path = tmp_path / "points.xml"
    words = ("--format", "json", "--unit", unit, "--junit", path)
    run("collect", campaign.directory, *words)
    outputs = [
        case.findtext("system-out", "") for case in ET.parse(path).getroot().iter("testcase")
    ]
    assert len(outputs) == 2
    assert all(f"{unit}/s" in text for text in outputs)
    assert run("collect", campaign.directory, "--explain", "--junit", path).returncode == 2
