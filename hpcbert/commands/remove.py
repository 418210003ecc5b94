"""Remove campaigns that have ended, each at once or not at all.

A campaign is moved into a hidden folder first, which takes one call: after that it is not a
campaign any more. Only then are its files deleted. A process that is killed in between leaves the
folder, which the next removal in the same place deletes: it recognises it by a file in it that
names the folder and the campaign, and deletes nothing else.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from hpcbert import scheduler
from hpcbert.campaign import overview, store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.commands.monitor import open_campaign
from hpcbert.errors import HpcbertError, SchedulerError, UsageError
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.system.files import find_mounts_below, read, translate_errors, write_text
from hpcbert.system.runner import Runner

# The hidden folder: its beginning, before a random part, and the file in it.
_HIDDEN, _MARK = ".hpcbert-removed-", "campaign"
_MOST_BYTES = 4096


def remove(
    directories: Sequence[Path], *, confirm: Callable[[], bool], run: Runner, force: bool = False
) -> bool:
    """Remove campaigns, or none of them if one is refused; return whether they were removed.

    Args:
        directories: The campaigns.
        confirm: Asks whether to remove them; called once there is no objection.
        run: Starts the scheduler's commands.
        force: Whether to remove those, too, that may still be running.

    Raises:
        LivingError: A job of one waits or runs.
        UsageError: A job of one may; or it is a link, damaged, or somebody else's, or
            another process is working on it.
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
        hidden_folders = [_hide(directory) for directory in directories]
    leftovers = {
        leftover for directory in directories for leftover in _find_leftovers(directory.parent)
    }
    for folder in dict.fromkeys((*hidden_folders, *sorted(leftovers))):
        _delete(folder)
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
    """Refuse a campaign with jobs that wait or run, or may, unless that is forced.

    Raises:
        UsageError: A job does, or may.
        SchedulerError: The scheduler does not answer.
    """
    try:
        doubt = _find_doubt(open_campaign(directory), run)
    except UsageError as error:
        doubt = error
        if not store.has_folders(directory):
            raise UsageError(
                "hpcbert did not make this directory.",
                where=str(directory),
                hint="Nothing was removed. A campaign has the folders that submit makes in it.",
            ) from error
    if doubt and not force:
        hint = "Nothing was removed. --force removes it nevertheless, and ends no job."
        raise doubt.with_hint(hint)


def _find_doubt(tracked_campaign: TrackedCampaign, run: Runner) -> HpcbertError | None:
    """Find a reason why a job of a campaign may wait or run; None: none does.

    Raises:
        LivingError: A job certainly does.
    """
    if not tracked_campaign.campaign.accepted:
        return None
    backend = scheduler.create_scheduler(tracked_campaign.campaign.scheduler, SchedulerContext(run))
    where = str(tracked_campaign.directory)
    try:
        living = backend.living_jobs(tracked_campaign).repeats
        if living:
            raise LivingError(
                f"{len(living)} of its repeats wait or run.",
                where=where,
                hint="Nothing was removed. End them first: "
                f"hpcbert cancel {tracked_campaign.campaign.id}",
            )
        if not backend.select_living([tracked_campaign]):
            return None
        doubt: HpcbertError = UsageError("A job of it may still run.", where=where)
    except SchedulerError as error:
        doubt = error
    summary = overview.read_summary(tracked_campaign.directory)
    return None if overview.is_over(tracked_campaign.campaign, summary) else doubt


class LivingError(HpcbertError):
    """A job of a campaign waits or runs."""

    exit_code = UsageError.exit_code
    code = UsageError.code


def _hide(directory: Path) -> Path:
    """Move a campaign into a new hidden folder next to it."""
    folder = directory.with_name(f"{_HIDDEN}{secrets.token_hex(6)}")
    with translate_errors("remove", directory, hint="None of its files were removed."):
        folder.mkdir(mode=0o700)
        try:
            write_text(folder / _MARK, f"{folder.name}\n{directory.name}\n")
            directory.rename(folder / directory.name)
        except (OSError, HpcbertError):
            _clear(folder)
            raise
    return folder


def _find_leftovers(runs: Path) -> Iterable[Path]:
    """Yield what killed removals left in a directory, if it belongs to the user."""
    with contextlib.suppress(OSError):
        for path in runs.iterdir():
            if path.name.startswith(_HIDDEN) and _find_campaign(path):
                yield path


def _find_campaign(folder: Path) -> Path | None:
    """Return the campaign that a removal moved into a folder; None: hpcbert did not make it."""
    mark = folder / _MARK
    if folder.is_symlink() or any(map(store.find_foreign_owner, (folder, mark))):
        return None
    try:
        folder_name, name, ending = read(mark, max_bytes=_MOST_BYTES).decode().split("\n")
    except (OSError, ValueError):
        return None
    is_ours = folder_name == folder.name and not ending and name not in {"", ".", "..", _MARK}
    return folder / name if is_ours and "/" not in name else None


def _delete(folder: Path) -> None:
    """Remove the campaign in a hidden folder, then the folder, if nothing else is in it.

    Raises:
        HpcbertError: The file system refused.
    """
    hint = "The folder is not a campaign any more. Remove it, or let the next hpcbert rm do it."
    campaign = _find_campaign(folder)
    if campaign is None or next(find_mounts_below(folder), None):
        return
    with translate_errors("remove all of it", folder, hint=hint):
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(campaign)
        _clear(folder)


def _clear(folder: Path) -> None:
    """Remove a hidden folder without a campaign; what somebody else put into it stays."""
    with contextlib.suppress(OSError):
        (folder / _MARK).unlink(missing_ok=True)
        folder.rmdir()
