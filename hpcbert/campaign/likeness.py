"""Which runs are repeats of one experiment: copies of a log, and other experiments, are refused.

There is no majority vote: if runs differ in what makes an experiment, none is valid: nothing
says which of them the row is about. A median over them would describe neither.
"""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from hpcbert.campaign.fingerprint import LOG, Fingerprint, NodeSample, within
from hpcbert.logs.layout import shown
from hpcbert.logs.lines import BEGINNING, NotALogError, bodies, checksum
from hpcbert.logs.packed import SUFFIXES
from hpcbert.model import Reason, Run

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path


class Account(NamedTuple):
    """A run, and what distinguishes it from others.

    Attributes:
        point: Its point, for messages.
        log: The path of its log.
        taken: What its log and its nodes say about the experiment.
        beginning: Of its log, as `lines.checksum` returns it; None if unknown.
    """

    point: str
    run: Run
    log: Path
    taken: tuple[NodeSample, ...]
    beginning: int | None = None


def stated(point: str, repeat: int, facts: Mapping[str, int | str]) -> NodeSample:
    """Return the facts in a run's log, in the form in which nodes are compared."""
    texts = {name: str(value) for name, value in facts.items()}
    return NodeSample(point, repeat, Fingerprint("", texts, frozenset({LOG})))


def judged(points: Sequence[Sequence[Account]], *, keep_first: bool) -> list[tuple[Run, ...]]:
    """Return every point's runs, refusing those that are not repeats of the others.

    Args:
        points: The runs of each point.
        keep_first: Whether the first of several equal logs of one point stays valid: they are one
            run. If each log belongs to a job, it is unknown which job wrote it, and none is valid.
    """
    copies = _copies([account for point in points for account in point], keep_first=keep_first)
    return [_judged(point, copies) for point in points]


def _judged(point: Sequence[Account], copies: Mapping[int, Reason]) -> tuple[Run, ...]:
    valid = [account for account in point if account.run.valid and id(account.run) not in copies]
    differing = within(where for account in valid for where in _by_repeat(account))
    decisive = [str(difference) for difference in differing if difference.decisive]
    other = Reason("incomparable", "; ".join(decisive)) if decisive else None
    return tuple(
        refused(account.run, reason) if account.run.valid and reason else account.run
        for account in point
        for reason in (copies.get(id(account.run)) or other,)
    )


def _by_repeat(account: Account) -> tuple[NodeSample, ...]:
    """Return the facts of a run's log and of all its nodes together.

    Nodes of one run may be of several kinds, if those of the other runs are too.
    """
    logs = [node_sample for node_sample in account.taken if LOG in node_sample.fingerprint.scopes]
    nodes = [
        node_sample.fingerprint
        for node_sample in account.taken
        if LOG not in node_sample.fingerprint.scopes
    ]
    values: dict[str, set[str]] = {}
    for node in nodes:
        for name, value in node.facts.items():
            values.setdefault(name, set()).add(value)
    facts = {name: " and ".join(sorted(found)) for name, found in values.items()}
    return (*logs, NodeSample(account.point, account.run.repeat, Fingerprint("", facts)))


def refused(run: Run, reason: Reason) -> Run:
    """Return a run without its number, with the reason."""
    return replace(run, throughput=None, valid=False, reasons=(*run.reasons, reason))


def _copies(accounts: Sequence[Account], *, keep_first: bool) -> dict[int, Reason]:
    """Return why runs with equal logs are refused, by the identity of the run."""
    valid = [account for account in accounts if account.run.valid]
    reasons: dict[int, Reason] = {}
    for equal in _equal(valid):
        one_point = len({account.point for account in equal}) == 1
        for number, account in enumerate(equal):
            if number == 0 and keep_first and one_point:
                continue
            other = equal[0] if number else equal[1]
            detail = (
                f"the log is a byte-for-byte copy of {other.point} repeat {other.run.repeat}, "
                f"{shown(other.log)}"
            )
            reasons[id(account.run)] = Reason("duplicate", detail)
    return reasons


def _equal(accounts: Iterable[Account]) -> list[list[Account]]:
    beginnings = _grouped(
        (_beginning(account.log) if account.beginning is None else account.beginning, account)
        for account in accounts
    )
    return [
        equal
        for alike in beginnings
        for equal in _grouped((_digest(account.log), account) for account in alike)
    ]


def _grouped(keyed: Iterable[tuple[int | bytes, Account]]) -> list[list[Account]]:
    groups: dict[int | bytes, list[Account]] = {}
    for key, account in keyed:
        groups.setdefault(key, []).append(account)
    return [group for key, group in groups.items() if key and len(group) > 1]


def twins(paths: Iterable[Path]) -> dict[Path, Path]:
    """Return the compressed logs with the same content as a log next to them, with that log."""
    known = [*paths]
    if not any(map(_packed, known)):
        return {}
    known.sort(key=lambda path: (_packed(path), str(path)))
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


def _is_same(path: Path, other: Path) -> bool:
    beginning = _beginning(path)
    return bool(beginning) and beginning == _beginning(other) and _digest(path) == _digest(other)


def _beginning(log: Path) -> int:
    """Return the checksum of a log's beginning, unpacked; 0 if it can't be read."""
    found = b""
    with suppress(NotALogError), closing(bodies(log, BEGINNING)) as pieces:
        for piece in pieces:
            found += piece
            if len(found) >= BEGINNING:
                break
        return checksum(found)
    return 0


def _digest(log: Path) -> bytes:
    """Return the SHA-256 of a whole log, unpacked; nothing if it can't be read."""
    # Most logs differ at the beginning, and need no digest.
    import hashlib

    found = hashlib.sha256()
    with suppress(NotALogError), closing(bodies(log)) as pieces:
        for piece in pieces:
            found.update(piece)
        return found.digest()
    return b""
