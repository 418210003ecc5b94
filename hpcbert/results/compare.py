"""Compare two sets of results point by point, with a verdict on each; pure."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, NamedTuple

from hpcbert.errors import UsageError
from hpcbert.model import Group
from hpcbert.results import interval

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hpcbert.model import Counted, Row, SpeedupTable
    from hpcbert.results.interval import Ratio

Verdict = Literal["faster", "slower", "equal", "unknown"]
_Key = tuple[tuple[str, object], ...]

# Parts of a group outside a point's identity: a difference in them is reported instead.
_HOW = "rule"
# The values of `--by`, as they are typed, each with its part of a point's identity.
DIMENSIONS = {
    "framework": "framework",
    "model": "model",
    "precision": "precision",
    "batch-size": "batch_size_per_device",
    "options": "variant",
    "device": "device",
    "shape": "shape",
}
# Facts of logs that make a run another experiment, by their names in a sentence.
_EXPERIMENT = {
    "sequence_length": "sequence length",
    "packing": "packing",
    "hidden_size": "hidden size",
    "layers": "number of layers",
}
_ACCUMULATION = re.compile(r"acc\d+|gbs\d+|acc by shape")


@dataclass(frozen=True)
class Side:
    """One point of one of the two sets."""

    group: Group
    row: Row

    @property
    def speeds(self) -> list[float]:
        """Throughputs of the valid runs; the median if the runs were not published."""
        throughputs = [run.throughput for run in self.row.runs if run.valid and run.throughput]
        return throughputs or ([self.row.median] if self.row.median else [])

    @property
    def per_gpu(self) -> float:
        """The median over the number of GPUs; 0 without a median."""
        return (self.row.median or 0.0) / self.row.shape.gpus

    @property
    def published(self) -> bool:
        """Whether it is from the published record."""
        return self.row.origin is not None and self.row.origin.kind == "record"

    @property
    def single(self) -> bool:
        """Whether it was published without its runs, so that nobody can repeat it."""
        return self.published and len(self.row.runs) == 1

    @property
    def name(self) -> str:
        """The point in words."""
        group = self.group
        words = [group.framework, group.model, str(self.row.shape), group.precision]
        words.append(f"b{group.batch}")
        words += [group.variant] if group.variant else []
        words += [group.device] if group.device != "gpu" else []
        return " ".join(words)


class Contrast(NamedTuple):
    """Something in which the two sides differ.

    Attributes:
        base, new: The values on both sides; empty if unknown.
    """

    what: str
    base: tuple[str, ...]
    new: tuple[str, ...]

    def __str__(self) -> str:
        base, new = (" and ".join(one) or "unknown" for one in (self.base, self.new))
        return f"{self.what}: {base} in BASE, {new} in NEW"


@dataclass(frozen=True)
class Matched:
    """A point of both sets.

    Attributes:
        obstacles: Why the two do not measure the same thing.
        contrasts: Their other differences, hardware first.
        ratio: None where a side has no number.
        repeats: How many repeats of both a verdict needs; None if there is a verdict, or if more
            are needed than anybody runs.
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
        base, new: Their names.
        lacking: Points that the second lacks, or that have no number in one of the two: each with
            the reason.
        added: Points that only the second has.
    """

    base: str
    new: str
    pairs: tuple[Matched, ...]
    lacking: tuple[tuple[str, str], ...]
    added: tuple[str, ...]

    @property
    def obstacles(self) -> tuple[Contrast, ...]:
        """Why points are not comparable, each reason once."""
        return tuple(dict.fromkeys(obstacle for pair in self.pairs for obstacle in pair.obstacles))


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
        base: Tables of the first.
        new: Tables of the second.
        names: Their names.
        within: The share within which two numbers are equal.
        by: The part of a point's identity in which the two sets differ on purpose.

    Raises:
        UsageError: They have no point in common, or a point is in one of them twice.
    """
    left, right = _points(base, by), _points(new, by)
    matched = [(key, key) for key in left if key in right]
    matched += _alike([one for one in left if one not in right], [*right.keys() - left.keys()])
    if not matched:
        raise _nothing_in_common([*left], [*right], names)
    pairs, lacking = [], []
    order = {key: number for number, key in enumerate(left)}
    for one, other in sorted(matched, key=lambda keys: order[keys[0]]):
        sides = left[one], right[other]
        if why := _absent(*sides):
            lacking.append((sides[1].name, why))
        else:
            pairs.append(_pair(*sides, within, by))
    found = {one for one, _ in matched}, {other for _, other in matched}
    lacking += [(left[key].name, "it is missing") for key in left if key not in found[0]]
    added = tuple(right[key].name for key in right if key not in found[1])
    return Comparison(*names, tuple(pairs), tuple(lacking), added)


def _points(tables: Iterable[SpeedupTable], by: str) -> dict[_Key, Side]:
    sides: dict[_Key, Side] = {}
    for table in tables:
        for row in table.rows:
            side = Side(table.group, row)
            key = tuple(one for one in _identity(side) if one[0] != by)
            if key in sides:
                raise UsageError(
                    f"{side.name} appears twice: {_how(sides[key])} and {_how(side)}.",
                    hint="Name one of the two.",
                )
            sides[key] = side
    return sides


def _identity(side: Side) -> _Key:
    names = (field.name for field in fields(Group) if field.name != _HOW)
    return (*((name, getattr(side.group, name)) for name in names), ("shape", side.row.shape))


def _how(side: Side) -> str:
    origin = f" of {side.row.origin.name}" if side.row.origin else ""
    return f"that{origin} by rule {side.group.rule or 'unknown'}"


def _alike(left: Sequence[_Key], right: Sequence[_Key]) -> list[tuple[_Key, _Key]]:
    """Return pairs of points that differ only in protocol or sequence length.

    If a point has several such partners, it has no pair.
    """

    def short(key: _Key) -> _Key:
        return tuple((name, _plain(value) if name == "variant" else value) for name, value in key)

    lefts, rights = Counter(map(short, left)), Counter(map(short, right))
    others = {short(key): key for key in right}
    return [
        (key, others[short(key)]) for key in left if lefts[short(key)] == rights[short(key)] == 1
    ]


def _plain(variant: object) -> str:
    """Return the options, except those that make a point another experiment."""
    words = str(variant).split(",")
    kept = [word for word in words if _is_option(word) and not word.startswith("sequence_length=")]
    return ",".join(kept)


def _is_option(word: str) -> bool:
    """Return whether a word of a variant is an option, not the name of a protocol."""
    return word in ("", "xla") or "=" in word or bool(_ACCUMULATION.fullmatch(word))


def _absent(base: Side, new: Side) -> str:
    for side, name in ((new, "NEW"), (base, "BASE")):
        if side.row.median is None:
            return (
                f"it has no number in {name}: {side.row.ok} of {side.row.asked} repeats are valid"
            )
    return ""


def _pair(base: Side, new: Side, within: float, by: str) -> Matched:
    ratio = interval.ratio(base.speeds, new.speeds)
    if base.row.median and new.row.median:
        # A published median may differ from that of the runs that were published with it.
        ratio = ratio._replace(value=new.row.median / base.row.median)
    verdict = judge(ratio, within)
    open_ = verdict == "unknown" and not (base.single or new.single)
    needed = _needed(base, new, ratio, within) if open_ else None
    return Matched(
        base, new, _obstacles(base, new, by), contrasts(base, new), ratio, verdict, needed
    )


def judge(ratio: Ratio, within: float) -> Verdict:
    """Return the interval of a ratio, and a verdict.

    Args:
        ratio: The ratio.
        within: The share within which two numbers pass for equal.
    """
    if not ratio.decides:
        return "unknown"
    if 1 - within <= ratio.low and ratio.high <= 1 + within:
        return "equal"
    if ratio.low > 1:
        return "faster"
    return "slower" if ratio.high < 1 else "unknown"


def _needed(base: Side, new: Side, ratio: Ratio, within: float) -> int | None:
    """Return how many repeats of both a verdict needs, if their spread stays the same."""
    spread = interval.scatter(base.speeds, new.speeds)
    if spread is None:
        return interval.least()
    there = min(len(base.speeds), len(new.speeds))
    distance = abs(ratio.value - 1)
    # The repeats show either the difference, or that there is none that matters.
    return interval.repeats(spread, max(distance, within - distance), there)


def _obstacles(base: Side, new: Side, by: str) -> tuple[Contrast, ...]:
    group, other = base.group, new.group
    found = []
    # Each framework has its own rules.
    if group.framework == other.framework:
        found.append(Contrast("rule", (group.rule,), (other.rule,)))
    if by != "variant":
        found.append(Contrast("options", (group.variant or "none",), (other.variant or "none",)))
    windows = base.row.window, new.row.window
    if windows[0] and windows[1] and _asked(windows[0]) != _asked(windows[1]):
        found.append(Contrast("window", (windows[0].counted,), (windows[1].counted,)))
    facts = dict(base.row.facts), dict(new.row.facts)
    found += [
        Contrast(name, facts[0][fact], facts[1][fact])
        for fact, name in _EXPERIMENT.items()
        if fact in facts[0] and fact in facts[1]
    ]
    return tuple(
        contrast
        for contrast in found
        if contrast.base != contrast.new and all(contrast.base + contrast.new)
    )


def _asked(window: Counted) -> tuple[int, int | None]:
    """Return the requested iterations; the frameworks' rules word them differently."""
    return window.skip, window.iters


def contrasts(base: Side, new: Side) -> tuple[Contrast, ...]:
    """Return the facts that both sides know and that differ; all facts that the record states."""
    facts = dict(base.row.facts), dict(new.row.facts)
    stated = {name for side in (base, new) if side.published for name, _ in side.row.facts}
    names = [*facts[0], *(one for one in facts[1] if one not in facts[0])]
    found = [
        Contrast(name, facts[0].get(name, ()), facts[1].get(name, ()))
        for name in names
        if name not in _EXPERIMENT and (name in stated or (name in facts[0] and name in facts[1]))
    ]
    differing = [contrast for contrast in found if contrast.base != contrast.new]
    return tuple(sorted(differing, key=lambda one: (not one.what.startswith("GPU"), one.what)))


def _nothing_in_common(
    left: Sequence[_Key], right: Sequence[_Key], names: tuple[str, str]
) -> UsageError:
    message = f"{names[1]} has no point of {names[0]}."
    if not left or not right:
        return UsageError(message, hint="Name results with points in common.")
    base, new = _values(left), _values(right)
    apart = [name for name in base if not base[name] & new[name]]
    words = {name: word for word, name in DIMENSIONS.items()}
    texts = [
        f"{words[name]} ({', '.join(sorted(base[name]))}; {', '.join(sorted(new[name]))})"
        for name in apart
    ]
    hint = f"They differ in {' and in '.join(texts)}." if texts else ""
    more = f" To compare by it: --by {words[apart[0]]}." if len(apart) == 1 else ""
    return UsageError(message, hint=hint + more)


def _values(keys: Iterable[_Key]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for key in keys:
        for name, value in key:
            found.setdefault(name, set()).add(str(value) or "none")
    return found
