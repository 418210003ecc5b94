"""Look at a lab without touching it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcbert.errors import UsageError
from hpcbert.lab.daemons import node_states
from hpcbert.lab.plan import command
from hpcbert.lab.record import load
from hpcbert.system.processes import boot_id

if TYPE_CHECKING:
    from pathlib import Path

    from hpcbert.lab.record import Lab
    from hpcbert.system.runner import Runner


@dataclass(frozen=True)
class DaemonStatus:
    """One daemon.

    Attributes:
        name: Its name; a node's slurmd has the node's.
        pid: Its PID; None if it never ran.
        alive: Whether it runs.
    """

    name: str
    pid: int | None
    alive: bool


@dataclass(frozen=True)
class NodeStatus:
    """One node.

    Attributes:
        name: Its name.
        address: Its address on the lab's bridge.
        state: Slurm's word for its state, such as `idle`; `unknown` if slurmctld does not run.
    """

    name: str
    address: str
    state: str


@dataclass(frozen=True)
class LabStatus:
    """A lab as it is now.

    Attributes:
        lab: Its record.
        daemons: All daemons that it should have, in the order in which they start.
        nodes: All nodes that it should have.
    """

    lab: Lab
    daemons: tuple[DaemonStatus, ...]
    nodes: tuple[NodeStatus, ...]

    @property
    def healthy(self) -> bool:
        """Whether every daemon runs and no node is down."""
        bad = ("", "unknown", "down", "error")
        serving = all(n.state not in bad and not n.state.endswith("*") for n in self.nodes)
        return serving and all(daemon.alive for daemon in self.daemons)

    @property
    def usage(self) -> str:
        """The shell line that lets an ordinary user use it."""
        user, source = self.lab.plan.user, f". {self.lab.layout.env_sh}"
        # Login shells of the lab's own account read it.
        if user:
            return f"su - {user}" if self.lab.account else f"su - {user}, then {source}"
        return source


def status(directory: Path, *, run: Runner) -> LabStatus:
    """Return the state of the lab in a directory.

    Raises:
        UsageError: The directory has no lab.
    """
    lab = load(directory)
    if lab is None:
        raise UsageError(
            "There is no lab here.",
            where=str(directory),
            hint=f"`{command('up', directory)}` starts one.",
        )
    same_boot = lab.boot == boot_id()
    found = ((name, lab.daemons.get(name)) for name in lab.expected_daemons)
    daemons = tuple(
        DaemonStatus(name, one.pid if one else None, alive=bool(same_boot and one and one.alive))
        for name, one in found
    )
    # Without these two daemons, sinfo waits a long time for an answer.
    answering = all(one.alive for one in daemons if one.name in ("munged", "slurmctld"))
    states = node_states(lab, run) if answering else {}
    nodes = tuple(
        NodeStatus(
            name,
            "" if lab.slot is None else lab.network.address(name),
            states.get(name, "unknown"),
        )
        for name in lab.plan.node_names
    )
    return LabStatus(lab, daemons, nodes)
