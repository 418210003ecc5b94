"""Which of a site's choices are not available now: reservation, features, nodes, arrays.

sbatch refuses some of them without naming alternatives, and lets a job wait for the others.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hpcbert.config.slurmwords import given
from hpcbert.finding import Finding
from hpcbert.scheduler.slurm.questions import query
from hpcbert.scheduler.slurm.wanted import of_site
from hpcbert.slurm import nodes, reservations
from hpcbert.slurm.commands import submission_environment
from hpcbert.slurm.hostlist import expand
from hpcbert.slurm.refusals import advice
from hpcbert.system import ownership

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hpcbert.config.site import Site
    from hpcbert.scheduler.base import World
    from hpcbert.scheduler.slurm.cluster import Cluster
    from hpcbert.slurm.reservations import Reservation

_RESERVATION, _CONSTRAINT = "site.toml: slurm.reservation", "site.toml: slurm.constraint"
# Repeats of a point that fit in one array; DLPerf's protocol has five.
_REPEATS = 5
_TEST = "#!/bin/sh\ntrue\n"
_NAMED = 8
# A site's plugin that requires jobs to drop the caller's environment.
_EXPORT = "--export=NONE"


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
    me, accounts = ownership.name(os.geteuid()), {one.account for one in cluster.rights.own}
    mine = [one.name for one in known.values() if one.takes(me, accounts)]
    there = f"You may use {', '.join(mine)}." if mine else "You may use none here."
    other = next((one for one in mine if one != name), "")
    remedy = f"--reservation {other}" if other else f'{_RESERVATION} = ""'
    wrong = _wrong_with(known, name, me, accounts, count)
    if wrong:
        yield Finding("reservation", "fail", wrong, there, _RESERVATION, (), remedy)
    elif known[name].state != "ACTIVE":
        detail = f"Reservation {name} is {known[name].state.lower()}: from {known[name].start} on."
        yield Finding("reservation", "warn", detail, there, _RESERVATION, (), remedy)
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
    found = reservations.read_features(answer.stdout if answer.ok else "", partition)
    if not found:
        return
    known = {name: 0 for names, _ in found for name in sorted(names)}
    for names, number in found:
        for name in names:
            known[name] += number
    lacking = [one for one in reservations.wanted_features(constraint) if one not in known]
    there = f"Its nodes have {', '.join(sorted(known))}." if known else "Its nodes have none."
    enough = [name for name in sorted(known) if known[name] >= count]
    remedy = f'{_CONSTRAINT} = "{enough[0] if enough else ""}"'
    fitting = reservations.fitting_nodes(constraint, found)
    if lacking:
        detail = f"No node of the partition has the feature {', '.join(lacking)}."
        yield Finding("constraint", "fail", detail, there, _CONSTRAINT, (), remedy)
    elif fitting is not None and fitting < count:
        detail = f"{fitting} nodes have {constraint}; you asked for {count}."
        yield Finding("constraint", "fail", detail, there, _CONSTRAINT, (), remedy)
    else:
        yield Finding("constraint", "ok", constraint)


def _of_nodes(site: Site, cluster: Cluster, count: int) -> Iterator[Finding]:
    """Yield whether enough of the nodes that fit a job are running, and which are not."""
    named = site.slurm.partition.partition(",")[0]
    states = nodes.read_states(cluster.states, named)
    if not states:
        return
    job, fits = of_site(site, count), set(states)
    for one in cluster.partitions.values():
        if one.exact and (one.name == named or (one.default and not named)):
            fits &= one.fitting(job.resources)
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
    done = world.run(words, stdin=_TEST, env=submission_environment(world.environ), timeout=60)
    said = [line.strip() for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
    if done.ok:
        return Finding("sbatch --test-only", "ok", said[-1] if said else "it would accept the job")
    asks = _EXPORT in done.stderr and not given(slurm.sbatch_args, "export")
    return Finding(
        "sbatch --test-only",
        "fail",
        "; ".join(said) or f"status {done.returncode}",
        f"Every submission would be refused: {advice(done.stderr) or 'see the findings above'}.",
        "site.toml: slurm.sbatch_args" if asks else "",
        (),
        f'site.toml: slurm.sbatch_args = ["{_EXPORT}"]' if asks else "",
    )
