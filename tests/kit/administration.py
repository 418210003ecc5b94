"""What administrators do to a real Slurm, each with what must come before the next step."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from hpcbert.lab.record import Lab, load
from hpcbert.system.runner import Outcome, run
from tests.kit.lab_faults import start_daemon, stop_daemon
from tests.kit.waiting import until

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
