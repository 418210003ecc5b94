"""The frameworks of logs: one folder each, read when a log needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hpcbert.campaign.foreign import Framework
from hpcbert.config import places
from hpcbert.config.toml import read
from hpcbert.logs import grammar
from hpcbert.system.decode import decode


@dataclass(frozen=True)
class Recipes:
    """The frameworks in some folders.

    Attributes:
        folders: As `places.recipe_folders` returns them.
    """

    folders: tuple[Path, ...]

    @cached_property
    def names(self) -> Mapping[str, Path]:
        """The folder of each framework, by its name."""
        return places.list_recipes(self.folders)

    def load(self, name: str) -> Framework:
        """Return how to read a framework's logs.

        Raises:
            ConfigError: No framework has that name, or its recipe is invalid.
        """
        folder = self.names.get(name) or places.find_recipe(name, self.folders)
        path = folder / "recipe.toml"
        values = read(path)
        model_names = values.get("models", ["bert"])
        models = decode(tuple[str, ...], model_names, file=str(path), path="models")
        log = grammar.parse(values.get("log", {}), where=str(path))
        return Framework(folder.name, log, models[0])
