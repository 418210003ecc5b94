"""Query Slurm: once, or the same on each cluster that has repeats."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hpcbert.slurm import commands
from hpcbert.slurm.ladder import answer_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hpcbert.campaign.repeats import Repeat
    from hpcbert.scheduler.base import World
    from hpcbert.slurm.ladder import Answer
    from hpcbert.system.runner import Outcome


def query(world: World, argv: Sequence[str], *, timeout: float = 60.0) -> Outcome:
    """Run a command that queries or cancels, without the caller's own settings of Slurm.

    Args:
        world: Its `run` starts the command.
        argv: The command.
        timeout: Its time limit, seconds.
    """
    return world.run(argv, env=commands.environment(world.environ), timeout=timeout)


def by_cluster(repeats: Iterable[Repeat]) -> dict[str, list[Repeat]]:
    """Return repeats by the cluster that has them; empty: the one of Slurm's configuration."""
    found: dict[str, list[Repeat]] = {}
    for repeat in repeats:
        found.setdefault(repeat.array.cluster, []).append(repeat)
    return found


def squeue(repeats: Iterable[Repeat]) -> list[list[str]]:
    """Return the queries for all jobs of the submitters of repeats."""
    return [
        commands.squeue_argv(
            users=[repeat.watched.campaign.owner for repeat in those], cluster=cluster
        )
        for cluster, those in by_cluster(repeats).items()
    ]


def sacct(repeats: Iterable[Repeat]) -> list[list[str]]:
    """Return the queries for the history of repeats, which have job ids."""
    return [
        commands.sacct_argv(
            [repeat.array.job_id for repeat in those],
            users=[repeat.watched.campaign.owner for repeat in those],
            since=min(repeat.watched.since for repeat in those),
            cluster=cluster,
        )
        for cluster, those in by_cluster(repeats).items()
    ]


def ask(world: World, questions: Sequence[Sequence[str]]) -> tuple[Outcome, Answer]:
    """Make at least one query; return all answers as one, or the first failure."""
    outcomes = [query(world, argv, timeout=30) for argv in questions]
    failed = next((outcome for outcome in outcomes if not outcome.ok), None)
    if failed:
        return failed, answer_of(failed)
    text = "\n".join(outcome.stdout for outcome in outcomes)
    return replace(outcomes[0], stdout=text), "answered"
