"""The combinations of a campaign.toml or a command line, as one plan per campaign.

A campaign has one framework with one model, one value of each option and one environment. Every
cell is checked against its recipe and the site before any campaign is made, so that everything that
can't be measured is refused at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import Any

from hpcbert.config.campaignfile import Axes, AxisValues, Exclusion, Selection
from hpcbert.config.recipe import Recipe
from hpcbert.config.site import Site
from hpcbert.errors import ConfigError, Refusals, UsageError
from hpcbert.model import PRECISIONS, Point, Shape
from hpcbert.script.plan import MeasurementPlan, Request, RequestCell, UnfitError, list_shapes, plan
from hpcbert.system.decode import did_you_mean

# More are a typing error: as many as a point can have repeats.
MOST_POINTS = 10_000
_FRAMEWORKS_HINT = 'Name at least one: frameworks = ["pytorch"]; hpcbert frameworks lists them.'
# Values that leave the choice to the recipe.
_UNSET = {"models": "", "precisions": "", "batch_sizes": 0, "shapes": Shape(1, 1)}
_NAMED_AXES = ("options", "env")


# A requested combination: where it comes from, empty for the file's own axes or `include[1].`; and
# its values by the keys of their axes, empty texts and 0 where the choice is left to the recipe.
Cell = tuple[str, dict[str, Any]]


def _expand_axes(selection: Selection, largest: Shape, where: str) -> Iterator[Cell]:
    blocks: list[tuple[str, Axes]] = []
    if selection.frameworks or not selection.include:
        blocks.append(("", selection))
    for number, axes in enumerate(selection.include, 1):
        blocks.append((f"include[{number}].", axes.over(selection)))
    for block, axes in blocks:
        if not axes.frameworks:
            message = f"{block}frameworks is missing."
            raise ConfigError(message, where=where, hint=_FRAMEWORKS_HINT)
        for framework in axes.frameworks:
            for values in _combine_values(axes, framework, largest):
                yield block, {"frameworks": framework, **values}


def _combine_values(axes: Axes, framework: str, largest: Shape) -> Iterator[dict[str, Any]]:
    # A framework's own values replace those for all.
    options = {option.name: option.values for option in axes.options if not option.framework}
    options |= {o.name: o.values for o in axes.options if o.framework == framework}
    batch_sizes = [sizes for sizes in axes.batch_sizes if sizes.framework in ("", framework)]
    named = tuple(dict.fromkeys(sizes.name for sizes in batch_sizes if sizes.name))
    shapes = _expand_shapes(axes.shapes, largest)
    for model in axes.models or ("",):
        for option_values in product(*options.values()):
            for texts in product(*(variable.values for variable in axes.env)):
                for precision in axes.precisions or named or ("",):
                    for size, shape in product(_choose_sizes(batch_sizes, precision), shapes):
                        yield {
                            "models": model,
                            "precisions": precision,
                            "batch_sizes": size,
                            "shapes": shape,
                            "options": dict(zip(options, option_values, strict=True)),
                            "env": {v.name: t for v, t in zip(axes.env, texts, strict=True)},
                        }


def _choose_sizes(batch_sizes: Sequence[AxisValues], precision: str) -> tuple[Any, ...]:
    """Return the batch sizes of a precision; the most specific entry wins."""
    entries = [sizes for sizes in batch_sizes if sizes.name in ("", precision)]
    entries.sort(key=lambda sizes: (bool(sizes.framework), bool(sizes.name)))
    return entries[-1].values if entries else (0,)


def _expand_shapes(words: Sequence[Shape | str], largest: Shape) -> tuple[Shape, ...]:
    """Return the requested shapes, each once, those with few GPUs first."""
    shapes: set[Shape] = set()
    for word in words or (largest,):
        shapes.update(list_shapes(largest) if isinstance(word, str) else (word,))
    return tuple(sorted(shapes, key=lambda shape: (shape.gpus, shape.nodes)))


def list_plans(
    selection: Selection,
    base: Request,
    find_recipe: Callable[[str], tuple[Recipe, Site]],
    *,
    where: str = "",
) -> tuple[MeasurementPlan, ...]:
    """Return the plan of each campaign, in the order of the axes.

    Args:
        base: How to run, and the largest shape; its points are ignored.

    Raises:
        UsageError: A part of it can't be measured; all such parts in one `Refusals`.
    """
    cells = list(islice(_expand_axes(selection, base.shape, where), MOST_POINTS + 1))
    if len(cells) > MOST_POINTS:
        message = f"You asked for more than {MOST_POINTS:,} points."
        raise UsageError(message, where=where, hint="Leave some values out.")
    errors = [*_report_unused(selection, cells, where)]
    plans: list[MeasurementPlan] = []
    all_values = []
    for block, requested_values in cells:
        cell_plan, faults = _plan_or_explain(requested_values, base, find_recipe)
        values = _complete_values(requested_values, cell_plan)
        all_values.append(values)
        if any(_is_excluded(exclusion, values) for exclusion in selection.exclude):
            continue
        plans += [cell_plan] if cell_plan else []
        framework = values["frameworks"]
        errors += [_locate_error(fault, block, framework, where) for fault in faults]
    errors += _check_exclusions(selection, all_values, where)
    if not plans and not errors:
        errors.append(ConfigError("exclude leaves nothing to measure.", where=where))
    errors = list({(str(error), error.hint): error for error in errors}.values())
    if errors:
        raise errors[0] if len(errors) == 1 else Refusals(errors)
    return tuple(_group_plans(plans))


def _plan_or_explain(
    values: Mapping[str, Any], base: Request, find_recipe: Callable[[str], tuple[Recipe, Site]]
) -> tuple[MeasurementPlan | None, list[UsageError]]:
    """Return the plan of a cell; else all errors of it, found by leaving out what is wrong."""
    try:
        return _plan_cell(values, base, find_recipe), []
    except UnfitError as error:
        reduced_values = _unset_value(values, error.key)
        if reduced_values == values:
            return None, [error]
        _, further_errors = _plan_or_explain(reduced_values, base, find_recipe)
        return None, [error, *further_errors]
    except UsageError as error:
        return None, [error]


def _unset_value(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    kind, _, name = key.partition(".")
    if name:
        return {**values, kind: {n: value for n, value in values[kind].items() if n != name}}
    return {**values, kind: _UNSET[kind]} if kind in _UNSET else values


def _plan_cell(
    values: Mapping[str, Any], base: Request, find_recipe: Callable[[str], tuple[Recipe, Site]]
) -> MeasurementPlan:
    recipe, site = find_recipe(values["frameworks"])
    request = replace(
        base,
        shape=values["shapes"],
        cells=(RequestCell(values["shapes"], values["precisions"], values["batch_sizes"]),),
        model=values["models"],
        settings=values["options"],
        env=tuple(values["env"].items()),
    )
    return plan(recipe, site, request)


def _complete_values(values: dict[str, Any], cell_plan: MeasurementPlan | None) -> dict[str, Any]:
    """Return the values of a cell by the keys of their axes, defaults included."""
    if cell_plan is None:
        return values
    (point,) = cell_plan.points
    return {
        **values,
        "models": point.model,
        "precisions": point.precision,
        "batch_sizes": point.batch_size_per_device,
        "options": dict(cell_plan.options),
    }


def _group_plans(plans: Sequence[MeasurementPlan]) -> Iterator[MeasurementPlan]:
    """Yield a plan for all points of a framework with the same model, options and variables.

    Of points with a common batch size, the largest shape is first: it has the least room.
    """
    groups: dict[Any, dict[Point, MeasurementPlan]] = {}
    for cell_plan in plans:
        (point,) = cell_plan.points
        options = tuple(sorted(cell_plan.options.items()))
        key = (point.framework, point.model, options, point.env)
        groups.setdefault(key, {}).setdefault(point, cell_plan)
    for group in groups.values():
        first_plan = next(iter(group.values()))
        largest = max((point.shape for point in group), key=lambda shape: (shape.gpus, shape.nodes))
        points = sorted(
            group, key=lambda point: -point.shape.gpus if point.is_common else -math.inf
        )
        request = replace(first_plan.request, shape=largest)
        yield replace(first_plan, request=request, points=tuple(points))


def _is_excluded(exclusion: Exclusion, values: Mapping[str, Any]) -> bool:
    for key, value in values.items():
        excluded = getattr(exclusion, key)
        if key in _NAMED_AXES:
            if any(value.get(axis.name) not in axis.values for axis in excluded):
                return False
        elif excluded and value not in excluded:
            return False
    return True


def _check_exclusions(
    selection: Selection, all_values: Sequence[Mapping[str, Any]], where: str
) -> Iterator[ConfigError]:
    for number, exclusion in enumerate(selection.exclude, 1):
        for key in all_values[0]:
            is_named = key in _NAMED_AXES
            words = [entry.name if is_named else entry for entry in getattr(exclusion, key)]
            choices: set[Any] = set()
            for values in all_values if words else ():
                choices.update(values[key] if is_named else [values[key]])
            for word in words:
                if word not in choices:
                    yield ConfigError(
                        f"exclude[{number}].{key} names {str(word)!r}, which no point has.",
                        where=where,
                        hint=did_you_mean(str(word), [str(choice) for choice in choices if choice]),
                    )


def _report_unused(selection: Selection, cells: Sequence[Cell], where: str) -> Iterator[UsageError]:
    """Yield an error for each framework or precision with settings that is not measured."""
    frameworks = {values["frameworks"] for _, values in cells}
    precisions = {values["precisions"] for _, values in cells} - {""}
    kind = ConfigError if where else UsageError
    for axes in (selection, *selection.include):
        for entry in (*axes.batch_sizes, *axes.options):
            word, choices = entry.framework, frameworks
            if entry in axes.batch_sizes and word in {"", *frameworks}:
                word, choices = entry.name, precisions
            if word and word not in choices:
                if entry in axes.batch_sizes:
                    choices = {*choices, *PRECISIONS}
                key = entry.key if where else "--batch-size"
                message = f"{key} belongs to {word}, which is not measured."
                yield kind(message, where=where, hint=did_you_mean(word, choices))


def _locate_error(error: UsageError, block: str, framework: str, where: str) -> UsageError:
    """Return an error of a cell, with its place in the file if that has a key for it."""
    if isinstance(error, ConfigError) or not where:
        return error
    key = error.key if isinstance(error, UnfitError) else "frameworks"
    message = f"{block}{key}: {framework}: {error.message}"
    return ConfigError(message, where=where, hint=error.hint)
