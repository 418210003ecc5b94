"""What a campaign's files say of it, and how little of them is read for that."""

import os
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from hpcbert.campaign import store
from hpcbert.campaign.overview import read_overview
from hpcbert.errors import UsageError
from tests.kit.campaigns import collect_campaigns, report_states


def test_what_was_collected_is_counted_until_a_retry_waits(build):
    built = build("1n1g", "1n4g", repeats=2).finish()
    collect_campaigns(built.directory, states=report_states("COMPLETED", "FAILED"))
    summary = read_overview(built.directory)
    assert (summary.state, summary.valid, summary.asked) == ("incomplete", 2, 4)
    assert summary.best is not None
    assert (summary.best.point, summary.best.shape) == ("bert-tiny_1n4g_fp32_b4", "1n4g")
    assert summary.best.throughput == pytest.approx(40)
    assert summary.shapes == ("1n1g", "1n4g")
    first = built.campaign.arrays[0]
    again = replace(first, name=f"{first.name}-t1", retry=1, first_attempt=1, repeats=(2,))
    changed = built.change(arrays=(*built.campaign.arrays, again))
    summary = read_overview(changed.directory)
    assert (summary.state, summary.valid) == ("waiting", 2)
    changed.started("1n1g", 2, attempt=1)
    assert read_overview(changed.directory).state == "running"


def test_before_it_is_collected_its_jobs_say_how_far_it_is(build):
    states = {"": "waiting", "s": "running", "e": "waiting", "es": "running", "ee": "ended"}
    for marks, state in states.items():
        built = build("1n1g", name=f"of-{marks}", repeats=2)
        for number, mark in enumerate(marks, start=1):
            built.started("1n1g", number)
            if mark == "e":
                # Of a long file, the end is read.
                with built.status_path("1n1g", number).open("a") as file:
                    file.write("not JSON\n" * 999)
                built.ended("1n1g", number, code=1)
        assert read_overview(built.directory).state == state, marks
        # What was collected before its end is not over.
        collect_campaigns(built.directory, states=report_states(default="PENDING", source="squeue"))
        assert read_overview(built.directory).state == state, marks


def test_what_slurm_did_not_take_rehearsals_and_hidden_folders(build):
    called = {"called": "2026-11-21T10:00:00Z"}
    states = {"unsubmitted": {}, "waiting": called, "refused": {"state": "refused"}}
    for state, changes in states.items():
        built = build("1n1g", name=state, jobs=("",), **changes)
        assert read_overview(built.directory).state == state
    built = build("1n1g", rehearse=True, name="rehearsal").finish()
    assert read_overview(built.directory).state == "rehearsed"
    campaigns = store.find_all_campaigns(built.directory.parent)
    built.directory.rename(built.directory.with_name(".hidden"))
    assert len(store.find_all_campaigns(built.directory.parent)) == len(campaigns) - 1


def test_damaged_files_are_named_and_the_rest_is_there(build):
    damages = (
        lambda path: path.rename(path.with_name("x")).with_name(path.name).mkdir(),
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        lambda path: path.write_bytes(b"\xff\xfe\x00" * 99),
        lambda path: path.write_text("[1]"),
        lambda path: path.write_text("[" * 100_000),
    )
    for number, damage in enumerate(damages):
        built = build("1n1g", "1n4g", name=f"{number}", repeats=2).finish()
        collect_campaigns(built.directory, states=report_states())
        damage(built.directory / "measurements.json")
        summary = read_overview(built.directory)
        assert (summary.state, summary.valid, summary.asked) == ("ended", None, 4)
        assert "measurements" in summary.problem
        store.write_note(built.directory, "mine")
        damage(built.directory / "manifest.json")
        name = f"20261121T100000Z-pytorch-3f9a1{number}"
        summary = read_overview(built.directory.rename(built.directory.with_name(name)))
        assert (summary.state, summary.campaign, summary.note) == ("damaged", name, "mine")
        assert "manifest.json" in summary.problem
        assert summary.created == "2026-11-21T10:00:00Z"


def test_no_more_files_are_opened_than_it_takes(build, monkeypatch):
    built = build("1n1g", "1n4g", repeats=2).finish()
    open_file = Mock(wraps=os.open)
    monkeypatch.setattr(os, "open", open_file)
    read_overview(built.directory)
    # Of a repeat the end of one file, and never a log.
    opened = [Path(call.args[0]).name for call in open_file.mock_calls]
    assert len(opened) == 1 + 4
    assert all(name == "manifest.json" or name.endswith(".jsonl") for name in opened)
    collect_campaigns(built.directory, states=report_states())
    open_file.reset_mock()
    read_overview(built.directory)
    opened = [Path(call.args[0]).name for call in open_file.mock_calls]
    assert opened == ["manifest.json", "measurements.json"]


def test_a_note_is_short_and_steers_no_terminal(build):
    built = build("1n1g")
    store.write_note(built.directory, "größer, 2 % ½")
    assert read_overview(built.directory).note == "größer, 2 % ½"
    with pytest.raises(UsageError):
        store.write_note(built.directory, "x" * 1001)
    (built.directory / store.NOTE).write_bytes(b"a\x1b[31m\xffb\nc")
    assert store.read_note(built.directory) == "a�[31m�b c"
