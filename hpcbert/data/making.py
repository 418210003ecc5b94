"""Make a directory of training data.

DIR/data.json      written last: settings, counts, digests
DIR/vocab.txt      the vocabulary of the token ids
DIR/training/      the files that programs read, and nothing else
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hpcbert.data.formats import DataFormat, find_format
from hpcbert.data.samples import (
    Integers,
    Samples,
    StreamSettings,
    Vocabulary,
    find_files,
    make_samples,
    make_synthetic,
    number_blocks,
    pair_sentences,
    read_corpus,
    read_vocabulary,
)
from hpcbert.errors import HpcbertError, UsageError
from hpcbert.system import files as filing
from hpcbert.system import machine, progress
from hpcbert.system.decode import IgnoreUnknown, decode
from hpcbert.system.lock import LOCK, hold_lock

DATA, FOLDER, VOCABULARY = "data.json", "training", "vocab.txt"
SCHEMA = 1
# The mark of a directory whose data are not complete: the next run makes them again.
_UNFINISHED = ".unfinished"
_FILE_MODE = 0o644
_MOST_FILES = 1 << 16
_USUAL_FILES = 32


@dataclass(frozen=True)
class DataPlan:
    """A directory of training data to make.

    Attributes:
        directory: Its path; made if missing.
        form: A format's name.
        files: Number of files; 0 for the format's usual number.
        stream: The settings of the samples; `fill` has no effect on a text.
        text: A file or a directory of text; None for synthetic samples.
        vocabulary: A vocabulary file; None for a synthetic one of BERT's size.
        lowercase: Whether text is lowercased, as for an uncased vocabulary.
    """

    directory: Path
    form: str
    files: int = 0
    stream: StreamSettings = field(default_factory=StreamSettings)
    text: Path | None = None
    vocabulary: Path | None = None
    lowercase: bool = True


def make(plan: DataPlan) -> dict[str, Any]:
    """Make training data, and return the contents of data.json.

    Args:
        plan: The directory to make; what an interrupted run left in it is made again.

    Raises:
        UsageError: The directory holds something else, or a setting is invalid.
        HpcbertError: The file system refused.
    """
    form = find_format(plan.form)
    if not plan.stream.samples and not plan.text:
        raise UsageError("--samples 0 is out of range: 1 or more.")
    _check_packages(plan)
    _check_file_count(plan, form)
    vocabulary = read_vocabulary(plan.vocabulary) if plan.vocabulary else Vocabulary()
    paths = find_files(plan.text) if plan.text else ()
    words = plan.vocabulary.read_bytes() if plan.vocabulary else synthetic_words(vocabulary)
    _refuse_other(plan.directory)
    samples, take = _open_source(plan, paths, vocabulary)
    count = _file_count(plan, form, samples)
    with filing.translate_errors("write", plan.directory):
        plan.directory.mkdir(parents=True, exist_ok=True)
        with hold_lock(plan.directory, "data directory"):
            _refuse_other(plan.directory)  # another process may have made them meanwhile
            _clear(plan.directory)
            _check_space(plan, form, samples)
            filing.write_bytes(plan.directory / VOCABULARY, words, mode=_FILE_MODE)
            document = _describe_plan(plan, vocabulary.size, words, paths)
            stream = _Stream(samples, take)
            document |= _write_files(plan.directory / FOLDER, form, stream, count)
            filing.write_text(
                plan.directory / DATA, json.dumps(document, indent=1) + "\n", mode=_FILE_MODE
            )
            (plan.directory / _UNFINISHED).unlink()
    return document


def _check_space(plan: DataPlan, form: DataFormat, samples: int) -> None:
    """Refuse to fill a file system: that hurts its other users."""
    stream = plan.stream
    # A masked position takes 12 bytes more, and a record's frame 256 at most.
    sample_bytes = form.token_bytes * stream.length + 12 * stream.predictions + 256
    needed = samples * sample_bytes
    free = shutil.disk_usage(plan.directory).free
    if needed > free:
        raise HpcbertError(
            f"{samples} samples take up to {needed >> 20} MiB, but only {free >> 20} MiB are free.",
            where=str(plan.directory),
            hint="Free some space, or request fewer samples.",
        )


def _clear(directory: Path) -> None:
    """Mark a directory as unfinished, and remove what an interrupted run left in it."""
    (directory / _UNFINISHED).touch(mode=_FILE_MODE)
    (directory / DATA).unlink(missing_ok=True)
    (directory / FOLDER).mkdir(exist_ok=True)
    for path in (directory / FOLDER).iterdir():
        path.unlink()
    for name in (DATA, VOCABULARY):
        for path in filing.find_leftovers(directory / name):
            path.unlink()


def _open_source(
    plan: DataPlan, paths: tuple[Path, ...], vocabulary: Vocabulary
) -> tuple[int, Callable[[Integers], Samples]]:
    """Return the number of samples, and a function that makes samples by their numbers."""
    settings = plan.stream
    if not paths:
        return settings.samples, lambda numbers: make_synthetic(numbers, settings, vocabulary)
    if plan.vocabulary is None:
        raise UsageError("A text needs a vocabulary.", hint="Name it: --vocab vocab.txt.")
    corpus = read_corpus(paths, plan.vocabulary, lowercase=plan.lowercase)
    pairs = pair_sentences(corpus, settings, settings.samples)
    return len(pairs), lambda numbers: make_samples(corpus, pairs, numbers, settings, vocabulary)


class _Stream:
    """All samples in order, with the digest and the number of tokens of those that were taken."""

    def __init__(
        self,
        samples: int,
        take: Callable[[Integers], Samples],
    ) -> None:
        self.samples, self._take = samples, take
        self.digest, self.tokens = hashlib.sha256(), 0

    def read(self, begin: int, end: int) -> Iterator[Samples]:
        """Yield the samples from `begin` to `end` - 1."""
        for numbers in number_blocks(begin, end):
            block = self._take(numbers)
            self.digest.update(block.rows())
            self.tokens += int(block.lengths.sum())
            yield block
            progress.report("making samples", int(numbers[-1]) + 1, self.samples)


def _write_files(folder: Path, form: DataFormat, stream: _Stream, count: int) -> dict[str, Any]:
    """Write all samples to `count` files; return their part of data.json."""
    entries: list[dict[str, Any]] = []
    for number in range(count):
        begin = stream.samples * number // count
        end = stream.samples * (number + 1) // count
        paths = [folder / name for name in form.names(number, count)]
        form.write(paths, stream.read(begin, end))
        entries += [_describe_file(path, end - begin) for path in paths]
    return {
        "samples": stream.samples,
        "mean_tokens": stream.tokens / stream.samples,
        "stream_sha256": stream.digest.hexdigest(),
        "files": entries,
    }


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file of any size."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            total.update(piece)
    return total.hexdigest()


def _describe_file(path: Path, samples: int) -> dict[str, Any]:
    with path.open("rb") as file:
        os.fsync(file.fileno())
    name = f"{FOLDER}/{path.name}"
    size = path.stat().st_size
    return {"name": name, "bytes": size, "sha256": sha256(path), "samples": samples}


def _describe_plan(
    plan: DataPlan, size: int, words: bytes, paths: tuple[Path, ...]
) -> dict[str, Any]:
    """Return the settings for data.json; `words` is a vocabulary of `size`."""
    stream = plan.stream
    return {
        "schema": SCHEMA,
        "format": plan.form,
        "synthetic": not paths,
        "text_sha256": [sha256(path) for path in paths],
        "lowercase": plan.lowercase if paths else None,
        "sequence_length": stream.length,
        "predictions": stream.predictions,
        "samples": stream.samples,
        "fill": None if paths else stream.fill,
        "seed": stream.seed,
        "vocabulary": {
            "name": VOCABULARY,
            "size": size,
            "sha256": hashlib.sha256(words).hexdigest(),
        },
        "asked_files": plan.files,
    }


def synthetic_words(vocabulary: Vocabulary) -> bytes:
    """Return a vocabulary file with special tokens in the places of BERT's."""
    names = {0: "[PAD]", 100: "[UNK]"}
    names |= {vocabulary.cls: "[CLS]", vocabulary.sep: "[SEP]", vocabulary.mask: "[MASK]"}
    words = [
        names.get(number) or ("[unused%d]" if number < vocabulary.first_word else "w%05d") % number
        for number in range(vocabulary.size)
    ]
    return ("\n".join(words) + "\n").encode()


@dataclass(frozen=True)
class VocabularyEntry(IgnoreUnknown):
    """The vocabulary in a data.json."""

    size: int
    sha256: str


@dataclass(frozen=True)
class FileEntry(IgnoreUnknown):
    """A file in a data.json; its name is relative to the directory."""

    name: str
    bytes: int
    sha256: str
    samples: int


@dataclass(frozen=True)
class DataDocument(IgnoreUnknown):
    """What readers of a data.json rely on."""

    schema: Literal[1]
    format: str
    sequence_length: int
    predictions: int
    samples: int
    stream_sha256: str
    vocabulary: VocabularyEntry
    files: tuple[FileEntry, ...]


def read_document(path: Path) -> DataDocument:
    """Read a data.json.

    Raises:
        UsageError: It is missing, damaged or has another version.
    """
    try:
        values = json.loads(filing.read(path))
    except OSError as error:
        problem = f"The file can't be read: {error.strerror or error}."
        hint = "`hpcbert data make` writes it last: run that again if it was interrupted."
        raise UsageError(problem, where=str(path), hint=hint) from error
    except ValueError as error:
        hint = "Make the data again."
        raise UsageError("The file is not JSON.", where=str(path), hint=hint) from error
    return decode(DataDocument, values, file=str(path))


def _refuse_other(directory: Path) -> None:
    """Refuse a directory that holds anything but unfinished data."""
    try:
        names = {path.name for path in directory.iterdir()} if directory.exists() else set()
    except OSError as error:
        raise UsageError(f"{error.strerror}.", where=str(directory)) from error
    if DATA in names and _UNFINISHED not in names:
        hint = f"Check them: hpcbert data check {directory}. Or name another directory."
        raise UsageError("It has complete data.", where=str(directory), hint=hint)
    # A lock that was taken over from the dead leaves a hidden name.
    foreign_names = {name for name in names if name != LOCK and not name.startswith(f".{LOCK}")}
    if foreign_names and _UNFINISHED not in names:
        hint = "Name another directory."
        raise UsageError("It is not empty.", where=str(directory), hint=hint)


def _check_packages(plan: DataPlan) -> None:
    needed = ["h5py"] if plan.form == "hdf5" else []
    needed += ["tokenizers"] if plan.text else []
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        names = ", ".join(missing)
        raise UsageError(
            f"This command needs the Python package {names}.",
            hint=f"Install it: {machine.install_command('data')}",
        )


def _check_file_count(plan: DataPlan, form: DataFormat) -> None:
    most = form.most_files or _MOST_FILES
    if not 0 <= plan.files <= most:
        raise UsageError(f"--files {plan.files} is out of range: 1 to {most} for {plan.form}.")


def _file_count(plan: DataPlan, form: DataFormat, samples: int) -> int:
    count = plan.files or form.most_files or min(_USUAL_FILES, samples)
    if count > samples:
        raise UsageError(
            f"{samples} samples don't fill {count} files.", hint="Request fewer files."
        )
    return count
