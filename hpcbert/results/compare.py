"""Compare two sets of results point by point; the comparison as a table, as JSON, as JUnit XML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from hpcbert.errors import RegressionError, UsageError, join_names
from hpcbert.model import Group, Row, SpeedupTable, Unit, valid_throughputs
from hpcbert.results.formats import Case, Outcome, render_cases
from hpcbert.results.grid import NOTHING, Cell, Column, Grid, TableView
from hpcbert.results.interval import (
    MAX_REPEATS,
    Ratio,
    expected_repeats,
    measure_scatter,
    median_ratio,
    min_repeats,
)
from hpcbert.results.metrics import per_device
from hpcbert.results.wording import sanitize
from hpcbert.system import grouping

Verdict = Literal["faster", "slower", "equal", "unknown"]
_Key = tuple[tuple[str, object], ...]

# The values of `--by`, as they are typed, each with its part of a point's identity.
DIMENSIONS = {
    "framework": "framework",
    "model": "model",
    "precision": "precision",
    "batch-size": "batch_size_per_device",
    "options": "variant",
    "sequence-length": "sequence_length",
    "device": "device",
    "shape": "shape",
}
# Facts of logs that make a run another experiment, by their names in a sentence.
_EXPERIMENT_FACTS = {
    "sequence_length": "sequence length",
    "packing": "packing",
    "hidden_size": "hidden size",
    "layers": "number of layers",
}
# A word of a variant that is an option: neither the name of a protocol nor a sequence length.
_OPTION = re.compile(r"|xla|acc\d+|gbs\d+|acc by shape|(?!sequence_length=).*=.*")


@dataclass(frozen=True)
class Side:
    """One point of one of the two sets."""

    group: Group
    row: Row

    @property
    def speeds(self) -> list[float]:
        """Throughputs of the valid runs; the median if the runs were not published."""
        return valid_throughputs(self.row.runs) or ([self.row.median] if self.row.median else [])

    @property
    def length(self) -> str:
        """Tokens of a sample, as all its runs state them; empty if unknown."""
        values = dict(self.row.facts).get("sequence_length", ())
        return values[0] if len(values) == 1 else ""

    @property
    def work(self) -> tuple[object, ...]:
        """The kind of device, model, precision and batch size: the same in any framework."""
        group = self.group
        return group.device, group.model, group.precision, group.batch_size_per_device

    @property
    def options(self) -> str:
        """The variant, without the sequence length if that is known."""
        words = self.group.variant.split(",")
        return ",".join(
            word for word in words if not (self.length and word.startswith("sequence_length="))
        )

    @property
    def is_single_number(self) -> bool:
        """Whether only its median was published, without the runs behind it."""
        return self.row.published and len(self.row.runs) == 1

    @property
    def name(self) -> str:
        """The point in words."""
        group = self.group
        words = [group.framework, group.model, str(self.row.shape), group.precision]
        words.append(f"b{group.batch}")
        words += [group.variant] if group.variant else []
        words += [group.device] if group.device != "gpu" else []
        return " ".join(words)


def list_sides(tables: Iterable[SpeedupTable]) -> list[Side]:
    """Return all points of tables."""
    return [Side(table.group, row) for table in tables for row in table.rows]


class Contrast(NamedTuple):
    """Something in which the two sides differ."""

    what: str
    base: tuple[str, ...]
    new: tuple[str, ...]

    def __str__(self) -> str:
        base, new = (" and ".join(values) or "unknown" for values in (self.base, self.new))
        return f"{self.what}: {base} in BASE, {new} in NEW"


@dataclass(frozen=True)
class PointPair:
    """A point of both sets.

    Attributes:
        contrasts: Their other differences, hardware first.
        repeats: Repeats of both that a verdict needs; None if there is a verdict, or if more are
            needed than anybody runs.
    """

    base: Side
    new: Side
    obstacles: tuple[Contrast, ...]
    contrasts: tuple[Contrast, ...]
    ratio: Ratio
    verdict: Verdict
    repeats: int | None = None


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two sets.

    Attributes:
        lacking: Points that the second lacks, or that have no number in one of the two: each with
            the reason.
        added: Points that only the second has.
        unfinished: Those of `lacking` for which only repeats of the second are missing that wait
            or run.
    """

    base: str
    new: str
    pairs: tuple[PointPair, ...]
    lacking: tuple[tuple[str, str], ...]
    added: tuple[str, ...]
    unit: Unit = "samples"
    unfinished: tuple[str, ...] = ()


def compare(
    base: Sequence[SpeedupTable],
    new: Sequence[SpeedupTable],
    *,
    names: tuple[str, str],
    within: float,
    by: str = "",
) -> Comparison:
    """Compare the points of two sets.

    Args:
        by: The part of a point's identity in which the two sets differ on purpose.

    Raises:
        UsageError: They have no point in common, or a point is in one of them twice.
    """
    base_sides, new_sides = _sides_by_key(base, by), _sides_by_key(new, by)
    partners = {key: key for key in base_sides if key in new_sides}
    partners |= _match_variants(base_sides.keys() - partners, new_sides.keys() - partners)
    if not partners:
        raise _no_common_point([*base_sides], [*new_sides], names)
    pairs, lacking, unfinished = [], [], []
    for key, side in base_sides.items():
        if key not in partners:
            lacking.append((side.name, "it is missing"))
            continue
        new_side = new_sides[partners[key]]
        rows = {"NEW": new_side.row, "BASE": side.row}
        name = next((name for name, row in rows.items() if row.median is None), "")
        if not name:
            pairs.append(_compare_sides(side, new_side, within, by))
            continue
        row = rows[name]
        reason = f"it has no number in {name}: {row.ok} of {row.asked} repeats are valid"
        if row.ok == row.asked:
            reason = f"it has no rate in this unit in {name}"
        lacking.append((new_side.name, reason))
        if side.row.median is not None and 0 < row.unfinished == row.asked - row.ok:
            unfinished.append(new_side.name)
    matched = set(partners.values())
    added = tuple(side.name for key, side in new_sides.items() if key not in matched)
    unit = base[0].unit
    return Comparison(*names, tuple(pairs), tuple(lacking), added, unit, tuple(unfinished))


def _sides_by_key(tables: Iterable[SpeedupTable], by: str) -> dict[_Key, Side]:
    sides: dict[_Key, Side] = {}
    for side in list_sides(tables):
        values = asdict(side.group) | {"variant": side.options}
        values |= {"sequence_length": side.length, "shape": side.row.shape}
        # A difference in the rule is an obstacle instead.
        key = tuple(part for part in values.items() if part[0] not in ("rule", by))
        if key in sides:
            origins = []
            for twin in (sides[key], side):
                origin = f" of {twin.row.origin.name}" if twin.row.origin else ""
                origins.append(f"that{origin} by rule {twin.group.rule or 'unknown'}")
            message = f"{side.name} appears twice: {' and '.join(origins)}."
            raise UsageError(message, hint="Name one of the two.")
        sides[key] = side
    return sides


def _match_variants(base_keys: Iterable[_Key], new_keys: Iterable[_Key]) -> dict[_Key, _Key]:
    """Return the partners of points that differ from them only in what `_shorten` leaves out."""
    base = grouping.group((_shorten(key), key) for key in base_keys)
    new = grouping.group((_shorten(key), key) for key in new_keys)
    return {
        keys[0]: new[short][0]
        for short, keys in base.items()
        if len(keys) == 1 and len(new.get(short, ())) == 1
    }


def _shorten(key: _Key) -> _Key:
    """Return a key without length, protocol's name, and whether the batch is the largest."""
    parts = dict(key)
    parts.pop("sequence_length", None)
    parts.pop("largest")
    if "variant" in parts:
        words = str(parts["variant"]).split(",")
        parts["variant"] = ",".join(word for word in words if _OPTION.fullmatch(word))
    return tuple(parts.items())


def _compare_sides(base: Side, new: Side, within: float, by: str) -> PointPair:
    ratio = median_ratio(base.speeds, new.speeds)
    if base.row.median and new.row.median:
        # A published median may differ from that of the runs that were published with it.
        ratio = ratio._replace(value=new.row.median / base.row.median)
    verdict = judge(ratio, within)
    repeats = None
    if verdict == "unknown" and not (base.is_single_number or new.is_single_number):
        spread = measure_scatter(base.speeds, new.speeds)
        distance = abs(ratio.value - 1)
        existing = min(len(base.speeds), len(new.speeds))
        # The repeats show the difference, or that it does not matter.
        margin = max(distance, within - distance)
        repeats = min_repeats() if spread is None else expected_repeats(spread, margin, existing)
    obstacles, contrasts = _find_obstacles(base, new, by), find_contrasts(base, new)
    return PointPair(base, new, obstacles, contrasts, ratio, verdict, repeats)


def judge(ratio: Ratio, within: float) -> Verdict:
    """Return the verdict on a ratio."""
    if not ratio.decides:
        return "unknown"
    if 1 - within <= ratio.low and ratio.high <= 1 + within:
        return "equal"
    if ratio.low > 1:
        return "faster"
    return "slower" if ratio.high < 1 else "unknown"


def _find_obstacles(base: Side, new: Side, by: str) -> tuple[Contrast, ...]:
    candidates = []
    # Each framework has its own rules.
    if base.group.framework == new.group.framework:
        candidates.append(Contrast("rule", (base.group.rule,), (new.group.rule,)))
    if by != "variant":
        sides = (base.options, new.options)
        if not (base.length and new.length):
            sides = (base.group.variant, new.group.variant)
        options = sides[0] or "none", sides[1] or "none"
        candidates.append(Contrast("options", options[:1], options[1:]))
    windows = base.row.window, new.row.window
    # The frameworks' rules word the same requested iterations differently.
    if len({(window.skip, window.iters) for window in windows if window}) > 1:
        texts = [window.counted for window in windows if window]
        candidates.append(Contrast("window", (texts[0],), (texts[1],)))
    base_facts, new_facts = dict(base.row.facts), dict(new.row.facts)
    candidates += [
        Contrast(name, base_facts[fact], new_facts[fact])
        for fact, name in _EXPERIMENT_FACTS.items()
        if fact in base_facts and fact in new_facts and fact != by
    ]
    return tuple(
        contrast
        for contrast in candidates
        if contrast.base != contrast.new and all(contrast.base + contrast.new)
    )


def find_contrasts(base: Side, new: Side) -> tuple[Contrast, ...]:
    """Return the facts that both sides know and that differ; all facts that the record states."""
    base_facts, new_facts = dict(base.row.facts), dict(new.row.facts)
    names = base_facts.keys() & new_facts.keys()
    for side in (base, new):
        if side.row.published:
            names |= {name for name, _ in side.row.facts}
    contrasts = [
        Contrast(name, base_facts.get(name, ()), new_facts.get(name, ()))
        for name in names - _EXPERIMENT_FACTS.keys()
        if base_facts.get(name, ()) != new_facts.get(name, ())
    ]
    return tuple(
        sorted(contrasts, key=lambda entry: (not entry.what.startswith("GPU"), entry.what))
    )


def _no_common_point(
    base_keys: Sequence[_Key], new_keys: Sequence[_Key], names: tuple[str, str]
) -> UsageError:
    message = f"{names[1]} has no point of {names[0]}."
    if not base_keys or not new_keys:
        return UsageError(message, hint="Name results with points in common.")
    differing = {}
    for word, name in DIMENSIONS.items():
        base, new = ({str(dict(key).get(name)) for key in keys} for keys in (base_keys, new_keys))
        if not base & new:
            differing[word] = f"{', '.join(sorted(base))}; {', '.join(sorted(new))}"
    texts = [f"{word} ({values})" for word, values in differing.items()]
    hint = f"They differ in {' and in '.join(texts)}." if texts else ""
    if len(differing) == 1:
        hint += f" To compare by it: --by {', '.join(differing)}."
    return UsageError(message, hint=hint)


_COLOURS = {"faster": "green", "slower": "red", "unknown": "yellow"}
_MAX_CONTRASTS, MAX_NAMES = 8, 3


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as docs/reference/json.md describes it."""
    points = [
        {
            "point": pair.new.name,
            "base": side_data(pair.base),
            "new": side_data(pair.new),
            "ratio": pair.ratio.value,
            **{name: value for name, value in pair.ratio._asdict().items() if name != "value"},
            "verdict": pair.verdict,
            "repeats": pair.repeats,
            "comparable": not pair.obstacles,
            "obstacles": [contrast._asdict() for contrast in pair.obstacles],
            "differences": [contrast._asdict() for contrast in pair.contrasts],
        }
        for pair in comparison.pairs
    ]
    return {
        "base": comparison.base,
        "new": comparison.new,
        "unit": f"{comparison.unit}/s",
        "points": points,
        "lacking": [{"point": name, "why": reason} for name, reason in comparison.lacking],
        "added": list(comparison.added),
    }


def side_data(side: Side) -> dict[str, Any]:
    """Return one side of a comparison as plain data."""
    row = side.row
    return {
        **asdict(side.group),
        "shape": str(row.shape),
        "gpus": row.shape.gpus,
        "median": row.median,
        "per_gpu": per_device(row),
        "runs": side.speeds,
        "origin": {"kind": row.origin.kind, "name": row.origin.name} if row.origin else None,
    }


def describe_verdict(pair: PointPair, within: float) -> str:
    """Return a point's verdict in words, marked if the sides are not comparable."""
    text: str = pair.verdict
    if pair.verdict == "equal":
        text = f"equal within {within * 100:g} %"
    elif pair.verdict == "unknown" and (pair.base.is_single_number or pair.new.is_single_number):
        text = "can't be told: one number was published, without its runs"
    elif pair.verdict == "unknown":
        count = f"about {pair.repeats}" if pair.repeats else f"more than {MAX_REPEATS}"
        text = f"can't be told: it needs {count} repeats of both"
    return f"{text} (not comparable)" if pair.obstacles else text


def comparison_view(comparison: Comparison, within: float) -> TableView:
    """Return a comparison as a table; with numbers per GPU if one side is from the record."""
    pairs, unit = comparison.pairs, comparison.unit
    with_devices = any(pair.base.row.published or pair.new.row.published for pair in pairs)
    columns = [Column("point"), Column(f"BASE {unit}/s", ".2f"), Column(f"NEW {unit}/s", ".2f")]
    if with_devices:
        columns += [Column("BASE per GPU", ".2f"), Column("NEW per GPU", ".2f")]
    columns += [Column("NEW/BASE", ".2%"), Column("interval", ">"), Column("runs", ">")]
    rows: list[tuple[Cell, ...]] = []
    for pair in pairs:
        base, new, ratio = pair.base, pair.new, pair.ratio
        numbers = [base.row.median, new.row.median]
        numbers += [per_device(base.row), per_device(new.row)] if with_devices else []
        limits = f"{ratio.low:.2%} .. {ratio.high:.2%}" if ratio.coverage else NOTHING
        runs, verdict = f"{len(base.speeds)}, {len(new.speeds)}", describe_verdict(pair, within)
        rows.append((sanitize(new.name), *numbers, ratio.value, limits, runs, verdict))
    title = f"{comparison.new} against {comparison.base}"
    return TableView(
        heading=(f"BASE {sanitize(comparison.base)}", f"NEW  {sanitize(comparison.new)}"),
        grid=Grid("comparison", title, (*columns, Column("verdict")), tuple(rows)),
        notes=tuple(_comparison_notes(comparison)),
        legend=_comparison_legend(comparison),
        colours=tuple(_COLOURS.get(pair.verdict) for pair in pairs),
    )


def _comparison_notes(comparison: Comparison) -> list[str]:
    pairs = comparison.pairs
    obstacles = dict.fromkeys(contrast for pair in pairs for contrast in pair.obstacles)
    contrasts = dict.fromkeys(contrast for pair in pairs for contrast in pair.contrasts)
    notes = [f"not comparable: {contrast}" for contrast in obstacles]
    notes += map(str, list(contrasts)[:_MAX_CONTRASTS])
    if len(contrasts) > _MAX_CONTRASTS:
        more = len(contrasts) - _MAX_CONTRASTS
        notes.append(f"{more} more differences: --json has them all")
    lacking = grouping.group((reason, name) for name, reason in comparison.lacking)
    for reason, names in lacking.items():
        notes.append(f"no verdict, because {reason}: {join_names(names, most=MAX_NAMES)}")
    if comparison.added:
        notes.append(f"only in NEW: {join_names(comparison.added, most=MAX_NAMES)}")
    return notes


def _comparison_legend(comparison: Comparison) -> str:
    ratios = [pair.ratio for pair in comparison.pairs if pair.ratio.decides]
    if not ratios:
        return f"A verdict needs {min_repeats()} valid runs of both."
    coverage = min(ratio.coverage for ratio in ratios)
    false_alarm = max(ratio.false_alarm for ratio in ratios)
    return (
        f"{comparison.unit}/s are medians over all devices. "
        "The interval holds the ratio of the true medians "
        f"with at least {coverage:.1%}, however the runs scatter; where nothing differs, a "
        f"difference is claimed in at most {false_alarm:.2%} of the cases."
    )


def render_junit(
    program: str, comparisons: Sequence[Comparison], failures: Iterable[RegressionError]
) -> bytes:
    """Return comparisons as JUnit XML: one case per point, with all reasons of the failed ones."""
    reasons = grouping.group((failure.case, failure.message) for failure in failures)
    cases = []
    for comparison in comparisons:
        title = f"{comparison.new} against {comparison.base}"
        names = [pair.new.name for pair in comparison.pairs]
        for name in (*names, *(name for name, _ in comparison.lacking)):
            reason = " ".join(reasons.get((comparison.new, name), ()))
            outcome: Outcome = "skipped" if name in comparison.unfinished else "failure"
            cases.append(Case(title, comparison.new, name, outcome if reason else "", reason))
    return render_cases(program, cases)
