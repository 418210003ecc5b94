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

from hpcbert.campaign import evidence, judge, store
from hpcbert.campaign.attempts import SCHEMA, AskStates
from hpcbert.campaign.evidence import EVIDENCE, SEAL, TABLE, Deviation
from hpcbert.campaign.fingerprint import name_record
from hpcbert.campaign.judge import Gathered, JudgedRepeat
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.errors import HpcbertError, IncompleteError, UsageError
from hpcbert.model import Campaign, SpeedupTable
from hpcbert.results.document import tables_data
from hpcbert.results.reduce import tabulate
from hpcbert.slurm.states import RepeatState, load_state

Status = Literal["intact", "stale", "changed"]
_MOST_DIFFERENCES = 20


@dataclass(frozen=True)
class Audit:
    """The result of an audit.

    Attributes:
        status: `intact`, even if secrets were masked to archive the campaign; `stale`: the campaign
            has gone on since; `changed`: something that was recorded has changed or is missing.
        recorded: When the evidence was recorded, ISO 8601 UTC.
        seal: The record's own digest: if noted elsewhere, it proves that the record is the same.
        history: Earlier records, and what had changed since each.
        exhibits: Everything behind a repeat, as `audit --json` has it, by the path of the log of
            its valid attempt.
    """

    campaign: Campaign
    status: Status
    findings: tuple[Deviation, ...]
    recorded: str
    seal: str
    history: tuple[Mapping[str, Any], ...]
    tables: tuple[SpeedupTable, ...]
    exhibits: Mapping[str, Mapping[str, Any]]


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
    judgement = _judge_again(tracked_campaign, document, deviations)
    if judgement and all(entry.kind == "masked" for entry in deviations if entry.harmless):
        deviations += _find_changes(directory, document, judgement)
    status: Status = "changed"
    if all(deviation.kind == "masked" for deviation in deviations):
        # What was masked still gives the sealed numbers.
        status = "intact"
    elif all(deviation.harmless for deviation in deviations):
        status = "stale"
    files = document[EVIDENCE]["files"]
    repeats = judgement.repeats if judgement else ()
    return Audit(
        campaign=campaign,
        status=status,
        findings=tuple(deviations),
        recorded=str(document[EVIDENCE].get("recorded", "")),
        seal=seal,
        history=evidence.read_history(document),
        tables=tabulate(judgement.points) if judgement else (),
        exhibits={repeat.run.log: _make_exhibit(repeat, files) for repeat in repeats},
    )


def accept_changes(directory: Path, reason: str, *, states: AskStates, now: float) -> None:
    """Record a campaign as it is now, although recorded files were changed, with the reason.

    Args:
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
    judgement = judge.gather(tracked_campaign, states=states, trusted=True)
    if all(finding.harmless for finding in evidence.compare_with_record(tracked_campaign).findings):
        raise UsageError("There is no change to accept.", where=tracked_campaign.campaign.id)
    if not judge.is_over(tracked_campaign, judgement, now=now):
        raise IncompleteError("The campaign still waits or runs: accept changes when it is over.")
    judge.record_results(tracked_campaign, judgement, now=now, accepted=" ".join(reason.split()))


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
    tracked_campaign: TrackedCampaign, document: Mapping[str, Any], deviations: list[Deviation]
) -> Gathered | None:
    """Judge every repeat again by the states on record; where they allow none, note why."""
    try:
        states = {(run["array"], run["repeat"]): _read_state(run) for run in document["runs"]}
        return judge.gather(
            tracked_campaign,
            rule=str(document["rule"]),
            states=lambda _: states,
            with_nearby=False,
            trusted=True,
        )
    except (KeyError, TypeError, AttributeError):
        detail = "states or rule are missing from the record"
        deviations.append(Deviation("changed", evidence.MEASUREMENTS, detail))
    except HpcbertError as error:
        where = str(error.where or store.RECIPE)
        deviations.append(Deviation("changed", where, error.message))
    return None


def _read_state(run: Mapping[str, Any]) -> RepeatState:
    """Return the recorded state of a repeat's newest attempt, and those of earlier ones."""
    states = [load_state(verdict["state"]) for verdict in run.get("verdicts", ())]
    newest_state = next((state for state in states if state.attempt == run["newest"]), None)
    earlier_states = tuple(state for state in states if state.attempt < run["newest"])
    return replace(newest_state or load_state(run["scheduler"]), earlier=earlier_states)


def _find_changes(
    directory: Path, document: Mapping[str, Any], judgement: Gathered
) -> Iterator[Deviation]:
    runs = {repeat.key: repeat.run for repeat in judgement.repeats}
    for record in document["runs"]:
        run = runs.get((record["array"], record["repeat"]))
        for key in ("valid", "throughput", "attempt", "log"):
            value = getattr(run, key, None)
            if value != record.get(key):
                detail = f"repeat {record['repeat']} has {key} {value}, but the record has "
                detail += str(record.get(key))
                yield Deviation("changed", str(record.get("log", "")), detail)
    try:
        table = store.read_json(directory / TABLE)
    except UsageError as error:
        yield Deviation("changed", TABLE, error.message)
        return
    tables = json.loads(json.dumps({"schema": SCHEMA, **tables_data(tabulate(judgement.points))}))
    for location in islice(_find_differences(table, tables), _MOST_DIFFERENCES):
        yield Deviation("changed", TABLE, f"{location} differs from what the logs give")


def _find_differences(old: Any, new: Any, location: str = "") -> Iterator[str]:
    """Yield the places where data differ; keys that only the newer data has are ignored."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in old.items():
            yield from _find_differences(value, new.get(key), f"{location}.{key}".lstrip("."))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, values in enumerate(zip(old, new, strict=True)):
            yield from _find_differences(*values, f"{location}[{index}]")
    elif old != new:
        yield location


def _make_exhibit(judged_repeat: JudgedRepeat, files: Mapping[str, Any]) -> dict[str, Any]:
    array, run = judged_repeat.array, judged_repeat.run
    path = name_record(Path(), array.point.key, run.repeat, run.attempt)
    file = _describe_file(str(path), files)
    nodes = [
        {"node": node, "file": file, "digest": entry.digest, "summary": entry.summary}
        for entry in judged_repeat.fingerprints
        for node in entry.nodes
    ]
    return {
        "job": array.element(run.repeat) or None,
        "log": _describe_file(run.log, files),
        "status": _describe_file(array.status(run.repeat), files),
        "script": _describe_file(array.script, files),
        "nodes": nodes,
    }


def _describe_file(path: str, files: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file behind a number, as recorded; None for what is not on record."""
    entry = files.get(path)
    size, digest = (entry.get("bytes"), entry.get("sha256")) if isinstance(entry, dict) else (0, 0)
    is_known = isinstance(size, int) and isinstance(digest, str)
    return {
        "path": path,
        "bytes": size if is_known else None,
        "sha256": digest if is_known else None,
    }
