"""Comparisons as a table, as plain data for JSON, as JUnit XML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hpcbert.results.compare import Comparison, Contrast, PointPair, Side
from hpcbert.results.grid import NOTHING, Cell, Column, Grid, TableView
from hpcbert.results.interval import MAX_REPEATS, min_repeats
from hpcbert.results.words import sanitize

_COMPARISON_COLUMNS = (
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
_MAX_CONTRASTS, _MAX_NAMES = 8, 3


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as docs/reference/json.md describes it."""
    return {
        "base": comparison.base,
        "new": comparison.new,
        "points": [_point_data(pair) for pair in comparison.pairs],
        "lacking": [{"point": name, "why": reason} for name, reason in comparison.lacking],
        "added": list(comparison.added),
    }


def _point_data(pair: PointPair) -> dict[str, Any]:
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


def describe_verdict(pair: PointPair, within: float) -> str:
    """Return a verdict in words."""
    texts = {"equal": f"equal within {format_share(within)}", "unknown": _describe_unknown(pair)}
    text = texts.get(pair.verdict, pair.verdict)
    return f"{text} (not comparable)" if pair.obstacles else text


def _describe_unknown(pair: PointPair) -> str:
    if pair.base.is_single_number or pair.new.is_single_number:
        return "can't be told: one number was published, without its runs"
    count = f"about {pair.repeats}" if pair.repeats else f"more than {MAX_REPEATS}"
    return f"can't be told: it needs {count} repeats of both"


def format_share(value: float) -> str:
    """Return a share in percent, in the usual form."""
    return f"{value * 100:.6g} %"


def comparison_view(comparison: Comparison, within: float) -> TableView:
    """Return a comparison as a table; with numbers per GPU if somebody else published one side.

    Args:
        comparison: The comparison to show.
        within: The share within which two numbers are equal.
    """
    pairs = comparison.pairs
    published = any(pair.base.published or pair.new.published for pair in pairs)
    columns = tuple(
        column
        for column in _COMPARISON_COLUMNS
        if published or not column.title.endswith("per GPU")
    )
    cells = [_pair_cells(pair, within) for pair in pairs]
    rows = tuple(tuple(row[column.title] for column in columns) for row in cells)
    title = f"{comparison.new} against {comparison.base}"
    return TableView(
        heading=(f"BASE {sanitize(comparison.base)}", f"NEW  {sanitize(comparison.new)}"),
        grid=Grid("comparison", title, columns, rows),
        notes=tuple(_comparison_notes(comparison)),
        legend=_comparison_legend(comparison),
        colours=tuple(_COLOURS.get(pair.verdict) for pair in pairs),
    )


def _pair_cells(pair: PointPair, within: float) -> dict[str, Cell]:
    ratio = pair.ratio
    return {
        "point": sanitize(pair.new.name),
        "BASE samples/s": pair.base.row.median,
        "NEW samples/s": pair.new.row.median,
        "BASE per GPU": pair.base.per_gpu,
        "NEW per GPU": pair.new.per_gpu,
        "NEW/BASE": ratio.value,
        "interval": f"{ratio.low:.2%} .. {ratio.high:.2%}" if ratio.coverage else NOTHING,
        "runs": f"{len(pair.base.speeds)}, {len(pair.new.speeds)}",
        "verdict": describe_verdict(pair, within),
    }


def _comparison_notes(comparison: Comparison) -> list[str]:
    """Return further remarks, one sentence each."""
    obstacles = describe_contrasts(
        "not comparable: ", [(pair, pair.obstacles) for pair in comparison.pairs]
    )
    contrasts = describe_contrasts("", [(pair, pair.contrasts) for pair in comparison.pairs])
    hidden_count = len(contrasts) - _MAX_CONTRASTS
    lacking: dict[str, list[str]] = {}
    for name, reason in comparison.lacking:
        lacking.setdefault(reason, []).append(name)
    return [
        *obstacles,
        *contrasts[:_MAX_CONTRASTS],
        *([f"{hidden_count} more differences: --json has them all"] if hidden_count > 0 else []),
        *(
            f"no verdict, because {reason}: {shorten_names(names)}"
            for reason, names in lacking.items()
        ),
        *([f"only in NEW: {shorten_names(comparison.added)}"] if comparison.added else []),
    ]


def describe_contrasts(
    prefix: str, pairs: Sequence[tuple[PointPair, tuple[Contrast, ...]]]
) -> list[str]:
    """Return each contrast once, with its points unless it is true of all."""
    names_by_text: dict[str, list[str]] = {}
    for pair, contrasts in pairs:
        for contrast in contrasts:
            names_by_text.setdefault(f"{prefix}{contrast}", []).append(pair.new.name)
    return [
        text if len(names) == len(pairs) else f"{text} ({shorten_names(names)})"
        for text, names in names_by_text.items()
    ]


def shorten_names(names: Sequence[str]) -> str:
    """Return the first few names and the number of the others."""
    hidden_count = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {hidden_count} more" if hidden_count > 0 else "")


def _comparison_legend(comparison: Comparison) -> str:
    ratios = [pair.ratio for pair in comparison.pairs if pair.ratio.decides]
    if not ratios:
        return f"A verdict needs {min_repeats()} valid runs of both."
    coverage = min(ratio.coverage for ratio in ratios)
    false_alarm = max(ratio.false_alarm for ratio in ratios)
    return (
        "samples/s are medians over all devices. The interval holds the ratio of the true medians "
        f"with at least {coverage:.1%}, however the runs scatter; where nothing differs, a "
        f"difference is claimed in at most {false_alarm:.2%} of the cases."
    )


def render_junit(comparisons: Sequence[Comparison], failures: Mapping[str, str]) -> str:
    """Return comparisons as JUnit XML: one case per point, with the failed ones.

    Jenkins and GitLab read this form (testsuites, testsuite, testcase, failure).

    Args:
        comparisons: The comparisons.
        failures: Why points failed, by the name that `case_name` gives them.
    """
    from xml.etree import ElementTree as ET

    root = ET.Element("testsuites", name="hpcbert compare")
    for comparison in comparisons:
        names = [pair.new.name for pair in comparison.pairs] + [
            name for name, _ in comparison.lacking
        ]
        failed = [name for name in names if case_name(comparison, name) in failures]
        suite = ET.SubElement(
            root, "testsuite", name=sanitize(f"{comparison.new} against {comparison.base}")
        )
        suite.attrib.update(tests=str(len(names)), failures=str(len(failed)), errors="0")
        for name in names:
            element = ET.SubElement(
                suite, "testcase", classname=sanitize(comparison.new), name=sanitize(name)
            )
            if name in failed:
                reason = sanitize(failures[case_name(comparison, name)])
                ET.SubElement(element, "failure", message=reason).text = reason
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True)


def case_name(comparison: Comparison, name: str) -> str:
    """Return the name of a point among all comparisons."""
    return f"{comparison.new}\n{name}"
