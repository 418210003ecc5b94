"""Resolve: site, recipe and request decided once, into everything scripts and manifest need."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpcbert.config import places, trust
from hpcbert.config.recipe import Recipe, load
from hpcbert.config.schedulers import Traits, find_traits
from hpcbert.config.site import Site
from hpcbert.config.slurm_arguments import argument_value
from hpcbert.container import reference, runtimes
from hpcbert.errors import UsageError, refuse_ineffective
from hpcbert.model import Array, Device, Point
from hpcbert.script import materials
from hpcbert.script.materials import Inputs, runs_in_environment
from hpcbert.script.plan import MeasurementPlan, Request, choose_device, plan
from hpcbert.slurm.inventory import MOST_INDICES, choose_mpi
from hpcbert.timelimit import TimeLimit

# Directory of a script to submit by hand: the one in which sbatch is called.
BY_HAND = "."
_PACKAGE = Path(__file__).parent.parent
_WORKLOADS, _SHELL = _PACKAGE / "workloads", _PACKAGE / "shell"
# Files of every campaign: the library of its scripts, and what describes the nodes and samples the
# power of their GPUs.
_COMMON_FILES = ("job.bash", "watch.bash", "nodes.bash", "rank.bash", "describe.sh", "sample.sh")
# Further files of an examination's ranks and nodes, and of containers.
_EXAMINATION_FILES = ("examine.bash", "look.sh", "hello.py")
# Further file of a preflight.
PREFLIGHT = "preflight.bash"
_MISSING = "/path/to/"
# Percent of the median of all nodes: a node with less is far below the others. Half of a node's
# links, or one of two, is less; nodes of one kind differ by a few percent.
LEAST_PERCENT = 75
_LONGEST_PREFLIGHT = TimeLimit.parse("00:30:00")
# As large as the buckets in which frameworks reduce gradients, and a few of each.
_PREFLIGHT_SETTINGS = {"nccl-tests": {"min_bytes": "32M", "max_bytes": "256M"}}
# Ranks on the CPU see no GPU, even if the node has some.
_HIDDEN_GPUS = {"cpu": {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}}


@dataclass(frozen=True)
class Examination:
    """What a job inspects on its nodes, instead of training.

    Attributes:
        look: Arguments for look.sh.
        probe: Arguments for the container's probe.sh; none: it does not run.
    """

    look: tuple[str, ...]
    probe: tuple[str, ...]


@dataclass(frozen=True)
class SubmitOptions:
    """How to carry out a request, apart from what it measures.

    Attributes:
        named: Those of them that the command line names.
        rehearse: Whether ranks replay the sample log instead of training.
        examine: What ranks and nodes inspect instead; None for a measurement.
        stop_on_failure: Whether to hold a point back if the smallest shape of its curve failed.
        dry: Whether nothing will run, so that missing paths may stay open.
        mpi: The kinds of MPI that the cluster's srun has; none: unknown.
        shares_nodes: Whether the cluster lets others use nodes that jobs ask for alone.
        most_indices: Maximum repeats of one array: the cluster's MaxArraySize less one; None:
            there is no limit.
        preflight: Whether to measure the nodes' network first, and exclude slow nodes.
        chosen: The framework's image, data, source and interpreter, if options named them.
    """

    scheduler: str
    folders: tuple[Path, ...]
    named: tuple[Path, ...] = ()
    concurrent: int = 1
    concurrent_points: bool = False
    together: bool = False
    rehearse: bool = False
    examine: Examination | None = None
    stop_on_failure: bool = False
    dry: bool = False
    mpi: tuple[str, ...] = ()
    shares_nodes: bool = False
    most_indices: int | None = MOST_INDICES
    preflight: bool = False
    file: Path | None = None
    name: str = ""
    note: str = ""
    chosen: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Resolved:
    """A request at a site, decided: nothing below asks site or recipe again.

    Attributes:
        device: The device of the ranks; the recipe is adapted to it.
        available_inputs: The inputs of ranks, as site and `prepare` have them.
        inputs: The same for scripts: always with an interpreter, and in a dry run with a path to
            fill in for what was not found.
        mpi: The kind of MPI that srun starts ranks with; empty: the cluster's default.
        mounts: Container mounts in addition to the campaign's, `SRC:DST[:FLAGS]` each.
        missing: What ranks need but nothing names: `image`, `data`, `source`, `python`.
    """

    site: Site
    recipe: Recipe
    options: SubmitOptions
    scheduler: Traits
    device: Device
    plan: MeasurementPlan
    available_inputs: Inputs
    inputs: Inputs
    mpi: str
    mounts: tuple[str, ...]
    directory: str
    sources: Mapping[str, Path]
    warnings: tuple[str, ...]
    missing: tuple[str, ...] = ()

    @property
    def request(self) -> Request:
        """The request behind the plan."""
        return self.plan.request

    @property
    def by_hand(self) -> bool:
        """Whether its scripts are submitted by hand, each in any place."""
        return self.directory == BY_HAND

    @property
    def files(self) -> dict[str, str]:
        """The paths of the files in a job, by name."""
        folder = "scripts" if self.by_hand else f"{self.directory}/scripts"
        return {name: f"{folder}/{name}" for name in self.sources}


def resolve(
    measurement_plan: MeasurementPlan, options: SubmitOptions, directory: str = BY_HAND
) -> Resolved:
    """Decide everything that a plan leaves open.

    Args:
        directory: The campaign's; without one, scripts are submitted by hand.

    Raises:
        UsageError: Recipe, site and plan do not fit together; the hint says what to change. Or
            the user trusts neither site nor recipe.
    """
    scheduler = find_traits(options.scheduler)
    site, recipe = measurement_plan.site, measurement_plan.recipe
    sources = _list_sources(measurement_plan, options)
    recipe_files = sorted(path for path in Path(recipe.folder).iterdir() if path.is_file())
    paths = (Path(site.where), *recipe_files, *sources.values())
    trust.refuse_untrusted(paths, trusted_entries(site, options))
    _refuse_impossible(measurement_plan, options, directory)
    by_hand = directory == BY_HAND
    inputs = materials.find_inputs(site, recipe, measurement_plan.options, by_hand=by_hand)
    missing = list_missing(site, recipe, inputs)
    if "image" not in missing and (options.rehearse or options.examine):
        missing = ()
    keys = ", ".join(f"frameworks.{recipe.name}.{need}" for need in missing)
    if missing and not (options.dry or by_hand):
        raise _make_missing_error(measurement_plan, missing, keys)
    warnings: list[str] = []
    if missing:
        warnings.append(f"{site.where} does not set {keys}: the script shows {_MISSING}… instead.")
    mpi = _choose_mpi(site, recipe, options.mpi)
    has_other_mpi = recipe.mpi not in {(), ("none",)} and not mpi.startswith(recipe.mpi)
    if has_other_mpi and scheduler.srun and measurement_plan.request.shape.gpus > 1:
        warnings.append(
            f"{recipe.name} finds its ranks by {' or '.join(recipe.mpi)}, but {site.where} has "
            f"slurm.mpi = {mpi!r}: each rank may run alone."
        )
    script_inputs = _complete_inputs(site, recipe, scheduler, inputs, missing)
    return Resolved(
        site=site,
        recipe=recipe,
        options=options,
        scheduler=scheduler,
        device=measurement_plan.device,
        available_inputs=inputs,
        inputs=script_inputs,
        mpi=mpi,
        directory=directory,
        sources=sources,
        plan=measurement_plan,
        mounts=materials.list_mounts(site, script_inputs, directory),
        warnings=tuple(warnings),
        missing=missing,
    )


def _make_missing_error(
    measurement_plan: MeasurementPlan, missing: tuple[str, ...], keys: str
) -> UsageError:
    site, recipe, device = measurement_plan.site, measurement_plan.recipe, measurement_plan.device
    device_option = "" if device == choose_device(recipe, site, "") else f" --device {device}"
    return UsageError(
        f"{recipe.name} needs {' and '.join(missing)}, but site {site.name!r} names none.",
        where=site.where,
        hint=f"Make it ready: hpcbert prepare --fw {recipe.name}{device_option}; or set {keys} "
        f"there, or give {' '.join(f'--{need}' for need in missing)}. Without them, --rehearse "
        "runs everything but the training.",
    )


def _refuse_impossible(
    measurement_plan: MeasurementPlan, options: SubmitOptions, directory: str
) -> None:
    site = measurement_plan.site
    scheduler, nodes = find_traits(options.scheduler), measurement_plan.request.shape.nodes
    if site.container.runtime == "pyxis" and not scheduler.srun:
        message = f"pyxis belongs to srun, which the {scheduler.name} scheduler does not use."
        hint = 'Use container.runtime = "enroot" or "apptainer", or "none" on the host.'
        raise UsageError(message, where=site.where, hint=hint)
    if scheduler.runs_locally and nodes > 1:
        message = f"The {scheduler.name} scheduler has one node; you asked for {nodes}."
        hint = 'Set scheduler = "slurm" in the site.toml, or give --scheduler slurm.'
        raise UsageError(message, where=site.where, hint=hint)
    if "\\" in directory or not directory.isprintable():  # Slurm's patterns can't express it
        message = "The path of campaigns must not contain a backslash or a control character."
        raise UsageError(message, where=directory, hint="Choose another place with --runs.")
    # What leaves open which job finds a common batch size, or which size a table has.
    kinds = {point.is_common for point in measurement_plan.points if point.largest}
    if kinds and options.concurrent > 1:
        context = "with --batch-size max: the first repeat finds the size for all"
        raise refuse_ineffective("--concurrent-repeats", context)
    if kinds == {True, False}:
        message = "max and max-common may find the same size, and their rows would be in one table."
        raise UsageError(message, hint="Ask for one of them.")
    if kinds == {True} and options.concurrent_points:
        context = "with --batch-size max-common: the largest shape finds the size for all"
        raise refuse_ineffective("--concurrent-points", context)


def trusted_entries(site: Site, options: SubmitOptions) -> tuple[trust.TrustedPath, ...]:
    """Return the site.toml and folders of recipes that the command line names, as trusted."""
    return trust.command_line_entries(Path(site.where) if site.named else None, options.named)


def _choose_mpi(site: Site, recipe: Recipe, cluster_mpi: tuple[str, ...]) -> str:
    """Return the kind of MPI that starts the ranks.

    The site's choice comes first, in srun_args or mpi; else it is the first of the recipe's that
    the cluster has; if it has none of them, or that is unknown, the recipe's first.
    """
    site_mpi = argument_value(site.slurm.srun_args, "mpi", "srun") or site.slurm.mpi
    return site_mpi or choose_mpi(recipe.mpi, cluster_mpi) or next(iter(recipe.mpi), "")


def rank_variables(resolved: Resolved, point: Point) -> dict[str, str]:
    """Return the variables of every rank: the site's, the point's, then the recipe's, which win.

    On the CPU, ranks see no GPU.
    """
    recipe_variables = {**resolved.recipe.env, **_HIDDEN_GPUS.get(resolved.device, {})}
    return {**resolved.site.env, **dict(point.env), **recipe_variables}


def find_file(recipe: Recipe, name: str) -> Path:
    """Return a file that a recipe names: in its folder, else among hpcbert's own files.

    Raises:
        UsageError: It is in neither.
    """
    for folder in (Path(recipe.folder), _WORKLOADS, _SHELL):
        if (folder / name).is_file():
            return folder / name
    raise UsageError(f"The recipe's file {name!r} is missing.", where=recipe.folder)


def _list_sources(measurement_plan: MeasurementPlan, options: SubmitOptions) -> dict[str, Path]:
    site, recipe = measurement_plan.site, measurement_plan.recipe
    runtime = runtimes.RUNTIMES.get(site.container.runtime)
    needs = {
        (*recipe.files, *_COMMON_FILES): True,
        _EXAMINATION_FILES: options.examine is not None,
        ("bind.bash",): bool(site.nodes.cpus_per_gpu),
        ("largest.bash",): any(point.largest for point in measurement_plan.points),
        ("enough.bash",): measurement_plan.protocol.precision_of_median is not None,
        runtime.files if runtime else (): True,
        ("probe.sh",): options.examine is not None and bool(options.examine.probe),
    }
    launch = find_traits(options.scheduler).launch
    names = [name for files, is_needed in needs.items() if is_needed for name in files]
    return {**{name: find_file(recipe, name) for name in names}, launch.name: launch}


def list_missing(site: Site, recipe: Recipe, inputs: Inputs) -> tuple[str, ...]:
    """Return the inputs that ranks need and nothing names."""
    needs: list[str] = [need for need in recipe.needs if not getattr(inputs, need)]
    if runs_in_environment(site, recipe) and not inputs.python:
        needs.append("python")
    if site.container.runtime != "none" and not inputs.image:
        needs.append("image")
    return tuple(needs)


def _complete_inputs(
    site: Site, recipe: Recipe, scheduler: Traits, inputs: Inputs, missing: tuple[str, ...]
) -> Inputs:
    """Return the inputs with an interpreter, and with a path to fill in for what is missing."""
    paths = {need: f"{_MISSING}{recipe.name}/{need}" for need in missing}
    is_on_host = scheduler.runs_locally and site.container.runtime == "none"
    python = inputs.python or paths.get("python")
    return replace(
        inputs,
        image=reference.parse_reference(paths["image"]) if "image" in paths else inputs.image,
        data=paths.get("data", inputs.data),
        source=paths.get("source", inputs.source),
        python=python or (sys.executable if is_on_host else "python3"),
    )


# --- The job before all others that measures the nodes' network: its program, and its nodes -------


def resolve_preflight(resolved: Resolved) -> Resolved:
    """Choose the program that measures the nodes of a campaign before it.

    Raises:
        UsageError: There is nothing to compare, or the measuring program is not available.
    """
    if resolved.scheduler.runs_locally or resolved.scheduler.in_allocation:
        context = f"with {resolved.scheduler.label}, which does not choose nodes"
        raise refuse_ineffective("--preflight", context)
    shapes = [point.shape for point in resolved.plan.points]
    shape = max(shapes, key=lambda shape: (shape.nodes, shape.gpus_per_node))
    if shape.nodes == 1:
        message = "--preflight compares nodes, and every point has one node only."
        hint = "Leave --preflight out, or request more nodes with --nodes."
        raise UsageError(message, hint=hint)
    # Elsewhere, or if the run itself finds its device, the reference program measures.
    name = "nccl-tests" if resolved.device == "gpu" else "pytorch"
    network_recipe = load(places.find_recipe(name, resolved.options.folders))
    request = Request(
        shape=shape,
        device=resolved.device,
        repeats=1,
        iters=12,
        skip=2,
        settings=_PREFLIGHT_SETTINGS.get(name, {}),
    )
    slurm = resolved.site.slurm
    limit = _LONGEST_PREFLIGHT if slurm.time_limit.exceeds(_LONGEST_PREFLIGHT) else slurm.time_limit
    site = replace(resolved.site, slurm=replace(slurm, time_limit=limit))
    network_plan = resolve(
        plan(network_recipe, site, request),
        replace(resolved.options, together=True, rehearse=False),
        resolved.directory,
    )
    return replace(
        network_plan,
        sources={**network_plan.sources, PREFLIGHT: find_file(network_recipe, PREFLIGHT)},
    )


def make_preflight_array(network_plan: Resolved) -> Array:
    """Return the job that measures, still without a script's digest."""
    (planned_point,) = network_plan.plan.points
    # No point of the campaign has this name.
    point = replace(planned_point, model="preflight", options=(), protocol="")
    return Array(
        point=point,
        name=f"pre{point.shape}-hpcbert-{Path(network_plan.directory).name}-preflight",
        repeats=(1,),
        script="scripts/preflight.sbatch",
        script_sha256="",
        log="slurm/preflight_{repeat}.log",
        together=True,
        preflight=True,
        cluster=argument_value(network_plan.site.slurm.sbatch_args, "clusters"),
    )
