"""Whether what a site.toml says of frameworks and mounts means anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert.config import places, recipe
from hpcbert.container import mounts
from hpcbert.errors import ConfigError, UsageError
from hpcbert.script.plan import device_of
from hpcbert.script.settings import option_values
from hpcbert.system.decode import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcbert.config.recipe import Recipe
    from hpcbert.config.site import FrameworkSettings, Site


def complaints(site: Site) -> Iterator[ConfigError]:
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
            found = recipe.load(recipes[name])
        except ConfigError as error:
            yield error
            continue
        yield from _of_framework(site, found, settings, key)
    for text in site.container.mounts:
        yield from _of_mount(text, f"{site.where}: container.mounts")


def _of_mount(text: str, key: str) -> Iterator[ConfigError]:
    try:
        mounts.parse(text)
    except UsageError as error:
        yield ConfigError(error.message, where=key, hint=error.hint)


def _of_framework(
    site: Site, found: Recipe, settings: FrameworkSettings, key: str
) -> Iterator[ConfigError]:
    if settings.model and settings.model not in found.models:
        yield ConfigError(
            f"{found.name} has no model {settings.model!r}.",
            where=f"{key}.model",
            hint=did_you_mean(settings.model, found.models),
        )
    try:
        device_of(found, site, "")
    except UsageError as error:
        yield ConfigError(error.message, where=f"{key}.device", hint=error.hint)
    for precision in settings.batch_sizes:
        if precision not in found.precisions:
            yield ConfigError(
                f"{found.name} does not run in {precision}.",
                where=f"{key}.batch_sizes",
                hint=did_you_mean(precision, found.precisions),
            )
    try:
        option_values(found, site, {})
    except UsageError as error:
        yield ConfigError(error.message, where=f"{key}.options", hint=error.hint)
