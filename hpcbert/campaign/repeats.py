"""Match lines of sacct and squeue to repeats of campaigns."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from hpcbert.campaign import store
from hpcbert.campaign.record import Records, RepeatRecord
from hpcbert.model import Array, Campaign, JobOutput, Point, parse_utc
from hpcbert.slurm.commands import JobRow
from hpcbert.slurm.state_sources import JobRecord
from hpcbert.slurm.states import parse_state
from hpcbert.system.grouping import group

Key = tuple[str, int]

# The submit host's clock and the controller's may differ by this many seconds. They are compared
# only for want of the controller's own time: of a job that it has not shown, and for sacct's -S.
CLOCK_SLACK = 7 * 86400.0


@dataclass(frozen=True)
class TrackedCampaign:
    """A campaign and its directory.

    Attributes:
        records: Status files, including this campaign's, each read once.
    """

    directory: Path
    campaign: Campaign
    records: Records = field(default_factory=Records, compare=False, repr=False)

    @cached_property
    def repeats(self) -> tuple[Repeat, ...]:
        """All its repeats, points in their order; each in its newest array."""
        return tuple(Repeat(self, array, number) for array, number in self.campaign.current)

    def record(self, array: Array, number: int) -> RepeatRecord:
        """Return the events of all attempts of one repeat."""
        return self.records.at(self.directory / array.status(number))

    @cached_property
    def since(self) -> float:
        """A time before which it can't have had a job, seconds since the epoch."""
        return max(0.0, (parse_utc(self.campaign.created) or 0.0) - CLOCK_SLACK)

    @cached_property
    def places(self) -> frozenset[str]:
        """The campaign's directory as Slurm may know it: its jobs were submitted from there."""
        paths = {str(self.directory), str(self.directory.absolute()), str(self.directory.resolve())}
        return frozenset(paths | {array.workdir for array in self.campaign.arrays if array.workdir})

    def owner_fits(self, row: JobRow) -> bool:
        """Return whether a job belongs to the submitter, by uid or else by user name."""
        if row.uid is not None and self.campaign.uid is not None:
            return row.uid == self.campaign.uid
        return row.user == self.campaign.user

    def find_labelled_array(self, row: JobRow) -> Array | None:
        """Return the array of a job, by its name, its comment or its script.

        Sites add to names, cut them or replace them; comment or script stay. A name is part of its
        retries' names, so the longest match counts.
        """
        for text in (row.name, row.comment):
            if text in self._names:
                return self._names[text]
            if self._common not in text:
                continue
            if names := [name for name in self._names if name in text]:
                return self._names[max(names, key=len)]
        for place in self.places:
            _, separator, text = f"{row.command.rstrip()} ".partition(f"{place}/")
            array = self._scripts.get(text.split(" ")[0])
            if separator and array:
                return array
        return None

    @cached_property
    def _scripts(self) -> dict[str, Array]:
        return {array.script: array for array in reversed(self.campaign.arrays)}

    @cached_property
    def _common(self) -> str:
        """How all names begin: with the campaign's, which most other jobs' don't have."""
        return os.path.commonprefix(list(self._names))  # noqa: RUF071 - names, not paths

    @cached_property
    def _names(self) -> dict[str, Array]:
        return {array.name: array for array in reversed(self.campaign.arrays)}

    @cached_property
    def arrays_of_job(self) -> Mapping[str, Sequence[Array]]:
        """The arrays that have a job's id on record."""
        return group((array.job_id, array) for array in self.campaign.arrays)

    @cached_property
    def arrays_of_repeat(self) -> Mapping[tuple[Point, int], Sequence[Array]]:
        """The arrays that each repeat was submitted in, oldest first, by point and number."""
        return group(
            ((array.point, number), array)
            for array in self.campaign.arrays
            for number in array.repeats
        )

    def find_array(self, row: JobRow) -> Array | None:
        """Return the array that a job was submitted for, even if submitted again by hand."""
        for array in self.arrays_of_job.get(row.job, ())[:1]:
            if self.is_job_of(row, array):
                return array
        label = self.find_labelled_array(row)
        if label is None or label.job_id == row.job:
            return None
        return label if self.is_job_of(row, replace(label, job_id="")) else None

    def is_job_of(self, row: JobRow, array: Array) -> bool:
        """Return whether a line is about an array's job, not another job with its id.

        A job is identified by cluster, id, the controller's time of its submission, and directory
        of submission. If the directory is unknown or another one, its owner must match, and its
        label; or, if it has none, what the controller showed when sbatch printed its id, or the id
        that the job itself recorded.
        """
        clusters = array.cluster.split(",")
        if row.cluster and array.cluster not in {"", "all"} and row.cluster not in clusters:
            return False
        if array.job_id and (row.job != array.job_id or self._is_earlier(row, array)):
            return False
        if array.job_id and row.workdir in self.places:
            return True
        fits = self.owner_fits(row) or row.workdir in self.places
        if label := self.find_labelled_array(row):
            return label.name == array.name and fits
        if not fits or not array.job_id:
            return False
        return array.is_described_by(row.name, row.workdir) or self.find_begun_job(array) == row.job

    def _is_earlier(self, row: JobRow, array: Array) -> bool:
        first = self.since if array.submit_time is None else array.submit_time
        return row.submit is not None and row.submit < first

    def find_begun_job(self, array: Array) -> str:
        """Return the id of the job that began a repeat by its own account; empty if none."""
        for number in array.repeats:
            for attempt, events in sorted(self.record(array, number).attempts.items()):
                for event in events:
                    # Events of a part name the undivided array.
                    name = str(event.get("array") or array.name)
                    is_own = array.name == name or array.name.startswith(f"{name}.p")
                    is_start = attempt >= array.first_attempt and event.get("event") == "start"
                    if is_own and is_start and event.get("job"):
                        return str(event["job"]).rpartition("_")[0]
        return ""


def open_campaign(directory: Path) -> TrackedCampaign:
    """Return a campaign to watch.

    Raises:
        UsageError: It has no manifest, or a damaged one.
    """
    return TrackedCampaign(directory, store.read_manifest(directory))


@dataclass(frozen=True)
class Repeat:
    """One repeat of a watched campaign."""

    watched: TrackedCampaign
    array: Array
    number: int

    @property
    def key(self) -> Key:
        """The name from its array and number, unique over campaigns."""
        return self.array.name, self.number

    @property
    def job_id(self) -> str:
        """Its id, `123_4`; empty until sbatch's answer is on disk."""
        return self.array.element(self.number)

    @property
    def index(self) -> int:
        """Its array index."""
        return self.number - self.array.offset

    @property
    def accepted(self) -> float:
        """When sbatch answered, seconds since the epoch; else the earliest possible time."""
        answered = parse_utc(self.array.submitted)
        return self.watched.since if answered is None else answered

    @property
    def tag(self) -> str:
        """Its id, unique over clusters too."""
        return f"{self.job_id};{self.array.cluster}" if self.array.cluster else self.job_id

    @cached_property
    def status(self) -> Path:
        """Where its jobs write its events, including jobs of earlier arrays."""
        return self.watched.directory / self.array.status(self.number)

    @property
    def printed(self) -> tuple[Path, ...]:
        """Possible paths of its job script's output: Slurm's, and the local queue's."""
        folder, array = self.watched.directory / "slurm", self.array
        text = f"{array.job_id}_{array.point.key}_{'all' if array.together else self.number}.out"
        return folder / f"{self.job_id}.out", folder / text

    def own_outputs(self, attempt: int) -> tuple[JobOutput, ...]:
        """Return an attempt's if its script ran only this repeat: else it may be another's."""
        paths = () if self.array.together else self.printed
        return tuple(JobOutput(path, attempt) for path in paths)

    @property
    def record(self) -> RepeatRecord:
        """The events that they wrote there."""
        return self.watched.records.at(self.status)

    @property
    def newest(self) -> JobRecord:
        """The record of its array's job about the newest attempt."""
        return self.record.newest(first=self.array.first_attempt)

    @property
    def before(self) -> tuple[Repeat, ...]:
        """The same repeat in the arrays that it was submitted in before, oldest first."""
        arrays = self.watched.arrays_of_repeat.get((self.array.point, self.number), ())
        names = [array.name for array in arrays]
        last = names.index(self.array.name) if self.array.name in names else len(names)
        return tuple(Repeat(self.watched, array, self.number) for array in arrays[:last])

    def was_replaced(self, attempt: int, row: JobRow) -> bool:
        """Return whether a line is about a requeued job that this one replaced."""
        elsewhere = bool(self.array.job_id) and row.job != self.array.job_id
        return elsewhere and attempt >= self.array.first_attempt

    def matches_row(self, row: JobRow) -> bool:
        """Return whether a line is about this repeat, in a job of its array."""
        return self.covers_row(row) and self.watched.is_job_of(row, self.array)

    def covers_row(self, row: JobRow) -> bool:
        """Return whether a line about its array or its shared job includes this repeat."""
        return bool(row.tasks) != self.array.together and row.covers(self.index)


class RowIndex:
    """Lines of sacct or squeue, indexed by repeat."""

    def __init__(self, rows: Iterable[JobRow] = ()) -> None:
        self._alone: dict[tuple[str, int | None], list[JobRow]] = {}
        self._spans: dict[str, list[JobRow]] = {}
        self._jobs: dict[tuple[str, str, str], JobRow] = {}
        for row in rows:
            self._jobs.setdefault((row.cluster, row.job, row.name), row)
            if len(row.tasks) > 1 or any(low != high for low, high, _ in row.tasks):
                self._spans.setdefault(row.job, []).append(row)
            else:
                index = row.tasks[0][0] if row.tasks else None
                self._alone.setdefault((row.job, index), []).append(row)
        self._found: dict[str, tuple[str, ...]] = {}

    def jobs(self, watched: TrackedCampaign, array: Array) -> tuple[str, ...]:
        """Return the ids of the jobs that may be an array's."""
        if array.job_id:
            return (array.job_id,)
        if array.name not in self._found:
            job_ids = [row.job for row in self._jobs.values() if watched.is_job_of(row, array)]
            self._found[array.name] = tuple(dict.fromkeys(job_ids))
        return self._found[array.name]

    def newest(self, repeat: Repeat) -> tuple[JobRow | None, int]:
        """Return the line of a repeat's newest run, and the number of earlier runs."""
        runs = self.runs(repeat)
        return (runs[-1], len(runs) - 1) if runs else (None, 0)

    def runs(self, repeat: Repeat) -> tuple[JobRow, ...]:
        """Return the lines of a repeat's runs, oldest first.

        A requeued job has one line per run, each with its own time of submission. While an array
        unfolds, sacct may list an index twice: in the range of waiting ones, and alone, which is
        then right. For a federation's job, each sibling cluster may have a line; those that gave
        it up say REVOKED.
        """
        index = None if repeat.array.together else repeat.index
        jobs = self.jobs(repeat.watched, repeat.array)
        runs = [row for job in jobs for row in self._alone.get((job, index), ())]
        runs = [row for row in runs if repeat.matches_row(row)]
        if not runs:
            spans = [row for job in jobs for row in self._spans.get(job, ())]
            runs = [row for row in spans if repeat.matches_row(row)]
        runs = [row for row in runs if parse_state(row.state).word != "REVOKED"] or runs
        job_rows = {row.submit: row for row in runs}
        return tuple(sorted(job_rows.values(), key=lambda row: row.submit or 0.0))

    def attempts(self, repeat: Repeat) -> tuple[tuple[int, JobRow], ...]:
        """Return the lines of all attempts of a repeat, each with its number.

        Lines of the jobs that it was submitted in before are included.
        """
        return tuple(
            numbered
            for submission in (*repeat.before, repeat)
            for numbered in enumerate(self.runs(submission), start=submission.array.first_attempt)
        )
