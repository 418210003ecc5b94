"""Collecting campaigns: states, exit codes, attempts, and what is written down."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.commands.collect import CollectResult
from hpcbert.errors import SchedulerError, UsageError
from hpcbert.logs.setting import Window
from hpcbert.model import Protocol, Row
from hpcbert.slurm.states import RepeatState
from tests.kit.campaigns import (
    Build,
    Built,
    collect_campaigns,
    read_status,
    report_none,
    report_states,
    status_file,
    unreachable,
)
from tests.kit.cases import cases
from tests.kit.cli import CliResult


def rows_by_shape(result: CollectResult) -> dict[str, Row]:
    (table,) = result.tables
    return {str(row.shape): row for row in table.rows}


def collect_row(built: Built, *words: str) -> Row:
    """Return the row of the first point, by what Slurm says of its repeats."""
    return rows_by_shape(collect_campaigns(built.directory, states=report_states(*words)))["1n1g"]


def list_codes(row: Row) -> dict[int, list[str]]:
    return {
        run.repeat: [reason.code for reason in run.reasons] for run in row.runs if not run.valid
    }


@pytest.fixture
def built(build: Build) -> Any:
    """A campaign of one GPU and of two nodes, five good repeats each."""
    built = build("1n1g", "2n2g")
    built.finish()
    return built


def test_a_finished_campaign_gives_its_table(built: Any) -> None:
    result = collect_campaigns(built.directory, states=report_states())
    assert result.exit_code == 0
    table = rows_by_shape(result)
    assert [row.median for row in table.values()] == [pytest.approx(12), pytest.approx(48)]
    assert table["2n2g"].speedup == pytest.approx(4)
    assert {run.state_source for run in table["1n1g"].runs} == {"sacct"}
    assert table["1n1g"].runs[0].nodes == ("n1", "n2")
    assert table["1n1g"].runs[0].log == "logs/pytorch/bert/bz4/1n1g/bert_b4_fp32_1.log"


@pytest.mark.parametrize("apart", [True, "yes", None])
def test_ranks_that_saw_a_part_of_their_node_s_gpus_are_flagged(built: Any, apart: object) -> None:
    path = built.directory / built.array("2n2g").status(3)
    events = read_status(path)
    path.unlink()
    for event in events:
        marks = {"apart": apart} if event["event"] == "step-end" and apart else {}
        status_file(path, {**event, **marks})
    table = rows_by_shape(collect_campaigns(built.directory, states=report_states()))
    assert ("apart" in table["2n2g"].flags) == (apart is True)
    assert [run.repeat for run in table["2n2g"].runs if "apart" in run.flags] == (
        [3] if apart is True else []
    )
    assert "apart" not in table["1n1g"].flags


def test_repeats_that_went_wrong_are_in_no_median(built: Any) -> None:
    built.log("2n2g", 1, built.text("2n2g", 1000.0, last=11))
    built.log("2n2g", 2, built.text("2n2g", 1000.0, nan_at=7))
    built.log("2n2g", 3, built.text("2n2g", 1000.0, batch=8))
    result = collect_campaigns(built.directory, states=report_states())
    row = rows_by_shape(result)["2n2g"]
    assert list_codes(row) == {1: ["incomplete"], 2: ["loss"], 3: ["config"]}
    assert row.median == pytest.approx(54)
    assert [run.throughput for run in row.runs][:3] == [None] * 3
    assert result.exit_code == 4


@cases
def test_a_whole_log_is_not_enough(
    build: Build, word: str, code: int | None, expected: list[str]
) -> None:
    built = build("1n1g", repeats=3)
    for repeat in (1, 2):
        built.complete("1n1g", repeat, 10.0)
    built.complete("1n1g", 3, 99.0)
    (built.directory / built.array("1n1g").status(3)).unlink()
    built.started("1n1g", 3)
    if code is not None:
        built.ended("1n1g", 3, code=code)
    row = collect_row(built, "COMPLETED", "COMPLETED", word)
    assert list_codes(row) == {3: expected}
    assert row.runs[2].state == word
    assert row.median == pytest.approx(10)


DEVICE = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 15.78 GiB total"


@cases
def test_a_run_that_failed_says_which_memory_it_lacked(
    build: Build, word: str, code: int | None, line: str, expected: list[str]
) -> None:
    built = build("1n1g", repeats=1)
    built.log("1n1g", 1, built.text("1n1g", 10.0, last=7) + line + "\n")
    built.started("1n1g", 1)
    if code is not None:
        built.ended("1n1g", 1, code=code)
    row = collect_row(built, word)
    assert list_codes(row) == {1: expected}
    if "device-oom" in expected:
        assert row.runs[0].reasons[-1].detail == f"the device ran out of memory: {DEVICE}"


def test_a_run_that_ended_well_lacked_nothing(build: Build) -> None:
    built = build("1n1g", repeats=1)
    built.log("1n1g", 1, f"{DEVICE}\n{built.text('1n1g', 10.0)}{DEVICE}\n")
    built.started("1n1g", 1)
    built.ended("1n1g", 1)
    assert collect_row(built).ok == 1


def test_repeats_that_never_were_submitted_say_so(built: Any) -> None:
    first, second = built.campaign.arrays
    refused = replace(second, state="refused", job_id="", error="invalid partition specified")
    changed = built.change(arrays=(first, refused))
    row = rows_by_shape(collect_campaigns(changed.directory, states=report_states()))["2n2g"]
    assert row.ok == 0
    assert "REFUSED" in str(row.runs[0].reasons[0])
    assert "invalid partition" in str(row.runs[0].reasons[0])


def test_a_scheduler_that_does_not_answer_is_a_warning(built: Any) -> None:
    def broken(watched: TrackedCampaign) -> dict[tuple[str, int], RepeatState]:
        raise SchedulerError("slurmctld does not answer.")

    result = collect_campaigns(built.directory, states=broken)
    assert rows_by_shape(result)["1n1g"].ok == 5
    assert "slurmctld does not answer" in result.warnings[0]


def test_a_job_that_wrote_no_end_is_never_guessed_to_have_completed(build: Build) -> None:
    built = build("1n1g", repeats=2)
    built.complete("1n1g", 1, 10.0)
    built.log("1n1g", 2, built.text("1n1g", 99.0))
    built.started("1n1g", 2)
    built.mark("1n1g", 2, {"event": "step-end", "exit": 0})
    row = rows_by_shape(collect_campaigns(built.directory, states=report_none))["1n1g"]
    assert list_codes(row) == {2: ["state"]}


def test_states_are_remembered_and_a_copy_is_enough(built: Any, tmp_path: Path) -> None:
    first = collect_campaigns(built.directory, states=report_states())
    copy = tmp_path / "laptop"
    shutil.copytree(built.directory, copy)
    again = collect_campaigns(copy, states=unreachable)
    assert again.tables == first.tables
    assert {run.state_source for run in rows_by_shape(again)["1n1g"].runs} == {"sacct"}


def test_a_new_job_is_asked_about(built: Any) -> None:
    first, second = built.campaign.arrays
    built.change(arrays=(replace(first, state="refused", job_id=""), second))
    assert collect_row(built).ok == 0
    built.change(arrays=(replace(first, job_id="999"), second))
    assert list_codes(collect_row(built, "FAILED")) == {1: ["state"]}


def test_damaged_memories_are_forgotten(built: Any) -> None:
    for text in ("", "{", "[]", '{"schema": 1}', '{"schema": 1, "runs": [{}]}', '{"schema": 9}'):
        (built.directory / "measurements.json").write_text(text)
        assert collect_campaigns(built.directory, states=report_states()).exit_code == 0


def test_the_local_queue_is_not_asked_about_what_is_over(build: Build) -> None:
    built = build("1n1g", repeats=3, scheduler="local")
    for repeat, word in enumerate(("COMPLETED", "FAILED", "TIMEOUT"), start=1):
        built.complete("1n1g", repeat, 10.0)
        finished = {"event": "finished", "state": word, "exit": int(word != "COMPLETED")}
        built.mark("1n1g", repeat, finished)
    row = rows_by_shape(collect_campaigns(built.directory, states=unreachable))["1n1g"]
    assert list_codes(row) == {2: ["state"], 3: ["state"]}


def test_a_complete_attempt_outlives_a_requeue_by_hand(build: Build) -> None:
    built = build("1n1g", repeats=1)
    built.complete("1n1g", 1, 10.0)
    built.started("1n1g", 1, attempt=1)
    (run,) = collect_row(built, "CANCELLED").runs
    assert (run.attempt, run.valid, run.state_source) == (0, True, "status-file")


def test_a_rehearsed_campaign_gives_no_number(
    built: Any, run_collect: Callable[..., CliResult]
) -> None:
    rehearsal = built.change(rehearse=True)
    collected = collect_campaigns(rehearsal.directory, states=unreachable)
    assert (collected.tables, collected.exit_code) == ((), 4)
    result = run_collect(rehearsal.directory, "--json")
    document = json.loads(result.stdout)
    assert (document["exit_code"], document["data"]) == (4, {"tables": []})
    assert "is a rehearsal: nothing was trained" in document["errors"][0]["message"]
    assert "12" not in str(document["data"])
    assert not (rehearsal.directory / "table.json").exists()


def test_measurements_and_table_are_written_down(built: Any) -> None:
    collect_campaigns(built.directory, states=report_states("COMPLETED", "FAILED"))
    measurements = json.loads((built.directory / "measurements.json").read_text())
    assert (measurements["schema"], measurements["rule"]) == (1, "clock")
    assert len(measurements["runs"]) == 10
    bad = measurements["runs"][1]
    assert (bad["valid"], bad["throughput"], bad["state"]) == (False, None, "FAILED")
    table = json.loads((built.directory / "table.json").read_text())
    assert table["tables"][0]["rows"][1]["speedup"] == pytest.approx(4, rel=0.1)
    assert not [path for path in built.directory.iterdir() if path.name.endswith(".tmp")]


def test_a_directory_that_can_not_be_written_is_a_warning(
    built: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.replace

    def full(source: Path, target: Path) -> Path:
        if target.name == "measurements.json":
            raise OSError(28, "No space left on device")
        return real(source, target)

    monkeypatch.setattr(Path, "replace", full)
    result = collect_campaigns(built.directory, states=report_states())
    assert result.exit_code == 0
    assert "No space left on device" in result.warnings[0]


def test_baselines_may_come_from_another_campaign(build: Build) -> None:
    built, eight = build("1n1g", name="a"), build("1n8g", name="b")
    for repeat in range(1, 6):
        built.complete("1n1g", repeat, 10.0)
        eight.complete("1n8g", repeat, 70.0)
    result = collect_campaigns(built.directory, eight.directory, states=report_states())
    assert rows_by_shape(result)["1n8g"].speedup == pytest.approx(7)
    alone = json.loads((eight.directory / "table.json").read_text())["tables"][0]
    assert (alone["baseline"], alone["rows"][0]["speedup"]) == (None, None)


def test_the_same_point_in_two_campaigns_is_refused(build: Build) -> None:
    builts = [build("1n1g", name=name, repeats=1) for name in ("a", "b")]
    for built in builts:
        built.complete("1n1g", 1, 10.0)
    with pytest.raises(UsageError, match=r"1n1g fp32 b4 is in .*/a and in .*/b"):
        collect_campaigns(builts[0].directory.parent, states=report_states())


def test_the_same_campaign_named_twice_is_one(built: Any) -> None:
    assert (
        collect_campaigns(built.directory, built.directory.parent, states=report_states()).exit_code
        == 0
    )


def test_different_windows_in_one_table_are_a_warning(build: Build) -> None:
    built, two = build("1n1g", name="a", repeats=1), build("2n1g", name="b", repeats=1)
    built.complete("1n1g", 1, 10.0)
    two.complete("2n1g", 1, 20.0)
    two.change(protocol=Protocol(1, 12, 4))
    result = collect_campaigns(built.directory, two.directory, states=report_states())
    (warning,) = result.warnings
    assert "measured over different iterations: 1n1g over 3 to 12, 2n1g over 5 to 12" in warning
    same = collect_campaigns(
        built.directory, two.directory, states=report_states(), window=Window(6, 10)
    )
    assert same.warnings == ()


@pytest.mark.parametrize(
    ("last", "expected"), [(11, ["incomplete"]), (12, []), (30, [])], ids=["cut", "least", "more"]
)
def test_a_window_in_seconds_ends_where_the_run_does(
    build: Build, last: int, expected: list[str]
) -> None:
    built = build("1n1g", repeats=1)
    built.complete("1n1g", 1, 10.0, last=last)
    built.change(protocol=Protocol(1, 12, 2, window_seconds=3))
    (table,) = collect_campaigns(built.directory, states=report_states()).tables
    (row,) = table.rows
    assert list_codes(row).get(1, []) == expected
    assert row.median == (None if expected else pytest.approx(10))
    assert row.window is not None
    assert (row.window.skip, row.window.iters) == (2, None)


def test_a_shorter_window_than_the_protocols_is_flagged_on_gpus(build: Build) -> None:
    built = build("1n1g", repeats=1).change(protocol=Protocol(1, 12, 2, window_seconds=30))
    config = '"world_size": 1, "device": "cuda", "device_name": "H100"'
    for last, is_short in ((30, True), (90, False)):
        text = built.text("1n1g", 10.0, last=last).replace('"world_size": 1', config)
        built.complete("1n1g", 1, 10.0)
        built.log("1n1g", 1, text)
        (table,) = collect_campaigns(built.directory, states=report_states()).tables
        assert ("short-window" in table.rows[0].flags) == is_short


def test_another_window_still_wants_the_whole_run(built: Any) -> None:
    built.log("1n1g", 1, built.text("1n1g", 10.0, last=11))
    result = collect_campaigns(built.directory, states=report_states(), window=Window(4, 8))
    assert list_codes(rows_by_shape(result)["1n1g"]) == {1: ["incomplete"]}
    assert rows_by_shape(result)["1n1g"].median == pytest.approx(12.5)


def test_accumulation_is_marked(build: Build) -> None:
    built = build("1n1g", repeats=1)
    array = built.array("1n1g")
    built = built.change(arrays=(replace(array, point=replace(array.point, accumulation=2)),))
    text = (
        '{"batch_size_per_device": 4, "accumulation": 2, "global_batch_size": 8, "world_size": 1}'
    )
    lines = "".join(f"iteration: {n}/12 loss: 9 samples/s: 8 time: {1e9 + n}\n" for n in range(13))
    built.log("1n1g", 1, f"hpcbert-config {text}\n{lines}")
    built.started("1n1g", 1)
    built.ended("1n1g", 1)
    (table,) = collect_campaigns(built.directory, states=report_states()).tables
    assert (table.group.variant, table.rows[0].flags) == ("acc2", ("single-run", "accumulation"))
    assert table.rows[0].median == pytest.approx(8)


@pytest.fixture
def run_collect(collect: Callable[..., CliResult]) -> Callable[..., CliResult]:
    return collect


def test_the_newest_campaign_is_collected_and_ids_name_others(
    build: Build, run_collect: Callable[..., CliResult]
) -> None:
    for name, rate in (("20261120-old", 10.0), ("20261121-new", 20.0)):
        built = build("1n1g", name=name, repeats=2, scheduler="local")
        for repeat in (1, 2):
            built.complete("1n1g", repeat, rate)
    newest = run_collect()
    assert newest.returncode == 0, newest.output
    assert " 20.00 " in newest.stdout
    assert " 10.00 " in run_collect("20261120-old").stdout
    assert " 10.00 " in run_collect("old").stdout


def test_a_campaign_without_slurm_around_is_collected(
    built: Any,
    run_collect: Callable[..., CliResult],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    document = json.loads(run_collect(built.directory, "--json").stdout)
    (table,) = document["data"]["tables"]
    assert [row["repeats"] for row in table["rows"]] == [{"ok": 5, "asked": 5}] * 2
    assert table["rows"][0]["runs"][0]["state_source"] == "status-file"


@pytest.mark.parametrize(
    ("options", "printed", "codes_of_2"),
    [((), 512, ["config"]), ((), 128, []), ((("sequence_length", 512),), 512, [])],
    ids=["usual, printed 512", "usual", "asked for 512"],
)
def test_a_campaigns_log_must_have_the_sequence_length_that_was_asked_for(
    build: Build, options: Any, printed: int, codes_of_2: list[str]
) -> None:
    built = build("1n1g", repeats=2)
    (array,) = built.campaign.arrays
    point = replace(array.point, options=options)
    built = built.change(arrays=(replace(array, point=point),))
    for repeat in (1, 2):
        length = printed if repeat == 2 else dict(options).get("sequence_length", 128)
        text = built.text("1n1g", 10.0 + repeat)
        log = text.replace('"world_size"', f'"sequence_length": {length}, "world_size"')
        assert log != text
        built.log("1n1g", repeat, log)
        built.started("1n1g", repeat)
        built.ended("1n1g", repeat)
    row = collect_row(built)
    assert list_codes(row).get(2, []) == codes_of_2
