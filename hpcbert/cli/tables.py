"""Tables of medians and speedups as a command's result: collected, formatted, written to a file."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from hpcbert import __version__
from hpcbert.cli import streams
from hpcbert.cli.output import Result
from hpcbert.commands.collect import CollectRequest, CollectResult, Places, collect, find_places
from hpcbert.errors import HpcbertError, IncompleteError
from hpcbert.logs.layout import printable_path
from hpcbert.model import Provenance, SpeedupTable, format_utc
from hpcbert.results.document import tables_data
from hpcbert.results.formats import FORMATS
from hpcbert.results.grid import escape_markdown
from hpcbert.system import redact

# Files that one sentence names; --json names all.
_MAX_FILES = 10


def make_provenance() -> Provenance:
    """Return which version, when and how, makes the tables of this process."""
    words = redact.mask_command(["hpcbert", *sys.argv[1:]])
    return Provenance(__version__, format_utc(time.time()), shlex.join(words))


def describe_invalid(tables: Iterable[SpeedupTable]) -> tuple[str, ...]:
    """Return a sentence with the number of invalid repeats; nothing if all are valid."""
    rows = [row for table in tables for row in table.rows]
    repeat_count, valid_count = sum(row.asked for row in rows), sum(row.ok for row in rows)
    verb = "is" if repeat_count - valid_count == 1 else "are"
    return (
        (f"{repeat_count - valid_count} of {repeat_count} repeats {verb} invalid.",)
        if valid_count < repeat_count
        else ()
    )


def collect_tables(
    paths: Sequence[Path],
    request: CollectRequest | None = None,
    *,
    form: str = "text",
    output: str = "",
    notes: tuple[str, ...] = (),
    published_name: str = "",
    places: Places | None = None,
) -> Result:
    """Collect campaigns and logs.

    Args:
        paths: Campaigns, directories and files.
        request: What to collect; by default everything.
        form: Form of the table, a name in `FORMATS`.
        output: File to write the table to; empty for stdout.
        notes: Further warnings.
        published_name: Name of published tables to show next to these; empty for none.
        places: Where recipes are; by default, as `find_places` has it.

    Raises:
        HpcbertError: As `collect`, or the file can't be written.
    """
    recipes = (places or find_places()).recipes
    collection = collect(paths, request or CollectRequest(), recipes)
    table_provenance = make_provenance()
    width = 0 if output else streams.line_width(sys.stdout)
    layout = FORMATS[form]
    text = (
        layout.write(collection.tables, table_provenance, width)
        if collection.tables and not layout.pack
        else ""
    )
    published_data, published_text = (
        _find_published(collection, published_name, form, width) if published_name else ({}, "")
    )
    text += published_text
    if output and collection.tables:
        packed_table = layout.pack and layout.pack(collection.tables, table_provenance)
        write_output(
            Path(output),
            packed_table or f"{click.unstyle(text)}\n".encode(errors="backslashreplace"),
        )
        text = ""
    files = [
        {
            "path": printable_path(skipped_log.path),
            "why": skipped_log.why,
            "wanted": skipped_log.wanted,
        }
        for skipped_log in collection.left_out
    ]
    skipped_data = {"left_out": files} if files or collection.tables else {}
    return Result(
        data={
            **tables_data(collection.tables, table_provenance if collection.tables else None),
            **skipped_data,
            **published_data,
        },
        text=text,
        exact=layout.exact and bool(text),
        incomplete=collection.exit_code != 0,
        errors=tuple(map(IncompleteError, _list_shortcomings(collection))),
        warnings=(
            *collection.warnings,
            *_describe_left_out(collection),
            *layout.omissions(collection.tables, table_provenance),
            *notes,
        ),
    )


def _find_published(
    collection: CollectResult, name: str, form: str, width: int
) -> tuple[dict[str, Any], str]:
    """Return published results for the points of tables: as data, and as text to add to them."""
    from hpcbert.results.published import neighbours

    neighbour_points = neighbours.find_neighbours(collection.tables, name)
    view = neighbours.neighbour_view(neighbour_points, name)
    if not neighbour_points:
        text = neighbours.describe_absence(name)
        text = escape_markdown(text) if form == "markdown" else text
    else:
        text = view.markdown() if form == "markdown" else view.text(width)
    return {
        "beside": neighbours.neighbour_data(neighbour_points)
    }, f"\n\n{text}" if collection.tables else ""


def _describe_left_out(collection: CollectResult) -> tuple[str, ...]:
    reasons: dict[str, list[str]] = {}
    for skipped_log in collection.left_out:
        reasons.setdefault(skipped_log.why, []).append(printable_path(skipped_log.path))
    return tuple(
        f"left out {len(names)} file{'s' if len(names) > 1 else ''}, because {reason}: "
        + ", ".join(names[:_MAX_FILES])
        + (
            f" and {len(names) - _MAX_FILES} more, which --json names"
            if len(names) > _MAX_FILES
            else ""
        )
        for reason, names in reasons.items()
    )


def write_output(path: Path, content: bytes, option: str = "--output") -> None:
    """Write a file whole or not at all; write into what is not a regular file, as /dev/stdout.

    Args:
        path: The file.
        content: The new content.
        option: The option that names the file, for the error.

    Raises:
        HpcbertError: It can't be written.
    """
    from hpcbert.campaign import store

    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
        else:
            store.write_bytes(path, content)
    except (HpcbertError, OSError) as error:
        raise HpcbertError(f"{option} can't be written: {error}") from error


def _list_shortcomings(collection: CollectResult) -> list[str]:
    lost_logs = [skipped_log for skipped_log in collection.left_out if skipped_log.wanted]
    logs = "a log" if len(lost_logs) == 1 else f"{len(lost_logs)} logs"
    log_errors = [f"hpcbert left out what may be {logs}."] if lost_logs else []
    return [*collection.refused, *describe_invalid(collection.tables), *log_errors]
