"""Admission: what is certain before a submission to keep its jobs from running.

Partition, nodes, GPUs, CPUs, memory and time against what the partitions have and allow; account
and QOS against the user's rights. sbatch accepts such jobs where EnforcePartLimits is NO, its
default, and they wait forever (seen with 22.05.8). What a cluster does not enforce, or does not
show to users, is skipped: Slurm says it later, as the reason for which a job waits.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tomli

from hpcbert.config.site import Site
from hpcbert.errors import format_count
from hpcbert.finding import Finding
from hpcbert.model import JobRequest
from hpcbert.scheduler.base import Supply
from hpcbert.scheduler.slurm.cluster import Cluster
from hpcbert.script.request import read_request
from hpcbert.slurm import inventory
from hpcbert.slurm.accounting import WALL
from hpcbert.slurm.hostlist import expand, fold
from hpcbert.slurm.inventory import Partition, PartitionRules, Resource, parse_resources, parse_tres
from hpcbert.system import machine, ownership
from hpcbert.timelimit import TimeLimit


@functools.cache
def _read_findings() -> dict[str, dict[str, str]]:
    return tomli.loads(Path(__file__).with_name("findings.toml").read_text(encoding="utf-8"))


def make_finding(key: str, *, on_nodes: tuple[str, ...] = (), **values: object) -> Finding:
    """Return a finding of findings.toml, with values in place of its braces.

    Args:
        key: Its table.
        on_nodes: The nodes that it was found on.
        values: By the names in its braces.
    """
    row = {name: text.format_map(values) for name, text in _read_findings()[key].items()}
    return Finding(
        row["check"],
        row.get("status", "fail"),
        row["detail"],
        row.get("hint", ""),
        row.get("change", ""),
        on_nodes,
        row.get("remedy", ""),
    )


@dataclass(frozen=True)
class Demand:
    """A request.

    Attributes:
        partition: Its name, several joined by commas; empty for the default one.
        nodes: Number of nodes.
        limit: None in seconds if it requests none of its own.
        resources: What each node must have.
        account, qos: Empty for the default one.
        tasks: Ranks per node; 0 if unknown.
        cpus: CPUs of each rank.
        memory: What each node must have, as sbatch takes it; empty or 0 if not specified.
        nodelist: Nodes that must be part of it.
        exclude: Nodes that must not.
        exclusive: Whether it has its nodes to itself.
    """

    partition: str
    nodes: int
    limit: TimeLimit
    resources: tuple[Resource, ...]
    account: str = ""
    qos: str = ""
    tasks: int = 0
    cpus: int = 1
    memory: str = ""
    nodelist: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    exclusive: bool = False

    def is_longer_than(self, limit: TimeLimit) -> bool:
        """Return whether its time limit exceeds another; False if it requests none."""
        return self.limit.seconds is not None and self.limit.exceeds(limit)

    @property
    def memory_mib(self) -> int:
        """The memory of each node, MiB; 0: all of it, or no number."""
        return parse_tres(f"mem={self.memory}").get("mem", 0)


def site_options(site: Site, nodes: int) -> list[str]:
    """Return sbatch's options for a site's job on some nodes, with all that applies to each job."""
    slurm, gpus = site.slurm, site.nodes.gpus_per_node
    words = [f"--nodes={nodes}", f"--time={slurm.time_limit.text}", *slurm.selection]
    words += [f"--ntasks-per-node={gpus}"]
    words += slurm.request_gpus(nodes, gpus)
    words += [f"--cpus-per-task={site.nodes.cpus_per_gpu}"] if site.nodes.cpus_per_gpu else []
    words += [f"--mem={slurm.node_memory}"] if slurm.node_memory else []
    words += ["--exclusive"] if slurm.exclusive else []
    return [*words, *slurm.sbatch_args, *slurm.placement(nodes)]


def derive_site_demand(site: Site, nodes: int) -> Demand:
    """Return the request of a site's job on some nodes."""
    return read_demand(read_request(site_options(site, nodes)))


def read_demand(request: JobRequest) -> Demand:
    """Parse a request's time limit, resources, memory and node lists."""
    return Demand(
        partition=request.partition,
        nodes=request.nodes,
        limit=TimeLimit.parse_reported(request.time_limit),
        resources=parse_resources(request.gres),
        account=request.account,
        qos=request.qos,
        tasks=request.tasks_per_node,
        cpus=request.cpus_per_task,
        memory=request.memory,
        nodelist=_expand_nodes(request.nodelist),
        exclude=_expand_nodes(request.exclude),
        exclusive=request.exclusive,
    )


def _expand_nodes(text: str) -> tuple[str, ...]:
    """Return the nodes of a list; none for the path of a file, which sbatch reads itself."""
    return () if "/" in text else expand(text)


def list_supply(job: Demand, cluster: Cluster) -> tuple[Supply, ...]:
    """Return the nodes and limits of a job's partitions; empty if Slurm does not answer."""
    partitions = cluster.partitions
    states = cluster.states if partitions else ""
    return tuple(
        Supply(
            name=name,
            state=partitions[name].state,
            limit=partitions[name].limit,
            most_nodes=partitions[name].most_nodes,
            nodes=partitions[name].nodes,
            fitting=_count_fitting(job, partitions[name]),
            usable=sum(inventory.read_usable_nodes(states, name).values()) if states else None,
            free=inventory.count_free_nodes(states, name) if states else None,
            resources=tuple(
                dict.fromkeys(
                    str(resource) for part in partitions[name].groups for resource in part.resources
                )
            ),
        )
        for name in select_partitions(job, partitions)
    )


def find_obstacles(jobs: Sequence[Demand], runs: Path, cluster: Cluster) -> Iterator[Finding]:
    """Yield what keeps jobs from running: partitions, sizes of nodes, rights."""
    yield from find_misfits(jobs, runs, cluster.partitions)
    yield from find_slices(jobs, cluster.partitions)
    yield from find_oversized(jobs, cluster)
    yield from find_missing_rights(jobs, cluster)
    yield from find_forced_sharing(jobs, cluster)


def find_misfits(
    jobs: Sequence[Demand], runs: Path, partitions: Mapping[str, Partition]
) -> Iterator[Finding]:
    """Yield what prevents jobs from running on the cluster.

    If the partitions are unknown, there are no findings: sbatch will report the reason.
    """
    if not partitions:
        return
    for job in dict.fromkeys(jobs):
        yield from _find_partition_misfits(job, partitions)
    names = {part for job in jobs for part in select_partitions(job, partitions)}
    yield from _check_runs_directory(runs, [partitions[name] for name in sorted(names)])


def find_slices(jobs: Sequence[Demand], partitions: Mapping[str, Partition]) -> Iterator[Finding]:
    """Yield a finding if several ranks of a job would get slices of GPUs, and nothing else."""
    for job in dict.fromkeys(jobs):
        matches = [
            match
            for name in select_partitions(job, partitions)
            for resource in job.resources
            for match in _list_matches(resource, partitions[name])
        ]
        if job.nodes * job.tasks > 1 and matches and all(match.sliced for match in matches):
            yield make_finding("gpu-slices", slice=matches[0], ranks=job.nodes * job.tasks)


def _list_matches(resource: Resource, partition: Partition) -> list[Resource]:
    """Return the resources of a partition's nodes of a request's name, and type if it has one."""
    return [
        candidate
        for group in partition.groups
        for candidate in group.resources
        if candidate.name == resource.name and resource.kind in {"", candidate.kind}
    ]


def select_partitions(job: Demand, partitions: Mapping[str, Partition]) -> tuple[str, ...]:
    """Return the existing partitions that a job may run in."""
    names = [name.strip() for name in job.partition.split(",") if name.strip()]
    names = names or [partition.name for partition in partitions.values() if partition.default]
    return tuple(name for name in names if name in partitions)


def find_absent_nodes(job: Demand, cluster: Cluster) -> dict[str, str]:
    """Return the nodes, with their states, that a job which would fit must wait for.

    A named node that runs no jobs now, or all such nodes if the others are too few.
    """
    absent_nodes: dict[str, str] = {}
    for name in select_partitions(job, cluster.partitions):
        fitting = cluster.partitions[name].fitting(job.resources) - set(job.exclude)
        is_up = inventory.read_usable_nodes(cluster.states, name)
        states = {
            node: state
            for node, state in inventory.read_node_states(cluster.states, name).items()
            if node in fitting and not is_up[node]
        }
        named_states = {node: states[node] for node in job.nodelist if node in states}
        if len(fitting) - len(states) >= job.nodes and not named_states:
            return {}
        if job.nodes <= len(fitting):
            absent_nodes |= named_states or states
    return absent_nodes


def _find_partition_misfits(job: Demand, partitions: Mapping[str, Partition]) -> Iterator[Finding]:
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
    job: Demand, partition: Partition, partitions: Mapping[str, Partition]
) -> Iterator[Finding]:
    """Yield the requests of a job that exceed a partition."""
    yield from _compare_nodes(job, partition, partitions)
    if job.is_longer_than(partition.limit):
        yield make_finding("partition-time", partition=partition, job=job)
    if partition.state != "up":
        remedy = suggest_partition(job, partitions)
        yield make_finding("partition-state", partition=partition, remedy=remedy)


def _compare_nodes(
    job: Demand, partition: Partition, partitions: Mapping[str, Partition]
) -> Iterator[Finding]:
    """Yield why the nodes of a partition are too few for a job, or not what it requests."""
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
    gpus = " and ".join(map(str, job.resources))
    if not fitting and job.resources:
        texts = {str(resource) for group in partition.groups for resource in group.resources}
        yield make_finding(
            "gpus",
            partition=partition,
            gpus=gpus,
            resources=", ".join(sorted(texts)) or "none",
            advice=advice,
            remedy=_suggest_gpus(job, partition) or partition_option,
        )
    elif job.nodes > fitting:
        yield make_finding(
            "nodes",
            partition=partition,
            job=job,
            count=format_count(fitting, "node"),
            with_gpus=f" with {gpus}" if gpus and fitting != partition.nodes else "",
            fitting=fitting,
            advice=advice,
            remedy=partition_option or f"--nodes {fitting}",
        )
    elif partition.most_nodes is not None and job.nodes > partition.most_nodes:
        count = format_count(partition.most_nodes, "node")
        yield make_finding("most-nodes", partition=partition, job=job, count=count)
    elif job.nodes < partition.least_nodes:
        count = format_count(partition.least_nodes, "node")
        remedy = partition_option or f"--nodes {partition.least_nodes}"
        yield make_finding("least-nodes", partition=partition, job=job, count=count, remedy=remedy)
    else:
        yield from _check_node_lists(job, partition)


def _check_node_lists(job: Demand, partition: Partition) -> Iterator[Finding]:
    """Yield findings if the nodes that a job names or excludes leave too few.

    sbatch accepts such jobs, and Slurm fails them with BadConstraints (seen with 22.05.8).
    """
    node_names = {name for group in partition.groups for name in group.names}
    if len(node_names) != partition.nodes:  # sinfo does not print the names.
        return
    fitting = partition.fitting(job.resources) if partition.exact else node_names
    for wrong_nodes, problem in (
        (set(job.nodelist) - node_names, f"is not in partition {partition.name}"),
        (set(job.nodelist) & set(job.exclude), "is also excluded"),
        (set(job.nodelist) & node_names - fitting, "lacks what each node must have"),
    ):
        if wrong_nodes:
            alternatives = fold(fitting - set(job.exclude)) or "none"
            yield make_finding(
                "nodelist", nodes=fold(wrong_nodes), problem=problem, alternatives=alternatives
            )
            return
    usable = fitting - set(job.exclude)
    if len(usable) < job.nodes:
        yield make_finding(
            "exclude",
            partition=partition,
            job=job,
            count=format_count(len(usable), "node that fits and is", "nodes that fit and are"),
            excluded=fold(set(job.exclude) & node_names),
            remedy=f"--nodes {len(usable)}" if usable else "",
        )


def suggest_partition(job: Demand, partitions: Mapping[str, Partition]) -> str:
    """Return the option for a partition in which a job would fit; empty if there is none."""
    fits = (
        name
        for name, partition in partitions.items()
        if _count_fitting(job, partition) >= job.nodes
        and partition.state == "up"
        and partition.least_nodes <= job.nodes
        and (partition.most_nodes is None or partition.most_nodes >= job.nodes)
        and not job.is_longer_than(partition.limit)
    )
    name = next(fits, "")
    return f"--partition {name}" if name else ""


def _suggest_gpus(job: Demand, partition: Partition) -> str:
    """Return the option or setting for GPUs that a partition has; empty if it has none."""
    resource = job.resources[0]
    candidates = _list_matches(replace(resource, kind=""), partition)
    sufficient = [candidate for candidate in candidates if candidate.count >= resource.count]
    if resource.kind and sufficient:
        gres = ":".join(filter(None, (resource.name, sufficient[0].kind)))
        return f'site.toml: slurm.gres = "{gres}"'
    counts = [1 if match.sliced else match.count for match in _list_matches(resource, partition)]
    return f"--gpus-per-node {max(counts)}" if counts else ""


def _count_fitting(job: Demand, partition: Partition) -> int:
    return sum(group.count for group in partition.groups if all(map(group.has, job.resources)))


def _check_runs_directory(runs: Path, partitions: Sequence[Partition]) -> Iterator[Finding]:
    """Yield a finding if campaigns would be on a file system that only this machine sees.

    Slurm fails such a job with 0:53 and leaves no log.
    """
    path = os.path.realpath(runs)
    local_root = machine.find_local_directory(path)
    hostname = os.uname().nodename.partition(".")[0]
    node_names = {node for part in partitions for group in part.groups for node in group.names}
    if local_root and node_names - {hostname}:
        yield make_finding("runs", path=path, root=local_root)


def find_oversized(jobs: Sequence[Demand], cluster: Cluster) -> Iterator[Finding]:
    """Yield what jobs request of a node that the largest node of their partitions lacks.

    The cluster is asked only about jobs with a number of CPUs for each rank, or with memory.
    """
    for job in dict.fromkeys(jobs):
        if job.cpus <= 1 and not job.memory_mib:
            continue
        names = select_partitions(job, cluster.partitions)
        sizes = [size for name in names for size in inventory.read_node_sizes(cluster.sizes, name)]
        if not sizes:
            continue
        most_cpus = max(size.cpus for size in sizes)
        most_memory = max(size.memory for size in sizes)
        if job.cpus * job.tasks > most_cpus:
            needed, per_rank = job.cpus * job.tasks, most_cpus // job.tasks
            yield make_finding("cpus", job=job, needed=needed, most=most_cpus, per_rank=per_rank)
        if job.memory_mib > most_memory:
            yield make_finding("memory", job=job, most=most_memory)


def find_memory_excess(job: Demand, cluster: Cluster) -> Iterator[Finding]:
    """Yield a finding if a job requests more memory of a node than MaxMemPerNode allows."""
    limits = {
        name: cluster.rules[name].most_memory if name in cluster.rules else None
        for name in select_partitions(job, cluster.partitions)
    }
    most_memory = max((limit or 0 for limit in limits.values()), default=0)
    if not most_memory or None in limits.values() or not job.memory:
        return
    if 0 < job.memory_mib <= most_memory:
        return
    memory_text = job.memory if job.memory_mib else "all memory"
    partition = next(iter(limits))
    yield make_finding(
        "partition-memory", partition=partition, most=most_memory, memory=memory_text
    )


def find_missing_rights(jobs: Iterable[Demand], cluster: Cluster) -> Iterator[Finding]:
    """Yield the accounts, QOS and limits that prevent jobs from starting."""
    enforced = cluster.settings.enforced
    if "associations" not in enforced or not (cluster.rights.known and cluster.rights.own):
        return
    for job in dict.fromkeys(jobs):
        names = select_partitions(job, cluster.partitions)
        findings = tuple(_check_account(job, cluster, names))
        if not findings and "qos" in enforced:
            findings = tuple(_check_qos(job, cluster, names))
        if not findings and "limits" in enforced:
            findings = tuple(_check_time(job, cluster, names))
        yield from findings


def find_forced_sharing(jobs: Iterable[Demand], cluster: Cluster) -> Iterator[Finding]:
    """Yield a finding if a partition of jobs that ask for whole nodes does not give them."""
    names = {
        name
        for job in jobs
        if job.exclusive and any(rule.forced_sharing for rule in cluster.rules.values())
        for name in select_partitions(job, cluster.partitions)
        if name in cluster.rules and cluster.rules[name].forced_sharing
    }
    for name in sorted(names):
        detail = describe_forced_sharing(name, cluster.rules[name].forced_sharing)
        yield make_finding("shared-nodes", detail=detail)


def describe_forced_sharing(partition: str, sharing: str) -> str:
    """Return a sentence on a partition whose OverSubscribe overrules `--exclusive`."""
    return (
        f"Partition {partition} has OverSubscribe={sharing}, which overrules --exclusive: jobs "
        "that hpcbert does not see may share a repeat's nodes and slow it down."
    )


def describe_restriction(rule: PartitionRules, reservation: str = "") -> str:
    """Return a clause on whom a partition is for; empty if this user may use it.

    Args:
        rule: The partition's rules.
        reservation: The reservation of the job; empty for none.
    """
    if rule.for_root and not ownership.is_in_any_group(()):
        return "it is for root only"
    if rule.reserved and not reservation:
        return "it is for reservations only"
    if rule.groups and not ownership.is_in_any_group(rule.groups):
        return f"it is for the groups {', '.join(rule.groups)} only"
    return ""


def find_time_limit(job: Demand, cluster: Cluster, partition: str) -> tuple[str, TimeLimit]:
    """Return the owner of a job's time limit in a partition, and the limit; empty: unlimited.

    The limits are those of the account and the QOS: on the time of one job (MaxWall), on the
    resource x minutes of all running jobs (GrpTRESRunMins) as far as this job uses them, and where
    it is enforced, on the time of all jobs (GrpWall).
    """
    rights, rule = cluster.rights, cluster.rules.get(partition)
    own_qos = rule.own_qos if rule else ""
    holder, limit = rights.most_time(job.account, partition, job.qos, of_partition=own_qos)
    counts = {"node": job.nodes, "cpu": job.nodes * job.tasks * job.cpus}
    if "safe" in cluster.settings.enforced:
        counts[WALL] = 1
    for resource in job.resources:
        for name in {f"gres/{resource.name}", f"gres/{resource.name}:{resource.kind}".rstrip(":")}:
            counts[name] = counts.get(name, 0) + resource.count * job.nodes
    for cap in rights.minutes_caps(job.account, partition, job.qos, of_partition=own_qos):
        longest = TimeLimit(cap.minutes // max(1, counts.get(cap.name, 0)) * 60)
        # With less than a minute, no --time helps, and Slurm says what the job waits for.
        if counts.get(cap.name) and longest.seconds and limit.exceeds(longest):
            column = "GrpWall" if cap.name == WALL else "GrpTRESRunMins"
            holder, limit = f"{cap.whose} ({column})", longest
    return holder, limit


def _check_time(job: Demand, cluster: Cluster, partitions: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding if accounting allows a job less time in each of its partitions."""
    limits = [find_time_limit(job, cluster, name) for name in partitions or ("",)]
    if not all(job.is_longer_than(limit) for _, limit in limits):
        return
    holder, limit = limits[0]
    key = "accounting-minutes" if "Grp" in holder else "accounting-time"
    yield make_finding(key, holder=holder, limit=limit, job=job)


def _check_account(job: Demand, cluster: Cluster, partitions: Sequence[str]) -> Iterator[Finding]:
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
    # Since 23.02 an account also stands for all below it (src/slurmctld/partition_mgr.c).
    inherits = cluster.settings.version >= "23.02"
    account_names = [name, *(association.account for association in rights.above(name) if inherits)]
    if not rules or any(rule.takes_account(*account_names) for rule in rules):
        return
    allowed = f" (AllowAccounts={','.join(rules[0].accounts)})" if rules[0].accounts else ""
    alternatives = [
        account for account in accounts if any(rule.takes_account(account) for rule in rules)
    ]
    hint, remedy = _advise("accounts", "--account", alternatives)
    yield make_finding(
        "account-partition",
        name=name,
        partitions=", ".join(partitions),
        allowed=allowed,
        hint=hint,
        remedy=remedy,
    )


def _advise(kind: str, option: str, names: Sequence[str]) -> tuple[str, str]:
    """Return hint and remedy where a partition takes only some of a user's accounts or QOS."""
    if not names:
        return "Name another partition with --partition, or ask the administrators.", ""
    return f"Of your {kind}, {', '.join(names)} may: give {option}.", f"{option} {names[0]}"


def _check_qos(job: Demand, cluster: Cluster, partitions: Sequence[str]) -> Iterator[Finding]:
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
    yield make_finding(
        "qos-partition", name=name, partitions=", ".join(partitions), hint=hint, remedy=remedy
    )
