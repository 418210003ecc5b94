"""Man pages, made from the output of --help, so that nothing is written twice.

The wheel's build makes them (build_man.py), so no page can be older than the program.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from hpcbert import __version__
from hpcbert.cli.main import root

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Headings of click's help that become sections of the page; the rest is text.
_SECTION = re.compile(r"^(\w+):$")
_ENTRY = re.compile(r"^  (\S.*?)(?:  +(\S.*))?$")
# Width of the help before man fills the lines again.
_WIDTH = 100


def pages() -> Mapping[str, str]:
    """Return every page as troff, by file name: `hpcbert-lab-up.1`."""
    return {f"{name.replace(' ', '-')}.1": _page(name, context) for name, context in _commands()}


def _commands() -> Iterator[tuple[str, click.Context]]:
    top = click.Context(
        root, info_name="hpcbert", max_content_width=_WIDTH, **root.context_settings
    )
    waiting = [("hpcbert", top)]
    while waiting:
        name, context = waiting.pop(0)
        yield name, context
        if isinstance(group := context.command, click.Group):
            for inner in group.list_commands(context):
                command = group.get_command(context, inner)
                if command:
                    below = click.Context(command, info_name=inner, parent=context)
                    waiting.append((f"{name} {inner}", below))


def _page(name: str, context: click.Context) -> str:
    summary = context.command.get_short_help_str(limit=200).rstrip(".")
    usage = " ".join(context.command.collect_usage_pieces(context))
    title = name.replace(" ", "-")
    lines = [
        f'.TH "{title.upper()}" "1" "" "hpcbert {__version__}" "hpcbert"',
        *(".SH NAME", f"{_plain(title)} \\- {_plain(summary)}"),
        *(".SH SYNOPSIS", f".B {_plain(f'{name} {usage}')}"),
        ".SH DESCRIPTION",
        *_body(context.get_help().splitlines()),
    ]
    if isinstance(context.command, click.Group):
        inner = context.command.list_commands(context)
        lines += [".SH SEE ALSO", *(f".BR {_plain(f'{title}-{one}')} (1)" for one in inner)]
    elif context.parent:
        lines += [".SH SEE ALSO", f".BR {_plain(title.rpartition('-')[0])} (1)"]
    return "\n".join(lines) + "\n"


def _body(help_lines: list[str]) -> Iterator[str]:
    """Yield the text of a help page, with sections and lists in troff."""
    listed = False
    typed = False
    for line in help_lines[1:]:
        section = _SECTION.match(line.strip())
        entry = _ENTRY.match(line) if listed else None
        if section:
            typed = section[1].startswith("Example")
            listed = not typed
            yield f".SH {section[1].upper()}"
        elif not line.strip():
            typed = False
            yield ".PP"
        elif typed:
            yield from (_plain(line.strip()), ".br")
        elif entry:
            yield from (".TP", f".B {_plain(entry[1])}", *([_plain(entry[2])] if entry[2] else []))
        else:
            yield _plain(line.strip())


def _plain(text: str) -> str:
    """Return text escaped so that troff prints it as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = "".join(one if one.isascii() else f"\\[u{ord(one):04X}]" for one in text)
    return f"\\&{text}" if text[:1] in {".", "'"} else text
