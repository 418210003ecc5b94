"""The combinations of a campaign.toml or a command line, as one plan per campaign.

A campaign has one framework with one model, one value of each option and one environment. Every
cell is checked against its recipe and the site before any campaign is made, so that everything that
can't be measured is refused at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any, NamedTuple

from hpcbert.config.campaignfile import Axes, Exclusion, OptionValues, Selection, Sizes
from hpcbert.config.options import SCALING
from hpcbert.config.recipe import Recipe
from hpcbert.config.site import Site
from hpcbert.errors import ConfigError, Refusals, UsageError
from hpcbert.model import OptionValue, Point, Shape
from hpcbert.script.plan import MeasurementPlan, Request, RequestCell, UnfitError, list_shapes, plan
from hpcbert.system.decode import did_you_mean

# More are a typing error: as many as a point can have repeats.
MOST_POINTS = 10_000
_FRAMEWORKS_HINT = 'Name at least one: frameworks = ["pytorch"]; hpcbert frameworks lists them.'
# The field of a combination without a choice of its own, by the key of its axis.
_UNSET: dict[str, dict[str, Any]] = {
    "models": {"model": ""},
    "precisions": {"precision": ""},
    "batch_sizes": {"size": 0},
    "shapes": {"shape": Shape(1, 1)},
}
_NAMED_AXES = ("options", "env")


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

    @property
    def values(self) -> dict[str, Any]:
        """The requested values by the keys of their axes."""
        return {
            "frameworks": self.framework,
            "models": self.model,
            "precisions": self.precision,
            "batch_sizes": self.size,
            "shapes": self.shape,
            "options": dict(self.options),
            "env": dict(self.env),
        }

    def place(self, key: str) -> str:
        """Return the key of a cell's value, and its index if there are several."""
        axis, value = getattr(self.axes, key, ()), self.values.get(key)
        position = f"[{axis.index(value) + 1}]" if len(axis) > 1 and value in axis else ""
        return f"{self.block}{key}{position}"

    def without(self, key: str) -> Combination | None:
        """Return a cell without its wrong values; None if no value of it was wrong."""
        kind, _, name = key.partition(".")
        changes: dict[str, Any] = _UNSET.get(kind, {})
        if kind in _NAMED_AXES:
            pairs: Iterable[tuple[str, Any]] = getattr(self, kind)
            changes = {kind: tuple(pair for pair in pairs if pair[0] != name)}
        replacement = self._replace(**changes)
        return None if replacement == self else replacement


def expand_axes(selection: Selection, largest: Shape, where: str) -> Iterator[Combination]:
    """Yield every combination that a file or a command line asks for, exclusions included.

    Args:
        selection: The axes, including `include`.
        largest: The shape if no other is named, and the end of the curve.

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
        # `product` makes a list of each of its arguments: not of millions of combinations.
        counts = [len(option.values) for option in axes.options]
        counts += [len(variable.values) for variable in axes.env]
        if prod(counts) > MOST_POINTS:
            raise _too_many(where)
        for cell in _combine_axes(block, axes, _expand_shapes(axes.shapes, largest)):
            count += 1
            if count > MOST_POINTS:
                raise _too_many(where)
            yield cell


def _too_many(where: str) -> UsageError:
    message = f"You asked for more than {MOST_POINTS:,} points."
    return UsageError(message, where=where, hint="Leave some values out.")


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
        curve = list_shapes(largest) if word == SCALING else (word,)
        unique_shapes |= {shape: None for shape in curve if isinstance(shape, Shape)}
    return tuple(sorted(unique_shapes, key=lambda shape: (shape.gpus, shape.nodes)))


@dataclass(frozen=True)
class Matrix:
    """What to measure.

    Attributes:
        selection: The axes, with inclusions and exclusions.
        base: How to run, and the largest shape; its points are ignored.
        where: The file; empty for a command line.
    """

    selection: Selection
    base: Request
    where: str = ""


class _Measurable(NamedTuple):
    """A cell that can be measured."""

    cell: Combination
    plan: MeasurementPlan

    @property
    def point(self) -> Point:
        return self.plan.points[0]

    @property
    def values(self) -> dict[str, Any]:
        """The values by the keys of their axes, defaults included."""
        return {
            **self.cell.values,
            "models": self.point.model,
            "precisions": self.point.precision,
            "batch_sizes": self.point.batch_size_per_device,
            "options": dict(self.plan.options),
        }


def list_plans(
    matrix: Matrix, find_recipe: Callable[[str], tuple[Recipe, Site]]
) -> tuple[MeasurementPlan, ...]:
    """Return the plan of each campaign, in the order of the axes.

    Raises:
        UsageError: A part of it can't be measured; all such parts in one `Refusals`.
    """
    cells = tuple(expand_axes(matrix.selection, matrix.base.shape, matrix.where))
    errors: list[UsageError] = [*_report_unused(matrix, cells)]
    sources: dict[str, tuple[Recipe, Site]] = {}
    for name, cell in {cell.framework: cell for cell in reversed(cells)}.items():
        try:
            sources[name] = find_recipe(name)
        except UsageError as error:  # noqa: PERF203  all of them are reported
            errors.append(_locate_error(error, matrix, cell.place("frameworks")))
    feasible_cells: list[_Measurable] = []
    measurables: list[_Measurable] = []
    for cell in cells:
        if cell.framework not in sources:
            continue
        recipe, site = sources[cell.framework]
        measurable, faults = _try_cell(cell, matrix, recipe, site)
        feasible_cells += [measurable] if measurable else []
        values = (measurable or cell).values
        if not any(_is_excluded(exclusion, values) for exclusion in matrix.selection.exclude):
            measurables += [measurable] if measurable else []
            errors += faults
    all_values = [cell.values for cell in cells] + [cell.values for cell in feasible_cells]
    errors += _check_exclusions(matrix, all_values)
    if not measurables and not errors:
        errors.append(ConfigError("exclude leaves nothing to measure.", where=matrix.where))
    if errors:
        raise _combine_errors(errors)
    return tuple(_group_plans(measurables))


def _try_cell(
    cell: Combination, matrix: Matrix, recipe: Recipe, site: Site
) -> tuple[_Measurable | None, list[UsageError]]:
    """Return a cell with its point; else all errors of it."""
    faults: list[UsageError] = []
    combination: Combination | None = cell
    while combination:
        try:
            if matrix.where:
                _refuse_texts(combination, recipe)
            measurement_plan = plan(recipe, site, _build_request(matrix.base, combination))
        except UnfitError as error:  # noqa: PERF203
            place = cell.place(error.key)
            faults.append(_locate_error(error, matrix, place, cell.framework))
            combination = combination.without(error.key)
        except UsageError as error:
            return None, [*faults, error]
        else:
            return (None if faults else _Measurable(cell, measurement_plan)), faults
    return None, faults


def _refuse_texts(cell: Combination, recipe: Recipe) -> None:
    """Refuse a text for an option of another kind: only a command line has nothing but texts."""
    for name, value in cell.options:
        option = recipe.options.get(name)
        if option and isinstance(value, str) and option.kind != "str":
            message = f"{name} must be of type {option.kind}, not {value!r}."
            raise UnfitError(message, key=f"options.{name}")


def _build_request(base: Request, cell: Combination) -> Request:
    return replace(
        base,
        shape=cell.shape,
        cells=(RequestCell(cell.shape, cell.precision, cell.size),),
        model=cell.model,
        settings=dict(cell.options),
        env=cell.env,
    )


def _group_plans(measurables: Iterable[_Measurable]) -> Iterator[MeasurementPlan]:
    """Yield a plan for all points of a framework with the same model, options and variables."""
    groups: dict[Any, dict[Point, MeasurementPlan]] = {}
    for measurable in measurables:
        point = measurable.point
        values = tuple(sorted(measurable.plan.options.items()))
        key = (point.framework, point.model, values, point.env)
        groups.setdefault(key, {}).setdefault(point, measurable.plan)
    for plans in groups.values():
        first_plan = next(iter(plans.values()))
        largest = max((point.shape for point in plans), key=lambda shape: (shape.gpus, shape.nodes))
        request = replace(first_plan.request, shape=largest)
        yield replace(first_plan, request=request, points=_order_points(plans))


def _order_points(points: Iterable[Point]) -> tuple[Point, ...]:
    """Return points in the order of their jobs.

    Of those with a common batch size, the largest shape is first: it has the least room.
    """
    return tuple(
        sorted(points, key=lambda point: -point.shape.gpus if point.is_common else -(1 << 30))
    )


def _is_excluded(exclusion: Exclusion, values: Mapping[str, Any]) -> bool:
    """Return whether an exclusion matches the values of a cell."""
    for key, value in values.items():
        excluded = getattr(exclusion, key)
        if key in _NAMED_AXES:
            if any(value.get(axis.name) not in axis.values for axis in excluded):
                return False
        elif excluded and value not in excluded:
            return False
    return True


def _check_exclusions(
    matrix: Matrix, all_values: Sequence[Mapping[str, Any]]
) -> Iterator[ConfigError]:
    """Yield an error for each value of an exclusion that matches no cell."""
    values_by_key: dict[str, set[Any]] = {}
    for values in all_values:
        for key, value in values.items():
            values_by_key.setdefault(key, set()).update(value if key in _NAMED_AXES else [value])
    for number, exclusion in enumerate(matrix.selection.exclude, 1):
        for key, choices in values_by_key.items():
            for value in getattr(exclusion, key):
                text = value.name if key in _NAMED_AXES else value
                if text not in choices:
                    yield ConfigError(
                        f"exclude[{number}].{key} names {str(text)!r}, which no point has.",
                        where=matrix.where,
                        hint=did_you_mean(str(text), [str(choice) for choice in choices if choice]),
                    )


def _report_unused(matrix: Matrix, cells: Sequence[Combination]) -> Iterator[UsageError]:
    """Yield an error for each framework or precision with settings that is not measured."""
    pairs = {(cell.framework, cell.precision) for cell in cells}
    frameworks, precisions = (
        {framework for framework, _ in pairs},
        {precision for _, precision in pairs if precision},
    )
    unused_keys: dict[str, tuple[str, set[str]]] = {}
    for axes in (matrix.selection, *matrix.selection.include):
        entries: tuple[Sizes | OptionValues, ...] = (*axes.batch_sizes, *axes.options)
        for entry in entries:
            if entry.framework and entry.framework not in frameworks:
                unused_keys[entry.key] = (entry.framework, frameworks)
        for size in axes.batch_sizes:
            if size.precision and size.precision not in precisions:
                unused_keys.setdefault(size.key, (size.precision, precisions))
    for key, (word, choices) in unused_keys.items():
        message, hint = (
            f"{key} belongs to {word}, which is not measured.",
            did_you_mean(word, choices),
        )
        kind = ConfigError if matrix.where else UsageError
        yield kind(message, where=matrix.where, hint=hint)


def _locate_error(error: UsageError, matrix: Matrix, place: str, framework: str = "") -> UsageError:
    """Return an error of a cell, with its place in the file."""
    if not matrix.where:
        is_ambiguous = framework and len(matrix.selection.frameworks) > 1
        message = f"{framework}: {error.message}" if is_ambiguous else error.message
        return UsageError(message, where=error.where, hint=error.hint)
    prefix = f"{framework}: " if framework else ""
    return ConfigError(f"{place}: {prefix}{error.message}", where=matrix.where, hint=error.hint)


def _combine_errors(errors: Sequence[UsageError]) -> UsageError:
    """Return one error for all, each reported once."""
    usage_errors = list({(str(error), error.hint): error for error in errors}.values())
    return usage_errors[0] if len(usage_errors) == 1 else Refusals(usage_errors)
