"""hpcbert render."""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Mapping, Sequence
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


@click.command(cls=SectionedCommand)
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

    \b
    Examples:
      hpcbert render --fw oneflow --nodes 4 --gpus-per-node 8 --output sbatch
      hpcbert render --check sbatch
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
        script_texts, files = by_hand(request.plan, options=request.options)
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
    differences: list[str] = []
    sources: dict[str, Path] = {}
    for path in paths:
        text = path.read_text(encoding="utf-8")
        header = next((line for line in text.splitlines() if line.startswith(_HEADER)), "")
        if not header:
            message = "The script's header has no command to render it again."
            raise UsageError(message, where=str(path))
        with render.make_context("render", shlex.split(header[len(_HEADER) :])) as context:
            options = read_options(context.params)
        scripts, files = _render_scripts(options)
        sources.update({Path(name).name: source for name, source in files.items()})
        now = scripts.get(path.name, "")
        lines = (text.splitlines(), now.splitlines())
        diff = difflib.unified_diff(*lines, str(path), "rendered now", lineterm="", n=1)
        differences += ["\n".join(diff)] if now != text else []
    digests = [(name, store.hash_file(source)) for name, source in sources.items()]
    scripts_folder = folder / store.SCRIPTS_FOLDER
    faulty_files = tuple(store.compare_library(scripts_folder, digests))
    errors = []
    if differences:
        message = f"{len(differences)} of {len(paths)} scripts differ from what would be rendered "
        hint = "Render them again with the command in each header, and look at the differences."
        errors.append(CheckError(f"{message}now.", where=str(folder), hint=hint))
    has_links = scripts_folder.is_dir() and any(map(Path.is_symlink, scripts_folder.iterdir()))
    for name, state in faulty_files:
        path, command = scripts_folder / name, ["rm", str(scripts_folder / name)]
        if source := sources.get(name):
            target = os.path.relpath(source, scripts_folder.resolve())
            link = ["ln", "-sf", target, str(path)]
            command = link if has_links else ["cp", str(source), str(path)]
        hint = shlex.join(command)
        errors.append(CheckError(f"The file is {state}.", where=str(path), hint=hint))
    counts = {"scripts": len(paths), "different": len(differences), "files": len(sources)}
    return _make_result(counts, faulty_files, errors, differences)


def _check_campaign(directory: Path) -> Result:
    campaign, folder = store.read_manifest(directory), directory / store.SCRIPTS_FOLDER
    hint = f"Measure the same again: {shlex.join(['hpcbert', 'submit', '--like', str(directory)])}"
    errors = [
        CheckError(
            "The script is not as submitted.", where=str(directory / array.script), hint=hint
        )
        for array in campaign.arrays
        if store.hash_file(directory / array.script) != array.script_sha256
    ]
    faulty_files = tuple(store.compare_library(folder, campaign.library))
    counts = {"scripts": len(campaign.arrays), "different": len(errors)}
    counts["files"] = len(campaign.library)
    errors += [
        CheckError(f"The file is {state}.", where=str(folder / name), hint=hint)
        for name, state in faulty_files
    ]
    return _make_result(counts, faulty_files, errors)


def _make_result(
    counts: Mapping[str, int],
    faulty_files: Sequence[store.LibraryFile],
    errors: Sequence[CheckError],
    differences: Sequence[str] = (),
) -> Result:
    library = [file._asdict() for file in faulty_files]
    scripts = format_count(counts["scripts"], "script")
    files = format_count(counts["files"], "file")
    text = f"{scripts} and {files} of their library are as they should be."
    shown = "\n".join(differences) if errors else text
    return Result({**counts, "library": library}, shown, tuple(errors))
