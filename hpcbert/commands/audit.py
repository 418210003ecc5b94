"""Audit: do the files behind a campaign's numbers still exist, and still give those numbers?

Digests show whether a file was changed; numbers and tables are computed again from the logs. No
scheduler is asked: the states are those on record.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from hpcbert.campaign import evidence, judge, keeping, store
from hpcbert.campaign.attempts import SCHEMA
from hpcbert.campaign.environment import FOLDER, Environments
from hpcbert.campaign.evidence import EVIDENCE, SEAL, TABLE, Deviation
from hpcbert.campaign.fingerprint import Fingerprint
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.errors import HpcbertError, IncompleteError, UsageError
from hpcbert.logs.setting import Window
from hpcbert.results.document import tables_data
from hpcbert.results.reduce import tabulate
from hpcbert.slurm.states import recalled

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from hpcbert.campaign.attempts import AskStates
    from hpcbert.campaign.judge import Gathered, JudgedRepeat
    from hpcbert.model import Campaign, SpeedupTable
    from hpcbert.slurm.states import RepeatState

Status = Literal["intact", "stale", "changed"]
_TOLD_AT_MOST = 20


@dataclass(frozen=True)
class File:
    """A file behind a number, as recorded: digest None if it was not recorded."""

    path: str
    bytes: int | None
    sha256: str | None


@dataclass(frozen=True)
class Node:
    """A node of a run: the file of its fingerprint, and the fingerprint."""

    node: str
    file: File
    digest: str
    summary: str


@dataclass(frozen=True)
class Exhibit:
    """Everything behind one repeat of a campaign, as `audit --json` has it."""

    job: str | None
    log: File
    status: File
    script: File
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Audit:
    """The result of an audit.

    Attributes:
        status: `intact`, even if secrets were masked to archive the campaign; `stale`: the campaign
            has gone on since; `changed`: something that was recorded has changed or is missing.
        findings: The differences from the record.
        recorded: When the evidence was recorded, ISO 8601 UTC.
        seal: The record's own digest: if noted elsewhere, it proves that the record is the same.
        history: Earlier records, and what had changed since each.
        tables: The tables, made again from the logs.
        exhibits: The repeats, by the path of the valid attempt's log.
    """

    campaign: Campaign
    status: Status
    findings: tuple[Deviation, ...]
    recorded: str
    seal: str
    history: tuple[Mapping[str, Any], ...]
    tables: tuple[SpeedupTable, ...]
    exhibits: Mapping[str, Exhibit]


def audit(directory: Path, *, expected: str = "") -> Audit:
    """Compare a campaign with its evidence.

    Args:
        directory: The campaign.
        expected: The seal that the record must have, or its beginning; empty for any.

    Raises:
        IncompleteError: There is no evidence: the campaign was never collected after its end.
        UsageError: Its manifest or its measurements are damaged.
    """
    campaign = store.read_manifest(directory)
    document = _recorded(directory)
    watched = TrackedCampaign(directory, campaign)
    deviations = list(evidence.changes(watched, document, evidence.digests(watched)))
    text = str(document.get(SEAL, ""))
    if not text.startswith(expected):
        detail = f"its seal is {text} instead of {expected}"
        deviations.append(Deviation("seal", evidence.MEASUREMENTS, detail))
    gathered = _again(watched, document)
    made = None if isinstance(gathered, Deviation) else gathered
    if isinstance(gathered, Deviation):
        deviations.append(gathered)
    elif all(deviation.kind == "masked" for deviation in deviations if deviation.harmless):
        deviations += _recomputed(directory, document, gathered)
    status: Status = "stale" if all(deviation.harmless for deviation in deviations) else "changed"
    if all(deviation.kind == "masked" for deviation in deviations):
        # What was masked still gives the sealed numbers.
        status = "intact"
    files, environments = document[EVIDENCE]["files"], Environments(directory)
    repeats = made.repeats if made else ()
    noted = document[EVIDENCE].get("history")
    history = noted if isinstance(noted, list) else []
    return Audit(
        campaign=campaign,
        status=status,
        findings=tuple(deviations),
        recorded=str(document[EVIDENCE].get("recorded", "")),
        seal=text,
        history=tuple(one for one in history if isinstance(one, dict)),
        tables=tabulate(made.points) if made else (),
        exhibits={repeat.run.log: _exhibit(repeat, files, environments) for repeat in repeats},
    )


def accept(directory: Path, reason: str, *, states: AskStates, now: float) -> None:
    """Record a campaign as it is now, although recorded files were changed, with the reason.

    Args:
        directory: The campaign.
        reason: The reason in the user's words; it stays on record.
        states: Asks the scheduler; called only for states that are not on record.
        now: Seconds since the epoch.

    Raises:
        IncompleteError: There is no evidence, or a job of the campaign still waits or runs.
        UsageError: The reason is empty, nothing was changed, or a file is damaged.
        HpcbertError: The record can't be written.
    """
    if not reason.strip():
        raise UsageError("Accepting a change needs a reason.", where="--accept")
    _recorded(directory)
    watched = TrackedCampaign(directory, store.read_manifest(directory))
    gathered = judge.gather(watched, rule="", window=Window(), states=states, trusted=True)
    if all(finding.harmless for finding in evidence.hold(watched).findings):
        raise UsageError("There is no change to accept.", where=watched.campaign.id)
    if not keeping.over(watched, gathered, now=now):
        raise IncompleteError("The campaign still waits or runs: accept changes when it is over.")
    keeping.record(watched, gathered, now=now, accepted=" ".join(reason.split()))


def _recorded(directory: Path) -> dict[str, Any]:
    document = evidence.recorded(directory)
    if document is None:
        raise IncompleteError(
            "The campaign has no evidence to audit.",
            where=str(directory),
            hint="hpcbert collect records it once no job of the campaign waits or runs.",
        )
    return document


def _again(watched: TrackedCampaign, document: Mapping[str, Any]) -> Gathered | Deviation:
    """Judge every repeat again by the states on record; an impossible state is a finding."""
    try:
        states = {(run["array"], run["repeat"]): _known(run) for run in document["runs"]}
        raw = document[EVIDENCE]["window"]
        window = Window(_whole(raw["skip"]), _whole(raw["iters"]))
        return judge.gather(
            watched,
            rule=str(document["rule"]),
            window=window,
            states=lambda _: states,
            beside=False,
            trusted=True,
        )
    except (KeyError, TypeError, AttributeError):
        detail = "states, rule or iterations are missing from the record"
        return Deviation("changed", evidence.MEASUREMENTS, detail)
    except HpcbertError as error:
        return Deviation("changed", str(error.where or store.RECIPE), error.message)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _known(run: Mapping[str, Any]) -> RepeatState:
    """Return the recorded state of a repeat's newest attempt, and those of earlier ones."""
    states = [recalled(one["state"]) for one in run.get("verdicts", ())]
    newest = next((state for state in states if state.attempt == run["newest"]), None)
    earlier = tuple(state for state in states if state.attempt < run["newest"])
    return replace(newest or recalled(run["scheduler"]), earlier=earlier)


def _recomputed(
    directory: Path, document: Mapping[str, Any], gathered: Gathered
) -> Iterator[Deviation]:
    keys = ("valid", "throughput", "attempt", "log")
    again = {repeat.key: repeat.run for repeat in gathered.repeats}
    for then in document["runs"]:
        run = again.get((then["array"], then["repeat"]))
        for key in keys:
            now = getattr(run, key, None)
            if now != then.get(key):
                detail = (
                    f"repeat {then['repeat']} has {key} {now}, but the record has {then.get(key)}"
                )
                yield Deviation("changed", str(then.get("log", "")), detail)
    try:
        table = store.read_json(directory / TABLE)
    except UsageError as error:
        yield Deviation("changed", TABLE, error.message)
        return
    made = {"schema": SCHEMA, **tables_data(tabulate(gathered.points))}
    for place in islice(_differences(table, json.loads(json.dumps(made))), _TOLD_AT_MOST):
        yield Deviation("changed", TABLE, f"{place} differs from what the logs give")


def _differences(then: Any, now: Any, place: str = "") -> Iterator[str]:
    """Yield the places where data differ; keys that only the newer data has are ignored."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key, value in then.items():
            yield from _differences(value, now.get(key), f"{place}.{key}" if place else key)
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for number, (left, right) in enumerate(zip(then, now, strict=True)):
            yield from _differences(left, right, f"{place}[{number}]")
    elif then != now:
        yield place


def _exhibit(
    judged_repeat: JudgedRepeat, files: Mapping[str, Any], environments: Environments
) -> Exhibit:
    array = judged_repeat.array
    fingerprints = {node.node: node for node in judged_repeat.fingerprints}
    start = f"{array.point.key}.{judged_repeat.run.repeat}.{judged_repeat.run.attempt}."
    nodes = []
    for path in environments.names(
        array.point.key, judged_repeat.run.repeat, judged_repeat.run.attempt
    ):
        name = path.removeprefix(start).removesuffix(".json")
        node = fingerprints.get(name, Fingerprint(name, {}))
        told = (node.digest, node.summary) if name in fingerprints else ("", "")
        nodes.append(Node(name, _file(f"{FOLDER}/{path}", files), *told))
    return Exhibit(
        job=array.element(judged_repeat.run.repeat) or None,
        log=_file(judged_repeat.run.log, files),
        status=_file(array.status(judged_repeat.run.repeat), files),
        script=_file(array.script, files),
        nodes=tuple(nodes),
    )


def _file(path: str, files: Mapping[str, Any]) -> File:
    entry = files.get(path)
    known = entry if isinstance(entry, dict) else {}
    size, sha256 = known.get("bytes"), known.get("sha256")
    return File(
        path,
        size if isinstance(size, int) else None,
        sha256 if isinstance(sha256, str) else None,
    )
