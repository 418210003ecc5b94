"""hpcbert monitor."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcbert.campaign import preflight, store
from hpcbert.campaign.suspects import RetryPolicy
from hpcbert.cli import streams
from hpcbert.cli.campaigns import OpenedCampaign, next_step, open_campaigns
from hpcbert.cli.output import Result, finish, printable
from hpcbert.cli.watching import Display, cancel_hint, count_text, failures_alike, has_screen
from hpcbert.commands import heal
from hpcbert.commands import monitor as flow
from hpcbert.config.schedulers import traits
from hpcbert.config.site import load
from hpcbert.errors import HpcbertError, IncompleteError, Interruption, UsageError
from hpcbert.system.runner import run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hpcbert.campaign.repeats import TrackedCampaign
    from hpcbert.commands.monitor import View

    Newer = Callable[[Sequence[TrackedCampaign]], Sequence[TrackedCampaign]]

# Limits of the interval, seconds.
_SHORTEST, _LONGEST = 0.1, 86_400.0


@click.command(
    epilog="\b\nExamples:\n"
    "  hpcbert monitor\n"
    "  hpcbert monitor 20261121T100000Z-oneflow-3f9a1c\n"
    "  hpcbert monitor --once --json | jq -r 'select(.event) | [.repeat, .state] | @tsv'"
)
@click.argument("campaigns", nargs=-1, metavar="[CAMPAIGN]...")
@click.option("--once", is_flag=True, help="Report the state of every repeat once, and leave.")
@click.option("--interval", type=float, help="Seconds between queries; not below the site's.")
@click.option(
    "--max-retries",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Retry each invalid repeat up to N times.",
)
@click.option("--exit-status", is_flag=True, help="Exit with 4 if a repeat failed.")
@click.option("--plain", is_flag=True, help="Print a line per change, even on a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")
@click.option("--runs", default="", help="Directory of the campaigns.")
@click.option("--site", "site_file", default="", help="A site.toml, or its folder.")
def monitor(*, as_json: bool, plain: bool, **values: Any) -> None:
    """Watch campaigns until they end.

    CAMPAIGN is a campaign's directory, its id or a part of the id. Without any, monitor watches all
    that are not over, or else shows the newest once. It shows an archive once. You can interrupt
    it: the jobs continue.

    On a terminal it fills the screen: arrows move, / filters, enter opens the log, c cancels, r
    retries, q leaves.

    With --json each line is an object: first {"event":"state",…} for each repeat, then one for each
    change, and at last the document that every command ends with; its data is the summary.
    """
    display = Display(as_json=as_json)
    full = not (as_json or plain) and has_screen()
    finish("monitor", lambda: _monitor(display, full=full, **values), as_json=as_json)


def _monitor(
    display: Display,
    *,
    full: bool,
    campaigns: tuple[str, ...],
    once: bool,
    interval: float | None,
    max_retries: int,
    exit_status: bool,
    runs: str,
    site_file: str,
) -> Result:

    site = load(site_file)
    directory = Path(runs or site.runs)
    watched: Sequence[TrackedCampaign] = ()
    left_out: tuple[Path, ...] = ()
    if not campaigns:
        watched, left_out = flow.unfinished(directory, run=run)
    opened_campaigns = tuple(
        OpenedCampaign(tracked_campaign.directory, tracked_campaign.directory)
        for tracked_campaign in watched
    )
    opened_campaigns = opened_campaigns or open_campaigns(campaigns, directory)
    # Nothing in an archive changes any more.
    once = once or any(opened_campaign.packed for opened_campaign in opened_campaigns)
    full = full and not once
    once = once or not (campaigns or watched)
    watched = watched or tuple(
        flow.open_campaign(opened_campaign.directory) for opened_campaign in opened_campaigns
    )
    policy, floor = RetryPolicy(max_retries), site.slurm.poll_floor
    between = _interval(interval, floor, watched)
    try:
        if full:
            look = (lambda _: ()) if campaigns else _newer(directory)
            view, watched = _on_screen(watched, policy, look, floor=floor, interval=between)
        else:
            view = heal.follow(
                watched, policy, display, run=run, floor=floor, interval=between, once=once
            )
    except KeyboardInterrupt:
        hint = cancel_hint(watched)
        return Result(errors=(Interruption("Interrupted. The jobs continue.", hint=hint),))
    shown = {tracked_campaign.directory: tracked_campaign.directory for tracked_campaign in watched}
    shown |= {
        opened_campaign.directory: opened_campaign.shown for opened_campaign in opened_campaigns
    }
    result = _result(view, watched, shown, exit_status=exit_status)
    warnings = store.describe_left_out("the campaigns that are not over", left_out)
    return replace(result, warnings=(*result.warnings, *warnings))


def _newer(runs: Path) -> Newer:
    """Return a function that finds campaigns submitted from now on."""
    before = set(store.find_campaigns(runs))
    return lambda watched: flow.begun(
        runs, before | {tracked_campaign.directory for tracked_campaign in watched}
    )


def _on_screen(
    watched: Sequence[TrackedCampaign],
    policy: RetryPolicy,
    begun: Newer,
    *,
    floor: float,
    interval: float,
) -> tuple[View, Sequence[TrackedCampaign]]:
    """Show campaigns on the whole screen until the user leaves.

    Returns:
        The last states seen, and the campaigns, including those submitted meanwhile.
    """
    from hpcbert.cli.view import app, session

    followed = session.Session(watched, policy, floor=floor, interval=interval, begun=begun)
    colour = click.get_current_context().color is not False and not os.environ.get("NO_COLOR")
    app.show(followed, unicode=streams.holds_unicode(sys.stdout), colour=colour)
    return followed.view or flow.View((), {}, time.time()), followed.watched


def _interval(asked: float | None, floor: float, watched: Sequence[TrackedCampaign]) -> float:
    if asked is not None and not _SHORTEST <= asked <= _LONGEST:
        raise UsageError(
            f"An interval is {_SHORTEST:g} to {_LONGEST:g} seconds, not {asked:g}.",
            where="--interval",
        )
    shared = not all(
        traits(tracked_campaign.campaign.scheduler).here for tracked_campaign in watched
    )
    if asked is not None and asked < floor and shared:
        raise UsageError(
            f"An interval of {asked:g} s is too short for a scheduler that you share with others.",
            where="--interval",
            hint=f"This site's minimum is {floor:g} s (slurm.poll_floor in the site.toml).",
        )
    return floor if asked is None else asked


def _result(
    view: View,
    watched: Sequence[TrackedCampaign],
    shown: Mapping[Path, Path],
    *,
    exit_status: bool,
) -> Result:
    open_count = sum(not state.kind.over for state in view.states.values())
    errors: list[HpcbertError] = []
    if view.trouble and open_count:
        errors.append(flow.unreachable(view))
    elif exit_status and view.failed:
        errors.append(
            IncompleteError(f"{view.failed} repeats failed or ended in an unknown state.")
        )
    alive = {
        repeat.watched.directory for repeat in view.repeats if view.states[repeat.key].kind.alive
    }
    campaigns: list[dict[str, Any]] = []
    lines = [count_text(view.count())]
    for tracked in watched:
        name, directory = tracked.campaign.id, tracked.directory
        sentences = preflight.sentences(tracked, over=directory not in alive)
        place = str(shown[directory])
        campaigns.append({"campaign": name, "directory": place, "preflight": sentences})
        lines += [text if len(watched) == 1 else f"{name}: {text}" for text in sentences]
    lines += [*failures_alike(view), *advice(view)]
    if not open_count:
        lines += [next_step(tracked.campaign, shown[tracked.directory]) for tracked in watched]
    data = {
        "campaigns": campaigns,
        "repeats": {"asked": len(view.repeats), **view.count()},
        "over": not any(state.kind.alive for state in view.states.values()),
    }
    cautions = [text for tracked in watched for text in store.caution(shown[tracked.directory])]
    garbage = [f"hpcbert cannot read this line of Slurm's answer: {row}" for row in view.garbage]
    return Result(data, "\n".join(lines), tuple(errors), (*cautions, *garbage))


def advice(view: View) -> list[str]:
    """Return what to do about repeats that need attention, one line per state."""
    states = [view.states[repeat.key] for repeat in view.repeats]
    found = dict.fromkeys(
        (f"{state.word} {state.reason}".strip(), state.advice) for state in states if state.advice
    )
    return [printable(f"{what}: {todo}") for what, todo in found]
