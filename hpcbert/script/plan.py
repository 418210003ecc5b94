"""Request to plan: which shapes, precisions and batch sizes one submission measures, and how."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING

from hpcbert.config import places
from hpcbert.config.decode import did_you_mean
from hpcbert.config.recipe import KINDS, load
from hpcbert.errors import ConfigError, UsageError
from hpcbert.model import DEVICES, OptionValue, Point, Protocol, Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from hpcbert.config.recipe import Option, Preset, Recipe
    from hpcbert.config.site import Site
    from hpcbert.model import Device

_FIRST_STEP = 4  # DLPerf's curve within a node goes 1, 4, 8 (Oneflow-Inc/DLPerf@c89430b)
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
MOST_INDICES = 1000  # Slurm's default MaxArraySize of 1001 ends indices at 1000
_MOST_REPEATS = 10_000  # more is a slip of the finger: a year of runs of an hour


@dataclass(frozen=True)
class Request:
    """What a person asks `submit` for; empty fields leave the choice to site and recipe.

    Attributes:
        shape: The largest shape.
        batch_sizes: Samples per device; `sizes` are those of one precision instead.
        scaling: Whether the smaller shapes of the curve are wanted too.
        preset: Name of one of the recipe's protocols; empty for its first.
        device: What the ranks compute on; empty for the site's, then the recipe's first.
        accumulation: Micro-batches in one step; 0 leaves it to the protocol.
        global_batch_size: Samples in one step, from which the accumulation follows; 0 likewise.
        iters, skip: Iterations and warm-up; None leaves them to the protocol.
        settings: `--set NAME=VALUE`, unread.
    """

    shape: Shape
    precisions: tuple[str, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    scaling: bool = False
    model: str = ""
    preset: str = ""
    device: str = ""
    accumulation: int = 0
    global_batch_size: int = 0
    xla: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    repeats: int = 5
    iters: int | None = None
    skip: int | None = None


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
    """A request held against a recipe and a site.

    Attributes:
        preset: The recipe's protocol that it means.
        protocol: Repeats, iterations, warm-up.
        options: The value of each of the recipe's options.
        points: What is measured, the small shapes first.
    """

    preset: Preset
    protocol: Protocol
    options: Mapping[str, OptionValue]
    points: tuple[Point, ...]


def device_of(recipe: Recipe, site: Site, asked: str, folders: tuple[Path, ...] = ()) -> Device:
    """Return what ranks compute on: as asked, else as the site says, else the recipe's first.

    Args:
        recipe: What shall run.
        site: Where.
        asked: A device; empty for none in particular.
        folders: Where there are other recipes, to name those that can.

    Raises:
        UsageError: There is no such device, or the recipe does not run on it.
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
    others = ", ".join(_able(folders, wanted))
    hint = f"These run on {wanted}: {others}." if others else ""
    raise UsageError(f"{recipe.name} runs on {able}, not on {wanted}.", where=where, hint=hint)


def _able(folders: tuple[Path, ...], device: str) -> Iterator[str]:
    """Yield the names of recipes that run on a device."""
    for name, folder in places.list_recipes(folders).items():
        with suppress(ConfigError):
            if device in load(folder).devices:
                yield name


def plan(recipe: Recipe, site: Site, request: Request) -> MeasurementPlan:
    """Decide what a request measures.

    Raises:
        UsageError: The recipe, the site or the protocol does not allow what is asked.
    """
    device = device_of(recipe, site, request.device)
    recipe = recipe.for_device(device)
    if request.preset:
        _one_of("protocol", request.preset, tuple(recipe.protocols))
    usual = recipe.preset(request.preset)
    protocol = _protocol(usual, request)
    _check(recipe, site, request, usual, device)
    model = request.model or site.settings(recipe.name).model or recipe.models[0]
    values = option_values(recipe, site, request.settings)
    identity = _identity(recipe, values)
    own = site.settings(recipe.name).batch_sizes
    sizes: dict[str, int] = dict((*recipe.batch_sizes.items(), *own.items()))
    precisions = usual.precisions or recipe.precisions
    points = tuple(
        Point(
            framework=recipe.name,
            model=_one_of("model", model, recipe.models),
            shape=shape,
            precision=_one_of("precision", precision, precisions),
            batch_size_per_device=size,
            accumulation=_accumulation(request, usual, shape, size, device),
            xla=request.xla or usual.xla,
            options=identity,
            protocol=usual.name,
            device=device,
        )
        for precision in dict.fromkeys(request.precisions or precisions[:1])
        for size in dict.fromkeys(
            request.sizes.get(precision) or request.batch_sizes or (sizes.get(precision, 1),)
        )
        for shape in shapes(request.shape, scaling=request.scaling)
    )
    return MeasurementPlan(usual, protocol, values, points)


def _protocol(usual: Preset, request: Request) -> Protocol:
    """Return repeats, iterations and warm-up: the request's, else those of the recipe's protocol.

    Raises:
        UsageError: Nothing would be left to measure.
    """
    iters = usual.iters if request.iters is None else request.iters
    skip = usual.skip if request.skip is None else request.skip
    if not 0 <= skip < iters:
        raise UsageError(
            f"--skip {skip} leaves nothing of --iters {iters} to measure.",
            hint="DLPerf's protocol is --iters 120 --skip 20.",
        )
    if not 1 <= request.repeats <= _MOST_REPEATS:
        raise UsageError(f"--repeats must be 1 to {_MOST_REPEATS}, not {request.repeats}.")
    return Protocol(request.repeats, iters, skip)


def _accumulation(request: Request, usual: Preset, shape: Shape, size: int, device: Device) -> int:
    """Return the micro-batches in one step: as asked, else so that the global batch is right."""
    if request.accumulation:
        return request.accumulation
    total = request.global_batch_size or usual.global_batch_size or usual.samples_per_device * size
    if not total:
        return usual.accumulation or 1
    micro = shape.gpus * size
    if total % micro:
        raise UsageError(
            f"A global batch of {total} is no multiple of {shape.gpus} "
            f"{'ranks' if device == 'cpu' else 'GPUs'} x {size} samples.",
            hint="Change --batch-size or --global-batch-size, or give --accumulation.",
        )
    return total // micro


def _check(recipe: Recipe, site: Site, request: Request, usual: Preset, device: Device) -> None:
    for size in request.batch_sizes:
        if size < 1:
            raise UsageError(f"A batch size must be at least 1, not {size}.")
    _check_shape(recipe, request.shape, device)
    if min(request.accumulation, request.global_batch_size) < 0:
        raise UsageError("--accumulation and --global-batch-size must be at least 1.")
    on_gpus = usual.gpus and device != "cpu"
    if on_gpus and request.shape.gpus_per_node > site.nodes.gpus_per_node:
        raise UsageError(
            f"Nodes of site {site.name!r} have {site.nodes.gpus_per_node} GPUs, "
            f"{request.shape.gpus_per_node} are asked for.",
            where=site.where,
            hint="Change --gpus-per-node, or nodes.gpus_per_node in the site.toml.",
        )
    if request.xla and not recipe.xla:
        raise UsageError(f"{recipe.name} knows no --xla.")
    asked = request.accumulation not in (0, usual.accumulation or 1) or request.global_batch_size
    if asked and not recipe.accumulation:
        raise UsageError(f"{recipe.name} knows no --accumulation.")


def _check_shape(recipe: Recipe, shape: Shape, device: Device) -> None:
    """Refuse more ranks or nodes than a recipe can have on a device."""
    for why, much, most in (
        (recipe.alone, shape.gpus, "as one rank"),
        (recipe.one_node, shape.nodes, "on one node"),
    ):
        if why and much > 1:
            message = f"{recipe.name} runs on {device} {most} only, not as {shape}."
            raise UsageError(message, hint=why)


def _one_of(what: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise UsageError(f"There is no {what} {value!r} here.", hint=did_you_mean(value, known))
    return value


def option_values(
    recipe: Recipe, site: Site, settings: Mapping[str, str]
) -> dict[str, OptionValue]:
    """Return the value of every option: `--set`, else the site's, else the recipe's.

    Raises:
        UsageError: An option is unknown or its value of the wrong kind.
    """
    values = {name: option.default for name, option in recipe.options.items()}
    for name, value in site.settings(recipe.name).options.items():
        option = _known(name, recipe.options, f"{site.where}: frameworks.{recipe.name}.options")
        values[name] = _checked(option, value, site.where)
    for name, text in settings.items():
        option = _known(name, recipe.options, "--set")
        values[name] = _checked(option, _read(option, text), "--set")
    return values


def _known(name: str, options: Mapping[str, Option], where: str) -> Option:
    if name not in options:
        raise UsageError(
            f"There is no option {name!r}.", where=where, hint=did_you_mean(name, options)
        )
    return options[name]


def _read(option: Option, text: str) -> OptionValue:
    """Read a typed value from a command line's text; what can't be read stays a text."""
    if option.kind == "bool" and text.lower() in (*_TRUE, *_FALSE):
        return text.lower() in _TRUE
    readers: dict[str, Callable[[str], OptionValue]] = {"int": int, "float": float}
    try:
        return readers.get(option.kind, str)(text)
    except ValueError:
        return text


def _checked(option: Option, value: OptionValue, where: str) -> OptionValue:
    if option.kind == "float" and type(value) is int:
        value = float(value)
    if isinstance(value, float) and not isfinite(value):
        raise UsageError(f"{option.name} takes a finite number, not {value}.", where=where)
    if type(value) is not KINDS[option.kind]:
        raise UsageError(f"{option.name} takes a {option.kind}, not {value!r}.", where=where)
    if option.choices and value not in option.choices:
        listed = ", ".join(str(choice) for choice in option.choices)
        raise UsageError(f"{option.name} must be one of {listed}, not {value!r}.", where=where)
    if wrong := option.outside(value):
        raise UsageError(f"{option.name} {wrong}.", where=where)
    return value


def _identity(
    recipe: Recipe, values: Mapping[str, OptionValue]
) -> tuple[tuple[str, OptionValue], ...]:
    """Return the options that change the number and differ from the recipe's defaults."""
    return tuple(
        (option.name, values[option.name])
        for option in recipe.options.values()
        if option.measured and values[option.name] != option.default
    )
