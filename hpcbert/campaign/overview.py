"""What the files of a campaign say of it, of which as few bytes are read as can be.

No scheduler is asked, so a state is what collect wrote down or what the jobs wrote themselves: a
job that was killed without a word still runs by its own account.
"""

from __future__ import annotations

import calendar
import contextlib
import json
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from hpcbert.campaign import notes, record, store
from hpcbert.campaign.evidence import EVIDENCE, MEASUREMENTS
from hpcbert.config.decode import Open, decode
from hpcbert.errors import ConfigError, HpcbertError, UsageError
from hpcbert.logs.arithmetic import median
from hpcbert.model import MANIFEST, moment, utc
from hpcbert.results.interval import suffices
from hpcbert.slurm.states import UNNEEDED, Kind
from hpcbert.system.files import open_file
from hpcbert.system.lazy import dataclass, regex

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hpcbert.model import Array, Campaign, Point

SUMMARY = "summary"
# Bytes at the beginning of measurements.json in which its summary stands.
_HEAD = 4096
_KEY = f'"{SUMMARY}": '
_STAMP = regex(r"\d{8}T\d{6}Z")

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
# What a repeat waits for, or does, when collect looks too early: it has not failed.
_UNENDED = {Kind.WAITING, Kind.RUNNING, Kind.REQUEUED}
# Of a repeat, by its own account.
Phase = Literal["unsubmitted", "refused", "waiting", "running", "ended"]


class PointResult(NamedTuple):
    """What collect wrote down of a point.

    Attributes:
        asked, valid: Repeats.
        median: Samples per second over all GPUs; None without a valid repeat.
        refused: Number and reasons of each repeat that had ended and is invalid.
        unneeded: Numbers of those that were not needed.
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
    """What measurements.json comes to.

    Attributes:
        arrays: How many arrays the manifest had then: a retry adds more.
        over: Whether nothing waited or ran any more.
        asked, valid: Repeats.
        best: None where nothing counts.
    """

    arrays: int
    over: bool
    asked: int
    valid: int
    best: Best | None = None


def results(campaign: Campaign, document: Mapping[str, Any]) -> dict[Point, PointResult]:
    """Return what measurements say of each point, points in their order.

    Raises:
        UsageError: They are damaged.
    """
    points = {one.name: one.point for one in campaign.arrays}
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
        (int(run["repeat"]), "; ".join(f"{one['code']}: {one['detail']}" for one in run["reasons"]))
        for run in runs
        if not run["valid"] and run.get("scheduler", {}).get("kind") not in _UNENDED
    )
    asked = len(rates) if suffices(rates, precision) else len(runs)
    return PointResult(asked, len(rates), median(rates) if rates else None, refused, unneeded)


def summary(campaign: Campaign, document: Mapping[str, Any], *, over: bool) -> Summary:
    """Return the summary of measurements, as collect writes it at their beginning.

    Raises:
        UsageError: They are damaged.
    """
    found = results(campaign, document)
    numbers = [(one.median, point) for point, one in found.items() if one.median is not None]
    best = max(numbers, key=lambda one: one[0], default=None)
    return Summary(
        arrays=len(campaign.arrays),
        over=over,
        asked=sum(one.asked for one in found.values()),
        valid=sum(one.valid for one in found.values()),
        best=Best(best[1].key, str(best[1].shape), best[0]) if best else None,
    )


def collected(directory: Path, campaign: Campaign) -> Summary | None:
    """Return the summary of what was collected of a campaign; None: nothing was.

    Of measurements that begin with one, no more is read.

    Raises:
        UsageError: They are damaged.
    """
    path = directory / MEASUREMENTS
    try:
        head, whole = _beginning(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"Can't read: {error.strerror}.", where=str(path)) from error
    _, key, rest = head.partition(_KEY)
    with contextlib.suppress(ValueError, ConfigError):
        if key and whole:
            data, _ = json.JSONDecoder().raw_decode(rest)
            return decode(Summary, data, file=str(path))
    document = _document(path)
    return summary(campaign, document, over=_has_evidence(campaign, document))


def numbers(directory: Path, campaign: Campaign) -> dict[Point, PointResult]:
    """Return what was collected of each point of a campaign; nothing where nothing was.

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


def _has_evidence(campaign: Campaign, document: Mapping[str, Any]) -> bool:
    """Say whether measurements of an older version have evidence of all that there is now."""
    try:
        names = document[EVIDENCE]["manifest"]["arrays"].keys()
    except (KeyError, TypeError, AttributeError):
        return False
    return {one.name for one in campaign.arrays} == set(names)


def over(campaign: Campaign, known: Summary | None) -> bool:
    """Say whether collect found a campaign at its end, and nothing was submitted since."""
    return known is not None and known.over and known.arrays == len(campaign.arrays)


def _beginning(path: Path) -> tuple[str, bool]:
    """Return the beginning of a JSON document, and whether it has its end."""
    descriptor, size = open_file(path)
    try:
        head = os.read(descriptor, _HEAD).decode("utf-8", "replace")
        return head, os.pread(descriptor, 2, max(0, size - 2)) == b"}\n"
    finally:
        os.close(descriptor)


def phase(directory: Path, array: Array, repeat: int, begun: set[str] | None = None) -> Phase:
    """Return how far a repeat is by its own account.

    Args:
        directory: The campaign.
        array: The array that it was submitted in last.
        repeat: Its number.
        begun: Names of all status files, if they are known; None: it is looked for.
    """
    if array.state == "refused":
        return "refused"
    if array.state != "submitted" and not array.called:
        return "unsubmitted"
    path = directory / array.status(repeat)
    last = record.last_event(path) if begun is None or path.name in begun else {}
    attempt = last.get("attempt")
    if not last or (isinstance(attempt, int) and attempt < array.first_attempt):
        return "waiting"
    return "ended" if last.get("event") in {"end", "finished"} else "running"


def _state(directory: Path, campaign: Campaign, known: Summary | None) -> State:
    if known and over(campaign, known):
        return "complete" if known.valid == known.asked else "incomplete"
    begun: set[str] = set()
    with contextlib.suppress(OSError):
        begun = set(os.listdir(directory / "status"))  # noqa: PTH208 - names are all it takes
    phases: set[Phase] = set()
    for array, number in campaign.current:
        phases.add(phase(directory, array, number, begun))
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
        campaign: Its id; of a damaged one its directory's name.
        name: What a person calls it: the id, unless they gave it another.
        directory: Where it lies.
        created: ISO 8601 UTC; empty where nothing tells.
        state: By its files alone.
        framework: Name of its recipe.
        shapes: Of its points, each once, in their order.
        precisions: Likewise.
        rehearse: Whether it is a rehearsal.
        scheduler, user: As in its manifest.
        asked: Repeats that were asked for; None where that can't be read.
        valid: Repeats that count; None: it was not collected yet.
        best: Its highest number.
        provisional: Whether `valid` and `best` are of a moment at which repeats had not ended yet.
        note: A person's.
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
    """Return what a list says of a campaign; a damaged one says what is wrong with it."""
    note = notes.read(directory)
    try:
        campaign = store.read_manifest(directory)
    except HpcbertError as error:
        found = Overview(
            directory.name, directory.name, str(directory), _made(directory), "damaged"
        )
        return replace(found, note=note, problem=str(error))
    known, problem = None, ""
    try:
        known = collected(directory, campaign)
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
        shapes=tuple(dict.fromkeys(str(one.shape) for one in points)),
        precisions=tuple(dict.fromkeys(one.precision for one in points)),
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
    """Return when a damaged campaign was made: by its name, else by its manifest's age."""
    if _STAMP.match(directory.name):
        with contextlib.suppress(ValueError, OverflowError):
            when = time.strptime(directory.name[:16], "%Y%m%dT%H%M%SZ")
            return utc(calendar.timegm(when))
    try:
        return utc((directory / MANIFEST).lstat().st_mtime)
    except OSError:
        return ""


def age(created: str, *, now: float) -> float | None:
    """Return how many seconds ago a campaign was made; None where nothing tells."""
    when = moment(created)
    return None if when is None else max(0.0, now - when)
