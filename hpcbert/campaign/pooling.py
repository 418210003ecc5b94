"""Which runs are repeats of one experiment, each once.

Copies of a log, and other experiments, are refused. If runs differ in what makes an experiment, all
are invalid, even the majority: nothing says which of them the row is about. A median over them
would describe neither.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hpcbert.campaign.fingerprint import LOG, Fingerprint, NodeSample, find_differences_within
from hpcbert.logs.layout import printable_path
from hpcbert.logs.lines import NotALogError, read_pieces
from hpcbert.model import Reason, Run
from hpcbert.system.grouping import group, group_sorted


class ComparedRun(NamedTuple):
    """A run, and what its log and its nodes say about the experiment; `point` is for messages.

    Attributes:
        beginning: Of its log, as `lines.checksum_beginning` returns it; None: a recipe's own reader
            did not say, so that whole logs are compared.
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


def refuse_run(run: Run, reason: Reason | None) -> Run:
    """Return a valid run without its number, with the reason; unchanged if there is none."""
    if not (run.valid and reason):
        return run
    return replace(run, throughput=None, valid=False, reasons=(*run.reasons, reason))


def refuse_unlike_runs(
    points: Sequence[Sequence[ComparedRun]], *, keep_first: bool
) -> list[tuple[Run, ...]]:
    """Return every point's runs, refusing those that are not repeats of the others.

    Args:
        keep_first: Whether the first of several equal logs of one point stays valid: they are one
            run. If each log belongs to a job, it is unknown which job wrote it, and none is valid.
    """
    copies = _find_copies(points, keep_first=keep_first)
    verdicts = []
    for point in points:
        compared = [entry for entry in point if entry.run.valid and id(entry.run) not in copies]
        samples = (sample for account in compared for sample in _merge_nodes(account))
        differing = find_differences_within(samples)
        decisive = [str(difference) for difference in differing if difference.decisive]
        incomparable = Reason("incomparable", "; ".join(decisive)) if decisive else None
        runs = [account.run for account in point]
        verdicts.append(tuple(refuse_run(run, copies.get(id(run), incomparable)) for run in runs))
    return verdicts


def _merge_nodes(account: ComparedRun) -> tuple[NodeSample, ...]:
    """Return the facts of a run's log and of all its nodes together.

    Nodes of one run may be of several kinds, if those of the other runs are too.
    """
    logs = [sample for sample in account.samples if LOG in sample.fingerprint.scopes]
    nodes = [sample for sample in account.samples if LOG not in sample.fingerprint.scopes]
    values = group_sorted(item for sample in nodes for item in sample.fingerprint.facts.items())
    facts = {name: " and ".join(texts) for name, texts in values.items()}
    return (*logs, NodeSample(account.point, account.run.repeat, Fingerprint((), facts)))


def _find_copies(points: Sequence[Sequence[ComparedRun]], *, keep_first: bool) -> dict[int, Reason]:
    # Points of one shape can differ in precision, batch size or model.
    places = {id(account.run): place for place, point in enumerate(points) for account in point}
    valid = [account for point in points for account in point if account.run.valid]
    # Most logs differ from others in their beginnings.
    has_unknown = any(account.beginning is None for account in valid)
    by_beginning = group((has_unknown or account.beginning, account) for account in valid)
    alike = [account for accounts in by_beginning.values() for account in accounts if accounts[1:]]
    by_content = group((_hash_log(account.log), account) for account in alike)
    reasons: dict[int, Reason] = {}
    for content, equal in by_content.items():
        is_kept = keep_first and len({places[id(account.run)] for account in equal}) == 1
        for number, account in enumerate(equal if content and len(equal) > 1 else ()):
            if number or not is_kept:
                other = equal[0] if number else equal[1]
                name = f"{other.point} repeat {other.run.repeat}, {printable_path(other.log)}"
                detail = f"the log is a byte-for-byte copy of {name}"
                reasons[id(account.run)] = Reason("duplicate", detail)
    return reasons


def is_same_log(path: Path, other: Path) -> bool:
    """Return whether two logs are equal when they are unpacked."""
    content = _hash_log(path)
    return bool(content) and content == _hash_log(other)


def _hash_log(log: Path) -> bytes:
    """Return the SHA-256 of a whole log, unpacked; empty if it is empty or can't be read."""
    digest, size = hashlib.sha256(), 0
    with suppress(NotALogError), closing(read_pieces(log)) as pieces:
        for piece in pieces:
            digest.update(piece)
            size += len(piece)
        return digest.digest() if size else b""
    return b""
