"""The largest batch of a point as its jobs found it, and the size that each repeat really ran with.

The first repeat that runs searches before it is measured (largest.bash). The status file of the
search has one line per probe, `found` with the size, and `stopped` with the reason for the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hpcbert.campaign.record import Event
from hpcbert.campaign.repeats import Repeat, TrackedCampaign
from hpcbert.model import Group, Point, Reason

# Larger than any size that a search tries.
_MAX_SIZE = 1 << 24


def apply_found_size(watched: TrackedCampaign, point: Point) -> Point:
    """Return a point with its batch size; unchanged if its jobs have not found that."""
    if not point.largest:
        return point
    size = _last_number(_search_events(watched, point), "found", "size")
    return replace(point, batch_size_per_device=size) if size else point


def mark_largest(point: Point, group: Group) -> Group:
    """Return the table of a point, with its batch size if that was found."""
    if not point.largest:
        return group
    return replace(group, largest=True, batch_size_per_device=max(group.batch_size_per_device, 0))


def find_search_problems(repeat: Repeat, attempt: int) -> tuple[Reason, ...]:
    """Return why an attempt did not run with the largest batch; empty if it did or need not."""
    watched, point = repeat.watched, repeat.array.point
    if not point.largest:
        return ()
    for event in reversed(_search_events(watched, point)):
        outcome = event.get("event"), event.get("repeat"), event.get("attempt")
        if outcome == ("stopped", repeat.number, attempt):
            return (Reason("search", f"no largest batch was found: {event.get('reason')}"),)
    sized_point = apply_found_size(watched, point)
    if sized_point.largest:
        return (Reason("search", "no largest batch was found: the search has not ended"),)
    batch_size = _last_number(repeat.record.attempts.get(attempt, ()), "step", "batch")
    if batch_size in (None, sized_point.batch_size_per_device):
        return ()
    return (
        Reason(
            "search",
            f"it ran with {batch_size} samples per device; the largest batch is {sized_point.batch}",
        ),
    )


def _search_events(watched: TrackedCampaign, point: Point) -> tuple[Event, ...]:
    return watched.records.at(watched.directory / point.search).events


def _last_number(events: Iterable[Event], kind: str, name: str) -> int | None:
    """Return a number from the last event of a kind; None if there is no valid one."""
    values = [event.get(name) for event in events if event.get("event") == kind]
    value = values[-1] if values else None
    sound = isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MAX_SIZE
    return value if sound else None
