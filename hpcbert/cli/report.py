"""hpcbert report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcbert.cli.output import Result, returns_result
from hpcbert.cli.reading import reading_options, requested
from hpcbert.cli.tables import provenance, short_of
from hpcbert.commands import report as flow
from hpcbert.commands.results import find_places, load
from hpcbert.errors import IncompleteError
from hpcbert.results.document import tables_data
from hpcbert.results.report.words import LANGUAGES

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from hpcbert.cli.reading import ReadingOptions


@click.command()
@click.argument("paths", nargs=-1)
@click.option("--output", required=True, metavar="DIR", help="Directory to write the report to.")
@click.option(
    "--lang",
    type=click.Choice(LANGUAGES),
    default=LANGUAGES[0],
    show_default=True,
    help="Language of the page.",
)
@click.option("--title", default="", help="Title of the report.")
@click.option("--with-logs", is_flag=True, help="Include the logs.")
@reading_options
@returns_result
def report(
    paths: tuple[str, ...],
    *,
    output: str,
    lang: str,
    title: str,
    with_logs: bool,
    templates: tuple[str, ...],
    site_file: str,
    **reading: Unpack[ReadingOptions],
) -> Result:
    """Write a report: a page, figures, tables, and all numbers.

    PATHS are campaigns, archives, saved results, or directories and files of logs from runs that
    hpcbert did not submit, of any frameworks; without any, the newest campaign. DIR gets index.html
    (one file that needs no other), report.md, report.zh.md, tables, figures and results.json.
    DIR must be new, empty, or an earlier report that nobody changed.

    \b
    Examples:
      hpcbert report --output report
      hpcbert report 3f9a1c 77b0d2 --output report --title 'BERT on our cluster'
      hpcbert report ~/DLPerf/logs --fw oneflow --output report --lang zh --with-logs
    """
    request = requested(**reading)
    at = find_places(site_file, templates)
    results = load(paths, at, request)
    short = tuple(map(IncompleteError, (*results.refused, *short_of(results.tables))))
    if not results.tables and short:
        return Result(errors=short, warnings=results.warnings)
    made = provenance()
    written = flow.write(
        results,
        Path(output),
        made=made,
        recipes=at.recipes.names,
        title=title,
        language=lang,
        with_logs=with_logs,
    )
    page = written.directory / "index.html"
    figures = sum(name.startswith("figures/") and name.endswith(".svg") for name in written.files)
    points = sum(len(table.rows) for table in results.tables)
    masked = tuple(f"{name}: masked text that looked like a secret." for name in written.masked)
    return Result(
        data={
            "directory": str(written.directory),
            "page": str(page),
            "language": lang,
            "files": list(written.files),
            **tables_data(results.tables, made),
        },
        text=f"{page}: {points} points, {figures} figures, {len(written.files)} files",
        errors=short,
        warnings=(*results.warnings, *masked),
    )
