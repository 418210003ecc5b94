"""A summary of a campaign from its files, read with as few bytes as possible.

No scheduler is asked, so a state is what collect recorded or what the jobs wrote themselves: a job
that was killed without notice still appears to run.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from hpcbert.campaign import ends, record, store
from hpcbert.campaign.ends import NO_ENDS, Ends
from hpcbert.campaign.evidence import MEASUREMENTS
from hpcbert.campaign.record import ENDS
from hpcbert.errors import ConfigError, HpcbertError, UsageError
from hpcbert.logs.arithmetic import median
from hpcbert.model import MANIFEST, Array, Campaign, Point, format_utc, parse_stamp, parse_utc
from hpcbert.results.interval import is_precise
from hpcbert.slurm.states import LAST_ATTEMPT, UNNEEDED, bounded_int, read_kind
from hpcbert.system.decode import IgnoreUnknown, decode
from hpcbert.system.files import open_file

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
class Summary(IgnoreUnknown):
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


def parse_results(campaign: Campaign, document: Mapping[str, Any]) -> dict[Point, PointResult]:
    """Return the results of measured points, in the order of the measurements."""
    points = {array.name: array.point for array in campaign.arrays}
    runs_by_point: dict[Point, list[Mapping[str, Any]]] = {}
    try:
        for run in document["runs"]:
            runs_by_point.setdefault(points[run["array"]], []).append(run)
        precision = campaign.protocol.precision_of_median
        return {point: _parse_result(runs, precision) for point, runs in runs_by_point.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"The measurements are damaged: {error!r}.", where=MEASUREMENTS) from error


def _parse_result(runs: list[Mapping[str, Any]], precision: float | None) -> PointResult:
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
    count = len(rates) if is_precise(rates, precision) else len(runs)
    return PointResult(count, len(rates), median(rates) if rates else None, refused, unneeded)


def _was_alive(run: Mapping[str, Any]) -> bool:
    """Return whether a repeat was still waiting or running when it was collected."""
    kind = read_kind(run.get("scheduler", {}).get("kind"))
    return kind is not None and kind.alive


def summarize(campaign: Campaign, document: Mapping[str, Any], *, over: bool) -> Summary:
    """Return the summary of measurements, which collect writes at the beginning."""
    point_results = parse_results(campaign, document)
    medians = [
        (point_result.median, point)
        for point, point_result in point_results.items()
        if point_result.median is not None
    ]
    best = max(medians, key=lambda pair: pair[0], default=None)
    return Summary(
        arrays=len(campaign.arrays),
        over=over,
        asked=sum(point_result.asked for point_result in point_results.values()),
        valid=sum(point_result.valid for point_result in point_results.values()),
        best=Best(best[1].key, str(best[1].shape), best[0]) if best else None,
    )


def read_summary(directory: Path) -> Summary | None:
    """Return the summary of a collected campaign; None if it was not collected.

    If the file begins with a summary, no more of it is read.
    """
    path = directory / MEASUREMENTS
    try:
        head, is_complete = _read_beginning(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"Can't read the file: {error.strerror}.", where=str(path)) from error
    _, key, text = head.partition(_KEY)
    with contextlib.suppress(ValueError, ConfigError):
        if key and is_complete:
            data, _ = json.JSONDecoder().raw_decode(text)
            return decode(Summary, data, file=str(path))
    raise UsageError("The measurements are damaged: no summary.", where=str(path))


def read_results(directory: Path, campaign: Campaign) -> dict[Point, PointResult]:
    """Return the results from measurements.json, by point; empty if not collected."""
    path = directory / MEASUREMENTS
    return parse_results(campaign, _read_document(path)) if path.exists() else {}


def _read_document(path: Path) -> Mapping[str, Any]:
    document = store.read_json(path)
    if not isinstance(document, dict):
        raise UsageError("The measurements are damaged: no table.", where=str(path))
    return document


def is_over(campaign: Campaign, recorded: Summary | None) -> bool:
    """Return whether collect found a campaign over, and no array was added since."""
    return recorded is not None and recorded.over and recorded.arrays == len(campaign.arrays)


def _read_beginning(path: Path) -> tuple[str, bool]:
    """Return the beginning of a JSON document, and whether it is the whole document."""
    descriptor, size = open_file(path)
    try:
        head = os.read(descriptor, _HEAD).decode("utf-8", "replace")
        return head, os.pread(descriptor, 2, max(0, size - 2)) == b"}\n"
    finally:
        os.close(descriptor)


def find_phase(
    directory: Path,
    array: Array,
    repeat: int,
    status_files: set[str] | None = None,
    recorded_ends: Ends = NO_ENDS,
) -> Phase:
    """Return a repeat's progress by its own account, or its end as it was recorded.

    Args:
        status_files: Names of all status files, if known; None: look for the file.
    """
    if array.state == "refused":
        return "refused"
    if array.state != "submitted" and not array.called:
        return "unsubmitted"
    path = directory / array.status(repeat)
    event = record.last_event(path) if status_files is None or path.name in status_files else {}
    attempt = bounded_int(event.get("attempt"), LAST_ATTEMPT) or 0
    if recorded_ends.of(array, repeat, attempt):
        return "ended"
    if not event or attempt < array.first_attempt:
        return "waiting"
    return "ended" if event.get("event") in ENDS else "running"


def _find_state(directory: Path, campaign: Campaign, recorded: Summary | None) -> State:
    if recorded and is_over(campaign, recorded):
        return "complete" if recorded.valid == recorded.asked else "incomplete"
    status_files: set[str] = set()
    with contextlib.suppress(OSError):
        status_files = set(os.listdir(directory / "status"))  # noqa: PTH208 - names are enough
    phases: set[Phase] = set()
    recorded_ends = ends.read(directory)
    for array, number in campaign.current:
        phases.add(find_phase(directory, array, number, status_files, recorded_ends))
        if "running" in phases:
            return "running"
    for phase_name in ("waiting", "unsubmitted", "refused"):
        if phase_name in phases:
            return phase_name
    end_state: State = "rehearsed" if campaign.rehearse else "ended"
    return end_state if phases else "unsubmitted"


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
        variant: What its points differ in from others of their shape, precision and batch.
        submission, position: As in the manifest.
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
        overview = Overview(
            directory.name,
            directory.name,
            str(directory),
            _find_creation_time(directory),
            "damaged",
        )
        return replace(overview, note=note, problem=str(error))
    recorded, problem = None, ""
    try:
        recorded = read_summary(directory)
    except HpcbertError as error:
        problem = str(error)
    points = list(campaign.of_point)
    return Overview(
        campaign=campaign.id,
        name=campaign.name or campaign.id,
        directory=str(directory),
        created=campaign.created,
        state=_find_state(directory, campaign, recorded),
        framework=campaign.framework,
        shapes=tuple(dict.fromkeys(str(point.shape) for point in points)),
        precisions=tuple(dict.fromkeys(point.precision for point in points)),
        rehearse=campaign.rehearse,
        scheduler=campaign.scheduler,
        user=campaign.user,
        asked=recorded.asked if recorded and is_over(campaign, recorded) else len(campaign.current),
        valid=recorded.valid if recorded else None,
        best=recorded.best if recorded else None,
        provisional=recorded is not None and not is_over(campaign, recorded),
        note=note,
        problem=problem,
        variant=" ".join(dict.fromkeys(point.variant for point in points)).strip(),
        submission=campaign.submission,
        position=campaign.position,
    )


def _find_creation_time(directory: Path) -> str:
    """Return a damaged campaign's creation time by its name, or else its manifest's time."""
    when = parse_stamp(directory.name)
    if when is not None:
        return format_utc(when)
    try:
        return format_utc((directory / MANIFEST).lstat().st_mtime)
    except OSError:
        return ""


def compute_age(created: str, *, now: float) -> float | None:
    """Return the seconds since a campaign was made; None if unknown."""
    when = parse_utc(created)
    return None if when is None else max(0.0, now - when)
