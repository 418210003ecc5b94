"""Retry: resubmit only the invalid repeats, away from nodes that failed.

A retry is one more array of the same point, in the manifest like the first: the intent is on disk
before sbatch is called, and the script differs from the first only in some `#SBATCH` lines that are
added and the number of its first attempt. Nothing that exists is overwritten.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpcbert import scheduler
from hpcbert.campaign import ends, judge, library, store, suspects
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.campaign.suspects import RepeatOutcome, Suspicion, Verdict
from hpcbert.config.schedulers import traits
from hpcbert.errors import SchedulerError, UsageError
from hpcbert.logs import failures
from hpcbert.logs.setting import Window
from hpcbert.scheduler.base import World
from hpcbert.scheduler.tracker import Tracker
from hpcbert.script import limits, rewrite
from hpcbert.slurm.hostlist import expand
from hpcbert.slurm.states import LOST

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from hpcbert.campaign.repeats import Key
    from hpcbert.campaign.suspects import RetryPolicy
    from hpcbert.model import Array, Campaign, JobRequest
    from hpcbert.slurm.states import RepeatState
    from hpcbert.system.runner import Runner

# The command that continues where this one had to stop, without the campaign.
AGAIN = "hpcbert retry"
# Number of looks at Slurm until an end is certain, and the seconds between them.
_LOOKS, _REST = 8, 2.0


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


def look(
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
    store.claim(directory)
    campaign = store.read_manifest(directory)
    if campaign.rehearse:
        raise UsageError(
            "A rehearsal has nothing to retry.",
            where=campaign.id,
            hint="Submit it again for another rehearsal.",
        )
    # Repeats of an interrupted or refused submission are not missing.
    world = World(run, now=clock, pause=pause, again=AGAIN)
    runs_on = scheduler.of(campaign.scheduler, world)
    watched = runs_on.adopted(TrackedCampaign(directory, campaign), strict=True)
    campaign = watched.campaign
    tracker = Tracker([watched], run=run, clock=clock, floor=_REST)
    states, settled = _settled_states(watched, tracker, pause)
    ends.write(watched, states, settled)
    gathered = judge.gather(watched, rule="", window=Window(), states=lambda _: states)
    judged = {repeat.key: repeat for repeat in gathered.repeats}
    fits = {repeat.array.point for repeat in gathered.repeats if repeat.run.valid}
    complete = gathered.complete
    invalid: list[InvalidRepeat] = []
    too_large: list[InvalidRepeat] = []
    for array, number in campaign.current:
        key = array.name, number
        outcome = judged[key].run
        if judged[key].unneeded or array.point in complete:
            continue
        on_purpose = outcome.state in {"CANCELLED", LOST} or limits.pointless(
            array, outcome.state, policy.time_limit
        )
        if on_purpose and not policy.cancelled:
            continue
        if key in settled and not outcome.valid:
            lacked = any(reason.code == failures.DEVICE for reason in outcome.reasons)
            # The next search begins below a size that turned out to be too large.
            fixed = lacked and not array.point.largest
            hopeless = fixed and array.point not in fits and not policy.exclude
            text = "; ".join(map(str, outcome.reasons))
            (too_large if hopeless else invalid).append(
                InvalidRepeat(array, number, outcome.state, text)
            )
    runs_on.refuse_doubling(
        watched, [(invalid_repeat.array, invalid_repeat.number) for invalid_repeat in invalid]
    )
    invalid_repeats: list[InvalidRepeat] = []
    spent: list[InvalidRepeat] = []
    for invalid_repeat in invalid:
        tried = len(watched.submitted_in[invalid_repeat.array.point, invalid_repeat.number])
        (spent if tried > policy.limit else invalid_repeats).append(invalid_repeat)
    return Findings(
        watched=watched,
        invalid=tuple(invalid_repeats),
        spent=tuple(spent),
        too_large=tuple(too_large),
        open=len(campaign.current) - len(settled),
        tries=tuple(
            RepeatOutcome(array.point.key, run.repeat, run.state, run.valid, run.nodes)
            for array, number in campaign.current
            for run in [judged[array.name, number].run]
        ),
        attempts={key: state.attempt for key, state in states.items()},
    )


def _settled_states(
    watched: TrackedCampaign, tracker: Tracker, pause: Callable[[float], None]
) -> tuple[dict[Key, RepeatState], set[Key]]:
    """Return all states, and those that are certainly final.

    A job that lost its node is NODE_FAIL for a moment before Slurm puts it back into the queue:
    resubmitting it then would run it twice.
    """
    tracker.poll()
    for _ in range(_LOOKS):
        if all(map(tracker.settled, _ends(tracker))) and not tracker.failures:
            break
        pause(max(_REST, tracker.pause()))
        tracker.poll()
    if tracker.failures or tracker.absent:
        raise SchedulerError(
            f"Slurm does not say what waits or runs: {tracker.complaint or 'no answer'}",
            where=watched.campaign.id,
            hint=f"Nothing was submitted. Once Slurm answers: {AGAIN} {watched.campaign.id}",
        )
    return tracker.states, {key for key in _ends(tracker) if tracker.settled(key)}


def _ends(tracker: Tracker) -> tuple[Key, ...]:
    return tuple(key for key, state in tracker.states.items() if not state.kind.alive)


def plan(findings: Findings, policy: RetryPolicy, *, run: Runner) -> RetryPlan:
    """Plan the next arrays, one for each point, or part of one, with invalid repeats.

    Raises:
        UsageError: The campaign's scripts were changed or moved, or another version made them; or
            a local campaign is still running.
    """
    watched = findings.watched
    points: dict[tuple[str, int], list[InvalidRepeat]] = {}
    for invalid_repeat in findings.invalid:
        points.setdefault((invalid_repeat.array.point.key, invalid_repeat.array.offset), []).append(
            invalid_repeat
        )
    if points and findings.open and not traits(watched.campaign.scheduler).grows:
        raise UsageError(
            f"{findings.open} repeats still wait or run, and the local queue accepts no more now.",
            where=watched.campaign.id,
            hint="Wait for them (hpcbert monitor), or cancel them.",
        )
    library.refuse_changed(watched.directory, watched.campaign)
    arrays, texts = [], {}
    spared: dict[str, str] = {}
    parts = {(one.point.key, one.offset): one for one in reversed(watched.campaign.arrays)}
    suspicions: dict[str, Suspicion | None] = {}
    for part, invalid in points.items():
        first = parts[part]
        text = store.read_script(watched.directory, first).decode()
        if not rewrite.writes_to(first.request, watched.directory):
            raise UsageError(
                "The campaign was moved or copied: its scripts write to the old place.",
                where=str(watched.directory),
                hint="Retry it where it was submitted, or submit the points again.",
            )
        partition = first.request.partition
        if partition not in suspicions:
            suspicions[partition] = _suspicion(findings, first.request, policy, run)
        named = expand(first.request.nodelist)
        verdict = _verdict(watched.campaign, first, policy, suspicions[partition], named)
        time_limit = policy.time_limit or limits.kept(watched, first)
        array, again = _array(findings, first, invalid, text, verdict, time_limit=time_limit)
        arrays.append(array)
        texts[array.name] = again
        spared |= dict(verdict.spared)
    return RetryPlan(findings, tuple(arrays), texts, tuple(spared.items()))


def _suspicion(
    findings: Findings, request: JobRequest, policy: RetryPolicy, run: Runner
) -> Suspicion | None:
    """Return the evidence against the nodes of a job's partition; None if unknown."""
    runs_on = scheduler.of(findings.watched.campaign.scheduler, World(run))
    known = runs_on.nodes(request) if policy.suspect else None
    return None if known is None else Suspicion(findings.tries, known)


def _verdict(
    campaign: Campaign,
    first: Array,
    policy: RetryPolicy,
    suspicion: Suspicion | None,
    named: Collection[str],
) -> Verdict:
    """Return the nodes that a retry excludes; never those that its script names."""
    asked = tuple((node, "named by --exclude") for node in policy.exclude)
    if suspicion is None:
        return Verdict(asked)
    before = {
        node: why
        for array in campaign.of_point[first.point]
        for node, why in array.excluded
        if node not in policy.exclude
    }
    found = before | suspicion.of(first.point.key)
    found = {node: why for node, why in found.items() if node not in policy.exclude}
    stays = {node: why for node, why in found.items() if node in named}
    found = {node: why for node, why in found.items() if node not in named}
    verdict = suspects.limit(found, suspicion.nodes, needed=first.point.shape.nodes)
    return Verdict((*asked, *verdict.excluded), (*verdict.spared, *stays.items()))


def _array(
    findings: Findings,
    first: Array,
    invalid: Sequence[InvalidRepeat],
    text: str,
    verdict: Verdict,
    *,
    time_limit: str,
) -> tuple[Array, str]:
    same = findings.watched.campaign.of_point[first.point]
    retry = 1 + max(one.retry for one in same)
    known = [
        findings.attempts.get((invalid_repeat.array.name, invalid_repeat.number), 0)
        for invalid_repeat in invalid
    ]
    attempt = 1 + max(*known, *(one.first_attempt for one in same), 0)
    name = f"{first.name}.t{retry}"
    indices = [repeat.number - first.offset for repeat in invalid]
    request = rewrite.retry_request(
        first.request,
        name=name,
        indices=indices,
        exclude=[node for node, _ in verdict.excluded],
        time_limit=time_limit,
    )
    again = rewrite.retried(text, first.request, request, repeats=indices, first_attempt=attempt)
    array = replace(
        first,
        name=name,
        repeats=tuple(invalid_repeat.number for invalid_repeat in invalid),
        script=first.script.removesuffix(".sbatch") + f".t{retry}.sbatch",
        script_sha256=hashlib.sha256(again.encode()).hexdigest(),
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
            for invalid_repeat in invalid
        ),
    )
    return array, again


def intend(retry_plan: RetryPlan) -> Campaign:
    """Write a retry: the scripts, then the manifest with its arrays `intended`.

    Raises:
        UsageError: Another process works on the campaign, or has changed it meanwhile.
        HpcbertError: The file system refused; nothing has been submitted then.
    """
    watched = retry_plan.findings.watched
    directory = watched.directory
    with store.locked(directory):
        campaign = store.read_manifest(directory)
        if campaign != watched.campaign:
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
