"""The logs of a point as its runs: numbered, of one experiment, each once."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from hpcbert.campaign.likeness import Account, judged, refused, stated
from hpcbert.errors import UsageError
from hpcbert.logs.layout import natural, shown
from hpcbert.logs.setting import LABELS
from hpcbert.model import Measured, Reason, Run, Shape
from hpcbert.results.reduce import FOREIGN, Evidence, gate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from hpcbert.campaign.fingerprint import NodeSample
    from hpcbert.logs.layout import LogFile
    from hpcbert.logs.scan import Reading
    from hpcbert.model import Counted, Group, Point

# A larger number in a file's name is a date or a seed, not the number of a run.
_RUNS_AT_MOST = 100


class Read(NamedTuple):
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


class Numbered(NamedTuple):
    """The logs of a point by repeat."""

    group: Group
    shape: Shape
    counted: Counted
    reads: dict[int, Read]


def numbered(reads: Sequence[Read], *, as_repeats: bool) -> dict[int, Read]:
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
    ordered = sorted(reads, key=lambda read: natural(str(read.log.path)))
    for read in () if as_repeats else ordered[1:]:
        if not are_numbered(ordered[0], read):
            raise UsageError(
                f"{_both(ordered[0], read)} are of one point, and nothing says that they are "
                "repeats of one experiment.",
                hint="If they are, number them by {repeat} in --pattern, or give --as-repeats. "
                "If not, name in --pattern what differs, or collect them separately.",
            )
    if all(are_numbered(ordered[0], read) for read in ordered):
        numbers = [read.log.repeat or 0 for read in ordered]
        shift = 0 if min(numbers) else 1
        return _by_number(ordered, [number + shift for number in numbers])
    runs = [(read.log.place, read.log.repeat, _unnumbered(read)) for read in ordered]
    places = {run: number for number, run in enumerate(dict.fromkeys(runs), start=1)}
    return _by_number(ordered, [places[run] for run in runs])


def _unnumbered(read: Read) -> Path | None:
    return read.log.path if read.log.repeat is None else None


def are_numbered(read: Read, other: Read) -> bool:
    """Return whether the names of two logs number the repeats of one experiment."""
    numbers = read.log.repeat, other.log.repeat
    return read is other or (None not in numbers and read.log.place == other.log.place)


def _both(read: Read, other: Read) -> str:
    return f"{shown(read.log.path)} and {shown(other.log.path)}"


def _by_number(reads: Sequence[Read], numbers: Sequence[int]) -> dict[int, Read]:
    numbered: dict[int, list[Read]] = {}
    for number, read in sorted(zip(numbers, reads, strict=True), key=itemgetter(0)):
        numbered.setdefault(number, []).append(read)
    return _level({repeat: _attempt(repeat, ones) for repeat, ones in numbered.items()})


def _level(reads: dict[int, Read]) -> dict[int, Read]:
    """Refuse runs that were counted to their end and ended before others of their point.

    A log that states the run's end is whole: runs to convergence differ in length.
    """
    last = max((read.reading.last for read in reads.values() if read.valid), default=0)
    return {repeat: _early(read, last) for repeat, read in reads.items()} if last else reads


def _early(read: Read, last: int) -> Read:
    reading = read.reading
    if reading.closed or not (read.valid and 0 < reading.last < last):
        return read
    detail = f"the log ends at iteration {reading.last}, that of another repeat at {last}"
    reasons = (Reason("incomplete", detail),)
    return read._replace(reading=reading._replace(throughput=None, reasons=reasons))


def _attempt(repeat: int, reads: list[Read]) -> Read:
    if len(reads) == 1:
        return reads[0]
    by_attempt: dict[int, Read] = {}
    for read in reads:
        other = by_attempt.setdefault(read.log.attempt, read)
        if other is not read:
            raise UsageError(
                f"{_both(other, read)} are both repeat {repeat} of one point.",
                hint="Collect them one after the other, or distinguish them with --pattern.",
            )
    newest_first = [by_attempt[number] for number in sorted(by_attempt, reverse=True)]
    return next((read for read in newest_first if read.valid), newest_first[0])


def joined(points: dict[tuple[Point, str], list[Read]]) -> dict[tuple[Point, str], list[Read]]:
    """Join points that differ only in accumulation, if names say that they are runs of one."""
    joined: dict[tuple[Point, str], list[Read]] = {}
    akin: dict[tuple[Point, str], list[tuple[Point, str]]] = {}
    for (point, rule), reads in points.items():
        kin = akin.setdefault((replace(point, accumulation=1), rule), [])
        key = next((one for one in kin if _are_runs_of_one(joined[one], reads)), (point, rule))
        kin += [] if key in joined else [key]
        joined.setdefault(key, []).extend(reads)
    return joined


def _are_runs_of_one(some: list[Read], others: list[Read]) -> bool:
    """Return whether names differ only in the run's number, and each number appears once."""
    places = [
        {read.log._replace(path=read.log.path.parent, repeat=None, attempt=0) for read in reads}
        for reads in (some, others)
    ]
    numbers = [{read.log.repeat for read in reads} for reads in (some, others)]
    return bool(places[0] & places[1]) and not numbers[0] & numbers[1] and None not in numbers[0]


def measured(points: Sequence[Numbered]) -> tuple[tuple[Measured, tuple[NodeSample, ...]], ...]:
    """Make points from their logs, with the facts from the logs of valid runs."""
    accounts = [
        [_account(point.shape, number, read) for number, read in point.reads.items()]
        for point in points
    ]
    verdicts = judged(accounts, keep_first=True)
    measured = []
    for point, verdict, own in zip(points, verdicts, accounts, strict=True):
        reads = point.reads.values()
        runs = _without_overlaps(verdict, [*reads])
        whole = _with_gaps(runs)
        made = Measured(
            group=point.group,
            shape=point.shape,
            asked=len(whole),
            runs=whole,
            flags=tuple(name for name, holds in _MARKS.items() if any(map(holds, reads))),
            counted=point.counted,
            unchecked=_unchecked(reads),
            steps=tuple(
                (run.repeat, steps)
                for run, read in zip(runs, reads, strict=True)
                if run.valid and (steps := read.reading.steps)
            ),
        )
        pairs = zip(runs, own, strict=True)
        node_samples = (where for run, account in pairs if run.valid for where in account.taken)
        measured.append((made, tuple(node_samples)))
    return tuple(measured)


def _without_overlaps(runs: Sequence[Run], reads: Sequence[Read]) -> tuple[Run, ...]:
    """Refuse runs that were measured at the same time: one run's ranks, or runs that interfered."""
    valid = [at for at, run in enumerate(runs) if run.valid]
    overlapping: dict[int, int] = {}
    for at, other in combinations(valid, 2):
        if reads[at].reading.measured.overlaps(reads[other].reading.measured):
            overlapping.setdefault(at, other)
            overlapping.setdefault(other, at)
    return tuple(
        refused(run, _overlap(reads[overlapping[at]])) if at in overlapping else run
        for at, run in enumerate(runs)
    )


def _overlap(other: Read) -> Reason:
    detail = (
        f"{shown(other.log.path)} was measured at the same time: logs of several ranks are one run,"
        " and runs that share nodes slow each other down"
    )
    return Reason("shared-nodes", detail)


def _account(shape: Shape, number: int, read: Read) -> Account:
    facts = dict(read.reading.told)
    if read.reading.setting.accumulation:
        facts["accumulation"] = read.reading.setting.accumulation
    node_samples = (stated(str(shape), number, facts),)
    run, beginning = _run(number, read), read.reading.beginning
    return Account(str(shape), run, read.log.path, node_samples, beginning)


def _with_gaps(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """Return the runs of a point; a gap in the numbers is a missing run."""
    known = {run.repeat: run for run in runs}
    highest = max(known)
    if not 1 < len(known) < highest <= _RUNS_AT_MOST:
        return runs
    return tuple(known.get(number) or _absent(number) for number in range(1, highest + 1))


_MARKS: dict[str, Callable[[Read], bool]] = {
    "accumulation": lambda read: (read.reading.setting.accumulation or 1) > 1,
    "unchecked": lambda read: bool(read.valid and read.reading.unchecked),
}


def _unchecked(reads: Iterable[Read]) -> tuple[str, ...]:
    """Return the labels that a valid log of the point does not confirm."""
    found = {label for read in reads if read.valid for label in read.reading.unchecked}
    return tuple(label for label in LABELS if label in found)


def _run(number: int, read: Read) -> Run:
    reasons = gate(Evidence(state=FOREIGN, exit_code=None, log=read.reading.reasons))
    return Run(
        repeat=number,
        attempt=read.log.attempt,
        throughput=None if reasons else read.reading.throughput,
        valid=not reasons,
        reasons=reasons,
        state=FOREIGN,
        state_source="none",
        log=shown(read.log.path),
        flags=read.reading.flags,
        notes=read.reading.notes,
    )


def _absent(number: int) -> Run:
    detail = f"there are logs of higher numbers, but none of run {number}"
    return Run(number, 0, None, False, (Reason("no-log", detail),), FOREIGN, "none", "")
