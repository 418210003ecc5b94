"""Processes told apart beyond doubt: by PID and start time, by namespace, by a mark of ours."""

from __future__ import annotations

import os
import select
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PROC = Path("/proc")
NAMESPACES = ("net", "mnt", "uts", "ipc", "pid")


@dataclass(frozen=True)
class Process:
    """One process of this boot.

    Attributes:
        pid: Its number in this PID namespace.
        start: Its start time in clock ticks since boot, field 22 of /proc/PID/stat (proc(5)). A
            PID used again has another one.
    """

    pid: int
    start: int

    @property
    def alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        return _stat(self.pid) == self


def identify(pid: int) -> Process | None:
    """Return the living process with that PID, None if there is none."""
    return _stat(pid)


def marked(mark: str) -> Iterator[Process]:
    """Find the processes that were born with `mark`, a NAME=value pair, in their environment."""
    wanted = mark.encode()
    for process in _all():
        if wanted in _read(process.pid, "environ").split(b"\0"):
            yield process


def inside(hosts: Iterable[Process]) -> tuple[Process, ...]:
    """Find all processes in a namespace of those hosts that are the first in a PID namespace.

    Only such a host is known to have been born with its namespaces. Any other process may share
    them with the whole machine: this one's own being different proves nothing.
    """
    ours = _namespaces(os.getpid())
    owned = {name for host in hosts if _is_first(host) for name in _namespaces(host.pid)} - ours
    return tuple(each for each in _all() if owned & _namespaces(each.pid))


def end(processes: Iterable[Process], *, number: int = signal.SIGKILL, timeout: float) -> bool:
    """Send a signal to each process and wait until all are gone.

    A PID file descriptor pins the process before its identity is checked, so that a PID that is
    used again is never hit.

    Args:
        processes: The processes; those that are gone already are passed over.
        number: The signal.
        timeout: How long to wait for all of them together, in seconds.

    Returns:
        Whether all are gone.
    """
    handles = [handle for each in set(processes) if (handle := _pin(each)) is not None]
    try:
        for handle in handles:
            _signal(handle, number)
        return _wait(handles, time.monotonic() + timeout)
    finally:
        for handle in handles:
            os.close(handle)


def listens(process: Process, port: int) -> bool:
    """Say whether somebody listens on a TCP port in the process's network namespace.

    Looking leaves no trace; a trial connection would be an error in a Slurm daemon's log.
    """
    lines = b"".join(_read(process.pid, table) for table in ("net/tcp", "net/tcp6")).splitlines()
    sockets = (line.split()[1:4] for line in lines if not line.lstrip().startswith(b"sl"))
    # ADDRESS:PORT in hexadecimal; state 0A is LISTEN (include/net/tcp_states.h of Linux).
    return any(int(s[0].rpartition(b":")[2], 16) == port and s[2] == b"0A" for s in sockets)


def boot_id() -> str:
    """Return the name of this boot: PIDs recorded under another one mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _all() -> Iterator[Process]:
    for entry in PROC.iterdir():
        if entry.name.isdecimal() and (process := _stat(int(entry.name))) is not None:
            yield process


def _stat(pid: int) -> Process | None:
    # The command's name is in parentheses and may hold anything, parentheses too.
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    if not fields or fields[0] in (b"Z", b"X"):
        return None
    return Process(pid, int(fields[19]))


def _read(pid: int, name: str) -> bytes:
    try:
        return (PROC / str(pid) / name).read_bytes()
    except OSError:
        return b""


def _is_first(process: Process) -> bool:
    """Say whether a process is number 1 of a PID namespace below this one."""
    lines = _read(process.pid, "status").splitlines()
    # One number for each PID namespace, this one's first (proc(5)).
    numbers = next((line.split()[1:] for line in lines if line.startswith(b"NSpid:")), [])
    return process.alive and len(numbers) > 1 and numbers[-1] == b"1"


def _namespaces(pid: int) -> frozenset[str]:
    return frozenset(name for kind in NAMESPACES if (name := _namespace(pid, kind)))


def _namespace(pid: int, kind: str) -> str:
    try:
        return str((PROC / str(pid) / "ns" / kind).readlink())
    except OSError:
        return ""


def _pin(process: Process) -> int | None:
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return None
    if process.alive:
        return handle
    os.close(handle)
    return None


def _signal(handle: int, number: int) -> None:
    try:
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return


def _wait(handles: Iterable[int], deadline: float) -> bool:
    for handle in handles:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return False
    return True
