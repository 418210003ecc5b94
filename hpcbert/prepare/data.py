"""Prepare data: make synthetic ones, or check those that the site names.

A check counts the files, and reads the first record of the first and the last.
"""

from __future__ import annotations

import fnmatch
import gzip
import hashlib
import os
import secrets
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from hpcbert.config.recipe import Dataset, Recipe
from hpcbert.config.site import SYNTHETIC, Site
from hpcbert.errors import HpcbertError, describe_error, join_names
from hpcbert.model import OptionValue
from hpcbert.prepare import protobuf
from hpcbert.prepare.parts import Context, Part, make_directory, write_record
from hpcbert.script.materials import (
    SyntheticData,
    data_record_path,
    find_data_path,
    find_misfits,
    plan_synthetic,
    read_record,
    synthetic_folder,
)
from hpcbert.script.plan import read_options
from hpcbert.system.files import translate_errors, write_bytes

# Returns a file's content in words, and the names in its first record; None if they are unknown.
Reader = Callable[[Path], tuple[str, set[str] | None]]

# Characters of a line of text at most.
_LONGEST_LINE = 1 << 26
_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_NUMPY_MAGIC = b"\x93NUMPY"
# NVIDIA/Megatron-LM@3860e99, megatron/data/indexed_dataset.py, MMapIndexedDataset.Index.
_MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
_PADDLE_FIELDS = 4


def read_first_record(path: Path, form: str, keys: Sequence[str] = ()) -> str:
    """Read a file's first record.

    Args:
        form: One of `RECORD_READERS`.
        keys: Names that the record must have.

    Returns:
        The content in words.

    Raises:
        ValueError: The file does not hold such a record.
        OSError: It can't be read.
    """
    description, names = RECORD_READERS[form](path)
    missing = [key for key in keys if key not in names] if names is not None else []
    if missing:
        raise ValueError(f"its first record has no {', '.join(missing)}")
    return description


def _protobuf_reader(dialect: protobuf.Dialect, name: str) -> Reader:
    def read(path: Path) -> tuple[str, set[str] | None]:
        with path.open("rb") as file:
            data = next(protobuf.read_records(file, dialect), b"")
        names = set(protobuf.read_features(data, dialect))
        if not names:
            raise ValueError(f"its first {name} has no features")
        checksum_note = "CRC32C right, " if dialect.checked else ""
        return f"{name} of {len(data)} bytes, {checksum_note}{_join_names(names)}", names

    return read


def _read_hdf5(path: Path) -> tuple[str, set[str] | None]:
    """Read the signature, and with h5py the names and a first row (HDF5 format 3, II.A)."""
    with path.open("rb") as file:
        starts = (0, *(512 << power for power in range(12)))
        if not any(file.seek(start) == start and file.read(8) == _HDF5_MAGIC for start in starts):
            raise ValueError("the file has no HDF5 signature")
    try:
        import h5py  # an extra: on a login node it may be missing
    except ImportError:
        return "HDF5 signature; reading its names needs h5py", None
    try:
        with h5py.File(path, "r") as hdf5_file:
            rows = {
                name: len(column)
                for name, column in hdf5_file.items()
                if getattr(column, "shape", ())
            }
            for name in rows:
                hdf5_file[name][0]
    except (OSError, RuntimeError, LookupError, TypeError) as error:
        raise ValueError(f"HDF5 can't read it: {describe_error(error)}") from error
    if not rows:
        raise ValueError("the HDF5 file has no rows")
    return f"HDF5, {max(rows.values())} rows, {_join_names(set(rows))}", set(rows)


def _read_npz(path: Path) -> tuple[str, set[str] | None]:
    """Read a zip file of arrays (numpy/numpy, numpy/lib/format.py)."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
            for member in members:
                with archive.open(member) as file:
                    if file.read(6) != _NUMPY_MAGIC:
                        raise ValueError(f"its member {member} is not an array")
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise ValueError(f"the file is not an npz file: {error}") from error
    names = {member.removesuffix(".npy") for member in members}
    if not names:
        raise ValueError("the npz file has no arrays")
    return f"npz, {_join_names(names)}", names


def _read_paddle_text(path: Path) -> tuple[str, set[str] | None]:
    """Read a line of fields between semicolons (PaddlePaddle/models@b71cf63, BERT/reader)."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            line = file.readline(_LONGEST_LINE)
    except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"the file is not compressed text: {error}") from error
    fields = line.rstrip("\n").split(";")
    if len(fields) != _PADDLE_FIELDS:
        raise ValueError(f"its first line has {len(fields)} fields, not {_PADDLE_FIELDS}")
    return (
        f"{_PADDLE_FIELDS} fields a line, {len(fields[0].split())} tokens in the first sample",
        None,
    )


def _read_megatron(path: Path) -> tuple[str, set[str] | None]:
    with path.open("rb") as file:
        head = file.read(34)
    if not head.startswith(_MEGATRON_MAGIC) or len(head) < 34:  # noqa: PLR2004
        raise ValueError("the file is not the index of a memory-mapped data set")
    version, _, sentences, documents = struct.unpack("<QBQQ", head[9:])
    if version != 1:
        raise ValueError(f"its version is {version}, not 1")
    return f"index of {sentences} sentences in {max(documents - 1, 0)} documents", None


RECORD_READERS: dict[str, Reader] = {
    "tfrecord": _protobuf_reader(protobuf.TENSORFLOW, "TFRecord"),
    "hdf5": _read_hdf5,
    "npz": _read_npz,
    "ofrecord": _protobuf_reader(protobuf.ONEFLOW, "OFRecord"),
    "paddle-text": _read_paddle_text,
    "megatron": _read_megatron,
}


def _join_names(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "no names"


def make_synthetic(
    recipe: Recipe, site: Site, options: Mapping[str, OptionValue], context: Context
) -> Part | None:
    """Make the synthetic data of a framework.

    Returns:
        Why the data do not exist; None if they do.

    Raises:
        UsageError: An option is out of range.
    """
    if recipe.dataset is None:
        return None
    folder, request = synthetic_folder(site, recipe, options), plan_synthetic(site, recipe, options)
    view = folder / "data"
    if view.is_dir():
        return None
    if context.dry:
        detail = f"would make {request.samples} synthetic samples as {request.form}"
        return Part("planned", detail, str(view))
    make_directory(folder)
    context.say(f"making {request.samples} synthetic samples as {request.form}")
    try:
        _make_samples(folder, request)
        with translate_errors("write", view):
            _link_files(folder, view, recipe.dataset, options)
    except HpcbertError as error:
        return Part("failed", error.message, str(folder), hint=error.hint)
    return None


def _make_samples(folder: Path, request: SyntheticData) -> None:
    from hpcbert.prepare.data_formats import FORMATS
    from hpcbert.prepare.data_making import DATA, DataPlan, make, synthetic_words
    from hpcbert.prepare.data_samples import StreamSettings, Vocabulary

    if (folder / "made" / DATA).is_file():
        return
    vocabulary_path = folder / "vocab.txt"
    write_bytes(vocabulary_path, synthetic_words(Vocabulary(request.vocabulary)), mode=0o644)
    stream = StreamSettings(request.length, request.predictions, request.samples)
    files = min(request.files, FORMATS[request.form].most_files or request.files)
    make(DataPlan(folder / "made", request.form, files, stream, vocabulary=vocabulary_path))


def _link_files(
    folder: Path, view: Path, dataset: Dataset, options: Mapping[str, OptionValue]
) -> None:
    """Give the new files the names that the program needs."""
    from hpcbert.prepare.data_making import FOLDER, VOCABULARY  # imports numpy

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
    """
    setting = site.settings(recipe.name).data
    if recipe.dataset is None or (not setting and "data" not in recipe.needs):
        return Part("skipped", recipe.data or "none are read")
    if not setting:
        hint = f"Set frameworks.{recipe.name}.data in {site.where} to their path, or to "
        hint += f'"{SYNTHETIC}", and hpcbert makes them. {recipe.data}'
        return Part("failed", "the site names no data", hint=hint)
    options = read_options(recipe, site, context.settings)
    path = find_data_path(site, recipe, options)
    if "://" in recipe.dataset.files.format_map(options):
        return Part("skipped", "the program reads them over the network", path)
    failed_part = make_synthetic(recipe, site, options, context) if setting == SYNTHETIC else None
    return failed_part or _check_data(recipe, recipe.dataset, site, options, context)


def _check_data(
    recipe: Recipe,
    dataset: Dataset,
    site: Site,
    options: Mapping[str, OptionValue],
    context: Context,
) -> Part:
    """Compare data with what the program reads, and record them."""
    path = find_data_path(site, recipe, options)
    try:
        files = _find_files(Path(path), dataset, options)
        first_records = [_first_record(file, dataset) for file in sorted({files[0], files[-1]})]
        _refuse_misfits(recipe, options, path)
        digest = _digest_files(files, Path(path))
    except _DataError as error:
        hint = f"The program needs: {recipe.data}"
        return Part("failed", str(error), path, hint=hint)
    except OSError as error:
        detail = f"{error.filename or path}: {error.strerror}"
        hint = "Check on a node that has them: hpcbert prepare --on-node."
        return Part("failed", detail, path, hint=hint)
    content = {
        "framework": recipe.name,
        "path": path,
        "format": dataset.format,
        "files": len(files),
        "bytes": sum(file.stat().st_size for file in files),
        "digest": digest,
        "first": first_records[0],
    }
    return _record_data(data_record_path(site, recipe, options), content, context)


def _refuse_misfits(recipe: Recipe, options: Mapping[str, OptionValue], path: str) -> None:
    if problems := find_misfits(recipe, options, path):
        raise _DataError("; ".join(problems))


def _record_data(record_path: Path, content: dict[str, Any], context: Context) -> Part:
    detail = f"{content['files']} files; {content['first']}"
    path, digest = str(content["path"]), str(content["digest"])
    previous = read_record(record_path)
    if previous.get("path") == path and previous.get("digest") == digest:
        return Part("ready", detail, path, digest)
    if context.dry:
        return Part("planned", f"{detail}; would be recorded", path, digest)
    make_directory(record_path.parent)
    write_record(record_path, content)
    return Part("done", detail, path, digest)


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
        names = join_names((str(path.relative_to(directory)) for path in missing), most=_SHOWN)
        raise _DataError(f"{names} are missing in {directory}")
    if len(files) < dataset.at_least:
        raise _DataError(
            f"{len(files)} files match {pattern} in {directory}; at least {dataset.at_least} must"
        )
    return files


def _first_record(path: Path, dataset: Dataset) -> str:
    try:
        return read_first_record(path, dataset.format, dataset.keys)
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
