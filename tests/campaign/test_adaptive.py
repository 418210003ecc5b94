"""When more repeats are not needed: what a job decides, what collect and the history make of it."""

import json

import pytest

from hpcbert.campaign import adaptive, overview
from hpcbert.model import Protocol, Provenance
from hpcbert.results import document, formats
from hpcbert.results.wording import describe_adaptive
from hpcbert.slurm.state_sources import reduce_events
from hpcbert.slurm.states import RepeatState, parse_state
from tests.kit import cli
from tests.kit.campaigns import STARTED, collect_campaigns, ended, find_exit_code, report_states
from tests.kit.cases import cases
from tests.kit.logs import ITERS, SKIP

pytestmark = pytest.mark.slow

KEY = "bert-tiny_1n1g_fp32_b4"
CLOSE = (100.0, 100.2, 100.1, 100.3, 100.4)


def build_campaign(build, rates, spare=0, precision=0.01, **changes):
    """Make a campaign whose first repeats ran at those rates; one of rate 0 failed."""
    built = build("1n1g", repeats=15, protocol=Protocol(15, ITERS, SKIP, precision), **changes)
    for number, rate in enumerate(rates, start=1):
        if rate:
            built.complete("1n1g", number, rate)
        else:
            built.mark("1n1g", number, *STARTED, *ended(7))
    unneeded = {"event": "unneeded", "why": "5 of at most 15 repeats"}
    for number in range(len(rates) + 1, len(rates) + spare + 1):
        built.mark("1n1g", number, *STARTED, unneeded, {"event": "end", "exit": 0})
    return built


@cases
def test_a_job_decides_by_the_numbers_that_collect_prints(build, rates, precision, is_enough):
    built = build_campaign(build, rates, precision=precision)
    decision, reason = adaptive.decide(built.directory, KEY)
    assert decision is is_enough
    states = report_states(*["COMPLETED"] * len(rates), default="PENDING")
    (table,) = collect_campaigns(built.directory, states=states).tables
    assert describe_adaptive(table.rows[0]) == (reason,)


def test_the_exit_status_has_the_decision_for_one_point(build, capsys):
    built = build_campaign(build, CLOSE)
    assert adaptive.main([str(built.directory), KEY]) == adaptive.ENOUGH
    reason = json.loads(f"{{{capsys.readouterr().out}}}")["why"]
    assert reason.startswith("5 of at most 15 repeats: the median's 93.75 % interval is 0.39")
    assert reason.endswith(" % wide, narrower than 1 %")
    built.change(protocol=Protocol(15, ITERS, SKIP, 0.001))
    assert adaptive.main([str(built.directory), KEY]) == adaptive.MORE
    (built.directory / "manifest.json").write_text("{}")
    assert adaptive.main([str(built.directory), KEY]) == adaptive.FAILED
    two = build("1n1g", "1n2g", name="two", repeats=15, protocol=Protocol(15, ITERS, SKIP, 0.01))
    for number, rate in enumerate(CLOSE, start=1):
        two.complete("1n2g", number, rate)
    assert not adaptive.decide(two.directory, KEY)[0]
    assert adaptive.decide(two.directory, KEY.replace("1n1g", "1n2g"))[0]
    for count, is_enough in ((4, False), (5, True)):
        rehearsal = build_campaign(build, CLOSE[:count], rehearse=True, name=f"of-{count}")
        assert adaptive.decide(rehearsal.directory, KEY)[0] is is_enough


def test_what_was_not_needed_is_missing_nowhere(build, empty_directory):
    built = build_campaign(build, (0.0, *CLOSE), spare=9)
    collected = collect_campaigns(built.directory, states=report_states("FAILED"))
    row = collected.tables[0].rows[0]
    assert (find_exit_code(collected), row.ok, row.asked, row.flags) == (0, 5, 5, ())
    assert [run.repeat for run in row.runs] == [1, 2, 3, 4, 5, 6]
    assert row.adaptive
    assert row.adaptive.unneeded == tuple(range(7, 16))
    (json_row,) = document.tables_data(collected.tables)["tables"][0]["rows"]
    assert (json_row["repeats"], json_row["adaptive"]["reached"]) == ({"ok": 5, "asked": 5}, True)
    assert json_row["adaptive"]["interval"]["coverage"] == pytest.approx(0.9375)
    provenance = Provenance("0", "2026-11-22T10:00:00Z", "hpcbert collect")
    text = formats.render_text(collected.tables, provenance)
    assert json_row["adaptive"]["why"] in " ".join(text.split())
    assert "5 of at most 15 repeats" in formats.render_markdown(collected.tables, provenance)
    summary = overview.read_overview(built.directory)
    assert (summary.state, summary.valid, summary.asked) == ("complete", 5, 5)
    results = overview.read_results(built.directory, built.campaign)
    assert results is not None
    (point,) = results.points.values()
    assert (point.unneeded, [repeat for repeat, _ in point.refused]) == (tuple(range(7, 16)), [1])
    (built.directory / "slurm" / "70_7.out").write_text("hpcbert: repeat 7 is not needed\n")
    logs = cli.run("logs", built.directory, "--repeat", "7", status=0)
    assert "is not needed" in logs.stdout
    assert "failed" not in logs.output


def test_repeats_may_be_too_few_too_imprecise_or_undecided(build):
    few = build_campaign(build, (0.0, *CLOSE[:4]), spare=10)
    collected = collect_campaigns(few.directory, states=report_states("FAILED"))
    row = collected.tables[0].rows[0]
    assert (row.ok, row.asked, row.flags) == (4, 5, ("incomplete",))
    assert find_exit_code(collected) == 4
    enough = build_campaign(build, CLOSE, spare=10, name="enough")
    collected = collect_campaigns(enough.directory, states=report_states(), require_all=True)
    assert collected.tables[0].rows[0].median == pytest.approx(100.2, rel=1e-5)
    spread = build_campaign(build, tuple(100.0 + n for n in range(15)), name="spread")
    collected = collect_campaigns(spread.directory, states=report_states())
    row = collected.tables[0].rows[0]
    assert (row.ok, row.asked, row.flags) == (15, 15, ("noisy", "imprecise"))
    assert find_exit_code(collected) == 0
    needs = "below 1 % of at least 5 repeats would be enough"
    assert describe_adaptive(row)[0].endswith(f" % wide, {needs}")
    undecided = build_campaign(build, CLOSE, name="undecided")
    for number in (6, 7):
        start = {"event": "start", "host": f"n{number}"}
        undecided.mark("1n1g", number, start, {"event": "undecided", "exit": 127}, attempt=0)
    states = report_states(*["COMPLETED"] * 5, default="PENDING")
    (warning,) = collect_campaigns(undecided.directory, states=states).warnings
    assert "2 repeats were made without knowing whether they were needed" in warning
    assert "did not run on n[6-7]" in warning


def test_the_scheduler_knows_whether_the_job_ended():
    unneeded = {"event": "unneeded", "why": "five are enough"}
    events = (STARTED[0], unneeded, {"event": "end", "exit": 0})
    job_record = reduce_events([{"attempt": 0, "time": 1, **event} for event in events])
    for word in ("COMPLETED", "RUNNING", "CANCELLED", "NODE_FAIL"):
        state = job_record.complete(RepeatState(word, parse_state(word).kind, "sacct"))
        assert state.word == ("NODE_FAIL" if word == "NODE_FAIL" else "UNNEEDED")
        assert (state.kind.name == "UNNEEDED") == (state.word == "UNNEEDED")
    assert job_record.end_state
    assert job_record.end_state.detail == "five are enough"
