"""Make a directory of training data, check it, and show a sample of it.

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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hpcbert.campaign import store
from hpcbert.errors import HpcbertError, UsageError, describe_error
from hpcbert.model import FormatName
from hpcbert.prepare.data_formats import FORMATS, Sample, read_sample
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
from hpcbert.prepare.parts import make_alone
from hpcbert.system import machine, workers
from hpcbert.system.decode import IgnoreUnknown, decode
from hpcbert.system.files import hash_file, translate_errors, write_bytes, write_text

DATA, FOLDER, VOCABULARY = "data.json", "training", "vocab.txt"
SCHEMA = 1
_MOST_FILES = 1 << 16
_USUAL_FILES = 32


@dataclass(frozen=True)
class DataPlan:
    """A directory of training data to make.

    Attributes:
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

    They are made next to their place, and moved there when they are complete.
    """
    form = FORMATS[plan.form]
    if not plan.stream.samples and not plan.text:
        raise UsageError("--samples 0 is out of range: 1 or more.")
    needed = list(form.packages)
    needed += ["tokenizers"] if plan.text else []
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        hint = f"Install it: {machine.install_command('data')}"
        raise UsageError(f"This command needs the Python package {', '.join(missing)}.", hint=hint)
    most = form.most_files or _MOST_FILES
    if not 0 <= plan.files <= most:
        raise UsageError(f"--files {plan.files} is out of range: 1 to {most} for {plan.form}.")
    words = synthetic_words(plan.stream.vocabulary)
    if plan.vocabulary:
        stream = replace(plan.stream, vocabulary=read_vocabulary(plan.vocabulary))
        words = plan.vocabulary.read_bytes()
        plan = replace(plan, stream=stream)
    paths = find_files(plan.text) if plan.text else ()
    place = plan.directory.resolve()
    _refuse_content(place)
    samples, take = _open_source(plan, paths)
    count = plan.files or form.most_files or min(_USUAL_FILES, samples)
    if count > samples:
        hint = "Request fewer files."
        raise UsageError(f"{samples} samples don't fill {count} files.", hint=hint)
    unfinished = place.with_name(f".{place.name}.unfinished")
    with make_alone(unfinished, "data directory"), translate_errors("write", place):
        _check_space(plan, unfinished.parent, samples)
        (unfinished / FOLDER).mkdir(parents=True)
        write_bytes(unfinished / VOCABULARY, words)
        document = _describe_plan(plan, words, paths)
        document |= _write_files(plan.form, unfinished / FOLDER, samples, take, count)
        write_text(unfinished / DATA, json.dumps(document, indent=1) + "\n")
        unfinished.rename(place)
    return document


def _check_space(plan: DataPlan, directory: Path, samples: int) -> None:
    """Refuse to fill a file system: that hurts its other users."""
    stream = plan.stream
    # A masked position takes 12 bytes more, and a record's frame 256 at most.
    token_bytes = FORMATS[plan.form].token_bytes
    needed = samples * (token_bytes * stream.length + 12 * stream.predictions + 256)
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise HpcbertError(
            f"{samples} samples take up to {needed >> 20} MiB, but only {free >> 20} MiB are free.",
            where=str(plan.directory),
            hint="Free some space, or request fewer samples.",
        )


def _refuse_content(directory: Path) -> None:
    try:
        names = {path.name for path in directory.iterdir()} if directory.exists() else set()
    except OSError as error:
        raise UsageError(f"{error.strerror}.", where=str(directory)) from error
    if names:
        problem = "It has complete data." if DATA in names else "It is not empty."
        raise UsageError(problem, where=str(directory), hint="Name another directory.")
    if directory.is_mount():
        problem = "A file system is mounted there, so that no finished data can be moved there."
        raise UsageError(problem, where=str(directory), hint="Name a directory in it.")


def _open_source(
    plan: DataPlan, paths: tuple[Path, ...]
) -> tuple[int, Callable[[Integers], Samples]]:
    """Return the number of samples, and a function that makes samples by their numbers."""
    settings = plan.stream
    if not paths:
        return settings.samples, lambda numbers: make_synthetic(numbers, settings)
    if plan.vocabulary is None:
        raise UsageError("A text needs a vocabulary.", hint="Name it: --vocab vocab.txt.")
    corpus = read_corpus(paths, plan.vocabulary, lowercase=plan.lowercase)
    pairs = pair_sentences(corpus, settings, settings.samples)
    return len(pairs), lambda numbers: make_samples(corpus, pairs, numbers, settings)


def _write_files(
    form: str, folder: Path, samples: int, take: Callable[[Integers], Samples], count: int
) -> dict[str, Any]:
    digest, tokens = hashlib.sha256(), 0

    def read(begin: int, end: int) -> Iterator[Samples]:
        nonlocal tokens
        for numbers in number_blocks(begin, end):
            block = take(numbers)
            digest.update(block.rows())
            tokens += int(block.lengths.sum())
            yield block
            workers.report("making samples", int(numbers[-1]) + 1, samples)

    entries: list[dict[str, Any]] = []
    for number in range(count):
        begin, end = samples * number // count, samples * (number + 1) // count
        paths = [folder / name for name in FORMATS[form].names(number, count)]
        FORMATS[form].write(paths, read(begin, end))
        for path in paths:
            with path.open("rb") as file:
                os.fsync(file.fileno())
            size, sha256 = hash_file(path)
            content = {"bytes": size, "sha256": sha256}
            entries.append({"name": f"{FOLDER}/{path.name}", **content, "samples": end - begin})
    return {
        "samples": samples,
        "mean_tokens": tokens / samples,
        "stream_sha256": digest.hexdigest(),
        "files": entries,
    }


def _describe_plan(plan: DataPlan, words: bytes, paths: tuple[Path, ...]) -> dict[str, Any]:
    stream, digest = plan.stream, hashlib.sha256(words).hexdigest()
    size = stream.vocabulary.size
    return {
        "schema": SCHEMA,
        "format": plan.form,
        "synthetic": not paths,
        "text_sha256": [hash_file(path)[1] for path in paths],
        "lowercase": plan.lowercase if paths else None,
        "sequence_length": stream.length,
        "predictions": stream.predictions,
        "samples": stream.samples,
        "fill": None if paths else stream.fill,
        "seed": stream.seed,
        "vocabulary": {"name": VOCABULARY, "size": size, "sha256": digest},
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
    samples: int
    mean_tokens: float
    vocabulary: VocabularyEntry
    files: tuple[FileEntry, ...]


def read_document(path: Path) -> DataDocument:
    """Read a data.json.

    Raises:
        UsageError: It is missing, damaged or has another version.
    """
    try:
        document = store.read_json(path)
    except UsageError as error:
        raise error.with_hint("hpcbert data make writes it last: run that again.") from error
    return decode(DataDocument, document, file=str(path))


# --- Checking and showing -------------------------------------------------------------------------


@dataclass(frozen=True)
class DataCheck:
    """The result of checking a directory of training data.

    Attributes:
        problems: A sentence each, with the file's name in front; empty if there are none.
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
    step = len(FORMATS[document.format].names(0, 1))  # files with the same samples
    problems, samples = list(_find_unlisted(directory, document)), 0
    for number, entry in enumerate(document.files):
        if problem := _compare_file(directory / entry.name, entry):
            problems.append(f"{entry.name}: {problem}")
        elif number % step == 0:
            samples += entry.samples
            workers.report("reading samples", samples, document.samples)
    return DataCheck(
        str(directory),
        document.format,
        len(document.files),
        samples,
        document.mean_tokens,
        tuple(problems),
    )


def _find_unlisted(directory: Path, document: DataDocument) -> Iterator[str]:
    listed_names = {entry.name for entry in document.files}
    for path in sorted((directory / FOLDER).glob("*")):
        name = f"{FOLDER}/{path.name}"
        if name not in listed_names:
            yield f"{name}: data.json does not list it"
    vocabulary_path = directory / VOCABULARY
    if not vocabulary_path.is_file() or hash_file(vocabulary_path)[1] != document.vocabulary.sha256:
        yield f"{VOCABULARY}: missing, or not the one that the data were made with"


def _compare_file(path: Path, entry: FileEntry) -> str:
    try:
        size = path.stat().st_size
        if size != entry.bytes:
            return f"the file has {size} bytes, not {entry.bytes}"
        return "" if hash_file(path)[1] == entry.sha256 else "its content has changed"
    except OSError as error:
        return describe_error(error)


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
    words = (directory / VOCABULARY).read_text(encoding="utf-8").splitlines()
    remaining = number
    for entry in document.files[:: len(FORMATS[document.format].names(0, 1))]:
        if remaining < entry.samples:
            try:
                sample = read_sample(directory / entry.name, document.format, remaining)
                return _to_text(sample, number, entry.name, words)
            except (OSError, ValueError, LookupError) as error:
                problem = f"The file can't be read: {describe_error(error)}."
                hint = f"hpcbert data check {directory}"
                raise UsageError(problem, where=entry.name, hint=hint) from error
        remaining -= entry.samples
    hint = f"Samples are numbered from 0 to {document.samples - 1}."
    raise UsageError(f"There is no sample {number}.", where=str(directory), hint=hint)


def _to_text(sample: Sample, number: int, name: str, words: list[str]) -> SampleText:
    def look_up(tokens: Iterable[int]) -> list[str]:
        return [words[token] if 0 <= token < len(words) else str(token) for token in tokens]

    ids = sample["input_ids"]
    # Formats without a mask name the length, or hold no padding.
    length = sample["input_mask"].sum() if "input_mask" in sample else sample.get("valid_lengths")
    positions = sample.get("masked_lm_positions", np.zeros(0, dtype=np.int64)).tolist()
    originals = look_up(sample["masked_lm_ids"].tolist()) if positions else []
    return SampleText(
        number=number,
        file=name,
        tokens=tuple(look_up(ids[: None if length is None else int(length)].tolist())),
        masked=tuple(pair for pair in zip(positions, originals, strict=True) if pair[0]),
        label=int(sample["next_sentence_labels"].item()),
    )
