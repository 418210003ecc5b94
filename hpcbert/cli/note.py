"""hpcbert note."""

from __future__ import annotations

from pathlib import Path

import click

from hpcbert.campaign import store
from hpcbert.cli.campaigns import find_runs
from hpcbert.cli.options import RUNS, SITE
from hpcbert.cli.output import Result, join_results, returns_result
from hpcbert.errors import UsageError


@click.command(
    epilog="\b\nExamples:\n"
    '  hpcbert note 3f9a1c "after the driver update"\n'
    "  hpcbert note\n"
    '  hpcbert note 3f9a1c ""'
)
@click.argument("campaign", default="")
@click.argument("text", nargs=-1)
@RUNS
@SITE
@returns_result
def note(*, campaign: str, text: tuple[str, ...], runs: str, site_file: str) -> Result:
    """Write a line about a campaign, or print it.

    CAMPAIGN is a campaign's directory, its id or a part of the id, or the name of a file's
    campaigns; the newest one by default. TEXT replaces the present note; an empty one removes it.
    list and show print the note, archives carry it, and no number depends on it.
    """
    place = find_runs(runs, site_file)
    directories = (
        store.resolve_submission(campaign, place) if campaign else (store.find_newest(place),)
    )
    return join_results([_note_campaign(directory, text) for directory in directories])


def _note_campaign(directory: Path, text: tuple[str, ...]) -> Result:
    store.read_manifest(directory)
    if text:
        if owner := store.find_foreign_owner(directory):
            raise UsageError(f"The campaign belongs to {owner}.", where=str(directory))
        store.write_note(directory, " ".join(text))
    note_text = store.read_note(directory)
    data = {"campaign": directory.name, "directory": str(directory), "note": note_text}
    remedy = "" if text else f' To write one: hpcbert note {directory.name} "TEXT"'
    return Result(data, note_text or f"{directory.name} has no note.{remedy}")
