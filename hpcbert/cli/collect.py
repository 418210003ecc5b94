"""hpcbert collect."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcbert import __version__
from hpcbert.cli import conflicts, streams
from hpcbert.cli.conflicts import Conflict
from hpcbert.cli.output import Result, returns_result
from hpcbert.config import places
from hpcbert.config.decode import decode
from hpcbert.config.toml import read as read_toml
from hpcbert.errors import HpcbertError, IncompleteError, UsageError
from hpcbert.flows import collect as flow
from hpcbert.foreign.gather import Framework
from hpcbert.foreign.said import Known, parse_settings
from hpcbert.logs import grammar
from hpcbert.logs.layout import shown
from hpcbert.logs.setting import END, Window
from hpcbert.model import MANIFEST, PRECISIONS, Provenance, utc
from hpcbert.model import precision as meant
from hpcbert.results.document import tables_data
from hpcbert.results.reporters import FORMS, Form, meant_by
from hpcbert.system import redact

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcbert.model import Campaign
    from hpcbert.slurm.states import RepeatState

_CONFLICT = Conflict(
    ("form",),
    lambda given: given["as_json"] and not given["output"],
    "with --json, which prints the tables in its document",
)
# Files that a sentence names; --json names all.
_NAMED = 10
_COUNT = re.compile(r"0*[1-9][0-9]{0,9}")


def _last_iteration(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """Read a number of iterations, or `end` for however far the run went."""
    if value is None or value == "end":
        return END if value else None
    if not _COUNT.fullmatch(value):
        raise click.BadParameter(f"{value!r} is neither a number above 0 nor `end`.")
    return int(value)


def _precision(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Read a precision in any of its spellings; click's callback."""
    if value is None or meant(value) in PRECISIONS:
        return value and meant(value)
    raise click.BadParameter(f"{value!r} is not one of {', '.join(PRECISIONS)}.")


@click.command()
@click.argument("paths", nargs=-1)
@click.option("--fw", default="", help="Framework of logs whose path doesn't name it.")
@click.option("--rule", default="", help="How a log becomes a number; the recipe's first.")
@click.option("--pattern", default="", help="How to read paths: '{nodes}n{gpus_per_node}g/*.log'.")
@click.option("--nodes", type=click.IntRange(1), help="Where neither path nor log tells.")
@click.option("--gpus-per-node", type=click.IntRange(1), help="Likewise.")
@click.option("--batch-size", type=click.IntRange(1), help="Samples per device, likewise.")
@click.option("--precision", callback=_precision, help="Likewise.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Of a log, likewise: accumulation, global_batch_size, packing, sequence_length.",
)
@click.option("--model", default="", help="The model, and what it is called in the table.")
@click.option("--skip", type=click.IntRange(0), help="Warm-up iterations, if not the protocol's.")
@click.option(
    "--iters",
    callback=_last_iteration,
    metavar="N|end",
    help="Last iteration, if not the protocol's; `end`: the run's own.",
)
@click.option(
    "--format", "form", type=click.Choice([*FORMS]), help="Form of the table; --output's, or text."
)
@click.option("--require-all", is_flag=True, help="No number for a point with a bad repeat.")
@click.option("--output", default="", metavar="FILE", help="Write the table to a file.")
@click.option("--templates", multiple=True, help="A folder with recipes of your own.")
@click.option("--site", "site_file", default="", help="Whose runs, if no path is given.")
@returns_result
def collect(
    paths: tuple[str, ...],
    *,
    fw: str,
    rule: str,
    pattern: str,
    nodes: int | None,
    gpus_per_node: int | None,
    batch_size: int | None,
    precision: str | None,
    settings: tuple[str, ...],
    model: str,
    skip: int | None,
    iters: int | None,
    form: str | None,
    require_all: bool,
    output: str,
    templates: tuple[str, ...],
    site_file: str,
) -> Result:
    """Reduce logs to a table of medians and speedups.

    PATHS are campaigns, or directories and files of logs that hpcbert never submitted; without
    any, the newest campaign. A repeat counts only if it completed, its log is whole and its loss
    finite; what doesn't count is listed with its reason, and the exit code is 4.

    \b
    Examples:
      hpcbert collect
      hpcbert collect --format markdown --output table.md
      hpcbert collect ~/DLPerf/logs --fw oneflow --rule rate
      hpcbert collect old/*.log --fw oneflow --pattern 'run{repeat}_{nodes}x{gpus_per_node}.log'
    """
    conflicts.refuse(_CONFLICT)
    if skip is not None and iters is not None and skip >= iters:
        raise UsageError(f"--skip must be below --iters, and {skip} is not below {iters}.")
    request = flow.Request(
        rule=rule,
        pattern=pattern,
        known=Known(
            fw, model, nodes, gpus_per_node, batch_size, precision, parse_settings(settings)
        ),
        window=Window(skip, iters),
        require_all=require_all,
    )
    folders = _recipe_folders(site_file, templates)
    named = meant_by(Path(output).suffix)
    notes: tuple[str, ...] = ()
    if form and named and form.removeprefix("dlperf-") != named:
        notes = (f"{output} holds {form}, as --format says, although its name says {named}.",)
    made = _collect(_paths(paths, site_file), request, folders)
    return _result(made, FORMS[form or named or "text"], output, notes)


command = collect


def collected(paths: Sequence[Path]) -> Result:
    """Return what `hpcbert collect PATHS` gives, for commands that end with it."""
    made = _collect(paths, flow.Request(), _recipe_folders("", ()))
    return _result(made, FORMS["text"], "")


def _collect(
    paths: Sequence[Path], request: flow.Request, folders: tuple[Path, ...]
) -> flow.Collected:
    recipes = places.list_recipes(folders)
    return flow.collect(
        paths,
        request,
        states=asked,
        frameworks=recipes,
        load=lambda name: _framework(recipes.get(name) or places.find_recipe(name, folders)),
    )


def _recipe_folders(site_file: str, templates: tuple[str, ...]) -> tuple[Path, ...]:
    site, _ = places.find_site(site_file, env=os.environ, cwd=Path.cwd())
    return places.recipe_folders(site, templates)


def _framework(folder: Path) -> Framework:
    path = folder / "recipe.toml"
    values = read_toml(path)
    named = values.get("models", ["bert"])
    models = decode(tuple[str, ...], named, file=str(path), path="models")
    log = grammar.parse(values.get("log", {}), where=str(path))
    return Framework(folder.name, log, models[0])


def _paths(words: tuple[str, ...], site_file: str) -> list[Path]:
    """Return the paths that are meant; an id stands for its campaign, nothing for the newest."""
    if words:
        return [_meant(word, site_file) for word in words]
    from hpcbert.campaign import store

    return [store.newest(_runs(site_file))]


def _meant(word: str, site_file: str) -> Path:
    """Return the path or campaign that a word means; a campaign as `store.resolve` has it."""
    path = Path(word)
    if path.exists() and (os.sep in word or not (path / MANIFEST).exists()):
        return path
    if os.sep in word:
        raise UsageError("There is no such file or directory.", where=word)
    from hpcbert.campaign import store

    return store.resolve(word, _runs(site_file))


def _runs(site_file: str) -> Path:
    from hpcbert.config.site import runs_directory

    return runs_directory(site_file)


def asked(directory: Path, campaign: Campaign) -> Mapping[tuple[str, int], RepeatState]:
    """Ask whoever runs the campaign; what asking needs takes longer to import than all else."""
    if campaign.scheduler == "local":
        from hpcbert.scheduler.local import queue as local

        return local.states(directory, campaign)
    from hpcbert.scheduler.slurm import tracker
    from hpcbert.scheduler.slurm.adopt import adopted
    from hpcbert.system import runner

    campaign = adopted(directory, campaign, run=runner.run)
    return tracker.snapshot(directory, campaign, run=runner.run)


def _result(made: flow.Collected, form: Form, output: str, notes: tuple[str, ...] = ()) -> Result:
    how = _provenance()
    width = 0 if output else streams.width(sys.stdout)
    text = form.write(made.tables, how, width) if made.tables else ""
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
        exact=form.exact and bool(text),
        exit_code=made.exit_code,
        errors=tuple(map(IncompleteError, _shortcomings(made))),
        warnings=(*made.warnings, *_left_out(made), *form.unsaid(made.tables, how), *notes),
    )


def _provenance() -> Provenance:
    words = redact.command(["hpcbert", *sys.argv[1:]])
    return Provenance(__version__, utc(time.time()), shlex.join(words))


def _left_out(made: flow.Collected) -> tuple[str, ...]:
    """Return which files were left out, a sentence for each reason."""
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


def _shortcomings(made: flow.Collected) -> list[str]:
    rows = [row for table in made.tables for row in table.rows]
    asked, ok = sum(row.asked for row in rows), sum(row.ok for row in rows)
    does = "does" if asked - ok == 1 else "do"
    short = [f"{asked - ok} of {asked} repeats {does} not count."] if ok < asked else []
    lost = [one for one in made.left_out if one.wanted]
    logs = "a log was" if len(lost) == 1 else f"{len(lost)} logs were"
    return [*made.refused, *short, *([f"What may be {logs} left out."] if lost else [])]
