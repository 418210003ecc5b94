"""Submit and cancel: write a drafted campaign, hand its arrays to its scheduler, end its jobs.

The order makes it safe: every script and the manifest with all arrays `intended` are on disk before
the scheduler gets the first one. An interrupt takes effect before the next array: an sbatch that
was called has submitted a job or has not, and the manifest must know.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert import scheduler
from hpcbert.campaign import ends, store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.errors import Interruption, UsageError, join_names
from hpcbert.model import Campaign
from hpcbert.scheduler.base import RESUME, NoRoomError, SchedulerContext, Target
from hpcbert.scheduler.poller import Pace
from hpcbert.slurm.states import Kind, RepeatState
from hpcbert.system import files
from hpcbert.system.runner import Runner, defer_interrupts

if TYPE_CHECKING:  # with Jinja, which tracking and cancelling do not need
    from hpcbert.script.draft import Draft

# Minimum seconds between two searches for a job that may have been submitted.
_SETTLE_SECONDS = 2.0


def write_campaign(draft: Draft) -> None:
    """Write a drafted campaign: scripts, copies, the lock file, and last the manifest.

    Raises:
        HpcbertError: The file system refused; nothing has been submitted then.
    """
    store.create(draft.directory)
    texts = {array.script: draft.scripts[array.name] for array in draft.campaign.arrays}
    texts[store.LOCKED] = draft.lock.text
    contents = {target: source.read_bytes() for target, source in draft.copies}
    contents |= {target: text.encode() for target, text in texts.items()}
    files.write_new({draft.directory / target: content for target, content in contents.items()})
    store.write_note(draft.directory, draft.note)
    store.write_manifest(draft.directory, draft.campaign)


def submit(directory: Path, context: SchedulerContext) -> Campaign:
    """Hand every unsubmitted array to its scheduler, and adopt jobs that exist already.

    Args:
        directory: The campaign; its manifest says what to do.
        context: What the scheduler needs of the world.

    Returns:
        The manifest as it is on disk in the end.

    Raises:
        SchedulerError: The scheduler refused an array, or can't be reached, or can't say what it
            has. Everything submitted so far is in the manifest.
        NoRoomError: It accepts no more for now.
        UsageError: The campaign does not exist, its scripts were changed, another process is
            submitting it at this moment; or others can write to it.
        HpcbertError: The directory can't be written to.
    """
    store.refuse_foreign(directory)
    with store.locked(directory):
        campaign = store.read_manifest(directory)
        store.refuse_changed_library(directory, campaign)
        return scheduler.create_scheduler(campaign.scheduler, context).submit(directory, campaign)


def submit_pending(
    directory: Path,
    *,
    run: Runner,
    floor: float,
    draft: Draft | None = None,
    waiting: Callable[[str], None] | None = None,
    resume_command: str = RESUME,
) -> Campaign:
    """Submit what a campaign has not submitted yet, to the scheduler that its manifest names.

    Args:
        directory: The campaign.
        run: Starts the scheduler's commands.
        floor: Shortest interval between two queries of Slurm, seconds.
        draft: What to write first; None if it exists already.
        waiting: Gets the reason why Slurm has no room for more jobs, whenever it changes, until
            there is room; None raises that reason.
        resume_command: The command that continues where this one had to stop, without the campaign.

    Raises:
        Interruption: The user interrupted; it says what is queued and how to continue.
        SchedulerError, UsageError, HpcbertError: As `submit`.
    """
    try:
        with defer_interrupts() as patience:
            if draft:
                write_campaign(draft)
            context = SchedulerContext(
                run,
                pause=patience.pausing(time.sleep),
                settle=max(floor, _SETTLE_SECONDS),
                check=patience.check,
                again=resume_command,
                resumed=draft is None,
            )
            if waiting:
                return _submit_when_room(directory, context, waiting)
            return submit(directory, context)
    except KeyboardInterrupt:
        raise _describe_interruption(directory) from None


def _submit_when_room(
    directory: Path, context: SchedulerContext, waiting: Callable[[str], None]
) -> Campaign:
    """Submit as room becomes available, reporting the reason for waiting whenever it changes."""
    pace, last_reason = Pace(floor=context.settle), ""
    while True:
        try:
            return submit(directory, context)
        except NoRoomError as error:
            if error.message != last_reason:
                waiting(error.message)
            pace = pace.after(changed=error.message != last_reason, failed=False)
            last_reason = error.message
        context.pause(pace.seconds(0.0))


def read_interrupted(directory: Path) -> Campaign | None:
    """Return the manifest of an interrupted submission; None if it was never written."""
    try:
        return store.read_manifest(directory)
    except UsageError:
        return None


def _describe_interruption(directory: Path) -> Interruption:
    campaign = read_interrupted(directory)
    if campaign is None:
        return Interruption("Interrupted. Nothing was submitted.", hint="Submit again.")
    where = shlex.quote(str(directory))
    count = len(campaign.arrays)
    queued_arrays = [array for array in campaign.arrays if array.state == "submitted"]
    ids = join_names(dict.fromkeys(array.job_id for array in queued_arrays))
    arrays = [
        array
        for array in campaign.arrays
        if array.state != "submitted" and not campaign.is_superseded(array)
    ]
    uncertain_arrays = [array for array in arrays if array.state == "intended" and array.called]
    words = [f"{len(queued_arrays)} of {count} arrays are queued: {ids}." if queued_arrays else ""]
    words += [f"It is unknown whether {array.name} is queued." for array in uncertain_arrays]
    if not campaign.accepted:
        words = ["Nothing was submitted."]
    hints = [f"Continue: hpcbert submit --resume {where}" if arrays else ""]
    hints += [f"Watch it: hpcbert monitor {where}" if not arrays else ""]
    hints += [f"Cancel what is queued: hpcbert cancel {where}" if campaign.accepted else ""]
    return Interruption(
        " ".join(filter(None, ["Interrupted.", *words])), hint="; ".join(filter(None, hints))
    )


def find_living(tracked_campaign: TrackedCampaign, *, run: Runner) -> Target:
    """Return the repeats and jobs of a campaign that wait or run.

    Raises:
        SchedulerError: The scheduler does not answer, so nothing is certain.
        UsageError: Others can write to the campaign, so they could have named the jobs.
    """
    store.refuse_foreign(tracked_campaign.directory)
    backend = scheduler.create_scheduler(tracked_campaign.campaign.scheduler, SchedulerContext(run))
    return backend.living_jobs(tracked_campaign)


def cancel(tracked_campaign: TrackedCampaign, target: Target, *, run: Runner) -> None:
    """Cancel what `find_living` found.

    Raises:
        SchedulerError: The scheduler refused, or the jobs have ended already.
    """
    if not target.jobs:
        return
    backend = scheduler.create_scheduler(tracked_campaign.campaign.scheduler, SchedulerContext(run))
    backend.cancel(tracked_campaign, target)
    states = {
        repeat.key: RepeatState("CANCELLED", Kind.FAILED, "none", detail="was cancelled")
        for repeat in target.repeats
        if repeat.newest.start is None
    }
    ends.write(tracked_campaign, states, states)
