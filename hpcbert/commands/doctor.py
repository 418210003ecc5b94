"""Check that this machine, and nodes, can do what the site says.

Nodes are examined by one job with the script of a submission, except that each rank runs look.sh,
which first runs once per node. The job's output is read from its files below `runs`. If there are
none, the job's first node does not share that directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from hpcbert import scheduler
from hpcbert.campaign.repeats import open_campaign
from hpcbert.commands import checks
from hpcbert.commands.submit import cancel, submit_pending
from hpcbert.config import places, recipe, trust
from hpcbert.config.recipe import Recipe
from hpcbert.config.site import Site
from hpcbert.container import runtimes
from hpcbert.errors import HpcbertError, Interruption, SchedulerError
from hpcbert.finding import Finding
from hpcbert.logs import grammar
from hpcbert.model import Shape
from hpcbert.scheduler.base import Scheduler, SchedulerContext
from hpcbert.scheduler.slurm.examine import find_failed_prologs
from hpcbert.script.draft import Draft, Submitter, draft
from hpcbert.script.materials import find_image, find_inputs, site_data_options
from hpcbert.script.plan import Request, choose_device, plan
from hpcbert.script.resolve import Examination, SubmitOptions
from hpcbert.slurm.hostlist import fold
from hpcbert.slurm.inventory import choose_mpi
from hpcbert.slurm.reasons import never_starts
from hpcbert.slurm.states import RepeatState
from hpcbert.system.runner import Runner, defer_interrupts
from hpcbert.timelimit import TimeLimit

# If one of these fails, no job is submitted.
_SUBMISSION_CHECKS = ("sbatch", "slurmctld", "sbatch --test-only", "limits")
# The framework to examine by default: the reference, which has one rank per GPU.
_DEFAULT_FRAMEWORK = "pytorch"
# Time limit of the job: short enough to start in a gap.
_JOB_LIMIT = TimeLimit.parse("00:10:00")
# Interfaces of srun that MPI libraries are usually built for.
_USUAL_MPI = ("pmix", "pmi2")
# What Slurm says of a job that a node could not start.
_LAUNCH = re.compile(r"launch|prolog|requeued|JobHeldAdmin|BeginTime", re.IGNORECASE)
# Options of srun that give a rank only a part of its node's GPUs.
_SPLIT_OPTIONS = ("--gpus-per-task", "--gpu-bind")
# Seconds between two looks, and seconds until a job's output appears here.
_POLL_SECONDS, _OUTPUT_SECONDS = 0.5, 20.0


@dataclass(frozen=True)
class Visit:
    """A visit to nodes from inside a job; its start is waited for, `patience` in seconds."""

    shape: Shape
    patience: float
    submitter: Submitter


def examine(
    site: Site, *, run: Runner, frameworks: Sequence[str] = (), visit: Visit | None = None
) -> Iterator[Finding]:
    """Yield the findings for a site, the cheap checks first.

    Args:
        visit: A visit to nodes; None: check this machine only.

    Raises:
        UsageError: A framework does not exist.
    """
    site_file = Path(site.where)
    named_site = site_file if site.named else None
    trust.refuse_untrusted([site_file], trust.command_line_entries(named_site))
    folders = places.recipe_folders(site_file)
    recipes = [recipe.load(places.find_recipe(name, folders)) for name in frameworks]
    device_recipes = [entry.for_device(choose_device(entry, site, "")) for entry in recipes]
    yield Finding("site", "ok", site.where)
    for error in checks.check_settings(site):
        yield Finding("site", "fail", str(error), error.hint)
    yield from checks.check_start_file(os.environ, run=run)
    yield _check_runs(site)
    for name, folder in places.list_recipes(folders).items():
        finding = Finding(f"recipe {name}", "ok", str(folder))
        try:
            grammar.parse(recipe.load(folder).log, where=f"{folder}/recipe.toml")
        except HpcbertError as parse_error:
            finding = Finding(f"recipe {name}", "fail", str(parse_error), parse_error.hint)
        yield finding
    for framework in device_recipes:
        inputs = find_inputs(site, framework, site_data_options(site, framework))
        missing_parts = (
            *checks.find_unnamed_inputs(site, framework, inputs),
            *checks.find_framework_obstacles(site, framework, inputs),
        )
        nothing_missing = Finding(f"what {framework.name} needs", "ok", "all of it is here")
        yield from missing_parts or (nothing_missing,)
    backend = scheduler.create_scheduler(site.scheduler, SchedulerContext(run))
    scheduler_findings = tuple(backend.examine(site, nodes=visit.shape.nodes if visit else 1))
    yield from scheduler_findings
    yield from checks.check_containers(site, device_recipes, run=run)
    failures = [finding.name for finding in scheduler_findings if finding.status == "fail"]
    obstacles = [name for name in failures if name in _SUBMISSION_CHECKS]
    if visit and obstacles:
        yield checks.make_finding("not-tried", check=obstacles[0])
    elif visit:
        yield from examine_nodes(site, recipes, visit, run=run)


def _check_runs(site: Site) -> Finding:
    runs = Path(site.runs)
    existing = next(path for path in (runs, *runs.parents) if os.access(path, os.F_OK))
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return Finding("runs directory", "ok", str(runs))
    detail = f"{existing} is not writable"
    detail += f", so {runs} can't be created" if existing != runs else ""
    return _refuse_runs(site, "runs directory", detail)


def _refuse_runs(site: Site, name: str, detail: str) -> Finding:
    remedy = "--runs ~/runs" if _is_home_usable(site) else ""
    return checks.make_finding("runs", check=name, detail=detail, remedy=remedy)


def _is_home_usable(site: Site) -> bool:
    """Return whether runs may go to the home directory: it exists, and they are not there yet."""
    home = Path("~").expanduser()
    is_there = os.access(home, os.F_OK)
    return "HOME" not in site.env and is_there and not Path(site.runs).is_relative_to(home)


# --- On nodes, by a job ---------------------------------------------------------------------------


def examine_nodes(
    site: Site, recipes: Sequence[Recipe], visit: Visit, *, run: Runner
) -> Iterator[Finding]:
    """Yield what a job on some nodes finds about everything that a run needs.

    Args:
        recipes: Frameworks to check interpreters and files of; the ranks are the first one's.
    """
    runs = Path(site.runs)
    try:
        runs.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=runs, prefix=".doctor-"))
    except OSError as error:
        yield _refuse_runs(site, "runs (nodes)", f"{runs}: {error.strerror}")
        return
    limit = site.slurm.time_limit if _JOB_LIMIT.exceeds(site.slurm.time_limit) else _JOB_LIMIT
    job_site = replace(site, runs=str(folder), slurm=replace(site.slurm, time_limit=limit))
    try:
        has_image = recipes and find_image(site, recipes[0])[0]
        if site.container.runtime != "none" and not has_image:
            yield checks.make_finding("not-entered")
            job_site = replace(job_site, container=replace(site.container, runtime="none"))
        backend = scheduler.create_scheduler(site.scheduler, SchedulerContext(run))
        job = _draft_job(site, job_site, recipes, visit, backend)
        yield from _submit(site, job, visit, backend, [framework.name for framework in recipes])
    except Interruption:
        raise
    except SchedulerError as error:
        yield checks.make_finding("refused", error=error)
    except HpcbertError as error:
        yield Finding("job", "fail", error.message, error.hint)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _draft_job(
    site: Site, job_site: Site, recipes: Sequence[Recipe], visit: Visit, backend: Scheduler
) -> Draft:
    """Draft the job: the repeat that a submission would run first."""
    folders = places.recipe_folders(Path(site.where))
    default_recipe = recipe.load(places.find_recipe(_DEFAULT_FRAMEWORK, folders))
    # Without a framework, what the site's kind of MPI can do matters.
    mpi = (site.slurm.mpi,) if site.slurm.mpi else default_recipe.mpi
    first_recipe = recipes[0] if recipes else replace(default_recipe, modules=(), mpi=mpi)
    device = choose_device(first_recipe, job_site, "" if recipes or site.slurm.gres else "cpu")
    imports: dict[tuple[str, ...], None] = {}
    words = [site.runs, job_site.nodes.interface]
    device_recipes = [entry.for_device(choose_device(entry, job_site, "")) for entry in recipes]
    for framework in device_recipes:
        inputs = find_inputs(job_site, framework, site_data_options(job_site, framework))
        imports["--import", inputs.python or "python3", ",".join(framework.modules)] = None
        for path in filter(None, (inputs.data, inputs.source)):
            words += ["--path", path]
    if site.container.runtime == "none":
        words += chain.from_iterable(imports)
    examination = Examination(tuple(words), checks.probe_words(site, device_recipes))
    options = SubmitOptions(scheduler=site.scheduler, folders=folders, examine=examination)
    options = backend.fit(options, job_site, first_recipe)
    request = Request(visit.shape, repeats=1, device=device)
    job_plan = plan(first_recipe, job_site, request)
    return draft(job_plan, options=options, submitter=visit.submitter)


def _submit(
    site: Site, job: Draft, visit: Visit, backend: Scheduler, frameworks: Sequence[str]
) -> Iterator[Finding]:
    """Submit the job, wait for its end and yield its findings."""
    state = None
    with defer_interrupts() as patience:
        try:
            submit_pending(
                job.directory,
                run=backend.context.run,
                floor=site.slurm.poll_floor,
                draft=job,
                resume_command="hpcbert doctor",
            )
            state = _wait(job.directory, visit.patience, backend, patience.pausing(time.sleep))
        finally:
            if state is None or not state.kind.over:
                _cancel(job.directory, backend)
    if state is None:
        yield checks.make_finding("not-ended", seconds=visit.patience)
    elif not state.kind.over:
        finding = checks.make_finding(
            "not-started", state=state, reason=state.detail or state.reason
        )
        yield from _find_failed_launch(state, backend) or (finding,)
    else:
        resolved, srun_args = job.resolved, site.slurm.srun_args
        mpi = choose_mpi(resolved.recipe.mpi or _USUAL_MPI, resolved.options.mpi)
        words = [word for word in srun_args if not word.startswith(_SPLIT_OPTIONS)]
        values = {
            "fw": " --fw ".join(frameworks),
            "mpi": mpi if mpi != resolved.mpi else "",
            "srun_args": json.dumps(words) if len(words) < len(srun_args) else "",
        }
        yield from _read_job(site, job, state, values, backend)


def _wait(
    directory: Path, patience: float, backend: Scheduler, pause: Callable[[float], None]
) -> RepeatState | None:
    """Wait for a job's end; return its state, even if it still waits; None: it still runs."""
    start = time.monotonic()
    while True:
        (state,) = backend.states(open_campaign(directory)).values()
        seconds = time.monotonic() - start
        is_stuck = state.kind.queued and (never_starts(state.reason) or seconds > patience)
        if state.kind.over or is_stuck:
            return state
        if seconds > patience + _JOB_LIMIT.bound:
            return None
        pause(_POLL_SECONDS)


def _cancel(directory: Path, backend: Scheduler) -> None:
    """Cancel a job, even if its submission was interrupted."""
    with contextlib.suppress(HpcbertError):
        tracked = backend.adopt_jobs(open_campaign(directory))
        cancel(tracked, backend.living_jobs(tracked), run=backend.context.run)


def _read_job(
    site: Site, job: Draft, state: RepeatState, values: dict[str, str], backend: Scheduler
) -> Iterator[Finding]:
    """Yield the findings of an ended job."""
    node_count = job.resolved.request.shape.nodes
    output = _read_output(job.directory, wait=state.word == "COMPLETED")
    lines = checks.find_error_lines(output)
    node_range = fold(state.nodes) if state.nodes else "no node"
    if not checks.read_rows(output):
        failed_launch = _find_failed_launch(state, backend)
        if failed_launch or not lines:
            yield from failed_launch or [_explain_silence(site, job.directory, state, node_range)]
            return
    yield from checks.find_problems(output, values, has_home=_is_home_usable(site))
    yield from checks.find_missing_nodes(output, node_count, lines[-1] if lines else "")
    yield from checks.find_missing_ranks(output, state.nodes, job.campaign.runtime)
    if state.word == "COMPLETED" and not lines:
        detail = f"the script of a submission ran on {node_range}"
        yield Finding("job", "ok", detail, nodes=state.nodes)
        return
    symptom = runtimes.find_symptom(output)
    hint = "The findings above say why; else see what it says." if lines else "Look at `sinfo`."
    yield checks.make_finding(
        "job",
        status="fail" if state.word != "COMPLETED" else "warn",
        word=state.word,
        nodes=node_range,
        reason=lines[0] if lines else state.detail or "it says nothing",
        hint=symptom.hint if symptom else hint,
        on_nodes=state.nodes,
    )


def _explain_silence(site: Site, directory: Path, state: RepeatState, nodes: str) -> Finding:
    """Say why an ended job printed nothing: bash never got to its script, or it wrote elsewhere."""
    start_file = os.environ.get("BASH_ENV", "")
    # Slurm makes the file of a job's output before bash starts.
    if start_file and any((directory / "slurm").glob("*.out")):
        return checks.make_finding("start-file", path=start_file, ending=f"on {nodes}")
    detail = f"{state.word} on {nodes}, and {site.runs} has no output of it here: "
    return _refuse_runs(site, "runs (nodes)", f"{detail}nothing else was checked on its nodes")


def _find_failed_launch(state: RepeatState, backend: Scheduler) -> tuple[Finding, ...]:
    """Return the nodes whose prolog kept a job from starting; none if something else did."""
    if not _LAUNCH.search(f"{state.word} {state.reason} {state.detail}"):
        return ()
    return tuple(find_failed_prologs(backend.context))


def _read_output(directory: Path, *, wait: bool) -> str:
    """Return a job's whole output; wait for what a file system shows late."""
    start = time.monotonic()
    while True:
        paths = [*(directory / "slurm").glob("*.out"), *sorted((directory / "logs").rglob("*.log"))]
        output = "\n".join(path.read_text(errors="replace") for path in paths)
        if not wait or checks.read_rows(output) or time.monotonic() - start > _OUTPUT_SECONDS:
            return output
        time.sleep(_POLL_SECONDS)
