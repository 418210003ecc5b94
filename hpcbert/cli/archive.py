"""hpcbert archive, hpcbert note, hpcbert rm."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from hpcbert.campaign import archive as archives
from hpcbert.campaign import evidence, store
from hpcbert.cli.campaigns import takes_runs
from hpcbert.cli.options import flag_option, text_option
from hpcbert.cli.output import Result, confirm, join_results, pick, returns_result
from hpcbert.commands.submit import remove
from hpcbert.errors import UsageError, format_count, join_names
from hpcbert.model import ARCHIVE
from hpcbert.system.runner import run

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
