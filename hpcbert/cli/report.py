"""hpcbert report."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hpcbert.campaign.foreign import CollectRequest
from hpcbert.cli.options import UNIT, flag_option, text_option
from hpcbert.cli.output import Result, returns_result
from hpcbert.cli.tables import list_shortfalls, make_provenance, takes_logs
from hpcbert.commands import report as flow
from hpcbert.commands.collect import Places, load_result_set
from hpcbert.errors import IncompleteError, format_count
from hpcbert.model import Unit
from hpcbert.results.document import ResultSet, tables_data
from hpcbert.results.metrics import explain_missing, mark_tables
from hpcbert.results.report.figures import DEFAULT_SIZE, SIZES
from hpcbert.results.words import LANGUAGES


@click.command()
@click.argument("paths", nargs=-1)
@text_option("--output", "Where to write it; default: report/ in the campaign.", "DIR")
@click.option(
    "--lang",
    "language",
    type=click.Choice(LANGUAGES),
    default=LANGUAGES[0],
    show_default=True,
    help="Language of the page.",
)
@text_option("--title", "Title of the report and of its main figure.")
@click.option(
    "--size",
    type=click.Choice([*SIZES]),
    default=DEFAULT_SIZE,
    show_default=True,
    help="Size of the figures: for a slide, one column of a paper, or a whole page.",
)
@flag_option("--with-logs", "Include the logs.")
@flag_option("--open", "Open the page in a browser.", "open_page")
@UNIT
@returns_result
@takes_logs
def report(
    *,
    paths: tuple[str, ...],
    request: CollectRequest,
    places: Places,
    output: str,
    open_page: bool,
    unit: Unit,
    language: str,
    **layout: Any,
) -> Result:
    """Write a report: a page, figures, tables, and all numbers.

    PATHS are campaigns, archives, saved results, or directories and files of logs from runs that
    hpcbert did not submit, of any frameworks; without any, the newest campaign. DIR gets index.html
    (one file that needs no other), report.md, report.zh.md, tables, figures and results.json.
    DIR must be new, empty, or an earlier report that nobody changed. A report on anything but one
    campaign of yours goes to report/ in the working directory by default.

    \b
    Examples:
      hpcbert report --open
      hpcbert report --size slide --title 'BERT on our cluster'
      hpcbert report 3f9a1c 77b0d2 --output report --title 'BERT on our cluster'
      hpcbert report ~/DLPerf/logs --fw oneflow --output report --lang zh --with-logs
    """
    results = load_result_set(paths, places, request)
    shortfalls = (*map(IncompleteError, results.refused), *list_shortfalls(results.tables))
    if not results.tables and shortfalls:
        return Result(errors=shortfalls, warnings=results.warnings)
    origin = make_provenance()
    report_files = flow.write_report(
        results,
        Path(output) if output else flow.choose_directory(results),
        provenance=origin,
        recipes=places.recipes.names,
        language=language,
        unit=unit,
        **layout,
    )
    page = report_files.directory / "index.html"
    warnings = [f"{name}: masked text that looked like a secret." for name in report_files.masked]
    if open_page and not _open_page(page):
        warnings.append(f"No browser can open here. Copy {page} to your machine.")
    contents = _count_contents(results, report_files.files)
    data: dict[str, Any] = {"directory": str(report_files.directory), "page": str(page)}
    data |= {"language": language, "files": list(report_files.files)}
    data |= tables_data(mark_tables(results.tables, unit), origin)
    warnings = [*results.warnings, *explain_missing(results.tables, unit), *warnings]
    return Result(data, f"{page}: {contents}", shortfalls, tuple(warnings))


def _count_contents(results: ResultSet, names: Sequence[str]) -> str:
    points = sum(len(table.rows) for table in results.tables)
    figures = sum(name.startswith("figures/") and name.endswith(".svg") for name in names)
    counts = {"point": points, "figure": figures, "file": len(names)}
    return ", ".join(format_count(count, noun) for noun, count in counts.items())


def _open_page(page: Path) -> bool:
    """Open a page in the user's browser; return whether there is one with a screen."""
    import webbrowser

    # Without a screen webbrowser would take the terminal for a text browser.
    has_screen = {"BROWSER", "DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
    if not has_screen and sys.platform != "darwin":
        return False
    return webbrowser.open(page.resolve().as_uri())
