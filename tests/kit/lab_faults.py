"""Break a lab on purpose, as a real cluster breaks by itself, and repair it."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hpcbert.lab import daemons
from hpcbert.lab.daemons import spawn
from hpcbert.lab.record import SWITCH, Journal, Lab, load, lock_lab
from hpcbert.system.processes import end_processes
from hpcbert.system.runner import Outcome, Runner, run
from tests.kit.cases import read_constant
from tests.kit.waiting import until

_SPACES = ("--net", "--mount", "--uts", "--ipc", "--pid")
# The directory itself, on a node that sees it late: in the node's own /dev/shm.
_ORIGINAL = "/dev/shm/hpcbert-original"


def _fresh(lab: Lab) -> Lab:
    """Read the record again: a daemon that has been restarted has another PID."""
    current = load(lab.directory)
    assert current is not None
    assert current.mark == lab.mark
    return current


def stop_daemon(lab: Lab, name: str, *, number: int = signal.SIGTERM) -> None:
    """Stop a daemon and wait until it has ended; do nothing if it has already ended.

    It is `slurmctld`, `slurmdbd`, `mariadbd`, `munged`, or a node for its slurmd. The node's jobs go
    on without it, as on a real node. The signal SIGKILL is a crash.
    """
    process = _fresh(lab).daemons[name]
    assert process is None or end_processes([process], signal_number=number, timeout=60.0), name


def start_daemon(lab: Lab, name: str, *, run: Runner) -> None:
    """Start a daemon that was stopped or has crashed, and wait until it answers."""
    with lock_lab(lab.directory):
        journal = Journal(_fresh(lab))
        daemons.start_daemon(journal, name, run)
        daemons.wait_for_daemon(journal.lab, name, run)


def cut_link(lab: Lab, node: str, *, run: Runner, state: str = "down") -> None:
    """Cut a node's cable: nothing reaches it until the cable is repaired.

    slurmctld calls the node down after `slurmd_timeout` seconds, and its jobs NODE_FAIL.
    """
    daemons.run_ip(lab, lab.host(SWITCH), f"link set {node} {state}\n", run)


def restore_link(lab: Lab, node: str, *, run: Runner) -> None:
    """Repair a node's cable."""
    cut_link(lab, node, run=run, state="up")


def stop_slurmdbd(lab: Lab, *, number: int = signal.SIGTERM) -> None:
    """Stop a lab's slurmdbd; return when its slurmctld has noticed and answers.

    A controller of 22.05 that finds an answer and the end of its connection at once ends itself:
    `fatal: _conn_readable: poll returned unexpected revents` (src/common/slurm_persist_conn.c). It
    is started again, as a service manager would. Once it has dropped the connection, it is safe.
    """
    stop_daemon(lab, "slurmdbd", number=number)
    address = f"{lab.network.controller}:{lab.network.accounting_port}"
    query = ["ss", "-Htn", "state", "established", "state", "close-wait", "dst", address]

    def as_root(*argv: str) -> Outcome:
        return run(argv, env=lab.daemon_environment)

    def noticed() -> bool:
        # It looks at the connection when it has something to report, such as this.
        for state in ("drain", "resume"):
            as_root("scontrol", "update", "nodename=n1", f"state={state}", "reason=test")
        outcome = run(query)
        assert outcome.ok, outcome.stderr
        return not outcome.stdout

    def answers() -> bool:
        controller = _fresh(lab).daemons["slurmctld"]
        if controller is None or not controller.alive:
            start_daemon(lab, "slurmctld", run=run)
        return as_root("scontrol", "ping").ok

    def takes_jobs() -> bool:
        # A controller that ended between the two orders comes back with a drained n1, and one that
        # did not refuses n1 for up to a second after it was resumed.
        as_root("scontrol", "update", "nodename=n1", "state=resume")
        return as_root("sbatch", "--test-only", "--nodelist=n1", "--wrap=true").ok

    until(noticed, "slurmctld still holds its connection to slurmdbd", pause=0.5)
    until(answers, "slurmctld does not answer")
    until(takes_jobs, "n1 takes no jobs")


def start_requeued(run_as_root: Callable[..., Outcome], job: str) -> None:
    """Start a requeued job without the two minutes that Slurm lets pass.

    A node refuses a run with a credential that is as old, in whole seconds, as the clean-up after
    the run before it, and the job is FAILED then: "Job credential revoked" (slurmd,
    slurm_cred_revoke; seen with 22.05.8).
    """
    shown = ["squeue", "-h", "-t", "all", "-o", "%T", "-j", job]
    words = ["scontrol", "update", f"jobid={job}", "starttime=now+1"]

    def started() -> bool:
        state = run_as_root(*shown).stdout.strip()
        return state == "RUNNING" or (state == "PENDING" and run_as_root(*words).ok)

    until(started, f"{job} can't be started")


# --- What a node has or sees otherwise, as long as the context lasts


def inside(lab: Lab, node: str) -> tuple[str, ...]:
    """Return the prefix of a command that runs it on a node, as root."""
    return ("nsenter", f"--target={lab.host(node).pid}", *_SPACES)


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
    """Delay a directory in both directions between a node and the others, as NFS with caches does.

    The node has its own copy, in which files appear when they are old enough; it must be small.
    """
    enter, env = inside(lab, node), lab.daemon_environment
    on_node(lab, node, "bash", "-c", _read("COPY"), "copy", str(path), _ORIGINAL)
    words = ["bash", "-c", _read("KEEP"), "keep", str(path), _ORIGINAL, str(seconds)]
    spawn(run, words, log=lab.layout.log(f"late-{node}"), env=env, enter=enter)
    try:
        yield
    finally:
        on_node(lab, node, "umount", "--lazy", str(path), _ORIGINAL)


def _read(name: str) -> str:
    return str(read_constant(__file__, name))


@contextmanager
def limited(lab: Lab, node: str, kind: str, most: int) -> Iterator[None]:
    """Let a node's jobs have less of something, as prlimit calls it."""
    process = _fresh(lab).daemons[node]
    assert process is not None
    words = ["prlimit", f"--pid={process.pid}"]
    usual = run([*words, f"--{kind}", "--output=SOFT", "--noheadings"]).stdout.strip()
    assert run([*words, f"--{kind}={most}:"]).ok
    try:
        yield
    finally:
        assert run([*words, f"--{kind}={usual}:"]).ok
