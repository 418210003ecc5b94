"""Check before submitting whether Slurm is here and has what a site says, and whether jobs fit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert.finding import Finding
from hpcbert.scheduler.base import Supply
from hpcbert.scheduler.slurm import sizes
from hpcbert.scheduler.slurm.availability import of_choices
from hpcbert.scheduler.slurm.cluster import HINTS, Cluster, sentence, silence
from hpcbert.scheduler.slurm.permitted import closed, of_rights
from hpcbert.scheduler.slurm.wanted import of_site, wanted
from hpcbert.slurm import commands, nodes
from hpcbert.slurm.controller import fitting_mpi
from hpcbert.slurm.hostlist import fold
from hpcbert.system import machine

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hpcbert.config.site import Site
    from hpcbert.scheduler.base import World
    from hpcbert.scheduler.slurm.wanted import Wanted
    from hpcbert.slurm.partitions import Partition
    from hpcbert.system.runner import Outcome


# The kinds of MPI to advise, the usual one first.
_MPI = ("pmix", "pmi2")
# The words of `scontrol ping` for each controller.
_UP, _DOWN = " is UP", " is DOWN"


def supply(script: str, cluster: Cluster) -> tuple[Supply, ...]:
    """Return what the partitions of a script have; nothing if Slurm does not answer."""
    found, job = cluster.partitions, wanted(script)
    told = cluster.states if found else ""
    return tuple(
        Supply(
            name=name,
            state=found[name].state,
            limit=found[name].limit,
            most_nodes=found[name].most_nodes,
            nodes=found[name].nodes,
            fitting=_fitting(job, found[name]),
            usable=sum(nodes.read_sinfo(told, name).values()) if told else None,
            free=nodes.free(told, name) if told else None,
            resources=tuple(
                dict.fromkeys(str(one) for part in found[name].groups for one in part.resources)
            ),
        )
        for name in _named(job, found)
    )


def examine(site: Site, world: World, nodes: int) -> Iterator[Finding]:
    """Yield whether Slurm answers and has what the site says.

    Args:
        site: The site to check.
        world: Its `run` starts Slurm's commands.
        nodes: Number of nodes that a job would use.
    """

    def ask(*argv: str) -> Outcome:
        environment = commands.submission_environment(world.environ)
        return world.run(argv, env=environment, timeout=30)

    version = ask("sbatch", "--version")
    yield _judged("sbatch", version, version.stdout.strip(), "Run this on a login node.")
    if not version.ok:
        return
    ping = ask("scontrol", "ping")
    why = silence(ping)
    if why == "unsigned":
        yield Finding("munge", "fail", sentence(why, ping), HINTS[why], "service munge")
    hint = "Ask the cluster's administrators, or check SLURM_CONF."
    yield _judged("slurmctld", ping, " ".join(ping.stdout.split()), hint)
    if why == "unsigned":
        return  # Every other command would fail the same way.
    sacct = ask("sacct", "-n", "-X", "-o", "JobID")
    hint = "Without accounting, states come from squeue and from the jobs' own status files."
    yield _judged("accounting", sacct, "sacct answers", hint, bad="warn")
    cluster = Cluster(world)
    if _UP in ping.stdout or _DOWN not in ping.stdout:  # A backup may be up.
        yield from _partition(site, cluster, nodes)
    if ping.ok:
        yield from _versions(version.stdout, cluster.settings.version)
        yield from of_choices(site, cluster, world, nodes)
    if site.slurm.mpi:
        yield _mpi(site.slurm.mpi, cluster.mpi)


def _mpi(wanted: str, there: Sequence[str]) -> Finding:
    """Return whether srun has the kind of MPI that a site names."""
    if fitting_mpi([wanted], there):
        return Finding("MPI", "ok", f"srun --mpi={wanted}")
    better = fitting_mpi(_MPI, there)
    return Finding(
        "MPI",
        "fail",
        f"srun has no {wanted}",
        f"srun has {', '.join(there)}: name one of these." if there else "See srun --mpi=list.",
        "site.toml: slurm.mpi",
        remedy=f'site.toml: slurm.mpi = "{better}"' if better else "",
    )


def _partition(site: Site, cluster: Cluster, nodes: int) -> Iterator[Finding]:
    """Yield whether a job of this site fits its partition."""
    found = cluster.partitions
    if not found:
        detail = cluster.complaint or "sinfo lists no partitions"
        yield Finding("partition", "warn", detail, HINTS[cluster.silence or "failed"])
        return
    job = of_site(site, nodes)
    wrong = (
        *of_cluster([job], Path(site.runs), found),
        *_of_users(job, cluster, site.slurm.reservation),
        *sizes.of_nodes([job], cluster),
        *sizes.of_partitions(job, cluster),
        *of_rights([job], cluster),
    )
    each = ", ".join(f"{one.name} ({one.nodes} nodes)" for one in found.values())
    yield from wrong or (Finding("partition", "ok", f"{job.partition or 'default'} of {each}"),)
    if not site.slurm.gres:
        yield from _unasked(job, found)


def _of_users(job: Wanted, cluster: Cluster, reservation: str) -> Iterator[Finding]:
    """Yield whom a job's partitions are for, if none of them is for this user."""
    why = {
        name: closed(cluster.rules[name], reservation) if name in cluster.rules else ""
        for name in _named(job, cluster.partitions)
    }
    if not why or not all(why.values()):
        return
    name = next(iter(why))
    open_to_all = {
        other: cluster.partitions[other]
        for other, rule in cluster.rules.items()
        if other in cluster.partitions and not closed(rule, reservation)
    }
    yield Finding(
        "partition",
        "fail",
        f"Partition {name} is not for you: {why[name]}.",
        "Name another one with --partition, or ask the administrators.",
        "site.toml: slurm.partition",
        remedy=_elsewhere(job, open_to_all),
    )


def _unasked(job: Wanted, found: Mapping[str, Partition]) -> Iterator[Finding]:
    """Yield a finding if nodes have GPUs but no job requests them."""
    groups = (group for name in _named(job, found)[:1] for group in found[name].groups)
    there = dict.fromkeys(one for group in groups for one in group.resources if one.name == "gpu")
    if there:
        kinds = {one.kind for one in there}
        gres = ":".join(filter(None, ("gpu", next(iter(there)).kind if len(kinds) > 1 else "")))
        detail = f"slurm.gres is empty, but nodes have {', '.join(map(str, there))}"
        hint = "Without it, no job gets a GPU; leave it empty only to measure CPUs."
        remedy = f'site.toml: slurm.gres = "{gres}"'
        yield Finding("GPUs", "warn", detail, hint, "site.toml: slurm.gres", (), remedy)


def _judged(name: str, outcome: Outcome, detail: str, hint: str, *, bad: str = "fail") -> Finding:
    if outcome.ok:
        return Finding(name, "ok", detail)
    lines = (outcome.stderr.strip() or outcome.stdout.strip()).splitlines()
    return Finding(name, bad, lines[-1] if lines else f"status {outcome.returncode}", hint)


def _versions(said: str, controller: str) -> Iterator[Finding]:
    """Yield a finding if commands and controller have incompatible releases.

    Commands may be older than the controller, but not newer (slurm.schedmd.com/upgrades.html).
    """
    own = said.split()[-1:] or [""]
    mine, theirs = (tuple(one.split(".")[:2]) for one in (own[0], controller))
    if controller and len(mine) == len(theirs) and mine > theirs:
        yield Finding(
            "slurmctld",
            "warn",
            f"Slurm's commands here are {own[0]}, newer than the controller's {controller}: it may "
            "refuse them.",
            "Put the cluster's own commands first on PATH: `type -a sbatch` lists all.",
            "PATH",
        )


def of_cluster(
    jobs: Sequence[Wanted], runs: Path, found: Mapping[str, Partition]
) -> Iterator[Finding]:
    """Yield what prevents jobs from running on the cluster.

    If the partitions are unknown, there are no findings: sbatch will report the reason.

    Args:
        jobs: What each job requests.
        runs: The directory of campaigns.
        found: The cluster's partitions by name.
    """
    if not found:
        return
    for one in dict.fromkeys(jobs):
        yield from _fits(one, found)
    named = {part for one in jobs for part in _named(one, found)}
    yield from _shared(runs, [found[name] for name in sorted(named)])


def _named(job: Wanted, found: Mapping[str, Partition]) -> tuple[str, ...]:
    """Return the existing partitions that a job may run in."""
    names = [name.strip() for name in job.partition.split(",") if name.strip()]
    names = names or [one.name for one in found.values() if one.default]
    return tuple(name for name in names if name in found)


def _fits(job: Wanted, found: Mapping[str, Partition]) -> Iterator[Finding]:
    """Yield why a job fits none of its partitions; nothing if it fits one."""
    names = _named(job, found)
    if job.partition and not names:
        known = ", ".join(sorted(found))
        yield Finding(
            "partition",
            "fail",
            f"There is no partition {job.partition!r}.",
            f"The cluster has {known}: name one with --partition, or in the site.toml.",
            "site.toml: slurm.partition",
            remedy=_elsewhere(job, found),
        )
    findings = [tuple(_misfits(job, found[name], found)) for name in names]
    if findings and all(findings):
        yield from findings[0]


def _misfits(
    job: Wanted, partition: Partition, found: Mapping[str, Partition]
) -> Iterator[Finding]:
    """Yield the requests of a job that exceed a partition."""
    fitting = _fitting(job, partition)
    others = [name for name, one in found.items() if _fitting(job, one) >= job.nodes]
    another = _elsewhere(job, found)
    elsewhere = f" Partitions with such nodes: {', '.join(sorted(others))}." if others else ""
    gpus = " and ".join(str(one) for one in job.resources)
    if not partition.exact:
        fitting = partition.nodes  # The resources of its nodes are an estimate.
    if not fitting and job.resources:
        there = {str(one) for group in partition.groups for one in group.resources}
        has = ", ".join(sorted(there)) or "none"
        yield Finding(
            "GPUs",
            "fail",
            f"No node of partition {partition.name} has {gpus}; its nodes have {has}.",
            f"Request fewer with --gpus-per-node, or use another partition.{elsewhere}",
            "site.toml: slurm.gres, nodes.gpus_per_node",
            remedy=_other_gpus(job, partition) or another,
        )
    elif job.nodes > fitting:
        with_gpus = f" with {gpus}" if gpus and fitting != partition.nodes else ""
        yield Finding(
            "nodes",
            "fail",
            f"Partition {partition.name} has {_count(fitting)}{with_gpus}; "
            f"you asked for {job.nodes}.",
            f"Use at most --nodes {fitting}, or another partition.{elsewhere}",
            "site.toml: slurm.partition",
            remedy=another or f"--nodes {fitting}",
        )
    elif partition.most_nodes is not None and job.nodes > partition.most_nodes:
        yield Finding(
            "nodes",
            "fail",
            f"Partition {partition.name} allows a job at most {_count(partition.most_nodes)}; "
            f"you asked for {job.nodes}.",
            f"Use at most --nodes {partition.most_nodes}, or another partition.",
            "site.toml: slurm.partition",
            remedy=f"--nodes {partition.most_nodes}",
        )
    elif job.nodes < partition.least_nodes:
        yield Finding(
            "nodes",
            "fail",
            f"Partition {partition.name} allows no job with fewer than "
            f"{_count(partition.least_nodes)}; you asked for {job.nodes}.",
            f"Use at least --nodes {partition.least_nodes}, or another partition.",
            "site.toml: slurm.partition",
            remedy=another or f"--nodes {partition.least_nodes}",
        )
    else:
        yield from _misplaced(job, partition)
    if job.limit.seconds is not None and job.limit.exceeds(partition.limit):
        yield Finding(
            "time limit",
            "fail",
            f"Partition {partition.name} allows a job at most {partition.limit}; "
            f"you asked for {job.limit}.",
            f"Use at most --time {partition.limit}, or another partition.",
            "site.toml: slurm.time_limit",
            remedy=f"--time {partition.limit}",
        )
    if partition.state != "up":
        yield Finding(
            "partition",
            "fail",
            f"Partition {partition.name} is {partition.state}: no job starts there.",
            "Name another one with --partition, or wait until it is up.",
            "site.toml: slurm.partition",
            remedy=another,
        )


def _misplaced(job: Wanted, partition: Partition) -> Iterator[Finding]:
    """Yield that the nodes which a job names or excludes leave it too few.

    sbatch accepts such jobs, and Slurm fails them with BadConstraints (seen with 22.05.8).
    """
    there = {name for group in partition.groups for name in group.names}
    if len(there) != partition.nodes:  # sinfo does not print the names.
        return
    fitting = partition.fitting(job.resources) if partition.exact else there
    for wrong, why in (
        (set(job.nodelist) - there, f"is not in partition {partition.name}"),
        (set(job.nodelist) & set(job.exclude), "is also excluded"),
        (set(job.nodelist) & there - fitting, "lacks what each node must have"),
    ):
        if wrong:
            yield Finding(
                "nodes",
                "fail",
                f"The node list names {fold(wrong)}, which {why}.",
                f"Name others with --nodelist: {fold(fitting - set(job.exclude)) or 'none'} "
                "would do.",
                "site.toml: slurm.nodelist",
            )
            return
    left = fitting - set(job.exclude)
    if len(left) < job.nodes:
        yield Finding(
            "nodes",
            "fail",
            f"Partition {partition.name} has {_count(len(left))} that fit and are not excluded; "
            f"you asked for {job.nodes}.",
            f"Exclude fewer nodes than {fold(set(job.exclude) & there)}, or use fewer --nodes.",
            "site.toml: slurm.exclude",
            remedy=f"--nodes {len(left)}" if left else "",
        )


def _elsewhere(job: Wanted, found: Mapping[str, Partition]) -> str:
    """Return the option for a partition in which a job would fit; empty if there is none."""
    fits = (
        name
        for name, one in found.items()
        if _fitting(job, one) >= job.nodes
        and one.state == "up"
        and one.least_nodes <= job.nodes
        and (one.most_nodes is None or one.most_nodes >= job.nodes)
        and not (job.limit.seconds is not None and job.limit.exceeds(one.limit))
    )
    name = next(fits, "")
    return f"--partition {name}" if name else ""


def _other_gpus(job: Wanted, partition: Partition) -> str:
    """Return what to type to request the GPUs that a partition's nodes do have."""
    asked = job.resources[0]
    there = [one for group in partition.groups for one in group.resources if one.name == asked.name]
    enough = [one for one in there if one.count >= asked.count]
    if asked.kind and enough:
        named = ":".join(filter(None, (asked.name, enough[0].kind)))
        return f'site.toml: slurm.gres = "{named}"'
    same = [one.count for one in there if not asked.kind or one.kind == asked.kind]
    return f"--gpus-per-node {max(same)}" if same else ""


def _fitting(job: Wanted, partition: Partition) -> int:
    """Return how many nodes of a partition have what a job requests of each."""
    return sum(one.count for one in partition.groups if all(map(one.has, job.resources)))


def _count(nodes: int) -> str:
    return f"{nodes} node" + ("" if nodes == 1 else "s")


def _shared(runs: Path, found: Sequence[Partition]) -> Iterator[Finding]:
    """Yield a finding if campaigns would be on a file system that only this machine sees.

    Slurm fails such a job with 0:53 and leaves no log.
    """
    place = os.path.realpath(runs)
    private = machine.private(place)
    here = os.uname().nodename.partition(".")[0]
    nodes = {node for part in found for group in part.groups for node in group.names}
    if private and nodes - {here}:
        yield Finding(
            "runs directory",
            "fail",
            f"{place} lies below {private}, which is local to each machine: "
            "the nodes don't see it.",
            "Name a directory that all nodes share with --runs, HPCBERT_RUNS or runs in the "
            "site.toml.",
            "site.toml: runs",
        )
