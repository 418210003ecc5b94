"""The root command, which imports a command's module only on use; and other groups."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from hpcbert import __version__
from hpcbert.cli import streams

_OTHERS_WRITE = 0o002
_COMPLETE = "_HPCBERT_COMPLETE"

# name -> first line of its help; the module is hpcbert.cli.<name>, the object has the same name.
COMMANDS = {
    "init": "Write a site.toml for this cluster or machine.",
    "doctor": "Check that this machine can do what the site says.",
    "config": "Show every setting and where it comes from.",
    "frameworks": "List the frameworks that hpcbert can measure.",
    "render": "Write the scripts that submit would run.",
    "prepare": "Fetch images and programs, make environments and data.",
    "data": "Make training data, check it, show it.",
    "images": "List and remove prepared images.",
    "plan": "Show what a submission would cost and what is missing.",
    "submit": "Submit a point, or a whole scaling curve.",
    "monitor": "Watch campaigns until they end.",
    "logs": "Print the log of a repeat.",
    "cancel": "Cancel a campaign's jobs.",
    "retry": "Resubmit repeats that are missing or invalid.",
    "collect": "Reduce logs to a table of medians and speedups.",
    "compare": "Compare results point by point, with a verdict on each.",
    "report": "Write a report: a page, figures, tables, and all numbers.",
    "record": "Show and check results that others published.",
    "list": "List your campaigns, newest first.",
    "show": "Show a campaign and its results so far.",
    "note": "Write a line about a campaign, or print it.",
    "rm": "Remove campaigns for good.",
    "audit": "Check that a campaign's numbers still follow from its files.",
    "explain": "Explain the efficiency of a result.",
    "predict": "Predict the throughput of more nodes.",
    "archive": "Pack a campaign into one file.",
    "trust": "Allow hpcbert to run files of somebody else.",
    "lab": "Run a real Slurm cluster on this machine.",
    "completion": "Print a completion script for a shell.",
}


# Parameters for which an empty value has a meaning, by command, and what it is.
EMPTY_MEANS = {("note", "text"): "removes the note"}


def refuse_blanks(command: click.Command) -> click.Command:
    """Let a command and those below it refuse empty values: of an unset shell variable, mostly.

    An option that is not typed keeps its default. An empty one would silently mean the same, an
    empty argument whatever matches first.
    """
    for subcommand in getattr(command, "commands", {}).values():
        refuse_blanks(subcommand)
    for param in command.params:
        vars(param).setdefault("consume_value", _refuse_blank(param, param.consume_value))
    return command


def _refuse_blank(
    param: click.Parameter, consume: Callable[..., tuple[Any, ParameterSource]]
) -> Callable[..., tuple[Any, ParameterSource]]:
    def consume_value(ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        value, source = consume(ctx, opts)
        values = value if isinstance(value, list | tuple) else (value,)
        blank = any(isinstance(word, str) and not word.strip() for word in values)
        exempt = (ctx.info_name, param.name) in EMPTY_MEANS or ctx.resilient_parsing
        if source is ParameterSource.COMMANDLINE and blank and not exempt:
            param.process_value(ctx, value)  # Its own refusal says more.
            raise click.BadParameter("it is empty. Is a shell variable unset?", ctx, param)
        return value, source

    return consume_value


class LazyGroup(click.Group):
    """A group that lists its commands here and imports them on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the usual order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of one command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"hpcbert.cli.{cmd_name}")
        # With an underscore if Python has the name already, as `list`.
        command: click.Command = getattr(module, f"{cmd_name}_", None) or getattr(module, cmd_name)
        if _COMPLETE in os.environ:
            from hpcbert.cli.completion_values import attach_completion  # imports many modules

            return attach_completion(command)
        return refuse_blanks(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List commands by their first lines without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete the names of commands without importing them."""
        from click.shell_completion import CompletionItem

        names = [name for name in COMMANDS if name.startswith(incomplete)]
        completion_items = [CompletionItem(name, help=COMMANDS[name]) for name in names]
        return [*completion_items, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest the nearest name if there is no such command."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from hpcbert.system.decode import did_you_mean

            hint = did_you_mean(args[0], COMMANDS) if args else ""
            raise click.UsageError(f"{error.message} {hint}".strip(), ctx) from None


class ListByDefault(click.Group):
    """A group that runs its `list` if no command is named: `hpcbert images --json`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `list` in front of a leading option, unless that asks for help."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


def _choose_colour(choice: str) -> bool | None:
    """Decide on colour: the flag, then NO_COLOR, then FORCE_COLOR, then click's isatty."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return True if os.environ.get("FORCE_COLOR") else None


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hpcbert", message="%(prog)s %(version)s")
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
    ctx.color = _choose_colour(color)


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
    except Exception as error:  # noqa: BLE001 - the outermost level
        exit_on_error(error)


def exit_on_error(error: BaseException) -> NoReturn:
    """Leave because of an exception; honour --json, and a reader that closed the pipe."""
    from hpcbert.cli.output import convert_error, exit_unwritten, exit_with_result, replace_controls

    as_json = "--json" in sys.argv
    if isinstance(error, BrokenPipeError):
        streams.discard_buffer(sys.stdout)
        raise SystemExit(0)
    from hpcbert.cli.output import (
        Result,
    )

    if isinstance(error, click.ClickException) and not as_json:
        # Older versions of click quote a wrong option as it was typed.
        error.show(text := io.StringIO())
        click.echo(replace_controls(text.getvalue()), nl=False, err=True)
        raise SystemExit(2)

    if isinstance(error, OSError) and streams.is_write_failure(sys.stdout, error):
        exit_unwritten(error)
    command_name = next((word for word in sys.argv[1:] if word in COMMANDS), "")
    if context := getattr(error, "ctx", None):
        command_name = str(context.command_path).partition(" ")[2]
    exit_with_result(command_name, Result(errors=(convert_error(error),)), as_json=as_json)
