"""Prepare a framework's image, program, environment and data once, and record them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import hpcbert
from hpcbert.prepare.data import data
from hpcbert.prepare.environment import environment
from hpcbert.prepare.image import image
from hpcbert.prepare.source import source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hpcbert.config.recipe import Recipe
    from hpcbert.config.site import Site
    from hpcbert.prepare.parts import Context, Kind, Part

# The program first: an environment, or an image, may be built with it.
KINDS: tuple[Kind, ...] = ("source", "environment", "image", "data")
_MAKE = {"source": source, "environment": environment, "image": image, "data": data}


def prepare(
    recipe: Recipe, site: Site, context: Context, *, only: Sequence[str] = ()
) -> Iterator[Part]:
    """Yield the result of each part, one after another.

    Args:
        recipe: What runs, as it is on its device.
        site: Where it runs.
        context: What to work with.
        only: The requested kinds; if empty, all that the recipe has.

    Raises:
        HpcbertError: Site and recipe are inconsistent, or the file system refused.
    """
    usual = [kind for kind in KINDS if kind != "environment" or recipe.environment]
    for kind in KINDS:
        if kind in (only or usual):
            yield _MAKE[kind](recipe, site, context)


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
