"""Late files: what a node wrote, and a network file system shows only later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcbert.campaign.record import RepeatRecord
from hpcbert.model import moment
from hpcbert.slurm.ladder import VISIBLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcbert.model import Campaign


@dataclass(frozen=True)
class Lacking:
    """Files that may have been missing or cut short when a campaign was collected.

    Attributes:
        missing: Status files and logs of invalid repeats, whether they existed or not.
        growing: Logs that were recorded so soon after their job's end that more may have followed.
    """

    missing: frozenset[str] = frozenset()
    growing: frozenset[str] = frozenset()


def lacks(campaign: Campaign, document: Mapping[str, Any]) -> Lacking:
    """Return the files that a record says it lacked; none if that can't be read.

    Args:
        campaign: Its manifest.
        document: Its measurements, with evidence.
    """
    try:
        arrays = {one.name: one for one in campaign.arrays}
        recorded = moment(document["evidence"].get("recorded"))
        missing: set[str] = set()
        growing: set[str] = set()
        for run in document["runs"]:
            if run["valid"]:
                continue
            missing |= {run["log"], arrays[run["array"]].status(run["repeat"])}
            end = run["scheduler"].get("end")
            if recorded is not None and end is not None and abs(recorded - end) < VISIBLE:
                growing.add(run["log"])
    except (KeyError, TypeError, AttributeError):
        return Lacking()
    return Lacking(frozenset(missing), frozenset(growing))


def goes_on(recorded: bytes, added: bytes) -> bool:
    """Return whether lines that were added to a status file are lines that a job adds.

    They are if they belong to later attempts, or to one that had no end in the record.
    """
    before = RepeatRecord(recorded).newest()
    return not before.ended or all(
        isinstance(one.get("attempt"), int) and one["attempt"] > before.attempt
        for one in RepeatRecord(added).events
    )
