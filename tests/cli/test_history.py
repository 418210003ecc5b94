"""hpcbert list, show, note and rm."""

from __future__ import annotations

import os

import pytest

from tests.kit.campaigns import Build, Built
from tests.kit.cli import Cli, inside
from tests.kit.collecting import gathered, says, waits

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def one(build: Build) -> Built:
    built = build("1n1g", "1n2g", "1n4g", "1n8g", repeats=2, name="20261121T100000Z-pytorch-3f9a1c")
    built.finish()
    return built


def test_a_list_has_a_line_for_each_and_says_where_it_comes_from(one: Built, build: Build) -> None:
    gathered(one.directory, states=says())
    bad = build("1n1g", name="20261122T100000Z-pytorch-bad", jobs=("90",))
    (bad.directory / "manifest.json").write_text("{")
    assert inside("note", "3f9a1c", "after", "the update").returncode == 0
    head, first, second, _, last = inside("list").stdout.splitlines()
    assert head.split()[:3] == ["campaign", "framework", "shapes"]
    assert first.split()[:4] == [bad.campaign.id, "-", "-", "damaged"]
    assert "not valid JSON" in first
    for words in ("1n1g..1n8g (4)", "complete", "8/8", "84.00 1n8g", "after the update"):
        assert words in second
    assert "come from files" in last
    damaged, whole = inside("list", "--json").data["campaigns"]
    assert (damaged["state"], damaged["asked"]) == ("damaged", None)
    assert whole["best"] == {
        "point": "bert-tiny_1n8g_fp32_b4",
        "shape": "1n8g",
        "throughput": pytest.approx(84),
    }
    assert whole["note"] == "after the update"
    assert whole["age_seconds"] > 0


def test_a_list_of_nothing_is_no_error() -> None:
    assert "hpcbert submit" in inside("list").stdout
    assert inside("list", "--fw", "x", "--json").data["campaigns"] == []


@pytest.mark.parametrize(
    "words", [["--newer", "7"], ["--older", "x"], ["--state", "dead"], ["--limit", "0"]]
)
def test_what_can_not_be_a_filter_is_refused(words: list[str]) -> None:
    assert inside("list", *words).returncode == 2


def test_one_campaign_is_shown_point_by_point(one: Built) -> None:
    one.log("1n4g", 2, "nothing")
    gathered(one.directory, states=says())
    text = inside("show").stdout
    assert "state:     incomplete" in text
    assert "bert-tiny_1n4g_fp32_b4 repeat 2: " in text
    data = inside("show", "3f9a1c", "--json").data
    assert (data["state"], data["valid"], data["asked"]) == ("incomplete", 7, 8)
    point = data["points"][2]
    assert (point["shape"], point["valid"], point["asked"]) == ("1n4g", 1, 2)
    assert point["repeats"] == {"ended": 2}
    assert [found["repeat"] for found in point["refused"]] == [2]
    assert inside("show", "nothing").returncode == 2


def test_numbers_collected_before_all_had_ended_are_provisional(build: Build) -> None:
    built = build("1n1g", repeats=3, name="20261121T100000Z-pytorch-3f9a1c")
    built.complete("1n1g", 1, 9)
    gathered(built.directory, states=waits)
    assert "0/3*" in inside("list").stdout
    assert "run hpcbert collect again" in inside("list").stdout
    shown = inside("show").stdout
    assert "0/3*" in shown
    assert "repeat 2" not in shown  # It waited when it was collected, and has not failed.
    assert inside("list", "--json").data["campaigns"][0]["provisional"]
    built.finish()
    gathered(built.directory, states=says())
    assert "*" not in inside("list").stdout + inside("show").stdout
    assert not inside("show", "--json").data["provisional"]


def test_a_note_is_written_printed_and_removed(one: Built) -> None:
    assert inside("note", "3f9a1c", "--json").data["note"] == ""
    assert inside("note", "3f9a1c", "x  y").stdout == "x y\n"
    assert inside("note", "3f9a1c").stdout == "x y\n"
    assert inside("note", "3f9a1c", "").stdout == ""
    assert inside("note", "3f9a1c", "a\x1b[0m").returncode == 2


def test_a_campaign_goes_by_its_name(one: Built, build: Build) -> None:
    build("1n1g", name="20261122T100000Z-pytorch-b07d42", jobs=("90",))
    assert "name" not in inside("list").stdout
    one.change(name="table 4")
    _, _, second, *_ = inside("list").stdout.splitlines()
    assert second.startswith(f"{one.campaign.id}  table 4  pytorch")
    (found,) = inside("list", "--name", "TABLE", "--json").data["campaigns"]
    assert (found["name"], found["campaign"]) == ("table 4", one.campaign.id)
    assert inside("show", "table 4", "--json").data["campaign"] == one.campaign.id


def test_a_note_goes_with_the_archive(one: Built) -> None:
    gathered(one.directory, states=says())
    inside("note", "3f9a1c", "after the update")
    inside("archive", "--output", "all.zip")
    assert inside("show", "all.zip", "--json").data["note"] == "after the update"


def test_a_terminal_is_asked_and_nobody_else(one: Built, hpcbert: Cli) -> None:
    words = ("rm", "3f9a1c", "--runs", one.directory.parent)
    alone = hpcbert(*words)
    assert (alone.returncode, "--yes" in alone.stderr) == (2, True)
    status, said = hpcbert.on_terminal(*words, answer="n\n")
    assert (status, "Nothing was removed." in said) == (0, True)
    assert one.directory.exists()
    assert hpcbert.on_terminal(*words, answer="y\n")[0] == 0
    assert not one.directory.exists()


def test_what_was_removed_is_named(one: Built, hpcbert: Cli) -> None:
    data = hpcbert("rm", one.directory, "--yes", "--json").data
    assert data == {
        "removed": True,
        "campaigns": [{"campaign": one.campaign.id, "directory": str(one.directory)}],
    }


def test_on_a_terminal_a_long_note_is_cut(one: Built, hpcbert: Cli) -> None:
    inside("note", "3f9a1c", "word " * 99)
    _, said = hpcbert.on_terminal("list", "--runs", one.directory.parent, columns=150)
    assert max(map(len, said.splitlines())) <= 150
    assert "…" in said


@pytest.mark.needs("users")
def test_a_directory_with_campaigns_of_others_only_says_so(one: Built) -> None:
    os.chown(one.directory, 65534, 65534)
    assert "None of yours" in inside("list").stdout
    assert "--everyone" in inside("list", "--fw", "pytorch").stdout
    assert "matches" in inside("list", "--fw", "oneflow").stdout
    assert one.campaign.id in inside("list", "--everyone").stdout
