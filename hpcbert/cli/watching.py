"""Follow campaigns: a table on a terminal, a line per change elsewhere, or JSON events."""

from __future__ import annotations

import contextlib
import functools
import json
import shlex
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from hpcbert import model
from hpcbert.cli import streams
from hpcbert.cli.campaigns import then
from hpcbert.cli.live import before, console, draw, draws
from hpcbert.cli.output import VERSION, Result, escaped, printable, say
from hpcbert.errors import HpcbertError, IncompleteError
from hpcbert.flows import monitor as flow
from hpcbert.flows.monitor import Sinks
from hpcbert.slurm.hostlist import fold
from hpcbert.slurm.states import Kind
from hpcbert.system.runner import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from hpcbert.campaign.repeats import Key, Repeat, TrackedCampaign
    from hpcbert.campaign.suspects import RetryPolicy
    from hpcbert.config.site import Site
    from hpcbert.flows.monitor import Change, Detail, View
    from hpcbert.flows.retry import RetryPlan
    from hpcbert.logs.failures import Failure
    from hpcbert.model import Campaign
    from hpcbert.slurm.states import RepeatState


@dataclass(frozen=True)
class Display:
    """Shows what is followed on a standard stream; retries are reported on stderr.

    Attributes:
        err: Whether to use stderr.
        as_json: Whether to print JSON, one object per line.
        plain: Whether to print lines even on a terminal.
    """

    err: bool = False
    as_json: bool = False
    plain: bool = False

    def full_screen(self) -> bool:
        """Return whether there is a screen for a view, and a keyboard to steer it."""
        terminal = all(one.isatty() for one in (sys.stdin, sys.stdout, sys.stderr))
        return not (self.as_json or self.plain) and terminal and draws(sys.stdout)

    def watching(self) -> AbstractContextManager[Sinks]:
        """Show states until the context ends."""
        lines = self.as_json or self.plain
        if not lines and draws(sys.stderr if self.err else sys.stdout):
            return _on_terminal(err=self.err)
        return contextlib.nullcontext(Sinks(changes=self._print_changes))

    def _print_changes(self, found: Sequence[Change]) -> None:
        lines = [
            escaped(json.dumps(_event(change), ensure_ascii=False))
            if self.as_json
            else printable(line(change))
            for change in found
        ]
        if lines:
            click.echo("\n".join(lines), err=self.err)

    def retried(self, plans: Sequence[RetryPlan]) -> None:
        """Print what was retried."""
        say("\n".join(map(plan_text, plans)), err=True)

    def waiting(self, reason: str) -> None:
        """Print why a submission waits."""
        say(f"{reason} Waiting for room.", err=True)


class WaitingDisplay(Display):
    """A display on stderr that also prints each point's numbers when its last repeat has ended."""

    def watching(self) -> AbstractContextManager[Sinks]:
        """Show states until the context ends."""
        return self._watch()

    @contextlib.contextmanager
    def _watch(self) -> Iterator[Sinks]:
        states: dict[Key, RepeatState] = {}
        with super().watching() as sinks:

            def print_changes(changes: Sequence[Change]) -> None:
                sinks.changes(changes)
                states.update({change.repeat.key: change.state for change in changes})
                for text in finished_points(changes, states):
                    say(text, err=True)

            yield replace(sinks, changes=print_changes)


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


def follow(
    directory: Path,
    policy: RetryPolicy,
    site: Site,
    *,
    pause: Callable[[float], None] = time.sleep,
) -> View:
    """Show a campaign's progress on stderr, retries included, until it is over.

    Args:
        directory: The campaign.
        policy: Which repeats to retry.
        site: Has the limits on how often to ask Slurm.
        pause: Waits a number of seconds between two looks.

    Returns:
        The last states.

    Raises:
        HpcbertError: As `heal.follow`; the jobs continue.
        KeyboardInterrupt: The same, after saying so.
    """
    from hpcbert.flows import heal

    tracked = (flow.open_campaign(directory),)
    try:
        shown = WaitingDisplay(err=True)
        floor = site.slurm.poll_floor
        return heal.follow(tracked, policy, shown, run=run, floor=floor, pause=pause)
    except KeyboardInterrupt:
        say(f"The jobs continue. {cancel_hint(tracked)}", err=True)
        raise


def follow_with_retries(directories: Sequence[Path], policy: RetryPolicy, site: Site) -> Result:
    """Follow campaigns one after the other, then return the result of collecting them.

    Rehearsals have nothing to collect; their result is the number of repeats that went through.
    """
    pause = use_the_first(import_the_rest)
    views = {one: follow(one, policy, site, pause=pause) for one in directories}
    from hpcbert.cli.tables import collected

    replayed = [one for one, view in views.items() if _campaign(view).rehearse]
    measured = [one for one in directories if one not in replayed]
    return collected(measured) if measured else _rehearsed(views)


def use_the_first(act: Callable[[], None]) -> Callable[[float], None]:
    """Return a function that waits some seconds, and acts meanwhile when it is first called."""
    acts = [act]

    def pause(seconds: float) -> None:
        over = time.monotonic() + seconds
        while acts:
            acts.pop()()
        time.sleep(max(0.0, over - time.monotonic()))

    return pause


def import_the_rest() -> None:
    """Import what collecting needs: this takes as long as reading the logs of a small campaign."""
    from hpcbert.campaign import judge, keeping, preflight, sources  # noqa: F401
    from hpcbert.cli.tables import collected  # noqa: F401


def _campaign(view: View) -> Campaign:
    return view.repeats[0].watched.campaign


def _rehearsed(views: Mapping[Path, View]) -> Result:
    asked = sum(len(view.repeats) for view in views.values())
    bad = sum(view.failed for view in views.values())
    lines = [f"Rehearsed: {asked - bad} of {asked} repeats went through, nothing was trained."]
    lines += [then(_campaign(view), place) for place, view in views.items()]
    data = {
        "campaigns": [
            {"campaign": _campaign(view).id, "directory": str(place)}
            for place, view in views.items()
        ],
        "repeats": {"asked": asked, "rehearsed": asked - bad},
    }
    # With --wait the user expects a table.
    errors = tuple(
        IncompleteError(f"{_campaign(view).id} is a rehearsal, so there is no table.")
        for view in views.values()
    )
    return Result(data, "\n".join(lines), errors)


def cancel_hint(watched: Sequence[TrackedCampaign]) -> str:
    """Return the commands that cancel campaigns, as a sentence."""
    words = [shlex.quote(str(one.directory)) for one in watched]
    return f"To cancel them: {'; '.join(f'hpcbert cancel {word}' for word in words)}"


def plan_text(plan: RetryPlan, *, dry: bool = False) -> str:
    """Return what a retry submits and why, as text."""
    watched = plan.findings.watched
    lines = []
    for array in plan.arrays:
        done = "would be submitted again" if dry else f"submitted again as job {array.job_id}"
        numbers = ", ".join(map(str, array.repeats))
        what = f"repeat{'s' if len(array.repeats) > 1 else ''} {numbers} of {array.point.key}"
        lines.append(f"{what} {done}:")
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
    found: dict[tuple[str, str], int] = {}
    for repeat in view.repeats:
        if failure := why_failed(repeat, view.states[repeat.key]):
            key = repeat.watched.campaign.id, str(failure)
            found[key] = found.get(key, 0) + 1
    return [
        printable(f"{count} repeat{'s' if count > 1 else ''}: {said}")
        for (_, said), count in found.items()
    ]


def details(repeat: Repeat, state: RepeatState, now: float) -> Detail:
    """Return the progress of a running repeat, from the end of its log."""
    progress = _progress_reader(repeat.watched.directory)(flow.log_path(repeat, state))
    return flow.detail(repeat, progress, now=now)


@contextlib.contextmanager
def _on_terminal(*, err: bool) -> Iterator[Sinks]:
    from rich.live import Live

    context = click.get_current_context(silent=True)
    screen = console(sys.stderr if err else sys.stdout, colour=context.color if context else None)
    unicode = streams.holds_unicode(screen.file)

    def view(now: View) -> None:
        live.update(draw(now, details, why_failed, unicode=unicode), refresh=True)

    # A table taller than the screen scrolls: cutting it off would hide failures.
    with Live(
        console=screen, auto_refresh=False, redirect_stdout=False, vertical_overflow="visible"
    ) as live:
        yield Sinks(view=view)


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
        f"({failure})" if failure else "",
        f"({before(state)})" if state.earlier else "",
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
                "attempt": one.attempt,
                "state": one.word,
                "state_source": one.source,
                "detail": one.detail or None,
                "nodes": list(one.nodes),
                "start": utc(one.start),
                "end": utc(one.end),
            }
            for one in state.earlier
        ],
    }


def utc(seconds: float | None) -> str | None:
    """Return a time as ISO 8601 UTC, or nothing for none."""
    return None if seconds is None else model.utc(seconds)
