"""A campaign as the source of results: what remains known without its directory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hpcbert.campaign.judge import JudgedRepeat
from hpcbert.model import Campaign
from hpcbert.results.resultset import NodeFacts, Source


def make_source(directory: Path, campaign: Campaign, repeats: Iterable[JudgedRepeat]) -> Source:
    """Return what a campaign is, and the facts of its valid runs' nodes."""
    from hpcbert.system import redact

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
        environments=_list_environments(repeats),
    )


def _list_environments(repeats: Iterable[JudgedRepeat]) -> tuple[NodeFacts, ...]:
    """Return each environment once, with all its nodes."""
    fingerprints = [
        fingerprint for repeat in repeats if repeat.run.valid for fingerprint in repeat.fingerprints
    ]
    nodes: dict[str, set[str]] = {}
    for fingerprint in fingerprints:
        nodes.setdefault(fingerprint.digest, set()).add(fingerprint.node)
    facts = {fingerprint.digest: fingerprint.facts for fingerprint in fingerprints}
    return tuple(NodeFacts(key, tuple(sorted(nodes[key])), facts[key]) for key in nodes)
