"""The status files of a campaign: what its jobs wrote themselves, each file opened once.

A job appends one JSON object per line to `status/POINT.REPEAT.jsonl` (job.bash), in each of
its attempts. Everything that needs what a job wrote takes a RepeatRecord and opens no file.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hpcbert.campaign.steps import Step, read_steps
from hpcbert.slurm.jobrecord import JobRecord, reduce_events
from hpcbert.system.files import open_file, read_open

Event = dict[str, Any]
# Size and time of the last change, nanoseconds, which change with each write.
Stamp = tuple[int, int]

# Where they are in a campaign.
_FOLDER = "status"
# Bytes: enough for thousands of attempts. A larger file is treated as missing.
_MAX_BYTES = 1 << 22
# Larger than the last line.
_LONGEST_LINE = 4096


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
        """All events, oldest first."""
        return read_events(self.raw)

    @property
    def last(self) -> Event:
        """The last event; empty if there is none."""
        return _parse_last(self.raw)

    @cached_property
    def attempts(self) -> dict[int, tuple[Event, ...]]:
        """The events of each attempt, by its number."""
        events_by_attempt: dict[int, list[Event]] = {}
        for event in self.events:
            if isinstance(attempt := event.get("attempt"), int):
                events_by_attempt.setdefault(attempt, []).append(event)
        return {attempt: tuple(events) for attempt, events in events_by_attempt.items()}

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


def read_events(raw: bytes) -> tuple[Event, ...]:
    """Return the events in the content of a status file, oldest first.

    A line that is not a JSON object (a full disk cuts lines) is skipped.
    """
    events = []
    for line in raw.split(b"\n"):
        with contextlib.suppress(ValueError, RecursionError):
            event = json.loads(line)
            if isinstance(event, dict):
                events.append(event)
    return tuple(events)


def read_record(path: Path) -> RepeatRecord:
    """Return a status file's present content; nothing if it can't be read."""
    try:
        descriptor, _ = open_file(path)
        with os.fdopen(descriptor, "rb") as file:
            # Before its content: what is added while it is read then changes the stamp.
            stamp = make_stamp(os.fstat(file.fileno()))
            return RepeatRecord(read_open(file, path, max_bytes=_MAX_BYTES), stamp)
    except OSError:
        return RepeatRecord()


def last_event(path: Path) -> Event:
    """Return the last event in a status file, of which only the end is read."""
    try:
        descriptor, size = open_file(path)
    except OSError:
        return {}
    try:
        return _parse_last(os.pread(descriptor, _LONGEST_LINE, max(0, size - _LONGEST_LINE)))
    except OSError:
        return {}
    finally:
        os.close(descriptor)


def _parse_last(raw: bytes) -> Event:
    lines = reversed(raw[-_LONGEST_LINE:].strip().split(b"\n"))
    return next((event for line in lines for event in read_events(line)), {})


def make_stamp(status: os.stat_result) -> Stamp:
    """Return size and time of the last change of a file."""
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
        # By folder: those of thousands of campaigns may be here, and one is asked about at a time.
        self._read: dict[Path, dict[Path, RepeatRecord]] = {}

    def at(self, path: Path) -> RepeatRecord:
        """Return the content of a status file."""
        path = path.absolute()
        folder_records = self._read.setdefault(path.parent, {})
        if path not in folder_records:
            folder_records[path] = read_record(path)
        return folder_records[path]

    def stamps(self, directory: Path) -> dict[str, Stamp]:
        """Return the stamps that a campaign's files had when they were read, by relative path."""
        folder_records = self._read.get(directory.absolute() / _FOLDER, {})
        return {
            f"{_FOLDER}/{path.name}": repeat_record.stamp
            for path, repeat_record in folder_records.items()
            if repeat_record.stamp is not None
        }

    def stirred(self) -> bool:
        """Read files again that have another stamp than before; return whether any had."""
        changed = [
            (folder_records, path)
            for folder_records in self._read.values()
            for path, repeat_record in folder_records.items()
            if repeat_record.stamp != _read_stamp(path)
        ]
        for folder_records, path in changed:
            folder_records[path] = read_record(path)
        return bool(changed)

    def refresh(self, directory: Path) -> None:
        """Forget what may have changed of a campaign's files since they were read.

        Use it after asking a scheduler: an end that was written meanwhile must be seen.
        """
        self._refresh(directory.absolute() / _FOLDER)

    def refresh_all(self) -> None:
        """Do the same for all campaigns."""
        for folder in tuple(self._read):
            self._refresh(folder)

    def _refresh(self, folder: Path) -> None:
        folder_records = self._read.pop(folder, {})
        if self._keep_unchanged:
            repeat_records = {
                path: repeat_record
                for path, repeat_record in folder_records.items()
                if repeat_record.stamp == _read_stamp(path)
            }
            self._read[folder] = repeat_records


def _read_stamp(path: Path) -> Stamp | None:
    try:
        return make_stamp(path.stat())
    except OSError:
        return None
