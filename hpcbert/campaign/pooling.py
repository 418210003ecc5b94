"""Which runs are repeats of one point: numbered, of one system and one experiment, each once.

Copies of a log, and other experiments, are refused. If runs differ in what makes an experiment, all
are invalid, even the majority: nothing says which of them the row is about. A median over them
would describe neither.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import combinations
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from hpcbert.campaign.fingerprint import LOG, Fingerprint, NodeSample, find_differences_within
from hpcbert.errors import UsageError
from hpcbert.logs.layout import LogFile, experiment_folder, natural_key, printable_path
from hpcbert.logs.lines import BEGINNING, NotALogError, checksum_beginning, read_pieces
from hpcbert.logs.scan import Reading
from hpcbert.logs.setting import LABELS
from hpcbert.model import Measured, Point, Reason, Run, Shape
from hpcbert.results.reduce import FOREIGN, Evidence, find_invalid_reasons

# A larger number in a file's name is a date or a seed, not the number of a run.
_MAX_RUNS = 100


# --- Copies, and other experiments ----------------------------------------------------------------


class ComparedRun(NamedTuple):
    """A run, and what distinguishes it from others.

    Attributes:
        point: Its point, for messages.
        log: The path of its log.
        samples: What its log and its nodes say about the experiment.
        beginning: Of its log, as `lines.checksum_beginning` returns it; None if unknown.
    """

    point: str
    run: Run
    log: Path
    samples: tuple[NodeSample, ...]
    beginning: int | None = None


def make_log_sample(point: str, repeat: int, facts: Mapping[str, int | str]) -> NodeSample:
    """Return the facts in a run's log, in the form in which nodes are compared."""
    texts = {name: str(value) for name, value in facts.items()}
    return NodeSample(point, repeat, Fingerprint((), texts, frozenset({LOG})))


def refuse_run(run: Run, reason: Reason) -> Run:
    """Return a run without its number, with the reason."""
    return replace(run, throughput=None, valid=False, reasons=(*run.reasons, reason))


def refuse_unlike_runs(
    points: Sequence[Sequence[ComparedRun]], *, keep_first: bool
) -> list[tuple[Run, ...]]:
    """Return every point's runs, refusing those that are not repeats of the others.

    Args:
        keep_first: Whether the first of several equal logs of one point stays valid: they are one
            run. If each log belongs to a job, it is unknown which job wrote it, and none is valid.
    """
    copies = _find_copies(points, keep_first=keep_first)
    verdicts = []
    for point in points:
        compared = [entry for entry in point if entry.run.valid and id(entry.run) not in copies]
        differing = find_differences_within(
            sample for account in compared for sample in _merge_nodes(account)
        )
        decisive = [str(difference) for difference in differing if difference.decisive]
        incomparable = Reason("incomparable", "; ".join(decisive)) if decisive else None
        runs = []
        for account in point:
            run, reason = account.run, copies.get(id(account.run)) or incomparable
            runs.append(refuse_run(run, reason) if run.valid and reason else run)
        verdicts.append(tuple(runs))
    return verdicts


def _merge_nodes(account: ComparedRun) -> tuple[NodeSample, ...]:
    """Return the facts of a run's log and of all its nodes together.

    Nodes of one run may be of several kinds, if those of the other runs are too.
    """
    logs = [sample for sample in account.samples if LOG in sample.fingerprint.scopes]
    nodes = [sample for sample in account.samples if LOG not in sample.fingerprint.scopes]
    values: dict[str, set[str]] = {}
    for sample in nodes:
        for name, value in sample.fingerprint.facts.items():
            values.setdefault(name, set()).add(value)
    facts = {name: " and ".join(sorted(texts)) for name, texts in values.items()}
    return (*logs, NodeSample(account.point, account.run.repeat, Fingerprint((), facts)))


def _find_copies(points: Sequence[Sequence[ComparedRun]], *, keep_first: bool) -> dict[int, Reason]:
    """Return the reasons against valid runs with equal logs, by `id()` of the run."""
    # Points of one shape can differ in precision, batch size or model.
    places = {id(account.run): place for place, point in enumerate(points) for account in point}
    valid = [account for point in points for account in point if account.run.valid]
    by_beginning: dict[int, list[ComparedRun]] = {}
    for account in valid:
        beginning = account.beginning
        beginning = _hash_beginning(account.log) if beginning is None else beginning
        by_beginning.setdefault(beginning, []).append(account)
    by_content: dict[bytes, list[ComparedRun]] = {}
    for beginning, alike in by_beginning.items():
        for account in alike if beginning and len(alike) > 1 else ():
            by_content.setdefault(_hash_log(account.log), []).append(account)
    reasons: dict[int, Reason] = {}
    for content, equal in by_content.items():
        is_kept = keep_first and len({places[id(account.run)] for account in equal}) == 1
        for number, account in enumerate(equal if content and len(equal) > 1 else ()):
            if number or not is_kept:
                other = equal[0] if number else equal[1]
                name = f"{other.point} repeat {other.run.repeat}, {printable_path(other.log)}"
                detail = f"the log is a byte-for-byte copy of {name}"
                reasons[id(account.run)] = Reason("duplicate", detail)
    return reasons


def is_same_log(path: Path, other: Path) -> bool:
    """Return whether two logs are equal when they are unpacked."""
    beginning = _hash_beginning(path)
    if not beginning or beginning != _hash_beginning(other):
        return False
    return _hash_log(path) == _hash_log(other)


def _hash_beginning(log: Path) -> int:
    """Return the checksum of a log's beginning, unpacked; 0 if it can't be read."""
    content = b""
    with suppress(NotALogError), closing(read_pieces(log, BEGINNING)) as pieces:
        for piece in pieces:
            content += piece
            if len(content) >= BEGINNING:
                break
        return checksum_beginning(content)
    return 0


def _hash_log(log: Path) -> bytes:
    """Return the SHA-256 of a whole log, unpacked; empty if it can't be read."""
    digest = hashlib.sha256()
    with suppress(NotALogError), closing(read_pieces(log)) as pieces:
        for piece in pieces:
            digest.update(piece)
        return digest.digest()
    return b""


# --- The repeats of a point -----------------------------------------------------------------------


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

    @property
    def name(self) -> str:
        """Its path, for messages."""
        return printable_path(self.log.path)

    def refuse(self, code: str, detail: str) -> ReadLog:
        """Return it without its number, with the only reason."""
        reading = self.reading._replace(throughput=None, reasons=(Reason(code, detail),))
        return self._replace(reading=reading)


PointLogs = Mapping[tuple[Point, str], list[ReadLog]]


def number_logs(reads: Sequence[ReadLog], *, as_repeats: bool) -> dict[int, ReadLog]:
    """Return a point's logs by repeat, from 1; of several attempts the last valid one is used.

    OneFlow numbers its runs from 0. Logs without a number, or from several places, are numbered
    in natural order.

    Raises:
        UsageError: Two logs are the same attempt of the same repeat, or nothing says that they
            are repeats.
    """
    ordered = sorted(reads, key=lambda read: natural_key(str(read.log.path)))
    unnumbered = [read for read in ordered if not are_numbered(ordered[0], read)]
    if unnumbered and not as_repeats:
        raise UsageError(
            f"{ordered[0].name} and {unnumbered[0].name} are of one point, and nothing says that "
            "they are repeats of one experiment.",
            hint="If they are, number them by {repeat} in --pattern, or give --as-repeats. "
            "If not, name in --pattern what differs, or collect them separately.",
        )
    numbers = [read.log.repeat or 0 for read in ordered]
    is_ambiguous = any(read.log.name for read in ordered) and len(set(numbers)) < len(numbers)
    if not unnumbered and not is_ambiguous:
        shift = 0 if min(numbers) else 1
        numbers = [number + shift for number in numbers]
    else:
        runs: list[tuple[object, ...]] = []
        for read in ordered:
            is_alone = read.log.repeat is None or read.log.name
            runs.append((read.log.place, read.log.repeat, read.log.path if is_alone else None))
        places = {run: number for number, run in enumerate(dict.fromkeys(runs), start=1)}
        numbers = [places[run] for run in runs]
    numbered: dict[int, list[ReadLog]] = {}
    for number, read in sorted(zip(numbers, ordered, strict=True), key=itemgetter(0)):
        numbered.setdefault(number, []).append(read)
    attempts = {number: _choose_attempt(number, same) for number, same in numbered.items()}
    return _refuse_early_ends(attempts)


def are_numbered(read: ReadLog, other: ReadLog) -> bool:
    """Return whether two logs lie in one place and have numbers in their names."""
    is_numbered = None not in (read.log.repeat, other.log.repeat) or is_numbered_by_job(read)
    return read is other or (is_numbered and read.log.place == other.log.place)


def is_numbered_by_job(read: ReadLog) -> bool:
    """Return whether the name differs from those of its series by a number, as Slurm's do."""
    name = read.log.name
    return name is not None and not name.is_numbered and "#" in name.form


def _choose_attempt(repeat: int, reads: list[ReadLog]) -> ReadLog:
    by_attempt: dict[int, ReadLog] = {}
    for read in reads:
        other = by_attempt.setdefault(read.log.attempt, read)
        if other is not read:
            raise UsageError(
                f"{other.name} and {read.name} are both repeat {repeat} of one point.",
                hint="Collect them one after the other, or distinguish them with --pattern.",
            )
    newest_first = [by_attempt[number] for number in sorted(by_attempt, reverse=True)]
    return next((read for read in newest_first if read.valid), newest_first[0])


def _refuse_early_ends(reads: dict[int, ReadLog]) -> dict[int, ReadLog]:
    """Refuse runs that were counted to their end and ended before others of their point.

    A log that states the run's end is whole: runs to convergence differ in length.
    """
    last = max((read.reading.last for read in reads.values() if read.valid), default=0)
    checked = {}
    for repeat, read in reads.items():
        end = read.reading.last
        is_early = read.valid and not read.reading.closed and 0 < end < last
        detail = f"the log ends at iteration {end}, that of another repeat at {last}"
        checked[repeat] = read.refuse("incomplete", detail) if is_early else read
    return checked


def join_points(points: PointLogs) -> PointLogs:
    """Join points that differ only in accumulation or length, if names say they are runs of one."""
    joined: dict[tuple[Point, str], list[ReadLog]] = {}
    similar_points: dict[tuple[Point, str], list[tuple[Point, str]]] = {}
    for (point, rule), reads in points.items():
        base = replace(point, accumulation=1, options=())
        similar = similar_points.setdefault((base, rule), [])
        keys = [key for key in similar if _are_runs_of_one(joined[key], reads)]
        key = keys[0] if keys else (point, rule)
        similar += [] if keys else [key]
        joined.setdefault(key, []).extend(reads)
    return joined


def _are_runs_of_one(reads: Sequence[ReadLog], new_reads: Sequence[ReadLog]) -> bool:
    """Return whether names differ only in the run's number, and no number repeats."""
    places, numbers = [], []
    for part in (reads, new_reads):
        logs = [read.log for read in part]
        places.append({log._replace(path=log.path.parent, repeat=None, attempt=0) for log in logs})
        numbers.append({log.repeat for log in logs})
    return bool(places[0] & places[1]) and not numbers[0] & numbers[1] and None not in numbers[0]


# --- A point from its logs ------------------------------------------------------------------------


def make_points(
    points: Sequence[tuple[Measured, Mapping[int, ReadLog]]],
) -> tuple[tuple[Measured, tuple[NodeSample, ...]], ...]:
    """Give points the runs of their logs; return them with the facts of valid runs.

    Args:
        points: Points without runs, and their logs by repeat.
    """
    accounts = [
        [_make_account(str(point.shape), number, read) for number, read in reads.items()]
        for point, reads in points
    ]
    verdicts = refuse_unlike_runs(accounts, keep_first=True)
    measured = []
    for (point, numbered), verdict, compared in zip(points, verdicts, accounts, strict=True):
        reads = [*numbered.values()]
        runs = _refuse_overlaps(verdict, reads)
        valid = [
            (run, read, account.samples)
            for run, read, account in zip(runs, reads, compared, strict=True)
            if run.valid
        ]
        # A missing number is a missing run: not in a name without a documented form.
        is_complete = all(read.log.name is None or read.log.name.is_numbered for read in reads)
        all_runs = _fill_gaps(runs) if is_complete else runs
        labels = {label for read in reads if read.valid for label in read.reading.unchecked}
        flags = {
            "accumulation": any((read.reading.setting.accumulation or 1) > 1 for read in reads),
            "unchecked": bool(labels),
        }
        steps = [(run.repeat, read.reading.steps) for run, read, _ in valid if read.reading.steps]
        measured_point = replace(
            point,
            asked=len(all_runs),
            runs=all_runs,
            flags=tuple(flag for flag, is_set in flags.items() if is_set),
            unchecked=tuple(label for label in LABELS if label in labels),
            steps=tuple(steps),
        )
        samples = (sample for _, _, run_samples in valid for sample in run_samples)
        measured.append((measured_point, tuple(samples)))
    return tuple(measured)


def _make_account(point: str, number: int, read: ReadLog) -> ComparedRun:
    reading = read.reading
    facts = dict(reading.stated_facts)
    if reading.setting.accumulation:
        facts["accumulation"] = reading.setting.accumulation
    evidence = Evidence(state=FOREIGN, exit_code=None, log=reading.reasons)
    reasons = find_invalid_reasons(evidence)
    run = Run(
        repeat=number,
        attempt=read.log.attempt,
        throughput=None if reasons else reading.throughput,
        valid=not reasons,
        reasons=reasons,
        state=FOREIGN,
        state_source="none",
        log=read.name,
        flags=reading.flags,
        notes=reading.notes,
    )
    samples = (make_log_sample(point, number, facts),)
    return ComparedRun(point, run, read.log.path, samples, reading.beginning)


def _refuse_overlaps(runs: Sequence[Run], reads: Sequence[ReadLog]) -> tuple[Run, ...]:
    """Refuse runs that were measured at the same time: one run's ranks, or runs that interfered."""
    valid = [index for index, run in enumerate(runs) if run.valid]
    copies: dict[int, Reason] = {}
    overlaps: dict[int, Reason] = {}
    for index, other in combinations(valid, 2):
        name = reads[index].log.name
        # A documented layout, such as MLPerf's, numbers whole runs.
        is_whole = name is not None and name.is_numbered
        span, other_span = reads[index].reading.measured, reads[other].reading.measured
        if span.end and span[:2] == other_span[:2] and is_whole:
            detail = f"its window begins and ends at the same times as that of {reads[index].name}"
            copies.setdefault(other, Reason("duplicate", f"{detail}: one run"))
        elif span.overlaps(other_span, are_whole=is_whole):
            for first, second in ((index, other), (other, index)):
                if first in overlaps:
                    continue
                detail = (
                    f"{reads[second].name} was measured at the same time: logs of several ranks "
                    "are one run, and runs that share nodes slow each other down"
                )
                overlaps[first] = Reason("shared-nodes", detail)
    reasons = overlaps | copies
    return tuple(
        refuse_run(run, reasons[index]) if index in reasons else run
        for index, run in enumerate(runs)
    )


def _fill_gaps(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """Return the runs of a point; a gap in the numbers is a missing run."""
    runs_by_number = {run.repeat: run for run in runs}
    highest = max(runs_by_number)
    if not 1 < len(runs_by_number) < highest <= _MAX_RUNS:
        return runs
    for number in range(1, highest + 1):
        detail = f"there are logs of higher numbers, but none of run {number}"
        reasons = (Reason("no-log", detail),)
        missing = Run(number, 0, None, False, reasons, FOREIGN, "none", "")
        runs_by_number.setdefault(number, missing)
    return tuple(runs_by_number[number] for number in sorted(runs_by_number))


# --- Logs of one point that come from several systems or experiments ------------------------------

_RESULT = "result"
# MLPerf's name of the benchmark, below a system's folder.
_BENCHMARK = "bert"
# The logs that may be of one experiment: those of one form in one folder.
_Series = tuple[Path, str]


def separate_systems(points: PointLogs, *, is_one_folder: bool) -> PointLogs:
    """Return points whose logs come from one system each, named in the point's options.

    Logs of DLPerf's names with different numbers, or in folders that the user named, stay together:
    nothing says whether they are one experiment, and numbering refuses them.
    """
    separated: dict[tuple[Point, str], list[ReadLog]] = {}
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


def _label_series(points: PointLogs, *, is_one_folder: bool) -> dict[_Series, str]:
    """Return a label for each series; none if no point has logs of several."""
    forms: dict[Path, list[str]] = {}
    curves: dict[tuple[Point, str], set[Path]] = {}
    is_shared = False
    for (point, rule), reads in points.items():
        is_shared = is_shared or _is_shared(reads, is_one_folder=is_one_folder)
        curve = replace(point, shape=Shape(1, 1), accumulation=1), rule
        for read in reads:
            folder, form = _find_series(read.log)
            forms.setdefault(folder, []).append(form)
            if read.log.name:
                curves.setdefault(curve, set()).add(folder)
    has_results = sum(_RESULT in folder_forms for folder_forms in forms.values()) > 1
    # A speedup would compare logs of several folders without a documented form.
    is_curve_shared = any(len(folders) > 1 for folders in curves.values())
    if not (has_results or is_shared or is_curve_shared):
        return {}
    root = Path(os.path.commonpath(forms))
    labels = {}
    for folder, folder_forms in forms.items():
        # A system's folder below the common one, without MLPerf's `results`.
        parts = [part for part in folder.relative_to(root).parts if part != "results"]
        path = "/".join(parts) if folder != root else folder.name
        has_forms = len(set(folder_forms)) > 1
        for form in dict.fromkeys(folder_forms):
            words = [path] if len(forms) > 1 or not has_forms else []
            word = "_".join(filter(None, form.replace("#", "").split("_")))
            words += [word] if has_forms else []
            labels[folder, form] = "/".join(words).replace(",", "_")
    return labels


def _is_shared(reads: Collection[ReadLog], *, is_one_folder: bool) -> bool:
    """Return whether logs of one point are certainly of several experiments."""
    pairs = {(_find_series(read.log), read.log.repeat) for read in reads}
    if len({series for series, _ in pairs}) == 1:
        return False
    numbers = [number for _, number in pairs]
    is_disjoint = None not in numbers and len(set(numbers)) == len(numbers)
    return (is_one_folder and not is_disjoint) or any(read.log.name for read in reads)


def _find_series(log: LogFile) -> _Series:
    folder = experiment_folder(log.path.absolute())
    if log.name is None:
        return folder, ""
    if log.name.form == _RESULT and folder.name.lower().startswith(_BENCHMARK):
        folder = folder.parent
    return folder, log.name.form
