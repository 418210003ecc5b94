from __future__ import annotations

import json

import pytest

from tests.contract.contract import HERE, check_case, differences, mask, parametrize
from tests.kit import cli
from tests.kit.cases import read_constant
from tests.kit.needs import SHARED

pytestmark = pytest.mark.contract


@parametrize("commands")
def test_command(name, row, place, regenerate):
    check_case(name, row, place, regenerate=regenerate)


@parametrize("campaign")
def test_command_on_a_campaign(name, row, campaign, regenerate):
    check_case(name, row, campaign, regenerate=regenerate, campaign=campaign.campaign)


@parametrize("broken")
def test_command_on_a_broken_campaign(name, row, broken, regenerate):
    check_case(name, row, broken, regenerate=regenerate, campaign=broken.campaign)


@pytest.mark.needs("logs")
@parametrize("logs")
def test_command_on_real_logs(name, row, place, regenerate):
    check_case(name, row, place, regenerate=regenerate, logs=SHARED / "logs")


def test_data_is_checked_and_shown(place):
    for line in ("make data --format tfrecord --samples 64 --files 1", "check data", "show data"):
        place.read(f"data {line}")


def test_a_campaign_is_archived_written_in_every_format_and_reported(campaign):
    name = campaign.campaign
    campaign.read(f"archive {name} --output table.zip")
    tables = [campaign.read(f"collect {path}")["data"]["tables"] for path in (name, "table.zip")]
    for (table,) in tables:
        assert [row["median"] for row in table["rows"]] == [102.0, 202.0]
    for form in ("text", "wide", "markdown", "csv", "csv-runs", "json", "parquet", "dlperf-json"):
        path = campaign.directory / f"table.{form}"
        line = f"collect {name} --format {form} --output {path.name}"
        result = campaign.run(line, cli.run_here)
        assert (result.returncode, path.stat().st_size > 0) == (0, True), result.stderr
    campaign.read(f"report {name} --output page --lang zh")
    assert (campaign.directory / "page" / "index.html").is_file()


def test_a_campaign_file_is_planned_as_the_options_are(place):
    text = read_constant(__file__, "CAMPAIGN_FILE")
    (place.directory / "table.toml").write_text(text, encoding="utf-8")
    options = "--fw fixed --shapes 1n1g,1n2g --batch-size 32,64 --repeats 2"
    plans = [place.read(f"plan {words}")["data"] for words in ("table.toml", options)]
    points = [
        sorted((point["point"], point["repeats"]) for point in plan["campaigns"][0]["points"])
        for plan in plans
    ]
    assert len(points[0]) == 4
    assert points[0] == points[1]


def test_a_running_campaign_is_cancelled_and_removed(place):
    place.read("submit --fw fixed --repeats 2 --env SLEEPS=600")
    name = place.campaign
    for line, status in (
        (f"rm {name} --yes", 2),
        (f"cancel {name} --yes", 0),
        (f"monitor {name}", 0),
        (f"collect {name}", 4),
        (f"rm {name} --yes", 0),
    ):
        place.read(line, status)
    assert place.read("list")["data"]["campaigns"] == []


def test_a_rehearsal_gives_no_number(place):
    document = place.read("submit --fw pytorch --device cpu --repeats 1 --rehearse --wait")
    assert document["exit_code"] == 0
    assert document["data"]["repeats"] == {"asked": 1, "rehearsed": 1}
    assert "rehearsal" in str(place.read("collect", status=2)["errors"])


def test_a_golden_is_contained_in_the_answer_and_masks_what_differs():
    for golden, answer, count in (
        ({"a": 1}, {"a": 1, "b": 2}, 0),
        ({"a": 1}, {"b": 2}, 1),
        ({"a": 1}, {"a": 1.0}, 1),
        ({"a": [1]}, {"a": [1, 2]}, 1),
        ({"a": "*"}, {"a": "anything"}, 0),
        ({"a": "*"}, {"a": None}, 1),
    ):
        assert len(list(differences(golden, answer))) == count
    document = {"median": 1.5, "shape": "1n1g", "detail": "a sentence", "message": "gone"}
    assert mask(document) == {"median": 1.5, "shape": "1n1g", "detail": "*"}


def test_each_error_has_its_exit_code():
    documents = [json.loads(path.read_text()) for path in (HERE / "golden").iterdir()]
    codes = {
        (error["code"], document["exit_code"])
        for document in documents
        if document["status"] == "error"
        for error in document["errors"]
    }
    assert len(codes) > 2
    # docs/reference/exit-codes.md
    exit_codes = read_constant(__file__, "EXIT_CODES")
    assert all(exit_codes[name] == code for name, code in codes)
