"""Which runs are repeats of one experiment: copies of a log, and other experiments, are refused.

If runs differ in what makes an experiment, all are invalid, even the majority: nothing says which
of them the row is about. A median over them would describe neither.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hpcbert.campaign.fingerprint import LOG, Fingerprint, NodeSample, find_differences_within
from hpcbert.logs.layout import printable_path
from hpcbert.logs.lines import BEGINNING, SUFFIXES, NotALogError, checksum_beginning, read_pieces
from hpcbert.model import Reason, Run


class ComparedRun(NamedTuple):
    """A run, and what distinguishes it from others.

    Attributes:
        point: Its point, for messages.
        log: The path of its log.
        samples: What its log and its nodes say about the experiment.
        beginning: Of its log, as `lines.checksum_beginning` returns it; None if unknown.
    """

    point: str
    run: Run
    log: Path
    samples: tuple[NodeSample, ...]
    beginning: int | None = None


def make_log_sample(point: str, repeat: int, facts: Mapping[str, int | str]) -> NodeSample:
    """Return the facts in a run's log, in the form in which nodes are compared."""
    texts = {name: str(value) for name, value in facts.items()}
    return NodeSample(point, repeat, Fingerprint((), texts, frozenset({LOG})))


def refuse_unlike_runs(
    points: Sequence[Sequence[ComparedRun]], *, keep_first: bool
) -> list[tuple[Run, ...]]:
    """Return every point's runs, refusing those that are not repeats of the others.

    Args:
        keep_first: Whether the first of several equal logs of one point stays valid: they are one
            run. If each log belongs to a job, it is unknown which job wrote it, and none is valid.
    """
    copies = _find_copies([account for point in points for account in point], keep_first=keep_first)
    return [_refuse_unlike(point, copies) for point in points]


def _refuse_unlike(point: Sequence[ComparedRun], copies: Mapping[int, Reason]) -> tuple[Run, ...]:
    valid = [account for account in point if account.run.valid and id(account.run) not in copies]
    differing = find_differences_within(
        where for account in valid for where in _merge_nodes(account)
    )
    decisive = [str(difference) for difference in differing if difference.decisive]
    incomparable = Reason("incomparable", "; ".join(decisive)) if decisive else None
    runs = []
    for account in point:
        run, reason = account.run, copies.get(id(account.run)) or incomparable
        if run.valid and reason:
            run = refuse_run(run, reason)
        runs.append(run)
    return tuple(runs)


def _merge_nodes(account: ComparedRun) -> tuple[NodeSample, ...]:
    """Return the facts of a run's log and of all its nodes together.

    Nodes of one run may be of several kinds, if those of the other runs are too.
    """
    logs = [node_sample for node_sample in account.samples if LOG in node_sample.fingerprint.scopes]
    nodes = [
        node_sample.fingerprint
        for node_sample in account.samples
        if LOG not in node_sample.fingerprint.scopes
    ]
    values: dict[str, set[str]] = {}
    for node in nodes:
        for name, value in node.facts.items():
            values.setdefault(name, set()).add(value)
    facts = {name: " and ".join(sorted(texts)) for name, texts in values.items()}
    return (*logs, NodeSample(account.point, account.run.repeat, Fingerprint((), facts)))


def refuse_run(run: Run, reason: Reason) -> Run:
    """Return a run without its number, with the reason."""
    return replace(run, throughput=None, valid=False, reasons=(*run.reasons, reason))


def _find_copies(accounts: Sequence[ComparedRun], *, keep_first: bool) -> dict[int, Reason]:
    """Return the reasons against runs with equal logs, by `id()` of the run."""
    valid = [account for account in accounts if account.run.valid]
    reasons: dict[int, Reason] = {}
    for equal in _group_equal(valid):
        one_point = len({account.point for account in equal}) == 1
        for number, account in enumerate(equal):
            if number == 0 and keep_first and one_point:
                continue
            other = equal[0] if number else equal[1]
            detail = (
                f"the log is a byte-for-byte copy of {other.point} repeat {other.run.repeat}, "
                f"{printable_path(other.log)}"
            )
            reasons[id(account.run)] = Reason("duplicate", detail)
    return reasons


def _group_equal(accounts: Iterable[ComparedRun]) -> list[list[ComparedRun]]:
    beginnings = _group(
        (_hash_beginning(account.log) if account.beginning is None else account.beginning, account)
        for account in accounts
    )
    return [
        equal
        for alike in beginnings
        for equal in _group((_hash_log(account.log), account) for account in alike)
    ]


def _group(keyed: Iterable[tuple[int | bytes, ComparedRun]]) -> list[list[ComparedRun]]:
    groups: dict[int | bytes, list[ComparedRun]] = {}
    for key, account in keyed:
        groups.setdefault(key, []).append(account)
    return [group for key, group in groups.items() if key and len(group) > 1]


def find_compressed_copies(paths: Iterable[Path]) -> dict[Path, Path]:
    """Return the compressed logs that equal a log next to them, each with that log."""
    logs = [*paths]
    if not any(map(_is_packed, logs)):
        return {}
    logs.sort(key=lambda path: (_is_packed(path), str(path)))
    originals: dict[Path, Path] = {}
    copies: dict[Path, Path] = {}
    for path in logs:
        plain = path.with_suffix("") if _is_packed(path) else path
        original = originals.setdefault(plain, path)
        if original is not path and _is_same(original, path):
            copies[path] = original
    return copies


def _is_packed(path: Path) -> bool:
    return path.suffix.lower().lstrip(".") in SUFFIXES


def _is_same(path: Path, other: Path) -> bool:
    beginning = _hash_beginning(path)
    return (
        bool(beginning)
        and beginning == _hash_beginning(other)
        and _hash_log(path) == _hash_log(other)
    )


def _hash_beginning(log: Path) -> int:
    """Return the checksum of a log's beginning, unpacked; 0 if it can't be read."""
    content = b""
    with suppress(NotALogError), closing(read_pieces(log, BEGINNING)) as pieces:
        for piece in pieces:
            content += piece
            if len(content) >= BEGINNING:
                break
        return checksum_beginning(content)
    return 0


def _hash_log(log: Path) -> bytes:
    """Return the SHA-256 of a whole log, unpacked; empty if it can't be read."""
    digest = hashlib.sha256()
    with suppress(NotALogError), closing(read_pieces(log)) as pieces:
        for piece in pieces:
            digest.update(piece)
        return digest.digest()
    return b""
