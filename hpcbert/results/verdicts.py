"""Comparisons as a table, as plain data for JSON, as JUnit XML."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hpcbert.results.grid import NOTHING, Column, Grid, TableView
from hpcbert.results.interval import MOST, least
from hpcbert.results.words import plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcbert.results.compare import Comparison, Contrast, Matched, Side
    from hpcbert.results.grid import Cell

_COLUMNS = (
    Column("point"),
    Column("BASE samples/s", ".2f"),
    Column("NEW samples/s", ".2f"),
    Column("BASE per GPU", ".2f"),
    Column("NEW per GPU", ".2f"),
    Column("NEW/BASE", ".2%"),
    Column("interval", ">"),
    Column("runs", ">"),
    Column("verdict"),
)
_COLOURS = {"faster": "green", "slower": "red", "unknown": "yellow"}
_SHOWN, _NAMED = 8, 3


def data(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as docs/reference/json.md describes it."""
    return {
        "base": comparison.base,
        "new": comparison.new,
        "points": [_point_data(pair) for pair in comparison.pairs],
        "lacking": [{"point": name, "why": why} for name, why in comparison.lacking],
        "added": list(comparison.added),
    }


def _point_data(pair: Matched) -> dict[str, Any]:
    return {
        "point": pair.new.name,
        "base": side_data(pair.base),
        "new": side_data(pair.new),
        "ratio": pair.ratio.value,
        "low": pair.ratio.low,
        "high": pair.ratio.high,
        "coverage": pair.ratio.coverage,
        "false_alarm": pair.ratio.false_alarm,
        "verdict": pair.verdict,
        "repeats": pair.repeats,
        "comparable": not pair.obstacles,
        "obstacles": [contrast._asdict() for contrast in pair.obstacles],
        "differences": [contrast._asdict() for contrast in pair.contrasts],
    }


def side_data(side: Side) -> dict[str, Any]:
    """Return one side of a comparison as plain data."""
    row = side.row
    return {
        **asdict(side.group),
        "shape": str(row.shape),
        "gpus": row.shape.gpus,
        "median": row.median,
        "per_gpu": side.per_gpu,
        "runs": side.speeds,
        "origin": {"kind": row.origin.kind, "name": row.origin.name} if row.origin else None,
    }


def verdict(pair: Matched, within: float) -> str:
    """Return a verdict in words."""
    words = {"equal": f"equal within {share(within)}", "unknown": _untold(pair)}
    said = words.get(pair.verdict, pair.verdict)
    return f"{said} (not comparable)" if pair.obstacles else said


def _untold(pair: Matched) -> str:
    if pair.base.single or pair.new.single:
        return "can't be told: one number was published, without its runs"
    count = f"about {pair.repeats}" if pair.repeats else f"more than {MOST}"
    return f"can't be told: it needs {count} repeats of both"


def share(value: float) -> str:
    """Return a share in percent, in the usual form."""
    return f"{value * 100:.6g} %"


def view(comparison: Comparison, within: float) -> TableView:
    """Return a comparison as a table; with numbers per GPU if somebody else published one side.

    Args:
        comparison: The comparison to show.
        within: The share within which two numbers are equal.
    """
    pairs = comparison.pairs
    published = any(pair.base.published or pair.new.published for pair in pairs)
    columns = tuple(
        column for column in _COLUMNS if published or not column.title.endswith("per GPU")
    )
    cells = [_cells(pair, within) for pair in pairs]
    rows = tuple(tuple(row[column.title] for column in columns) for row in cells)
    title = f"{comparison.new} against {comparison.base}"
    return TableView(
        heading=(f"BASE {plain(comparison.base)}", f"NEW  {plain(comparison.new)}"),
        grid=Grid("comparison", title, columns, rows),
        notes=tuple(_notes(comparison)),
        legend=_legend(comparison),
        colours=tuple(_COLOURS.get(pair.verdict) for pair in pairs),
    )


def _cells(pair: Matched, within: float) -> dict[str, Cell]:
    ratio = pair.ratio
    return {
        "point": plain(pair.new.name),
        "BASE samples/s": pair.base.row.median,
        "NEW samples/s": pair.new.row.median,
        "BASE per GPU": pair.base.per_gpu,
        "NEW per GPU": pair.new.per_gpu,
        "NEW/BASE": ratio.value,
        "interval": f"{ratio.low:.2%} .. {ratio.high:.2%}" if ratio.coverage else NOTHING,
        "runs": f"{len(pair.base.speeds)}, {len(pair.new.speeds)}",
        "verdict": verdict(pair, within),
    }


def _notes(comparison: Comparison) -> list[str]:
    """Return further remarks, one sentence each."""
    obstacles = told("not comparable: ", [(pair, pair.obstacles) for pair in comparison.pairs])
    contrasts = told("", [(pair, pair.contrasts) for pair in comparison.pairs])
    more = len(contrasts) - _SHOWN
    lacking: dict[str, list[str]] = {}
    for name, why in comparison.lacking:
        lacking.setdefault(why, []).append(name)
    return [
        *obstacles,
        *contrasts[:_SHOWN],
        *([f"{more} more differences: --json has them all"] if more > 0 else []),
        *(f"no verdict, because {why}: {some(names)}" for why, names in lacking.items()),
        *([f"only in NEW: {some(comparison.added)}"] if comparison.added else []),
    ]


def told(start: str, found: Sequence[tuple[Matched, tuple[Contrast, ...]]]) -> list[str]:
    """Return each contrast once, with its points unless it is true of all."""
    points: dict[str, list[str]] = {}
    for pair, contrasts in found:
        for contrast in contrasts:
            points.setdefault(f"{start}{contrast}", []).append(pair.new.name)
    return [
        text if len(names) == len(found) else f"{text} ({some(names)})"
        for text, names in points.items()
    ]


def some(names: Sequence[str]) -> str:
    """Return the first few names and the number of the others."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _legend(comparison: Comparison) -> str:
    ratios = [pair.ratio for pair in comparison.pairs if pair.ratio.decides]
    if not ratios:
        return f"A verdict needs {least()} valid runs of both."
    covered = min(ratio.coverage for ratio in ratios)
    alarms = max(ratio.false_alarm for ratio in ratios)
    return (
        "samples/s are medians over all devices. The interval holds the ratio of the true medians "
        f"with at least {covered:.1%}, however the runs scatter; where nothing differs, a "
        f"difference is claimed in at most {alarms:.2%} of the cases."
    )


def junit(comparisons: Sequence[Comparison], failures: Mapping[str, str]) -> str:
    """Return comparisons as JUnit XML: one case per point, with the failed ones.

    Jenkins and GitLab read this form (testsuites, testsuite, testcase, failure).

    Args:
        comparisons: The comparisons.
        failures: Why points failed, by the name that `case` gives them.
    """
    from xml.etree import ElementTree as ET

    root = ET.Element("testsuites", name="hpcbert compare")
    for comparison in comparisons:
        names = [pair.new.name for pair in comparison.pairs] + [
            name for name, _ in comparison.lacking
        ]
        failed = [name for name in names if case(comparison, name) in failures]
        suite = ET.SubElement(
            root, "testsuite", name=plain(f"{comparison.new} against {comparison.base}")
        )
        suite.attrib.update(tests=str(len(names)), failures=str(len(failed)), errors="0")
        for name in names:
            element = ET.SubElement(
                suite, "testcase", classname=plain(comparison.new), name=plain(name)
            )
            if name in failed:
                why = plain(failures[case(comparison, name)])
                ET.SubElement(element, "failure", message=why).text = why
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True)


def case(comparison: Comparison, name: str) -> str:
    """Return the name of a point among all comparisons."""
    return f"{comparison.new}\n{name}"
