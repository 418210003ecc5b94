"""Examine nodes: one job, with the same script as a submission, that inspects each node.

The script differs only in this: each rank runs look.sh, which first runs once per node. The job's
output is read from its files below `runs`. If there is nothing to read, because one of the nodes
does not share that directory, a plain job step inspects again and answers over the network.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert import scheduler
from hpcbert.campaign import store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.checks import containers, nodes
from hpcbert.config import places, recipe
from hpcbert.errors import HpcbertError, Interruption, SchedulerError
from hpcbert.finding import Finding
from hpcbert.flows.submit import submit_pending
from hpcbert.scheduler.base import World
from hpcbert.script import inputs
from hpcbert.script.draft import draft
from hpcbert.script.plan import Request, device_of
from hpcbert.script.prepared import options_for_data
from hpcbert.script.render import looked
from hpcbert.script.resolve import Examination, SubmitOptions, find_file
from hpcbert.slurm.commands import submission_environment
from hpcbert.slurm.controller import fitting_mpi
from hpcbert.slurm.hostlist import fold
from hpcbert.slurm.reasons import never_starts
from hpcbert.system.patience import patient
from hpcbert.timelimit import TimeLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hpcbert.config.recipe import Recipe
    from hpcbert.config.site import Site
    from hpcbert.model import Shape
    from hpcbert.script.draft import Draft, Submitter
    from hpcbert.slurm.states import RepeatState
    from hpcbert.system.runner import Outcome, Runner

# The framework to examine by default: the reference, which has one rank per GPU.
_PLAIN = "pytorch"
# Time limit of the job: short enough to start in a gap.
_LIMIT = TimeLimit.parse("00:10:00")
# What MPI libraries are built for.
_USUAL = ("pmix", "pmi2")
# Options of srun that give a rank only a part of its node's GPUs.
_PARTING = ("--gpus-per-task", "--gpu-bind")
# Seconds between two looks, and seconds until a job's output appears here.
_PAUSE, _LATE = 0.5, 20.0
_STEP_SECONDS = 300.0


@dataclass(frozen=True)
class ExaminationJob:
    """The nodes and ranks to examine.

    Attributes:
        site: Where.
        recipes: Frameworks to check interpreters and files of; the ranks are the first one's.
        shape: Nodes, and GPUs of each.
        patience: Seconds to wait for the job to start.
        submitter: The submitter.
    """

    site: Site
    recipes: tuple[Recipe, ...]
    shape: Shape
    patience: float
    submitter: Submitter


def examine(check: ExaminationJob, *, run: Runner) -> Iterator[Finding]:
    """Yield what a job on some nodes finds about everything that a run needs.

    Args:
        check: What to examine.
        run: Starts Slurm's commands.
    """
    runs = Path(check.site.runs)
    try:
        runs.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=runs, prefix=".doctor-"))
    except OSError as error:
        hint = "Name a directory of yours that all nodes share."
        detail = f"{runs}: {error.strerror}"
        yield Finding("runs (nodes)", "fail", detail, hint, "site.toml: runs", (), "--runs ~/runs")
        return
    try:
        yield from _examined(check, folder, run)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _examined(check: ExaminationJob, folder: Path, run: Runner) -> Iterator[Finding]:
    asked = check.site.slurm.time_limit
    limit = asked if asked.seconds is not None and asked.seconds < _LIMIT.bound else _LIMIT
    site = replace(check.site, slurm=replace(check.site.slurm, time_limit=limit))
    first = check.recipes[0] if check.recipes else None
    in_image = site.container.runtime != "none"
    if in_image and (first is None or not _has_image(site, first)):
        hint = "Name a framework that has one: hpcbert doctor --fw NAME."
        yield Finding("image", "warn", "not entered: the framework names no image", hint)
        site = replace(site, container=replace(site.container, runtime="none"))
    try:
        made = _drafted(check, replace(site, runs=str(folder)), first, run)
        yield from _submitted(check, made, run)
    except Interruption:
        raise
    except SchedulerError as error:
        hint = "Every submission would end the same way; the findings above may say why."
        yield Finding("job", "fail", error.message, hint)
    except HpcbertError as error:
        yield Finding("job", "fail", error.message, error.hint)


def _has_image(site: Site, found: Recipe) -> bool:
    return inputs.find_image(site, found)[0] is not None


def _drafted(check: ExaminationJob, site: Site, first: Recipe | None, run: Runner) -> Draft:
    """Draft the job: the repeat that a submission would run first."""
    folders = places.recipe_folders(Path(site.where))
    chosen = first or replace(recipe.load(places.find_recipe(_PLAIN, folders)), modules=())
    device = device_of(chosen, site, "" if first or site.slurm.gres else "cpu")
    own = {one.name: one.for_device(device_of(one, site, "")) for one in check.recipes}
    used = {name: inputs.find(site, one, options_for_data(site, one)) for name, one in own.items()}
    on_host = check.site.container.runtime == "none"
    imports = tuple((used[name].python or "python3", one.modules) for name, one in own.items())
    wanted = Examination(
        runs=check.site.runs,
        imports=tuple(dict.fromkeys(imports)) if on_host else (),
        paths=tuple(path for one in used.values() for path in (one.data, one.source) if path),
        probe=containers.words(check.site, list(own.values())),
    )
    asked = SubmitOptions(scheduler=site.scheduler, folders=folders, examine=wanted)
    options = scheduler.of(site.scheduler, World(run)).fit(asked, site, chosen)
    request = Request(check.shape, repeats=1, device=device)
    return draft(request, site, chosen, options=options, submitter=check.submitter)


def _submitted(check: ExaminationJob, made: Draft, run: Runner) -> Iterator[Finding]:
    """Submit the job, wait for its end and yield its findings."""
    floor = check.site.slurm.poll_floor
    directory = made.directory
    state = None
    with patient() as patience:
        try:
            submit_pending(directory, run=run, floor=floor, draft=made, again="hpcbert doctor")
            state = _ended(directory, check.patience, run, patience.pausing(time.sleep))
        finally:
            if state is None or not state.kind.over:
                _cancelled(directory, run)
    if state is None:
        hint = "Try again when the cluster has room, with fewer --nodes or a longer --wait."
        detail = f"it did not end within {check.patience:g} s and was cancelled"
        yield Finding("job", "fail", detail, hint, "", (), "--nodes 1")
        return
    if not state.kind.over:
        detail = f"it did not start and was cancelled: {state.detail or state.reason}"
        yield Finding("job", "fail", detail, f"Slurm says {state.reason}: {state.advice}.")
        return
    yield from _told(check, made, state, run)


def _tracked(directory: Path) -> TrackedCampaign:
    return TrackedCampaign(directory, store.read_manifest(directory))


def _ended(
    directory: Path, patience: float, run: Runner, pause: Callable[[float], None]
) -> RepeatState | None:
    """Wait for a job's end; return its state, even if it still waits; None: it still runs."""
    begun = time.monotonic()
    while True:
        watched = _tracked(directory)
        (state,) = scheduler.of(watched.campaign.scheduler, World(run)).states(watched).values()
        waited = time.monotonic() - begun
        if state.kind.over or (
            state.kind.queued and (never_starts(state.reason) or waited > patience)
        ):
            return state
        if waited > patience + _LIMIT.bound:
            return None
        pause(_PAUSE)


def _cancelled(directory: Path, run: Runner) -> None:
    """Cancel a job, even if its submission was interrupted."""
    with contextlib.suppress(HpcbertError):
        watched = _tracked(directory)
        asked = scheduler.of(watched.campaign.scheduler, World(run))
        watched = asked.adopted(watched)
        target = asked.living_jobs(watched)
        if target.jobs:
            asked.cancel(watched, target)


def _told(check: ExaminationJob, made: Draft, state: RepeatState, run: Runner) -> Iterator[Finding]:
    """Yield what an ended job says, and what is known if it says nothing."""
    printed = _read(made.directory, wait=state.word == "COMPLETED")
    known = {"fw": " --fw ".join(one.name for one in check.recipes), "mpi": _mpi(made)}
    known["srun_args"] = _without_parting(check.site.slurm.srun_args)
    lines = nodes.complaints(printed)
    if not nodes.seen(printed):
        outcome = _step(check, made, run)
        printed += outcome.stdout
        lines += nodes.complaints(outcome.stderr)
    yield from nodes.found(printed, known)
    yield from nodes.silent(printed, check.shape.nodes, lines[-1] if lines else "")
    yield from nodes.outside(printed, state.nodes, made.campaign.runtime)
    there = fold(state.nodes) if state.nodes else "no node"
    if state.word == "COMPLETED" and not lines:
        yield Finding("job", "ok", f"the script of a submission ran on {there}", nodes=state.nodes)
        return
    said = lines[0] if lines else state.detail or "it says nothing"
    status = "fail" if state.word != "COMPLETED" else "warn"
    hint = nodes.explained(printed, lines)
    yield Finding("job", status, f"{state.word} on {there}: {said}", hint, "", state.nodes)


def _without_parting(words: tuple[str, ...]) -> str:
    """Return options of srun without those that divide a node's GPUs; empty if there are none."""
    kept = [one for one in words if not one.startswith(_PARTING)]
    return json.dumps(kept) if len(kept) < len(words) else ""


def _mpi(made: Draft) -> str:
    """Return the kind of MPI to advise: the recipe's best that srun has; empty: it is in use."""
    resolved = made.resolved
    better = fitting_mpi(resolved.recipe.mpi or _USUAL, resolved.options.mpi)
    return better if better != resolved.mpi else ""


def _read(directory: Path, *, wait: bool) -> str:
    """Return a job's whole output; wait for what a file system shows late."""
    begun = time.monotonic()
    while True:
        paths = [*(directory / "slurm").glob("*.out"), *sorted((directory / "logs").rglob("*.log"))]
        printed = "\n".join(path.read_text(errors="replace") for path in paths)
        if not wait or nodes.seen(printed) or time.monotonic() - begun > _LATE:
            return printed
        time.sleep(_PAUSE)


def _step(check: ExaminationJob, made: Draft, run: Runner) -> Outcome:
    """Inspect nodes with a plain job step, which answers over the network."""
    script = find_file(made.resolved.recipe, "look.sh")
    count = str(check.shape.nodes)
    return run(
        [
            *("srun", "--quiet", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"),
            *("--job-name=hpcbert-doctor", "--time=5", "--kill-on-bad-exit=0", "--mpi=none"),
            *check.site.slurm.selection,
            *["bash", "-c", script.read_text(), "look", "node", str(made.directory)],
            *looked(made.resolved),
        ],
        env=submission_environment(World(run).environ),
        cwd=Path("/"),
        timeout=_STEP_SECONDS,
    )
