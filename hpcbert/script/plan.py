"""Request to plan: the shapes, precisions and batch sizes that one submission measures, and how."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpcbert.config import places
from hpcbert.config.adaptive import MOST
from hpcbert.config.recipe import load
from hpcbert.errors import ConfigError, UsageError
from hpcbert.model import DEVICES, LARGEST, OptionValue, Point, Protocol, Shape
from hpcbert.script.settings import UnfitError, identity_of, option_values
from hpcbert.system.decode import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from hpcbert.config.recipe import Preset, Recipe
    from hpcbert.config.site import Site
    from hpcbert.model import Device

_FIRST_STEP = 4  # DLPerf's curve within a node goes 1, 4, 8 (Oneflow-Inc/DLPerf@c89430b)
MOST_INDICES = 1000  # Slurm's default MaxArraySize of 1001 ends indices at 1000
# Variables that slurm.bash sets if the site names an interface.
_BY_INTERFACE = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


@dataclass(frozen=True)
class RequestCell:
    """One point of a request; empty fields are left to the recipe."""

    shape: Shape
    precision: str = ""
    batch_size: int = 0
    accumulation: int = 0


@dataclass(frozen=True)
class Request:
    """A request to `submit`; empty fields leave the choice to site and recipe.

    Attributes:
        shape: The largest shape.
        batch_sizes: Samples per device; LARGEST: as many as fit.
        scaling: Whether to measure the smaller shapes of the curve too.
        cells: Exactly what to measure, instead of all combinations of shapes, precisions and
            batch sizes.
        preset: Name of one of the recipe's protocols; empty for its first.
        device: What the ranks compute on; empty for the site's, then the recipe's first.
        accumulation: Micro-batches in one step; 0 leaves it to the protocol.
        global_batch_size: Samples in one step, from which the accumulation follows; 0 as above.
        iters, skip: Iterations and warm-up; None leaves them to the protocol.
        settings: The recipe's options; from a command line as unread texts.
        env: Environment variables of the ranks that are part of the measurement.
        repeats: Runs of each point.
        precision_of_median: Share of the median; runs stop once its interval is narrower, and
            `repeats` is the maximum.
    """

    shape: Shape
    precisions: tuple[str, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    scaling: bool = False
    cells: tuple[RequestCell, ...] = ()
    model: str = ""
    preset: str = ""
    device: str = ""
    accumulation: int = 0
    global_batch_size: int = 0
    xla: bool = False
    settings: Mapping[str, OptionValue] = field(default_factory=dict)
    env: tuple[tuple[str, str], ...] = ()
    repeats: int = 5
    iters: int | None = None
    skip: int | None = None
    precision_of_median: float | None = None


def shapes(largest: Shape, *, scaling: bool) -> tuple[Shape, ...]:
    """Return the shapes of a scaling curve, smallest first, or just the one.

    Within a node 1, 4, 8, … and the node's GPUs; then whole nodes 2, 4, 8, … and the last.
    """
    if not scaling:
        return (largest,)
    full = largest.gpus_per_node
    within = {1, full, *_doubling(_FIRST_STEP, full)}
    across = {largest.nodes, *_doubling(2, largest.nodes)} - {1}
    single = [Shape(1, gpus) for gpus in sorted(within)]
    return (*single, *(Shape(nodes, full) for nodes in sorted(across)))


def _doubling(first: int, below: int) -> Iterable[int]:
    while first < below:
        yield first
        first *= 2


@dataclass(frozen=True)
class MeasurementPlan:
    """A request, checked against a recipe and a site.

    Attributes:
        preset: The recipe's protocol.
        protocol: Repeats, iterations, warm-up.
        options: The value of each of the recipe's options.
        points: The measured points, the small shapes first.
        sizes: Samples per device by precision if no number is given; the search for the largest
            batch begins with them.
    """

    preset: Preset
    protocol: Protocol
    options: Mapping[str, OptionValue]
    points: tuple[Point, ...]
    sizes: Mapping[str, int]


def device_of(recipe: Recipe, site: Site, asked: str, folders: tuple[Path, ...] = ()) -> Device:
    """Return the device of the ranks: as requested, else the site's, else the recipe's first.

    Args:
        recipe: What runs.
        site: Where it runs.
        asked: A device; empty for no request.
        folders: Folders with other recipes, to name those that can.

    Raises:
        UsageError: The device does not exist, or the recipe does not run on it.
    """
    wanted = asked or site.settings(recipe.name).device
    where = "" if asked or not wanted else f"{site.where}: frameworks.{recipe.name}.device"
    if wanted and wanted not in DEVICES:
        message = f"There is no device {wanted!r}."
        raise UsageError(message, where=where, hint=did_you_mean(wanted, DEVICES))
    for device in recipe.devices:
        if device == wanted or not wanted:
            return device
    able = " or ".join(recipe.devices)
    text = ", ".join(_able(folders, wanted))
    hint = f"Frameworks that run on {wanted}: {text}." if text else ""
    raise UsageError(f"{recipe.name} runs on {able}, not on {wanted}.", where=where, hint=hint)


def _able(folders: tuple[Path, ...], device: str) -> Iterator[str]:
    """Yield the names of recipes that run on a device."""
    for name, folder in places.list_recipes(folders).items():
        with suppress(ConfigError):
            if device in load(folder).devices:
                yield name


def plan(recipe: Recipe, site: Site, request: Request) -> MeasurementPlan:
    """Determine what a request measures.

    Raises:
        UsageError: The recipe, the site or the protocol does not allow the request.
    """
    device = device_of(recipe, site, request.device)
    recipe = recipe.for_device(device)
    if request.preset:
        _one_of("protocol", request.preset, tuple(recipe.protocols))
    usual = recipe.preset(request.preset)
    protocol = _protocol(usual, request)
    _check(recipe, request, usual)
    precisions = usual.precisions or recipe.precisions
    cells = request.cells or _combined(request, precisions)
    for shape in dict.fromkeys(request_cell.shape for request_cell in cells):
        _check_shape(recipe, site, shape, usual, device)
    values = option_values(recipe, site, request.settings)
    framework_settings = site.settings(recipe.name)
    model = _one_of(
        "model", request.model or framework_settings.model or recipe.models[0], recipe.models
    )
    sizes: dict[str, int] = dict(
        (*recipe.batch_sizes.items(), *framework_settings.batch_sizes.items())
    )
    identity, env = identity_of(recipe, values), _env(recipe, site, request.env)

    def accumulation(cell: RequestCell, size: int) -> int:
        if cell.accumulation and recipe.accumulation:
            return cell.accumulation
        found = _accumulation(request, usual, cell.shape, size, device)
        if cell.accumulation not in (0, found):
            raise UnfitError(f"{recipe.name} does not support --accumulation.", key="accumulation")
        return found

    def point(cell: RequestCell) -> Point:
        precision = _one_of("precision", cell.precision or precisions[0], precisions)
        size = cell.batch_size or sizes.get(precision, 1)
        return Point(
            framework=recipe.name,
            model=model,
            shape=cell.shape,
            precision=precision,
            batch_size_per_device=size,
            accumulation=accumulation(cell, size),
            xla=request.xla or usual.xla,
            options=identity,
            protocol=usual.name,
            device=device,
            env=env,
        )

    points = tuple(dict.fromkeys(map(point, cells)))
    return MeasurementPlan(usual, protocol, values, points, sizes)


def _combined(request: Request, precisions: tuple[str, ...]) -> tuple[RequestCell, ...]:
    """Return every requested combination of shape, batch size and precision."""
    return tuple(
        RequestCell(shape, precision, size)
        for precision in request.precisions or precisions[:1]
        for size in request.batch_sizes or (0,)
        for shape in shapes(request.shape, scaling=request.scaling)
    )


def _env(
    recipe: Recipe, site: Site, asked: tuple[tuple[str, str], ...]
) -> tuple[tuple[str, str], ...]:
    """Return the requested variables, by name; refuse those that are set elsewhere.

    Raises:
        UsageError: The recipe or the job script sets one of them.
    """
    for name, _ in asked:
        if name in recipe.env:
            message = f"{recipe.name} sets {name} itself, to {recipe.env[name]!r}."
            raise UnfitError(message, hint=f"Leave {name} out.", key=f"env.{name}")
        if site.nodes.interface and name in _BY_INTERFACE:
            message = f"{name} follows from nodes.interface, {site.nodes.interface!r}."
            hint = "Change that in the site.toml, or leave the variable out."
            raise UnfitError(message, where=site.where, hint=hint, key=f"env.{name}")
    return tuple(sorted(asked))


def _protocol(usual: Preset, request: Request) -> Protocol:
    """Return repeats, iterations and warm-up: the request's, else those of the recipe's protocol.

    Raises:
        UsageError: Nothing would be left to measure.
    """
    iters = usual.iters if request.iters is None else request.iters
    skip = usual.skip if request.skip is None else request.skip
    if not 0 <= skip < iters:
        raise UnfitError(
            f"--skip {skip} leaves nothing of --iters {iters} to measure.",
            hint="DLPerf's protocol is --iters 120 --skip 20.",
            key="skip" if request.iters is None else "iters",
        )
    if not 1 <= request.repeats <= MOST:
        message = f"--repeats must be 1 to {MOST}, not {request.repeats}."
        raise UnfitError(message, key="repeats")
    return Protocol(request.repeats, iters, skip, request.precision_of_median)


def _accumulation(request: Request, usual: Preset, shape: Shape, size: int, device: Device) -> int:
    """Return the micro-batches per step: as requested, else those for the global batch."""
    if request.accumulation:
        return request.accumulation
    fixed = request.global_batch_size or usual.global_batch_size
    if size == LARGEST and fixed:
        raise UnfitError(
            f"A global batch of {fixed} and the largest batch per device leave the accumulation "
            "open until that is found.",
            hint="Give --accumulation, or --batch-size with a number.",
            key="batch_sizes",
        )
    size = max(size, 1)  # a multiple of the batch size is one for each size
    total = fixed or usual.samples_per_device * size
    if not total:
        return usual.accumulation or 1
    micro = shape.gpus * size
    if total % micro:
        raise UnfitError(
            f"A global batch of {total} is not a multiple of {shape.gpus} "
            f"{'ranks' if device == 'cpu' else 'GPUs'} x {size} samples.",
            hint="Change --batch-size or --global-batch-size, or give --accumulation.",
            key="global_batch_size" if request.global_batch_size else "batch_sizes",
        )
    return total // micro


def _check(recipe: Recipe, request: Request, usual: Preset) -> None:
    sizes = (*request.batch_sizes, *(cell.batch_size or 1 for cell in request.cells))
    if wrong := [size for size in sizes if size < 1 and size != LARGEST]:
        message = f"A batch size must be at least 1, not {wrong[0]}."
        raise UnfitError(message, key="batch_sizes")
    if min(request.accumulation, request.global_batch_size) < 0:
        raise UsageError("--accumulation and --global-batch-size must be at least 1.")
    if request.xla and not recipe.xla:
        raise UnfitError(f"{recipe.name} does not support --xla.", key="xla")
    asked = request.accumulation not in (0, usual.accumulation or 1) or request.global_batch_size
    if asked and not recipe.accumulation:
        key = "global_batch_size" if request.global_batch_size else "accumulation"
        raise UnfitError(f"{recipe.name} does not support --accumulation.", key=key)


def _check_shape(recipe: Recipe, site: Site, shape: Shape, usual: Preset, device: Device) -> None:
    """Refuse more ranks or nodes than a recipe supports on a device, or GPUs than a node has."""
    for why, much, most in (
        (recipe.alone, shape.gpus, "as one rank"),
        (recipe.one_node, shape.nodes, "on one node"),
    ):
        if why and much > 1:
            message = f"{recipe.name} runs on {device} only {most}, not as {shape}."
            raise UnfitError(message, hint=why, key="shapes")
    on_gpus = usual.gpus and device != "cpu"
    if on_gpus and shape.gpus_per_node > site.nodes.gpus_per_node:
        raise UnfitError(
            f"Nodes of site {site.name!r} have {site.nodes.gpus_per_node} GPUs, "
            f"you asked for {shape.gpus_per_node}.",
            where=site.where,
            hint="Change --gpus-per-node, or nodes.gpus_per_node in the site.toml.",
            key="shapes",
        )


def _one_of(what: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        message, hint = f"There is no {what} {value!r} here.", did_you_mean(value, known)
        raise UnfitError(message, hint=hint, key=what if what == "protocol" else f"{what}s")
    return value
