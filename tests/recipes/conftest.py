from __future__ import annotations

from pathlib import Path

import pytest

NAMES = sorted(
    path.parent.name for path in (Path(__file__).parents[2] / "templates").glob("*/recipe.toml")
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for a `name` once for each recipe folder."""
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", NAMES)
