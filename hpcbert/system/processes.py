"""Linux processes: their identity, their descendants, and ending them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_SET_CHILD_SUBREAPER, _SET_PARENT_DEATH_SIGNAL = 36, 1  # linux/prctl.h
_DEAD = frozenset({b"Z", b"X"})
# Seconds in which the kernel ends killed processes.
_KILL_SECONDS = 10.0
_TICKS, _TICK = os.sysconf("SC_CLK_TCK"), 10**9 // os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Process:
    """One process of this boot.

    Attributes:
        pid: Its number in this PID namespace.
        start: Its start time in clock ticks since the machine's boot, from field 22 of
            /proc/PID/stat (proc(5)). A reused PID has another start time.
    """

    pid: int
    start: int

    @property
    def alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        return identify(self.pid) == self


def identify(pid: int) -> Process | None:
    """Return the living process with this PID; None if it does not exist."""
    start = read_start_time(pid)
    return Process(pid, start) if start else None


def read_start_time(pid: int | str) -> int:
    """Return when a living process was started, as `Process.start`; 0 if it is gone or a zombie."""
    fields = _read_stat(pid)
    return int(fields[19]) - _boot_offset_ticks() if fields else 0


def is_alive(pid: int | str, start: int) -> bool:
    """Return whether a process that another one recorded lives; `start` may be one tick off.

    The other process may be in another time namespace, and its offset may include part of a tick.
    """
    current_start = read_start_time(pid)
    return bool(current_start) and abs(current_start - start) <= 1


def _boot_offset_ticks() -> int:
    """Return the ticks by which this process's time namespace shifts all start times.

    time_namespaces(7): there, /proc counts from another boot time. The file has the offsets of the
    children's namespace, which is this one's after any fork.
    """
    for line in read_proc_file("self", "timens_offsets").splitlines():
        clock, *offset = line.split()
        if clock in {b"boottime", b"7"}:
            seconds, nanoseconds = map(int, offset)
            return seconds * _TICKS + nanoseconds // _TICK
    return 0


def list_processes() -> Iterator[Process]:
    """Yield the living processes that this one can see."""
    return (process for pid in _list_pids() if (process := identify(pid)))


def read_proc_file(pid: int | str, name: str) -> bytes:
    """Return the content of a file of /proc/PID; empty if the process is gone or another user's."""
    try:
        return (_PROC / str(pid) / name).read_bytes()
    except OSError:
        return b""


def boot_id() -> str:
    """Return the name of this boot, empty if unknown; PIDs of another boot have no meaning."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def machine_and_boot() -> str:
    """Return this machine and its boot, which a process id belongs to."""
    return f"{os.uname().nodename} {boot_id()}"


def descendants(pid: int) -> tuple[int, ...]:
    """Return the ids of all processes below one."""
    children: dict[int, list[int]] = {}
    for child_pid in _list_pids():
        if fields := _read_stat(child_pid):
            children.setdefault(int(fields[1]), []).append(child_pid)
    pids: list[int] = []
    generation = [pid]
    while generation:
        generation = [child for parent in generation for child in children.get(parent, [])]
        pids += generation
    return tuple(pids)


def adopt_orphans() -> None:
    """Adopt processes when their parent dies, so that all can be found."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int, signal_number: int) -> None:
    """Send this process a signal when its parent dies, and at once if it has died already."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal_number, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal_number)


def run_only_when_idle() -> None:
    """Let this process, and those that it starts, run only when the processor is idle.

    Then it takes no time from the measurement that it watches. This can't be undone.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def reap_children() -> dict[int, int]:
    """Take the exit statuses of children that have ended, as a shell gives them, by id."""
    exit_codes = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            code = os.waitstatus_to_exitcode(status)
            exit_codes[pid] = code if code >= 0 else 128 - code
    return exit_codes


def _has_children() -> bool:
    """Return whether this process has children, without a look at all processes of the machine."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def kill_descendants() -> tuple[int, ...]:
    """Kill every process below this one and return those that did not die in time."""
    if not _has_children():  # and so no grandchildren either
        return ()
    deadline = time.monotonic() + _KILL_SECONDS
    while (remaining := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in remaining:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
        reap_children()
    return remaining


def end_processes(
    processes: Iterable[Process], *, signal_number: int = signal.SIGKILL, timeout: float
) -> bool:
    """Send a signal to each process and wait until all are gone.

    A PID file descriptor holds the process before its identity is checked, so that a reused PID
    never gets the signal.

    Args:
        timeout: How long to wait for all of them together, in seconds.
    """
    deadline, handles = time.monotonic() + timeout, []
    try:
        for process in set(processes):
            with contextlib.suppress(OSError):
                handle = os.pidfd_open(process.pid)
                if process.alive:
                    handles.append(handle)
                    signal.pidfd_send_signal(handle, signal_number)
                else:
                    os.close(handle)
        for handle in handles:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return False
        return True
    finally:
        for handle in handles:
            os.close(handle)


def _list_pids() -> Iterator[int]:
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal())


def _read_stat(pid: int | str) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the state on; empty if the process is not alive."""
    # The command's name is in parentheses and may contain anything, even parentheses.
    fields = read_proc_file(pid, "stat").rpartition(b")")[2].split()
    return fields if fields and fields[0] not in _DEAD else []
