"""Figures drawn by matplotlib: the only module that needs it.

Every figure shows the same in colour and in form: lines differ by colour, marker and dash, so that
they can be distinguished without colours, and on paper. Each line has its name at its end. The same
numbers always give the same bytes.
"""

from __future__ import annotations

import io
import logging
import math
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcbert.results.report.model import Panel, Picture, PlotSeries

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import Locator

# M. Okabe and K. Ito, Color Universal Design (2008): the colours that suit a white and a dark page.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
# The colour of text and axes: in a page it becomes the page's own colour.
_INK = "#1b1b1d"
_GREY = "#767676"
_DPI = 150
_CJK = ("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "WenQuanYi Micro Hei", "SimHei")
_MAX_LEGEND = 8
_DECADE = 10.0
_MOST_TICKS = 7
_MAX_LABEL = 44
_ASCII = re.compile(r"[\x00-\xff\u2013\u2212\u2026]*")


class Size(NamedTuple):
    """The size of a figure.

    Attributes:
        width: Inches, over all panels.
        height: Inches of the figure; of one panel if they are stacked.
        font: Points.
        stacked: Whether panels are below each other.
        label: The longest name of a line, in characters.
    """

    width: float
    height: float
    font: float
    stacked: bool
    label: int


# A slide of 16:9; one of two columns of a paper; a page's whole width.
SIZES = {
    "slide": Size(12.8, 7.2, 16.0, False, 22),
    "column": Size(3.4, 2.6, 7.0, True, 20),
    "page": Size(8.6, 3.9, 8.5, False, 26),
}
DEFAULT_SIZE = "page"
_USUAL_FONT = SIZES[DEFAULT_SIZE].font


class Drawing(NamedTuple):
    """A figure in three formats; png and pdf are None if this machine lacks a font for them."""

    svg: str
    png: bytes | None
    pdf: bytes | None


def draw(picture: Picture, *, size: str = DEFAULT_SIZE, all_formats: bool = True) -> Drawing:
    """Draw a figure."""
    with _style(SIZES[size]), _silence_fonts():
        figure = _draw_figure(picture, SIZES[size])
        svg = _save_figure(figure, "svg", Date=None, Creator=None).decode()
        if not (all_formats and _has_fonts_for(picture)):
            return Drawing(svg, None, None)
        # The figure is laid out already.
        figure.set_layout_engine("none")
        png = _save_figure(figure, "png", Software=None)
        pdf = _save_figure(figure, "pdf", CreationDate=None, Creator=None, Producer=None)
    return Drawing(svg, png, pdf)


def make_figure(picture: Picture) -> Figure:
    """Return a figure as an object of matplotlib, to show, change or save."""
    size = SIZES[DEFAULT_SIZE]
    with _style(size), _silence_fonts():
        return _draw_figure(picture, size)


def _draw_figure(picture: Picture, size: Size) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    count = len(picture.panels)
    height = size.height * count if size.stacked else size.height
    # Letters are a little wider in PNG than in SVG, which the layout is made for.
    layout = ConstrainedLayoutEngine(w_pad=size.font / 72)
    figure = Figure(figsize=(size.width, height), layout=layout)
    FigureCanvasAgg(figure)
    # A bold letter of a title is about 0.75 of the font size wide.
    columns = int(size.width * 72 / size.font / 0.75)
    if size.stacked:
        title, subject = (textwrap.fill(text, columns) for text in (picture.title, picture.subject))
    else:
        title, subject = (_cut_label(text, columns) for text in (picture.title, picture.subject))
    figure.suptitle(title, x=0.01, ha="left", fontsize="large", fontweight="bold")
    rows, places = (count, 1) if size.stacked else (1, count)
    for place, panel in enumerate(picture.panels, 1):
        axes = figure.add_subplot(rows, places, place)
        _DRAW[panel.kind](axes, panel, size)
        axes.set_xlabel(panel.x)
        axes.set_ylabel(panel.y)
        axes.grid(visible=True, which="major", alpha=0.3, linewidth=0.6)
        if place == 1 and subject:
            # Constrained layout keeps room for titles of axes, not for further texts of a figure.
            axes.set_title(subject, loc="left", fontsize="medium")
        handles, labels = axes.get_legend_handles_labels()
        if 1 < len(handles) <= _MAX_LEGEND:
            figure.legend(
                handles, labels, loc="outside lower left", ncols=2 if size.stacked else 4,
                fontsize="small", frameon=False,
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
    import matplotlib as mpl

    with mpl.rc_context(
        {
            **mpl.rcParamsDefault,
            "text.color": _INK,
            "axes.labelcolor": _INK,
            "axes.edgecolor": _INK,
            "xtick.color": _INK,
            "ytick.color": _INK,
            "svg.hashsalt": "hpcbert",
            # Text remains text: readers can search it, programs read it aloud, in the page's font.
            "svg.fonttype": "none",
            "font.family": ["DejaVu Sans", *_cjk_fonts()],
            "font.size": size.font,
            "axes.linewidth": 0.8 * size.font / _USUAL_FONT,
            "figure.facecolor": "white",
            "savefig.facecolor": "white",
            "axes.facecolor": "none",
            "axes.spines.top": False,
            "axes.spines.right": False,
            # Names are not mathematics.
            "text.parse_math": False,
        }
    ):
        yield


@contextmanager
def _silence_fonts() -> Iterator[None]:
    """Draw without complaints about fonts: a browser has its own."""
    logger = logging.getLogger("matplotlib.font_manager")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            yield
    finally:
        logger.setLevel(level)


def _cjk_fonts() -> tuple[str, ...]:
    """Return the fonts with Chinese signs that this machine has."""
    from matplotlib import font_manager

    names = {font.name for font in font_manager.fontManager.ttflist}
    return tuple(name for name in _CJK if name in names)


def _has_fonts_for(picture: Picture) -> bool:
    texts = [picture.title, picture.subject]
    texts += [text for panel in picture.panels for text in (panel.x, panel.y, panel.legend)]
    texts += [series.label for panel in picture.panels for series in panel.series]
    return bool(_cjk_fonts()) or all(map(_ASCII.fullmatch, texts))


def _save_figure(figure: Figure, file_format: str, **metadata: None) -> bytes:
    """Return a figure's file, drawn only once, while `savefig` draws it twice."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    canvases = {"svg": FigureCanvasSVG, "pdf": FigureCanvasPdf, "png": FigureCanvasAgg}
    # A point is 1/72 of an inch, the unit of the first two.
    figure.set_dpi(_DPI if file_format == "png" else 72)
    stream = io.BytesIO()
    getattr(canvases[file_format](figure), f"print_{file_format}")(stream, metadata=metadata)
    return stream.getvalue()


def _draw_scaling(axes: Axes, panel: Panel, size: Size) -> None:
    """Draw lines with ranges over both axes' logarithms, and the ideal line."""
    axes.set_yscale("log")
    _draw_lines(axes, panel, size)
    locator = _choose_locator(panel)
    if locator:
        axes.yaxis.set_major_locator(locator)
    axes.yaxis.set_major_formatter(lambda value, _: format(value, ",g"))
    axes.minorticks_off()
    _label_ends(axes, panel, size)


def _draw_efficiency(axes: Axes, panel: Panel, size: Size) -> None:
    """Draw lines of shares from 0, and the ideal line."""
    _draw_lines(axes, panel, size)
    highest = max(point[3] for series in panel.series for point in series.points)
    axes.set_ylim(0, max(1.1, 1.05 * highest))
    axes.yaxis.set_major_formatter(lambda value, _: format(value, ".0%"))
    axes.minorticks_off()
    _label_ends(axes, panel, size)


def _draw_lines(axes: Axes, panel: Panel, size: Size) -> None:
    scale = size.font / _USUAL_FONT
    axes.set_xscale("log", base=2)
    axes.plot(
        *zip(*panel.ideal, strict=True), color=_INK, linewidth=0.8 * scale, linestyle=(0, (4, 3))
    )
    for number, series in enumerate(panel.series):
        colour, marker, dash = _line_style(number, series)
        places, middles, low, high = _series_columns(series)
        axes.plot(
            places, middles, color=colour, marker=marker, linestyle=dash,
            markersize=4.5 * scale, linewidth=1.3 * scale, zorder=2 if series.published else 3,
        )  # fmt: skip
        # A range of no height would look like one.
        ranges = [part for part in zip(places, middles, low, high, strict=True) if any(part[2:])]
        if ranges:
            places, middles, low, high = zip(*ranges, strict=True)
            axes.errorbar(
                places, middles, yerr=(low, high), fmt="none", ecolor=colour,
                elinewidth=scale, capsize=3 * scale,
            )  # fmt: skip
    ticks = sorted({point[0] for series in panel.series for point in series.points})
    shown = _choose_tick_labels(ticks)
    axes.set_xticks(ticks, labels=[format(tick, "g") if tick in shown else "" for tick in ticks])


def _choose_tick_labels(ticks: Sequence[float]) -> set[float]:
    """Return the numbers of GPUs to write, none over another: the ends, then powers of two."""
    gap = math.log2(ticks[-1] / ticks[0]) / _MOST_TICKS
    shown: set[float] = set()
    powers = [tick for tick in ticks if math.log2(tick).is_integer()]
    for tick in (ticks[0], ticks[-1], *powers, *ticks):
        if all(abs(math.log2(tick / label)) >= gap for label in shown):
            shown.add(tick)
    return shown


def _line_style(number: int, series: PlotSeries) -> tuple[str, str, Any]:
    """Return a line's colour, marker and dashes."""
    if series.published:
        return _GREY, "x", (0, (1, 1))
    return _COLOURS[number], _MARKERS[number], _DASHES[number]


def _label_ends(axes: Axes, panel: Panel, size: Size) -> None:
    """Write each line's name right of the axes at the height of its end, none over another."""
    from matplotlib.lines import Line2D

    scale = size.font / _USUAL_FONT
    to_axes = axes.transData + axes.transAxes.inverted()
    axes.autoscale_view()
    ends: list[tuple[float, str, PlotSeries | None, int]] = [
        (to_axes.transform(series.points[-1][:2])[1], series.label, series, number)
        for number, series in enumerate(panel.series)
    ]
    ends.append((to_axes.transform(panel.ideal[-1])[1], panel.legend, None, 0))
    ends.sort(key=lambda end: end[0])
    # The axes take about three quarters of a figure's height.
    gap = 1.35 * size.font / 72 / (0.72 * size.height)
    heights = _spread_heights([end[0] for end in ends], gap)
    for (_, label, series, number), height in zip(ends, heights, strict=True):
        text = _cut_label(label, size.label)
        text = f"{text} {series.end}" if series and series.end else text
        colour, marker, dash = _line_style(number, series) if series else (_INK, "", (0, (4, 3)))
        axes.add_artist(
            Line2D(
                (1.02, 1.045, 1.07), (height,) * 3, color=colour, marker=marker, markevery=[1],
                markersize=4.5 * scale, linewidth=scale, linestyle=dash,
                transform=axes.transAxes, clip_on=False,
            )
        )  # fmt: skip
        axes.annotate(
            text,
            (1.09, height),
            xycoords="axes fraction",
            va="center",
            fontsize="small",
            annotation_clip=False,
        )


def _spread_heights(heights: Sequence[float], gap: float) -> list[float]:
    """Return rising heights at least a gap apart, and within the axes as far as they fit."""
    spread: list[float] = []
    for height in heights:
        spread.append(max([height, *(low + gap for low in spread[-1:])]))
    top = 0.96
    for place in reversed(range(len(spread))):
        spread[place] = min(spread[place], top)
        top = spread[place] - gap
    return spread


def _choose_locator(panel: Panel) -> Locator | None:
    """Return a locator of ticks if powers of ten are too far apart; otherwise None."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    values = [middle for series in panel.series for _, middle, *_ in series.points]
    span = max(values) / min(values)
    if span < _DECADE:
        return MaxNLocator(nbins=6, steps=[1, 2, 5, 10])
    return LogLocator(subs=(1.0, 2.0, 5.0)) if span < _DECADE**2 else None


def _cut_label(label: str, longest: int = _MAX_LABEL) -> str:
    """Return both ends of a label that is too long for a figure; the table next to it has all."""
    end = longest // 2
    return label if len(label) <= longest else f"{label[: longest - end - 1]}…{label[-end:]}"


def _draw_bars(axes: Axes, panel: Panel, size: Size) -> None:
    """Draw bars side by side, one set per series, with ranges."""
    width = 0.8 / len(panel.series)
    for number, series in enumerate(panel.series):
        places, middles, low, high = _series_columns(series)
        offset = (number - (len(panel.series) - 1) / 2) * width
        ranges = (low, high) if any((*low, *high)) else None
        axes.bar(
            [place + offset for place in places],
            middles,
            width,
            yerr=ranges,
            capsize=2 * size.font / _USUAL_FONT,
            color=_COLOURS[number],
            hatch=_HATCHES[number],
            edgecolor="white",
            ecolor=_INK,
            label=_cut_label(series.label),
        )
    _name_places(axes, panel, size)


def _name_places(axes: Axes, panel: Panel, size: Size) -> None:
    """Write the names of places; upright if they would run into each other."""
    longest = max(map(len, panel.names))
    width = 0.62 * size.font * (longest + 1) * len(panel.names)
    rotation = 90 if width > 0.8 * 72 * size.width else 0
    axes.set_xticks(range(len(panel.names)), labels=panel.names, rotation=rotation)


_HATCHES = ("", "//", "\\\\", "..", "xx", "--")


def _draw_runs(axes: Axes, panel: Panel, size: Size) -> None:
    """Draw a mark for each run, those of one point side by side."""
    axes.axhline(0, color=_INK, linewidth=0.8)
    last_numbers: dict[float, int] = {}
    for series in panel.series:
        for place, middle, *_ in series.points:
            last_numbers[place] = number = last_numbers.get(place, -1) + 1
            axes.plot(
                place + _mark_offset(number),
                middle,
                color=_COLOURS[0],
                marker="o",
                markersize=4 * size.font / _USUAL_FONT,
                linestyle="none",
                label="_nolegend_",
            )
    _name_places(axes, panel, size)
    axes.set_xlim(-0.5, len(panel.names) - 0.5)


def _mark_offset(number: int) -> float:
    """Return a mark's distance from the middle of its point: 0, 0.08, -0.08, 0.16 and so on."""
    return min(0.4, 0.08 * ((number + 1) // 2)) * (1 if number % 2 else -1)


def _draw_steps(axes: Axes, panel: Panel, size: Size) -> None:
    """Draw a line through the iterations of a run, with the measured ones shaded."""
    if panel.window:
        first, last = panel.window
        axes.axvspan(
            first, last, color=_COLOURS[5], alpha=0.25, linewidth=0, label=_cut_label(panel.legend)
        )
    for number, series in enumerate(panel.series):
        places, middles, _, _ = _series_columns(series)
        axes.plot(
            places,
            middles,
            color=_COLOURS[number],
            linewidth=0.9 * size.font / _USUAL_FONT,
            marker=".",
            markersize=2.5 * size.font / _USUAL_FONT,
            label=_cut_label(series.label),
        )
    highest = max(point[1] for series in panel.series for point in series.points)
    axes.set_ylim(0, 1.1 * highest)


_DRAW = {
    "scaling": _draw_scaling,
    "efficiency": _draw_efficiency,
    "bars": _draw_bars,
    "runs": _draw_runs,
    "steps": _draw_steps,
}


def _series_columns(series: PlotSeries) -> tuple[Sequence[float], ...]:
    """Return places, middles, and the distances of the ranges below and above."""
    points = series.points
    return (
        [point[0] for point in points],
        [point[1] for point in points],
        [point[1] - point[2] for point in points],
        [point[3] - point[1] for point in points],
    )
