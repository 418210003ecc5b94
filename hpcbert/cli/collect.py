"""hpcbert collect."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcbert.cli.output import Result, returns_result
from hpcbert.cli.reading import reading_options, requested
from hpcbert.cli.tables import collected
from hpcbert.commands.results import find_places, meant, newest
from hpcbert.errors import UsageError
from hpcbert.results.forms import FORMS, form_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from hpcbert.cli.reading import ReadingOptions


@click.command()
@click.argument("paths", nargs=-1)
@click.option(
    "--format",
    "form",
    type=click.Choice([*FORMS]),
    help="Format of the table; default: from --output, or text.",
)
@click.option("--output", default="", metavar="FILE", help="Write the table to a file.")
@click.option("--beside", default="", metavar="NAME", help="Add published numbers: dlperf.")
@reading_options
@returns_result
def collect(
    paths: tuple[str, ...],
    *,
    form: str | None,
    output: str,
    beside: str,
    templates: tuple[str, ...],
    site_file: str,
    **reading: Unpack[ReadingOptions],
) -> Result:
    """Reduce logs to a table of medians and speedups.

    PATHS are campaigns, or directories and files of logs from runs that hpcbert did not submit;
    without any, the newest campaign. A repeat is valid only if it completed, its log is whole and
    its loss finite. Invalid repeats are listed with the reason, and the exit code is then 4.

    \b
    Examples:
      hpcbert collect
      hpcbert collect --format markdown --output table.md
      hpcbert collect --beside dlperf
      hpcbert collect ~/DLPerf/logs --fw oneflow --rule rate
      hpcbert collect old/*.log --fw oneflow --pattern 'run{repeat}_{nodes}x{gpus_per_node}.log'
    """
    request = requested(**reading)
    named = form_of(Path(output).suffix)
    notes: tuple[str, ...] = ()
    if form and named and form.removeprefix("dlperf-") != named:
        notes = (f"{output} holds {form} because of --format, although its name says {named}.",)
    chosen = form or named or "text"
    if FORMS[chosen].pack and not output:
        raise UsageError(
            f"{chosen} is not a text format.", hint="Name a file for it: --output FILE."
        )
    if beside:
        _refuse_beside(beside, chosen)
    # Before any path is read: recipes that others can change are refused whatever is collected.
    at = find_places(site_file, templates)
    return collected(
        [meant(word, at) for word in paths] or [newest(at)],
        request,
        form=chosen,
        output=output,
        notes=notes,
        beside=beside,
        at=at,
    )


def _refuse_beside(name: str, form: str) -> None:
    """Refuse published numbers that don't fit next to a table, before anything is collected."""
    from hpcbert.results.published.record import find

    if form not in ("text", "wide", "markdown"):
        raise UsageError(
            f"--beside has no effect with --format {form}, which has no room for it.",
            hint="Use text, markdown or --json.",
        )
    find(name)
