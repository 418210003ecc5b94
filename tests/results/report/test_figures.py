"""Figures show ranges only where there are some, and name each line."""

import itertools
import re
from dataclasses import replace

import pytest

from hpcbert.results.document import ResultSet
from hpcbert.results.reduce import tabulate
from hpcbert.results.report import figures, model
from hpcbert.results.words import Words
from tests.results.test_reduce import GROUP, MADE, make_point

pytestmark = pytest.mark.slow


def test_figures_show_ranges_where_runs_differ_and_name_each_line_once(monkeypatch):
    def make_picture(points, published=()):
        monkeypatch.setattr(model, "find_twins", lambda _tables: published)
        inputs = model.ReportInput("", MADE, ResultSet(tabulate(points)))
        return figures.make_pictures(inputs, Words("en"))[0][0]

    def make_curve(name, rate, spread=0.0):
        group = replace(GROUP, framework=name)
        rates = {f"1n{gpus}g": [gpus * rate + n * spread for n in (1, 2)] for gpus in (1, 2, 4)}
        return [make_point(shape, numbers, group=group) for shape, numbers in rates.items()]

    for spread in (0.0, 1.0):
        for axes in figures.make_figure(make_picture(make_curve("a", 10.0, spread))).axes:
            assert bool(axes.collections) is bool(spread)
    published = tabulate(make_curve("theirs", 9.0))
    figure = figures.make_figure(make_picture(make_curve("mine", 10.0), published))
    throughput, efficiency = figure.axes
    assert figures._GREY in {line.get_color() for line in throughput.lines}
    assert efficiency.get_ylabel() == "efficiency"
    # A legend has the name of each line once, in figures of all sizes.
    curves = [make_curve(name, 10.0 + n / 100) for n, name in enumerate("abcdef")]
    picture = make_picture(itertools.chain(*curves))
    for size in figures.SIZES:
        svg = figures.draw(picture, size=size, formats=["svg"])["svg"].decode()
        assert sorted(re.findall(r">([a-f])</text>", svg)) == [*"abcdef"], size
    picture = make_picture(
        make_point(shape, [10.0], group=replace(GROUP, variant=f"vocab_size=8192,NCCL_ALGO={name}"))
        for name in ("Ring", "Tree")
        for shape in ("1n1g", "1n2g")
    )
    labels = [series.label for series in picture.panels[0].series]
    assert labels == ["oneflow NCCL_ALGO=Ring", "oneflow NCCL_ALGO=Tree"]
    assert picture.subject == "batch size 32 per device · vocab_size=8192"
    assert figures._cut_label("pytorch TORCH_COMPILE=0,NCCL_ALGO=Ring", 22).endswith("ALGO=Ring")
