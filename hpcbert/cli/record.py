"""hpcbert record."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from hpcbert.cli import streams
from hpcbert.cli.main import ListByDefault
from hpcbert.cli.output import Result, returns_result
from hpcbert.cli.reading import reading_options, requested
from hpcbert.errors import CheckError, UsageError
from hpcbert.published import record as published
from hpcbert.results.grid import fold, number

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from hpcbert.cli.reading import ReadingOptions
    from hpcbert.flows.record import Cell
    from hpcbert.published.record import Publication, PublishedTable


@click.group(cls=ListByDefault)
def record() -> None:
    """Show and check results that others published.

    \b
    Examples:
      hpcbert record
      hpcbert record show dlperf:oneflow-fp32
      hpcbert record check logs/tensorflow --fw tf2 --against dlperf:tf2-rn50
    """


@record.command("list")
@returns_result
def record_list() -> Result:
    """List the sources, or with --json all tables.

    \b
    Examples:
      hpcbert record list
      hpcbert record list --json
    """
    sources = [published.load(name) for name in published.names()]
    width = streams.width(sys.stdout)
    lines = []
    for one in sources:
        points = sum(len(table.points) for table in one.tables)
        lines.append(click.style(one.name, bold=True) + f"  {one.title}")
        lines += fold(f"  {one.repository}; {len(one.tables)} tables, {points} points", width, "  ")
    return Result(data=[_source_data(one) for one in sources], text="\n".join(lines))


@record.command("show")
@click.argument("name")
@returns_result
def record_show(name: str) -> Result:
    """Show a source or some of its tables, with where they were published and known errors.

    NAME is a source (`dlperf`) or the beginning of names of tables (`dlperf:oneflow-fp32`).

    \b
    Examples:
      hpcbert record show dlperf
      hpcbert record show dlperf:oneflow-fp32
    """
    found = published.every(name)
    width = streams.width(sys.stdout)
    source = found[0][0]
    about = fold(source.about, width)
    parts = ["\n".join([click.style(source.title, bold=True), *about])]
    parts += ["\n".join(_shown(source, table, width)) for source, table in found]
    return Result(
        data={
            **_source_data(source),
            "about": source.about,
            "tables": [_table_data(source, table) for source, table in found],
        },
        text="\n\n".join(parts),
    )


def _source_data(source: Publication) -> dict[str, Any]:
    return {
        "name": source.name,
        "title": source.title,
        "repository": source.repository,
        "tables": [source.called(one) for one in source.tables],
        "points": sum(len(one.points) for one in source.tables),
    }


def _table_data(source: Publication, table: PublishedTable) -> dict[str, Any]:
    words = ("framework", "model", "precision", "batch_size_per_device", "variant", "edition")
    more = ("rule", "window", "commit", "path", "heading", "errors")
    return {
        "name": source.called(table),
        **{name: getattr(table, name) for name in (*words, *more)},
        "facts": source.facts_of(table),
        "points": [
            {
                "shape": str(one.shape),
                "gpus": one.shape.gpus,
                "value": one.value,
                "per_gpu": one.value / one.shape.gpus,
                "runs": list(one.runs),
                "minutes": one.minutes,
            }
            for one in table.points
        ],
    }


def _shown(source: Publication, table: PublishedTable, width: int) -> list[str]:
    variant = f" {table.variant}" if table.variant else ""
    what = f"{table.framework} {table.model} {table.precision} b{table.batch_size_per_device}"
    facts = ", ".join(f"{name} {value}" for name, value in source.facts_of(table).items())
    base = next((one.value for one in table.points if one.shape.gpus == 1), None)
    lines = [click.style(source.called(table), bold=True) + f"  {what}{variant}"]
    lines += fold(f"  {source.place(table)}", width, "  ") + fold(f"  {facts}", width, "  ")
    for one in table.points:
        per_gpu = number(one.value / one.shape.gpus)
        speedup = f"  speedup {one.value / base:,.2f}" if base else ""
        runs = f"  {len(one.runs)} runs" if one.runs else ""
        minutes = f"  {one.minutes:g} min to train" if one.minutes else ""
        numbers = f"{number(one.value):>14} samples/s  {per_gpu:>10} per GPU"
        lines.append(f"  {one.shape!s:>8}{numbers}{speedup}{runs}{minutes}")
    for error in table.errors:
        where = f"{error.shape}: " if error.shape else ""
        lines += fold(f"  ! {where}{error.what} {error.proof}", width, "    ")
    return lines


@record.command("check")
@click.argument("paths", nargs=-1, required=True)
@click.option(
    "--against",
    required=True,
    metavar="NAME",
    help="A source of the record, or tables of it: dlperf:tf2-rn50.",
)
@click.option("--edition", default="", help="Edition of the table, if there are several: v2.0.")
@reading_options
@returns_result
def record_check(
    paths: tuple[str, ...],
    *,
    against: str,
    edition: str,
    templates: tuple[str, ...],
    site_file: str,
    **reading: Unpack[ReadingOptions],
) -> Result:
    """Check which published numbers follow from their logs.

    PATHS are logs. hpcbert reads them by the rules and over the windows that the record names. The
    exit code is 5 if a number differs from its logs, unless the record knows that it is wrong.

    \b
    Examples:
      hpcbert record check logs/tensorflow --fw tf2 --against dlperf:tf2-rn50
    """
    from hpcbert.flows.record import check
    from hpcbert.flows.results import find_places

    request = requested(**reading)
    if request.rule or request.window.skip is not None or request.window.iters is not None:
        raise UsageError(
            "The record sets --rule, --skip and --iters.", hint="Leave them out, or use collect."
        )
    at = find_places(site_file, templates)
    cells = check(paths, at, request, against=against, edition=edition)
    wrong = [one for one in cells if not one.follows and not one.error]
    return Result(
        data={"cells": [{**one._asdict(), "follows": one.follows} for one in cells]},
        text="\n".join([*map(_line, cells), "", _summary(cells)]),
        errors=tuple(
            CheckError(
                f"{one.table} {one.point}: {_given(one)}, but {number(one.published)} is published."
            )
            for one in wrong
        ),
    )


def _line(cell: Cell) -> str:
    verdict = "follows" if cell.follows else cell.error or "does not follow"
    sign = "✓" if cell.follows else "✗"
    numbers = f"{number(cell.published):>12} published  {number(cell.found):>12} from the logs"
    return f"{sign} {cell.table}  {cell.point}  {numbers}  {verdict}"


def _given(cell: Cell) -> str:
    return "no log of it is valid" if cell.found is None else f"the logs give {number(cell.found)}"


def _summary(cells: tuple[Cell, ...]) -> str:
    follow = sum(one.follows for one in cells)
    known = sum(bool(one.error) and not one.follows for one in cells)
    more = f"; {known} are known to be wrong" if known else ""
    return f"{follow} of {len(cells)} published numbers follow from the logs{more}."
