"""Retry: resubmit only the invalid repeats, away from nodes that failed.

A retry is one more array of the same point, in the manifest like the first: the intent is on disk
before sbatch is called, and the script differs from the first only in some `#SBATCH` lines that are
added and the number of its first attempt. Nothing that exists is overwritten.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from hpcbert import scheduler
from hpcbert.campaign import ends, judge, store, suspects
from hpcbert.campaign.repeats import Key, TrackedCampaign
from hpcbert.campaign.suspects import RepeatOutcome, RetryPolicy, Suspicion, Verdict
from hpcbert.commands.monitor import Sinks, View, open_campaign, watch
from hpcbert.commands.submit import submit_pending
from hpcbert.config.schedulers import find_traits
from hpcbert.errors import SchedulerError, UsageError
from hpcbert.logs import failures
from hpcbert.logs.setting import Window
from hpcbert.model import Array, Campaign, JobRequest
from hpcbert.scheduler.base import World
from hpcbert.scheduler.tracker import Tracker
from hpcbert.script import retries
from hpcbert.slurm.hostlist import expand
from hpcbert.slurm.states import LOST, RepeatState
from hpcbert.system.runner import Runner

# The command that continues where this one had to stop, without the campaign.
RETRY_COMMAND = "hpcbert retry"
# Number of looks at Slurm until an end is certain, and the seconds between them.
_MOST_POLLS, _POLL_SECONDS = 8, 2.0


@dataclass(frozen=True)
class InvalidRepeat:
    """A repeat that is over and invalid."""

    array: Array
    number: int
    state: str
    why: str


@dataclass(frozen=True)
class Findings:
    """The state of a campaign.

    Attributes:
        invalid: Repeats to resubmit.
        spent: Repeats that were resubmitted as often as allowed.
        open: Number of repeats that wait, run, or may yet.
        tries: How the others ended.
        attempts: Number of the newest attempt of each repeat.
        too_large: Repeats that ran out of device memory and would do so again: no repeat of their
            point is valid, and there is no node to avoid.
    """

    watched: TrackedCampaign
    invalid: tuple[InvalidRepeat, ...]
    spent: tuple[InvalidRepeat, ...]
    open: int
    tries: tuple[RepeatOutcome, ...]
    attempts: Mapping[Key, int]
    too_large: tuple[InvalidRepeat, ...] = ()


@dataclass(frozen=True)
class RetryPlan:
    """The arrays that one retry of a campaign submits.

    Attributes:
        arrays: New arrays, `intended`.
        scripts: The texts of their scripts, by name.
        spared: Suspected nodes that are not excluded, with the reason for the suspicion.
    """

    findings: Findings
    arrays: tuple[Array, ...] = ()
    scripts: Mapping[str, str] | None = None
    spared: tuple[tuple[str, str], ...] = ()


def find_invalid(
    directory: Path,
    policy: RetryPolicy,
    *,
    run: Runner,
    clock: Callable[[], float] = time.time,
    pause: Callable[[float], None] = time.sleep,
) -> Findings:
    """Return which repeats of a campaign are missing or invalid, by the gate of `collect`.

    Raises:
        SchedulerError: Slurm does not say what waits or runs, or lists a live job of a missing
            repeat under any name: nothing may be submitted then.
        UsageError: The campaign does not exist, can have no valid repeats, or belongs to others.
    """
    store.refuse_foreign(directory)
    campaign = store.read_manifest(directory)
    if campaign.rehearse:
        raise UsageError(
            "A rehearsal has nothing to retry.",
            where=campaign.id,
            hint="Submit it again for another rehearsal.",
        )
    # Repeats of an interrupted or refused submission are not missing.
    world = World(run, now=clock, pause=pause, again=RETRY_COMMAND)
    backend = scheduler.create_scheduler(campaign.scheduler, world)
    tracked_campaign = backend.adopted(TrackedCampaign(directory, campaign), strict=True)
    campaign = tracked_campaign.campaign
    tracker = Tracker([tracked_campaign], run=run, clock=clock, floor=_POLL_SECONDS)
    states, settled_keys = _poll_until_settled(tracked_campaign, tracker, pause)
    ends.write(tracked_campaign, states, settled_keys)
    judgement = judge.gather(tracked_campaign, rule="", window=Window(), states=lambda _: states)
    judged_repeats = {repeat.key: repeat for repeat in judgement.repeats}
    valid_points = {repeat.array.point for repeat in judgement.repeats if repeat.run.valid}
    complete_points = judgement.complete
    candidates: list[InvalidRepeat] = []
    too_large_repeats: list[InvalidRepeat] = []
    for array, number in campaign.current:
        key = array.name, number
        outcome = judged_repeats[key].run
        if judged_repeats[key].unneeded or array.point in complete_points:
            continue
        is_deliberate = outcome.state in {"CANCELLED", LOST} or retries.is_pointless(
            array, outcome.state, policy.time_limit
        )
        if is_deliberate and not policy.cancelled:
            continue
        if key in settled_keys and not outcome.valid:
            lacked_memory = any(reason.code == failures.DEVICE for reason in outcome.reasons)
            # The next search begins below a size that turned out to be too large.
            is_fixed_size = lacked_memory and not array.point.largest
            is_hopeless = is_fixed_size and array.point not in valid_points and not policy.exclude
            text = "; ".join(map(str, outcome.reasons))
            (too_large_repeats if is_hopeless else candidates).append(
                InvalidRepeat(array, number, outcome.state, text)
            )
    backend.refuse_doubling(
        tracked_campaign,
        [(invalid_repeat.array, invalid_repeat.number) for invalid_repeat in candidates],
    )
    invalid_repeats: list[InvalidRepeat] = []
    spent_repeats: list[InvalidRepeat] = []
    for invalid_repeat in candidates:
        submit_count = len(
            tracked_campaign.arrays_of_repeat[invalid_repeat.array.point, invalid_repeat.number]
        )
        (spent_repeats if submit_count > policy.limit else invalid_repeats).append(invalid_repeat)
    return Findings(
        watched=tracked_campaign,
        invalid=tuple(invalid_repeats),
        spent=tuple(spent_repeats),
        too_large=tuple(too_large_repeats),
        open=len(campaign.current) - len(settled_keys),
        tries=tuple(
            RepeatOutcome(array.point.key, run.repeat, run.state, run.valid, run.nodes)
            for array, number in campaign.current
            for run in [judged_repeats[array.name, number].run]
        ),
        attempts={key: state.attempt for key, state in states.items()},
    )


def _poll_until_settled(
    tracked_campaign: TrackedCampaign, tracker: Tracker, pause: Callable[[float], None]
) -> tuple[dict[Key, RepeatState], set[Key]]:
    """Return all states, and those that are certainly final.

    A job that lost its node is NODE_FAIL for a moment before Slurm puts it back into the queue:
    resubmitting it then would run it twice.
    """
    tracker.poll()
    for _ in range(_MOST_POLLS):
        if all(map(tracker.settled, _ended_keys(tracker))) and not tracker.failures:
            break
        pause(max(_POLL_SECONDS, tracker.pause()))
        tracker.poll()
    if tracker.failures or tracker.absent:
        campaign_id = tracked_campaign.campaign.id
        raise SchedulerError(
            f"Slurm does not say what waits or runs: {tracker.complaint or 'no answer'}",
            where=campaign_id,
            hint=f"Nothing was submitted. Once Slurm answers: {RETRY_COMMAND} {campaign_id}",
        )
    return tracker.states, {key for key in _ended_keys(tracker) if tracker.settled(key)}


def _ended_keys(tracker: Tracker) -> tuple[Key, ...]:
    return tuple(key for key, state in tracker.states.items() if not state.kind.alive)


def plan_retry(findings: Findings, policy: RetryPolicy, *, run: Runner) -> RetryPlan:
    """Plan the next arrays, one for each point, or part of one, with invalid repeats.

    Raises:
        UsageError: The campaign's scripts were changed or moved, or another version made them; or
            a local campaign is still running.
    """
    tracked_campaign = findings.watched
    points: dict[tuple[str, int], list[InvalidRepeat]] = {}
    for invalid_repeat in findings.invalid:
        points.setdefault((invalid_repeat.array.point.key, invalid_repeat.array.offset), []).append(
            invalid_repeat
        )
    if (
        points
        and findings.open
        and not find_traits(tracked_campaign.campaign.scheduler).accepts_more
    ):
        raise UsageError(
            f"{findings.open} repeats still wait or run, and the local queue accepts no more now.",
            where=tracked_campaign.campaign.id,
            hint="Wait for them (hpcbert monitor), or cancel them.",
        )
    store.refuse_changed_library(tracked_campaign.directory, tracked_campaign.campaign)
    arrays, scripts = [], {}
    spared_nodes: dict[str, str] = {}
    parts = {
        (part_array.point.key, part_array.offset): part_array
        for part_array in reversed(tracked_campaign.campaign.arrays)
    }
    suspicions: dict[str, Suspicion | None] = {}
    for part, part_repeats in points.items():
        first_array = parts[part]
        script = store.read_script(tracked_campaign.directory, first_array).decode()
        if not retries.is_written_to(first_array.request, tracked_campaign.directory):
            raise UsageError(
                "The campaign was moved or copied: its scripts write to the old place.",
                where=str(tracked_campaign.directory),
                hint="Retry it where it was submitted, or submit the points again.",
            )
        partition = first_array.request.partition
        if partition not in suspicions:
            suspicions[partition] = _gather_suspicion(findings, first_array.request, policy, run)
        named_nodes = expand(first_array.request.nodelist)
        verdict = _choose_exclusions(
            tracked_campaign.campaign, first_array, policy, suspicions[partition], named_nodes
        )
        time_limit = policy.time_limit or retries.retried_limit(tracked_campaign, first_array)
        array, retry_script = _make_array(
            findings, first_array, part_repeats, script, verdict, time_limit=time_limit
        )
        arrays.append(array)
        scripts[array.name] = retry_script
        spared_nodes |= dict(verdict.spared)
    return RetryPlan(findings, tuple(arrays), scripts, tuple(spared_nodes.items()))


def _gather_suspicion(
    findings: Findings, request: JobRequest, policy: RetryPolicy, run: Runner
) -> Suspicion | None:
    """Return the evidence against the nodes of a job's partition; None if unknown."""
    backend = scheduler.create_scheduler(findings.watched.campaign.scheduler, World(run))
    partition_nodes = backend.nodes(request) if policy.suspect else None
    return None if partition_nodes is None else Suspicion(findings.tries, partition_nodes)


def _choose_exclusions(
    campaign: Campaign,
    first_array: Array,
    policy: RetryPolicy,
    suspicion: Suspicion | None,
    named_nodes: Collection[str],
) -> Verdict:
    """Return the nodes that a retry excludes; never those that its script names."""
    requested_nodes = tuple((node, "named by --exclude") for node in policy.exclude)
    if suspicion is None:
        return Verdict(requested_nodes)
    earlier_nodes = {
        node: reason
        for array in campaign.of_point[first_array.point]
        for node, reason in array.excluded
        if node not in policy.exclude
    }
    suspect_nodes = earlier_nodes | suspicion.of(first_array.point.key)
    suspect_nodes = {
        node: reason for node, reason in suspect_nodes.items() if node not in policy.exclude
    }
    named_suspects = {node: reason for node, reason in suspect_nodes.items() if node in named_nodes}
    suspect_nodes = {
        node: reason for node, reason in suspect_nodes.items() if node not in named_nodes
    }
    verdict = suspects.limit_exclusions(
        suspect_nodes, suspicion.nodes, needed=first_array.point.shape.nodes
    )
    return Verdict(
        (*requested_nodes, *verdict.excluded), (*verdict.spared, *named_suspects.items())
    )


def _make_array(
    findings: Findings,
    first_array: Array,
    invalid_repeats: Sequence[InvalidRepeat],
    script: str,
    verdict: Verdict,
    *,
    time_limit: str,
) -> tuple[Array, str]:
    point_arrays = findings.watched.campaign.of_point[first_array.point]
    retry = 1 + max(point_array.retry for point_array in point_arrays)
    attempts = [
        findings.attempts.get((invalid_repeat.array.name, invalid_repeat.number), 0)
        for invalid_repeat in invalid_repeats
    ]
    attempt = 1 + max(*attempts, *(point_array.first_attempt for point_array in point_arrays), 0)
    name = f"{first_array.name}.t{retry}"
    indices = [repeat.number - first_array.offset for repeat in invalid_repeats]
    request = retries.retry_request(
        first_array.request,
        name=name,
        indices=indices,
        exclude=[node for node, _ in verdict.excluded],
        time_limit=time_limit,
    )
    retry_script = retries.rewrite_script(
        script, first_array.request, request, repeats=indices, first_attempt=attempt
    )
    array = replace(
        first_array,
        name=name,
        repeats=tuple(invalid_repeat.number for invalid_repeat in invalid_repeats),
        script=first_array.script.removesuffix(".sbatch") + f".t{retry}.sbatch",
        script_sha256=hashlib.sha256(retry_script.encode()).hexdigest(),
        request=request,
        state="intended",
        job_id="",
        submitted="",
        error="",
        called="",
        retry=retry,
        first_attempt=attempt,
        workdir="",
        seen="",
        submit_time=None,
        changed=(),
        excluded=verdict.excluded,
        why=tuple(
            (invalid_repeat.number, invalid_repeat.state, invalid_repeat.why)
            for invalid_repeat in invalid_repeats
        ),
    )
    return array, retry_script


def write_retry(retry_plan: RetryPlan) -> Campaign:
    """Write a retry: the scripts, then the manifest with its arrays `intended`.

    Raises:
        UsageError: Another process works on the campaign, or has changed it meanwhile.
        HpcbertError: The file system refused; nothing has been submitted then.
    """
    tracked_campaign = retry_plan.findings.watched
    directory = tracked_campaign.directory
    with store.locked(directory):
        campaign = store.read_manifest(directory)
        if campaign != tracked_campaign.campaign:
            raise UsageError(
                "Another process changed the campaign meanwhile.",
                where=campaign.id,
                hint="Run the command again; it skips what the other process submitted.",
            )
        for array in retry_plan.arrays:
            store.write_text(directory / array.script, (retry_plan.scripts or {})[array.name])
        campaign = replace(campaign, arrays=(*campaign.arrays, *retry_plan.arrays))
        store.write_manifest(directory, campaign)
    return campaign


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

    def submit_intended() -> tuple[Array, ...]:
        return submit_pending(
            directory, run=run, floor=floor, waiting=waiting, resume_command=RETRY_COMMAND
        ).arrays

    if not dry and any(
        planned_array.state == "intended" for planned_array in store.read_manifest(directory).arrays
    ):
        submit_intended()
    findings = find_invalid(directory, policy, run=run)
    invalid_ends = [
        (invalid_repeat.array, invalid_repeat.number, invalid_repeat.state)
        for invalid_repeat in findings.invalid
    ]
    retries.refuse_pointless(findings.watched, invalid_ends, policy.time_limit)
    plan = plan_retry(findings, policy, run=run)
    if dry or not plan.arrays:
        return plan
    write_retry(plan)
    arrays = {array.name: array for array in submit_intended()}
    return replace(
        plan,
        arrays=tuple(
            arrays.get(planned_array.name, planned_array) for planned_array in plan.arrays
        ),
    )
