"""hpcbert rm."""

from __future__ import annotations

import click

from hpcbert.campaign import store
from hpcbert.cli.campaigns import find_runs
from hpcbert.cli.options import RUNS, SITE
from hpcbert.cli.output import Result, confirm, returns_result
from hpcbert.commands.submit import remove
from hpcbert.errors import join_names
from hpcbert.system.runner import run

# Characters of an id's random end: a shorter part of an id could match by accident.
_MIN_ID_LENGTH = 6


@click.command(epilog="\b\nExamples:\n  hpcbert rm 3f9a1c\n  hpcbert rm 3f9a1c 7b20de --yes")
@click.argument("campaigns", nargs=-1, required=True, metavar="CAMPAIGN...")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Remove even campaigns that may not have ended.")
@RUNS
@SITE
@returns_result
def rm(*, campaigns: tuple[str, ...], yes: bool, force: bool, runs: str, site_file: str) -> Result:
    """Remove campaigns for good.

    CAMPAIGN is a campaign's directory, its id or at least six characters of the id, or the name of
    a file's campaigns. rm asks the scheduler first: if a job of any of them still waits or runs, it
    removes none. Archives, and files that you wrote elsewhere, stay.
    """
    runs_path = find_runs(runs, site_file)
    directories = tuple(
        dict.fromkeys(
            directory
            for name in campaigns
            for directory in store.resolve_submission(name, runs_path, shortest=_MIN_ID_LENGTH)
        )
    )
    names = join_names((directory.name for directory in directories), most=6)
    question = f"Remove {names} for good, with all logs?"
    is_removed = remove(
        directories, confirm=lambda: yes or confirm(question, "remove"), run=run, force=force
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
