"""Checks of a site: its settings, nodes and containers, and what would keep a job from running.

Nodes answer in rows that look.sh, hello.py and probe.sh print: node, check, status and detail,
between tabs. `findings.toml` has the advice for each check. A job that can't start waits forever,
or fails five times; what the login node sees of that is found before the submission.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpcbert import finding, scheduler
from hpcbert.config import places, toml
from hpcbert.config.recipe import Recipe
from hpcbert.config.recipe import load as load_recipe
from hpcbert.config.schedulers import find_traits
from hpcbert.config.site import Site
from hpcbert.config.slurm_arguments import argument_value
from hpcbert.container import cache, runtimes
from hpcbert.container.reference import Image
from hpcbert.errors import ConfigError, HpcbertError, UsageError
from hpcbert.finding import Finding
from hpcbert.model import OptionValue
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.script.materials import (
    Inputs,
    find_data_path,
    find_image,
    find_misfits,
    runs_in_environment,
    site_data_options,
)
from hpcbert.script.plan import choose_device, read_options
from hpcbert.script.resolve import Resolved, list_missing
from hpcbert.slurm.hostlist import expand, fold
from hpcbert.slurm.inventory import choose_mpi
from hpcbert.system import machine
from hpcbert.system.decode import did_you_mean
from hpcbert.system.runner import Runner

if TYPE_CHECKING:
    from hpcbert.script.draft import Draft

_TABLE = Path(__file__).with_name("findings.toml")
make_finding = functools.partial(finding.make_finding, Path(__file__).with_name("obstacles.toml"))
_STATUSES = ("ok", "warn", "fail")
_FIELDS = 4
# look.sh ends a detail like this if another interface would do.
_INTERFACES = re.compile(r"; there are: (\S+)")
# Error lines of a job's script, of srun and of Slurm's daemon on a node.
_ERROR_LINE = re.compile(r"(?:hpcbert: |\S+: error: |slurmstepd[\w.-]*: |srun: .*\boption\b).*")
_HARMLESS_LINE = re.compile(
    r"hpcbert: repeat \d+ attempt \d+ on |slurmstepd\S* error: couldn't chdir"
)
_MOST_ERROR_LINES = 5
_HOME = "~/"
# What differs between nodes or ranks with one cause: a rank's number, and measured numbers.
_VARYING = re.compile(r"(?<=^rank )\d+|\b\d+(?= (?:s|KiB|MiB|files)\b)")
# The first rank's row about ranks whose own rows have the cause.
_ECHO = "rank 0 hears nothing"
# What a script prints that bash gets to.
_REACHED = "hpcbert reached"
_PROBE = Path(__file__).parent.parent / "shell" / "probe.sh"
# srun lists the options of its plugins too.
SRUN_HELP = ("srun", "--help")
_HELP_SECONDS = 30.0
_NO_PROGRAM = 127
# What changes if srun's pyxis lacks an option.
OLD_PYXIS = "package pyxis"
# Seconds that a step on the nodes may wait and run.
_PROBE_SECONDS = 300.0
_DIGEST_SECONDS = 60.0
_LOGIN_SYMPTOMS = ("unauthorized", "wrong-password", "too-many-requests")
# What only jobs need: a login node may be without.
_JOBS_ONLY = (
    *("user-namespaces", "squashfs-tools", "enroot", "apptainer", "directories", "scratch", "temp"),
    "data",
)

# Prints the arguments that name no module, without importing the others.
_PRINT_MISSING = (
    "import importlib.util, sys; "
    "print(*(one for one in sys.argv[1:] if importlib.util.find_spec(one) is None))"
)
# Seconds; this check does not wait for a file server that hangs.
_QUERY_SECONDS = 20.0


# --- Settings -------------------------------------------------------------------------------------


def check_settings(site: Site) -> Iterator[ConfigError]:
    """Yield invalid settings of a site: each would stop a submission, or be ignored.

    A command checks for itself what only it needs: the form of an image, a path.
    """
    folders = places.recipe_folders(Path(site.where))
    for name, settings in site.frameworks.items():
        key = f"{site.where}: frameworks.{name}"
        try:
            framework = load_recipe(places.find_recipe(name, folders))
        except UsageError as error:
            yield ConfigError(error.message, where=error.where or key, hint=error.hint)
            continue
        if settings.model and settings.model not in framework.models:
            hint = did_you_mean(settings.model, framework.models)
            message = f"{name} has no model {settings.model!r}."
            yield ConfigError(message, where=f"{key}.model", hint=hint)
        for precision in settings.batch_sizes:
            if precision not in framework.precisions:
                hint = did_you_mean(precision, framework.precisions)
                message = f"{name} does not run in {precision}."
                yield ConfigError(message, where=f"{key}.batch_sizes", hint=hint)
        yield from _catch_refusal(f"{key}.device", choose_device, framework, site, "")
        yield from _catch_refusal(f"{key}.options", read_options, framework, site, {})
    for text in site.container.mounts:
        key = f"{site.where}: container.mounts"
        yield from _catch_refusal(key, runtimes.parse_mount, text)


def _catch_refusal(
    key: str, read: Callable[..., object], *arguments: object
) -> Iterator[ConfigError]:
    try:
        read(*arguments)
    except UsageError as error:
        yield ConfigError(error.message, where=key, hint=error.hint)


# --- Rows from nodes ------------------------------------------------------------------------------


@dataclass(frozen=True)
class NodeCheck:
    """One check of nodes or ranks.

    Attributes:
        change: Name of the setting, package or file to change.
        remedy: What to type; names in braces are to be filled in.
        asks: The question, for the page.
    """

    hint: str
    change: str = ""
    remedy: str = ""
    asks: str = ""

    def remedy_for(self, detail: str, values: Mapping[str, str]) -> str:
        """Fill in the remedy for a problem; empty if a name in braces has no value."""
        interface = _INTERFACES.search(detail)
        fillers = {name: value for name, value in values.items() if value}
        if interface:
            fillers["there"] = interface[1]
        try:
            return self.remedy.format_map(fillers)
        except KeyError:
            return ""


class NodeRow(NamedTuple):
    """What a check printed on one node; `status` is `ok`, `warn` or `fail`."""

    node: str
    name: str
    status: str
    detail: str


@functools.cache
def load_checks(kind: str) -> Mapping[str, NodeCheck]:
    """Return the checks of `nodes`, or of what `containers` need, by name."""
    return {name: NodeCheck(**values) for name, values in toml.read(_TABLE)[kind].items()}


def read_rows(output: str) -> tuple[NodeRow, ...]:
    """Return the rows in the output of a job; other lines are skipped."""
    rows = [line.split("\t") for line in output.splitlines()]
    return tuple(NodeRow(*row) for row in rows if len(row) == _FIELDS and row[2] in _STATUSES)


def make_container_finding(
    where: str, name: str, status: str, detail: str, nodes: tuple[str, ...] = ()
) -> Finding:
    """Return the finding of a check of probe.sh; advice on a known symptom comes first."""
    check = load_checks("containers").get(name)
    if check is None or status == "ok":
        return Finding(f"{name} ({where})", status, detail, nodes=nodes)
    symptom = runtimes.find_symptom(detail)
    hint = symptom.hint if symptom else check.hint
    return Finding(f"{name} ({where})", status, detail, hint, check.change, nodes)


def find_problems(
    output: str, values: Mapping[str, str], *, has_home: bool = True
) -> Iterator[Finding]:
    """Yield the findings of a job, one for all nodes and ranks that share a cause.

    Args:
        has_home: Whether the home directory may be the remedy, if the nodes have it.
    """
    rows = read_rows(output)
    has_home &= not any(row.name == "home" and row.status != "ok" for row in rows)
    bad_checks = {(row.node, row.name) for row in rows if row.status != "ok"}
    groups: dict[tuple[str, str, str], list[NodeRow]] = {}
    causes = [row for row in rows if not row.detail.startswith(_ECHO)]
    has_cause = any(row.name == "hello" and row.status != "ok" for row in causes)
    for row in causes if has_cause else rows:
        # One good rank does not hide a bad one of its node.
        if row.status != "ok" or (row.node, row.name) not in bad_checks:
            cause = row.name, row.status, _VARYING.sub("#", row.detail)
            groups.setdefault(cause, []).append(row)
    all_nodes = {row.node for row in rows}
    for (name, status, _), group in groups.items():
        nodes = tuple(expand(fold(tuple(dict.fromkeys(row.node for row in group)))))  # in order
        where, detail = fold(nodes), group[0].detail
        if others := len({row.detail for row in group}) - 1:
            detail += f" (and {others} like it)"
        check = load_checks("nodes").get(name)
        if check is None or status == "ok":
            yield make_container_finding(where, name, status, detail, nodes)
            continue
        remedy = check.remedy_for(detail, values)
        if _HOME in remedy and not has_home:
            remedy = ""
        if not remedy and set(nodes) < all_nodes:
            remedy = f"--exclude {','.join(nodes)}"
        yield Finding(f"{name} ({where})", status, detail, check.hint, check.change, nodes, remedy)


def check_start_file(environ: Mapping[str, str], *, run: Runner) -> Iterator[Finding]:
    """Yield a finding if bash does not get to a script, because of what it reads first."""
    path = environ.get("BASH_ENV", "")
    if not path:
        return
    outcome = run(["bash", "-c", f"echo {_REACHED}"], env=environ, timeout=_HELP_SECONDS)
    if outcome.returncode != _NO_PROGRAM and _REACHED not in outcome.stdout:
        yield make_finding("start-file", path=path, ending=f"with status {outcome.returncode}")


def find_missing_nodes(output: str, node_count: int, complaint: str) -> Iterator[Finding]:
    """Yield a finding if fewer nodes answered than requested."""
    count = len({row.node for row in read_rows(output)})
    if count < node_count:
        remedy = f"--nodes {count}" if count else ""
        complaint = complaint or "no answer"
        yield make_finding(
            "missing-nodes", count=count, nodes=node_count, complaint=complaint, remedy=remedy
        )


def find_missing_ranks(output: str, nodes: Sequence[str], runtime: str) -> Iterator[Finding]:
    """Yield a finding if ranks did not start on nodes of a job, with the reason."""
    outside = tuple(node for node in nodes if f"hpcbert: {node}: not in the container" in output)
    started_nodes = {row.node for row in read_rows(output) if row.name == "ranks"}
    rankless_nodes = outside or tuple(node for node in nodes if node not in started_nodes)
    if not rankless_nodes:
        return
    kind, name = ("containers", "plugin") if runtime == "pyxis" else ("nodes", "ranks")
    check, symptom = load_checks(kind)[name], runtimes.find_symptom(output)
    hint = symptom.hint if symptom else check.hint
    detail = "; ".join(find_error_lines(output)) or "no rank started"
    heading = f"{name} ({fold(rankless_nodes)})"
    yield Finding(heading, "fail", detail, hint, check.change, rankless_nodes)


def find_error_lines(output: str) -> tuple[str, ...]:
    """Return error lines of a job's script, of srun and of Slurm's daemons, a few at most."""
    lines = [line for line in output.splitlines() if _ERROR_LINE.match(line)]
    return tuple(dict.fromkeys(line for line in lines if not _HARMLESS_LINE.match(line)))[
        :_MOST_ERROR_LINES
    ]


# --- Containers -----------------------------------------------------------------------------------


def check_containers(site: Site, recipes: Sequence[Recipe], *, run: Runner) -> Iterator[Finding]:
    """Yield findings about what containers need of this machine."""
    if site.container.runtime == "none":
        yield Finding("containers", "ok", "none: ranks run on the host")
        return
    if site.container.runtime == "pyxis":
        yield check_pyxis(site, recipes, run=run)
    images, problems = _find_images(site, recipes)
    yield from problems
    command = ["bash", str(_PROBE), *_probe_arguments(site, recipes, images)]
    outcome = run(command, timeout=_PROBE_SECONDS)
    optional_checks = () if find_traits(site.scheduler).runs_locally else _JOBS_ONLY
    for row in read_rows(outcome.stdout):
        status = "warn" if row.status == "fail" and row.name in optional_checks else row.status
        yield make_container_finding("here", row.name, status, row.detail)
    for image in images:
        if image.kind != "file" and runtimes.RUNTIMES[site.container.runtime].digest:
            yield _check_registry(image, site, run)


def check_pyxis(site: Site, recipes: Sequence[Recipe], *, run: Runner) -> Finding:
    """Check that srun here has every option of pyxis that the job scripts use.

    Args:
        recipes: What runs; the options of a usual recipe if empty.
    """
    cluster = argument_value(site.slurm.sbatch_args, "clusters")
    if cluster:
        return make_finding("pyxis-elsewhere", cluster=cluster)
    usage = run(SRUN_HELP, timeout=_HELP_SECONDS)
    if not usage.ok:
        lines = [line for line in usage.stderr.splitlines() if line.strip()]
        return make_finding("pyxis-unknown", complaint=lines[-1] if lines else "no output")
    container = site.container
    switches = {name: getattr(container, name) for name in ("home", "remap_root", "entrypoint")}
    flags: dict[str, None] = {}
    for writable in {framework.image.writable for framework in recipes} or {True}:
        flags |= dict.fromkeys(runtimes.pyxis_options(**switches, writable=writable))
    missing_flags = runtimes.missing_pyxis_options(usage.stdout, flags)
    if "container-image" in missing_flags:
        return make_finding("no-pyxis")
    if missing_flags:
        needed = runtimes.PYXIS_SINCE[missing_flags[-1]]
        return make_finding("old-pyxis", needed=needed, options=f"--{', --'.join(missing_flags)}")
    return Finding("pyxis", "ok", f"srun has --{', --'.join(flags)}")


def probe_words(site: Site, recipes: Sequence[Recipe]) -> tuple[str, ...]:
    """Return the arguments of probe.sh on the nodes; none where ranks run on the host."""
    if site.container.runtime == "none":
        return ()
    return tuple(_probe_arguments(site, recipes, _find_images(site, recipes)[0]))


def _find_images(
    site: Site, recipes: Sequence[Recipe]
) -> tuple[tuple[Image, ...], tuple[Finding, ...]]:
    """Return the frameworks' images, as prepared files if there are any, and the problems."""
    images, problems = [], []
    prefix = runtimes.RUNTIMES[site.container.runtime].prefix
    for framework in recipes:
        try:
            image, _ = find_image(site, framework)
        except HpcbertError as error:
            problems.append(make_finding("bad-image", recipe=framework.name, error=error))
            continue
        if image is None:
            problems.append(make_finding("no-image", recipe=framework.name))
            continue
        cached = cache.find_image(Path(site.container.images), image, prefix)
        images.append(replace(image, kind="file", path=cached.path) if cached else image)
    return tuple(dict.fromkeys(images)), tuple(problems)


def _probe_arguments(site: Site, recipes: Sequence[Recipe], images: Sequence[Image]) -> list[str]:
    runtime = runtimes.RUNTIMES[site.container.runtime]
    uses_runtime = runtime.enters_by_tool or find_traits(site.scheduler).srun
    arguments = [f"--{runtime.tool}"] if uses_runtime else []
    arguments += ["--scratch", site.container.scratch] if site.container.scratch else []
    arguments += ["--images", site.container.images]
    files = dict.fromkeys(image.path for image in images if image.kind == "file")
    folders = dict.fromkeys(
        find_data_path(site, framework, site_data_options(site, framework)) for framework in recipes
    )
    for flag, paths in (("--image", files), ("--data", folders)):
        for path in filter(None, paths):
            arguments += [flag, path]
    return arguments


def _check_registry(image: Image, site: Site, run: Runner) -> Finding:
    """Ask the registry for the image's digest, as the import would begin."""
    digest_command = runtimes.RUNTIMES[site.container.runtime].digest
    name = f"registry ({image.registry or image.kind})"
    outcome = run([*digest_command, image.uri], timeout=_DIGEST_SECONDS)
    if outcome.ok:
        return Finding(name, "ok", f"{image.name}:{image.tag or image.digest} is there")
    output = outcome.stdout + outcome.stderr
    if output.startswith("Usage: enroot"):
        return make_finding("registry-unknown", check=name, command=digest_command[1])
    lines = [line for line in output.splitlines() if line.strip()] or [""]
    symptom = runtimes.find_symptom(output)
    problem = symptom.problem if symptom else lines[-1]
    check = load_checks("containers")["registry"]
    change = check.change if symptom and symptom.name in _LOGIN_SYMPTOMS else ""
    hint = symptom.hint if symptom else check.hint
    return Finding(name, "warn", f"{image.uri}: {problem}", hint, change)


# --- Before a submission --------------------------------------------------------------------------


def find_submission_obstacles(draft: Draft, *, run: Runner) -> tuple[Finding, ...]:
    """Find what stands in the way of a campaign; what may do so has the status `warn`.

    Raises:
        UsageError: The scheduler can't read a request.
    """
    campaign = draft.campaign
    requests = [array.request for array in campaign.arrays]
    backend = scheduler.create_scheduler(campaign.scheduler, SchedulerContext(run))
    obstacles: list[Finding] = []
    for use in draft.uses:
        inputs, rehearse = use.available_inputs, use.options.rehearse
        obstacles += find_framework_obstacles(
            use.site, use.recipe, inputs, use.plan.options, rehearse=rehearse
        )
        obstacles += _find_mpi_obstacles(use)
        obstacles += _find_missing_modules(use, run)
    obstacles += check_start_file(os.environ, run=run)
    obstacles += _find_pyxis_obstacles(draft, run)
    obstacles += backend.obstacles(draft.directory, requests)
    return tuple(obstacles)


def _find_pyxis_obstacles(draft: Draft, run: Runner) -> Iterator[Finding]:
    """Yield options of pyxis that srun lacks, and images that every node would import."""
    if draft.campaign.runtime != "pyxis":
        return
    recipes = [resolved.recipe for resolved in draft.uses]
    finding = check_pyxis(draft.resolved.site, recipes, run=run)
    if finding.change == OLD_PYXIS:
        yield replace(finding, detail=f"{finding.detail}, which every job uses.")
    elif finding.status != "ok":
        # The nodes may have what this machine lacks.
        yield replace(finding, status="warn", detail=f"{finding.detail}.")
    images = {use.available_inputs.image: use.recipe.name for use in reversed(draft.uses)}
    for image, name in images.items():
        if image and image.kind != "file":
            yield make_finding("unprepared-image", recipe=name, uri=image.uri)


def _find_mpi_obstacles(resolved: Resolved) -> Iterator[Finding]:
    """Yield a finding if srun is known not to start ranks as the recipe or the site needs."""
    mpi_types, recipe = resolved.options.mpi, resolved.recipe
    if not mpi_types or not resolved.mpi or choose_mpi([resolved.mpi], mpi_types):
        return
    mpi = resolved.site.slurm.mpi or argument_value(resolved.site.slurm.srun_args, "mpi", "srun")
    needed = mpi or " or ".join(recipe.mpi)
    yield make_finding("mpi", recipe=recipe.name, needed=needed, types=", ".join(mpi_types))


def _find_missing_modules(resolved: Resolved, run: Runner) -> Iterator[Finding]:
    """Yield a finding if the ranks' interpreter lacks modules; nothing if it can't be run.

    If ranks run on other machines, it is a warning: the interpreter there may have them.
    """
    recipe, python = resolved.recipe, resolved.inputs.python
    is_on_host = resolved.site.container.runtime == "none"
    if resolved.options.rehearse or not is_on_host or not recipe.modules:
        return
    query = [python, "-c", _PRINT_MISSING, *recipe.modules]
    outcome = run(query, timeout=_QUERY_SECONDS, death_signal=None)
    modules = [name for name in recipe.modules if outcome.ok and name in outcome.stdout.split()]
    if not modules:
        return
    advice = machine.describe_torch_install(shutil.which(python) or python)
    yield make_finding(
        "no-module",
        recipe=recipe.name,
        python=python,
        modules=" or ".join(modules),
        status="fail" if resolved.scheduler.runs_locally else "warn",
        install=f" Or install it. {advice}" if "torch" in modules else "",
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
    image, name = inputs.image, recipe.name
    if image and image.kind == "file" and not os.access(image.path, os.R_OK):
        yield make_finding("absent", recipe=name, kind="image", path=image.path)
    if rehearse:
        return
    for kind, path in (("data", inputs.data), ("source", inputs.source)):
        if path and kind in recipe.needs and not os.access(path, os.F_OK):
            yield make_finding("absent", recipe=name, kind=kind, path=path)
    can_compare = inputs.data and options is not None
    for misfit in find_misfits(recipe, options or {}, inputs.data) if can_compare else ():
        yield make_finding("misfit", recipe=name, path=inputs.data, misfit=misfit)
    if runs_in_environment(site, recipe) and not inputs.python:
        yield make_finding("no-environment", recipe=name)
    if site.container.runtime == "none" and inputs.python and not shutil.which(inputs.python):
        yield make_finding("no-python", recipe=name, python=inputs.python)


def find_unnamed_inputs(site: Site, recipe: Recipe, inputs: Inputs) -> Iterator[Finding]:
    """Yield a finding for each input that ranks need and nothing names; submit refuses those."""
    for kind in list_missing(site, recipe, inputs):
        if kind != "python":  # find_framework_obstacles reports the environment that it is in.
            yield make_finding("unnamed", recipe=recipe.name, kind=kind)
