"""When more repeats are not needed: what a job decides, what collect and the history make of it."""

from __future__ import annotations

import json

import pytest

from hpcbert.campaign import adaptive, overview
from hpcbert.campaign.adaptive import decide
from hpcbert.commands.collect import CollectResult
from hpcbert.model import Protocol, Provenance, Row
from hpcbert.results import document, formats
from hpcbert.results.formats import render_markdown
from hpcbert.results.wording import describe_adaptive
from hpcbert.slurm.state_sources import reduce_events
from hpcbert.slurm.states import Kind, RepeatState, parse_state
from tests.kit import cli
from tests.kit.campaigns import Build, Built, collect_campaigns, report_states
from tests.kit.cases import cases
from tests.kit.logs import ITERS, SKIP

pytestmark = pytest.mark.slow

AUTO = Protocol(15, ITERS, SKIP, 0.01)
KEY = "bert-tiny_1n1g_fp32_b4"
MADE = Provenance("0", "2026-11-22T10:00:00Z", "hpcbert collect")
CLOSE = (100.0, 100.2, 100.1, 100.3, 100.4)


def build_campaign(
    build: Build, rates: tuple[float, ...], spare: int = 0, **changes: object
) -> Built:
    """Make a campaign whose first repeats ran at those rates; one of rate 0 failed."""
    built = build("1n1g", repeats=15, **{"protocol": AUTO, **changes})
    for number, rate in enumerate(rates, 1):
        if rate:
            built.complete("1n1g", number, rate)
        else:
            built.started("1n1g", number)
            built.ended("1n1g", number, code=7)
    for number in range(len(rates) + 1, len(rates) + 1 + spare):
        built.started("1n1g", number)
        event = {"event": "unneeded", "why": "5 of at most 15 repeats"}
        built.mark("1n1g", number, event, {"event": "end", "exit": 0})
    return built


def first_row(result: CollectResult) -> Row:
    (table,) = result.tables
    return table.rows[0]


@cases
def test_a_job_decides_by_the_numbers_that_collect_prints(
    build: Build, rates: tuple[float, ...], precision: float, is_enough: bool
) -> None:
    built = build_campaign(build, rates, protocol=Protocol(15, ITERS, SKIP, precision))
    decision = decide(built.directory, KEY)
    assert decision.enough is is_enough
    collected = collect_campaigns(
        built.directory, states=report_states(*["COMPLETED"] * len(rates), default="PENDING")
    )
    assert describe_adaptive(first_row(collected)) == (decision.reason,)


def test_only_the_repeats_of_the_point_count(build: Build) -> None:
    built = build("1n1g", "1n2g", repeats=15, protocol=AUTO)
    for number, rate in enumerate(CLOSE, 1):
        built.complete("1n2g", number, rate)
    assert not decide(built.directory, KEY).enough
    assert decide(built.directory, KEY.replace("1n1g", "1n2g")).enough


def test_a_rehearsal_needs_five_that_went_through(build: Build) -> None:
    assert not decide(build_campaign(build, CLOSE[:4], rehearse=True).directory, KEY).enough
    assert decide(build_campaign(build, CLOSE, rehearse=True, name="another").directory, KEY).enough


def test_the_exit_status_says_it_and_a_damaged_campaign_is_neither(
    build: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    built = build_campaign(build, CLOSE)
    assert adaptive.main([str(built.directory), KEY]) == adaptive.ENOUGH
    reason = json.loads(f"{{{capsys.readouterr().out}}}")["why"]
    assert reason.startswith("5 of at most 15 repeats: the median's 93.75 % interval is 0.39")
    assert reason.endswith(" % wide, narrower than 1 %")
    built.change(protocol=Protocol(15, ITERS, SKIP, 0.001))
    assert adaptive.main([str(built.directory), KEY]) == adaptive.MORE
    (built.directory / "manifest.json").write_text("{}")
    assert adaptive.main([str(built.directory), KEY]) == adaptive.FAILED


def test_what_was_not_needed_is_missing_nowhere(build: Build) -> None:
    built = build_campaign(build, (0.0, *CLOSE), spare=9)
    collected = collect_campaigns(built.directory, states=report_states("FAILED"))
    table_row = first_row(collected)
    assert collected.exit_code == 0
    assert (table_row.ok, table_row.asked, table_row.flags) == (5, 5, ())
    assert [run.repeat for run in table_row.runs] == [1, 2, 3, 4, 5, 6]
    assert table_row.adaptive
    assert table_row.adaptive.unneeded == tuple(range(7, 16))
    (json_row,) = document.tables_data(collected.tables)["tables"][0]["rows"]
    assert json_row["repeats"] == {"ok": 5, "asked": 5}
    assert json_row["adaptive"]["reached"] is True
    assert json_row["adaptive"]["interval"]["coverage"] == pytest.approx(0.9375)
    assert json_row["adaptive"]["why"] in " ".join(
        formats.render_text(collected.tables, MADE).split()
    )
    assert "5 of at most 15 repeats" in render_markdown(collected.tables, MADE)
    summary = overview.read_overview(built.directory)
    assert (summary.state, summary.valid, summary.asked) == ("complete", 5, 5)
    (point,) = overview.read_results(built.directory, built.campaign).values()
    assert (point.unneeded, [repeat for repeat, _ in point.refused]) == (tuple(range(7, 16)), [1])


def test_with_too_few_that_count_the_point_is_incomplete(build: Build) -> None:
    collected = collect_campaigns(
        build_campaign(build, (0.0, *CLOSE[:4]), spare=10).directory, states=report_states("FAILED")
    )
    table_row = first_row(collected)
    assert (table_row.ok, table_row.asked, table_row.flags) == (4, 5, ("incomplete",))
    assert collected.exit_code == 4
    full_result = collect_campaigns(
        build_campaign(build, CLOSE, spare=10, name="b").directory,
        states=report_states(),
        require_all=True,
    )
    assert first_row(full_result).median == pytest.approx(100.2, rel=1e-5)


def test_all_repeats_may_be_too_few_for_the_precision(build: Build) -> None:
    rates = tuple(100.0 + number for number in range(15))
    collected = collect_campaigns(build_campaign(build, rates).directory, states=report_states())
    table_row = first_row(collected)
    assert (table_row.ok, table_row.asked, table_row.flags) == (15, 15, ("noisy", "imprecise"))
    assert collected.exit_code == 0
    assert describe_adaptive(table_row)[0].endswith(" % wide, not narrower than 1 %")


def test_what_was_not_needed_did_not_fail_by_its_log(build: Build, empty_directory: None) -> None:
    built = build_campaign(build, CLOSE, spare=1)
    printed = built.directory / "slurm" / "70_6.out"
    printed.write_text("hpcbert: repeat 6 is not needed: five are enough\n")
    result = cli.run("logs", built.directory, "--repeat", "6")
    assert (result.returncode, "is not needed" in result.stdout) == (0, True), result
    assert "failed" not in result.output


def test_collect_says_where_nodes_could_not_decide(build: Build) -> None:
    built = build_campaign(build, CLOSE)
    for number in (6, 7):
        built.mark("1n1g", number, {"event": "start", "attempt": 0, "host": f"n{number}"})
        built.mark("1n1g", number, {"event": "undecided", "attempt": 0, "exit": 127})
    (warning,) = collect_campaigns(
        built.directory, states=report_states(*["COMPLETED"] * 5, default="PENDING")
    ).warnings
    assert "2 repeats were made without knowing whether they were needed" in warning
    assert "did not run on n[6-7]" in warning


@cases
def test_the_scheduler_says_whether_the_job_ended(word: str, state: str) -> None:
    job_record = reduce_events(
        [
            {"event": "start", "attempt": 0, "time": 1},
            {"event": "unneeded", "attempt": 0, "why": "five are enough"},
            {"event": "end", "attempt": 0, "exit": 0, "time": 2},
        ]
    )
    repeat_state = job_record.complete(RepeatState(word, parse_state(word).kind, "sacct"))
    assert repeat_state.word == state
    assert (repeat_state.kind is Kind.UNNEEDED) == (state == "UNNEEDED")
    assert job_record.end_state
    assert (job_record.end_state.word, job_record.end_state.detail) == (
        "UNNEEDED",
        "five are enough",
    )
    assert repeat_state.advice in ("", parse_state(word).advice)
