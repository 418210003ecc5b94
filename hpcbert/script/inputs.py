"""The inputs of a framework's ranks at a site: image, program, data, interpreter.

The site names them, or `prepare` made them and left a record of each; the records go into
the campaign's manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hpcbert.config.recipe import Recipe
from hpcbert.config.site import SYNTHETIC, Site
from hpcbert.container import cache, mounts, reference, runtimes
from hpcbert.container.reference import Image
from hpcbert.model import Material, OptionValue
from hpcbert.script.prepared import (
    comes_with_environment,
    data_record_path,
    environment_record_path,
    find_data_path,
    interpreter_path,
    packages_path,
    read_record,
    record_directory,
    runs_in_environment,
    source_record_path,
)


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


def find_inputs(
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
    image, image_material = find_image(site, recipe, by_hand=by_hand)
    source = None if by_hand else _find_source(site, recipe)
    environment = None if by_hand else _find_environment(site, recipe)
    path = find_data_path(site, recipe, options)
    data = None if by_hand else _find_data(site, recipe, options, path)
    if settings.data == SYNTHETIC and not (by_hand or data):
        path = ""
    python = interpreter_path(Path(environment.path)) if environment else settings.python
    program = _find_program(site, recipe, environment) or source
    return Inputs(
        image=image,
        data=path,
        source=str(Path(program.path) / recipe.source.path) if program else settings.source,
        python=str(python),
        materials=tuple(
            material for material in (image_material, source, environment, data) if material
        ),
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
    runtime = runtimes.get_runtime(site.container.runtime)
    material = None if by_hand else find_prepared_image(site, recipe)
    if material:
        return reference.parse_reference(material.path), material
    directory, site_image = Path(site.container.images), site.settings(recipe.name).image
    if not (site_image or recipe.image.reference):
        built_image = (
            cache.find_by_stem(directory, built_image_stem(recipe, runtime.tool.prefix))
            if by_hand
            else None
        )
        return (reference.Image("file", path=built_image.path) if built_image else None), None
    image = _parse_image(site, site_image or recipe.image.reference)
    # Under pyxis every node would import it for itself. `find_prepared_image` has looked for this one,
    # unless it looked for one that is built of it.
    is_searched = not by_hand and bool(site_image or not recipe.image.install)
    if runtime.enters_by_tool or is_searched:
        return image, None
    if cached_image := cache.find_image(directory, image, runtime.tool.prefix):
        return reference.Image("file", path=cached_image.path), None
    return image, None


def find_prepared_image(site: Site, recipe: Recipe) -> Material | None:
    """Return the prepared image that ranks of this framework enter, if there is one."""
    directory, site_image = Path(site.container.images), site.settings(recipe.name).image
    image_name = site_image or recipe.image.reference
    cached_image = None
    if site.container.runtime == "none":
        return None
    prefix = runtimes.get_runtime(site.container.runtime).tool.prefix
    if not site_image and recipe.image.install:
        cached_image = cache.find_by_stem(directory, built_image_stem(recipe, prefix))
    elif image_name and (image := _parse_image(site, image_name)).kind != "file":
        cached_image = cache.find_image(directory, image, prefix)
    elif image_name:
        cached_image = next(
            (entry for entry in cache.list_images(directory) if entry.path == image_name), None
        )
    if cached_image is None:
        return None
    return Material(
        "image", cached_image.reference, cached_image.path, f"sha256:{cached_image.sha256}"
    )


def _parse_image(site: Site, text: str) -> Image:
    runtime = runtimes.get_runtime(site.container.runtime)
    return runtimes.check_image(reference.parse_reference(text), runtime, site.where)


def built_image_stem(recipe: Recipe, prefix: str = "") -> str:
    """Return the name of an image built for a recipe; the prefix is its tool's."""
    image = recipe.image
    words = (*image.install, *((image.copy, recipe.source.commit) if image.copy else ()))
    stem = cache.built_stem(recipe.name, image.base or image.reference, words)
    return prefix + stem


def _find_source(site: Site, recipe: Recipe) -> Material | None:
    is_needed = "source" in recipe.needs and recipe.source.commit and not recipe.source.incomplete
    if site.settings(recipe.name).source or not is_needed or comes_with_environment(site, recipe):
        return None
    path = source_record_path(site, recipe)
    content, directory = read_record(path), record_directory(path)
    if not content or not directory.is_dir():
        return None
    name = f"{content['repository']}@{content['commit']}"
    return Material("source", name, str(directory), content["digest"])


def _find_program(site: Site, recipe: Recipe, environment: Material | None) -> Material | None:
    """Return the packages of an environment that includes the program."""
    if not environment or not comes_with_environment(site, recipe):
        return None
    release = environment.name.removeprefix("Python ").rpartition(".")[0]
    return replace(environment, path=str(packages_path(Path(environment.path), release)))


def _find_environment(site: Site, recipe: Recipe) -> Material | None:
    if not runs_in_environment(site, recipe):
        return None
    path = environment_record_path(site, recipe)
    content, directory = read_record(path), record_directory(path)
    if not content or not interpreter_path(directory).exists():
        return None
    return Material("environment", f"Python {content['python']}", str(directory), content["digest"])


def _find_data(
    site: Site, recipe: Recipe, options: Mapping[str, OptionValue], path: str
) -> Material | None:
    content = read_record(data_record_path(site, recipe, options))
    if not path or content.get("path") != path:
        return None
    return Material("data", content["format"], path, content["digest"])


def list_mounts(site: Site, inputs: Inputs, directory: str) -> tuple[str, ...]:
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
    input_paths = dict.fromkeys(path for path in (inputs.data, inputs.source) if path)
    all_mounts = (
        *map(mounts.bind_mount, input_paths),
        *map(mounts.parse_mount, site.container.mounts),
    )
    for mount in (mounts.bind_mount(directory), *all_mounts):
        runtimes.check_mount(mount, runtimes.get_runtime(site.container.runtime), site.where)
    return tuple(mount.spec for mount in dict.fromkeys(all_mounts))
