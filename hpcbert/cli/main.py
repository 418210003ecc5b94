"""The root command, which imports a command on use; other groups; defaults that a person sets.

Defaults of options are variables, and tables of a config.toml:

    HPCBERT_SUBMIT_PARTITION=gpu hpcbert submit
    [submit]                  # ~/.config/hpcbert/config.toml
    partition = "gpu"

The command line wins over a campaign.toml, this over a variable, the variable over config.toml, and
that over the site.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from hpcbert import __version__
from hpcbert.cli import streams
from hpcbert.config import places
from hpcbert.errors import ConfigError
from hpcbert.system.decode import did_you_mean

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

    Raises:
        ConfigError: A key does not name an option, or its value does not fit.
    """
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
        is_set = name in tables or any(variable.startswith(prefix) for variable in env)
        if is_set and (command := root.get_command(context, name)):
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


_OTHERS_WRITE = 0o002
_COMPLETE = "_HPCBERT_COMPLETE"

# By heading: name -> first line of its help. The object has that name, the module too, unless
# MODULES has another.
SECTIONS = {
    "Set up": {
        "init": "Write a site.toml for this cluster or machine.",
        "doctor": "Check that this machine can do what the site says.",
        "config": "Show every setting and where it comes from.",
        "frameworks": "List the frameworks that hpcbert can measure.",
        "prepare": "Fetch images and programs, make environments and data.",
        "data": "Make training data, check it, show it.",
        "images": "List and remove prepared images.",
        "lab": "Run a real Slurm cluster on this machine.",
        "trust": "Allow hpcbert to run files of somebody else.",
        "completion": "Print a completion script for a shell.",
        "help": "Show the help of hpcbert or of a command.",
    },
    "Measure": {
        "plan": "Show what a submission would cost and what is missing.",
        "render": "Write the scripts that submit would run.",
        "submit": "Submit a point, or a whole scaling curve.",
        "monitor": "Watch campaigns until they end.",
        "logs": "Print the log of a repeat.",
        "cancel": "Cancel a campaign's jobs.",
        "retry": "Resubmit repeats that are missing or invalid.",
    },
    "Results": {
        "collect": "Reduce logs to a table of medians and speedups.",
        "accept": "Measure again, and accept or refuse the machine and its nodes.",
        "compare": "Compare results point by point, with a verdict on each.",
        "report": "Write a report: a page, figures, tables, and all numbers.",
        "record": "Show and check results that others published.",
        "explain": "Explain the efficiency of a result.",
        "predict": "Predict the throughput of more nodes.",
        "audit": "Check that a campaign's numbers still follow from its files.",
    },
    "Campaigns": {
        "list": "List your campaigns, newest first.",
        "show": "Show a campaign and its results so far.",
        "nodes": "Show the history of nodes: rates and facts.",
        "note": "Write a line about a campaign, or print it.",
        "archive": "Pack a campaign into one file.",
        "rm": "Remove campaigns for good.",
    },
}
COMMANDS = {name: line for section in SECTIONS.values() for name, line in section.items()}
MODULES = {
    "cancel": "retry",
    "completion": "help",
    "doctor": "init",
    "frameworks": "images",
    "nodes": "compare",
    "note": "archive",
    "predict": "explain",
    "rm": "archive",
    "show": "list",
    "trust": "config",
}
# Other names of commands, in every group that has not a command of that name.
ALIASES = {"ls": "list", "rm": "remove", "remove": "rm"}


# Parameters for which an empty value has a meaning, by command, and what it is.
EMPTY_MEANS = {("note", "text"): "removes the note"}


# What stands for a value in --help, by the option's parameter, if not the option's last word.
_METAVARS = {
    **dict.fromkeys(("runs", "site_file", "templates", "data", "source", "python"), "PATH"),
    **dict.fromkeys(("wait", "interval"), "SECONDS"),
    **dict.fromkeys(("job_submit", "slurm_conf"), "FILE"),
    **dict.fromkeys(("fw", "frameworks"), "FRAMEWORK"),
    "lacks": "PLUGIN",
    "repository": "URL",
}
# The types whose values are numbers: click shows their names, as `INTEGER RANGE`.
_NUMBERS = (type(click.INT), type(click.FLOAT))


def complete_command(command: click.Command, words: tuple[str, ...]) -> click.Command:
    """Give a command and those below it what all have in common.

    Options can be set by variables, and their help says what kind of value they take. Empty values,
    of an unset shell variable, mostly, are refused: an option that is not typed keeps its default,
    an empty one would silently mean the same, and an empty argument whatever matches first.

    Args:
        words: The names that lead to it: `lab`, `up`.
    """
    for name, subcommand in getattr(command, "commands", {}).items():
        complete_command(subcommand, (*words, name))
    for flag, option in list_options(command).items():
        option.envvar = name_variable(words, flag)
        if option.metavar is None and not option.is_flag:
            word = flag.rpartition("-")[2].upper() if option.type is click.STRING else None
            word = "N" if isinstance(option.type, _NUMBERS) else word
            option.metavar = _METAVARS.get(str(option.name), word)
    for param in command.params:
        vars(param).setdefault("consume_value", _check_value(param, param.consume_value))
    return command


def _check_value(
    param: click.Parameter, consume: Callable[..., tuple[Any, ParameterSource]]
) -> Callable[..., tuple[Any, ParameterSource]]:
    """Return click's method that finds a value; it refuses blanks, and names what set a bad one."""

    def consume_value(ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        value, source = consume(ctx, opts)
        if origin := name_origin(param, source):
            try:
                param.process_value(ctx, value)
            except click.BadParameter as error:
                text = error.message or "it is empty."
                raise click.BadParameter(f"{text} ({origin})", ctx, param) from None
        values = value if isinstance(value, list | tuple) else (value,)
        blank = any(isinstance(word, str) and not word.strip() for word in values)
        exempt = (ctx.info_name, param.name) in EMPTY_MEANS or ctx.resilient_parsing
        if source is ParameterSource.COMMANDLINE and blank and not exempt:
            param.process_value(ctx, value)  # Its own refusal says more.
            raise click.BadParameter("it is empty. Is a shell variable unset?", ctx, param)
        return value, source

    return consume_value


def _resolve_alias(args: list[str], commands: Collection[str]) -> list[str]:
    alias = ALIASES.get(args[0], "")
    return [alias, *args[1:]] if alias in commands and args[0] not in commands else args


class LazyGroup(click.Group):
    """A group that lists its commands here and imports them on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the usual order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of one command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"hpcbert.cli.{MODULES.get(cmd_name, cmd_name)}")
        # With an underscore if Python has the name already, as `list`.
        command: click.Command = getattr(module, f"{cmd_name}_", None) or getattr(module, cmd_name)
        if _COMPLETE in os.environ:
            importlib.import_module("hpcbert.cli.help").attach_completion(command)
            return command
        return complete_command(command, (cmd_name,))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List commands by their first lines without importing them."""
        width = max(map(len, COMMANDS))
        for heading, commands in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:<{width}}", line) for name, line in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete the names of commands without importing them."""
        from click.shell_completion import CompletionItem

        names = [name for name in COMMANDS if name.startswith(incomplete)]
        completion_items = [CompletionItem(name, help=COMMANDS[name]) for name in names]
        return [*completion_items, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve other names too; suggest the nearest if there is no such command."""
        try:
            return super().resolve_command(ctx, _resolve_alias(args, COMMANDS))
        except click.UsageError as error:
            hint = did_you_mean(args[0], COMMANDS) if args else ""
            raise click.UsageError(f"{error.message} {hint}".strip(), ctx) from None


class ListByDefault(click.Group):
    """A group that runs its `list` if no command is named, and its `show` for any other word.

    `hpcbert images --json` lists, `hpcbert frameworks oneflow` shows.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `list` in front of a leading option, unless that asks for help."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve other names of commands too; what names no command is what to show."""
        args = _resolve_alias(args, self.commands)
        if "show" in self.commands and args[0] not in self.commands:
            args = ["show", *args]
        return super().resolve_command(ctx, args)


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    __version__, "-V", "--version", prog_name="hpcbert", message="%(prog)s %(version)s"
)
@click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    help="Colour the output.",
    show_default=True,
)
@click.pass_context
def root(ctx: click.Context, color: str) -> None:
    """Measure BERT pre-training throughput on a Slurm cluster.

    \b
    Examples:
      hpcbert submit --nodes 4 --gpus-per-node 8 --fw oneflow
      hpcbert monitor
      hpcbert collect
    """
    # None: click asks whether it is a terminal.
    by_variables = (
        False if os.environ.get("NO_COLOR") else bool(os.environ.get("FORCE_COLOR")) or None
    )
    ctx.color = by_variables if color == "auto" else color == "always"
    tables = read_tables(os.environ)
    for name in tables:
        if name not in COMMANDS:
            where, hint = str(config_file(os.environ)), did_you_mean(name, COMMANDS)
            raise ConfigError(f"[{name}] names no command.", where=where, hint=hint)
    name = str(ctx.invoked_subcommand)
    if name in tables and (command := root.get_command(ctx, name)):
        ctx.default_map = {name: map_defaults(tables[name], command, (name,))}


def main() -> None:
    """Run the command line; whatever happens ends with a sentence and a documented exit code."""
    streams.replace_streams()
    # Only a group can write to our files, if the umask lets it. sbatch passes it on to jobs.
    os.umask(os.umask(_OTHERS_WRITE) | _OTHERS_WRITE)
    try:
        if instruction := os.environ.get(_COMPLETE):
            from click.shell_completion import shell_complete

            sys.exit(shell_complete(root, {}, "hpcbert", _COMPLETE, instruction))
        # click's own `main` would print something on some errors.
        with root.make_context("hpcbert", sys.argv[1:]) as context:
            root.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as leave:
        raise SystemExit(leave.exit_code) from None
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        raise SystemExit(error.exit_code) from None
    except Exception as error:  # noqa: BLE001 - the outermost level
        exit_on_error(error)


def exit_on_error(error: BaseException) -> NoReturn:
    """Leave because of an exception; honour --json, and a reader that closed the pipe."""
    from hpcbert.cli.output import Result, convert_error, exit_unwritten, exit_with_result

    as_json = "--json" in sys.argv
    is_unwritten = error is getattr(sys.stdout, "failure", None)
    if isinstance(error, BrokenPipeError) or (isinstance(error, OSError) and is_unwritten):
        exit_unwritten(error)
    command_name = next((word for word in sys.argv[1:] if word in COMMANDS), "")
    if context := getattr(error, "ctx", None):
        command_name = str(context.command_path).partition(" ")[2]
    elif isinstance(error, click.UsageError) and command_name:
        # click's parser does not know the command.
        error.ctx = click.Context(root, info_name=f"hpcbert {command_name}")
    exit_with_result(command_name, Result(errors=(convert_error(error),)), as_json=as_json)
