"""Figures show ranges only where there are some, and no label over another."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import pytest

from hpcbert.model import Group, Measured, Run, Shape, SpeedupTable
from hpcbert.results.document import ResultSet
from hpcbert.results.reduce import tabulate
from hpcbert.results.report import figures
from hpcbert.results.report.figures import make_pictures
from hpcbert.results.report.model import ReportInput, Words
from tests.results.report.test_formats import MADE

pytestmark = pytest.mark.slow


def make_tables(rates: dict[str, float], spread: float = 0.0) -> tuple[SpeedupTable, ...]:
    """Return a table for each framework: its rate on one GPU, on 1, 2 and 4 GPUs."""
    points = []
    for name, rate in rates.items():
        group = Group(name, "bert-base", "fp16", 64, "rate")
        for gpus in (1, 2, 4):
            speeds = [gpus * rate + number * spread for number in (1, 2)]
            runs = tuple(Run(1, 0, speed, True, (), "-", "none", "") for speed in speeds)
            points.append(Measured(group, Shape(1, gpus), 2, runs))
    return tabulate(points)


def draw_axes(
    tables: tuple[SpeedupTable, ...], published: tuple[SpeedupTable, ...] = ()
) -> list[Any]:
    inputs = ReportInput("", MADE, ResultSet(tables), published=published)
    picture = make_pictures(inputs, Words("en"))[0][0]
    return list(figures.make_figure(picture).axes)


@pytest.mark.parametrize("spread", [0.0, 1.0], ids=["equal", "spread"])
def test_bars_are_drawn_where_runs_differ(spread: float) -> None:
    for axes in draw_axes(make_tables({"a": 10.0}, spread)):
        assert bool(axes.collections) is bool(spread)


@pytest.mark.parametrize("size", figures.SIZES)
def test_names_of_lines_keep_apart(size: str) -> None:
    tables = make_tables({name: 10.0 + number / 100 for number, name in enumerate("abcdef")})
    picture = make_pictures(ReportInput("", MADE, ResultSet(tables)), Words("en"))[0][0]
    svg = figures.draw(picture, size=size, all_formats=False).svg
    places = sorted(float(y) for y in re.findall(r' ([\d.]+)\)"[^>]*>[a-f] 100%<', svg))
    assert len(places) == 6
    gaps = [low - high for high, low in itertools.pairwise(places)]
    assert min(gaps) >= 0.9 * figures.SIZES[size].font


def test_lines_of_a_file_are_named_by_the_option_that_differs() -> None:
    group = Group("pytorch", "bert-base", "fp16", 64, "rate")
    run = Run(1, 0, 10.0, True, (), "-", "none", "")
    tables = tabulate(
        Measured(
            replace(group, variant=f"vocab_size=8192,NCCL_ALGO={name}"), Shape(1, gpus), 1, (run,)
        )
        for name in ("Ring", "Tree")
        for gpus in (1, 2)
    )
    picture = make_pictures(ReportInput("", MADE, ResultSet(tables)), Words("en"))[0][0]
    labels = [series.label for series in picture.panels[0].series]
    assert labels == ["pytorch NCCL_ALGO=Ring", "pytorch NCCL_ALGO=Tree"]
    assert picture.subject == "batch size 64 per device · vocab_size=8192"
    assert figures._cut_label("pytorch TORCH_COMPILE=0,NCCL_ALGO=Ring", 22).endswith("ALGO=Ring")


def test_published_lines_are_named_and_say_so() -> None:
    own, published = make_tables({"mine": 10.0}), make_tables({"theirs": 9.0})
    throughput, efficiency = draw_axes(own, published=published)
    lines = {line.get_color() for line in throughput.lines}
    assert figures._GREY in lines
    assert efficiency.get_ylabel() == "efficiency"
