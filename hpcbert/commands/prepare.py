"""Prepare a framework's image, program, environment and data once, and record them."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import hpcbert
from hpcbert.config.recipe import Recipe
from hpcbert.config.site import Site
from hpcbert.errors import IncompleteError
from hpcbert.prepare.data import prepare_data
from hpcbert.prepare.environment import prepare_environment
from hpcbert.prepare.image import prepare_image
from hpcbert.prepare.parts import Context, Kind, Part
from hpcbert.prepare.source import prepare_source

# The program first: an environment, or an image, may be built with it.
KINDS: tuple[Kind, ...] = ("source", "environment", "image", "data")
_MAKE = {
    "source": prepare_source,
    "environment": prepare_environment,
    "image": prepare_image,
    "data": prepare_data,
}


def prepare(
    recipe: Recipe, site: Site, context: Context, *, only: Sequence[str] = ()
) -> Iterator[Part]:
    """Yield the result of each part, one after another.

    Args:
        only: The requested kinds; if empty, all that the recipe has.

    Raises:
        HpcbertError: Site and recipe are inconsistent, or the file system refused.
    """
    usual_kinds = [kind for kind in KINDS if kind != "environment" or recipe.environment]
    for kind in KINDS:
        if kind in (only or usual_kinds):
            try:
                part = _MAKE[kind](recipe, site, context)
            except IncompleteError as error:
                part = Part("failed", error.message, error.where, hint=error.hint)
            yield dataclasses.replace(part, framework=recipe.name, kind=kind)


def on_node_argv(site: Site, words: Sequence[str]) -> list[str]:
    """Return the command that runs `hpcbert prepare` on one compute node and waits for it.

    Args:
        site: Where: partition, account and what else jobs need there.
        words: The command line after `prepare`, without `--on-node`.
    """
    options = [*site.slurm.selection, f"--time={site.slurm.time_limit.text}"]
    options += ["--nodes=1", "--ntasks=1", "--job-name=hpcbert-prepare"]
    package = str(Path(hpcbert.__file__).parent.parent)
    python = f"PYTHONPATH={shlex.quote(package)}${{PYTHONPATH:+:$PYTHONPATH}}"
    line = shlex.join([sys.executable, "-m", "hpcbert", "prepare", *words, "--json"])
    return ["srun", *options, "bash", "-c", f"export {python}; exec {line}"]
