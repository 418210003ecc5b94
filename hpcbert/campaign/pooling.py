"""The logs of a point as its runs: numbered, of one experiment, each once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from hpcbert.campaign.duplicates import ComparedRun, make_log_sample, refuse_run, refuse_unlike_runs
from hpcbert.campaign.fingerprint import NodeSample
from hpcbert.errors import UsageError
from hpcbert.logs.layout import LogFile, experiment_folder, natural_key, printable_path
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
    return f"{_name(read)} and {_name(other)}"


def _name(read: ReadLog) -> str:
    return printable_path(read.log.path)


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
    copies: dict[int, int] = {}
    for index, other in combinations(valid, 2):
        spans = reads[index].reading.measured, reads[other].reading.measured
        if spans[0].end and spans[0][:2] == spans[1][:2] and _is_numbered(reads[index]):
            copies.setdefault(other, index)
        elif spans[0].overlaps(spans[1], are_whole=_is_numbered(reads[index])):
            overlapping.setdefault(index, other)
            overlapping.setdefault(other, index)
    reasons = {
        **{index: _overlap_reason(reads[other]) for index, other in overlapping.items()},
        **{index: _copy_reason(reads[first]) for index, first in copies.items()},
    }
    return tuple(
        refuse_run(run, reasons[index]) if index in reasons else run
        for index, run in enumerate(runs)
    )


def _copy_reason(first: ReadLog) -> Reason:
    detail = f"its window begins and ends at the same times as that of {_name(first)}: one run"
    return Reason("duplicate", detail)


def _overlap_reason(other: ReadLog) -> Reason:
    detail = (
        f"{_name(other)} was measured at the same time: logs of several ranks are one run, and "
        "runs that share nodes slow each other down"
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


# --- Logs of one point that come from several systems or experiments ------------------------------

_RESULT = "result"
# MLPerf's name of the benchmark, below a system's folder.
_BENCHMARK = "bert"

_Key = tuple[Point, str]


class Series(NamedTuple):
    """The logs that may be of one experiment: in one folder, of one form."""

    folder: Path
    form: str


def separate_systems(
    points: Mapping[_Key, list[ReadLog]], *, is_one_folder: bool
) -> dict[_Key, list[ReadLog]]:
    """Return points whose logs come from one system each, named in the point's options.

    Logs of DLPerf's names with different numbers, or in folders that the user named, stay together:
    nothing says whether they are one experiment, and numbering refuses them.
    """
    separated: dict[_Key, list[ReadLog]] = {}
    for framework in dict.fromkeys(point.framework for point, _ in points):
        own_points = {key: reads for key, reads in points.items() if key[0].framework == framework}
        labels = _label_series(own_points, is_one_folder=is_one_folder)
        for (point, rule), reads in own_points.items():
            for read in reads:
                label = labels.get(_find_series(read.log), "")
                options = (*point.options, ("system", label)) if label else point.options
                system_point = replace(point, options=options)
                separated.setdefault((system_point, rule), []).append(read)
    return separated


def are_tasks(reads: Sequence[ReadLog]) -> bool:
    """Return whether logs whose names have the form `%x_%j_%t` are of one run's tasks."""
    if reads[0].log.task:
        return False
    first_span = reads[0].reading.measured
    spans = [read.reading.measured for read in reads[1:] if read.valid]
    return first_span.end is None or all(map(first_span.overlaps, spans))


def _label_series(
    points: Mapping[_Key, Sequence[ReadLog]], *, is_one_folder: bool
) -> dict[Series, str]:
    """Return a label for each series; none if no point has logs of several."""
    series = dict.fromkeys(_find_series(read.log) for reads in points.values() for read in reads)
    results = [entry for entry in series if entry.form == _RESULT]
    is_shared = any(_is_shared(reads, is_one_folder=is_one_folder) for reads in points.values())
    if len(results) < 2 and not is_shared and not _is_curve_shared(points):  # noqa: PLR2004
        return {}
    folders = {entry.folder for entry in series}
    forms = {
        folder: {entry.form for entry in series if entry.folder == folder} for folder in folders
    }
    root = os.path.commonpath([entry.folder for entry in series])
    labels = {}
    for entry in series:
        words = [entry.folder.name if entry.folder == Path(root) else _relative(entry.folder, root)]
        has_forms = len(forms[entry.folder]) > 1
        words = words if len(folders) > 1 or not has_forms else []
        parts = filter(None, entry.form.replace("#", "").split("_"))
        words += ["_".join(parts)] if has_forms else []
        labels[entry] = "/".join(words).replace(",", "_")
    return labels


def _relative(folder: Path, root: str) -> str:
    """Return a system's folder below the common one, without MLPerf's `results`."""
    return "/".join(part for part in folder.relative_to(root).parts if part != "results")


def _is_curve_shared(points: Mapping[_Key, Sequence[ReadLog]]) -> bool:
    """Return whether a speedup would compare logs of several folders without documented form."""
    folders: dict[_Key, set[Path]] = {}
    for (point, rule), reads in points.items():
        curve = replace(point, shape=Shape(1, 1), accumulation=1), rule
        series = (_find_series(read.log) for read in reads if read.log.name)
        folders.setdefault(curve, set()).update(entry.folder for entry in series)
    return any(len(curve_folders) > 1 for curve_folders in folders.values())


def _is_shared(reads: Sequence[ReadLog], *, is_one_folder: bool) -> bool:
    """Return whether logs of one point are certainly of several experiments."""
    numbers: dict[Series, set[int | None]] = {}
    for read in reads:
        numbers.setdefault(_find_series(read.log), set()).add(read.log.repeat)
    if len(numbers) == 1:
        return False
    all_numbers = [number for group in numbers.values() for number in group]
    is_disjoint = None not in all_numbers and len(set(all_numbers)) == len(all_numbers)
    return (is_one_folder and not is_disjoint) or any(read.log.name for read in reads)


def _find_series(log: LogFile) -> Series:
    folder = experiment_folder(log.path.absolute())
    if log.name is None:
        return Series(folder, "")
    if log.name.form == _RESULT and folder.name.lower().startswith(_BENCHMARK):
        folder = folder.parent
    return Series(folder, log.name.form)
