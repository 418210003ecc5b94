"""The status files of a campaign: what its jobs wrote themselves, each file opened once.

A job appends one JSON object per line to `status/POINT.REPEAT.jsonl` (job.bash), in each of
its attempts. Everything that needs what a job wrote takes a RepeatRecord and opens no file. A Step
is when and where an attempt was measured, by the job's own account.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hpcbert.slurm.hostlist import expand
from hpcbert.slurm.state_sources import JobRecord, reduce_events
from hpcbert.slurm.states import bounded_int
from hpcbert.system.files import open_file, read_open
from hpcbert.system.grouping import group

# Events with which a repeat is over: the script's own, and the local queue's.
ENDS = frozenset({"end", "finished"})
_MAX_TIME = 253_402_300_799
_MAX_OFFSET = 15 * 3600
_ZONE = re.compile(r"([+-])([0-9]{2})([0-9]{2})")
# Seconds by which the clocks of two nodes may differ although the controller's seems right to both:
# it gives whole seconds, and the answer takes a moment.
_CLOCK_SLACK = 2.0


@dataclass(frozen=True)
class Step:
    """The measured step of one attempt of a repeat.

    Attributes:
        host: Name of the node that supplied the times.
        nodes: Names of all its nodes, without their domains.
        begin: When it began, seconds since the epoch; None before.
        end: When it ended, or the script did; None if not recorded.
        fine: Whether begin and end have fractions of seconds.
        zones: Offsets of the host's time zone from UTC at begin and end, seconds; empty if not
            recorded.
        moved: Seconds by which the host's clock was set forward between begin and end, as far as
            the uptime shows it.
        booted: When the host booted, by its clock at begin; None if not recorded.
        ahead: Whole seconds by which the controller's clock was ahead of the host's.
    """

    attempt: int = 0
    host: str = ""
    nodes: frozenset[str] = frozenset()
    begin: float | None = None
    end: float | None = None
    fine: bool = False
    zones: tuple[int, ...] = ()
    moved: float = 0.0
    ahead: int = 0
    booted: float | None = field(default=None, repr=False)

    def shared(self, other: Step) -> tuple[str, ...]:
        """Return the nodes that two steps had at the same time; ends may touch."""
        nodes = self.nodes & other.nodes
        if not nodes or None in {self.begin, self.end, other.begin, other.end}:
            return ()
        fine, apart = self.fine and other.fine, self.host != other.host
        begins, ends = [], []
        for step in (self, other):
            ahead = step.ahead if apart and abs(step.ahead) > 1 else 0
            begin, end = (step.begin or 0.0) + ahead, (step.end or 0.0) + ahead
            begins.append(begin if fine else math.floor(begin))
            ends.append(end if fine else math.floor(end))
        overlap = min(ends) - max(begins)
        return tuple(sorted(nodes)) if overlap > (_CLOCK_SLACK if apart else 0.0) else ()

    @cached_property
    def span(self) -> tuple[float, float]:
        """The widest period of a step with begin and end, allowing for clock errors."""
        begin = math.floor((self.begin or 0.0) + min(0, self.ahead))
        return float(begin), (self.end or 0.0) + max(0, self.ahead)


def read_steps(events: Iterable[Mapping[str, Any]]) -> tuple[Step, ...]:
    """Return the measured steps in a status file, one per attempt, in order.

    Args:
        events: Events of one repeat, oldest first. Without those of the step itself, its begin and
            end are the script's.
    """
    steps: dict[int, Step] = {}
    for event in events:
        attempt = bounded_int(event.get("attempt"))
        if attempt is not None:
            step = steps.get(attempt, Step(attempt=attempt))
            steps[attempt] = _apply_event(step, str(event.get("event")), event)
    return tuple(steps[attempt] for attempt in sorted(steps) if steps[attempt].begin is not None)


def _apply_event(step: Step, kind: str, event: Mapping[str, Any]) -> Step:
    time, exact_time = _as_number(event.get("time")), _as_number(event.get("at"))
    uptime, zone = _as_number(event.get("uptime")), _parse_zone(event.get("zone"))
    is_fine = exact_time is not None
    booted = None if exact_time is None or uptime is None else exact_time - uptime
    if kind == "start":
        host = _short_name(str(event.get("host", "")))
        names = expand(str(event.get("nodelist", ""))) or (host,)
        nodes = frozenset(map(_short_name, names)) - {""}
        return Step(step.attempt, host=host, nodes=nodes, begin=time)
    if kind == "step":
        return replace(
            step,
            begin=exact_time if is_fine else time,
            end=None,
            fine=is_fine,
            zones=zone,
            ahead=int(_as_number(event.get("ahead")) or 0),
            booted=booted,
        )
    if kind == "step-end":
        is_known = booted is not None and step.booted is not None
        return replace(
            step,
            end=exact_time if is_fine else time,
            fine=step.fine and is_fine,
            zones=(*step.zones, *zone),
            moved=(booted or 0.0) - (step.booted or 0.0) if is_known else 0.0,
        )
    if kind in ENDS and step.end is None:
        return replace(step, end=time, fine=False)
    return step


def _short_name(name: str) -> str:
    """Return a node's name as Slurm may have it, without the domain that the system adds."""
    return name.strip().lower().partition(".")[0]


def _as_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= _MAX_TIME else None


def _parse_zone(text: Any) -> tuple[int, ...]:
    """Return the seconds that `+0100` stands for; empty for any other text."""
    match = _ZONE.fullmatch(str(text))
    if not match:
        return ()
    seconds = int(match[2]) * 3600 + int(match[3]) * 60
    return (-seconds if match[1] == "-" else seconds,) if seconds <= _MAX_OFFSET else ()


Event = dict[str, Any]
# Size and time of the last change, nanoseconds, which change with each write.
Stamp = tuple[int, int]

# Where they are in a campaign.
_FOLDER = "status"
# Bytes: enough for thousands of attempts. A larger file is treated as missing.
_MAX_BYTES = 1 << 22


@dataclass(frozen=True)
class RepeatRecord:
    """The files of the jobs of one repeat, all attempts together.

    Attributes:
        raw: Content of the file; empty if it is missing, unreadable, or not a file.
        stamp: Stamp of the file when it was opened; None if it could not be read.
    """

    raw: bytes = b""
    stamp: Stamp | None = None

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """All events, oldest first; a line that a full disk cut is skipped."""
        events = []
        for line in filter(None, self.raw.split(b"\n")):
            with contextlib.suppress(ValueError, RecursionError):
                event = json.loads(line)
                if isinstance(event, dict):
                    events.append(event)
        return tuple(events)

    @cached_property
    def attempts(self) -> Mapping[int, Sequence[Event]]:
        """The events of each attempt, by its number."""
        numbered = [event for event in self.events if isinstance(event.get("attempt"), int)]
        return group((event["attempt"], event) for event in numbered)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The measured steps, one per attempt, in their order."""
        return read_steps(self.events)

    @property
    def written(self) -> float | None:
        """When the file was last written to, by the file server's clock; None if unknown."""
        return None if self.stamp is None else self.stamp[1] / 1e9

    def newest(self, *, first: int = 0) -> JobRecord:
        """Return the outcome of the newest attempt; attempts before `first` are skipped."""
        return reduce_events(self.events, first=first)

    def attempt(self, number: int) -> JobRecord:
        """Return the outcome of one attempt."""
        return reduce_events(self.attempts.get(number, ()), first=number)


def read_record(path: Path) -> RepeatRecord:
    """Return a status file's present content; empty if it can't be read."""
    try:
        descriptor, _ = open_file(path)
        with os.fdopen(descriptor, "rb") as file:
            # Before its content: what is added while it is read then changes the stamp.
            stamp = _make_stamp(os.fstat(file.fileno()))
            return RepeatRecord(read_open(file, path, max_bytes=_MAX_BYTES), stamp)
    except OSError:
        return RepeatRecord()


def _make_stamp(status: os.stat_result) -> Stamp:
    return status.st_size, status.st_mtime_ns


class Records:
    """Status files, each read on first use and then remembered.

    Args:
        keep_unchanged: Whether `refresh` skips files with the same size and time. A command that
            asks once saves the opening; one that follows a campaign must not, because only
            opening a file makes an NFS client ask its server (nfs(5), close-to-open).
    """

    def __init__(self, *, keep_unchanged: bool = False) -> None:
        self._keep_unchanged = keep_unchanged
        self._read: dict[Path, RepeatRecord] = {}
        # Those of thousands of campaigns may be here, and one is asked about at a time.
        self._paths: dict[Path, list[Path]] = defaultdict(list)

    def at(self, path: Path) -> RepeatRecord:
        """Return the content of a status file, as first read."""
        path = path.absolute()
        if path not in self._read:
            self._read[path] = read_record(path)
            self._paths[path.parent].append(path)
        return self._read[path]

    def stamps(self, directory: Path) -> dict[str, Stamp]:
        """Return the stamps that a campaign's files had when they were read, by relative path."""
        stamps = {}
        for path in self._paths.get(directory.absolute() / _FOLDER, ()):
            stamp = self._read[path].stamp
            if stamp is not None:
                stamps[f"{_FOLDER}/{path.name}"] = stamp
        return stamps

    def reread_changed(self) -> bool:
        """Read files again that have another stamp than before; return whether any had."""
        changed = [
            path
            for path, repeat_record in self._read.items()
            if repeat_record.stamp != read_stamp(path)
        ]
        for path in changed:
            self._read[path] = read_record(path)
        return bool(changed)

    def refresh(self, directory: Path) -> None:
        """Forget what may have changed of a campaign's files since they were read.

        Use it after asking a scheduler: an end that was written meanwhile must be seen.
        """
        folder = directory.absolute() / _FOLDER
        for path in self._paths.pop(folder, ()):
            if self._keep_unchanged and self._read[path].stamp == read_stamp(path):
                self._paths[folder].append(path)
            else:
                del self._read[path]

    def refresh_all(self) -> None:
        """Do the same for all campaigns."""
        for folder in tuple(self._paths):
            self.refresh(folder.parent)


def read_stamp(path: Path) -> Stamp | None:
    """Return a file's present stamp; None if it is missing."""
    try:
        return _make_stamp(path.stat())
    except OSError:
        return None
