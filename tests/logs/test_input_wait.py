"""Flags of what held the input up: few CPUs, and data that come slower than steps."""

import pytest

from hpcbert.commands.monitor import read_rate_factor
from hpcbert.logs.input_wait import read_input_notes, read_wait_share
from hpcbert.logs.scan import read_progress
from tests.kit import cli, logs
from tests.kit.cases import cases
from tests.kit.paths import TEMPLATES
from tests.kit.recipes import grammar
from tests.kit.scripts import run_functions, tool


@cases
def test_flags_of_lines_and_the_share_of_the_time_that_was_waited(
    text, flags: list[str], share, tmp_path
):
    log = logs.write_file(tmp_path, "run.log", text)
    notes = read_input_notes(log)
    assert [note.flag for note in notes] == flags
    assert all("nodes.cpus_per_gpu" in note.detail for note in notes)
    assert [note.flag for note in read_progress(log, grammar("pytorch")).notes] == flags
    assert read_wait_share(log) == (share and pytest.approx(share))
    assert read_input_notes(tmp_path / "none.log") == ()
    assert read_wait_share(tmp_path / "none.log") is None


def test_collect_and_monitor_say_which_repeat_and_what_to_set(build, empty_directory):
    built = build("1n1g", repeats=2, jobs=("1",), scheduler="local").finish()
    line = "hpcbert: ranks have 1 of their node's 64 CPUs each: data loading may wait.\n"
    built.log("1n1g", 2, line + built.text("1n1g", 10.0))
    row = cli.first_row(cli.run("collect", built.directory, "--json").document)
    assert "few-cpus" in row["flags"]
    assert [run["flags"] for run in row["runs"]] == [[], ["few-cpus"]]
    text = cli.run("collect", built.directory).stdout
    assert "repeat 2: few-cpus (1 of 64 CPUs a rank: set nodes.cpus_per_gpu" in text
    events = cli.run("monitor", built.campaign.id, "--once", "--json").events
    flags = {event["repeat"]: [flag["flag"] for flag in event.get("flags", ())] for event in events}
    assert flags == {1: [], 2: ["few-cpus"]}
    text = cli.run("monitor", built.campaign.id, "--once").stdout
    assert "1 repeat: few-cpus: 1 of 64 CPUs" in text


@pytest.mark.parametrize(("unit", "factor"), [("samples", 1), ("tokens", 128), ("sequences", 1)])
def test_monitor_knows_the_size_of_a_sample(build, unit, factor):
    built = build("1n1g")
    point = built.campaign.arrays[0].point
    assert read_rate_factor(built.directory, point, unit) == factor
    unknown = 1 if unit == "samples" else None
    recipe = built.directory / "recipe.toml"
    recipe.write_bytes((TEMPLATES / "mlperf-bert-v5" / "recipe.toml").read_bytes())
    assert read_rate_factor(built.directory, point, unit) == unknown  # it packs samples
    recipe.unlink()
    assert read_rate_factor(built.directory, point, unit) == unknown


@cases
def test_rank_0_reports_few_cpus(tmp_path, *, mine, total, tasks, rank, is_reported):
    tool(tmp_path, "nproc", f'#!/bin/sh\n[ "$1" = --all ] && echo {total} || echo {mine}\n')
    program = f"tasks={tasks} SLURM_PROCID={rank}\nreport_few_cpus"
    printed = run_functions(program, "rank.bash", tools=tmp_path)
    log = logs.write_file(tmp_path, "run.log", "\n".join([*printed, ""]))
    assert [note.flag for note in read_input_notes(log)] == ["few-cpus"] * is_reported
