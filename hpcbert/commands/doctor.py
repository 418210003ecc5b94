"""Check that this machine, and nodes, can do what the site says.

Nodes are examined by one job with the script of a submission, except that each rank runs look.sh,
which first runs once per node. The job's output is read from its files below `runs`. If there is
nothing to read, because one of the nodes does not share that directory, a plain job step inspects
again and answers over the network.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert import scheduler
from hpcbert.campaign import store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.commands import container_checks as containers
from hpcbert.commands import node_checks as nodes
from hpcbert.commands import obstacles
from hpcbert.commands.setting_checks import complaints
from hpcbert.commands.submit import submit_pending
from hpcbert.config import places, recipe, trust
from hpcbert.container import symptoms
from hpcbert.errors import HpcbertError, Interruption, SchedulerError
from hpcbert.finding import Finding
from hpcbert.logs import grammar
from hpcbert.model import Shape
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
    from collections.abc import Callable, Iterator, Sequence

    from hpcbert.config.recipe import Recipe
    from hpcbert.config.site import Site
    from hpcbert.script.draft import Draft, Submitter
    from hpcbert.slurm.states import RepeatState
    from hpcbert.system.runner import Outcome, Runner


# If one of these fails, no job is submitted, for this reason.
_NEEDED = {
    "sbatch": "Slurm does not answer",
    "slurmctld": "Slurm does not answer",
    "sbatch --test-only": "sbatch would refuse it",
    "limits": "it would never start",
}
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
class Visit:
    """A visit to nodes from inside a job.

    Attributes:
        shape: Nodes, and GPUs of each.
        patience: Seconds to wait for the job to start.
        submitter: The submitter.
    """

    shape: Shape
    patience: float
    submitter: Submitter


def examine(
    site: Site, *, run: Runner, frameworks: Sequence[str] = (), visit: Visit | None = None
) -> Iterator[Finding]:
    """Yield the findings for a site, the cheap checks first.

    Args:
        site: The site to check.
        run: Starts programs.
        frameworks: Names of frameworks to check images and data of.
        visit: A visit to nodes; None: check this machine only.

    Raises:
        UsageError: A framework does not exist.
    """
    where = Path(site.where)
    trust.refuse([where], trust.of_command_line(where if site.named else None))
    folders = places.recipe_folders(where)
    recipes = [recipe.load(places.find_recipe(name, folders)) for name in frameworks]
    adapted = [one.for_device(device_of(one, site, "")) for one in recipes]
    yield Finding("site", "ok", site.where)
    for error in complaints(site):
        yield Finding("site", "fail", str(error), error.hint)
    yield _runs(Path(site.runs))
    for name, folder in places.list_recipes(folders).items():
        yield _recipe(name, folder)
    for framework in adapted:
        used = inputs.find(site, framework, options_for_data(site, framework))
        lacking = tuple(obstacles.of_framework(site, framework, used))
        here = Finding(f"what {framework.name} needs", "ok", "all of it is here")
        yield from lacking or (here,)
    shape = visit.shape if visit else Shape(1, site.nodes.gpus_per_node)
    answered = tuple(scheduler.of(site.scheduler, World(run)).examine(site, nodes=shape.nodes))
    yield from answered
    yield from containers.examine(site, adapted, run=run)
    needed = [one for one in answered if one.name in _NEEDED]
    failed = [finding.name for finding in needed if finding.status == "fail"]
    if visit and failed:
        hint = "See the reason in the findings above; try again when it is fixed."
        yield Finding("job", "fail", f"not tried: {_NEEDED[failed[0]]}", hint)
    elif visit:
        yield from examine_nodes(site, recipes, visit, run=run)


def _runs(runs: Path) -> Finding:
    present = next(path for path in (runs, *runs.parents) if _exists(path))
    if present.is_dir() and os.access(present, os.W_OK | os.X_OK):
        return Finding("runs directory", "ok", str(runs))
    return Finding(
        "runs directory",
        "fail",
        f"{present} is not writable" + (f", so {runs} can't be" if present != runs else ""),
        "Set runs in the site.toml to a directory of yours that all nodes share.",
        "site.toml: runs",
        remedy="--runs ~/runs",
    )


def _exists(path: Path) -> bool:
    """Return whether a path exists, as far as this user may know."""
    try:
        path.stat()
    except OSError:
        return False
    return True


def _recipe(name: str, folder: Path) -> Finding:
    try:
        loaded = recipe.load(folder)
        grammar.parse(loaded.log, where=f"{folder}/recipe.toml")
    except HpcbertError as error:
        return Finding(f"recipe {name}", "fail", str(error), error.hint)
    return Finding(f"recipe {name}", "ok", str(folder))


# --- On nodes, by a job ---------------------------------------------------------------------------


def examine_nodes(
    site: Site, recipes: Sequence[Recipe], visit: Visit, *, run: Runner
) -> Iterator[Finding]:
    """Yield what a job on some nodes finds about everything that a run needs.

    Args:
        site: Where.
        recipes: Frameworks to check interpreters and files of; the ranks are the first one's.
        visit: The nodes.
        run: Starts Slurm's commands.
    """
    runs = Path(site.runs)
    try:
        runs.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=runs, prefix=".doctor-"))
    except OSError as error:
        hint = "Name a directory of yours that all nodes share."
        detail = f"{runs}: {error.strerror}"
        yield Finding("runs (nodes)", "fail", detail, hint, "site.toml: runs", (), "--runs ~/runs")
        return
    try:
        yield from _run_job(site, recipes, visit, folder, run)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_job(
    site: Site, recipes: Sequence[Recipe], visit: Visit, folder: Path, run: Runner
) -> Iterator[Finding]:
    limit = site.slurm.time_limit
    if limit.seconds is None or limit.seconds >= _LIMIT.bound:
        limit = _LIMIT
    inside = replace(site, runs=str(folder), slurm=replace(site.slurm, time_limit=limit))
    if site.container.runtime != "none" and not _has_image(site, recipes):
        hint = "Name a framework that has one: hpcbert doctor --fw NAME."
        yield Finding("image", "warn", "not entered: the framework names no image", hint)
        inside = replace(inside, container=replace(site.container, runtime="none"))
    try:
        job = _draft_job(site, inside, recipes, visit, run)
        yield from _submit(site, job, visit, run, [one.name for one in recipes])
    except Interruption:
        raise
    except SchedulerError as error:
        hint = "Every submission would end the same way; the findings above may say why."
        yield Finding("job", "fail", error.message, hint)
    except HpcbertError as error:
        yield Finding("job", "fail", error.message, error.hint)


def _has_image(site: Site, recipes: Sequence[Recipe]) -> bool:
    return bool(recipes) and inputs.find_image(site, recipes[0])[0] is not None


def _draft_job(
    site: Site, inside: Site, recipes: Sequence[Recipe], visit: Visit, run: Runner
) -> Draft:
    """Draft the job: the repeat that a submission would run first."""
    folders = places.recipe_folders(Path(site.where))
    plain = recipe.load(places.find_recipe(_PLAIN, folders))
    first = recipes[0] if recipes else replace(plain, modules=())
    device = device_of(first, inside, "" if recipes or site.slurm.gres else "cpu")
    adapted = [one.for_device(device_of(one, inside, "")) for one in recipes]
    used = [inputs.find(inside, one, options_for_data(inside, one)) for one in adapted]
    imports = [
        (use.python or "python3", one.modules) for use, one in zip(used, adapted, strict=True)
    ]
    examination = Examination(
        runs=site.runs,
        imports=tuple(dict.fromkeys(imports)) if site.container.runtime == "none" else (),
        paths=tuple(path for use in used for path in (use.data, use.source) if path),
        probe=containers.words(site, adapted),
    )
    options = SubmitOptions(scheduler=site.scheduler, folders=folders, examine=examination)
    options = scheduler.of(site.scheduler, World(run)).fit(options, inside, first)
    request = Request(visit.shape, repeats=1, device=device)
    return draft(request, inside, first, options=options, submitter=visit.submitter)


def _submit(
    site: Site, job: Draft, visit: Visit, run: Runner, frameworks: Sequence[str]
) -> Iterator[Finding]:
    """Submit the job, wait for its end and yield its findings."""
    state = None
    with patient() as patience:
        try:
            submit_pending(
                job.directory,
                run=run,
                floor=site.slurm.poll_floor,
                draft=job,
                again="hpcbert doctor",
            )
            state = _wait(job.directory, visit.patience, run, patience.pausing(time.sleep))
        finally:
            if state is None or not state.kind.over:
                _cancel(job.directory, run)
    if state is None:
        hint = "Try again when the cluster has room, with fewer --nodes or a longer --wait."
        detail = f"it did not end within {visit.patience:g} s and was cancelled"
        yield Finding("job", "fail", detail, hint, "", (), "--nodes 1")
    elif not state.kind.over:
        detail = f"it did not start and was cancelled: {state.detail or state.reason}"
        yield Finding("job", "fail", detail, f"Slurm says {state.reason}: {state.advice}.")
    else:
        values = {"fw": " --fw ".join(frameworks), "mpi": _better_mpi(job)}
        values["srun_args"] = _without_parting(site.slurm.srun_args)
        yield from _read_job(site, job, state, values, run)


def _tracked(directory: Path) -> TrackedCampaign:
    return TrackedCampaign(directory, store.read_manifest(directory))


def _wait(
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


def _cancel(directory: Path, run: Runner) -> None:
    """Cancel a job, even if its submission was interrupted."""
    with contextlib.suppress(HpcbertError):
        watched = _tracked(directory)
        asked = scheduler.of(watched.campaign.scheduler, World(run))
        watched = asked.adopted(watched)
        target = asked.living_jobs(watched)
        if target.jobs:
            asked.cancel(watched, target)


def _read_job(
    site: Site, job: Draft, state: RepeatState, values: dict[str, str], run: Runner
) -> Iterator[Finding]:
    """Yield the findings of an ended job, and what is known if it printed nothing."""
    count = job.resolved.request.shape.nodes
    printed = _read(job.directory, wait=state.word == "COMPLETED")
    lines = nodes.complaints(printed)
    if not nodes.read_nodes(printed):
        outcome = _step(site, job, count, run)
        printed += outcome.stdout
        lines += nodes.complaints(outcome.stderr)
    yield from nodes.findings(printed, values)
    yield from nodes.missing_nodes(printed, count, lines[-1] if lines else "")
    yield from nodes.missing_ranks(printed, state.nodes, job.campaign.runtime)
    where = fold(state.nodes) if state.nodes else "no node"
    if state.word == "COMPLETED" and not lines:
        detail = f"the script of a submission ran on {where}"
        yield Finding("job", "ok", detail, nodes=state.nodes)
        return
    reason = lines[0] if lines else state.detail or "it says nothing"
    status = "fail" if state.word != "COMPLETED" else "warn"
    symptom = symptoms.explain(printed)
    hint = "The findings above say why; else see what it says." if lines else "Look at `sinfo`."
    hint = symptom.hint if symptom else hint
    yield Finding("job", status, f"{state.word} on {where}: {reason}", hint, "", state.nodes)


def _without_parting(words: tuple[str, ...]) -> str:
    """Return options of srun without those that divide a node's GPUs; empty if there are none."""
    kept = [word for word in words if not word.startswith(_PARTING)]
    return json.dumps(kept) if len(kept) < len(words) else ""


def _better_mpi(job: Draft) -> str:
    """Return the kind of MPI to advise: the recipe's best that srun has; empty: it is in use."""
    resolved = job.resolved
    better = fitting_mpi(resolved.recipe.mpi or _USUAL, resolved.options.mpi)
    return better if better != resolved.mpi else ""


def _read(directory: Path, *, wait: bool) -> str:
    """Return a job's whole output; wait for what a file system shows late."""
    begun = time.monotonic()
    while True:
        paths = [*(directory / "slurm").glob("*.out"), *sorted((directory / "logs").rglob("*.log"))]
        printed = "\n".join(path.read_text(errors="replace") for path in paths)
        if not wait or nodes.read_nodes(printed) or time.monotonic() - begun > _LATE:
            return printed
        time.sleep(_PAUSE)


def _step(site: Site, job: Draft, nodes: int, run: Runner) -> Outcome:
    """Inspect nodes with a plain job step, which answers over the network."""
    script = find_file(job.resolved.recipe, "look.sh")
    return run(
        [
            *("srun", "--quiet", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"),
            *("--job-name=hpcbert-doctor", "--time=5", "--kill-on-bad-exit=0", "--mpi=none"),
            *site.slurm.selection,
            *["bash", "-c", script.read_text(), "look", "node", str(job.directory)],
            *looked(job.resolved),
        ],
        env=submission_environment(World(run).environ),
        cwd=Path("/"),
        timeout=_STEP_SECONDS,
    )
