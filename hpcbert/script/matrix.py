"""The combinations of a campaign.toml or a command line, as one request per campaign.

A campaign has one framework with one model, one value of each option and one environment. Every
cell is checked against its recipe and the site before any campaign is made, so that everything that
can't be measured is refused at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcbert.errors import ConfigError, Refusals, UsageError
from hpcbert.script.cells import combinations
from hpcbert.script.plan import Request, RequestCell, plan
from hpcbert.script.settings import UnfitError
from hpcbert.system.decode import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from hpcbert.config.campaignfile import Exclusion, Selection
    from hpcbert.config.recipe import Recipe
    from hpcbert.config.site import Site
    from hpcbert.model import OptionValue, Point
    from hpcbert.script.cells import Combination


@dataclass(frozen=True)
class Matrix:
    """What to measure.

    Attributes:
        asked: The axes, with inclusions and exclusions.
        base: How to run, and the largest shape; its points are ignored.
        where: The file; empty for a command line.
    """

    asked: Selection
    base: Request
    where: str = ""


class Portion(NamedTuple):
    """The request of one campaign."""

    framework: str
    request: Request


class _Measurable(NamedTuple):
    """A cell that can be measured."""

    cell: Combination
    point: Point
    options: Mapping[str, OptionValue]


def portions(matrix: Matrix, find: Callable[[str], tuple[Recipe, Site]]) -> tuple[Portion, ...]:
    """Return the request of each campaign, in the order of the axes.

    Args:
        matrix: What to measure.
        find: Returns the recipe of a framework for its device, and the site for that framework.

    Raises:
        UsageError: A part of it can't be measured; all such parts in one `Refusals`.
    """
    cells = tuple(combinations(matrix.asked, matrix.base.shape, matrix.where))
    errors: list[UsageError] = [*_unused(matrix, cells)]
    known: dict[str, tuple[Recipe, Site]] = {}
    for name, cell in {cell.framework: cell for cell in reversed(cells)}.items():
        try:
            known[name] = find(name)
        except UsageError as error:  # noqa: PERF203  all of them are reported
            errors.append(_placed(error, matrix, cell.place("frameworks")))
    able: list[_Measurable] = []
    measurables: list[_Measurable] = []
    for cell in cells:
        if cell.framework not in known:
            continue
        recipe, site = known[cell.framework]
        measurable, faults = _tried(cell, matrix, recipe, site)
        able += [measurable] if measurable else []
        if not any(_fits(exclusion, cell, measurable) for exclusion in matrix.asked.exclude):
            measurables += [measurable] if measurable else []
            errors += faults
    errors += _idle(matrix, cells, able)
    if not measurables and not errors:
        errors.append(ConfigError("exclude leaves nothing to measure.", where=matrix.where))
    if errors:
        raise _together(errors)
    return tuple(_grouped(measurables, matrix.base))


def _tried(
    cell: Combination, matrix: Matrix, recipe: Recipe, site: Site
) -> tuple[_Measurable | None, list[UsageError]]:
    """Return a cell with its point; else all errors of it."""
    faults: list[UsageError] = []
    combination: Combination | None = cell
    while combination:
        try:
            if matrix.where:
                _refuse_texts(combination, recipe)
            measurement_plan = plan(recipe, site, _request(matrix.base, (combination,)))
        except UnfitError as error:  # noqa: PERF203
            place = cell.place(error.key)
            faults.append(_placed(error, matrix, place, cell.framework))
            combination = combination.without(error.key)
        except UsageError as error:
            return None, [*faults, error]
        else:
            measurable = (
                None
                if faults
                else _Measurable(cell, measurement_plan.points[0], measurement_plan.options)
            )
            return measurable, faults
    return None, faults


def _refuse_texts(cell: Combination, recipe: Recipe) -> None:
    """Refuse a text for an option of another kind: only a command line has nothing but texts.

    Raises:
        UsageError: There is one.
    """
    for name, value in cell.options:
        option = recipe.options.get(name)
        if option and isinstance(value, str) and option.kind != "str":
            message = f"{name} must be of type {option.kind}, not {value!r}."
            raise UnfitError(message, key=f"options.{name}")


def _request(base: Request, cells: Sequence[Combination], sizes: Sequence[int] = ()) -> Request:
    """Return the request for cells of one campaign."""
    first = cells[0]
    largest = max((cell.shape for cell in cells), key=lambda shape: (shape.gpus, shape.nodes))
    return replace(
        base,
        shape=largest,
        cells=tuple(
            RequestCell(cell.shape, cell.precision, size)
            for cell, size in zip(
                cells, sizes or [combination.size for combination in cells], strict=True
            )
        ),
        model=first.model,
        settings=dict(first.options),
        env=first.env,
    )


def _grouped(measurables: Iterable[_Measurable], base: Request) -> Iterator[Portion]:
    groups: dict[Any, dict[Point, _Measurable]] = {}
    for measurable in measurables:
        values = tuple(sorted(measurable.options.items()))
        key = (measurable.point.framework, measurable.point.model, values, measurable.point.env)
        groups.setdefault(key, {}).setdefault(measurable.point, measurable)
    for points in groups.values():
        found = tuple(points.values())
        cells = [
            measurable.cell._replace(precision=measurable.point.precision) for measurable in found
        ]
        sizes = [measurable.point.batch_size_per_device for measurable in found]
        yield Portion(found[0].cell.framework, _request(base, cells, sizes))


def _fits(exclusion: Exclusion, cell: Combination, measurable: _Measurable | None) -> bool:
    """Return whether an exclusion matches a cell; if that can be measured, also by its defaults."""
    options, model, precision, size = dict(cell.options), cell.model, cell.precision, cell.size
    if measurable:
        options, point = dict(measurable.options), measurable.point
        model, precision, size = point.model, point.precision, point.batch_size_per_device
    env = dict(cell.env)
    return (
        _allows(exclusion.frameworks, cell.framework)
        and _allows(exclusion.models, model)
        and _allows(exclusion.precisions, precision)
        and _allows(exclusion.batch_sizes, size)
        and _allows(exclusion.shapes, cell.shape)
        and all(options.get(option.name) in option.values for option in exclusion.options)
        and all(env.get(variable.name) in variable.values for variable in exclusion.env)
    )


def _allows(values: tuple[Any, ...], value: object) -> bool:
    return not values or value in values


def _idle(
    matrix: Matrix, cells: Sequence[Combination], able: Sequence[_Measurable]
) -> Iterator[ConfigError]:
    """Yield an error for each value of an exclusion that matches no cell."""
    had: dict[str, set[Any]] = {
        "frameworks": {cell.framework for cell in cells},
        "models": {cell.model for cell in cells} | {measurable.point.model for measurable in able},
        "precisions": {cell.precision for cell in cells}
        | {measurable.point.precision for measurable in able},
        "shapes": {cell.shape for cell in cells},
        "batch_sizes": {cell.size for cell in cells}
        | {measurable.point.batch_size_per_device for measurable in able},
    }
    names = {
        "options": {name for cell in cells for name, _ in cell.options}
        | {name for measurable in able for name in measurable.options},
        "env": {name for cell in cells for name, _ in cell.env},
    }
    for number, exclusion in enumerate(matrix.asked.exclude, 1):
        for key, values in had.items():
            yield from _unheard(matrix, f"exclude[{number}].{key}", getattr(exclusion, key), values)
        for key, values in names.items():
            asked = [each.name for each in getattr(exclusion, key)]
            yield from _unheard(matrix, f"exclude[{number}].{key}", asked, values)


def _unheard(
    matrix: Matrix, key: str, asked: Iterable[Any], values: set[Any]
) -> Iterator[ConfigError]:
    for value in asked:
        if value not in values:
            texts = [str(each) for each in values if each]
            yield ConfigError(
                f"{key} names {str(value)!r}, which no point has.",
                where=matrix.where,
                hint=did_you_mean(str(value), texts),
            )


def _unused(matrix: Matrix, cells: Sequence[Combination]) -> Iterator[UsageError]:
    """Yield an error for each framework or precision with settings that is not measured."""
    pairs = {(cell.framework, cell.precision) for cell in cells}
    frameworks, precisions = {one for one, _ in pairs}, {one for _, one in pairs if one}
    found: dict[str, tuple[str, set[str]]] = {}
    for axes in (matrix.asked, *matrix.asked.include):
        own = {batch_size.key: batch_size.framework for batch_size in axes.batch_sizes}
        own |= {option.key: option.framework for option in axes.options}
        for key, name in own.items():
            if name and name not in frameworks:
                found[key] = (name, frameworks)
        for size in axes.batch_sizes:
            if size.precision and size.precision not in precisions:
                found.setdefault(size.key, (size.precision, precisions))
    for key, (word, known) in found.items():
        message, hint = (
            f"{key} belongs to {word}, which is not measured.",
            did_you_mean(word, known),
        )
        kind = ConfigError if matrix.where else UsageError
        yield kind(message, where=matrix.where, hint=hint)


def _placed(error: UsageError, matrix: Matrix, place: str, framework: str = "") -> UsageError:
    """Return an error of a cell, with its place in the file."""
    if not matrix.where:
        several = framework and len(matrix.asked.frameworks) > 1
        message = f"{framework}: {error.message}" if several else error.message
        return UsageError(message, where=error.where, hint=error.hint)
    about = f"{framework}: " if framework else ""
    return ConfigError(f"{place}: {about}{error.message}", where=matrix.where, hint=error.hint)


def _together(errors: Sequence[UsageError]) -> UsageError:
    """Return one error for all, each reported once."""
    usage_errors = list({(str(error), error.hint): error for error in errors}.values())
    return usage_errors[0] if len(usage_errors) == 1 else Refusals(usage_errors)
