"""The place and time of each run in the campaigns of a folder.

A folder has thousands of campaigns after some months: those that the time and the last line of a
status file rule out cost no manifest. Each file is read once, however many campaigns are collected,
so that the time to collect all campaigns of a folder grows with their number and no faster.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import os
import re
import time
from bisect import bisect_left, insort
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpcbert.campaign import store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.campaign.steps import ENDS
from hpcbert.errors import UsageError
from hpcbert.model import stamped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hpcbert.campaign.record import Records, RepeatRecord
    from hpcbert.campaign.repeats import Repeat
    from hpcbert.campaign.steps import Step

_NAME = re.compile(r".+\.\d{1,9}\.jsonl")


@dataclass(frozen=True)
class Ran:
    """One attempt that was measured.

    Attributes:
        point: Key of its point.
        campaign: Name of its campaign's directory; empty for the campaign that is looked at.
        stranger: Its owner, if that is not the user.
    """

    point: str
    repeat: int
    step: Step
    campaign: str = ""
    stranger: str = ""

    def __str__(self) -> str:
        attempt = f" attempt {self.step.attempt}" if self.step.attempt else ""
        where = f" of {self.campaign}" if self.campaign else ""
        whose = f", which belongs to {self.stranger}" if self.stranger else ""
        return f"repeat {self.repeat}{attempt} of {self.point}{where}{whose}"


class About(NamedTuple):
    """When a campaign was measured, with a margin for clocks that differ.

    Attributes:
        since: Files last written before that, by the file server's clock, are irrelevant.
        begin, end: By the nodes' clocks.
    """

    since: float
    begin: float
    end: float


def attempts(one: Repeat) -> Iterator[Ran]:
    """Yield the attempts of one repeat, from all arrays of its point."""
    found, key = one.record.steps, one.array.point.key
    for step, after in zip(found, (*found[1:], None), strict=False):
        if step.end is None:
            log = store.log_path(one.watched.directory, one.array, one.number, step.attempt)
            yield Ran(key, one.number, _bounded(step, after, log))
        else:
            yield Ran(key, one.number, step)


def _bounded(step: Step, after: Step | None, log: Path) -> Step:
    """Return a step without a recorded end, with the last sign of life as its end."""
    begin = step.begin or 0.0
    latest = after.begin if after and after.begin else float("inf")
    with contextlib.suppress(OSError):
        return replace(step, end=max(begin, min(log.stat().st_mtime, latest)))
    return replace(step, end=begin)


def statuses(directory: Path) -> Iterator[tuple[os.DirEntry[str], float]]:
    """Yield the status files of a campaign, and when each was last written."""
    with contextlib.suppress(OSError), os.scandir(directory / "status") as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name):
                yield entry, entry.stat().st_mtime


class Vicinity:
    """The known runs in the campaigns of some folders."""

    def __init__(self) -> None:
        self._folders: dict[Path, _Folder] = {}

    def beside(
        self, watched: TrackedCampaign, steps: Sequence[Step], about: About, written: float
    ) -> list[Ran]:
        """Return the attempts of other campaigns that may have shared a node with some steps.

        They are in the order of their directories, repeats and attempts. Campaigns that can't be
        read are skipped.

        Args:
            watched: The campaign.
            steps: The steps of this campaign.
            about: When they were.
            written: When one of its status files was last written, by the file server's clock.
        """
        own = watched.directory.absolute()
        folder = self._folders.get(own.parent)
        if folder and written >= folder.listed:
            # The folder was read before some of what ran next to it was written.
            watched.records.refresh_all()
            folder = None
        if folder is None:
            folder = self._folders[own.parent] = _Folder(own.parent, watched.records)
        folder.read(about)
        found = {one.order: one for step in steps for one in folder.there(step)}
        return [one.ran for _, one in sorted(found.items()) if one.matters(watched, about)]


class _Campaign:
    """A campaign, or another file or directory; the manifest is read when it is needed."""

    def __init__(self, directory: Path, records: Records) -> None:
        self.directory = directory
        self.records = records
        # Long ago if the name does not say.
        self.created = stamped(directory.name) or 0.0

    @cached_property
    def watched(self) -> TrackedCampaign | None:
        """The campaign; None if there is none that can be read."""
        try:
            manifest = store.read_manifest(self.directory)
        except UsageError:
            return None
        return TrackedCampaign(self.directory, manifest, self.records)

    @cached_property
    def stranger(self) -> str:
        """Its owner, if that is not the user."""
        return store.stranger(self.directory)

    @cached_property
    def repeats(self) -> dict[str, list[tuple[int, Repeat]]]:
        """Its repeats, each with its place, by the names of their status files."""
        found: dict[str, list[tuple[int, Repeat]]] = {}
        for place, one in enumerate(self.watched.repeats if self.watched else ()):
            name = os.path.basename(one.array.status(one.number))  # noqa: PTH119 - a text
            found.setdefault(name, []).append((place, one))
        return found


class _File(NamedTuple):
    """A status file.

    Attributes:
        modified: When it was last written.
        over: When the repeat ended, by its last line; infinity if it does not say.
    """

    path: str
    campaign: _Campaign
    modified: float
    over: float = math.inf

    def fits(self, about: About) -> bool:
        """Return whether it may be about that time."""
        early = self.modified < about.since or self.over < about.begin
        return not early and self.campaign.created <= about.end


class _Known(NamedTuple):
    """One attempt of some campaign.

    Attributes:
        order: Its place among all attempts of the folder.
        file: Where it is recorded.
    """

    order: tuple[str, int, int]
    ran: Ran
    file: _File

    def matters(self, watched: TrackedCampaign, about: About) -> bool:
        """Return whether it is of another campaign, not a copy of this one, and of that time."""
        its = self.file.campaign
        other = its.directory != watched.directory.absolute()
        copied = its.watched and its.watched.campaign.id == watched.campaign.id
        return other and not copied and self.file.fits(about)


class _Folder:
    """The campaigns of one folder.

    A status file goes through three stages, each of them once: its time is known, its content is
    read, and then the manifest of its campaign.
    """

    def __init__(self, path: Path, records: Records) -> None:
        self.listed = time.time()
        self.records = records
        found: list[Path] = []
        with contextlib.suppress(OSError):
            found = list(path.iterdir())
        # The oldest at the end, where they are removed.
        campaigns = [_Campaign(one, records) for one in found]
        self._unseen = sorted(campaigns, key=lambda one: one.created, reverse=True)
        # The files of each stage, the latest first.
        self._unread: list[tuple[float, str, _File]] = []
        self._unused: list[tuple[float, str, _File]] = []
        self._nodes: dict[str, _Node] = {}

    def read(self, about: About) -> None:
        """Read what ran at about some time, and maybe more."""
        while self._unseen and self._unseen[-1].created <= about.end:
            campaign = self._unseen.pop()
            for entry, modified in statuses(campaign.directory):
                file = _File(entry.path, campaign, modified)
                heapq.heappush(self._unread, (-modified, file.path, file))
        while self._unread and -self._unread[0][0] >= about.since:
            _, path, file = heapq.heappop(self._unread)
            over = _over(self.records.at(Path(path)))
            heapq.heappush(self._unused, (-over, path, file._replace(over=over)))
        while self._unused and -self._unused[0][0] >= about.begin:
            self._use(heapq.heappop(self._unused)[2])

    def _use(self, file: _File) -> None:
        campaign = file.campaign
        name = campaign.directory.name
        for place, one in campaign.repeats.get(os.path.basename(file.path), ()):  # noqa: PTH119
            for number, ran in enumerate(attempts(one)):
                named = replace(ran, campaign=name, stranger=campaign.stranger)
                known = _Known((name, place, number), named, file)
                for node in ran.step.nodes:
                    self._nodes.setdefault(node, _Node()).add(known)

    def there(self, step: Step) -> Iterator[_Known]:
        """Yield the attempts that may have shared a node with a step."""
        for name in step.nodes:
            if node := self._nodes.get(name):
                yield from node.during(step)


class _Node:
    """The runs on one node, in the order of their beginning."""

    def __init__(self) -> None:
        self._known: list[tuple[float, float, tuple[str, int, int], _Known]] = []
        self._longest = 0.0

    def add(self, known: _Known) -> None:
        if spanned := known.ran.step.span:
            low, high = spanned
            insort(self._known, (low, high, known.order, known))
            self._longest = max(self._longest, high - low)

    def during(self, step: Step) -> Iterator[_Known]:
        if spanned := step.span:
            low, high = spanned
            # A second more: the difference is rounded.
            first = bisect_left(self._known, (low - self._longest - 1,))
            last = bisect_left(self._known, (high,))
            yield from (one for _, until, _, one in self._known[first:last] if until > low)


def _over(record: RepeatRecord) -> float:
    """Return when a repeat ended, by its last recorded event; infinity if that is no end."""
    last = record.last
    moment = last.get("time")
    if last.get("event") in ENDS and isinstance(moment, int | float):
        return min(math.inf, moment)  # In this order: of a NaN it is infinity.
    return math.inf
