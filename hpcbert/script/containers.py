"""What a job's script needs to know of its container."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert.container import cache, mounts, reference
from hpcbert.errors import UsageError
from hpcbert.script.materials import built_stem

if TYPE_CHECKING:
    from hpcbert.config.inventory import Recipe, Site
    from hpcbert.container.reference import Image

_FOLDER = Path(cache.__file__).parent
# What enroot's side of a script runs, from hpcbert/container.
_SCRIPTS = {"enroot": ("enter.sh", "image.sh")}
# pyxis writes mounts in double quotes into a file that a shell reads on the node
# (NVIDIA/pyxis 0.24.0, pyxis_slurmstepd.c, enroot_create_start_config).
_EXPANDED = '"$`\\'


def scripts(site: Site) -> dict[str, Path]:
    """Return the files that a job needs to enter its container, by name."""
    return {name: _FOLDER / name for name in _SCRIPTS.get(site.container.runtime, ())}


def image(site: Site, recipe: Recipe) -> Image | None:
    """Return the image that ranks enter; None without a container, or where there is none.

    That is the site's or the recipe's, else what was built from the recipe. Under pyxis, where
    every node would import it for itself, it is the prepared file where there is one; enroot's side
    of the script asks for that when it runs.

    Raises:
        UsageError: It is no image reference.
    """
    if site.container.runtime == "none":
        return None
    text = site.settings(recipe.name).image or recipe.image
    directory = Path(site.container.images)
    if text:
        named = reference.parse(text)
        found = cache.find(directory, named) if site.container.runtime == "pyxis" else None
        return replace(named, kind="file", path=found.path) if found else named
    built = cache.find_stem(directory, built_stem(recipe))
    return reference.Image("file", path=built.path) if built else None


def specs(site: Site, recipe: Recipe, directory: str) -> tuple[str, ...]:
    """Return the mounts beside the campaign's: what the recipe needs, what the site adds.

    Args:
        site: Where it shall run.
        recipe: What shall run.
        directory: The campaign's, or `.` for a script to submit by hand.

    Raises:
        UsageError: One of them or of the campaign is no mount, or not one for the runtime.
    """
    if site.container.runtime == "none":
        return ()
    settings = site.settings(recipe.name)
    own = dict.fromkeys(path for path in (settings.data, settings.source) if path)
    found = (*map(mounts.bind, own), *map(mounts.parse, site.container.mounts))
    for mount in (mounts.bind(directory), *found):
        if site.container.runtime == "pyxis" and any(char in _EXPANDED for char in mount.spec):
            raise UsageError(
                f"The mount {mount.spec!r} holds what a shell would expand on the node.",
                where=site.where,
                hint='pyxis can\'t mount it; container.runtime = "enroot" can.',
            )
    return tuple(mount.spec for mount in dict.fromkeys(found))
