from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import store
from hpcbert.cli.progress import format_counts, format_duration
from hpcbert.commands import monitor, submit
from hpcbert.commands.monitor import Change, Sinks, View, watch
from hpcbert.errors import SchedulerError, UsageError
from hpcbert.logs.scan import read_progress
from hpcbert.scheduler.local import backend as local
from hpcbert.slurm import state_sources
from hpcbert.slurm.states import Kind, RepeatState, parse_state
from hpcbert.system.runner import Runner
from tests.kit.campaigns import Build, Built, ended
from tests.kit.slurm import Slurm, T, failed
from tests.kit.waiting import Clock


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a job wrote is visible when it has ended: here no job writes anything."""
    monkeypatch.setattr(state_sources, "VISIBILITY_DELAY", 0.0)


def follow(
    built: Built, run: Runner, *, time: Clock | None = None, **options: Any
) -> tuple[View, list[str], Clock]:
    time, lines = time or Clock(), list[str]()

    def changes(several: Sequence[Change]) -> None:
        lines.extend(f"{change.repeat.number} {change.state.word}" for change in several)

    values = {"floor": 10.0, "clock": time, "pause": time.pause, "chance": lambda: 0.0, **options}
    view = watch((built,), Sinks(changes), run=run, **values)
    return view, lines, time


@pytest.mark.usefixtures("at_once")
def test_each_change_is_told_once_and_the_end_ends_it(watched: Build) -> None:
    built = watched()
    run = Slurm(
        sacct=[
            "",
            built.sacct(1, "RUNNING"),
            built.sacct(1, "COMPLETED") + built.sacct(2, "RUNNING"),
            built.sacct(1, "COMPLETED") + built.sacct(2, "CANCELLED by 1000"),
        ],
        squeue=[built.squeue(1, "PENDING", job="12_[1-2%1]"), built.squeue(2, "PENDING")],
    )
    view, lines, time = follow(built, run)
    assert lines == [
        *("1 PENDING", "2 PENDING", "1 RUNNING", "1 COMPLETED", "2 RUNNING", "2 CANCELLED"),
    ]
    assert view.count() == {"succeeded": 1, "failed": 1}
    assert view.failed == 1
    assert time.now == T + 30


def test_a_silent_slurm_is_given_up_after_some_polls_and_the_jobs_are_left_alone(
    watched: Build,
) -> None:
    built = watched()
    run = Slurm(
        sacct=[failed("Connection refused")], squeue=[failed("Unable to contact slurm controller")]
    )
    with pytest.raises(SchedulerError, match="Unable to contact") as caught:
        follow(built, run, tolerance=3)
    assert caught.value.exit_code == 3
    assert "The jobs continue" in caught.value.hint
    assert [call[0] for call in run.calls] == ["sacct", "squeue"] * 3


def test_where_there_is_no_slurm_nobody_waits(watched: Build) -> None:
    built = watched()
    missing = failed("no such program", 127)
    with pytest.raises(SchedulerError):
        follow(built, Slurm(sacct=[missing], squeue=[missing]))


@pytest.mark.usefixtures("at_once")
def test_a_slurm_that_comes_back_is_taken_up_again(watched: Build) -> None:
    built = watched(repeats=1)
    down = failed("Connection refused")
    run = Slurm(sacct=[down, down, built.sacct(1, "COMPLETED")], squeue=[down, down, ""])
    view, lines, time = follow(built, run, tolerance=3)
    assert (lines, view.trouble) == (["1 UNKNOWN", "1 COMPLETED"], "")
    assert time.now == T + 60


@pytest.mark.parametrize("floor", [1.0, 10.0, 60.0], ids=["1s", "10s", "60s"])
@pytest.mark.parametrize(
    ("code", "word"), [(0, "COMPLETED"), (3, "FAILED")], ids=["success", "failure"]
)
def test_a_jobs_end_is_seen_within_two_seconds_and_accounting_is_not_waited_for(
    watched: Build, floor: float, code: int, word: str
) -> None:
    built, time = watched(repeats=1), Clock()
    built.started("1n1g", 1)
    run = Slurm(sacct=[built.sacct(1, "RUNNING")], squeue=[built.squeue(1, "RUNNING")])
    call_counts: list[int] = []

    def end() -> None:
        built.ended("1n1g", 1, code=code)
        call_counts.append(len(run.calls))

    def leave() -> None:
        run.squeue = [built.squeue(1, word, end=T + 301)]

    time.at(300, end)
    time.at(301, leave)
    view, lines, _ = follow(built, run, time=time, floor=floor)
    assert lines == ["1 RUNNING", f"1 {word}"]
    assert next(iter(view.states.values())).exit_code == code
    assert time.now <= T + 302.5
    questions = [call[0] for call in run.calls[call_counts[0] :]]
    assert len(questions) <= 4
    assert "sacct" not in questions or floor < 2, "by chance it may be time for it"


def test_an_end_that_slurm_knows_is_one_question_half_a_second_later(watched: Build) -> None:
    built, time = watched(repeats=1), Clock()
    built.started("1n1g", 1)
    run = Slurm(sacct=[built.sacct(1, "RUNNING")], squeue=[built.squeue(1, "RUNNING")])
    call_counts: list[int] = []

    def end() -> None:
        built.ended("1n1g", 1)
        run.squeue = [built.squeue(1, "COMPLETED", end=T + 300)]
        call_counts.append(len(run.calls))

    time.at(300, end)
    _, lines, _ = follow(built, run, time=time, floor=60.0)
    assert lines == ["1 RUNNING", "1 COMPLETED"]
    assert [call[0] for call in run.calls[call_counts[0] :]] == ["squeue"]
    assert time.now <= T + 300.5


@pytest.mark.slow
def test_ends_that_come_one_by_one_are_no_more_questions_than_time_allows(watched: Build) -> None:
    repeats, floor = 200, 10.0
    built, time = watched(repeats=repeats), Clock()
    over: list[str] = []
    run = Slurm(sacct=[""], squeue=[built.squeue(repeats, "RUNNING")])

    def end(number: int) -> None:
        built.ended("1n1g", number)
        over.append(built.squeue(number, "COMPLETED", end=T + number))
        alive = [built.squeue(remaining, "RUNNING") for remaining in range(number + 1, repeats + 1)]
        run.squeue = ["".join([*over, *alive])]

    for number in range(1, repeats + 1):
        built.started("1n1g", number)
        time.at(number, lambda number=number: end(number))  # type: ignore[misc]
    view, _, _ = follow(built, run, time=time, floor=floor)
    assert view.count() == {"succeeded": repeats}
    assert time.now <= T + repeats + 2
    questions = sum(call[0] == "squeue" for call in run.calls)
    assert questions <= repeats / floor + 6 + 3


def test_an_end_that_slurm_contradicts_waits_for_accounting(watched: Build) -> None:
    built, time = watched(repeats=1), Clock()
    built.started("1n1g", 1)
    run = Slurm(sacct=[built.sacct(1, "RUNNING")], squeue=[built.squeue(1, "RUNNING")])

    def end() -> None:
        built.ended("1n1g", 1)
        run.squeue = [built.squeue(1, "OUT_OF_MEMORY", end=T + 20)]

    time.at(20, end)
    time.at(30, lambda: setattr(run, "sacct", [built.sacct(1, "OUT_OF_MEMORY")]))
    view, lines, _ = follow(built, run, time=time)
    assert lines == ["1 RUNNING", "1 OUT_OF_MEMORY"]
    assert view.failed == 1
    assert time.now >= T + 30


def test_one_look_is_one_look(watched: Build) -> None:
    built = watched()
    run = Slurm(squeue=[built.squeue(1, "RUNNING")])
    view, lines, time = follow(built, run, once=True)
    assert lines == ["1 RUNNING", "2 UNKNOWN"]
    assert time.pauses == []
    assert view.time == T


@pytest.mark.parametrize("comes", [True, False], ids=["late", "never"])
def test_an_end_that_is_not_visible_yet_is_waited_for_but_not_for_ever(
    watched: Build, *, comes: bool
) -> None:
    built = watched(repeats=1)
    time = Clock()

    def pause(seconds: float) -> None:
        time.pause(seconds)
        if comes and time.now > T + 30:
            built.mark("1n1g", 1, {"event": "start"}, *ended(), time=T)

    run = Slurm(sacct=[built.sacct(1, "COMPLETED")])
    view, lines, _ = follow(built, run, clock=time, pause=pause)
    (state,) = view.states.values()
    assert lines == ["1 COMPLETED", "1 COMPLETED"]
    assert (state.kind, state.step_exit, state.detail) == ("succeeded", 0 if comes else None, "")
    assert time.now - T > 30
    assert [call[0] for call in run.calls] == ["sacct"]


def test_one_look_says_that_an_end_is_not_visible_yet(watched: Build) -> None:
    built = watched(repeats=1)
    view, _, _ = follow(built, Slurm(sacct=[built.sacct(1, "COMPLETED")]), once=True)
    (state,) = view.states.values()
    assert (state.word, state.kind) == ("COMPLETED", "running")
    assert "status not visible yet" in state.detail
    assert (view.failed, view.count()) == (1, {"running": 1})


@pytest.mark.usefixtures("at_once")
def test_a_looked_at_view_is_refreshed_between_polls(watched: Build) -> None:
    built = watched(repeats=1)
    run = Slurm(
        sacct=[built.sacct(1, "RUNNING"), built.sacct(1, "COMPLETED")],
        squeue=[built.squeue(1, "RUNNING")],
    )
    views: list[View] = []
    time = Clock()
    watch(
        (built,), Sinks(view=views.append, refresh=3.0),
        run=run, floor=10.0, clock=time, pause=time.pause, chance=lambda: 0.0,
    )  # fmt: skip
    assert [view.time - T for view in views] == [0, 3, 6, 9, 10]
    assert sum(call[0] == "sacct" for call in run.calls) == 2


def end_repeat(built: Built, repeat: int = 1, *, signal: str = "") -> None:
    """Write down that the newest attempt of a repeat is over."""
    end = {"event": "end", "exit": 143 if signal else 0}
    built.mark("1n1g", repeat, {"event": "start", "job": "9_1", "time": T})
    built.mark("1n1g", repeat, {"event": "signal", "signal": signal}, end, time=T + 1)


def test_campaigns_that_still_live_are_found_with_one_question(
    watched: Build, tmp_path: Path
) -> None:
    over = watched("20261101T000000Z-pytorch-over01", job_id="1", repeats=1)
    end_repeat(over)
    watched("20261102T000000Z-pytorch-gone01", job_id="2")
    alive = watched("20261103T000000Z-pytorch-live01", job_id="3")
    damaged = watched("20261104T000000Z-pytorch-torn01", job_id="4")
    (damaged.directory / "manifest.json").write_text("{")
    signalled = watched("20261105T000000Z-pytorch-term01", job_id="5", repeats=1)
    end_repeat(signalled, signal="TERM")
    runs = alive.directory.parent
    run = Slurm(squeue=[alive.squeue(2, "PENDING") + alive.squeue(1, "COMPLETED")])
    assert monitor.find_unfinished(runs, run=run)[0] == (alive,)
    assert [call[0] for call in run.calls] == ["squeue"]
    # Slurm may have put back what a signal ended, and can't be asked.
    silent = Slurm(squeue=[failed("Unable to contact slurm controller")])
    names = [
        tracked_campaign.campaign.id[-6:]
        for tracked_campaign in monitor.find_unfinished(runs, run=silent)[0]
    ]
    assert names == ["gone01", "live01", "term01"]
    # On a laptop with a copy of the campaigns nobody can be asked.
    absent = Slurm(squeue=[failed("squeue: not found", 127)])
    names = [
        tracked_campaign.campaign.id[-6:]
        for tracked_campaign in monitor.find_unfinished(runs, run=absent)[0]
    ]
    assert names == ["gone01", "live01"]
    assert monitor.find_unfinished(tmp_path, run=run)[0] == ()


@pytest.mark.parametrize(
    "state", ["PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "COMPLETING", "RUNNING"]
)
@pytest.mark.parametrize("signal", ["", "TERM"], ids=["ended-well", "ended-by-signal"])
def test_a_requeued_campaign_is_not_over_although_its_attempt_wrote_its_end(
    watched: Build, state: str, signal: str
) -> None:
    built = watched("20261101T000000Z-pytorch-again1", job_id="1", repeats=1)
    end_repeat(built, signal=signal)
    watched("20261102T000000Z-pytorch-newer1", job_id="2")
    run = Slurm(squeue=[built.squeue(1, state)])
    assert monitor.find_unfinished(built.directory.parent, run=run)[0] == (built,)


def test_a_local_campaign_of_another_machine_is_not_over_until_its_repeats_are(
    watched: Build,
) -> None:
    built = watched("20261101T000000Z-pytorch-local1", job_id="local-1-1", scheduler="local")
    plan = {"machine": "elsewhere 1", "lock": "", "minutes": 1, "grace": 1, "elements": []}
    (built.directory / local.PLAN_FILE).write_text(json.dumps(plan))
    runs, run = built.directory.parent, Slurm()
    assert monitor.find_unfinished(runs, run=run)[0] == (built,)
    end_repeat(built, 1)
    assert monitor.find_unfinished(runs, run=run)[0] == (built,)
    end_repeat(built, 2)
    assert monitor.find_unfinished(runs, run=run)[0] == ()
    assert run.calls == []


def test_campaigns_are_named_by_path_or_part_of_an_id_each_once(watched: Build) -> None:
    built = watched()
    runs = built.directory.parent
    names = ["aaaaaa", str(built.directory), "20261121T"]
    assert store.resolve_all(names, runs) == store.resolve_all((), runs) == (built.directory,)
    with pytest.raises(UsageError):
        store.resolve_all(["bbbbbb"], runs)
    with pytest.raises(UsageError, match="no campaign yet"):
        store.resolve_all((), runs / "elsewhere")


def test_how_far_a_repeat_is_comes_from_the_end_of_its_log(watched: Build) -> None:
    built = watched()
    repeat = built.repeats[0]
    state = RepeatState("RUNNING", Kind.RUNNING, "sacct", attempt=1)
    built.reach(1, 60, attempt=1)
    log_grammar = monitor.read_grammar(built.directory)
    assert log_grammar
    detail = monitor.estimate_progress(
        repeat, read_progress(monitor.log_path(repeat, state), log_grammar), now=T
    )
    assert detail.iteration == 60
    assert detail.throughput is not None
    assert detail.throughput == pytest.approx(8, rel=0.05)
    assert detail.ends == pytest.approx(T + 60 * 4 / detail.throughput)
    nothing = monitor.estimate_progress(
        repeat, read_progress(built.directory / "absent", log_grammar), now=T
    )
    assert (nothing.iteration, nothing.throughput, nothing.ends) == (None, None, None)


def test_a_campaign_without_a_usable_recipe_is_watched_all_the_same(watched: Build) -> None:
    built = watched()
    for text in ("[log]\nnonsense = 1\n", "["):
        (built.directory / "recipe.toml").write_text(text)
        assert monitor.read_grammar(built.directory) is None
    (built.directory / "recipe.toml").unlink()
    assert monitor.read_grammar(built.directory) is None


def test_repeats_are_counted_by_the_kind_of_their_state(watched: Build) -> None:
    built = watched(repeats=4)
    words = ["COMPLETED", "FAILED", "RUNNING", "PENDING"]
    states = {
        repeat.key: RepeatState(word, parse_state(word).kind, "sacct")
        for repeat, word in zip(built.repeats, words, strict=True)
    }
    view = View(built.repeats, states, float(T))
    assert format_counts(view.count()) == "1 completed, 1 failed, 1 running, 1 waiting"


def test_durations_are_shown_in_hours_minutes_seconds() -> None:
    texts = [format_duration(value) for value in (0, 61.9, 360000, None)]
    assert texts == ["0:00:00", "0:01:01", "100:00:00", ""]


def test_only_jobs_of_the_campaign_are_cancelled(watched: Build) -> None:
    built = watched(shapes=(1, 2, 4))
    lines = (
        built.squeue(1, "RUNNING")
        + built.squeue(2, "PENDING", array=1, user="somebody")
        + built.squeue(2, "PENDING", array=1, name="somebody's job of that number")
        + built.squeue(1, "COMPLETED", array=2)
        + built.squeue(1, "RUNNING", name="another job of mine", job="99")
    )
    run = Slurm(squeue=[lines])
    target = submit.find_living(built, run=run)
    assert target.jobs == ("12",)
    assert [repeat.number for repeat in target.repeats] == [1]
    submit.cancel(built, target, run=run)
    assert run.calls[-1] == ("scancel", "12")
    nothing = Slurm()
    submit.cancel(built, submit.find_living(built, run=nothing), run=nothing)
    assert [call[0] for call in nothing.calls] == ["squeue"]


def test_a_reused_id_is_not_cancelled_and_a_second_job_of_the_name_is(watched: Build) -> None:
    built = watched()
    lines = (
        built.squeue(1, "RUNNING", submit=int(built.since) - 1)
        + built.squeue(1, "RUNNING", name="the id was used again")
        + built.squeue(2, "PENDING", job="99_2")
    )
    target = submit.find_living(built, run=Slurm(squeue=[lines]))
    assert target.jobs == ("99",)
    assert [repeat.number for repeat in target.repeats] == [2]


@pytest.mark.parametrize(
    ("answer", "refusal"),
    [
        ("scancel: error: Kill job error on job id 12: Invalid job id specified", ""),
        ("scancel: error: Access denied", "Access denied"),
        ("", "Unable to contact"),
    ],
    ids=["ended already", "refused", "squeue is silent"],
)
def test_a_cancel_that_fails_is_reported(watched: Build, answer: str, refusal: str) -> None:
    built = watched()
    silent = failed("Unable to contact slurm controller")
    run = Slurm(squeue=[built.squeue(1, "RUNNING") if answer else silent], scancel=[failed(answer)])
    with pytest.raises(SchedulerError, match=refusal) if refusal else nullcontext():
        submit.cancel(built, submit.find_living(built, run=run), run=run)


def test_a_local_campaign_whose_queue_is_gone_has_nothing_to_cancel(watched: Build) -> None:
    built = watched(job_id=f"local-{os.getpid()}-1", scheduler="local")
    run = Slurm()
    assert submit.find_living(built, run=run).jobs == ()
    assert run.calls == []


def test_what_is_submitted_meanwhile_is_found_once_it_was_accepted(watched, tmp_path) -> None:
    first = watched(name="20261121T100000Z-pytorch-aaaaaa")
    runs = first.directory.parent
    assert monitor.find_submitted(runs, {first.directory}) == ()
    new = watched(name="20261121T100001Z-pytorch-bbbbbb", job_id="")
    assert monitor.find_submitted(runs, {first.directory}) == ()
    (array,) = new.campaign.arrays
    new.change(arrays=(replace(array, state="submitted", job_id="44"),))
    assert [
        tracked_campaign.directory
        for tracked_campaign in monitor.find_submitted(runs, {first.directory})
    ] == [new.directory]
