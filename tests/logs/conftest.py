from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.logs import Reader


@pytest.fixture
def read(tmp_path: Path) -> Reader:
    return Reader(tmp_path)
