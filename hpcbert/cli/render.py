"""hpcbert render."""

from __future__ import annotations

import difflib
import shlex
from pathlib import Path

import click

from hpcbert.campaign.store import write_text
from hpcbert.cli import conflicts
from hpcbert.cli.asked import read
from hpcbert.cli.options import SHARED_CONFLICTS, PointOptions, point_options
from hpcbert.cli.output import Result, returns_result
from hpcbert.config.adaptive import AUTO
from hpcbert.errors import CheckError, UsageError

_HEADER = "# hpcbert render "


@click.command(
    epilog="\b\nExamples:\n"
    "  hpcbert render --fw oneflow --nodes 4 --gpus-per-node 8 --output sbatch\n"
    "  hpcbert render --check sbatch"
)
@point_options
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Folder to fill.")
@click.option(
    "--check",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder whose scripts must equal what their headers' commands render.",
)
@returns_result
def render(options: PointOptions, *, output: Path | None, check: Path | None) -> Result:
    """Write the scripts that submit would run, for reading and for submitting by hand.

    Each script names in its header the command that renders it again.
    """
    if check is not None:
        conflicts.refuse_others(("check",), "with --check, which asks each script")
        return _check(check)
    conflicts.refuse(*SHARED_CONFLICTS)
    conflicts.refuse_typed(
        ("runs", "max_gpu_hours", "preflight", "stop_on_failure"), "on scripts to submit by hand"
    )
    if options.repeats == AUTO:
        raise UsageError(
            f"--repeats {AUTO} reads a campaign's logs, and a script to submit by hand has none.",
            hint=f"hpcbert submit makes one; else give a number in the place of --repeats {AUTO}.",
        )
    scripts = _rendered(options)
    if output is None:
        return Result(scripts, "\n".join(scripts.values()).rstrip("\n"), exact=True)
    output.mkdir(parents=True, exist_ok=True)
    for name, text in scripts.items():
        write_text(output / name, text, mode=0o666)
    written = [str(output / name) for name in scripts]
    return Result(written, "\n".join(written))


def _rendered(options: PointOptions) -> dict[str, str]:
    from hpcbert.script.draft import by_hand  # with Jinja, which --help has no use for

    return {
        name: text
        for asked in read(options, dry=True)
        for name, text in by_hand(
            asked.request, asked.site, asked.recipe, options=asked.options
        ).items()
    }


def _check(folder: Path) -> Result:
    """Render every script of a folder again from its header and compare."""
    differences = []
    paths = sorted(path for path in folder.iterdir() if path.suffix == ".sbatch")
    if not paths:
        raise CheckError(
            "There is no script to check.",
            where=str(folder),
            hint="Name the folder that holds *.sbatch files, or fill it: hpcbert render --output.",
        )
    for path in paths:
        have = path.read_text(encoding="utf-8")
        want = _again(path, have)
        if want != have:
            lines = difflib.unified_diff(
                have.splitlines(), want.splitlines(), str(path), "rendered now", lineterm="", n=1
            )
            differences.append("\n".join(lines))
    data = {"scripts": len(paths), "different": len(differences)}
    if not differences:
        return Result(data, f"{len(paths)} scripts equal what is rendered.")
    error = CheckError(
        f"{len(differences)} of {len(paths)} scripts differ from what is rendered.",
        where=str(folder),
        hint="Render them again with the command in each header, and look at the difference.",
    )
    return Result(data, "\n".join(differences), (error,))


def _again(path: Path, text: str) -> str:
    header = next((line for line in text.splitlines() if line.startswith(_HEADER)), "")
    if not header:
        raise UsageError("No header names the command that renders it.", where=str(path))
    with render.make_context("render", shlex.split(header[len(_HEADER) :])) as context:
        options = PointOptions.of(context.params)
    return _rendered(options).get(path.name, "")


command = render
