"""Files of other people that are too large, or hold text that UTF-8 can't write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import store
from hpcbert.campaign.store import MOST_REPEATS
from hpcbert.errors import UsageError
from hpcbert.results import document
from tests.kit.campaigns import Build, Built
from tests.kit.cases import cases
from tests.kit.cli import run


@pytest.fixture
def built(build: Build) -> Built:
    built = build("1n1g", repeats=2, scheduler="local")
    built.finish()
    return built


@pytest.fixture
def results(built: Built) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        run("collect", built.directory, "--format", "json").stdout
    )
    return document


def test_a_key_that_appears_twice_among_many_is_named() -> None:
    keys = ",".join(f'"k{number}":1' for number in range(300_000))
    with pytest.raises(UsageError, match="'k299999' appears twice"):
        document.parse_results(f'{{{keys},"k299999":2}}', file="x")


def test_more_tables_than_anybody_reads_are_refused(results: dict[str, Any]) -> None:
    table = results["tables"][0]
    results["tables"] = [{**table, "batch_size_per_device": n} for n in range(1, 3001)]
    with pytest.raises(UsageError, match="3,000 tables; hpcbert reads at most 1,000"):
        document.parse_results(json.dumps(results), file="x")


@pytest.mark.parametrize("words", ["logs", "collect", "monitor --once", "show", "explain"])
def test_more_repeats_than_a_campaign_has_are_refused(built: Built, words: str) -> None:
    path = built.directory / "manifest.json"
    data = json.loads(path.read_text())
    data["arrays"][0]["repeats"] = list(range(MOST_REPEATS + 1))
    path.write_text(json.dumps(data))
    result = run(*words.split(), built.directory)
    assert result.returncode == 2
    assert "50,001 repeats; hpcbert reads at most 50,000" in result.stderr


@pytest.mark.parametrize("key", ["site", "user", "framework", "name", "image"])
def test_half_of_a_character_in_a_manifest_is_refused(built: Built, key: str) -> None:
    path = built.directory / "manifest.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, key: "\ud800"}))
    with pytest.raises(UsageError, match="lone surrogate"):
        store.read_manifest(built.directory)


def test_half_of_a_character_in_results_is_refused(results: dict[str, Any], tmp_path: Path) -> None:
    results["tables"][0]["model"] = "\ud800"
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results))
    for words in (("compare", path, path), ("report", path, "--output", tmp_path / "page")):
        result = run(*words)
        assert result.returncode == 2
        assert "lone surrogate" in result.stderr


@cases
def test_half_of_a_character_in_what_jobs_wrote_is_no_traceback(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run("collect", built.directory)
    status = built.status_path("1n1g", 1)
    status.write_text(status.read_text().replace('"node":"', '"node":"\\ud800'))
    (built.directory / "env").mkdir(exist_ok=True)
    text = json.dumps({"nodes": "n1 \ud800", "host": {"kernel": "\ud800", "cpu": "\ud800"}})
    (built.directory / "env" / "bert-tiny_1n1g_fp32_b4.1.0.nodes.jsonl").write_text(text)
    log = built.log_path("1n1g", 1)
    log.write_bytes(b"\xed\xa0\x80 \xff\n" + log.read_bytes())
    result = run(*words.split(), built.directory)
    assert result.returncode != 1, result.stderr
    assert "bug in hpcbert" not in result.stderr


def test_the_locked_settings_are_part_of_the_audit(built: Built) -> None:
    locked = built.directory / store.LOCKED
    locked.write_text("schema = 1\n")
    run("collect", built.directory)
    assert run("audit", built.directory).returncode == 0
    locked.write_text("schema = 1\n# changed\n")
    result = run("audit", built.directory)
    assert result.returncode == 5
    assert store.LOCKED in result.stdout + result.stderr
