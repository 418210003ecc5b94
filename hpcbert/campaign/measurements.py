"""Writing a campaign's table, its measurements, and the evidence for both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hpcbert.campaign import evidence, judge, store
from hpcbert.campaign.attempts import SCHEMA
from hpcbert.campaign.evidence import MEASUREMENTS, TABLE
from hpcbert.campaign.judge import Gathered, JudgedRepeat
from hpcbert.campaign.node_sharing import NearbyCampaigns
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.config.schedulers import find_traits
from hpcbert.errors import HpcbertError
from hpcbert.model import Campaign
from hpcbert.results.document import NodeFacts, Source, tables_data
from hpcbert.results.reduce import tabulate
from hpcbert.slurm.states import dump_state
from hpcbert.system import redact

# Seconds after a script's end within which a scheduler that records ends adds its line.
_LAST_LINE_DELAY = 60.0


def write_results(
    watched: TrackedCampaign, gathered: Gathered, nearby: NearbyCampaigns, *, now: float
) -> tuple[str, ...]:
    """Write a campaign's results into it; return sentences about problems with that.

    Nothing is written while a recorded file has changed.
    """
    if gathered.comparison.changed:
        return ()
    if not gathered.standard:
        states = gathered.states
        gathered = judge.gather(watched, states=lambda _: states, nearby=nearby)
    try:
        record_results(watched, gathered, now=now)
    except HpcbertError as error:
        return (f"{error} The table above is complete, but it could not be saved.",)
    busy_file = _find_busy_file(watched.directory, gathered)
    if busy_file and is_over(watched, gathered, now=now):
        clause = f"{watched.campaign.id}: {busy_file} is still being written"
        advice = "Collect it again when it has stopped changing."
        return (f"{clause}: hpcbert recorded no digests. {advice}",)
    return ()


def _find_busy_file(directory: Path, gathered: Gathered) -> str:
    """Return a log or status file that was written to since it was read; empty if none was."""
    before, now = gathered.stamps, evidence.read_stamps(directory)
    names = sorted({*before, *now})
    return next((name for name in names if before.get(name) != now.get(name)), "")


def record_results(
    watched: TrackedCampaign, gathered: Gathered, *, now: float, accepted: str = ""
) -> None:
    """Write table.json and measurements.json.

    table.json holds the tables; measurements.json every repeat with its state and number, and, once
    none waits or runs any more, digests of everything that the numbers come from.

    Args:
        gathered: Its repeats by the recipe's default rule and the protocol's window.
        accepted: The user's reason to accept changes; empty if there are none.
    """
    directory = watched.directory
    ended = is_over(watched, gathered, now=now)
    document = _make_document(watched.campaign, gathered, ended=ended)
    table = {"schema": SCHEMA, **tables_data(tabulate(gathered.points))}
    store.write_json(directory / TABLE, table, indent=None)
    renewed = None
    if ended:
        renewed = evidence.renew_evidence(watched, document, now=now, accepted=accepted)
    # Digests belong to what was read, or there are none.
    if renewed and _find_busy_file(directory, gathered):
        renewed = None
    document[evidence.EVIDENCE] = renewed or evidence.keep_evidence(watched)
    document[evidence.SEAL] = evidence.compute_seal(document)
    store.write_json(directory / MEASUREMENTS, document, indent=None)


def is_over(watched: TrackedCampaign, gathered: Gathered, *, now: float) -> bool:
    """Return whether no repeat waits or runs, and no job writes; `now` in epoch seconds."""
    if any(repeat.history.newest.kind.alive for repeat in gathered.repeats):
        return False
    if not find_traits(watched.campaign.scheduler).records_end:
        return True
    submitted = (array for array in watched.campaign.arrays if array.state == "submitted")
    job_records = [
        watched.record(array, number).newest() for array in submitted for number in array.repeats
    ]
    # The scheduler writes the last line, unless it was killed.
    return all(
        job_record.state or now - (job_record.end or job_record.start or 0) > _LAST_LINE_DELAY
        for job_record in job_records
    )


def _make_document(campaign: Campaign, gathered: Gathered, *, ended: bool) -> dict[str, Any]:
    runs = []
    for repeat in gathered.repeats:
        verdicts = [
            {"array": array.name, "job_id": array.job_id, "state": dump_state(state)}
            for array, state, _ in repeat.history.attempts
        ]
        run = {
            "array": repeat.array.name,
            "job_id": repeat.array.job_id,
            "newest": repeat.history.newest.attempt,
            **asdict(replace(repeat.run, nodes=(), environments=())),
            "nodes": repeat.run.nodes,
            "environments": repeat.run.environments,
            "scheduler": dump_state(repeat.history.counted.state),
            "verdicts": verdicts,
        }
        runs.append(run)
    return {
        "schema": SCHEMA,
        "campaign": campaign.id,
        "arrays": len(campaign.arrays),
        "over": ended,
        "rule": gathered.rule.name,
        "protocol": asdict(campaign.protocol),
        "runs": runs,
    }


def make_source(directory: Path, campaign: Campaign, repeats: Iterable[JudgedRepeat]) -> Source:
    """Return a campaign's identity for tables.

    It has each environment of valid runs once, with all its nodes; of any if none is valid.
    """
    repeats = tuple(repeats)
    valid = [repeat for repeat in repeats if repeat.run.valid and repeat.fingerprints]
    nodes: dict[str, set[str]] = {}
    facts: dict[str, Mapping[str, str]] = {}
    for repeat in valid or repeats:
        for fingerprint in repeat.fingerprints:
            facts[fingerprint.digest] = fingerprint.facts
            nodes.setdefault(fingerprint.digest, set()).update(fingerprint.nodes)
    return Source(
        kind="campaign",
        name=campaign.id,
        path=str(directory),
        created=campaign.created,
        hpcbert=campaign.hpcbert,
        command=tuple(redact.mask_command(list(campaign.command))),
        site=campaign.site,
        scheduler=campaign.scheduler,
        runtime=campaign.runtime,
        image=campaign.image,
        framework=campaign.framework,
        recipe_digest=campaign.recipe_digest,
        protocol=campaign.protocol,
        materials=campaign.materials,
        environments=tuple(
            NodeFacts(digest, tuple(sorted(names)), facts[digest])
            for digest, names in nodes.items()
        ),
    )
