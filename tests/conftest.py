from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
LAB_PLUGIN = REPOSITORY / "tests" / "slurm" / "lab_plugin.py"


def pytest_configure(config: pytest.Config) -> None:
    """Share one lab among all folders: as a plugin its fixtures are seen everywhere."""
    spec = importlib.util.spec_from_file_location("hpcbert_lab_plugin", LAB_PLUGIN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    config.pluginmanager.register(module, spec.name)


def shares_the_lab(item: pytest.Item) -> bool:
    return "lab" in getattr(item, "fixturenames", ())


def pytest_itemcollected(item: pytest.Item) -> None:
    """With several workers: the tests that share the lab are one worker's.

    They mostly wait, the others mostly compute. A file's tests stay together for its fixtures' sake.
    """
    group = "lab" if shares_the_lab(item) else item.location[0]
    item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the lab: it takes longest."""
    items.sort(key=lambda item: not shares_the_lab(item))


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
