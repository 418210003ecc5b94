"""hpcbert render."""

from __future__ import annotations

import difflib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcbert.campaign.store import write_text
from hpcbert.cli.options import all_of, submit_options
from hpcbert.cli.output import Result, returns_result
from hpcbert.cli.request import read_requests
from hpcbert.config.adaptive import AUTO
from hpcbert.errors import CheckError, UsageError

if TYPE_CHECKING:
    from hpcbert.config.options import Options

_HEADER = "# hpcbert render "


@click.command(
    epilog="\b\nExamples:\n"
    "  hpcbert render --fw oneflow --nodes 4 --gpus-per-node 8 --output sbatch\n"
    "  hpcbert render --check sbatch"
)
@submit_options
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder to write the scripts to.",
)
@click.option(
    "--check",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Check that the commands in their headers render this folder's scripts.",
)
@returns_result
def render(options: Options, *, output: Path | None, check: Path | None) -> Result:
    """Write the scripts that submit would run, to read, or to submit by hand.

    Each script's header has the command that renders it again.
    """
    if check is not None:
        return _check(check)
    if options.repeats == AUTO:
        raise UsageError(
            f"--repeats {AUTO} reads a campaign's logs, but a script to submit by hand has none.",
            hint="Use hpcbert submit, or replace --repeats auto with a number.",
        )
    scripts, library = _rendered(options)
    if output is None:
        return Result(scripts, "\n".join(scripts.values()).rstrip("\n"), exact=True)
    (output / "scripts").mkdir(parents=True, exist_ok=True)
    for name, text in scripts.items():
        write_text(output / name, text)
    for name, path in library.items():
        write_text(output / name, path.read_text(encoding="utf-8"))
    written = [str(output / name) for name in scripts]
    return Result(written, "\n".join(written))


def _rendered(options: Options) -> tuple[dict[str, str], dict[str, Path]]:
    """Return the scripts, and the files that they read beside them, by name."""
    from hpcbert.script.draft import by_hand  # imports Jinja, which --help does not need

    scripts, library = {}, {}
    for request in read_requests(options, dry=True):
        texts, files = by_hand(
            request.request, request.site, request.recipe, options=request.options
        )
        scripts.update(texts)
        library.update(files)
    return scripts, library


def _check(folder: Path) -> Result:
    """Render every script of a folder again from its header, and compare."""
    differences = []
    paths = sorted(path for path in folder.iterdir() if path.suffix == ".sbatch")
    if not paths:
        raise CheckError(
            "The folder has no script to check.",
            where=str(folder),
            hint="Name a folder of *.sbatch files, or write some: hpcbert render --output.",
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
        return Result(data, f"{len(paths)} scripts are as they would be rendered now.")
    error = CheckError(
        f"{len(differences)} of {len(paths)} scripts differ from what would be rendered now.",
        where=str(folder),
        hint="Render them again with the command in each header, and look at the differences.",
    )
    return Result(data, "\n".join(differences), (error,))


def _again(path: Path, text: str) -> str:
    header = next((line for line in text.splitlines() if line.startswith(_HEADER)), "")
    if not header:
        raise UsageError("The script's header has no command to render it again.", where=str(path))
    with render.make_context("render", shlex.split(header[len(_HEADER) :])) as context:
        options = all_of(context.params)
    return _rendered(options)[0].get(path.name, "")


command = render
