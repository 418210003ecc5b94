"""The sections of a report, in the order of DLPerf's reports; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcbert.report import accounts, machines, programs, tables
from hpcbert.report.blocks import Report, Section
from hpcbert.results.words import plain

if TYPE_CHECKING:
    from hpcbert.report.model import ReportInput
    from hpcbert.report.words import Words

_SECTIONS = {
    "environment": machines.environment,
    "topology": machines.topology,
    "features": programs.features,
    "repeat": accounts.repeating,
    "results": tables.results,
    "metrics": tables.metrics,
    "figures": tables.figures,
    "runs": tables.runs,
    "left-out": accounts.left_out,
    "flags": accounts.flags,
    "digests": accounts.digests,
}


def compose(given: ReportInput, words: Words) -> Report:
    """Return a report in one language."""
    made = given.made
    rows = [row for table in given.tables for row in table.rows]
    counts = words(
        "lead.counts",
        points=len(rows),
        ok=sum(row.ok for row in rows),
        asked=sum(row.asked for row in rows),
    )
    how = words("lead.made", version=made.hpcbert, date=made.date)
    return Report(
        language=words.language,
        title=plain(given.title) or words("title"),
        lead=(counts, how),
        sections=tuple(
            Section(key, words(f"section.{key}"), write(given, words))
            for key, write in _SECTIONS.items()
        ),
    )
