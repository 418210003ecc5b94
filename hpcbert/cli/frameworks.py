"""hpcbert frameworks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hpcbert.cli.groups import ListByDefault
from hpcbert.cli.output import Result, returns_result
from hpcbert.config import places, recipe, site
from hpcbert.flows.frameworks import described


@click.group(cls=ListByDefault)
def frameworks() -> None:
    """List the frameworks that can be measured."""


def _folders(templates: tuple[str, ...]) -> tuple[Path, ...]:
    here = site.load()
    return places.recipe_folders(Path(here.where), templates)


_TEMPLATES = click.option("--templates", multiple=True, help="A folder with recipes of your own.")


@frameworks.command("list")
@_TEMPLATES
@returns_result
def frameworks_list(templates: tuple[str, ...] = ()) -> Result:
    """List them, a line each."""
    found = places.list_recipes(_folders(templates))
    recipes = [recipe.load(folder) for folder in found.values()]
    data = [described(one) for one in recipes]
    width = max((len(one.name) for one in recipes), default=0)
    lines = [
        f"{one.name:<{width}}  {one.launch:<8}  {','.join(one.precisions):<19}  {one.title}"
        for one in recipes
    ]
    return Result(data, "\n".join(lines))


@frameworks.command("show")
@click.argument("name")
@_TEMPLATES
@returns_result
def frameworks_show(name: str, templates: tuple[str, ...]) -> Result:
    """Show all that is known of one framework."""
    data = described(recipe.load(places.find_recipe(name, _folders(templates))))
    return Result(data, "\n".join(_lines(data)))


def _lines(data: dict[str, Any]) -> list[str]:
    """Lay a description out for people: a name and its value a line, lists below their name."""
    lines = []
    for name, value in data.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            lines.append(f"{name}:")
            lines += [f"  {' · '.join(str(part) for part in one.values())}" for one in value]
        elif isinstance(value, list):
            lines += [f"{name}:", *(f"  {one}" for one in value)] if value else []
        elif value not in (None, ""):
            lines.append(f"{name}: {value}")
    return lines


command = frameworks
