"""The figures of a report as data, and drawn by matplotlib.

Every figure shows the same in colour and in form: lines differ by colour, marker and dash, so that
they can be distinguished without colours, and on paper.
"""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcbert.model import Group, Row, Shape, SpeedupTable
from hpcbert.results.grid import Cell, Column, Grid
from hpcbert.results.report.model import (
    Panel,
    Picture,
    PlotSeries,
    Point,
    ReportInput,
)
from hpcbert.results.wording import cpu_suffix, sanitize, table_title
from hpcbert.results.words import Words
from hpcbert.system import grouping

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The number of distinguishable colours and markers; further lines go into another figure.
MAX_LINES = 6
# The most figures of each kind on a page; the tables have the numbers of all.
_MAX_PICTURES = 4
# The number of tables with a figure of the steps inside a run.
_MOST_TRACES = 2
# The most places on an axis of names that remain readable.
_MAX_PLACES = 24
# M. Okabe and K. Ito, Color Universal Design (2008): the colours that suit a white and a dark page.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
_HATCHES = ("", "//", "\\\\", "..", "xx", "--")
# The colour of text and axes: in a page it becomes the page's own colour.
_INK = "#1b1b1d"
_GREY = "#767676"
_DPI = 150
_CJK = ("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "WenQuanYi Micro Hei", "SimHei")
_MAX_LABEL = 44
# The most names of places that stand side by side.
_MAX_LEVEL = 8
_LATIN = re.compile(r"[\x00-\xff\u2013\u2212\u2026]*")


class Size(NamedTuple):
    """The size of a figure.

    Attributes:
        width: Inches, over all panels.
        height: Inches of the figure; of one panel if they are stacked.
        stacked: Whether panels are below each other.
    """

    width: float
    height: float
    font: float
    stacked: bool

    @property
    def scale(self) -> float:
        """The width of lines, relative to the usual size."""
        return self.font / SIZES[DEFAULT_SIZE].font


# A slide of 16:9; one of two columns of a paper; a page's whole width.
SIZES = {
    "slide": Size(12.8, 7.2, 16.0, False),
    "column": Size(3.4, 2.6, 7.0, True),
    "page": Size(8.6, 3.9, 8.5, False),
}
DEFAULT_SIZE = "page"


def make_pictures(inputs: ReportInput, words: Words) -> tuple[list[Picture], int]:
    """Return the figures of a report, the main one first, and how many more there would be."""
    tables = [table for table in inputs.tables if any(row.median for row in table.rows)]
    parts = _split_tables(tables)
    kinds = [
        [
            partial(_scaling_picture, name, part, inputs, words)
            for name, part in parts
            if len(_device_counts(part)) > 1
        ],
        [
            partial(_bar_picture, name, part, words)
            for name, part in parts
            if len({table.group.framework for table in part}) > 1
        ],
        [
            partial(_spread_picture, table, rows, words)
            for table, rows in ((table, _spread_rows(table)) for table in tables)
            if rows
        ],
        [
            partial(_step_picture, table.group, row, words)
            for table, row in _list_largest(inputs.results.tables)[:_MOST_TRACES]
        ],
    ]
    pictures = [
        make_picture(number)
        for kind in kinds
        for number, make_picture in enumerate(kind[:_MAX_PICTURES], 1)
    ]
    return pictures, sum(map(len, kinds)) - len(pictures)


def list_devices(tables: Iterable[SpeedupTable]) -> list[str]:
    """Return the names of the devices that tables were measured on, as nodes or logs state them."""
    names: dict[str, None] = {}
    for table in tables:
        for row in table.rows:
            facts = dict(row.facts)
            names |= dict.fromkeys(facts.get("GPU") or facts.get("device") or ())
    return [sanitize(name) for name in names]


def sort_shapes(tables: Iterable[SpeedupTable]) -> list[Shape]:
    """Return the shapes of some tables, by devices and nodes."""
    shapes = {row.shape for table in tables for row in table.rows}
    return sorted(shapes, key=lambda shape: (shape.gpus, shape.nodes))


def _split_tables(tables: Iterable[SpeedupTable]) -> list[tuple[str, list[SpeedupTable]]]:
    """Return the tables that belong together in figures, with their common name.

    A figure has one model, precision and kind of device, and at most MAX_LINES lines.
    """
    tables_by_name = grouping.group((_picture_name(table.group), table) for table in tables)
    return [
        (name, group_tables[start : start + MAX_LINES])
        for name, group_tables in tables_by_name.items()
        for start in range(0, len(group_tables), MAX_LINES)
    ]


def _picture_name(group: Group) -> str:
    return sanitize(f"{group.model} {group.precision}{cpu_suffix(group)}")


def _device_counts(tables: Iterable[SpeedupTable]) -> list[int]:
    return sorted({row.shape.gpus for table in tables for row in table.rows if row.median})


def label_tables(tables: Sequence[SpeedupTable], words: Words) -> list[str]:
    """Return each table's framework, and what differs of its batch size, variant or rule."""
    common = _common_options(tables)
    parts = []
    for table in tables:
        group = table.group
        options = ",".join(word for word in group.variant.split(",") if word not in common)
        parts.append((group.framework, words("batch-short", size=group.batch), options))
    differing = [0, *(place for place in (1, 2) if len({part[place] for part in parts}) > 1)]
    labels = [" ".join(filter(None, (part[place] for place in differing))) for part in parts]
    if len({*labels}) < len(labels):
        labels = [
            f"{label} {table.group.rule}" for label, table in zip(labels, tables, strict=True)
        ]
    return list(map(sanitize, labels))


def _common_options(tables: Sequence[SpeedupTable]) -> list[str]:
    variants = [table.group.variant.split(",") for table in tables]
    return [word for word in variants[0] if all(word in variant for variant in variants)]


def _describe_subject(tables: Sequence[SpeedupTable], words: Words) -> str:
    """Return what all lines have in common: batch size, options, device."""
    batches = {table.group.batch for table in tables}
    parts = [words("batch", size=min(batches))] if len(batches) == 1 else []
    parts.append(sanitize(",".join(_common_options(tables))))
    parts += list_devices(tables)
    return " · ".join(filter(None, parts))


def _scaling_picture(
    name: str, tables: Sequence[SpeedupTable], inputs: ReportInput, words: Words, number: int
) -> Picture:
    device = tables[0].group.device
    published = [table for table in inputs.published if _picture_name(table.group) == name]
    names = [next((row.origin.name for row in table.rows if row.origin), "") for table in published]
    labels = [*label_tables(tables, words), *map(sanitize, names)]
    throughput, efficiency, descriptions = [], [], []
    cells: list[tuple[Cell, ...]] = []
    for place, (label, table) in enumerate(zip(labels, [*tables, *published], strict=True)):
        rows = [
            (label, str(row.shape), row.shape.gpus, *_row_range(row), row.speedup, row.efficiency)
            for row in table.rows
            if row.median
        ]
        cells += rows
        points = tuple(row[2:6] for row in rows)
        is_published = place >= len(tables)
        throughput.append(PlotSeries(label, points, is_published))
        efficiency.append(PlotSeries(label, _efficiency_points(table), is_published))
        (start, first, *_), (end, last, *_) = points[0], points[-1]
        values = {"first": format(first, ".2f"), "last": format(last, ".2f")}
        descriptions.append(words("figure.line", name=label, start=start, end=end, **values))
    axis, gpus = words(f"axis.devices.{device}"), _device_counts(tables)
    # Each GPU is as fast as those of the first point.
    device_count, rate, *_ = throughput[0].points[0]
    legend = words("figure.ideal", name=labels[0])
    line = tuple((count, rate / device_count * count) for count in gpus)
    panels = [
        Panel("scaling", axis, words("axis.throughput"), tuple(throughput), (), line, legend=legend)
    ]
    if any(series.points for series in efficiency):
        line = tuple((count, 1.0) for count in gpus)
        title, series = words("axis.efficiency"), tuple(efficiency)
        panels.append(Panel("efficiency", axis, title, series, (), line, legend=legend))
    columns = words.columns(
        *("line", "shape", f"devices.{device}:d", "samples:.2f", "min:.2f", "max:.2f"),
        *("speedup:.2f", "efficiency:.1%"),
    )
    title, subject = words("figure.scaling", name=name), _describe_subject(tables, words)
    grid = Grid(f"figure-scaling-{number}", title, columns, tuple(cells), folded=True)
    alt = words("figure.scaling.alt", name=name, lines=words("comma").join(descriptions))
    if inputs.title and number == 1:
        title, subject = sanitize(inputs.title), f"{name} · {subject}"
    return Picture(f"scaling-{number}", title, subject, alt, tuple(panels), grid)


def _efficiency_points(table: SpeedupTable) -> tuple[Point, ...]:
    points = []
    for row in table.rows:
        if row.median and row.efficiency:
            _, low, high = (value / row.median * row.efficiency for value in _row_range(row))
            points.append((row.shape.gpus, row.efficiency, low, high))
    return tuple(points if points[1:] else ())


def _bar_picture(name: str, tables: Sequence[SpeedupTable], words: Words, number: int) -> Picture:
    shapes = sort_shapes(tables)[:_MAX_PLACES]
    labels = label_tables(tables, words)
    series: list[PlotSeries] = []
    cells: list[tuple[Cell, ...]] = []
    for label, table in zip(labels, tables, strict=True):
        points = []
        for row in table.rows:
            if row.median and row.shape in shapes:
                middle, low, high = (value / row.shape.gpus for value in _row_range(row))
                points.append((shapes.index(row.shape), middle, low, high))
                cells.append((label, str(row.shape), middle, low, high))
        series.append(PlotSeries(label, tuple(points)))
    title, per_gpu = words("figure.beside", name=name), words("axis.per-gpu")
    columns = (*words.columns("line", "shape"), Column(per_gpu, ".2f"))
    columns += words.columns("min:.2f", "max:.2f")
    grid = Grid(f"figure-beside-{number}", title, columns, tuple(cells), folded=True)
    axis = words(f"axis.shape.{tables[0].group.device}")
    panel = Panel("bars", axis, per_gpu, tuple(series), names=tuple(map(str, shapes)))
    alt = words("figure.beside.alt", name=name, lines=words("comma").join(labels))
    subject = _describe_subject(tables, words)
    return Picture(f"beside-{number}", title, subject, alt, (panel,), grid)


def _row_range(row: Row) -> tuple[float, float, float]:
    middle = row.median or 0.0
    return middle, row.min or middle, row.max or middle


def _valid_speeds(row: Row) -> list[tuple[int, float]]:
    """Return the valid runs; a published row may have none."""
    return [(run.repeat, run.throughput) for run in row.runs if run.valid and run.throughput]


def _spread_rows(table: SpeedupTable) -> list[Row]:
    rows = [row for row in table.rows if row.median and len(_valid_speeds(row)) > 1]
    return rows[:_MAX_PLACES]


def _spread_picture(table: SpeedupTable, rows: Sequence[Row], words: Words, number: int) -> Picture:
    """Return the runs of every point of a table, as distances from their median."""
    points, cells = [], []
    for place, row in enumerate(rows):
        for repeat, speed in _valid_speeds(row):
            deviation = (speed / (row.median or speed) - 1) * 100
            points.append((place, deviation, deviation, deviation))
            cells.append((str(row.shape), repeat, speed, deviation / 100))
    columns = words.columns("shape", "repeat:d", "throughput:.2f", "distance:+.2%")
    name = table_title(table.group)
    title = words("figure.runs", name=name)
    grid = Grid(f"figure-runs-{number}", title, columns, tuple(cells), folded=True)
    axes = words(f"axis.shape.{table.group.device}"), words("axis.distance")
    series = PlotSeries(words("figure.run"), tuple(points))
    panel = Panel("runs", *axes, (series,), names=tuple(str(row.shape) for row in rows))
    widest = format(max(abs(point[1]) for point in points), ".2f")
    alt = words("figure.runs.alt", name=name, points=len(rows), widest=widest)
    subject = _describe_subject([table], words)
    return Picture(f"runs-{number}", title, subject, alt, (panel,), grid)


def _list_largest(tables: Iterable[SpeedupTable]) -> list[tuple[SpeedupTable, Row]]:
    """Return the row of each table's largest shape with times of steps."""
    candidates = ((table, [row for row in table.rows if row.steps]) for table in tables)
    return [(table, rows[-1]) for table, rows in candidates if rows]


def _step_picture(group: Group, row: Row, words: Words, number: int) -> Picture:
    """Return the steps inside the run that is nearest to the median."""
    speeds = {run.repeat: run.throughput or 0.0 for run in row.runs}
    median = row.median or 0.0
    repeat, steps = min(row.steps, key=lambda item: abs(speeds[item[0]] - median))
    records = tuple(zip(steps.iterations, steps.seconds, strict=True))
    window = first, last = steps.after + 1, steps.until
    name = f"{table_title(group)} {row.shape}"
    name = words("figure.of-run", name=name, repeat=repeat)
    title = words("figure.steps", name=name)
    axes = words("axis.iteration"), words("axis.seconds")
    columns = Column(axes[0], "d"), Column(axes[1], ".4f")
    grid = Grid(f"figure-steps-{number}", title, columns, records, folded=True)
    points = tuple((iteration, seconds, seconds, seconds) for iteration, seconds in records)
    series, legend = PlotSeries(words("figure.step"), points), words("figure.window")
    panel = Panel("steps", *axes, (series,), window=window, legend=legend)
    alt = words("figure.steps.alt", name=name, first=first, last=last)
    parts = words("batch", size=group.batch), sanitize(group.variant)
    subject = " · ".join(filter(None, parts))
    return Picture(f"steps-{number}", title, subject, alt, (panel,), grid)


# --- drawing -------------------------------------------------------------------------------------


# What each format would state of its making: the same numbers always give the same bytes.
_METADATA = {
    "svg": ("Date", "Creator"),
    "png": ("Software",),
    "pdf": ("CreationDate", "Creator", "Producer"),
}


def draw(
    picture: Picture, *, size: str = DEFAULT_SIZE, formats: Iterable[str] = _METADATA
) -> dict[str, bytes]:
    """Draw a figure in some formats; only as SVG if this machine lacks a font for its text."""
    drawing = {}
    with _style(SIZES[size]):
        figure = _draw_figure(picture, SIZES[size])
        for name in formats:
            stream = io.BytesIO()
            metadata = dict.fromkeys(_METADATA[name])
            figure.savefig(stream, format=name, dpi=_DPI, metadata=metadata)
            drawing[name] = stream.getvalue()
            if not (_cjk_fonts() or _LATIN.fullmatch(drawing["svg"].decode())):
                break
    return drawing


def make_figure(picture: Picture) -> Figure:
    """Return a figure as an object of matplotlib, to show, change or save."""
    size = SIZES[DEFAULT_SIZE]
    with _style(size):
        return _draw_figure(picture, size)


def _draw_figure(picture: Picture, size: Size) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    count = len(picture.panels)
    rows, places = (count, 1) if size.stacked else (1, count)
    # Letters are a little wider in PNG than in SVG, which the layout is made for.
    layout = ConstrainedLayoutEngine(w_pad=size.font / 72)
    figure = Figure(figsize=(size.width, size.height * rows), layout=layout)
    # A bold letter of a title is about 0.75 of the font size wide.
    columns = int(size.width * 72 / size.font / 0.75)
    fit = textwrap.fill if size.stacked else _cut_label
    title, subject = fit(picture.title, columns), fit(picture.subject, columns)
    figure.suptitle(title, x=0.01, ha="left", fontsize="large", fontweight="bold")
    for place, panel in enumerate(picture.panels, 1):
        axes = figure.add_subplot(rows, places, place)
        _DRAW[panel.kind](axes, panel)
        axes.set_xlabel(panel.x)
        axes.set_ylabel(panel.y)
        axes.grid(visible=True, which="major", alpha=0.3, linewidth=0.6)
        if place == 1 and subject:
            # Constrained layout keeps room for titles of axes, not for further texts of a figure.
            axes.set_title(subject, loc="left", fontsize="medium")
    # Panels have the same lines.
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if len(handles) > 1:
        figure.legend(
            handles, labels, loc="outside lower left", ncols=2 if size.stacked else 4,
            fontsize="small", frameon=False, handlelength=3,
        )  # fmt: skip
    return figure


def inline_svg(svg: str, name: str, label: str) -> str:
    """Return a figure's SVG as a part of a page.

    Its text takes the page's colour, and its ids differ from those of other figures.
    """
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = body.replace('href="#', f'href="#{name}-').replace("url(#", f"url(#{name}-")
    body = body.replace(_INK, "currentColor").replace("fill: #ffffff", "fill: none")
    # The page sets the width.
    tag, end, content = body.partition(">")
    body = re.sub(r' (?:width|height)="[^"]*"', "", tag) + end + content
    return body.replace("<svg ", f'<svg role="img" aria-labelledby="{label}" ', 1)


@contextmanager
def _style(size: Size) -> Iterator[None]:
    """Draw in hpcbert's style, without complaints about fonts: a browser has its own."""
    import matplotlib as mpl

    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    settings: dict[Any, Any] = {
        **mpl.rcParamsDefault,
        **dict.fromkeys(inked, _INK),
        "svg.hashsalt": "hpcbert",
        # Text remains text: readers can search it, programs read it aloud, in the page's font.
        "svg.fonttype": "none",
        "font.family": ["DejaVu Sans", *_cjk_fonts()],
        "font.size": size.font,
        "lines.linewidth": 1.3 * size.scale,
        "lines.markersize": 4.5 * size.scale,
        "errorbar.capsize": 3 * size.scale,
        "axes.linewidth": 0.8 * size.scale,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        # Names are not mathematics.
        "text.parse_math": False,
    }
    with warnings.catch_warnings(), mpl.rc_context(settings):
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def _cjk_fonts() -> tuple[str, ...]:
    """Return the fonts with Chinese signs that this machine has."""
    from matplotlib import font_manager

    names = {font.name for font in font_manager.fontManager.ttflist}
    return tuple(name for name in _CJK if name in names)


def _draw_lines(axes: Axes, panel: Panel) -> None:
    """Draw lines with ranges over the logarithm of the devices, and the ideal line."""
    from matplotlib.ticker import LogLocator

    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: format(value, "g"))
    dashes, legend = (0, (4, 3)), _cut_label(panel.legend)
    ideal = zip(*panel.ideal, strict=True)
    axes.plot(*ideal, color=_INK, linewidth=0.8, linestyle=dashes, label=legend)
    for number, series in enumerate(panel.series):
        colour, marker, dash = _line_style(number, series)
        places, middles, _ = _split_points(series.points)
        axes.plot(
            places, middles, color=colour, marker=marker, linestyle=dash,
            zorder=2 if series.published else 3, label=_cut_label(series.label),
        )  # fmt: skip
        # A range of no height would look like one.
        wide_points = [point for point in series.points if point[3] > point[2]]
        if wide_points:
            places, middles, ranges = _split_points(wide_points)
            axes.errorbar(places, middles, yerr=ranges, fmt="none", ecolor=colour)
    if panel.kind == "scaling":
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(lambda value, _: format(value, ",g"))
    else:
        highest = max(point[3] for series in panel.series for point in series.points)
        axes.set_ylim(0, max(1.1, 1.05 * highest))
        axes.yaxis.set_major_formatter(lambda value, _: format(value, ".0%"))
    axes.minorticks_off()


def _line_style(number: int, series: PlotSeries) -> tuple[str, str, Any]:
    if series.published:
        return _GREY, "x", (0, (1, 1))
    return _COLOURS[number], _MARKERS[number], _DASHES[number]


def _cut_label(label: str, longest: int = _MAX_LABEL) -> str:
    """Return both ends of a label that is too long for a figure; the table next to it has all."""
    end = longest // 2
    return label if len(label) <= longest else f"{label[: longest - end - 1]}…{label[-end:]}"


def _draw_bars(axes: Axes, panel: Panel) -> None:
    width = 0.8 / len(panel.series)
    for number, series in enumerate(panel.series):
        places, middles, ranges = _split_points(series.points)
        offset = (number - (len(panel.series) - 1) / 2) * width
        axes.bar(
            [place + offset for place in places], middles, width,
            yerr=ranges if any(map(any, ranges)) else None,
            color=_COLOURS[number], hatch=_HATCHES[number], edgecolor="white", ecolor=_INK,
            label=_cut_label(series.label),
        )  # fmt: skip
    _name_places(axes, panel)


def _name_places(axes: Axes, panel: Panel) -> None:
    rotation = 90 if len(panel.names) > _MAX_LEVEL else 0
    axes.set_xticks(range(len(panel.names)), labels=panel.names, rotation=rotation)


def _draw_runs(axes: Axes, panel: Panel) -> None:
    """Draw a mark for each run; several at one place are darker."""
    axes.axhline(0, color=_INK, linewidth=0.8)
    (series,) = panel.series
    places, middles, _ = _split_points(series.points)
    axes.plot(places, middles, color=_COLOURS[0], marker="o", linestyle="none", alpha=0.6)
    _name_places(axes, panel)
    axes.set_xlim(-0.5, len(panel.names) - 0.5)


def _draw_steps(axes: Axes, panel: Panel) -> None:
    window: dict[str, Any] = {"color": _COLOURS[5], "alpha": 0.25, "linewidth": 0}
    axes.axvspan(*panel.window, label=_cut_label(panel.legend), **window)
    (series,) = panel.series
    places, middles, _ = _split_points(series.points)
    label = _cut_label(series.label)
    axes.plot(places, middles, color=_COLOURS[0], linewidth=0.9, marker=".", label=label)
    axes.set_ylim(0, 1.1 * max(middles))


_DRAW = {
    "scaling": _draw_lines,
    "efficiency": _draw_lines,
    "bars": _draw_bars,
    "runs": _draw_runs,
    "steps": _draw_steps,
}


def _split_points(points: Sequence[Point]) -> tuple[Any, Any, Any]:
    """Return places, middles, and the distances of the ranges below and above."""
    below = [middle - low for _, middle, low, _ in points]
    above = [high - middle for _, middle, _, high in points]
    return [point[0] for point in points], [point[1] for point in points], (below, above)
