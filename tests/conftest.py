from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with real logs, where there is one."""
    path = Path(os.environ.get("HPCBERT_SHARED", REPOSITORY.parent / "shared"))
    if not (path / "logs" / "INDEX.tsv").is_file():
        pytest.skip(f"no real logs at {path}: set HPCBERT_SHARED to try them")
    return path


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the person who runs the tests reaches them."""
    for name in os.environ:
        if name.startswith(("SLURM_", "SBATCH_", "HPCBERT_")) and name not in (
            "HPCBERT_SHARED",
            "HPCBERT_REQUIRE_SLURM",
        ):
            monkeypatch.delenv(name)
