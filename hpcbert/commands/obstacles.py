"""Obstacles that would keep a job from running, if they can be found before it is submitted.

A job that can't start waits forever, or fails five times; each of these is seen from the login
node in a moment. What only the nodes know, `hpcbert doctor --nodes N` asks them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hpcbert import scheduler
from hpcbert.commands.checks import OLD_PYXIS, SRUN_HELP, check_pyxis, check_start_file
from hpcbert.config.recipe import Recipe
from hpcbert.config.site import Site
from hpcbert.config.slurm_arguments import argument_value
from hpcbert.finding import Finding
from hpcbert.model import OptionValue
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.script.draft import Draft
from hpcbert.script.materials import Inputs, find_misfits, runs_in_environment
from hpcbert.script.resolve import Resolved, list_missing
from hpcbert.slurm.inventory import choose_mpi
from hpcbert.system import machine
from hpcbert.system.runner import Runner

# Prints the arguments that name no module, without importing the others.
_PRINT_MISSING = (
    "import importlib.util, sys; "
    "print(*(one for one in sys.argv[1:] if importlib.util.find_spec(one) is None))"
)
# Seconds; this check does not wait for a file server that hangs.
_QUERY_SECONDS = 20.0
_PREPARE_COMMAND = "hpcbert prepare --fw {}"
_PREPARE_HINT = f"Make it ready: {_PREPARE_COMMAND}. If only the nodes have it, give --force."


def find_submission_obstacles(draft: Draft, *, run: Runner) -> tuple[Finding, ...]:
    """Find what stands in the way of a campaign; what may do so has the status `warn`.

    Raises:
        UsageError: The scheduler can't read a request.
    """
    campaign = draft.campaign
    requests = [array.request for array in campaign.arrays]
    findings = scheduler.create_scheduler(campaign.scheduler, SchedulerContext(run)).obstacles(
        draft.directory, requests
    )
    # Finished before the wait for the interpreter.
    scheduler_findings = tuple(findings)
    obstacles: list[Finding] = []
    for resolved in draft.uses:
        obstacles += find_framework_obstacles(
            resolved.site,
            resolved.recipe,
            resolved.available_inputs,
            resolved.plan.options,
            rehearse=resolved.options.rehearse,
        )
    for resolved in draft.uses:
        obstacles += _find_mpi_obstacles(resolved)
        obstacles += _find_missing_modules(resolved, run)
    start_file = check_start_file(os.environ, run=run)
    return (*obstacles, *start_file, *_find_pyxis_obstacles(draft, run), *scheduler_findings)


def list_queries(draft: Draft) -> Iterator[Sequence[str]]:
    """Yield the commands that `find_submission_obstacles` will run, to start them ahead."""
    yield from filter(None, map(_module_query, draft.uses))
    if draft.campaign.runtime == "pyxis":
        yield SRUN_HELP


def _find_pyxis_obstacles(draft: Draft, run: Runner) -> Iterator[Finding]:
    """Yield options of pyxis that srun lacks, and images that every node would import."""
    if draft.campaign.runtime != "pyxis":
        return
    finding = check_pyxis(
        draft.resolved.site, [resolved.recipe for resolved in draft.uses], run=run
    )
    if finding.change == OLD_PYXIS:
        yield replace(finding, detail=f"{finding.detail}, which every job uses.")
    elif finding.status != "ok":
        # The nodes may have what this machine lacks.
        yield replace(finding, status="warn", detail=f"{finding.detail}.")
    images = {
        resolved.available_inputs.image: resolved.recipe.name for resolved in reversed(draft.uses)
    }
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


def _module_query(resolved: Resolved) -> list[str]:
    """Return the command that prints the modules an interpreter lacks; empty if none matters."""
    recipe, python = resolved.recipe, resolved.inputs.python
    inside = resolved.site.container.runtime != "none"
    if not recipe.modules or resolved.options.rehearse or inside:
        return []
    return [python, "-c", _PRINT_MISSING, *recipe.modules]


def _find_mpi_obstacles(resolved: Resolved) -> Iterator[Finding]:
    """Yield a finding if srun is known not to start ranks as the recipe or the site needs."""
    mpi_types, recipe = resolved.options.mpi, resolved.recipe
    if not mpi_types or not resolved.mpi or choose_mpi([resolved.mpi], mpi_types):
        return
    mpi = resolved.site.slurm.mpi or argument_value(resolved.site.slurm.srun_args, "mpi", "srun")
    text = f"The site names {mpi}" if mpi else f"{recipe.name} needs {' or '.join(recipe.mpi)}"
    yield Finding(
        "MPI",
        "fail",
        f"{text} to start its ranks, and srun on this cluster has {', '.join(mpi_types)}.",
        "Set slurm.mpi in the site.toml to one of these that the program's MPI speaks, or have the "
        "cluster's administrators install the plugin.",
        "site.toml: slurm.mpi",
    )


def _find_missing_modules(resolved: Resolved, run: Runner) -> Iterator[Finding]:
    """Yield a finding if the ranks' interpreter lacks modules; nothing if it can't be run.

    If ranks run on other machines, it is a warning: the interpreter there may have them.
    """
    recipe, python = resolved.recipe, resolved.inputs.python
    query = _module_query(resolved)
    if not query:
        return
    outcome = run(query, timeout=_QUERY_SECONDS)
    missing_modules = [
        module for module in recipe.modules if outcome.ok and module in outcome.stdout.split()
    ]
    if not missing_modules:
        return
    runs_here = resolved.scheduler.runs_locally
    problem = f"{python} has no module {' or '.join(missing_modules)} on this machine"
    consequence = "every run fails on nodes that lack it too"
    if runs_here:
        consequence = "every run would fail"
    key = f"frameworks.{recipe.name}.python"
    hint = f"Name an interpreter that has it: --python, or {key} in the site.toml."
    if "torch" in missing_modules:
        install_hint = machine.describe_torch_install(shutil.which(python) or python)
        hint += f" Or install it. {install_hint}"
    yield Finding(
        f"python of {recipe.name}",
        "fail" if runs_here else "warn",
        f"{problem}, which {recipe.name}'s ranks import: {consequence}.",
        hint,
        f"site.toml: {key}",
    )


def find_framework_obstacles(
    site: Site,
    recipe: Recipe,
    inputs: Inputs,
    options: Mapping[str, OptionValue] | None = None,
    *,
    rehearse: bool = False,
) -> Iterator[Finding]:
    """Yield findings about what a framework needs and this machine lacks.

    Args:
        options: The values of its options; None if not decided yet.
    """
    image = inputs.image
    if image and image.kind == "file" and not os.access(image.path, os.R_OK):
        yield _missing_finding(recipe, "image", image.path)
    if rehearse:
        return
    for kind, path in (("data", inputs.data), ("source", inputs.source)):
        if path and kind in recipe.needs and not os.access(path, os.F_OK):
            yield _missing_finding(recipe, kind, path)
    for misfit in (
        find_misfits(recipe, options, inputs.data) if inputs.data and options is not None else ()
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
            _PREPARE_HINT.format(recipe.name),
            f"site.toml: frameworks.{recipe.name}.python",
            remedy=_PREPARE_COMMAND.format(recipe.name),
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


def find_unnamed_inputs(site: Site, recipe: Recipe, inputs: Inputs) -> Iterator[Finding]:
    """Yield a finding for each input that ranks need and nothing names; submit refuses those."""
    for kind in list_missing(site, recipe, inputs):
        if kind != "python":  # find_framework_obstacles reports the environment that it is in.
            yield _missing_finding(recipe, kind)


def _missing_finding(recipe: Recipe, kind: str, path: str = "") -> Finding:
    return Finding(
        f"{kind} of {recipe.name}",
        "fail",
        f"There is no {path} here." if path else "It is needed, and the site names none.",
        _PREPARE_HINT.format(recipe.name),
        f"site.toml: frameworks.{recipe.name}.{kind}",
        remedy=_PREPARE_COMMAND.format(recipe.name),
    )
