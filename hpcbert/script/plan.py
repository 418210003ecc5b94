"""Request to plan: the shapes, precisions and batch sizes that one submission measures, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path

from hpcbert.config import places
from hpcbert.config.options import MOST_REPEATS
from hpcbert.config.recipe import KINDS, Option, Preset, Recipe, load
from hpcbert.config.schedulers import find_traits
from hpcbert.config.site import Site
from hpcbert.errors import ConfigError, UsageError
from hpcbert.model import (
    DEVICES,
    LARGEST_WORDS,
    PRECISIONS,
    Device,
    OptionValue,
    Point,
    Protocol,
    Shape,
)
from hpcbert.system.decode import did_you_mean, list_choices, suggest_similar
from hpcbert.timelimit import TimeLimit

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class UnfitError(UsageError):
    """A part of a request does not fit recipe, site or protocol.

    Attributes:
        key: Its key in a campaign.toml; empty if it has none.
    """

    def __init__(self, message: str, *, where: str = "", hint: str = "", key: str = "") -> None:
        super().__init__(message, where=where, hint=hint)
        self.key = key


def read_options(
    recipe: Recipe, site: Site, settings: Mapping[str, OptionValue]
) -> dict[str, OptionValue]:
    """Return the value of every option: `--set`, else the site's, else the recipe's.

    Raises:
        UsageError: An option is unknown or its value of the wrong kind.
    """
    defaults = {name: option.default for name, option in recipe.options.items()}
    for name, value in site.settings(recipe.name).options.items():
        option = _find_option(
            name, recipe.options, f"{site.where}: frameworks.{recipe.name}.options"
        )
        defaults[name] = _check_value(option, value, site.where)
    for name, text in settings.items():
        option = _find_option(name, recipe.options, "--set")
        defaults[name] = _check_value(option, _parse_setting(option, text), "--set")
    return defaults


def _find_option(name: str, options: Mapping[str, Option], where: str) -> Option:
    if name not in options:
        raise UnfitError(
            f"There is no option {name!r}.",
            where=where,
            hint=did_you_mean(name, options),
            key=f"options.{name}",
        )
    return options[name]


def _parse_setting(option: Option, text: OptionValue) -> OptionValue:
    """Read a typed value from a command line's text; unreadable text stays text."""
    if not isinstance(text, str):
        return text
    if option.kind == "bool" and text.lower() in (*_TRUE, *_FALSE):
        return text.lower() in _TRUE
    readers: dict[str, Callable[[str], OptionValue]] = {"int": int, "float": float}
    try:
        return readers.get(option.kind, str)(text)
    except ValueError:
        return text


def _check_value(option: Option, value: OptionValue, where: str) -> OptionValue:
    if option.kind == "float" and type(value) is int:
        value = float(value)
    if problem := _explain_misfit(option, value):
        raise UnfitError(f"{option.name} {problem}.", where=where, key=f"options.{option.name}")
    return value


def _explain_misfit(option: Option, value: OptionValue) -> str:
    """Return the fault of an option's value, as the end of a sentence; empty if it is valid."""
    if isinstance(value, float) and not isfinite(value):
        return f"needs a finite number, not {value}"
    if type(value) is not KINDS[option.kind]:
        return f"must be of type {option.kind}, not {value!r}"
    if option.choices and value not in option.choices:
        choice_list = ", ".join(str(choice) for choice in option.choices)
        return f"must be one of {choice_list}, not {value!r}"
    return option.outside(value)


def list_point_options(
    recipe: Recipe, values: Mapping[str, OptionValue]
) -> tuple[tuple[str, OptionValue], ...]:
    """Return the options that change the number and differ from the recipe's defaults."""
    return tuple(
        (option.name, values[option.name])
        for option in recipe.options.values()
        if option.measured and values[option.name] != option.default
    )


_FIRST_STEP = 4  # DLPerf's curve within a node goes 1, 4, 8 (Oneflow-Inc/DLPerf@c89430b)
MOST_INDICES = 1000  # Slurm's default MaxArraySize of 1001 ends indices at 1000
# Variables that slurm.bash sets if the site names an interface.
_BY_INTERFACE = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


@dataclass(frozen=True)
class RequestCell:
    """One point of a request; empty fields are left to the recipe.

    Attributes:
        batch_size: Samples per device; LARGEST: as many as fit.
    """

    shape: Shape
    precision: str = ""
    batch_size: int = 0
    accumulation: int = 0


@dataclass(frozen=True)
class Request:
    """A request to `submit`; empty fields leave the choice to site and recipe.

    Attributes:
        shape: The largest shape.
        cells: The points; none: one of the largest shape.
        preset: Name of one of the recipe's protocols; empty for its first.
        device: What the ranks compute on; empty for the site's, then the recipe's first.
        accumulation: Micro-batches in one step; 0 leaves it to the protocol.
        global_batch_size: Samples in one step, from which the accumulation follows; 0 as above.
        iters, skip, window_seconds: Iterations, warm-up and least length of the window; None leaves
            them to the protocol.
        settings: The recipe's options; from a command line as unread texts.
        env: Environment variables of the ranks that are part of the measurement.
        repeats: Runs of each point.
        precision_of_median: Share of the median; runs stop once its interval is narrower, and
            `repeats` is the maximum.
        xla: Whether the graph compiler is on; None leaves it to the protocol.
    """

    shape: Shape
    cells: tuple[RequestCell, ...] = ()
    model: str = ""
    preset: str = ""
    device: str = ""
    accumulation: int = 0
    global_batch_size: int = 0
    xla: bool | None = None
    settings: Mapping[str, OptionValue] = field(default_factory=dict)
    env: tuple[tuple[str, str], ...] = ()
    repeats: int = 5
    iters: int | None = None
    skip: int | None = None
    window_seconds: int | None = None
    precision_of_median: float | None = None


def list_shapes(largest: Shape) -> tuple[Shape, ...]:
    """Return the shapes of a scaling curve, smallest first.

    Within a node 1, 4, 8, … and the node's GPUs; then whole nodes 2, 4, 8, … and the last.
    """
    node_gpus = largest.gpus_per_node
    gpu_counts = {1, node_gpus, *_double_from(_FIRST_STEP, node_gpus)}
    node_counts = {largest.nodes, *_double_from(2, largest.nodes)} - {1}
    node_shapes = [Shape(1, gpus) for gpus in sorted(gpu_counts)]
    return (*node_shapes, *(Shape(nodes, node_gpus) for nodes in sorted(node_counts)))


def _double_from(count: int, limit: int) -> Iterable[int]:
    while count < limit:
        yield count
        count *= 2


@dataclass(frozen=True)
class MeasurementPlan:
    """A request, checked against a recipe and a site.

    Attributes:
        request: The request, with the largest shape of all points.
        device: The device of the ranks.
        preset: The recipe's protocol.
        protocol: Repeats, iterations, warm-up.
        options: The value of each of the recipe's options.
        points: The measured points, the small shapes first.
        sizes: Samples per device by precision if no number is given; the search for the largest
            batch begins with them.
    """

    request: Request
    device: Device
    preset: Preset
    protocol: Protocol
    options: Mapping[str, OptionValue]
    points: tuple[Point, ...]
    sizes: Mapping[str, int]

    @property
    def framework(self) -> str:
        """The name of the recipe."""
        return self.points[0].framework


def choose_device(
    recipe: Recipe, site: Site, requested_device: str, folders: tuple[Path, ...] = ()
) -> Device:
    """Return the device of the ranks: as requested, else the site's, else the recipe's first.

    Args:
        requested_device: A device; empty for no request.

    Raises:
        UsageError: The device does not exist, or the recipe does not run on it.
    """
    device_name = requested_device or site.settings(recipe.name).device
    where = (
        ""
        if requested_device or not device_name
        else f"{site.where}: frameworks.{recipe.name}.device"
    )
    if device_name and device_name not in DEVICES:
        message = f"There is no device {device_name!r}."
        raise UsageError(message, where=where, hint=did_you_mean(device_name, DEVICES))
    for device in recipe.devices:
        if device == device_name or not device_name:
            return device
    device_list = " or ".join(recipe.devices)
    text = ", ".join(_select_recipes(folders, lambda other: device_name in other.devices))
    hint = f"Frameworks that run on {device_name}: {text}." if text else ""
    raise UsageError(
        f"{recipe.name} runs on {device_list}, not on {device_name}.", where=where, hint=hint
    )


def _select_recipes(
    folders: tuple[Path, ...], condition: Callable[[Recipe], bool]
) -> Iterator[str]:
    """Yield the names of the recipes that meet a condition."""
    for name, folder in places.list_recipes(folders).items():
        with suppress(ConfigError):
            recipe = load(folder)
            if recipe.has_script and condition(recipe):
                yield name


def _check_precision(
    recipe: Recipe, site: Site, precision: str, precisions: tuple[str, ...]
) -> str:
    """Return a precision that the recipe runs; refuse others, with the recipes that run it."""
    if precision in precisions or precision not in PRECISIONS:
        return _check_choice("precision", precision, precisions)
    folders = places.recipe_folders(Path(site.where), ())
    names = ", ".join(_select_recipes(folders, lambda other: precision in other.precisions))
    raise UnfitError(
        f"{recipe.name} does not run {precision} here; it runs {', '.join(precisions)}.",
        hint=f"Frameworks that run {precision}: {names or 'none'}.",
        key="precisions",
    )


def plan(recipe: Recipe, site: Site, request: Request) -> MeasurementPlan:
    """Determine what a request measures.

    Raises:
        UsageError: The recipe, the site or the protocol does not allow the request.
    """
    device = choose_device(recipe, site, request.device)
    recipe = recipe.for_device(device)
    if request.preset:
        _check_choice("protocol", request.preset, tuple(recipe.protocols))
    preset = recipe.preset(request.preset)
    protocol = _choose_protocol(preset, request)
    _check_window(protocol, site.slurm.time_limit)
    _check_request(recipe, request, preset)
    request = _set_compiler(recipe, request)
    precisions = preset.precisions or recipe.precisions
    cells = request.cells or (RequestCell(request.shape),)
    for shape in dict.fromkeys(request_cell.shape for request_cell in cells):
        _check_shape(recipe, site, shape, preset, device)
    values = read_options(recipe, site, request.settings)
    framework_settings = site.settings(recipe.name)
    model = _check_choice(
        "model", request.model or framework_settings.model or recipe.models[0], recipe.models
    )
    has_gpus = find_traits(site.scheduler).srun and device != "cpu" and preset.gpus
    usual_sizes = recipe.multiply_batch_sizes(site.slurm.gres if has_gpus else "")
    sizes: dict[str, int] = dict((*usual_sizes.items(), *framework_settings.batch_sizes.items()))
    identity, env = list_point_options(recipe, values), _check_env(recipe, site, request.env)

    def accumulation(cell: RequestCell, size: int) -> int:
        if cell.accumulation and recipe.accumulation:
            return cell.accumulation
        micro_batches = _count_micro_batches(request, preset, cell.shape, size, device)
        if cell.accumulation not in (0, micro_batches):
            raise UnfitError(f"{recipe.name} does not support --accumulation.", key="accumulation")
        return micro_batches

    def point(cell: RequestCell) -> Point:
        precision = _check_precision(recipe, site, cell.precision or precisions[0], precisions)
        size = cell.batch_size or sizes.get(precision, 1)
        return Point(
            framework=recipe.name,
            model=model,
            shape=cell.shape,
            precision=precision,
            batch_size_per_device=size,
            accumulation=accumulation(cell, size),
            samples_per_step=0 if size > 0 or cell.accumulation else _global_batch(request, preset),
            xla=preset.xla if request.xla is None else request.xla,
            options=identity,
            protocol=preset.name,
            device=device,
            env=env,
        )

    points = tuple(dict.fromkeys(map(point, cells)))
    return MeasurementPlan(request, device, preset, protocol, values, points, sizes)


def _set_compiler(recipe: Recipe, request: Request) -> Request:
    """Return a request with `--xla` as the option that turns the recipe's compiler on, if any."""
    if request.xla is None or not isinstance(recipe.xla, str):
        return request
    word = str(request.xla).lower()
    setting = str(request.settings.get(recipe.xla, word)).lower()
    if setting != word:
        message = f"xla = {word} and {recipe.xla} = {setting} contradict each other."
        raise UnfitError(message, hint="Leave one of them out.", key="xla")
    return replace(request, xla=None, settings={**request.settings, recipe.xla: word})


def _check_env(
    recipe: Recipe, site: Site, requested_env: tuple[tuple[str, str], ...]
) -> tuple[tuple[str, str], ...]:
    """Return the requested variables, by name; refuse those that are set elsewhere."""
    for name, _ in requested_env:
        if name in recipe.env:
            message = f"{recipe.name} sets {name} itself, to {recipe.env[name]!r}."
            raise UnfitError(message, hint=f"Leave {name} out.", key=f"env.{name}")
        if site.nodes.interface and name in _BY_INTERFACE:
            message = f"{name} follows from nodes.interface, {site.nodes.interface!r}."
            hint = "Change that in the site.toml, or leave the variable out."
            raise UnfitError(message, where=site.where, hint=hint, key=f"env.{name}")
    return tuple(sorted(requested_env))


def _choose_protocol(preset: Preset, request: Request) -> Protocol:
    """Return repeats, iterations and warm-up: the request's, else the recipe's."""
    iters = preset.iters if request.iters is None else request.iters
    skip = preset.skip if request.skip is None else request.skip
    if not 0 <= skip < iters:
        raise UnfitError(
            f"--skip {skip} leaves nothing of --iters {iters} to measure.",
            hint="DLPerf's protocol is --iters 120 --skip 20.",
            key="skip" if request.iters is None else "iters",
        )
    if not 1 <= request.repeats <= MOST_REPEATS:
        message = f"--repeats must be 1 to {MOST_REPEATS}, not {request.repeats}."
        raise UnfitError(message, key="repeats")
    seconds = request.window_seconds
    seconds = preset.window_seconds if seconds is None else seconds
    return Protocol(request.repeats, iters, skip, request.precision_of_median, seconds)


def _check_window(protocol: Protocol, limit: TimeLimit) -> None:
    """Refuse a window that takes as long as a repeat may, or longer."""
    if protocol.window_seconds >= limit.bound:
        raise UnfitError(
            f"A window of {protocol.window_seconds} s does not fit into the time limit of {limit}.",
            hint="Give a longer --time, or a smaller --window-seconds: the start and the warm-up "
            "take time too.",
            key="window_seconds",
        )


def _count_micro_batches(
    request: Request, preset: Preset, shape: Shape, size: int, device: Device
) -> int:
    """Return the micro-batches per step: as requested, else those for the global batch.

    With the largest batch, a global batch leaves them open: one stands for them.
    """
    if request.accumulation:
        return request.accumulation
    global_batch = _global_batch(request, preset)
    is_open = size < 0 and global_batch > 0
    size = max(size, 1)  # a multiple of the batch size is one for each size
    total = global_batch or preset.samples_per_device * size
    if not total:
        return preset.accumulation or 1
    samples_per_pass = shape.gpus * size
    if total % samples_per_pass:
        raise UnfitError(
            f"A global batch of {total} is not a multiple of {shape.gpus} "
            f"{'ranks' if device == 'cpu' else 'GPUs'} x {size} samples.",
            hint="Change --batch-size or --global-batch-size, or give --accumulation.",
            key="global_batch_size" if request.global_batch_size else "batch_sizes",
        )
    return 1 if is_open else total // samples_per_pass


def _global_batch(request: Request, preset: Preset) -> int:
    """Return the samples in one step from which the accumulation follows; 0 if it does not."""
    return 0 if request.accumulation else request.global_batch_size or preset.global_batch_size


def _check_request(recipe: Recipe, request: Request, preset: Preset) -> None:
    for cell in request.cells:
        if cell.batch_size < 0 and cell.batch_size not in LARGEST_WORDS.values():
            message = f"A batch size must be at least 1, not {cell.batch_size}."
            raise UnfitError(message, key="batch_sizes")
    if request.xla and not recipe.xla:
        raise UnfitError(f"{recipe.name} does not support --xla.", key="xla")
    is_accumulating = (
        request.accumulation not in (0, preset.accumulation or 1) or request.global_batch_size
    )
    if is_accumulating and not recipe.accumulation:
        key = "global_batch_size" if request.global_batch_size else "accumulation"
        raise UnfitError(f"{recipe.name} does not support --accumulation.", key=key)


def _check_shape(recipe: Recipe, site: Site, shape: Shape, preset: Preset, device: Device) -> None:
    """Refuse more ranks or nodes than a recipe supports on a device, or GPUs than a node has."""
    for reason, count, limit in (
        (recipe.alone, shape.gpus, "as one rank"),
        (recipe.one_node, shape.nodes, "on one node"),
    ):
        if reason and count > 1:
            message = f"{recipe.name} runs on {device} only {limit}, not as {shape}."
            raise UnfitError(message, hint=reason, key="shapes")
    on_gpus = preset.gpus and device != "cpu"
    if on_gpus and shape.gpus_per_node > site.nodes.gpus_per_node:
        raise UnfitError(
            f"Nodes of site {site.name!r} have {site.nodes.gpus_per_node} GPUs, "
            f"you asked for {shape.gpus_per_node}.",
            where=site.where,
            hint="Ask for fewer per node, or correct nodes.gpus_per_node in the site.toml.",
            key="shapes",
        )


def _check_choice(kind: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        # The nearest word alone misleads: fp64 is not fp16.
        hint = f"{suggest_similar(value, choices)} {list_choices(choices)}".strip()
        message = f"There is no {kind} {value!r} here."
        raise UnfitError(message, hint=hint, key=kind if kind == "protocol" else f"{kind}s")
    return value
