"""hpcbert compare."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from hpcbert.cli import streams
from hpcbert.cli.options import UNIT, VIEW_FORM, make_share_reader, refuse_typed
from hpcbert.cli.output import Result, returns_result
from hpcbert.cli.tables import add_log_options, make_collect_request, write_output
from hpcbert.commands.collect import find_places
from hpcbert.commands.compare import CompareRequest, CompareResult, compare_results
from hpcbert.errors import IncompleteError
from hpcbert.model import Unit
from hpcbert.results import compare as results_compare
from hpcbert.results.compare import DIMENSIONS


@click.command()
@click.argument("base")
@click.argument("new", nargs=-1)
@click.option(
    "--by", type=click.Choice([*DIMENSIONS]), help="Compare points of one campaign by this."
)
@click.option(
    "--within",
    callback=make_share_reader(0.0001, 0.5, "2% or 0.02"),
    default="2%",
    show_default=True,
    metavar="SHARE",
    help="Largest difference that counts as equal.",
)
@click.option(
    "--fail-under",
    callback=make_share_reader(0.01, 10),
    metavar="SHARE",
    help="Exit with 7 if a point has less than this share of BASE, or is missing.",
)
@click.option("--junit", default="", metavar="FILE", help="Write failures as JUnit XML.")
@click.option("--anyway", is_flag=True, help="Compare even what is not comparable, and mark it.")
@VIEW_FORM
@UNIT
@add_log_options
@returns_result
def compare(
    base: str,
    new: tuple[str, ...],
    *,
    by: str | None,
    within: float,
    fail_under: float | None,
    junit: str,
    anyway: bool,
    unit: Unit,
    form: str,
    templates: tuple[str, ...],
    site_file: str,
    **reading: Any,
) -> Result:
    """Compare results point by point, with a verdict on each.

    BASE and NEW are campaigns, logs, results that collect saved (*.json), or names from the
    published record. hpcbert matches points by framework, model, precision, batch size, options and
    shape. A verdict needs four valid runs on both sides. hpcbert refuses to compare results that
    were not measured in the same way.

    \b
    Examples:
      hpcbert compare 20261121 20261122
      hpcbert compare main.json runs/20261122-pytorch-1a2b3c --fail-under 97% --junit gate.xml
      hpcbert compare dlperf:oneflow-fp32 20261121-oneflow-1a2b3c
      hpcbert compare --by framework runs/20261121-oneflow-1a2b3c runs/20261121-pytorch-4d5e6f
    """
    if fail_under is None:
        refuse_typed(("junit",), "without --fail-under")
    request = CompareRequest(
        (base, *new),
        by or "",
        within,
        fail_under,
        anyway=anyway,
        reading=make_collect_request(reading),
        unit=unit,
    )
    result = compare_results(request, find_places(site_file, templates))
    if junit:
        content = results_compare.render_junit(
            "hpcbert compare", result.comparisons, result.failures
        )
        write_output(Path(junit), content, "--junit")
    return _make_result(result, within, fail_under, form)


def _make_result(
    result: CompareResult, within: float, fail_under: float | None, form: str
) -> Result:
    width = streams.line_width(sys.stdout)
    views = [
        results_compare.comparison_view(comparison, within) for comparison in result.comparisons
    ]
    return Result(
        data={
            "within": within,
            "fail_under": fail_under,
            "comparisons": [
                results_compare.comparison_data(comparison) for comparison in result.comparisons
            ],
        },
        text="\n\n".join(view.render(form, width) for view in views),
        errors=(*result.failures, *map(IncompleteError, result.refused)),
        warnings=result.warnings,
    )
