"""Watching campaigns and submitting invalid repeats again, until nothing more can be done.

What is seen and done goes to an `Observer`; nothing is printed here.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from hpcbert.campaign import store
from hpcbert.flows.monitor import open_campaign, watch
from hpcbert.flows.submit import submit_pending
from hpcbert.script import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from hpcbert.campaign.repeats import TrackedCampaign
    from hpcbert.campaign.suspects import RetryPolicy
    from hpcbert.flows.monitor import Sinks, View
    from hpcbert.flows.retry import RetryPlan
    from hpcbert.model import Array
    from hpcbert.system.runner import Runner


class Observer(Protocol):
    """Takes what happens while campaigns are followed, in its order."""

    def watching(self) -> AbstractContextManager[Sinks]:
        """Return what takes the states from now on until something is submitted, or the end."""

    def retried(self, plans: Sequence[RetryPlan]) -> None:
        """Take what was submitted again."""

    def waiting(self, reason: str) -> None:
        """Take why a submission waits for room."""


def follow(
    watched: Sequence[TrackedCampaign],
    policy: RetryPolicy,
    observer: Observer,
    *,
    run: Runner,
    floor: float,
    interval: float | None = None,
    once: bool = False,
    pause: Callable[[float], None] = time.sleep,
) -> View:
    """Watch campaigns, submit invalid repeats again, and watch on, until all is over.

    Nobody asks for these retries one by one, so what somebody cancelled stays cancelled, what needs
    a longer time limit or a smaller batch waits for somebody to give it one, and a rehearsal is
    never repeated.

    Args:
        watched: The campaigns.
        policy: What is submitted again; with a limit of 0 nothing is.
        observer: Takes what happens.
        run: Starts the scheduler's commands.
        floor: Shortest interval between two questions to Slurm at this site, seconds.
        interval: The same for watching, where it is to be longer.
        once: Whether to look once and to submit nothing.
        pause: Waits a number of seconds between two looks.

    Returns:
        What there was in the end.

    Raises:
        SchedulerError: Slurm gave no answer for too long; the jobs are left alone.
        UsageError: A campaign to be retried belongs to somebody else.
        Interruption: Somebody interrupted a submission.
        KeyboardInterrupt: Somebody interrupted the watching.
    """
    if policy.limit:
        for one in watched:
            store.claim(one.directory)
    unattended = replace(policy, cancelled=False)
    while True:
        with observer.watching() as sinks:
            view = watch(watched, sinks, run=run, floor=interval or floor, once=once, pause=pause)
        plans = [
            resubmit(one.directory, unattended, run=run, floor=floor, waiting=observer.waiting)
            for one in watched
            if policy.limit and not once and not one.campaign.rehearse
        ]
        made = [plan for plan in plans if plan.arrays]
        if not made:
            return view
        observer.retried(made)
        watched = [open_campaign(one.directory) for one in watched]


def resubmit(
    directory: Path,
    policy: RetryPolicy,
    *,
    run: Runner,
    floor: float,
    dry: bool = False,
    waiting: Callable[[str], None] | None = None,
) -> RetryPlan:
    """Submit a campaign's invalid repeats again; with `dry`, only return what would be.

    Args:
        directory: The campaign.
        policy: What is submitted again.
        run: Starts the scheduler's commands.
        floor: Shortest interval between two questions to Slurm, seconds.
        dry: Whether nothing is written or submitted.
        waiting: As in `submit_pending`.

    Returns:
        What was submitted, with job ids.

    Raises:
        Interruption, SchedulerError, UsageError, HpcbertError: As `submit_pending`, `retry.look`
            and `retry.plan`.
    """
    from hpcbert.flows import retry  # who only watches does without

    def submitted() -> tuple[Array, ...]:
        return submit_pending(
            directory, run=run, floor=floor, waiting=waiting, again=retry.AGAIN
        ).arrays

    if not dry and any(one.state == "intended" for one in store.read_manifest(directory).arrays):
        submitted()
    found = retry.look(directory, policy, run=run)
    ended = [(one.array, one.number, one.state) for one in found.invalid]
    limits.refuse_pointless(found.watched, ended, policy.time_limit)
    plan = retry.plan(found, policy, run=run)
    if dry or not plan.arrays:
        return plan
    retry.intend(plan)
    there = {array.name: array for array in submitted()}
    return replace(plan, arrays=tuple(there.get(one.name, one) for one in plan.arrays))
