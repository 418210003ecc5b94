"""The root command, which loads a command's module only when it is used; and other groups."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, NoReturn

import click

from hpcbert import __version__
from hpcbert.cli import streams

_OTHERS_WRITE = 0o022
_COMPLETE = "_HPCBERT_COMPLETE"

# name -> first line of its help; the module is hpcbert.cli.<name>, and so is the object in it.
COMMANDS = {
    "init": "Write a site.toml for this cluster or machine.",
    "doctor": "Check that this machine can do what the site says.",
    "config": "Show every setting and where it comes from.",
    "frameworks": "List the frameworks that can be measured.",
    "render": "Write the scripts that submit would run.",
    "prepare": "Make image, program and data of frameworks ready.",
    "data": "Make training data, check them, show them.",
    "images": "List and remove prepared images.",
    "plan": "Say what a submission would take and what it lacks.",
    "submit": "Submit a point, or a whole scaling curve.",
    "monitor": "Watch campaigns until they end.",
    "logs": "Print the log of a repeat.",
    "cancel": "Cancel a campaign's jobs.",
    "retry": "Submit again the repeats that don't count.",
    "collect": "Reduce logs to a table of medians and speedups.",
    "compare": "Compare results point by point, with a verdict on each.",
    "report": "Write a report: a page, figures, tables, and all numbers.",
    "record": "Show what others published, and check it.",
    "list": "List your campaigns, newest first.",
    "show": "Show what one campaign is and what it has come to.",
    "note": "Write a line about a campaign, or print it.",
    "rm": "Remove campaigns for good.",
    "audit": "Check that a campaign's numbers still follow from its files.",
    "explain": "Say why the efficiency is what it is.",
    "predict": "Say what more nodes would give.",
    "archive": "Pack a campaign into one file.",
    "lab": "Run a real Slurm cluster on this machine.",
    "completion": "Print a completion script for a shell.",
}


class LazyGroup(click.Group):
    """A group whose commands are listed here and imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of work."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of one command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"hpcbert.cli.{cmd_name}")
        # With an underscore where the name alone is Python's own, as `list` is.
        command: click.Command = getattr(module, f"{cmd_name}_", None) or getattr(module, cmd_name)
        if _COMPLETE in os.environ:
            from hpcbert.cli.completing import attach

            return attach(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List commands by their first lines without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete command names without importing them."""
        from click.shell_completion import CompletionItem

        names = [name for name in COMMANDS if name.startswith(incomplete)]
        found = [CompletionItem(name, help=COMMANDS[name]) for name in names]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the nearest command where there is none of that name."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from hpcbert.config.decode import did_you_mean

            hint = did_you_mean(args[0], COMMANDS) if args else ""
            raise click.UsageError(f"{error.message} {hint}".strip(), ctx) from None


class ListByDefault(click.Group):
    """A group that means its `list` where no command is named: `hpcbert images --json`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `list` before what begins with an option, unless that asks for help."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


def _colour(choice: str) -> bool | None:
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
    ctx.color = _colour(color)


def main() -> None:
    """Run the command line: whatever happens ends with a sentence and an exit code of the page."""
    streams.settle()
    # Nothing is written for others to change; a stricter umask stays. Jobs are submitted with it.
    os.umask(os.umask(_OTHERS_WRITE) | _OTHERS_WRITE)
    try:
        if instruction := os.environ.get(_COMPLETE):
            from click.shell_completion import shell_complete

            sys.exit(shell_complete(root, {}, "hpcbert", _COMPLETE, instruction))
        # Unlike click's own `main`, without a word on any error.
        with root.make_context("hpcbert", sys.argv[1:]) as context:
            root.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as leave:
        raise SystemExit(leave.exit_code) from None
    except Exception as error:  # noqa: BLE001 - the border
        end(error)


def end(error: BaseException) -> NoReturn:
    """Leave because of an exception: --json is honoured, and a reader that closed the pipe."""
    as_json = "--json" in sys.argv
    if isinstance(error, BrokenPipeError):
        streams.forsake(sys.stdout)
        raise SystemExit(0)
    if isinstance(error, click.ClickException) and not as_json:
        error.show()
        raise SystemExit(2)
    from hpcbert.cli.output import Result, leave, told, unwritten

    if isinstance(error, OSError) and streams.refused(sys.stdout, error):
        unwritten(error)
    named = next((word for word in sys.argv[1:] if word in COMMANDS), "")
    if context := getattr(error, "ctx", None):
        named = str(context.command_path).partition(" ")[2]
    leave(named, Result(errors=(told(error),)), as_json=as_json)
