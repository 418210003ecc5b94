"""The last error line of a failed run's log: the program's own message, in one line.

Programs end with many lines about one error: every rank has its own, peers complain about ranks
that are gone, and launchers report exit statuses that are known anyway. The last line that names a
cause wins; a peer's complaint only if there is no cause, a signal only if there is neither.
"""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from hpcbert.logs.lines import LINE, NotALogError, bodies, find_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SHOWN = 160
# Lines of a traceback to search for its end; Python itself cuts one that recurses.
_FRAMES = 400
_TRACEBACK = b"traceback (most recent call last)"
# Every line that `_level` takes for an error contains one of these, in lower case.
_HINTS = (
    *(_TRACEBACK, b"error", b"exception", b"interrupt", b"expired", b"fatal", b"critical"),
    *(b"what():", b"check failed", b"nccl warn", b"hpcbert: ", b"command not found"),
    *(b"no module named", b"no such file", b"permission denied", b"exec format", b"killed"),
    *(b"segmentation fault", b"illegal instruction", b"abort", b"on signal"),
    *(b"unrecognized option", b"invalid option", b"option '"),
)
# `[1,3]<stderr>:` of mpirun, `  3: ` of srun, `[rank3]: ` and `[n1:0] ` of programs.
_LABEL = re.compile(
    rb"(?:\[\d+,\d+\]<std(?:out|err|diag)>: ?|^ *\d+: |^\[[a-z]+-?\d+\]:? ?|^\[[\w.-]+:\d+\] )+"
)
# `vs003: ` of pdsh, which looks like a shell's own name.
_HOST = re.compile(rb"[a-z][\w.-]{0,63}: +")
_EXCEPTION = (
    rb"(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*)?"
    rb"(?:Error|Exception|Interrupt|Expired|Iteration|SystemExit)"
)
# Lines with a cause. Sources: CPython's traceback and pylifecycle.c; libstdc++'s vterminate.cc;
# glog's format, as OneFlow and TensorFlow print it; argparse; bash; glibc's ld.so and getopt.
_CAUSE = re.compile(
    rb"(?:%s)(?: \(.{0,200}?\))?(?::.*)?$" % _EXCEPTION
    + rb"| *what\(\): +\S.*"
    + rb"|F\d{4} [\d:.]+ +\d+ \S+:\d+\] .+"
    + rb"|[\d-]+ [\d:.]+: F \S+:\d+\] .+"
    # But not what the job script says of any run.
    + rb"|hpcbert: (?!repeat \d|rank 0 has CPUs |ranks |the page caches |\d+ samples per device fit"
    + rb"|the largest batch is ).+"
    + rb"|[\w./+-]{1,200}: (?:(?:unrecognized|invalid) option |option ').+"
    + rb"|Fatal Python error: .+|fatal(?: error)?: .+"
    + rb"|.{0,200}: error while loading shared libraries: .+"
    + rb"|.{0,200}: No module named .+"
    + rb"|.{0,200}: can't open file .+"
    + rb"|(?!srun|slurmstepd|sbatch|salloc)[\w./+-]{1,200}: error: .+"
    + rb"|(?!srun|slurmstepd).{1,200}: (?:command not found|[Nn]o such file or directory"
    + rb"|[Pp]ermission denied|cannot execute.*|[Ee]xec format error)$"
)
# Lines that may have one: a logger's word, and messages of Slurm, its plugins and NCCL.
_HINT = re.compile(
    rb"\[?(?:ERROR|FATAL|CRITICAL)\b.+"
    rb"|.{0,80}\b(?:ERROR|FATAL|CRITICAL)\b[\]: -].+"
    rb"|(?:srun|slurmstepd)[\w-]*: (?:fatal|error): .+"
    rb"|.{0,200}NCCL WARN .+"
    rb"|Caught signal \d+ .+"
)
# Messages about a rank that is gone, and of processes that had to stop.
_PEER = re.compile(
    rb"connection (?:reset|closed|refused)|closed by (?:remote )?peer|remote process exited"
    rb"|ncclRemoteError|watchdog|broken ?pipe|recvbytes|socket (?:closed|timeout)|sendbytes"
    rb"|KeyboardInterrupt|SystemExit|SignalException|horovod has been shut down"
    rb"|unable to reach|timed out waiting for .*clients|connectfullmesh|shutdown_?error",
    re.IGNORECASE,
)
# Lines that only say that something ended: from launchers, and the ends of others' errors.
_WRAPPER = re.compile(
    rb"ChildFailedError|Process(?:Raised|Exited)Exception|returned non-zero exit status"
    rb"|CalledProcessError.* died with|exits with return code|non-zero (?:exit|status|code)"
    rb"|failed \(exitcode|MPI_ABORT|mpirun|mpiexec|prterun|orterun|\bORTE\b|\bPRTE\b"
    rb"|Primary +job|[Ee]xited with (?:exit )?code|horovodrun|Gloo job detected"
    rb"|\*\*\* (?:STEP|JOB)|Job step aborted|Timed out waiting for job step|Terminating StepId"
    rb"|forcing job termination|oom[-_]kill|spank|printing enroot log|container start failed"
    rb"|no traceback|error_file|torchelastic|Root Cause|: errors? *: *0\b",
    re.IGNORECASE,
)
# If nothing else is there, the signal is the reason.
#   srun: error: n1: task 0: Segmentation fault (core dumped)
#   mpirun noticed that process rank 0 with PID 7 on node n1 exited on signal 9 (Killed).
#   run.sh: line 3: 4711 Killed                  python3 train.py
_SIGNAL = re.compile(
    rb"(?:tasks? [\d,-]+: |exited on signal \d+ \(|line \d+: +\d+ +)"
    rb"((?:Killed|Segmentation fault|Bus error|Aborted|Illegal instruction|Floating point exception"
    rb")(?: \(core dumped\))?)"
    rb"|^((?:Segmentation fault|Bus error|Aborted|Illegal instruction|Floating point exception)"
    rb"(?: \(core dumped\))?)$"
)
_NAME_ONLY = re.compile(rb"%s: *" % _EXCEPTION)


class _ErrorLine(NamedTuple):
    """An error line: how much it says, from 3 for a cause to 1 for a signal, and its text."""

    level: int
    text: bytes


def last_error(path: Path) -> str:
    """Return the last error line of a log; empty if it has none.

    Never raises because of the file's content, or of what is in its place.
    """
    best = _ErrorLine(0, b"")
    try:
        with closing(bodies(path)) as pieces:
            for data in pieces:
                for one in _errors(data):
                    best = one if one.level >= best.level else best
    except NotALogError:
        pass
    return " ".join(best.text.decode(errors="replace").split())[:_SHOWN]


def _errors(data: bytes) -> Iterator[_ErrorLine]:
    """Yield the error lines of a piece in the log's order."""
    known = -1
    for start, which, _, end in find_lines(data.lower(), _HINTS):
        line = data[start:end]
        if _HINTS[which] == _TRACEBACK:
            known, found = start, _end_of_traceback(data, start, end)
        elif start == known:  # the same line by another of its words
            continue
        else:
            known, found = start, _judged(line, data, end)
        if found:
            yield found


def _judged(line: bytes, data: bytes, end: int) -> _ErrorLine | None:
    """Return the message of a line, if it is an error's."""
    text = _LABEL.sub(b"", line, count=1) if _LABEL.match(line) else line
    found = _said(text)
    host = _HOST.match(text)
    if host and (found is None or found.text == text):
        rest = text[host.end() :]
        inner = _said(rest) if re.match(rb"(?:%s)\b| *what\(\)" % _EXCEPTION, rest) else None
        found = inner or found
    if found and _NAME_ONLY.fullmatch(found.text):
        return found._replace(text=_with_next(found.text, data, end))
    return found


def _said(text: bytes) -> _ErrorLine | None:
    if signal := _SIGNAL.search(text):
        return _ErrorLine(1, signal[1] or signal[2])
    if _WRAPPER.search(text):
        return None
    for level, words in ((3, _CAUSE), (2, _HINT)):
        if words.match(text):
            return _ErrorLine(2 if _PEER.search(text) else level, text.strip())
    return None


def _end_of_traceback(data: bytes, start: int, end: int) -> _ErrorLine | None:
    """Return the line that ends a traceback: the first one that is not indented."""
    head = data[start:end]
    label = head[: head.lower().find(_TRACEBACK)]
    for _ in range(_FRAMES):
        start, end = end + 1, data.find(b"\n", end + 1)
        if start >= len(data):
            return None
        end = len(data) if end < 0 else end
        line = data[start : min(end, start + LINE)].rstrip(b"\r").rpartition(b"\r")[2]
        line = line.removeprefix(label) if label.strip() else line
        if not line.strip() or line[:1] in b" \t" or not _same_speaker(label, line):
            continue
        if _WRAPPER.search(line) or line.lower().startswith(_TRACEBACK):
            return None
        if _NAME_ONLY.fullmatch(line):
            line = _with_next(line, data, end)
        return _ErrorLine(2 if _PEER.search(line) else 3, line.strip())
    return None


def _same_speaker(label: bytes, line: bytes) -> bool:
    """Return whether a line without a traceback's label may continue it; other ranks' can't."""
    return not label.strip() or not _LABEL.match(line)


def _with_next(text: bytes, data: bytes, end: int) -> bytes:
    """Return an exception's name with the next informative line, because it says nothing itself."""
    rest = data[end + 1 : end + 1 + LINE].split(b"\n")
    more = next((one for one in rest if _LABEL.sub(b"", one).strip()), b"") if b":" in text else b""
    return text.strip() + (b" " + _LABEL.sub(b"", more).strip() if more else b"")
