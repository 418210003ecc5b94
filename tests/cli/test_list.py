"""hpcbert list, show, note and rm."""

import os
import shlex

import pytest

from tests.kit.campaigns import collect_campaigns, report_states
from tests.kit.cli import run

pytestmark = pytest.mark.usefixtures("empty_directory")

NAME = "20261121T100000Z-pytorch-3f9a1c"


@pytest.fixture
def built(build):
    return build("1n1g", "1n2g", "1n4g", "1n8g", repeats=2, name=NAME).finish()


def test_a_list_has_a_line_for_each_and_a_campaign_goes_by_its_name(built, build):
    collect_campaigns(built.directory, states=report_states())
    bad = build("1n1g", name="20261122T100000Z-pytorch-bad", jobs=("90",))
    (bad.directory / "manifest.json").write_text("{")
    run("note", "3f9a1c", "after", "the update", status=0)
    head, first, second, _, last = run("list").stdout.splitlines()
    assert head.split()[:3] == ["campaign", "name", "framework"]
    assert first.split()[:5] == [bad.campaign.id, "-", "-", "-", "damaged"]
    assert "not valid JSON" in first
    for words in ("1n1g..1n8g (4)", "complete", "8/8", "84.00 1n8g", "after the update"):
        assert words in second
    assert "come from files" in last
    damaged, intact = run("list", "--json").data["campaigns"]
    assert (damaged["state"], damaged["asked"]) == ("damaged", None)
    assert intact["best"]["throughput"] == pytest.approx(84)
    assert intact["age_seconds"] > 0
    built.change(name="table 4")
    _, _, second, *_ = run("list").stdout.splitlines()
    assert second.startswith(f"{built.campaign.id}  table 4  pytorch")
    (entry,) = run("list", "--name", "TABLE", "--json").data["campaigns"]
    assert (entry["name"], entry["campaign"]) == ("table 4", built.campaign.id)
    assert run("show", "table 4", "--json").data["campaign"] == built.campaign.id


def test_a_campaign_is_shown_point_by_point_and_has_a_note(built):
    built.log("1n4g", 2, "nothing")
    collect_campaigns(built.directory, states=report_states())
    text = run("show").stdout
    assert "state:     incomplete" in text
    assert "bert-tiny_1n4g_fp32_b4 repeat 2: " in text
    data = run("show", "3f9a1c", "--json").data
    assert (data["valid"], data["points"][2]["valid"]) == (7, 1)
    run("show", "nothing", status=2)
    _, _, hint = run("note", "3f9a1c").stdout.partition("hpcbert note ")
    assert run("note", *shlex.split(hint)).stdout == "TEXT\n"
    assert run("note", "3f9a1c", "x \n\ty").stdout == run("note", "3f9a1c").stdout == "x y\n"
    assert "has no note" in run("note", "3f9a1c", "").stdout
    run("note", "3f9a1c", "a\x1b[0m", status=2)


def test_a_list_of_nothing_is_no_error_and_numbers_before_all_had_ended_are_provisional(build):
    assert "hpcbert submit" in run("list").stdout
    assert run("list", "--fw", "x", "--json").data["campaigns"] == []
    for words in (("--newer", "7"), ("--older", "x"), ("--state", "dead"), ("--limit", "0")):
        run("list", *words, status=2)
    built = build("1n1g", repeats=3, name=NAME).complete("1n1g", 1, 9)
    collect_campaigns(built.directory, states=report_states(default="PENDING", source="squeue"))
    listed, shown = run("list").stdout, run("show").stdout
    assert "0/3*" in listed
    assert "run hpcbert collect again" in listed
    assert "0/3*" in shown
    assert "repeat 2" not in shown, "it waited when it was collected, and has not failed"
    assert run("list", "--json").data["campaigns"][0]["provisional"]
    built.finish()
    collect_campaigns(built.directory, states=report_states())
    listed, shown = run("list").stdout, run("show").stdout
    assert "*" not in listed + shown
    assert "run hpcbert collect again" not in listed
    assert not run("show", "--json").data["provisional"]


@pytest.mark.slow
def test_a_terminal_gets_short_lines_and_is_asked_before_a_removal(built, hpcbert):
    words = ("rm", "3f9a1c", "--runs", built.directory.parent)
    run("note", "3f9a1c", "word " * 99)
    _, output = hpcbert.on_terminal("list", "--runs", built.directory.parent, columns=150)
    assert max(map(len, output.splitlines())) <= 150
    assert "…" in output
    assert "--yes" in hpcbert(*words, status=2).stderr
    status, output = hpcbert.on_terminal(*words, answer="n\n")
    assert (status, "Nothing was removed." in output) == (0, True)
    assert built.directory.exists()
    assert hpcbert.on_terminal(*words, answer="y\n")[0] == 0
    assert not built.directory.exists()


@pytest.mark.needs("users")
def test_a_directory_with_campaigns_of_others_only_says_so(built):
    os.chown(built.directory, 65534, 65534)
    for words in ((), ("--fw", "pytorch")):
        assert "--everyone" in run("list", *words).stdout
    assert built.campaign.id in run("list", "--everyone").stdout
