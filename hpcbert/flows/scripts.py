"""Reading a rendered script again: its `#SBATCH` options, and the same script for a retry."""

from __future__ import annotations

_DIRECTIVE = "#SBATCH "


def option(text: str, name: str) -> str:
    """Return the value of a script's `#SBATCH --NAME=VALUE`; of several the last, as sbatch does.

    Values of a campaign's own options are plain: what needs quoting is never asked for here.
    """
    start = f"{_DIRECTIVE}--{name}="
    found = [line[len(start) :] for line in text.splitlines() if line.startswith(start)]
    return found[-1].strip('"') if found else ""
