"""Which line of sacct or squeue is about which repeat of which campaign."""

from __future__ import annotations

import calendar
import contextlib
import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from hpcbert.model import Array, Campaign
    from hpcbert.slurm.commands import JobRow

Key = tuple[str, int]

# Clocks differ, and a campaign is written down before its jobs are submitted.
SLACK = 3600.0


@dataclass(frozen=True)
class Watched:
    """A campaign and where it is."""

    directory: Path
    campaign: Campaign

    @property
    def repeats(self) -> tuple[Repeat, ...]:
        """All its repeats, points in their order; each as it was submitted last."""
        return tuple(Repeat(self, array, number) for array, number in self.campaign.current)

    @cached_property
    def since(self) -> float:
        """A time, seconds since the epoch, before which it can have had no job."""
        with contextlib.suppress(ValueError):
            created = time.strptime(self.campaign.created[:19], "%Y-%m-%dT%H:%M:%S")
            return max(0.0, calendar.timegm(created) - SLACK)
        return 0.0


@dataclass(frozen=True)
class Repeat:
    """One repeat of a watched campaign."""

    watched: Watched
    array: Array
    number: int

    @property
    def key(self) -> Key:
        """The name that its array and number make, unique over campaigns."""
        return self.array.name, self.number

    @property
    def job_id(self) -> str:
        """Its id, `123_4`; empty as long as sbatch's answer is not on disk."""
        return self.array.element(self.number)

    @property
    def status(self) -> Path:
        """Where the job writes what happens to it."""
        return self.watched.directory / self.array.status(self.number)

    @property
    def before(self) -> tuple[Repeat, ...]:
        """The same repeat in the arrays that it was submitted in before, oldest first."""
        found = []
        for array in self.watched.campaign.arrays:
            if array.name == self.array.name:
                break
            if array.point == self.array.point and self.number in array.repeats:
                found.append(Repeat(self.watched, array, self.number))
        return tuple(found)

    def owns(self, row: JobRow) -> bool:
        """Say whether a line is about this repeat and not about another job of its number.

        Job ids are used again, so name, owner and time of submission must fit too.
        """
        return (
            row.name == self.array.name
            and row.user == self.watched.campaign.user
            and (row.submit is None or row.submit >= self.watched.since)
            and self.array.job_id in {"", row.job}
            and bool(row.tasks) != self.array.together
            and row.covers(self.number)
        )


class Lines:
    """Lines of sacct or squeue, to be found by repeat."""

    def __init__(self, rows: Iterable[JobRow] = ()) -> None:
        self._alone: dict[tuple[str, int | None], list[JobRow]] = {}
        self._spans: dict[str, list[JobRow]] = {}
        for row in rows:
            if len(row.tasks) > 1 or any(low != high for low, high, _ in row.tasks):
                self._spans.setdefault(row.name, []).append(row)
            else:
                self._alone.setdefault(
                    (row.name, row.tasks[0][0] if row.tasks else None), []
                ).append(row)

    def newest(self, repeat: Repeat) -> tuple[JobRow | None, int]:
        """Return the line of a repeat's newest run, and how many runs were before it."""
        runs = self.runs(repeat)
        return (runs[-1], len(runs) - 1) if runs else (None, 0)

    def runs(self, repeat: Repeat) -> tuple[JobRow, ...]:
        """Return the lines of a repeat's runs, oldest first.

        A requeued job has a line a run, each with its own time of submission. While an array
        unfolds, sacct may list an index twice: in the range of those that wait, and alone, which
        is right then.
        """
        index = None if repeat.array.together else repeat.number
        runs = [row for row in self._alone.get((repeat.array.name, index), ()) if repeat.owns(row)]
        if not runs:
            runs = [row for row in self._spans.get(repeat.array.name, ()) if repeat.owns(row)]
        found = {row.submit: row for row in runs}
        return tuple(sorted(found.values(), key=lambda row: row.submit or 0.0))

    def attempts(self, repeat: Repeat) -> tuple[tuple[int, JobRow], ...]:
        """Return the lines of all attempts of a repeat, each with its number.

        Those of the jobs that it was submitted in before are among them.
        """
        return tuple(
            numbered
            for one in (*repeat.before, repeat)
            for numbered in enumerate(self.runs(one), start=one.array.first_attempt)
        )
