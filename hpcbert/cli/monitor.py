"""hpcbert monitor."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hpcbert.campaign import preflight, store
from hpcbert.campaign.repeats import TrackedCampaign, open_campaign
from hpcbert.campaign.suspects import RetryPolicy
from hpcbert.cli import streams
from hpcbert.cli.campaigns import format_places, format_rehearsed, open_campaigns
from hpcbert.cli.options import MAX_RETRIES, RUNS, SITE, UNIT, flag_option, make_reader
from hpcbert.cli.output import Result, print_text, run_command
from hpcbert.cli.progress import (
    Display,
    count_marks,
    format_cancel_hint,
    format_counts,
    has_screen,
    list_causes,
    list_numbers,
)
from hpcbert.cli.streams import shows_progress
from hpcbert.commands import monitor as flow
from hpcbert.commands import retry
from hpcbert.commands.monitor import View
from hpcbert.config.schedulers import find_traits
from hpcbert.config.site import load
from hpcbert.errors import HpcbertError, IncompleteError, Interruption, UsageError, format_count
from hpcbert.model import Unit
from hpcbert.system.decode import Range
from hpcbert.system.runner import run


@click.command()
@click.argument("campaigns", nargs=-1, metavar="[CAMPAIGN]...")
@flag_option("--once", "Report the state of every repeat once, and leave.")
@click.option(
    "--interval",
    type=float,
    callback=make_reader(Range(0.1, 86_400)),
    help="Seconds between queries; not below the site's.",
)
@MAX_RETRIES
@UNIT
@flag_option("--exit-status", "Exit with 4 if a repeat failed.")
@flag_option("--plain", "Print a line per change, even on a terminal.")
@flag_option("--json", "Print JSON, one object per line.", "as_json")
@RUNS
@SITE
def monitor(*, as_json: bool, plain: bool, unit: Unit, **values: Any) -> None:
    """Watch campaigns until they end.

    CAMPAIGN is a campaign's directory, its id or a part of the id, or the name of a file's
    campaigns. Without any, monitor watches all that are not over, or else shows the newest once. It
    shows an archive once. You can interrupt it: the jobs continue.

    On a terminal it fills the screen: arrows move, / filters, enter opens the log, c cancels, r
    retries, ? shows all keys, q leaves. At the end it prints the median of each finished point.

    With --json each line is an object: first {"event":"state",…} for each repeat, then one for each
    change, and at last the document that every command ends with; its data is the summary.

    \b
    Examples:
      hpcbert monitor
      hpcbert monitor 20261121T100000Z-oneflow-3f9a1c
      hpcbert monitor --once --json | jq -r 'select(.event) | [.repeat, .state] | @tsv'
    """
    display = Display(as_json=as_json, unit=unit)
    full = not (as_json or plain) and has_screen()
    run_command("monitor", lambda: _run_monitor(display, full=full, **values), as_json=as_json)


def _run_monitor(
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
    unfinished, skipped = ((), ()) if campaigns else flow.find_unfinished(directory, run=run)
    tracked_campaigns: Sequence[TrackedCampaign] = unfinished
    shown_paths: Mapping[Path, Path] = {}
    if not unfinished:
        shown_paths = dict(open_campaigns(campaigns, directory))
        tracked_campaigns = tuple(map(open_campaign, shown_paths))
    # Nothing in an archive changes any more.
    once = once or any(path != shown for path, shown in shown_paths.items())
    policy, floor = RetryPolicy(max_retries), site.slurm.poll_floor
    seconds = _choose_interval(interval, floor, tracked_campaigns)
    try:
        if full and not once:
            runs_watched = None if campaigns else directory
            view, tracked_campaigns = _show_screen(
                tracked_campaigns, policy, runs_watched, (floor, seconds), display.unit
            )
        else:
            if len(tracked_campaigns) > 1 and not display.as_json:
                print_text("\n".join(map(_name_campaign, tracked_campaigns)), err=True)
            view = retry.watch_and_retry(
                tracked_campaigns,
                policy,
                display,
                run=run,
                floor=floor,
                interval=seconds,
                once=once or not (campaigns or unfinished),
            )
    except KeyboardInterrupt:
        hint = format_cancel_hint(tracked_campaigns)
        return Result(errors=(Interruption("Interrupted. The jobs continue.", hint=hint),))
    places = [
        (entry, shown_paths.get(entry.directory, entry.directory)) for entry in tracked_campaigns
    ]
    result = _make_result(view, places, display, exit_status=exit_status)
    warnings = store.describe_left_out("the campaigns that are not over", skipped)
    return replace(result, warnings=(*result.warnings, *warnings))


def _show_screen(
    tracked_campaigns: Sequence[TrackedCampaign],
    policy: RetryPolicy,
    runs: Path | None,
    intervals: tuple[float, float],
    unit: Unit,
) -> tuple[View, Sequence[TrackedCampaign]]:
    """Show campaigns on the whole screen until the user leaves.

    Args:
        runs: Where to look for campaigns that are submitted meanwhile; None: nowhere.
        intervals: The shortest allowed one, and the one for watching, seconds.

    Returns:
        The last states seen, and the campaigns, including those submitted meanwhile.
    """
    from hpcbert.cli.view import app, session

    earlier = set(store.find_campaigns(runs)) if runs else set()

    def find_new(tracked: Sequence[TrackedCampaign]) -> Sequence[TrackedCampaign]:
        paths = earlier | {entry.directory for entry in tracked}
        return flow.find_submitted(runs, paths) if runs else ()

    floor, interval = intervals
    screen_session = session.Session(
        tracked_campaigns, policy, floor=floor, interval=interval, begun=find_new, unit=unit
    )
    colour = click.get_current_context().color is not False and not os.environ.get("NO_COLOR")
    app.show_screen(screen_session, unicode=streams.can_show_unicode(sys.stdout), colour=colour)
    return screen_session.view or View((), {}, time.time()), screen_session.watched


def _name_campaign(tracked_campaign: TrackedCampaign) -> str:
    campaign = tracked_campaign.campaign
    parts = campaign.id, campaign.name, f"{campaign.framework} {campaign.variant}".rstrip()
    return "  ".join(filter(None, parts))


def _choose_interval(
    period: float | None, floor: float, tracked_campaigns: Sequence[TrackedCampaign]
) -> float:
    schedulers = {tracked.campaign.scheduler for tracked in tracked_campaigns}
    is_shared = not all(find_traits(name).runs_locally for name in schedulers)
    if period is not None and period < floor and is_shared:
        raise UsageError(
            f"An interval of {period:g} s is too short for a scheduler that you share with others.",
            where="--interval",
            hint=f"This site's minimum is {floor:g} s (slurm.poll_floor in the site.toml).",
        )
    return floor if period is None else period


@shows_progress
def _make_result(
    view: View,
    places: Sequence[tuple[TrackedCampaign, Path]],
    display: Display,
    *,
    exit_status: bool,
) -> Result:
    open_count = sum(not state.kind.over for state in view.states.values())
    errors: list[HpcbertError] = []
    if view.trouble and open_count:
        errors.append(flow.no_answer_error(view))
    elif exit_status and view.failed:
        count = format_count(view.failed, "repeat")
        errors.append(IncompleteError(f"{count} failed or ended in an unknown state."))
    alive = {
        repeat.watched.directory for repeat in view.repeats if view.states[repeat.key].kind.alive
    }
    campaigns: list[dict[str, Any]] = []
    lines = [format_counts(count_marks(view.states.values()))]
    for tracked, place in places:
        name, over = tracked.campaign.id, tracked.directory not in alive
        sentences = preflight.describe_preflight(tracked, over=over)
        campaigns.append({"campaign": name, "directory": str(place), "preflight": sentences})
        if not display.as_json:
            sentences += tuple(list_numbers(tracked, view.states, display.unit))
        prefix = f"{name} {tracked.campaign.variant}".rstrip() + ": " if len(places) > 1 else ""
        lines += [f"{prefix}{text}" for text in sentences]
    lines += list_causes(view)
    if not open_count:
        pairs = [(path, tracked.campaign) for tracked, path in places]
        lines += [format_rehearsed(path) for path, campaign in pairs if campaign.rehearse]
        if measured := [pair for pair in pairs if not pair[1].rehearse]:
            lines.append(f"then: hpcbert collect {format_places(measured)}")
    data = {
        "campaigns": campaigns,
        "repeats": {"asked": len(view.repeats), **view.count()},
        "over": not any(state.kind.alive for state in view.states.values()),
    }
    cautions = [text for _, path in places for text in store.warn_about_writers(path)]
    garbage = [f"hpcbert cannot read this line of Slurm's answer: {row}" for row in view.garbage]
    return Result(data, "\n".join(lines), tuple(errors), (*cautions, *garbage))
