"""The option that writes the goldens, and campaigns that the local queue has really run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.contract import Place, copy_place, make_place


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regenerate", action="store_true", help="write the contract's goldens")


@pytest.fixture(scope="session")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The place that the others are copies of."""
    return make_place(tmp_path_factory.mktemp("contract"))


@pytest.fixture(scope="session")
def campaign(untouched: Place, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A place with a campaign of two points that has run and was collected."""
    place = copy_place(untouched, tmp_path_factory.mktemp("contract"))
    line = "submit --fw fixed --scaling --gpus-per-node 2 --repeats 3 --name first --note quiet"
    place.read(f"{line} --wait")
    return place


@pytest.fixture(scope="session")
def broken(untouched: Place, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A place with a campaign of two repeats, the second of which failed."""
    place = copy_place(untouched, tmp_path_factory.mktemp("contract"))
    place.read("submit --fw fixed --repeats 2 --env FAILS=2 --name broken --wait", status=4)
    return place


@pytest.fixture
def place(untouched: Place, tmp_path: Path) -> Place:
    return copy_place(untouched, tmp_path)
