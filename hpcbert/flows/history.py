"""Which campaigns there are: all under a runs directory, by their files alone, newest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hpcbert.campaign import store
from hpcbert.campaign.overview import age, look

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from hpcbert.campaign.overview import Overview


class Filter(NamedTuple):
    """Which campaigns a person wants to see; what is empty or None leaves none out.

    Attributes:
        frameworks, states: One of these.
        name: A part of the id, of the name or of the note, whatever the case of its letters.
        newer, older: Made less, or more, than so many seconds ago.
        limit: Of those, the newest so many.
        everyone: Whether those of others are listed too.
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
