"""The remedies that doctor prints, applied."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_SETTING = re.compile(r"site\.toml: (?:([\w.-]+)\.)?(\w+) = (.*)")


def typed(
    text: str, words: Iterable[str], findings: Iterable[dict[str, Any]], *, home: Path = Path("~")
) -> tuple[str, list[str]]:
    """Return a site.toml's text and a command line with all remedies of findings in them.

    Args:
        text: The site.toml's.
        words: The command line.
        findings: The findings of doctor.
        home: The directory for a tilde.
    """
    line = list(words)
    for remedy in dict.fromkeys(finding["remedy"] for finding in findings if finding["remedy"]):
        setting = _SETTING.fullmatch(remedy)
        if setting:
            text = set_key(text, *setting.groups())
        elif remedy.startswith("--"):
            option, value = remedy.replace("~", str(home)).split(" ", 1)
            if option in line and option == "--exclude":
                line[line.index(option) + 1] += f",{value}"
            elif option in line:
                line[line.index(option) + 1] = value
            else:
                line += [option, value]
    return text, line


def set_key(text: str, table: str | None, key: str, value: str) -> str:
    """Return a TOML text in which a key of a table has another value."""
    before, heading, tail = text.partition(f"[{table}]\n") if table else ("", "", text)
    if not heading and table:
        return f"{text.rstrip()}\n[{table}]\n{key} = {value}\n"
    body, more, following = tail.partition("\n[")
    lines = [line for line in body.splitlines() if line.partition(" ")[0] != key]
    return (
        before
        + heading
        + "\n".join([f"{key} = {value}", *lines])
        + "\n" * bool(not more)
        + more
        + following
    )
