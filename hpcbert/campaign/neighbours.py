"""Runs that shared a node with a campaign's own runs while those were measured.

All attempts matter, of this campaign and of every other one next to it: however they ended, they
may have slowed the node down.
"""

from __future__ import annotations

import calendar
import contextlib
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from hpcbert.campaign import store
from hpcbert.campaign.evidence import MEASUREMENTS
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.campaign.steps import meetings
from hpcbert.errors import UsageError
from hpcbert.model import Reason
from hpcbert.system.files import read
from hpcbert.system.lazy import dataclass, regex

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from hpcbert.campaign.record import RepeatRecord
    from hpcbert.campaign.repeats import Key, Repeat
    from hpcbert.campaign.steps import Step
    from hpcbert.model import Array, Run

# Seconds by which the clocks of nodes and file servers may differ.
_SLACK = 3600.0
_NAME = regex(r".+\.\d{1,9}\.jsonl")
_CREATED = regex(r"\d{8}T\d{6}Z")
SHARED = "shared-nodes"
_SHOWN = 3
# Bytes of a script.
_MOST = 1 << 22


@dataclass(frozen=True)
class Ran:
    """One attempt that was measured.

    Attributes:
        point: Key of its point.
        campaign: Name of its campaign's directory; empty for the campaign that is looked at.
        stranger: Its owner, if that is not the user.
    """

    point: str
    repeat: int
    step: Step
    campaign: str = ""
    stranger: str = ""

    def __str__(self) -> str:
        attempt = f" attempt {self.step.attempt}" if self.step.attempt else ""
        where = f" of {self.campaign}" if self.campaign else ""
        whose = f", which belongs to {self.stranger}" if self.stranger else ""
        return f"repeat {self.repeat}{attempt} of {self.point}{where}{whose}"


@dataclass(frozen=True)
class Sharing:
    """The runs that shared nodes with one repeat, as a clause.

    Attributes:
        own: The user's runs among them; what others write about theirs can't refuse your numbers.
    """

    detail: str
    own: bool


def undisturbed(
    watched: TrackedCampaign, runs: Mapping[Key, Run], *, beside: bool
) -> tuple[dict[Key, Run], tuple[str, ...]]:
    """Mark runs that shared a node, or refuse them if they had requested the node for themselves.

    What an earlier collect found stays, wherever the campaign and its neighbours are now.

    Args:
        watched: The campaign.
        runs: The runs, by name of their array and repeat.
        beside: Whether to look at other campaigns too.

    Returns:
        The runs, and warnings about those that are marked.
    """
    arrays = {one.key: one.array for one in watched.repeats}
    valid = {key: run for key, run in runs.items() if run.valid}
    counted = {(arrays[key].point.key, run.repeat): run.attempt for key, run in valid.items()}
    found = sharing(watched, counted, beside=beside)
    before = noted(watched.directory)
    judged, warnings = dict(runs), []
    for key, run in valid.items():
        array = arrays[key]
        shared = found.get((array.point.key, run.repeat))
        then = before.get((array.name, run.repeat, run.attempt))
        own = shared is not None and shared.own and exclusive(watched.directory, array)
        refused = then or (shared.detail if shared and own else "")
        if refused:
            reasons = (*run.reasons, Reason("shared-nodes", refused))
            judged[key] = replace(run, throughput=None, valid=False, reasons=reasons)
        elif shared or then is not None:
            judged[key] = replace(run, flags=(*run.flags, SHARED))
            detail = shared.detail if shared else "an earlier collect found it"
            what = f"repeat {run.repeat} of {array.point.key} shared nodes"
            warnings.append(f"{watched.campaign.id}: {what}: {detail}.")
    return judged, tuple(warnings)


def sharing(
    watched: TrackedCampaign, counted: Mapping[Key, int], *, beside: bool = True
) -> dict[Key, Sharing]:
    """Return the attempts that ran on a repeat's nodes while it was measured, by repeat.

    Other campaigns are read only if one of their files was written to since this one began; those
    that can't be read are skipped.

    Args:
        watched: The campaign.
        counted: The valid attempt, by point and repeat.
        beside: Whether to look at other campaigns too.
    """
    own = [ran for one in watched.repeats for ran in _ran(one)]
    mine = [ran for ran in own if counted.get((ran.point, ran.repeat)) == ran.step.attempt]
    spans = [(ran.step.begin, ran.step.end or ran.step.begin) for ran in mine if ran.step.begin]
    if not spans:
        return {}
    begin, end = min(one for one, _ in spans), max(last for _, last in spans if last)
    # Files have the time of the file server's clock, which is not the nodes'.
    written = (modified for _, modified in _statuses(watched.directory))
    since = min([begin, *written]) - _SLACK
    about = _About(since=since, begin=begin - _SLACK, end=end + _SLACK)
    others = _elsewhere(watched, about) if beside else ()
    runs, found = (*own, *others), {}
    met = meetings([ran.step for ran in runs])
    for number, ran in enumerate(own):
        if counted.get((ran.point, ran.repeat)) != ran.step.attempt:
            continue
        others_there = (runs[other] for other in sorted(met.get(number, ())))
        shared = [(one, nodes) for one in others_there if (nodes := ran.step.shared(one.step))]
        if shared:
            found[ran.point, ran.repeat] = _said(shared)
    return found


def noted(directory: Path) -> dict[tuple[str, int, int], str]:
    """Return what an earlier collect recorded about shared nodes, by array, repeat, attempt.

    The value is why a run was refused, or empty if it was only marked.
    """
    found: dict[tuple[str, int, int], str] = {}
    with contextlib.suppress(UsageError, KeyError, TypeError, AttributeError):
        for run in store.read_json(directory / MEASUREMENTS)["runs"]:
            reasons = [one["detail"] for one in run["reasons"] if one["code"] == SHARED]
            if reasons or SHARED in run["flags"]:
                found[run["array"], run["repeat"], run["attempt"]] = "".join(reasons[:1])
    return found


def exclusive(directory: Path, array: Array) -> bool:
    """Return whether the jobs of an array requested nodes of their own, as they do by default."""
    try:
        script = read(directory / array.script, most=_MOST)
    except OSError:
        return True
    return b"\n#SBATCH --exclusive\n" in script


def _said(shared: Sequence[tuple[Ran, tuple[str, ...]]]) -> Sharing:
    nodes = sorted({node for _, names in shared for node in names})
    runs = list(dict.fromkeys(str(other) for other, _ in shared))
    more = f" and {len(runs) - _SHOWN} more" if len(runs) > _SHOWN else ""
    where = f"{', '.join(nodes[:_SHOWN])}{' and others' if len(nodes) > _SHOWN else ''}"
    return Sharing(
        f"{', '.join(runs[:_SHOWN])}{more} ran on {where} while it was measured",
        own=any(not other.stranger for other, _ in shared),
    )


def _ran(one: Repeat) -> Iterator[Ran]:
    """Yield the attempts of one repeat, from all arrays of its point."""
    found, key = one.record.steps, one.array.point.key
    for step, after in zip(found, (*found[1:], None), strict=False):
        if step.end is None:
            log = store.log_path(one.watched.directory, one.array, one.number, step.attempt)
            yield Ran(key, one.number, _bounded(step, after, log))
        else:
            yield Ran(key, one.number, step)


def _bounded(step: Step, after: Step | None, log: Path) -> Step:
    """Return a step without a recorded end, with the last sign of life as its end."""
    begin = step.begin or 0.0
    latest = after.begin if after and after.begin else float("inf")
    with contextlib.suppress(OSError):
        return replace(step, end=max(begin, min(log.stat().st_mtime, latest)))
    return replace(step, end=begin)


def _statuses(directory: Path) -> Iterator[tuple[os.DirEntry[str], float]]:
    with contextlib.suppress(OSError), os.scandir(directory / "status") as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name):
                yield entry, entry.stat().st_mtime


class _About(NamedTuple):
    """When a campaign was measured, with a margin for clocks that differ.

    Attributes:
        since: Files last written before that, by the file server's clock, are irrelevant.
        begin, end: By the nodes' clocks.
    """

    since: float
    begin: float
    end: float


def _elsewhere(watched: TrackedCampaign, about: _About) -> Iterator[Ran]:
    """Yield the attempts of the campaigns next to this one measured at about that time."""
    own = watched.directory.absolute()
    with contextlib.suppress(OSError):
        for other in sorted(own.parent.iterdir()):
            if other != own and _created(other.name) <= about.end:
                yield from _of(other, watched, about)


def _created(name: str) -> float:
    """Return when a campaign was made by its name; long ago if the name does not say."""
    with contextlib.suppress(ValueError, OverflowError):
        if _CREATED.match(name):
            return float(calendar.timegm(time.strptime(name[:16], "%Y%m%dT%H%M%SZ")))
    return 0.0


def _over(record: RepeatRecord, moment: float) -> bool:
    """Return whether a repeat's last recorded event is an end before a moment."""
    last = record.last
    time, ended = last.get("time"), last.get("event") in {"end", "finished"}
    return ended and isinstance(time, int | float) and time < moment


def _of(other: Path, watched: TrackedCampaign, about: _About) -> Iterator[Ran]:
    # A campaign has thousands of neighbours after some months: those that the time and the last
    # line of a file rule out cost no manifest.
    recent = {
        entry.name
        for entry, modified in _statuses(other)
        if modified >= about.since
        and not _over(watched.records.at(other / "status" / entry.name), about.begin)
    }
    if not recent:
        return
    try:
        manifest = store.read_manifest(other)
    except UsageError:
        return
    if manifest.id == watched.campaign.id:
        return  # A copy of this campaign.
    stranger = store.stranger(other)
    for one in TrackedCampaign(other, manifest, watched.records).repeats:
        name = os.path.basename(one.array.status(one.number))  # noqa: PTH119 - text of a manifest
        if name in recent:
            for ran in _ran(one):
                yield replace(ran, campaign=other.name, stranger=stranger)
