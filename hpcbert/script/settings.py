"""The options of a recipe: their values from a site and a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite

from hpcbert.config.recipe import KINDS, Option, Recipe
from hpcbert.config.site import Site
from hpcbert.errors import UsageError
from hpcbert.model import OptionValue
from hpcbert.system.decode import did_you_mean

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class UnfitError(UsageError):
    """A part of a request does not fit recipe, site or protocol.

    Attributes:
        key: Its key in a campaign.toml; empty if it has none.
    """

    def __init__(self, message: str, *, where: str = "", hint: str = "", key: str = "") -> None:
        super().__init__(message, where=where, hint=hint)
        self.key = key


def read_options(
    recipe: Recipe, site: Site, settings: Mapping[str, OptionValue]
) -> dict[str, OptionValue]:
    """Return the value of every option: `--set`, else the site's, else the recipe's.

    Raises:
        UsageError: An option is unknown or its value of the wrong kind.
    """
    defaults = {name: option.default for name, option in recipe.options.items()}
    for name, value in site.settings(recipe.name).options.items():
        option = _find_option(
            name, recipe.options, f"{site.where}: frameworks.{recipe.name}.options"
        )
        defaults[name] = _check_value(option, value, site.where)
    for name, text in settings.items():
        option = _find_option(name, recipe.options, "--set")
        defaults[name] = _check_value(option, _parse_setting(option, text), "--set")
    return defaults


def _find_option(name: str, options: Mapping[str, Option], where: str) -> Option:
    if name not in options:
        raise UnfitError(
            f"There is no option {name!r}.",
            where=where,
            hint=did_you_mean(name, options),
            key=f"options.{name}",
        )
    return options[name]


def _parse_setting(option: Option, text: OptionValue) -> OptionValue:
    """Read a typed value from a command line's text; unreadable text stays text."""
    if not isinstance(text, str):
        return text
    if option.kind == "bool" and text.lower() in (*_TRUE, *_FALSE):
        return text.lower() in _TRUE
    readers: dict[str, Callable[[str], OptionValue]] = {"int": int, "float": float}
    try:
        return readers.get(option.kind, str)(text)
    except ValueError:
        return text


def _check_value(option: Option, value: OptionValue, where: str) -> OptionValue:
    if option.kind == "float" and type(value) is int:
        value = float(value)
    if problem := _explain_misfit(option, value):
        raise UnfitError(f"{option.name} {problem}.", where=where, key=f"options.{option.name}")
    return value


def _explain_misfit(option: Option, value: OptionValue) -> str:
    """Return why an option can't have a value, as the end of a sentence; empty if it can."""
    if isinstance(value, float) and not isfinite(value):
        return f"needs a finite number, not {value}"
    if type(value) is not KINDS[option.kind]:
        return f"must be of type {option.kind}, not {value!r}"
    if option.choices and value not in option.choices:
        choice_list = ", ".join(str(choice) for choice in option.choices)
        return f"must be one of {choice_list}, not {value!r}"
    return option.outside(value)


def list_point_options(
    recipe: Recipe, values: Mapping[str, OptionValue]
) -> tuple[tuple[str, OptionValue], ...]:
    """Return the options that change the number and differ from the recipe's defaults."""
    return tuple(
        (option.name, values[option.name])
        for option in recipe.options.values()
        if option.measured and values[option.name] != option.default
    )
