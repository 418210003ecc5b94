"""hpcbert prepare."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hpcbert.cli.campaigns import announce_site
from hpcbert.cli.options import (
    flag_option,
    read_pairs,
    refuse_typed,
    shared_option,
    shared_options,
    text_option,
)
from hpcbert.cli.output import Result, replace_controls, returns_result
from hpcbert.commands import prepare as flow
from hpcbert.config import places, recipe, site, trust
from hpcbert.config.options import Options
from hpcbert.config.recipe import Recipe
from hpcbert.config.schedulers import find_traits
from hpcbert.config.site import Site
from hpcbert.errors import (
    CheckError,
    ConfigError,
    HpcbertError,
    IncompleteError,
    Interruption,
    SchedulerError,
    UsageError,
)
from hpcbert.model import parse_device
from hpcbert.prepare.parts import Context, Part
from hpcbert.script.plan import choose_device
from hpcbert.slurm.commands import submission_environment
from hpcbert.system.runner import follow, run

_ERRORS = (UsageError, ConfigError, SchedulerError, IncompleteError, CheckError, Interruption)
_SITE_OPTIONS = "runtime partition account qos time_limit image data repository"
_MARKS = {"ready": "ok", "done": "done", "planned": "plan", "skipped": "skip", "failed": "FAIL"}


@click.command()
@click.option("--fw", "frameworks", multiple=True, required=True, help="Framework; repeatable.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(["source", "environment", "image", "data"]),
    help="Prepare only this part; repeatable.",
)
@shared_options("device", "site_file", "templates", "runtime", "image", "data")
@text_option("--repository", "Repository of the program.")
@shared_option("python", "Interpreter to make environments with.")
@shared_option("settings", "Option of the recipe that the data is for.")
@flag_option("--on-node", "Prepare in a job on a compute node.")
@shared_options("partition", "account", "qos")
@shared_option("time_limit", "Time limit of that job, HH:MM:SS.")
@flag_option("--dry-run", "Show what would be done, make nothing.")
@returns_result
def prepare(
    *,
    frameworks: tuple[str, ...],
    only: tuple[str, ...],
    templates: tuple[str, ...],
    settings: tuple[str, ...],
    on_node: bool,
    dry_run: bool,
    **values: str,
) -> Result:
    """Fetch images and programs of frameworks, make environments and data.

    What exists already stays as it is; what was interrupted continues. Later campaigns use what was
    prepared, and record it with digests. --image, --data and --repository are for a single
    framework; --partition, --account and --qos are for the job of --on-node.

    \b
    Examples:
      hpcbert prepare --fw ngc-pytorch
      hpcbert prepare --fw oneflow --fw paddle --dry-run
      hpcbert prepare --fw deepspeed --on-node --partition gpu
    """
    site_values: dict[str, Any] = {name: values[name] for name in _SITE_OPTIONS.split()}
    site_config = site.load(values["site_file"], Options(fw=frameworks[0], **site_values))
    flags = [f"--{name}" for name in ("image", "data", "repository") if values[name]]
    if flags and len(frameworks) != 1:
        raise UsageError(f"{' and '.join(flags)} can only be used with a single framework.")
    if site_config.container.runtime == "none":
        refuse_typed(("image",), "with the container runtime none")
    recipes = _load_recipes(frameworks, site_config, templates, parse_device(values["device"]))
    images = f"images in {site_config.container.images}"
    announce_site(site_config, f"programs in {site_config.sources}", images)
    if on_node:
        # The site's file by its path, all else as typed.
        folders = tuple(str(Path(path).absolute()) for path in templates)
        options = {"fw": frameworks, "only": only, "templates": folders, "set": settings}
        options["site"] = (site_config.where,)
        for name in ("device", "runtime", "image", "data", "repository", "python"):
            options[name] = (values[name],) if values[name] else ()
        arguments = [
            word for name in options for value in options[name] for word in (f"--{name}", value)
        ]
        arguments += ["--dry-run"] if dry_run else []
        return _prepare_on_node(site_config, arguments)
    context = Context(
        run=run,
        follow=follow,
        say=_print_line,
        env=dict(os.environ),
        dry=dry_run,
        python=values["python"],
        settings=read_pairs(settings),
    )
    parts: list[Part] = []
    for framework_recipe in recipes:
        parts += flow.prepare(framework_recipe, site_config, context, only=only)
    return _make_result(parts)


def _load_recipes(
    frameworks: Sequence[str], site_config: Site, templates: tuple[str, ...], device: str
) -> list[Recipe]:
    """Return the recipes for the device; files of strangers are refused before anything runs."""
    folders = places.recipe_folders(Path(site_config.where), templates)
    recipes = [recipe.load(places.find_recipe(name, folders)) for name in frameworks]
    site_file = Path(site_config.where)
    paths = [site_file]
    for loaded in recipes:
        paths += Path(loaded.folder).iterdir()
    named_site = site_file if site_config.named else None
    trust.refuse_untrusted(paths, trust.command_line_entries(named_site, templates))
    return [loaded.for_device(choose_device(loaded, site_config, device)) for loaded in recipes]


def _print_line(line: str) -> None:
    click.echo(replace_controls(line), err=True)


def _make_result(parts: Sequence[Part]) -> Result:
    errors: list[HpcbertError] = []
    for part in parts:
        if part.status == "failed":
            kind = CheckError if part.kind == "data" else IncompleteError
            where = f"{part.framework} {part.kind}"
            errors.append(kind(f"{part.detail.rstrip('.')}.", where=where, hint=part.hint))
    lines = []
    for part in parts:
        lines += [f"{_MARKS[part.status]:<5} {part.framework} {part.kind}: {part.detail}"]
        lines += [f"      {word}" for word in (part.path, part.digest) if word]
    return Result({"parts": parts}, "\n".join(lines), tuple(errors))


def _prepare_on_node(site_config: Site, arguments: Sequence[str]) -> Result:
    if not find_traits(site_config.scheduler).srun:
        raise UsageError(
            f"--on-node needs Slurm, and the site's scheduler is {site_config.scheduler}.",
            where=site_config.where,
            hint="Leave --on-node out: this machine is the node.",
        )
    env = submission_environment(os.environ)
    # It names this host's directory, which enroot would look for on the node.
    env.pop("XDG_RUNTIME_DIR", None)
    outcome = follow(flow.on_node_argv(site_config, arguments), show=_print_line, env=env)
    try:
        document = json.loads(outcome.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        raise SchedulerError(
            f"The job ended with status {outcome.returncode} and printed no result.",
            hint="See the output of srun for the reason. The nodes need a file system that has "
            "hpcbert and its Python.",
        ) from None
    if document["data"]:
        return _make_result([Part(**part) for part in document["data"]["parts"]])
    kinds = {error.code: error for error in _ERRORS}
    errors = tuple(
        kinds.get(entry["code"], HpcbertError)(entry["message"], hint=entry["hint"])
        for entry in document["errors"]
    )
    return Result(errors=errors)
