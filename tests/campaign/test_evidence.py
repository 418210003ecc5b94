"""Files that are written to while collect reads them, and files that come late."""

import json

import pytest

from hpcbert.campaign import evidence, judge
from hpcbert.logs import scan
from tests.kit.cli import first_row


@pytest.mark.parametrize("file", ["log", "status"])
def test_a_file_that_grows_while_it_is_read_gives_no_number_and_no_evidence(
    build, collect_json, monkeypatch, file
):
    built = build("1n1g", repeats=2).finish()
    log = built.log_path("1n1g", 1)
    path = log if file == "log" else built.status_path("1n1g", 1)
    content, read, renew = path.read_bytes(), scan.read, evidence.renew_evidence

    def read_evidence():
        return json.loads((built.directory / evidence.MEASUREMENTS).read_text())["evidence"]

    def read_growing(current, *words):
        reading = read(current, *words)
        if current == log:
            path.write_bytes(path.read_bytes() + b"\n")
        return reading

    def renew_late(*words, **options):
        path.write_bytes(path.read_bytes() + b"\n")
        return renew(*words, **options)

    monkeypatch.setattr(judge, "read", read_growing)
    document = collect_json(built.directory)
    first, second = first_row(document)["runs"]
    assert (document["exit_code"], second["valid"], first["throughput"]) == (4, True, None)
    assert [reason["code"] for reason in first["reasons"]] == ["changed"]
    assert "written to while being read" in first["reasons"][0]["detail"]
    assert any("is still being written" in warning for warning in document["warnings"])
    assert read_evidence() is None
    # Nor is what grows after it was read recorded as what was read.
    monkeypatch.undo()
    path.write_bytes(content)
    monkeypatch.setattr(evidence, "renew_evidence", renew_late)
    document = collect_json(built.directory)
    assert any(f"{path.name} is still being written" in text for text in document["warnings"])
    assert read_evidence() is None
    # It is not held against it later.
    monkeypatch.undo()
    path.write_bytes(content)
    document = collect_json(built.directory)
    assert (document["warnings"], first_row(document)["repeats"]["ok"]) == ([], 2)
    assert read_evidence()["files"]


@pytest.mark.slow
@pytest.mark.site("files that a file system shows late (scripted)")
def test_files_that_a_file_system_shows_one_by_one_never_give_half_a_number(
    build, collect_json, monkeypatch
):
    """As attribute caches do: a name, then nothing in it, then a part, then all of it."""
    built = build("1n1g", repeats=2).finish()
    monkeypatch.setattr("time.time", lambda: 1763717655 + 30.0)  # after all jobs ended
    numbers = [run["throughput"] for run in first_row(collect_json(built.directory))["runs"]]
    (built.directory / evidence.MEASUREMENTS).unlink()
    (built.directory / evidence.TABLE).unlink()
    paths = built.status_path("1n1g", 1), built.log_path("1n1g", 1)
    contents = [path.read_bytes() for path in paths]
    for path in paths:
        path.unlink()
    for path, content in zip(paths, contents, strict=True):
        for part in (b"", content[: len(content) // 2], content[:-1], content):
            path.write_bytes(part)
            first, second = first_row(collect_json(built.directory))["runs"]
            assert second["throughput"] == numbers[1]
            assert first["throughput"] in {None, numbers[0]}
            assert first["valid"] is (first["reasons"] == [])
    first = first_row(collect_json(built.directory))["runs"][0]
    assert [first["throughput"], first["reasons"]] == [numbers[0], []]
