"""The cells of a campaign.toml or a command line: every combination of its axes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

from hpcbert.config.campaignfile import Axes, Selection, Sizes
from hpcbert.config.options import SCALING
from hpcbert.errors import ConfigError, UsageError
from hpcbert.model import OptionValue, Shape
from hpcbert.script.plan import list_shapes

# More are a typing error: as many as a point can have repeats.
MOST_POINTS = 10_000


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
        axis, value = values.get(key, ((), None))
        position = f"[{axis.index(value) + 1}]" if len(axis) > 1 and value in axis else ""
        return f"{self.block}{key}{position}"

    def without(self, key: str) -> Combination | None:
        """Return a cell without its wrong values; None if no value of it was wrong."""
        kind, _, name = key.partition(".")
        replacements = {
            "models": self._replace(model=""),
            "precisions": self._replace(precision=""),
            "batch_sizes": self._replace(size=0),
            "shapes": self._replace(shape=Shape(1, 1)),
            "options": self._replace(
                options=tuple(option for option in self.options if option[0] != name)
            ),
            "env": self._replace(
                env=tuple(variable for variable in self.env if variable[0] != name)
            ),
        }
        replacement = replacements.get(kind, self)
        return replacement if replacement != self else None


def expand_axes(selection: Selection, largest: Shape, where: str) -> Iterator[Combination]:
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
        (f"include[{number}].", axes.over(selection))
        for number, axes in enumerate(selection.include, 1)
    ]
    if not blocks:
        raise ConfigError("frameworks is missing.", where=where, hint=_FRAMEWORKS_HINT)
    count = 0
    for block, axes in blocks:
        if not axes.frameworks:
            message = f"{block}frameworks is missing."
            raise ConfigError(message, where=where, hint=_FRAMEWORKS_HINT)
        counts = [len(option.values) for option in axes.options] + [
            len(variable.values) for variable in axes.env
        ]
        is_small = prod(counts) <= MOST_POINTS
        for cell in (
            _combine_axes(block, axes, _expand_shapes(axes.shapes, largest))
            if is_small
            else (None,)
        ):
            count += 1
            if cell is None or count > MOST_POINTS:
                message = f"You asked for more than {MOST_POINTS:,} points."
                raise UsageError(message, where=where, hint="Leave some values out.")
            yield cell


_FRAMEWORKS_HINT = 'Name at least one: frameworks = ["pytorch"]; hpcbert frameworks lists them.'


def _combine_axes(block: str, axes: Axes, all_shapes: Sequence[Shape]) -> Iterator[Combination]:
    for framework in axes.frameworks:
        values = {option.name: option.values for option in axes.options if not option.framework}
        values |= {
            option.name: option.values for option in axes.options if option.framework == framework
        }
        precisions = [
            entry.precision for entry in _framework_sizes(axes, framework) if entry.precision
        ]
        for model, options, env, precision in product(
            axes.models or ("",),
            _combine_values(values.items()),
            _combine_values((variable.name, variable.values) for variable in axes.env),
            axes.precisions or tuple(dict.fromkeys(precisions)) or ("",),
        ):
            for size, shape in product(_precision_sizes(axes, framework, precision), all_shapes):
                yield Combination(
                    block, axes, framework, model, precision, size, shape, options, env
                )


def _combine_values(
    axes: Iterable[tuple[str, tuple[Any, ...]]],
) -> list[tuple[tuple[str, Any], ...]]:
    """Return every combination of names, each with one of its values."""
    pairs = [[(name, value) for value in values] for name, values in axes]
    return list(product(*pairs))


def _framework_sizes(axes: Axes, framework: str) -> list[Sizes]:
    return [
        batch_size for batch_size in axes.batch_sizes if batch_size.framework in ("", framework)
    ]


def _precision_sizes(axes: Axes, framework: str, precision: str) -> tuple[int, ...]:
    """Return the batch sizes of a precision; the most specific entry wins."""
    entry = max(
        (size for size in _framework_sizes(axes, framework) if size.precision in ("", precision)),
        key=lambda sizes: (bool(sizes.framework), bool(sizes.precision)),
        default=None,
    )
    return entry.sizes if entry else (0,)


def _expand_shapes(words: Sequence[Shape | str], largest: Shape) -> tuple[Shape, ...]:
    """Return the requested shapes, each once, those with few GPUs first."""
    unique_shapes: dict[Shape, None] = {}
    for word in words or (largest,):
        curve = list_shapes(largest, scaling=True) if word == SCALING else (word,)
        unique_shapes |= {shape: None for shape in curve if isinstance(shape, Shape)}
    return tuple(sorted(unique_shapes, key=lambda shape: (shape.gpus, shape.nodes)))
