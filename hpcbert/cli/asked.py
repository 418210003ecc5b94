"""What the options of submit and render amount to: a request, a site, a recipe."""

from __future__ import annotations

import os
import pwd
import secrets
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert.cli.conflicts import refuse_typed
from hpcbert.cli.options import pairs
from hpcbert.config import places, site, slurmwords
from hpcbert.config.schedulers import SLURM, traits
from hpcbert.errors import UsageError
from hpcbert.model import Shape, device, precision
from hpcbert.script.plan import Request

if TYPE_CHECKING:
    from hpcbert.cli.options import PointOptions
    from hpcbert.config.recipe import Recipe
    from hpcbert.config.site import Site
    from hpcbert.script.again import Past
    from hpcbert.script.draft import Submitter
    from hpcbert.script.resolve import SubmitOptions


@dataclass(frozen=True)
class Asked:
    """The shared options, read.

    Attributes:
        warnings: Choices made on the user's behalf.
    """

    request: Request
    site: Site
    recipe: Recipe
    options: SubmitOptions
    warnings: tuple[str, ...]


def read(
    options: PointOptions, *, dry: bool = False, rehearse: bool = False, then: Past | None = None
) -> Asked:
    """Turn the shared options into a request, a site, a recipe.

    Args:
        options: The options.
        dry: Whether nothing will be run.
        rehearse: Whether nothing will be trained.
        then: The campaign that says what is measured, instead of the options.

    Raises:
        UsageError: A value is wrong, or what was measured then can't be had.
    """
    from hpcbert.config import recipe  # whose dataclasses --help has no use for
    from hpcbert.script import again
    from hpcbert.script.resolve import SubmitOptions

    if then:
        options, rehearse = _as_then(options, then), rehearse or then.campaign.rehearse
    here = site.load(options.site_file, options)
    for program, words in (("sbatch", options.sbatch_arg), ("srun", options.srun_arg)):
        if why := slurmwords.refusal(program, words):
            raise UsageError(f"--{program}-arg: {why}", hint=f"Leave it out of --{program}-arg.")
    folders = places.recipe_folders(Path(here.where), options.templates)
    found = recipe.load(places.find_recipe(options.fw, folders))
    _refuse_unused(found, here)
    shape = Shape(options.nodes, options.gpus_per_node)
    scheduler = options.scheduler or here.scheduler
    warnings: tuple[str, ...] = ()
    if dry and traits(scheduler).here and shape.nodes > 1:
        note = f"The site's scheduler is {scheduler}, with one node: this is the script for Slurm."
        scheduler, warnings = SLURM.name, (note,)
    request = Request(
        shape=shape,
        precisions=tuple(map(precision, _split(options.precision))),
        batch_sizes=tuple(_number(word) for word in _split(options.batch_size)),
        scaling=options.scaling,
        model=options.model,
        preset=options.preset,
        device=device(options.device),
        accumulation=options.accumulation or 0,
        global_batch_size=options.global_batch_size or 0,
        xla=options.xla,
        settings=pairs(options.settings),
        repeats=options.repeats,
        iters=options.iters,
        skip=options.skip,
    )
    if then:
        request = again.request(then, found, here)
    chosen = SubmitOptions(
        scheduler=scheduler,
        folders=folders,
        concurrent=options.concurrent_repeats,
        concurrent_points=options.concurrent_points,
        together=options.repeats_in == "one-job",
        rehearse=rehearse,
        dry=dry,
        preflight=options.preflight,
    )
    return Asked(request, here, found, chosen, warnings)


def _as_then(options: PointOptions, then: Past) -> PointOptions:
    """Return the options with those of a campaign that are no part of its request."""
    campaign, shape = then.campaign, then.largest.shape
    return replace(
        options,
        fw=campaign.framework,
        nodes=shape.nodes,
        gpus_per_node=shape.gpus_per_node,
        concurrent_repeats=campaign.concurrent_repeats,
        concurrent_points=campaign.concurrent_points,
        repeats_in="one-job" if any(one.together for one in campaign.measured) else "array",
    )


def _refuse_unused(found: Recipe, here: Site) -> None:
    """Refuse what the framework or the runtime has no use for.

    Raises:
        UsageError: Such an option was typed.
    """
    if found.dataset is None and "data" not in found.needs:
        refuse_typed(("data",), f"with {found.name}, which reads none")
    if "source" not in found.needs and not found.source.repository:
        refuse_typed(("source",), f"with {found.name}, which brings its program")
    if here.container.runtime == "none":
        refuse_typed(("image",), "with the container runtime none")


def submitter() -> Submitter:
    """Say who asks, and when."""
    from hpcbert.script.draft import Submitter

    try:
        # USER and LOGNAME may be anybody's name: in a notebook, after sudo -E.
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    return Submitter(user, tuple(sys.argv), time.time(), secrets.token_hex(3))


def _split(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _number(text: str) -> int:
    if not text.isdigit():
        raise UsageError(f"--batch-size takes whole numbers, not {text!r}.")
    return int(text)
