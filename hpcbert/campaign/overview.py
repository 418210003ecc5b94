"""A summary of a campaign from its files, read with as few bytes as possible.

No scheduler is asked, so a state is what collect recorded or what the jobs wrote themselves: a job
that was killed without notice still appears to run.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from hpcbert.campaign import ends, notes, record, store
from hpcbert.campaign.ends import NO_ENDS, Ends
from hpcbert.campaign.evidence import MEASUREMENTS
from hpcbert.campaign.steps import ENDS
from hpcbert.errors import ConfigError, HpcbertError, UsageError
from hpcbert.logs.arithmetic import median
from hpcbert.model import MANIFEST, moment, stamped, utc
from hpcbert.results.interval import suffices
from hpcbert.slurm.states import LAST_ATTEMPT, UNNEEDED, noted_kind, whole
from hpcbert.system.decode import Open, decode
from hpcbert.system.files import open_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hpcbert.model import Array, Campaign, Point

SUMMARY = "summary"
# Bytes at the beginning of measurements.json that hold its summary.
_HEAD = 4096
_KEY = f'"{SUMMARY}": '

State = Literal[
    "unsubmitted",
    "refused",
    "waiting",
    "running",
    "ended",
    "rehearsed",
    "complete",
    "incomplete",
    "damaged",
]
STATES: tuple[State, ...] = get_args(State)
# States of a repeat by its own account.
Phase = Literal["unsubmitted", "refused", "waiting", "running", "ended"]


class PointResult(NamedTuple):
    """The record of a point that collect wrote.

    Attributes:
        asked, valid: Numbers of repeats.
        median: Samples per second over all GPUs; None without a valid repeat.
        refused: Number and reasons of each repeat that had ended and is invalid.
        unneeded: Numbers of the repeats that were not needed.
    """

    asked: int
    valid: int
    median: float | None
    refused: tuple[tuple[int, str], ...]
    unneeded: tuple[int, ...] = ()


@dataclass(frozen=True)
class Best:
    """The highest number of a campaign.

    Attributes:
        point: Key of its point.
        shape: As `4n8g`.
        throughput: Median over the valid repeats, samples per second over all GPUs.
    """

    point: str
    shape: str
    throughput: float


@dataclass(frozen=True)
class Summary(Open):
    """The summary of measurements.json.

    Attributes:
        arrays: Number of arrays in the manifest then: a retry adds more.
        over: Whether no job waited or ran any more.
        asked, valid: Numbers of repeats.
        best: None if no repeat is valid.
    """

    arrays: int
    over: bool
    asked: int
    valid: int
    best: Best | None = None


def results(campaign: Campaign, document: Mapping[str, Any]) -> dict[Point, PointResult]:
    """Return what measurements say about each point, points in their order.

    Raises:
        UsageError: They are damaged.
    """
    points = {array.name: array.point for array in campaign.arrays}
    found: dict[Point, list[Mapping[str, Any]]] = {}
    try:
        for run in document["runs"]:
            found.setdefault(points[run["array"]], []).append(run)
        precision = campaign.protocol.precision_of_median
        return {point: _result(runs, precision) for point, runs in found.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"The measurements are damaged: {error!r}.", where=MEASUREMENTS) from error


def _result(runs: list[Mapping[str, Any]], precision: float | None) -> PointResult:
    unneeded = tuple(int(run["repeat"]) for run in runs if run["state"] == UNNEEDED)
    runs = [run for run in runs if run["state"] != UNNEEDED]
    rates = [float(run["throughput"]) for run in runs if run["valid"]]
    refused = tuple(
        (
            int(run["repeat"]),
            "; ".join(f"{reason['code']}: {reason['detail']}" for reason in run["reasons"]),
        )
        for run in runs
        if not run["valid"] and not _was_alive(run)
    )
    count = len(rates) if suffices(rates, precision) else len(runs)
    return PointResult(count, len(rates), median(rates) if rates else None, refused, unneeded)


def _was_alive(run: Mapping[str, Any]) -> bool:
    """Return whether collect came too early for a repeat, which has not failed."""
    kind = noted_kind(run.get("scheduler", {}).get("kind"))
    return kind is not None and kind.alive


def summary(campaign: Campaign, document: Mapping[str, Any], *, over: bool) -> Summary:
    """Return the summary of measurements, which collect writes at the beginning.

    Raises:
        UsageError: They are damaged.
    """
    point_results = results(campaign, document)
    numbers = [
        (point_result.median, point)
        for point, point_result in point_results.items()
        if point_result.median is not None
    ]
    best = max(numbers, key=lambda one: one[0], default=None)
    return Summary(
        arrays=len(campaign.arrays),
        over=over,
        asked=sum(point_result.asked for point_result in point_results.values()),
        valid=sum(point_result.valid for point_result in point_results.values()),
        best=Best(best[1].key, str(best[1].shape), best[0]) if best else None,
    )


def collected(directory: Path) -> Summary | None:
    """Return the summary of a collected campaign; None: it was not collected.

    If the file begins with a summary, no more of it is read.

    Raises:
        UsageError: They are damaged.
    """
    path = directory / MEASUREMENTS
    try:
        head, whole = _beginning(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"Can't read the file: {error.strerror}.", where=str(path)) from error
    _, key, rest = head.partition(_KEY)
    with contextlib.suppress(ValueError, ConfigError):
        if key and whole:
            data, _ = json.JSONDecoder().raw_decode(rest)
            return decode(Summary, data, file=str(path))
    raise UsageError("The measurements are damaged: no summary.", where=str(path))


def numbers(directory: Path, campaign: Campaign) -> dict[Point, PointResult]:
    """Return what was collected of each point of a campaign; nothing if it was not collected.

    Raises:
        UsageError: The measurements are damaged.
    """
    path = directory / MEASUREMENTS
    return results(campaign, _document(path)) if path.exists() else {}


def _document(path: Path) -> Mapping[str, Any]:
    document = store.read_json(path)
    if not isinstance(document, dict):
        raise UsageError("The measurements are damaged: no table.", where=str(path))
    return document


def over(campaign: Campaign, known: Summary | None) -> bool:
    """Return whether collect found a campaign at its end, and nothing was submitted since."""
    return known is not None and known.over and known.arrays == len(campaign.arrays)


def _beginning(path: Path) -> tuple[str, bool]:
    """Return the beginning of a JSON document, and whether it is the whole document."""
    descriptor, size = open_file(path)
    try:
        head = os.read(descriptor, _HEAD).decode("utf-8", "replace")
        return head, os.pread(descriptor, 2, max(0, size - 2)) == b"}\n"
    finally:
        os.close(descriptor)


def phase(
    directory: Path,
    array: Array,
    repeat: int,
    begun: set[str] | None = None,
    on_record: Ends = NO_ENDS,
) -> Phase:
    """Return a repeat's progress by its own account, or its end as it was recorded.

    Args:
        directory: The campaign.
        array: The array that it was submitted in last.
        repeat: Its number.
        begun: Names of all status files, if known; None: look for the file.
        on_record: The ends that the jobs did not write themselves.
    """
    if array.state == "refused":
        return "refused"
    if array.state != "submitted" and not array.called:
        return "unsubmitted"
    path = directory / array.status(repeat)
    last = record.last_event(path) if begun is None or path.name in begun else {}
    attempt = whole(last.get("attempt"), LAST_ATTEMPT) or 0
    if on_record.of(array, repeat, attempt):
        return "ended"
    if not last or attempt < array.first_attempt:
        return "waiting"
    return "ended" if last.get("event") in ENDS else "running"


def _state(directory: Path, campaign: Campaign, known: Summary | None) -> State:
    if known and over(campaign, known):
        return "complete" if known.valid == known.asked else "incomplete"
    begun: set[str] = set()
    with contextlib.suppress(OSError):
        begun = set(os.listdir(directory / "status"))  # noqa: PTH208 - names are enough
    phases: set[Phase] = set()
    on_record = ends.read(directory)
    for array, number in campaign.current:
        phases.add(phase(directory, array, number, begun, on_record))
        if "running" in phases:
            return "running"
    for one in ("waiting", "unsubmitted", "refused"):
        if one in phases:
            return one
    ended: State = "rehearsed" if campaign.rehearse else "ended"
    return ended if phases else "unsubmitted"


@dataclass(frozen=True)
class Overview:
    """One campaign in a list.

    Attributes:
        campaign: Its id; for a damaged one, its directory's name.
        name: Its name: the id, unless the user gave another.
        directory: Its path.
        created: ISO 8601 UTC; empty if unknown.
        state: Its state by its files alone.
        framework: Name of its recipe.
        shapes: The shapes of its points, each once, in their order.
        precisions: The precisions of its points, each once, in their order.
        rehearse: Whether it is a rehearsal.
        scheduler, user: As in its manifest.
        asked: Requested repeats; None if that can't be read.
        valid: Valid repeats; None: it was not collected yet.
        best: Its highest number.
        provisional: Whether some repeats had not ended when `valid` and `best` were collected.
        note: The user's note.
        problem: What is damaged, and how; empty: nothing.
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


def look(directory: Path) -> Overview:
    """Return a campaign's entry for a list; for a damaged one, what is wrong with it."""
    note = notes.read(directory)
    try:
        campaign = store.read_manifest(directory)
    except HpcbertError as error:
        overview = Overview(
            directory.name, directory.name, str(directory), _made(directory), "damaged"
        )
        return replace(overview, note=note, problem=str(error))
    known, problem = None, ""
    try:
        known = collected(directory)
    except HpcbertError as error:
        problem = str(error)
    points = list(campaign.of_point)
    return Overview(
        campaign=campaign.id,
        name=campaign.name or campaign.id,
        directory=str(directory),
        created=campaign.created,
        state=_state(directory, campaign, known),
        framework=campaign.framework,
        shapes=tuple(dict.fromkeys(str(point.shape) for point in points)),
        precisions=tuple(dict.fromkeys(point.precision for point in points)),
        rehearse=campaign.rehearse,
        scheduler=campaign.scheduler,
        user=campaign.user,
        asked=known.asked if known and over(campaign, known) else len(campaign.current),
        valid=known.valid if known else None,
        best=known.best if known else None,
        provisional=known is not None and not over(campaign, known),
        note=note,
        problem=problem,
    )


def _made(directory: Path) -> str:
    """Return when a damaged campaign was made: from its name, else from its manifest's age."""
    when = stamped(directory.name)
    if when is not None:
        return utc(when)
    try:
        return utc((directory / MANIFEST).lstat().st_mtime)
    except OSError:
        return ""


def age(created: str, *, now: float) -> float | None:
    """Return how many seconds ago a campaign was made; None if unknown."""
    when = moment(created)
    return None if when is None else max(0.0, now - when)
