"""hpcbert monitor."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcbert import model
from hpcbert.campaign import store
from hpcbert.cli import conflicts, streams
from hpcbert.cli.conflicts import Conflict
from hpcbert.cli.live import before, console, counts, draw, draws
from hpcbert.cli.output import VERSION, Result, escaped, finish, printable, say
from hpcbert.config.schedulers import traits
from hpcbert.errors import HpcbertError, IncompleteError, Interruption, UsageError
from hpcbert.flows import monitor as flow
from hpcbert.slurm.hostlist import fold
from hpcbert.slurm.states import Kind
from hpcbert.system.runner import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from hpcbert.campaign.repeats import Repeat, Watched
    from hpcbert.flows.monitor import Change, Detail, View
    from hpcbert.logs.scan import Progress
    from hpcbert.slurm.states import RepeatState

    Show = Callable[..., AbstractContextManager[flow.Sinks]]


# Of an interval, seconds.
_SHORTEST, _LONGEST = 0.1, 86_400.0
_CONFLICT = Conflict(("interval", "max_retries"), lambda given: given["once"], "with --once")


@click.command(
    epilog="\b\nExamples:\n"
    "  hpcbert monitor\n"
    "  hpcbert monitor 20261121T100000Z-oneflow-3f9a1c\n"
    "  hpcbert monitor --once --json | jq -r 'select(.event) | [.repeat, .state] | @tsv'"
)
@click.argument("campaigns", nargs=-1, metavar="[CAMPAIGN]...")
@click.option("--once", is_flag=True, help="Look once, say how every repeat is, and leave.")
@click.option(
    "--interval",
    type=float,
    help="Seconds between two looks; not below the site's.",
)
@click.option(
    "--max-retries",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Submit a repeat that does not count again, so often at most.",
)
@click.option("--exit-status", is_flag=True, help="Leave with 4 if a repeat ended badly.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
@click.option("--runs", default="", help="Directory of the campaigns.")
@click.option("--site", "site_file", default="", help="A site.toml, or its folder.")
@click.pass_context
def monitor(ctx: click.Context, /, *, as_json: bool, **values: Any) -> None:
    """Watch campaigns until they end.

    CAMPAIGN is a campaign's directory, its id or a part of it; without any, all that are not over,
    or else a look at the newest. Interrupting it leaves the jobs alone.

    With --json each line is an object: {"event":"state",…} for each repeat at first and then for
    each change, and at last the document that every command ends with, whose data is the summary.
    """
    show = _events if as_json else _on_terminal if draws(sys.stdout) else _lines
    finish("monitor", lambda: _monitor(show, ctx.color, **values), as_json=as_json)


command = monitor


def _monitor(
    show: Show,
    colour: bool | None,
    *,
    campaigns: tuple[str, ...],
    once: bool,
    interval: float | None,
    max_retries: int,
    exit_status: bool,
    runs: str,
    site_file: str,
) -> Result:
    from hpcbert.cli.retry import healed
    from hpcbert.config.site import load

    conflicts.refuse(_CONFLICT)

    site = load(site_file)
    directory = Path(runs or site.runs)
    watched = flow.named(campaigns, directory) if campaigns else flow.unfinished(directory, run=run)
    once = once or not watched
    watched = watched or (flow.newest(directory),)
    floor = _interval(interval, site.slurm.poll_floor, watched)
    if max_retries:
        for one in watched:
            store.claim(one.directory)
    try:
        while True:
            with show(colour, err=False) as sinks:
                view = flow.watch(watched, sinks, run=run, floor=floor, once=once)
            retries = 0 if once else max_retries
            said = [healed(one.directory, retries, site) for one in watched if retries]
            if not any(said):
                break
            say("\n".join(filter(None, said)), err=True)
            watched = tuple(flow.open_campaign(one.directory) for one in watched)
    except KeyboardInterrupt:
        return _interrupted(watched)
    return _result(view, watched, exit_status=exit_status)


def _interval(asked: float | None, floor: float, watched: Sequence[Watched]) -> float:
    if asked is not None and not _SHORTEST <= asked <= _LONGEST:
        raise UsageError(
            f"An interval is {_SHORTEST:g} to {_LONGEST:g} seconds, not {asked:g}.",
            where="--interval",
        )
    shared = not all(traits(one.campaign.scheduler).here for one in watched)
    if asked is not None and asked < floor and shared:
        raise UsageError(
            f"An interval of {asked:g} s is too short for a scheduler that others use too.",
            where="--interval",
            hint=f"This site's shortest is {floor:g} s (slurm.poll_floor in the site.toml).",
        )
    return floor if asked is None else asked


def _interrupted(watched: Sequence[Watched]) -> Result:
    error = Interruption("Interrupted. The jobs are left alone.", hint=_cancel_hint(watched))
    return Result(exit_code=error.exit_code, errors=(error,))


def _cancel_hint(watched: Sequence[Watched]) -> str:
    words = [shlex.quote(str(one.directory)) for one in watched]
    return f"To cancel them: {'; '.join(f'hpcbert cancel {word}' for word in words)}"


def _result(view: View, watched: Sequence[Watched], *, exit_status: bool) -> Result:
    open_ = sum(not state.done for state in view.states.values())
    errors: list[HpcbertError] = []
    if view.trouble and open_:
        errors.append(flow.unreachable(view))
    elif exit_status and view.failed:
        errors.append(IncompleteError(f"{view.failed} repeats ended badly or nobody knows how."))
    collect = [f"then: hpcbert collect {shlex.quote(str(one.directory))}" for one in watched]
    data = {
        "campaigns": [
            {"campaign": one.campaign.id, "directory": str(one.directory)} for one in watched
        ],
        "repeats": {"asked": len(view.repeats), **view.count()},
        "over": not any(one.kind.alive for one in view.states.values()),
    }
    return Result(
        data=data,
        text="\n".join([counts(view), *advice(view), *([] if open_ else collect)]),
        exit_code=errors[0].exit_code if errors else 0,
        errors=tuple(errors),
        warnings=(
            *(caution for one in watched for caution in store.caution(one.directory)),
            *(f"Slurm's answer has a line that makes no sense: {one}" for one in view.garbage),
        ),
    )


def advice(view: View) -> list[str]:
    """Return what to do about repeats that need somebody, a line for each state."""
    states = [view.states[repeat.key] for repeat in view.repeats]
    found = dict.fromkeys(
        (f"{one.word} {one.reason}".strip(), one.advice) for one in states if one.advice
    )
    return [printable(f"{what}: {todo}") for what, todo in found]


def follow(directory: Path, *, floor: float | None = None) -> None:
    """Show on stderr what becomes of one campaign until it is over, for `submit --wait`.

    Args:
        directory: The campaign.
        floor: Shortest interval between two questions to Slurm, seconds; the site's by default.

    Raises:
        SchedulerError: Slurm does not answer for too long; the jobs are left alone.
        KeyboardInterrupt: The same, after saying so.
    """
    from hpcbert.config.site import load

    watched = (flow.open_campaign(directory),)
    floor = load().slurm.poll_floor if floor is None else floor
    show = _on_terminal if draws(sys.stderr) else _lines
    context = click.get_current_context(silent=True)
    try:
        with show(context.color if context else None, err=True) as sinks:
            flow.watch(watched, sinks, run=run, floor=floor)
    except KeyboardInterrupt:
        say(f"The jobs are left alone. {_cancel_hint(watched)}", err=True)
        raise


class _Details:
    """Reads how far repeats are, each campaign's logs by its own recipe."""

    def __init__(self) -> None:
        self._readers: dict[Path, Callable[[Path], Progress | None]] = {}

    def __call__(self, repeat: Repeat, state: RepeatState, now: float) -> Detail:
        directory = repeat.watched.directory
        if directory not in self._readers:
            self._readers[directory] = flow.progress_reader(directory)
        progress = self._readers[directory](flow.log_path(repeat, state))
        return flow.detail(repeat, progress, now=now)


@contextlib.contextmanager
def _on_terminal(colour: bool | None, *, err: bool) -> Iterator[flow.Sinks]:
    from rich.live import Live

    screen = console(sys.stderr if err else sys.stdout, colour=colour)
    unicode = streams.holds_unicode(screen.file)
    details = _Details()

    def view(now: View) -> None:
        live.update(draw(now, details, unicode=unicode), refresh=True)

    # A table that is taller than the screen scrolls: cut off it would hide what goes wrong.
    with Live(
        console=screen, auto_refresh=False, redirect_stdout=False, vertical_overflow="visible"
    ) as live:
        yield flow.Sinks(view=view)


@contextlib.contextmanager
def _lines(_colour: bool | None, *, err: bool) -> Iterator[flow.Sinks]:
    def changes(found: Sequence[Change]) -> None:
        for change in found:
            click.echo(printable(line(change)), err=err)

    yield flow.Sinks(changes=changes)


def line(change: Change) -> str:
    """Return a change as one line: time, campaign, point, repeat, state, nodes, why."""
    repeat, state = change.repeat, change.state
    number = f"{repeat.number}/{repeat.watched.campaign.protocol.repeats}"
    number += f" attempt {state.attempt}" if state.attempt else ""
    words = [
        utc(change.time),
        repeat.watched.campaign.id,
        repeat.array.point.key,
        number,
        state.word,
        fold(state.nodes),
        f"({state.detail})" if state.detail else "",
        f"({before(state)})" if state.earlier else "",
        f"[{state.source}]",
    ]
    return "  ".join(word for word in words if word)


@contextlib.contextmanager
def _events(_colour: bool | None, *, err: bool) -> Iterator[flow.Sinks]:
    details = _Details()

    def changes(found: Sequence[Change]) -> None:
        for change in found:
            click.echo(escaped(json.dumps(_event(change, details), ensure_ascii=False)), err=err)

    yield flow.Sinks(changes=changes)


def _event(change: Change, details: _Details) -> dict[str, Any]:
    """Return a change as an object for `--json`; `docs/reference/json.md` describes it."""
    repeat, state = change.repeat, change.state
    detail = details(repeat, state, change.time) if state.kind == Kind.RUNNING else None
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
