"""hpcbert collect."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcbert.cli import conflicts
from hpcbert.cli.conflicts import Conflict
from hpcbert.cli.output import Result, returns_result
from hpcbert.cli.tables import collected, recipe_folders
from hpcbert.errors import UsageError
from hpcbert.flows.collect import CollectRequest
from hpcbert.foreign.said import Known, parse_settings
from hpcbert.logs.setting import END, Window
from hpcbert.model import MANIFEST, PRECISIONS
from hpcbert.model import precision as spelled
from hpcbert.results.reporters import FORMS, meant_by

if TYPE_CHECKING:
    from collections.abc import Sequence

_CONFLICT = Conflict(
    ("form",),
    lambda given: given["as_json"] and not given["output"],
    "with --json, which prints the tables in its document",
)
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
    if value is None or spelled(value) in PRECISIONS:
        return value and spelled(value)
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
    request = CollectRequest(
        rule=rule,
        pattern=pattern,
        known=Known(
            fw, model, nodes, gpus_per_node, batch_size, precision, parse_settings(settings)
        ),
        window=Window(skip, iters),
        require_all=require_all,
    )
    named = meant_by(Path(output).suffix)
    notes: tuple[str, ...] = ()
    if form and named and form.removeprefix("dlperf-") != named:
        notes = (f"{output} holds {form}, as --format says, although its name says {named}.",)
    # Before any path is looked at: recipes in strange hands are refused whatever is collected.
    folders = recipe_folders(site_file, templates)
    meant = [_meant(word, site_file) for word in paths] or [_campaign((), site_file)]
    return collected(
        meant,
        request,
        form=form or named or "text",
        output=output,
        notes=notes,
        folders=folders,
    )


def _meant(word: str, site_file: str) -> Path:
    """Return the path or campaign that a word means; a campaign as `store.resolve` has it."""
    path = Path(word)
    if path.exists() and (os.sep in word or not (path / MANIFEST).exists()):
        return path
    if os.sep in word:
        raise UsageError("There is no such file or directory.", where=word)
    return _campaign([word], site_file)


def _campaign(names: Sequence[str], site_file: str) -> Path:
    from hpcbert.campaign import store  # logs need none of this
    from hpcbert.config.site import load

    return store.chosen(names, Path(load(site_file).runs))[0]
