"""Hand a campaign's arrays to sbatch, one after another, until the result of each is known.

The order of writes makes this safe: on disk are the intent to call sbatch for an array, and its
answer, before the call for the next one. A crash in between leaves a job that was submitted in the
campaign's directory, which the next `submit` of the campaign finds and adopts.

sbatch's answer is not enough: a site may wrap it, and its answer may come too late. The controller
is asked about each id that it prints, before the next call, which may name it as a dependency. Once
the controller has shown a job exactly as requested, the ids of further jobs with that request are
believed until the end, when one query confirms them all. After any failure the queue is searched
before an array counts as refused. After status 0, or an id of the submitter's, sbatch is never
called again for the array, not even by a resumed submission.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from hpcbert.campaign import preflight, store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.campaign.store import Ledger
from hpcbert.errors import SchedulerError, UsageError, format_count, join_names
from hpcbert.model import Array, Campaign, Point, format_utc
from hpcbert.scheduler.base import RESUME, Job, NoRoomError, SchedulerContext, record_arrays
from hpcbert.scheduler.slurm.cluster import HINTS, Cluster, run_query
from hpcbert.scheduler.slurm.identify import (
    PrintedId,
    adopt_jobs,
    check_printed_ids,
    complete_array,
    confirm_jobs,
    find_unmarked,
    format_complaint,
    look_up_job,
    parse_job_ids,
    search_job,
)
from hpcbert.script.request import part_options, without_names
from hpcbert.slurm import commands, inventory, reasons
from hpcbert.slurm.hostlist import expand
from hpcbert.slurm.states import parse_state
from hpcbert.system.runner import Outcome
from hpcbert.system.workers import report

# sbatch's messages if the controller is busy or away and nothing was submitted
# (SchedMD/slurm, src/common/slurm_errno.c).
TRANSIENT = (
    "(connect failure)",
    "Slurm temporarily unable to accept job",
    "Resource temporarily unavailable",
)
# Its messages if the request may or may not have arrived.
_UNCERTAIN = (
    "Socket timed out",
    "Unexpected message received",
    "Zero Bytes were transmitted or received",
    "(send failure)",
    "(receive failure)",
    "(shutdown failure)",
    "Message send failure",
    "Message receive failure",
    "gave no answer within",
)
# Its message for a submission that exceeds a limit, and the limit's name, which releases since
# 20.11 print before it (src/common/slurm_protocol_defs.c, job_state_reason_string).
_POLICY = "job submit limit"
_LIMIT = re.compile(r"\b(?:Assoc|QOS)\w+")
# The controller was reached, and this is its answer.
_DECIDED = "Batch job submission failed:"
_PAUSES = (1.0, 2.0, 4.0)
_NO_PROGRAM = 127

Verdict = Literal["done", "again", "full"]


@dataclass(frozen=True)
class StartConditions:
    """The jobs that an array waits for, and the nodes that it excludes.

    Attributes:
        after: The array whose job must be over first.
        preflight: The job that must have succeeded first.
        exclude: Nodes that the preflight found too slow, if it has measured them already; none if
            the array names one of them, or too few others could run it.
    """

    after: Array | None = None
    preflight: Array | None = None
    exclude: tuple[str, ...] = ()

    @property
    def jobs(self) -> tuple[Array, ...]:
        """The arrays that it waits for."""
        return tuple(array for array in (self.preflight, self.after) if array)


NO_CONDITIONS = StartConditions()


def sbatch_argv(
    directory: Path, array: Array, conditions: StartConditions = NO_CONDITIONS
) -> list[str]:
    """Return the command that submits one array; all other options are in the script."""
    cluster = next((job.cluster for job in conditions.jobs), array.cluster)
    words = [f"--clusters={cluster}"] if cluster else []
    awaited = [f"afterok:{conditions.preflight.job_id}"] if conditions.preflight else []
    awaited += [f"afterany:{conditions.after.job_id}"] if conditions.after else []
    words += [f"--dependency={','.join(awaited)}"] if awaited else []
    # A job that can't start any more must not wait forever.
    words += ["--kill-on-invalid-dep=yes"] if conditions.preflight else []
    if conditions.exclude:
        requested_nodes = [array.request.exclude] if array.request.exclude else []
        words += [f"--exclude={','.join([*requested_nodes, *conditions.exclude])}"]
    words += part_options(array)
    return ["sbatch", "--parsable", *words, str(directory / array.script)]


class SbatchCall(NamedTuple):
    """A call of sbatch: the array as it was recorded before, and what came of it."""

    array: Array
    conditions: StartConditions
    outcome: Outcome


class Submission:
    """Calls sbatch for the arrays of a campaign, whose lock the caller holds.

    Args:
        ledger: Has all that is on record by now.
    """

    def __init__(self, ledger: Ledger, context: SchedulerContext) -> None:
        environ = commands.submission_environment(context.environ)
        self._ledger, self._context = ledger, context._replace(environ=environ)
        # Requests for which the controller has shown a job without any difference.
        self._unchanged_requests: set[object] = set()
        # The last call for each array, by its name, and the arrays whose ids are believed.
        self._calls: dict[str, SbatchCall] = {}
        self._believed: set[str] = set()

    @property
    def _watched(self) -> TrackedCampaign:
        """The campaign at this moment: one array's job can't be another's."""
        return TrackedCampaign(self._ledger.directory, self._ledger.campaign)

    def run(self) -> None:
        """Submit one array after the other, and confirm the believed ids even after an error."""
        if self._context.resumed:
            self._adopt_all()
        try:
            self._submit_all()
        except (NoRoomError, SchedulerError):
            self._confirm_believed()
            raise
        self._confirm_believed()

    def _submit_all(self) -> None:
        campaign = self._ledger.campaign
        # The array submitted last, for each point and (None) overall.
        arrays = _find_previous_array(self._ledger.directory, campaign)
        unsubmitted_names = {array.name for array in campaign.unsubmitted}
        queue = deque(campaign.in_order)
        total = len(queue)
        while queue:
            report("submitting jobs", total - len(queue), total)
            array = queue.popleft()
            if array.name in unsubmitted_names:
                self._context.check()
                array = self._submit(array, self._find_conditions(arrays, array))
                if array.state != "submitted":
                    first_half, second_half = _split_array(array)
                    self._ledger.put(first_half, second_half, after=array.name)
                    unsubmitted_names.add(second_half.name)
                    queue.extendleft((second_half, first_half))
                    total += 1
                    continue
            if array.job_id and not array.preflight:
                arrays |= {None: array, array.point: array}
        report("submitting jobs", total, total)

    def _confirm_believed(self) -> None:
        """Confirm the believed ids by one query; identify each job that it does not show."""
        watched = self._watched
        believed = [array for array in watched.campaign.arrays if array.name in self._believed]
        answered = list(confirm_jobs(watched, believed, self._context))
        if confirmed := [array for array in answered if array.seen]:
            record_arrays(self._ledger, *confirmed)
        corrected_ids: dict[str, str] = {}
        for array in answered:
            if not array.seen:
                # If this process is killed now, sbatch must not be called again.
                error = f"sbatch printed {array.job_id}, which is not shown as this array's job"
                call = self._calls[array.name]
                doubtful_array = replace(call.array, submitted=array.submitted, error=error)
                record_arrays(self._ledger, doubtful_array)
                result, verdict = self._identify(call._replace(array=doubtful_array))
                self._record_result(result, verdict)
                if result.job_id != array.job_id:
                    corrected_ids[array.name] = result.job_id
        self._record_wrong_dependencies(corrected_ids)

    def _record_wrong_dependencies(self, corrected_ids: Mapping[str, str]) -> None:
        """Record which arrays wait for a job that only seemed to be the campaign's."""
        for array in self._ledger.campaign.arrays:
            call = self._calls.get(array.name)
            changes = [
                ("Dependency", f"afterany:{corrected_ids[job.name]}", f"afterany:{job.job_id}")
                for job in (call.conditions.jobs if call else ())
                if job.name in corrected_ids
            ]
            if changes and array.job_id:
                record_arrays(self._ledger, replace(array, changed=(*array.changed, *changes)))

    def _adopt_all(self) -> None:
        """Record the jobs of all arrays that have one, even if the manifest knows of no call."""
        watched = self._watched
        workdir = os.path.realpath(watched.directory)
        unsettled_arrays = (
            array
            for array in watched.campaign.arrays
            if array.state == "submitted" and array.is_unconfirmed
        )
        arrays = (*watched.campaign.unsubmitted, *unsettled_arrays)
        jobs = list(adopt_jobs(watched, arrays, self._context, strict=True))
        if jobs:
            jobs = [replace(job, workdir=job.workdir or workdir) for job in jobs]
            record_arrays(self._ledger, *jobs)

    def _find_conditions(
        self, arrays: Mapping[Point | None, Array], array: Array
    ) -> StartConditions:
        """Return the arrays that an array waits for, and the slow nodes that it excludes."""
        watched = self._watched
        # A retry always waits for its own point's: repeats of a point never share the network
        # unless you request that.
        after = arrays.get(array.point if watched.campaign.concurrent_points else None)
        check = None if array.preflight else preflight.read_preflight(watched)
        if check is None:
            return StartConditions(after)
        if check.state == "failed":
            raise SchedulerError(
                "The preflight failed, so hpcbert submits no point.",
                where=watched.campaign.id,
                hint=f"See {preflight.find_log(watched, check.array)}; submit the points in a "
                "campaign of their own, without --preflight if need be.",
            )
        excluded = tuple(check.slow)
        if set(excluded) & set(expand(array.request.nodelist)):
            excluded = ()
        elif excluded:
            states = Cluster(self._context).states
            sinfo = inventory.read_usable_nodes(states, array.request.partition)
            available = sum(usable for name, usable in sinfo.items() if name not in excluded)
            excluded = excluded if not sinfo or available >= array.point.shape.nodes else ()
        return StartConditions(after, None if check.state == "done" else check.array, excluded)

    def _submit(self, array: Array, conditions: StartConditions) -> Array:
        """Return an array as submitted, or one that must be submitted in parts."""
        ledger, context = self._ledger, self._context
        store.read_script(ledger.directory, array)
        if array.called:
            # An earlier try may have made its job, even if sbatch seemed to refuse it.
            job = search_job(self._watched, array, context)
            if job:
                result = job.of(array, format_utc(context.now()))
                record_arrays(ledger, result)
                return result
        if array.submitted:
            raise _make_refusal(array, ledger.campaign, context.again)
        workdir = os.path.realpath(ledger.directory)
        called_array = replace(array, called=format_utc(context.now()), workdir=workdir)
        record_arrays(ledger, called_array)
        result, verdict = self._call_sbatch(called_array, conditions)
        for seconds in _PAUSES:
            if verdict != "again":
                break
            context.pause(seconds)
            result, verdict = self._call_sbatch(called_array, conditions)
        if verdict == "full" and len(result.repeats) > 1 and not result.together:
            return result
        self._record_result(result, verdict)
        return result

    def _record_result(self, result: Array, verdict: Verdict) -> None:
        """Record an array after its call of sbatch; raise an error if it is not submitted."""
        # This goes to disk with the next call of sbatch, or the manifest: until then the job
        # itself, which can be found again, is the record.
        record_arrays(self._ledger, result, flush=result.state != "submitted")
        if verdict == "full":
            raise _make_no_room(result, self._ledger.campaign)
        if result.state != "submitted":
            raise _make_refusal(result, self._ledger.campaign, self._context.again)

    def _call_sbatch(self, array: Array, conditions: StartConditions) -> tuple[Array, Verdict]:
        """Call sbatch once; return the result for the array, and whether calling again may help."""
        directory, context = self._ledger.directory, self._context
        argv = sbatch_argv(directory, array, conditions)
        outcome = context.run(argv, cwd=directory, env=context.environ)
        if outcome.returncode == _NO_PROGRAM:
            return replace(array, state="refused", error=format_complaint(outcome)), "done"
        call = self._calls[array.name] = SbatchCall(array, conditions, outcome)
        request = (without_names(array.request), bool(conditions.jobs), conditions.exclude)
        job = _read_single_job(outcome)
        if job and request in self._unchanged_requests:
            self._believed.add(array.name)
            return job.of(array, format_utc(context.now())), "done"
        result, verdict = self._identify(call)
        if result.seen and not result.changed:
            self._unchanged_requests.add(request)
        return result, verdict

    def _identify(self, call: SbatchCall) -> tuple[Array, Verdict]:
        """Return an array with the job that sbatch made for it, as the controller shows it."""
        watched, context = self._watched, self._context
        array, conditions, outcome = call
        printed_ids = check_printed_ids(watched, array, outcome, context)
        printed = next((printed for printed in printed_ids if printed.is_ours), None)
        if printed is None:
            single_id = printed_ids[0] if _read_single_job(outcome) else None
            # Nothing contradicts an unanswered id at this moment; a later query settles it
            # (`Array.is_unconfirmed`).
            if single_id is None or not single_id.unanswered:
                decided = _DECIDED in outcome.stderr and not outcome.ok
                is_certain = decided and not _has_phrase(outcome, _UNCERTAIN)
                # The controller's refusal is no reason to wait.
                search = look_up_job if is_certain else search_job
                job = search(self._watched, array, context)
                if job:
                    return job.of(array, format_utc(context.now())), "done"
            printed = find_unmarked(watched, printed_ids) if outcome.ok else None
            if single_id and single_id.is_ours is None:
                printed = printed or single_id
        if printed:
            stamp = format_utc(context.now())
            awaited = [job.job_id for job in conditions.jobs]
            return complete_array(watched, array, printed, stamp, awaited=awaited), "done"
        return self._judge_failure(array, outcome, printed_ids)

    def _judge_failure(
        self, array: Array, outcome: Outcome, printed_ids: Sequence[PrintedId]
    ) -> tuple[Array, Verdict]:
        if not outcome.ok and self._is_full(array, outcome):
            return replace(array, called="", workdir="", error=format_complaint(outcome)), "full"
        unanswered = any(printed.unanswered for printed in printed_ids)
        accepted = outcome.ok or find_unmarked(self._watched, printed_ids) or unanswered
        if accepted or any(printed.unknown for printed in printed_ids):
            texts = "; ".join(map(str, printed_ids)) or "no job id"
            error = (
                f"sbatch ended with status {outcome.returncode} and printed {texts}: Slurm does "
                "not show which job is this array's"
            )
            stamp = format_utc(self._context.now()) if accepted else ""
            return replace(array, submitted=stamp, error=error), "done"
        # A command killed by a signal gives no information.
        if outcome.returncode < 0 or _has_phrase(outcome, _UNCERTAIN):
            return replace(array, error=format_complaint(outcome)), "again"
        refused_array = replace(array, state="refused", error=format_complaint(outcome))
        return refused_array, "again" if _has_phrase(outcome, TRANSIENT) else "done"

    def _is_full(self, array: Array, outcome: Outcome) -> bool:
        """Return whether a limit that counts the user's own jobs refuses an array for now.

        If Slurm does not name the limit, a single repeat may exceed another one; it counts as
        refused for now only if a job of the user waits or runs.
        """
        names = _LIMIT.findall(outcome.stderr)
        if names:
            return any("Submit" in name for name in names)
        if _POLICY not in outcome.stderr:
            return False
        if len(array.repeats) > 1 and not array.together:
            return True
        owner = self._ledger.campaign.owner
        queue = run_query(self._context, commands.squeue_argv(users=[owner], cluster=array.cluster))
        rows = commands.read_squeue(queue.stdout).rows if queue.ok else ()
        return any(not parse_state(row.state).kind.over for row in rows)


def _read_single_job(outcome: Outcome) -> Job | None:
    """Return the job of an sbatch that succeeded and printed nothing else; None otherwise."""
    lines = [line for line in outcome.stdout.splitlines() if line.strip()]
    ids = parse_job_ids(outcome.stdout)
    is_single = outcome.ok and len(ids) == 1 and all(map(parse_job_ids, lines))
    return Job(*ids[0], confirmed=False) if is_single else None


def _find_previous_array(directory: Path, campaign: Campaign) -> dict[Point | None, Array]:
    """Return the last array of the campaign that must be over first; nothing if it is gone."""
    submitted_arrays: list[Array] = []
    with contextlib.suppress(UsageError):
        if campaign.after:
            previous_campaign = store.read_manifest(directory.parent / campaign.after)
            submitted_arrays = [array for array in previous_campaign.in_order if array.job_id]
    return {None: submitted_arrays[-1]} if submitted_arrays else {}


def _split_array(array: Array) -> list[Array]:
    middle = (len(array.repeats) + 1) // 2
    first, second = array.repeats[:middle], array.repeats[middle:]
    return [
        replace(
            array,
            name=name,
            repeats=repeats,
            why=tuple(reason for reason in array.why if reason[0] in repeats),
            error="",
        )
        for name, repeats in ((array.name, first), (f"{array.name}.p{second[0]}", second))
    ]


def _make_no_room(array: Array, campaign: Campaign) -> NoRoomError:
    unsubmitted = sum(not current_array.job_id for current_array, _ in campaign.current)
    count = len(campaign.current) - unsubmitted
    return NoRoomError(
        f"Slurm accepts no more of your jobs now: "
        f"{format_count(count, 'repeat is', 'repeats are')} submitted, "
        f"{format_count(unsubmitted, 'is', 'are')} not. Slurm's message: {array.error}",
        where=campaign.id,
        hint=f"When some have ended: {RESUME} {campaign.id}; --wait continues by itself.",
    )


def _make_refusal(array: Array, campaign: Campaign, again: str) -> SchedulerError:
    job_ids = [entry.job_id for entry in campaign.arrays if entry.state == "submitted"]
    before = f" Submitted before it: {join_names(job_ids)}." if job_ids else ""
    if "no such program" in array.error:
        hint = f"{HINTS['missing']} Without Slurm: --scheduler local."
    elif array.state == "refused":
        advice = reasons.find_refusal_advice(array.error)
        # The request is in the scripts, which a resumed submission uses unchanged.
        remedy = "Fix the cause"
        if advice:
            remedy = f"Submit again: {advice}. If instead the cause goes away"
        hint = f"{remedy}, then submit the rest: {RESUME} {campaign.id}"
    elif array.submitted:
        hint = (
            "hpcbert finds its job when that starts, and does not call sbatch for it again. If "
            f"squeue shows that there is none: hpcbert submit --like {campaign.id}"
        )
    else:
        hint = f"Once Slurm answers: {again} {campaign.id}; hpcbert submits nothing twice."
    return SchedulerError(f"{array.error}.{before}", where=array.name, hint=hint)


def _has_phrase(outcome: Outcome, phrases: tuple[str, ...]) -> bool:
    return not outcome.ok and any(phrase in outcome.stderr for phrase in phrases)
