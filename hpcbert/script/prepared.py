"""What `prepare` made or checked: its path, its name, and its record.

Names contain digests of all inputs, so that another recipe, patch or option is another name.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hpcbert.campaign import store
from hpcbert.config.dataset import read_number
from hpcbert.config.recipe import Recipe
from hpcbert.config.site import SYNTHETIC, Site
from hpcbert.data.names import usual_predictions
from hpcbert.errors import UsageError
from hpcbert.model import OptionValue
from hpcbert.script.settings import read_options

# Schema of the records of `prepare`.
SCHEMA = 1
_SUFFIX = ".json"


def read_record(path: Path) -> dict[str, Any]:
    """Return a record; nothing if it is missing, damaged or of another schema."""
    try:
        document = store.read_json(path)
    except UsageError:
        return {}
    return document if isinstance(document, dict) and document.get("schema") == SCHEMA else {}


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
    """Return the path of the record about a framework's data.

    Raises:
        UsageError: As `plan_synthetic`.
    """
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
    """Return whether the program is among the packages of such an environment."""
    virtual_environment = recipe.environment if runs_in_environment(site, recipe) else None
    return (
        bool(virtual_environment and virtual_environment.program)
        and not site.settings(recipe.name).source
    )


def environment_record_path(site: Site, recipe: Recipe) -> Path:
    """Return the path of a virtual environment's record: next to it.

    Raises:
        UsageError: A file of the recipe is missing.
    """
    virtual_environment = recipe.environment
    if virtual_environment is None:
        raise UsageError(f"{recipe.name} has no environment.")
    checksum = hashlib.sha256(virtual_environment.python.encode())
    for step in virtual_environment.install:
        step_fields = [step.requirements, step.options, step.source, sorted(step.env.items())]
        checksum.update(json.dumps(step_fields).encode())
        checksum.update(_read_recipe_file(recipe, step.requirements) if step.requirements else b"")
    for patch in virtual_environment.patches:
        checksum.update(_read_recipe_file(recipe, patch))
    if virtual_environment.builds_source:
        source = site.settings(recipe.name).source
        checksum.update((source or source_record_path(site, recipe).name).encode())
    name = f"{recipe.name}-py{virtual_environment.python}-{checksum.hexdigest()[:12]}"
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
        raise UsageError(
            f"The recipe's file {name!r} can't be read: {error.strerror}.", where=str(path)
        ) from error


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
    synthetic_settings = dataset.synthetic
    length = read_number(synthetic_settings.sequence_length, options)
    return SyntheticData(
        dataset.format,
        length,
        read_number(synthetic_settings.predictions, options) or usual_predictions(length),
        read_number(synthetic_settings.vocabulary, options),
        site.settings(recipe.name).samples,
        read_number(dataset.numbered or synthetic_settings.files, options),
    )


def synthetic_folder(site: Site, recipe: Recipe, options: Mapping[str, OptionValue]) -> Path:
    """Return the directory of a framework's synthetic data.

    Raises:
        UsageError: As `plan_synthetic`.
    """
    dataset = recipe.dataset
    names = (
        [pattern.format_map(options) for pattern in (dataset.files, *dataset.also)]
        if dataset
        else []
    )
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
    """Return where ranks find their data; empty if nothing names any.

    Raises:
        UsageError: As `plan_synthetic`.
    """
    data = site.settings(recipe.name).data
    if data != SYNTHETIC:
        return data
    return str(synthetic_folder(site, recipe, options) / "data")
