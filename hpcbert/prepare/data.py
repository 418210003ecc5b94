"""Prepare data: find and count the files, and read the first record of the first and last."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcbert.config.site import SYNTHETIC
from hpcbert.prepare import records
from hpcbert.prepare.parts import Context, Part, make_directory, write_down
from hpcbert.prepare.synthetic import make
from hpcbert.script.fitting import misfits
from hpcbert.script.prepared import data_path, data_record, record
from hpcbert.script.settings import option_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcbert.config.dataset import Dataset
    from hpcbert.config.recipe import Recipe
    from hpcbert.config.site import Site
    from hpcbert.model import OptionValue

# The part of each file that the digest covers, with name and size: data are too large to read
# whole.
_BEGINNING = 1 << 16
_SHOWN = 3


class _DataError(Exception):
    """The data differ from what the program needs; the text says how."""


def data(recipe: Recipe, site: Site, context: Context) -> Part:
    """Check the data of a framework, and record them.

    Raises:
        UsageError: An option that the site sets is wrong.
        HpcbertError: The file system refused.
    """
    named = site.settings(recipe.name).data
    if recipe.dataset is None or (not named and "data" not in recipe.needs):
        return Part(recipe.name, "data", "skipped", recipe.data or "none are read")
    if not named:
        hint = f'Name them: frameworks.{recipe.name}.data in {site.where}; "{SYNTHETIC}" has '
        hint += f"hpcbert make them. {recipe.data}"
        return Part(recipe.name, "data", "failed", "the site names no data", hint=hint)
    options = option_values(recipe, site, context.settings)
    path = data_path(site, recipe, options)
    if "://" in recipe.dataset.files.format_map(options):
        return Part(recipe.name, "data", "skipped", "the program reads them over the network", path)
    unmade = make(recipe, site, options, context) if named == SYNTHETIC else None
    return unmade or _looked_at(recipe, recipe.dataset, site, options, context)


def _looked_at(
    recipe: Recipe,
    dataset: Dataset,
    site: Site,
    options: Mapping[str, OptionValue],
    context: Context,
) -> Part:
    """Check whether data are what the program reads, and record them."""
    path = data_path(site, recipe, options)
    try:
        files = _files(Path(path), dataset, options)
        found = [_first(file, dataset) for file in sorted({files[0], files[-1]})]
        _refuse_misfits(recipe, options, path)
        digest = _digest(files, Path(path))
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
        "first": found[0],
    }
    return _recorded(recipe, data_record(site, recipe, options), content, context)


def _refuse_misfits(recipe: Recipe, options: Mapping[str, OptionValue], path: str) -> None:
    if wrong := misfits(recipe, options, path):
        raise _DataError("; ".join(wrong))


def _recorded(recipe: Recipe, place: Path, content: dict[str, Any], context: Context) -> Part:
    detail = f"{content['files']} files; {content['first']}"
    path, digest = str(content["path"]), str(content["digest"])
    before = record(place)
    if before.get("path") == path and before.get("digest") == digest:
        return Part(recipe.name, "data", "ready", detail, path, digest)
    if context.dry:
        return Part(recipe.name, "data", "planned", f"{detail}; would be recorded", path, digest)
    make_directory(place.parent)
    write_down(place, content)
    return Part(recipe.name, "data", "done", detail, path, digest)


def _files(
    directory: Path, dataset: Dataset, options: Mapping[str, OptionValue]
) -> tuple[Path, ...]:
    """Return the training files by name; refuse if a required one is missing."""
    if not directory.is_dir():
        raise _DataError(f"{directory} is not a directory that this machine can see")
    pattern = dataset.files.format_map(options)
    files = tuple(sorted(path for path in directory.glob(pattern) if path.is_file()))
    if dataset.numbered:
        wanted = int(options[dataset.numbered])
        files = tuple(directory / pattern.replace("*", str(number)) for number in range(wanted))
    missing = [path for path in files if not path.is_file()]
    missing += [
        directory / name
        for name in (one.format_map(options) for one in dataset.also)
        if not (directory / name).is_file()
    ]
    if missing:
        names = ", ".join(str(path.relative_to(directory)) for path in missing[:_SHOWN])
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise _DataError(f"{names}{more} are missing in {directory}")
    if len(files) < dataset.at_least:
        raise _DataError(
            f"{len(files)} files match {pattern} in {directory}; at least {dataset.at_least} must"
        )
    return files


def _first(path: Path, dataset: Dataset) -> str:
    try:
        return records.first(path, dataset.format, dataset.keys)
    except ValueError as error:
        raise _DataError(f"{path}: {error}") from error


def _digest(files: tuple[Path, ...], directory: Path) -> str:
    """Return a digest that changes with any file's name, size or beginning."""
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            total.update(f"{path.relative_to(directory)}\0{path.stat().st_size}\0".encode())
            total.update(file.read(_BEGINNING))
    return f"listing:{total.hexdigest()}"
