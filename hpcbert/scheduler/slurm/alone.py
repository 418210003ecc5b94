"""Limits of account and QOS that one job exceeds by itself, so that it never starts.

Slurm accepts such a job and keeps it waiting forever, unless the QOS has `DenyOnLimit` (seen with
22.05.8 of each limit in `hpcbert.slurm.caps.KINDS`).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from hpcbert.finding import Finding
from hpcbert.scheduler.slurm import control
from hpcbert.scheduler.slurm.cluster import Cluster
from hpcbert.scheduler.slurm.questions import query
from hpcbert.slurm import nodes
from hpcbert.slurm.caps import Cap, Demand, tres
from hpcbert.timelimit import TimeLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from hpcbert.scheduler.base import World
    from hpcbert.scheduler.slurm.wanted import Wanted

_NAMES = {"node": "nodes", "cpu": "CPUs", "mem": "MiB of memory", "gres/gpu": "GPUs"}
# Reasons for waiting that name such a limit; sbatch has already counted submitted jobs.
_LIMIT = re.compile(r"(?:Assoc|QOS)(?:Grp|Max)(?!Submit)\w+|Max(?!Submit)\w+Per(?:User|Account)\w*")
# Parts of a job's request that depend on the sizes of nodes.
_SIZED = frozenset({"cpu", "mem", "billing"})
_CHANGE = "site.toml: slurm.account, slurm.qos"
_LESS = "Request less with --nodes, --gpus-per-node or --time, or use another --account or --qos."
_CLOSED = "It accepts no jobs: use another --account or --qos, or ask the administrators."


class Excess(NamedTuple):
    """A limit that a job exceeds by itself.

    Attributes:
        cap: The limit.
        name: The TRES, `jobs` or `wall`.
        asked: How much of it the job requests.
        most: How much it may have.
    """

    cap: Cap
    name: str
    asked: int
    most: int


def of_limits(
    job: Wanted, cluster: Cluster, partitions: Sequence[str], *, may: Callable[[Wanted], bool]
) -> Iterator[Finding]:
    """Yield what a job alone exceeds in each of its partitions; nothing if it can start in one.

    Args:
        job: The request.
        cluster: The cluster.
        partitions: Partitions that the job may run in; none if unknown.
        may: Returns whether another job could start.
    """
    named = partitions or ("",)
    for first in exceeded(job, cluster, named)[:1]:
        yield Finding(
            "limits",
            "fail",
            f"{sentence(first, job.limit.seconds)}: it would never start.",
            _CLOSED if first.cap.kind.measure == "jobs" else _LESS,
            _CHANGE,
            remedy=next((text for text, one in _others(job, first, cluster) if may(one)), ""),
        )
    late = [one for name in named for one in _too_long(job, cluster, name)]
    if len(late) == len(named):
        yield late[0]


def exceeded(job: Wanted, cluster: Cluster, partitions: Sequence[str]) -> tuple[Excess, ...]:
    """Return a limit that a job exceeds by itself for each partition; none if one has no limit."""
    found = []
    for partition in partitions or ("",):
        caps = _caps(cluster, job.account, partition, job.qos)
        asked = {name for cap in caps for name in cap.most}
        first = next(_exceeded(caps, demand(job, cluster, partition, asked)), None)
        if first is None:
            return ()
        found.append(first)
    return tuple(found)


def _caps(cluster: Cluster, account: str, partition: str, qos: str) -> list[Cap]:
    """Return the limits on a job in a partition."""
    own, safe = _own_qos(cluster, partition), "safe" in cluster.settings.enforced
    caps = cluster.rights.caps(account, partition, qos, of_partition=own)
    return [one for one in caps if safe or not one.kind.safe]


def _own_qos(cluster: Cluster, partition: str) -> str:
    return cluster.rules[partition].own_qos if partition in cluster.rules else ""


def _exceeded(caps: Iterable[Cap], asked: Demand) -> Iterator[Excess]:
    for cap in caps:
        for name, want, most in cap.exceeded(asked):
            yield Excess(cap, name, want, most)


def demand(job: Wanted, cluster: Cluster, partition: str, names: Collection[str]) -> Demand:
    """Return what a job requests, or with whole nodes, what the smallest fitting nodes have.

    Args:
        job: The request.
        cluster: Asked for sizes of nodes only if they matter.
        partition: The partition to run in.
        names: The TRES that matter.
    """
    whole = {"node": job.nodes}
    for one in job.resources:
        for name in {f"gres/{one.name}", f"gres/{one.name}:{one.kind}".rstrip(":")}:
            whole[name] = whole.get(name, 0) + one.count * job.nodes
    whole["cpu"] = job.tasks * job.cpus * job.nodes
    memory = tres(f"mem={job.memory}").get("mem", 0)
    whole["mem"] = memory * job.nodes
    if job.exclusive and _SIZED.intersection(names):
        sizes = nodes.read_sizes(cluster.sizes, partition)
        whole["cpu"] = max(whole["cpu"], sum(sorted(one.cpus for one in sizes)[: job.nodes]))
        if not memory:
            whole["mem"] = sum(sorted(one.memory for one in sizes)[: job.nodes])
    return Demand(whole, job.limit.seconds)


def sentence(found: Excess, seconds: int | None) -> str:
    """Return a limit that a job exceeds, as a sentence.

    Args:
        found: The limit.
        seconds: The job's time limit.
    """
    cap, name, asked, most = found
    what, kind = _NAMES.get(name, name.removeprefix("gres/")), cap.kind
    may, where = f"and {cap.whose} may have", f"{kind.among} ({cap.key})"
    if kind.measure == "jobs":
        return f"{cap.whose} may have {most} jobs {where}"
    if kind.measure == "wall":
        return f"it asks for {asked} minutes, {may} {most} {where}"
    if kind.measure == "minutes":
        long = TimeLimit(seconds)
        return f"it asks for {what} for {long}, {asked} minutes of them, {may} {most} {where}"
    of_each = " of each node" if kind.measure == "node" else ""
    return f"it asks for {asked} {what}{of_each}, {may} {most} {where}"


def _others(job: Wanted, found: Excess, cluster: Cluster) -> Iterator[tuple[str, Wanted]]:
    """Yield possible changes of the request, and the jobs they would make: smaller ones first."""
    measure, part = found.cap.kind.measure, (found.most, found.asked)
    if measure in {"minutes", "wall"} and (minutes := (job.limit.seconds or 0) // 60):
        shorter = TimeLimit(60 * _share(minutes, part))
        if shorter.seconds:
            yield f"--time {shorter}", replace(job, limit=shorter)
    if measure in {"whole", "minutes"} and (fewer := _share(job.nodes, part)):
        yield f"--nodes {fewer}", replace(job, nodes=fewer)
    for one in job.resources if found.name.startswith("gres/") else ():
        if fewer := _share(one.count, part):
            less = tuple(replace(each, count=fewer) for each in job.resources)
            yield f"--gpus-per-node {fewer}", replace(job, resources=less, tasks=fewer)
    for account in sorted({one.account for one in cluster.rights.own} - {job.account}):
        yield f"--account {account}", replace(job, account=account)
    own = cluster.rights.of(job.account, job.partition)
    for qos in own.qos if own else ():
        yield f"--qos {qos}", replace(job, qos=qos)


def _share(count: int, part: tuple[int, int]) -> int:
    return count * part[0] // part[1]


def _too_long(job: Wanted, cluster: Cluster, partition: str) -> Iterator[Finding]:
    own = _own_qos(cluster, partition)
    whose, most = cluster.rights.most_time(job.account, partition, job.qos, of_partition=own)
    if job.limit.seconds is None or not job.limit.exceeds(most):
        return
    yield Finding(
        "time limit",
        "fail",
        f"{whose} allows a job at most {most}; you asked for {job.limit}.",
        f"Use at most --time {most}, or another --account or --qos.",
        "site.toml: slurm.time_limit",
        remedy=f"--time {most}",
    )


class Hopeless:
    """Finds waiting jobs that exceed a limit by themselves; asks about each array once.

    Args:
        world: Its `run` starts Slurm's commands.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._clusters: dict[str, Cluster] = {}
        self._known: dict[tuple[str, str], str] = {}

    def why(self, job_id: str, cluster: str, reason: str) -> str:
        """Return why a job can never start; empty if it may, or if that is unknown.

        Args:
            job_id: Id of the array.
            cluster: Its cluster; empty for this one.
            reason: Slurm's reason for waiting.
        """
        if not _LIMIT.search(reason):
            return ""
        key = (cluster, job_id)
        if key not in self._known:
            self._known[key] = self._looked_up(*key)
        return self._known[key]

    def _looked_up(self, name: str, job_id: str) -> str:
        answer = query(self._world, control.show_argv(job_id, cluster=name), timeout=30)
        shown = control.read(answer.stdout) if answer.ok else None
        if shown is None:
            return ""
        cluster = self._clusters.setdefault(name, Cluster(self._world, name))
        fields = shown.fields
        seconds = TimeLimit.reported(fields.get("TimeLimit", "")).seconds
        # Until 22.05 `TRES`, then `ReqTRES`.
        asked = Demand(tres(fields.get("ReqTRES") or fields.get("TRES", "")), seconds)
        found = []
        for partition in fields.get("Partition", "").split(","):
            caps = _caps(cluster, fields.get("Account", ""), partition, fields.get("QOS", ""))
            found.append(next(_exceeded(caps, asked), None))
        first = found[0] if all(found) else None
        return sentence(first, seconds) if first else ""
