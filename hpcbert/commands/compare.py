"""Compare results with other results: campaigns, logs, saved results, in any combination."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from hpcbert.campaign.user_settings import UserSettings
from hpcbert.commands.collect import CollectRequest
from hpcbert.commands.results import is_saved, load, meant
from hpcbert.errors import RegressionError, UsageError
from hpcbert.model import MANIFEST, SpeedupTable
from hpcbert.results.compare import DIMENSIONS, Comparison, compare
from hpcbert.results.published import record
from hpcbert.results.verdicts import case, share, some

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcbert.campaign.attempts import AskStates
    from hpcbert.commands.results import Places
    from hpcbert.results.resultset import ResultSet


@dataclass(frozen=True)
class CompareRequest:
    """The results to compare, and the settings.

    Attributes:
        words: The sides: the first is compared with each of the others. With `by`, all together.
        by: A name in `DIMENSIONS`; empty if the words themselves are the sides.
        within: Two numbers that differ by at most this share count as equal.
        least: The ratio below which a point fails; None: no point can fail.
        anyway: Whether to compare what is not comparable.
        reading: How campaigns and logs are collected.
    """

    words: tuple[str, ...]
    by: str = ""
    within: float = 0.02
    least: float | None = None
    anyway: bool = False
    reading: CollectRequest = field(default_factory=CollectRequest)


class Compared(NamedTuple):
    """The result of a comparison.

    Attributes:
        failures: Why the gate failed, one point each.
        refused: What has no number at all, one sentence each.
    """

    comparisons: tuple[Comparison, ...]
    failures: tuple[RegressionError, ...]
    refused: tuple[str, ...]
    warnings: tuple[str, ...]


class _Side(NamedTuple):
    name: str
    tables: tuple[SpeedupTable, ...]


def run(request: CompareRequest, at: Places, *, states: AskStates | None = None) -> Compared:
    """Compare results.

    Args:
        request: What to compare, and how.
        at: Where campaigns and recipes are.
        states: As of `collect`.

    Raises:
        UsageError: Nothing can be compared, or the sides are not comparable.
    """
    results = _read(request, at, states)
    if request.by:
        base, *sides = _parted(results, request.by)
    else:
        named = zip(request.words, results, strict=True)
        base, *sides = [_Side(word, result_set.tables) for word, result_set in named]
    comparisons = tuple(
        compare(
            base.tables,
            other.tables,
            names=(base.name, other.name),
            within=request.within,
            by=DIMENSIONS.get(request.by, ""),
        )
        for other in sides
    )
    if not request.anyway:
        _refuse_incomparable(comparisons)
    return Compared(
        comparisons,
        tuple(failures(comparisons, request.least)) if request.least else (),
        (*(text for result in results for text in result.refused), *_empty(comparisons)),
        tuple(dict.fromkeys(text for result in results for text in result.warnings)),
    )


def _read(request: CompareRequest, at: Places, states: AskStates | None) -> list[ResultSet]:
    """Read every word with the options that apply to it.

    Raises:
        UsageError: Options apply to none of them; or as `load`.
    """
    if request.by:
        return [load(request.words, at, request.reading, states=states)]
    if len(request.words) < 2:  # noqa: PLR2004 - two are compared
        raise UsageError(
            "There is only one result, and nothing to compare it with.",
            hint="Name BASE and NEW, or compare points of one: --by framework.",
        )
    collect_request = request.reading
    of_campaigns = collect_request._replace(known=UserSettings(), pattern="")
    collect_requests = [_reading(word, at, collect_request, of_campaigns) for word in request.words]
    if collect_request not in collect_requests:
        # None of them is logs: the refusal names the options.
        collect_requests[0] = collect_request
    pairs = zip(request.words, collect_requests, strict=True)
    return [load([word], at, reading, states=states) for word, reading in pairs]


def _reading(
    word: str, at: Places, of_logs: CollectRequest, of_campaigns: CollectRequest
) -> CollectRequest | None:
    if record.is_name(word):
        return None
    path = meant(word, at)
    if is_saved(path):
        return None
    return of_campaigns if (path / MANIFEST).is_file() else of_logs


def _parted(results: Sequence[ResultSet], by: str) -> list[_Side]:
    """Return the sides that the values of a dimension make, in order of appearance.

    Raises:
        UsageError: There is only one value.
    """
    parts: dict[str, list[SpeedupTable]] = {}
    for table in (table for result in results for table in result.tables):
        for value, part in _values(table, by):
            parts.setdefault(value, []).append(part)
    if len(parts) < 2:  # noqa: PLR2004 - two are compared
        only = f": {next(iter(parts))}" if parts else ""
        raise UsageError(f"Comparing by {by} needs at least two values{only}.")
    return [_Side(value, tuple(tables)) for value, tables in parts.items()]


def _values(table: SpeedupTable, by: str) -> list[tuple[str, SpeedupTable]]:
    name = DIMENSIONS[by]
    if name == "shape":
        return [
            (str(row.shape), SpeedupTable(table.group, table.baseline, (row,)))
            for row in table.rows
        ]
    return [(str(getattr(table.group, name)) or "none", table)]


def _refuse_incomparable(comparisons: Sequence[Comparison]) -> None:
    """Refuse points that don't measure the same thing.

    Raises:
        UsageError: There are such points; the message gives each reason with its points.
    """
    reasons: dict[str, list[str]] = {}
    for comparison in comparisons:
        for pair in comparison.pairs:
            for obstacle in pair.obstacles:
                reasons.setdefault(str(obstacle), []).append(pair.new.name)
    if reasons:
        text = "; ".join(f"{why} ({some(names)})" for why, names in reasons.items())
        raise UsageError(
            f"These results are not comparable: {text}.",
            hint="--anyway compares them nevertheless, and marks them.",
        )


def _empty(comparisons: Sequence[Comparison]) -> list[str]:
    return [
        f"No point of {comparison.base} and {comparison.new} has a number in both."
        for comparison in comparisons
        if not comparison.pairs
    ]


def failures(comparisons: Sequence[Comparison], least: float) -> list[RegressionError]:
    """Return why a gate fails: a sentence for each point that is too slow or missing.

    Args:
        comparisons: The comparisons made.
        least: The smallest ratio that passes.
    """
    regression_errors, floor = [], share(least)
    for comparison in comparisons:
        slow = [
            (
                pair.new.name,
                f"{comparison.new} has {pair.ratio.value:.2%} of {comparison.base}, below {floor}",
            )
            for pair in comparison.pairs
            if pair.ratio.value < least
        ]
        lost = [
            (name, f"{comparison.new} can't be compared with {comparison.base}: {why}")
            for name, why in comparison.lacking
        ]
        regression_errors += [
            RegressionError(f"{name}: {why}.", point=case(comparison, name))
            for name, why in slow + lost
        ]
    return regression_errors
