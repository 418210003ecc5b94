"""hpcbert prepare."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcbert.cli.options import pairs, shared_option
from hpcbert.cli.output import Result, printable, returns_result
from hpcbert.cli.unused_options import refuse_typed
from hpcbert.commands import prepare as flow
from hpcbert.config import places, recipe, site, trust
from hpcbert.config.options import Options
from hpcbert.config.schedulers import traits
from hpcbert.errors import (
    CheckError,
    ConfigError,
    HpcbertError,
    IncompleteError,
    Interruption,
    SchedulerError,
    UsageError,
)
from hpcbert.model import device
from hpcbert.prepare.parts import Context, Part
from hpcbert.script.plan import device_of
from hpcbert.slurm.commands import submission_environment
from hpcbert.system.runner import follow, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcbert.config.site import Site


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
    here = _site(frameworks, values)
    if here.container.runtime == "none":
        refuse_typed(("image",), "with the container runtime none")
    folders = places.recipe_folders(Path(here.where), templates)
    found = [recipe.load(places.find_recipe(name, folders)) for name in frameworks]
    used = [Path(here.where), *(path for one in found for path in Path(one.folder).iterdir())]
    site_file = Path(here.where) if here.named else None
    trust.refuse(used, trust.of_command_line(site_file, templates))
    wanted = device(values["device"])
    recipes = [one.for_device(device_of(one, here, wanted, folders)) for one in found]
    if on_node:
        texts = tuple(str(Path(path).absolute()) for path in templates)
        given = {"fw": frameworks, "only": only, "templates": texts, "set": settings}
        return _on_node(here, _words(here, given, values, dry=dry_run))
    context = Context(
        run=run,
        follow=follow,
        say=_say,
        env=dict(os.environ),
        dry=dry_run,
        python=values["python"],
        settings=pairs(settings),
    )
    return _result(
        [part for one in recipes for part in flow.prepare(one, here, context, only=only)]
    )


def _site(frameworks: Sequence[str], values: dict[str, str]) -> Site:
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
    here = site.load(values["site_file"], options)
    texts = [f"--{name}" for name in ("image", "data", "repository") if values[name]]
    if texts and len(frameworks) != 1:
        raise UsageError(f"{' and '.join(texts)} can only be used with a single framework.")
    return here


def _say(line: str) -> None:
    click.echo(printable(line), err=True)


def _result(parts: Sequence[Part]) -> Result:
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


def _words(
    here: Site, given: dict[str, tuple[str, ...]], values: dict[str, str], *, dry: bool
) -> list[str]:
    """Return the command line for the node; the site's file by its path, all else as typed."""
    words = [word for name, all_ in given.items() for one in all_ for word in (f"--{name}", one)]
    words += ["--site", here.where]
    for name in ("device", "runtime", "image", "data", "repository", "python"):
        words += [f"--{name}", values[name]] if values[name] else []
    return [*words, "--dry-run"] if dry else words


def _on_node(here: Site, words: Sequence[str]) -> Result:
    if not traits(here.scheduler).srun:
        raise UsageError(
            f"--on-node needs Slurm, and the site's scheduler is {here.scheduler}.",
            where=here.where,
            hint="Leave --on-node out: this machine is the node.",
        )
    env = submission_environment(os.environ)
    env.pop(
        "XDG_RUNTIME_DIR", None
    )  # names this host's directory, which enroot would look for on the node
    outcome = follow(flow.on_node_argv(here, words), show=_say, env=env)
    try:
        document = json.loads(outcome.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        raise SchedulerError(
            f"The job ended with status {outcome.returncode} and printed no result.",
            hint="See the output of srun for the reason. The nodes need a file system that has "
            "hpcbert and its Python.",
        ) from None
    if document["data"]:
        return _result([Part(**part) for part in document["data"]["parts"]])
    kinds = {error.code: error for error in _ERRORS}
    errors = tuple(
        kinds.get(one["code"], HpcbertError)(one["message"], hint=one["hint"])
        for one in document["errors"]
    )
    return Result(errors=errors)
