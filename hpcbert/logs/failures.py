"""Why a run failed, from its log: it lacked memory, or its last error line says why.

The log of a successful run is never searched: programs try again after some of these words.

Programs end with many lines about one error: every rank has its own, peers complain about ranks
that are gone, and launchers report exit statuses that are known anyway. The last line that names a
cause wins; a peer's complaint only if there is no cause, a signal only if there is neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from hpcbert.config.toml import read
from hpcbert.logs.grammar import FailureWords, Grammar
from hpcbert.logs.lines import LINE, NotALogError, cut_line, find_lines, read_pieces, remove_labels
from hpcbert.model import Device, JobOutput, Reason
from hpcbert.system.decode import decode

DEVICE: Final = "device-oom"
HOST: Final = "host-oom"
ERROR: Final = "error"
# The words for every program, whatever it printed before: Slurm killed a process for its memory.
#   slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been …
#   slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0 cgroup. Some of your processes …
_KILLED = FailureWords(
    HOST,
    "SchedMD/slurm, src/slurmd/slurmstepd",
    b"oom",
    re.compile(rb"^slurmstepd: error: Detected \d+ oom[-_]kill event", re.MULTILINE),
)
# The words of libraries; those of one program are in its recipe.
_LIBRARIES = Path(__file__).with_name("shortage.toml")
_ERRORS = Path(__file__).with_name("errors.toml")
_SENTENCES = {DEVICE: "the device ran out of memory", HOST: "the host ran out of memory"}
# Reasons against a run that the words may explain.
_CAUSED = frozenset({"state", "exit", "incomplete", "window"})
# The same for the last error line, which programs print too if they continue.
_ENDED = frozenset({"state", "exit", "incomplete"})
_SHOWN = 120
# The exit status after the kernel killed a process for memory: 128 and SIGKILL (mm/oom_kill.c).
_SIGKILL = 137
_SHOWN_LINE = 160
_TRACEBACK = b"traceback (most recent call last)"
# `[1,3]<stderr>:` of mpirun, `  3: ` of srun, `[rank3]: ` and `[n1:0] ` of programs.
_LABEL = re.compile(
    rb"(?:\[\d+,\d+\]<std(?:out|err|diag)>: ?|^ *\d+: |^\[[a-z]+-?\d+\]:? ?|^\[[\w.-]+:\d+\] )+"
)
# `vs003: ` of pdsh, which looks like a shell's own name.
_HOST = re.compile(rb"[a-z][\w.-]{0,63}: +")
# A traceback up to its first line that is not indented. Lines without its label are other ranks';
# Python itself cuts one that recurses.
_TRACEBACK_END = re.compile(
    rb"(?P<label>%s|[a-z][\w.-]{0,63}: |)[^\r\n]*?traceback \(most recent call last\)[^\n]*\n"
    rb"(?:(?P=label)(?:[ \t\r][^\n]*)?\n|(?!(?P=label))[^\n]*\n){0,400}"
    rb"(?P=label)(?P<end>\S[^\n]*)" % _LABEL.pattern,
    re.IGNORECASE | re.MULTILINE,
)
_EXCEPTION = (
    rb"(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*)?"
    rb"(?:Error|Exception|Interrupt|Expired|Iteration|SystemExit)"
)
# The job script's first line about an attempt (hpcbert/shell/job.bash, begin).
_BEGIN = re.compile(rb"hpcbert: repeat \d+ attempt (\d{1,9}) on ")
_NAME_ONLY = re.compile(rb"%s: *" % _EXCEPTION)


class Failure(NamedTuple):
    """Why a run failed.

    Attributes:
        kind: `device-oom` or `host-oom` for what it lacked, else `error`.
        said: The log's own words; a key of `logs --json`.
    """

    kind: str
    said: str

    def __str__(self) -> str:
        return f"{_SENTENCES[self.kind]}: {self.said}" if self.kind in _SENTENCES else self.said


def find_shortage(path: Path, grammar: Grammar, device: Device = "gpu") -> Failure | None:
    """Return the memory that a failed run lacked, from its log; None if the log does not say.

    The first words count: later ones may be other ranks' errors about their peers. But if Slurm
    killed a process for the host's memory, that is the cause of all others.

    Never raises, whatever the path leads to.

    Args:
        device: What the run computed on; the CPU's memory is the host's, whatever its name.
    """
    all_words = tuple(words for words in _list_words(grammar) if words.contains)
    first_failure: Failure | None = None
    try:
        with closing(read_pieces(path)) as pieces:
            for piece in pieces:
                for failure_words, failure in _find_failures(piece, all_words):
                    if failure_words is _KILLED:
                        return failure
                    first_failure = first_failure or failure
    except NotALogError:
        return None
    return first_failure._replace(kind=HOST) if first_failure and device == "cpu" else first_failure


def explain_failure(
    path: Path, grammar: Grammar, device: Device = "gpu", outputs: Sequence[JobOutput] = ()
) -> Failure | None:
    """Return the lack of memory that ended a run, or its last error line; None if unknown.

    Args:
        outputs: Its job script's output, searched if the log has no error: a step that never began
            has none.
    """
    if failure := find_shortage(path, grammar, device):
        return failure
    for file, attempt in ((path, None), *outputs):
        if error_line := last_error(file, attempt):
            return Failure(ERROR, error_line)
    return None


def shortage_signs(grammar: Grammar, device: Device) -> tuple[str, tuple[int, ...]]:
    """Return the signs of a failed run that lacked memory which the batch uses.

    They are a Perl regular expression that matches a line of its log, and exit statuses. That
    memory is the device's; on the CPU, and if the program chooses, the host's too.
    """
    uses_host_memory = device != "gpu"
    matching_words = [
        words for words in _list_words(grammar) if words.kind == DEVICE or uses_host_memory
    ]
    exits = [_SIGKILL] if uses_host_memory else []
    exits += [code for words in matching_words for code in words.exits]
    patterns = [words.match for words in matching_words if words.contains]
    return join_patterns(patterns), tuple(exits)


def join_patterns(patterns: Iterable[re.Pattern[bytes]]) -> str:
    """Return a Perl regular expression that matches wherever one of some patterns does."""
    return "(?J)" + "|".join(f"(?:{pattern.pattern.decode()})" for pattern in patterns)


def add_cause(
    path: Path,
    grammar: Grammar,
    reasons: Sequence[Reason],
    device: Device = "gpu",
    outputs: Sequence[JobOutput] = (),
) -> tuple[Reason, ...]:
    """Return the reasons against a run, with the failure that may explain them."""
    codes = {reason.code for reason in reasons}
    if codes & _ENDED:
        failure = explain_failure(path, grammar, device, outputs)
    else:
        failure = find_shortage(path, grammar, device) if codes & _CAUSED else None
    return (*reasons, Reason(failure.kind, str(failure))) if failure else tuple(reasons)


def explain_status(
    grammar: Grammar, reasons: Sequence[Reason], exit_status: int | None
) -> tuple[Reason, ...]:
    """Return the lack of memory that an exit status means, if the log does not say it."""
    codes = {reason.code for reason in reasons}
    if not codes & _CAUSED or codes & {DEVICE, HOST}:
        return ()
    for words in grammar.failures:
        if exit_status in words.exits:
            failure = Failure(words.kind, f"exit status {exit_status}")
            return (Reason(failure.kind, str(failure)),)
    return ()


def _list_words(grammar: Grammar) -> tuple[FailureWords, ...]:
    return (_KILLED, *_read_library_words(), *grammar.failures)


@cache
def _read_library_words() -> tuple[FailureWords, ...]:
    words = read(_LIBRARIES)["words"]
    return decode(tuple[FailureWords, ...], words, file=str(_LIBRARIES), path="words")


def _find_failures(
    data: bytes, words: tuple[FailureWords, ...]
) -> Iterable[tuple[FailureWords, Failure]]:
    texts = tuple(word.contains.lower() for word in words)
    for start, index, _, end in find_lines(data.lower(), texts):
        line, failure_words = cut_line(data, start, end)[0].text, words[index]
        match = failure_words.match.search(line) or failure_words.match.search(remove_labels(line))
        if match:
            text = match.string[match.start() :].split(b"\n")[0].decode(errors="replace")
            yield failure_words, Failure(failure_words.kind, " ".join(text.split())[:_SHOWN])


@cache
def _error_texts() -> tuple[bytes, ...]:
    return tuple(text.encode() for text in read(_ERRORS)["texts"])


@cache
def _error_pattern(kind: str) -> re.Pattern[bytes]:
    flags = re.IGNORECASE if kind in ("peers", "wrappers") else 0
    return re.compile("|".join(read(_ERRORS)[kind]).encode(), flags)


# An error line: how much it says, from 3 for a cause to 1 for a signal, and its text. Level 0: a
# line of the job script with which an attempt begins; the text is its number.
_ErrorLine = tuple[int, bytes]


def last_error(path: Path, attempt: int | None = None) -> str:
    """Return the last error line of a log; empty if it has none.

    Never raises, whatever the path leads to.

    Args:
        attempt: Whose lines count in an output with those of several attempts; None: all.
    """
    best_level, best_text = 0, b""
    writer: int | None = attempt
    with suppress(NotALogError), closing(read_pieces(path)) as pieces:
        for level, text in chain.from_iterable(map(_find_error_lines, pieces)):
            if level == 0 and attempt is not None:
                writer = int(text)
                if writer < attempt:
                    # What precedes the beginning of an earlier attempt is not this one's.
                    best_level, best_text = 0, b""
            elif level and writer == attempt and level >= best_level:
                best_level, best_text = level, text
    return " ".join(best_text.decode(errors="replace").split())[:_SHOWN_LINE]


def _find_error_lines(data: bytes) -> Iterator[_ErrorLine]:
    line_start, texts = -1, _error_texts()
    for start, index, _, end in find_lines(data.lower(), texts):
        line = data[start:end]
        if texts[index] == _TRACEBACK:
            line_start, error_line = start, _end_of_traceback(data, start)
        elif start == line_start:  # the same line by another of its words
            continue
        else:
            line_start, error_line = start, _parse_error_line(line, data, end)
        if error_line:
            yield error_line


def _parse_error_line(line: bytes, data: bytes, end: int) -> _ErrorLine | None:
    """Return the message of an error line; None for other lines."""
    text = _LABEL.sub(b"", line, count=1) if _LABEL.match(line) else line
    error_line = _classify_line(text)
    host_match = _HOST.match(text)
    if host_match and (error_line is None or error_line[1] == text):
        message = text[host_match.end() :]
        if re.match(rb"(?:%s)\b| *what\(\)" % _EXCEPTION, message):
            error_line = _classify_line(message) or error_line
    if error_line and _NAME_ONLY.fullmatch(error_line[1]):
        return error_line[0], _append_next_line(error_line[1], data, end)
    return error_line


def _classify_line(text: bytes) -> _ErrorLine | None:
    if begin_match := _BEGIN.match(text):
        return 0, begin_match[1]
    if signal_match := _error_pattern("signals").search(text):
        return 1, signal_match[1] or signal_match[2]
    if _error_pattern("wrappers").search(text):
        return None
    for level, kind in ((3, "causes"), (2, "hints")):
        if _error_pattern(kind).match(text):
            return 2 if _error_pattern("peers").search(text) else level, text.strip()
    return None


def _end_of_traceback(data: bytes, start: int) -> _ErrorLine | None:
    """Return the line that ends a traceback: the first one that is not indented."""
    match = _TRACEBACK_END.match(data, start)
    if match is None:
        return None
    line = match["end"][:LINE].rstrip(b"\r").rpartition(b"\r")[2]
    if _error_pattern("wrappers").search(line) or line.lower().startswith(_TRACEBACK):
        return None
    if _NAME_ONLY.fullmatch(line):
        line = _append_next_line(line, data, match.end())
    return 2 if _error_pattern("peers").search(line) else 3, line.strip()


def _append_next_line(text: bytes, data: bytes, end: int) -> bytes:
    """Return an exception's name and the next informative line: the name alone says nothing."""
    lines = data[end + 1 : end + 1 + LINE].split(b"\n") if b":" in text else []
    texts = (_LABEL.sub(b"", line).strip() for line in lines)
    return (text.strip() + b" " + next(filter(None, texts), b"")).rstrip()
