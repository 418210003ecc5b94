"""The processes of a lab: short commands, detached daemons, and how to find all of them.

A process of a lab has the lab's mark in its environment, or is in a namespace of one that has it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from hpcbert.errors import CheckError
from hpcbert.system.processes import Process, list_processes, read_proc_file
from hpcbert.system.runner import Runner

# /proc still belongs to the caller's PID namespace when this runs, so the number read is the one
# that the caller can use, also for a process that starts inside another PID namespace.
_SPAWN = """set -eu
cd /
umask 022
read -r pid rest </proc/self/stat
log=$1
shift
{prelude}
printf '%s\\n' "$pid"
exec >>"$log" 2>&1 </dev/null
exec "$@"
"""


def run_checked(
    run: Runner,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: str = "",
    timeout: float = 60.0,
) -> str:
    """Run a command that must succeed, and return its output.

    Raises:
        CheckError: The command failed; the message contains its error.
    """
    result = run(argv, stdin=stdin, env=env, timeout=timeout)
    if not result.ok:
        complaint = result.stderr.strip() or f"exit status {result.returncode}"
        raise CheckError(complaint, where=" ".join(argv[:6]))
    return result.stdout


def spawn(
    run: Runner,
    argv: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str],
    enter: Sequence[str] = (),
    prelude: str = "",
) -> int:
    """Start a daemon that outlives this process, and return its PID.

    `setsid --fork` makes it a child of init, or of its PID namespace's first process, in a new
    session: this process need not reap it, and signals from this terminal do not reach it.

    Args:
        enter: A command to put before all others, such as `unshare --pid` or `nsenter --pid=…`: the
            PID namespace takes hold for the daemon because it is forked afterwards.
        prelude: Shell lines that run in the daemon's place just before it; `$1` onwards is argv.

    Raises:
        CheckError: The daemon could not be started.
    """
    launcher = [*enter, "setsid", "--fork", "sh", "-c", _SPAWN.format(prelude=prelude), "sh"]
    result = run([*launcher, str(log), *argv], env=env, timeout=60)
    # setsid has succeeded before the shell begins: only the number shows that everything worked.
    number = result.stdout.strip()
    if not number.isdecimal():
        raise CheckError(
            result.stderr.strip() or "It ended before it began.", where=log.stem, hint=f"See {log}."
        )
    return int(number)


_PROGRAMS = (b"munged", b"mariadbd", b"mysqld", b"slurmdbd", b"slurmctld", b"slurmd")
NAMESPACES = ("net", "mnt", "uts", "ipc", "pid")


def find_marked(mark: str) -> Iterator[Process]:
    """Find the processes that started with `mark`, a NAME=value pair, in their environment."""
    pair = mark.encode()
    return (
        process
        for process in list_processes()
        if pair in read_proc_file(process.pid, "environ").split(b"\0")
    )


def find_inside(hosts: Iterable[Process]) -> tuple[Process, ...]:
    """Find all processes in a namespace of those hosts that are the first in a PID namespace.

    Only such a host surely started with its namespaces. Any other process may share them with the
    whole machine: that this process has different ones proves nothing.
    """
    own_namespaces = _namespaces(os.getpid())
    lab_namespaces = {
        name for host in hosts if _is_first(host) for name in _namespaces(host.pid)
    } - own_namespaces
    return tuple(
        process for process in list_processes() if lab_namespaces & _namespaces(process.pid)
    )


def is_daemon(process: Process) -> bool:
    """Return whether a process runs one of the lab's programs (proc(5), comm)."""
    return read_proc_file(process.pid, "comm").strip() in _PROGRAMS


def is_listening(process: Process, port: int) -> bool:
    """Return whether a program listens on a TCP port in the process's network namespace.

    Looking leaves no trace; a trial connection would be an error in a Slurm daemon's log.
    """
    lines = b"".join(
        read_proc_file(process.pid, table) for table in ("net/tcp", "net/tcp6")
    ).splitlines()
    sockets = (line.split()[1:4] for line in lines if not line.lstrip().startswith(b"sl"))
    # ADDRESS:PORT in hexadecimal; state 0A is LISTEN (include/net/tcp_states.h of Linux).
    return any(
        int(fields[0].rpartition(b":")[2], 16) == port and fields[2] == b"0A" for fields in sockets
    )


def _is_first(process: Process) -> bool:
    """Return whether a process lives and is PID 1 of a namespace below this one."""
    lines = read_proc_file(process.pid, "status").splitlines()
    # One number for each PID namespace, this one's first (proc(5)).
    numbers = next((line.split()[1:] for line in lines if line.startswith(b"NSpid:")), [])
    return process.alive and len(numbers) > 1 and numbers[-1] == b"1"


def _namespaces(pid: int) -> frozenset[Path]:
    namespaces = set()
    for kind in NAMESPACES:
        with contextlib.suppress(OSError):
            namespaces.add(Path(f"/proc/{pid}/ns/{kind}").readlink())
    return frozenset(namespaces)
