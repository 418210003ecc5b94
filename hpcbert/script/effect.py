"""Whether what was requested reaches the commands of the ranks.

A template reads the options, the point and the protocol. A value that differs from the recipe's own
and that no template reads would label a run as something that it is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcbert.errors import UsageError
from hpcbert.model import Point
from hpcbert.script.resolve import Resolved


class Fields:
    """The attributes of an object for a template, which notes those that it reads.

    Args:
        source: The object.
        names: Collects the names of the attributes.
    """

    def __init__(self, source: object, names: set[str]) -> None:
        self._source = source
        self._names = names

    def __getattr__(self, name: str) -> Any:
        self._names.add(name)
        return getattr(self._source, name)


class Values(Mapping[str, Any]):
    """The values of a mapping for a template, which notes those that it reads.

    Args:
        source: The mapping.
        names: Collects the keys.
    """

    def __init__(self, source: Mapping[str, Any], names: set[str]) -> None:
        self._source = source
        self._names = names

    def __getitem__(self, name: str) -> Any:
        if name in self._source:
            self._names.add(name)
        return self._source[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._source)

    def __len__(self) -> int:
        return len(self._source)


@dataclass(frozen=True)
class Readings:
    """The names of what a template reads: options, and attributes of point and protocol."""

    options: set[str] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)

    def watch(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """Return a template's variables, of which it notes what is read."""
        return {
            **context,
            "options": Values(context["options"], self.options),
            "point": Fields(context["point"], self.fields),
            "protocol": Fields(context["protocol"], self.fields),
        }


def refuse_unread(resolved: Resolved, point: Point, readings: Readings) -> None:
    """Refuse a value that differs from the recipe's own and that its template does not read.

    Raises:
        UsageError: There is one; the message names its option.
    """
    flags = [*_list_unread_fields(resolved, point, readings.fields)]
    flags += [f"--set {name}" for name in _list_unread_options(resolved, readings.options)]
    if flags:
        context = f" with the protocol {point.protocol}" if point.protocol else " here"
        message = f"{flags[0]} has no effect on {point.framework}{context}."
        raise UsageError(message, hint=f"Leave {flags[0].partition('=')[0]} out.")


def _list_unread_fields(resolved: Resolved, point: Point, names: set[str]) -> Iterator[str]:
    recipe, preset, protocol = resolved.recipe, resolved.plan.preset, resolved.plan.protocol
    precisions = preset.precisions or recipe.precisions
    sizes: dict[str, int] = dict((*recipe.batch_sizes.items(),))
    accumulations = {"accumulation", "global_batch_size"}
    requested_values = (
        ("--precision", point.precision, precisions[0], {"precision"}),
        ("--model", point.model, recipe.models[0], {"model"}),
        ("--batch-size", point.batch_size_per_device, sizes[point.precision], _SIZES),
        ("--accumulation", point.accumulation, preset.accumulation or 1, accumulations),
        ("--xla", point.xla, preset.xla, {"xla"}),
        ("--iters", protocol.iters, preset.iters, {"iters"}),
        ("--window-seconds", protocol.window_seconds, 0, {"window_seconds"}),
    )
    for flag, value, own_value, attributes in requested_values:
        if value != own_value and not attributes & names:
            yield flag


_SIZES = {"batch_size_per_device", "global_batch_size"}


def _list_unread_options(resolved: Resolved, names: set[str]) -> Iterator[str]:
    """Yield the options without an effect: measured ones at any, others at a typed value."""
    recipe = resolved.recipe
    site_options = resolved.site.settings(recipe.name).options
    for name, option in recipe.options.items():
        own_value = option.default
        if not option.measured:
            own_value = site_options.get(name, own_value)
        if resolved.plan.options[name] != own_value and name not in names:
            yield name
