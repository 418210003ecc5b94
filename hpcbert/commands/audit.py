"""Audit: do the files behind a campaign's numbers still exist, and still give those numbers?

Digests show whether a file was changed; numbers and tables are computed again from the logs. No
scheduler is asked: the states are those on record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from hpcbert.campaign import evidence, judge, measurements, store
from hpcbert.campaign.attempts import SCHEMA, AskStates
from hpcbert.campaign.evidence import EVIDENCE, SEAL, TABLE, Deviation
from hpcbert.campaign.fingerprint import name_record
from hpcbert.campaign.judge import Gathered, JudgedRepeat
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.errors import HpcbertError, IncompleteError, UsageError
from hpcbert.logs.setting import Window
from hpcbert.model import Campaign, SpeedupTable
from hpcbert.results.document import tables_data
from hpcbert.results.reduce import tabulate
from hpcbert.slurm.states import RepeatState, load_state

Status = Literal["intact", "stale", "changed"]
_MOST_DIFFERENCES = 20


@dataclass(frozen=True)
class File:
    """A file behind a number, as recorded: digest None if it was not recorded."""

    path: str
    bytes: int | None
    sha256: str | None


@dataclass(frozen=True)
class Node:
    """A node of a run: the file with the fingerprints of all its nodes, and its own."""

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
        expected: The seal that the record must have, or its beginning; empty for any.

    Raises:
        IncompleteError: There is no evidence: the campaign was never collected after its end.
        UsageError: Its manifest or its measurements are damaged.
    """
    campaign = store.read_manifest(directory)
    document = _read_evidence(directory)
    tracked_campaign = TrackedCampaign(directory, campaign)
    digests = evidence.read_digests(tracked_campaign)
    deviations = list(evidence.find_deviations(tracked_campaign, document, digests))
    seal = str(document.get(SEAL, ""))
    if not seal.startswith(expected):
        detail = f"its seal is {seal} instead of {expected}"
        deviations.append(Deviation("seal", evidence.MEASUREMENTS, detail))
    outcome = _judge_again(tracked_campaign, document)
    judgement = None if isinstance(outcome, Deviation) else outcome
    if isinstance(outcome, Deviation):
        deviations.append(outcome)
    elif all(deviation.kind == "masked" for deviation in deviations if deviation.harmless):
        deviations += _find_changes(directory, document, outcome)
    status: Status = "stale" if all(deviation.harmless for deviation in deviations) else "changed"
    if all(deviation.kind == "masked" for deviation in deviations):
        # What was masked still gives the sealed numbers.
        status = "intact"
    files = document[EVIDENCE]["files"]
    repeats = judgement.repeats if judgement else ()
    past_records = document[EVIDENCE].get("history")
    history = past_records if isinstance(past_records, list) else []
    return Audit(
        campaign=campaign,
        status=status,
        findings=tuple(deviations),
        recorded=str(document[EVIDENCE].get("recorded", "")),
        seal=seal,
        history=tuple(entry for entry in history if isinstance(entry, dict)),
        tables=tabulate(judgement.points) if judgement else (),
        exhibits={repeat.run.log: _make_exhibit(repeat, files) for repeat in repeats},
    )


def accept_changes(directory: Path, reason: str, *, states: AskStates, now: float) -> None:
    """Record a campaign as it is now, although recorded files were changed, with the reason.

    Args:
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
    _read_evidence(directory)
    tracked_campaign = TrackedCampaign(directory, store.read_manifest(directory))
    judgement = judge.gather(
        tracked_campaign, rule="", window=Window(), states=states, trusted=True
    )
    if all(finding.harmless for finding in evidence.compare_with_record(tracked_campaign).findings):
        raise UsageError("There is no change to accept.", where=tracked_campaign.campaign.id)
    if not measurements.is_over(tracked_campaign, judgement, now=now):
        raise IncompleteError("The campaign still waits or runs: accept changes when it is over.")
    measurements.record_results(
        tracked_campaign, judgement, now=now, accepted=" ".join(reason.split())
    )


def _read_evidence(directory: Path) -> dict[str, Any]:
    document = evidence.read_measurements(directory)
    if document is None:
        raise IncompleteError(
            "The campaign has no evidence to audit.",
            where=str(directory),
            hint="hpcbert collect records it once no job of the campaign waits or runs.",
        )
    return document


def _judge_again(
    tracked_campaign: TrackedCampaign, document: Mapping[str, Any]
) -> Gathered | Deviation:
    """Judge every repeat again by the states on record; an impossible state is a finding."""
    try:
        states = {(run["array"], run["repeat"]): _read_state(run) for run in document["runs"]}
        window_record = document[EVIDENCE]["window"]
        window = Window(_int_or_none(window_record["skip"]), _int_or_none(window_record["iters"]))
        return judge.gather(
            tracked_campaign,
            rule=str(document["rule"]),
            window=window,
            states=lambda _: states,
            with_nearby=False,
            trusted=True,
        )
    except (KeyError, TypeError, AttributeError):
        detail = "states, rule or iterations are missing from the record"
        return Deviation("changed", evidence.MEASUREMENTS, detail)
    except HpcbertError as error:
        return Deviation("changed", str(error.where or store.RECIPE), error.message)


def _int_or_none(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _read_state(run: Mapping[str, Any]) -> RepeatState:
    """Return the recorded state of a repeat's newest attempt, and those of earlier ones."""
    states = [load_state(verdict["state"]) for verdict in run.get("verdicts", ())]
    newest_state = next((state for state in states if state.attempt == run["newest"]), None)
    earlier_states = tuple(state for state in states if state.attempt < run["newest"])
    return replace(newest_state or load_state(run["scheduler"]), earlier=earlier_states)


def _find_changes(
    directory: Path, document: Mapping[str, Any], judgement: Gathered
) -> Iterator[Deviation]:
    keys = ("valid", "throughput", "attempt", "log")
    runs = {repeat.key: repeat.run for repeat in judgement.repeats}
    for record in document["runs"]:
        run = runs.get((record["array"], record["repeat"]))
        for key in keys:
            value = getattr(run, key, None)
            if value != record.get(key):
                expected = f"the record has {record.get(key)}"
                detail = f"repeat {record['repeat']} has {key} {value}, but {expected}"
                yield Deviation("changed", str(record.get("log", "")), detail)
    try:
        table = store.read_json(directory / TABLE)
    except UsageError as error:
        yield Deviation("changed", TABLE, error.message)
        return
    tables = {"schema": SCHEMA, **tables_data(tabulate(judgement.points))}
    differences = _find_differences(table, json.loads(json.dumps(tables)))
    for location in islice(differences, _MOST_DIFFERENCES):
        yield Deviation("changed", TABLE, f"{location} differs from what the logs give")


def _find_differences(old: Any, new: Any, location: str = "") -> Iterator[str]:
    """Yield the places where data differ; keys that only the newer data has are ignored."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in old.items():
            yield from _find_differences(
                value, new.get(key), f"{location}.{key}" if location else key
            )
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (old_item, new_item) in enumerate(zip(old, new, strict=True)):
            yield from _find_differences(old_item, new_item, f"{location}[{index}]")
    elif old != new:
        yield location


def _make_exhibit(judged_repeat: JudgedRepeat, files: Mapping[str, Any]) -> Exhibit:
    array, run = judged_repeat.array, judged_repeat.run
    path = name_record(Path(), array.point.key, run.repeat, run.attempt)
    file = _make_file(str(path), files)
    nodes = [
        Node(node, file, fingerprint.digest, fingerprint.summary)
        for fingerprint in judged_repeat.fingerprints
        for node in fingerprint.nodes
    ]
    return Exhibit(
        job=array.element(run.repeat) or None,
        log=_make_file(run.log, files),
        status=_make_file(array.status(run.repeat), files),
        script=_make_file(array.script, files),
        nodes=tuple(nodes),
    )


def _make_file(path: str, files: Mapping[str, Any]) -> File:
    entry = files.get(path)
    facts = entry if isinstance(entry, dict) else {}
    size, sha256 = facts.get("bytes"), facts.get("sha256")
    return File(
        path,
        size if isinstance(size, int) else None,
        sha256 if isinstance(sha256, str) else None,
    )
