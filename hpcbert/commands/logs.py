"""The log of a repeat: its path, and its growth while the repeat runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from hpcbert import scheduler
from hpcbert.campaign import store
from hpcbert.campaign.repeats import Key, Repeat
from hpcbert.commands.monitor import TOLERANCE, View, no_answer_error
from hpcbert.logs.lines import open_log
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.tracker import Tracker
from hpcbert.slurm.states import RepeatState
from hpcbert.system.runner import Runner

# Seconds between two looks at a file.
_LOOK_SECONDS = 0.25
_BLOCK = 1 << 16


class Log(NamedTuple):
    """A log and its repeat.

    Attributes:
        repeat: The repeat that wrote it.
        attempt: Which of its attempts.
        path: Where it is.
        printed: Whether it is the job script's output, because the ranks have written no log yet.
    """

    repeat: Repeat
    attempt: int
    path: Path
    printed: bool = False

    def place(self, campaign: Path) -> str:
        """Return the path, for a user who knows the campaign by another path."""
        return str(campaign / self.path.relative_to(self.repeat.watched.directory))


def find_newest_log(repeat: Repeat) -> Log | None:
    """Return the newest attempt's log, or else the job script's output, if either exists."""
    newest_attempt = repeat.record.newest().attempt
    for attempt in range(newest_attempt, -1, -1):
        path = store.log_path(repeat.watched.directory, repeat.array, repeat.number, attempt)
        if path.is_file():
            return Log(repeat, attempt, path)
    output = next((path for path in repeat.printed if path.is_file()), None)
    return Log(repeat, newest_attempt, output, printed=True) if output else None


class LogFollower(Protocol):
    """Receives what a log says, and the state of its repeat."""

    def text(self, data: bytes) -> None:
        """Receive new content."""

    def state(self, repeat: Repeat, state: RepeatState) -> None:
        """Receive a new state of the repeat: another attempt or another word."""


def follow_log(
    selected_repeats: Sequence[Repeat],
    reader: LogFollower,
    *,
    run: Runner,
    floor: float,
    tail: Callable[[Path], int] = lambda _: 0,
) -> tuple[Repeat, RepeatState]:
    """Pass on the log of a repeat as it grows, through requeues, until the repeat has ended.

    Of several selected repeats, follow the running one that wrote last; if none runs, the first
    that waits; if none waits, the one that wrote last.

    Args:
        selected_repeats: The selected repeats, at least one.
        reader: Receives the content.
        run: Starts the scheduler's commands.
        floor: Shortest interval between two queries of a scheduler, seconds.
        tail: Returns the byte at which to begin in the first log.

    Returns:
        The repeat and how it ended.

    Raises:
        SchedulerError: The scheduler gave no answer for too long.
        NotALogError: What is in the log's place can't be read.
    """
    campaigns = {repeat.watched.directory: repeat.watched for repeat in selected_repeats}
    adopted_campaigns = [
        backend.adopt_jobs(campaign)
        for backend, group in scheduler.group_by_scheduler(
            campaigns.values(), SchedulerContext(run)
        )
        for campaign in group
    ]
    selected_keys = {_make_key(repeat) for repeat in selected_repeats}
    tracker = Tracker(adopted_campaigns, run=run, floor=floor)
    tracker.poll()
    repeats = [
        candidate
        for campaign in adopted_campaigns
        for candidate in campaign.repeats
        if _make_key(candidate) in selected_keys
    ]
    repeat = _choose_repeat(repeats, tracker.states)
    log_file = _LogFollower(repeat, reader, tail)
    last_report: tuple[str, int] | None = None
    while True:
        state = tracker.states[repeat.key]
        is_over = _is_complete(repeat, state) or tracker.is_final(repeat.key)
        log_file.read()
        if last_report != (state.word, state.attempt):
            last_report = state.word, state.attempt
            reader.state(repeat, state)
        if is_over:
            return repeat, state
        if tracker.absent or tracker.failures >= TOLERANCE:
            raise no_answer_error(View((repeat,), {repeat.key: state}, 0.0, tracker.complaint))
        seconds_left = tracker.pause()
        while seconds_left >= 0 and not tracker.has_news():
            time.sleep(_LOOK_SECONDS)
            seconds_left -= _LOOK_SECONDS
            log_file.read()
        tracker.poll()


def _make_key(repeat: Repeat) -> tuple[str, str, int]:
    """Return a name of a repeat that stays the same when another array takes it over."""
    return repeat.watched.campaign.id, repeat.array.point.key, repeat.number


def _is_complete(repeat: Repeat, state: RepeatState) -> bool:
    """The scheduler and the job itself agree that the log is complete."""
    return state.kind.over and repeat.newest.ended


def _choose_repeat(repeats: list[Repeat], states: dict[Key, RepeatState]) -> Repeat:
    kinds = {repeat.key: states[repeat.key].kind for repeat in repeats}
    living_repeats = [repeat for repeat in repeats if kinds[repeat.key].alive]
    running_repeats = [repeat for repeat in living_repeats if not kinds[repeat.key].queued]
    if living_repeats and not running_repeats:
        return living_repeats[0]
    return max(running_repeats or repeats, key=_last_write)


def _last_write(repeat: Repeat) -> float:
    log = find_newest_log(repeat)
    return log.path.stat().st_mtime if log else 0.0


class _LogFollower:
    """Reads the newest log of a repeat; when a newer attempt's replaces it, the rest first."""

    def __init__(self, repeat: Repeat, reader: LogFollower, tail: Callable[[Path], int]) -> None:
        self._repeat, self._reader, self._tail = repeat, reader, tail
        self._path: Path | None = None
        self._offset = 0

    def read(self) -> None:
        """Pass on what was written since the last time."""
        log = find_newest_log(self._repeat)
        if self._path is not None:
            self._drain(self._path)
        if log is None or log.path == self._path:
            return
        self._offset = self._tail(log.path) if self._path is None else 0
        self._path = log.path
        self._drain(log.path)

    def _drain(self, path: Path) -> None:
        descriptor, size = open_log(path)
        with os.fdopen(descriptor, "rb") as file:
            self._offset = self._offset if self._offset <= size else 0  # it was truncated
            file.seek(self._offset)
            while self._offset < size:
                data = file.read(min(_BLOCK, size - self._offset))
                if not data:
                    return
                self._offset += len(data)
                self._reader.text(data)
