"""The logs of a point as its runs: numbered, of one experiment, each once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from hpcbert.campaign.duplicates import ComparedRun, make_log_sample, refuse_run, refuse_unlike_runs
from hpcbert.campaign.fingerprint import NodeSample
from hpcbert.errors import UsageError
from hpcbert.logs.layout import LogFile, natural_key, printable_path
from hpcbert.logs.scan import Reading
from hpcbert.logs.setting import LABELS
from hpcbert.model import Counted, Group, Measured, Point, Reason, Run, Shape
from hpcbert.results.reduce import FOREIGN, Evidence, find_invalid_reasons

# A larger number in a file's name is a date or a seed, not the number of a run.
_MAX_RUNS = 100


class ReadLog(NamedTuple):
    """One log, read.

    Attributes:
        framework: Name of the recipe that reads it.
        rule: Name of the rule.
    """

    log: LogFile
    framework: str
    model: str
    rule: str
    reading: Reading

    @property
    def valid(self) -> bool:
        """Whether it has a throughput so far."""
        return not self.reading.reasons


class NumberedLogs(NamedTuple):
    """The logs of a point by repeat."""

    group: Group
    shape: Shape
    counted: Counted
    reads: dict[int, ReadLog]


def number_logs(reads: Sequence[ReadLog], *, as_repeats: bool) -> dict[int, ReadLog]:
    """Return a point's logs by repeat, from 1; of several attempts the last valid one is used.

    OneFlow numbers its runs from 0. Logs without a number, or from several places, are numbered
    in natural order.

    Args:
        reads: The logs.
        as_repeats: Whether the user states that all of them are repeats.

    Raises:
        UsageError: Two logs are the same attempt of the same repeat, or nothing says that they
            are repeats.
    """
    ordered = sorted(reads, key=lambda read: natural_key(str(read.log.path)))
    for read in () if as_repeats else ordered[1:]:
        if not are_numbered(ordered[0], read):
            raise UsageError(
                f"{_name_both(ordered[0], read)} are of one point, and nothing says that they are "
                "repeats of one experiment.",
                hint="If they are, number them by {repeat} in --pattern, or give --as-repeats. "
                "If not, name in --pattern what differs, or collect them separately.",
            )
    numbers = [read.log.repeat or 0 for read in ordered]
    is_ambiguous = any(read.log.name for read in ordered) and len(set(numbers)) < len(numbers)
    if all(are_numbered(ordered[0], read) for read in ordered) and not is_ambiguous:
        shift = 0 if min(numbers) else 1
        return _by_number(ordered, [number + shift for number in numbers])
    runs = [(read.log.place, read.log.repeat, _unnumbered_path(read)) for read in ordered]
    places = {run: number for number, run in enumerate(dict.fromkeys(runs), start=1)}
    return _by_number(ordered, [places[run] for run in runs])


def _unnumbered_path(read: ReadLog) -> Path | None:
    return read.log.path if read.log.repeat is None or read.log.name else None


def are_numbered(read: ReadLog, other: ReadLog) -> bool:
    """Return whether two logs lie in one place and have numbers in their names."""
    is_numbered = None not in (read.log.repeat, other.log.repeat) or is_numbered_by_job(read)
    return read is other or (is_numbered and read.log.place == other.log.place)


def is_numbered_by_job(read: ReadLog) -> bool:
    """Return whether the name differs from those of its series by a number, as Slurm's do."""
    name = read.log.name
    return name is not None and not name.is_numbered and "#" in name.form


def _name_both(read: ReadLog, other: ReadLog) -> str:
    return f"{printable_path(read.log.path)} and {printable_path(other.log.path)}"


def _is_numbered(read: ReadLog) -> bool:
    """Return whether a documented layout numbers its whole runs, as MLPerf's does."""
    return read.log.name is not None and read.log.name.is_numbered


def _by_number(reads: Sequence[ReadLog], numbers: Sequence[int]) -> dict[int, ReadLog]:
    numbered: dict[int, list[ReadLog]] = {}
    for number, read in sorted(zip(numbers, reads, strict=True), key=itemgetter(0)):
        numbered.setdefault(number, []).append(read)
    attempts = {number: _choose_attempt(number, same) for number, same in numbered.items()}
    return _refuse_early_ends(attempts)


def _refuse_early_ends(reads: dict[int, ReadLog]) -> dict[int, ReadLog]:
    """Refuse runs that were counted to their end and ended before others of their point.

    A log that states the run's end is whole: runs to convergence differ in length.
    """
    last = max((read.reading.last for read in reads.values() if read.valid), default=0)
    return {repeat: _refuse_early_end(read, last) for repeat, read in reads.items()}


def _refuse_early_end(read: ReadLog, last: int) -> ReadLog:
    reading = read.reading
    if reading.closed or not (read.valid and 0 < reading.last < last):
        return read
    detail = f"the log ends at iteration {reading.last}, that of another repeat at {last}"
    reasons = (Reason("incomplete", detail),)
    return read._replace(reading=reading._replace(throughput=None, reasons=reasons))


def _choose_attempt(repeat: int, reads: list[ReadLog]) -> ReadLog:
    if len(reads) == 1:
        return reads[0]
    by_attempt: dict[int, ReadLog] = {}
    for read in reads:
        other = by_attempt.setdefault(read.log.attempt, read)
        if other is not read:
            raise UsageError(
                f"{_name_both(other, read)} are both repeat {repeat} of one point.",
                hint="Collect them one after the other, or distinguish them with --pattern.",
            )
    newest_first = [by_attempt[number] for number in sorted(by_attempt, reverse=True)]
    return next((read for read in newest_first if read.valid), newest_first[0])


def join_points(
    points: dict[tuple[Point, str], list[ReadLog]],
) -> dict[tuple[Point, str], list[ReadLog]]:
    """Join points that differ only in accumulation or length, if names say they are runs of one."""
    joined: dict[tuple[Point, str], list[ReadLog]] = {}
    similar_points: dict[tuple[Point, str], list[tuple[Point, str]]] = {}
    for (point, rule), reads in points.items():
        base = replace(point, accumulation=1, options=())
        similar = similar_points.setdefault((base, rule), [])
        key = next(
            (candidate for candidate in similar if _are_runs_of_one(joined[candidate], reads)),
            (point, rule),
        )
        similar += [] if key in joined else [key]
        joined.setdefault(key, []).extend(reads)
    return joined


def _are_runs_of_one(first_reads: list[ReadLog], other_reads: list[ReadLog]) -> bool:
    """Return whether names differ only in the run's number, and no number repeats."""
    places = [
        {read.log._replace(path=read.log.path.parent, repeat=None, attempt=0) for read in reads}
        for reads in (first_reads, other_reads)
    ]
    numbers = [{read.log.repeat for read in reads} for reads in (first_reads, other_reads)]
    return bool(places[0] & places[1]) and not numbers[0] & numbers[1] and None not in numbers[0]


def make_points(
    points: Sequence[NumberedLogs],
) -> tuple[tuple[Measured, tuple[NodeSample, ...]], ...]:
    """Make points from their logs, with the facts from the logs of valid runs."""
    accounts = [
        [_make_account(point.shape, number, read) for number, read in point.reads.items()]
        for point in points
    ]
    verdicts = refuse_unlike_runs(accounts, keep_first=True)
    measured = []
    for point, verdict, point_accounts in zip(points, verdicts, accounts, strict=True):
        reads = point.reads.values()
        runs = _without_overlaps(verdict, [*reads])
        all_runs = _with_gaps(runs) if _numbers_are_complete(reads) else runs
        measured_point = Measured(
            group=point.group,
            shape=point.shape,
            asked=len(all_runs),
            runs=all_runs,
            flags=tuple(name for name, holds in _FLAGS.items() if any(map(holds, reads))),
            counted=point.counted,
            unchecked=_list_unchecked(reads),
            steps=tuple(
                (run.repeat, read.reading.steps)
                for run, read in zip(runs, reads, strict=True)
                if run.valid and read.reading.steps
            ),
        )
        pairs = zip(runs, point_accounts, strict=True)
        node_samples = (sample for run, account in pairs if run.valid for sample in account.samples)
        measured.append((measured_point, tuple(node_samples)))
    return tuple(measured)


def _without_overlaps(runs: Sequence[Run], reads: Sequence[ReadLog]) -> tuple[Run, ...]:
    """Refuse runs that were measured at the same time: one run's ranks, or runs that interfered."""
    valid = [index for index, run in enumerate(runs) if run.valid]
    overlapping: dict[int, int] = {}
    for index, other in combinations(valid, 2):
        spans = reads[index].reading.measured, reads[other].reading.measured
        if spans[0].overlaps(spans[1], are_whole=_is_numbered(reads[index])):
            overlapping.setdefault(index, other)
            overlapping.setdefault(other, index)
    return tuple(
        refuse_run(run, _overlap_reason(reads[overlapping[index]])) if index in overlapping else run
        for index, run in enumerate(runs)
    )


def _overlap_reason(other: ReadLog) -> Reason:
    path = printable_path(other.log.path)
    detail = (
        f"{path} was measured at the same time: logs of several ranks are one run, and runs that "
        "share nodes slow each other down"
    )
    return Reason("shared-nodes", detail)


def _make_account(shape: Shape, number: int, read: ReadLog) -> ComparedRun:
    facts = dict(read.reading.stated_facts)
    if read.reading.setting.accumulation:
        facts["accumulation"] = read.reading.setting.accumulation
    node_samples = (make_log_sample(str(shape), number, facts),)
    run, beginning = _make_run(number, read), read.reading.beginning
    return ComparedRun(str(shape), run, read.log.path, node_samples, beginning)


def _numbers_are_complete(reads: Iterable[ReadLog]) -> bool:
    """Return whether a missing number is a missing run: not in a name without a documented form."""
    return all(read.log.name is None or read.log.name.is_numbered for read in reads)


def _with_gaps(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """Return the runs of a point; a gap in the numbers is a missing run."""
    runs_by_number = {run.repeat: run for run in runs}
    highest = max(runs_by_number)
    if not 1 < len(runs_by_number) < highest <= _MAX_RUNS:
        return runs
    return tuple(
        runs_by_number.get(number) or _make_missing_run(number) for number in range(1, highest + 1)
    )


_FLAGS: dict[str, Callable[[ReadLog], bool]] = {
    "accumulation": lambda read: (read.reading.setting.accumulation or 1) > 1,
    "unchecked": lambda read: bool(read.valid and read.reading.unchecked),
}


def _list_unchecked(reads: Iterable[ReadLog]) -> tuple[str, ...]:
    """Return the labels that a valid log of the point does not confirm."""
    labels = {label for read in reads if read.valid for label in read.reading.unchecked}
    return tuple(label for label in LABELS if label in labels)


def _make_run(number: int, read: ReadLog) -> Run:
    reasons = find_invalid_reasons(
        Evidence(state=FOREIGN, exit_code=None, log=read.reading.reasons)
    )
    return Run(
        repeat=number,
        attempt=read.log.attempt,
        throughput=None if reasons else read.reading.throughput,
        valid=not reasons,
        reasons=reasons,
        state=FOREIGN,
        state_source="none",
        log=printable_path(read.log.path),
        flags=read.reading.flags,
        notes=read.reading.notes,
    )


def _make_missing_run(number: int) -> Run:
    detail = f"there are logs of higher numbers, but none of run {number}"
    return Run(number, 0, None, False, (Reason("no-log", detail),), FOREIGN, "none", "")
