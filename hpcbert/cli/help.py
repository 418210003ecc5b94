"""hpcbert help."""

from __future__ import annotations

import click


@click.command("help")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def help_(context: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of hpcbert, or of a command: `hpcbert help lab up`."""
    shown = context.find_root()
    for word in words:
        if not isinstance(shown.command, click.Group):
            raise click.UsageError(f"{shown.command_path} has no command {word!r}.", shown)
        name, command, _ = shown.command.resolve_command(shown, [word])
        if command:
            shown = click.Context(command, info_name=name, parent=shown)
    click.echo(shown.get_help(), color=context.color)
