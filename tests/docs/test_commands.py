"""The pages of the commands are what click has of them now."""

from __future__ import annotations

from tests.docs import commands


def test_the_pages_of_the_commands_are_what_the_commands_say() -> None:
    made = commands.pages()
    written = {*commands.FOLDER.glob("*.md"), commands.OVERVIEW}
    found = {path: path.read_text(encoding="utf-8") for path in written}
    stale = sorted(path.name for path in made.keys() | found if made.get(path) != found.get(path))
    assert not stale, f"run: {commands.HOW}"
