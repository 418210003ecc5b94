"""Removing campaigns: what nothing runs of any more, each at once or not at all.

A campaign gets a hidden name first, which takes one call: from then on it is no campaign any more.
Only then its files go. Who is killed in between leaves a hidden folder, which the next removal in
the same place takes along.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import TYPE_CHECKING

from hpcbert import scheduler
from hpcbert.campaign import overview, store
from hpcbert.errors import HpcbertError, SchedulerError, UsageError
from hpcbert.flows.monitor import open_campaign
from hpcbert.scheduler.base import World
from hpcbert.system.files import refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from hpcbert.campaign.repeats import TrackedCampaign
    from hpcbert.system.runner import Runner

_HIDDEN = ".removed"


def remove(
    directories: Sequence[Path], *, agreed: Callable[[], bool], run: Runner, force: bool = False
) -> bool:
    """Remove campaigns, or none of them where one is refused; say whether they were.

    Args:
        directories: The campaigns.
        agreed: Asks whether to remove them; called once nothing speaks against it.
        run: Starts the scheduler's commands.
        force: Whether those go, too, of which nobody can say that nothing runs any more.

    Raises:
        LivingError: Something of one waits or runs.
        UsageError: Something of one may; or it is a link, damaged, or somebody else's, or
            somebody is working on it.
        SchedulerError: Nobody says whether something of one waits or runs.
        HpcbertError: The file system refused.
    """
    with contextlib.ExitStack() as stack:
        for one in directories:
            _refuse_foreign(one)
            stack.enter_context(store.locked(one))
        for one in directories:
            _refuse_living(one, run=run, force=force)
        if not agreed():
            return False
        hidden = [_hide(one) for one in directories]
    leftovers = {left for one in directories for left in _leftovers(one.parent)}
    for one in dict.fromkeys((*hidden, *sorted(leftovers))):
        _delete(one)
    return True


def _refuse_foreign(directory: Path) -> None:
    if directory.is_symlink():
        raise UsageError(
            "It is a link: what it leads to is not removed.",
            where=str(directory),
            hint="Name the campaign itself, or remove the link.",
        )
    if who := store.stranger(directory):
        raise UsageError(f"The campaign belongs to {who}.", where=str(directory))


def _refuse_living(directory: Path, *, run: Runner, force: bool) -> None:
    """Refuse a campaign of which something waits or runs, or may, unless that is forced.

    Raises:
        UsageError: Something does, or may.
        SchedulerError: Nobody answers.
    """
    try:
        doubt = _doubt(open_campaign(directory), run)
    except UsageError as error:
        doubt = error
    if doubt and not force:
        hint = "Nothing was removed. --force removes it all the same, and ends no job."
        raise doubt.advising(hint)


def _doubt(watched: TrackedCampaign, run: Runner) -> HpcbertError | None:
    """Return why something of a campaign may wait or run; None: nothing does.

    Raises:
        LivingError: Something does for certain.
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
        doubt: HpcbertError = UsageError("Something of it may still run.", where=where)
    except SchedulerError as error:
        doubt = error
    known = overview.collected(watched.directory, watched.campaign)
    return None if overview.over(watched.campaign, known) else doubt


class LivingError(HpcbertError):
    """Something of a campaign waits or runs."""

    exit_code = UsageError.exit_code
    code = UsageError.code


def _hide(directory: Path) -> Path:
    hidden = directory.with_name(f".{directory.name}.{os.urandom(3).hex()}{_HIDDEN}")
    with refusal("remove", directory, hint="Nothing of it was removed."):
        return directory.rename(hidden)


def _leftovers(runs: Path) -> Iterable[Path]:
    """Yield what removals that were killed left in a directory, as far as it is the caller's."""
    with contextlib.suppress(OSError):
        for path in runs.iterdir():
            name = path.name
            mine = name.startswith(".") and name.endswith(_HIDDEN) and not path.is_symlink()
            if mine and not store.stranger(path):
                yield path


def _delete(hidden: Path) -> None:
    """Remove a hidden folder and all in it.

    Raises:
        HpcbertError: The file system refused.
    """
    hint = "It is no campaign any more. Remove the folder, or let the next hpcbert rm do it."
    with refusal("remove all of it", hidden, hint=hint), contextlib.suppress(FileNotFoundError):
        shutil.rmtree(hidden)
