"""Obstacles that would keep a job from running, if they can be found before it is submitted.

A job that can't start waits forever, or fails five times; each of these is seen from the login
node in a moment. What only the nodes know, `hpcbert doctor --nodes N` asks them.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from hpcbert import scheduler
from hpcbert.commands.container_checks import OLD_PYXIS, SRUN_HELP, examine_pyxis
from hpcbert.config.slurmwords import given
from hpcbert.finding import Finding
from hpcbert.scheduler.base import World
from hpcbert.script.fitting import misfits
from hpcbert.script.prepared import runs_in_environment
from hpcbert.slurm.controller import fitting_mpi
from hpcbert.system import packages

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hpcbert.config.recipe import Recipe
    from hpcbert.config.site import Site
    from hpcbert.model import OptionValue
    from hpcbert.script.draft import Draft
    from hpcbert.script.inputs import Inputs
    from hpcbert.script.resolve import Resolved
    from hpcbert.system.runner import Runner

# Prints those of its arguments that are no modules; nothing is imported.
_MISSING = (
    "import importlib.util, sys; "
    "print(*(one for one in sys.argv[1:] if importlib.util.find_spec(one) is None))"
)
# Seconds; a file server that hangs is not this check's affair.
_PATIENCE = 20.0
_COMMAND = "hpcbert prepare --fw {}"
_PREPARE = f"Make it ready: {_COMMAND}. If only the nodes have it, give --force."


def of_submission(draft: Draft, *, run: Runner) -> tuple[Finding, ...]:
    """Return what stands in the way of a campaign; what may do so has the status `warn`.

    Args:
        draft: The campaign.
        run: Starts sinfo, and the interpreter of the ranks.

    Raises:
        UsageError: As `wanted`.
    """
    campaign = draft.campaign
    requests = [array.request for array in campaign.arrays]
    findings = scheduler.of(campaign.scheduler, World(run)).obstacles(draft.directory, requests)
    # Before the interpreter is waited for.
    last = tuple(findings)
    found = tuple(
        finding
        for use in draft.uses
        for finding in of_framework(
            use.site, use.recipe, use.found, use.plan.options, rehearse=use.options.rehearse
        )
    )
    for use in draft.uses:
        found += (*_of_mpi(use), *_of_modules(use, run))
    return (*found, *_of_pyxis(draft, run), *last)


def foreseen(draft: Draft) -> Iterator[Sequence[str]]:
    """Yield the commands by which `of_submission` asks interpreters for modules, and srun."""
    yield from filter(None, map(_question, draft.uses))
    if draft.campaign.runtime == "pyxis":
        yield SRUN_HELP


def _of_pyxis(draft: Draft, run: Runner) -> Iterator[Finding]:
    """Yield options of pyxis that srun lacks, and images that every node would import."""
    if draft.campaign.runtime != "pyxis":
        return
    finding = examine_pyxis(draft.resolved.site, [use.recipe for use in draft.uses], run=run)
    if finding.change == OLD_PYXIS:
        yield replace(finding, detail=f"{finding.detail}, which every job uses.")
    elif finding.status != "ok":
        # The nodes may have what this machine lacks.
        yield replace(finding, status="warn", detail=f"{finding.detail}.")
    images = {use.found.image: use.recipe.name for use in reversed(draft.uses)}
    for image, name in images.items():
        if image and image.kind != "file":
            command = f"hpcbert prepare --fw {name} --only image"
            yield Finding(
                f"image of {name}",
                "warn",
                f"{image.uri} is not prepared: with pyxis, every node imports it in every job.",
                f"Import it once: {command}.",
                remedy=command,
            )


def _question(resolved: Resolved) -> list[str]:
    """Return the command that prints which modules an interpreter lacks; nothing: none matters."""
    recipe, python = resolved.recipe, resolved.inputs.python
    inside = resolved.site.container.runtime != "none"
    if not recipe.modules or resolved.options.rehearse or inside:
        return []
    return [python, "-c", _MISSING, *recipe.modules]


def _of_mpi(resolved: Resolved) -> Iterator[Finding]:
    """Yield a finding if srun is known not to start ranks as the recipe or the site needs."""
    there, recipe = resolved.options.mpi, resolved.recipe
    if not there or not resolved.mpi or fitting_mpi([resolved.mpi], there):
        return
    mpi = resolved.site.slurm.mpi or given(resolved.site.slurm.srun_args, "mpi", "srun")
    text = f"The site names {mpi}" if mpi else f"{recipe.name} needs {' or '.join(recipe.mpi)}"
    yield Finding(
        "MPI",
        "fail",
        f"{text} to start its ranks, and srun on this cluster has {', '.join(there)}.",
        "Set slurm.mpi in the site.toml to one of these that the program's MPI speaks, or have the "
        "cluster's administrators install the plugin.",
        "site.toml: slurm.mpi",
    )


def _of_modules(resolved: Resolved, run: Runner) -> Iterator[Finding]:
    """Yield modules that the interpreter of the ranks has not; one that can't be run has a finding.

    Where ranks run on other machines, the interpreter of that name there may have them.
    """
    recipe, python = resolved.recipe, resolved.inputs.python
    question = _question(resolved)
    if not question:
        return
    outcome = run(question, timeout=_PATIENCE)
    missing = [
        module for module in recipe.modules if outcome.ok and module in outcome.stdout.split()
    ]
    if not missing:
        return
    here = resolved.scheduler.here
    lacks = f"{python} has no module {' or '.join(missing)} on this machine"
    fails = "every run would fail" if here else "on nodes that lack it too every run fails"
    own = packages.install_torch(shutil.which(python) or python)
    another = "Name an interpreter that has it: --python, or frameworks.{}.python in the site.toml."
    hints = [another.format(recipe.name), f"Or install it. {own}" if "torch" in missing else ""]
    yield Finding(
        f"python of {recipe.name}",
        "fail" if here else "warn",
        f"{lacks}, which {recipe.name}'s ranks import: {fails}.",
        " ".join(filter(None, hints)),
        f"site.toml: frameworks.{recipe.name}.python",
    )


def of_framework(
    site: Site,
    recipe: Recipe,
    inputs: Inputs,
    options: Mapping[str, OptionValue] | None = None,
    *,
    rehearse: bool = False,
) -> Iterator[Finding]:
    """Yield what a framework needs and this machine does not find.

    Args:
        site: Where it runs.
        recipe: What runs.
        inputs: What it runs with there.
        options: The values of its options; None if not decided yet.
        rehearse: Whether only its image is entered, and no program runs.
    """
    image = inputs.image
    if image and image.kind == "file" and not os.access(image.path, os.R_OK):
        yield _lacks(recipe, "image", image.path)
    if rehearse:
        return
    for kind, path in (("data", inputs.data), ("source", inputs.source)):
        if path and kind in recipe.needs and not os.access(path, os.F_OK):
            yield _lacks(recipe, kind, path)
    for misfit in (
        misfits(recipe, options, inputs.data) if inputs.data and options is not None else ()
    ):
        yield Finding(
            f"data of {recipe.name}",
            "fail",
            f"The data in {inputs.data} do not fit: {misfit}.",
            "Make others with hpcbert data make, or change the options of the recipe.",
            f"site.toml: frameworks.{recipe.name}.data",
        )
    if runs_in_environment(site, recipe) and not inputs.python:
        yield Finding(
            f"environment of {recipe.name}",
            "fail",
            "Its virtual environment is not made.",
            _PREPARE.format(recipe.name),
            f"site.toml: frameworks.{recipe.name}.python",
            remedy=_COMMAND.format(recipe.name),
        )
    if site.container.runtime == "none" and inputs.python and not shutil.which(inputs.python):
        yield Finding(
            f"python of {recipe.name}",
            "fail",
            f"This machine has no program {inputs.python} that it could run.",
            "Name the interpreter that the ranks use with --python or in the site.toml. If only "
            "the nodes have it, give --force.",
            f"site.toml: frameworks.{recipe.name}.python",
        )


def _lacks(recipe: Recipe, kind: str, path: str) -> Finding:
    return Finding(
        f"{kind} of {recipe.name}",
        "fail",
        f"There is no {path} here.",
        _PREPARE.format(recipe.name),
        f"site.toml: frameworks.{recipe.name}.{kind}",
        remedy=_COMMAND.format(recipe.name),
    )
