"""A real Slurm cluster on one machine: munge, MariaDB, slurmdbd, slurmctld, a slurmd per node.

Each node is a process with its own network, mount, host-name, IPC and PID namespace: four hosts
with their own addresses, names, /tmp and processes share one machine, and ending that one process
ends everything on the node. The lab never touches the machine's own Slurm: it has its own key,
sockets, data, ports and configuration.
"""

from __future__ import annotations

from hpcbert.lab.bringup import up
from hpcbert.lab.faults import (
    cut_link,
    inside,
    restore_link,
    show_at_once,
    show_late,
    start_daemon,
    stop_daemon,
)
from hpcbert.lab.inspection import DaemonStatus, LabStatus, NodeStatus, status
from hpcbert.lab.plan import DEFAULT_DIRECTORY, LabPlan, command
from hpcbert.lab.record import Lab, load
from hpcbert.lab.requirements import check_packages, check_root, missing
from hpcbert.lab.teardown import Removal, down
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
    "cut_link",
    "down",
    "inside",
    "load",
    "missing",
    "restore_link",
    "show_at_once",
    "show_late",
    "start_daemon",
    "status",
    "stop_daemon",
    "up",
]
