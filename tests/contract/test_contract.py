from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.conftest import INCOMPLETE
from tests.contract.contract import HERE, Case, Place, check_case, differences, mask, parametrize
from tests.kit.cases import read_constant
from tests.kit.needs import SHARED

pytestmark = pytest.mark.contract
USAGE = 2
CAMPAIGN_FILE = """
schema = 1
frameworks = ["fixed"]
shapes = ["1n1g", "1n2g"]
repeats = 2
[batch_sizes]
fp32 = [32, 64]
"""
# docs/reference/exit-codes.md
EXIT_CODES = read_constant(__file__, "EXIT_CODES")


@pytest.fixture
def regenerate(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--regenerate", default=False))


@parametrize("commands")
def test_command(case: Case, place: Place, regenerate: bool) -> None:
    check_case(case, place, regenerate=regenerate)


@parametrize("campaign")
def test_command_on_a_campaign(case: Case, campaign: Place, regenerate: bool) -> None:
    check_case(case, campaign, regenerate=regenerate, campaign=campaign.campaign)


@parametrize("broken")
def test_command_on_a_broken_campaign(case: Case, broken: Place, regenerate: bool) -> None:
    check_case(case, broken, regenerate=regenerate, campaign=broken.campaign)


@pytest.mark.needs("logs")
@parametrize("logs")
def test_command_on_real_logs(case: Case, place: Place, regenerate: bool) -> None:
    check_case(case, place, regenerate=regenerate, logs=SHARED / "logs")


def test_data_is_checked_and_shown(place: Place) -> None:
    assert place.run("data make data --format tfrecord --samples 64 --files 1").returncode == 0
    assert place.run("data check data --json").returncode == 0
    assert place.run("data show data --json").returncode == 0


def test_an_archive_gives_the_campaign_s_table(campaign: Place) -> None:
    name = campaign.campaign
    assert campaign.run(f"archive {name} --output table.zip").returncode == 0
    first, second = (campaign.run(f"collect {path} --json") for path in (name, "table.zip"))
    assert first.returncode == second.returncode == 0
    rows, archived = (
        mask(json.loads(result.stdout)["data"]["tables"][0]["rows"]) for result in (first, second)
    )
    assert [row["median"] for row in rows] == [row["median"] for row in archived] == [102.0, 202.0]


def test_every_format_of_a_table_is_written(campaign: Place) -> None:
    for form in ("text", "wide", "markdown", "csv", "csv-runs", "json", "parquet", "dlperf-json"):
        path = campaign.directory / f"table.{form}"
        result = campaign.run(f"collect {campaign.campaign} --format {form} --output {path.name}")
        assert (result.returncode, path.stat().st_size > 0) == (0, True), result.stderr


def test_a_report_has_its_files(campaign: Place) -> None:
    result = campaign.run(f"report {campaign.campaign} --output page --lang zh --json")
    assert result.returncode == 0, result.stdout
    assert (campaign.directory / "page" / "index.html").is_file()


def test_a_campaign_file_is_planned_as_the_options_are(place: Place) -> None:
    (place.directory / "table.toml").write_text(CAMPAIGN_FILE, encoding="utf-8")
    options = "--fw fixed --shapes 1n1g,1n2g --batch-size 32,64 --repeats 2"
    plans = [
        json.loads(place.run(f"plan {words} --json").stdout) for words in ("table.toml", options)
    ]
    points = [
        [(point["point"], point["repeats"]) for point in plan["data"]["campaigns"][0]["points"]]
        for plan in plans
    ]
    assert len(points[0]) == 4
    assert sorted(points[0]) == sorted(points[1])


def test_a_running_campaign_is_cancelled_and_removed(place: Place) -> None:
    line = "submit --fw fixed --repeats 2 --env SLEEPS=600"
    assert place.run(f"{line} --json").returncode == 0
    name = place.campaign
    assert place.run(f"rm {name} --yes").returncode == USAGE
    assert place.run(f"cancel {name} --yes --json").returncode == 0
    result = place.run(f"monitor {name} --json")
    assert result.returncode == 0, result.stdout
    assert place.run(f"collect {name} --json").returncode == INCOMPLETE
    assert place.run(f"rm {name} --yes --json").returncode == 0
    assert json.loads(place.run("list --json").stdout)["data"]["campaigns"] == []


def test_a_rehearsal_gives_no_number(place: Place) -> None:
    result = place.run("submit --fw pytorch --device cpu --repeats 1 --rehearse --wait --json")
    document = json.loads(result.stdout)
    assert result.returncode == document["exit_code"] == 0
    assert document["data"]["repeats"] == {"asked": 1, "rehearsed": 1}
    collected = place.run("collect --json")
    assert collected.returncode == USAGE
    assert "rehearsal" in collected.stdout


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
