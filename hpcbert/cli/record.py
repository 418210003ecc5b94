"""hpcbert record."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hpcbert.campaign.foreign import CollectRequest
from hpcbert.cli import streams
from hpcbert.cli.main import ListByDefault
from hpcbert.cli.options import count_option, flag_option, text_option
from hpcbert.cli.output import Result, pick, returns_result
from hpcbert.cli.tables import takes_logs, takes_places
from hpcbert.commands.collect import Places
from hpcbert.commands.record import check_record, extract_tables
from hpcbert.errors import CheckError, UsageError, format_count
from hpcbert.results import record as published
from hpcbert.results.grid import (
    Column,
    Grid,
    TableView,
    fold_text,
    format_lines,
    format_number,
    make_columns,
)
from hpcbert.results.record import Publication, PublishedTable, make_row_view, row_data, select_rows

# By keys of `_point_data`, and by units for its value.
_COLUMNS = {
    "shape": Column("shape", ">"),
    "samples": Column("samples/s", ".2f"),
    "tokens": Column("tokens/s", ".2f"),
    "per_gpu": Column("per GPU", ".2f"),
    "speedup": Column("speedup", ".2f"),
    "count": Column("runs", "d"),
    "minutes": Column("min to train", "g"),
}
_CHECK_COLUMNS = make_columns("table", "point", "published:.2f", "from the logs:.2f", "verdict")


@click.group(cls=ListByDefault)
def record() -> None:
    """Show and check results that others published.

    \b
    Examples:
      hpcbert record
      hpcbert record list --model bert-large --gpus 8
      hpcbert record show dlperf:oneflow-fp32
      hpcbert record check logs/tensorflow --fw tf2 --against dlperf:tf2-rn50
    """


@record.command("list")
@text_option("--model", "List numbers of this model: bert-large.")
@count_option("--gpus", "List numbers of this many accelerators.")
@text_option("--accelerator", "List numbers of these: h100.", "NAME")
@flag_option(
    "--all", "List all numbers, not the best of each program on each accelerator.", "show_all"
)
@returns_result
def record_list(*, model: str, gpus: int | None, accelerator: str, show_all: bool) -> Result:
    """List the sources, or numbers of all of them, the highest first.

    With --model, --gpus or --accelerator, the list has one line a number, with year and program.

    \b
    Examples:
      hpcbert record list
      hpcbert record list --json
      hpcbert record list --model bert-large --gpus 8
      hpcbert record list --model bert-large --gpus 8 --accelerator h100 --all
    """
    width = streams.line_width(sys.stdout)
    if model or gpus or accelerator or show_all:
        rows = select_rows(model, gpus, accelerator)
        text = make_row_view(rows, show_all=show_all).text(width)
        return Result({"rows": [row_data(*row) for row in rows]}, text)
    sources = [published.load_source(name) for name in published.source_names()]
    data, lines = [_source_data(source) for source in sources], []
    for document in data:
        tables, points = len(document["tables"]), document["points"]
        lines.append(click.style(document["name"], bold=True) + f"  {document['title']}")
        counts = f"{format_count(tables, 'table')}, {format_count(points, 'point')}"
        lines += fold_text(f"  {document['repository']}; {counts}", width, "  ")
    return Result(data, "\n".join(lines))


@record.command("show")
@click.argument("name")
@returns_result
def record_show(name: str) -> Result:
    """Show a source, or some of its tables.

    show prints where each was published, and known errors.

    NAME is a source (`dlperf`) or the beginning of names of tables (`dlperf:oneflow-fp32`).

    \b
    Examples:
      hpcbert record show dlperf
      hpcbert record show dlperf:oneflow-fp32
    """
    tables = published.find_all_tables(name)
    width = streams.line_width(sys.stdout)
    source = published.load_source(tables[0].source)
    parts = ["\n".join([click.style(source.title, bold=True), *fold_text(source.about, width)])]
    parts += [_make_table_view(table).text(width) for table in tables]
    data = {**_source_data(source), "about": source.about}
    data["tables"] = [_table_data(table) for table in tables]
    return Result(data, "\n\n".join(parts))


def _source_data(source: Publication) -> dict[str, Any]:
    return {
        **pick(source, "name title repository"),
        "tables": [table.full_name for table in source.tables],
        "points": sum(len(table.points) for table in source.tables),
    }


def _table_data(table: PublishedTable) -> dict[str, Any]:
    return {
        "name": table.full_name,
        **pick(table, "framework model precision batch_size_per_device variant edition rule"),
        **pick(table, "window commit path heading errors unit task year facts"),
        "points": list(map(_point_data, table.points)),
    }


def _point_data(point: published.PublishedPoint) -> dict[str, Any]:
    return {
        "shape": str(point.shape),
        "gpus": point.shape.gpus,
        "per_gpu": point.per_device,
        **pick(point, "value runs minutes"),
    }


def _make_table_view(table: PublishedTable) -> TableView:
    batch = f"b{table.batch_size_per_device}" if table.batch_size_per_device else ""
    words = (table.framework, table.model, table.precision, batch, table.variant)
    facts = ", ".join(f"{name} {value}" for name, value in table.facts.items())
    base = next((point.value for point in table.points if point.shape.gpus == 1), None)
    rows = []
    for point in table.points:
        values = _point_data(point) | {table.unit: point.value, "count": len(point.runs) or None}
        values["speedup"] = point.value / base if point.value and base else None
        rows.append(tuple(values.get(key) for key in _COLUMNS))
    notes = [
        f"known error: {f'{error.shape}: ' if error.shape else ''}{error.what} {error.proof}"
        for error in table.errors
    ]
    name = table.full_name
    return TableView(
        heading=(click.style(name, bold=True) + f"  {' '.join(filter(None, words))}",),
        grid=Grid(table.name, name, tuple(_COLUMNS.values()), tuple(rows)).without_empty(),
        notes=(table.location, *filter(None, (table.task, facts)), *notes),
    )


@record.command("extract")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--round", "benchmark_round", required=True, metavar="vX.Y", help="Round: v5.0.")
@click.option("--commit", required=True, help="Commit of the checkout, 40 digits.")
@click.option("--year", type=click.IntRange(2018), required=True, help="Year of the round.")
@returns_result
@takes_places
def record_extract(
    *, folder: Path, benchmark_round: str, commit: str, year: int, places: Places
) -> Result:
    """Print tables of MLPerf's result folders as TOML for the record.

    FOLDER is a checkout of a round of MLPerf Training. Minutes are the mean without the fastest and
    the slowest run; samples/s are stated by the logs, or are samples over the time of the run.

    \b
    Examples:
      hpcbert record extract training_results_v5.0 --round v5.0 --commit 0fdc28f --year 2025
    """
    extracted, refused = extract_tables(folder, benchmark_round, commit, places)
    tables = [replace(table, year=year) for table in extracted]
    text = "\n".join(published.format_table(table) for table in tables)
    data = {"tables": [table.name for table in tables], "refused": refused}
    return Result(data, text, warnings=tuple(refused), exact=True)


@record.command("check")
@click.argument("paths", nargs=-1, required=True)
@click.option(
    "--against",
    required=True,
    metavar="NAME",
    help="A source of the record, or tables of it: dlperf:tf2-rn50.",
)
@text_option("--edition", "Edition of the table, if there are several: v2.0.")
@returns_result
@takes_logs
def record_check(
    *,
    paths: tuple[str, ...],
    request: CollectRequest,
    places: Places,
    against: str,
    edition: str,
) -> Result:
    """Check which published numbers follow from their logs.

    PATHS are logs. hpcbert reads them by the rules and over the windows that the record names. The
    exit code is 5 if a number differs from its logs, unless the record knows that it is wrong.

    \b
    Examples:
      hpcbert record check logs/tensorflow --fw tf2 --against dlperf:tf2-rn50
    """
    if request.rule or request.window.skip is not None or request.window.iters is not None:
        raise UsageError(
            "The record sets --rule, --skip and --iters.", hint="Leave them out, or use collect."
        )
    cells = check_record(paths, places, request, against=against, edition=edition)
    data = [{**cell._asdict(), "follows": cell.follows} for cell in cells]
    rows, errors = [], []
    for cell in cells:
        verdict = "follows" if cell.follows else cell.error or cell.gap or "does not follow"
        rows.append((cell.table, cell.point, cell.published, cell.found, verdict))
        if not (cell.follows or cell.error or cell.gap):
            measured = "nothing" if cell.found is None else format_number(cell.found)
            text = f"the logs give {measured}, but {format_number(cell.published)} is published."
            errors.append(CheckError(f"{cell.table} {cell.point}: {text}"))
    lines = format_lines(Grid("check", "check", _CHECK_COLUMNS, tuple(rows)))
    follow = sum(cell.follows for cell in cells)
    summary = f"{follow} of {len(cells)} published numbers follow from the logs"
    return Result({"cells": data}, "\n".join([*lines, "", f"{summary}."]), tuple(errors))
