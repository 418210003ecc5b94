import json
import re
import shlex

import pytest
import tomli

from tests.contract import contract
from tests.contract.contract import HERE, differences, mask
from tests.kit import cli
from tests.kit.cases import read_constant
from tests.kit.needs import SHARED

pytestmark = pytest.mark.contract


# Of wording/*.txt: a case's name, its command line, and the indented lines below it.
ENTRY = re.compile(r"^# (.*)\n(\$ .*\n(?:  .*\n)*)", re.MULTILINE)
# In sentences: ids of campaigns, and digests.
VOLATILE_WORDS = re.compile(r"\d{8}T\d{6}Z[\w.-]*|\b[0-9a-f]{12,}\b")
CASES = [
    pytest.param(group, name, row, id=name, marks=[pytest.mark.needs("logs")] * (group == "logs"))
    for group, rows in tomli.loads((HERE / "cases.toml").read_text()).items()
    for name, row in rows.items()
]


@pytest.mark.parametrize(("group", "name", "row"), CASES)
def test_command(group, name, row, request):
    """Run a row of cases.toml, and compare its exit code, its document, and what it refuses."""
    place = request.getfixturevalue(group if group in {"campaign", "broken"} else "place")
    values = {"logs": SHARED / "logs"}
    if "{campaign}" in row["line"]:
        values["campaign"] = place.campaign
    line = row["line"]
    for key, value in values.items():
        line = line.replace(f"{{{key}}}", shlex.quote(str(value)))
    # In this process, which takes less time; refusals of click's parser get a document in main.
    result = place.run(f"{line} --json", cli.run_here)
    result = result if result.stdout else place.run(f"{line} --json")
    assert result.returncode == row.get("exit", 0), result
    # What an error of the scheduler says depends on whether the machine has Slurm.
    errors = [error for error in result.document["errors"] if error["code"] != "scheduler"]
    text = "".join(map(contract.format_error, errors))
    for key, value in {**values, "HERE": place.directory}.items():
        text = text.replace(str(value), f"{{{key}}}")
    entry = text and f"$ hpcbert {row['line']}\n{VOLATILE_WORDS.sub(contract.MASK, text)}"
    path = HERE / "wording" / f"{line.split(maxsplit=1)[0]}.txt"
    entries = dict(ENTRY.findall(path.read_text())) if path.exists() else {}
    if request.config.getoption("--regenerate", default=False):
        entries = contract.write_entries(path, {**entries, name: entry})
    assert entry == entries.get(name, "")
    if row.get("golden", True):
        document = mask(result.document)
        if "keep" in row:
            document["data"] = dict(contract.find_keys(document["data"], row["keep"]))
        path = HERE / "golden" / f"{name}.json"
        if request.config.getoption("--regenerate", default=False):
            text = json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True)
            path.write_text(f"{text}\n")
        assert list(differences(json.loads(path.read_text()), document)) == []


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
