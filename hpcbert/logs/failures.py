"""Why a run failed, from its log: it lacked memory, or its last error line says why.

The log of a successful run is never searched: programs try again after some of these words.
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
# The words for every program, whatever it printed before: Slurm killed a process for its memory.
#   slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been …
#   slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0 cgroup. Some of your processes …
_KILLED = FailureWords(
    HOST,
    "SchedMD/slurm, src/slurmd/slurmstepd",
    b"oom",
    re.compile(rb"^slurmstepd: error: Detected \d+ oom[-_]kill event", re.MULTILINE),
)
# The words of common libraries; those of a framework are in its recipe.
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
    DEVICE: "the device ran out of memory",
    HOST: "the host ran out of memory",
}
# Reasons against a run that the words may explain.
_CAUSED = frozenset({"state", "exit", "incomplete", "window"})
# The same for the last error line, which programs print too if they continue.
_ENDED = frozenset({"state", "exit", "incomplete"})
_SHOWN = 120


# The exit status after the kernel killed a process for memory: 128 and SIGKILL (mm/oom_kill.c).
_SIGKILL = 137


class Failure(NamedTuple):
    """Why a run failed.

    Attributes:
        kind: `device-oom` or `host-oom` for what it lacked, else `error`.
        said: The log's own words.
    """

    kind: str
    said: str

    def __str__(self) -> str:
        return f"{_SENTENCES[self.kind]}: {self.said}" if self.kind in _SENTENCES else self.said


def find(path: Path, grammar: Grammar, device: Device = "gpu") -> Failure | None:
    """Return what a failed run lacked according to its log; None if the log does not say.

    The first words count: later ones may be other ranks' errors about their peers. But if Slurm
    killed a process for the host's memory, that is the cause of all others.

    Never raises because of the file's content, or of what is in its place.

    Args:
        path: The log.
        grammar: How the framework's logs are read.
        device: What the run computed on; the CPU's memory is the host's, whatever its name.
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
    """Return why a run failed: what it lacked, or else the last error line; None if unknown.

    Args:
        path: Its log.
        grammar: How the framework's logs are read.
        device: What the run computed on.
        printed: Files with its job script's output, searched if the log has no error: a step that
            never began has none.
    """
    if lacked := find(path, grammar, device):
        return lacked
    from hpcbert.logs.lasterror import last_error  # most logs are of runs without an error

    said = next(filter(None, map(last_error, (path, *printed))), "")
    return Failure(ERROR, said) if said else None


class Shortage(NamedTuple):
    """The signs of a failed run that a smaller batch may fit.

    Attributes:
        words: A Perl regular expression that matches a line of the log.
        exits: Exit statuses.
    """

    words: str
    exits: tuple[int, ...]


def shortage(grammar: Grammar, device: Device) -> Shortage:
    """Return the signs of a failed run that lacked memory which the batch uses.

    That is the device's memory; on the CPU, and if the program chooses, the host's too.
    """
    hosted = device != "gpu"
    kinds = {DEVICE, HOST} if hosted else {DEVICE}
    known = [one for one in (_KILLED, *_COMMON, *grammar.failures) if one.kind in kinds]
    exits = (*((_SIGKILL,) if hosted else ()), *(code for one in known for code in one.exits))
    return Shortage(alternatives(one.match for one in known if one.contains), exits)


def alternatives(patterns: Iterable[re.Pattern[bytes]]) -> str:
    """Return a Perl regular expression that matches wherever one of some patterns does."""
    return "(?J)" + "|".join(f"(?:{one.pattern.decode()})" for one in patterns)


def blamed(
    path: Path,
    grammar: Grammar,
    against: Sequence[Reason],
    device: Device = "gpu",
    printed: Sequence[Path] = (),
) -> tuple[Reason, ...]:
    """Return the reasons against a run, with why it failed if that may explain them.

    Args:
        path: Its log.
        grammar: How the framework's logs are read.
        against: Why the run is invalid; empty if it is valid.
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
    """Return what a failed run lacked by its exit status, if its log does not say.

    Args:
        grammar: How the framework's logs are read.
        against: Why the run is invalid; empty if it is valid.
        code: Exit status of the measured step; None if unknown.
    """
    codes = {one.code for one in against}
    if not codes & _CAUSED or codes & {DEVICE, HOST}:
        return ()
    found = (
        Failure(one.kind, f"exit status {code}") for one in grammar.failures if code in one.exits
    )
    return tuple(Reason(one.kind, str(one)) for one in found)[:1]


def _found(data: bytes, words: tuple[FailureWords, ...]) -> Iterable[tuple[FailureWords, Failure]]:
    """Yield the failures in a piece in the log's order, each with its words."""
    texts = tuple(one.contains.lower() for one in words)
    for start, which, _, end in find_lines(data.lower(), texts):
        line, one = cut_line(data, start, end)[0].text, words[which]
        match = one.match.search(line) or one.match.search(unlabelled(line))
        if match:
            said = match.string[match.start() :].split(b"\n")[0].decode(errors="replace")
            yield one, Failure(one.kind, " ".join(said.split())[:_SHOWN])
