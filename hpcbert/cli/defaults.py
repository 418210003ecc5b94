"""Defaults of options that a person sets: variables, and tables of a config.toml.

    HPCBERT_SUBMIT_PARTITION=gpu hpcbert submit
    [submit]                  # ~/.config/hpcbert/config.toml
    partition = "gpu"

The command line wins over a campaign.toml, this over a variable, the variable over config.toml, and
that over the site.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from hpcbert.config import places
from hpcbert.errors import ConfigError

_PREFIX = "HPCBERT"
# Options that do something else instead of the command.
_EXCLUDED = ("help", "help_all")


def config_file(env: Mapping[str, str]) -> Path:
    """Return the file with a person's defaults, which need not exist."""
    return places.config_home(env) / "hpcbert" / "config.toml"


def list_options(command: click.Command) -> dict[str, click.Option]:
    """Return the options that can have a default, by the words of their flags: `gpus-per-node`."""
    return {
        max(param.opts, key=len).lstrip("-"): param
        for param in command.params
        if isinstance(param, click.Option) and param.name not in _EXCLUDED
    }


def name_variable(words: tuple[str, ...], flag: str) -> str:
    """Return the variable of an option: `HPCBERT_LAB_UP_NODES`."""
    return "_".join((_PREFIX, *words, flag)).replace("-", "_").upper()


def name_origin(param: click.Parameter, source: ParameterSource | None) -> str:
    """Return what set a default, the variable or config.toml; empty if neither did."""
    if source is ParameterSource.ENVIRONMENT:
        return str(param.envvar)
    return str(config_file(os.environ)) if source is ParameterSource.DEFAULT_MAP else ""


def read_tables(env: Mapping[str, str]) -> dict[str, Any]:
    """Read the tables of config.toml, by command; empty if the file does not exist.

    Raises:
        ConfigError: The file can't be read, or belongs to neither this user nor root: options
            name programs to run.
    """
    path = config_file(env)
    try:
        owner = path.stat().st_uid
    except OSError:
        return {}
    if owner not in {os.geteuid(), 0}:
        raise ConfigError(
            "It belongs to somebody else.", where=str(path), hint="Set HOME to yours."
        )
    from hpcbert.config.toml import read_values  # most people have no such file

    return read_values(path)


def map_defaults(table: Any, command: click.Command, words: tuple[str, ...]) -> dict[str, Any]:
    """Return click's `default_map` of a command from its table; groups have tables of their own.

    Args:
        table: The table.
        command: The command.
        words: The names that lead to it: `lab`, `up`.

    Raises:
        ConfigError: A key does not name an option, or its value does not fit.
    """
    from hpcbert.system.decode import did_you_mean

    where = f"{config_file(os.environ)}: [{'.'.join(words)}]"
    if not isinstance(table, dict):
        raise ConfigError("It must be a table of options.", where=where)
    commands = command.commands if isinstance(command, click.Group) else {}
    options = list_options(command)
    defaults: dict[str, Any] = {}
    for key, value in table.items():
        flag = key.replace("_", "-")
        if key in commands:
            defaults[key] = map_defaults(value, commands[key], (*words, key))
        elif flag not in options:
            hint = did_you_mean(flag, [*options, *commands])
            raise ConfigError(f"{' '.join(words)} has no option --{flag}.", where=where, hint=hint)
        elif isinstance(value, dict):
            raise ConfigError(f"{key} must be a value, not a table.", where=where)
        else:
            option = options[flag]
            several = option.multiple and not isinstance(value, list)
            defaults[str(option.name)] = [value] if several else value
    return defaults


def list_defaults(root: click.Group, env: Mapping[str, str]) -> Iterator[tuple[str, Any, str]]:
    """Yield each default that a person set: `submit --partition`, its value and its origin."""
    context = click.Context(root)
    tables = read_tables(env)
    for name in root.list_commands(context):
        prefix = name_variable((name,), "")
        if name not in tables and not any(variable.startswith(prefix) for variable in env):
            continue
        if command := root.get_command(context, name):
            defaults = map_defaults(tables.get(name, {}), command, (name,))
            yield from _list_command(command, (name,), defaults, env)


def _list_command(
    command: click.Command,
    words: tuple[str, ...],
    defaults: Mapping[str, Any],
    env: Mapping[str, str],
) -> Iterator[tuple[str, Any, str]]:
    for flag, option in list_options(command).items():
        shown = f"{' '.join(words)} --{flag}"
        if value := env.get(str(option.envvar)):
            yield shown, value, str(option.envvar)
        elif option.name in defaults:
            yield shown, defaults[option.name], str(config_file(env))
    for name, subcommand in getattr(command, "commands", {}).items():
        yield from _list_command(subcommand, (*words, name), defaults.get(name, {}), env)
