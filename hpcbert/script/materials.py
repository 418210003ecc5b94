"""What `prepare` made ready, put in where a site leaves it open, and named for the manifest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert.container import cache, reference
from hpcbert.model import Material
from hpcbert.script.prepared import data_record, record, source_record

if TYPE_CHECKING:
    from hpcbert.config.inventory import Recipe, Site
    from hpcbert.container.cache import Cached


def completed(site: Site, recipe: Recipe) -> tuple[Site, tuple[Material, ...]]:
    """Return the site with prepared image and source named, and what of it is recorded.

    Raises:
        UsageError: The site or the recipe names an image in a form that is none.
    """
    found = (prepared_image(site, recipe), _source(site, recipe), _data(site, recipe))
    image, source, _ = found
    settings = site.settings(recipe.name)
    if image:
        settings = replace(settings, image=image.path)
    if source:
        settings = replace(settings, source=str(Path(source.path) / recipe.path))
    return site.with_settings(recipe.name, settings), tuple(one for one in found if one)


def prepared_image(site: Site, recipe: Recipe) -> Material | None:
    """Return the prepared image that ranks of this framework enter, if there is one."""
    if site.container.runtime == "none":
        return None
    own = site.settings(recipe.name).image
    directory = Path(site.container.images)
    cached = None
    if not own and recipe.install:
        cached = cache.find_stem(directory, built_stem(recipe))
    elif own or recipe.image:
        cached = _by_reference(directory, own or recipe.image)
    if cached is None:
        return None
    return Material("image", cached.reference, cached.path, f"sha256:{cached.sha256}")


def built_stem(recipe: Recipe) -> str:
    """Return what an image built for a recipe is called."""
    words = (*recipe.install, *((recipe.copy, recipe.commit) if recipe.copy else ()))
    return cache.built_stem(recipe.name, recipe.base_image or recipe.image, words)


def _by_reference(directory: Path, text: str) -> Cached | None:
    """Find an image by its reference, or a file among the prepared ones by its path."""
    image = reference.parse(text)
    if image.kind == "docker":
        return cache.find(directory, image)
    return next((one for one in cache.listed(directory) if one.path == image.path), None)


def _source(site: Site, recipe: Recipe) -> Material | None:
    wanted = "source" in recipe.needs and recipe.commit and not recipe.incomplete
    if site.settings(recipe.name).source or not wanted:
        return None
    path = source_record(site, recipe)
    made = record(path)
    directory = path.parent / path.name.removesuffix(".json")
    if not made or not directory.is_dir():
        return None
    return Material(
        "source", f"{made['repository']}@{made['commit']}", str(directory), made["digest"]
    )


def _data(site: Site, recipe: Recipe) -> Material | None:
    path = site.settings(recipe.name).data
    found = record(data_record(site, recipe))
    if not path or found.get("path") != path:
        return None
    return Material("data", found["format"], path, found["digest"])
