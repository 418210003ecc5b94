"""Templates that may come from anybody, in Jinja's immutable sandbox, and what they read.

A recipe's folder is text that is rendered on the login node, also by `render` and in a dry run.
A template reads the options, the point and the protocol. A value that differs from the recipe's own
and that no template reads would label a run as something that it is not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2

from hpcbert.config import trust
from hpcbert.errors import UsageError
from hpcbert.model import Point
from hpcbert.script.resolve import Resolved

_SUFFIX = ".j2"


class Loader(jinja2.FileSystemLoader):
    """Loads templates that the user trusts, also those that another template includes.

    Args:
        folders: Folders of templates; the first that has a file wins.
        entries: What the command line trusts.
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
    except UsageError as error:
        if error.where:
            raise
        raise UsageError(
            error.message, where=_find_error_line(error, path), hint=error.hint
        ) from error
    except jinja2.TemplateSyntaxError as error:
        where = f"{error.filename or path}:{error.lineno}"
        raise UsageError(f"A template is wrong: {error.message}.", where=where) from error
    except Exception as error:
        # Any error of its own arithmetic and calls: a division by 0, an endless recursion.
        text = str(error).rstrip(".") or type(error).__name__
        raise UsageError(
            f"A template is wrong: {text}.", where=_find_error_line(error, path)
        ) from error


def _find_error_line(error: BaseException, path: Path) -> str:
    """Return file and line of the template in which an error was raised.

    Jinja puts the template's own place into the traceback.
    """
    text = str(path)
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.endswith(_SUFFIX):
            text = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return text


# --- Whether what was requested reaches the commands of the ranks ---------------------------------


class Fields:
    """The attributes of an object for a template, which notes those that it reads."""

    def __init__(self, source: object, names: set[str]) -> None:
        self._source = source
        self._names = names

    def __getattr__(self, name: str) -> Any:
        self._names.add(name)
        return getattr(self._source, name)


@dataclass(frozen=True)
class Readings:
    """The names of what a template reads: options, and attributes of point and protocol."""

    options: set[str] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)

    def watch(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """Return a template's variables, of which it notes what is read."""
        return {
            **context,
            "options": Fields(SimpleNamespace(**context["options"]), self.options),
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
