"""What a campaign's files say of it, and how little of them is read for that."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import overview, store
from hpcbert.campaign.overview import Overview, read_overview
from hpcbert.errors import UsageError
from tests.kit.campaigns import (
    Build,
    Built,
    array,
    collect_campaigns,
    report_states,
    report_waiting,
)
from tests.kit.cases import cases


@pytest.fixture
def built(build: Build) -> Built:
    built = build("1n1g", "1n4g", repeats=2)
    built.finish()
    return built


def collect_overview(built: Built, *words: str) -> Overview:
    collect_campaigns(built.directory, states=report_states(*words))
    return read_overview(built.directory)


def test_what_was_collected_is_counted_and_its_highest_median_shown(built: Built) -> None:
    summary = collect_overview(built, "COMPLETED", "FAILED")
    assert (summary.state, summary.valid, summary.asked) == ("incomplete", 2, 4)
    assert summary.best is not None
    assert (summary.best.point, summary.best.shape) == ("bert-tiny_1n4g_fp32_b4", "1n4g")
    assert summary.best.throughput == pytest.approx(40)
    assert summary.shapes == ("1n1g", "1n4g")


def test_a_retry_makes_what_was_collected_wait_again(built: Built) -> None:
    collect_overview(built)
    point = built.campaign.arrays[0]
    again = replace(point, name=f"{point.name}-t1", retry=1, first_attempt=1, repeats=(2,))
    changed = built.change(arrays=(*built.campaign.arrays, again))
    assert (read_overview(changed.directory).state, read_overview(changed.directory).valid) == (
        "waiting",
        4,
    )
    changed.started("1n1g", 2, attempt=1)
    assert read_overview(changed.directory).state == "running"


def test_what_was_collected_before_its_end_is_not_over(build: Build) -> None:
    built = build("1n1g", repeats=2)
    built.complete("1n1g", 1, 9)
    collect_campaigns(built.directory, states=report_waiting)
    assert read_overview(built.directory).state == "waiting"


@cases
def test_before_it_is_collected_its_jobs_say_how_far_it_is(
    build: Build, marks: str, state: str
) -> None:
    built = build("1n1g", repeats=2)
    for number, mark in enumerate(marks.split(), start=1):
        built.started("1n1g", number)
        if mark == "end":
            built.ended("1n1g", number, code=1)
    assert (read_overview(built.directory).state, read_overview(built.directory).valid) == (
        state,
        None,
    )


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"job_id": ""}, "unsubmitted"),
        ({"job_id": "", "called": "2026-11-21T10:00:00Z"}, "waiting"),
        ({"job_id": "", "state": "refused"}, "refused"),
    ],
)
def test_what_slurm_did_not_take_is_told_apart(
    build: Build, changes: dict[str, Any], state: str
) -> None:
    built = build()
    built.change(arrays=(array(built.campaign.id, **changes),))
    assert read_overview(built.directory).state == state


def test_a_rehearsal_that_ended_was_rehearsed(build: Build) -> None:
    built = build("1n1g", rehearse=True)
    built.finish()
    assert read_overview(built.directory).state == "rehearsed"


def replace_file(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def list_damages(path: Path) -> dict[str, Callable[[], object]]:
    return {
        "cut": lambda: path.write_bytes(path.read_bytes()[:-9]),
        "empty": lambda: path.write_bytes(b""),
        "no text": lambda: path.write_bytes(b"\xff\xfe\x00" * 99),
        "another document": lambda: path.write_text("[1]"),
        "deeply nested": lambda: path.write_text("[" * 100_000),
        "a folder": lambda: replace_file(path, Path.mkdir),
        "a pipe": lambda: replace_file(path, os.mkfifo),
    }


DAMAGES = tuple(list_damages(Path()))


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_manifest_is_a_line_with_its_reason(built: Built, kind: str) -> None:
    store.write_note(built.directory, "mine")
    list_damages(built.directory / "manifest.json")[kind]()
    summary = read_overview(built.directory)
    assert (summary.state, summary.campaign, summary.note) == ("damaged", built.campaign.id, "mine")
    assert "manifest.json" in summary.problem


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_measurements_are_named_and_the_rest_is_there(built: Built, kind: str) -> None:
    collect_overview(built)
    list_damages(built.directory / "measurements.json")[kind]()
    summary = read_overview(built.directory)
    assert (summary.state, summary.valid, summary.asked) == ("ended", None, 4)
    assert "measurements" in summary.problem


def test_a_damaged_campaign_was_made_when_its_name_says(build: Build) -> None:
    built = build("1n1g", name="20261121T100000Z-pytorch-3f9a1c")
    (built.directory / "manifest.json").write_text("")
    assert read_overview(built.directory).created == "2026-11-21T10:00:00Z"


def test_no_more_files_are_opened_than_it_takes(
    built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    real = os.open

    def counted(path: Any, *words: Any, **more: Any) -> int:
        opened.append(Path(path).name)
        return real(path, *words, **more)

    monkeypatch.setattr(os, "open", counted)
    read_overview(built.directory)
    # Of a repeat the end of one file, and never a log.
    assert len(opened) == 1 + 4
    assert all(name == "manifest.json" or name.endswith(".jsonl") for name in opened)
    collect_overview(built)
    opened.clear()
    read_overview(built.directory)
    assert opened == ["manifest.json", "measurements.json"]


def test_of_a_long_status_file_the_end_is_read(build: Build) -> None:
    built = build("1n1g", repeats=1)
    built.started("1n1g", 1)
    path = built.status_path("1n1g", 1)
    with path.open("a") as file:
        file.write("not JSON\n" * 9999)
    built.ended("1n1g", 1)
    assert overview.find_phase(built.directory, built.array("1n1g"), 1) == "ended"


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("after  the\n\tupdate", "after the update"), ("größer, 2 % ½", "größer, 2 % ½"), ("", "")],
)
def test_a_note_is_one_line(build: Build, typed: str, expected: str) -> None:
    built = build("1n1g")
    store.write_note(built.directory, "before")
    store.write_note(built.directory, typed)
    assert store.read_note(built.directory) == read_overview(built.directory).note == expected
    assert (built.directory / store.NOTE).exists() == bool(expected)


@pytest.mark.parametrize("text", ["a\x1b[31mb", "x" * 1001], ids=["escape", "long"])
def test_what_is_no_note_is_refused(build: Build, text: str) -> None:
    built = build("1n1g")
    with pytest.raises(UsageError):
        store.write_note(built.directory, text)
    assert store.read_note(built.directory) == ""


def test_a_note_that_somebody_else_wrote_steers_no_terminal(build: Build) -> None:
    built = build("1n1g")
    (built.directory / store.NOTE).write_bytes(b"a\x1b[31m\xffb\nc")
    assert store.read_note(built.directory) == "a�[31m�b c"


def test_hidden_folders_are_no_campaigns(build: Build) -> None:
    built = build("1n1g")
    built.directory.rename(built.directory.with_name(".hidden"))
    assert store.find_all_campaigns(built.directory.parent) == ()
