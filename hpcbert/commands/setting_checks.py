"""Whether what a site.toml says of frameworks and mounts means anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hpcbert.config import places, recipe
from hpcbert.config.recipe import Recipe
from hpcbert.config.site import FrameworkSettings, Site
from hpcbert.container import mounts
from hpcbert.errors import ConfigError, UsageError
from hpcbert.script.plan import choose_device
from hpcbert.script.settings import read_options
from hpcbert.system.decode import did_you_mean


def check_settings(site: Site) -> Iterator[ConfigError]:
    """Yield invalid settings of a site: each would stop a submission, or be ignored.

    What only one command has need of (an image's form, a path) is that command's to say.
    """
    recipes = places.list_recipes(places.recipe_folders(Path(site.where)))
    for name, settings in site.frameworks.items():
        key = f"{site.where}: frameworks.{name}"
        if name not in recipes:
            yield ConfigError(
                f"There is no framework {name!r}.", where=key, hint=did_you_mean(name, recipes)
            )
            continue
        try:
            framework_recipe = recipe.load(recipes[name])
        except ConfigError as error:
            yield error
            continue
        yield from _check_framework(site, framework_recipe, settings, key)
    for text in site.container.mounts:
        yield from _check_mount(text, f"{site.where}: container.mounts")


def _check_mount(text: str, key: str) -> Iterator[ConfigError]:
    try:
        mounts.parse_mount(text)
    except UsageError as error:
        yield ConfigError(error.message, where=key, hint=error.hint)


def _check_framework(
    site: Site, framework_recipe: Recipe, settings: FrameworkSettings, key: str
) -> Iterator[ConfigError]:
    if settings.model and settings.model not in framework_recipe.models:
        yield ConfigError(
            f"{framework_recipe.name} has no model {settings.model!r}.",
            where=f"{key}.model",
            hint=did_you_mean(settings.model, framework_recipe.models),
        )
    try:
        choose_device(framework_recipe, site, "")
    except UsageError as error:
        yield ConfigError(error.message, where=f"{key}.device", hint=error.hint)
    for precision in settings.batch_sizes:
        if precision not in framework_recipe.precisions:
            yield ConfigError(
                f"{framework_recipe.name} does not run in {precision}.",
                where=f"{key}.batch_sizes",
                hint=did_you_mean(precision, framework_recipe.precisions),
            )
    try:
        read_options(framework_recipe, site, {})
    except UsageError as error:
        yield ConfigError(error.message, where=f"{key}.options", hint=error.hint)
