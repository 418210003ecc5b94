"""Runs that had a node at the same time have no number, or a flag."""

import os
import re
import shutil
from unittest.mock import Mock

import pytest

from hpcbert.campaign import store
from hpcbert.model import MANIFEST, JobRequest, Point, Shape
from tests.kit import cli
from tests.kit.campaigns import WRITTEN, collect_campaigns, report_states
from tests.kit.cli import codes, first_row

OWN, OTHER = "20251121T093415Z-pytorch-aaaaaa", "20251121T093400Z-oneflow-bbbbbb"


def test_repeats_that_ran_at_once_on_a_node_have_no_number_or_a_mark(build, collect_json):
    built = build("1n1g", repeats=3)
    for repeat, begin in ((1, 0), (2, 30), (3, 90)):
        built.measure(repeat, begin, begin + 60)
    document = collect_json(built.directory)
    row = first_row(document)
    assert codes(row) == [["shared-nodes"], ["shared-nodes"], []]
    assert [run["throughput"] is None for run in row["runs"]] == [True, True, False]
    assert re.search(r"repeat 2 of .* n1", row["runs"][0]["reasons"][0]["detail"])
    assert ("shared-nodes" in row["flags"], document["exit_code"]) == (False, 4)
    # Where jobs may share nodes, the row is marked.
    built = build("1n1g", repeats=3, name="shared", request=JobRequest(exclusive=False))
    for repeat in (1, 2, 3):
        built.measure(repeat, 0, 60, nodes="n8")
    document = collect_json(built.directory)
    row = first_row(document)
    assert (document["exit_code"], codes(row)) == (0, [[], [], []])
    assert "shared-nodes" in row["flags"]
    assert all(run["flags"] == ["shared-nodes"] for run in row["runs"])
    assert any("shared nodes" in text for text in document["warnings"])
    forced = build("1n1g", repeats=1, name="forced").change(shares_nodes=True)
    forced.measure(1, 1000, 1060, nodes="n9")
    row = first_row(collect_json(forced.directory))
    assert (row["runs"][0]["valid"], "shared-nodes" in row["flags"]) == (True, True)
    # Runs one after another or on other nodes are not marked.
    spans = {"n2": ("n2", 60, 90), "n3": ("m3", 0, 60), "n4": ("n4", -60, 0)}
    for node, (other, begin, end) in spans.items():
        built = build("1n1g", repeats=2, name=f"on-{node}").measure(1, 0, 60, nodes=node)
        built.measure(2, begin, end, nodes=other)
        # Nor does a copy of the campaign disturb it.
        shutil.copytree(built.directory, built.directory.with_name(f"copy-{node}"))
        document = collect_json(built.directory)
        assert codes(first_row(document)) == [[], []]
        assert not any("shared nodes" in text for text in document["warnings"])


@pytest.mark.parametrize("scheduler", ["slurm", "local"])
def test_another_campaign_in_the_folder_disturbs_a_run(build, collect_json, scheduler):
    built = build("1n1g", repeats=2, name=OWN).measure(1, 0, 60).measure(2, 60, 120)
    other = build("1n1g", name=OTHER, framework="oneflow", scheduler=scheduler)
    other.measure(1, 70, 80, nodes="n1.cluster")
    row = first_row(collect_json(built.directory))
    assert codes(row) == [[], ["shared-nodes"]]
    assert OTHER in row["runs"][1]["reasons"][0]["detail"]
    # The verdict stands where the other campaign is no longer there.
    shutil.rmtree(other.directory)
    assert cli.run("audit", built.directory, "--json").data["status"] == "intact"
    assert codes(first_row(collect_json(built.directory))) == [[], ["shared-nodes"]]


def test_an_attempt_that_never_wrote_its_end_disturbs_while_its_log_grew(build, collect_json):
    built = build("1n1g", repeats=2).measure(1, 100, 160).measure(2, 300, 360)
    other = build("1n1g", name=OTHER)
    other.started("1n1g", 1, time=WRITTEN + 90)
    os.utime(other.log("1n1g", 1, "killed\n"), (WRITTEN + 130, WRITTEN + 130))
    assert codes(first_row(collect_json(built.directory))) == [["shared-nodes"], []]


def test_what_came_while_others_were_collected_is_seen(build):
    points = {name: Point("pytorch", name, Shape(1, 1), "fp32", 4) for name in ("first", "second")}
    first, second = (build("1n1g", repeats=1, name=name, point=points[name]) for name in points)
    for built in (first, second):
        built.measure(1, 0, 60, nodes=built.directory.name)
    answers = report_states()

    def report_late(watched):
        if watched.directory == second.directory:
            build("1n1g", name="third").measure(1, 30, 90, nodes="second")
            second.status_path("1n1g", 1).touch()
            watched.records.refresh(watched.directory)
        return answers(watched)

    tables = collect_campaigns(first.directory, second.directory, states=report_late).tables
    reasons = [[reason.code for reason in table.rows[0].runs[0].reasons] for table in tables]
    assert reasons == [[], ["shared-nodes"]]


def test_neighbours_that_cannot_be_read_are_passed_over_or_named_once(build):
    first, second = (build(shape, repeats=1, name=f"{OWN}-{shape}") for shape in ("1n1g", "1n2g"))
    first.measure(1, 0, 60, nodes="n1")
    second.measure(1, 0, 60, nodes="n2")
    damaged = build("1n1g", name="20251121T093400Z-pytorch-cccccc").measure(1, 0, 60)
    (damaged.directory / MANIFEST).write_text("{")
    newer = build("1n1g", name=OTHER).measure(1, 0, 60).directory / MANIFEST
    newer.write_text(newer.read_text().replace(f'"schema": {store.SCHEMA}', '"schema": 1'))
    runs = newer.parents[1]
    (runs / "a file").write_text("")
    (runs / "no way" / "status" / "k.1.jsonl").mkdir(parents=True)
    (runs / "no way").chmod(0)
    result = cli.run("collect", first.directory, second.directory, "--json")
    (runs / "no way").chmod(0o700)
    assert [codes(row) for row in cli.rows(result.document)] == [[[]], [[]]]
    warnings = [text for text in result.document["warnings"] if "Left out" in text]
    reason = f"because this hpcbert reads only schema {store.SCHEMA}"
    assert warnings == [f"Left out of the search for shared nodes, {reason}: {OTHER}."]


def test_what_other_people_write_of_their_runs_refuses_no_number(build, collect_json, monkeypatch):
    built = build("1n1g", repeats=1).measure(1, 0, 60)
    other = build("1n1g", name=OTHER).measure(1, 0, 60)
    monkeypatch.setattr(store, "find_foreign_owner", lambda path: "mallory" * (path.name == OTHER))
    document = collect_json(built.directory)
    assert codes(first_row(document)) == [[]]
    assert "shared-nodes" in first_row(document)["flags"]
    assert any("mallory" in text for text in document["warnings"])
    # The mark stands where the other campaign is no longer there.
    shutil.rmtree(other.directory)
    assert "shared-nodes" in first_row(collect_json(built.directory))["flags"]


def test_campaigns_of_another_time_are_not_read(build, collect_json, monkeypatch):
    built = build("1n1g", repeats=1, name=OWN).measure(1, 0, 60)
    for place in range(3):
        name = f"20251101T0000{place:02}Z-pytorch-eeeeee"
        earlier = build("1n1g", name=name).measure(1, 0, 60)
        for path in (earlier.directory / "status").iterdir():
            os.utime(path, (WRITTEN - 90000, WRITTEN - 90000))
    build("1n1g", name="20261101T000000Z-pytorch-ffffff").measure(1, 0, 60)
    read = Mock(wraps=store.read_manifest)
    monkeypatch.setattr(store, "read_manifest", read)
    assert codes(first_row(collect_json(built.directory))) == [[]]
    assert {call.args for call in read.mock_calls} == {(built.directory,)}
