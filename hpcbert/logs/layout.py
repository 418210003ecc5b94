"""Which log is which repeat: what a path says about the run that wrote the file.

DLPerf's layout is known: `…/<N>n<G>g/<model>_b<batch>_<precision>_<run>.log`
(Oneflow-Inc/DLPerf@c89430b, the README of each framework), with its deviations: run numbers from 0
and an underscore in the model's name (OneFlow), `bert-base-adam-training` as the model's name and
other folders above (NGC PyTorch). A pattern with named fields describes any other layout.

Known are also MLPerf's `results/SYSTEM/BENCHMARK/result_N.txt`, Slurm's `slurm-%j.out`,
`%x_%j.out`, `slurm-%A_%a.out` and `%x_%j_%t.out` (sbatch(1), filename pattern), and words such as
`fp16`, `bs96`, `gpu32` and `N1C8` in the names of PaddlePaddle/Perf@e7a07c4 and of flat folders.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from hpcbert.errors import UsageError
from hpcbert.logs.lines import SUFFIXES
from hpcbert.model import ARCHIVE, MANIFEST, PRECISIONS, REMOVED
from hpcbert.system.decode import did_you_mean

_PACKED_END = re.compile(rf"\.(?:{'|'.join(SUFFIXES)})$")
_OTHER_LOG = re.compile(
    r"\.(?:log|out|txt|stdout|stderr)(?:[.~_-]\w*)?$|[._-]log$|\.[oe]\d+$|^(?:log|stdout|output)$",
    re.IGNORECASE,
)
# Files that programs write beside their logs, or instead of them, the most detailed first:
# transformers' Trainer, PerfZero (tensorflow/benchmarks@0729ada, benchmark_method_runner.py) and
# optimum-benchmark (huggingface/optimum-benchmark@0a334f2, report.py).
_FILES = (
    "trainer_state.json",
    "perfzero_summary.json",
    "benchmark_report.json",
    "benchmark.json",
    "all_results.json",
    "train_results.json",
)
_CHECKPOINT = re.compile(r"checkpoint-\d+")
_RESULT = re.compile(r"result_(?:\w+_)?(?P<repeat>\d{1,3})\.txt")
# Output of one task of a job. The default name of an array's element has the same form, but begins
# with `slurm`.
_TASK = re.compile(r"(?P<run>(?!slurm-).*?[_.-]\d{2,})[_.-](?P<task>\d{1,5})(?P<suffix>\.\w+)")
_NAME_WORDS = (
    re.compile(r"(?P<nodes>[1-9]\d*)n(?P<gpus_per_node>[1-9]\d*)g"),
    re.compile(r"N(?P<nodes>[1-9]\d*)C(?P<gpus_per_node>[1-9]\d*)"),
    re.compile(r"gpus?(?P<gpus>[1-9]\d*)", re.IGNORECASE),
    re.compile(r"(?P<gpus>[1-9]\d*)gpus?", re.IGNORECASE),
    re.compile(r"(?:bs|bz|batch|batchsize|mbs)(?P<batch_size>[1-9]\d*)", re.IGNORECASE),
    re.compile(r"(?P<precision>fp32|tf32|fp16|bf16|fp8|amp)", re.IGNORECASE),
)
_MODEL = re.compile(r"bert[-_](base|large)(?![A-Za-z])", re.IGNORECASE)
# Numbers of runs and of jobs; others, as in `seqlen128`, tell experiments apart.
_NUMBER = re.compile(
    r"(?P<word>(?:run|rep|repeat|trial|try|job|log|out|r)?)(?P<number>\d+)", re.IGNORECASE
)
_MAX_REPEAT = 100


def _is_superseded(path: Path) -> bool:
    """Return whether a file in a checkpoint's folder has a later one of the same run."""
    if not _CHECKPOINT.fullmatch(path.parent.name):
        return False
    run = path.parent.parent
    folders = [file.parent.name for file in run.glob(f"checkpoint-*/{path.name}")]
    return (run / path.name).exists() or path.parent.name != max(folders, key=natural_key)


def _take_word(word: str, fields: dict[str, str]) -> bool:
    for pattern in _NAME_WORDS:
        if match := pattern.fullmatch(word):
            fields |= {**match.groupdict(), **fields}
            return True
    return False


# --- Names without a documented form --------------------------------------------------------------

_PRECISION = "|".join((*PRECISIONS, "amp"))
_PACKED = rf"(?:\.(?:{'|'.join(SUFFIXES)}))?"
_NAME = re.compile(
    rf"(?P<model>[A-Za-z][\w.-]*?)_b(?P<batch_size>\d+)_(?P<precision>{_PRECISION})"
    r"_(?P<repeat>\d+)(?:\.r(?P<attempt>\d+))?\.(?:log|txt|out)" + _PACKED
)
# What marks other logs by name: the ending, or all that precedes it in DLPerf's names.
_LOG = re.compile(
    rf"\.(?:log|out)(?:[.~_-]\w*)?$|_b\d+_(?:{_PRECISION})_\w+(?:\.txt)?$", re.IGNORECASE
)
# Folders of DLPerf that describe all logs below them.
_LABELS = (
    re.compile(rf"(?:logs-)?(?P<precision>{_PRECISION})"),
    re.compile(r"(?P<precision>fp32|fp16|amp)_ngc_bert_b(?P<batch_size>\d+)"),
    re.compile(r"bz(?P<batch_size>\d+)"),
)
_SHAPE = re.compile(r"(?P<nodes>[1-9]\d*)n(?P<gpus_per_node>[1-9]\d*)g")
_TOKEN = re.compile(r"\{(\w*)\}|(\*)|([^{*]+|\{)")
_DIGITS = re.compile(r"(\d+)")
_FIELD_PATTERNS = {"precision": f"(?:{_PRECISION})", "framework": "[^/]+?", "model": "[^/]+?"}
_WORDS = {*_FIELD_PATTERNS, "place"}
_MIXED = "fp16"  # The meaning of `amp` on the GPUs of DLPerf's tables.


class LogFile(NamedTuple):
    """A log and what its path says; None if the path does not say.

    Attributes:
        place: The path above what names the run: logs of different places are of different
            experiments.
        form: The name without what differs between the runs of one experiment; None for DLPerf's
            names and those of a pattern.
        run: The run that several tasks wrote, by its files' common part; empty for a single file.
        task: Number of the task that wrote the file.
        is_numbered: Whether a layout numbers the repeats, so that a gap is a missing one.
        guesses: Names of the fields that its words suggest: the user knows better.
        rank: For a file beside a log: its place among those of one run, from 1; 0 for a log.
    """

    path: Path
    framework: str | None = None
    model: str | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    gpus: int | None = None
    batch_size: int | None = None
    precision: str | None = None
    repeat: int | None = None
    attempt: int = 0
    place: str = ""
    form: str | None = None
    run: str = ""
    task: int = 0
    is_numbered: bool = False
    guesses: tuple[str, ...] = ()
    rank: int = 0

    @property
    def is_wanted(self) -> bool:
        """Whether its name is that of a log, so that a number may be missing without it."""
        return self.form is None or self.is_numbered or bool(_LOG.search(self.path.name))

    @property
    def of_point(self) -> tuple[object, ...]:
        """Everything that the path says about the run's point, and its folder."""
        return (*self[1:8], self.form is not None and self.path.parent)


class LeftOut(NamedTuple):
    """A file that was read but is in no table.

    Attributes:
        wanted: Whether it looks like a log, or was named, so that a number may be missing.
        other: The file with which the clause ends; empty if it is whole.
    """

    path: Path
    reason: str
    wanted: bool
    other: str = ""

    @property
    def why(self) -> str:
        """The whole clause."""
        return f"{self.reason} {self.other}".rstrip()


FIELDS = LogFile._fields[1 : LogFile._fields.index("place")]


class Discovery(NamedTuple):
    """The findings under some paths.

    Attributes:
        logs: Logs outside of campaigns, in natural order, and files that may be logs by their
            names.
    """

    campaigns: tuple[Path, ...]
    logs: tuple[LogFile, ...]
    warnings: tuple[str, ...]
    left_out: tuple[LeftOut, ...] = ()


def is_archive(path: Path) -> bool:
    """Return whether a path has the suffix of a campaign's archive and is not a directory."""
    return path.suffix.lower() == ARCHIVE and not path.is_dir()


def discover(paths: Sequence[Path], pattern: str = "") -> Discovery:
    """Find campaigns and logs; a file that is named explicitly is taken whatever its name.

    Args:
        pattern: How to read paths, with `{fields}` and `*`; empty for DLPerf's layout.

    Raises:
        UsageError: A path is missing, a directory has no log, the pattern is wrong, or nothing
            matches it.
    """
    # Links may lead elsewhere by now.
    _match_folders.cache_clear()
    findings = _Findings(pattern)
    for path in paths:
        files = _walk(path, findings.warnings)
        are_taken = [findings.take(file, is_named=file == path) for file in files]
        if not any(are_taken) and (path.is_dir() or len(paths) == 1):
            raise _no_log_error(path, pattern)
    if not (findings.campaigns or findings.logs or findings.candidates):
        raise _no_log_error(paths[0], pattern)
    return findings.discovery()


class _Findings:
    """The findings so far."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.match = _pattern_reader(pattern) if pattern else _read_dlperf
        self.campaigns: dict[str, Path] = {}
        self.logs: dict[str, LogFile] = {}
        self.candidates: dict[str, LogFile] = {}
        self.rest: dict[str, LeftOut] = {}
        self.links: list[LeftOut] = []
        self.warnings: list[str] = []

    def take(self, path: Path, *, is_named: bool) -> bool:
        """Take a file; return whether it is a campaign, or may be a log."""
        # The same for all links to it.
        folder = _match_folders(path.parent)[1]
        is_link = os.path.islink(path)  # noqa: PTH114 - Path.is_symlink raises without access
        identity = os.path.realpath(path) if is_link else str(Path(folder, path.name))
        if path.name == MANIFEST and not is_named:
            self.campaigns.setdefault(identity, path.parent)
        elif (log := self.match(path)) or (is_named and not self.pattern):
            self._log(log or _read_other(path, is_named=True) or LogFile(path), identity)
        elif not self.pattern and (candidate := _read_other(path)):
            self.candidates.setdefault(identity, candidate)
        else:
            # MLPerf's descriptions of systems are read with the logs of their systems.
            if self.pattern or path.parent.name != "systems" or path.suffix != ".json":
                self.rest.setdefault(identity, self._left_out(path, is_named=is_named))
            return False
        return True

    def _log(self, log: LogFile, identity: str) -> None:
        earlier_log = self.logs.setdefault(identity, log)
        if earlier_log is log:
            return
        if earlier_log.path.absolute() != log.path.absolute() and log.path.is_symlink():
            text = f"it is a link to {printable_path(earlier_log.path)}, which was read"
            self.links.append(LeftOut(log.path, text, wanted=False))

    def _left_out(self, path: Path, *, is_named: bool) -> LeftOut:
        if self.pattern:
            return LeftOut(path, f"it does not match the pattern {self.pattern}", wanted=is_named)
        if _LOG.search(path.name) is None:
            return LeftOut(path, "it does not have the name of a log", wanted=False)
        text = "it does not have a name in DLPerf's form (bert_b32_fp32_1.log)"
        return LeftOut(path, text, wanted=True)

    def discovery(self) -> Discovery:
        """Return the findings, logs in natural order.

        Files of other names are logs, unless DLPerf's names are in or below their folder.
        """
        folders = {log.path.absolute().parent for log in self.logs.values()}
        folders = folders.union(*(folder.parents for folder in folders))
        for identity, candidate in self.candidates.items():
            if experiment_folder(candidate.path.absolute()) in folders:
                self.rest.setdefault(identity, self._left_out(candidate.path, is_named=False))
            else:
                self._log(candidate, identity)
        other_files = [file for identity, file in self.rest.items() if identity not in self.logs]
        return Discovery(
            campaigns=tuple(self.campaigns.values()),
            logs=tuple(sorted(self.logs.values(), key=lambda log: natural_key(str(log.path)))),
            warnings=tuple(self.warnings),
            left_out=(*other_files, *self.links),
        )


def printable_path(path: Path) -> str:
    """Return a path as text that can be printed, whatever bytes its name is made of."""
    return os.fsencode(path).decode("utf-8", "replace")


def natural_key(text: str) -> list[str | int]:
    """Return a sorting key that puts 2n8g before 10n8g."""
    # Texts and numbers alternate, so that numbers are only compared with numbers.
    parts: list[str | int] = [*_DIGITS.split(text)]
    parts[1::2] = map(int, parts[1::2])
    return parts


def _walk(path: Path, warnings: list[str]) -> Iterator[Path]:
    """Yield the files under a path, for a campaign only its manifest.

    Links to directories are followed, each directory once.
    """
    if not path.is_dir():
        if not path.exists():
            raise UsageError("There is no such file or directory.", where=printable_path(path))
        yield path
        return

    def note_unreadable(error: OSError) -> None:
        if error.filename == str(path):
            raise error
        folder = printable_path(Path(error.filename))
        warnings.append(f"{folder}: can't be read: {error.strerror}.")

    visited: set[str] = set()
    for folder, children, files in os.walk(path, onerror=note_unreadable, followlinks=True):
        identity = os.path.realpath(folder)
        if identity in visited:
            children.clear()
            continue
        visited.add(identity)
        if MANIFEST in files:
            children.clear()
            yield Path(folder, MANIFEST)
            continue
        children[:] = sorted(
            (name for name in children if not name.startswith(REMOVED)), key=natural_key
        )
        yield from (Path(folder, file) for file in sorted(files, key=natural_key))


def _no_log_error(path: Path, pattern: str) -> UsageError:
    if pattern:
        return UsageError(f"No log matches the pattern {pattern!r}.", where=printable_path(path))
    return UsageError(
        "No log has a name in DLPerf's form (…/4n8g/bert_b32_fp32_1.log), and no file another name "
        "of a log (run1.log, slurm-4711.out, result_1.txt).",
        where=printable_path(path),
        hint="Describe the paths, for example "
        "--pattern '{nodes}n{gpus_per_node}g/run{repeat}.log', or name the files themselves.",
    )


def _describe_folders(path: Path) -> LogFile:
    """Read shape, precision and batch size from the nearest folders that name them."""
    matches, place = _match_folders(path.parent)
    log = LogFile(path, place=place)
    for match in matches:
        log = _add_fields(log, match.groupdict())
    return log


@cache
def _match_folders(folder: Path) -> tuple[list[re.Match[str]], str]:
    """Return the nearest match of each pattern in a folder's path, and the folder's real path."""
    names = folder.absolute().parts[::-1]
    nearest = [
        next(filter(None, map(pattern.fullmatch, names)), None) for pattern in (_SHAPE, *_LABELS)
    ]
    return [match for match in nearest if match], os.path.realpath(folder)


def experiment_folder(path: Path) -> Path:
    """Return the folder of a log's experiment: the nearest that does not name shape or labels."""
    return _find_experiment(path.parent)


@cache
def _find_experiment(folder: Path) -> Path:
    while any(pattern.fullmatch(folder.name) for pattern in (_SHAPE, *_LABELS)):
        folder = folder.parent
    return folder


def _read_dlperf(path: Path) -> LogFile | None:
    match = _NAME.fullmatch(path.name)
    return _add_fields(_describe_folders(path), match.groupdict()) if match else None


def _read_other(path: Path, *, is_named: bool = False) -> LogFile | None:
    """Read a path whose name has another form; None if it is not that of a log.

    Files that the user names one by one are of one experiment, unless their names number them.
    """
    text = _PACKED_END.sub("", path.name)
    is_file = text in _FILES and not _is_superseded(path)
    if not is_file and _OTHER_LOG.search(text) is None:
        return _describe_folders(path)._replace(form="") if is_named else None
    log, fields = _describe_folders(path), {}
    if is_file:
        log = log._replace(form="files", rank=_FILES.index(text) + 1)
    elif result := _RESULT.fullmatch(text):
        log, fields = log._replace(form="result", is_numbered=True), result.groupdict()
    else:
        log, fields = _read_words(log, text)
    if is_named and not (log.is_numbered or "#" in str(log.form)):
        log = log._replace(form="")
    else:
        log = log._replace(place=f"{log.place}/{log.form}")
    return _add_fields(log, fields)


def _read_words(log: LogFile, text: str) -> tuple[LogFile, dict[str, str]]:
    """Return a log with the form of its name, and the fields that the words of the name state."""
    if task := _TASK.fullmatch(text):
        text = task["run"] + task["suffix"]
        log = log._replace(run=task["run"], task=int(task["task"]))
    words = re.split(r"[_.\-]", text)
    fields: dict[str, str] = {}
    form_words = [word for word in words if not _take_word(word, fields)]
    if model := _MODEL.search(text):
        fields["model"] = f"bert-{model[1].lower()}"
    numbers = [match["number"] for word in form_words if (match := _NUMBER.fullmatch(word))]
    if numbers and int(numbers[-1]) <= _MAX_REPEAT and not task:
        fields["repeat"] = numbers[-1]
    form = "_".join(_NUMBER.sub(r"\g<word>#", word) for word in form_words)
    return log._replace(form=form, guesses=tuple(fields)), fields


def _pattern_reader(pattern: str) -> Callable[[Path], LogFile | None]:
    expression = re.compile(
        r"(?P<place>(?:.*/)?)" + _compile_pattern(pattern) + _PACKED, re.IGNORECASE
    )
    tells_shape = {"nodes", "gpus_per_node", "gpus"} & set(expression.groupindex)

    def describe(path: Path) -> LogFile | None:
        match = expression.fullmatch(str(path.absolute()))
        described_log = LogFile(path) if tells_shape else _describe_folders(path)
        # For other names of folders, use a pattern.
        folder_log = described_log._replace(precision=None, batch_size=None)
        return _add_fields(folder_log, match.groupdict()) if match else None

    return describe


def _compile_pattern(pattern: str) -> str:
    parts: list[str] = []
    used_names: set[str] = set()
    for name, star, literal in _TOKEN.findall(pattern):
        if star or literal:
            parts.append("[^/]*" if star else re.escape(literal))
        elif name not in FIELDS:
            raise UsageError(f"--pattern has no field {{{name}}}.", hint=did_you_mean(name, FIELDS))
        elif name in used_names:
            parts.append(f"(?P={name})")
        else:
            used_names.add(name)
            field_pattern = _FIELD_PATTERNS.get(name, r"\d+")
            parts.append(f"(?P<{name}>{field_pattern})")
    return "".join(parts)


def _add_fields(log: LogFile, fields: Mapping[str, str | None]) -> LogFile:
    field_values: dict[str, Any] = {
        name: text if name in _WORDS else int(text) for name, text in fields.items() if text
    }
    if "precision" in field_values:
        word = str(field_values["precision"]).lower()
        field_values["precision"] = _MIXED if word == "amp" else word
    for name in ("precision", "batch_size"):
        folder_value = getattr(log, name)
        if name in field_values and folder_value is not None and folder_value != field_values[name]:
            message = f"The path says {name} = {folder_value} and {name} = {field_values[name]}."
            hint = "Rename one, or use a --pattern with * in its place."
            raise UsageError(message, where=printable_path(log.path), hint=hint)
    return log._replace(**field_values)
