"""hpcbert prepare."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import click

from hpcbert.cli.options import read_pairs, refuse_typed, shared_option
from hpcbert.cli.output import Result, replace_controls, returns_result
from hpcbert.commands import prepare as flow
from hpcbert.config import places, recipe, site, trust
from hpcbert.config.options import Options
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
_MARKS = {"ready": "ok", "done": "done", "planned": "plan", "skipped": "skip", "failed": "FAIL"}


@click.command(
    epilog="\b\nExamples:\n"
    "  hpcbert prepare --fw ngc-pytorch\n"
    "  hpcbert prepare --fw oneflow --fw paddle --dry-run\n"
    "  hpcbert prepare --fw deepspeed --on-node --partition gpu"
)
@click.option("--fw", "frameworks", multiple=True, required=True, help="Framework; repeatable.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(["source", "environment", "image", "data"]),
    help="Prepare only this part; repeatable.",
)
@shared_option("device")
@shared_option("site_file")
@shared_option("templates")
@shared_option("runtime")
@shared_option("image", "Container image, for a single framework.")
@shared_option("data", "Training data, for a single framework.")
@click.option("--repository", default="", help="Repository of the program, for a single framework.")
@shared_option("python", "Interpreter to make environments with.")
@shared_option("settings", "Option of the recipe that the data is for.")
@click.option("--on-node", is_flag=True, help="Prepare in a job on a compute node.")
@shared_option("partition", "Slurm partition, with --on-node.")
@shared_option("account", "Slurm account, with --on-node.")
@shared_option("qos", "Slurm quality of service, with --on-node.")
@shared_option("time_limit", "Time limit of that job, HH:MM:SS.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, make nothing.")
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
    prepared, and record it with digests.
    """
    site_config = _load_site(frameworks, values)
    if site_config.container.runtime == "none":
        refuse_typed(("image",), "with the container runtime none")
    folders = places.recipe_folders(Path(site_config.where), templates)
    loaded_recipes = [recipe.load(places.find_recipe(name, folders)) for name in frameworks]
    used_paths = [
        Path(site_config.where),
        *(
            path
            for framework_recipe in loaded_recipes
            for path in Path(framework_recipe.folder).iterdir()
        ),
    ]
    site_file = Path(site_config.where) if site_config.named else None
    trust.refuse_untrusted(used_paths, trust.command_line_entries(site_file, templates))
    wanted_device = parse_device(values["device"])
    recipes = [
        framework_recipe.for_device(
            choose_device(framework_recipe, site_config, wanted_device, folders)
        )
        for framework_recipe in loaded_recipes
    ]
    if on_node:
        template_paths = tuple(str(Path(path).absolute()) for path in templates)
        list_options = {
            "fw": frameworks,
            "only": only,
            "templates": template_paths,
            "set": settings,
        }
        return _prepare_on_node(
            site_config, _make_node_arguments(site_config, list_options, values, dry=dry_run)
        )
    context = Context(
        run=run,
        follow=follow,
        say=_print_line,
        env=dict(os.environ),
        dry=dry_run,
        python=values["python"],
        settings=read_pairs(settings),
    )
    return _make_result(
        [
            part
            for framework_recipe in recipes
            for part in flow.prepare(framework_recipe, site_config, context, only=only)
        ]
    )


def _load_site(frameworks: Sequence[str], values: dict[str, str]) -> Site:
    options = Options(
        runtime=values["runtime"],
        partition=values["partition"],
        account=values["account"],
        qos=values["qos"],
        time_limit=values["time_limit"],
        fw=frameworks[0],
        image=values["image"],
        data=values["data"],
        repository=values["repository"],
    )
    site_config = site.load(values["site_file"], options)
    flags = [f"--{name}" for name in ("image", "data", "repository") if values[name]]
    if flags and len(frameworks) != 1:
        raise UsageError(f"{' and '.join(flags)} can only be used with a single framework.")
    return site_config


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


# --- In a job -----------------------------------------------------------------------------------


def _make_node_arguments(
    site_config: Site,
    list_options: dict[str, tuple[str, ...]],
    values: dict[str, str],
    *,
    dry: bool,
) -> list[str]:
    """Return the command line for the node; the site's file by its path, all else as typed."""
    arguments = [
        word
        for name, option_values in list_options.items()
        for option_value in option_values
        for word in (f"--{name}", option_value)
    ]
    arguments += ["--site", site_config.where]
    for name in ("device", "runtime", "image", "data", "repository", "python"):
        arguments += [f"--{name}", values[name]] if values[name] else []
    return [*arguments, "--dry-run"] if dry else arguments


def _prepare_on_node(site_config: Site, arguments: Sequence[str]) -> Result:
    if not find_traits(site_config.scheduler).srun:
        raise UsageError(
            f"--on-node needs Slurm, and the site's scheduler is {site_config.scheduler}.",
            where=site_config.where,
            hint="Leave --on-node out: this machine is the node.",
        )
    env = submission_environment(os.environ)
    env.pop(
        "XDG_RUNTIME_DIR", None
    )  # names this host's directory, which enroot would look for on the node
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
