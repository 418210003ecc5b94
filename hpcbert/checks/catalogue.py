"""The doctor's checks of nodes, each with advice on its findings; pure data.

What containers need stands in `hpcbert.container.probe`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# look.sh ends a detail so where another interface would do.
_THERE = re.compile(r"; there are: (\S+)")


@dataclass(frozen=True)
class NodeCheck:
    """One thing that is asked of nodes or ranks.

    Attributes:
        asks: The question.
        hint: What to do when the answer is bad, a sentence or two.
        change: Name of the setting to change.
        remedy: What to type; in braces what the finding fills in: `fw`, the framework, `there`, an
            interface that nodes have, `mpi`, `srun_args`. Where it can't be filled in, nothing is
            named.
    """

    asks: str
    hint: str
    change: str = ""
    remedy: str = ""


_INTERFACE = 'site.toml: nodes.interface = "{there}"'
CHECKS: Mapping[str, NodeCheck] = {
    "runs": NodeCheck(
        "Does the node see what the login node writes to `runs`, can it write there, and is there "
        "room?",
        "Name a directory that all nodes share and that you may write to.",
        "site.toml: runs",
        "--runs ~/runs",
    ),
    "delay": NodeCheck(
        "Does the node see at once what other nodes write there?",
        "Choose a file system that shows new files sooner, or have it mounted with actimeo=1. "
        "hpcbert waits for status files that come late, but not for images and programs.",
        "site.toml: runs",
        "--runs ~/runs",
    ),
    "programs": NodeCheck(
        "Does the node have the programs that scripts call?",
        "Ask the administrator to install Slurm's commands, coreutils and libc-bin there.",
        "packages of that node",
    ),
    "home": NodeCheck(
        "Does the home directory exist?",
        "Programs that keep caches there fail: ask the administrator to mount it, or set HOME.",
        "site.toml: env.HOME",
        'site.toml: env.HOME = "/tmp"',
    ),
    "interface": NodeCheck(
        "Does the interface in `nodes.interface` have an address?",
        "Name an interface that every node has.",
        "site.toml: nodes.interface",
        _INTERFACE,
    ),
    "names": NodeCheck(
        "Do the names of the job's nodes resolve, and not to the node itself?",
        "Name the interface with the addresses that ranks use, or have the nodes' names entered "
        "in DNS or /etc/hosts.",
        "site.toml: nodes.interface",
        _INTERFACE,
    ),
    "python": NodeCheck(
        "Does the interpreter exist?",
        "Name an interpreter that every node has at the same path.",
        "site.toml: frameworks.NAME.python",
        "hpcbert prepare --fw {fw}",
    ),
    "framework": NodeCheck(
        "Can the interpreter import what the recipe's program imports?",
        "Prepare its environment or image, or name an interpreter that has the modules.",
        "site.toml: frameworks.NAME.python",
        "hpcbert prepare --fw {fw}",
    ),
    "files": NodeCheck(
        "Do data and program exist?",
        "Name directories that every node mounts at the same path.",
        "site.toml: frameworks.NAME.data, frameworks.NAME.source",
        "hpcbert prepare --fw {fw}",
    ),
    "tmp": NodeCheck(
        "Can programs write to `$TMPDIR` (else `/tmp`), with 1 GiB free, and run from there?",
        "Have it emptied, or name another directory on the nodes' own disks.",
        "site.toml: env.TMPDIR",
        'site.toml: env.TMPDIR = "/dev/shm"',
    ),
    "shm": NodeCheck(
        "Can programs write to `/dev/shm`, with 1 GiB free?",
        "Ranks of a node exchange data there: ask the administrator to mount it larger.",
        "mounts of that node",
        "mount -o remount,mode=1777,size=50% /dev/shm",
    ),
    "memlock": NodeCheck(
        "May a process lock memory, without limit if the node has InfiniBand?",
        "Ask the administrator to give slurmd LimitMEMLOCK=infinity, and to set "
        "PropagateResourceLimitsExcept=MEMLOCK in slurm.conf.",
        "limits of slurmd",
    ),
    "files-open": NodeCheck(
        "May a process open 1,024 files?",
        "Ask the administrator to give slurmd LimitNOFILE=65536.",
        "limits of slurmd",
    ),
    "clock": NodeCheck(
        "Does the clock agree with the controller's to within two seconds?",
        "Ask the administrator to start a time service there; munge refuses clocks that are five "
        "minutes off.",
        "clock of that node",
        "chronyc makestep",
    ),
    "ranks": NodeCheck(
        "Do ranks start, in their image if there is one?",
        "The job's output names the cause; hpcbert doctor --fw NAME examines the image further.",
        "site.toml: container",
    ),
    "GPUs": NodeCheck(
        "Does each rank see the requested GPUs of its node?",
        "Request what the nodes have, with slurm.gres and --gpus-per-node. Without --gpus-per-task "
        "and --gpu-bind, a rank sees all of them.",
        "site.toml: slurm.gres, nodes.gpus_per_node, slurm.srun_args",
        "site.toml: slurm.srun_args = {srun_args}",
    ),
    "port": NodeCheck(
        "Is the port at which ranks meet on the first node free?",
        "Another program listens there: find it with `ss -ltnp` on that node. Another job gets "
        "another port.",
        "programs on that node",
    ),
    "hello": NodeCheck(
        "Does every rank reach the first one over TCP?",
        "Name the interface that connects the nodes; a firewall must let their ports through.",
        "site.toml: nodes.interface",
        _INTERFACE,
    ),
    "MPI": NodeCheck(
        "Does MPI count all ranks, and do all of them pass a barrier?",
        "Use the kind of MPI that the program was built for: `srun --mpi=list` shows the choices.",
        "site.toml: slurm.mpi",
        'site.toml: slurm.mpi = "{mpi}"',
    ),
}


# What is asked of Slurm on this machine, by the names of findings; in the words of each finding is
# what there is instead, and what to type.
OF_SLURM: Mapping[str, str] = {
    "sbatch": "Is it installed?",
    "munge": "Do Slurm's commands and daemons trust each other?",
    "slurmctld": "Does the controller answer, and is it at least as new as the commands?",
    "accounting": "Does sacct answer?",
    "partition": "Does the partition exist, is it up, and is it for you?",
    "GPUs": "Do its nodes have enough GPUs of that type, and does the site request them?",
    "nodes": "Does it have enough nodes, and may a job have that many, or that few?",
    "CPUs": "Does a node have all CPUs that its ranks request?",
    "memory": "Does a node have the requested memory, and does the partition allow it?",
    "time limit": "Do partition, account and QOS allow the time limit?",
    "account": "Are you in the account, and may it use the partition?",
    "QOS": "May you use the QOS, and may it use the partition?",
    "limits": "Does one job alone exceed a limit of its account or QOS, and so never start?",
    "reservation": "Does the reservation exist, is it active and large enough, and may you use it?",
    "constraint": "Do enough nodes have the features?",
    "nodes of the partition": "Are enough of its nodes in service, and which are drained or down?",
    "arrays": "Does MaxArraySize allow an array of all repeats of a point?",
    "sbatch --test-only": "Would sbatch accept the job? The site's own plugin decides too.",
    "MPI": "Does srun support that kind of MPI?",
    "pyxis": "Does srun have every option of pyxis (0.15 or newer) that the scripts use?",
    "runs directory": "Can you write to it, and can other machines see it?",
}


def remedy(name: str, detail: str, known: Mapping[str, str]) -> str:
    """Return what to type about a bad finding; empty where nothing is known.

    Args:
        name: The check.
        detail: What was found.
        known: What fills in braces, where it is known.
    """
    there = _THERE.search(detail)
    values = {**known, **({"there": there[1]} if there else {})}
    try:
        return CHECKS[name].remedy.format_map({key: one for key, one in values.items() if one})
    except KeyError:
        return ""
