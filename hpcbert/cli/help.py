"""hpcbert help, and man pages, made from the output of --help so that nothing is written twice.

The wheel's build makes them (build_man.py), so no page can be older than the program.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import click

from hpcbert import __version__
from hpcbert.cli.main import root
from hpcbert.cli.options import show_all


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


# Headings of click's help that become sections of the page; the rest is text.
_SECTION = re.compile(r"^([A-Z][\w ]+):$")
_ENTRY = re.compile(r"^  (\S.*?)(?:  +(\S.*))?$")
# Width of the help before man fills the lines again.
_WIDTH = 100


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
    summary = context.command.get_short_help_str(limit=200).rstrip(".")
    usage = " ".join(context.command.collect_usage_pieces(context))
    title = name.replace(" ", "-")
    lines = [
        f'.TH "{title.upper()}" "1" "" "hpcbert {__version__}" "hpcbert"',
        *(".SH NAME", f"{_escape_troff(title)} \\- {_escape_troff(summary)}"),
        *(".SH SYNOPSIS", f".B {_escape_troff(f'{name} {usage}')}"),
        ".SH DESCRIPTION",
        *_format_help(context.get_help().splitlines()),
    ]
    if isinstance(context.command, click.Group):
        inner = context.command.list_commands(context)
        lines += [
            ".SH SEE ALSO",
            *(f".BR {_escape_troff(f'{title}-{subcommand}')} (1)" for subcommand in inner),
        ]
    elif context.parent:
        lines += [".SH SEE ALSO", f".BR {_escape_troff(title.rpartition('-')[0])} (1)"]
    return "\n".join(lines) + "\n"


def _format_help(help_lines: list[str]) -> Iterator[str]:
    in_list = False
    in_example = False
    for line in help_lines[1:]:
        section = _SECTION.match(line.strip())
        entry = _ENTRY.match(line) if in_list else None
        if section:
            in_example = section[1].startswith("Example")
            in_list = not in_example
            yield f".SH {section[1].upper()}"
        elif not line.strip():
            in_example = False
            yield ".PP"
        elif in_example:
            yield from (_escape_troff(line.strip()), ".br")
        elif entry:
            yield from (
                ".TP",
                f".B {_escape_troff(entry[1])}",
                *([_escape_troff(entry[2])] if entry[2] else []),
            )
        else:
            yield _escape_troff(line.strip())


def _escape_troff(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = "".join(
        character if character.isascii() else f"\\[u{ord(character):04X}]" for character in text
    )
    return f"\\&{text}" if text[:1] in {".", "'"} else text
