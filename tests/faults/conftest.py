from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.killing import Desk


@pytest.fixture
def desk(as_user: Any, checkout: Any, work: Path) -> Iterator[Desk]:
    """A desk on the shared lab, with a directory of campaigns that everybody can write to."""
    runs = work / "runs"
    as_user(["mkdir", "--mode=1777", str(runs)])
    yield Desk(runs, as_user, checkout)
    as_user(["bash", "-c", "scancel --user=$USER"])
