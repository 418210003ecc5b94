"""hpcbert rm."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from hpcbert.campaign import store
from hpcbert.cli.output import Result, returns_result
from hpcbert.commands.remove import remove
from hpcbert.config.site import load
from hpcbert.errors import UsageError
from hpcbert.system.runner import run

# Characters of an id's random end: a shorter part of an id could match by accident.
_MIN_ID_LENGTH = 6


@click.command(epilog="\b\nExamples:\n  hpcbert rm 3f9a1c\n  hpcbert rm 3f9a1c 7b20de --yes")
@click.argument("campaigns", nargs=-1, required=True, metavar="CAMPAIGN...")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Remove even campaigns that may not have ended.")
@click.option("--runs", default="", help="Directory of the campaigns.")
@click.option("--site", "site_file", default="", help="A site.toml, or its folder.")
@returns_result
def rm(*, campaigns: tuple[str, ...], yes: bool, force: bool, runs: str, site_file: str) -> Result:
    """Remove campaigns for good.

    CAMPAIGN is a campaign's directory, its id or at least six characters of the id. rm asks the
    scheduler first: if a job of any of them still waits or runs, it removes none. Archives, and
    files that you wrote elsewhere, stay.
    """
    runs_path = Path(runs or load(site_file).runs)
    directories = tuple(
        dict.fromkeys(store.resolve(name, runs_path, shortest=_MIN_ID_LENGTH) for name in campaigns)
    )
    is_removed = remove(
        directories, confirm=lambda: yes or _ask_consent(directories), run=run, force=force
    )
    data = {
        "removed": is_removed,
        "campaigns": [
            {"campaign": directory.name, "directory": str(directory)} for directory in directories
        ],
    }
    lines = (
        [f"Removed {directory}." for directory in directories]
        if is_removed
        else ["Nothing was removed."]
    )
    return Result(data, "\n".join(lines))


def _ask_consent(directories: Sequence[Path]) -> bool:
    """Ask, on stderr."""
    names = ", ".join(directory.name for directory in directories)
    question = f"Remove {names} for good, with all logs?"
    if not sys.stdin.isatty():
        raise UsageError(
            f"{question} There is no terminal to ask on.",
            hint="Give --yes to remove without asking.",
        )
    return click.confirm(question, err=True)
