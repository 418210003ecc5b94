"""Compare a run's log with the time of the run: its stamps, its file, and the node's clock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpcbert.campaign.record import RepeatRecord
from hpcbert.campaign.steps import Step
from hpcbert.logs.grammar import Grammar
from hpcbert.logs.stamps import QUARTERS, TimeSpan, explain_mismatch, read_stamps
from hpcbert.model import Reason

# Seconds by which a clock may drift within a run: it is read in hundredths.
_MAX_DRIFT = 0.5
# Seconds by which the file server's clock may differ from the controller's.
_SERVER_SLACK = 60.0


def find_time_problems(
    record: RepeatRecord, attempt: int, log: Path, grammar: Grammar, *, contained: bool
) -> tuple[Reason, ...]:
    """Return why a run's times are inconsistent; none if they are consistent or unknown.

    Args:
        record: What its script wrote.
        attempt: The number of the attempt.
        log: What its program wrote.
        grammar: How the log is read.
        contained: Whether the program ran in a container, which has a time zone of its own.
    """
    step = next((step for step in record.steps if step.attempt == attempt), None)
    if step is None or step.begin is None or step.end is None or step.end <= step.begin:
        return ()  # A record in whole seconds that has no length does not say when it was.
    detail = _describe_clock_change(step) or _describe_old_log(record, log, step.begin + step.ahead)
    if not detail:
        zones = QUARTERS if contained or not step.zones else step.zones
        log_stamps = read_stamps(log, grammar)
        details = [explain_mismatch(log_stamps, span) for span in _list_spans(step, zones)]
        detail = details[0] if all(details) else ""
    return (Reason("clock", detail),) if detail else ()


def _list_spans(step: Step, zones: Sequence[int]) -> list[TimeSpan]:
    """Return the time of a step by each clock that a log's stamps may come from.

    On several nodes, the rank that prints may be on another one than the script. If the clock there
    is right and only the script's is wrong, the stamps are those of the controller's clock.
    """
    begin, end = step.begin or 0.0, step.end or 0.0
    offsets = [step.ahead] if len(step.nodes) > 1 and abs(step.ahead) > 1 else []
    return [TimeSpan(begin + ahead, end + ahead, zones) for ahead in (0, *offsets)]


def _describe_clock_change(step: Step) -> str:
    if abs(step.moved) <= _MAX_DRIFT:
        return ""
    way = "forward" if step.moved > 0 else "back"
    return f"the clock of {step.host} was set {way} by {abs(step.moved):.1f} s in the measured step"


def _describe_old_log(record: RepeatRecord, log: Path, begin: float) -> str:
    """Return a clause about a log that was last written to before its step began.

    The status file was last written to later than that: if it seems older too, as in a restored
    copy, the file system's times mean nothing.
    """
    try:
        gap = begin - log.stat().st_mtime
    except OSError:
        return ""
    if gap <= _SERVER_SLACK or (record.written or 0.0) < begin - _SERVER_SLACK:
        return ""
    return f"the log was last written to {gap:.0f} s before the measured step began"
