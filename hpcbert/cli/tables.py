"""Tables as a command's result, formatted or written to a file; the options of reading logs."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from hpcbert import __version__
from hpcbert.campaign import store
from hpcbert.campaign.user_settings import UserSettings, parse_settings
from hpcbert.cli import streams
from hpcbert.cli.options import RESULTS_SITE, RULE, TEMPLATES
from hpcbert.cli.output import Result
from hpcbert.commands.collect import CollectRequest, CollectResult, Places, collect, find_places
from hpcbert.errors import (
    HpcbertError,
    IncompleteError,
    UnfinishedError,
    UsageError,
    describe_error,
    format_count,
)
from hpcbert.logs.layout import LeftOut, printable_path
from hpcbert.logs.setting import END, Window
from hpcbert.model import PRECISIONS, Provenance, SpeedupTable, Unit, format_utc, parse_precision
from hpcbert.results.document import tables_data
from hpcbert.results.formats import FORMATS, list_cases, render_cases
from hpcbert.results.grid import escape_markdown
from hpcbert.results.metrics import convert_tables, explain_missing, mark_tables
from hpcbert.results.published import neighbours
from hpcbert.system import redact

_COUNT = re.compile(r"0*[1-9][0-9]{0,9}")


def _read_last_iteration(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """Read a number of iterations, or `end` for the last iteration of the run."""
    if value is None or value == "end":
        return END if value else None
    if not _COUNT.fullmatch(value):
        raise click.BadParameter(f"{value!r} is neither a number above 0 nor `end`.")
    return int(value)


def _read_precision(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Read a precision in any of its spellings; click's callback."""
    if value is None or parse_precision(value) in PRECISIONS:
        return value and parse_precision(value)
    raise click.BadParameter(f"{value!r} is not one of {', '.join(PRECISIONS)}.")


_OPTIONS = (
    click.option("--fw", default="", help="Framework of logs without it in their path."),
    RULE,
    click.option("--pattern", default="", help="Form of paths: '{nodes}n{gpus_per_node}g/*.log'."),
    click.option(
        "--nodes", type=click.IntRange(1), help="Nodes, if neither path nor log has them."
    ),
    click.option(
        "--gpus-per-node", type=click.IntRange(1), help="GPUs per node, if neither has them."
    ),
    click.option(
        "--batch-size", type=click.IntRange(1), help="Samples per device, if neither has them."
    ),
    click.option("--precision", callback=_read_precision, help="Precision, if neither has it."),
    click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="NAME=VALUE",
        help="If neither has it: accumulation, global_batch_size, packing, sequence_length.",
    ),
    click.option("--model", default="", help="The model, and its name in the table."),
    click.option(
        "--skip", type=click.IntRange(0), help="Warm-up iterations; default: the protocol's."
    ),
    click.option(
        "--iters",
        callback=_read_last_iteration,
        metavar="N|end",
        help="Last iteration; default: the protocol's; `end`: the run's own.",
    ),
    click.option(
        "--require-all", is_flag=True, help="Give no number for a point with an invalid repeat."
    ),
    click.option(
        "--as-repeats", is_flag=True, help="All logs of a point are repeats, whatever their names."
    ),
    TEMPLATES,
    RESULTS_SITE,
)


def add_log_options(body: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command, including `--templates` and `--site`."""
    for option in reversed(_OPTIONS):
        body = option(body)
    return body


def make_collect_request(values: Mapping[str, Any]) -> CollectRequest:
    """Return the request that the options of `add_log_options` make.

    Raises:
        UsageError: The window of iterations is empty.
    """
    skip, iters = values["skip"], values["iters"]
    if skip is not None and iters is not None and skip >= iters:
        raise UsageError(f"--skip must be below --iters, and {skip} is not below {iters}.")
    known = UserSettings(
        values["fw"],
        values["model"],
        values["nodes"],
        values["gpus_per_node"],
        values["batch_size"],
        values["precision"],
        parse_settings(values["settings"]),
    )
    return CollectRequest(
        rule=values["rule"],
        pattern=values["pattern"],
        known=known,
        window=Window(skip, iters),
        require_all=values["require_all"],
        as_repeats=values["as_repeats"],
    )


# Files that one sentence names; --json names all.
_MAX_FILES = 10
# Formats with room for sentences above a table.
_FORMS_FOR_PEOPLE = ("text", "wide")


def make_provenance() -> Provenance:
    """Return the version, the time and the command line, with its secrets masked."""
    words = redact.mask_command(["hpcbert", *sys.argv[1:]])
    return Provenance(__version__, format_utc(time.time()), shlex.join(words))


def list_shortfalls(tables: Iterable[SpeedupTable]) -> tuple[HpcbertError, ...]:
    """Return errors with the numbers of invalid and unfinished repeats; none if all are valid."""
    rows = [row for table in tables for row in table.rows]
    count = sum(row.asked for row in rows)
    unfinished_count = sum(row.unfinished for row in rows)
    invalid_count = count - sum(row.ok for row in rows) - unfinished_count
    errors: list[HpcbertError] = []
    if invalid_count:
        verb = "is" if invalid_count == 1 else "are"
        errors.append(IncompleteError(f"{invalid_count} of {count} repeats {verb} invalid."))
    if unfinished_count:
        verb = "has" if unfinished_count == 1 else "have"
        message = f"{unfinished_count} of {count} repeats {verb} not ended yet."
        errors.append(UnfinishedError(message, hint="Wait until they have: hpcbert monitor"))
    return tuple(errors)


def collect_tables(
    paths: Sequence[Path],
    request: CollectRequest,
    *,
    form: str = "text",
    output: str = "",
    notes: tuple[str, ...] = (),
    published_name: str = "",
    places: Places | None = None,
    unit: Unit = "samples",
    junit: str = "",
) -> Result:
    """Collect campaigns and logs.

    Args:
        form: A name in `FORMATS`.
        output: File to write the table to; empty for stdout.
    """
    collection = collect(paths, request, (places or find_places()).recipes)
    table_provenance = make_provenance()
    width = 0 if output else streams.line_width(sys.stdout)
    layout, tables = FORMATS[form], collection.tables
    marked, shown = mark_tables(tables, unit), convert_tables(tables, unit)
    shown = shown if layout.units == "convert" else marked
    text = layout.write(shown, table_provenance, width) if tables and not layout.pack else ""
    assumptions = collection.assumptions.texts()
    if assumptions and form in _FORMS_FOR_PEOPLE and text:
        text = "\n  ".join(["Assumed:", *assumptions]) + f"\n\n{text}"
        assumptions = ()
    data = tables_data(marked, table_provenance if tables else None) | _collection_data(collection)
    if published_name:
        neighbour_points = neighbours.find_neighbours(tables, published_name)
        data["beside"] = neighbours.neighbour_data(neighbour_points)
        if tables:
            text += f"\n\n{_format_published(neighbour_points, published_name, form, width)}"
    if output and tables:
        content = layout.pack and layout.pack(shown, table_provenance)
        write_output(Path(output), content or _encode_text(text))
        text = ""
    if junit:
        _write_junit(Path(junit), collection, unit)
    return Result(
        data=data,
        text=text,
        exact=layout.exact and bool(text),
        incomplete=collection.exit_code != 0,
        errors=_list_shortcomings(collection),
        warnings=(
            *collection.warnings,
            *assumptions,
            *_describe_left_out(collection),
            *layout.omissions(tables, table_provenance),
            *explain_missing(tables, unit),
            *notes,
        ),
    )


def _encode_text(text: str) -> bytes:
    return f"{click.unstyle(text)}\n".encode(errors="backslashreplace")


def _write_junit(path: Path, collection: CollectResult, unit: Unit) -> None:
    lost_logs = (log for log in collection.left_out if log.wanted)
    unread = [*collection.refused, *(f"{printable_path(log.path)}: {log.why}" for log in lost_logs)]
    cases = list(list_cases(convert_tables(collection.tables, unit), unread))
    write_output(path, render_cases("hpcbert collect", cases), "--junit")


def refuse_unit(form: str, unit: Unit) -> None:
    """Refuse a unit that a format has no place for.

    Raises:
        UsageError: The unit is not samples, and the format is always in samples per second.
    """
    if unit != "samples" and FORMATS[form].units == "none":
        raise UsageError(
            f"--unit {unit} has no effect with --format {form}, which is in samples/s.",
            hint="Use another format, or leave --unit out.",
        )


def _collection_data(collection: CollectResult) -> dict[str, Any]:
    if not collection.left_out and not collection.tables:
        return {}
    left_out = [
        {"path": printable_path(log.path), "why": log.why, "wanted": log.wanted}
        for log in collection.left_out
    ]
    return {"left_out": left_out, "assumed": collection.assumptions.data()}


def _format_published(
    points: Sequence[neighbours.Neighbour], name: str, form: str, width: int
) -> str:
    if points:
        return neighbours.neighbour_view(points, name).render(form, width)
    text = neighbours.describe_absence(name)
    return escape_markdown(text) if form == "markdown" else text


def _describe_left_out(collection: CollectResult) -> tuple[str, ...]:
    reasons: dict[str, list[LeftOut]] = {}
    for log in collection.left_out:
        reasons.setdefault(log.reason, []).append(log)
    warnings = []
    for reason, logs in reasons.items():
        clause = logs[0].why if len(logs) == 1 else f"{reason} another" if logs[0].other else reason
        clause = clause[:1].lower() + clause[1:].rstrip(".")
        count = format_count(len(logs), "file")
        names = _list_names([printable_path(log.path) for log in logs[:_MAX_FILES]])
        text = f"left out {count}, because {clause}: {names}"
        if len(logs) > _MAX_FILES:
            text += f" and {len(logs) - _MAX_FILES} more, which --json names"
        warnings.append(text)
    return tuple(warnings)


def _list_names(names: Sequence[str]) -> str:
    """Return the names of files, relative to a folder that all of them are in."""
    is_mixed = len({Path(name).is_absolute() for name in names}) > 1
    common = "" if is_mixed or len(names) == 1 else os.path.commonpath(names)
    prefix = f"in {common}: " if common else ""
    return prefix + ", ".join(os.path.relpath(name, common) if common else name for name in names)


def write_output(path: Path, content: bytes, option: str = "--output") -> None:
    """Write a file whole or not at all; write into what is not a regular file, as /dev/stdout."""
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
        else:
            store.write_bytes(path, content)
    except (HpcbertError, OSError) as error:
        reason = error if isinstance(error, HpcbertError) else f"{path}: {describe_error(error)}."
        raise HpcbertError(f"{option} can't be written: {reason}") from error


def _list_shortcomings(collection: CollectResult) -> tuple[HpcbertError, ...]:
    shortcomings = [*map(IncompleteError, collection.refused), *list_shortfalls(collection.tables)]
    lost_count = sum(log.wanted for log in collection.left_out)
    if lost_count:
        logs = "a log" if lost_count == 1 else f"{lost_count} logs"
        shortcomings.append(IncompleteError(f"hpcbert left out what may be {logs}."))
    return tuple(shortcomings)
