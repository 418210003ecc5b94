"""hpcbert list, show, archive, note and rm."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import click

from hpcbert.campaign import archive as archives
from hpcbert.campaign import evidence, overview, preflight, store
from hpcbert.campaign.attempts import Ends, find_end, read_ends
from hpcbert.campaign.overview import STATES, Overview, PointResult, compute_age, read_overview
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.cli import streams
from hpcbert.cli.campaigns import OpenedCampaign, format_age, open_named, takes_runs
from hpcbert.cli.options import flag_option, text_option
from hpcbert.cli.output import Result, confirm, join_results, pick, returns_result
from hpcbert.commands.submit import remove
from hpcbert.errors import UsageError, format_count, join_names
from hpcbert.model import ARCHIVE, Campaign, Point
from hpcbert.results.grid import align_rows, format_number
from hpcbert.results.wording import describe_iterations, describe_repeats, describe_stop
from hpcbert.system.runner import run

# Marks numbers that collect found before all repeats had ended.
_PROVISIONAL = "*"
_COLLECT_AGAIN = "* Provisional: collected before all repeats had ended; run hpcbert collect again."
# Up to this many shapes are named one by one.
_MAX_SHAPES = 3
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AGE = re.compile(r"(\d{1,9})([smhdw])")
_TITLES = (
    *("campaign", "name", "framework", "shapes", "state"),
    *("valid", "best samples/s", "age", "note"),
)
# Columns aligned on the right, by number.
_RIGHT = (5, 6, 7)
_FROM_FILES = "These states come from files; hpcbert monitor asks the scheduler."


class Filter(NamedTuple):
    """The campaigns that the user wants to see; an empty or None field excludes none.

    Attributes:
        frameworks, states: One of these.
        name: A part of the id, name or note, in upper or lower case.
        newer, older: Created less, or more, than this many seconds ago.
        limit: Only the newest of them.
        everyone: Whether to include other users' campaigns.
    """

    frameworks: Collection[str] = ()
    states: Collection[str] = ()
    name: str = ""
    newer: float | None = None
    older: float | None = None
    limit: int | None = None
    everyone: bool = False


def list_overviews(runs: Path, criteria: Filter, *, now: float) -> tuple[Overview, ...]:
    """Return the campaigns under a directory, newest first.

    Args:
        now: Seconds since the epoch.
    """
    paths = store.find_all_campaigns(runs) if criteria.everyone else store.find_campaigns(runs)
    overviews = [
        entry for entry in map(read_overview, paths) if _matches_filter(entry, criteria, now)
    ]
    # Those of one submission stay in its order.
    overviews.sort(
        key=lambda entry: (entry.created, entry.submission or entry.campaign, -entry.position),
        reverse=True,
    )
    return tuple(overviews[: criteria.limit])


def _matches_filter(overview: Overview, criteria: Filter, now: float) -> bool:
    since = compute_age(overview.created, now=now)
    text = f"{overview.campaign}\n{overview.name}\n{overview.note}".lower()
    return (
        (not criteria.frameworks or overview.framework in criteria.frameworks)
        and (not criteria.states or overview.state in criteria.states)
        and criteria.name.lower() in text
        and (criteria.newer is None or (since is not None and since < criteria.newer))
        and (criteria.older is None or (since is not None and since > criteria.older))
    )


def _read_age(_ctx: click.Context, _param: click.Parameter, value: str) -> float | None:
    if not value:
        return None
    match = _AGE.fullmatch(value.strip())
    if not match:
        raise click.BadParameter(f"{value!r} is not an age. Write 90m, 12h, 7d or 4w.")
    return float(int(match[1]) * _UNITS[match[2]])


@click.command("list")
@click.option("--fw", multiple=True, metavar="NAME", help="Only this framework.")
@click.option(
    "--state", multiple=True, type=click.Choice(STATES), metavar="STATE",
    help=f"Only this state: {', '.join(STATES)}.",
)  # fmt: skip
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the newest N.")
@text_option("--name", "Only with this text in id, name or note.", "TEXT")
@click.option(
    "--newer", default="", metavar="AGE", callback=_read_age, help="Only newer than 12h, 7d, 4w."
)
@click.option(
    "--older", default="", metavar="AGE", callback=_read_age, help="Only older than that."
)
@flag_option("--everyone", "Include other users' campaigns.")
@returns_result
@takes_runs
def list_(*, fw: tuple[str, ...], state: tuple[str, ...], runs: Path, **values: Any) -> Result:
    """List your campaigns, newest first.

    list asks no scheduler: it reads the files of the campaigns. complete and incomplete campaigns
    were collected; an ended one was not yet. Of campaigns that wait or run it knows what their jobs
    wrote. The line of a damaged campaign gives the reason.

    \b
    Examples:
      hpcbert list
      hpcbert list --fw oneflow --state incomplete --newer 7d
      hpcbert list --name nccl --json
    """
    criteria, now = Filter(fw, state, **values), time.time()
    overviews = list_overviews(runs, criteria, now=now)
    rows = [
        {**asdict(entry), "age_seconds": compute_age(entry.created, now=now)} for entry in overviews
    ]
    data = {"runs": str(runs.absolute()), "source": "files", "campaigns": rows}
    table = _format_table(overviews, now)
    if not overviews:
        table = f"No campaign in {runs} matches; hpcbert submit starts one."
        table += "" if criteria.everyone else " --everyone lists those of other users, too."
    return Result(data, table)


def _format_table(overviews: Sequence[Overview], now: float) -> str:
    rows = [_TITLES, *(_format_overview(entry, now) for entry in overviews)]
    lines = [*align_rows(rows, streams.line_width(sys.stdout), right=_RIGHT), "", _FROM_FILES]
    lines += [_COLLECT_AGAIN] if any(entry.provisional for entry in overviews) else []
    return "\n".join(lines)


def _format_overview(overview: Overview, now: float) -> tuple[str, ...]:
    rehearsal = "rehearsal" if overview.rehearse and overview.state != "rehearsed" else ""
    valid = "-" if overview.valid is None else overview.valid
    asked = "-" if overview.asked is None else overview.asked
    shapes, best = overview.shapes, overview.best
    shown_shapes = ",".join(shapes) or "-"
    if len(shapes) > _MAX_SHAPES:
        shown_shapes = f"{shapes[0]}..{shapes[-1]} ({len(shapes)})"
    return (
        overview.campaign,
        overview.name if overview.name != overview.campaign else "-",
        f"{overview.framework} {overview.variant}".strip() or "-",
        shown_shapes,
        overview.state,
        f"{valid}/{asked}{_PROVISIONAL * overview.provisional}",
        f"{format_number(best.throughput)} {best.shape}" if best else "-",
        format_age(compute_age(overview.created, now=now)),
        " · ".join(filter(None, (rehearsal, overview.problem, overview.note))),
    )


@click.command()
@click.argument("campaigns", nargs=-1, metavar="[CAMPAIGN]...")
@returns_result
@takes_runs
def show(*, campaigns: tuple[str, ...], runs: Path) -> Result:
    """Show a campaign and its results so far.

    CAMPAIGN is a campaign's directory or archive, its id or a part of the id, or the name of a
    file's campaigns; the newest one by default. show asks no scheduler: it reads the campaign's
    files.

    \b
    Examples:
      hpcbert show
      hpcbert show 3f9a1c --json
    """
    now = time.time()
    return join_results([_show_campaign(entry, now) for entry in open_named(campaigns, runs)])


def _show_campaign(opened_campaign: OpenedCampaign, now: float) -> Result:
    directory = opened_campaign.directory
    manifest, summary = store.read_manifest(directory), read_overview(directory)
    results, ended = overview.read_results(directory, manifest), read_ends(directory)
    numbers = results.points if results else {}
    data = {
        **asdict(summary),
        "directory": str(opened_campaign.shown),
        "age_seconds": compute_age(summary.created, now=now),
        "source": "files",
        **pick(manifest, "site image command hpcbert"),
        "protocol": asdict(manifest.protocol),
        "points": [
            _point_data(directory, manifest, point, numbers.get(point), ended)
            for point in manifest.of_point
        ],
        "preflight": preflight.describe_preflight(TrackedCampaign(directory, manifest)),
    }
    lines = [*_format_facts(summary, manifest, data), "", *_format_points(data)]
    lines += ["", _FROM_FILES]
    warnings = store.warn_about_writers(opened_campaign.shown)
    return Result(data, "\n".join(lines), warnings=warnings)


def _point_data(
    directory: Path, manifest: Campaign, point: Point, result: PointResult | None, repeat_ends: Ends
) -> dict[str, Any]:
    repeats = [(array, number) for array, number in manifest.current if array.point == point]
    phases = Counter(
        overview.find_phase(directory, *array_repeat, repeat_ends) for array_repeat in repeats
    )
    recorded = [find_end(repeat_ends, *array_repeat) for array_repeat in repeats]
    is_adaptive = manifest.protocol.precision_of_median is not None
    return {
        "point": point.key,
        "shape": str(point.shape),
        **pick(point, "variant model precision device"),
        "batch_size_per_device": None if point.largest else point.batch_size_per_device,
        "jobs": list(dict.fromkeys(array.job_id for array, _ in repeats if array.job_id)),
        "repeats": dict(phases),
        "ended": [pick(end, "repeat state detail") for end in recorded if end],
        "asked": result.asked if result and is_adaptive else len(repeats),
        "valid": result.valid if result else None,
        "median": result.median if result else None,
        "refused": [
            {"repeat": number, "why": reason}
            for number, reason in (result.refused if result else ())
        ],
        "unneeded": list(result.unneeded) if result else [],
    }


def _format_facts(summary: Overview, manifest: Campaign, data: Mapping[str, Any]) -> Iterator[str]:
    protocol, age = manifest.protocol, format_age(data["age_seconds"])
    protocol_words = (
        f"repeats {describe_repeats(protocol)}",
        f"{describe_iterations(protocol)} each, the first {protocol.skip} of them warm-up",
        describe_stop(protocol),
    )
    facts = {
        "campaign": summary.campaign,
        "name": manifest.name,
        "note": summary.note,
        "directory": data["directory"],
        "state": summary.state + (", a rehearsal" if summary.rehearse else ""),
        "problem": summary.problem,
        "created": f"{summary.created}, {age} ago, by {summary.user} with hpcbert "
        f"{manifest.hpcbert}",
        "framework": summary.framework,
        "scheduler": f"{summary.scheduler}, site {manifest.site}",
        "image": manifest.image,
        "protocol": "; ".join(filter(None, protocol_words)),
        "command": shlex.join(manifest.command),
        "preflight": " ".join(data["preflight"]),
    }
    yield from (f"{name + ':':<11}{value}" for name, value in facts.items() if value)


def _format_points(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of points, and below it what became of repeats without a number."""
    rows = [("point", "job", "repeats", "valid", "median samples/s", "")]
    for point in data["points"]:
        valid = "-" if point["valid"] is None else point["valid"]
        row = (
            point["point"],
            ",".join(point["jobs"]) or "-",
            ", ".join(f"{count} {phase}" for phase, count in point["repeats"].items()),
            f"{valid}/{point['asked']}{_PROVISIONAL * data['provisional']}",
            format_number(point["median"]),
            point["variant"],
        )
        rows.append(row)
    yield from align_rows(rows, right=(3, 4))
    if data["provisional"]:
        yield _COLLECT_AGAIN
    for point in data["points"]:
        for end in () if point["refused"] else point["ended"]:
            yield f"{point['point']} repeat {end['repeat']}: {end['state']}: {end['detail']}"
        for refusal in point["refused"]:
            yield f"{point['point']} repeat {refusal['repeat']}: {refusal['why']}"
        if point["unneeded"]:
            yield f"{point['point']}: repeats not needed: {len(point['unneeded'])}"


_NOT_COLLECTED = (
    "None of its results are recorded yet: a reader of the archive would have to ask this cluster "
    "how the repeats ended. Run hpcbert collect when they are over, then archive it again."
)
# Characters of an id's random end: a shorter part of an id could match by accident.
_MIN_ID_LENGTH = 6


@click.command()
@click.argument("campaigns", nargs=-1, metavar="[CAMPAIGN]...")
@text_option("--output", "File to write; CAMPAIGN.zip by default.", "FILE")
@returns_result
@takes_runs
def archive(*, campaigns: tuple[str, ...], output: str, runs: Path) -> Result:
    """Pack a campaign into one file.

    CAMPAIGN is a campaign's directory, its id or a part of the id, or the name of a file's
    campaigns, each packed into a file of its own; the newest one by default. The archive holds
    every file that its numbers come from, with digests. The same campaign gives the same bytes.
    hpcbert masks anything that looks like a secret and names the file that held it.

    collect, report, audit, compare, logs and monitor --once read an archive as they read a
    directory, and submit --like submits the same campaign again.

    \b
    Examples:
      hpcbert archive
      hpcbert archive 3f9a1c --output table4.zip
      hpcbert collect table4.zip
    """
    names = campaigns or (str(store.find_newest(runs)),)
    directories = store.resolve_all(names, runs)
    if output and len(directories) > 1 and not Path(output).is_dir():
        raise UsageError(
            f"One file can't hold {len(directories)} campaigns.",
            where=f"--output {output}",
            hint="Name a directory that exists, or leave --output out.",
        )
    return join_results([_pack_campaign(directory, output) for directory in directories])


def _pack_campaign(directory: Path, output: str) -> Result:
    target = Path(output or f"{directory.name}{ARCHIVE}")
    if target.is_dir():
        target /= f"{directory.name}{ARCHIVE}"
    if target.suffix.lower() != ARCHIVE:
        hint = f"Name it {shlex.quote(str(target.with_suffix('').with_suffix(ARCHIVE)))}."
        raise UsageError(f"An archive is a {ARCHIVE} file.", where=f"--output {output}", hint=hint)
    package = archives.pack(directory, target)
    warnings = [*store.warn_about_writers(directory)]
    if package.masked:
        names = join_names(package.masked, most=1)
        warnings.append(f"{names}: masked text that looked like a secret.")
    if evidence.read_previous(directory) is None:
        warnings.append(_NOT_COLLECTED)
    size = f"{format_count(package.files, 'file')}, {package.size:,} bytes"
    data = {
        "campaign": directory.name,
        "directory": str(directory),
        "path": str(package.path),
        "bytes": package.size,
        **pick(package, "sha256 files masked"),
    }
    lines = f"{package.path}: {size}\nsha256 {package.sha256}"
    return Result(data, lines, warnings=tuple(warnings))


@click.command()
@click.argument("campaign", default="")
@click.argument("text", nargs=-1)
@returns_result
@takes_runs
def note(*, campaign: str, text: tuple[str, ...], runs: Path) -> Result:
    """Write a line about a campaign, or print it.

    CAMPAIGN is a campaign's directory, its id or a part of the id, or the name of a file's
    campaigns; the newest one by default. TEXT replaces the present note; an empty one removes it.
    list and show print the note, archives carry it, and no number depends on it.

    \b
    Examples:
      hpcbert note 3f9a1c "after the driver update"
      hpcbert note
      hpcbert note 3f9a1c ""
    """
    directories = (
        store.resolve_submission(campaign, runs) if campaign else (store.find_newest(runs),)
    )
    results = []
    for directory in directories:
        store.read_manifest(directory)
        if text:
            if owner := store.find_foreign_owner(directory):
                raise UsageError(f"The campaign belongs to {owner}.", where=str(directory))
            store.write_note(directory, " ".join(text))
        note_text = store.read_note(directory)
        data = {"campaign": directory.name, "directory": str(directory), "note": note_text}
        remedy = "" if text else f' To write one: hpcbert note {directory.name} "TEXT"'
        results.append(Result(data, note_text or f"{directory.name} has no note.{remedy}"))
    return join_results(results)


@click.command()
@click.argument("campaigns", nargs=-1, required=True, metavar="CAMPAIGN...")
@flag_option("--yes", "Do not ask.")
@flag_option("--force", "Remove even campaigns that may not have ended.")
@returns_result
@takes_runs
def rm(*, campaigns: tuple[str, ...], yes: bool, force: bool, runs: Path) -> Result:
    """Remove campaigns for good.

    CAMPAIGN is a campaign's directory, its id or at least six characters of the id, or the name of
    a file's campaigns. rm asks the scheduler first: if a job of any of them still waits or runs, it
    removes none. Archives, and files that you wrote elsewhere, stay.

    \b
    Examples:
      hpcbert rm 3f9a1c
      hpcbert rm 3f9a1c 7b20de --yes
    """
    resolved = (store.resolve_submission(name, runs, shortest=_MIN_ID_LENGTH) for name in campaigns)
    directories = tuple(dict.fromkeys(path for paths in resolved for path in paths))
    names = join_names((directory.name for directory in directories), most=6)
    question = f"Remove {names} for good, with all logs?"
    is_removed = remove(
        directories, confirm=lambda: yes or confirm(question, "remove"), run=run, force=force
    )
    rows = [{"campaign": directory.name, "directory": str(directory)} for directory in directories]
    lines = [f"Removed {path}." for path in directories] if is_removed else ["Nothing was removed."]
    return Result({"removed": is_removed, "campaigns": rows}, "\n".join(lines))
