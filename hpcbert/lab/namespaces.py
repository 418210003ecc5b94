"""The processes of a lab, found by a mark in their environment and by their namespaces."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert.system.processes import Process, everyone, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_PROGRAMS = (b"munged", b"mariadbd", b"mysqld", b"slurmdbd", b"slurmctld", b"slurmd")
NAMESPACES = ("net", "mnt", "uts", "ipc", "pid")


def marked(mark: str) -> Iterator[Process]:
    """Find the processes that started with `mark`, a NAME=value pair, in their environment."""
    wanted = mark.encode()
    return (one for one in everyone() if wanted in read(one.pid, "environ").split(b"\0"))


def inside(hosts: Iterable[Process]) -> tuple[Process, ...]:
    """Find all processes in a namespace of those hosts that are the first in a PID namespace.

    Only such a host surely started with its namespaces. Any other process may share them with the
    whole machine: that this process has different ones proves nothing.
    """
    ours = _namespaces(os.getpid())
    owned = {name for host in hosts if _is_first(host) for name in _namespaces(host.pid)} - ours
    return tuple(each for each in everyone() if owned & _namespaces(each.pid))


def is_daemon(process: Process) -> bool:
    """Return whether a process runs a program of a lab, by its command (proc(5), comm)."""
    return read(process.pid, "comm").strip() in _PROGRAMS


def listens(process: Process, port: int) -> bool:
    """Return whether a program listens on a TCP port in the process's network namespace.

    Looking leaves no trace; a trial connection would be an error in a Slurm daemon's log.
    """
    lines = b"".join(read(process.pid, table) for table in ("net/tcp", "net/tcp6")).splitlines()
    sockets = (line.split()[1:4] for line in lines if not line.lstrip().startswith(b"sl"))
    # ADDRESS:PORT in hexadecimal; state 0A is LISTEN (include/net/tcp_states.h of Linux).
    return any(int(s[0].rpartition(b":")[2], 16) == port and s[2] == b"0A" for s in sockets)


def _is_first(process: Process) -> bool:
    """Return whether a process is number 1 of a PID namespace below this one."""
    lines = read(process.pid, "status").splitlines()
    # One number for each PID namespace, this one's first (proc(5)).
    numbers = next((line.split()[1:] for line in lines if line.startswith(b"NSpid:")), [])
    return process.alive and len(numbers) > 1 and numbers[-1] == b"1"


def _namespaces(pid: int) -> frozenset[Path]:
    found = set()
    for kind in NAMESPACES:
        with contextlib.suppress(OSError):
            found.add(Path(f"/proc/{pid}/ns/{kind}").readlink())
    return frozenset(found)
