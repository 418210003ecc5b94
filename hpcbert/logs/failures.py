"""Why a run failed by the words of its log: it lacked memory, or the last error line says why.

A log of a run that ended well is never read for it: programs try again after some of these words.
"""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

from hpcbert.logs.grammar import FailureWords
from hpcbert.logs.lines import NotALogError, bodies, cut_line, find_lines, unlabelled
from hpcbert.model import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from hpcbert.logs.grammar import Grammar
    from hpcbert.model import Device

DEVICE: Final = "device-oom"
HOST: Final = "host-oom"
ERROR: Final = "error"
# What says so for every program, whatever it printed before: Slurm killed one for its memory.
#   slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been …
#   slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0 cgroup. Some of your processes …
_KILLED = FailureWords(
    HOST,
    "SchedMD/slurm, src/slurmd/slurmstepd",
    b"oom",
    re.compile(rb"^slurmstepd: error: Detected \d+ oom[-_]kill event", re.MULTILINE),
)
# The words of what many frameworks stand on; a framework's own are its recipe's.
_COMMON = (
    FailureWords(
        DEVICE,
        "NVIDIA/nccl, src/include/checks.h; printed in NVIDIA/nccl#962",
        b"cuda failure ",
        re.compile(rb"^(?:[^'\n]*NCCL WARN )?Cuda failure (?:\d+ )?'out of memory'", re.MULTILINE),
    ),
    FailureWords(
        HOST,
        "python/cpython and numpy/numpy: the exception's name",
        b"memoryerror",
        re.compile(rb"^(?:[\w.]+\.)?_?(?:Array)?MemoryError(?::.*)?$", re.MULTILINE),
    ),
    FailureWords(
        HOST,
        "gcc, libstdc++-v3/libsupc++/vterminate.cc",
        b"std::bad_alloc",
        re.compile(rb"^ *what\(\): +std::bad_alloc", re.MULTILINE),
    ),
)
_SENTENCES = {
    DEVICE: "the device's memory did not suffice",
    HOST: "the host's memory did not suffice",
}
# What a log has against a run that the words may be the cause of.
_CAUSED = frozenset({"state", "exit", "incomplete", "window"})
# The same of the last error line, which programs that go on print too.
_ENDED = frozenset({"state", "exit", "incomplete"})
_SHOWN = 120


# What the kernel ends a process with for the host's memory: 128 and SIGKILL (mm/oom_kill.c).
_SIGKILL = 137


class Failure(NamedTuple):
    """Why a run failed.

    Attributes:
        kind: `device-oom` or `host-oom` for what it lacked, else `error`.
        said: What the log says of it.
    """

    kind: str
    said: str

    def __str__(self) -> str:
        return f"{_SENTENCES[self.kind]}: {self.said}" if self.kind in _SENTENCES else self.said


def find(path: Path, grammar: Grammar, device: Device = "gpu") -> Failure | None:
    """Return what the log of a failed run says that it lacked; None if it says nothing.

    The first words count: what comes after them may be other ranks' errors about their peers. But
    where Slurm killed a process for the host's memory, that is the cause of all others.

    Never raises for what is in the file, or for what is in its place.

    Args:
        path: The log.
        grammar: How the framework's logs are read.
        device: What the run computed on; the CPU's memory is the host's, whatever it is called.
    """
    words = tuple(one for one in (_KILLED, *_COMMON, *grammar.failures) if one.contains)
    first: Failure | None = None
    try:
        with closing(bodies(path)) as pieces:
            for data in pieces:
                for which, failure in _found(data, words):
                    if which is _KILLED:
                        return failure
                    first = first or failure
    except NotALogError:
        return None
    return first._replace(kind=HOST) if first and device == "cpu" else first


def explain(
    path: Path, grammar: Grammar, device: Device = "gpu", printed: Sequence[Path] = ()
) -> Failure | None:
    """Return why a run failed: what it lacked, or else the last error line; None if none says it.

    Args:
        path: Its log.
        grammar: How the framework's logs are read.
        device: What the run computed on.
        printed: Files with what its job script printed, looked at where the log has no error: a
            step that never began has none.
    """
    if lacked := find(path, grammar, device):
        return lacked
    from hpcbert.logs.lasterror import last_error  # most logs are of runs without an error

    said = next(filter(None, map(last_error, (path, *printed))), "")
    return Failure(ERROR, said) if said else None


class Shortage(NamedTuple):
    """What says of a failed run that a smaller batch may have fitted.

    Attributes:
        words: A Perl regular expression of which a line of the log has a match.
        exits: Exit statuses.
    """

    words: str
    exits: tuple[int, ...]


def shortage(grammar: Grammar, device: Device) -> Shortage:
    """Return what says of a failed run that memory did not suffice which the batch fills.

    That is the device's; on the CPU, and where the program chooses, the host's too.
    """
    hosted = device != "gpu"
    kinds = {DEVICE, HOST} if hosted else {DEVICE}
    known = [one for one in (_KILLED, *_COMMON, *grammar.failures) if one.kind in kinds]
    exits = (*((_SIGKILL,) if hosted else ()), *(code for one in known for code in one.exits))
    return Shortage(alternatives(one.match for one in known if one.contains), exits)


def alternatives(patterns: Iterable[re.Pattern[bytes]]) -> str:
    """Return a Perl regular expression that has a match wherever one of some patterns has."""
    return "(?J)" + "|".join(f"(?:{one.pattern.decode()})" for one in patterns)


def blamed(
    path: Path,
    grammar: Grammar,
    against: Sequence[Reason],
    device: Device = "gpu",
    printed: Sequence[Path] = (),
) -> tuple[Reason, ...]:
    """Return what is against a run, with why it failed where that may be the cause of the rest.

    Args:
        path: Its log.
        grammar: How the framework's logs are read.
        against: Why the run does not count; empty if it does.
        device: What the run computed on.
        printed: As in `explain`.
    """
    codes = {one.code for one in against}
    if codes & _ENDED:
        failure = explain(path, grammar, device, printed)
    else:
        failure = find(path, grammar, device) if codes & _CAUSED else None
    return (*against, Reason(failure.kind, str(failure))) if failure else tuple(against)


def by_status(grammar: Grammar, against: Sequence[Reason], code: int | None) -> tuple[Reason, ...]:
    """Return what a failed run lacked by its exit status, where its log does not say it.

    Args:
        grammar: How the framework's logs are read.
        against: Why the run does not count; empty if it does.
        code: Exit status of the measured step; None where nobody knows.
    """
    codes = {one.code for one in against}
    if not codes & _CAUSED or codes & {DEVICE, HOST}:
        return ()
    found = (
        Failure(one.kind, f"exit status {code}") for one in grammar.failures if code in one.exits
    )
    return tuple(Reason(one.kind, str(one)) for one in found)[:1]


def _found(data: bytes, words: tuple[FailureWords, ...]) -> Iterable[tuple[FailureWords, Failure]]:
    """Yield the failures of a piece in the log's order, each with the words that it has."""
    texts = tuple(one.contains.lower() for one in words)
    for start, which, _, end in find_lines(data.lower(), texts):
        line, one = cut_line(data, start, end)[0].text, words[which]
        match = one.match.search(line) or one.match.search(unlabelled(line))
        if match:
            said = match.string[match.start() :].split(b"\n")[0].decode(errors="replace")
            yield one, Failure(one.kind, " ".join(said.split())[:_SHOWN])
