"""Submitting: write a drafted campaign down, then hand its arrays to its scheduler.

The order is what makes it safe: every script and the manifest with all arrays `intended` are on
disk before a scheduler is given the first one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcbert import scheduler
from hpcbert.campaign import store

if TYPE_CHECKING:
    from pathlib import Path

    from hpcbert.model import Campaign
    from hpcbert.scheduler.base import World
    from hpcbert.script.draft import Draft


def write(draft: Draft) -> None:
    """Write a drafted campaign: scripts, copies, and last the manifest.

    Raises:
        HpcbertError: The file system refused; nothing has been submitted then.
    """
    store.create(draft.directory)
    for target, source in draft.copies:
        store.write_bytes(draft.directory / target, source.read_bytes())
    for array in draft.campaign.arrays:
        store.write_text(draft.directory / array.script, draft.scripts[array.name])
    store.write_manifest(draft.directory, draft.campaign)


def submit(directory: Path, world: World) -> Campaign:
    """Hand every array that is not submitted yet to its scheduler, adopting what is there already.

    Args:
        directory: The campaign; what its manifest says is what is done.
        world: What the scheduler needs of the world.

    Returns:
        The manifest as it is on disk in the end.

    Raises:
        SchedulerError: The scheduler refused an array, or can't be reached, or can't say what it
            has. Everything submitted so far is in the manifest.
        NoRoomError: It takes no more for now.
        UsageError: There is no such campaign, its scripts were changed, or somebody else is
            submitting it at this moment; or it is not the caller's alone.
        HpcbertError: The directory can't be written to.
    """
    store.claim(directory)
    with store.locked(directory):
        campaign = store.read_manifest(directory)
        return scheduler.of(campaign.scheduler, world).submit(directory, campaign)
