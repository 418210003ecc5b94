"""Limits on jobs' resources, as sacctmgr prints them, and how much of each one job uses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from hpcbert.timelimit import TimeLimit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_TRES = re.compile(r"([\w/:.+-]+)=(\d{1,15}(?:\.\d{1,6})?)([KMGTP]?)")
# For memory, in MiB; for others Slurm counts in thousands.
_MEMORY = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_COUNTS = {"": 1, "K": 1_000, "M": 1_000_000, "G": 10**9, "T": 10**12, "P": 10**15}


class CapKind(NamedTuple):
    """The kind of a limit.

    Attributes:
        measure: What it counts of a job: everything that it has, what it has of each node, that
            times its minutes, its minutes alone, or the job itself.
        among: Which jobs share the limit, in words.
        safe: Whether it holds jobs back only if `AccountingStorageEnforce` has `safe`.
    """

    measure: Literal["whole", "node", "minutes", "wall", "jobs"]
    among: str
    safe: bool = False


# By column. Each of them keeps a job waiting that exceeds it alone (seen with 22.05.8); for
# MaxTRESRunMinsPU and MaxTRESRunMinsPA that was not seen.
KINDS: Mapping[str, CapKind] = {
    "GrpTRES": CapKind("whole", "at a time"),
    "MaxTRES": CapKind("whole", "in one job"),
    "MaxTRESPU": CapKind("whole", "at a time"),
    "MaxTRESPA": CapKind("whole", "at a time"),
    "MaxTRESPerNode": CapKind("node", "on a node"),
    "MaxTRESMins": CapKind("minutes", "in one job"),
    "GrpTRESRunMins": CapKind("minutes", "at a time"),
    "GrpTRESMins": CapKind("minutes", "in all", safe=True),
    "GrpWall": CapKind("wall", "in all", safe=True),
    "GrpJobs": CapKind("jobs", "at a time"),
    "MaxJobs": CapKind("jobs", "at a time"),
    "MaxJobsPU": CapKind("jobs", "at a time"),
    "MaxJobsPA": CapKind("jobs", "at a time"),
}


@dataclass(frozen=True)
class Demand:
    """The request of one job.

    Attributes:
        whole: By TRES, as far as known: `node`, `gres/gpu`, `cpu`, `mem` in MiB.
        seconds: Its time limit; None: unknown, or no limit.
    """

    whole: Mapping[str, int]
    seconds: int | None = None

    def of(self, kind: CapKind) -> Mapping[str, int]:
        """Return how much of each TRES a limit counts, minutes rounded up."""
        if kind.measure == "jobs":
            return {"jobs": 1}
        if kind.measure == "whole":
            return self.whole
        if kind.measure == "node":
            nodes = max(1, self.whole.get("node", 1))
            return {name: -(-count // nodes) for name, count in self.whole.items()}
        minutes = -(-(self.seconds or 0) // 60)
        if kind.measure == "wall":
            return {"wall": minutes}
        return {name: count * minutes for name, count in self.whole.items()}


@dataclass(frozen=True)
class Cap:
    """One limit that applies to a job.

    Attributes:
        whose: Its owner: `account proj`, `QOS normal`.
        key: Its column in `KINDS`.
        most: The maximum by TRES, `gres/gpu` or `node`, or `jobs` or `wall`; memory in MiB,
            times in minutes.
        ranks: Whether it belongs to a QOS, which replaces those of lower rank.
    """

    whose: str
    key: str
    most: Mapping[str, int]
    ranks: bool = False

    @property
    def kind(self) -> CapKind:
        """Its kind."""
        return KINDS[self.key]

    def exceeded(self, demand: Demand) -> Iterator[tuple[str, int, int]]:
        """Yield each TRES that one job requests too much of: its name, requested, allowed."""
        asked = demand.of(self.kind)
        for name, most in self.most.items():
            if asked.get(name, 0) > most:
                yield name, asked[name], most


def read_limits(row: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Return the limits of a row by column, as far as they are set."""
    each = {key: _amounts(kind, row.get(key, "")) for key, kind in KINDS.items()}
    return {key: most for key, most in each.items() if most}


def _amounts(kind: CapKind, text: str) -> dict[str, int]:
    if kind.measure == "jobs":
        return {"jobs": int(text)} if text.isdigit() else {}
    if kind.measure == "wall":
        seconds = TimeLimit.reported(text).seconds
        return {"wall": seconds // 60} if seconds is not None else {}
    return tres(text)


def tres(text: str) -> dict[str, int]:
    """Read trackable resources: `cpu=16,mem=500G,node=2,gres/gpu=4,gres/gpu:a100=4`.

    Memory is in MiB; parts that can't be read are skipped.
    """
    found = {}
    for word in text.split(","):
        if match := _TRES.fullmatch(word.strip()):
            name, number, unit = match.groups()
            factor = _MEMORY[unit] if name == "mem" else _COUNTS[unit]
            found[name] = int(float(number) * factor)
    return found
