"""Make a directory of training data, and check or show it: then every record of every file is read.

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hpcbert.errors import HpcbertError, UsageError, describe_error
from hpcbert.model import FormatName
from hpcbert.prepare.data_formats import FORMATS, DamagedError, DataFormat
from hpcbert.prepare.data_samples import (
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

    What an interrupted run left in the directory is made again.
    """
    form = FORMATS[plan.form]
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
    format: FormatName
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


# --- Checking and showing: every record of every file is read -------------------------------------


@dataclass(frozen=True)
class DataCheck:
    """The result of checking a directory of training data.

    Attributes:
        problems: The problems, a sentence each, with the file's name in front; empty if there are
            none.
        samples: The number of readable samples.
        mean_tokens: Tokens per sample, without padding; 0 if there are none.
    """

    directory: str
    form: str
    files: int
    samples: int
    mean_tokens: float
    problems: tuple[str, ...]


def check(directory: Path) -> DataCheck:
    """Read all of a directory that `make` made, and compare it with its data.json.

    Raises:
        UsageError: data.json does not exist or can't be read.
    """
    document = read_document(directory / DATA)
    form = FORMATS[document.format]
    problems = list(_find_unlisted(directory, document))
    total, samples, tokens, is_damaged = hashlib.sha256(), 0, 0, False
    for entries in _group_entries(document, form):
        names = " and ".join(entry.name for entry in entries)
        try:
            for block in _read_blocks(directory, entries, document, form):
                samples += len(block.input_ids)
                progress.report("reading samples", samples, document.samples)
                tokens += int(block.lengths.sum())
                total.update(block.rows())
        except OSError as error:
            problems.append(f"{names}: {error.strerror or error}")
            is_damaged = True
        except (DamagedError, ValueError) as error:
            problems.append(f"{names}: {error}")
            is_damaged = True
    if form.is_complete and not is_damaged and total.hexdigest() != document.stream_sha256:
        problems.append("the samples differ from the digest in data.json")
    mean = tokens / samples if samples else 0.0
    files = len(document.files)
    return DataCheck(str(directory), document.format, files, samples, mean, tuple(problems))


def _read_blocks(
    directory: Path,
    entries: Sequence[FileEntry],
    document: DataDocument,
    form: DataFormat,
) -> Iterator[Samples]:
    """Yield the samples of files that belong together; raise DamagedError if they are invalid."""
    _compare_files(directory, entries)
    count = 0
    for block in form.read([directory / entry.name for entry in entries]):
        _check_block(block, document, form)
        count += len(block.input_ids)
        yield block
    if count != entries[0].samples:
        raise DamagedError(f"it has {count} samples, not {entries[0].samples}")


def _group_entries(document: DataDocument, form: DataFormat) -> Iterator[Sequence[FileEntry]]:
    """Yield the entries of files that are read together."""
    entries = document.files
    size = len(form.names(0, 1))
    for start in range(0, len(entries), size):
        yield entries[start : start + size]


def _find_unlisted(directory: Path, document: DataDocument) -> Iterator[str]:
    """Yield files that programs would read although they are not in data.json."""
    listed_names = {entry.name for entry in document.files}
    for path in sorted((directory / FOLDER).glob("*")):
        name = f"{FOLDER}/{path.name}"
        if name not in listed_names:
            yield f"{name}: data.json does not list it"
    vocabulary_path = directory / VOCABULARY
    if not vocabulary_path.is_file() or sha256(vocabulary_path) != document.vocabulary.sha256:
        yield f"{VOCABULARY}: missing, or not the one that the data were made with"


def _compare_files(directory: Path, entries: Sequence[FileEntry]) -> None:
    for entry in entries:
        path = directory / entry.name
        size = path.stat().st_size
        if size != entry.bytes:
            raise DamagedError(f"the file has {size} bytes, not {entry.bytes}")
        if sha256(path) != entry.sha256:
            raise DamagedError("its content has changed")


def _check_block(block: Samples, document: DataDocument, form: DataFormat) -> None:
    """Refuse samples that a program could not train on."""
    length, predictions = document.sequence_length, document.predictions
    if form.is_complete and block.input_ids.shape[1] != length:
        raise DamagedError(f"its samples have {block.input_ids.shape[1]} tokens, not {length}")
    if form.is_complete and block.masked_lm_positions.shape[1] != predictions:
        count = block.masked_lm_positions.shape[1]
        raise DamagedError(f"its samples have {count} predictions, not {predictions}")
    size = document.vocabulary.size
    for ids in (block.input_ids, block.masked_lm_ids):
        if ids.size and ids.max() >= size:
            raise DamagedError(f"token {ids.max()} is outside the vocabulary of {size}")
    lengths = block.lengths
    if block.masked_lm_positions.size and (block.masked_lm_positions.max(axis=1) >= lengths).any():
        raise DamagedError("a prediction is in the padding")
    if lengths.size and (lengths.min() < 5 or lengths.max() > length):  # noqa: PLR2004 - two words
        raise DamagedError("a sample is empty, or longer than the others")


@dataclass(frozen=True)
class SampleText:
    """One sample as text.

    Attributes:
        tokens: In the order of the file, without padding.
        masked: Position and original token of each prediction.
        label: Whether the second sentence is a random one; 0 in formats without it.
    """

    number: int
    file: str
    tokens: tuple[str, ...]
    masked: tuple[tuple[int, str], ...]
    label: int


def show(directory: Path, number: int) -> SampleText:
    """Read one sample, counted from 0.

    Raises:
        UsageError: The sample does not exist, or its file can't be read.
    """
    document = read_document(directory / DATA)
    form = FORMATS[document.format]
    vocabulary = (directory / VOCABULARY).read_text(encoding="utf-8").splitlines()
    remaining = number
    for entries in _group_entries(document, form):
        if remaining >= entries[0].samples:
            remaining -= entries[0].samples
            continue
        name = entries[0].name
        try:
            for block in form.read([directory / entry.name for entry in entries]):
                if remaining < len(block.input_ids):
                    return _to_text(block, remaining, number, name, vocabulary)
                remaining -= len(block.input_ids)
        except (OSError, DamagedError, ValueError) as error:
            hint = f"hpcbert data check {directory}"
            raise UsageError(
                f"The file can't be read: {describe_error(error)}.", where=name, hint=hint
            ) from error
    raise UsageError(
        f"There is no sample {number}.",
        where=str(directory),
        hint=f"Samples are numbered from 0 to {document.samples - 1}.",
    )


def _to_text(block: Samples, row: int, number: int, name: str, vocabulary: list[str]) -> SampleText:
    def word(token: int) -> str:
        return vocabulary[token] if token < len(vocabulary) else str(token)

    length = int(block.lengths[row])
    positions, originals = block.masked_lm_positions[row], block.masked_lm_ids[row]
    return SampleText(
        number=number,
        file=name,
        tokens=tuple(word(token) for token in block.input_ids[row, :length].tolist()),
        masked=tuple(
            (position, word(original))
            for position, original in zip(positions.tolist(), originals.tolist(), strict=True)
            if position
        ),
        label=int(block.next_sentence_labels[row]),
    )
