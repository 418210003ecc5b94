import json
import os
import platform
import re
import shlex
import shutil
import textwrap
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import tomli

from tests.kit.cases import read_constant
from tests.kit.cli import Cli, run_here, start_process
from tests.kit.needs import SHARED

pytestmark = pytest.mark.contract

HERE, MASK = Path(__file__).parent, "*"
# Keys of what differs between machines and versions, or is text for a reader.
VOLATILE = set(read_constant(__file__, "VOLATILE").split())
# Of a group of cases, what submits its campaign.
SUBMISSIONS = read_constant(__file__, "SUBMISSIONS")
# Times, ids of campaigns and jobs, digests, versions, paths and sentences.
VOLATILE_TEXT = re.compile(r"\d{4}-\d\d-\d\d|\d{8}T\d{6}Z|^local-\d|[0-9a-f]{12}|^\d+\.\d+\.\d|/| ")
# In sentences: ids of campaigns, and digests.
VOLATILE_WORDS = re.compile(r"\d{8}T\d{6}Z[\w.-]*|\b[0-9a-f]{12,}\b")
# Of wording/*.txt: a case's name, its command line, and the indented lines below it.
ENTRY = re.compile(r"^# (.*)\n(\$ .*\n(?:  .*\n)*)", re.MULTILINE)
CASES = [
    pytest.param(group, name, row, id=name, marks=[pytest.mark.needs("logs")] * (group == "logs"))
    for group, rows in tomli.loads((HERE / "cases.toml").read_text()).items()
    for name, row in rows.items()
]


def make_place(folder):
    """Return hpcbert, run in this process, in a folder with a site and a recipe of fixed rates."""
    shutil.copytree(HERE / "recipes", folder / "templates")
    place = Cli(folder, {**os.environ, "HOME": str(folder)}, run=run_here)
    place("init", "--local", status=0)
    return place


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Returns the place of a group of cases, in which its campaign has run."""

    @cache
    def make(group):
        place, row = make_place(tmp_path_factory.mktemp(group)), SUBMISSIONS[group]
        # In a process of its own: the manifest has its command line.
        read(replace(place, run=start_process), row["line"], row.get("exit", 0))
        return place

    return make


def read(place, line, status=0):
    """Return the document of a command line that has this exit status."""
    return place(*shlex.split(line), "--json", status=status).document


def find_campaign(place):
    return read(place, "list")["data"]["campaigns"][-1]["campaign"]


def mask(value):
    """Return a document without what may differ between machines, runs and wordings."""
    if isinstance(value, dict):
        return {key: mask(inner) for key, inner in value.items() if key not in VOLATILE}
    if isinstance(value, list):
        return [mask(inner) for inner in value]
    if isinstance(value, str) and (value == platform.node() or VOLATILE_TEXT.search(value)):
        return MASK
    return value


def prune(answer, golden):
    """Return the part of an answer that a golden has; any text is what the golden masks."""
    if golden == MASK and isinstance(answer, str):
        return MASK
    if isinstance(golden, dict) and isinstance(answer, dict):
        return {key: prune(answer[key], golden[key]) for key in golden.keys() & answer.keys()}
    if isinstance(golden, list) and isinstance(answer, list) and len(golden) == len(answer):
        return [prune(*items) for items in zip(answer, golden, strict=True)]
    return answer


def dump(document):
    """Return a document as goldens have it: 1 and 1.0 differ."""
    return json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


@pytest.mark.parametrize(("group", "name", "row"), CASES)
def test_command(group, name, row, measured, tmp_path):
    """Run a row of cases.toml, and compare its exit code, its document, and what it refuses."""
    place = measured(group) if group in SUBMISSIONS else make_place(tmp_path)
    values = {"logs": SHARED / "logs"}
    if "{campaign}" in row["line"]:
        values["campaign"] = find_campaign(place)
    pattern = rf"\{{({'|'.join(values)})\}}"
    line = re.sub(pattern, lambda key: shlex.quote(str(values[key[1]])), row["line"])
    result = place(*shlex.split(line), "--json")
    if not result.stdout:  # a refusal of click's parser, which gets a document in main
        result = replace(place, run=start_process)(*shlex.split(line), "--json")
    assert result.returncode == row.get("exit", 0), result
    # What an error of the scheduler says depends on whether the machine has Slurm.
    text = ""
    for error in result.document["errors"]:
        if error["code"] != "scheduler":
            where = f"at {error['where']}\n" if error.get("where") else ""
            sentences = f"{error['code']}: {error['message']}\n{where}{error.get('hint') or ''}"
            text += textwrap.indent(f"{sentences.rstrip()}\n", "  ")
    for key, value in {**values, "HERE": place.cwd}.items():
        text = text.replace(str(value), f"{{{key}}}")
    entry = text and f"$ hpcbert {row['line']}\n{VOLATILE_WORDS.sub(MASK, text)}"
    path = HERE / "wording" / f"{line.split(maxsplit=1)[0]}.txt"
    entries = dict(ENTRY.findall(path.read_text())) if path.exists() else {}
    if (entry or entries) and os.environ.get("RECORD_GOLDENS"):
        entries[name] = entry
        texts = [f"# {case}\n{words}" for case, words in sorted(entries.items()) if words]
        path.write_text("\n".join(texts), encoding="utf-8")
    assert entry == entries.get(name, "")
    if row.get("golden", True):
        document = mask(result.document)
        path = HERE / "golden" / f"{name}.json"
        if os.environ.get("RECORD_GOLDENS"):
            path.write_text(dump(document))
        golden = json.loads(path.read_text())
        assert dump(prune(document, golden)) == dump(golden)


def test_a_campaign_is_archived_written_in_every_format_and_reported(measured):
    campaign = measured("campaign")
    name = find_campaign(campaign)
    read(campaign, f"archive {name} --output table.zip")
    for path in (name, "table.zip"):
        (table,) = read(campaign, f"collect {path}")["data"]["tables"]
        assert [row["median"] for row in table["rows"]] == [102.0, 202.0]
    for form in ("text", "wide", "markdown", "csv", "csv-runs", "json", "parquet", "dlperf-json"):
        path = campaign.cwd / f"table.{form}"
        campaign("collect", name, "--format", form, "--output", path.name, status=0)
        assert path.stat().st_size > 0
    read(campaign, f"report {name} --output page --lang zh")
    assert (campaign.cwd / "page" / "index.html").is_file()


def test_a_campaign_file_is_planned_as_the_options_are(tmp_path):
    place = make_place(tmp_path)
    (tmp_path / "table.toml").write_text(read_constant(__file__, "CAMPAIGN_FILE"))
    options = "--fw fixed --shapes 1n1g,1n2g --batch-size 32,64 --repeats 2"
    plans = [read(place, f"plan {words}")["data"] for words in ("table.toml", options)]
    points, typed_points = (
        sorted((point["point"], point["repeats"]) for point in plan["campaigns"][0]["points"])
        for plan in plans
    )
    assert len(points) == 4
    assert points == typed_points


def test_a_running_campaign_is_cancelled_and_removed(tmp_path):
    place = make_place(tmp_path)
    read(place, "submit --fw fixed --repeats 2 --env SLEEPS=600")
    name = find_campaign(place)
    for line, status in (
        (f"rm {name} --yes", 2),
        (f"cancel {name} --yes", 0),
        (f"monitor {name}", 0),
        (f"collect {name}", 4),
        (f"rm {name} --yes", 0),
    ):
        read(place, line, status)
    assert read(place, "list")["data"]["campaigns"] == []


def test_a_rehearsal_gives_no_number(tmp_path):
    place = make_place(tmp_path)
    document = read(place, "submit --fw pytorch --device cpu --repeats 1 --rehearse --wait")
    assert document["data"]["repeats"] == {"asked": 1, "rehearsed": 1}
    assert "rehearsal" in str(read(place, "collect", status=2)["errors"])


def test_a_golden_is_contained_in_the_answer_and_masks_what_differs():
    for golden, answer, is_contained in (
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1}, {"b": 2}, False),
        ({"a": 1}, {"a": 1.0}, False),
        ({"a": [1]}, {"a": [1, 2]}, False),
        ({"a": "*"}, {"a": "anything"}, True),
        ({"a": "*"}, {"a": None}, False),
    ):
        assert (dump(prune(answer, golden)) == dump(golden)) == is_contained
    document = {"median": 1.5, "shape": "1n1g", "detail": "a sentence", "message": "gone"}
    assert mask(document) == {"median": 1.5, "shape": "1n1g", "detail": "*"}
