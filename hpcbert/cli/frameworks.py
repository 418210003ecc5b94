"""hpcbert frameworks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from hpcbert.cli.main import ListByDefault
from hpcbert.cli.options import TEMPLATES
from hpcbert.cli.output import Result, returns_result
from hpcbert.config import places, recipe
from hpcbert.config.recipe import Recipe
from hpcbert.logs import grammar


@click.group(cls=ListByDefault)
def frameworks() -> None:
    """List the frameworks that hpcbert can measure."""


def _find_recipe_folders(templates: tuple[str, ...]) -> tuple[Path, ...]:
    # What else the site says is of no use here.
    path, _ = places.find_site("", env=os.environ, cwd=Path.cwd())
    return places.recipe_folders(path, templates)


@frameworks.command("list")
@TEMPLATES
@returns_result
def frameworks_list(templates: tuple[str, ...] = ()) -> Result:
    """List the frameworks, one per line."""
    paths = places.list_recipes(_find_recipe_folders(templates))
    recipes = [recipe.load(folder) for folder in paths.values()]
    data = [describe_recipe(entry) for entry in recipes]
    width = max((len(entry.name) for entry in recipes), default=0)
    lines = [
        f"{entry.name:<{width}}  {entry.launch:<8}  {','.join(entry.precisions):<19}  {entry.title}"
        for entry in recipes
    ]
    return Result(data, "\n".join(lines))


@frameworks.command("show")
@click.argument("name")
@TEMPLATES
@returns_result
def frameworks_show(name: str, templates: tuple[str, ...]) -> Result:
    """Show everything that hpcbert knows about a framework."""
    data = describe_recipe(recipe.load(places.find_recipe(name, _find_recipe_folders(templates))))
    return Result(data, "\n".join(_format_description(data)))


def describe_recipe(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as a document: what runs, from where, and how its log is read.

    Raises:
        ConfigError: The recipe's `[log]` table is wrong.
    """
    rules = grammar.parse(recipe.log, where=f"{recipe.folder}/recipe.toml").rules
    return {
        "name": recipe.name,
        "title": recipe.title,
        "launch": recipe.launch,
        "models": list(recipe.models),
        "devices": list(recipe.devices),
        "precisions": list(recipe.precisions),
        "batch_sizes": [
            {"precision": precision, "per_device": size}
            for precision, size in recipe.batch_sizes.items()
        ],
        "collectives": recipe.collectives or None,
        "mixed_precision": recipe.mixed_precision or None,
        "protocols": [
            {
                "name": protocol.name,
                "iters": protocol.iters,
                "skip": protocol.skip,
                "help": protocol.help,
            }
            for protocol in recipe.protocols.values()
            if protocol.name
        ],
        "image": recipe.image.reference or None,
        "base_image": recipe.image.base or None,
        "install": list(recipe.image.install),
        "repository": recipe.source.repository or None,
        "commit": recipe.source.commit or None,
        "path": recipe.source.path or None,
        "data": recipe.data or None,
        "needs": list(recipe.needs),
        "options": [
            {"name": option.name, "default": option.default, "help": option.help}
            for option in recipe.options.values()
        ],
        "rules": [{"name": rule.name, "kind": rule.kind, "scope": rule.scope} for rule in rules],
        "problems": list(recipe.problems),
        "folder": recipe.folder,
        "digest": recipe.digest,
    }


def _format_description(data: dict[str, Any]) -> list[str]:
    """Lay a description out as text: one name and value per line, lists below their name."""
    lines = []
    for name, value in data.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            lines.append(f"{name}:")
            lines += [f"  {' · '.join(str(part) for part in entry.values())}" for entry in value]
        elif isinstance(value, list):
            lines += [f"{name}:", *(f"  {entry}" for entry in value)] if value else []
        elif value not in (None, ""):
            lines.append(f"{name}: {value}")
    return lines
