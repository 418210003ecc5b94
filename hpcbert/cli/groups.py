"""Groups of commands that do something without a further word."""

from __future__ import annotations

import click


class ListByDefault(click.Group):
    """A group that means its `list` where no command is named: `hpcbert images --json`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `list` before what begins with an option, unless that asks for help."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)
