"""Collecting campaigns: states, exit codes, windows, clocks, and what is written down."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from hpcbert.campaign import store
from hpcbert.errors import SchedulerError, UsageError
from hpcbert.logs.setting import Window
from hpcbert.model import Protocol
from tests.kit.campaigns import (
    WRITTEN,
    collect_campaigns,
    find_exit_code,
    report_states,
    unreachable,
)
from tests.kit.cases import cases
from tests.kit.cli import codes, first_row
from tests.kit.logs import log


def collect_row(built, *words):
    """Return the row of the first point, by what Slurm says of its repeats."""
    return collect_campaigns(built.directory, states=report_states(*words)).tables[0].rows[0]


def list_codes(row):
    invalid = [run for run in row.runs if not run.valid]
    return {run.repeat: [reason.code for reason in run.reasons] for run in invalid}


def test_a_finished_campaign_gives_its_table_and_measurements(build, tmp_path):
    built = build("1n1g", "2n2g").finish()
    result = collect_campaigns(built.directory, states=report_states())
    first, second = result.tables[0].rows
    assert [first.median, second.median, second.speedup] == pytest.approx([12, 48, 4])
    assert find_exit_code(result) == 0
    assert {run.state_source for run in first.runs} == {"sacct"}
    assert first.runs[0].nodes == ("n1", "n2")
    assert first.runs[0].log == "logs/pytorch/bert/bz4/1n1g/bert_b4_fp32_1.log"
    measurements = json.loads((built.directory / "measurements.json").read_text())
    assert (measurements["schema"], measurements["rule"]) == (1, "clock")
    assert len(measurements["runs"]) == 10
    document = json.loads((built.directory / "table.json").read_text())
    assert document["tables"][0]["rows"][1]["speedup"] == pytest.approx(4)
    assert not [path for path in built.directory.iterdir() if path.name.endswith(".tmp")]
    # The states are remembered, and a copy is enough.
    copy = shutil.copytree(built.directory, tmp_path / "laptop")
    assert collect_campaigns(copy, states=unreachable).tables == result.tables
    twice = collect_campaigns(built.directory, built.directory.parent, states=unreachable)
    assert twice.tables == result.tables
    # Damaged memories are forgotten.
    for text in ("", "[]", '{"schema": 1}', '{"schema": 1, "runs": [{}]}'):
        (built.directory / "measurements.json").write_text(text)
        again = collect_campaigns(built.directory, states=report_states())
        assert again.tables == result.tables


def test_ranks_that_saw_a_part_of_their_node_s_gpus_are_flagged(build):
    built = build("1n1g", "2n2g").finish()
    path, event = built.status_path("2n2g", 3), '"event": "step-end"'
    text = path.read_text()
    for apart in ("true", '"yes"', "null"):
        path.write_text(text.replace(event, f'{event}, "apart": {apart}'))
        first, second = collect_campaigns(built.directory, states=report_states()).tables[0].rows
        flagged = [run.repeat for run in second.runs if "apart" in run.flags]
        assert flagged == ([3] if apart == "true" else [])
        assert ("apart" in first.flags, "apart" in second.flags) == (False, apart == "true")


def test_repeats_that_went_wrong_or_were_refused_are_in_no_median_and_say_so(build):
    built = build("1n1g", "2n2g").finish()
    built.log("2n2g", 1, log("2n2g", 1000.0, last=11))
    built.log("2n2g", 2, log("2n2g", 1000.0, nan_at=7))
    built.log("2n2g", 3, log("2n2g", 1000.0, batch=8))
    result = collect_campaigns(built.directory, states=report_states())
    row = result.tables[0].rows[1]
    assert list_codes(row) == {1: ["incomplete"], 2: ["loss"], 3: ["config"]}
    assert [run.throughput for run in row.runs][:3] == [None] * 3
    assert row.median == pytest.approx(54)
    assert find_exit_code(result) == 4
    (built.directory / "measurements.json").unlink()
    first, second = built.campaign.arrays
    error = "invalid partition specified"
    built.change(arrays=(replace(first, state="refused", job_id="", error=error), second))
    row = collect_row(built)
    assert row.ok == 0
    assert all(word in str(row.runs[0].reasons[0]) for word in ("REFUSED", "invalid partition"))
    # A new job is asked about.
    built.change(arrays=(replace(first, job_id="999"), second))
    assert list_codes(collect_row(built, "FAILED")) == {1: ["state"]}


@cases
def test_state_exit_status_and_log_must_agree_that_a_run_is_whole(  # noqa: PLR0917
    build, word, code, line, whole, expected
):
    """A run that failed says which memory it lacked; a log with a `line` ends with it."""
    is_whole = bool(whole or not line)
    text = log("1n1g", 99.0, last=12 if is_whole else 7)
    built = build("1n1g", repeats=1)
    built.log("1n1g", 1, f"{text}{line or ''}\n")
    built.started("1n1g", 1)
    if code is not None:
        built.ended("1n1g", 1, code=code)
    (run,) = collect_row(built, word).runs
    assert [reason.code for reason in run.reasons] == [*expected]
    assert (run.state, run.throughput is None) == (word, bool(expected))
    details = [reason.detail for reason in run.reasons if reason.code == "device-oom"]
    assert details == [f"the device ran out of memory: {line}"] * len(details)
    # One that wrote no end is never guessed to have completed.
    (run,) = collect_campaigns(built.directory).tables[0].rows[0].runs
    assert run.valid is (code == 0 and is_whole)


def test_a_scheduler_that_does_not_answer_and_a_full_disk_are_warnings(build, monkeypatch):
    built = build("1n1g", "2n2g").finish()
    replace_file = Path.replace
    silent = Mock(side_effect=SchedulerError("slurmctld does not answer."))

    def refuse(source, target):
        if target.name == "measurements.json":
            raise OSError(28, "No space left on device")
        return replace_file(source, target)

    monkeypatch.setattr(Path, "replace", refuse)
    result = collect_campaigns(built.directory, states=silent)
    assert (result.tables[0].rows[0].ok, find_exit_code(result)) == (5, 0)
    assert "slurmctld does not answer" in result.warnings[0]
    assert "No space left on device" in result.warnings[-1]


def test_the_job_s_own_account_counts_where_nobody_is_asked(build):
    built = build("1n1g", repeats=3, scheduler="local")
    for repeat, word in enumerate(("COMPLETED", "FAILED", "TIMEOUT"), start=1):
        built.complete("1n1g", repeat, 10.0)
        finished = {"event": "finished", "state": word, "exit": int(word != "COMPLETED")}
        built.mark("1n1g", repeat, finished)
    row = collect_campaigns(built.directory, states=unreachable).tables[0].rows[0]
    assert list_codes(row) == {2: ["state"], 3: ["state"]}
    # A complete attempt outlives a requeue by hand.
    requeued = build("1n1g", repeats=1, name="requeued").complete("1n1g", 1, 10.0)
    requeued.started("1n1g", 1, attempt=1)
    (run,) = collect_row(requeued, "CANCELLED").runs
    assert (run.attempt, run.valid, run.state_source) == (0, True, "status-file")


def test_baselines_may_come_from_another_campaign_but_no_point_twice(build):
    built = build("1n1g", name="a", repeats=1).complete("1n1g", 1, 10.0)
    eight = build("1n8g", name="b", repeats=1).complete("1n8g", 1, 70.0)
    result = collect_campaigns(built.directory, eight.directory, states=report_states())
    assert result.tables[0].rows[1].speedup == pytest.approx(7)
    alone = json.loads((eight.directory / "table.json").read_text())["tables"][0]
    assert (alone["baseline"], alone["rows"][0]["speedup"]) == (None, None)
    build("1n1g", name="c", repeats=1).complete("1n1g", 1, 10.0)
    with pytest.raises(UsageError, match=r"1n1g fp32 b4 is in .*/a and in .*/c"):
        collect_campaigns(built.directory.parent, states=report_states())


def test_windows_differ_end_where_the_run_does_or_are_too_short(build):
    """Different ones in one table are a warning, and want the whole run."""
    built = build("1n1g", name="a", repeats=2).complete("1n1g", 1, 10.0)
    built.complete("1n1g", 2, 11.0, last=11)
    two = build("2n1g", name="b", repeats=1).complete("2n1g", 1, 20.0)
    two.change(protocol=Protocol(1, 12, 4))
    paths = (built.directory, two.directory)
    (warning,) = collect_campaigns(*paths, states=report_states()).warnings
    assert (
        "measured over different iterations: 1n1g over iterations 3 to 12, 2n1g over iterations 5 to 12"
        in warning
    )
    same = collect_campaigns(*paths, states=report_states(), window=Window(4, 8))
    assert same.warnings == ()
    row = same.tables[0].rows[0]
    assert list_codes(row) == {2: ["incomplete"]}
    assert row.median == pytest.approx(10)
    for last, ok in ((11, 0), (12, 1), (30, 1)):
        protocol = Protocol(1, 12, 2, window_seconds=3)
        built = build("1n1g", repeats=1, name=f"to-{last}", protocol=protocol)
        row = collect_row(built.complete("1n1g", 1, 10.0, last=last))
        assert (row.ok, row.median) == (ok, pytest.approx(10) if ok else None)
        assert list_codes(row) == ({} if ok else {1: ["incomplete"]})
        assert (row.window.skip, row.window.iters) == (2, None)
    # A shorter one than the protocol's is flagged on GPUs.
    for last, is_short in ((30, True), (90, False)):
        protocol = Protocol(1, 12, 2, window_seconds=30)
        built = build("1n1g", repeats=1, name=f"{last}", protocol=protocol)
        built.complete("1n1g", 1, 10.0, last=last, device="cuda", device_name="H100")
        assert ("short-window" in collect_row(built).flags) == is_short


def test_a_campaigns_log_must_have_its_sequence_length(build):
    long = (("sequence_length", 512),)
    for options, printed, ok in (((), 512, 0), ((), 128, 1), (long, 512, 1)):
        built = build("1n1g", repeats=1, name=f"{len(options)}-{printed}")
        built.complete("1n1g", 1, 10.0, sequence_length=printed)
        (array,) = built.campaign.arrays
        point = replace(array.point, options=options)
        row = collect_row(built.change(arrays=(replace(array, point=point),)))
        assert (row.ok, list_codes(row)) == (ok, {} if ok else {1: ["config"]})


def test_the_newest_measured_campaign_is_collected_and_ids_name_others(build, collect, tmp_path):
    for name, rate in (("20261120-old", 10.0), ("20261121-new", 20.0)):
        store.record_submit(tmp_path / "runs")
        build("1n1g", repeats=1, name=name, scheduler="local").complete("1n1g", 1, rate)
    assert "this is 20261121-new" not in collect().output
    rehearsal = build("1n1g", name="20261122-rehearsal", rehearse=True)
    newest = collect(status=0)
    assert " 20.00 " in newest.stdout
    assert "20261122-rehearsal, the newest, is a rehearsal: this is 20261121-new." in newest.stderr
    build("1n1g", name="20261123-refused", jobs=("",), state="refused")
    assert "20261123-refused, the newest, has no job yet: this is" in collect().stderr
    for name in ("20261120-old", "old"):
        assert " 10.00 " in collect(name).stdout
    document = collect("rehearsal", "--json").document
    assert (document["exit_code"], document["data"]) == (4, {"tables": []})
    assert "is a rehearsal: nothing was trained" in document["errors"][0]["message"]
    assert not (rehearsal.directory / "table.json").exists()
    (tmp_path / "empty").mkdir()
    assert "No log has a name in DLPerf's form" in collect("empty").stderr


def test_a_log_of_another_time_than_its_step_has_no_number(build, collect_json):
    for name, fine, offset in (("clocks", True, 0.5), ("older script", False, 10_000.5)):
        built = build("1n1g", name=name, repeats=4)
        for repeat, start in ((1, None), (2, 30), (3, -1e9), (4, None)):
            begin = offset + 100 * repeat
            built.measure(repeat, begin, begin + 60, fine=fine, start=start)
        for rule in ((), ("--rule", "rate")):
            document = collect_json(built.directory, *rule)
            assert codes(first_row(document)) == [[], ["clock"], ["clock"], []]
            assert document["exit_code"] == 4
    # A clock that was set, or a log that is older than its step, spoils a run.
    built, day = build("1n1g", repeats=8), WRITTEN + 86_400
    for repeat, moved in enumerate((0.0, 0.4, 3600.0, -1.5, 0.0, 0.0, 0.0), start=1):
        begin = 86_400 + 100 * repeat
        built.measure(repeat, begin, begin + 60, moved=moved)
    for repeat, seconds in ((5, 500), (6, -3600), (7, -3600)):
        os.utime(built.log_path("1n1g", repeat), (day, day + seconds))
    # The record seems older too, as in a copy: then the times of files say nothing.
    os.utime(built.status_path("1n1g", 7), (day, day - 3600))
    # A record that has no time refuses nothing.
    built.complete("1n1g", 8, 10.0, start=1e9)
    row = first_row(collect_json(built.directory))
    assert codes(row) == [[], [], ["clock"], ["clock"], [], ["clock"], [], []]
    assert "set forward by 3600.0 s" in row["runs"][2]["reasons"][0]["detail"]
    assert "set back by 1.5 s" in row["runs"][3]["reasons"][0]["detail"]


@pytest.mark.parametrize("wrong", [-300, 300], ids=["slow", "fast"])
@pytest.mark.parametrize("nodes", ["n1", "n[1-2]"], ids=["one node", "two nodes"])
def test_a_clock_that_is_five_minutes_wrong_all_the_time_spoils_and_hides_nothing(
    build, collect_json, wrong, nodes
):
    """The file server's clock is right, and the node's is known to be wrong."""
    built = build("1n1g", repeats=5)
    for repeat in range(1, 6):
        true = 1000 * repeat
        # By the node's clock; of another run, ten minutes before; by the clock of another node.
        start = {2: true + wrong - 600, 3: true + 30.0}.get(repeat)
        # Of the last one, nobody knows that its clock is wrong.
        ahead = -wrong if repeat < 5 else 0
        begin = true + wrong + 0.5
        built.measure(repeat, begin, begin + 60, start=start, ahead=ahead, nodes=nodes)
        # The fourth log was there before its step began.
        changed = WRITTEN + true + (-200 if repeat == 4 else 60)
        os.utime(built.log_path("1n1g", repeat), (WRITTEN, changed))
        changed = WRITTEN + true + (60 if repeat < 5 else 1000)
        os.utime(built.status_path("1n1g", repeat), (WRITTEN, changed))
    of_another_node = [] if nodes != "n1" else ["clock"]
    unknown = ["clock"] if wrong > 0 else []
    expected = [[], ["clock"], of_another_node, ["clock"], unknown]
    assert codes(first_row(collect_json(built.directory))) == expected
