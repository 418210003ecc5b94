"""Making a directory of training data: file by file, resumable, whole once data.json exists.

DIR/data.json      written last: settings, counts, digests
DIR/vocab.txt      the vocabulary of the token ids
DIR/training/      the files that programs read, and nothing else
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from hpcbert.data import text
from hpcbert.data.formats import find
from hpcbert.data.samples import StreamSettings, Vocabulary, blocks, synthetic
from hpcbert.errors import HpcbertError, UsageError
from hpcbert.system import files as filing
from hpcbert.system import packages
from hpcbert.system.lock import LOCK, locked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from hpcbert.data.formats import DataFormat
    from hpcbert.data.samples import Integers, Samples

    Stream = Iterator[Samples]

DATA, FOLDER, VOCABULARY = "data.json", "training", "vocab.txt"
SCHEMA = 1
_BEGUN = ".making.json"
# The keys that readers of a data.json rely on.
_KINDS = {"format": str, "sequence_length": int, "predictions": int, "samples": int, "files": list}
_VOCABULARY_KINDS = {"size": int, "sha256": str}
_FILE_KINDS = {"name": str, "bytes": int, "sha256": str, "samples": int}
_MODE = 0o644
_MOST_FILES = 1 << 16
_USUAL_FILES = 32
# Space to leave free: a full file system hurts its other users.
_SPARE = 1 << 24


@dataclass(frozen=True)
class DataPlan:
    """A directory of training data to make.

    Attributes:
        directory: Its path; made if missing.
        form: A format's name.
        files: How many files; 0 for the format's usual number.
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


class _SampleSource(Protocol):
    """The source of samples: how many there are, and those with given numbers."""

    samples: int

    def take(self, numbers: Integers) -> Samples: ...


class _Synthetic:
    def __init__(self, plan: DataPlan, vocabulary: Vocabulary) -> None:
        self.samples = plan.stream.samples
        self._settings, self._vocabulary = plan.stream, vocabulary

    def take(self, numbers: Integers) -> Samples:
        return synthetic(numbers, self._settings, self._vocabulary)


class _Text:
    def __init__(self, paths: tuple[Path, ...], plan: DataPlan, vocabulary: Vocabulary) -> None:
        if plan.vocabulary is None:
            raise UsageError("A text needs a vocabulary.", hint="Name it: --vocab vocab.txt.")
        self._settings, self._vocabulary = plan.stream, vocabulary
        self._corpus = text.read_corpus(paths, plan.vocabulary, lowercase=plan.lowercase)
        self._pairs = text.pairs(self._corpus, plan.stream, plan.stream.samples)
        self.samples = len(self._pairs)

    def take(self, numbers: Integers) -> Samples:
        return text.samples_of(self._corpus, self._pairs, numbers, self._settings, self._vocabulary)


def make(
    plan: DataPlan, progress: Callable[[int, int], None] = lambda _, __: None
) -> dict[str, Any]:
    """Make training data, or continue an interrupted run; return the contents of data.json.

    Args:
        plan: The directory to make.
        progress: Receives the number of samples that are done, and the number of all.

    Raises:
        UsageError: The directory holds something else, a setting is invalid, or there is not enough
            space.
        HpcbertError: The file system refused.
    """
    form = find(plan.form)
    if not plan.stream.samples and not plan.text:
        raise UsageError("--samples 0 is out of range: 1 or more.")
    _check_packages(plan)
    _check_files(plan, form)
    vocabulary = text.read_vocabulary(plan.vocabulary) if plan.vocabulary else Vocabulary()
    paths = text.files_of(plan.text) if plan.text else ()
    words = plan.vocabulary.read_bytes() if plan.vocabulary else synthetic_words(vocabulary)
    begun = _begun(plan, vocabulary.size, words, paths)
    _refuse_other(plan.directory, begun)
    source = _Text(paths, plan, vocabulary) if paths else _Synthetic(plan, vocabulary)
    count = _file_count(plan, form, source.samples)
    with _errors_of(plan.directory):
        (plan.directory / FOLDER).mkdir(parents=True, exist_ok=True)
        with locked(plan.directory):
            _clear(plan.directory)
            making = _Making(plan, begun, source)
            filing.write_bytes(plan.directory / VOCABULARY, words, mode=_MODE)
            return making.run(count, progress)


def _clear(directory: Path) -> None:
    """Remove the part of one of these files that a killed run left."""
    for name in (_BEGUN, DATA, VOCABULARY):
        for path in filing.leftovers(directory / name):
            path.unlink()


class _Making:
    """One run of `make`, holding the directory."""

    def __init__(self, plan: DataPlan, begun: dict[str, Any], source: _SampleSource) -> None:
        self._directory, self._form = plan.directory, find(plan.form)
        self._begun, self._source = begun, source
        self._files = _finished(plan.directory)
        self._digest, self._tokens = hashlib.sha256(), 0
        _check_room(plan, self._form, source.samples, self._files)
        self._note()

    def _note(self) -> None:
        """Record the finished files, so that an interrupted run can continue."""
        _write(self._directory / _BEGUN, {**self._begun, "files": self._files})

    def _stream(self, begin: int, end: int, progress: Callable[[int, int], None]) -> Stream:
        for numbers in blocks(begin, end):
            block = self._source.take(numbers)
            self._digest.update(block.rows())
            self._tokens += int(block.lengths.sum())
            yield block
            progress(int(numbers[-1]) + 1, self._source.samples)

    def run(self, count: int, progress: Callable[[int, int], None]) -> dict[str, Any]:
        """Make the missing ones of `count` files; return the contents of data.json."""
        samples = self._source.samples
        known = {one["name"]: one for one in self._files}
        self._files = []
        for number in range(count):
            begin, end = (samples * at // count for at in (number, number + 1))
            stream = self._stream(begin, end, progress)
            names = self._form.names(number, count)
            before = [known[key] for name in names if (key := f"{FOLDER}/{name}") in known]
            if len(before) == len(names):
                # The file exists: only the digest of the whole stream still needs the samples.
                collections.deque(stream, maxlen=0)
                self._files += before
            else:
                self._files += _file(self._directory, self._form, names, stream, end - begin)
                self._note()
        document = {
            **self._begun,
            "samples": samples,
            "mean_tokens": self._tokens / samples,
            "stream_sha256": self._digest.hexdigest(),
            "files": self._files,
        }
        _write(self._directory / DATA, document)
        (self._directory / _BEGUN).unlink()
        return document


def _file(
    directory: Path, form: DataFormat, names: tuple[str, ...], stream: Iterator[Samples], rows: int
) -> list[dict[str, Any]]:
    """Write one file, or the two that belong together, under other names first."""
    folder = directory / FOLDER
    partial = [directory / f".{name}.partial" for name in names]
    try:
        form.write(partial, stream)
        entries = []
        for path, name in zip(partial, names, strict=True):
            entries.append({**_entry(path, f"{FOLDER}/{name}"), "samples": rows})
        for path, name in zip(partial, names, strict=True):
            path.replace(folder / name)
    finally:
        for path in partial:
            with contextlib.suppress(OSError):
                path.unlink()
    return entries


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file of any size."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            total.update(piece)
    return total.hexdigest()


def _entry(path: Path, name: str) -> dict[str, Any]:
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return {"name": name, "bytes": path.stat().st_size, "sha256": sha256(path)}


def _begun(plan: DataPlan, size: int, words: bytes, paths: tuple[Path, ...]) -> dict[str, Any]:
    """Return data.json before anything is made; `words` is a vocabulary of `size`."""
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


def _write(path: Path, document: Mapping[str, Any]) -> None:
    filing.write_text(path, json.dumps(document, indent=1) + "\n", mode=_MODE)


def read_document(path: Path) -> dict[str, Any]:
    """Return the contents of a data.json.

    Raises:
        UsageError: It is missing, damaged or has another version.
    """
    try:
        document = json.loads(filing.read(path))
    except OSError as error:
        hint = "`hpcbert data make` writes it last: run that again if it was interrupted."
        problem = error.strerror or str(error)
        raise UsageError(
            f"The file can't be read: {problem}.", where=str(path), hint=hint
        ) from error
    except ValueError as error:
        raise UsageError(
            "The file is not JSON.", where=str(path), hint="Make the data again."
        ) from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise UsageError(f"The file is not a data.json of schema {SCHEMA}.", where=str(path))
    if wrong := _damaged(document):
        hint = "Make the data again."
        raise UsageError(f"The key {wrong} is missing or damaged.", where=str(path), hint=hint)
    return document


def _damaged(document: Mapping[str, Any]) -> str:
    """Return the first key with a value that `make` does not write, else ""."""
    entries = document.get("files")
    tables = [
        ("", document, _KINDS),
        ("vocabulary.", document.get("vocabulary"), _VOCABULARY_KINDS),
    ]
    tables += (
        [("files.", entry, _FILE_KINDS) for entry in entries] if isinstance(entries, list) else []
    )
    for prefix, table, kinds in tables:
        for name, kind in kinds.items():
            if not isinstance(table, dict) or not isinstance(table.get(name), kind):
                return prefix + name
    return ""


def _refuse_other(directory: Path, begun: Mapping[str, Any]) -> None:
    """Refuse a directory that holds anything but the beginning of the same data."""
    try:
        held = {one.name for one in directory.iterdir()} if directory.exists() else set()
    except OSError as error:
        raise UsageError(f"{error.strerror}.", where=str(directory)) from error
    if not held - {LOCK}:
        return
    if _BEGUN not in held or DATA in held:
        what = "has complete data" if DATA in held else "is not empty"
        hint = "Name another directory."
        if DATA in held:
            hint = f"Check them: hpcbert data check {directory}. Or name another directory."
        raise UsageError(f"It {what}.", where=str(directory), hint=hint)
    before = read_document(directory / _BEGUN)
    differing = [name for name, value in begun.items() if before.get(name) != value]
    if differing:
        said = ", ".join(f"{name} = {before.get(name)!r}" for name in differing)
        hint = "Run the first command again, or name another directory."
        raise UsageError(
            f"An interrupted run began data here with {said}.", where=str(directory), hint=hint
        )


def _finished(directory: Path) -> list[dict[str, Any]]:
    """Return the entries of files that an interrupted run finished and that are still whole."""
    path = directory / _BEGUN
    if not path.exists():
        return []
    whole = []
    for entry in read_document(path)["files"]:
        file = directory / entry["name"]
        if file.is_file() and sha256(file) == entry["sha256"]:
            whole.append(entry)
    return whole


def _check_packages(plan: DataPlan) -> None:
    needed = ["h5py"] if plan.form == "hdf5" else []
    needed += ["tokenizers"] if plan.text else []
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        names = ", ".join(missing)
        raise UsageError(
            f"This command needs the Python package {names}.",
            hint=f"Install it: {packages.install('data')}",
        )


def _check_files(plan: DataPlan, form: DataFormat) -> None:
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


def _check_room(plan: DataPlan, form: DataFormat, samples: int, done: list[dict[str, Any]]) -> None:
    stream = plan.stream
    needed = samples * form.bytes_at_most(stream.length, stream.predictions)
    needed -= sum(entry["bytes"] for entry in done)
    free = shutil.disk_usage(plan.directory).free
    if needed + _SPARE > free:
        raise HpcbertError(
            f"{samples} samples take up to {needed >> 20} MiB, but only {free >> 20} MiB are free.",
            where=str(plan.directory),
            hint="Free some space, or request fewer samples.",
        )


@contextlib.contextmanager
def _errors_of(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = f"{filing.remedy(error)} Finished files are kept."
        raise HpcbertError(
            f"Can't write: {error.strerror}.", where=str(error.filename or directory), hint=hint
        ) from error
