"""The pages of the commands, made of what click has of each: `make pages` writes them.

A subcommand is a section of its group's page. The table of all commands is part of
docs/reference/command-line.md, whose other text is written by hand.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path

import click

from hpcbert.cli.help import walk_commands
from tests.kit.cases import read_constant
from tests.kit.paths import REFERENCE

FOLDER, OVERVIEW = REFERENCE / "commands", REFERENCE / "command-line.md"
# Where a person reads on, by the command; what stands for a value, by click's type.
LINKS, VALUES = (read_constant(__file__, name) for name in ("LINKS", "VALUES"))
_TABLE = re.compile(r"(<!-- commands -->\n).*?(<!-- end of commands -->)", re.DOTALL)
_EXAMPLES = re.compile(r"^\x08\nExamples?:\n((?:  .+\n?)+)", re.MULTILINE)
# What a help text says to type: an option, a file's name, a word with signs. Of a word the full
# stop, or the bracket, after it is not part.
_TYPED = re.compile(
    r"`[^`]+`|'[^']*\{[^']*'|(?<![\w-])--[a-z][\w-]*|\b[\w-]+(?:\.[\w-]+)*\.(?:toml|json|lua|conf|md|html)\b"
    r"|[^\s(]*[_*={|][^\s]*?(?=[).,;:]*(?:\s|$))"
)


def pages() -> dict[Path, str]:
    """Return every page that is made, and the overview with its table, by path."""
    texts: dict[Path, str] = {}
    rows = "| command | purpose |\n|---|---|\n"
    for name, context in walk_commands():
        _, _, command = name.partition(" ")
        if not command:
            continue
        top = command.split()[0]
        path = FOLDER / f"{top}.md"
        if path not in texts:
            texts[path] = "<!-- Made by docs/reference/write_commands.py. -->\n"
            rows += f"| [`{top}`](commands/{top}.md) | {_describe(context.command)[0]} |\n"
        texts[path] += "\n" + _write_section(name, context)
    overview = OVERVIEW.read_text(encoding="utf-8")
    return texts | {OVERVIEW: _TABLE.sub(lambda match: f"{match[1]}\n{rows}\n{match[2]}", overview)}


def _write_section(name: str, context: click.Context) -> str:
    purpose, paragraphs, examples = _describe(context.command)
    usage = " ".join([name, *context.command.collect_usage_pieces(context)])
    blocks = [f"{'#' * name.count(' ')} {name}", purpose, f"```text\n{usage}\n```"]
    blocks += [textwrap.fill(text, 100, break_on_hyphens=False) for text in paragraphs]
    blocks += [f"```sh\n{examples}\n```"] if examples else []
    if links := LINKS.get(name.partition(" ")[2]):
        blocks.append(textwrap.fill(f"See also {links}.", 100, break_on_hyphens=False))
    params = context.command.params
    rows = [_write_row(param, context) for param in params if isinstance(param, click.Option)]
    if rows:
        blocks.append("\n".join(["| option | default | meaning |", "|---|---|---|", *rows]))
    return "\n\n".join(blocks) + "\n"


def _describe(command: click.Command) -> tuple[str, list[str], str]:
    """Return a command's purpose, the paragraphs of its long help, and its examples."""
    text = inspect.cleandoc(f"{command.help}") + f"\n\n{command.epilog or ''}"
    examples = _EXAMPLES.search(text)
    parts = _EXAMPLES.sub("", text).split("\n\n")
    purpose, *paragraphs = [_mark_up(" ".join(part.split())) for part in parts if part.strip()]
    return purpose, paragraphs, textwrap.dedent(examples[1]).strip() if examples else ""


def _write_row(param: click.Option, context: click.Context) -> str:
    """Return an option's names with what stands for its value, its default, and its meaning."""
    cell = ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))
    if param.metavar:
        words = param.metavar.split("|")
        cell += " " + " or ".join(f"`{word}`" if word.islower() else word for word in words)
    elif isinstance(param.type, click.Choice):
        cell += " " + ", ".join(f"`{choice}`" for choice in param.type.choices)
    elif not (param.is_flag or param.count):
        cell += f" {VALUES[param.type.name]}"
    value = param.get_default(context)
    value = ",".join(map(str, value)) if isinstance(value, tuple) else value
    plain = isinstance(value, str | int | Path) and not isinstance(value, bool)
    default = f"`{value}`" if plain and (value or (param.show_default and value == 0)) else "-"
    meaning = _mark_up(param.help or "")
    if isinstance(param.type, click.IntRange) and param.type.max is not None:
        meaning += f" From {param.type.min} to {param.type.max}."
    if param.multiple:
        meaning = meaning.replace("; repeatable", "") + " Repeatable."
    return f"| {cell} | {'required' if param.required else default} | {meaning} |"


def _mark_up(text: str) -> str:
    """Return a help text with what a person types as code, so that no sign of it is Markdown's."""
    return _TYPED.sub(
        lambda match: match[0] if match[0][0] == "`" else f"`{match[0]}`", text
    ).replace("|", "\\|")


if __name__ == "__main__":
    for page, content in pages().items():
        page.write_text(content, encoding="utf-8")
    for page in set(FOLDER.glob("*.md")) - pages().keys():  # of commands that are gone
        page.unlink()
