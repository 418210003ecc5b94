"""Files that are written to while collect reads them, and files that come late."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import evidence as proof
from hpcbert.campaign import judge, store
from hpcbert.logs import scan
from tests.kit.campaigns import Build, Built
from tests.kit.cli import CollectJson, first_row


@pytest.fixture
def built(build: Build) -> Built:
    built = build("1n1g", repeats=2)
    built.finish()
    return built


def path_of(built: Built, file: str) -> Path:
    array = built.array("1n1g")
    if file == "log":
        return store.log_path(built.directory, array, 1)
    return built.directory / array.status(1)


def read_evidence(built: Built) -> Any:
    return json.loads((built.directory / proof.MEASUREMENTS).read_text())["evidence"]


@pytest.mark.parametrize("file", ["log", "status"])
def test_a_file_that_grows_while_it_is_read_gives_no_number_and_no_evidence(
    built: Built, collect_json: CollectJson, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    path = path_of(built, file)
    content, read = path.read_bytes(), scan.read

    def growing(log: Path, *words: Any) -> Any:
        reading = read(log, *words)
        if log == path_of(built, "log"):
            path.write_bytes(path.read_bytes() + b"\n")
        return reading

    monkeypatch.setattr(judge, "read", growing)
    document = collect_json(built.directory)
    first, second = first_row(document)["runs"]
    assert (document["exit_code"], second["valid"]) == (4, True)
    assert (first["throughput"], [reason["code"] for reason in first["reasons"]]) == (
        None,
        ["changed"],
    )
    assert "written to while it was read" in first["reasons"][0]["detail"]
    assert any("is still being written" in warning for warning in document["warnings"])
    assert read_evidence(built) is None
    # It is not held against it later.
    monkeypatch.undo()
    path.write_bytes(content)
    assert [run["valid"] for run in first_row(collect_json(built.directory))["runs"]] == [
        True,
        True,
    ]
    assert read_evidence(built)["files"]


def test_a_log_that_grows_after_it_was_read_is_not_recorded_as_what_was_read(
    built: Built, collect_json: CollectJson, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, renewed = path_of(built, "log"), proof.renew_evidence

    def late(*words: Any, **more: Any) -> Any:
        log.write_bytes(log.read_bytes() + b"something else\n")
        return renewed(*words, **more)

    monkeypatch.setattr(proof, "renew_evidence", late)
    document = collect_json(built.directory)
    assert any(f"{log.name} is still being written" in warning for warning in document["warnings"])
    assert read_evidence(built) is None
    monkeypatch.undo()
    document = collect_json(built.directory)
    assert (document["exit_code"], document["warnings"]) == (0, [])
    assert read_evidence(built)["files"]


@pytest.mark.slow
@pytest.mark.site("files that a file system shows late (scripted)")
def test_files_that_a_file_system_shows_one_by_one_never_give_half_a_number(
    built: Built, collect_json: CollectJson, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As attribute caches do: a name, then nothing in it, then a part, then all of it."""
    # When all jobs ended.
    end = 1763717655
    monkeypatch.setattr("time.time", lambda: end + 30.0)
    numbers = [run["throughput"] for run in first_row(collect_json(built.directory))["runs"]]
    (built.directory / proof.MEASUREMENTS).unlink()
    (built.directory / proof.TABLE).unlink()
    paths = [path_of(built, file) for file in ("status", "log")]
    wholes = [path.read_bytes() for path in paths]
    for path in paths:
        path.unlink()
    for path, content in zip(paths, wholes, strict=True):
        for part in (None, b"", content[: len(content) // 2], content[:-1], content):
            if part is not None:
                path.write_bytes(part)
            first, second = first_row(collect_json(built.directory))["runs"]
            assert second["throughput"] == numbers[1]
            assert first["throughput"] in {None, numbers[0]}
            assert first["valid"] is (first["reasons"] == [])
    assert [first["throughput"], first["reasons"]] == [numbers[0], []]
