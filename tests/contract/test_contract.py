from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.conftest import INCOMPLETE
from tests.contract.contract import HERE, Case, Place, check_case, differences, mask, parametrize
from tests.kit.shared import SHARED

pytestmark = pytest.mark.contract
# docs/reference/exit-codes.md
EXIT_CODES = {
    "error": 1,
    "usage": 2,
    "config": 2,
    "scheduler": 3,
    "incomplete": 4,
    "regression": 4,
    "check": 5,
}


@pytest.fixture
def regenerate(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--regenerate", default=False))


@parametrize("commands")
def test_command(case: Case, place: Place, regenerate: bool) -> None:
    check_case(case, place, regenerate=regenerate)


@parametrize("campaign")
def test_command_on_a_campaign(case: Case, campaign: Place, regenerate: bool) -> None:
    check_case(case, campaign, regenerate=regenerate, campaign=campaign.newest())


@parametrize("broken")
def test_command_on_a_broken_campaign(case: Case, broken: Place, regenerate: bool) -> None:
    check_case(case, broken, regenerate=regenerate, campaign=broken.newest())


@pytest.mark.needs("logs")
@parametrize("logs")
def test_command_on_real_logs(case: Case, place: Place, regenerate: bool) -> None:
    check_case(case, place, regenerate=regenerate, logs=SHARED / "logs")


def test_data_is_checked_and_shown(place: Place) -> None:
    assert place.run("data make data --format tfrecord --samples 64 --files 1").returncode == 0
    assert place.run("data check data --json").returncode == 0
    assert place.run("data show data --json").returncode == 0


def test_a_rehearsal_gives_no_number(place: Place) -> None:
    done = place.run("submit --fw pytorch --device cpu --repeats 1 --rehearse --wait --json")
    document = json.loads(done.stdout)
    assert done.returncode == document["exit_code"] == INCOMPLETE
    assert document["data"]["repeats"] == {"asked": 1, "rehearsed": 1}


@pytest.mark.parametrize(
    ("golden", "answer", "count"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, 0),
        ({"a": 1}, {"b": 2}, 1),
        ({"a": 1}, {"a": 1.0}, 1),
        ({"a": [1]}, {"a": [1, 2]}, 1),
        ({"a": "*"}, {"a": "anything"}, 0),
        ({"a": "*"}, {"a": None}, 1),
    ],
)
def test_containment(golden: Any, answer: Any, count: int) -> None:
    assert len(list(differences(golden, answer))) == count


def test_the_mask_keeps_numbers_and_names() -> None:
    document = {"median": 1.5, "shape": "1n1g", "detail": "a sentence", "message": "gone"}
    assert mask(document) == {"median": 1.5, "shape": "1n1g", "detail": "*"}


def test_each_error_has_its_exit_code() -> None:
    documents = [json.loads(path.read_text()) for path in (HERE / "golden").iterdir()]
    codes = {
        (error["code"], document["exit_code"])
        for document in documents
        if document["status"] == "error"
        for error in document["errors"]
    }
    assert len(codes) > 2
    assert all(EXIT_CODES[name] == code for name, code in codes)
