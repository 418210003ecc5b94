"""The pages of the commands, made of what click has of each, as the man pages are.

    python -m tests.docs.commands     # writes docs/reference/commands/*.md, and their table

A subcommand is a section of its group's page. The table of all commands is part of
docs/reference/command-line.md, whose other text is written by hand.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import tomli

from hpcbert.cli.help import walk_commands
from tests.kit.paths import REFERENCE

FOLDER = REFERENCE / "commands"
OVERVIEW = REFERENCE / "command-line.md"
HOW = "python -m tests.docs.commands"
# Where a person reads on.
_LINKS = tomli.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_TABLE = re.compile(r"(<!-- commands -->\n).*?(<!-- end of commands -->)", re.DOTALL)
_EXAMPLES = re.compile(r"^\x08\nExamples?:\n((?:  .+\n?)+)", re.MULTILINE)
# What a help text says to type: an option, a file's name, a word with signs. Of a word the full
# stop, or the bracket, after it is not part.
_TYPED = re.compile(
    r"`[^`]+`|'[^']*\{[^']*'|(?<![\w-])--[a-z][\w-]*|\b[\w-]+\.(?:toml|json|lua|conf|md|html)\b"
    r"|[^\s(]*[_*={|][^\s]*?(?=[).,;:]*(?:\s|$))"
)
_VALUES = {
    "directory": "DIR",
    "file": "FILE",
    "filename": "FILE",
    "float": "NUMBER",
    "float range": "NUMBER",
    "integer": "N",
    "integer range": "N",
    "path": "PATH",
    "text": "TEXT",
}


def pages() -> Mapping[Path, str]:
    """Return every page that is made, and the overview with its table, by path."""
    sections: dict[str, list[str]] = {}
    table = ["| command | purpose |\n|---|---|\n"]
    for name, context in walk_commands():
        _, _, command = name.partition(" ")
        if not command:
            continue
        top, _, inner = command.partition(" ")
        if not inner:
            purpose, _, _ = _describe(context.command)
            table.append(f"| [`{top}`](commands/{top}.md) | {_mark_up(purpose)} |\n")
        sections.setdefault(top, []).append(_section(name, context))
    made = {
        FOLDER / f"{top}.md": f"<!-- Made by {HOW}. -->\n\n" + "\n".join(parts)
        for top, parts in sections.items()
    }
    overview = OVERVIEW.read_text(encoding="utf-8")
    rows = "".join(table)
    overview = _TABLE.sub(lambda match: f"{match[1]}\n{rows}\n{match[2]}", overview)
    return made | {OVERVIEW: overview}


def _section(name: str, context: click.Context) -> str:
    purpose, paragraphs, examples = _describe(context.command)
    usage = " ".join([name, *context.command.collect_usage_pieces(context)])
    level = "#" * name.count(" ")
    blocks = [f"{level} {name}", _mark_up(purpose), f"```text\n{usage}\n```"]
    blocks += [textwrap.fill(_mark_up(text), 100, break_on_hyphens=False) for text in paragraphs]
    blocks += [f"```sh\n{examples}\n```"] if examples else []
    links = _LINKS.get(name.partition(" ")[2])
    blocks += [textwrap.fill(f"See also {links}.", 100, break_on_hyphens=False)] if links else []
    options = list(_rows(context))
    if options:
        blocks.append("\n".join(["| option | default | meaning |", "|---|---|---|", *options]))
    return "\n\n".join(blocks) + "\n"


def _describe(command: click.Command) -> tuple[str, list[str], str]:
    """Return a command's purpose, the paragraphs of its long help, and its examples."""
    text = inspect.cleandoc(f"{command.help}") + f"\n\n{command.epilog or ''}"
    examples = _EXAMPLES.search(text)
    plain = _EXAMPLES.sub("", text)
    purpose, *paragraphs = [" ".join(part.split()) for part in plain.split("\n\n") if part.strip()]
    return purpose, paragraphs, textwrap.dedent(examples[1]).strip() if examples else ""


def _rows(context: click.Context) -> Iterator[str]:
    for param in context.command.params:
        if isinstance(param, click.Option):
            names = [*param.opts, *param.secondary_opts]
            cell = " ".join([", ".join(f"`{name}`" for name in names), *_value(param)])
            yield f"| {cell} | {_default(param, context)} | {_meaning(param)} |"


def _value(param: click.Option) -> list[str]:
    if param.is_flag or param.count:
        return []
    if param.metavar:
        return [param.metavar.replace("|", " or ")]
    if isinstance(param.type, click.Choice):
        return [", ".join(f"`{choice}`" for choice in param.type.choices)]
    return [_VALUES[param.type.name]]


def _default(param: click.Option, context: click.Context) -> str:
    value = param.get_default(context)
    if param.required:
        return "required"
    if isinstance(value, tuple):
        value = ",".join(map(str, value))
    plain = isinstance(value, str | int | Path) and not isinstance(value, bool)
    return f"`{value}`" if plain and (value or (param.show_default and value == 0)) else "-"


def _meaning(param: click.Option) -> str:
    text = _mark_up(param.help or "")
    if isinstance(param.type, click.IntRange) and param.type.max is not None:
        text += f" From {param.type.min} to {param.type.max}."
    if param.multiple:
        text = text.replace("; repeatable", "") + " Repeatable."
    return text


def _mark_up(text: str) -> str:
    """Return a help text with what a person types as code, so that no sign of it is Markdown's."""
    return _TYPED.sub(
        lambda match: match[0] if match[0][0] == "`" else f"`{match[0]}`", text
    ).replace("|", "\\|")


def main() -> None:
    """Write the pages, and remove those of commands that are gone."""
    FOLDER.mkdir(exist_ok=True)
    made = pages()
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
    for path in set(FOLDER.glob("*.md")) - made.keys():
        path.unlink()


if __name__ == "__main__":
    main()
