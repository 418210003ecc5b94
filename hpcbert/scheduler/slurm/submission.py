"""Handing a campaign's arrays to sbatch, one after another, and remembering their jobs.

What makes it safe is what is on disk when: that sbatch is about to be called for an array, and what
it answered, before it is called for the next one. A crash in between leaves a job that was
submitted in the campaign, which the next `submit` of the campaign finds and adopts.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from hpcbert.campaign import store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.errors import SchedulerError
from hpcbert.model import utc
from hpcbert.scheduler.base import RESUME, NoRoomError, record
from hpcbert.scheduler.slurm.calls import left_behind, settled

if TYPE_CHECKING:
    from pathlib import Path

    from hpcbert.model import Array, Campaign
    from hpcbert.scheduler.base import World


def hand_over(directory: Path, campaign: Campaign, world: World) -> Campaign:
    """Do what `Scheduler.submit` says, an array after the other."""
    while campaign.unsubmitted:
        array = campaign.unsubmitted[0]
        world.check()
        store.read_script(directory, array)
        found = left_behind(TrackedCampaign(directory, campaign), array, world)
        if found:
            campaign = record(directory, campaign, found.of(array, utc(world.now())))
            continue
        tried = replace(array, called=utc(world.now()), workdir=os.path.realpath(directory))
        campaign = record(directory, campaign, tried)
        done, verdict = settled(TrackedCampaign(directory, campaign), tried, world)
        if verdict == "full" and len(done.repeats) > 1 and not done.together:
            campaign = _halved(campaign, done)
            store.write_manifest(directory, campaign)
            continue
        campaign = record(directory, campaign, done)
        if verdict == "full":
            raise _full(done, campaign)
        if done.state != "submitted":
            raise _refusal(done, campaign, world.again)
    return campaign


def _halved(campaign: Campaign, array: Array) -> Campaign:
    """Return a campaign with an array made two, for a limit on how many jobs one may have."""
    middle = (len(array.repeats) + 1) // 2
    first = _part(array, array.repeats[:middle], array.name)
    rest = _part(array, array.repeats[middle:], f"{array.name}.p{array.repeats[middle]}")
    names = [one.name for one in campaign.arrays]
    at = names.index(array.name)
    return replace(
        campaign, arrays=(*campaign.arrays[:at], first, rest, *campaign.arrays[at + 1 :])
    )


def _part(array: Array, repeats: tuple[int, ...], name: str) -> Array:
    why = tuple(one for one in array.why if one[0] in repeats)
    return replace(array, name=name, repeats=repeats, why=why, error="")


def _full(array: Array, campaign: Campaign) -> NoRoomError:
    left = sum(not one.job_id for one, _ in campaign.current)
    there = len(campaign.current) - left
    return NoRoomError(
        f"Slurm takes no more jobs of yours now: {there} repeats are submitted, {left} are left. "
        f"It says: {array.error}",
        where=campaign.id,
        hint=f"When some have ended: {RESUME} {campaign.id}; with --wait it goes on by itself.",
    )


def _refusal(array: Array, campaign: Campaign, again: str) -> SchedulerError:
    """Return the error about an array that Slurm refused, or may not have heard of.

    Args:
        array: As it is now.
        campaign: Its own.
        again: The command that goes on with one that was not refused.
    """
    there = [one.job_id for one in campaign.arrays if one.state == "submitted"]
    before = f" Submitted before it: {', '.join(there)}." if there else ""
    if "no such program" in array.error:
        hint = "Run this on a login node, or use the local scheduler (--scheduler local)."
    elif array.state == "refused":
        hint = f"Fix the cause, then submit what is left: {RESUME} {campaign.id}"
    else:
        hint = f"Once Slurm answers: {again} {campaign.id}; nothing is submitted twice."
    return SchedulerError(f"{array.error}.{before}", where=array.name, hint=hint)
