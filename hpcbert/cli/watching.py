"""Follow campaigns: a line per change, or JSON events."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from hpcbert import model
from hpcbert.cli.campaigns import next_step
from hpcbert.cli.output import VERSION, Result, escaped, printable, say
from hpcbert.commands import heal
from hpcbert.commands import monitor as flow
from hpcbert.commands.monitor import Sinks
from hpcbert.errors import HpcbertError, IncompleteError
from hpcbert.slurm.hostlist import fold
from hpcbert.slurm.states import Kind
from hpcbert.system.runner import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from hpcbert.campaign.repeats import Key, Repeat, TrackedCampaign
    from hpcbert.campaign.suspects import RetryPolicy
    from hpcbert.commands.monitor import Change, Detail, View
    from hpcbert.commands.retry import RetryPlan
    from hpcbert.config.site import Site
    from hpcbert.logs.failures import Failure
    from hpcbert.model import Campaign
    from hpcbert.slurm.states import RepeatState


# kind -> mark, the same without Unicode, style, its name in a count
MARKS = {
    Kind.SUCCEEDED: ("✓", "+", "green", "completed"),
    Kind.FAILED: ("✗", "x", "red", "failed"),
    Kind.RUNNING: ("▶", ">", "cyan", "running"),
    Kind.WAITING: ("·", ".", "dim", "waiting"),
    Kind.REQUEUED: ("↻", "r", "yellow", "requeued"),
    Kind.UNKNOWN: ("?", "?", "magenta", "unknown"),
    Kind.UNNEEDED: ("○", "o", "dim", "not needed"),
}
# Polls without an answer from Slurm before that is worth a line.
_SILENT_POLLS = 2


def has_screen() -> bool:
    """Return whether there is a terminal for a full-screen view, and a keyboard to steer it."""
    terminal = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    return terminal and os.environ.get("TERM", "dumb") not in {"", "dumb", "unknown"}


@dataclass(frozen=True)
class Display:
    """Prints a line per change on a standard stream; retries are reported on stderr.

    Attributes:
        err: Whether to use stderr.
        as_json: Whether to print JSON, one object per line.
        numbers: Whether to print each point's numbers when its last repeat has ended.
    """

    err: bool = False
    as_json: bool = False
    numbers: bool = False

    def watching(self) -> AbstractContextManager[Sinks]:
        """Show states until the context ends."""
        states: dict[Key, RepeatState] = {}

        def print_changes(changes: Sequence[Change]) -> None:
            click.echo("\n".join(map(self._line, changes)), err=self.err)
            states.update({change.repeat.key: change.state for change in changes})
            for text in finished_points(changes, states) if self.numbers else ():
                say(text, err=True)

        sinks = Sinks(changes=print_changes, view=_outage_reporter(), refresh=math.inf)
        return contextlib.nullcontext(sinks)

    def _line(self, change: Change) -> str:
        if self.as_json:
            return escaped(json.dumps(_event(change), ensure_ascii=False))
        return printable(line(change))

    def retried(self, plans: Sequence[RetryPlan]) -> None:
        """Print what was retried."""
        say("\n".join(map(plan_text, plans)), err=True)

    def waiting(self, reason: str) -> None:
        """Print why a submission waits."""
        say(f"{reason} Waiting for room.", err=True)


def _outage_reporter() -> Callable[[View], None]:
    """Return a function that prints, once for each outage, that Slurm does not answer."""
    silent_polls = 0

    def report(view: View) -> None:
        nonlocal silent_polls
        silent_polls = silent_polls + 1 if view.trouble else 0
        if silent_polls == _SILENT_POLLS:
            say(f"Slurm does not answer: {printable(view.trouble)}", err=True)

    return report


def count_text(counts: Mapping[Kind, int] | Mapping[str, int]) -> str:
    """Return the number of repeats of each kind: `4 completed, 1 running`."""
    return ", ".join(
        f"{counts[kind]} {mark[3]}" for kind, mark in MARKS.items() if counts.get(kind)
    )


def duration(seconds: float | None) -> str:
    """Return seconds as `H:MM:SS`."""
    if seconds is None:
        return ""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def earlier_attempts(state: RepeatState) -> str:
    """Return how earlier attempts ended: `attempt 0 was NODE_FAIL on n3`."""
    return "; ".join(
        f"attempt {attempt.attempt} was {attempt.word}"
        + (f" on {fold(attempt.nodes)}" if attempt.nodes else "")
        for attempt in state.earlier
    )


def finished_points(changes: Sequence[Change], states: Mapping[Key, RepeatState]) -> Iterator[str]:
    """Yield the numbers of each point whose last repeat has ended with some changes.

    Args:
        changes: Of one campaign.
        states: Those of all its repeats so far, the changes included.
    """
    from hpcbert.campaign.judge import gather
    from hpcbert.logs.setting import Window
    from hpcbert.results.grid import number
    from hpcbert.results.reduce import tabulate

    watched = changes[0].repeat.watched
    for point in dict.fromkeys(change.repeat.array.point for change in changes):
        keys = [repeat.key for repeat in watched.repeats if repeat.array.point == point]
        is_over = all(key in states and states[key].kind.over for key in keys)
        if watched.campaign.rehearse or not is_over:
            continue
        with contextlib.suppress(HpcbertError):  # The table at the end reports it.
            gathered = gather(
                watched, rule="", window=Window(), states=lambda _: states, beside=False,
                point=point.key,
            )  # fmt: skip
            (row,) = tabulate(gathered.points)[0].rows
            rates = f"median {number(row.median)} samples/s, {number(row.min)} .. {number(row.max)}"
            yield printable(f"{point.key}: {rates}, {row.ok}/{row.asked} repeats")


def follow(directory: Path, policy: RetryPolicy, site: Site) -> View:
    """Show a campaign's progress on stderr, retries included, until it is over.

    Returns:
        The last states.
    """
    tracked = (flow.open_campaign(directory),)
    try:
        shown = Display(err=True, numbers=True)
        floor = site.slurm.poll_floor
        return heal.follow(tracked, policy, shown, run=run, floor=floor)
    except KeyboardInterrupt:
        say(f"The jobs continue. {cancel_hint(tracked)}", err=True)
        raise


def follow_with_retries(directories: Sequence[Path], policy: RetryPolicy, site: Site) -> Result:
    """Follow campaigns one after the other, then return the result of collecting them.

    Rehearsals have nothing to collect; their result is the number of repeats that went through.
    """
    views = {directory: follow(directory, policy, site) for directory in directories}
    from hpcbert.cli.tables import collected

    replayed = [path for path, view in views.items() if _campaign(view).rehearse]
    measured = [path for path in directories if path not in replayed]
    return collected(measured) if measured else _rehearsed(views)


def _campaign(view: View) -> Campaign:
    return view.repeats[0].watched.campaign


def _rehearsed(views: Mapping[Path, View]) -> Result:
    total = sum(len(view.repeats) for view in views.values())
    bad = sum(view.failed for view in views.values())
    lines = [f"Rehearsed: {total - bad} of {total} repeats went through, nothing was trained."]
    lines += [next_step(_campaign(view), place) for place, view in views.items()]
    data = {
        "campaigns": [
            {"campaign": _campaign(view).id, "directory": str(place)}
            for place, view in views.items()
        ],
        "repeats": {"asked": total, "rehearsed": total - bad},
    }
    # With --wait the user expects a table.
    errors = tuple(
        IncompleteError(f"{_campaign(view).id} is a rehearsal, so there is no table.")
        for view in views.values()
    )
    return Result(data, "\n".join(lines), errors)


def cancel_hint(watched: Sequence[TrackedCampaign]) -> str:
    """Return the commands that cancel campaigns, as a sentence."""
    paths = [shlex.quote(str(tracked.directory)) for tracked in watched]
    return f"To cancel them: {'; '.join(f'hpcbert cancel {path}' for path in paths)}"


def plan_text(plan: RetryPlan, *, dry: bool = False) -> str:
    """Return what a retry submits and why, as text."""
    watched = plan.findings.watched
    lines = []
    for array in plan.arrays:
        text = "would be submitted again" if dry else f"submitted again as job {array.job_id}"
        numbers = ", ".join(map(str, array.repeats))
        what = f"repeat{'s' if len(array.repeats) > 1 else ''} {numbers} of {array.point.key}"
        lines.append(f"{what} {text}:")
        lines += [f"  repeat {number}: {why}" for number, _, why in array.why]
        lines += [f"  not on {node}: {why}" for node, why in array.excluded]
    if not lines:
        lines.append(f"{watched.campaign.id} has nothing to retry.")
    if plan.findings.open:
        lines.append(f"{plan.findings.open} repeats wait or run and are left alone.")
    if plan.arrays and not dry:
        lines.append(f"watch it:  hpcbert monitor {shlex.quote(str(watched.directory))}")
    return "\n".join(lines)


# Each campaign's logs are read by its own recipe.
_progress_reader = functools.cache(flow.progress_reader)


_failure_reader = functools.cache(flow.failure_reader)


@functools.cache
def _read_failure(
    directory: Path, log: Path, device: model.Device, printed: tuple[Path, ...]
) -> Failure | None:
    return _failure_reader(directory)(log, device, printed)


def why_failed(repeat: Repeat, state: RepeatState) -> Failure | None:
    """Return why a repeat failed; its log is read once, because nothing writes to it any more.

    If Slurm says that a repeat ran out of host memory, there is no other cause to look for.
    """
    if state.kind != Kind.FAILED or state.word == "OUT_OF_MEMORY":
        return None
    log, device = flow.log_path(repeat, state), repeat.array.point.device
    return _read_failure(repeat.watched.directory, log, device, repeat.printed_alone)


def failures_alike(view: View) -> list[str]:
    """Return why repeats failed by their logs, once for equal reasons."""
    failures: dict[tuple[str, str], int] = {}
    for repeat in view.repeats:
        if failure := why_failed(repeat, view.states[repeat.key]):
            key = repeat.watched.campaign.id, str(failure)
            failures[key] = failures.get(key, 0) + 1
    return [
        printable(f"{count} repeat{'s' if count > 1 else ''}: {failure}")
        for (_, failure), count in failures.items()
    ]


def details(repeat: Repeat, state: RepeatState, now: float) -> Detail:
    """Return the progress of a running repeat, from the end of its log."""
    progress = _progress_reader(repeat.watched.directory)(flow.log_path(repeat, state))
    return flow.detail(repeat, progress, now=now)


def line(change: Change) -> str:
    """Return a change as one line: time, campaign, point, repeat, state, nodes, reason."""
    repeat, state = change.repeat, change.state
    number = f"{repeat.number}/{repeat.watched.campaign.protocol.repeats}"
    number += f" attempt {state.attempt}" if state.attempt else ""
    failure = why_failed(repeat, state)
    words = [
        utc(change.time),
        repeat.watched.campaign.id,
        repeat.array.point.key,
        number,
        state.word,
        fold(state.nodes),
        f"({state.detail})" if state.detail else "",
        f"({state.advice})" if state.kind is Kind.WAITING and state.advice else "",
        f"({failure})" if failure else "",
        f"({earlier_attempts(state)})" if state.earlier else "",
        f"[{state.source}]",
    ]
    return "  ".join(word for word in words if word)


def _event(change: Change) -> dict[str, Any]:
    """Return a change as an object for `--json`; `docs/reference/json.md` describes it."""
    repeat, state = change.repeat, change.state
    detail = details(repeat, state, change.time) if state.kind == Kind.RUNNING else None
    failure = why_failed(repeat, state)
    return {
        "version": VERSION,
        "event": "state",
        "time": utc(change.time),
        "campaign": repeat.watched.campaign.id,
        "point": repeat.array.point.key,
        "repeat": repeat.number,
        "attempt": state.attempt,
        "job": repeat.job_id or None,
        "state": state.word,
        "kind": state.kind,
        "source": state.source,
        "reason": state.reason or None,
        "detail": state.detail or None,
        "advice": state.advice or None,
        "failure": failure and failure._asdict(),
        "nodes": list(state.nodes),
        "exit_code": state.exit_code,
        "step_exit_code": state.step_exit,
        "start": utc(state.start),
        "end": utc(state.end),
        "elapsed": state.elapsed,
        "time_limit": state.limit,
        "iteration": detail.iteration if detail else None,
        "throughput": detail.throughput if detail else None,
        "expected_end": utc(detail.ends if detail else None),
        "attempts": [
            {
                "attempt": attempt.attempt,
                "state": attempt.word,
                "state_source": attempt.source,
                "detail": attempt.detail or None,
                "nodes": list(attempt.nodes),
                "start": utc(attempt.start),
                "end": utc(attempt.end),
            }
            for attempt in state.earlier
        ],
    }


def utc(seconds: float | None) -> str | None:
    """Return a time as ISO 8601 UTC, or nothing for none."""
    return None if seconds is None else model.utc(seconds)
