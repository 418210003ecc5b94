"""Synthetic data, made for one framework in the place where its program looks.

    FOLDER/made/    made by `hpcbert data make`: data.json, vocab.txt, training/
    FOLDER/data/    the same files again, under the names that the program needs

A rename makes the second, when the first is whole.
"""

from __future__ import annotations

import fnmatch
import os
import secrets
import shutil
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from hpcbert.errors import HpcbertError
from hpcbert.prepare.parts import Context, Part, make_directory
from hpcbert.script.prepared import synthetic, synthetic_folder
from hpcbert.system.files import refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hpcbert.config.dataset import Dataset
    from hpcbert.config.recipe import Recipe
    from hpcbert.config.site import Site
    from hpcbert.model import OptionValue
    from hpcbert.script.prepared import Synthetic


def make(
    recipe: Recipe, site: Site, options: Mapping[str, OptionValue], context: Context
) -> Part | None:
    """Make the synthetic data of a framework.

    Returns:
        Why the data do not exist; None if they do.

    Raises:
        UsageError: An option is out of range.
        HpcbertError: The file system refused.
    """
    if recipe.dataset is None:
        return None
    folder, wanted = synthetic_folder(site, recipe, options), synthetic(site, recipe, options)
    view = folder / "data"
    if view.is_dir():
        return None
    if context.dry:
        detail = f"would make {wanted.samples} synthetic samples as {wanted.form}"
        return Part(recipe.name, "data", "planned", detail, str(view))
    make_directory(folder)
    context.say(f"making {wanted.samples} synthetic samples as {wanted.form}")
    try:
        _make(folder, wanted)
        with refusal("write", view):
            _show(folder, view, recipe.dataset, options)
    except HpcbertError as error:
        return Part(recipe.name, "data", "failed", error.message, str(folder), "", error.hint)
    return None


def _make(folder: Path, wanted: Synthetic) -> None:
    from hpcbert.data.formats import find
    from hpcbert.data.making import DATA, DataPlan, make, synthetic_words
    from hpcbert.data.samples import StreamSettings, Vocabulary
    from hpcbert.system.files import write_bytes

    if (folder / "made" / DATA).is_file():
        return
    words = folder / "vocab.txt"
    write_bytes(words, synthetic_words(Vocabulary(wanted.vocabulary)), mode=0o644)
    stream = StreamSettings(wanted.length, wanted.predictions, wanted.samples)
    files = min(wanted.files, find(wanted.form).most_files or wanted.files)
    make(DataPlan(folder / "made", wanted.form, files, stream, vocabulary=words))


def _show(folder: Path, view: Path, dataset: Dataset, options: Mapping[str, OptionValue]) -> None:
    """Give the new files the names that the program needs."""
    from hpcbert.data.making import FOLDER, VOCABULARY

    paths = sorted((folder / "made" / FOLDER).iterdir())
    private = view.with_name(f".data~{secrets.token_hex(8)}")
    names = dict(zip(_names(dataset.files.format_map(options), paths), paths, strict=True))
    for also in (one.format_map(options) for one in dataset.also):
        suffix = PurePosixPath(also).suffix
        alike = (path for path in paths if path.suffix == suffix)
        names[also] = next(alike, folder / "made" / VOCABULARY)
    try:
        for name, path in names.items():
            target = private / name
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, target)
            except OSError:  # this file system has no hard links
                shutil.copyfile(path, target)
        private.rename(view)
    finally:
        shutil.rmtree(private, ignore_errors=True)


def _names(pattern: str, paths: Iterable[Path]) -> list[str]:
    """Return names for files that match a pattern: their own, if they match."""
    pure_posix_path = PurePosixPath(pattern)
    found = []
    for number, path in enumerate(paths):
        own = fnmatch.fnmatchcase(path.name, pure_posix_path.name)
        name = path.name if own else pure_posix_path.with_suffix(path.suffix).name
        found.append(str(pure_posix_path.parent / name.replace("*", str(number))))
    return found
