"""The inputs of ranks: image, program, data and interpreter, as the site or `prepare` has them.

`prepare` leaves a record of each thing that it made. Names contain digests of all inputs, so that
another recipe, patch or option is another name.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hpcbert.campaign import store
from hpcbert.config.recipe import Dataset, Recipe, read_number
from hpcbert.config.site import SYNTHETIC, Site
from hpcbert.container import cache, reference, runtimes
from hpcbert.container.reference import Image
from hpcbert.errors import UsageError
from hpcbert.model import USUAL_VOCABULARY, Material, OptionValue, usual_predictions
from hpcbert.script.plan import read_options

# Schema of the records of `prepare`.
SCHEMA = 1
_SUFFIX = ".json"
# What `hpcbert data make` leaves next to its data.
_DOCUMENT = "data.json"
# The programs cut and mask these by themselves.
_BEFORE_MASKING = ("paddle-text", "megatron")


def read_record(path: Path) -> dict[str, Any]:
    """Return a record; nothing if it is missing, damaged or of another schema."""
    document = _read_document(path)
    return document if document.get("schema") == SCHEMA else {}


def _read_document(path: Path) -> dict[str, Any]:
    try:
        document = store.read_json(path)
    except UsageError:
        return {}
    return document if isinstance(document, dict) else {}


def record_directory(path: Path) -> Path:
    """Return the directory that a record belongs to."""
    return path.parent / path.name.removesuffix(_SUFFIX)


def source_record_path(site: Site, recipe: Recipe) -> Path:
    """Return the path of a checkout's record: next to the checkout, with its name.

    Raises:
        UsageError: A patch of the recipe is missing.
    """
    name = recipe.source.repository.rstrip("/").rpartition("/")[2].removesuffix(".git")
    name = re.sub(r"[^A-Za-z0-9._-]", "_", name) + f"-{recipe.source.commit[:12]}"
    if recipe.source.patches:
        checksum = hashlib.sha256()
        for patch in recipe.source.patches:
            checksum.update(_read_recipe_file(recipe, patch))
        name += f"+{checksum.hexdigest()[:8]}"
    return Path(site.sources) / f"{name}{_SUFFIX}"


def data_record_path(site: Site, recipe: Recipe, options: Mapping[str, OptionValue]) -> Path:
    """Return the path of the record about a framework's data."""
    if site.settings(recipe.name).data != SYNTHETIC:
        return Path(site.sources) / f"{recipe.name}+data{_SUFFIX}"
    folder = synthetic_folder(site, recipe, options)
    return folder.with_name(folder.name + _SUFFIX)


# --- Virtual environments -----------------------------------------------------------------------


def runs_in_environment(site: Site, recipe: Recipe) -> bool:
    """Return whether ranks run in a virtual environment that `prepare` makes."""
    python = site.settings(recipe.name).python
    return recipe.environment is not None and site.container.runtime == "none" and not python


def comes_with_environment(site: Site, recipe: Recipe) -> bool:
    """Return whether `prepare` installs the program with the virtual environment of ranks."""
    environment = recipe.environment
    includes_program = environment is not None and environment.program
    has_own_source = bool(site.settings(recipe.name).source)
    return includes_program and runs_in_environment(site, recipe) and not has_own_source


def environment_record_path(site: Site, recipe: Recipe) -> Path:
    """Return the path of a virtual environment's record: next to it.

    Raises:
        UsageError: A file of the recipe is missing.
    """
    environment = recipe.environment
    if environment is None:
        raise UsageError(f"{recipe.name} has no environment.")
    checksum = hashlib.sha256(environment.python.encode())
    for step in environment.install:
        step_fields = [step.requirements, step.options, step.source, sorted(step.env.items())]
        checksum.update(json.dumps(step_fields).encode())
        checksum.update(_read_recipe_file(recipe, step.requirements) if step.requirements else b"")
    for patch in environment.patches:
        checksum.update(_read_recipe_file(recipe, patch))
    if environment.builds_source:
        source = site.settings(recipe.name).source
        checksum.update((source or source_record_path(site, recipe).name).encode())
    name = f"{recipe.name}-py{environment.python}-{checksum.hexdigest()[:12]}"
    return Path(site.sources) / f"{name}{_SUFFIX}"


def interpreter_path(environment: Path) -> Path:
    """Return the interpreter of a virtual environment."""
    return environment / "bin" / "python"


def packages_path(environment: Path, release: str) -> Path:
    """Return the path of a virtual environment's packages, for a release of Python."""
    return environment / "lib" / f"python{release}" / "site-packages"


def _read_recipe_file(recipe: Recipe, name: str) -> bytes:
    path = Path(recipe.folder) / name
    try:
        return path.read_bytes()
    except OSError as error:
        message = f"The recipe's file {name!r} can't be read: {error.strerror}."
        raise UsageError(message, where=str(path)) from error


# --- Synthetic data -----------------------------------------------------------------------------


class SyntheticData(NamedTuple):
    """The settings of a framework's synthetic data."""

    form: str
    length: int
    predictions: int
    vocabulary: int
    samples: int
    files: int


def plan_synthetic(site: Site, recipe: Recipe, options: Mapping[str, OptionValue]) -> SyntheticData:
    """Return the synthetic data that a framework needs, with its options at these values.

    Raises:
        UsageError: The recipe reads none, or has a number that is not one.
    """
    dataset = recipe.dataset
    if dataset is None:
        raise UsageError(f"{recipe.name} reads no data.", where=site.where)
    files = read_number(dataset.numbered or dataset.synthetic.files, options)
    samples = site.settings(recipe.name).samples
    return SyntheticData(dataset.format, *_read_sizes(dataset, options), samples, files)


def _read_sizes(dataset: Dataset, options: Mapping[str, OptionValue]) -> tuple[int, int, int]:
    """Return tokens and masked tokens of a sample, and tokens of the vocabulary."""
    settings = dataset.synthetic
    length = read_number(settings.sequence_length, options)
    predictions = read_number(settings.predictions, options) or usual_predictions(length)
    return length, predictions, read_number(settings.vocabulary, options) or USUAL_VOCABULARY


def synthetic_folder(site: Site, recipe: Recipe, options: Mapping[str, OptionValue]) -> Path:
    """Return the directory of a framework's synthetic data."""
    dataset = recipe.dataset
    patterns = (dataset.files, *dataset.also) if dataset else ()
    names = [pattern.format_map(options) for pattern in patterns]
    text = json.dumps([*plan_synthetic(site, recipe, options), names])
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Path(site.sources) / f"{recipe.name}+{SYNTHETIC}-{digest[:12]}"


def site_data_options(site: Site, recipe: Recipe) -> Mapping[str, OptionValue]:
    """Return the site's options, if the data depend on them.

    Raises:
        UsageError: One is wrong.
    """
    is_synthetic = site.settings(recipe.name).data == SYNTHETIC
    return read_options(recipe, site, {}) if is_synthetic else {}


def find_data_path(site: Site, recipe: Recipe, options: Mapping[str, OptionValue]) -> str:
    """Return the path of the ranks' data; empty if nothing names any."""
    data = site.settings(recipe.name).data
    if data != SYNTHETIC:
        return data
    return str(synthetic_folder(site, recipe, options) / "data")


@dataclass(frozen=True)
class Inputs:
    """The inputs of ranks; a field is empty if nothing names it.

    Attributes:
        image: Image that ranks enter; None without a container, or if there is none.
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

    Raises:
        UsageError: The site or the recipe names an image in an invalid form, or a file of the
            recipe is missing.
    """
    settings = site.settings(recipe.name)
    image, image_material = find_image(site, recipe, by_hand=by_hand)
    path = find_data_path(site, recipe, options)
    if by_hand:
        return Inputs(image, path, settings.source, settings.python)
    source = _find_source(site, recipe)
    environment = _find_environment(site, recipe)
    data = _find_data(site, recipe, options, path)
    program, python = source and Path(source.path), settings.python
    if environment and recipe.environment:
        python = str(interpreter_path(Path(environment.path)))
        if comes_with_environment(site, recipe):
            program = packages_path(Path(environment.path), recipe.environment.python)
    materials = (image_material, source, environment, data)
    return Inputs(
        image=image,
        data="" if settings.data == SYNTHETIC and not data else path,
        source=str(program / recipe.source.path) if program else settings.source,
        python=python,
        materials=tuple(material for material in materials if material),
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
    material = None if by_hand else find_prepared_image(site, recipe)
    if material:
        return reference.parse_reference(material.path), material
    runtime = runtimes.RUNTIMES[site.container.runtime]
    prefix, directory = runtime.prefix, Path(site.container.images)
    name = site.settings(recipe.name).image or recipe.image.reference
    image = _parse_image(site, name) if name else None
    cached_image = None
    if by_hand and not name:
        cached_image = cache.find_by_stem(directory, built_image_stem(recipe, prefix))
    elif image and not runtime.enters_by_tool:
        # Under pyxis every node would import it for itself.
        cached_image = cache.find_image(directory, image, prefix)
    return (reference.Image("file", path=cached_image.path) if cached_image else image), None


def find_prepared_image(site: Site, recipe: Recipe) -> Material | None:
    """Return the prepared image that ranks of this framework enter, if there is one."""
    if site.container.runtime == "none":
        return None
    directory, site_image = Path(site.container.images), site.settings(recipe.name).image
    prefix = runtimes.RUNTIMES[site.container.runtime].prefix
    name = site_image or recipe.image.reference
    cached_image = None
    if not site_image and recipe.image.install:
        cached_image = cache.find_by_stem(directory, built_image_stem(recipe, prefix))
    elif name:
        image = _parse_image(site, name)
        cached_image = cache.find_image(directory, image, prefix)
        if image.kind == "file":
            images = cache.list_images(directory)
            cached_image = next((entry for entry in images if entry.path == name), None)
    if cached_image is None:
        return None
    digest = f"sha256:{cached_image.sha256}"
    return Material("image", cached_image.reference, cached_image.path, digest)


def _parse_image(site: Site, text: str) -> Image:
    runtime = runtimes.RUNTIMES[site.container.runtime]
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

    Raises:
        UsageError: One of them or of the campaign is not a mount, or not one for the runtime.
    """
    if site.container.runtime == "none":
        return ()
    input_paths = dict.fromkeys(path for path in (inputs.data, inputs.source) if path)
    all_mounts = (
        *map(runtimes.bind_mount, input_paths),
        *map(runtimes.parse_mount, site.container.mounts),
    )
    for mount in (runtimes.bind_mount(directory), *all_mounts):
        runtimes.check_mount(mount, runtimes.RUNTIMES[site.container.runtime], site.where)
    return tuple(mount.spec for mount in dict.fromkeys(all_mounts))


def find_misfits(recipe: Recipe, options: Mapping[str, OptionValue], path: str) -> tuple[str, ...]:
    """Return the reasons why the data in a directory do not fit a framework, as clauses.

    Raises:
        UsageError: An option is not a number.
    """
    places = (Path(path) / _DOCUMENT, Path(path).parent / _DOCUMENT)
    document = next(filter(None, map(_read_document, places)), {})
    dataset, vocabulary = recipe.dataset, document.get("vocabulary")
    if dataset is None or not isinstance(vocabulary, dict):
        return ()
    length, predictions, model_size = _read_sizes(dataset, options)
    reasons = []
    data_format = document.get("format")
    if data_format != dataset.format:
        reasons.append(f"they are {data_format}, but the program reads {dataset.format}")
    elif data_format not in _BEFORE_MASKING:
        for key, unit, expected in (
            ("sequence_length", "tokens in a sample", length),
            ("predictions", "predictions in a sample", predictions),
        ):
            count = document.get(key)
            if count != expected:
                reasons.append(f"they have {count} {unit}, but the program is set to {expected}")
    size = vocabulary.get("size")
    if isinstance(size, int) and size > model_size:
        reasons.append(f"they have {size} words, but the model has {model_size}")
    return tuple(reasons)
