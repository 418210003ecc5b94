"""What the doctor asks of the nodes: every check, and what to do about what it finds; pure data.

What containers need stands in `hpcbert.container.probe`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcbert.system.lazy import dataclass, regex

if TYPE_CHECKING:
    from collections.abc import Mapping

# look.sh ends a detail so where another interface would do.
_THERE = regex(r"; there are: (\S+)")


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
        "Does the node see what the login node writes to `runs`, can it write, is there room?",
        "Name a directory that all nodes share and that you may write to.",
        "site.toml: runs",
        "--runs ~/runs",
    ),
    "delay": NodeCheck(
        "Does it see at once what other nodes write there?",
        "Choose a file system that shows files sooner, or have it mounted with actimeo=1; status "
        "files that come late are waited for, images and programs are not.",
        "site.toml: runs",
        "--runs ~/runs",
    ),
    "programs": NodeCheck(
        "Are the programs there that scripts call?",
        "The administrator installs Slurm's commands, coreutils and libc-bin there.",
        "packages of that node",
    ),
    "home": NodeCheck(
        "Is the home directory there?",
        "Programs that keep caches there fail: the administrator mounts it, or set HOME.",
        "site.toml: env.HOME",
        'site.toml: env.HOME = "/tmp"',
    ),
    "interface": NodeCheck(
        "Has the interface of `nodes.interface` an address?",
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
        "Is the interpreter there?",
        "Name an interpreter that every node has at the same path.",
        "site.toml: frameworks.NAME.python",
        "hpcbert prepare --fw {fw}",
    ),
    "framework": NodeCheck(
        "Can the interpreter import what the recipe's program imports?",
        "Make its environment or image, or name an interpreter that has it.",
        "site.toml: frameworks.NAME.python",
        "hpcbert prepare --fw {fw}",
    ),
    "files": NodeCheck(
        "Are data and program there?",
        "Name directories that every node mounts at the same path.",
        "site.toml: frameworks.NAME.data, frameworks.NAME.source",
        "hpcbert prepare --fw {fw}",
    ),
    "tmp": NodeCheck(
        "Can `$TMPDIR`, else `/tmp`, be written to, with a GiB left, and programs be run there?",
        "Have it emptied, or name another directory on the nodes' own disks.",
        "site.toml: env.TMPDIR",
        'site.toml: env.TMPDIR = "/dev/shm"',
    ),
    "shm": NodeCheck(
        "Can `/dev/shm` be written to, with a GiB left?",
        "Ranks of a node exchange data there: the administrator mounts it larger.",
        "mounts of that node",
        "mount -o remount,mode=1777,size=50% /dev/shm",
    ),
    "memlock": NodeCheck(
        "May a process lock memory: without limit where there is InfiniBand?",
        "The administrator gives slurmd LimitMEMLOCK=infinity and sets "
        "PropagateResourceLimitsExcept=MEMLOCK in slurm.conf.",
        "limits of slurmd",
    ),
    "files-open": NodeCheck(
        "May a process have 1,024 files open?",
        "The administrator gives slurmd LimitNOFILE=65536.",
        "limits of slurmd",
    ),
    "clock": NodeCheck(
        "Does the clock agree with the controller's to two seconds?",
        "The administrator starts a time service there; munge refuses what is five minutes off.",
        "clock of that node",
        "chronyc makestep",
    ),
    "ranks": NodeCheck(
        "Do ranks start, in their image if there is one?",
        "What the job said names the cause; hpcbert doctor --fw NAME asks more of the image.",
        "site.toml: container",
    ),
    "GPUs": NodeCheck(
        "Does each rank see the GPUs of its node that were asked for?",
        "Ask for what nodes have, by slurm.gres and --gpus-per-node; without --gpus-per-task and "
        "--gpu-bind a rank sees all.",
        "site.toml: slurm.gres, nodes.gpus_per_node, slurm.srun_args",
        "site.toml: slurm.srun_args = {srun_args}",
    ),
    "port": NodeCheck(
        "Is the port free at which ranks meet on the first node?",
        "Something else listens there: find it with `ss -ltnp` on that node. Another job has "
        "another port.",
        "programs on that node",
    ),
    "hello": NodeCheck(
        "Does every rank reach the first one by TCP?",
        "Name the interface that joins the nodes; a firewall must let their ports through.",
        "site.toml: nodes.interface",
        _INTERFACE,
    ),
    "MPI": NodeCheck(
        "Does MPI count all ranks, and do all come out of a barrier?",
        "Use the kind of MPI that the program was built for: `srun --mpi=list` says what there is.",
        "site.toml: slurm.mpi",
        'site.toml: slurm.mpi = "{mpi}"',
    ),
}


# What is asked of Slurm on this machine, by the names of findings; in the words of each finding is
# what there is instead, and what to type.
OF_SLURM: Mapping[str, str] = {
    "sbatch": "Is it installed?",
    "munge": "Do Slurm's commands and daemons trust each other?",
    "slurmctld": "Does the controller answer, and is it not older than the commands?",
    "accounting": "Does sacct answer?",
    "partition": "Is there the partition, and is it up?",
    "GPUs": "Have its nodes GPUs of that type, and as many, and are they asked for?",
    "nodes": "Has it so many nodes, and does it give a job as many?",
    "time limit": "Do partition, account and QOS allow the time limit?",
    "account": "Are you in the account, and may it use the partition?",
    "QOS": "May you use the QOS, and may it use the partition?",
    "limits": "Does one job alone exceed a limit of account or QOS, so that it would never start?",
    "reservation": "Is there the reservation, may you use it, is it active, is it large enough?",
    "constraint": "Have enough nodes the features?",
    "nodes of the partition": "Do enough of its nodes run jobs, and which are drained or down?",
    "arrays": "Does MaxArraySize hold the repeats of a point?",
    "sbatch --test-only": "Would sbatch take the job? The site's own plugin is asked too.",
    "MPI": "Has srun the kind of MPI?",
    "pyxis": "Does srun take pyxis' options?",
    "runs directory": "Do other machines see it?",
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
