"""Query Slurm: once, or the same on each cluster that has repeats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hpcbert.campaign.repeats import Repeat
from hpcbert.scheduler.base import World
from hpcbert.slurm import commands
from hpcbert.slurm.ladder import Answer, classify_answer
from hpcbert.system.runner import Outcome


def run_query(world: World, argv: Sequence[str], *, timeout: float = 60.0) -> Outcome:
    """Run a command that queries or cancels, without the caller's own settings of Slurm.

    Args:
        world: Its `run` starts the command.
        argv: The command.
        timeout: Its time limit, seconds.
    """
    return world.run(argv, env=commands.query_environment(world.environ), timeout=timeout)


def group_by_cluster(repeats: Iterable[Repeat]) -> dict[str, list[Repeat]]:
    """Return repeats by the cluster that has them; empty: the one of Slurm's configuration."""
    groups: dict[str, list[Repeat]] = {}
    for repeat in repeats:
        groups.setdefault(repeat.array.cluster, []).append(repeat)
    return groups


def build_squeue_queries(repeats: Iterable[Repeat]) -> list[list[str]]:
    """Return the queries for all jobs of the submitters of repeats."""
    return [
        commands.squeue_argv(
            users=[repeat.watched.campaign.owner for repeat in cluster_repeats], cluster=cluster
        )
        for cluster, cluster_repeats in group_by_cluster(repeats).items()
    ]


def build_sacct_queries(repeats: Iterable[Repeat]) -> list[list[str]]:
    """Return the queries for the history of repeats, which have job ids."""
    return [
        commands.sacct_argv(
            [repeat.array.job_id for repeat in cluster_repeats],
            users=[repeat.watched.campaign.owner for repeat in cluster_repeats],
            since=min(repeat.watched.since for repeat in cluster_repeats),
            cluster=cluster,
        )
        for cluster, cluster_repeats in group_by_cluster(repeats).items()
    ]


def run_queries(world: World, questions: Sequence[Sequence[str]]) -> tuple[Outcome, Answer]:
    """Make at least one query; return all answers as one, or the first failure."""
    outcomes = [run_query(world, argv, timeout=30) for argv in questions]
    failed = next((outcome for outcome in outcomes if not outcome.ok), None)
    if failed:
        return failed, classify_answer(failed)
    text = "\n".join(outcome.stdout for outcome in outcomes)
    return replace(outcomes[0], stdout=text), "answered"
