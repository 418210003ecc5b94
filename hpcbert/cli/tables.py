"""Tables as a command's result, formatted or written to a file; the options of reading logs."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click

from hpcbert import __version__
from hpcbert.campaign import store
from hpcbert.campaign.foreign import CollectRequest, UserSettings, parse_settings
from hpcbert.cli import streams
from hpcbert.cli.options import (
    RESULTS_SITE,
    RULE,
    TEMPLATES,
    count_option,
    flag_option,
    make_reader,
    text_option,
)
from hpcbert.cli.output import Result, pick
from hpcbert.commands.collect import CollectResult, Places, collect, find_places
from hpcbert.errors import (
    HpcbertError,
    IncompleteError,
    UnfinishedError,
    UsageError,
    describe_error,
    format_count,
    join_names,
)
from hpcbert.logs.layout import printable_path
from hpcbert.logs.setting import END, Window
from hpcbert.model import PRECISIONS, Provenance, SpeedupTable, Unit, format_utc, parse_precision
from hpcbert.results import record
from hpcbert.results.document import tables_data
from hpcbert.results.formats import FORMATS, list_cases, render_cases
from hpcbert.results.metrics import convert_tables, explain_missing, mark_tables
from hpcbert.scheduler.base import States
from hpcbert.system import redact
from hpcbert.system.decode import Invalid, check_choice
from hpcbert.system.grouping import group

_COUNT = re.compile(r"0*[1-9][0-9]{0,9}")


def _read_last_iteration(text: str) -> int:
    if text != "end" and not _COUNT.fullmatch(text):
        raise Invalid(f"{text!r} is neither a number above 0 nor `end`")
    return END if text == "end" else int(text)


_OPTIONS = (
    text_option("--fw", "Framework of logs without it in their path."),
    RULE,
    text_option("--pattern", "Form of paths: '{nodes}n{gpus_per_node}g/*.log'."),
    count_option("--nodes", "Nodes, if neither path nor log has them."),
    count_option("--gpus-per-node", "GPUs per node, if neither has them."),
    count_option("--batch-size", "Samples per device, if neither has them."),
    click.option(
        "--precision",
        callback=make_reader(parse_precision, partial(check_choice, PRECISIONS)),
        help="Precision, if neither has it.",
    ),
    click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="NAME=VALUE",
        help="If neither has it: accumulation, global_batch_size, packing, sequence_length.",
    ),
    text_option("--model", "The model, and its name in the table."),
    count_option("--skip", "Warm-up iterations; default: the protocol's.", least=0),
    click.option(
        "--iters",
        callback=make_reader(_read_last_iteration),
        metavar="N|end",
        help="Last iteration; default: the protocol's; `end`: the run's own.",
    ),
    flag_option("--require-all", "Give no number for a point with an invalid repeat."),
    flag_option("--as-repeats", "All logs of a point are repeats, whatever their names."),
)
_SETTINGS = ("model", "nodes", "gpus_per_node", "batch_size", "precision")
_READING = ("rule", "pattern", "require_all", "as_repeats")


def takes_places(body: Callable[..., Result]) -> Callable[..., Result]:
    """Add --templates and --site to a command, which gets the user's places."""

    @TEMPLATES
    @RESULTS_SITE
    @wraps(body)
    def command(*, templates: tuple[str, ...], site_file: str, **values: Any) -> Result:
        return body(places=find_places(site_file, templates), **values)

    return command


def takes_logs(body: Callable[..., Result]) -> Callable[..., Result]:
    """Add the options of reading logs to a command, which gets them as a request, and the places.

    The command raises `UsageError` if the window of iterations is empty.
    """

    @wraps(body)
    def command(*, skip: int | None, iters: int | None, settings: Any, **values: Any) -> Result:
        if skip is not None and iters is not None and skip >= iters:
            raise UsageError(f"--skip must be below --iters, and {skip} is not below {iters}.")
        known = {name: values.pop(name) for name in _SETTINGS}
        request = CollectRequest(
            known=UserSettings(values.pop("fw"), settings=parse_settings(settings), **known),
            window=Window(skip, iters),
            **{name: values.pop(name) for name in _READING},
        )
        return body(request=request, **values)

    complete: Callable[..., Result] = takes_places(command)
    for option in reversed(_OPTIONS):
        complete = option(complete)
    return complete


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
    unfinished = sum(row.unfinished for row in rows)
    invalid = count - sum(row.ok for row in rows) - unfinished
    errors: list[HpcbertError] = []
    if invalid:
        verb = "is" if invalid == 1 else "are"
        errors.append(IncompleteError(f"{invalid} of {count} repeats {verb} invalid."))
    if unfinished:
        message = f"{unfinished} of {count} repeats did not end yet."
        errors.append(UnfinishedError(message, hint="Wait until they have: hpcbert monitor"))
    return tuple(errors)


def collect_tables(
    paths: Sequence[Path],
    request: CollectRequest | None = None,
    *,
    form: str = "text",
    output: str = "",
    notes: tuple[str, ...] = (),
    published_name: str = "",
    places: Places | None = None,
    unit: Unit = "samples",
    junit: str = "",
    fresh_states: Mapping[Path, States] | None = None,
) -> Result:
    """Collect campaigns and logs as `collect` does; write the table to a file, or return it."""
    recipes = (places or find_places()).recipes
    collection = collect(paths, request or CollectRequest(), recipes, fresh_states)
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
    data = tables_data(marked, table_provenance if tables else None)
    if collection.left_out or tables:
        data["assumed"] = collection.assumptions.data()
        data["left_out"] = [
            {"path": printable_path(log.path), **pick(log, "why wanted")}
            for log in collection.left_out
        ]
    if published_name:
        view, data["beside"] = _compare_published(tables, published_name, form, width)
        text += f"\n\n{view}" if tables else ""
    if output and tables:
        packed = layout.pack and layout.pack(shown, table_provenance)
        plain = f"{click.unstyle(text)}\n".encode(errors="backslashreplace")
        write_output(Path(output), packed or plain)
        text = ""
    if junit:
        _write_junit(Path(junit), collection, unit)
    return Result(
        data=data,
        text=text,
        exact=layout.exact and bool(text),
        errors=list_shortcomings(collection),
        warnings=(
            *collection.warnings,
            *assumptions,
            *_describe_left_out(collection),
            *layout.omissions(tables, table_provenance),
            *explain_missing(tables, unit),
            *notes,
        ),
    )


def _compare_published(
    tables: Sequence[SpeedupTable], name: str, form: str, width: int
) -> tuple[str, list[dict[str, Any]]]:
    points = record.find_neighbours(tables, name)
    text = record.neighbour_view(points, name).render(form, width)
    if not points:
        text = "The record has no number for these devices, models, precisions, sizes and shapes."
    return text, points


def _write_junit(path: Path, collection: CollectResult, unit: Unit) -> None:
    lost_logs = [log for log in collection.left_out if log.wanted]
    unread = [f"{printable_path(log.path)}: {log.why}" for log in lost_logs]
    cases = list_cases(convert_tables(collection.tables, unit), [*collection.refused, *unread])
    write_output(path, render_cases("hpcbert collect", list(cases)), "--junit")


def list_shortcomings(collection: CollectResult) -> tuple[HpcbertError, ...]:
    """Return an error for everything that a collection lacks."""
    errors = [*map(IncompleteError, collection.refused), *list_shortfalls(collection.tables)]
    if count := sum(log.wanted for log in collection.left_out):
        logs = format_count(count, "log")
        errors.append(IncompleteError(f"hpcbert left out what may be {logs}."))
    if not errors and not collection.tables:
        errors.append(IncompleteError("No log gives a number."))
    return tuple(errors)


def refuse_unit(form: str, unit: Unit) -> None:
    """Refuse a unit other than samples for a format that is always in samples per second."""
    if unit != "samples" and FORMATS[form].units == "none":
        raise UsageError(
            f"--unit {unit} has no effect with --format {form}, which is in samples/s.",
            hint="Use another format, or leave --unit out.",
        )


def _describe_left_out(collection: CollectResult) -> tuple[str, ...]:
    warnings = []
    for reason, logs in group((log.reason, log) for log in collection.left_out).items():
        clause, because = reason, "each because"
        if len(logs) == 1:
            clause, because = logs[0].why, "because"
        clause = clause[:1].lower() + clause[1:].rstrip(".")
        names = join_names((printable_path(log.path) for log in logs), most=_MAX_FILES)
        warnings.append(f"left out {format_count(len(logs), 'file')}, {because} {clause}: {names}")
    return tuple(warnings)


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
