"""The option that writes the goldens, and a campaign that the local queue has really run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.contract import Place, make_place

INCOMPLETE = 4


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regenerate", action="store_true", help="write the contract's goldens")


@pytest.fixture(scope="session")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Return a place with a campaign of two points that has run and was collected."""
    place = make_place(tmp_path_factory.mktemp("contract"))
    line = "submit --fw fixed --scaling --gpus-per-node 2 --repeats 3 --name first --note quiet"
    assert place.run(f"{line} --wait --json").returncode == 0
    return place


@pytest.fixture(scope="session")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Return a place with a campaign of two repeats, the second of which failed."""
    place = make_place(tmp_path_factory.mktemp("contract"))
    line = "submit --fw fixed --repeats 2 --env FAILS=2 --name broken"
    assert place.run(f"{line} --wait --json").returncode == INCOMPLETE
    return place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Return an empty place."""
    return make_place(tmp_path)
