"""hpcbert images, hpcbert frameworks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hpcbert.campaign import store
from hpcbert.cli.main import ListByDefault
from hpcbert.cli.options import SITE, TEMPLATES, flag_option
from hpcbert.cli.output import Result, pick, returns_result
from hpcbert.config import places, recipe, site, trust
from hpcbert.config.recipe import Recipe
from hpcbert.config.site import Site
from hpcbert.container import cache
from hpcbert.errors import UsageError
from hpcbert.logs import grammar
from hpcbert.results.grid import align_rows


@click.group(cls=ListByDefault)
def images() -> None:
    """List and remove prepared images."""


@images.command("list")
@SITE
@returns_result
def images_list(site_file: str = "") -> Result:
    """List images, and the campaigns that used them."""
    site_config = site.load(site_file)
    directory = Path(site_config.container.images)
    cached_images, leftovers = cache.list_images(directory), cache.find_leftovers(directory)
    campaigns_by_image, warnings = _read_uses(site_config)
    data = {
        "directory": str(directory),
        "images": [
            {**asdict(image), "campaigns": campaigns_by_image.get(image.path, [])}
            for image in cached_images
        ],
        "leftovers": leftovers,
    }
    uses = {path: f"used by {len(ids)}, last {ids[-1]}" for path, ids in campaigns_by_image.items()}
    rows = [
        (
            image.stem,
            _format_size(image.bytes),
            image.created[:10],
            f"sha256:{image.sha256[:12]}",
            f"{image.reference}  {uses.get(image.path, '')}",
        )
        for image in cached_images
    ]
    lines = align_rows(rows, right=(1,)) if rows else [f"No prepared images in {directory}."]
    for leftover in leftovers:
        kind, name = "importing" if leftover.busy else "left over", Path(leftover.path).name
        lines.append(f"{kind}: {name}  {_format_size(leftover.bytes)}")
    return Result(data, "\n".join(lines), warnings=warnings)


@images.command("remove")
@click.argument("name", nargs=-1)
@flag_option("--leftovers", "Remove what killed imports and newer images left behind.")
@SITE
@returns_result
def images_remove(name: tuple[str, ...], leftovers: bool, site_file: str) -> Result:
    """Remove prepared images.

    NAME is an image's name, its reference or the beginning of its SHA-256. remove does not ask
    first. It refuses an image that is being imported.
    """
    if not name and not leftovers:
        raise UsageError("You named no image.", hint="`hpcbert images list` shows the names.")
    site_config = site.load(site_file)
    where = Path(site_config.where)
    trust.refuse_untrusted(
        [where], trust.command_line_entries(where if site_config.named else None)
    )
    directory = Path(site_config.container.images)
    targets = [_find_image(image_name, cache.list_images(directory)) for image_name in name]
    for image in targets:
        cache.remove_image(directory, image)
    swept_files = cache.remove_leftovers(cache.find_leftovers(directory)) if leftovers else ()
    removed: list[cache.Cached | cache.Leftover] = [*targets, *swept_files]
    paths = [entry.path for entry in removed]
    count = sum(entry.bytes for entry in removed)
    lines = [*(f"removed {path}" for path in paths), f"{_format_size(count)} are free again"]
    return Result({"removed": paths, "bytes": count}, "\n".join(lines))


def _find_image(name: str, cached_images: Sequence[cache.Cached]) -> cache.Cached:
    digest = name.removeprefix("sha256:")
    matches = [
        image
        for image in cached_images
        if name in (image.stem, image.reference, image.path, Path(image.path).name)
        or (len(digest) >= 6 and image.sha256.startswith(digest))  # noqa: PLR2004 - enough to be unique
    ]
    if len(matches) == 1:
        return matches[0]
    message = f"Image {name!r} does not exist."
    if matches:
        message = f"{name!r} is the name of {len(matches)} images."
    raise UsageError(message, hint="`hpcbert images list` shows the names.")


def _read_uses(site_config: Site) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    uses: dict[str, list[str]] = {}
    campaigns, skipped = store.read_manifests(store.find_all_campaigns(Path(site_config.runs)))
    for campaign in campaigns.values():
        paths = {material.path for material in campaign.materials if material.kind == "image"}
        for path in sorted((paths | {campaign.image}) - {""}):
            uses.setdefault(path, []).append(campaign.id)
    return uses, store.describe_left_out("the uses of images", skipped)


def _format_size(count: float) -> str:
    return f"{count / (1 << 20):,.1f} MiB"


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
    rows = [
        (entry.name, entry.launch, ",".join(entry.precisions), entry.title) for entry in recipes
    ]
    return Result([describe_recipe(entry) for entry in recipes], "\n".join(align_rows(rows)))


@frameworks.command("show")
@click.argument("name")
@TEMPLATES
@returns_result
def frameworks_show(name: str, templates: tuple[str, ...]) -> Result:
    """Show everything that hpcbert knows about a framework."""
    data = describe_recipe(recipe.load(places.find_recipe(name, _find_recipe_folders(templates))))
    lines = []
    for key, value in data.items():
        if isinstance(value, list | tuple) and value and isinstance(value[0], dict):
            lines.append(f"{key}:")
            lines += [f"  {' · '.join(map(str, entry.values()))}" for entry in value]
        elif isinstance(value, list | tuple):
            lines += [f"{key}:", *(f"  {entry}" for entry in value)] if value else []
        elif value not in (None, ""):
            lines.append(f"{key}: {value}")
    return Result(data, "\n".join(lines))


def describe_recipe(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as a document: what runs, from where, and how its log is read.

    Raises:
        ConfigError: The recipe's `[log]` table is wrong.
    """
    rules = grammar.parse(recipe.log, where=f"{recipe.folder}/recipe.toml").rules
    protocols = [protocol for protocol in recipe.protocols.values() if protocol.name]
    return {
        **pick(recipe, "name title launch models devices precisions"),
        "batch_sizes": [
            {"precision": precision, "per_device": size}
            for precision, size in recipe.batch_sizes.items()
        ],
        "collectives": recipe.collectives or None,
        "mixed_precision": recipe.mixed_precision or None,
        "protocols": [pick(protocol, "name iters skip help") for protocol in protocols],
        "image": recipe.image.reference or None,
        "base_image": recipe.image.base or None,
        "install": list(recipe.image.install),
        "repository": recipe.source.repository or None,
        "commit": recipe.source.commit or None,
        "path": recipe.source.path or None,
        "data": recipe.data or None,
        "needs": list(recipe.needs),
        "options": [pick(option, "name default help") for option in recipe.options.values()],
        "rules": [pick(rule, "name kind scope") for rule in rules],
        **pick(recipe, "problems folder digest"),
    }
