"""The section on the features of the measured programs, each cell with its source; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hpcbert.report.blocks import Block, Heading, Items, Paragraph
from hpcbert.results.grid import Column, Grid
from hpcbert.results.words import plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcbert.config.recipe import Recipe
    from hpcbert.report.model import ReportInput
    from hpcbert.report.words import Words
    from hpcbert.results.grid import Cell

_DIGITS = 12


class _Feature(NamedTuple):
    """One row: its key in recipe.toml, and the value."""

    key: str
    where: str
    tell: Callable[[Recipe, Words], str]


def _yes(value: bool, words: Words) -> str:
    return words("yes" if value else "no")


_FEATURES = (
    _Feature("models", "models", lambda one, _: ", ".join(one.models)),
    _Feature("precisions", "precisions", lambda one, _: ", ".join(one.precisions)),
    _Feature(
        "batch-sizes",
        "[batch_sizes]",
        lambda one, _: ", ".join(f"{name} {size}" for name, size in one.batch_sizes.items()),
    ),
    _Feature("devices", "devices", lambda one, _: ", ".join(one.devices)),
    _Feature("launch", "launch", lambda one, words: words(f"launch.{one.launch}")),
    _Feature("xla", "xla", lambda one, words: _yes(one.xla, words)),
    _Feature("accumulation", "accumulation", lambda one, words: _yes(one.accumulation, words)),
    _Feature("protocols", "[protocols]", lambda one, _: ", ".join(filter(None, one.protocols))),
    _Feature("options", "[options]", lambda one, _: ", ".join(one.options)),
    _Feature("data", "[dataset]", lambda one, _: one.dataset.format if one.dataset else ""),
    _Feature("image", "[image]", lambda one, _: one.image.reference or one.image.base),
    _Feature("program", "[source]", lambda one, _: _program(one)),
)


def features(given: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return the features of each program, as its recipe states them, with sources."""
    names = dict.fromkeys(table.group.framework for table in given.tables)
    recipes = [one for one in given.recipes if one.name in names]
    known = {one.name for one in recipes}
    strangers = [plain(name) for name in names if name not in known]
    blocks: list[Block] = []
    if recipes:
        columns = (*words.columns("feature"), *(Column(plain(one.name)) for one in recipes))
        rows: list[tuple[Cell, ...]] = []
        for feature in _FEATURES:
            told = [plain(feature.tell(one, words)) for one in recipes]
            marked = [f"{text} [{place}]" if text else "" for place, text in enumerate(told, 1)]
            rows.append((words(f"feature.{feature.key}", where=feature.where), *marked))
        blocks += [
            Paragraph(words("features.how")),
            Grid("features", words("features.table"), columns, tuple(rows)),
            Heading(words("features.sources")),
            Items(tuple(_source(place, one, words) for place, one in enumerate(recipes, 1))),
        ]
        blocks += [block for one in recipes for block in _problems(one, words)]
    if strangers:
        blocks.append(Paragraph(words("features.none", names=", ".join(strangers))))
    return tuple(blocks)


def _source(place: int, recipe: Recipe, words: Words) -> str:
    digest = f"{recipe.digest[:_DIGITS]}…" if recipe.digest else words("unknown")
    told = words("features.source", place=place, name=plain(recipe.name), digest=digest)
    upstream = plain(_program(recipe))
    flags = ", ".join(map(plain, recipe.source.flags))
    told += words("features.upstream", program=upstream) if upstream else ""
    return told + (words("features.flags", tables=flags) if flags else "")


def _program(recipe: Recipe) -> str:
    source = recipe.source
    if not source.repository:
        return ""
    commit = f"@{source.commit[:_DIGITS]}" if source.commit else ""
    return f"{source.repository}{commit}" + (f":{source.path}" if source.path else "")


def _problems(recipe: Recipe, words: Words) -> tuple[Block, ...]:
    if not recipe.problems:
        return ()
    title = words("features.problems", name=plain(recipe.name))
    return (Heading(title), Items(tuple(map(plain, recipe.problems))))
