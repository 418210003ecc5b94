"""Watching: what is reported when, how rarely Slurm is asked, and which campaigns still live."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from hpcbert.campaign import store
from hpcbert.cli.progress import format_duration
from hpcbert.commands import monitor
from hpcbert.errors import SchedulerError
from hpcbert.logs.scan import read_progress
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.local import worker
from hpcbert.slurm import state_sources
from hpcbert.slurm.states import Kind, RepeatState
from tests.kit.campaigns import ended
from tests.kit.cases import cases
from tests.kit.slurm import Slurm, T, failed
from tests.kit.waiting import Clock

DOWN = failed("Unable to contact slurm controller")


def follow(built, run, *, time=None, sinks=None, floor=10.0):
    """Watch a campaign to its end; return the last view, a line for each change, and the clock."""
    time, lines = time or Clock(), list[str]()

    def note(changes):
        lines.extend(f"{change.repeat.number} {change.state.word}" for change in changes)

    context = SchedulerContext(run, now=time, pause=time.pause, chance=lambda: 0.0)
    return monitor.watch((built,), sinks or monitor.Sinks(note), context, floor=floor), lines, time


def test_a_view_is_refreshed_between_polls_and_the_end_ends_it(watched, monkeypatch):
    # What a job wrote is visible when it has ended: here no job writes anything.
    monkeypatch.setattr(state_sources, "VISIBILITY_DELAY", 0.0)
    built, times = watched(repeats=1), []
    sacct = [built.sacct(1, "RUNNING"), built.sacct(1, "CANCELLED by 1000")]
    run = Slurm(sacct=sacct, squeue=[built.squeue(1, "RUNNING")])
    sinks = monitor.Sinks(view=lambda view: times.append(view.time - T), refresh=3.0)
    view, _, _ = follow(built, run, sinks=sinks)
    assert times == [0, 3, 6, 9, 10]
    assert run.count("sacct") == 2
    assert (view.count(), view.failed) == ({"failed": 1}, 1)


def test_a_silent_slurm_is_given_up_after_some_polls_unless_it_comes_back(watched, monkeypatch):
    monkeypatch.setattr(state_sources, "VISIBILITY_DELAY", 0.0)
    built = watched(repeats=1)
    run = Slurm(sacct=[DOWN], squeue=[DOWN])
    monkeypatch.setattr(monitor, "_TOLERANCE", 3)
    with pytest.raises(SchedulerError, match="Unable to contact") as refused:
        follow(built, run)
    assert refused.value.exit_code == 3
    assert "The jobs continue" in refused.value.hint
    assert [call[0] for call in run.calls] == ["sacct", "squeue"] * 3
    run = Slurm(sacct=[DOWN, DOWN, built.sacct(1, "COMPLETED")], squeue=[DOWN, DOWN, ""])
    view, lines, time = follow(built, run)
    assert (lines, view.trouble) == (["1 UNKNOWN", "1 COMPLETED"], "")
    assert time.now == T + 60
    missing = failed("no such program", 127)
    run = Slurm(sacct=[missing], squeue=[missing])
    with pytest.raises(SchedulerError):  # where there is no Slurm, nobody waits for it
        follow(built, run)
    assert [call[0] for call in run.calls] == ["sacct", "squeue"]


@cases
def test_a_jobs_end_is_seen_within_two_seconds_unless_slurm_contradicts_it(
    watched, *, floor, code, word, shown, reported, questions, accounting
):
    """squeue has the end after `shown` seconds, and accounting after 310, which may be asked."""
    built, time = watched(repeats=1), Clock()
    built.started("1n1g", 1)
    run = Slurm(sacct=[built.sacct(1, "RUNNING")], squeue=[built.squeue(1, "RUNNING")])

    def end():
        built.ended("1n1g", 1, code=code)
        run.calls.clear()

    time.at(300, end)
    time.at(shown, lambda: setattr(run, "squeue", [built.squeue(1, word, end=T + shown)]))
    time.at(310, lambda: setattr(run, "sacct", [built.sacct(1, word)]))
    view, lines, _ = follow(built, run, time=time, floor=floor)
    assert (lines, view.failed) == (["1 RUNNING", f"1 {word}"], int(word != "COMPLETED"))
    assert next(iter(view.states.values())).exit_code == code
    assert reported[0] <= time.now - T <= reported[1]
    assert len(run.calls) <= questions
    assert accounting or not run.count("sacct")


def test_ends_that_come_one_by_one_are_no_more_questions_than_time_allows(watched):
    repeats, floor = 60, 10.0
    built, time = watched(repeats=repeats), Clock()
    over: list[str] = []
    run = Slurm(sacct=[""], squeue=[built.squeue(repeats, "RUNNING")])

    def end(number):
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
    assert run.count("squeue") <= repeats / floor + 6 + 3


def test_an_end_that_is_not_visible_yet_is_waited_for_but_not_for_ever(watched):
    for exit_code, name in ((0, "late"), (None, "ever")):
        built, time = watched(f"20261122T100000Z-pytorch-{name}", repeats=1), Clock()
        if name == "late":
            events = {"event": "start"}, *ended()
            time.at(31, partial(built.mark, "1n1g", 1, *events, time=T))
        run = Slurm(sacct=[built.sacct(1, "COMPLETED")])
        view, lines, _ = follow(built, run, time=time)
        (state,) = view.states.values()
        assert lines == ["1 COMPLETED", "1 COMPLETED"]
        assert (state.kind, state.step_exit, state.detail) == ("succeeded", exit_code, "")
        assert time.now - T > 30
        assert [call[0] for call in run.calls] == ["sacct"]


def test_campaigns_that_still_live_are_found_with_one_question(watched):
    def name_unfinished(run):
        campaigns, _ = monitor.find_unfinished(alive.directory.parent, run=run)
        return [tracked.campaign.id[-4:] for tracked in campaigns]

    def end_repeat(built, repeat=1, *, signal=""):
        """Write down that the newest attempt of a repeat is over."""
        end = {"event": "end", "exit": 143 if signal else 0}
        built.mark("1n1g", repeat, {"event": "start", "job": "9_1", "time": T})
        built.mark("1n1g", repeat, {"event": "signal", "signal": signal}, end, time=T + 1)

    end_repeat(watched("20261101T000000Z-pytorch-over", job_id="1", repeats=1))
    gone = watched("20261102T000000Z-pytorch-gone", job_id="2", repeats=1)
    alive = watched("20261103T000000Z-pytorch-live", job_id="3")
    damaged = watched("20261104T000000Z-pytorch-torn", job_id="4")
    (damaged.directory / "manifest.json").write_text("{")
    signalled = watched("20261105T000000Z-pytorch-term", job_id="5", repeats=1)
    end_repeat(signalled, signal="TERM")
    run = Slurm(squeue=[alive.squeue(2, "PENDING") + alive.squeue(1, "COMPLETED")])
    assert name_unfinished(run) == ["live"]
    assert [call[0] for call in run.calls] == ["squeue"]
    # Slurm may have put back what a signal ended, and can't be asked.
    assert name_unfinished(Slurm(squeue=[DOWN])) == ["gone", "live", "term"]
    # On a laptop with a copy of the campaigns nobody can be asked.
    assert name_unfinished(Slurm(squeue=[failed("not found", 127)])) == ["gone", "live"]
    # A requeued campaign is not over although its attempt wrote its end.
    end_repeat(gone)
    for word in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "COMPLETING", "RUNNING"):
        for built in (gone, signalled):
            names = name_unfinished(Slurm(squeue=[built.squeue(1, word)]))
            assert names == [built.campaign.id[-4:]]
    # A local campaign of another machine is not over until its repeats are.
    built = watched("20261106T000000Z-pytorch-here", job_id="local-1-1", scheduler="local")
    plan = '{"machine": "elsewhere 1", "lock": "", "minutes": 1, "grace": 1, "elements": []}'
    (built.directory / worker.PLAN_FILE).write_text(plan)
    for repeat in (1, 2):
        assert "here" in name_unfinished(Slurm(squeue=[""]))
        end_repeat(built, repeat)
    assert name_unfinished(Slurm(squeue=[""])) == []


def test_campaigns_are_named_by_path_or_part_of_an_id_and_found_once_they_are_submitted(
    watched, monkeypatch
):
    built = watched()
    runs, name = built.directory.parent, built.directory.name
    monkeypatch.chdir(built.directory)
    for names in ([".", str(built.directory), "aaaaaa", "20261121T"], []):
        assert store.resolve_all(names, runs) == (built.directory,)
    monkeypatch.chdir(runs.parent)
    names = [name, f"{runs.name}/{name}"]
    assert store.resolve_all(names, Path(runs.name)) == (built.directory,)
    new = watched(name="20261121T100001Z-pytorch-bbbbbb", job_id="")
    assert monitor.find_submitted(runs, {built.directory}) == ()
    (array,) = new.campaign.arrays
    submitted = new.change(arrays=(replace(array, state="submitted", job_id="44"),))
    (tracked,) = monitor.find_submitted(runs, {built.directory})
    assert (tracked.directory, tracked.campaign) == (submitted.directory, submitted.campaign)


def test_how_far_a_repeat_is_comes_from_the_end_of_its_log_and_is_shown_in_words(watched):
    built = watched()
    repeat = built.repeats[0]
    state = RepeatState("RUNNING", Kind.RUNNING, "sacct", attempt=1)
    built.reach(1, 60, attempt=1)
    grammar = monitor.read_grammar(built.directory)
    assert grammar
    progress = read_progress(monitor.log_path(repeat, state), grammar)
    detail = monitor.estimate_progress(repeat, progress, now=T)
    assert detail.iteration == 60
    assert detail.throughput == pytest.approx(8, rel=0.05)
    assert (detail.ends or 0) - T == pytest.approx(60 * 4 / 8, rel=0.05)
    nothing = read_progress(built.directory / "absent", grammar)
    detail = monitor.estimate_progress(repeat, nothing, now=T)
    assert (detail.iteration, detail.throughput, detail.ends) == (None, None, None)
    # Without a usable recipe, it is watched without progress.
    for text in ("[log]\nnonsense = 1\n", "["):
        (built.directory / "recipe.toml").write_text(text)
        assert monitor.read_grammar(built.directory) is None
    (built.directory / "recipe.toml").unlink()
    assert monitor.read_grammar(built.directory) is None
    texts = [format_duration(value) for value in (0, 61.9, 360000, None)]
    assert texts == ["0:00:00", "0:01:01", "100:00:00", ""]
