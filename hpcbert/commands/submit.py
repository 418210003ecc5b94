"""Submit, cancel and remove campaigns: hand arrays to a scheduler, end jobs, delete files.

The order makes it safe: every script and the manifest with all arrays `intended` are on disk before
the scheduler gets the first one. An interrupt takes effect before the next array: an sbatch that
was called has submitted a job or has not, and the manifest must know.

A campaign is removed at once or not at all: it gets a hidden name first, which takes one call, and
only then are its files deleted. A process that is killed in between leaves the hidden folder.
"""

from __future__ import annotations

import contextlib
import secrets
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert import scheduler
from hpcbert.campaign import store
from hpcbert.campaign.attempts import write_ends
from hpcbert.campaign.repeats import TrackedCampaign, open_campaign
from hpcbert.errors import HpcbertError, Interruption, SchedulerError, UsageError, join_names
from hpcbert.model import REMOVED, Campaign
from hpcbert.scheduler.base import RESUME, NoRoomError, Pace, SchedulerContext, Target
from hpcbert.slurm.states import Kind, RepeatState
from hpcbert.system import files
from hpcbert.system.files import find_mounts_below, translate_errors
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
            pace, last_reason = Pace(floor=context.settle), ""
            while True:
                try:
                    return submit(directory, context)
                except NoRoomError as error:
                    if not waiting:
                        raise
                    reason = error.message
                if reason != last_reason:
                    waiting(reason)
                pace = pace.after(changed=reason != last_reason, failed=False)
                last_reason = reason
                context.pause(pace.seconds(0.0))
    except KeyboardInterrupt:
        raise _describe_interruption(directory) from None


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
    hint = f"Continue: hpcbert submit --resume {where}" if campaign.unsubmitted else ""
    if not campaign.accepted:
        return Interruption("Interrupted. Nothing was submitted.", hint=hint)
    ids = [array.job_id for array in campaign.arrays if array.state == "submitted"]
    text = f"Interrupted. {len(ids)} of {len(campaign.arrays)} arrays are queued: "
    text += f"{join_names(dict.fromkeys(ids)) or 'none'}."
    for array in campaign.unsubmitted:
        if array.state == "intended" and array.called:
            text += f" It is unknown whether {array.name} is queued."
    hint = hint or f"Watch it: hpcbert monitor {where}"
    return Interruption(text, hint=f"{hint}; Cancel what is queued: hpcbert cancel {where}")


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
    write_ends(tracked_campaign, states, states)


def remove(
    directories: Sequence[Path], *, confirm: Callable[[], bool], run: Runner, force: bool = False
) -> bool:
    """Remove campaigns, or none of them if one is refused; return whether they were removed.

    Args:
        confirm: Asks whether to remove them; called once there is no objection.
        force: Whether to remove those, too, that may still be running.

    Raises:
        UsageError: A job of one waits or runs, or may; or it is a link, damaged, or somebody
            else's, or another process is working on it.
        SchedulerError: It is unknown whether a job of one waits or runs.
        HpcbertError: The file system refused.
    """
    with contextlib.ExitStack() as stack:
        for directory in directories:
            _refuse_foreign(directory)
            stack.enter_context(store.locked(directory))
        for directory in directories:
            _refuse_living(directory, run=run, force=force)
        if not confirm():
            return False
        for directory in directories:
            _delete(directory)
    return True


def _refuse_foreign(directory: Path) -> None:
    if directory.is_symlink():
        raise UsageError(
            "This is a link; hpcbert does not remove what it leads to.",
            where=str(directory),
            hint="Name the campaign itself, or remove the link.",
        )
    owner = store.find_foreign_owner(directory)
    if owner:
        raise UsageError(f"The campaign belongs to {owner}.", where=str(directory))
    mount = next(find_mounts_below(directory), None)
    if mount:
        raise UsageError(
            "Another file system is mounted here; hpcbert does not remove its files.",
            where=mount,
            hint="Unmount it first.",
        )


def _refuse_living(directory: Path, *, run: Runner, force: bool) -> None:
    """Refuse a campaign with jobs that wait or run, or may, unless that is forced."""
    try:
        tracked_campaign = open_campaign(directory)
    except UsageError as error:
        doubt: HpcbertError | None = error
        if not store.has_folders(directory):
            raise UsageError(
                "hpcbert did not make this directory.",
                where=str(directory),
                hint="Nothing was removed. A campaign has the folders that submit makes in it.",
            ) from error
    else:
        doubt = _find_doubt(tracked_campaign, run)
    if doubt and not force:
        hint = "Nothing was removed. --force removes it nevertheless, and ends no job."
        raise doubt.with_hint(hint)


def _find_doubt(tracked: TrackedCampaign, run: Runner) -> HpcbertError | None:
    """Find a reason why a job of a campaign may wait or run; None: none does.

    Raises:
        UsageError: A job certainly does.
    """
    if not tracked.campaign.accepted:
        return None
    backend = scheduler.create_scheduler(tracked.campaign.scheduler, SchedulerContext(run))
    where = str(tracked.directory)
    try:
        living = backend.living_jobs(tracked).repeats
        if living:
            raise UsageError(
                f"{len(living)} of its repeats wait or run.",
                where=where,
                hint=f"Nothing was removed. End them first: hpcbert cancel {tracked.campaign.id}",
            )
        if not backend.select_living([tracked]):
            return None
        doubt: HpcbertError = UsageError("A job of it may still run.", where=where)
    except SchedulerError as error:
        doubt = error
    from hpcbert.campaign import overview  # not needed to submit

    results = overview.read_results(tracked.directory, tracked.campaign)
    return None if results and results.over else doubt


def _delete(directory: Path) -> None:
    """Remove a campaign, under a hidden name that no command takes for a campaign.

    Raises:
        HpcbertError: The file system refused.
    """
    folder = directory.with_name(f"{REMOVED}{secrets.token_hex(6)}")
    with translate_errors("remove", directory, hint="None of its files were removed."):
        directory.rename(folder)
    hint = "The folder is not a campaign any more. Remove it yourself."
    with translate_errors("remove all of it", folder, hint=hint):
        shutil.rmtree(folder)
