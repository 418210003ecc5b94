"""Break a lab on purpose, as a real cluster breaks by itself, and repair it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert.errors import SchedulerError, UsageError
from hpcbert.lab import daemons
from hpcbert.lab.daemons import run_checked, spawn
from hpcbert.lab.record import SWITCH, Journal, Lab, load, lock_lab
from hpcbert.system.processes import end_processes
from hpcbert.system.runner import Outcome, run
from tests.kit.waiting import until

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


if TYPE_CHECKING:
    from collections.abc import Callable


def stop_slurmdbd(lab: Lab, *, number: int = signal.SIGTERM) -> None:
    """Stop a lab's slurmdbd; return when its slurmctld has noticed and answers.

    A controller of 22.05 that finds an answer and the end of its connection at once ends itself:
    `fatal: _conn_readable: poll returned unexpected revents` (src/common/slurm_persist_conn.c). It
    is started again, as a service manager would. Once it has dropped the connection, it is safe.

    Args:
        lab: The lab.
        number: The signal.
    """
    stop_daemon(lab, "slurmdbd", number=number)
    address = f"{lab.network.controller}:{lab.network.accounting_port}"
    query = ["ss", "-Htn", "state", "established", "state", "close-wait", "dst", address]

    def noticed() -> bool:
        # It looks at the connection when it has something to report, such as this.
        for state in ("drain", "resume"):
            _as_root(lab, "scontrol", "update", "nodename=n1", f"state={state}", "reason=test")
        outcome = run(query)
        assert outcome.ok, outcome.stderr
        return not outcome.stdout

    def answers() -> bool:
        current = load(lab.directory)
        assert current is not None
        controller = current.daemons["slurmctld"]
        if controller is None or not controller.alive:
            start_daemon(lab, "slurmctld", run=run)
        return _as_root(lab, "scontrol", "ping").ok

    def takes_jobs() -> bool:
        # A controller that ended between the two orders comes back with a drained n1, and one that
        # did not refuses n1 for up to a second after it was resumed.
        _as_root(lab, "scontrol", "update", "nodename=n1", "state=resume")
        return _as_root(lab, "sbatch", "--test-only", "--nodelist=n1", "--wrap=true").ok

    until(noticed, "slurmctld still holds its connection to slurmdbd", pause=0.5)
    until(answers, "slurmctld does not answer")
    until(takes_jobs, "n1 takes no jobs")


def start_requeued(run_as_root: Callable[..., Outcome], job: str) -> None:
    """Start a requeued job without the two minutes that Slurm lets pass.

    A node refuses a run with a credential that is as old, in whole seconds, as the clean-up after
    the run before it, and the job is FAILED then: "Job credential revoked" (slurmd,
    slurm_cred_revoke; seen with 22.05.8).

    Args:
        run_as_root: Runs a command of Slurm's, given as words.
        job: The job's id.
    """
    shown = ["squeue", "-h", "-t", "all", "-o", "%T", "-j", job]
    words = ["scontrol", "update", f"jobid={job}", "starttime=now+1"]

    def started() -> bool:
        state = run_as_root(*shown).stdout.strip()
        return state == "RUNNING" or (state == "PENDING" and run_as_root(*words).ok)

    until(started, f"{job} can't be started")


def _as_root(lab: Lab, *argv: str) -> Outcome:
    return run(argv, env=lab.daemon_environment)


def on_node(lab: Lab, node: str, *argv: str) -> str:
    """Run a command on a node as root; it must succeed."""
    outcome = run([*inside(lab, node), *argv], env=lab.daemon_environment)
    assert outcome.ok, outcome
    return outcome.stdout


@contextmanager
def mounted(lab: Lab, node: str, path: Path | str, *options: str) -> Iterator[None]:
    """Mount something over a path of a node."""
    on_node(lab, node, "mount", *options, str(path))
    try:
        yield
    finally:
        on_node(lab, node, "umount", "--lazy", str(path))


@contextmanager
def read_only(lab: Lab, node: str, path: Path) -> Iterator[None]:
    """Let a node read a directory only."""
    with mounted(lab, node, path, "--bind", str(path)):
        on_node(lab, node, "mount", "-o", "remount,bind,ro", str(path))
        yield


@contextmanager
def replaced(lab: Lab, node: str, path: Path | str, text: str, folder: Path) -> Iterator[None]:
    """Let a node see another text instead of a file."""
    replacement = folder / f"{node}-{Path(path).name}"
    replacement.write_text(text)
    replacement.chmod(0o755)
    with mounted(lab, node, path, "--bind", str(replacement)):
        yield


@contextmanager
def late(lab: Lab, node: str, path: Path, seconds: float) -> Iterator[None]:
    """Let a node see a directory late."""
    show_late(lab, node, path, seconds=seconds, run=run)
    try:
        yield
    finally:
        show_at_once(lab, node, path, run=run)


@contextmanager
def limited(lab: Lab, node: str, kind: str, most: int) -> Iterator[None]:
    """Let a node's jobs have less of something, as prlimit calls it."""
    fresh = load(lab.directory)
    assert fresh is not None
    process = fresh.daemons[node]
    assert process is not None
    words = ["prlimit", f"--pid={process.pid}"]
    usual = run([*words, f"--{kind}", "--output=SOFT", "--noheadings"]).stdout.strip()
    assert run([*words, f"--{kind}={most}:"]).ok
    try:
        yield
    finally:
        assert run([*words, f"--{kind}={usual}:"]).ok
