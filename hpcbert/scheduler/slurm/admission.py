"""Admission: what is certain before a submission to keep its jobs from running.

Partition, nodes, GPUs and time against what the partitions have and allow; account and QOS against
the user's rights. sbatch accepts such jobs where EnforcePartLimits is NO, its default, and they
wait forever (seen with 22.05.8). All other limits, and what a cluster does not enforce or show, are
left to Slurm, which says them to sbatch or as the reason for which a job waits.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcbert import finding
from hpcbert.config.site import Site
from hpcbert.errors import format_count
from hpcbert.finding import Finding
from hpcbert.model import JobRequest
from hpcbert.scheduler.base import Supply
from hpcbert.scheduler.slurm.cluster import Cluster
from hpcbert.script.request import read_request
from hpcbert.slurm import inventory
from hpcbert.slurm.hostlist import expand
from hpcbert.slurm.inventory import Partition, PartitionRules, parse_resources
from hpcbert.system import files, machine
from hpcbert.timelimit import TimeLimit

make_finding = functools.partial(finding.make_finding, Path(__file__).with_name("findings.toml"))


# What a plan says of a partition as it is.
_SUPPLIED = ("name", "state", "limit", "most_nodes", "nodes", "resources")


def _is_longer(job: JobRequest, limit: TimeLimit) -> bool:
    """Return whether a job's time limit exceeds another; False if it requests none."""
    own_limit = TimeLimit.parse_reported(job.time_limit)
    return own_limit.seconds is not None and own_limit.exceeds(limit)


def site_options(site: Site, nodes: int) -> list[str]:
    """Return sbatch's options for a site's job on some nodes, with all that applies to each job."""
    slurm, gpus = site.slurm, site.nodes.gpus_per_node
    options = slurm.request_options(nodes, gpus, gpus=gpus, cpus=site.nodes.cpus_per_gpu)
    return [*options, *slurm.sbatch_args, *slurm.placement(nodes)]


def derive_site_request(site: Site, nodes: int) -> JobRequest:
    """Return the request of a site's job on some nodes."""
    return read_request(site_options(site, nodes))


def list_supply(job: JobRequest, cluster: Cluster) -> tuple[Supply, ...]:
    """Return the nodes and limits of a job's partitions; empty if Slurm does not answer."""
    partitions = cluster.partitions
    names = select_partitions(job, partitions)
    states = {name: [*inventory.read_node_states(cluster.states, name).values()] for name in names}
    is_known = bool(names and cluster.states)
    return tuple(
        Supply(
            **{field: getattr(partitions[name], field) for field in _SUPPLIED},
            fitting=_count_fitting(job, partitions[name]),
            usable=sum(state in inventory.USABLE for state in states[name]) if is_known else None,
            free=states[name].count("idle") if is_known else None,
        )
        for name in names
    )


def find_obstacles(jobs: Iterable[JobRequest], runs: Path, cluster: Cluster) -> Iterator[Finding]:
    """Yield what keeps jobs from running: partitions, sizes of nodes, rights.

    If the partitions are unknown, nothing is said of them: sbatch will report the reason.
    """
    names: set[str] = set()
    for job in jobs:
        job_names = select_partitions(job, cluster.partitions)
        names.update(job_names)
        if cluster.partitions:
            yield from _find_partition_misfits(job, cluster.partitions)
            yield from _find_slices(job, [cluster.partitions[name] for name in job_names])
        yield from _find_missing_rights(job, job_names, cluster)
        yield from find_forced_sharing(job, cluster)
    yield from _check_runs_directory(runs, [cluster.partitions[name] for name in sorted(names)])


def select_partitions(job: JobRequest, partitions: Mapping[str, Partition]) -> tuple[str, ...]:
    """Return the existing partitions that a job may run in."""
    names = [name.strip() for name in job.partition.split(",") if name.strip()]
    names = names or [partition.name for partition in partitions.values() if partition.default]
    return tuple(name for name in names if name in partitions)


def _find_slices(job: JobRequest, partitions: Sequence[Partition]) -> Iterator[Finding]:
    """Yield a finding if several ranks of a job would get only slices of GPUs."""
    ranks = job.nodes * job.tasks_per_node
    matches = [
        match
        for partition in partitions
        for resource in parse_resources(job.gres)
        for match in partition.list_matches(resource)
    ]
    if ranks > 1 and matches and all(match.sliced for match in matches):
        yield make_finding("gpu-slices", slice=matches[0], ranks=ranks)


def find_absent_nodes(job: JobRequest, cluster: Cluster) -> dict[str, str]:
    """Return the nodes, with their states, that a job which would fit must wait for.

    A named node that runs no jobs now, or all such nodes if the others are too few.
    """
    absent_nodes: dict[str, str] = {}
    # sbatch reads a list with a slash as the path of a file.
    nodelist, exclude = (
        () if "/" in text else expand(text) for text in (job.nodelist, job.exclude)
    )
    for name in select_partitions(job, cluster.partitions):
        fitting = cluster.partitions[name].fitting(parse_resources(job.gres)) - set(exclude)
        states = {
            node: state
            for node, state in inventory.read_node_states(cluster.states, name).items()
            if node in fitting and state not in inventory.USABLE
        }
        named_states = {node: states[node] for node in nodelist if node in states}
        if len(fitting) - len(states) >= job.nodes and not named_states:
            return {}
        if job.nodes <= len(fitting):
            absent_nodes |= named_states or states
    return absent_nodes


def _find_partition_misfits(
    job: JobRequest, partitions: Mapping[str, Partition]
) -> Iterator[Finding]:
    """Yield why a job fits none of its partitions; nothing if it fits one."""
    names = select_partitions(job, partitions)
    if job.partition and not names:
        yield make_finding(
            "no-partition",
            name=job.partition,
            names=", ".join(sorted(partitions)),
            remedy=suggest_partition(job, partitions),
        )
    findings = [tuple(_compare_with_partition(job, partitions[name], partitions)) for name in names]
    if findings and all(findings):
        yield from findings[0]


def _compare_with_partition(
    job: JobRequest, partition: Partition, partitions: Mapping[str, Partition]
) -> Iterator[Finding]:
    # The resources of nodes that Slurm hides are an estimate.
    fitting = _count_fitting(job, partition) if partition.exact else partition.nodes
    partition_option = suggest_partition(job, partitions)
    alternatives = [
        name
        for name, candidate in partitions.items()
        if _count_fitting(job, candidate) >= job.nodes
    ]
    advice = (
        f" Partitions with such nodes: {', '.join(sorted(alternatives))}." if alternatives else ""
    )
    values: dict[str, Any] = {"partition": partition, "job": job, "advice": advice}
    gpus = " and ".join(map(str, parse_resources(job.gres)))
    if not fitting and gpus:
        resources = ", ".join(sorted(partition.resources)) or "none"
        remedy = _suggest_gpus(job, partition) or partition_option
        yield make_finding("gpus", gpus=gpus, resources=resources, remedy=remedy, **values)
    elif job.nodes > fitting:
        yield make_finding(
            "nodes",
            count=format_count(fitting, "node"),
            with_gpus=f" with {gpus}" if gpus and fitting != partition.nodes else "",
            fitting=fitting,
            remedy=partition_option or f"--nodes {fitting}",
            **values,
        )
    elif partition.most_nodes is not None and job.nodes > partition.most_nodes:
        yield make_finding("most-nodes", count=format_count(partition.most_nodes, "node"), **values)
    elif job.nodes < partition.least_nodes:
        count = format_count(partition.least_nodes, "node")
        remedy = partition_option or f"--nodes {partition.least_nodes}"
        yield make_finding("least-nodes", count=count, remedy=remedy, **values)
    if _is_longer(job, partition.limit):
        requested = TimeLimit.parse_reported(job.time_limit)
        yield make_finding("partition-time", requested=requested, **values)
    if partition.state != "up":
        yield make_finding("partition-state", remedy=partition_option, **values)


def suggest_partition(job: JobRequest, partitions: Mapping[str, Partition]) -> str:
    """Return the option for a partition in which a job would fit; empty if there is none."""
    for name, partition in partitions.items():
        most_nodes = min(_count_fitting(job, partition), partition.most_nodes or job.nodes)
        fits = partition.least_nodes <= job.nodes <= most_nodes
        if fits and partition.state == "up" and not _is_longer(job, partition.limit):
            return f"--partition {name}"
    return ""


def _suggest_gpus(job: JobRequest, partition: Partition) -> str:
    resource = parse_resources(job.gres)[0]
    candidates = partition.list_matches(replace(resource, kind=""))
    sufficient = [candidate for candidate in candidates if candidate.count >= resource.count]
    if resource.kind and sufficient:
        gres = ":".join(filter(None, (resource.name, sufficient[0].kind)))
        return f'site.toml: slurm.gres = "{gres}"'
    counts = [1 if match.sliced else match.count for match in partition.list_matches(resource)]
    return f"--gpus-per-node {max(counts)}" if counts else ""


def _count_fitting(job: JobRequest, partition: Partition) -> int:
    resources = parse_resources(job.gres)
    return sum(group.count for group in partition.groups if all(map(group.has, resources)))


def _check_runs_directory(runs: Path, partitions: Sequence[Partition]) -> Iterator[Finding]:
    """Yield a finding if campaigns would be on a file system that only this machine sees.

    Slurm fails such a job with 0:53 and leaves no log.
    """
    path = os.path.realpath(runs)
    local_root = machine.find_local_directory(path)
    hostname = os.uname().nodename.partition(".")[0]
    node_names = {node for partition in partitions for node in partition.node_names}
    if local_root and node_names - {hostname}:
        yield make_finding("runs", path=path, root=local_root)


def find_forced_sharing(job: JobRequest, cluster: Cluster) -> Iterator[Finding]:
    """Yield a finding if a partition of a job that asks for whole nodes does not give them."""
    if not job.exclusive:
        return
    forced = {name: rule.forced_sharing for name, rule in cluster.rules.items()}
    if any(forced.values()):
        for name in select_partitions(job, cluster.partitions):
            if sharing := forced.get(name):
                yield make_finding("shared-nodes", partition=name, sharing=sharing)


def describe_restriction(rule: PartitionRules, reservation: str = "") -> str:
    """Return a clause on whom a partition is for; empty if this user may use it."""
    if rule.for_root and not files.is_in_any_group(()):
        return "it is for root only"
    if rule.reserved and not reservation:
        return "it is for reservations only"
    if rule.groups and not files.is_in_any_group(rule.groups):
        return f"it is for the groups {', '.join(rule.groups)} only"
    return ""


def _find_missing_rights(
    job: JobRequest, names: Sequence[str], cluster: Cluster
) -> Iterator[Finding]:
    """Yield the account, QOS or time that prevents a job from starting in its partitions."""
    enforced = cluster.settings.enforced
    if "associations" not in enforced or not (cluster.rights.known and cluster.rights.own):
        return
    findings = tuple(_check_account(job, cluster, names))
    if not findings and "qos" in enforced:
        findings = tuple(_check_qos(job, cluster, names))
    if not findings and "limits" in enforced:
        limits = [find_time_limit(job, cluster, name) for name in names or ("",)]
        if all(_is_longer(job, limit) for _, limit in limits):
            holder, limit = limits[0]
            requested = TimeLimit.parse_reported(job.time_limit)
            findings = (
                make_finding("accounting-time", holder=holder, limit=limit, requested=requested),
            )
    yield from findings


def find_time_limit(job: JobRequest, cluster: Cluster, partition: str) -> tuple[str, TimeLimit]:
    """Return the owner of a job's time limit in a partition (MaxWall), and the limit."""
    rule = cluster.rules.get(partition)
    own_qos = rule.own_qos if rule else ""
    return cluster.rights.most_time(job.account, partition, job.qos, of_partition=own_qos)


def _check_account(
    job: JobRequest, cluster: Cluster, partitions: Sequence[str]
) -> Iterator[Finding]:
    rights = cluster.rights
    accounts = sorted({association.account for association in rights.own})
    name = (job.account or rights.default).lower()
    if name not in accounts:
        problem = f"You are not in account {name}." if name else "Jobs here must name an account."
        account = rights.default if rights.default in accounts else accounts[0]
        names = ", ".join(accounts)
        yield make_finding("account", problem=problem, names=names, account=account)
        return
    rules = [cluster.rules[partition] for partition in partitions if partition in cluster.rules]
    if not rules or any(cluster.takes_account(rule, name) for rule in rules):
        return
    allowed = f" (AllowAccounts={','.join(rules[0].accounts)})" if rules[0].accounts else ""
    alternatives = [
        account
        for account in accounts
        if any(cluster.takes_account(rule, account) for rule in rules)
    ]
    hint, remedy = _advise("accounts", "--account", alternatives)
    values: dict[str, Any] = {"partitions": ", ".join(partitions), "hint": hint, "remedy": remedy}
    yield make_finding("account-partition", name=name, allowed=allowed, **values)


def _check_qos(job: JobRequest, cluster: Cluster, partitions: Sequence[str]) -> Iterator[Finding]:
    rights = cluster.rights
    associations = [rights.of(job.account, partition) for partition in partitions or ("",)]
    usable = sorted(
        {name for association in associations if association for name in association.qos}
    )
    name = job.qos or next((rights.qos_of(job.account, partition) for partition in partitions), "")
    if job.qos and usable and job.qos not in usable:
        yield make_finding("qos", name=job.qos, names=", ".join(usable), usable=usable[0])
        return
    rules = [cluster.rules[partition] for partition in partitions if partition in cluster.rules]
    if not name or not rules or any(rule.takes_qos(name) for rule in rules):
        return
    alternatives = [qos for qos in usable if any(rule.takes_qos(qos) for rule in rules)]
    hint, remedy = _advise("QOS", "--qos", alternatives)
    values: dict[str, Any] = {"partitions": ", ".join(partitions), "hint": hint, "remedy": remedy}
    yield make_finding("qos-partition", name=name, **values)


def _advise(kind: str, option: str, names: Sequence[str]) -> tuple[str, str]:
    """Return hint and remedy where a partition takes only some of a user's accounts or QOS."""
    if not names:
        return "Name another partition with --partition, or ask the administrators.", ""
    return f"Of your {kind}, {', '.join(names)} may: give {option}.", f"{option} {names[0]}"
