"""hpcbert render."""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from hpcbert.campaign import store
from hpcbert.cli.options import SectionedCommand, add_submit_options, read_options
from hpcbert.cli.output import Result, returns_result
from hpcbert.cli.request import read_requests
from hpcbert.config.options import AUTO_REPEATS, Options
from hpcbert.errors import CheckError, UsageError, format_count
from hpcbert.model import MANIFEST
from hpcbert.script.draft import by_hand

_HEADER = "# hpcbert render "


@click.command(
    cls=SectionedCommand,
    epilog="\b\nExamples:\n"
    "  hpcbert render --fw oneflow --nodes 4 --gpus-per-node 8 --output sbatch\n"
    "  hpcbert render --check sbatch",
)
@add_submit_options
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder to write the scripts to.",
)
@click.option(
    "--check",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Check a folder's scripts and library against what would be written now.",
)
@returns_result
def render(options: Options, *, output: Path | None, check: Path | None) -> Result:
    """Write the scripts that submit would run, to read, or to submit by hand.

    Each script's header has the command that renders it again.
    """
    if check is not None:
        return _check_folder(check)
    if options.repeats == AUTO_REPEATS:
        raise UsageError(
            f"--repeats {AUTO_REPEATS} reads a campaign's logs, but a script to submit by hand has "
            "none.",
            hint="Use hpcbert submit, or replace --repeats auto with a number.",
        )
    scripts, sources = _render_scripts(options)
    if output is None:
        return Result(scripts, "\n".join(scripts.values()).rstrip("\n"), exact=True)
    (output / store.SCRIPTS_FOLDER).mkdir(parents=True, exist_ok=True)
    for name, text in scripts.items():
        store.write_text(output / name, text)
    for name, path in sources.items():
        store.write_text(output / name, path.read_text(encoding="utf-8"))
    paths = [str(output / name) for name in scripts]
    return Result(paths, "\n".join(paths))


def _render_scripts(options: Options) -> tuple[dict[str, str], dict[str, Path]]:
    scripts, sources = {}, {}
    for request in read_requests(options, dry=True):
        script_texts, files = by_hand(
            request.plan, request.site, request.recipe, options=request.options
        )
        scripts.update(script_texts)
        sources.update(files)
    return scripts, sources


def _check_folder(folder: Path) -> Result:
    place = folder.resolve()
    directory = place.parent if place.name == store.SCRIPTS_FOLDER else folder
    if (directory / MANIFEST).is_file():
        return _check_campaign(directory)
    paths = sorted(path for path in folder.iterdir() if path.suffix == ".sbatch")
    if not paths:
        raise CheckError(
            "The folder has no script to check.",
            where=str(folder),
            hint="Name a folder of *.sbatch files, or write some: hpcbert render --output.",
        )
    differences, sources = _compare_scripts(paths)
    digests = [(name, store.hash_file(source)) for name, source in sources.items()]
    faulty_files = tuple(store.compare_library(folder / store.SCRIPTS_FOLDER, digests))
    errors = []
    if differences:
        message = f"{len(differences)} of {len(paths)} scripts differ from what would be rendered "
        hint = "Render them again with the command in each header, and look at the differences."
        errors.append(CheckError(f"{message}now.", where=str(folder), hint=hint))
    errors += [
        _make_library_error(folder / store.SCRIPTS_FOLDER, file, sources.get(file.name))
        for file in faulty_files
    ]
    scripts, files = format_count(len(paths), "script"), format_count(len(sources), "file")
    text = f"{scripts} and {files} of their library are as they would be "
    return Result(
        _check_data(len(paths), len(differences), len(sources), faulty_files),
        "\n".join(differences) if errors else f"{text}rendered now.",
        tuple(errors),
    )


def _compare_scripts(paths: Sequence[Path]) -> tuple[list[str], dict[str, Path]]:
    differences, sources = [], {}
    for path in paths:
        script_text = path.read_text(encoding="utf-8")
        scripts, library_files = _render_again(path, script_text)
        sources.update({Path(name).name: source for name, source in library_files.items()})
        rendered_text = scripts.get(path.name, "")
        if rendered_text != script_text:
            lines = difflib.unified_diff(
                script_text.splitlines(),
                rendered_text.splitlines(),
                str(path),
                "rendered now",
                lineterm="",
                n=1,
            )
            differences.append("\n".join(lines))
    return differences, sources


def _check_campaign(directory: Path) -> Result:
    campaign = store.read_manifest(directory)
    submit_command = shlex.join(["hpcbert", "submit", "--like", str(directory)])
    errors = [
        CheckError("The script is not as submitted.", where=str(path), hint=submit_command)
        for array in campaign.arrays
        if store.hash_file(path := directory / array.script) != array.script_sha256
    ]
    difference_count = len(errors)
    folder = directory / store.SCRIPTS_FOLDER
    faulty_files = tuple(store.compare_library(folder, campaign.library))
    errors += [_make_library_error(folder, file) for file in faulty_files]
    files = len(campaign.library)
    scripts = format_count(len(campaign.arrays), "script")
    text = f"{scripts} and {format_count(files, 'file')} of their library are as submitted."
    return Result(
        _check_data(len(campaign.arrays), difference_count, files, faulty_files),
        "" if errors else text,
        tuple(errors),
    )


def _check_data(
    scripts: int, different: int, files: int, faulty_files: Sequence[store.LibraryFile]
) -> dict[str, object]:
    rows = [file._asdict() for file in faulty_files]
    return {"scripts": scripts, "different": different, "files": files, "library": rows}


def _make_library_error(
    folder: Path, file: store.LibraryFile, source: Path | None = None
) -> CheckError:
    """Return an error whose hint is the command that repairs a file of a library.

    Args:
        source: The file to copy or to link to; None for a campaign's, which stays as submitted.
    """
    path = folder / file.name
    if file.state == "not needed":
        message, command = "No script needs the file", ["rm", str(path)]
    elif source is None:
        message = f"The file is {file.state}: the campaign was submitted with it"
        command = ["hpcbert", "submit", "--like", str(folder.parent)]
    else:
        message = f"The file is {file.state}"
        has_links = (
            any(entry.is_symlink() for entry in folder.iterdir()) if folder.is_dir() else False
        )
        command = ["cp", str(source), str(path)]
        if has_links:
            command = ["ln", "-sf", os.path.relpath(source, folder.resolve()), str(path)]
    return CheckError(f"{message}.", where=str(path), hint=shlex.join(command))


def _render_again(path: Path, text: str) -> tuple[dict[str, str], dict[str, Path]]:
    header = next((line for line in text.splitlines() if line.startswith(_HEADER)), "")
    if not header:
        raise UsageError("The script's header has no command to render it again.", where=str(path))
    with render.make_context("render", shlex.split(header[len(_HEADER) :])) as context:
        options = read_options(context.params)
    return _render_scripts(options)
