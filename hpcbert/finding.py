"""The finding of one check of the doctor, made from a table of findings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tomli

# The end of a check's name: where it was made, or about what.
_CHECK_OBJECT = re.compile(r" \(.*\)$| of (?!the )\S+$")
_RECIPE_CHECKS = {"recipe": "recipe", "what": "needs"}


@dataclass(frozen=True)
class Finding:
    """The finding of one check.

    Attributes:
        status: `ok`, `warn` or `fail`.
        hint: What to do about it; empty if all is well.
        change: Name of the setting, package or file to change, if there is one.
        nodes: The nodes that it was found on; empty: none, or this machine.
        remedy: What to type, if that is known: options of hpcbert, a command, or a line of the
            site.toml (`site.toml: KEY = VALUE`).
    """

    name: str
    status: str
    detail: str
    hint: str = ""
    change: str = ""
    nodes: tuple[str, ...] = ()
    remedy: str = ""

    @property
    def code(self) -> str:
        """The check without nodes, frameworks and hosts: `tmp`, `image`, `recipe`."""
        word = self.name.partition(" ")[0]
        return _RECIPE_CHECKS.get(word) or _CHECK_OBJECT.sub("", self.name)


@cache
def _read_findings(table: Path) -> dict[str, dict[str, str]]:
    return tomli.loads(table.read_text(encoding="utf-8"))


def make_finding(
    table: Path, key: str, *, on_nodes: tuple[str, ...] = (), **values: Any
) -> Finding:
    """Return a finding of a TOML file, with values in place of its braces; a failure by default.

    Args:
        on_nodes: The nodes that it was found on.
        values: By the names in its braces.
    """
    row = {name: text.format_map(values) for name, text in _read_findings(table)[key].items()}
    return Finding(row.pop("check"), row.pop("status", "fail"), nodes=on_nodes, **row)
