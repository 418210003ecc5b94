"""Prepare data: find and count the files, and read the first record of the first and last."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcbert.config.dataset import Dataset
from hpcbert.config.recipe import Recipe
from hpcbert.config.site import SYNTHETIC, Site
from hpcbert.model import OptionValue
from hpcbert.prepare import records
from hpcbert.prepare.parts import Context, Part, make_directory, write_record
from hpcbert.prepare.synthetic import make_synthetic
from hpcbert.script.fitting import find_misfits
from hpcbert.script.prepared import data_record_path, find_data_path, read_record
from hpcbert.script.settings import read_options

# The part of each file that the digest covers, with name and size: data are too large to read
# whole.
_DIGESTED_BYTES = 1 << 16
_SHOWN = 3


class _DataError(Exception):
    """The data differ from what the program needs; the text says how."""


def prepare_data(recipe: Recipe, site: Site, context: Context) -> Part:
    """Check the data of a framework, and record them.

    Raises:
        UsageError: An option that the site sets is wrong.
        HpcbertError: The file system refused.
    """
    setting = site.settings(recipe.name).data
    if recipe.dataset is None or (not setting and "data" not in recipe.needs):
        return Part(recipe.name, "data", "skipped", recipe.data or "none are read")
    if not setting:
        hint = f'Name them: frameworks.{recipe.name}.data in {site.where}; "{SYNTHETIC}" has '
        hint += f"hpcbert make them. {recipe.data}"
        return Part(recipe.name, "data", "failed", "the site names no data", hint=hint)
    options = read_options(recipe, site, context.settings)
    path = find_data_path(site, recipe, options)
    if "://" in recipe.dataset.files.format_map(options):
        return Part(recipe.name, "data", "skipped", "the program reads them over the network", path)
    failed_part = make_synthetic(recipe, site, options, context) if setting == SYNTHETIC else None
    return failed_part or _check_data(recipe, recipe.dataset, site, options, context)


def _check_data(
    recipe: Recipe,
    dataset: Dataset,
    site: Site,
    options: Mapping[str, OptionValue],
    context: Context,
) -> Part:
    """Check whether data are what the program reads, and record them."""
    path = find_data_path(site, recipe, options)
    try:
        files = _find_files(Path(path), dataset, options)
        first_records = [_first_record(file, dataset) for file in sorted({files[0], files[-1]})]
        _refuse_misfits(recipe, options, path)
        digest = _digest_files(files, Path(path))
    except _DataError as error:
        hint = f"The program needs: {recipe.data}"
        return Part(recipe.name, "data", "failed", str(error), path, "", hint)
    except OSError as error:
        detail = f"{error.filename or path}: {error.strerror}"
        hint = "Check on a node that has them: hpcbert prepare --on-node."
        return Part(recipe.name, "data", "failed", detail, path, "", hint)
    content = {
        "framework": recipe.name,
        "path": path,
        "format": dataset.format,
        "files": len(files),
        "bytes": sum(file.stat().st_size for file in files),
        "digest": digest,
        "first": first_records[0],
    }
    return _record_data(recipe, data_record_path(site, recipe, options), content, context)


def _refuse_misfits(recipe: Recipe, options: Mapping[str, OptionValue], path: str) -> None:
    if problems := find_misfits(recipe, options, path):
        raise _DataError("; ".join(problems))


def _record_data(
    recipe: Recipe, record_path: Path, content: dict[str, Any], context: Context
) -> Part:
    detail = f"{content['files']} files; {content['first']}"
    path, digest = str(content["path"]), str(content["digest"])
    previous = read_record(record_path)
    if previous.get("path") == path and previous.get("digest") == digest:
        return Part(recipe.name, "data", "ready", detail, path, digest)
    if context.dry:
        return Part(recipe.name, "data", "planned", f"{detail}; would be recorded", path, digest)
    make_directory(record_path.parent)
    write_record(record_path, content)
    return Part(recipe.name, "data", "done", detail, path, digest)


def _find_files(
    directory: Path, dataset: Dataset, options: Mapping[str, OptionValue]
) -> tuple[Path, ...]:
    """Return the training files by name; refuse if a required one is missing."""
    if not directory.is_dir():
        raise _DataError(f"{directory} is not a directory that this machine can see")
    pattern = dataset.files.format_map(options)
    files = tuple(sorted(path for path in directory.glob(pattern) if path.is_file()))
    if dataset.numbered:
        count = int(options[dataset.numbered])
        files = tuple(directory / pattern.replace("*", str(number)) for number in range(count))
    missing = [path for path in files if not path.is_file()]
    missing += [
        directory / name
        for name in (template.format_map(options) for template in dataset.also)
        if not (directory / name).is_file()
    ]
    if missing:
        names = ", ".join(str(path.relative_to(directory)) for path in missing[:_SHOWN])
        remainder = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise _DataError(f"{names}{remainder} are missing in {directory}")
    if len(files) < dataset.at_least:
        raise _DataError(
            f"{len(files)} files match {pattern} in {directory}; at least {dataset.at_least} must"
        )
    return files


def _first_record(path: Path, dataset: Dataset) -> str:
    try:
        return records.read_first_record(path, dataset.format, dataset.keys)
    except ValueError as error:
        raise _DataError(f"{path}: {error}") from error


def _digest_files(files: tuple[Path, ...], directory: Path) -> str:
    """Return a digest that changes with any file's name, size or beginning."""
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            total.update(f"{path.relative_to(directory)}\0{path.stat().st_size}\0".encode())
            total.update(file.read(_DIGESTED_BYTES))
    return f"listing:{total.hexdigest()}"
