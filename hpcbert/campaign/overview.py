"""A summary of a campaign from its files.

No scheduler is asked, so a state is what collect recorded or what the jobs wrote themselves: a job
that was killed without notice still appears to run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple, get_args

from hpcbert.campaign import record, store
from hpcbert.campaign.attempts import Ends, find_end, read_ends
from hpcbert.campaign.evidence import MEASUREMENTS
from hpcbert.campaign.record import ENDS
from hpcbert.errors import HpcbertError, UsageError
from hpcbert.model import Array, Campaign, Point, format_utc, parse_stamp, parse_utc
from hpcbert.results.interval import is_precise
from hpcbert.slurm.states import LAST_ATTEMPT, UNNEEDED, bounded_int, read_kind
from hpcbert.system.grouping import group

# States of a repeat by its own account, and those of a campaign.
Phase = Literal["unsubmitted", "refused", "waiting", "running", "ended"]
State = Literal[Phase, "rehearsed", "complete", "incomplete", "damaged"]
STATES: tuple[State, ...] = get_args(State)
_COPIED = ("created", "framework", "rehearse", "scheduler", "user", "submission", "position")


class PointResult(NamedTuple):
    """The record of a point that collect wrote.

    Attributes:
        asked, valid: Numbers of repeats.
        median: Samples per second over all GPUs; None without a valid repeat.
        refused: Number and reasons of each repeat that had ended and is invalid.
    """

    asked: int
    valid: int
    median: float | None
    refused: tuple[tuple[int, str], ...]
    unneeded: tuple[int, ...] = ()


@dataclass(frozen=True)
class Best:
    """The highest number of a campaign: a point's median, samples per second over all GPUs."""

    point: str
    shape: str
    throughput: float


class Results(NamedTuple):
    """What collect recorded.

    Attributes:
        over: Whether no job waited or ran any more, and no array was added since.
    """

    points: Mapping[Point, PointResult]
    over: bool

    @property
    def asked(self) -> int:
        """The number of repeats."""
        return sum(result.asked for result in self.points.values())

    @property
    def valid(self) -> int:
        """The number of valid repeats."""
        return sum(result.valid for result in self.points.values())

    @property
    def best(self) -> Best | None:
        """The highest number; None if no repeat is valid."""
        bests = [
            Best(point.key, str(point.shape), result.median)
            for point, result in self.points.items()
            if result.median is not None
        ]
        return max(bests, key=lambda best: best.throughput, default=None)


def read_results(directory: Path, campaign: Campaign) -> Results | None:
    """Return the results of a campaign, in the order of the measurements; None if not collected.

    Raises:
        UsageError: The measurements are damaged.
    """
    path = directory / MEASUREMENTS
    if not path.exists():
        return None
    document = store.read_json(path)
    points = {array.name: array.point for array in campaign.arrays}
    precision = campaign.protocol.precision_of_median
    try:
        runs_by_point = group((points[run["array"]], run) for run in document["runs"])
        results = {point: _parse_result(runs, precision) for point, runs in runs_by_point.items()}
        return Results(results, document["over"] and document["arrays"] == len(campaign.arrays))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"The measurements are damaged: {error!r}.", where=str(path)) from error


def _parse_result(runs: list[Mapping[str, Any]], precision: float | None) -> PointResult:
    rates, refused, unneeded = [], [], []
    for run in runs:
        number, kind = int(run["repeat"]), read_kind(run.get("scheduler", {}).get("kind"))
        if run["state"] == UNNEEDED:
            unneeded.append(number)
        elif run["valid"]:
            rates.append(float(run["throughput"]))
        elif not (kind and kind.alive):
            reasons = [f"{reason['code']}: {reason['detail']}" for reason in run["reasons"]]
            refused.append((number, "; ".join(reasons)))
    count = len(rates) if is_precise(rates, precision) else len(runs) - len(unneeded)
    best = median(rates) if rates else None
    return PointResult(count, len(rates), best, tuple(refused), tuple(unneeded))


def find_phase(directory: Path, array: Array, repeat: int, recorded_ends: Ends) -> Phase:
    """Return a repeat's progress by its own account, or its end as it was recorded."""
    if array.state == "refused":
        return "refused"
    if array.state != "submitted" and not array.called:
        return "unsubmitted"
    events = record.read_record(directory / array.status(repeat)).events
    event = events[-1] if events else {}
    attempt = bounded_int(event.get("attempt"), LAST_ATTEMPT) or 0
    if find_end(recorded_ends, array, repeat, attempt):
        return "ended"
    if not event or attempt < array.first_attempt:
        return "waiting"
    return "ended" if event.get("event") in ENDS else "running"


def _find_state(directory: Path, campaign: Campaign, recorded: Results | None) -> State:
    if recorded and recorded.over:
        return "complete" if recorded.valid == recorded.asked else "incomplete"
    recorded_ends = read_ends(directory)
    phases = {find_phase(directory, *repeat, recorded_ends) for repeat in campaign.current}
    for phase in ("running", "waiting", "unsubmitted", "refused"):
        if phase in phases:
            return phase
    if not phases:
        return "unsubmitted"
    return "rehearsed" if campaign.rehearse else "ended"


@dataclass(frozen=True)
class Overview:
    """One campaign in a list.

    Attributes:
        campaign: Its id; for a damaged one, its directory's name.
        name: The id, unless the user gave another.
        created: ISO 8601 UTC; empty if unknown.
        shapes, precisions: Those of its points, each once, in their order.
        asked: Requested repeats; None if that can't be read.
        valid: Valid repeats; None: it was not collected yet.
        provisional: Whether some repeats had not ended when `valid` and `best` were collected.
        problem: What is damaged, and how; empty: nothing.
        variant: What its points differ in from others of their shape, precision and batch.
    """

    campaign: str
    name: str
    directory: str
    created: str
    state: State
    framework: str = ""
    shapes: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    rehearse: bool = False
    scheduler: str = ""
    user: str = ""
    asked: int | None = None
    valid: int | None = None
    best: Best | None = None
    provisional: bool = False
    note: str = ""
    problem: str = ""
    variant: str = ""
    submission: str = ""
    position: int = 0


def read_overview(directory: Path) -> Overview:
    """Return a campaign's entry for a list; for a damaged one, `problem` says what is wrong."""
    note = store.read_note(directory)
    try:
        campaign = store.read_manifest(directory)
    except HpcbertError as error:
        when, name = parse_stamp(directory.name), directory.name
        created = "" if when is None else format_utc(when)
        text = str(error)
        return Overview(name, name, str(directory), created, "damaged", note=note, problem=text)
    recorded, problem = None, ""
    try:
        recorded = read_results(directory, campaign)
    except HpcbertError as error:
        problem = str(error)
    points = list(campaign.of_point)
    over = recorded is not None and recorded.over
    return Overview(
        **{name: getattr(campaign, name) for name in _COPIED},
        campaign=campaign.id,
        name=campaign.name or campaign.id,
        directory=str(directory),
        state=_find_state(directory, campaign, recorded),
        shapes=tuple(dict.fromkeys(str(point.shape) for point in points)),
        precisions=tuple(dict.fromkeys(point.precision for point in points)),
        asked=recorded.asked if recorded and over else len(campaign.current),
        valid=recorded.valid if recorded else None,
        best=recorded.best if recorded else None,
        provisional=recorded is not None and not over,
        note=note,
        problem=problem,
        variant=" ".join(dict.fromkeys(point.variant for point in points)).strip(),
    )


def compute_age(created: str, *, now: float) -> float | None:
    """Return the seconds since a campaign was made; None if unknown."""
    when = parse_utc(created)
    return None if when is None else max(0.0, now - when)
