"""A real Slurm cluster on one machine: munge, MariaDB, slurmdbd, slurmctld, a slurmd per node.

Each node is a process with its own network, mount, host-name, IPC and PID namespace: four hosts
with their own addresses, names, /tmp and processes share one machine, and ending that one process
ends everything on the node. The lab never touches the machine's own Slurm: it has its own key,
sockets, data, ports and configuration.
"""

from __future__ import annotations

from hpcbert.lab.lifecycle import (
    DaemonStatus,
    LabStatus,
    NodeStatus,
    Removal,
    check_packages,
    check_root,
    down,
    missing,
    status,
    up,
)
from hpcbert.lab.plan import DEFAULT_DIRECTORY, LabPlan, command
from hpcbert.lab.record import Lab, load
from hpcbert.system.processes import Process

__all__ = [
    "DEFAULT_DIRECTORY",
    "DaemonStatus",
    "Lab",
    "LabPlan",
    "LabStatus",
    "NodeStatus",
    "Process",
    "Removal",
    "check_packages",
    "check_root",
    "command",
    "down",
    "load",
    "missing",
    "status",
    "up",
]
