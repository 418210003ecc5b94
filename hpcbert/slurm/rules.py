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
from hpcbert.slurm.partitions import NodeGroup, Partition, Resource, parse_resources, parse_tres
from hpcbert.timelimit import TimeLimit

_RULE_PAIR = re.compile(r"(?:^|\s)([A-Z]\w*)=(\S*)")
_NO_RULE = {"", "N/A", "NONE", "(null)"}


@dataclass(frozen=True)
class PartitionRules:
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
        return _is_allowed(account, self.accounts, self.denied_accounts)

    def takes_qos(self, qos: str) -> bool:
        """Return whether jobs of a QOS may use it."""
        return _is_allowed(qos, self.qos, self.denied_qos)


def _is_allowed(name: str, allowed: tuple[str, ...], denied: tuple[str, ...]) -> bool:
    return (not allowed or name in allowed) and name not in denied


def rules_argv() -> list[str]:
    """Return the query for all partitions, including hidden ones."""
    return ["scontrol", "--all", "--oneliner", "show", "partition"]


def read_rules(text: str) -> dict[str, PartitionRules]:
    """Read the output of `rules_argv`, by name; lines that can't be read are skipped."""
    rules = {}
    for line in text.splitlines():
        keys = dict(_RULE_PAIR.findall(line))
        if name := keys.get("PartitionName"):
            rules[name] = PartitionRules(
                partition=_build_partition(name, keys),
                limit=TimeLimit.parse_reported(keys.get("DefaultTime", "")),
                accounts=_read_names(keys, "AllowAccounts"),
                denied_accounts=_read_names(keys, "DenyAccounts"),
                qos=_read_names(keys, "AllowQos"),
                denied_qos=_read_names(keys, "DenyQos"),
                groups=_read_names(keys, "AllowGroups"),
                own_qos="" if keys.get("QoS", "") in _NO_RULE else keys["QoS"],
                memory=_read_memory(keys),
                reserved=keys.get("ReqResv") == "YES",
                for_root=keys.get("RootOnly") == "YES",
                most_memory=_read_limit(keys.get("MaxMemPerNode", "")),
            )
    return rules


def _read_names(keys: dict[str, str], name: str) -> tuple[str, ...]:
    """Return the names under a key; `ALL` gives none."""
    text = keys.get(name, "")
    return () if text in _NO_RULE or text == "ALL" else tuple(text.split(","))


def _read_limit(text: str) -> int | None:
    return int(text) if text.isdigit() and int(text) else None


def _read_memory(keys: dict[str, str]) -> str:
    if per_gpu := memory_per_gpu(keys.get("JobDefaults", "")):
        return per_gpu
    for name, option in (("DefMemPerCPU", "--mem-per-cpu"), ("DefMemPerNode", "--mem")):
        if keys.get(name, "").isdigit():
            return f"{option}={keys[name]}"
    return ""


def _build_partition(name: str, keys: dict[str, str]) -> Partition:
    least_nodes, most_nodes = keys.get("MinNodes", ""), keys.get("MaxNodes", "")
    nodes = keys.get("TotalNodes", "")
    count = int(nodes) if nodes.isdigit() else 0
    node_list = keys.get("Nodes", "")
    group = NodeGroup(
        count, () if node_list in _NO_RULE else expand(node_list), _average_resources(keys, count)
    )
    return Partition(
        name=name,
        default=keys.get("Default") == "YES",
        state=keys.get("State", "UP").lower(),
        limit=TimeLimit.parse_reported(keys.get("MaxTime", "")),
        most_nodes=int(most_nodes) if most_nodes.isdigit() else None,
        groups=(group,),
        exact=False,
        least_nodes=int(least_nodes) if least_nodes.isdigit() else 1,
    )


def _average_resources(keys: dict[str, str], nodes: int) -> tuple[Resource, ...]:
    """Return each node's average share of the partition's sums; typed resources before others."""
    sums = (f"{key}={count}" for key, count in parse_tres(keys.get("TRES", "")).items())
    totals = [
        resource for word in sums if word.startswith("gres/") for resource in parse_resources(word)
    ]
    typed = {resource.name for resource in totals if resource.kind}
    distinct = [resource for resource in totals if resource.kind or resource.name not in typed]
    return (
        tuple(replace(resource, count=-(-resource.count // nodes)) for resource in distinct)
        if nodes
        else ()
    )
