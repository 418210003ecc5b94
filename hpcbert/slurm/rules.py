"""The rules of partitions: who may use them, for how long, with how much memory.

The source is `scontrol show partition`. Keys are those of SchedMD/slurm,
src/api/partition_info.c, 22.05 to 26.05. Users also see it if nodes are private
(`PrivateData=nodes`), which makes sinfo print nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from hpcbert.slurm.controller import memory_per_gpu
from hpcbert.slurm.hostlist import expand
from hpcbert.slurm.partitions import NodeGroup, Partition, Resource, resources, tres
from hpcbert.timelimit import TimeLimit

_PAIR = re.compile(r"(?:^|\s)([A-Z]\w*)=(\S*)")
_NONE = {"", "N/A", "NONE", "(null)"}


@dataclass(frozen=True)
class Rules:
    """A partition's conditions for jobs.

    Attributes:
        partition: The partition as far as the controller describes it: nodes of one kind, of which
            only the averages are known.
        limit: The time limit of jobs that request none.
        accounts, qos: Those that may use it; if empty, all.
        denied_accounts, denied_qos: Those that may not.
        groups: Groups of users that may; if empty, all.
        own_qos: The QOS with limits on its jobs, in addition to their own; empty: there is none.
        memory: As in `Controller.memory`; empty: the cluster's.
        reserved: Whether only jobs with a reservation run there.
        for_root: Whether only root's jobs run there.
        most_memory: The most memory of a node that a job may request, in MiB; None: no limit.
    """

    partition: Partition
    limit: TimeLimit
    accounts: tuple[str, ...] = ()
    denied_accounts: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()
    denied_qos: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    own_qos: str = ""
    memory: str = ""
    reserved: bool = False
    for_root: bool = False
    most_memory: int | None = None

    def takes_account(self, account: str) -> bool:
        """Return whether jobs of an account may use it."""
        return _allowed(account, self.accounts, self.denied_accounts)

    def takes_qos(self, qos: str) -> bool:
        """Return whether jobs of a QOS may use it."""
        return _allowed(qos, self.qos, self.denied_qos)


def _allowed(name: str, allowed: tuple[str, ...], denied: tuple[str, ...]) -> bool:
    return (not allowed or name in allowed) and name not in denied


def rules_argv() -> list[str]:
    """Return the query for all partitions, including hidden ones."""
    return ["scontrol", "--all", "--oneliner", "show", "partition"]


def read_rules(text: str) -> dict[str, Rules]:
    """Read the output of `rules_argv`, by name; lines that can't be read are skipped."""
    found = {}
    for line in text.splitlines():
        keys = dict(_PAIR.findall(line))
        if name := keys.get("PartitionName"):
            found[name] = Rules(
                partition=_partition(name, keys),
                limit=TimeLimit.reported(keys.get("DefaultTime", "")),
                accounts=_names(keys, "AllowAccounts"),
                denied_accounts=_names(keys, "DenyAccounts"),
                qos=_names(keys, "AllowQos"),
                denied_qos=_names(keys, "DenyQos"),
                groups=_names(keys, "AllowGroups"),
                own_qos="" if keys.get("QoS", "") in _NONE else keys["QoS"],
                memory=_memory(keys),
                reserved=keys.get("ReqResv") == "YES",
                for_root=keys.get("RootOnly") == "YES",
                most_memory=_number(keys.get("MaxMemPerNode", "")),
            )
    return found


def _names(keys: dict[str, str], name: str) -> tuple[str, ...]:
    """Return the names under a key; `ALL` gives none."""
    text = keys.get(name, "")
    return () if text in _NONE or text == "ALL" else tuple(text.split(","))


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() and int(text) else None


def _memory(keys: dict[str, str]) -> str:
    if per_gpu := memory_per_gpu(keys.get("JobDefaults", "")):
        return per_gpu
    for name, option in (("DefMemPerCPU", "--mem-per-cpu"), ("DefMemPerNode", "--mem")):
        if keys.get(name, "").isdigit():
            return f"{option}={keys[name]}"
    return ""


def _partition(name: str, keys: dict[str, str]) -> Partition:
    least, most = keys.get("MinNodes", ""), keys.get("MaxNodes", "")
    nodes = keys.get("TotalNodes", "")
    count = int(nodes) if nodes.isdigit() else 0
    there = keys.get("Nodes", "")
    group = NodeGroup(count, () if there in _NONE else expand(there), _each(keys, count))
    return Partition(
        name=name,
        default=keys.get("Default") == "YES",
        state=keys.get("State", "UP").lower(),
        limit=TimeLimit.reported(keys.get("MaxTime", "")),
        most_nodes=int(most) if most.isdigit() else None,
        groups=(group,),
        exact=False,
        least_nodes=int(least) if least.isdigit() else 1,
    )


def _each(keys: dict[str, str], nodes: int) -> tuple[Resource, ...]:
    """Return each node's average share of the partition's sums; typed resources before others."""
    sums = (f"{key}={count}" for key, count in tres(keys.get("TRES", "")).items())
    found = [resource for word in sums if word.startswith("gres/") for resource in resources(word)]
    typed = {resource.name for resource in found if resource.kind}
    each = [resource for resource in found if resource.kind or resource.name not in typed]
    return (
        tuple(replace(resource, count=-(-resource.count // nodes)) for resource in each)
        if nodes
        else ()
    )
