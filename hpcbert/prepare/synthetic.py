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
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from hpcbert.config.dataset import Dataset
from hpcbert.config.recipe import Recipe
from hpcbert.config.site import Site
from hpcbert.errors import HpcbertError
from hpcbert.model import OptionValue
from hpcbert.prepare.parts import Context, Part, make_directory
from hpcbert.script.prepared import SyntheticData, plan_synthetic, synthetic_folder
from hpcbert.system.files import translate_errors


def make_synthetic(
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
    folder, request = synthetic_folder(site, recipe, options), plan_synthetic(site, recipe, options)
    view = folder / "data"
    if view.is_dir():
        return None
    if context.dry:
        detail = f"would make {request.samples} synthetic samples as {request.form}"
        return Part(recipe.name, "data", "planned", detail, str(view))
    make_directory(folder)
    context.say(f"making {request.samples} synthetic samples as {request.form}")
    try:
        _make_samples(folder, request)
        with translate_errors("write", view):
            _link_files(folder, view, recipe.dataset, options)
    except HpcbertError as error:
        return Part(recipe.name, "data", "failed", error.message, str(folder), "", error.hint)
    return None


def _make_samples(folder: Path, request: SyntheticData) -> None:
    from hpcbert.data.formats import find
    from hpcbert.data.making import DATA, DataPlan, make, synthetic_words
    from hpcbert.data.samples import StreamSettings, Vocabulary
    from hpcbert.system.files import write_bytes

    if (folder / "made" / DATA).is_file():
        return
    vocabulary_path = folder / "vocab.txt"
    write_bytes(vocabulary_path, synthetic_words(Vocabulary(request.vocabulary)), mode=0o644)
    stream = StreamSettings(request.length, request.predictions, request.samples)
    files = min(request.files, find(request.form).most_files or request.files)
    make(DataPlan(folder / "made", request.form, files, stream, vocabulary=vocabulary_path))


def _link_files(
    folder: Path, view: Path, dataset: Dataset, options: Mapping[str, OptionValue]
) -> None:
    """Give the new files the names that the program needs."""
    from hpcbert.data.making import FOLDER, VOCABULARY

    paths = sorted((folder / "made" / FOLDER).iterdir())
    private_folder = view.with_name(f".data~{secrets.token_hex(8)}")
    names = dict(zip(_choose_names(dataset.files.format_map(options), paths), paths, strict=True))
    for extra_name in (pattern.format_map(options) for pattern in dataset.also):
        suffix = PurePosixPath(extra_name).suffix
        candidates = (path for path in paths if path.suffix == suffix)
        names[extra_name] = next(candidates, folder / "made" / VOCABULARY)
    try:
        for name, path in names.items():
            target = private_folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, target)
            except OSError:  # this file system has no hard links
                shutil.copyfile(path, target)
        private_folder.rename(view)
    finally:
        shutil.rmtree(private_folder, ignore_errors=True)


def _choose_names(pattern: str, paths: Iterable[Path]) -> list[str]:
    """Return names for files that match a pattern: their own, if they match."""
    pattern_path = PurePosixPath(pattern)
    names = []
    for number, path in enumerate(paths):
        is_match = fnmatch.fnmatchcase(path.name, pattern_path.name)
        name = path.name if is_match else pattern_path.with_suffix(path.suffix).name
        names.append(str(pattern_path.parent / name.replace("*", str(number))))
    return names
