"""The campaigns under a runs directory, from their files alone, newest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hpcbert.campaign import store
from hpcbert.campaign.overview import age, look

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from hpcbert.campaign.overview import Overview


class Filter(NamedTuple):
    """The campaigns that the user wants to see; an empty or None field excludes none.

    Attributes:
        frameworks, states: One of these.
        name: A part of the id, name or note, in upper or lower case.
        newer, older: Created less, or more, than this many seconds ago.
        limit: Only the newest of them.
        everyone: Whether to include other users' campaigns.
    """

    frameworks: Collection[str] = ()
    states: Collection[str] = ()
    name: str = ""
    newer: float | None = None
    older: float | None = None
    limit: int | None = None
    everyone: bool = False


def listed(runs: Path, wanted: Filter, *, now: float) -> tuple[Overview, ...]:
    """Return the campaigns under a directory, newest first.

    Args:
        runs: The directory.
        wanted: Which of them.
        now: Seconds since the epoch.
    """
    there = store.everyones(runs) if wanted.everyone else store.find_campaigns(runs)
    found = [one for one in map(look, there) if _fits(one, wanted, now)]
    found.sort(key=lambda one: (one.created, one.campaign), reverse=True)
    return tuple(found[: wanted.limit])


def _fits(one: Overview, wanted: Filter, now: float) -> bool:
    dated = (wanted.newer, wanted.older) != (None, None)
    since = age(one.created, now=now) if dated else None
    text = f"{one.campaign}\n{one.name}\n{one.note}".lower()
    return (
        (not wanted.frameworks or one.framework in wanted.frameworks)
        and (not wanted.states or one.state in wanted.states)
        and wanted.name.lower() in text
        and (wanted.newer is None or (since is not None and since < wanted.newer))
        and (wanted.older is None or (since is not None and since > wanted.older))
    )
