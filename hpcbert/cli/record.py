"""hpcbert record."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hpcbert.cli import streams
from hpcbert.cli.main import ListByDefault
from hpcbert.cli.options import RESULTS_SITE, TEMPLATES
from hpcbert.cli.output import Result, returns_result
from hpcbert.cli.tables import add_log_options, make_collect_request
from hpcbert.commands.collect import find_places
from hpcbert.commands.record import RecordCell as CheckedCell
from hpcbert.commands.record import check_record, extract_tables
from hpcbert.errors import CheckError, UsageError, format_count
from hpcbert.results.grid import (
    Cell,
    Column,
    Grid,
    TableView,
    fold_text,
    format_lines,
    format_number,
)
from hpcbert.results.published import record as published
from hpcbert.results.published.neighbours import make_row_view, row_data, select_rows
from hpcbert.results.published.record import Publication, PublishedPoint, PublishedTable

_COLUMNS = (
    Column("shape", ">"),
    Column("samples/s", ".2f"),
    Column("tokens/s", ".2f"),
    Column("per GPU", ".2f"),
    Column("speedup", ".2f"),
    Column("runs", "d"),
    Column("min to train", "g"),
)


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
@click.option("--model", default="", help="List numbers of this model: bert-large.")
@click.option("--gpus", type=click.IntRange(1), help="List numbers of this many accelerators.")
@click.option("--accelerator", default="", metavar="NAME", help="List numbers of these: h100.")
@click.option("--all", "show_all", is_flag=True, help="List all numbers, not what fits a screen.")
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
    if model or gpus or accelerator or show_all:
        rows = select_rows(model, gpus, accelerator)
        view = make_row_view(rows, show_all=show_all)
        text = view.text(streams.line_width(sys.stdout))
        return Result(data={"rows": [row_data(row) for row in rows]}, text=text)
    sources = [published.load_source(name) for name in published.source_names()]
    width = streams.line_width(sys.stdout)
    lines = []
    for source in sources:
        points = sum(len(table.points) for table in source.tables)
        lines.append(click.style(source.name, bold=True) + f"  {source.title}")
        counts = f"{format_count(len(source.tables), 'table')}, {format_count(points, 'point')}"
        lines += fold_text(f"  {source.repository}; {counts}", width, "  ")
    return Result(data=[_source_data(source) for source in sources], text="\n".join(lines))


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
    published_tables = published.find_all_tables(name)
    width = streams.line_width(sys.stdout)
    source = published_tables[0][0]
    about = fold_text(source.about, width)
    parts = ["\n".join([click.style(source.title, bold=True), *about])]
    parts += [_make_table_view(source, table).text(width) for source, table in published_tables]
    return Result(
        data={
            **_source_data(source),
            "about": source.about,
            "tables": [_table_data(source, table) for source, table in published_tables],
        },
        text="\n\n".join(parts),
    )


def _source_data(source: Publication) -> dict[str, Any]:
    return {
        "name": source.name,
        "title": source.title,
        "repository": source.repository,
        "tables": [source.full_name(table) for table in source.tables],
        "points": sum(len(table.points) for table in source.tables),
    }


def _table_data(source: Publication, table: PublishedTable) -> dict[str, Any]:
    field_names = ("framework", "model", "precision", "batch_size_per_device", "variant", "edition")
    other_names = ("rule", "window", "commit", "path", "heading", "errors", "unit", "task")
    return {
        "name": source.full_name(table),
        **{name: getattr(table, name) for name in (*field_names, *other_names)},
        "year": source.year_of(table),
        "facts": source.facts_of(table),
        "points": [
            {
                "shape": str(point.shape),
                "gpus": point.shape.gpus,
                "value": point.value,
                "per_gpu": point.value / point.shape.gpus if point.value else None,
                "runs": list(point.runs),
                "minutes": point.minutes,
            }
            for point in table.points
        ],
    }


def _make_table_view(source: Publication, table: PublishedTable) -> TableView:
    variant = f" {table.variant}" if table.variant else ""
    words = [table.framework, table.model, table.precision]
    words += [f"b{table.batch_size_per_device}"] if table.batch_size_per_device else []
    text = " ".join(filter(None, words))
    facts = ", ".join(f"{name} {value}" for name, value in source.facts_of(table).items())
    base = next((point.value for point in table.points if point.shape.gpus == 1), None)
    rows = [_point_cells(table, point, base) for point in table.points]
    notes = [
        f"known error: {f'{error.shape}: ' if error.shape else ''}{error.what} {error.proof}"
        for error in table.errors
    ]
    name = source.full_name(table)
    return TableView(
        heading=(click.style(name, bold=True) + f"  {text}{variant}",),
        grid=Grid(table.name, name, _COLUMNS, tuple(rows)).without_empty(),
        notes=(
            source.location(table),
            *([table.task] if table.task else []),
            *([facts] if facts else []),
            *notes,
        ),
    )


def _point_cells(
    table: PublishedTable, point: PublishedPoint, base: float | None
) -> tuple[Cell, ...]:
    value = point.value
    samples, tokens = (value, None) if table.unit == "samples" else (None, value)
    per_gpu = value / point.shape.gpus if value else None
    speedup = value / base if value and base else None
    runs = len(point.runs) or None
    return str(point.shape), samples, tokens, per_gpu, speedup, runs, point.minutes


@record.command("extract")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--round", "benchmark_round", required=True, metavar="vX.Y", help="Round: v5.0.")
@click.option("--commit", required=True, help="Commit of the checkout, 40 digits.")
@click.option("--year", type=click.IntRange(2018), required=True, help="Year of the round.")
@TEMPLATES
@RESULTS_SITE
@returns_result
def record_extract(
    folder: Path,
    *,
    benchmark_round: str,
    commit: str,
    year: int,
    templates: tuple[str, ...],
    site_file: str,
) -> Result:
    """Print tables of MLPerf's result folders as TOML for the record.

    FOLDER is a checkout of a round of MLPerf Training. Minutes are the mean without the fastest and
    the slowest run; samples/s are stated by the logs, or are samples over the time of the run.

    \b
    Examples:
      hpcbert record extract training_results_v5.0 --round v5.0 --commit 0fdc28f --year 2025
    """
    places = find_places(site_file, templates)
    extracted, refused = extract_tables(folder, benchmark_round, commit, places)
    tables = [replace(table, year=year) for table in extracted]
    text = "\n".join(published.format_table(table) for table in tables)
    return Result(
        data={"tables": [table.name for table in tables], "refused": refused},
        text=text,
        warnings=tuple(refused),
        exact=True,
    )


@record.command("check")
@click.argument("paths", nargs=-1, required=True)
@click.option(
    "--against",
    required=True,
    metavar="NAME",
    help="A source of the record, or tables of it: dlperf:tf2-rn50.",
)
@click.option("--edition", default="", help="Edition of the table, if there are several: v2.0.")
@add_log_options
@returns_result
def record_check(
    paths: tuple[str, ...],
    *,
    against: str,
    edition: str,
    templates: tuple[str, ...],
    site_file: str,
    **reading: Any,
) -> Result:
    """Check which published numbers follow from their logs.

    PATHS are logs. hpcbert reads them by the rules and over the windows that the record names. The
    exit code is 5 if a number differs from its logs, unless the record knows that it is wrong.

    \b
    Examples:
      hpcbert record check logs/tensorflow --fw tf2 --against dlperf:tf2-rn50
    """
    request = make_collect_request(reading)
    if request.rule or request.window.skip is not None or request.window.iters is not None:
        raise UsageError(
            "The record sets --rule, --skip and --iters.", hint="Leave them out, or use collect."
        )
    places = find_places(site_file, templates)
    cells = check_record(paths, places, request, against=against, edition=edition)
    wrong_cells = [cell for cell in cells if not (cell.follows or cell.error or cell.gap)]
    return Result(
        data={"cells": [{**cell._asdict(), "follows": cell.follows} for cell in cells]},
        text="\n".join([*format_lines(_make_check_grid(cells)), "", _format_summary(cells)]),
        errors=tuple(
            CheckError(
                f"{cell.table} {cell.point}: {_format_measured(cell)}, "
                f"but {format_number(cell.published)} is published."
            )
            for cell in wrong_cells
        ),
    )


def _make_check_grid(cells: tuple[CheckedCell, ...]) -> Grid:
    columns = (
        Column(""),
        Column("table"),
        Column("point"),
        Column("published", ".2f"),
        Column("from the logs", ".2f"),
        Column("verdict"),
    )
    rows = []
    for cell in cells:
        sign = "✓" if cell.follows else "-" if cell.gap else "✗"
        verdict = "follows" if cell.follows else cell.error or cell.gap or "does not follow"
        rows.append((sign, cell.table, cell.point, cell.published, cell.found, verdict))
    return Grid("check", "check", columns, tuple(rows))


def _format_measured(cell: CheckedCell) -> str:
    return (
        "no log of it is valid"
        if cell.found is None
        else f"the logs give {format_number(cell.found)}"
    )


def _format_summary(cells: tuple[CheckedCell, ...]) -> str:
    follow = sum(cell.follows for cell in cells)
    known_wrong = sum(bool(cell.error) and not cell.follows for cell in cells)
    known_text = f"; {known_wrong} are known to be wrong" if known_wrong else ""
    unchecked = sum(bool(cell.gap) for cell in cells)
    gap_text = f"; {unchecked} lack logs" if unchecked else ""
    return f"{follow} of {len(cells)} published numbers follow from the logs{known_text}{gap_text}."
