"""Runs that shared a node with a campaign's own runs while those were measured.

All attempts matter, of this campaign and of every other one next to it: however they ended, they
may have slowed the node down.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpcbert.campaign import store
from hpcbert.campaign.evidence import MEASUREMENTS
from hpcbert.campaign.steps import meetings
from hpcbert.campaign.vicinity import About, attempts, statuses
from hpcbert.errors import UsageError
from hpcbert.model import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hpcbert.campaign.repeats import Key, TrackedCampaign
    from hpcbert.campaign.vicinity import Ran, Vicinity
    from hpcbert.model import Run

# Seconds by which the clocks of nodes and file servers may differ.
_SLACK = 3600.0
SHARED = "shared-nodes"
_SHOWN = 3


@dataclass(frozen=True)
class Sharing:
    """The runs that shared nodes with one repeat, as a clause.

    Attributes:
        own: The user's runs among them; what others write about theirs can't refuse your numbers.
    """

    detail: str
    own: bool


def undisturbed(
    watched: TrackedCampaign, runs: Mapping[Key, Run], around: Vicinity | None
) -> tuple[dict[Key, Run], tuple[str, ...]]:
    """Mark runs that shared a node, or refuse them if they had requested the node for themselves.

    What an earlier collect found stays, wherever the campaign and its neighbours are now.

    Args:
        watched: The campaign.
        runs: The runs, by name of their array and repeat.
        around: What is known of the campaigns next to it; None to leave them out.

    Returns:
        The runs, and warnings about those that are marked.
    """
    arrays = {one.key: one.array for one in watched.repeats}
    valid = {key: run for key, run in runs.items() if run.valid}
    counted = {(arrays[key].point.key, run.repeat): run.attempt for key, run in valid.items()}
    found = sharing(watched, counted, around)
    before = noted(watched.directory)
    judged, warnings = dict(runs), []
    for key, run in valid.items():
        array = arrays[key]
        shared = found.get((array.point.key, run.repeat))
        then = before.get((array.name, run.repeat, run.attempt))
        own = shared is not None and shared.own and array.request.exclusive
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
    watched: TrackedCampaign, counted: Mapping[Key, int], around: Vicinity | None
) -> dict[Key, Sharing]:
    """Return the attempts that ran on a repeat's nodes while it was measured, by repeat.

    Other campaigns are read only if one of their files was written to since this one began; those
    that can't be read are skipped.

    Args:
        watched: The campaign.
        counted: The valid attempt, by point and repeat.
        around: What is known of the campaigns next to it; None to leave them out.
    """
    own = [ran for one in watched.repeats for ran in attempts(one)]
    mine = [ran for ran in own if counted.get((ran.point, ran.repeat)) == ran.step.attempt]
    spans = [(ran.step.begin, ran.step.end or ran.step.begin) for ran in mine if ran.step.begin]
    if not spans:
        return {}
    begin, end = min(one for one, _ in spans), max(last for _, last in spans if last)
    # Files have the time of the file server's clock, which is not the nodes'.
    written = [modified for _, modified in statuses(watched.directory)]
    about = About(since=min([begin, *written]) - _SLACK, begin=begin - _SLACK, end=end + _SLACK)
    others: Sequence[Ran] = ()
    if around:
        steps = [ran.step for ran in mine]
        others = around.beside(watched, steps, about, max(written, default=0.0))
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


def _said(shared: Sequence[tuple[Ran, tuple[str, ...]]]) -> Sharing:
    nodes = sorted({node for _, names in shared for node in names})
    runs = list(dict.fromkeys(str(other) for other, _ in shared))
    more = f" and {len(runs) - _SHOWN} more" if len(runs) > _SHOWN else ""
    where = f"{', '.join(nodes[:_SHOWN])}{' and others' if len(nodes) > _SHOWN else ''}"
    return Sharing(
        f"{', '.join(runs[:_SHOWN])}{more} ran on {where} while it was measured",
        own=any(not other.stranger for other, _ in shared),
    )
