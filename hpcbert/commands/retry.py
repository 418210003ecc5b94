"""Retry: resubmit only the invalid repeats, away from nodes that failed.

A retry is one more array of the same point, in the manifest like the first: the intent is on disk
before sbatch is called, and the script differs from the first only in some `#SBATCH` lines that are
added and the number of its first attempt. Nothing that exists is overwritten.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Protocol

from hpcbert import scheduler
from hpcbert.campaign import judge, store, suspects
from hpcbert.campaign.attempts import RecordedStates, list_final_states, write_ends
from hpcbert.campaign.judge import Gathered, JudgedRepeat
from hpcbert.campaign.repeats import Key, TrackedCampaign, open_campaign
from hpcbert.campaign.suspects import RetryPolicy, Suspicion, Verdict
from hpcbert.commands.monitor import Sinks, View, watch
from hpcbert.commands.submit import submit_pending
from hpcbert.config.schedulers import find_traits
from hpcbert.errors import SchedulerError, UsageError, format_count
from hpcbert.logs import failures
from hpcbert.model import Array, Campaign, Run
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.tracker import Tracker
from hpcbert.script.request import (
    is_pointless,
    is_written_to,
    refuse_pointless,
    retry_request,
    rewrite_script,
)
from hpcbert.slurm.hostlist import expand
from hpcbert.slurm.states import LOST, RepeatState
from hpcbert.system.grouping import group
from hpcbert.system.runner import Runner

# The command that continues where this one had to stop, without the campaign.
RETRY_COMMAND = "hpcbert retry"
# Number of looks at Slurm until an end is certain, and the seconds between them.
_MOST_POLLS, _POLL_SECONDS = 9, 2.0


class InvalidRepeat(NamedTuple):
    """A repeat that is over and invalid; `attempt` is the number of its newest attempt."""

    array: Array
    number: int
    state: str
    why: str
    attempt: int = 0


@dataclass(frozen=True)
class RetryPlan:
    """What one retry of a campaign found, and the arrays that it submits.

    Attributes:
        spent: Repeats that were resubmitted as often as allowed.
        open: Number of repeats that wait, run, or may yet.
        too_large: Repeats that ran out of device memory and would do so again: no repeat of their
            point is valid, and there is no node to avoid.
        scripts: The texts of their scripts, by name.
        spared: Suspected nodes that are not excluded, with the reason for the suspicion.
    """

    watched: TrackedCampaign
    invalid: tuple[InvalidRepeat, ...] = ()
    spent: tuple[InvalidRepeat, ...] = ()
    open: int = 0
    runs: Mapping[str, Sequence[Run]] = field(default_factory=dict)
    too_large: tuple[InvalidRepeat, ...] = ()
    arrays: tuple[Array, ...] = ()
    scripts: Mapping[str, str] = field(default_factory=dict)
    spared: tuple[tuple[str, str], ...] = ()


def find_invalid(
    directory: Path, policy: RetryPolicy, context: SchedulerContext, *, dry: bool = False
) -> RetryPlan:
    """Find the repeats of a campaign that are missing or invalid, by the gate of `collect`.

    With `dry`, for a plan that is only shown, Slurm is not asked if all ends are on record.

    Raises:
        SchedulerError: Slurm is silent, or lists a live job of a missing repeat under any name.
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
    backend = scheduler.create_scheduler(campaign.scheduler, context)
    tracked_campaign = backend.adopt_jobs(TrackedCampaign(directory, campaign), strict=True)
    campaign = tracked_campaign.campaign
    states, settled_keys, is_over = _read_states(tracked_campaign, context, dry=dry)
    judgement = judge.gather(tracked_campaign, states=lambda _: states)
    valid_points = {judged.array.point for judged in judgement.repeats if judged.run.valid}
    submissions = tracked_campaign.arrays_of_repeat
    invalid, spent, too_large = [], [], []
    for judged in _list_ended(judgement, settled_keys, policy):
        array, run, attempt = judged.array, judged.run, states[judged.key].attempt
        text = "; ".join(map(str, run.reasons))
        repeat = InvalidRepeat(array, run.repeat, run.state, text, attempt)
        lacked_memory = any(reason.code == failures.DEVICE for reason in run.reasons)
        # The next search for the largest size begins below one that turned out to be too large.
        is_hopeless = lacked_memory and not array.point.largest and array.point not in valid_points
        if is_hopeless and not policy.exclude:
            too_large.append(repeat)
        elif len(submissions[array.point, run.repeat]) > policy.limit:
            spent.append(repeat)
        else:
            invalid.append(repeat)
    if not is_over:
        missing = [(repeat.array, repeat.number) for repeat in (*invalid, *spent)]
        backend.refuse_doubling(tracked_campaign, missing)
    return RetryPlan(
        tracked_campaign,
        tuple(invalid),
        tuple(spent),
        open=len(campaign.current) - len(settled_keys),
        runs=group((judged.array.point.key, judged.run) for judged in judgement.repeats),
        too_large=tuple(too_large),
    )


def _list_ended(
    judgement: Gathered, settled_keys: Collection[Key], policy: RetryPolicy
) -> Iterator[JudgedRepeat]:
    """Yield the repeats that are over, invalid and needed."""
    complete_points = judgement.complete
    for judged in judgement.repeats:
        array, run = judged.array, judged.run
        is_needed = not judged.unneeded and array.point not in complete_points
        is_deliberate = run.state in {"CANCELLED", LOST} or is_pointless(
            array, run.state, policy.time_limit
        )
        is_wanted = is_needed and (policy.cancelled or not is_deliberate)
        if is_wanted and judged.key in settled_keys and not run.valid:
            yield judged


def _read_states(
    tracked_campaign: TrackedCampaign, context: SchedulerContext, *, dry: bool
) -> tuple[Mapping[Key, RepeatState], set[Key], bool]:
    """Return all states, those that are certainly final, and whether a dry run needed no answer.

    A job that lost its node is NODE_FAIL for a moment before Slurm puts it back into the queue:
    resubmitting it then would run it twice.
    """
    if dry:
        states = list_final_states(tracked_campaign, RecordedStates(tracked_campaign.directory))
        if len(states) == len(tracked_campaign.repeats):
            return states, set(states), True
    tracker = Tracker([tracked_campaign], context, floor=_POLL_SECONDS)
    settled_keys: set[Key] = set()
    for number in range(_MOST_POLLS):
        if number:
            context.pause(max(_POLL_SECONDS, tracker.pause()))
        tracker.poll()
        ended_keys = [key for key, state in tracker.states.items() if not state.kind.alive]
        settled_keys = set(filter(tracker.is_final, ended_keys))
        if len(settled_keys) == len(ended_keys) and not tracker.failures:
            break
    if tracker.failures or tracker.absent:
        campaign_id = tracked_campaign.campaign.id
        raise SchedulerError(
            f"Slurm does not say what waits or runs: {tracker.complaint or 'no answer'}",
            where=campaign_id,
            hint=f"Nothing was submitted. Once Slurm answers: {RETRY_COMMAND} {campaign_id}",
        )
    write_ends(tracked_campaign, tracker.states, settled_keys)
    return tracker.states, settled_keys, False


def plan_retry(plan: RetryPlan, policy: RetryPolicy, *, run: Runner) -> RetryPlan:
    """Add the next arrays, one for each point, or part of one, with invalid repeats.

    Raises:
        UsageError: The campaign's scripts were changed or moved, or another version made them; or
            a local campaign is still running.
    """
    directory, campaign = plan.watched.directory, plan.watched.campaign
    parts = group(((entry.array.point, entry.array.offset), entry) for entry in plan.invalid)
    if parts and plan.open and not find_traits(campaign.scheduler).accepts_more:
        text = format_count(plan.open, "repeat still waits or runs", "repeats still wait or run")
        raise UsageError(
            f"{text}, and the local queue accepts no more now.",
            where=campaign.id,
            hint="Wait for them (hpcbert monitor), or cancel them.",
        )
    store.refuse_changed_library(directory, campaign)
    backend = scheduler.create_scheduler(campaign.scheduler, SchedulerContext(run))
    can_suspect = parts and policy.suspect
    nodes = backend.nodes(plan.invalid[0].array.request) if can_suspect else None
    suspicion = None if nodes is None else Suspicion(plan.runs, nodes)
    arrays, scripts = [], {}
    spared_nodes: dict[str, str] = {}
    for (point, offset), repeats in parts.items():
        point_arrays = campaign.of_point[point]
        first_array = next(array for array in point_arrays if array.offset == offset)
        if not is_written_to(first_array.request, directory):
            raise UsageError(
                "The campaign was moved or copied: its scripts write to the old place.",
                where=str(directory),
                hint="Retry it where it was submitted, or submit the points again.",
            )
        verdict = _choose_exclusions(point_arrays, policy, suspicion)
        time_limit = policy.time_limit or point_arrays[-1].request.time_limit
        array = _make_array(point_arrays, first_array, repeats, verdict, time_limit=time_limit)
        text = store.read_script(directory, first_array).decode()
        traits = find_traits(campaign.scheduler)
        script = rewrite_script(text, first_array.request, array, scheduler=traits)
        sha256 = hashlib.sha256(script.encode()).hexdigest()
        arrays.append(replace(array, script_sha256=sha256))
        scripts[array.name] = script
        spared_nodes |= dict(verdict.spared)
    spared = tuple(spared_nodes.items())
    return replace(plan, arrays=tuple(arrays), scripts=scripts, spared=spared)


def _choose_exclusions(
    point_arrays: Sequence[Array], policy: RetryPolicy, suspicion: Suspicion | None
) -> Verdict:
    """Return the nodes that a retry of a point excludes; never those that its script names."""
    requested_nodes = tuple((node, "named by --exclude") for node in policy.exclude)
    if suspicion is None:
        return Verdict(requested_nodes)
    point = point_arrays[0].point
    suspect_nodes: dict[str, str] = {}
    for array in point_arrays:
        suspect_nodes |= dict(array.excluded)
    suspect_nodes |= suspicion.of(point.key)
    required_nodes = expand(point_arrays[0].request.nodelist)
    suspect_items = [item for item in suspect_nodes.items() if item[0] not in policy.exclude]
    verdict = suspects.limit_exclusions(
        dict(item for item in suspect_items if item[0] not in required_nodes),
        suspicion.nodes,
        needed=point.shape.nodes,
    )
    spared = (*verdict.spared, *(item for item in suspect_items if item[0] in required_nodes))
    return Verdict((*requested_nodes, *verdict.excluded), spared)


def _make_array(
    point_arrays: Sequence[Array],
    first_array: Array,
    repeats: Sequence[InvalidRepeat],
    verdict: Verdict,
    *,
    time_limit: str,
) -> Array:
    """Return the array that runs some repeats of a point again."""
    retry = 1 + max(array.retry for array in point_arrays)
    attempts = [repeat.attempt for repeat in repeats]
    first_attempt = 1 + max(*attempts, *(array.first_attempt for array in point_arrays))
    name = f"{first_array.name}.t{retry}"
    request = retry_request(
        first_array.request,
        name=name,
        indices=[repeat.number - first_array.offset for repeat in repeats],
        exclude=[node for node, _ in verdict.excluded],
        time_limit=time_limit,
    )
    return Array(
        point=first_array.point,
        name=name,
        repeats=tuple(repeat.number for repeat in repeats),
        script=first_array.script.removesuffix(".sbatch") + f".t{retry}.sbatch",
        script_sha256="",
        log=first_array.log,
        request=request,
        together=first_array.together,
        retry=retry,
        first_attempt=first_attempt,
        excluded=verdict.excluded,
        why=tuple((repeat.number, repeat.state, repeat.why) for repeat in repeats),
        cluster=first_array.cluster,
        offset=first_array.offset,
    )


def write_retry(retry_plan: RetryPlan) -> None:
    """Write a retry: the scripts, then the manifest with its arrays `intended`.

    Raises:
        UsageError: Another process works on the campaign, or has changed it meanwhile.
        HpcbertError: The file system refused; nothing has been submitted then.
    """
    directory = retry_plan.watched.directory
    with store.locked(directory):
        campaign = store.read_manifest(directory)
        if campaign != retry_plan.watched.campaign:
            raise UsageError(
                "Another process changed the campaign meanwhile.",
                where=campaign.id,
                hint="Run the command again; it skips what the other process submitted.",
            )
        for array in retry_plan.arrays:
            store.write_text(directory / array.script, retry_plan.scripts[array.name])
        arrays = (*campaign.arrays, *retry_plan.arrays)
        store.write_manifest(directory, replace(campaign, arrays=arrays))


class Observer(Protocol):
    """Receives what happens while campaigns are followed, in order."""

    def watching(self) -> Sinks:
        """Return the receivers of states until something is submitted, or the end."""

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
    """Watch campaigns, resubmit invalid repeats, and watch on; return the last states.

    Nobody confirms these retries, so a cancelled repeat stays cancelled, a repeat that needs a
    longer time limit or a smaller batch waits for the user to set one, and a rehearsal is never
    repeated.

    Args:
        policy: Which repeats to resubmit; with a limit of 0, none.
        floor: Shortest interval between two queries of Slurm at this site, seconds.
        interval: The interval for watching, if it is to be longer.

    Raises:
        SchedulerError: Slurm gave no answer for too long; the jobs continue.
        UsageError: A campaign to retry belongs to somebody else.
        Interruption: The user interrupted a submission.
        KeyboardInterrupt: The user interrupted the watching.
    """
    if policy.limit:
        for tracked_campaign in campaigns:
            store.refuse_foreign(tracked_campaign.directory)
    unattended = replace(policy, cancelled=False)
    context = SchedulerContext(run, pause=pause)
    while True:
        sinks = observer.watching()
        view = watch(campaigns, sinks, context, floor=interval or floor, once=once)
        plans = [
            resubmit(tracked.directory, unattended, run=run, floor=floor, waiting=observer.waiting)
            for tracked in campaigns
            if policy.limit and not once and not tracked.campaign.rehearse
        ]
        retry_plans = [plan for plan in plans if plan.arrays]
        if not retry_plans:
            return view
        observer.retried(retry_plans)
        campaigns = [open_campaign(tracked.directory) for tracked in campaigns]


def resubmit(
    directory: Path,
    policy: RetryPolicy,
    *,
    run: Runner,
    floor: float,
    dry: bool = False,
    waiting: Callable[[str], None] | None = None,
) -> RetryPlan:
    """Resubmit a campaign's invalid repeats, as `submit_pending`; with `dry`, only return them."""

    def submit_intended() -> Campaign:
        return submit_pending(
            directory, run=run, floor=floor, waiting=waiting, resume_command=RETRY_COMMAND
        )

    arrays = store.read_manifest(directory).arrays
    if not dry and any(array.state == "intended" for array in arrays):
        submit_intended()
    plan = find_invalid(directory, policy, SchedulerContext(run, again=RETRY_COMMAND), dry=dry)
    invalid_ends = [(repeat.array, repeat.number, repeat.state) for repeat in plan.invalid]
    refuse_pointless(plan.watched, invalid_ends, policy.time_limit)
    plan = plan_retry(plan, policy, run=run)
    if dry or not plan.arrays:
        return plan
    write_retry(plan)
    submitted = {array.name: array for array in submit_intended().arrays}
    return replace(plan, arrays=tuple(submitted.get(array.name, array) for array in plan.arrays))
