"""Which runs are repeats of one experiment: copies of a log, and strangers, are refused.

Nobody votes: of runs that differ in what makes an experiment none counts, because nothing says
which of them the row is about. A median over them would be of neither.
"""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from hpcbert.campaign.fingerprint import LOG, Fingerprint, NodeSample, within
from hpcbert.logs.layout import shown
from hpcbert.logs.lines import NotALogError, bodies
from hpcbert.logs.packed import SUFFIXES
from hpcbert.model import Reason, Run

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

# Logs that differ at all differ here, but for those of one header and a long silence.
_BEGINNING = 1 << 14


class Account(NamedTuple):
    """A run, and what tells it from others.

    Attributes:
        point: What it is a run of, for messages.
        log: Where its log lies.
        taken: What its log and its nodes say of the experiment.
    """

    point: str
    run: Run
    log: Path
    taken: tuple[NodeSample, ...]


def stated(point: str, repeat: int, facts: Mapping[str, int | str]) -> NodeSample:
    """Return what a log states of its run, in the form in which nodes are compared."""
    texts = {name: str(value) for name, value in facts.items()}
    return NodeSample(point, repeat, Fingerprint("", texts, frozenset({LOG})))


def judged(points: Sequence[Sequence[Account]], *, keep_first: bool) -> list[tuple[Run, ...]]:
    """Return every point's runs, those refused that are no repeats of the others.

    Args:
        points: The runs of each point.
        keep_first: Whether the first of several equal logs of one point counts: they are one run.
            Where each log belongs to a job, nobody knows which job wrote it, and none counts.
    """
    copies = _copies([one for point in points for one in point], keep_first=keep_first)
    return [_judged(point, copies) for point in points]


def _judged(point: Sequence[Account], copies: Mapping[int, Reason]) -> tuple[Run, ...]:
    valid = [one for one in point if one.run.valid and id(one.run) not in copies]
    differing = within(where for one in valid for where in _by_repeat(one))
    decisive = [str(one) for one in differing if one.decisive]
    other = Reason("incomparable", "; ".join(decisive)) if decisive else None
    return tuple(
        refused(one.run, reason) if one.run.valid and reason else one.run
        for one in point
        for reason in (copies.get(id(one.run)) or other,)
    )


def _by_repeat(account: Account) -> tuple[NodeSample, ...]:
    """Return what a run's log states, and what its nodes are together.

    Nodes of one run may be of several kinds, as long as those of the other runs are too.
    """
    logs = [one for one in account.taken if LOG in one.fingerprint.scopes]
    nodes = [one.fingerprint for one in account.taken if LOG not in one.fingerprint.scopes]
    values: dict[str, set[str]] = {}
    for node in nodes:
        for name, value in node.facts.items():
            values.setdefault(name, set()).add(value)
    facts = {name: " and ".join(sorted(found)) for name, found in values.items()}
    return (*logs, NodeSample(account.point, account.run.repeat, Fingerprint("", facts)))


def refused(run: Run, reason: Reason) -> Run:
    """Return a run that has no number any more, and why."""
    return replace(run, throughput=None, valid=False, reasons=(*run.reasons, reason))


def _copies(accounts: Sequence[Account], *, keep_first: bool) -> dict[int, Reason]:
    """Return why runs are refused whose logs equal another's, by the identity of the run."""
    valid = [one for one in accounts if one.run.valid]
    found: dict[int, Reason] = {}
    for equal in _equal(valid):
        one_point = len({one.point for one in equal}) == 1
        for number, one in enumerate(equal):
            if number == 0 and keep_first and one_point:
                continue
            other = equal[0] if number else equal[1]
            detail = (
                f"the log is byte for byte that of {other.point} repeat {other.run.repeat}, "
                f"{shown(other.log)}"
            )
            found[id(one.run)] = Reason("duplicate", detail)
    return found


def _equal(accounts: Iterable[Account]) -> list[list[Account]]:
    beginnings = _grouped((_beginning(one.log), one) for one in accounts)
    return [
        equal
        for alike in beginnings
        for equal in _grouped((_digest(one.log), one) for one in alike)
    ]


def _grouped(keyed: Iterable[tuple[bytes, Account]]) -> list[list[Account]]:
    groups: dict[bytes, list[Account]] = {}
    for key, one in keyed:
        groups.setdefault(key, []).append(one)
    return [group for key, group in groups.items() if key and len(group) > 1]


def twins(paths: Iterable[Path]) -> dict[Path, Path]:
    """Return the compressed logs that hold what another one beside them holds, each with that."""
    known = sorted(paths, key=lambda path: (_packed(path), str(path)))
    first: dict[Path, Path] = {}
    found: dict[Path, Path] = {}
    for path in known:
        plain = path.with_suffix("") if _packed(path) else path
        other = first.setdefault(plain, path)
        if other is not path and _is_same(other, path):
            found[path] = other
    return found


def _packed(path: Path) -> bool:
    return path.suffix.lower().lstrip(".") in SUFFIXES


def _is_same(one: Path, other: Path) -> bool:
    beginning = _beginning(one)
    return bool(beginning) and beginning == _beginning(other) and _digest(one) == _digest(other)


def _beginning(log: Path) -> bytes:
    """Return what a log begins with, unpacked; nothing if it can't be read."""
    found = b""
    with suppress(NotALogError), closing(bodies(log, _BEGINNING)) as pieces:
        for piece in pieces:
            found += piece
            if len(found) >= _BEGINNING:
                break
        return found[:_BEGINNING]
    return b""


def _digest(log: Path) -> bytes:
    """Return the SHA-256 of all that a log holds, unpacked; nothing if it can't be read."""
    # Most logs differ where they begin, and need no digest.
    import hashlib

    found = hashlib.sha256()
    with suppress(NotALogError), closing(bodies(log)) as pieces:
        for piece in pieces:
            found.update(piece)
        return found.digest()
    return b""
