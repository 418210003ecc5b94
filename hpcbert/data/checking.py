"""Checking and showing training data: every record of every file is read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcbert.data import making
from hpcbert.data.formats import DamagedError, DataFormat, find_format
from hpcbert.data.making import DataDocument, FileEntry
from hpcbert.data.samples import Samples
from hpcbert.errors import UsageError, describe_error
from hpcbert.system import progress


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
    document = making.read_document(directory / making.DATA)
    form = find_format(document.format)
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
    for path in sorted((directory / making.FOLDER).glob("*")):
        name = f"{making.FOLDER}/{path.name}"
        if name not in listed_names:
            yield f"{name}: data.json does not list it"
    vocabulary_path = directory / making.VOCABULARY
    if (
        not vocabulary_path.is_file()
        or making.sha256(vocabulary_path) != document.vocabulary.sha256
    ):
        yield f"{making.VOCABULARY}: missing, or not the one that the data were made with"


def _compare_files(directory: Path, entries: Sequence[FileEntry]) -> None:
    for entry in entries:
        path = directory / entry.name
        size = path.stat().st_size
        if size != entry.bytes:
            raise DamagedError(f"the file has {size} bytes, not {entry.bytes}")
        if making.sha256(path) != entry.sha256:
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
    document = making.read_document(directory / making.DATA)
    form = find_format(document.format)
    vocabulary = (directory / making.VOCABULARY).read_text(encoding="utf-8").splitlines()
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
