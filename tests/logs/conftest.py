from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import tomli

from hpcbert.logs import grammar, scan
from hpcbert.logs.setting import Setting

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpcbert.logs.grammar import Grammar

    Parse = Callable[[str], Grammar]


@pytest.fixture(scope="session")
def parse() -> Parse:
    """Turns the TOML below `[log]` into a grammar."""
    return lambda text: grammar.parse(tomli.loads(text).get("log", {}), where="recipe.toml")


@pytest.fixture
def read(tmp_path: Path, parse: Parse) -> Callable[..., scan.Reading]:
    """Reads a text by a rule of a grammar given as TOML."""

    def read_text(
        toml: str, text: str | bytes, rule: str = "", setting: Setting | None = None
    ) -> scan.Reading:
        path = tmp_path / "run.log"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        known = parse(toml)
        return scan.read(path, known, known.rule(rule), setting or Setting())

    return read_text
