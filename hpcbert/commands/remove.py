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
from typing import TYPE_CHECKING

from hpcbert import scheduler
from hpcbert.campaign import overview, store
from hpcbert.commands.monitor import open_campaign
from hpcbert.errors import HpcbertError, SchedulerError, UsageError
from hpcbert.scheduler.base import World
from hpcbert.system.files import mounts_below, read, refusal, write_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from hpcbert.campaign.repeats import TrackedCampaign
    from hpcbert.system.runner import Runner

# The hidden folder: its beginning, before a random part, and the file in it.
_HIDDEN, _MARK = ".hpcbert-removed-", "campaign"
_SHORT = 4096


def remove(
    directories: Sequence[Path], *, agreed: Callable[[], bool], run: Runner, force: bool = False
) -> bool:
    """Remove campaigns, or none of them if one is refused; return whether they were removed.

    Args:
        directories: The campaigns.
        agreed: Asks whether to remove them; called once there is no objection.
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
        if not agreed():
            return False
        hidden = [_hide(directory) for directory in directories]
    leftovers = {leftover for directory in directories for leftover in _leftovers(directory.parent)}
    for folder in dict.fromkeys((*hidden, *sorted(leftovers))):
        _delete(folder)
    return True


def _refuse_foreign(directory: Path) -> None:
    if directory.is_symlink():
        raise UsageError(
            "This is a link; hpcbert does not remove what it leads to.",
            where=str(directory),
            hint="Name the campaign itself, or remove the link.",
        )
    if who := store.stranger(directory):
        raise UsageError(f"The campaign belongs to {who}.", where=str(directory))
    if mount := next(mounts_below(directory), None):
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
        doubt = _doubt(open_campaign(directory), run)
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
        raise doubt.advising(hint)


def _doubt(watched: TrackedCampaign, run: Runner) -> HpcbertError | None:
    """Return why a job of a campaign may wait or run; None: none does.

    Raises:
        LivingError: A job certainly does.
    """
    if not watched.campaign.accepted:
        return None
    runs_on, where = scheduler.of(watched.campaign.scheduler, World(run)), str(watched.directory)
    try:
        if living := runs_on.living_jobs(watched).repeats:
            raise LivingError(
                f"{len(living)} of its repeats wait or run.",
                where=where,
                hint=f"Nothing was removed. End them first: hpcbert cancel {watched.campaign.id}",
            )
        if not runs_on.living([watched]):
            return None
        doubt: HpcbertError = UsageError("A job of it may still run.", where=where)
    except SchedulerError as error:
        doubt = error
    summary = overview.collected(watched.directory)
    return None if overview.over(watched.campaign, summary) else doubt


class LivingError(HpcbertError):
    """A job of a campaign waits or runs."""

    exit_code = UsageError.exit_code
    code = UsageError.code


def _hide(directory: Path) -> Path:
    """Move a campaign into a new hidden folder next to it."""
    folder = directory.with_name(f"{_HIDDEN}{secrets.token_hex(6)}")
    with refusal("remove", directory, hint="None of its files were removed."):
        folder.mkdir(mode=0o700)
        try:
            write_text(folder / _MARK, f"{folder.name}\n{directory.name}\n")
            directory.rename(folder / directory.name)
        except (OSError, HpcbertError):
            _clear(folder)
            raise
    return folder


def _leftovers(runs: Path) -> Iterable[Path]:
    """Yield what killed removals left in a directory, if it belongs to the user."""
    with contextlib.suppress(OSError):
        for path in runs.iterdir():
            if path.name.startswith(_HIDDEN) and _campaign_in(path):
                yield path


def _campaign_in(folder: Path) -> Path | None:
    """Return the campaign that a removal moved into a folder; None: hpcbert did not make it."""
    if folder.is_symlink() or store.stranger(folder) or store.stranger(folder / _MARK):
        return None
    try:
        place, name, end = read(folder / _MARK, most=_SHORT).decode().split("\n")
    except (OSError, ValueError):
        return None
    whole = place == folder.name and not end and name not in {"", ".", "..", _MARK}
    return folder / name if whole and "/" not in name else None


def _delete(folder: Path) -> None:
    """Remove the campaign in a hidden folder, then the folder, if nothing else is in it.

    Raises:
        HpcbertError: The file system refused.
    """
    hint = "The folder is not a campaign any more. Remove it, or let the next hpcbert rm do it."
    campaign = _campaign_in(folder)
    if campaign is None or next(mounts_below(folder), None):
        return
    with refusal("remove all of it", folder, hint=hint):
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(campaign)
        _clear(folder)


def _clear(folder: Path) -> None:
    """Remove a hidden folder without a campaign; what somebody else put into it stays."""
    with contextlib.suppress(OSError):
        (folder / _MARK).unlink(missing_ok=True)
        folder.rmdir()
