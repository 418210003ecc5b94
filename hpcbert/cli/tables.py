"""Tables of medians and speedups as a command's result: collected, formatted, written to a file."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcbert import __version__
from hpcbert.cli import streams
from hpcbert.cli.output import Result
from hpcbert.commands.collect import CollectRequest, collect
from hpcbert.commands.results import find_places
from hpcbert.errors import HpcbertError, IncompleteError
from hpcbert.logs.layout import shown
from hpcbert.model import Provenance, utc
from hpcbert.results.document import tables_data
from hpcbert.results.forms import FORMS
from hpcbert.results.grid import escape
from hpcbert.system import redact

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hpcbert.commands.collect import Collected
    from hpcbert.commands.results import Places
    from hpcbert.model import SpeedupTable

# Files that one sentence names; --json names all.
_NAMED = 10


def provenance() -> Provenance:
    """Return which version, when and how, makes the tables of this process."""
    words = redact.command(["hpcbert", *sys.argv[1:]])
    return Provenance(__version__, utc(time.time()), shlex.join(words))


def short_of(tables: Iterable[SpeedupTable]) -> tuple[str, ...]:
    """Return a sentence with the number of invalid repeats; nothing if all are valid."""
    rows = [row for table in tables for row in table.rows]
    asked, ok = sum(row.asked for row in rows), sum(row.ok for row in rows)
    does = "is" if asked - ok == 1 else "are"
    return (f"{asked - ok} of {asked} repeats {does} invalid.",) if ok < asked else ()


def collected(
    paths: Sequence[Path],
    request: CollectRequest | None = None,
    *,
    form: str = "text",
    output: str = "",
    notes: tuple[str, ...] = (),
    beside: str = "",
    at: Places | None = None,
) -> Result:
    """Collect campaigns and logs.

    Args:
        paths: Campaigns, directories and files.
        request: What to collect; by default everything.
        form: Form of the table, a name in `FORMS`.
        output: File to write the table to; empty for stdout.
        notes: Further warnings.
        beside: Name of published tables to show next to these; empty for none.
        at: Where recipes are; by default, as `find_places` has it.

    Raises:
        HpcbertError: As `collect`, or the file can't be written.
    """
    recipes = (at or find_places()).recipes
    made = collect(
        paths,
        request or CollectRequest(),
        frameworks=recipes.names,
        load=recipes.load,
    )
    how = provenance()
    width = 0 if output else streams.width(sys.stdout)
    layout = FORMS[form]
    text = layout.write(made.tables, how, width) if made.tables and not layout.pack else ""
    near, told = _beside(made, beside, form, width) if beside else ({}, "")
    text += told
    if output and made.tables:
        packed = layout.pack and layout.pack(made.tables, how)
        write_output(
            Path(output), packed or f"{click.unstyle(text)}\n".encode(errors="backslashreplace")
        )
        text = ""
    files = [
        {"path": shown(one.path), "why": one.why, "wanted": one.wanted} for one in made.left_out
    ]
    left_out = {"left_out": files} if files or made.tables else {}
    return Result(
        data={**tables_data(made.tables, how if made.tables else None), **left_out, **near},
        text=text,
        exact=layout.exact and bool(text),
        incomplete=made.exit_code != 0,
        errors=tuple(map(IncompleteError, _shortcomings(made))),
        warnings=(*made.warnings, *_left_out(made), *layout.unsaid(made.tables, how), *notes),
    )


def _beside(made: Collected, word: str, form: str, width: int) -> tuple[dict[str, Any], str]:
    """Return published results for the points of tables: as data, and as text to add to them."""
    from hpcbert.results.published import neighbours

    found = neighbours.find_neighbours(made.tables, word)
    view = neighbours.view(found, word)
    if not found:
        text = neighbours.nothing_of(word)
        text = escape(text) if form == "markdown" else text
    else:
        text = view.markdown() if form == "markdown" else view.text(width)
    return {"beside": neighbours.data(found)}, f"\n\n{text}" if made.tables else ""


def _left_out(made: Collected) -> tuple[str, ...]:
    reasons: dict[str, list[str]] = {}
    for one in made.left_out:
        reasons.setdefault(one.why, []).append(shown(one.path))
    return tuple(
        f"left out {len(names)} file{'s' if len(names) > 1 else ''}, because {why}: "
        + ", ".join(names[:_NAMED])
        + (f" and {len(names) - _NAMED} more, which --json names" if len(names) > _NAMED else "")
        for why, names in reasons.items()
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


def _shortcomings(made: Collected) -> list[str]:
    lost = [one for one in made.left_out if one.wanted]
    logs = "a log" if len(lost) == 1 else f"{len(lost)} logs"
    left = [f"hpcbert left out what may be {logs}."] if lost else []
    return [*made.refused, *short_of(made.tables), *left]
