"""Follow campaigns: a line per change, or JSON events."""

from __future__ import annotations

import functools
import os
import shlex
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click

from hpcbert import model
from hpcbert.campaign.preflight import read_preflight
from hpcbert.campaign.repeats import Key, Repeat, TrackedCampaign, open_campaign
from hpcbert.campaign.suspects import RetryPolicy
from hpcbert.cli.campaigns import format_rehearsed, run_aloud
from hpcbert.cli.output import VERSION, Result, dump_json, pick, print_text, replace_controls
from hpcbert.commands import monitor as flow
from hpcbert.commands import retry
from hpcbert.commands.monitor import Change, RepeatProgress, Sinks, View, read_rates
from hpcbert.commands.retry import RetryPlan
from hpcbert.config.site import Site
from hpcbert.errors import IncompleteError, format_count
from hpcbert.logs.failures import Failure, explain_failure
from hpcbert.logs.input_wait import read_input_notes
from hpcbert.logs.scan import Progress, read_progress
from hpcbert.model import JobOutput, Note, Point, Unit
from hpcbert.results.grid import format_number
from hpcbert.results.metrics import row_rate
from hpcbert.scheduler.base import States
from hpcbert.slurm.hostlist import fold
from hpcbert.slurm.states import Kind, RepeatState


class Mark(NamedTuple):
    """How a kind of state is shown: its sign, its style, and its name in a count."""

    sign: str
    style: str
    name: str


MARKS = {
    Kind.SUCCEEDED: Mark("✓", "green", "completed"),
    Kind.FAILED: Mark("✗", "red", "failed"),
    Kind.RUNNING: Mark("▶", "cyan", "running"),
    Kind.WAITING: Mark("·", "dim", "waiting"),
    Kind.REQUEUED: Mark("↻", "yellow", "requeued"),
    Kind.UNKNOWN: Mark("?", "magenta", "unknown"),
    Kind.UNNEEDED: Mark("○", "dim", "not needed"),
}
_CANCELLED = Mark("⊘", "yellow", "cancelled")
# Polls without an answer from Slurm before a line reports the outage.
_SILENT_POLLS = 2


def has_screen() -> bool:
    """Return whether all standard streams are a terminal, and TERM is known and not dumb."""
    terminal = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    return terminal and os.environ.get("TERM", "dumb") not in {"", "dumb", "unknown"}


@dataclass(frozen=True)
class Display:
    """Prints a line per change on a standard stream; retries are reported on stderr.

    Attributes:
        err: Whether to use stderr, and to print the numbers of each point that has ended.
    """

    err: bool = False
    as_json: bool = False
    unit: Unit = "samples"

    def watching(self) -> Sinks:
        """Return receivers that print each new state, and each outage of Slurm once."""
        states: dict[Key, RepeatState] = {}
        silent_polls = 0

        def print_changes(changes: Sequence[Change]) -> None:
            lines = [replace_controls(format_change(change)) for change in changes]
            if self.as_json:
                lines = [dump_json(_change_event(change, self.unit)) for change in changes]
            click.echo("\n".join(lines), err=self.err)
            states.update({change.repeat.key: change.state for change in changes})
            for text in report_finished_points(changes, states) if self.err else ():
                print_text(text, err=True)

        def report_outage(view: View) -> None:
            nonlocal silent_polls
            silent_polls = silent_polls + 1 if view.trouble else 0
            if silent_polls == _SILENT_POLLS:
                print_text(f"Slurm does not answer: {replace_controls(view.trouble)}", err=True)

        return Sinks(changes=print_changes, view=report_outage)

    def retried(self, plans: Sequence[RetryPlan]) -> None:
        """Print what was retried."""
        print_text("\n".join(map(format_retry_plan, plans)), err=True)

    def waiting(self, reason: str) -> None:
        """Print why a submission waits."""
        print_text(f"{reason} Waiting for room.", err=True)


def find_mark(state: RepeatState) -> Mark:
    """Return how a state is shown: a cancelled repeat did not fail."""
    return _CANCELLED if state.cancelled else MARKS[state.kind]


def count_marks(states: Iterable[RepeatState]) -> Counter[Mark]:
    """Return the number of states that are shown alike."""
    return Counter(map(find_mark, states))


def format_counts(counts: Mapping[Mark, int]) -> str:
    """Return the number of repeats in each kind of state: `4 completed, 1 running`."""
    marks = (*MARKS.values(), _CANCELLED)
    return ", ".join(f"{counts[mark]} {mark.name}" for mark in marks if counts.get(mark))


def format_duration(seconds: float | None) -> str:
    """Return seconds as `H:MM:SS`."""
    if seconds is None:
        return ""
    total_seconds = int(seconds)
    return f"{total_seconds // 3600}:{total_seconds // 60 % 60:02}:{total_seconds % 60:02}"


def format_earlier_attempts(state: RepeatState) -> str:
    """Return the ends of earlier attempts: `attempt 0 was NODE_FAIL on n3`."""
    return "; ".join(
        f"attempt {attempt.attempt} was {attempt.word}"
        + (f" on {fold(attempt.nodes)}" if attempt.nodes else "")
        for attempt in state.earlier
    )


def report_finished_points(
    changes: Sequence[Change], states: Mapping[Key, RepeatState]
) -> list[str]:
    """Return the numbers of each point whose last repeat has ended with some changes."""
    tracked_campaign = changes[0].repeat.watched
    points = {change.repeat.array.point for change in changes}
    for repeat in tracked_campaign.repeats:
        if repeat.key not in states or not states[repeat.key].kind.over:
            points.discard(repeat.array.point)
    return list_numbers(tracked_campaign, states, "samples", points) if points else []


def list_numbers(
    tracked_campaign: TrackedCampaign,
    states: Mapping[Key, RepeatState],
    unit: Unit,
    points: Collection[Point] = (),
) -> list[str]:
    """Return a line with the median and the efficiency of each finished point.

    Args:
        unit: A point without a rate in it has no line.
        points: The points; empty for all.
    """
    rows = dict(read_rates(tracked_campaign, states).rows)
    lines = []
    for array in tracked_campaign.campaign.measured:
        row = rows.pop(array.point.key, None)
        rate = row_rate(row, unit) if row else None
        if row and (not points or array.point in points) and (rate or not row.median):
            efficiency = f", efficiency {row.efficiency:.1%}" if row.efficiency else ""
            lines.append(
                f"{array.point.key}: median {format_number(rate)} {unit}/s{efficiency}, "
                f"{row.repeats.ok}/{row.repeats.asked} repeats"
            )
    return lines


def follow_campaign(directory: Path, policy: RetryPolicy, site: Site) -> View:
    """Show a campaign's progress on stderr, retries included, until it is over."""
    tracked_campaigns = (open_campaign(directory),)
    try:
        display = Display(err=True)
        floor = site.slurm.poll_floor
        return retry.watch_and_retry(tracked_campaigns, policy, display, run=run_aloud, floor=floor)
    except KeyboardInterrupt:
        print_text(f"The jobs continue. {format_cancel_hint(tracked_campaigns)}", err=True)
        raise


def follow_with_retries(directories: Sequence[Path], policy: RetryPolicy, site: Site) -> Result:
    """Follow campaigns one after the other, then return the result of collecting them.

    Rehearsals have nothing to collect; their result is the number of repeats that went through.
    """
    lines, errors, rows = [], [], []
    total = failed = 0
    campaign_paths: list[Path] = []
    fresh_states: dict[Path, States] = {}
    for directory in directories:
        view = follow_campaign(directory, policy, site)
        campaign = view.repeats[0].watched.campaign
        if not campaign.rehearse:
            campaign_paths.append(directory)
            # Campaigns followed before this one may be running again. And if squeue said first that
            # a requeued job ended, sacct was not asked about its earlier attempts.
            is_known = all(
                state.kind.over and not (state.source == "squeue" and state.attempt)
                for state in view.states.values()
            )
            fresh_states = {directory: view.states} if is_known else {}
            continue
        total, failed = total + len(view.repeats), failed + view.failed
        lines.append(format_rehearsed(directory))
        rows.append({"campaign": campaign.id, "directory": str(directory)})
        if view.failed:
            message = f"{view.failed} of {len(view.repeats)} repeats did not go through."
            hint = "Find the cause in its log, then submit the rehearsal again."
            errors.append(IncompleteError(message, where=campaign.id, hint=hint))
    if campaign_paths:
        from hpcbert.cli.tables import collect_tables  # with all that reads logs of others

        return collect_tables(campaign_paths, fresh_states=fresh_states)
    count = f"{total - failed} of {total} repeats went through"
    data = {"campaigns": rows, "repeats": {"asked": total, "rehearsed": total - failed}}
    lines = [f"Rehearsed: {count}, nothing was trained.", *lines]
    return Result(data, "\n".join(lines), tuple(errors))


def format_cancel_hint(tracked_campaigns: Sequence[TrackedCampaign]) -> str:
    """Return the commands that cancel campaigns, as a sentence."""
    paths = (shlex.quote(str(tracked.directory)) for tracked in tracked_campaigns)
    return f"To cancel them: {'; '.join(f'hpcbert cancel {path}' for path in paths)}"


def format_retry_plan(plan: RetryPlan, *, dry: bool = False) -> str:
    """Format the repeats, reasons and excluded nodes of a retry; with `dry`, as a proposal."""
    lines = []
    for array in plan.arrays:
        text = "would be submitted again" if dry else f"submitted again as job {array.job_id}"
        noun = "repeats" if len(array.repeats) > 1 else "repeat"
        numbers = ", ".join(map(str, array.repeats))
        lines.append(f"{noun} {numbers} of {array.point.key} {text}:")
        lines += [f"  repeat {number}: {reason}" for number, _, reason in array.why]
        lines += [f"  not on {node}: {reason}" for node, reason in array.excluded]
    lines = lines or [f"{plan.watched.campaign.id} has nothing to retry."]
    if plan.open:
        count = format_count(
            plan.open, "repeat waits or runs and is", "repeats wait or run and are"
        )
        lines.append(f"{count} left alone.")
    if plan.arrays and not dry:
        lines.append(f"watch it:  hpcbert monitor {shlex.quote(str(plan.watched.directory))}")
    return "\n".join(lines)


# Each campaign's logs are read by its own recipe.
_grammar = functools.cache(flow.read_grammar)
_read_rate_factor = functools.cache(flow.read_rate_factor)


@functools.cache
def _read_failure(
    directory: Path, log: Path, device: model.Device, outputs: tuple[JobOutput, ...]
) -> Failure | None:
    log_grammar = _grammar(directory)
    return explain_failure(log, log_grammar, device, outputs) if log_grammar else None


def read_failure(repeat: Repeat, log: Path, attempt: int) -> Failure | None:
    """Return the cause of an attempt's failure from its log, which is read only once."""
    device = repeat.array.point.device
    return _read_failure(repeat.watched.directory, log, device, repeat.own_outputs(attempt))


def find_failure(repeat: Repeat, state: RepeatState) -> Failure | None:
    """Return the cause of a repeat's failure, from its log, which is read only once.

    None if it did not fail, or if Slurm says that it ran out of host memory: that is the cause.
    """
    if state.kind != Kind.FAILED or state.word == "OUT_OF_MEMORY":
        return None
    return read_failure(repeat, flow.log_path(repeat, state), state.attempt)


def find_flags(repeat: Repeat, state: RepeatState) -> tuple[Note, ...]:
    """Return the flags that the log of a running or completed repeat sets already."""
    if state.kind not in {Kind.RUNNING, Kind.SUCCEEDED} or repeat.watched.campaign.rehearse:
        return ()
    return read_input_notes(flow.log_path(repeat, state))


def list_causes(view: View) -> list[str]:
    """Return why repeats failed, their flags, and what to do, each once."""
    counts: Counter[str] = Counter()
    actions: dict[str, None] = {}
    for repeat in view.repeats:
        state = view.states[repeat.key]
        failure, action = find_failure(repeat, state), advise(repeat, state)
        if failure:
            counts[str(failure)] += 1
        counts.update(f"{note.flag}: {note.detail}" for note in find_flags(repeat, state))
        if action:
            actions[f"{state.word} {state.reason}".strip() + f": {action}"] = None
    causes = [f"{format_count(count, 'repeat')}: {text}" for text, count in counts.items()]
    return [replace_controls(line) for line in (*causes, *actions)]


def read_details(repeat: Repeat, state: RepeatState, now: float) -> RepeatProgress:
    """Return the progress of a running repeat, from the end of its log."""
    log_grammar = _grammar(repeat.watched.directory)
    log = flow.log_path(repeat, state)
    progress = read_progress(log, log_grammar) if log_grammar else Progress()
    return flow.estimate_progress(repeat, progress, now=now)


def advise(repeat: Repeat, state: RepeatState) -> str:
    """Return what to do about a repeat's state.

    A rehearsal is not retried but submitted again. What waits for a preflight that failed was
    cancelled by hpcbert.
    """
    if state.word == "CANCELLED" and not repeat.array.preflight:
        preflight = read_preflight(repeat.watched)
        if preflight and preflight.state == "failed":
            return "its preflight failed: remove the cause, then submit again"
    if not repeat.watched.campaign.rehearse:
        return state.advice
    return state.advice.replace("run hpcbert retry", "submit the rehearsal again")


def convert_rate(repeat: Repeat, throughput: float | None, unit: Unit) -> float | None:
    """Return a repeat's samples per second in a unit; None if unknown."""
    factor = _read_rate_factor(repeat.watched.directory, repeat.array.point, unit)
    return throughput * factor if throughput and factor else None


def format_change(change: Change) -> str:
    """Return a change as one line: time, campaign, point, repeat, state, nodes, reason."""
    repeat, state = change.repeat, change.state
    number = f"{repeat.number}/{repeat.watched.campaign.protocol.repeats}"
    number += f" attempt {state.attempt}" if state.attempt else ""
    failure, advice = find_failure(repeat, state), advise(repeat, state)
    words = [
        format_utc(change.time),
        repeat.watched.campaign.id,
        repeat.array.point.key,
        number,
        state.word,
        fold(state.nodes),
        f"({state.detail})" if state.detail else "",
        f"({advice})" if state.kind is Kind.WAITING and advice else "",
        f"({failure})" if failure else "",
        *(f"({note.flag}: {note.detail})" for note in find_flags(repeat, state)),
        f"({format_earlier_attempts(state)})" if state.earlier else "",
        f"[{state.source}]",
    ]
    return "  ".join(word for word in words if word)


def _change_event(change: Change, unit: Unit) -> dict[str, Any]:
    repeat, state = change.repeat, change.state
    detail = read_details(repeat, state, change.time) if state.kind == Kind.RUNNING else None
    failure, flags = find_failure(repeat, state), find_flags(repeat, state)
    throughput = detail.throughput if detail else None
    event = {
        "version": VERSION,
        "event": "state",
        "time": format_utc(change.time),
        "campaign": repeat.watched.campaign.id,
        "point": repeat.array.point.key,
        "repeat": repeat.number,
        "job": repeat.job_id or None,
        "state": state.word,
        **pick(state, "attempt kind source exit_code elapsed nodes"),
        "reason": state.reason or None,
        "detail": state.detail or None,
        "advice": advise(repeat, state) or None,
        "failure": failure and failure._asdict(),
        "step_exit_code": state.step_exit,
        "start": format_utc(state.start),
        "end": format_utc(state.end),
        "time_limit": state.limit,
        "iteration": detail.iteration if detail else None,
        "throughput": throughput,
        "expected_end": format_utc(detail.ends if detail else None),
        "attempts": [
            {
                **pick(attempt, "attempt nodes"),
                "state": attempt.word,
                "state_source": attempt.source,
                "detail": attempt.detail or None,
                "start": format_utc(attempt.start),
                "end": format_utc(attempt.end),
            }
            for attempt in state.earlier
        ],
    }
    if unit != "samples":
        event |= {"rate": convert_rate(repeat, throughput, unit), "unit": f"{unit}/s"}
    return event | ({"flags": [asdict(note) for note in flags]} if flags else {})


def format_utc(seconds: float | None) -> str | None:
    """Return a time as ISO 8601 UTC, or nothing for none."""
    return None if seconds is None else model.format_utc(seconds)
