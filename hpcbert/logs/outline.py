"""The rules of a `[log]` table, for a list: patterns are not read, let alone compiled.

`hpcbert.logs.grammar` reads the table strictly; that takes ten times as long for all recipes as
reading their files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcbert.system.decode import Open, decode

if TYPE_CHECKING:
    from collections.abc import Mapping

_PATH = "log.rules"


@dataclass(frozen=True)
class RuleOutline(Open):
    """A rule's name, its kind, and the unit of the number that it reads."""

    name: str
    kind: str
    scope: str = "global"


def rules(values: Mapping[str, Any], *, where: str) -> tuple[RuleOutline, ...]:
    """Return the rules of a `[log]` table, the default first.

    Args:
        values: The table as TOML gave it.
        where: The file, for messages.

    Raises:
        ConfigError: A rule is not named, or is not a table.
    """
    if reader := str(values.get("grammar", "")):
        return (RuleOutline(reader.removeprefix("entry-point:"), "custom"),)
    return decode(tuple[RuleOutline, ...], values.get("rules", ()), file=where, path=_PATH)
