"""scontrol's output about reservations, and sinfo's about features; pure.

Keys are those of SchedMD/slurm, src/api/reservation_info.c, 22.05 to 26.05.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_RESERVATION_PAIR = re.compile(r"(?:^|\s)([A-Z]\w*)=(\S*)")
_NO_NAME = {"", "(null)"}
_FEATURE_FIELDS = "%P|%f|%D"
# A feature, without the count of nodes after it: `[a*2&b*1]`.
_FEATURE = re.compile(r"(?<![\w*.-])([A-Za-z_][\w.:-]*)")


@dataclass(frozen=True)
class Reservation:
    """One reservation.

    Attributes:
        state: `ACTIVE` or `INACTIVE`.
        start: When it begins, as scontrol prints it.
        nodes: Number of its nodes.
        users: Who may use it; if empty, members of its accounts.
        accounts: The accounts that may use it.
    """

    name: str
    state: str
    start: str
    nodes: int
    users: tuple[str, ...]
    accounts: tuple[str, ...]

    def is_usable_by(self, user: str, accounts: set[str]) -> bool:
        """Return whether a user, or one of the user's accounts, may use it."""
        return user in self.users or bool(accounts & set(self.accounts))


def reservations_argv() -> list[str]:
    """Return the query for all reservations."""
    return ["scontrol", "--oneliner", "show", "reservation"]


def read_reservations(text: str) -> dict[str, Reservation]:
    """Read the output of `reservations_argv`, by name; other lines are skipped."""
    reservations = {}
    for line in text.splitlines():
        keys = dict(_RESERVATION_PAIR.findall(line))
        if name := keys.get("ReservationName"):
            count = keys.get("NodeCnt", "")
            reservations[name] = Reservation(
                name=name,
                state=keys.get("State", ""),
                start=keys.get("StartTime", ""),
                nodes=int(count) if count.isdigit() else 0,
                users=_split_names(keys.get("Users", "")),
                accounts=_split_names(keys.get("Accounts", "")),
            )
    return reservations


def _split_names(text: str) -> tuple[str, ...]:
    return () if text in _NO_NAME else tuple(text.split(","))


def features_argv() -> list[str]:
    """Return the query for the features of all nodes: a line per group of equal nodes."""
    return ["sinfo", "--noheader", "--all", f"--format={_FEATURE_FIELDS}"]


def read_features(text: str, partition: str) -> list[tuple[frozenset[str], int]]:
    """Return the features of a partition's nodes, and how many nodes have exactly these.

    Args:
        text: The output of `features_argv`.
        partition: The partition; empty for the default one.
    """
    features = []
    for line in text.splitlines():
        words = line.strip().split("|")
        if len(words) != _FEATURE_FIELDS.count("|") + 1 or not words[2].isdigit():
            continue
        row_partition, feature_text, count = words
        if (
            row_partition.removesuffix("*") == partition
            if partition
            else row_partition.endswith("*")
        ):
            names = frozenset() if feature_text in _NO_NAME else frozenset(feature_text.split(","))
            features.append((names, int(count)))
    return features


def list_features(constraint: str) -> Iterator[str]:
    """Yield the features that a constraint names, in any of its forms."""
    yield from dict.fromkeys(_FEATURE.findall(constraint))
