"""hpcbert audit."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from hpcbert.campaign import store
from hpcbert.cli.campaigns import OpenedCampaign, find_runs, open_named
from hpcbert.cli.options import RUNS, SITE, text_option
from hpcbert.cli.output import Result, join_results, pick, returns_result
from hpcbert.commands import audit as flow
from hpcbert.commands.audit import Audit
from hpcbert.commands.collect import ask_scheduler
from hpcbert.errors import CheckError, UsageError
from hpcbert.model import MANIFEST, Run
from hpcbert.results.document import tables_data
from hpcbert.results.grid import format_number
from hpcbert.results.wording import sanitize
from hpcbert.results.words import Words, name_table
from hpcbert.slurm.hostlist import fold

# Eight digits agree by chance in one of 4e9 cases.
_SEAL = re.compile("[0-9a-f]{8,64}")
_HINTS = {
    "stale": "The campaign has gone on since, or files came late: hpcbert collect records the "
    "present state and keeps a history.",
    "changed": "Restore the files from a copy; or, if the change is intended, "
    'hpcbert audit CAMPAIGN --accept "WHY", which goes on record.',
}


@click.command()
@click.argument("campaigns", nargs=-1, metavar="[CAMPAIGN]...")
@text_option("--expect", "Seal that the record must have; 8 digits will do.", "SEAL")
@click.option("--accept", metavar="WHY", help="Accept the changes, and record the reason.")
@RUNS
@SITE
@returns_result
def audit(
    *, campaigns: tuple[str, ...], expect: str, accept: str | None, runs: str, site_file: str
) -> Result:
    """Check that a campaign's numbers still follow from its files.

    CAMPAIGN is a campaign's directory or archive, its id or a part of the id, or the name of a
    file's campaigns; the newest one by default. hpcbert checks every file against the digest that
    collect recorded, and computes all numbers again from the logs. For each cell of the table it
    lists the logs with digests, states and their source, nodes and fingerprints. The exit code is 5
    if anything differs from that.

    --accept records the campaign as it is now, changed files included. Later audits and collects
    report that, with the reason.

    \b
    Examples:
      hpcbert audit
      hpcbert audit 20261121T100000Z-oneflow-3f9a1c --expect 5f2c1e9a
      hpcbert audit 3f9a1c --accept "the log was cut to its first run"
    """
    if expect and not _SEAL.fullmatch(expect.lower()):
        raise UsageError(
            f"--expect: '{expect}' can't identify a seal.",
            hint="Give at least the first 8 of its 64 hexadecimal digits, which audit prints.",
        )
    # Directories need no site.
    if campaigns and all(
        os.sep in name and (Path(name) / MANIFEST).is_file() for name in campaigns
    ):
        paths = [Path(name).absolute() for name in campaigns]
        opened_campaigns = tuple(OpenedCampaign(path, path) for path in paths)
    else:
        opened_campaigns = open_named(campaigns, find_runs(runs, site_file))
    count, option = len(opened_campaigns), "--expect" if expect else "--accept"
    if count > 1 and (expect or accept is not None):
        hint = "Name one by its id: hpcbert list"
        raise UsageError(f"{option} is about one campaign, not {count}.", hint=hint)
    return join_results([_audit_campaign(place, expect, accept) for place in opened_campaigns])


def _audit_campaign(opened_campaign: OpenedCampaign, expect: str, accept: str | None) -> Result:
    directory = opened_campaign.directory
    if accept is not None:
        if opened_campaign.packed:
            raise UsageError(
                "An archive can't be changed, so it can't record what you accept.",
                where=str(opened_campaign.shown),
                hint="Accept the changes in the campaign's directory, then archive it again.",
            )
        if owner := store.find_foreign_owner(directory):
            raise UsageError(f"The campaign belongs to {owner}.", where=str(directory))
        flow.accept_changes(directory, accept, states=ask_scheduler, now=time.time())
    report = flow.audit(directory, expected=expect.lower())
    data = tables_data(report.tables)
    for table in data["tables"]:
        for row in table["rows"]:
            for run in row["runs"]:
                run["evidence"] = report.exhibits.get(run["log"])
    text = f"{report.campaign.id} is {report.status}. {'; '.join(map(str, report.findings))}."
    is_intact = report.status == "intact"
    return Result(
        data={
            "campaign": report.campaign.id,
            "directory": str(opened_campaign.shown),
            **pick(report, "status recorded seal history findings"),
            **data,
        },
        text="\n".join(_format_audit(report)),
        errors=() if is_intact else (CheckError(text, hint=_HINTS[report.status]),),
        warnings=store.warn_about_writers(opened_campaign.shown),
    )


def _format_audit(report: Audit) -> Iterator[str]:
    name = click.style(report.campaign.id, bold=True)
    yield f"{name} · {report.status} · recorded {report.recorded}"
    yield f"seal {sanitize(report.seal)}"
    for entry in report.history:
        text = f"recorded before at {entry.get('recorded')}, since then: "
        changes = entry.get("changes")
        text += "; ".join(map(str, changes)) if isinstance(changes, list) else ""
        if entry.get("accepted"):
            text += f"; accepted at {entry.get('at')}: {entry['accepted']}"
        yield sanitize(text)
    for finding in report.findings:
        sign = click.style("!", fg="yellow") if finding.harmless else click.style("✗", fg="red")
        yield f"{sign} {sanitize(str(finding))}"
    for table in report.tables:
        yield ""
        title = f"{name_table(table.group, Words('en'))}, rule {sanitize(table.group.rule)}"
        yield click.style(title, bold=True)
        for row in table.rows:
            flags = f" · {', '.join(row.flags)}" if row.flags else ""
            median = f"{format_number(row.median)} samples/s, median of {row.ok}/{row.asked}"
            yield f"{row.shape}  {median}{flags}"
            for run in row.runs:
                yield from _format_run(run, report.exhibits.get(run.log))


def _format_run(run: Run, exhibit: Mapping[str, Any] | None) -> Iterator[str]:
    nodes = sanitize(fold(run.nodes)) or "nodes unknown"
    state = sanitize(f"{run.state} ({run.state_source})")
    rate = format_number(run.throughput)
    yield f"  {run.repeat}  {rate}  {state}  attempt {run.attempt}  {nodes}"
    if exhibit is None:
        return
    files = [exhibit["log"], exhibit["status"], exhibit["script"]]
    files += [node["file"] for node in exhibit["nodes"][:1]]
    for file in files:
        size = "-" if file["bytes"] is None else f"{file['bytes']:,}"
        digest = f"{file['sha256'] or 'not recorded':64}  {size:>12}"
        yield f"     {digest}  {sanitize(file['path'])}"
    equal_nodes: dict[str, list[str]] = {}
    for node in exhibit["nodes"]:
        equal_nodes.setdefault(f"{node['digest']} {node['summary']}", []).append(node["node"])
    for text, names in equal_nodes.items():
        yield f"     {sanitize(f'{text} ({fold(tuple(names))})')}"
