"""Break a lab on purpose, and mend it: what a real cluster does unasked."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from hpcbert.errors import UsageError
from hpcbert.lab import daemons
from hpcbert.lab.network import set_link
from hpcbert.lab.record import Journal, Lab, load, locked

if TYPE_CHECKING:
    from hpcbert.system.runner import Runner


def stop_daemon(
    lab: Lab, name: str, *, number: int = signal.SIGTERM, timeout: float = 20.0
) -> None:
    """Stop a daemon and wait until it is gone; nothing happens if it is gone already.

    A node's jobs go on without their slurmd, as on a real node.

    Args:
        lab: The lab.
        name: `slurmctld`, `slurmdbd`, `mariadbd`, `munged`, or a node for its slurmd.
        number: The signal; SIGKILL is a crash.
        timeout: How long to wait, in seconds.

    Raises:
        UsageError: The lab has no such daemon.
        SchedulerError: It still runs after `timeout`.
    """
    daemons.stop(_fresh(lab), name, number=number, timeout=timeout)


def start_daemon(lab: Lab, name: str, *, run: Runner) -> None:
    """Start a daemon that was stopped or has crashed, and wait until it answers.

    Raises:
        UsageError: The lab has no such daemon, or it is running.
        SchedulerError: It did not come up; the message ends with its log's last lines.
    """
    with locked(lab.directory):
        journal = Journal(_fresh(lab))
        daemons.start(journal, name, run)
        daemons.wait(journal.lab, name, run)


def cut_link(lab: Lab, node: str, *, run: Runner) -> None:
    """Cut a node's cable: nothing reaches it until the cable is mended.

    slurmctld calls the node down after `slurmd_timeout` seconds, and its jobs NODE_FAIL.
    """
    set_link(lab, node, up=False, run=run)


def restore_link(lab: Lab, node: str, *, run: Runner) -> None:
    """Mend a node's cable."""
    set_link(lab, node, up=True, run=run)


def _fresh(lab: Lab) -> Lab:
    """Read the record again: a daemon that was started since has another PID."""
    current = load(lab.directory)
    if current is None or current.mark != lab.mark:
        raise UsageError("The lab is not there any more.", where=str(lab.directory))
    return current
