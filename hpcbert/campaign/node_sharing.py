"""Runs that shared a node with a campaign's own runs while those were measured.

All attempts matter, of this campaign and of every other campaign in its folder: however they ended,
they may have slowed the node down.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from hpcbert.campaign import store
from hpcbert.campaign.evidence import MEASUREMENTS
from hpcbert.campaign.record import Records, Step
from hpcbert.campaign.repeats import Key, Repeat, TrackedCampaign
from hpcbert.errors import UsageError, join_names
from hpcbert.model import Array, Reason, Run, parse_stamp

SHARED = "shared-nodes"
# Seconds by which the clocks of nodes and file servers may differ.
_SLACK = 3600.0
_STATUS_FILE = re.compile(r".+\.\d{1,9}\.jsonl")
# Runs and nodes that a sentence names.
_MAX_NAMED = 3


@dataclass(frozen=True)
class MeasuredAttempt:
    """One attempt that was measured.

    Attributes:
        point: Key of its point.
        campaign: Name of its campaign's directory; empty for the campaign that is collected.
        owner: Its owner, if that is not the user.
    """

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


class Period(NamedTuple):
    """When a campaign was measured, with a margin for clocks that differ.

    Attributes:
        since: Status files last written before that, by the file server's clock, are irrelevant.
        begin, end: By the nodes' clocks.
    """

    since: float
    begin: float
    end: float


class NearbyCampaigns:
    """The campaigns in the folders of those that are collected, each of them read once."""

    def __init__(self) -> None:
        self._folders: dict[Path, _Folder] = {}

    def attempts(
        self,
        watched: TrackedCampaign,
        nodes: frozenset[str],
        period: Period,
        last_written: float,
    ) -> list[MeasuredAttempt]:
        """Return the attempts of other campaigns that ran on the nodes during a period.

        Campaigns that can't be read are skipped, and so are copies of the campaign itself.

        Args:
            last_written: When one of its status files was last written to, by the file server's
                clock: if that was after its folder was listed, the folder is listed again.
        """
        path = watched.directory.absolute().parent
        folder = self._folders.get(path)
        if folder is None or last_written >= folder.listed:
            watched.records.refresh_all()
            folder = self._folders[path] = _Folder(path, watched.records)
        return folder.find(watched.campaign.id, nodes, period)

    @property
    def left_out(self) -> list[Path]:
        """The campaigns of another schema, whose attempts are not known."""
        return [path for folder in self._folders.values() for path in folder.left_out]


class _Folder:
    """The campaigns of one folder, each read when a period needs it."""

    def __init__(self, path: Path, records: Records) -> None:
        self.listed = time.time()
        self.left_out: list[Path] = []
        directories: list[Path] = []
        with contextlib.suppress(OSError):
            directories = sorted(path.iterdir())
        self._neighbours = [
            _Neighbour(directory, records, self.left_out) for directory in directories
        ]

    def find(self, campaign: str, nodes: frozenset[str], period: Period) -> list[MeasuredAttempt]:
        """Return the attempts of campaigns other than one, in the order of their directories."""
        # Names and times of files rule out most of the thousands of campaigns in a folder.
        neighbours = [
            neighbour
            for neighbour in self._neighbours
            if neighbour.created <= period.end and neighbour.last_written >= period.since
        ]
        return [
            attempt
            for neighbour in neighbours
            for begin, end, attempt in neighbour.attempts
            if begin <= period.end
            and end >= period.begin
            and attempt.step.nodes & nodes
            and neighbour.campaign != campaign
        ]


class _Neighbour:
    """A campaign, or another file or directory; the manifest is read when it is needed.

    Args:
        left_out: Gets the directory if it has another schema.
    """

    def __init__(self, directory: Path, records: Records, left_out: list[Path]) -> None:
        self.directory = directory
        self.campaign = ""
        self._records, self._left_out = records, left_out
        # If the name does not say: long ago.
        self.created = parse_stamp(directory.name) or 0.0

    @cached_property
    def last_written(self) -> float:
        """When one of its status files was last written to; 0 if it has none."""
        return max(_status_times(self.directory), default=0.0)

    @cached_property
    def attempts(self) -> list[tuple[float, float, MeasuredAttempt]]:
        """Its measured attempts, each with its span; none if it can't be read."""
        try:
            manifest = store.read_manifest(self.directory)
        except store.OtherSchemaError:
            self._left_out.append(self.directory)
            return []
        except UsageError:
            return []
        self.campaign = manifest.id
        watched = TrackedCampaign(self.directory, manifest, self._records)
        name, owner = self.directory.name, store.find_foreign_owner(self.directory)
        return [
            (*attempt.step.span, replace(attempt, campaign=name, owner=owner))
            for repeat in watched.repeats
            for attempt in _measured_attempts(repeat)
            if attempt.step.span
        ]


def _measured_attempts(repeat: Repeat) -> Iterator[MeasuredAttempt]:
    """Yield the measured attempts of a repeat, from all arrays of its point."""
    steps, key = repeat.record.steps, repeat.array.point.key
    for step, following in zip(steps, (*steps[1:], None), strict=False):
        if step.end is None:
            log = store.log_path(
                repeat.watched.directory, repeat.array, repeat.number, step.attempt
            )
            yield MeasuredAttempt(key, repeat.number, _close_step(step, following, log))
        else:
            yield MeasuredAttempt(key, repeat.number, step)


def _close_step(step: Step, following: Step | None, log: Path) -> Step:
    """Return a step without a recorded end, with the last sign of life as its end."""
    begin = step.begin or 0.0
    latest = following.begin if following and following.begin else float("inf")
    with contextlib.suppress(OSError):
        return replace(step, end=max(begin, min(log.stat().st_mtime, latest)))
    return replace(step, end=begin)


def _status_times(directory: Path) -> Iterator[float]:
    """Yield when each status file of a campaign was last written to."""
    with contextlib.suppress(OSError), os.scandir(directory / "status") as entries:
        for entry in entries:
            if _STATUS_FILE.fullmatch(entry.name):
                yield entry.stat().st_mtime


@dataclass(frozen=True)
class Sharing:
    """The runs that shared nodes with one repeat, as a clause.

    Attributes:
        refuses: Whether runs of the user's own are among them; what others write about theirs
            can't refuse your numbers.
    """

    detail: str
    refuses: bool


def refuse_shared(
    watched: TrackedCampaign, runs: Mapping[Key, Run], nearby: NearbyCampaigns | None
) -> tuple[dict[Key, Run], tuple[str, ...]]:
    """Mark runs that shared a node, or refuse them if they had requested the node for themselves.

    What an earlier collect recorded stays, wherever the campaign and its neighbours are now.

    Args:
        nearby: The campaigns next to it; None to leave them out.

    Returns:
        The runs, and warnings about those that are marked, and about campaigns that can't be read.
    """
    arrays = {repeat.key: repeat.array for repeat in watched.repeats}
    valid = {key: run for key, run in runs.items() if run.valid}
    counted = {(arrays[key].point.key, run.repeat): run.attempt for key, run in valid.items()}
    sharings = _find_sharing(watched, counted, nearby)
    recorded = _read_recorded(watched.directory)
    judged, warnings = dict(runs), []
    for key, run in valid.items():
        array = arrays[key]
        sharing = sharings.get((array.point.key, run.repeat))
        earlier = recorded.get((array.name, run.repeat, run.attempt))
        refused = earlier
        if not refused and sharing and sharing.refuses and array.request.exclusive:
            refused = sharing.detail
        if refused:
            reasons = (*run.reasons, Reason(SHARED, refused))
            judged[key] = replace(run, throughput=None, valid=False, reasons=reasons)
        elif sharing or earlier is not None or _is_forced(watched, array):
            judged[key] = replace(run, flags=(*run.flags, SHARED))
            detail = sharing.detail if sharing else "an earlier collect found it"
            if _is_forced(watched, array):
                continue  # Each run would have the same warning, and the flag explains it.
            subject = f"repeat {run.repeat} of {array.point.key} shared nodes"
            warnings.append(f"{watched.campaign.id}: {subject}: {detail}.")
    left_out = nearby.left_out if nearby else []
    warnings += store.describe_left_out("the search for shared nodes", left_out)
    return judged, tuple(warnings)


def _is_forced(watched: TrackedCampaign, array: Array) -> bool:
    """Return whether the partition gave the nodes to others too, although the job asked for all."""
    return watched.campaign.shares_nodes and array.request.exclusive


def _find_sharing(
    watched: TrackedCampaign, counted: Mapping[Key, int], nearby: NearbyCampaigns | None
) -> dict[Key, Sharing]:
    """Return the attempts that ran on a repeat's nodes while it was measured, by repeat.

    Args:
        nearby: The campaigns next to it; None to leave them out.
    """
    attempts = [
        measured_attempt
        for repeat in watched.repeats
        for measured_attempt in _measured_attempts(repeat)
    ]
    numbers = [
        number
        for number, attempt in enumerate(attempts)
        if counted.get((attempt.point, attempt.repeat)) == attempt.step.attempt
    ]
    spans = [span for number in numbers if (span := attempts[number].step.span)]
    if not spans:
        return {}
    if nearby:
        begin, end = min(begin for begin, _ in spans), max(end for _, end in spans)
        # Files have the time of the file server's clock, which is not the nodes'.
        times = list(_status_times(watched.directory))
        period = Period(min([begin, *times]) - _SLACK, begin - _SLACK, end + _SLACK)
        own_nodes = frozenset(node for number in numbers for node in attempts[number].step.nodes)
        attempts += nearby.attempts(watched, own_nodes, period, max(times, default=0.0))
    overlapping = _find_overlapping([attempt.step for attempt in attempts])
    sharings: dict[Key, Sharing] = {}
    for number in numbers:
        attempt = attempts[number]
        shared = []
        for other in sorted(overlapping.get(number, ())):
            nodes = attempt.step.shared(attempts[other].step)
            if nodes:
                shared.append((attempts[other], nodes))
        if shared:
            sharings[attempt.point, attempt.repeat] = _describe(shared)
    return sharings


def _find_overlapping(steps: Sequence[Step]) -> dict[int, set[int]]:
    """Return the steps that may have had a node at the same time as each step, by index.

    Those that never met are not compared; `Step.shared` decides about each pair.
    """
    by_node: dict[str, list[tuple[float, float, int]]] = {}
    for number, step in enumerate(steps):
        if step.span:
            for node in step.nodes:
                by_node.setdefault(node, []).append((*step.span, number))
    overlapping: dict[int, set[int]] = {}
    for spans in by_node.values():
        spans.sort()
        for place, (_, end, number) in enumerate(spans):
            for later in range(place + 1, len(spans)):
                begin, _, other = spans[later]
                if begin >= end:
                    break
                overlapping.setdefault(number, set()).add(other)
                overlapping.setdefault(other, set()).add(number)
    return overlapping


def _read_recorded(directory: Path) -> dict[tuple[str, int, int], str]:
    """Return the runs with shared nodes that an earlier collect recorded.

    By array, repeat and attempt; the value is the reason for refusing the run, or empty if it was
    only marked.
    """
    recorded: dict[tuple[str, int, int], str] = {}
    with contextlib.suppress(UsageError, KeyError, TypeError, AttributeError):
        for run in store.read_json(directory / MEASUREMENTS)["runs"]:
            details = [entry["detail"] for entry in run["reasons"] if entry["code"] == SHARED]
            if details or SHARED in run["flags"]:
                recorded[run["array"], run["repeat"], run["attempt"]] = "".join(details[:1])
    return recorded


def _describe(shared: Sequence[tuple[MeasuredAttempt, tuple[str, ...]]]) -> Sharing:
    nodes = sorted({node for _, names in shared for node in names})
    runs = list(dict.fromkeys(str(attempt) for attempt, _ in shared))
    where = f"{', '.join(nodes[:_MAX_NAMED])}{' and others' if len(nodes) > _MAX_NAMED else ''}"
    return Sharing(
        f"{join_names(runs, most=_MAX_NAMED)} ran on {where} while it was measured",
        refuses=any(not attempt.owner for attempt, _ in shared),
    )
