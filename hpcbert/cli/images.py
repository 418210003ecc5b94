"""hpcbert images."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcbert.campaign import store
from hpcbert.cli.main import ListByDefault
from hpcbert.cli.output import Result, returns_result
from hpcbert.config import site, trust
from hpcbert.container import cache
from hpcbert.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcbert.config.site import Site

_SITE = click.option("--site", "site_file", default="", help="A site.toml, or its folder.")


@click.group(cls=ListByDefault)
def images() -> None:
    """List and remove prepared images."""


@images.command("list")
@_SITE
@returns_result
def images_list(site_file: str = "") -> Result:
    """List images: name, size, age, source, and the campaigns that used them."""
    here = site.load(site_file)
    directory = Path(here.container.images)
    found, leftovers = cache.listed(directory), cache.leftovers(directory)
    used, warnings = _used(here)
    data = {
        "directory": str(directory),
        "images": [{**asdict(one), "campaigns": used.get(one.path, [])} for one in found],
        "leftovers": leftovers,
    }
    uses = {path: f"used by {len(ids)}, last {ids[-1]}" for path, ids in used.items()}
    width = max((len(one.stem) for one in found), default=0)
    lines = [
        f"{one.stem:<{width}}  {_size(one.bytes):>10}  {one.created[:10]}  "
        f"sha256:{one.sha256[:12]}  {one.reference}  {uses.get(one.path, '')}".rstrip()
        for one in found
    ]
    if not found:
        lines = [f"No prepared images in {directory}."]
    lines += [
        f"{'importing' if leftover.busy else 'left over'}: {Path(leftover.path).name}"
        f"  {_size(leftover.bytes)}"
        for leftover in leftovers
    ]
    return Result(data, "\n".join(lines), warnings=warnings)


@images.command("remove")
@click.argument("name", nargs=-1)
@click.option(
    "--leftovers", is_flag=True, help="Remove what killed imports and newer images left behind."
)
@_SITE
@returns_result
def images_remove(name: tuple[str, ...], leftovers: bool, site_file: str) -> Result:
    """Remove prepared images by name, reference or the beginning of their SHA-256.

    It does not ask first. It refuses an image that is being imported.
    """
    if not name and not leftovers:
        raise UsageError("You named no image.", hint="`hpcbert images list` shows the names.")
    here = site.load(site_file)
    where = Path(here.where)
    trust.refuse([where], trust.of_command_line(where if here.named else None))
    directory = Path(here.container.images)
    chosen = [_named(one, cache.listed(directory)) for one in name]
    for one in chosen:
        cache.remove(directory, one)
    swept = cache.sweep(cache.leftovers(directory)) if leftovers else ()
    paths = [*(one.path for one in chosen), *(leftover.path for leftover in swept)]
    count = sum(one.bytes for one in chosen) + sum(leftover.bytes for leftover in swept)
    text = "\n".join([*(f"removed {path}" for path in paths), f"{_size(count)} are free again"])
    return Result({"removed": paths, "bytes": count}, text)


def _named(name: str, found: Sequence[cache.Cached]) -> cache.Cached:
    digest = name.removeprefix("sha256:")
    meant = [
        one
        for one in found
        if name in (one.stem, one.reference, one.path, Path(one.path).name)
        or (len(digest) >= 6 and one.sha256.startswith(digest))  # noqa: PLR2004 - enough to be unique
    ]
    if len(meant) == 1:
        return meant[0]
    raise UsageError(
        f"{name!r} could be {len(meant)} images." if meant else f"Image {name!r} does not exist.",
        hint="`hpcbert images list` shows the names.",
    )


def _used(here: Site) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """Return the campaigns that used each image, and a warning about those of another schema."""
    used: dict[str, list[str]] = {}
    campaigns, others = store.read_manifests(store.everyones(Path(here.runs)))
    for campaign in campaigns.values():
        paths = {material.path for material in campaign.materials if material.kind == "image"} | {
            campaign.image
        }
        for path in sorted(paths - {""}):
            used.setdefault(path, []).append(campaign.id)
    return used, store.describe_left_out("the uses of images", others)


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:  # noqa: PLR2004
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
