"""Runs that shared a node with a campaign's own runs while those were measured.

All attempts matter, of this campaign and of every other campaign in its folder: however they ended,
they may have slowed the node down.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path

from hpcbert.campaign import store
from hpcbert.campaign.attempts import SHARED, RecordedStates
from hpcbert.campaign.pooling import refuse_run
from hpcbert.campaign.record import Records, Step
from hpcbert.campaign.repeats import Key, Repeat, TrackedCampaign
from hpcbert.errors import UsageError, join_names
from hpcbert.model import Reason, Run, parse_stamp
from hpcbert.system.grouping import group

# Seconds by which the clocks of nodes and file servers may differ.
_SLACK = 3600.0
_STATUS_FILE = re.compile(r".+\.\d{1,9}\.jsonl")
# Runs and nodes that a sentence names.
_MAX_NAMED = 3


@dataclass(frozen=True)
class MeasuredAttempt:
    """One attempt that was measured.

    Attributes:
        key: Of its repeat.
        point: The key of its point.
        campaign: Name of its campaign's directory; empty for the campaign that is collected.
        owner: Its owner, if that is not the user.
    """

    key: Key
    point: str
    repeat: int
    step: Step
    campaign: str = ""
    owner: str = ""

    def __str__(self) -> str:
        attempt = f" attempt {self.step.attempt}" if self.step.attempt else ""
        where = f" of {self.campaign}" if self.campaign else ""
        whose = f", which belongs to {self.owner}" if self.owner else ""
        return f"repeat {self.repeat}{attempt} of {self.point}{where}{whose}"


class NearbyCampaigns:
    """The campaigns in the folders of those that are collected, each of them read once."""

    def __init__(self) -> None:
        self._folders: dict[Path, tuple[float, list[_Neighbour]]] = {}

    @property
    def left_out(self) -> list[Path]:
        """The campaigns of another schema, whose attempts are not known."""
        neighbours = [entry for _, folder in self._folders.values() for entry in folder]
        return [entry.directory for entry in neighbours if entry.has_other_schema]

    def attempts(
        self, watched: TrackedCampaign, nodes: frozenset[str], begin: float, end: float
    ) -> list[MeasuredAttempt]:
        """Return the attempts of other campaigns that ran on the nodes during a period.

        Campaigns that can't be read are skipped, and so are copies of the campaign itself. Times
        are by the nodes' clocks, seconds since the epoch.
        """
        # Files have the time of the file server's clock, which is not the nodes'.
        times = list(_status_times(watched.directory))
        path = watched.directory.absolute().parent
        listed, neighbours = self._folders.get(path, (0.0, []))
        if max(times, default=0.0) >= listed:
            watched.records.refresh_all()
            listed, directories = time.time(), []
            with suppress(OSError):
                directories = sorted(path.iterdir())
            neighbours = [_Neighbour(directory, watched.records) for directory in directories]
            self._folders[path] = listed, neighbours
        # Names and times of files rule out most of the thousands of campaigns in a folder.
        since = min([begin, *times]) - _SLACK
        return [
            attempt
            for neighbour in neighbours
            if neighbour.created <= end + _SLACK and neighbour.last_written >= since
            for attempt in neighbour.attempts
            if attempt.step.span[0] <= end + _SLACK
            and attempt.step.span[1] >= begin - _SLACK
            and attempt.step.nodes & nodes
            and neighbour.campaign != watched.campaign.id
        ]


class _Neighbour:
    """A campaign, or another file or directory; the manifest is read when it is needed."""

    def __init__(self, directory: Path, records: Records) -> None:
        self.directory, self._records = directory, records
        self.campaign, self.has_other_schema = "", False
        # If the name does not say: long ago.
        self.created = parse_stamp(directory.name) or 0.0

    @cached_property
    def last_written(self) -> float:
        """When one of its status files was last written to; 0 if it has none."""
        return max(_status_times(self.directory), default=0.0)

    @cached_property
    def attempts(self) -> list[MeasuredAttempt]:
        """Its measured attempts; none if it can't be read."""
        try:
            manifest = store.read_manifest(self.directory)
        except UsageError as error:
            self.has_other_schema = isinstance(error, store.OtherSchemaError)
            return []
        self.campaign = manifest.id
        watched = TrackedCampaign(self.directory, manifest, self._records)
        name, owner = self.directory.name, store.find_foreign_owner(self.directory)
        return [
            replace(attempt, campaign=name, owner=owner)
            for repeat in watched.repeats
            for attempt in _measured_attempts(repeat)
        ]


def _measured_attempts(repeat: Repeat) -> Iterator[MeasuredAttempt]:
    """Yield the measured attempts of a repeat, from all arrays of its point; each has an end."""
    steps, directory = repeat.record.steps, repeat.watched.directory
    begins = [step.begin or float("inf") for step in steps[1:]]
    for step, following in zip(steps, [*begins, float("inf")], strict=False):
        end = step.end
        if end is None:
            # Without a recorded end, the last sign of life is its end.
            end = step.begin or 0.0
            log = store.log_path(directory, repeat.array, repeat.number, step.attempt)
            with suppress(OSError):
                end = max(end, min(log.stat().st_mtime, following))
        point = repeat.array.point.key
        yield MeasuredAttempt(repeat.key, point, repeat.number, replace(step, end=end))


def _status_times(directory: Path) -> Iterator[float]:
    with suppress(OSError), os.scandir(directory / "status") as entries:
        for entry in entries:
            if _STATUS_FILE.fullmatch(entry.name):
                yield entry.stat().st_mtime


def refuse_shared(
    watched: TrackedCampaign,
    runs: Mapping[Key, Run],
    recorded: RecordedStates,
    nearby: NearbyCampaigns | None,
) -> tuple[dict[Key, Run], tuple[str, ...]]:
    """Mark runs that shared a node, or refuse them if they had requested the node for themselves.

    What an earlier collect recorded stays, wherever the campaign and its neighbours are now. The
    warnings are about runs that are marked, and about campaigns that can't be read.
    """
    arrays = {repeat.key: repeat.array for repeat in watched.repeats}
    valid = {key: run for key, run in runs.items() if run.valid}
    counted = {key: run.attempt for key, run in valid.items()}
    sharers = _find_sharers(watched, counted, nearby)
    judged, warnings = dict(runs), []
    for key, run in valid.items():
        array = arrays[key]
        # The partition gave the nodes to others too, although the job asked for all.
        is_forced = watched.campaign.shares_nodes and array.request.exclusive
        shared = sharers.get(key, {})
        detail = _describe(shared) if shared else ""
        earlier = refused = recorded.sharing.get((array.name, run.repeat, run.attempt))
        # What others write about their runs can't refuse your numbers.
        if array.request.exclusive and any(not attempt.owner for attempt in shared):
            refused = earlier or detail
        if refused:
            judged[key] = refuse_run(run, Reason(SHARED, refused))
        elif shared or earlier is not None or is_forced:
            judged[key] = replace(run, flags=(*run.flags, SHARED))
            if not is_forced:  # Each run would have the same warning, and the flag explains it.
                text = f"repeat {run.repeat} of {array.point.key} shared nodes"
                text += f": {detail or 'an earlier collect found it'}."
                warnings.append(f"{watched.campaign.id}: {text}")
    left_out = nearby.left_out if nearby else []
    warnings += store.describe_left_out("the search for shared nodes", left_out)
    return judged, tuple(warnings)


# Attempts, and the nodes that they shared with another.
_Shared = dict[MeasuredAttempt, tuple[str, ...]]


def _find_sharers(
    watched: TrackedCampaign, counted: Mapping[Key, int], nearby: NearbyCampaigns | None
) -> dict[Key, _Shared]:
    attempts = [attempt for repeat in watched.repeats for attempt in _measured_attempts(repeat)]
    measured = [entry for entry in attempts if counted.get(entry.key) == entry.step.attempt]
    if nearby and measured:
        begin = min(attempt.step.span[0] for attempt in measured)
        end = max(attempt.step.span[1] for attempt in measured)
        nodes = frozenset(node for attempt in measured for node in attempt.step.nodes)
        attempts += nearby.attempts(watched, nodes, begin, end)
    sharers: dict[Key, _Shared] = {}
    for attempt, neighbour in _find_overlapping(attempts):
        names = attempt.step.shared(neighbour.step)
        if names and not attempt.campaign and counted.get(attempt.key) == attempt.step.attempt:
            sharers.setdefault(attempt.key, {})[neighbour] = names
    return sharers


def _find_overlapping(
    attempts: Iterable[MeasuredAttempt],
) -> Iterator[tuple[MeasuredAttempt, MeasuredAttempt]]:
    """Yield the attempts that may have had a node at the same time, in pairs, each way round.

    Those that never met are not compared; `Step.shared` decides about each pair.
    """
    by_node = group(
        (node, (*attempt.step.span, attempt))
        for attempt in attempts
        for node in sorted(attempt.step.nodes)
    )
    for spans in by_node.values():
        spans.sort(key=itemgetter(0))
        for place, (_, end, attempt) in enumerate(spans):
            for later_place in range(place + 1, len(spans)):
                begin, _, later = spans[later_place]
                if begin >= end:
                    break
                yield attempt, later
                yield later, attempt


def _describe(shared: _Shared) -> str:
    nodes = sorted({node for names in shared.values() for node in names})
    runs = dict.fromkeys(map(str, shared))
    where = join_names(nodes, most=_MAX_NAMED)
    return f"{join_names(runs, most=_MAX_NAMED)} ran on {where} while it was measured"
