"""Tables of medians and speedups as a command's result: collected, laid out, written to a file."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcbert import __version__
from hpcbert.cli import streams
from hpcbert.cli.output import Result
from hpcbert.config import places
from hpcbert.config.decode import decode
from hpcbert.config.toml import read
from hpcbert.errors import HpcbertError, IncompleteError
from hpcbert.flows.collect import CollectRequest, collect
from hpcbert.foreign.gather import Framework
from hpcbert.logs import grammar
from hpcbert.logs.layout import shown
from hpcbert.model import Provenance, utc
from hpcbert.results.document import tables_data
from hpcbert.results.reporters import FORMS
from hpcbert.system import redact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcbert.flows.collect import Collected

# Files that a sentence names; --json names all.
_NAMED = 10


def recipe_folders(site_file: str = "", templates: tuple[str, ...] = ()) -> tuple[Path, ...]:
    """Return where recipes are looked for, as `places.recipe_folders` has it.

    Raises:
        ConfigError: There is no such site, or it or its recipes are in strange hands.
    """
    site, _ = places.find_site(site_file, env=os.environ, cwd=Path.cwd())
    return places.recipe_folders(site, templates)


def collected(
    paths: Sequence[Path],
    request: CollectRequest | None = None,
    *,
    form: str = "text",
    output: str = "",
    notes: tuple[str, ...] = (),
    folders: tuple[Path, ...] | None = None,
) -> Result:
    """Collect campaigns and logs.

    Args:
        paths: Campaigns, directories and files.
        request: What is to be collected; all of it by default.
        form: Of the table, a name in `FORMS`.
        output: File that the table is written to; empty for stdout.
        notes: Further warnings.
        folders: Where recipes are; without them the site's, as `recipe_folders` has them.

    Raises:
        HpcbertError: As `collect`, or the file can't be written.
    """
    folders = recipe_folders() if folders is None else folders
    recipes = places.list_recipes(folders)
    made = collect(
        paths,
        request or CollectRequest(),
        frameworks=recipes,
        load=lambda name: _framework(recipes.get(name) or places.find_recipe(name, folders)),
    )
    words = redact.command(["hpcbert", *sys.argv[1:]])
    how = Provenance(__version__, utc(time.time()), shlex.join(words))
    width = 0 if output else streams.width(sys.stdout)
    layout = FORMS[form]
    text = layout.write(made.tables, how, width) if made.tables else ""
    if output and text:
        _write(Path(output), click.unstyle(text) + "\n")
        text = ""
    files = [
        {"path": shown(one.path), "why": one.why, "wanted": one.wanted} for one in made.left_out
    ]
    left_out = {"left_out": files} if files or made.tables else {}
    return Result(
        data={**tables_data(made.tables, how if made.tables else None), **left_out},
        text=text,
        exact=layout.exact and bool(text),
        incomplete=made.exit_code != 0,
        errors=tuple(map(IncompleteError, _shortcomings(made))),
        warnings=(*made.warnings, *_left_out(made), *layout.unsaid(made.tables, how), *notes),
    )


def _framework(folder: Path) -> Framework:
    path = folder / "recipe.toml"
    values = read(path)
    named = values.get("models", ["bert"])
    models = decode(tuple[str, ...], named, file=str(path), path="models")
    log = grammar.parse(values.get("log", {}), where=str(path))
    return Framework(folder.name, log, models[0])


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


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all; what is no file, as /dev/stdout, is written into."""
    from hpcbert.campaign import store

    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
        else:
            store.write_text(path, text, mode=0o666)
    except (HpcbertError, OSError) as error:
        raise HpcbertError(f"--output can't be written: {error}") from error


def _shortcomings(made: Collected) -> list[str]:
    rows = [row for table in made.tables for row in table.rows]
    asked, ok = sum(row.asked for row in rows), sum(row.ok for row in rows)
    does = "does" if asked - ok == 1 else "do"
    short = [f"{asked - ok} of {asked} repeats {does} not count."] if ok < asked else []
    lost = [one for one in made.left_out if one.wanted]
    logs = "a log was" if len(lost) == 1 else f"{len(lost)} logs were"
    return [*made.refused, *short, *([f"What may be {logs} left out."] if lost else [])]
