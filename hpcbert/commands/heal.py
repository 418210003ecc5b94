"""Watch campaigns and resubmit invalid repeats, until nothing more can be done.

An `Observer` receives what is seen and done; nothing is printed here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from hpcbert.campaign import store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.campaign.suspects import RetryPolicy
from hpcbert.commands.monitor import Sinks, View, open_campaign, watch
from hpcbert.commands.retry import RetryPlan
from hpcbert.commands.submit import submit_pending
from hpcbert.model import Array
from hpcbert.script import limits
from hpcbert.system.runner import Runner


class Observer(Protocol):
    """Receives what happens while campaigns are followed, in order."""

    def watching(self) -> AbstractContextManager[Sinks]:
        """Return what receives the states from now until something is submitted, or the end."""

    def retried(self, plans: Sequence[RetryPlan]) -> None:
        """Receive what was resubmitted."""

    def waiting(self, reason: str) -> None:
        """Receive the reason why a submission waits for room."""


def watch_and_retry(
    campaigns: Sequence[TrackedCampaign],
    policy: RetryPolicy,
    observer: Observer,
    *,
    run: Runner,
    floor: float,
    interval: float | None = None,
    once: bool = False,
    pause: Callable[[float], None] = time.sleep,
) -> View:
    """Watch campaigns, resubmit invalid repeats, and watch on, until all is over.

    Nobody confirms these retries, so a cancelled repeat stays cancelled, a repeat that needs a
    longer time limit or a smaller batch waits for the user to set one, and a rehearsal is never
    repeated.

    Args:
        campaigns: The campaigns.
        policy: Which repeats to resubmit; with a limit of 0, none.
        observer: Receives what happens.
        run: Starts the scheduler's commands.
        floor: Shortest interval between two queries of Slurm at this site, seconds.
        interval: The interval for watching, if it is to be longer.
        once: Whether to look once and submit nothing.
        pause: Waits a number of seconds between two looks.

    Returns:
        The last states.

    Raises:
        SchedulerError: Slurm gave no answer for too long; the jobs continue.
        UsageError: A campaign to retry belongs to somebody else.
        Interruption: The user interrupted a submission.
        KeyboardInterrupt: The user interrupted the watching.
    """
    if policy.limit:
        for tracked_campaign in campaigns:
            store.refuse_foreign(tracked_campaign.directory)
    unattended_policy = replace(policy, cancelled=False)
    while True:
        with observer.watching() as sinks:
            view = watch(campaigns, sinks, run=run, floor=interval or floor, once=once, pause=pause)
        plans = [
            resubmit(
                tracked_campaign.directory,
                unattended_policy,
                run=run,
                floor=floor,
                waiting=observer.waiting,
            )
            for tracked_campaign in campaigns
            if policy.limit and not once and not tracked_campaign.campaign.rehearse
        ]
        retry_plans = [plan for plan in plans if plan.arrays]
        if not retry_plans:
            return view
        observer.retried(retry_plans)
        campaigns = [open_campaign(tracked_campaign.directory) for tracked_campaign in campaigns]


def resubmit(
    directory: Path,
    policy: RetryPolicy,
    *,
    run: Runner,
    floor: float,
    dry: bool = False,
    waiting: Callable[[str], None] | None = None,
) -> RetryPlan:
    """Resubmit a campaign's invalid repeats; with `dry`, only return them.

    Args:
        directory: The campaign.
        policy: Which repeats to resubmit.
        run: Starts the scheduler's commands.
        floor: Shortest interval between two queries of Slurm, seconds.
        dry: Whether to write and submit nothing.
        waiting: As in `submit_pending`.

    Returns:
        What was submitted, with job ids.

    Raises:
        Interruption, SchedulerError, UsageError, HpcbertError: As `submit_pending`, `retry.look`
            and `retry.plan`.
    """
    from hpcbert.commands import retry  # not needed only to watch

    def submit_intended() -> tuple[Array, ...]:
        return submit_pending(
            directory, run=run, floor=floor, waiting=waiting, resume_command=retry.RETRY_COMMAND
        ).arrays

    if not dry and any(
        planned_array.state == "intended" for planned_array in store.read_manifest(directory).arrays
    ):
        submit_intended()
    findings = retry.find_invalid(directory, policy, run=run)
    invalid_ends = [
        (invalid_repeat.array, invalid_repeat.number, invalid_repeat.state)
        for invalid_repeat in findings.invalid
    ]
    limits.refuse_pointless(findings.watched, invalid_ends, policy.time_limit)
    plan = retry.plan_retry(findings, policy, run=run)
    if dry or not plan.arrays:
        return plan
    retry.write_retry(plan)
    arrays = {array.name: array for array in submit_intended()}
    return replace(
        plan,
        arrays=tuple(
            arrays.get(planned_array.name, planned_array) for planned_array in plan.arrays
        ),
    )
