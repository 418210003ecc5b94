"""Templates that may come from anybody, in Jinja's immutable sandbox, and what they read.

A recipe's folder is text that is rendered on the login node, also by `render` and in a dry run.
A template reads the options, the point and the protocol. A value that differs from the recipe's own
and that no template reads would label a run as something that it is not.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2

from hpcbert.config import trust
from hpcbert.errors import UsageError, refuse_ineffective
from hpcbert.model import Point
from hpcbert.script.resolve import Resolved


class Loader(jinja2.FileSystemLoader):
    """Loads templates that the user trusts, also those that another template includes.

    Args:
        folders: Folders of templates; the first that has a file wins.
    """

    def __init__(self, folders: Sequence[Path], entries: Sequence[trust.TrustedPath]) -> None:
        super().__init__([str(folder) for folder in folders])
        self._named = entries

    def get_source(
        self, environment: jinja2.Environment, template: str
    ) -> tuple[str, str, Callable[[], bool]]:
        """Return a template's text, file, and whether it is still up to date."""
        source = super().get_source(environment, template)
        trust.refuse_untrusted([Path(source[1])], self._named)
        return source


@contextlib.contextmanager
def locate_errors(path: Path) -> Iterator[None]:
    """Turn the errors of a template into sentences that name its line.

    Args:
        path: The rendered file, if the error does not name one.

    Raises:
        UsageError: A template is wrong or reaches too far.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, UsageError) and error.where:
            raise
        # Any error of its own arithmetic and calls: a division by 0, an endless recursion.
        text = str(error).rstrip(".") or type(error).__name__
        message, hint, where = f"A template is wrong: {text}.", "", str(path)
        for frame in traceback.extract_tb(error.__traceback__):
            # Jinja puts the template's own place into the traceback.
            if frame.filename.endswith(".j2"):
                where = f"{frame.filename}:{frame.lineno}"
        if isinstance(error, jinja2.TemplateSyntaxError):
            message = f"A template is wrong: {error.message}."
            where = f"{error.filename or path}:{error.lineno}"
        if isinstance(error, UsageError):
            message, hint = error.message, error.hint
        raise UsageError(message, where=where, hint=hint) from error


# --- Whether what was requested reaches the commands of the ranks ---------------------------------


class Fields:
    """The attributes of an object for a template, which notes those that it reads."""

    def __init__(self, source: object, prefix: str, names: set[str]) -> None:
        self._source = source
        self._prefix = prefix
        self._names = names

    def __getattr__(self, name: str) -> Any:
        self._names.add(f"{self._prefix}.{name}")
        return getattr(self._source, name)


def watch(context: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """Return a template's variables; what it reads of three of them is noted in `names`."""
    watched = {**context, "options": SimpleNamespace(**context["options"])}
    for variable in ("options", "point", "protocol"):
        watched[variable] = Fields(watched[variable], variable, names)
    return watched


def refuse_unread(resolved: Resolved, point: Point, names: set[str]) -> None:
    """Refuse a value that differs from the recipe's own and that its template does not read.

    Args:
        names: What the template read: `options.NAME`, `point.precision`, `protocol.iters`.

    Raises:
        UsageError: There is one; the message names its option.
    """
    recipe, preset, protocol = resolved.recipe, resolved.plan.preset, resolved.plan.protocol
    precision = (preset.precisions or recipe.precisions)[0]
    own_sizes: dict[str, int] = dict((*recipe.batch_sizes.items(),))
    sizes = ("point.batch_size_per_device", "point.global_batch_size")
    accumulations = ("point.accumulation", "point.global_batch_size")
    rows: list[tuple[str, Any, Any, tuple[str, ...]]] = [
        ("--precision", point.precision, precision, ("point.precision",)),
        ("--model", point.model, recipe.models[0], ("point.model",)),
        ("--batch-size", point.batch_size_per_device, own_sizes[point.precision], sizes),
        ("--accumulation", point.accumulation, preset.accumulation or 1, accumulations),
        ("--xla", point.xla, preset.xla, ("point.xla",)),
        ("--iters", protocol.iters, preset.iters, ("protocol.iters",)),
        ("--window-seconds", protocol.window_seconds, 0, ("protocol.window_seconds",)),
    ]
    site_options = resolved.site.settings(recipe.name).options
    for name, option in recipe.options.items():
        # Measured options have no effect at any other value, the others at a typed one.
        usual = option.default if option.measured else site_options.get(name, option.default)
        rows.append((f"--set {name}", resolved.plan.options[name], usual, (f"options.{name}",)))
    for flag, value, own_value, attributes in rows:
        if value != own_value and names.isdisjoint(attributes):
            context = f"with the protocol {point.protocol}" if point.protocol else "here"
            raise refuse_ineffective(flag, f"on {point.framework} {context}")
