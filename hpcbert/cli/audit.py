"""hpcbert audit."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcbert.campaign import store
from hpcbert.cli.campaigns import OpenedCampaign, open_campaigns
from hpcbert.cli.output import Result, returns_result
from hpcbert.commands import audit as flow
from hpcbert.commands.collect import ask_scheduler
from hpcbert.config.site import load
from hpcbert.errors import CheckError, UsageError
from hpcbert.model import MANIFEST
from hpcbert.results.document import tables_data
from hpcbert.results.grid import number
from hpcbert.results.words import on_cpu, plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcbert.commands.audit import Audit, Exhibit, File
    from hpcbert.model import Run

# Eight digits agree by chance in one of 4e9 cases.
_SEAL = re.compile("[0-9a-f]{8,64}")
_HINTS = {
    "stale": "The campaign has gone on since, or files came late: hpcbert collect records the "
    "present state and keeps a history.",
    "changed": "Restore the files from a copy; or, if the change is intended, "
    'hpcbert audit CAMPAIGN --accept "WHY", which goes on record.',
}


@click.command(
    epilog="\b\nExamples:\n"
    "  hpcbert audit\n"
    "  hpcbert audit 20261121T100000Z-oneflow-3f9a1c --expect 5f2c1e9a\n"
    '  hpcbert audit 3f9a1c --accept "the log was cut to its first run"'
)
@click.argument("campaign", default="")
@click.option(
    "--expect", default="", metavar="SEAL", help="Seal that the record must have; 8 digits will do."
)
@click.option("--accept", metavar="WHY", help="Accept the changes, and record the reason.")
@click.option("--runs", default="", help="Directory of the campaigns.")
@click.option("--site", "site_file", default="", help="A site.toml, or its folder.")
@returns_result
def audit(*, campaign: str, expect: str, accept: str | None, runs: str, site_file: str) -> Result:
    """Check that a campaign's numbers still follow from its files.

    CAMPAIGN is a campaign's directory or archive, its id or a part of the id; the newest one by
    default. hpcbert checks every file against the digest that collect recorded, and computes all
    numbers again from the logs. For each cell of the table it lists the logs with digests, states
    and their source, nodes and fingerprints. The exit code is 5 if anything differs from that.

    --accept records the campaign as it is now, changed files included. Later audits and collects
    report that, with the reason.
    """
    if expect and not _SEAL.fullmatch(expect.lower()):
        raise UsageError(
            f"--expect: '{expect}' can't identify a seal.",
            hint="Give at least the first 8 of its 64 hexadecimal digits, which audit prints.",
        )
    if os.sep in campaign and (Path(campaign) / MANIFEST).is_file():
        path = Path(campaign).absolute()
        opened_campaign = OpenedCampaign(path, path)
    else:
        folder = Path(runs or load(site_file).runs)
        (opened_campaign,) = open_campaigns([campaign] if campaign else (), folder)
    if accept is not None and opened_campaign.packed:
        raise UsageError(
            "An archive can't be changed, so it can't record what you accept.",
            where=str(opened_campaign.shown),
            hint="Accept the changes in the campaign's directory, then archive it again.",
        )
    if accept is not None:
        if who := store.stranger(opened_campaign.directory):
            raise UsageError(
                f"The campaign belongs to {who}.", where=str(opened_campaign.directory)
            )
        flow.accept(opened_campaign.directory, accept, states=ask_scheduler, now=time.time())
    made = flow.audit(opened_campaign.directory, expected=expect.lower())
    text = f"{made.campaign.id} is {made.status}. {'; '.join(map(str, made.findings))}."
    intact = made.status == "intact"
    return Result(
        data=_data(opened_campaign.shown, made),
        text="\n".join(_lines(made)),
        errors=() if intact else (CheckError(text, hint=_HINTS[made.status]),),
        warnings=store.caution(opened_campaign.shown),
    )


def _data(directory: Path, made: Audit) -> dict[str, Any]:
    data = tables_data(made.tables)
    for table in data["tables"]:
        for row in table["rows"]:
            for run in row["runs"]:
                run["evidence"] = made.exhibits.get(run["log"])
    return {
        "campaign": made.campaign.id,
        "directory": str(directory),
        "status": made.status,
        "recorded": made.recorded,
        "seal": made.seal,
        "history": made.history,
        "findings": made.findings,
        **data,
    }


def _lines(made: Audit) -> Iterator[str]:
    yield f"{click.style(made.campaign.id, bold=True)} · {made.status} · recorded {made.recorded}"
    yield f"seal {plain(made.seal)}"
    for one in made.history:
        changes = one.get("changes")
        text = "; ".join(map(str, changes)) if isinstance(changes, list) else ""
        why = f"; accepted at {one.get('at')}: {one['accepted']}" if one.get("accepted") else ""
        yield plain(f"recorded before at {one.get('recorded')}, since then: {text}{why}")
    for finding in made.findings:
        mark = click.style("!", fg="yellow") if finding.harmless else click.style("✗", fg="red")
        yield f"{mark} {plain(str(finding))}"
    for table in made.tables:
        group = table.group
        yield ""
        title = f"{group.framework} · {group.model} · {group.precision}{on_cpu(group, ' · ')}"
        title += f" · rule {group.rule}"
        yield click.style(plain(title), bold=True)
        for row in table.rows:
            flags = f" · {', '.join(row.flags)}" if row.flags else ""
            median = f"{number(row.median)} samples/s, median of {row.ok}/{row.asked}"
            yield f"{row.shape}  {median}{flags}"
            for run in row.runs:
                yield from _run_lines(run, made.exhibits.get(run.log))


def _run_lines(run: Run, exhibit: Exhibit | None) -> Iterator[str]:
    nodes = plain(",".join(run.nodes)) or "nodes unknown"
    state = plain(f"{run.state} ({run.state_source})")
    yield f"  {run.repeat}  {number(run.throughput)}  {state}  attempt {run.attempt}  {nodes}"
    if exhibit is None:
        return
    for file in (exhibit.log, exhibit.status, exhibit.script):
        yield f"     {_digest(file)}  {plain(file.path)}"
    for node in exhibit.nodes:
        yield f"     {_digest(node.file)}  {plain(node.file.path)}"
        yield f"     {plain(f'{node.digest} {node.summary}') or 'it can not be read'}"


def _digest(file: File) -> str:
    size = "-" if file.bytes is None else f"{file.bytes:,}"
    return f"{file.sha256 or 'not recorded':64}  {size:>12}"
