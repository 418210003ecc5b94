"""Tables of cases next to their tests, so that a user's report becomes a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli


def read_cases(path: Path) -> list[Any]:
    """Return the rows of a TSV with a heading, or the `[[case]]` tables of a TOML, as parameters.

    Example: `@pytest.mark.parametrize(("text", "word", "kind"), read_cases(HERE / "states.tsv"))`.
    The first column is the id too. `source` says where a row comes from, and is no parameter.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".toml":
        tables = tomli.loads(text)["case"]
    else:
        heading, *lines = text.splitlines()
        tables = [dict(zip(heading.split("\t"), line.split("\t"), strict=True)) for line in lines]
    rows = [[cell for key, cell in table.items() if key != "source"] for table in tables]
    return [pytest.param(*row, id=row[0] or "empty") for row in rows]
