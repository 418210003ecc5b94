"""Runs that had a node at the same time have no number, or a flag."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.model import MANIFEST, Point, Shape
from hpcbert.slurm.states import RepeatState
from tests.kit import cli
from tests.kit.campaigns import Build, Built, collect_campaigns, report_states
from tests.kit.cli import CollectJson, codes, first_row

T = 1763717655
RATE = 10.0


def run_repeat(
    built: Built,
    repeat: int,
    begin: int,
    end: int,
    *,
    nodes: str = "n1",
    shape: str = "1n1g",
    attempt: int = 0,
    log: bool = True,
) -> None:
    """Let a repeat be measured between two moments after T."""
    host = nodes.replace("[", "").partition("-")[0]
    start = {"event": "start", "job": f"7_{repeat}", "host": host, "nodelist": nodes}
    built.mark(shape, repeat, {**start, "time": T + begin - 1}, attempt=attempt)
    built.mark(shape, repeat, {"event": "step", "time": T + begin}, attempt=attempt)
    for event in ("step-end", "end"):
        built.mark(shape, repeat, {"event": event, "time": T + end, "exit": 0}, attempt=attempt)
    if log:
        text = built.text(shape, RATE + repeat / 100, start=T + begin + 0.5)
        built.log(shape, repeat, text, attempt=attempt)


def share_nodes(built: Built) -> Built:
    """Let a campaign's jobs request no nodes of their own."""
    arrays = (
        replace(array, request=replace(array.request, exclusive=False))
        for array in built.campaign.arrays
    )
    return built.change(arrays=tuple(arrays))


def test_repeats_that_ran_at_once_on_a_node_have_no_number(
    build: Build, collect_json: CollectJson
) -> None:
    built = build("1n1g", repeats=3)
    run_repeat(built, 1, 0, 60)
    run_repeat(built, 2, 30, 90)
    run_repeat(built, 3, 90, 150)
    document = collect_json(built.directory)
    assert document["exit_code"] == 4
    row = first_row(document)
    assert codes(row) == [["shared-nodes"], ["shared-nodes"], []]
    assert [run["throughput"] is None for run in row["runs"]] == [True, True, False]
    detail = row["runs"][0]["reasons"][0]["detail"]
    assert "repeat 2 of " in detail
    assert "n1" in detail
    assert "shared-nodes" not in row["flags"]


def test_a_partition_that_shares_its_nodes_in_any_case_marks_the_row(
    build: Build, collect_json: CollectJson
) -> None:
    built = build("1n1g", repeats=2).change(shares_nodes=True)
    for repeat in (1, 2):
        run_repeat(built, repeat, 100 * repeat, 100 * repeat + 60)
    row = first_row(collect_json(built.directory))
    assert "shared-nodes" in row["flags"]
    assert [run["valid"] for run in row["runs"]] == [True, True]


def test_where_the_site_lets_jobs_share_nodes_the_row_is_marked(
    build: Build, collect_json: CollectJson
) -> None:
    built = build("1n1g", repeats=3)
    share_nodes(built)
    for repeat in (1, 2, 3):
        run_repeat(built, repeat, 0, 60)
    document = collect_json(built.directory)
    assert document["exit_code"] == 0
    row = first_row(document)
    assert codes(row) == [[], [], []]
    assert "shared-nodes" in row["flags"]
    assert all(run["flags"] == ["shared-nodes"] for run in row["runs"])
    assert any("shared nodes" in text for text in document["warnings"])


@pytest.mark.parametrize(
    ("second", "nodes"),
    [((60, 90), "n1"), ((0, 60), "n2"), ((-60, 0), "n1")],
    ids=["after", "elsewhere", "before"],
)
def test_runs_one_after_another_or_on_other_nodes_are_not_marked(
    build: Build, collect_json: CollectJson, second: tuple[int, int], nodes: str
) -> None:
    built = build("1n1g", repeats=2)
    run_repeat(built, 1, 0, 60)
    run_repeat(built, 2, *second, nodes=nodes)
    document = collect_json(built.directory)
    assert codes(first_row(document)) == [[], []]
    assert not any("shared nodes" in text for text in document["warnings"])


@pytest.mark.parametrize("scheduler", ["slurm", "local"])
def test_other_campaigns_beside_it_disturb_a_run(
    build: Build, collect_json: CollectJson, scheduler: str
) -> None:
    built = build("1n1g", repeats=2, name="20251121T093415Z-pytorch-aaaaaa")
    run_repeat(built, 1, 0, 60)
    run_repeat(built, 2, 60, 120)
    name = "20251121T093400Z-oneflow-bbbbbb"
    other = build("1n1g", name=name, id=name, framework="oneflow", scheduler=scheduler)
    run_repeat(other, 1, 70, 80, nodes="n1.cluster", log=False)
    row = first_row(collect_json(built.directory))
    assert codes(row) == [[], ["shared-nodes"]]
    assert name in row["runs"][1]["reasons"][0]["detail"]
    # What was found out stands where the other campaign is no longer there.
    shutil.rmtree(other.directory)
    audited = cli.run("audit", built.directory, "--json")
    assert json.loads(audited.stdout)["data"]["status"] == "intact"
    assert codes(first_row(collect_json(built.directory))) == [[], ["shared-nodes"]]


def test_an_attempt_that_never_wrote_its_end_disturbs_while_its_log_grew(
    build: Build, collect_json: CollectJson
) -> None:
    built = build("1n1g", repeats=2)
    run_repeat(built, 1, 100, 160)
    run_repeat(built, 2, 300, 360)
    name = "20251121T093400Z-pytorch-bbbbbb"
    other = build("1n1g", name=name, id=name)
    start = {"event": "start", "job": "9_1", "host": "n1", "nodelist": "n1"}
    for event in (start, {"event": "step"}):
        other.mark("1n1g", 1, {**event, "time": T + 90})
    other.log("1n1g", 1, "killed\n")
    os.utime(store.log_path(other.directory, other.array("1n1g"), 1), (T + 130, T + 130))
    assert codes(first_row(collect_json(built.directory))) == [["shared-nodes"], []]


def test_what_came_while_others_were_collected_is_seen(build: Build) -> None:
    points = {name: Point("pytorch", name, Shape(1, 1), "fp32", 4) for name in ("first", "second")}
    builts = [build("1n1g", repeats=1, name=name, point=point) for name, point in points.items()]
    for built in builts:
        run_repeat(built, 1, 0, 60, nodes=built.directory.name)
    answers = report_states()

    def states(watched: TrackedCampaign) -> Mapping[tuple[str, int], RepeatState]:
        if watched.directory == builts[1].directory:
            other = build("1n1g", repeats=1, name="third")
            run_repeat(other, 1, 30, 90, nodes=builts[1].directory.name, log=False)
            builts[1].status_path("1n1g", 1).touch()
            watched.records.refresh(watched.directory)
        return answers(watched)

    run_codes = [
        [reason.code for reason in run.reasons]
        for table in collect_campaigns(*(built.directory for built in builts), states=states).tables
        for row in table.rows
        for run in row.runs
    ]
    assert run_codes == [[], ["shared-nodes"]]


def test_a_copy_of_a_campaign_beside_it_is_no_neighbour(
    build: Build, collect_json: CollectJson
) -> None:
    built = build("1n1g", repeats=2)
    run_repeat(built, 1, 0, 60)
    run_repeat(built, 2, 60, 120)
    shutil.copytree(built.directory, built.directory.with_name("copy"))
    assert codes(first_row(collect_json(built.directory))) == [[], []]


def test_neighbours_that_cannot_be_read_are_passed_over(
    build: Build, collect_json: CollectJson
) -> None:
    built = build("1n1g", repeats=1)
    run_repeat(built, 1, 0, 60)
    damaged = build("1n1g", name="20251121T093400Z-pytorch-cccccc")
    run_repeat(damaged, 1, 0, 60, log=False)
    (damaged.directory / MANIFEST).write_text("{")
    runs = built.directory.parent
    (runs / "a file").write_text("")
    (runs / "empty").mkdir()
    (runs / "no way" / "status").mkdir(parents=True)
    (runs / "no way" / "status" / "k.1.jsonl").mkdir()
    (runs / "no way").chmod(0)
    assert codes(first_row(collect_json(built.directory))) == [[]]
    (runs / "no way").chmod(0o700)


def test_neighbours_of_another_schema_are_named_once(build: Build) -> None:
    builts = []
    for shape in ("1n1g", "1n2g"):
        name = f"20251121T093415Z-pytorch-{shape}"
        builts.append(build(shape, repeats=1, name=name, id=name))
        run_repeat(builts[-1], 1, 0, 60, shape=shape)
    other = build("1n1g", name="20251121T093400Z-pytorch-cccccc")
    run_repeat(other, 1, 0, 60, log=False)
    path = other.directory / MANIFEST
    path.write_text(path.read_text().replace(f'"schema": {store.SCHEMA}', '"schema": 1'))
    result = cli.run("collect", *(campaign.directory for campaign in builts), "--json")
    warnings = [text for text in result.document["warnings"] if "Left out" in text]
    reason = f"because this hpcbert reads only schema {store.SCHEMA}"
    name = other.directory.name
    assert warnings == [f"Left out of the search for shared nodes, {reason}: {name}."]


def test_what_other_people_say_of_their_runs_refuses_nobody_s_number(
    build: Build, collect_json: CollectJson, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build("1n1g", repeats=1)
    run_repeat(built, 1, 0, 60)
    name = "20251121T093400Z-pytorch-dddddd"
    other = build("1n1g", name=name, id=name)
    run_repeat(other, 1, 0, 60, log=False)
    monkeypatch.setattr(
        store, "find_foreign_owner", lambda path: "mallory" if path.name == name else ""
    )
    document = collect_json(built.directory)
    assert codes(first_row(document)) == [[]]
    assert "shared-nodes" in first_row(document)["flags"]
    assert any("mallory" in text for text in document["warnings"])


def test_campaigns_of_another_time_are_not_read(
    build: Build, collect_json: CollectJson, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build("1n1g", repeats=1, name="20251121T093415Z-pytorch-aaaaaa")
    run_repeat(built, 1, 0, 60)
    for place in range(20):
        name = f"20251101T0000{place:02}Z-pytorch-eeeeee"
        run_repeat(build("1n1g", name=name, id=name), 1, 0, 60, log=False)
        for path in (built.directory.parent / name / "status").iterdir():
            os.utime(path, (T - 90000, T - 90000))
    later = "20261101T000000Z-pytorch-ffffff"
    run_repeat(build("1n1g", name=later, id=later), 1, 0, 60, log=False)
    read: list[Path] = []
    manifest = store.read_manifest

    def noted(path: Path) -> Any:
        read.append(path)
        return manifest(path)

    monkeypatch.setattr(store, "read_manifest", noted)
    assert codes(first_row(collect_json(built.directory))) == [[]]
    assert set(read) == {built.directory}
