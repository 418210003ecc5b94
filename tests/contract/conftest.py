"""The option that writes the goldens, and campaigns that the local queue has really run."""

import pytest

from tests.contract.contract import copy_place, make_place


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regenerate", action="store_true", help="write the contract's goldens")


@pytest.fixture(scope="session")
def untouched(tmp_path_factory):
    """The place that the others are copies of."""
    return make_place(tmp_path_factory.mktemp("contract"))


@pytest.fixture(scope="session")
def campaign(untouched, tmp_path_factory):
    """A place with a campaign of two points that has run and was collected."""
    place = copy_place(untouched, tmp_path_factory.mktemp("contract"))
    line = "submit --fw fixed --scaling --gpus-per-node 2 --repeats 3 --name first --note quiet"
    place.read(f"{line} --wait")
    return place


@pytest.fixture(scope="session")
def broken(untouched, tmp_path_factory):
    """A place with a campaign of two repeats, the second of which failed."""
    place = copy_place(untouched, tmp_path_factory.mktemp("contract"))
    place.read("submit --fw fixed --repeats 2 --env FAILS=2 --name broken --wait", status=4)
    return place


@pytest.fixture
def place(untouched, tmp_path):
    return copy_place(untouched, tmp_path)
