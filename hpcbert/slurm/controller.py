"""The controller's settings, and srun's kinds of MPI: `scontrol show config`, `srun --mpi=list`.

Keys are those of SchedMD/slurm, src/api/config_info.c, 22.05 to 26.05; the list of MPI types comes
from src/common/plugrack.c, plugrack_print_mpi_plugins (before 22.05 in log lines on stderr).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_KEY = re.compile(r"^(\w+) *= (.*)$", re.MULTILINE)
_NOTHING = {"", "none", "(null)", "n/a"}
_UNLIMITED = {"unlimited", "0", *_NOTHING}
# What `AccountingStorageEnforce` makes Slurm check of a job (slurm.conf(5)); `all` means all these.
_CHECKS = frozenset({"associations", "limits", "qos", "safe", "wckeys"})
_TYPE = re.compile(r"[a-z]\w*")
_LISTED = re.compile(r"MPI (?:plugin )?types are")
_VERSIONS = "specific pmix plugin versions available:"


@dataclass(frozen=True)
class Controller:
    """The keys of slurm.conf that matter for jobs.

    Attributes:
        name: The cluster's name; empty if unknown.
        version: Slurm's version: `22.05.8`.
        most_indices: Largest number of indices of an array; None if unknown.
        memory: What a job gets that requests no memory, as sbatch would write it, with its option:
            `--mem=4000`, `--mem-per-cpu=4000` or `--mem-per-gpu=4000`, in MiB; empty: all that a
            node has.
        mpi: The type of MPI that srun uses by default.
        enforced: Which parts of accounting bind jobs: `associations`, `limits`, `qos`, `safe`.
        preempts_by_partition: Whether jobs of a higher PriorityTier preempt others.
    """

    name: str = ""
    version: str = ""
    most_indices: int | None = None
    memory: str = ""
    mpi: str = ""
    enforced: frozenset[str] = frozenset()
    preempts_by_partition: bool = False


def config_argv() -> list[str]:
    """Return the query for the controller's settings."""
    return ["scontrol", "show", "config"]


def read_config(text: str) -> Controller:
    """Read the output of `config_argv`; what is missing from it stays unknown."""
    keys = {name: value.strip() for name, value in _KEY.findall(text)}
    max_array_size = keys.get("MaxArraySize", "")
    per_node, per_cpu = keys.get("DefMemPerNode", ""), keys.get("DefMemPerCPU", "")
    memory = "" if per_node.lower() in _UNLIMITED else f"--mem={per_node}"
    memory = memory_per_gpu(keys.get("JobDefaults", "")) or memory
    return Controller(
        name="" if keys.get("ClusterName", "").lower() in _NOTHING else keys["ClusterName"],
        version=keys.get("SLURM_VERSION", ""),
        most_indices=max(1, int(max_array_size) - 1) if max_array_size.isdigit() else None,
        memory=memory if per_cpu.lower() in _UNLIMITED else f"--mem-per-cpu={per_cpu}",
        mpi="" if keys.get("MpiDefault", "").lower() in _NOTHING else keys["MpiDefault"],
        enforced=_read_enforced(keys.get("AccountingStorageEnforce", "")),
        preempts_by_partition=keys.get("PreemptType", "").endswith("partition_prio"),
    )


def memory_per_gpu(defaults: str) -> str:
    """Return the memory that `JobDefaults` gives for each GPU, as an option; empty: none."""
    match = re.search(r"\bDefMemPerGPU=(\d+)", defaults)
    return f"--mem-per-gpu={match[1]}" if match else ""


def _read_enforced(text: str) -> frozenset[str]:
    """Return the enforced checks of jobs, including those that others imply."""
    words = frozenset(word.strip().lower() for word in text.split(","))
    checks = _CHECKS if "all" in words else words & _CHECKS
    if "safe" in checks:
        checks |= {"limits"}
    return checks | {"associations"} if checks & _CHECKS else checks


def mpi_argv() -> list[str]:
    """Return the query for the types of MPI that srun starts ranks with."""
    return ["srun", "--mpi=list"]


def read_mpi(text: str) -> tuple[str, ...]:
    """Return the types of MPI that srun has, in its order: `pmix`, `pmi2`, `none`, `pmix_v4`.

    Args:
        text: The output of `mpi_argv`, from both streams.
    """
    heading = _LISTED.search(text)
    lines = text[heading.end() :].splitlines()[1:] if heading else []
    names = [line.strip().removeprefix("srun: ").removeprefix("mpi/") for line in lines]
    plain = [name for name in names if _TYPE.fullmatch(name)]
    versions = [line.partition(_VERSIONS)[2] for line in lines if _VERSIONS in line]
    exact = [word.strip() for line in versions for word in line.split(",") if word.strip()]
    return tuple(dict.fromkeys((*plain, *exact)))


def choose_mpi(preferences: Sequence[str], available: Sequence[str]) -> str:
    """Return the first wanted type of MPI that srun has; empty if it has none of them.

    A cluster with only one version of PMIx may name it that way: `pmix_v4` counts as `pmix`.

    Args:
        preferences: In order of preference.
        available: What srun has.
    """
    for preference in preferences:
        versions = sorted(name for name in available if name.startswith(f"{preference}_v"))
        if version := preference if preference in available else next(reversed(versions), ""):
            return version
    return ""
