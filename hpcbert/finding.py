"""What one check of the doctor found."""

from __future__ import annotations

from hpcbert.system.lazy import dataclass, regex

# Behind the name of a check: where it was made, or of what.
_OF = regex(r" \(.*\)$| of (?!the )\S+$")
_OF_RECIPES = {"recipe": "recipe", "what": "needs"}


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        status: `ok`, `warn` or `fail`.
        hint: What to do about it; empty if all is well.
        change: Name of the setting, package or file to change, where there is one.
        nodes: The nodes that it was found on; empty: on none, or on this machine.
        remedy: What to type, where that is known: options of hpcbert, a command, or what the
            site.toml is to say (`site.toml: KEY = VALUE`).
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
        """The check alone, without nodes, frameworks and hosts: `tmp`, `image`, `recipe`."""
        first = self.name.partition(" ")[0]
        return _OF_RECIPES.get(first) or _OF.sub("", self.name)
