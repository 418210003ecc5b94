"""doctor's questions to Slurm: is it here, does it have what a site says, would it take a job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert.config.slurmwords import given
from hpcbert.finding import Finding
from hpcbert.scheduler.slurm import admission
from hpcbert.scheduler.slurm.cluster import HINTS, Cluster, sentence, silence
from hpcbert.scheduler.slurm.questions import query
from hpcbert.slurm import commands, nodes, reservations
from hpcbert.slurm.commands import submission_environment
from hpcbert.slurm.controller import fitting_mpi
from hpcbert.slurm.hostlist import expand
from hpcbert.slurm.refusals import advice
from hpcbert.system import ownership

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hpcbert.config.site import Site
    from hpcbert.scheduler.base import World
    from hpcbert.scheduler.slurm.admission import Demand
    from hpcbert.slurm.partitions import Partition
    from hpcbert.slurm.reservations import Reservation
    from hpcbert.system.runner import Outcome

# The kinds of MPI to advise, the usual one first.
_MPI = ("pmix", "pmi2")
# The words of `scontrol ping` for each controller.
_UP, _DOWN = " is UP", " is DOWN"
_RESERVATION, _CONSTRAINT = "site.toml: slurm.reservation", "site.toml: slurm.constraint"
# Repeats of a point that fit in one array; DLPerf's protocol has five.
_REPEATS = 5
_TEST = "#!/bin/sh\ntrue\n"
_NAMED = 8
# A site's plugin that requires jobs to drop the caller's environment.
_EXPORT = "--export=NONE"


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
    partitions = cluster.partitions
    if not partitions:
        detail = cluster.complaint or "sinfo lists no partitions"
        yield Finding("partition", "warn", detail, HINTS[cluster.silence or "failed"])
        return
    job = admission.demand_of_site(site, nodes)
    wrong = (
        *admission.find_misfits([job], Path(site.runs), partitions),
        *_of_users(job, cluster, site.slurm.reservation),
        *admission.find_oversized([job], cluster),
        *admission.find_memory_excess(job, cluster),
        *admission.find_missing_rights([job], cluster),
    )
    text = ", ".join(
        f"{partition.name} ({partition.nodes} nodes)" for partition in partitions.values()
    )
    yield from wrong or (Finding("partition", "ok", f"{job.partition or 'default'} of {text}"),)
    if not site.slurm.gres:
        yield from _unasked(job, partitions)


def _of_users(job: Demand, cluster: Cluster, reservation: str) -> Iterator[Finding]:
    """Yield whom a job's partitions are for, if none of them is for this user."""
    why = {
        name: admission.closed(cluster.rules[name], reservation) if name in cluster.rules else ""
        for name in admission.named_partitions(job, cluster.partitions)
    }
    if not why or not all(why.values()):
        return
    name = next(iter(why))
    open_to_all = {
        other: cluster.partitions[other]
        for other, rule in cluster.rules.items()
        if other in cluster.partitions and not admission.closed(rule, reservation)
    }
    yield Finding(
        "partition",
        "fail",
        f"Partition {name} is not for you: {why[name]}.",
        "Name another one with --partition, or ask the administrators.",
        "site.toml: slurm.partition",
        remedy=admission.fitting_partition(job, open_to_all),
    )


def _unasked(job: Demand, partitions: Mapping[str, Partition]) -> Iterator[Finding]:
    """Yield a finding if nodes have GPUs but no job requests them."""
    groups = (
        group
        for name in admission.named_partitions(job, partitions)[:1]
        for group in partitions[name].groups
    )
    there = dict.fromkeys(
        resource for group in groups for resource in group.resources if resource.name == "gpu"
    )
    if there:
        kinds = {resource.kind for resource in there}
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
    words = said.split()[-1:] or [""]
    mine, theirs = (tuple(one.split(".")[:2]) for one in (words[0], controller))
    if controller and len(mine) == len(theirs) and mine > theirs:
        yield Finding(
            "slurmctld",
            "warn",
            f"Slurm's commands here are {words[0]}, newer than the controller's {controller}: it "
            "may "
            "refuse them.",
            "Put the cluster's own commands first on PATH: `type -a sbatch` lists all.",
            "PATH",
        )


def of_choices(site: Site, cluster: Cluster, world: World, count: int) -> Iterator[Finding]:
    """Yield which of a site's choices are not available.

    Args:
        site: The site.
        cluster: Its cluster.
        world: Its `run` starts Slurm's commands.
        count: Number of nodes that a job would use.
    """
    slurm = site.slurm
    if slurm.reservation:
        yield from _of_reservation(slurm.reservation, cluster, world, count)
    if slurm.constraint:
        yield from _of_constraint(slurm.constraint, slurm.partition, world, count)
    yield from _of_nodes(site, cluster, count)
    yield from _of_arrays(cluster)
    yield _tested(site, world, count)


def _of_reservation(name: str, cluster: Cluster, world: World, count: int) -> Iterator[Finding]:
    answer = query(world, reservations.reservations_argv(), timeout=30)
    if not answer.ok:
        return
    known = reservations.read_reservations(answer.stdout)
    me, accounts = (
        ownership.name(os.geteuid()),
        {association.account for association in cluster.rights.own},
    )
    mine = [reservation.name for reservation in known.values() if reservation.takes(me, accounts)]
    text = f"You may use {', '.join(mine)}." if mine else "You may use none here."
    other = next((one for one in mine if one != name), "")
    remedy = f"--reservation {other}" if other else f'{_RESERVATION} = ""'
    wrong = _wrong_with(known, name, me, accounts, count)
    if wrong:
        yield Finding("reservation", "fail", wrong, text, _RESERVATION, (), remedy)
    elif known[name].state != "ACTIVE":
        detail = f"Reservation {name} is {known[name].state.lower()}: from {known[name].start} on."
        yield Finding("reservation", "warn", detail, text, _RESERVATION, (), remedy)
    else:
        yield Finding("reservation", "ok", f"{name} with {known[name].nodes} nodes")


def _wrong_with(
    known: Mapping[str, Reservation], name: str, user: str, accounts: set[str], count: int
) -> str:
    """Return why a reservation can't be used, as a sentence; empty if it can."""
    if name not in known:
        return f"There is no reservation {name!r}."
    if not known[name].takes(user, accounts):
        return f"Reservation {name} is for others."
    if 0 < known[name].nodes < count:
        return f"Reservation {name} has {known[name].nodes} nodes; you asked for {count}."
    return ""


def _of_constraint(constraint: str, partition: str, world: World, count: int) -> Iterator[Finding]:
    answer = query(world, reservations.features_argv(), timeout=30)
    features = reservations.read_features(answer.stdout if answer.ok else "", partition)
    if not features:
        return
    known = {name: 0 for names, _ in features for name in sorted(names)}
    for names, number in features:
        for name in names:
            known[name] += number
    lacking = [
        feature for feature in reservations.wanted_features(constraint) if feature not in known
    ]
    text = f"Its nodes have {', '.join(sorted(known))}." if known else "Its nodes have none."
    enough = [name for name in sorted(known) if known[name] >= count]
    remedy = f'{_CONSTRAINT} = "{enough[0] if enough else ""}"'
    if lacking:
        detail = f"No node of the partition has the feature {', '.join(lacking)}."
        yield Finding("constraint", "fail", detail, text, _CONSTRAINT, (), remedy)
    else:
        yield Finding("constraint", "ok", constraint)


def _of_nodes(site: Site, cluster: Cluster, count: int) -> Iterator[Finding]:
    """Yield whether enough of the nodes that fit a job are running, and which are not."""
    named = site.slurm.partition.partition(",")[0]
    states = nodes.read_states(cluster.states, named)
    if not states:
        return
    job, fits = admission.demand_of_site(site, count), set(states)
    for partition in cluster.partitions.values():
        if partition.exact and (partition.name == named or (partition.default and not named)):
            fits &= partition.fitting(job.resources)
    if not fits:
        return  # Another finding reports that the partition has none.
    excluded = fits.intersection(expand(site.slurm.exclude))
    usual = {
        name: works and name not in excluded
        for name, works in nodes.read_sinfo(cluster.states, named).items()
        if name in fits
    }
    usable = sum(usual.values())
    away = [
        f"{name} ({'excluded' if name in excluded else states[name]})"
        for name, works in usual.items()
        if not works
    ]
    more = f" and {len(away) - _NAMED} more" if len(away) > _NAMED else ""
    some = " with such GPUs" if len(fits) < len(states) else ""
    detail = f"{usable} of {len(fits)} nodes{some} run jobs"
    detail += f"; away: {', '.join(away[:_NAMED])}{more}" if away else ""
    if usable >= count:
        yield Finding("nodes of the partition", "ok", detail)
        return
    yield Finding(
        "nodes of the partition",
        "fail",
        f"{detail}; you asked for {count}.",
        "See `sinfo -R` for the reason; request fewer nodes, or wait for them.",
        "--nodes",
        tuple(name for name, works in usual.items() if not works),
        f"--nodes {usable}" if usable else "",
    )


def _of_arrays(cluster: Cluster) -> Iterator[Finding]:
    most = cluster.settings.most_indices
    if most is None or most >= _REPEATS:
        return
    detail = f"MaxArraySize allows an array {most} jobs, fewer than the repeats of a point"
    hint = "hpcbert splits the repeats into several arrays; or submit with --repeats-in one-job."
    yield Finding("arrays", "warn", detail, hint, "slurm.conf: MaxArraySize")


def _tested(site: Site, world: World, count: int) -> Finding:
    """Have sbatch itself check the request of a submission."""
    slurm, gpus = site.slurm, site.nodes.gpus_per_node
    words = [
        *("sbatch", "--test-only", f"--nodes={count}", f"--time={slurm.time_limit.text}"),
        *slurm.selection,
        *((f"--gres={slurm.gres}:{gpus}",) if slurm.gres else ()),
        f"--ntasks-per-node={gpus}",
        *((f"--cpus-per-task={site.nodes.cpus_per_gpu}",) if site.nodes.cpus_per_gpu else ()),
        *((f"--mem={slurm.memory}",) if slurm.memory else ()),
        *(("--exclusive",) if slurm.exclusive else ()),
        *slurm.sbatch_args,
        *slurm.placement(count),
    ]
    outcome = world.run(words, stdin=_TEST, env=submission_environment(world.environ), timeout=60)
    texts = [
        line.strip() for line in f"{outcome.stdout}\n{outcome.stderr}".splitlines() if line.strip()
    ]
    if outcome.ok:
        return Finding(
            "sbatch --test-only", "ok", texts[-1] if texts else "it would accept the job"
        )
    asks = _EXPORT in outcome.stderr and not given(slurm.sbatch_args, "export")
    return Finding(
        "sbatch --test-only",
        "fail",
        "; ".join(texts) or f"status {outcome.returncode}",
        f"Every submission would be refused: {advice(outcome.stderr) or 'see the findings above'}.",
        "site.toml: slurm.sbatch_args" if asks else "",
        (),
        f'site.toml: slurm.sbatch_args = ["{_EXPORT}"]' if asks else "",
    )
