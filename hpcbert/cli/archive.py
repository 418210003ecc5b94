"""hpcbert archive."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from hpcbert.campaign import archive as archives
from hpcbert.campaign import evidence, store
from hpcbert.cli.campaigns import find_runs
from hpcbert.cli.options import RUNS, SITE
from hpcbert.cli.output import Result, join_results, returns_result
from hpcbert.errors import UsageError, format_count, join_names
from hpcbert.model import ARCHIVE

_NOT_COLLECTED = (
    "None of its results are recorded yet: a reader of the archive would have to ask this cluster "
    "how the repeats ended. Run hpcbert collect when they are over, then archive it again."
)


@click.command(
    epilog="\b\nExamples:\n"
    "  hpcbert archive\n"
    "  hpcbert archive 3f9a1c --output table4.zip\n"
    "  hpcbert collect table4.zip"
)
@click.argument("campaigns", nargs=-1, metavar="[CAMPAIGN]...")
@click.option(
    "--output", default="", metavar="FILE", help="File to write; CAMPAIGN.zip by default."
)
@RUNS
@SITE
@returns_result
def archive(*, campaigns: tuple[str, ...], output: str, runs: str, site_file: str) -> Result:
    """Pack a campaign into one file.

    CAMPAIGN is a campaign's directory, its id or a part of the id, or the name of a file's
    campaigns, each packed into a file of its own; the newest one by default. The archive holds
    every file that its numbers come from, with digests. The same campaign gives the same bytes.
    hpcbert masks anything that looks like a secret and names the file that held it.

    collect, report, audit, compare, logs and monitor --once read an archive as they read a
    directory, and submit --like submits the same campaign again.
    """
    place = find_runs(runs, site_file)
    names = campaigns or (str(store.find_newest(place)),)
    directories = store.resolve_all(names, place)
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
    mask_warnings: tuple[str, ...] = ()
    if package.masked:
        names = join_names(package.masked, most=1)
        mask_warnings = (f"{names}: masked text that looked like a secret.",)
    is_recorded = evidence.read_previous(directory) is not None
    lines = [
        f"{package.path}: {format_count(package.files, 'file')}, {package.size:,} bytes",
        f"sha256 {package.sha256}",
    ]
    return Result(
        data={
            "campaign": directory.name,
            "directory": str(directory),
            "path": str(package.path),
            "bytes": package.size,
            "sha256": package.sha256,
            "files": package.files,
            "masked": list(package.masked),
        },
        text="\n".join(lines),
        warnings=(
            *store.warn_about_writers(directory),
            *mask_warnings,
            *(() if is_recorded else (_NOT_COLLECTED,)),
        ),
    )
