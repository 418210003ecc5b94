"""Break a lab on purpose, as a real cluster breaks by itself, and repair it."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from hpcbert.errors import SchedulerError, UsageError
from hpcbert.lab import daemons
from hpcbert.lab.processes import run_checked, spawn
from hpcbert.lab.record import SWITCH, Journal, Lab, load, lock_lab
from hpcbert.system.processes import end_processes

if TYPE_CHECKING:
    from pathlib import Path

    from hpcbert.system.runner import Runner

_SPACES = ("--net", "--mount", "--uts", "--ipc", "--pid")
# The directory itself, on a node that sees it late: in the node's own /dev/shm.
_ORIGINAL = "/dev/shm/hpcbert-original"
_COPY = """set -e
mkdir -p "$2"
mount --bind "$1" "$2"
mount -t tmpfs late "$1"
cp -a "$2/." "$1"
"""
# Files are shown once they are old enough. Deleted files are not restored: only new files go back,
# and only if their directory still exists.
_KEEP = """while mountpoint -q "$1"; do
  now=$(mktemp)
  sleep 0.3
  cd "$1" && find . -type f -newer "${last:-$2}" | while IFS= read -r file; do
    if [[ -d $2/${file%/*} ]]; then cp -pu "$file" "$2/$file"; fi
  done
  cd "$2" && find . -type f ! -newermt "$3 seconds ago" -exec cp -pu --parents -t "$1" {} +
  rm -f "${last:-}"
  last=$now
done
"""


def stop_daemon(
    lab: Lab, name: str, *, number: int = signal.SIGTERM, timeout: float = 60.0
) -> None:
    """Stop a daemon and wait until it has ended; do nothing if it has already ended.

    A node's jobs go on without their slurmd, as on a real node.

    Args:
        lab: The lab.
        name: `slurmctld`, `slurmdbd`, `mariadbd`, `munged`, or a node for its slurmd.
        number: The signal; SIGKILL is a crash.
        timeout: How long to wait, in seconds.

    Raises:
        SchedulerError: It still runs after `timeout`.
    """
    process = _fresh(lab).daemons[name]
    if process is not None and not end_processes([process], signal_number=number, timeout=timeout):
        raise SchedulerError(f"The daemon did not end within {timeout:g} s.", where=name)


def start_daemon(lab: Lab, name: str, *, run: Runner) -> None:
    """Start a daemon that was stopped or has crashed, and wait until it answers.

    Raises:
        UsageError: It is running.
        SchedulerError: It did not come up; the message ends with its log's last lines.
    """
    with lock_lab(lab.directory):
        journal = Journal(_fresh(lab))
        daemons.start_daemon(journal, name, run)
        daemons.wait_for_daemon(journal.lab, name, run)


def cut_link(lab: Lab, node: str, *, run: Runner) -> None:
    """Cut a node's cable: nothing reaches it until the cable is repaired.

    slurmctld calls the node down after `slurmd_timeout` seconds, and its jobs NODE_FAIL.
    """
    _set_link(lab, node, "down", run)


def restore_link(lab: Lab, node: str, *, run: Runner) -> None:
    """Repair a node's cable."""
    _set_link(lab, node, "up", run)


def _set_link(lab: Lab, node: str, state: str, run: Runner) -> None:
    daemons.run_ip(lab, lab.host(SWITCH), f"link set {node} {state}\n", run)


def show_late(lab: Lab, node: str, path: Path, *, seconds: float, run: Runner) -> None:
    """Delay a directory in both directions between a node and the others, as NFS with caches does.

    The node has its own copy, in which files appear when they are old enough.

    Args:
        lab: The lab.
        node: The node.
        path: The directory, which all nodes share; it must be small enough to copy.
        seconds: The delay.
        run: Starts processes.

    Raises:
        SchedulerError: The copy can't be made.
    """
    enter, env = inside(lab, node), lab.daemon_environment
    run_checked(run, [*enter, "bash", "-c", _COPY, "copy", str(path), _ORIGINAL], env=env)
    words = ["bash", "-c", _KEEP, "keep", str(path), _ORIGINAL, str(seconds)]
    spawn(run, words, log=lab.layout.log(f"late-{node}"), env=env, enter=enter)


def show_at_once(lab: Lab, node: str, path: Path, *, run: Runner) -> None:
    """Undo `show_late`: the node sees the directory itself again."""
    words = [*inside(lab, node), "umount", "--lazy", str(path), _ORIGINAL]
    run_checked(run, words, env=lab.daemon_environment)


def inside(lab: Lab, node: str) -> tuple[str, ...]:
    """Return the prefix of a command that runs it on a node, as root.

    Raises:
        SchedulerError: The node is gone.
    """
    return ("nsenter", f"--target={lab.host(node).pid}", *_SPACES)


def _fresh(lab: Lab) -> Lab:
    """Read the record again: a daemon that has been restarted has another PID."""
    current = load(lab.directory)
    if current is None or current.mark != lab.mark:
        raise UsageError("The lab does not exist any more.", where=str(lab.directory))
    return current
