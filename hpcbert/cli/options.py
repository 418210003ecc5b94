"""The options that submit and render share, and what they amount to."""

from __future__ import annotations

import os
import pwd
import secrets
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from hpcbert import timelimit
from hpcbert.cli.conflicts import Rule, refuse_typed
from hpcbert.config import places, recipe, site, slurmwords
from hpcbert.errors import UsageError
from hpcbert.model import Shape, precision
from hpcbert.script.plan import Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcbert.config.inventory import Recipe, Site
    from hpcbert.script.draft import How, Who

Scheduler = Literal["slurm", "local"]


def checked_limit(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """Refuse what is not a time limit in one of sbatch's forms; click's callback for `--time`."""
    try:
        if value:
            timelimit.read(value)
    except ValueError as error:
        raise click.BadParameter(f"{error} {timelimit.FORMS}") from error
    return value


_POINT = (
    click.option("--fw", default="pytorch", show_default=True, help="Framework: a recipe's name."),
    click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, help="Nodes."),
    click.option(
        "--gpus-per-node", type=click.IntRange(1), default=1, show_default=True, help="GPUs a node."
    ),
    click.option("--precision", default="", help="fp32, tf32, fp16, bf16; several by commas."),
    click.option("--batch-size", default="", help="Samples per device; several by commas."),
    click.option("--model", default="", help="Model; the site's or recipe's first by default."),
    click.option("--protocol", "preset", default="", help="A recipe's protocol; its first."),
    click.option(
        "--accumulation", type=click.IntRange(1), help="Micro-batches in one step; the protocol's."
    ),
    click.option(
        "--global-batch-size", type=click.IntRange(1), help="Samples in one step, instead."
    ),
    click.option("--xla", is_flag=True, help="Turn the framework's graph compiler on."),
    click.option("--set", "settings", multiple=True, metavar="K=V", help="A recipe's option."),
    click.option(
        "--scaling", is_flag=True, help="Also the smaller shapes: 1n1g, 1n4g, 1n8g, 2n8g."
    ),
    click.option("--repeats", type=int, default=5, show_default=True, help="Runs of each point."),
    click.option("--iters", type=int, help="Iterations of a run; the protocol's, mostly 120."),
    click.option("--skip", type=int, help="Warm-up iterations; the protocol's, mostly 20."),
)
_SITE = (
    click.option("--site", "site_file", default="", help="A site.toml, or its folder."),
    click.option("--templates", multiple=True, help="A folder with recipes of your own."),
    click.option(
        "--scheduler", type=click.Choice(["slurm", "local"]), help="Instead of the site's."
    ),
    click.option("--runtime", type=click.Choice(site.RUNTIMES), help="Container runtime."),
    click.option("--runs", default="", help="Directory of the campaigns."),
    click.option("--partition", default="", help="Slurm partition."),
    click.option("--account", default="", help="Slurm account."),
    click.option("--qos", default="", help="Slurm quality of service."),
    click.option(
        "--time",
        "time_limit",
        callback=checked_limit,
        default="",
        help="Limit of one repeat, HH:MM:SS.",
    ),
    click.option("--image", default="", help="Container image."),
    click.option("--data", default="", help="Training data, as the nodes see it."),
    click.option("--source", default="", help="Checkout of the framework's program, likewise."),
    click.option("--python", default="", help="Interpreter that the ranks use."),
    click.option("--sbatch-arg", multiple=True, metavar="WORD", help="One more word for sbatch."),
    click.option("--srun-arg", multiple=True, metavar="WORD", help="One more word for srun."),
    click.option(
        "--concurrent-repeats", type=click.IntRange(1), default=1, help="Repeats at the same time."
    ),
    click.option(
        "--concurrent-points", is_flag=True, help="Don't let each point wait for the one before."
    ),
    click.option(
        "--repeats-in",
        type=click.Choice(["array", "one-job"]),
        default="array",
        show_default=True,
        help="One array element a repeat, or all in one job on the same nodes.",
    ),
)


# What the local queue, which runs one repeat at a time on this machine, does not look at.
OF_SLURM = (
    *("partition", "account", "qos", "sbatch_arg", "srun_arg"),
    *("concurrent_repeats", "concurrent_points"),
)
SHARED_CONFLICTS = (
    Rule(
        ("concurrent_repeats",),
        lambda given: given["repeats_in"] == "one-job",
        "with --repeats-in one-job",
    ),
    Rule(
        ("global_batch_size",),
        lambda given: given["accumulation"] is not None,
        "with --accumulation, of which it follows",
    ),
)


def point_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say what is measured, and on which site."""
    for option in reversed((*_POINT, *_SITE)):
        function = option(function)
    return function


@dataclass(frozen=True)
class Asked:
    """The shared options, read.

    Attributes:
        warnings: What was decided in the person's stead.
    """

    request: Request
    site: Site
    recipe: Recipe
    how: How
    warnings: tuple[str, ...]


def read(values: dict[str, Any], *, dry: bool = False, rehearse: bool = False) -> Asked:
    """Turn the shared options' values into a request, a site, a recipe.

    Raises:
        UsageError: A value is wrong.
    """
    from hpcbert.script.draft import How  # with Jinja, which --help has no use for

    here = overridden(site.load(values["site_file"]), values)
    folders = places.recipe_folders(Path(here.where), values["templates"])
    found = recipe.load(places.find_recipe(values["fw"], folders))
    _refuse_unused(found, here)
    shape = Shape(values["nodes"], values["gpus_per_node"])
    scheduler, warnings = _scheduler(values["scheduler"] or here.scheduler, shape, dry=dry)
    request = Request(
        shape=shape,
        precisions=tuple(map(precision, _split(values["precision"]))),
        batch_sizes=tuple(_number(word) for word in _split(values["batch_size"])),
        scaling=values["scaling"],
        model=values["model"],
        preset=values["preset"],
        accumulation=values["accumulation"] or 0,
        global_batch_size=values["global_batch_size"] or 0,
        xla=values["xla"],
        settings=_pairs(values["settings"]),
        repeats=values["repeats"],
        iters=values["iters"],
        skip=values["skip"],
    )
    how = How(
        scheduler=scheduler,
        folders=folders,
        concurrent=values["concurrent_repeats"],
        concurrent_points=values["concurrent_points"],
        together=values["repeats_in"] == "one-job",
        rehearse=rehearse,
        dry=dry,
    )
    return Asked(request, here, found, how, warnings)


def _refuse_unused(found: Recipe, here: Site) -> None:
    """Refuse what the framework or the runtime has no use for.

    Raises:
        UsageError: Such an option was typed.
    """
    if found.dataset is None and "data" not in found.needs:
        refuse_typed(("data",), f"with {found.name}, which reads none")
    if "source" not in found.needs and not found.repository:
        refuse_typed(("source",), f"with {found.name}, which brings its program")
    if here.runtime == "none":
        refuse_typed(("image",), "with the container runtime none")


def who() -> Who:
    """Say who asks, and when."""
    from hpcbert.script.draft import Who

    try:
        # USER and LOGNAME may be anybody's name: in a notebook, after sudo -E.
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    return Who(user, tuple(sys.argv), time.time(), secrets.token_hex(3))


def _scheduler(name: str, shape: Shape, *, dry: bool) -> tuple[Scheduler, tuple[str, ...]]:
    scheduler = cast("Scheduler", name)
    if dry and scheduler == "local" and shape.nodes > 1:
        note = "The site's scheduler is local, with one node: this is the script for Slurm."
        return "slurm", (note,)
    return scheduler, ()


def overridden(here: Site, values: dict[str, Any]) -> Site:
    """Return the site with what the command line says instead."""
    names = ("runtime", "partition", "account", "qos", "time_limit")
    changes: dict[str, Any] = {name: values[name] for name in names if values[name]}
    if values["runs"]:
        changes["runs"] = str(Path(values["runs"]).absolute())
    for program in ("sbatch", "srun"):
        words = values[f"{program}_arg"]
        if why := slurmwords.refusal(program, words):
            raise UsageError(f"--{program}-arg: {why}", hint=f"Leave it out of --{program}-arg.")
        changes[f"{program}_args"] = (*getattr(here, f"{program}_args"), *words)
    own = {name: values[name] for name in ("image", "data", "source", "python") if values[name]}
    if "image" in own:
        own["image"] = site.absolute_image(own["image"], Path.cwd())
    if own:
        name = values["fw"]
        here = here.with_settings(name, replace(here.settings(name), **own))
    return replace(here, **changes)


def _split(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _number(text: str) -> int:
    if not text.isdigit():
        raise UsageError(f"--batch-size takes whole numbers, not {text!r}.")
    return int(text)


def _pairs(words: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"--set takes NAME=VALUE, not {word!r}.")
        pairs[name.strip()] = value
    return pairs
