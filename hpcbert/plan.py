"""Request to points: which shapes, precisions and batch sizes one submission measures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpcbert.errors import UsageError
from hpcbert.model import Option, OptionValue, Point, Protocol, Recipe, Shape, Site
from hpcbert.strict import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_FIRST_STEP = 4  # DLPerf's curve within a node goes 1, 4, 8 (Oneflow-Inc/DLPerf@c89430b)
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_MOST_REPEATS = 1000  # Slurm's default MaxArraySize of 1001 ends indices at 1000


@dataclass(frozen=True)
class Request:
    """What a person asks `submit` for; empty fields leave the choice to site and recipe.

    Attributes:
        shape: The largest shape.
        scaling: Whether the smaller shapes of the curve are wanted too.
        settings: `--set NAME=VALUE`, unread.
    """

    shape: Shape
    precisions: tuple[str, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    scaling: bool = False
    model: str = ""
    accumulation: int = 1
    xla: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    protocol: Protocol = field(default_factory=Protocol)


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


def points(recipe: Recipe, site: Site, request: Request) -> tuple[Point, ...]:
    """Return every point of a request, the small shapes first.

    Raises:
        UsageError: The recipe, the site or the protocol does not allow what is asked.
    """
    _check(recipe, site, request)
    model = request.model or site.settings(recipe.name).model or recipe.models[0]
    values = option_values(recipe, site, request.settings)
    own = _identity(recipe, values)
    sizes = {**dict(recipe.batch_sizes), **dict(site.settings(recipe.name).batch_sizes)}
    return tuple(
        Point(
            framework=recipe.name,
            model=_one_of("model", model, recipe.models),
            shape=shape,
            precision=_one_of("precision", precision, recipe.precisions),
            batch_size_per_device=size,
            accumulation=request.accumulation,
            xla=request.xla,
            options=own,
        )
        for precision in dict.fromkeys(request.precisions or recipe.precisions[:1])
        for size in dict.fromkeys(request.batch_sizes or (sizes.get(precision, 1),))
        for shape in shapes(request.shape, scaling=request.scaling)
    )


def _check(recipe: Recipe, site: Site, request: Request) -> None:
    protocol = request.protocol
    if not 0 <= protocol.skip < protocol.iters:
        raise UsageError(
            f"--skip {protocol.skip} leaves nothing of --iters {protocol.iters} to measure.",
            hint="DLPerf's protocol is --iters 120 --skip 20.",
        )
    if not 1 <= protocol.repeats <= _MOST_REPEATS:
        raise UsageError(f"--repeats must be 1 to {_MOST_REPEATS}, not {protocol.repeats}.")
    for size in (*request.batch_sizes, request.accumulation):
        if size < 1:
            raise UsageError(f"A batch size or accumulation must be at least 1, not {size}.")
    if request.shape.gpus_per_node > site.gpus_per_node:
        raise UsageError(
            f"Nodes of site {site.name!r} have {site.gpus_per_node} GPUs, "
            f"{request.shape.gpus_per_node} are asked for.",
            where=site.where,
            hint="Change --gpus-per-node, or nodes.gpus_per_node in the site.toml.",
        )
    if request.xla and not recipe.xla:
        raise UsageError(f"{recipe.name} knows no --xla.")
    if request.accumulation != 1 and not recipe.accumulation:
        raise UsageError(f"{recipe.name} knows no --accumulation.")


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
    options = {option.name: option for option in recipe.options}
    values = {option.name: option.default for option in recipe.options}
    for name, value in site.settings(recipe.name).options:
        option = _known(name, options, f"{site.where}: frameworks.{recipe.name}.options")
        values[name] = _checked(option, value, site.where)
    for name, text in settings.items():
        option = _known(name, options, "--set")
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
    try:
        return {"int": int, "float": float}.get(option.kind, str)(text)
    except ValueError:
        return text


def _checked(option: Option, value: OptionValue, where: str) -> OptionValue:
    kinds: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool}
    if option.kind == "float" and type(value) is int:
        value = float(value)
    if type(value) is not kinds[option.kind]:
        raise UsageError(f"{option.name} takes a {option.kind}, not {value!r}.", where=where)
    if option.choices and value not in option.choices:
        listed = ", ".join(str(choice) for choice in option.choices)
        raise UsageError(f"{option.name} must be one of {listed}, not {value!r}.", where=where)
    return value


def _identity(
    recipe: Recipe, values: Mapping[str, OptionValue]
) -> tuple[tuple[str, OptionValue], ...]:
    """Return the options that change the number and differ from the recipe's defaults."""
    return tuple(
        (option.name, values[option.name])
        for option in recipe.options
        if option.measured and values[option.name] != option.default
    )
