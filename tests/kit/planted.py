"""The faults that tests plant, and the findings that doctor must report: the table.

`docs/reference/checks.md` shows it. Tests plant those of their world and check the findings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Nodes and ranks of a lab, its choices and limits, its daemons; a machine or commands of a script.
SchedulerContext = Literal["nodes", "ranks", "choices", "daemons", "script"]


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        what: The fault, as on the page.
        code: The code of the finding.
        said: A part of the finding.
        remedy: The command from doctor; empty if an administrator must change something.
        context: Where it is planted.
        nodes: The nodes of the finding, joined by commas; empty: on this machine.
    """

    what: str
    code: str
    said: str
    remedy: str
    context: SchedulerContext
    nodes: str = ""


_ETH0 = 'site.toml: nodes.interface = "eth0"'
_ALL = "n1,n2,n3,n4"
FAULTS: tuple[Fault, ...] = (
    # Each faulty node of the lab has several; without a home directory, it is not a remedy.
    Fault("`runs` is a different directory on a node, or missing", "runs", "is another directory", "--runs ~/runs", "script", "n1"),
    Fault("`runs` can't be written to on a node", "runs", "can't be written to", "--exclude n4", "nodes", "n4"),
    Fault("`runs` is full, or the quota is used up", "runs", "no room left", "--runs ~/runs", "script", "n1"),
    Fault("a node sees `runs` late", "delay", "late", "--exclude n3", "nodes", "n3"),
    Fault("a node's name does not resolve", "names", "n3 does not resolve", _ETH0, "nodes", "n4"),
    Fault("the interface in `nodes.interface` does not exist", "interface", "there is no ib7", _ETH0, "nodes", _ALL),
    Fault("an interface does not connect the nodes", "hello", "does not reach rank 0", _ETH0, "script", "n2"),
    Fault("the interpreter does not exist", "python", "no program /no/such/python", "hpcbert prepare --fw ngc-tf1 --fw oneflow", "nodes", _ALL),
    Fault("the framework can't be imported", "framework", "does not import tensorflow", "hpcbert prepare --fw ngc-tf1 --fw oneflow", "nodes", _ALL),
    Fault("data are missing on nodes", "files", "there is no", "hpcbert prepare --fw ngc-tf1 --fw oneflow", "nodes", _ALL),
    Fault("`/tmp` can't be written to", "tmp", "can't be written to", 'site.toml: env.TMPDIR = "/dev/shm"', "nodes", "n3"),
    Fault("no program can be run from `/tmp`", "tmp", "noexec", 'site.toml: env.TMPDIR = "/dev/shm"', "nodes", "n4"),
    Fault("`/dev/shm` is too small", "shm", "MiB left", "mount -o remount,mode=1777,size=50% /dev/shm", "nodes", "n3"),
    Fault("a process may lock too little memory", "memlock", "64 KiB", "--exclude n3", "nodes", "n3"),
    Fault("a process may open too few files", "files-open", "512", "--exclude n4", "nodes", "n4"),
    Fault("a home directory is missing on a node", "home", "there is no home", 'site.toml: env.HOME = "/tmp"', "nodes", "n4"),
    Fault("a node's clock is off", "clock", "ahead of the controller's", "chronyc makestep", "nodes", "n3"),
    Fault("ranks don't start", "ranks", "ib7", "", "nodes", _ALL),
    Fault("a rank sees fewer GPUs than were requested", "GPUs", "sees 1 GPU", "site.toml: slurm.srun_args = []", "ranks", "n1,n2"),
    Fault("the site does not request GPUs", "GPUs", "slurm.gres is empty", 'site.toml: slurm.gres = "gpu"', "nodes"),
    Fault("several ranks would get slices of GPUs (MIG)", "GPUs", "NCCL does not join", "--nodes 1 --gpus-per-node 1", "script"),
    Fault("a node without such GPUs has slices (MIG)", "GPUs", "its nodes have gpu:1g.10gb:7", "--gpus-per-node 1", "script"),
    Fault("the port where ranks meet is taken", "port", "Address already in use", "", "script", "n1"),
    Fault("MPI does not count all ranks", "MPI", "a rank", 'site.toml: slurm.mpi = "pmix"', "ranks", "n1,n2"),
    Fault("fewer nodes answer than were requested", "nodes", "1 of 2 nodes answered", "--nodes 1", "script"),
    Fault("the excluded nodes leave too few", "nodes of the partition", "2 of 4 nodes run jobs", "--nodes 2", "ranks", "n3,n4"),
    Fault("the image does not exist", "image", "There is no", "hpcbert prepare --fw oneflow", "script"),
    Fault("enroot is not installed on a node", "enroot", "no such program", "", "script", "n1"),
    Fault("ranks are not in the container", "plugin", "not in the container", "", "script", "n2"),
    # Choices that can't be had.
    Fault("the partition does not exist", "partition", "no partition 'nix'", "--partition gpu", "script"),
    Fault("the partition is down", "partition", "is down", "--partition gpu", "script"),
    Fault("the partition is for other groups", "partition", "for the groups members only", "--partition gpu", "script"),
    Fault("the partition requires more nodes", "nodes", "no job with fewer than 2 nodes", "--partition gpu", "script"),
    Fault("the partition shares its nodes in any case", "shared nodes", "OverSubscribe=FORCE:4", "", "script"),
    Fault("ranks request more CPUs than a node has", "CPUs", "No node has 64 CPUs for 8 ranks of 8 CPUs; the largest has 32", "site.toml: nodes.cpus_per_gpu = 4", "script"),
    Fault("the site requests more memory than a node has", "memory", "No node has the memory", 'site.toml: slurm.memory = "0"', "script"),
    Fault("the partition allows less memory than a node has", "memory", "allows a job 64000 MiB of a node", 'site.toml: slurm.memory = "64000"', "script"),
    Fault("an account is not yours", "account", "not in account nix", "--account proj", "choices"),
    Fault("an account may not use the partition", "account", "may not use partition closed", "--account short", "script"),
    Fault("the cluster requires an account", "account", "must name an account", "--account proj", "script"),
    Fault("a QOS is not yours", "QOS", "may not use QOS nix", "--qos normal", "choices"),
    Fault("a QOS may not use the partition", "QOS", "may not use partition fast", "--qos high", "script"),
    Fault("one job alone exceeds GrpTRESRunMins", "limits", "GrpTRESRunMins", "--time 00:07:00", "choices"),
    Fault("the reservation does not exist", "reservation", "no reservation 'nix'", 'site.toml: slurm.reservation = ""', "choices"),
    Fault("no node has the feature", "constraint", "the feature nix", 'site.toml: slurm.constraint = ""', "choices"),
    Fault("no node has GPUs of that type", "GPUs", "gpu:h100:4", 'site.toml: slurm.gres = "gpu:2080ti"', "choices"),
    Fault("the time limit exceeds MaxTime", "time limit", "at most 00:20:00", "--time 00:20:00", "choices"),
    Fault("suitable nodes are drained", "nodes of the partition", "n4 (drained)", "--nodes 1", "choices", "n4"),
    Fault("srun lacks the kind of MPI", "MPI", "no pmix", 'site.toml: slurm.mpi = "pmi2"', "choices"),
    Fault("MaxArraySize is below five repeats", "arrays", "allows an array 3 jobs", "", "choices"),
    Fault("the cluster requires `--export=NONE`", "sbatch --test-only", "--export=NONE", 'site.toml: slurm.sbatch_args = ["--export=NONE"]', "script"),
    Fault("Slurm hides its nodes (PrivateData)", "partition", "PrivateData", "", "script"),
    # Daemons, and what is installed.
    Fault("bash ends in the file that `BASH_ENV` names", "BASH_ENV", "status 3", "unset BASH_ENV", "script"),
    Fault("a prolog fails", "prolog", "Prolog error", "--exclude n2,n3", "script", "n2,n3"),
    Fault("slurmctld is down", "slurmctld", "DOWN", "", "daemons"),
    Fault("slurmdbd is down", "accounting", "Problem talking to the database", "", "daemons"),
    Fault("munge is down", "munge", "munge is down", "", "daemons"),
    Fault("slurmd is down on a node", "nodes of the partition", "n3 (down*)", "", "daemons", "n3"),
    Fault("Slurm's commands are newer than the controller", "slurmctld", "newer than the controller's", "", "script"),
)  # fmt: skip


def select_faults(*worlds: SchedulerContext) -> tuple[Fault, ...]:
    """Return the faults of some worlds."""
    return tuple(fault for fault in FAULTS if fault.context in worlds)


def find_missed(faults: tuple[Fault, ...], findings: list[dict[str, object]]) -> list[Fault]:
    """Return the faults without the required finding."""
    return [fault for fault in faults if not any(_is(fault, finding) for finding in findings)]


def _is(fault: Fault, finding: dict[str, object]) -> bool:
    nodes = finding["nodes"]
    assert isinstance(nodes, (list, tuple))
    return (
        finding["status"] != "ok"
        and finding["code"] == fault.code
        and fault.said in str(finding["detail"])
        and (finding["remedy"], ",".join(nodes)) == (fault.remedy, fault.nodes)
    )
