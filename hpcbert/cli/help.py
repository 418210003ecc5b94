"""hpcbert help, hpcbert completion, and man pages.

Man pages are made from the output of --help, so that nothing is written twice. The wheel's build
makes them (build_man.py), so no page can be older than the program.

A parameter is completed by its name, so `campaign` of a new command completes campaigns. What can't
be read completes to nothing: whoever presses TAB does not want to read an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from hpcbert import __version__
from hpcbert.campaign import store
from hpcbert.cli.campaigns import find_runs
from hpcbert.cli.main import root
from hpcbert.cli.options import show_all
from hpcbert.cli.output import Result, returns_result
from hpcbert.config import places
from hpcbert.config.options import RUNTIMES
from hpcbert.config.schedulers import OWN
from hpcbert.config.site import load
from hpcbert.config.toml import read
from hpcbert.container import cache
from hpcbert.errors import HpcbertError
from hpcbert.model import DEVICES, PRECISIONS
from hpcbert.results import record

_DEFAULT = "pytorch"


@click.command("help")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
def help_(words: tuple[str, ...]) -> None:
    """Show the help of hpcbert, or of a command: `hpcbert help lab up`."""
    with root.make_context("hpcbert", [*words, "--help"]) as context:
        root.invoke(context)


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@returns_result
def completion(*, shell: str) -> Result:
    """Print a completion script for a shell.

    \b
    Example:
      eval "$(hpcbert completion bash)"
    """
    completion_class = get_completion_class(shell) or ShellComplete
    source = completion_class(root, {}, "hpcbert", "_HPCBERT_COMPLETE").source_vars()
    text = completion_class.source_template % source
    return Result({"shell": shell, "script": text}, text, exact=True)


# --- Man pages ----------------------------------------------------------------------------------

# Columns of the help: in commands' pages of the documents, and in a man page, which is indented.
_WIDTH = 100
_MAN_WIDTH = 73


def pages() -> Mapping[str, str]:
    """Return every page as troff, by file name: `hpcbert-lab-up.1`."""
    return {
        f"{name.replace(' ', '-')}.1": _format_page(name, context)
        for name, context in walk_commands()
    }


def walk_commands() -> Iterator[tuple[str, click.Context]]:
    """Yield every command by its words, `hpcbert lab up`, with a context to describe it in."""
    root_context = click.Context(
        root, info_name="hpcbert", max_content_width=_WIDTH, **root.context_settings
    )
    queue = [("hpcbert", root_context)]
    show_all(root_context)
    while queue:
        name, context = queue.pop(0)
        yield name, context
        if isinstance(group := context.command, click.Group):
            for inner in group.list_commands(context):
                command = group.get_command(context, inner)
                if command:
                    inner_context = click.Context(command, info_name=inner, parent=context)
                    queue.append((f"{name} {inner}", inner_context))


def _format_page(name: str, context: click.Context) -> str:
    title = name.replace(" ", "-")
    summary = context.command.get_short_help_str(limit=200).rstrip(".")
    context.max_content_width = _MAN_WIDTH
    lines = [
        f'.TH "{title.upper()}" "1" "" "hpcbert {__version__}" "hpcbert"',
        ".SH NAME",
        f"{_escape_troff(title)} \\- {_escape_troff(summary)}",
        ".SH DESCRIPTION",
        ".nf",
        *map(_escape_troff, context.get_help().splitlines()),
    ]
    return "\n".join(lines) + "\n"


def _escape_troff(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = "".join(
        character if character.isascii() else f"\\[u{ord(character):04X}]" for character in text
    )
    return f"\\&{text}" if text[:1] in {".", "'"} else text


# --- Values that a shell completes --------------------------------------------------------------


def _list_recipes(context: click.Context) -> Mapping[str, Path]:
    site_file = str(context.params.get("site_file") or "")
    path, _ = places.find_site(site_file, env=os.environ, cwd=Path.cwd())
    extra = tuple(context.params.get("templates") or ())
    return places.list_recipes(places.recipe_folders(path, extra))


def _find_runs(context: click.Context) -> Path:
    return find_runs(*(str(context.params.get(name) or "") for name in ("runs", "site_file")))


def _list_campaigns(context: click.Context) -> Iterable[str]:
    return [path.name for path in reversed(store.find_campaigns(_find_runs(context)))]


def _find_campaign(context: click.Context) -> Path:
    # If an option has no value yet, click parses the arguments but gives them no name.
    value = context.params.get("campaign") or context.params.get("paths")
    arguments = value or context.args
    names = [arguments] if isinstance(arguments, str) else list(arguments)
    return store.resolve_all([str(name) for name in names[:1]], _find_runs(context))[0]


def _list_points(context: click.Context) -> Iterable[str]:
    arrays = store.read_manifest(_find_campaign(context)).arrays
    return dict.fromkeys(array.point.key for array in arrays)


def _read_recipe(context: click.Context) -> Mapping[str, Any]:
    framework = context.params.get("fw") or context.params.get("frameworks") or ""
    names = (framework if isinstance(framework, str) else ",".join(framework)).split(",")
    submits = any(param.name == "repeats_in" for param in context.command.params)
    if names[0] or submits:
        return read(_list_recipes(context)[str(names[0] or _DEFAULT)] / "recipe.toml")
    return read(_find_campaign(context) / "recipe.toml")


def _list_names(context: click.Context) -> Iterable[str]:
    """Return the values of NAME, which differ between groups of commands."""
    group = context.parent.info_name if context.parent else ""
    if group == "frameworks":
        return _list_recipes(context)
    if group == "record":
        return record.source_names()
    if group != "images":
        return ()
    site = load(str(context.params.get("site_file") or ""))
    return [image.stem for image in cache.list_images(Path(site.container.images))]


_CAMPAIGNS = ("campaign", "campaigns", "like", "paths", "base", "new")
_VALUES: Mapping[str, Callable[[click.Context], Iterable[str]]] = {
    **dict.fromkeys(("fw", "frameworks"), _list_recipes),
    **dict.fromkeys((*_CAMPAIGNS, "resume"), _list_campaigns),
    "point": _list_points,
    "rule": lambda context: [rule["name"] for rule in _read_recipe(context)["log"]["rules"]],
    "model": lambda context: _read_recipe(context)["models"],
    "protocol": lambda context: _read_recipe(context).get("protocols", {}),
    "settings": lambda context: [f"{name}=" for name in _read_recipe(context).get("options", {})],
    "precision": lambda _: PRECISIONS,
    "device": lambda _: DEVICES,
    "runtime": lambda _: RUNTIMES,
    "scheduler": lambda _: OWN,
    "beside": lambda _: record.source_names(),
    "name": _list_names,
}
# Parameters that are also paths, or only paths.
_FILES = (*_CAMPAIGNS, "site_file", "output", "junit", "image", "python")
_FOLDERS = ("runs", "templates", "data", "source")
# Several values, separated by commas.
_LISTS = ("precision", "model", "frameworks")


def _complete_value(name: str, context: click.Context, incomplete: str) -> list[CompletionItem]:
    """Return the values that begin with the text; else those that contain it; else files."""
    prefix, values = "", []
    if name in _LISTS:
        prefix, comma, incomplete = incomplete.rpartition(",")
        prefix += comma
    # A damaged recipe or manifest can cause any of these.
    with suppress(HpcbertError, OSError, KeyError, TypeError, AttributeError):
        if os.sep not in incomplete and name in _VALUES:
            values = [text for text in _VALUES[name](context) if text.isprintable()]
    matches = [value for value in values if value.startswith(incomplete)]
    matches = matches or [value for value in values if incomplete in value]
    if matches:
        return [CompletionItem(prefix + value) for value in matches]
    kind = "dir" if name in _FOLDERS else "file"
    is_path = name in (*_FOLDERS, *_FILES)
    return [CompletionItem(incomplete, type=kind)] if is_path else []


def attach_completion(command: click.Command) -> None:
    """Make the parameters of a command, and of its subcommands, complete their values."""
    for subcommand in command.commands.values() if isinstance(command, click.Group) else ():
        attach_completion(subcommand)
    for param in command.params:
        name = param.name or ""
        if param.type is click.STRING and name in {*_VALUES, *_FILES, *_FOLDERS}:
            vars(param)["shell_complete"] = partial(_complete_value, name)
