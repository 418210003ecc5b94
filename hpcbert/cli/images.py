"""hpcbert images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from hpcbert.campaign import store
from hpcbert.cli.main import ListByDefault
from hpcbert.cli.options import SITE
from hpcbert.cli.output import Result, returns_result
from hpcbert.config import site, trust
from hpcbert.config.site import Site
from hpcbert.container import cache
from hpcbert.errors import UsageError


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
    width = max((len(image.stem) for image in cached_images), default=0)
    lines = [
        f"{image.stem:<{width}}  {_format_size(image.bytes):>10}  {image.created[:10]}  "
        f"sha256:{image.sha256[:12]}  {image.reference}  {uses.get(image.path, '')}".rstrip()
        for image in cached_images
    ]
    if not cached_images:
        lines = [f"No prepared images in {directory}."]
    lines += [
        f"{'importing' if leftover.busy else 'left over'}: {Path(leftover.path).name}"
        f"  {_format_size(leftover.bytes)}"
        for leftover in leftovers
    ]
    return Result(data, "\n".join(lines), warnings=warnings)


@images.command("remove")
@click.argument("name", nargs=-1)
@click.option(
    "--leftovers", is_flag=True, help="Remove what killed imports and newer images left behind."
)
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
    text = "\n".join(lines)
    return Result({"removed": paths, "bytes": count}, text)


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
    raise UsageError(
        f"{name!r} could be {len(matches)} images."
        if matches
        else f"Image {name!r} does not exist.",
        hint="`hpcbert images list` shows the names.",
    )


def _read_uses(site_config: Site) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """Return the campaigns that used each image, and a warning about those of another schema."""
    uses: dict[str, list[str]] = {}
    campaigns, skipped = store.read_manifests(store.find_all_campaigns(Path(site_config.runs)))
    for campaign in campaigns.values():
        paths = {material.path for material in campaign.materials if material.kind == "image"}
        for path in sorted((paths | {campaign.image}) - {""}):
            uses.setdefault(path, []).append(campaign.id)
    return uses, store.describe_left_out("the uses of images", skipped)


def _format_size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:  # noqa: PLR2004
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
