"""What Linux tells about processes: whether one is still the same, and who descends from it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_DEAD = frozenset({"Z", "X", ""})


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; none if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    # The name, in parentheses, may hold spaces and parentheses.
    return text.rpartition(")")[2].split()


def started(pid: int) -> int:
    """Return when a process was started, in clock ticks since boot; 0 if it is gone.

    With its id it names a process for as long as the machine is up: ids are used again.
    """
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] not in _DEAD else 0


def machine() -> str:
    """Return what names this machine and its last boot, without which a process id says nothing."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot.read_text().strip() if boot.exists() else ''}"


def adopt_orphans() -> None:
    """Make processes whose parent died children of this one, so that none can get away."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def step_back(pid: int = 0) -> None:
    """Let a process run only where nobody else wants the processor, and what it starts from now on.

    What watches over a measurement takes no time from it then. There is no way back.

    Args:
        pid: The process; 0 is this one.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))


def descendants(pid: int) -> tuple[int, ...]:
    """Return the ids of all processes below one."""
    children: dict[int, list[int]] = {}
    for one, parent in _parents():
        children.setdefault(parent, []).append(one)
    found: list[int] = []
    front = [pid]
    while front:
        front = [child for one in front for child in children.get(one, [])]
        found += front
    return tuple(found)


def _parents() -> Iterator[tuple[int, int]]:
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            fields = _stat(int(path.name))
            if fields and fields[0] not in _DEAD:
                yield int(path.name), int(fields[1])


def reap() -> dict[int, int]:
    """Take the exit statuses of children that have ended, as a shell gives them, by id."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            code = os.waitstatus_to_exitcode(status)
            ended[pid] = code if code >= 0 else 128 - code
    return ended


def kill_descendants(*, patience: float = 10.0) -> tuple[int, ...]:
    """Kill every process below this one and return those that would not die in time.

    Args:
        patience: Seconds to wait for the kernel to end them.
    """
    limit = time.monotonic() + patience
    while (left := descendants(os.getpid())) and time.monotonic() < limit:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
        reap()
    return left
