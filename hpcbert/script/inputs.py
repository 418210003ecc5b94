"""The inputs of a framework's ranks at a site: image, program, data, interpreter.

The site names them, or `prepare` made them and left a record of each; the records go into
the campaign's manifest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert.config.site import SYNTHETIC
from hpcbert.container import cache, mounts, reference, runtimes
from hpcbert.model import Material
from hpcbert.script.prepared import (
    beside,
    comes_with_environment,
    data_path,
    data_record,
    environment_record,
    interpreter,
    packages,
    record,
    runs_in_environment,
    source_record,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcbert.config.recipe import Recipe
    from hpcbert.config.site import Site
    from hpcbert.container.reference import Image
    from hpcbert.model import OptionValue


@dataclass(frozen=True)
class Inputs:
    """The inputs of ranks; a field is empty if nothing names it.

    Attributes:
        image: Image that ranks enter; None without a container, or if there is none.
        data, source: Paths as the ranks see them.
        python: Interpreter.
        materials: The records of `prepare` about image, source, virtual environment and data, if
            they are its own.
    """

    image: Image | None
    data: str
    source: str
    python: str
    materials: tuple[Material, ...] = ()


def find(
    site: Site, recipe: Recipe, options: Mapping[str, OptionValue], *, by_hand: bool = False
) -> Inputs:
    """Return the inputs of a framework at a site; each record of `prepare` is read once.

    Args:
        site: Where it runs.
        recipe: What runs, as it is on its device.
        options: The values of its options.
        by_hand: Whether the script is to be submitted by hand, with the site's own names.

    Raises:
        UsageError: The site or the recipe names an image in an invalid form, or a file of the
            recipe is missing.
    """
    settings = site.settings(recipe.name)
    image, imported = find_image(site, recipe, by_hand=by_hand)
    source = None if by_hand else _source(site, recipe)
    environment = None if by_hand else _environment(site, recipe)
    path = data_path(site, recipe, options)
    data = None if by_hand else _data(site, recipe, options, path)
    if settings.data == SYNTHETIC and not (by_hand or data):
        path = ""
    python = interpreter(Path(environment.path)) if environment else settings.python
    program = _program(site, recipe, environment) or source
    return Inputs(
        image=image,
        data=path,
        source=str(Path(program.path) / recipe.source.path) if program else settings.source,
        python=str(python),
        materials=tuple(material for material in (imported, source, environment, data) if material),
    )


def find_image(
    site: Site, recipe: Recipe, *, by_hand: bool = False
) -> tuple[Image | None, Material | None]:
    """Return the image that ranks enter, and its record if `prepare` made it.

    It is the one that was prepared from the name in the site or the recipe, or built from the
    recipe; otherwise the name itself, for each node to import. A runtime that enters by its command
    looks for the prepared file when it runs: a script to submit by hand names the registry's.

    Raises:
        UsageError: It is not an image reference, or not one for the runtime.
    """
    if site.container.runtime == "none":
        return None, None
    runtime = runtimes.of(site.container.runtime)
    imported = None if by_hand else prepared_image(site, recipe)
    if imported:
        return reference.parse(imported.path), imported
    directory, own = Path(site.container.images), site.settings(recipe.name).image
    if not (own or recipe.image.reference):
        built = (
            cache.find_stem(directory, built_stem(recipe, runtime.tool.prefix)) if by_hand else None
        )
        return (reference.Image("file", path=built.path) if built else None), None
    named = _named(site, own or recipe.image.reference)
    # Under pyxis every node would import it for itself. `prepared_image` has looked for this one,
    # unless it looked for one that is built of it.
    looked = not by_hand and bool(own or not recipe.image.install)
    if runtime.enters or looked:
        return named, None
    if found := cache.find(directory, named, runtime.tool.prefix):
        return reference.Image("file", path=found.path), None
    return named, None


def prepared_image(site: Site, recipe: Recipe) -> Material | None:
    """Return the prepared image that ranks of this framework enter, if there is one."""
    directory, own = Path(site.container.images), site.settings(recipe.name).image
    named = own or recipe.image.reference
    cached = None
    if site.container.runtime == "none":
        return None
    prefix = runtimes.of(site.container.runtime).tool.prefix
    if not own and recipe.image.install:
        cached = cache.find_stem(directory, built_stem(recipe, prefix))
    elif named and (image := _named(site, named)).kind != "file":
        cached = cache.find(directory, image, prefix)
    elif named:
        cached = next((one for one in cache.listed(directory) if one.path == named), None)
    if cached is None:
        return None
    return Material("image", cached.reference, cached.path, f"sha256:{cached.sha256}")


def _named(site: Site, text: str) -> Image:
    runtime = runtimes.of(site.container.runtime)
    return runtimes.check_image(reference.parse(text), runtime, site.where)


def built_stem(recipe: Recipe, prefix: str = "") -> str:
    """Return the name of an image built for a recipe; the prefix is its tool's."""
    image = recipe.image
    words = (*image.install, *((image.copy, recipe.source.commit) if image.copy else ()))
    made = cache.built_stem(recipe.name, image.base or image.reference, words)
    return prefix + made


def _source(site: Site, recipe: Recipe) -> Material | None:
    wanted = "source" in recipe.needs and recipe.source.commit and not recipe.source.incomplete
    if site.settings(recipe.name).source or not wanted or comes_with_environment(site, recipe):
        return None
    path = source_record(site, recipe)
    made, directory = record(path), beside(path)
    if not made or not directory.is_dir():
        return None
    name = f"{made['repository']}@{made['commit']}"
    return Material("source", name, str(directory), made["digest"])


def _program(site: Site, recipe: Recipe, environment: Material | None) -> Material | None:
    """Return the packages of an environment that includes the program."""
    if not environment or not comes_with_environment(site, recipe):
        return None
    release = environment.name.removeprefix("Python ").rpartition(".")[0]
    return replace(environment, path=str(packages(Path(environment.path), release)))


def _environment(site: Site, recipe: Recipe) -> Material | None:
    if not runs_in_environment(site, recipe):
        return None
    path = environment_record(site, recipe)
    made, directory = record(path), beside(path)
    if not made or not interpreter(directory).exists():
        return None
    return Material("environment", f"Python {made['python']}", str(directory), made["digest"])


def _data(
    site: Site, recipe: Recipe, options: Mapping[str, OptionValue], path: str
) -> Material | None:
    found = record(data_record(site, recipe, options))
    if not path or found.get("path") != path:
        return None
    return Material("data", found["format"], path, found["digest"])


def mount_specs(site: Site, inputs: Inputs, directory: str) -> tuple[str, ...]:
    """Return all mounts but the campaign's: data and source, then the site's own.

    Args:
        site: Where it runs.
        inputs: What ranks run with.
        directory: The campaign's, or `.` for a script to submit by hand.

    Raises:
        UsageError: One of them or of the campaign is not a mount, or not one for the runtime.
    """
    if site.container.runtime == "none":
        return ()
    own = dict.fromkeys(path for path in (inputs.data, inputs.source) if path)
    found = (*map(mounts.bind, own), *map(mounts.parse, site.container.mounts))
    for mount in (mounts.bind(directory), *found):
        runtimes.check_mount(mount, runtimes.of(site.container.runtime), site.where)
    return tuple(mount.spec for mount in dict.fromkeys(found))
