"""hpcbert completion, and the values that a shell completes: frameworks, campaigns, points, rules.

A parameter is completed by its name, so `campaign` of a new command completes campaigns. What can't
be read completes to nothing: whoever presses TAB does not want to read an error.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from hpcbert.campaign import store
from hpcbert.cli.campaigns import find_runs
from hpcbert.cli.output import Result, returns_result
from hpcbert.config import places
from hpcbert.config.site import load
from hpcbert.config.toml import read
from hpcbert.container import cache
from hpcbert.errors import HpcbertError, UsageError
from hpcbert.model import DEVICES, PRECISIONS
from hpcbert.results.published import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Values = Callable[[click.Context], Iterable[str]]
    TextType = click.ParamType[str]
else:
    TextType = click.ParamType  # not generic in click 8.2


@click.command(epilog='\b\nExample:\n  eval "$(hpcbert completion bash)"')
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@returns_result
def completion(*, shell: str) -> Result:
    """Print a completion script for a shell."""
    completion_class = get_completion_class(shell)
    if completion_class is None:
        raise UsageError(f"hpcbert has no completion for {shell}.")
    root = click.get_current_context().find_root().command
    source = completion_class(root, {}, "hpcbert", "_HPCBERT_COMPLETE").source_vars()
    text = completion_class.source_template % source
    return Result({"shell": shell, "script": text}, text, exact=True)


_DEFAULT = "pytorch"


def _site_file(context: click.Context) -> Path:
    name = str(context.params.get("site_file") or "")
    return places.find_site(name, env=os.environ, cwd=Path.cwd())[0]


def _recipes(context: click.Context) -> Mapping[str, Path]:
    extra = tuple(context.params.get("templates") or ())
    return places.list_recipes(places.recipe_folders(_site_file(context), extra))


def _runs(context: click.Context) -> Path:
    return find_runs(*(str(context.params.get(name) or "") for name in ("runs", "site_file")))


def _campaigns(context: click.Context) -> Iterable[str]:
    return [path.name for path in reversed(store.find_campaigns(_runs(context)))]


def _campaign_on_line(context: click.Context) -> Path | None:
    # If an option has no value yet, click parses the arguments but gives them no name.
    value = context.params.get("campaign") or context.params.get("paths")
    arguments = value or context.args
    names = [arguments] if isinstance(arguments, str) else list(arguments)
    return store.resolve_all([str(name) for name in names[:1]], _runs(context))[0]


def _points(context: click.Context) -> Iterable[str]:
    directory = _campaign_on_line(context)
    arrays = store.read_manifest(directory).arrays if directory else ()
    return dict.fromkeys(array.point.key for array in arrays)


def _recipe(context: click.Context) -> Mapping[str, Any]:
    """Return the recipe of a command line: that of a framework or of a campaign."""
    framework = context.params.get("fw") or context.params.get("frameworks") or ""
    names = (framework if isinstance(framework, str) else ",".join(framework)).split(",")
    if not names[0]:
        submits = any(param.name == "repeats_in" for param in context.command.params)
        directory = None if submits else _campaign_on_line(context)
        if directory:
            return read(directory / "recipe.toml")
    return read(_recipes(context)[str(names[0] or _DEFAULT)] / "recipe.toml")


def _rules(context: click.Context) -> Iterable[str]:
    return [str(rule["name"]) for rule in _recipe(context)["log"]["rules"]]


def _models(context: click.Context) -> Iterable[str]:
    return map(str, _recipe(context)["models"])


def _protocols(context: click.Context) -> Iterable[str]:
    return list(_recipe(context).get("protocols", {}))


def _settings(context: click.Context) -> Iterable[str]:
    return [f"{name}=" for name in _recipe(context).get("options", {})]


def _published(_context: click.Context) -> Iterable[str]:
    return record.source_names()


def _values_of_name(context: click.Context) -> Iterable[str]:
    """Return the values of NAME, which differ between groups of commands."""
    group = context.parent.info_name if context.parent else ""
    by_group = {"frameworks": _recipes, "record": _published, "images": _images}
    return by_group[str(group)](context) if group in by_group else ()


def _images(context: click.Context) -> Iterable[str]:
    site = load(str(context.params.get("site_file") or ""))
    return [path.stem for path in cache.list_images(Path(site.container.images))]


VALUES: Mapping[str, Values] = {
    "fw": _recipes,
    "frameworks": _recipes,
    "campaign": _campaigns,
    "campaigns": _campaigns,
    "resume": _campaigns,
    "like": _campaigns,
    "paths": _campaigns,
    "base": _campaigns,
    "new": _campaigns,
    "point": _points,
    "rule": _rules,
    "model": _models,
    "protocol": _protocols,
    "settings": _settings,
    "precision": lambda _: PRECISIONS,
    "device": lambda _: DEVICES,
    "beside": _published,
    "name": _values_of_name,
}
# Parameters that are also paths, or only paths.
FILES = (
    *("campaign", "campaigns", "like", "paths", "base", "new"),
    *("site_file", "output", "junit", "image", "python"),
)
FOLDERS = ("runs", "templates", "data", "source")
# Several values, separated by commas.
LISTS = ("precision", "model", "frameworks")


class CompletedText(TextType):
    """Text with values that a shell can complete."""

    name = "text"

    def __init__(self, parameter: str) -> None:
        self.parameter = parameter

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the values that begin with the text; else those that contain it; else files."""
        prefix = ""
        if self.parameter in LISTS:
            prefix, comma, incomplete = incomplete.rpartition(",")
            prefix += comma
        values = [] if os.sep in incomplete else [*_complete_values(self.parameter, ctx)]
        matches = [value for value in values if value.startswith(incomplete)]
        matches = matches or [value for value in values if incomplete in value]
        if matches:
            return [CompletionItem(prefix + value) for value in matches]
        kind = "dir" if self.parameter in FOLDERS else "file"
        paths = self.parameter in (*FOLDERS, *FILES)
        return [CompletionItem(incomplete, type=kind)] if paths else []


def _complete_values(parameter: str, context: click.Context) -> Iterable[str]:
    find_values = VALUES.get(parameter)
    # A damaged recipe or manifest can cause any of these.
    with suppress(HpcbertError, OSError, KeyError, TypeError, AttributeError):
        return (
            [value for value in find_values(context) if value.isprintable()] if find_values else []
        )
    return []


def attach_completion(command: click.Command) -> click.Command:
    """Make the parameters of a command, and of its subcommands, complete their values."""
    for subcommand in command.commands.values() if isinstance(command, click.Group) else ():
        attach_completion(subcommand)
    for param in command.params:
        name = param.name or ""
        if param.type is click.STRING and name in {*VALUES, *FILES, *FOLDERS}:
            param.type = CompletedText(name)
    return command
