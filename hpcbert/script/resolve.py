"""Resolve: site, recipe and request decided once, into everything scripts and manifest need."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert.campaign import store
from hpcbert.config import trust
from hpcbert.config.schedulers import traits
from hpcbert.config.slurmwords import given
from hpcbert.container import cache, reference, runtimes
from hpcbert.errors import UsageError
from hpcbert.script import inputs
from hpcbert.script.plan import MOST_INDICES, device_of, plan
from hpcbert.script.prepared import runs_in_environment
from hpcbert.slurm.controller import fitting_mpi

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcbert.config.recipe import Recipe
    from hpcbert.config.schedulers import Traits
    from hpcbert.config.site import Site
    from hpcbert.model import Device
    from hpcbert.script.inputs import Inputs
    from hpcbert.script.plan import MeasurementPlan, Request

# Directory of a script to submit by hand: the one in which sbatch is called.
BY_HAND = "."
_PACKAGE = Path(__file__).parent.parent
_WORKLOADS, _SHELL = _PACKAGE / "workloads", _PACKAGE / "shell"
# Files of every campaign: the library of its scripts, and what describes the nodes and samples the
# power of their GPUs.
_EVERY = ("job.bash", "watch.bash", "rank.bash", "describe.sh", "sample.sh")
# Further files of an examination's ranks and nodes, and of containers.
_EXAMINING = ("examine.bash", "look.sh", "hello.py")
# Further files of the scripts that bind ranks to CPUs, search for the largest batch, do not have a
# fixed number of repeats, or measure the nodes' network first.
_BIND, _LARGEST, _ENOUGH, PREFLIGHT = "bind.bash", "largest.bash", "enough.bash", "preflight.bash"
_MISSING = "/path/to/"


@dataclass(frozen=True)
class Examination:
    """What a job inspects on its nodes, instead of training.

    Attributes:
        runs: The directory that nodes should share.
        imports: Interpreters, and what each imports on the host.
        paths: Paths that nodes must have.
        probe: Arguments for the container's probe.sh; none: it does not run.
    """

    runs: str
    imports: tuple[tuple[str, tuple[str, ...]], ...] = ()
    paths: tuple[str, ...] = ()
    probe: tuple[str, ...] = ()


@dataclass(frozen=True)
class SubmitOptions:
    """How to carry out a request, apart from what it measures.

    Attributes:
        scheduler: Name of the scheduler of its jobs.
        folders: Folders of recipes and templates.
        named: Those of them that the command line names.
        concurrent: Number of repeats of a point that may run at the same time.
        concurrent_points: Whether points may run at the same time.
        together: Whether a point's repeats run in one job, on the same nodes.
        rehearse: Whether ranks replay the sample log instead of training.
        examine: What ranks and nodes inspect instead; None for a measurement.
        stop_on_failure: Whether to hold a point back if the smallest shape of its curve failed.
        dry: Whether nothing will run, so that missing paths may stay open.
        mpi: The kinds of MPI that the cluster's srun has; none: unknown.
        most_indices: Maximum repeats of one array: the cluster's MaxArraySize less one; None:
            there is no limit.
        preflight: Whether to measure the nodes' network first, and exclude slow nodes.
        file: The campaign.toml behind it; None for a command line.
        name, note: The user's name for it, and a note; may be empty.
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
    most_indices: int | None = MOST_INDICES
    preflight: bool = False
    file: Path | None = None
    name: str = ""
    note: str = ""


@dataclass(frozen=True)
class Resolved:
    """A request at a site, decided: nothing below asks site or recipe again.

    Attributes:
        request, site, recipe, options: The sources of the decisions.
        scheduler: The scheduler's properties; may differ from the site's in a dry run.
        device: The device of the ranks; the recipe is adapted to it.
        plan: What to measure: protocol, the recipe's options, points.
        found: The inputs of ranks, as site and `prepare` have them.
        inputs: The same for scripts: always with an interpreter, and in a dry run with a path to
            fill in for what was not found.
        mpi: The kind of MPI that srun starts ranks with; empty: the cluster's default.
        mounts: Container mounts in addition to the campaign's, `SRC:DST[:FLAGS]` each.
        directory: The campaign's, or `BY_HAND`.
        sources: The files that a job reads or runs, by name.
        warnings: What the user should know before running it.
        missing: What ranks need but nothing names: `image`, `data`, `source`, `python`.
    """

    request: Request
    site: Site
    recipe: Recipe
    options: SubmitOptions
    scheduler: Traits
    device: Device
    plan: MeasurementPlan
    found: Inputs
    inputs: Inputs
    mpi: str
    mounts: tuple[str, ...]
    directory: str
    sources: Mapping[str, Path]
    warnings: tuple[str, ...]
    missing: tuple[str, ...] = ()

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
    request: Request, site: Site, recipe: Recipe, options: SubmitOptions, directory: str = BY_HAND
) -> Resolved:
    """Decide everything that a request leaves open.

    Args:
        request: What to measure.
        site: Where it runs.
        recipe: What runs.
        options: How to carry it out.
        directory: The campaign's; without one, scripts are submitted by hand.

    Raises:
        UsageError: Recipe, site and request do not fit together; the hint says what to change. Or
            the user trusts neither site nor recipe.
    """
    sources = _sources(site, recipe, options)
    features = {name: _SHELL / name for name in (_BIND, _LARGEST, _ENOUGH, PREFLIGHT)}
    recipe_files = sorted(path for path in Path(recipe.folder).iterdir() if path.is_file())
    trusted = named_entries(site, options)
    trust.refuse((Path(site.where), *recipe_files, *sources.values(), *features.values()), trusted)
    by_hand, scheduler = directory == BY_HAND, traits(options.scheduler)
    device = device_of(recipe, site, request.device, options.folders)
    recipe = recipe.for_device(device)
    measured = plan(recipe, site, request)
    if options.concurrent > 1 and any(point.largest for point in measured.points):
        raise UsageError(
            "--concurrent-repeats has no effect with --batch-size max: the first repeat finds the "
            "size for all.",
            hint="Leave --concurrent-repeats out.",
        )
    found = inputs.find(site, recipe, measured.options, by_hand=by_hand)
    if site.container.runtime == "pyxis" and not scheduler.srun:
        raise UsageError(
            f"pyxis belongs to srun, which the {scheduler.name} scheduler does not use.",
            where=site.where,
            hint='Use container.runtime = "enroot" or "apptainer", or "none" on the host.',
        )
    missing: list[str] = [need for need in recipe.needs if not getattr(found, need)]
    if runs_in_environment(site, recipe) and not found.python:
        missing.append("python")
    if site.container.runtime != "none" and not found.image:
        missing.append("image")
    elif options.rehearse or options.examine:
        missing = []
    again = "" if device == device_of(recipe, site, "") else f" --device {device}"
    dry = options.dry or by_hand
    shown, warnings = _left_open(site, recipe, missing, again, dry=dry)
    mpi = _mpi(site, recipe, options.mpi)
    several = scheduler.srun and request.shape.gpus > 1
    here = scheduler.here and site.container.runtime == "none"
    used = replace(
        found,
        image=reference.parse(shown["image"]) if "image" in shown else found.image,
        data=shown.get("data", found.data),
        source=shown.get("source", found.source),
        python=found.python or shown.get("python") or (sys.executable if here else "python3"),
    )
    if scheduler.here and request.shape.nodes > 1:
        raise UsageError(
            f"The {scheduler.name} scheduler has one node; you asked for {request.shape.nodes}.",
            hint='Set scheduler = "slurm" in the site.toml, or give --scheduler slurm.',
        )
    if "\\" in directory or not directory.isprintable():  # Slurm's patterns can't express it
        raise UsageError(
            "The path of campaigns must not contain a backslash or a control character.",
            where=directory,
            hint="Choose another place with --runs.",
        )
    return Resolved(
        request=request,
        site=site,
        recipe=recipe,
        options=options,
        scheduler=scheduler,
        device=device,
        found=found,
        inputs=used,
        mpi=mpi,
        directory=directory,
        sources={**sources, **{name: features[name] for name in _features(site, measured)}},
        plan=measured,
        mounts=inputs.mount_specs(site, used, directory),
        warnings=(*warnings, *(_of_mpi(site, recipe, mpi) if several else ())),
        missing=tuple(missing),
    )


def named_entries(site: Site, options: SubmitOptions) -> tuple[trust.TrustedPath, ...]:
    """Return what the command line trusts by naming it."""
    return trust.of_command_line(Path(site.where) if site.named else None, options.named)


def _mpi(site: Site, recipe: Recipe, there: tuple[str, ...]) -> str:
    """Return the kind of MPI that starts the ranks.

    The site's choice comes first, in srun_args or mpi; else it is the first of the recipe's that
    the cluster has; if it has none of them, or that is unknown, the recipe's first.
    """
    said = given(site.slurm.srun_args, "mpi", "srun") or site.slurm.mpi
    return said or fitting_mpi(recipe.mpi, there) or next(iter(recipe.mpi), "")


def _of_mpi(site: Site, recipe: Recipe, mpi: str) -> tuple[str, ...]:
    """Return a warning if the recipe's ranks are not known to support the site's kind of MPI."""
    if not recipe.mpi or recipe.mpi == ("none",) or mpi.startswith(recipe.mpi):
        return ()
    text = f"{recipe.name} finds its ranks by {' or '.join(recipe.mpi)}"
    return (f"{text}, but {site.where} has slurm.mpi = {mpi!r}: each rank may run alone.",)


def relative(path: Path, here: Path) -> str:
    """Return a path as seen from a directory above it, else as it is."""
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def sample_log(recipe: Recipe) -> Path:
    """Return the recipe's sample log.

    Raises:
        UsageError: It has none, so there is nothing to rehearse.
    """
    path = Path(recipe.folder) / store.SAMPLE
    if not path.is_file():
        raise UsageError(f"{recipe.name} has no {store.SAMPLE} to rehearse.", where=str(path))
    return path


def find_file(recipe: Recipe, name: str) -> Path:
    """Return a file that a recipe names: in its folder, else among hpcbert's own files.

    Raises:
        UsageError: It is in neither.
    """
    for folder in (Path(recipe.folder), _WORKLOADS, _SHELL):
        if (folder / name).is_file():
            return folder / name
    raise UsageError(f"The recipe's file {name!r} is missing.", where=recipe.folder)


def _sources(site: Site, recipe: Recipe, options: SubmitOptions) -> dict[str, Path]:
    looking = _EXAMINING if options.examine else ()
    launching = f"{traits(options.scheduler).launch}.bash"
    names = (*recipe.files, *_EVERY, launching, *looking)
    paths = {name: find_file(recipe, name) for name in names}
    runtime = site.container.runtime
    entering = () if runtime == "none" else runtimes.of(runtime).files
    entering += ("probe.sh",) if options.examine and options.examine.probe else ()
    return {**paths, **{name: cache.SCRIPT.parent / name for name in entering}}


def _features(site: Site, measured: MeasurementPlan) -> tuple[str, ...]:
    """Return the files that only the scripts of some plans source."""
    needs = {
        _BIND: bool(site.nodes.cpus_per_gpu),
        _LARGEST: any(point.largest for point in measured.points),
        _ENOUGH: measured.protocol.precision_of_median is not None,
    }
    return tuple(name for name, needed in needs.items() if needed)


def _left_open(
    site: Site, recipe: Recipe, missing: list[str], again: str, *, dry: bool
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the paths that a dry run shows for what nothing names, and a warning about them.

    Raises:
        UsageError: Something is missing, and this is not a dry run.
    """
    if not missing:
        return {}, ()
    keys = ", ".join(f"frameworks.{recipe.name}.{need}" for need in missing)
    if not dry:
        raise UsageError(
            f"{recipe.name} needs {' and '.join(missing)}, but site {site.name!r} names none.",
            where=site.where,
            hint=f"Make it ready: hpcbert prepare --fw {recipe.name}{again}; or set {keys} there, "
            f"or give {' '.join('--' + need for need in missing)}. Without them, --rehearse runs "
            "everything but the training.",
        )
    warning = f"{site.where} does not set {keys}: the script shows {_MISSING}… instead."
    return {need: f"{_MISSING}{recipe.name}/{need}" for need in missing}, (warning,)
