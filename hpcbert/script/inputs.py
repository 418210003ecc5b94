"""What ranks of a framework run with at a site: image, program, data, interpreter.

The site names them, or `prepare` made them ready and left a record of each; the records go into
the campaign's manifest.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcbert.campaign import store
from hpcbert.container import cache, mounts, reference
from hpcbert.errors import UsageError
from hpcbert.model import Material

if TYPE_CHECKING:
    from hpcbert.config.recipe import Recipe
    from hpcbert.config.site import Site
    from hpcbert.container.reference import Image

# Of what `prepare` writes down.
SCHEMA = 1
# pyxis writes mounts in double quotes into a file that a shell reads on the node
# (NVIDIA/pyxis 0.24.0, pyxis_slurmstepd.c, enroot_create_start_config).
_EXPANDED = '"$`\\'


@dataclass(frozen=True)
class Inputs:
    """What ranks run with; empty where nothing names it.

    Attributes:
        image: Image that ranks enter; None without a container, or where there is none.
        data, source: Paths as the ranks see them.
        python: Interpreter.
        materials: What `prepare` recorded of image, source and data, where they are its own.
    """

    image: Image | None
    data: str
    source: str
    python: str
    materials: tuple[Material, ...] = ()


def find(site: Site, recipe: Recipe, *, by_hand: bool = False) -> Inputs:
    """Return what a framework runs with at a site; each record of `prepare` is read once.

    Args:
        site: Where it shall run.
        recipe: What shall run.
        by_hand: Whether a script to submit by hand is made, which names what the site names.

    Raises:
        UsageError: The site or the recipe names an image in a form that is none.
    """
    settings = site.settings(recipe.name)
    image, imported = find_image(site, recipe, by_hand=by_hand)
    source = None if by_hand else _source(site, recipe)
    data = None if by_hand else _data(site, recipe)
    return Inputs(
        image=image,
        data=settings.data,
        source=str(Path(source.path) / recipe.source.path) if source else settings.source,
        python=settings.python,
        materials=tuple(one for one in (imported, source, data) if one),
    )


def find_image(
    site: Site, recipe: Recipe, *, by_hand: bool = False
) -> tuple[Image | None, Material | None]:
    """Return the image that ranks enter, and its record where `prepare` made it.

    That is the one that was prepared of what the site or the recipe names, or was built from the
    recipe; else what they name, for each node to import. enroot's side of a script asks for the
    prepared file when it runs: one that is submitted by hand names the registry's.

    Raises:
        UsageError: It is no image reference.
    """
    if site.container.runtime == "none":
        return None, None
    prepared = None if by_hand else prepared_image(site, recipe)
    if prepared:
        return reference.parse(prepared.path), prepared
    directory, own = Path(site.container.images), site.settings(recipe.name).image
    if not (own or recipe.image.reference):
        built = cache.find_stem(directory, built_stem(recipe)) if by_hand else None
        return (reference.Image("file", path=built.path) if built else None), None
    named = reference.parse(own or recipe.image.reference)
    # Under pyxis every node would import it for itself. `prepared_image` has looked for this one,
    # unless it looked for one that is built of it.
    looked = not by_hand and bool(own or not recipe.image.install)
    if site.container.runtime == "pyxis" and not looked and (found := cache.find(directory, named)):
        return reference.Image("file", path=found.path), None
    return named, None


def prepared_image(site: Site, recipe: Recipe) -> Material | None:
    """Return the prepared image that ranks of this framework enter, if there is one."""
    directory, own = Path(site.container.images), site.settings(recipe.name).image
    named = own or recipe.image.reference
    cached = None
    if site.container.runtime == "none":
        return None
    if not own and recipe.image.install:
        cached = cache.find_stem(directory, built_stem(recipe))
    elif named and (image := reference.parse(named)).kind == "docker":
        cached = cache.find(directory, image)
    elif named:
        cached = next((one for one in cache.listed(directory) if one.path == named), None)
    if cached is None:
        return None
    return Material("image", cached.reference, cached.path, f"sha256:{cached.sha256}")


def built_stem(recipe: Recipe) -> str:
    """Return what an image built for a recipe is called."""
    image = recipe.image
    words = (*image.install, *((image.copy, recipe.source.commit) if image.copy else ()))
    return cache.built_stem(recipe.name, image.base or image.reference, words)


def _source(site: Site, recipe: Recipe) -> Material | None:
    wanted = "source" in recipe.needs and recipe.source.commit and not recipe.source.incomplete
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


def mount_specs(site: Site, inputs: Inputs, directory: str) -> tuple[str, ...]:
    """Return the mounts beside the campaign's: data and source, then what the site adds.

    Args:
        site: Where it shall run.
        inputs: What ranks run with.
        directory: The campaign's, or `.` for a script to submit by hand.

    Raises:
        UsageError: One of them or of the campaign is no mount, or not one for the runtime.
    """
    if site.container.runtime == "none":
        return ()
    own = dict.fromkeys(path for path in (inputs.data, inputs.source) if path)
    found = (*map(mounts.bind, own), *map(mounts.parse, site.container.mounts))
    for mount in (mounts.bind(directory), *found):
        if site.container.runtime == "pyxis" and any(char in _EXPANDED for char in mount.spec):
            raise UsageError(
                f"The mount {mount.spec!r} holds what a shell would expand on the node.",
                where=site.where,
                hint='pyxis can\'t mount it; container.runtime = "enroot" can.',
            )
    return tuple(mount.spec for mount in dict.fromkeys(found))


def record(path: Path) -> dict[str, Any]:
    """Return what was written down; nothing where it is missing, damaged or of another schema."""
    try:
        data = store.read_json(path)
    except UsageError:
        return {}
    return data if isinstance(data, dict) and data.get("schema") == SCHEMA else {}


def source_record(site: Site, recipe: Recipe) -> Path:
    """Return where a checkout's record lies: beside the checkout, which has its name."""
    name = recipe.source.repository.rstrip("/").rpartition("/")[2].removesuffix(".git")
    name = re.sub(r"[^A-Za-z0-9._-]", "_", name) + f"-{recipe.source.commit[:12]}"
    if recipe.source.patches:
        total = hashlib.sha256()
        for patch in recipe.source.patches:
            total.update((Path(recipe.folder) / patch).read_bytes())
        name += f"+{total.hexdigest()[:8]}"
    return Path(site.sources) / f"{name}.json"


def data_record(site: Site, recipe: Recipe) -> Path:
    """Return where it is written down what the data of a framework were found to be."""
    return Path(site.sources) / f"{recipe.name}+data.json"
