"""The cells of a campaign.toml or a command line: every combination of its axes."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcbert.config.options import SCALING
from hpcbert.errors import ConfigError, UsageError
from hpcbert.model import Shape
from hpcbert.script.plan import shapes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hpcbert.config.campaignfile import Axes, Selection, Sizes
    from hpcbert.model import OptionValue

# More are a typing error: as many as a point can have repeats.
MOST = 10_000


class Combination(NamedTuple):
    """One combination as requested; empty texts and 0 leave the choice to the recipe.

    Attributes:
        block: The axes that it comes from: empty for the file's own, or `include[1].`.
    """

    block: str
    axes: Axes
    framework: str
    model: str
    precision: str
    size: int
    shape: Shape
    options: tuple[tuple[str, OptionValue], ...]
    env: tuple[tuple[str, str], ...]

    def place(self, key: str) -> str:
        """Return the key of a cell's value, and its index if there are several."""
        values: dict[str, tuple[tuple[Any, ...], Any]] = {
            "frameworks": (self.axes.frameworks, self.framework),
            "models": (self.axes.models, self.model),
            "precisions": (self.axes.precisions, self.precision),
            "shapes": (self.axes.shapes, self.shape),
        }
        several, value = values.get(key, ((), None))
        at = f"[{several.index(value) + 1}]" if len(several) > 1 and value in several else ""
        return f"{self.block}{key}{at}"

    def without(self, key: str) -> Combination | None:
        """Return a cell without its wrong values; None if no value of it was wrong."""
        kind, _, name = key.partition(".")
        others = {
            "models": self._replace(model=""),
            "precisions": self._replace(precision=""),
            "batch_sizes": self._replace(size=0),
            "shapes": self._replace(shape=Shape(1, 1)),
            "options": self._replace(
                options=tuple(option for option in self.options if option[0] != name)
            ),
            "env": self._replace(env=tuple(one for one in self.env if one[0] != name)),
        }
        other = others.get(kind, self)
        return other if other != self else None


def combinations(selection: Selection, largest: Shape, where: str) -> Iterator[Combination]:
    """Yield every combination that a file or a command line asks for, exclusions included.

    Args:
        selection: The axes, including `include`.
        largest: The shape if no other is named, and the end of the curve.
        where: The file, for messages.

    Raises:
        UsageError: No framework is named, or there are too many combinations.
    """
    blocks: list[tuple[str, Axes]] = [("", selection)] if selection.frameworks else []
    blocks += [
        (f"include[{number}].", one.over(selection))
        for number, one in enumerate(selection.include, 1)
    ]
    if not blocks:
        raise ConfigError("frameworks is missing.", where=where, hint=_FRAMEWORKS)
    count = 0
    for block, axes in blocks:
        if not axes.frameworks:
            message = f"{block}frameworks is missing."
            raise ConfigError(message, where=where, hint=_FRAMEWORKS)
        counts = [len(option.values) for option in axes.options] + [
            len(variable.values) for variable in axes.env
        ]
        few = prod(counts) <= MOST
        for cell in _combined(block, axes, _expanded(axes.shapes, largest)) if few else (None,):
            count += 1
            if cell is None or count > MOST:
                message = f"You asked for more than {MOST:,} points."
                raise UsageError(message, where=where, hint="Leave some values out.")
            yield cell


_FRAMEWORKS = 'Name at least one: frameworks = ["pytorch"]; hpcbert frameworks lists them.'


def _combined(block: str, axes: Axes, every: Sequence[Shape]) -> Iterator[Combination]:
    for framework in axes.frameworks:
        values = {option.name: option.values for option in axes.options if not option.framework}
        values |= {
            option.name: option.values for option in axes.options if option.framework == framework
        }
        named = [one.precision for one in _sizes(axes, framework) if one.precision]
        for model, options, env, precision in product(
            axes.models or ("",),
            _each(values.items()),
            _each((variable.name, variable.values) for variable in axes.env),
            axes.precisions or tuple(dict.fromkeys(named)) or ("",),
        ):
            for size, shape in product(_sizes_of(axes, framework, precision), every):
                yield Combination(
                    block, axes, framework, model, precision, size, shape, options, env
                )


def _each(axes: Iterable[tuple[str, tuple[Any, ...]]]) -> list[tuple[tuple[str, Any], ...]]:
    """Return every combination of names, each with one of its values."""
    named = [[(name, value) for value in values] for name, values in axes]
    return list(product(*named))


def _sizes(axes: Axes, framework: str) -> list[Sizes]:
    return [
        batch_size for batch_size in axes.batch_sizes if batch_size.framework in ("", framework)
    ]


def _sizes_of(axes: Axes, framework: str, precision: str) -> tuple[int, ...]:
    """Return the batch sizes of a precision; the most specific entry wins."""
    best = max(
        (size for size in _sizes(axes, framework) if size.precision in ("", precision)),
        key=lambda sizes: (bool(sizes.framework), bool(sizes.precision)),
        default=None,
    )
    return best.sizes if best else (0,)


def _expanded(words: Sequence[Shape | str], largest: Shape) -> tuple[Shape, ...]:
    """Return the requested shapes, each once, those with few GPUs first."""
    found: dict[Shape, None] = {}
    for word in words or (largest,):
        curve = shapes(largest, scaling=True) if word == SCALING else (word,)
        found |= {one: None for one in curve if isinstance(one, Shape)}
    return tuple(sorted(found, key=lambda shape: (shape.gpus, shape.nodes)))
