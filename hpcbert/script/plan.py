"""Request to plan: the shapes, precisions and batch sizes that one submission measures, and how."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from hpcbert.config.options import MOST_REPEATS
from hpcbert.config.recipe import KINDS, Preset, Recipe
from hpcbert.config.schedulers import find_traits
from hpcbert.config.site import Site
from hpcbert.errors import UsageError
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
    """A part of a request does not fit recipe, site or protocol; `key` is of campaign.toml."""

    def __init__(self, message: str, hint: str = "", *, where: str = "", key: str = "") -> None:
        super().__init__(message, where=where, hint=hint)
        self.key = key


def read_options(
    recipe: Recipe, site: Site, settings: Mapping[str, OptionValue]
) -> dict[str, OptionValue]:
    """Return the value of every option: `--set`, else the site's, else the recipe's.

    Raises:
        UsageError: An option is unknown or its value of the wrong kind.
    """
    values = {name: option.default for name, option in recipe.options.items()}
    site_options = site.settings(recipe.name).options
    typed = {name: _parse_setting(recipe, name, text) for name, text in settings.items()}
    place = f"{site.where}: frameworks.{recipe.name}.options"
    for where, options in ((place, site_options), ("--set", typed)):
        for name, value in options.items():
            key = f"options.{name}"
            if name not in recipe.options:
                hint = did_you_mean(name, recipe.options)
                raise UnfitError(f"There is no option {name!r}.", hint, where=where, key=key)
            option = recipe.options[name]
            values[name] = float(value) if option.kind == "float" and type(value) is int else value
            if problem := option.explain_misfit(values[name]):
                raise UnfitError(f"{name} {problem}.", where=where, key=key)
    return values


def _parse_setting(recipe: Recipe, name: str, text: OptionValue) -> OptionValue:
    """Read a typed value from a command line's text; unreadable text stays text."""
    kind = recipe.options[name].kind if name in recipe.options else "str"
    if isinstance(text, str) and kind == "bool" and text.lower() in (*_TRUE, *_FALSE):
        return text.lower() in _TRUE
    if isinstance(text, str) and kind in {"int", "float"}:
        with suppress(ValueError):
            return KINDS[kind](text)
    return text


_FIRST_STEP = 4  # DLPerf's curve within a node goes 1, 4, 8 (Oneflow-Inc/DLPerf@c89430b)
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
        device: What the ranks compute on; empty for the site's, then the recipe's first.
        accumulation: Micro-batches in one step; 0 leaves it to the protocol.
        global_batch_size: Samples in one step, from which the accumulation follows; 0 as above.
        iters, skip, window_seconds: Iterations, warm-up and least length of the window; None leaves
            them to the protocol.
        settings: The recipe's options; from a command line as unread texts.
        env: Environment variables of the ranks that are part of the measurement.
        precision_of_median: Share of the median; runs stop once its interval is narrower, and
            `repeats` is the maximum.
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
    gpus = largest.gpus_per_node
    powers = [1 << exponent for exponent in range(1, max(gpus, largest.nodes).bit_length())]
    within_node = {1, gpus, *(count for count in powers if _FIRST_STEP <= count < gpus)}
    whole_nodes = {largest.nodes, *(count for count in powers if count < largest.nodes)} - {1}
    node_shapes = [Shape(1, count) for count in sorted(within_node)]
    return (*node_shapes, *(Shape(nodes, gpus) for nodes in sorted(whole_nodes)))


@dataclass(frozen=True)
class MeasurementPlan:
    """A request, checked against a recipe and a site.

    Attributes:
        recipe: Adapted to the device.
        sizes: Samples per device by precision if no number is given; the search for the largest
            batch begins with them.
    """

    recipe: Recipe
    site: Site
    request: Request
    device: Device
    preset: Preset
    protocol: Protocol
    options: Mapping[str, OptionValue]
    points: tuple[Point, ...]
    sizes: Mapping[str, int]


def choose_device(recipe: Recipe, site: Site, requested_device: str) -> Device:
    """Return the device of the ranks: as requested, else the site's, else the recipe's first.

    Raises:
        UsageError: The device does not exist, or the recipe does not run on it.
    """
    name = requested_device or site.settings(recipe.name).device
    is_of_site = name and not requested_device
    where = f"{site.where}: frameworks.{recipe.name}.device" if is_of_site else ""
    if name and name not in DEVICES:
        message = f"There is no device {name!r}."
        raise UsageError(message, where=where, hint=did_you_mean(name, DEVICES))
    for device in recipe.devices:
        if device == name or not name:
            return device
    message = f"{recipe.name} runs on {' or '.join(recipe.devices)}, not on {name}."
    raise UsageError(
        message, where=where, hint="hpcbert frameworks show NAME has the devices of each."
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
    protocol = _choose_protocol(preset, request, site.slurm.time_limit)
    _check_request(recipe, request, preset)
    request = _set_compiler(recipe, request)
    precisions = preset.precisions or recipe.precisions
    cells = request.cells or (RequestCell(request.shape),)
    on_gpus = preset.gpus and device != "cpu"
    for shape in dict.fromkeys(cell.shape for cell in cells):
        _check_shape(recipe, site, shape, device, on_gpus=on_gpus)
    values = read_options(recipe, site, request.settings)
    settings = site.settings(recipe.name)
    model = request.model or settings.model or recipe.models[0]
    _check_choice("model", model, recipe.models)
    gres = site.slurm.gres if on_gpus and find_traits(site.scheduler).srun else ""
    usual_sizes = recipe.multiply_batch_sizes(gres)
    sizes: dict[str, int] = dict((*usual_sizes.items(), *settings.batch_sizes.items()))
    env = _check_env(recipe, site, request.env)
    # Options that change the number and differ from the recipe's defaults.
    identity = tuple(
        (name, values[name])
        for name, option in recipe.options.items()
        if option.measured and values[name] != option.default
    )
    global_batch = _global_batch(request, preset)

    def point(cell: RequestCell) -> Point:
        precision = cell.precision or precisions[0]
        _check_precision(recipe, precision, precisions)
        size = cell.batch_size or sizes.get(precision, 1)
        return Point(
            framework=recipe.name,
            model=model,
            shape=cell.shape,
            precision=precision,
            batch_size_per_device=size,
            accumulation=_choose_accumulation(recipe, request, preset, cell, size),
            samples_per_step=0 if size > 0 or cell.accumulation else global_batch,
            xla=preset.xla if request.xla is None else request.xla,
            options=identity,
            protocol=preset.name,
            device=device,
            env=env,
        )

    points = tuple(dict.fromkeys(map(point, cells)))
    return MeasurementPlan(recipe, site, request, device, preset, protocol, values, points, sizes)


def _check_precision(recipe: Recipe, precision: str, precisions: tuple[str, ...]) -> None:
    if precision in PRECISIONS and precision not in precisions:
        message = f"{recipe.name} does not run {precision} here; it runs {', '.join(precisions)}."
        hint = "hpcbert frameworks list shows what others run."
        raise UnfitError(message, hint, key="precisions")
    _check_choice("precision", precision, precisions)


def _set_compiler(recipe: Recipe, request: Request) -> Request:
    """Return a request with `--xla` as the option that turns the recipe's compiler on, if any."""
    if request.xla is None or not isinstance(recipe.xla, str):
        return request
    word = str(request.xla).lower()
    setting = str(request.settings.get(recipe.xla, word)).lower()
    if setting != word:
        message = f"xla = {word} and {recipe.xla} = {setting} contradict each other."
        raise UnfitError(message, "Leave one of them out.", key="xla")
    return replace(request, xla=None, settings={**request.settings, recipe.xla: word})


def _check_env(
    recipe: Recipe, site: Site, requested_env: tuple[tuple[str, str], ...]
) -> tuple[tuple[str, str], ...]:
    """Return the requested variables, by name; refuse those that are set elsewhere."""
    for name, _ in requested_env:
        if name in recipe.env:
            message = f"{recipe.name} sets {name} itself, to {recipe.env[name]!r}."
            raise UnfitError(message, f"Leave {name} out.", key=f"env.{name}")
        if site.nodes.interface and name in _BY_INTERFACE:
            message = f"{name} follows from nodes.interface, {site.nodes.interface!r}."
            hint = "Change that in the site.toml, or leave the variable out."
            raise UnfitError(message, hint, where=site.where, key=f"env.{name}")
    return tuple(sorted(requested_env))


def _choose_protocol(preset: Preset, request: Request, limit: TimeLimit) -> Protocol:
    """Return repeats, iterations and warm-up: the request's, else the recipe's."""
    iters = preset.iters if request.iters is None else request.iters
    skip = preset.skip if request.skip is None else request.skip
    if not 0 <= skip < iters:
        message = f"--skip {skip} leaves nothing of --iters {iters} to measure."
        key = "skip" if request.iters is None else "iters"
        raise UnfitError(message, "DLPerf's protocol is --iters 120 --skip 20.", key=key)
    if not 1 <= request.repeats <= MOST_REPEATS:
        message = f"--repeats must be 1 to {MOST_REPEATS}, not {request.repeats}."
        raise UnfitError(message, key="repeats")
    seconds = request.window_seconds
    seconds = preset.window_seconds if seconds is None else seconds
    if seconds >= limit.bound:
        message = f"A window of {seconds} s does not fit into the time limit of {limit}."
        hint = "Give a longer --time, or a smaller --window-seconds; start and warm-up take time."
        raise UnfitError(message, hint, key="window_seconds")
    return Protocol(request.repeats, iters, skip, request.precision_of_median, seconds)


def _choose_accumulation(
    recipe: Recipe, request: Request, preset: Preset, cell: RequestCell, size: int
) -> int:
    """Return the micro-batches per step: as requested, else those for the global batch.

    With the largest batch, a global batch leaves them open: one stands for them.
    """
    if cell.accumulation and recipe.accumulation:
        return cell.accumulation
    global_batch = _global_batch(request, preset)
    # A multiple of the batch size is one for each size.
    total = global_batch or preset.samples_per_device * max(size, 1)
    count = request.accumulation or preset.accumulation or 1
    if total and not request.accumulation:
        count, remainder = divmod(total, cell.shape.gpus * max(size, 1))
        if remainder:
            samples = f"{cell.shape.gpus} devices x {max(size, 1)} samples"
            message = f"A global batch of {total} is not a multiple of {samples}."
            hint = "Change --batch-size or --global-batch-size, or give --accumulation."
            key = "global_batch_size" if request.global_batch_size else "batch_sizes"
            raise UnfitError(message, hint, key=key)
        count = 1 if size < 0 and global_batch else count
    if cell.accumulation not in (0, count):
        raise UnfitError(f"{recipe.name} does not support --accumulation.", key="accumulation")
    return count


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
    is_accumulating = request.accumulation not in (0, preset.accumulation or 1)
    if (is_accumulating or request.global_batch_size) and not recipe.accumulation:
        key = "global_batch_size" if request.global_batch_size else "accumulation"
        raise UnfitError(f"{recipe.name} does not support --accumulation.", key=key)


def _check_shape(
    recipe: Recipe, site: Site, shape: Shape, device: Device, *, on_gpus: bool
) -> None:
    """Refuse more ranks or nodes than a recipe supports on a device, or GPUs than a node has."""
    for reason, count, limit in (
        (recipe.alone, shape.gpus, "as one rank"),
        (recipe.one_node, shape.nodes, "on one node"),
    ):
        if reason and count > 1:
            message = f"{recipe.name} runs on {device} only {limit}, not as {shape}."
            raise UnfitError(message, reason, key="shapes")
    most, count = site.nodes.gpus_per_node, shape.gpus_per_node
    if on_gpus and count > most:
        message = f"Nodes of site {site.name!r} have {most} GPUs, you asked for {count}."
        hint = "Ask for fewer per node, or correct nodes.gpus_per_node in the site.toml."
        raise UnfitError(message, hint, where=site.where, key="shapes")


def _check_choice(kind: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        # The nearest word alone misleads: fp64 is not fp16.
        hint = f"{suggest_similar(value, choices)} {list_choices(choices)}".strip()
        key = kind if kind == "protocol" else f"{kind}s"
        raise UnfitError(f"There is no {kind} {value!r} here.", hint, key=key)
