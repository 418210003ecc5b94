"""Archives on the command line: packed, read as the directory is, measured again."""

import json
import re
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from hpcbert.campaign import store
from hpcbert.cli import submit_run
from hpcbert.commands.submit import write_campaign
from tests.kit.campaigns import collect_campaigns, report_states
from tests.kit.cases import cases
from tests.kit.cli import run

pytestmark = pytest.mark.usefixtures("empty_directory", "without_slurm")

DRY = ("--scheduler", "slurm", "--dry-run", "--json")


@pytest.fixture
def built(build):
    built = build("1n1g", "1n4g", repeats=3).finish()
    built.lock()
    collect_campaigns(built.directory, states=report_states())
    return built


@pytest.fixture
def dry_run(monkeypatch):
    """Notes what `submit --dry-run` thinks out."""
    dry_run = Mock(wraps=submit_run.dry_run)
    monkeypatch.setattr(submit_run, "dry_run", dry_run)
    return dry_run


def test_an_archive_is_written_where_somebody_says_and_over_nothing(built, build):
    Path("folder").mkdir()
    first = run("archive", "pytorch", "--output", "folder", "--json").data
    path = Path("folder", f"{built.campaign.id}.zip")
    assert (first["path"], first["bytes"]) == (str(path), path.stat().st_size)
    again = run("archive", "pytorch", "--output", "folder", status=2)
    assert "not overwritten" in again.stderr
    assert run("archive", "--output", "x.zip").stdout.startswith("x.zip: ")
    assert Path("x.zip").read_bytes() == path.read_bytes()
    for name in ("a.tar.gz", "table4"):
        assert ".zip" in run("archive", "pytorch", "--output", name, status=2).stderr
        assert not Path(name).exists()
    fresh = build("1n1g", name="20261122-pytorch-new", jobs=("90",))
    warnings = run("archive", fresh.directory, "--json").document["warnings"]
    assert "None of its results are recorded yet" in warnings[0]


@pytest.mark.slow
def test_readers_take_an_archive_as_the_directory_and_name_it(built):
    packed = Path("runs", f"{built.campaign.id}.zip").resolve()
    run("archive", "--output", packed)
    for line in ("collect", "audit", "logs", "monitor --once"):
        texts = []
        for place in (built.directory, packed, packed.name):
            result = run(*line.split(), place, "--json", status=0)
            data = {**result.data, "path": Path(result.data.get("path", "")).name}
            for key in ("made", "directory", "campaigns"):
                data.pop(key, None)
            text = json.dumps(data).replace(str(packed), str(built.directory))
            texts.append(text.replace(packed.name, built.campaign.id))
        assert texts[0] == texts[1] == texts[2], line
        assert "/hpcbert-" not in texts[1], line
    assert run("audit", packed, "--json").data["directory"] == str(packed)
    (watched,) = run("monitor", packed, "--json").data["campaigns"]
    assert watched == {"campaign": built.campaign.id, "directory": str(packed), "preflight": []}
    logs = run("logs", packed, "--repeat", "2", "--point", "bert-tiny_1n4g_fp32_b4", "--json")
    assert logs.data["path"] == f"{packed}/logs/pytorch/bert/bz4/1n4g/bert_b4_fp32_2.log"


def test_explain_reads_logs_of_an_archive_too(built, monkeypatch):
    logs = []
    monkeypatch.setattr(
        "hpcbert.cli.explain.read_wait_share", lambda log: logs.append(log.read_text())
    )
    run("archive", "--output", "x.zip", status=0)
    run("explain", "x.zip", status=0)
    assert len(logs) == 6


def test_an_archive_is_only_read_and_a_damaged_one_is_refused(built):
    packed = Path("x.zip")
    run("archive", "--output", packed)
    content = packed.read_bytes()
    for line in ("cancel", "retry", "submit --resume", "archive"):
        result = run(*line.split(), packed, "--json", status=2)
        assert "An archive can only be read" in result.error["message"]
        assert "submit --like" in result.error["hint"]
    run("logs", packed, "--path", status=2)
    run("audit", packed, "--accept", "why", status=2)
    assert packed.read_bytes() == content
    packed.write_bytes(content[:-40])
    for line in ("collect", "audit", "logs", "monitor --once", "submit --like"):
        assert "was cut short" in run(*line.split(), packed, status=2).stderr


def test_the_same_is_submitted_again_and_what_is_no_longer_possible_is_named(built):
    run("archive", "--output", "x.zip")
    local = ("--scheduler", "local", "--dry-run", "--json")
    keys = ("shape", "model", "precision", "batch_size_per_device", "repeats")
    for name in (built.directory, "x.zip", "pytorch-abc"):
        document = run("submit", "--like", name, *local).document
        points = [[array[key] for key in keys] for array in document["data"]["arrays"]]
        same = ["bert-tiny", "fp32", 4, [1, 2, 3]]
        assert points == [["1n1g", *same], ["1n4g", *same]]
        text = " ".join(document["warnings"])
        assert "scheduler was slurm, and is local here." in text
        assert "recipe was none, and is" in text
    for message, changes in (
        ("bert-vast", {"model": "bert-vast"}),
        ("absent", {"precision": "tf32", "protocol": "absent"}),
        ("gone", {"options": (("gone", 3),)}),
    ):
        array = built.array("1n1g")
        built.change(arrays=(replace(array, point=replace(array.point, **changes)),)).lock()
        result = run("submit", "--like", built.directory, *local, status=2)
        assert message in result.error["message"]
    (built.directory / store.LOCKED).unlink()
    result = run("submit", "--like", built.directory, *local, status=2)
    assert store.LOCKED in result.error["message"]


@pytest.mark.slow
@cases
def test_whatever_was_asked_for_like_makes_the_same_scripts(words, dry_run):
    model = ("--model", "bert-tiny", "--python", sys.executable)
    first = run("submit", *DRY, *model, *words, status=0)
    (draft,) = dry_run.call_args.args[0]
    write_campaign(draft)
    run("archive", draft.directory, "--output", "x.zip")
    again = run("submit", "--like", "x.zip", *DRY, status=0)
    assert not [warning for warning in again.document["warnings"] if "Differs from" in warning]
    arrays = [  # without what is each campaign's: its id, and the digests of scripts with it
        re.sub(rf"{data['campaign']}|\b[0-9a-f]{{64}}\b", "", json.dumps(data["arrays"]))
        for data in (first.data, again.data)
    ]
    assert arrays[0] == arrays[1]


def test_a_file_and_its_lock_come_out_of_an_archive(dry_run):
    file = Path("campaign.toml")
    file.write_text('# Ours.\nschema = 1\nname = "rings"\nframeworks = "pytorch"\n')
    run("submit", file, *DRY, status=0)
    (draft,) = dry_run.call_args.args[0]
    write_campaign(draft)
    # hpcbert's own scripts hold nothing that looks like a secret.
    assert run("archive", draft.directory, "--output", "x.zip", "--json").data["masked"] == []
    with zipfile.ZipFile("x.zip") as archive:
        assert archive.read(f"{draft.directory.name}/campaign.toml") == file.read_bytes()
        lock = archive.read(f"{draft.directory.name}/{store.LOCKED}")
        assert lock == (draft.directory / store.LOCKED).read_bytes()
