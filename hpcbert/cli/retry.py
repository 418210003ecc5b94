"""hpcbert retry."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcbert.campaign import store
from hpcbert.cli import conflicts
from hpcbert.cli.conflicts import Conflict
from hpcbert.cli.options import checked_limit
from hpcbert.cli.output import Result, returns_result
from hpcbert.cli.submit import handed_over
from hpcbert.config import site as sites
from hpcbert.config.schedulers import traits
from hpcbert.errors import IncompleteError
from hpcbert.system.runner import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcbert.config.site import Site
    from hpcbert.flows.retry import Lack, Round, Wish
    from hpcbert.model import Array

DEFAULT = 2
_CONFLICT = Conflict(("wait",), lambda given: given["dry_run"], "with --dry-run")


@click.command(
    epilog="\b\nExamples:\n"
    "  hpcbert retry\n"
    "  hpcbert retry 20261121T100000Z-oneflow-3f9a1c --dry-run\n"
    "  hpcbert retry 3f9a1c --exclude n[07-08] --wait"
)
@click.argument("campaigns", nargs=-1, metavar="[CAMPAIGN]...")
@click.option(
    "--max-retries",
    type=click.IntRange(0),
    default=DEFAULT,
    show_default=True,
    help="How often one repeat is submitted again at most.",
)
@click.option("--exclude", multiple=True, metavar="NODES", help="Keep away from these too.")
@click.option("--no-exclude", is_flag=True, help="Do not keep away from nodes that failed.")
@click.option(
    "--time",
    "time_limit",
    callback=checked_limit,
    default="",
    help="Limit of one repeat from now on.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be submitted, and submit nothing.")
@click.option("--wait", is_flag=True, help="Watch, and retry until all counts.")
@click.option("--runs", default="", help="Directory of the campaigns.")
@click.option("--site", "site_file", default="", help="A site.toml, or its folder.")
@returns_result
def retry(
    *,
    campaigns: tuple[str, ...],
    max_retries: int,
    exclude: tuple[str, ...],
    no_exclude: bool,
    time_limit: str,
    dry_run: bool,
    wait: bool,
    runs: str,
    site_file: str,
) -> Result:
    """Submit again the repeats that are missing or don't count.

    CAMPAIGN is a campaign's directory, its id or a part of it; the newest one by default. What
    waits or runs is left alone, what counts is not repeated. The new attempts keep away from
    nodes that failed, and the attempts before them stay on record.
    """
    from hpcbert.flows.monitor import newest
    from hpcbert.flows.retry import Wish
    from hpcbert.slurm.hostlist import expand

    conflicts.refuse(_CONFLICT)
    here = sites.load(site_file)
    folder = Path(runs or here.runs)
    directories = [store.resolve(one, folder) for one in campaigns] or [newest(folder).directory]
    nodes = tuple(node for words in exclude for node in expand(words))
    wish = Wish(max_retries, nodes, suspect=not no_exclude, time_limit=time_limit)
    for name in dict.fromkeys(store.read_manifest(one).scheduler for one in directories):
        conflicts.refuse_typed(traits(name).unused, f"on a campaign of the {name} scheduler")
    rounds = [once(one, wish, here, dry=dry_run, wait=wait) for one in dict.fromkeys(directories)]
    if wait and not dry_run:
        click.echo("\n".join(map(text_of, rounds)), err=True)
        return _watched([one.findings.watched.directory for one in rounds], wish, here)
    return _result(rounds, dry=dry_run)


command = retry


def once(
    directory: Path, wish: Wish, here: Site, *, dry: bool = False, wait: bool = False
) -> Round:
    """Submit again what of a campaign does not count, unless it only shall be said what that is.

    With `wait` it waits for room where the person has as many jobs as allowed.
    """
    from hpcbert.flows import retry as flow
    from hpcbert.script import limits

    campaign = store.read_manifest(directory)
    if not dry and any(one.state == "intended" for one in campaign.arrays):
        handed_over(directory, here, wait=wait, again=flow.AGAIN)
    found = flow.look(directory, wish, run=run)
    ended = [(one.array, one.number, one.state) for one in found.lacks]
    limits.refuse_pointless(found.watched, ended, wish.time_limit)
    made = flow.plan(found, wish, run=run)
    if not dry and made.arrays:
        flow.intend(made)
        handed_over(directory, here, wait=wait, again=flow.AGAIN)
    return made


def followed(directory: Path, limit: int, here: Site, nodes: Wish | None = None) -> None:
    """Watch a campaign, and submit again what does not count, until all is over.

    Args:
        directory: The campaign.
        limit: How often one repeat is submitted again at most; 0: never.
        here: The site.
        nodes: What a person said about nodes.
    """
    from hpcbert.cli.monitor import follow

    follow(directory, floor=here.slurm.poll_floor)
    while limit and (text := healed(directory, limit, here, nodes)):
        click.echo(text, err=True)
        follow(directory, floor=here.slurm.poll_floor)


def healed(directory: Path, limit: int, here: Site, nodes: Wish | None = None) -> str:
    """Submit again what of a campaign does not count; say what that is, or nothing.

    Nobody asked for it now, so what somebody cancelled stays cancelled, and what needs a longer
    time limit waits for somebody to give it one.
    """
    from hpcbert.flows.retry import Wish

    if store.read_manifest(directory).rehearse:
        return ""
    wish = replace(nodes or Wish(), limit=limit, cancelled=False)
    made = once(directory, wish, here, wait=True)
    return text_of(made) if made.arrays else ""


def _watched(directories: Sequence[Path], wish: Wish, here: Site) -> Result:
    from hpcbert.cli.collect import collected

    for directory in directories:
        followed(directory, wish.limit, here, wish)
    return collected(directories)


def _result(rounds: Sequence[Round], *, dry: bool) -> Result:
    errors = tuple(
        IncompleteError(
            f"{one.array.point.key} repeat {one.number} was submitted again as often as allowed: "
            f"{one.why}",
            where=made.findings.watched.campaign.id,
            hint="Find the cause, then raise --max-retries, or submit the point anew.",
        )
        for made in rounds
        for one in made.findings.spent
    )
    return Result(
        data={"campaigns": [_described(made) for made in rounds], "submitted": not dry},
        text="\n".join(text_of(made, dry=dry) for made in rounds),
        exit_code=IncompleteError.exit_code if errors else 0,
        errors=errors,
        warnings=tuple(
            f"{node} is suspected too ({why}), but too few nodes would be left without it."
            for made in rounds
            for node, why in made.spared
        ),
    )


def _arrays(made: Round) -> list[Array]:
    """Return what a round made as the manifest has it now, with job ids."""
    names = {array.name for array in made.arrays}
    manifest = store.read_manifest(made.findings.watched.directory)
    there = {array.name: array for array in manifest.arrays if array.name in names}
    return [there.get(array.name, array) for array in made.arrays]


def text_of(made: Round, *, dry: bool = False) -> str:
    """Say what a round submits and why."""
    watched = made.findings.watched
    lines = []
    for array in _arrays(made):
        done = "would be submitted again" if dry else f"submitted again as job {array.job_id}"
        numbers = ", ".join(map(str, array.repeats))
        what = f"repeat{'s' if len(array.repeats) > 1 else ''} {numbers} of {array.point.key}"
        lines.append(f"{what} {done}:")
        lines += [f"  repeat {number}: {why}" for number, _, why in array.why]
        lines += [f"  not on {node}: {why}" for node, why in array.excluded]
    if not lines:
        lines.append(f"Nothing of {watched.campaign.id} is to be submitted again.")
    if made.findings.open:
        lines.append(f"{made.findings.open} repeats wait or run and are left alone.")
    if made.arrays and not dry:
        lines.append(f"watch it:  hpcbert monitor {shlex.quote(str(watched.directory))}")
    return "\n".join(lines)


def _described(made: Round) -> dict[str, Any]:
    watched = made.findings.watched
    return {
        "campaign": watched.campaign.id,
        "directory": str(watched.directory),
        "arrays": [
            {
                "name": array.name,
                "point": array.point.key,
                "retry": array.retry,
                "first_attempt": array.first_attempt,
                "repeats": [
                    {"repeat": number, "state": state, "why": why}
                    for number, state, why in array.why
                ],
                "excluded": [{"node": node, "why": why} for node, why in array.excluded],
                "script": array.script,
                "job_id": array.job_id or None,
            }
            for array in _arrays(made)
        ],
        "spared": [{"node": node, "why": why} for node, why in made.spared],
        "spent": [_lack(one) for one in made.findings.spent],
        "open": made.findings.open,
    }


def _lack(one: Lack) -> dict[str, Any]:
    return {
        "point": one.array.point.key,
        "repeat": one.number,
        "state": one.state,
        "why": one.why,
    }
