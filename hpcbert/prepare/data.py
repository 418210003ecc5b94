"""Prepare data: make synthetic ones, or check those that the site names.

A check counts the files, and reads the first record of the first and the last.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from hpcbert.config.recipe import Dataset, Recipe
from hpcbert.config.site import SYNTHETIC, Site
from hpcbert.errors import HpcbertError, IncompleteError, join_names
from hpcbert.model import OptionValue
from hpcbert.prepare.parts import Context, Part, make_alone, make_directory, write_record
from hpcbert.script import materials
from hpcbert.script.plan import read_options
from hpcbert.system.files import translate_errors

# The part of each file that the digest covers, with name and size: data are too large to read
# whole.
_DIGESTED_BYTES = 1 << 16
_SHOWN = 3


def read_first_record(path: Path, form: str, keys: Sequence[str] = ()) -> str:
    """Read a file's first sample, and return the names in it as words.

    Raises:
        ValueError: The file does not hold such a sample.
        OSError: It can't be read.
    """
    from hpcbert.prepare.data_formats import read_names  # imports numpy

    try:
        names = read_names(path, form)
    except ImportError as error:
        return f"{form}; reading its names needs {error.name}"
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    missing = [key for key in keys if key not in names]
    if missing:
        raise ValueError(f"{path}: its first record has no {', '.join(missing)}")
    return f"{form}, {', '.join(names)}"


def _make_synthetic(
    view: Path,
    dataset: Dataset,
    request: materials.SyntheticData,
    options: Mapping[str, OptionValue],
) -> None:
    """Make synthetic data in the directory around `view`, which has them under the recipe's names.

    Raises:
        IncompleteError: They can't be made.
    """
    folder = view.parent
    try:
        with make_alone(folder, "synthetic data"), translate_errors("write", view):
            _make_samples(folder, request)
            _link_files(folder, view, dataset, options)
    except HpcbertError as error:
        raise IncompleteError(error.message, where=str(folder), hint=error.hint) from error


def _make_samples(folder: Path, request: materials.SyntheticData) -> None:
    from hpcbert.prepare.data_formats import FORMATS
    from hpcbert.prepare.data_making import DataPlan, make
    from hpcbert.prepare.data_samples import StreamSettings, Vocabulary

    sizes = (request.length, request.predictions, request.samples)
    stream = StreamSettings(*sizes, vocabulary=Vocabulary(request.vocabulary))
    files = min(request.files, FORMATS[request.form].most_files or request.files)
    make(DataPlan(folder / "made", request.form, files, stream))


def _link_files(
    folder: Path, view: Path, dataset: Dataset, options: Mapping[str, OptionValue]
) -> None:
    from hpcbert.prepare.data_making import FOLDER, VOCABULARY  # imports numpy

    paths = sorted((folder / "made" / FOLDER).iterdir())
    pattern = PurePosixPath(dataset.files.format_map(options))
    names = {}
    for number, path in enumerate(paths):
        # Their own, if they match.
        is_match = fnmatch.fnmatchcase(path.name, pattern.name)
        name = path.name if is_match else pattern.with_suffix(path.suffix).name
        names[str(pattern.parent / name.replace("*", str(number)))] = path
    for extra_name in (name.format_map(options) for name in dataset.also):
        suffix = PurePosixPath(extra_name).suffix
        candidates = (path for path in paths if path.suffix == suffix)
        names[extra_name] = next(candidates, folder / "made" / VOCABULARY)
    unfinished = view.with_name(".data")
    for name, path in names.items():
        target = unfinished / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, target)
        except OSError:  # this file system has no hard links
            shutil.copyfile(path, target)
    unfinished.rename(view)


def prepare_data(recipe: Recipe, site: Site, context: Context) -> Part:
    """Check the data of a framework, and record them.

    Raises:
        UsageError: An option that the site sets is wrong.
        IncompleteError: Data are missing, can't be read or made, or do not fit the program.
    """
    setting = site.settings(recipe.name).data
    if recipe.dataset is None or (not setting and "data" not in recipe.needs):
        return Part("skipped", recipe.data or "none are read")
    if not setting:
        hint = f"Set frameworks.{recipe.name}.data in {site.where} to their path, or to "
        hint += f'"{SYNTHETIC}", and hpcbert makes them. {recipe.data}'
        raise IncompleteError("the site names no data", hint=hint)
    options = read_options(recipe, site, context.settings)
    path = materials.find_data_path(site, recipe, options)
    if "://" in recipe.dataset.files.format_map(options):
        return Part("skipped", "the program reads them over the network", path)
    if setting == SYNTHETIC and not Path(path).is_dir():
        request = materials.plan_synthetic(site, recipe, options)
        subject = f"{request.samples} synthetic samples as {request.form}"
        if context.dry:
            return Part("planned", f"would make {subject}", path)
        context.say(f"making {subject}")
        _make_synthetic(Path(path), recipe.dataset, request, options)
    return _check_data(recipe, recipe.dataset, site, options, context)


def _check_data(
    recipe: Recipe,
    dataset: Dataset,
    site: Site,
    options: Mapping[str, OptionValue],
    context: Context,
) -> Part:
    path = materials.find_data_path(site, recipe, options)
    hint = f"The program needs: {recipe.data}"
    try:
        files = _find_files(Path(path), dataset, options)
        first_records = [
            read_first_record(file, dataset.format, dataset.keys)
            for file in sorted({files[0], files[-1]})
        ]
        digest = _digest_files(files, Path(path))
    except ValueError as error:
        raise IncompleteError(str(error), where=path, hint=hint) from error
    except OSError as error:
        detail = f"{error.filename or path}: {error.strerror}"
        hint = "Check on a node that has them: hpcbert prepare --on-node."
        raise IncompleteError(detail, where=path, hint=hint) from error
    if problems := materials.find_misfits(recipe, options, path):
        raise IncompleteError("; ".join(problems), where=path, hint=hint)
    detail = f"{len(files)} files; {first_records[0]}"
    record_path = materials.data_record_path(site, recipe, options)
    previous = materials.read_record(record_path)
    if previous.get("path") == path and previous.get("digest") == digest:
        return Part("ready", detail, path, digest)
    if context.dry:
        return Part("planned", f"{detail}; would be recorded", path, digest)
    make_directory(record_path.parent)
    content = {
        "framework": recipe.name,
        "path": path,
        "format": dataset.format,
        "files": len(files),
        "bytes": sum(file.stat().st_size for file in files),
        "digest": digest,
        "first": first_records[0],
    }
    write_record(record_path, content)
    return Part("done", detail, path, digest)


def _find_files(
    directory: Path, dataset: Dataset, options: Mapping[str, OptionValue]
) -> tuple[Path, ...]:
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a directory that this machine can see")
    pattern = dataset.files.format_map(options)
    files = tuple(sorted(path for path in directory.glob(pattern) if path.is_file()))
    if dataset.numbered:
        count = int(options[dataset.numbered])
        files = tuple(directory / pattern.replace("*", str(number)) for number in range(count))
    extra_files = [directory / template.format_map(options) for template in dataset.also]
    missing = [path for path in (*files, *extra_files) if not path.is_file()]
    if missing:
        names = join_names((str(path.relative_to(directory)) for path in missing), most=_SHOWN)
        raise ValueError(f"{names} are missing in {directory}")
    if len(files) < dataset.at_least:
        raise ValueError(
            f"{len(files)} files match {pattern} in {directory}; at least {dataset.at_least} must"
        )
    return files


def _digest_files(files: tuple[Path, ...], directory: Path) -> str:
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            total.update(f"{path.relative_to(directory)}\0{path.stat().st_size}\0".encode())
            total.update(file.read(_DIGESTED_BYTES))
    return f"listing:{total.hexdigest()}"
