"""How logs are read, for people and as JSON: `hpcbert collect --explain`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hpcbert.campaign.log_explanation import LogExplanation
from hpcbert.cli.output import Result
from hpcbert.errors import IncompleteError
from hpcbert.results.wording import sanitize


def show_explanations(explanations: Sequence[LogExplanation]) -> Result:
    """Return how each log is read; incomplete if one has no number."""
    text = "\n\n".join("\n".join(_format_explanation(entry)) for entry in explanations)
    unread = [entry for entry in explanations if not _has_number(entry)]
    message = f"{len(unread)} of {len(explanations)} logs: no rule gives a number."
    errors = (IncompleteError(message),) if unread else ()
    return Result({"logs": list(map(_explanation_data, explanations))}, text, errors)


def _has_number(explanation: LogExplanation) -> bool:
    return any(outcome.throughput for outcome in explanation.outcomes)


def _format_explanation(explanation: LogExplanation) -> Iterator[str]:
    yield sanitize(explanation.path)
    yield f"  recipe: {explanation.framework or explanation.problem}"
    named = ", ".join(f"{name} = {value}" for name, value in explanation.named.items())
    yield f"  path: {sanitize(named) or 'states nothing'}"
    if explanation.facts:
        yield "  facts:"
    for fact in explanation.facts:
        place = f"line {fact.line}" if fact.line else "a line"
        place += f" and {fact.lines - 1} more" if fact.lines > 1 else ""
        note = " (assumed)" if fact.is_assumed else ""
        yield f"    {fact.name} = {fact.value}{note}: {place}: {sanitize(fact.text)}"
    if explanation.outcomes:
        yield "  rules:"
    for outcome in explanation.outcomes:
        number = f"{outcome.throughput:,.2f} samples/s" if outcome.throughput else "no number"
        mark = " (used)" if outcome.is_chosen else ""
        reasons = f": {sanitize('; '.join(outcome.reasons))}" if outcome.reasons else ""
        yield f"    {outcome.rule}{mark}, {outcome.window}: {number}{reasons}"


def _explanation_data(explanation: LogExplanation) -> dict[str, Any]:
    return {
        **explanation._asdict(),
        "facts": [fact._asdict() for fact in explanation.facts],
        "outcomes": [outcome._asdict() for outcome in explanation.outcomes],
    }
