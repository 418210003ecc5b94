from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import store
from hpcbert.campaign.repeats import Watched
from hpcbert.cli.live import console, counts, draw, duration
from hpcbert.errors import SchedulerError, UsageError
from hpcbert.flows import cancel, monitor
from hpcbert.flows.monitor import Change, Detail, Sinks, View, watch
from hpcbert.scheduler.local import queue as local
from hpcbert.slurm import ladder
from hpcbert.slurm.states import Kind, RepeatState, parse
from hpcbert.system.runner import Outcome

Make = Callable[..., Watched]
Line = Callable[..., str]
T = 1_795_255_599


class Script:
    """Runs nothing; gives scripted answers, a list of them for each program."""

    def __init__(self, **answers: Sequence[str | Outcome]) -> None:
        self.answers = answers
        self.calls: list[tuple[str, ...]] = []

    def __call__(self, argv: Sequence[str], **_: Any) -> Outcome:
        number = sum(call[0] == argv[0] for call in self.calls)
        self.calls.append(tuple(argv))
        answers = self.answers.get(argv[0], [""])
        answer = answers[min(number, len(answers) - 1)]
        return answer if isinstance(answer, Outcome) else Outcome(tuple(argv), 0, answer)


def failed(complaint: str, code: int = 1) -> Outcome:
    return Outcome(("slurm",), code, "", complaint)


class Time:
    """A clock that waiting moves on."""

    def __init__(self) -> None:
        self.now = float(T)
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a job wrote is visible when it has ended: here no job writes anything."""
    monkeypatch.setattr(ladder, "VISIBLE", 0.0)


def follow(one: Watched, run: Script, **options: Any) -> tuple[View, list[str], Time]:
    time, found = Time(), list[str]()

    def changes(several: Sequence[Change]) -> None:
        found.extend(f"{change.repeat.number} {change.state.word}" for change in several)

    values = {"floor": 10.0, "clock": time, "pause": time.pause, "chance": lambda: 0.0, **options}
    view = watch((one,), Sinks(changes), run=run, **values)
    return view, found, time


@pytest.mark.usefixtures("at_once")
def test_each_change_is_told_once_and_the_end_ends_it(
    watched: Make, accounting: Line, queue: Line
) -> None:
    one = watched()
    run = Script(
        sacct=[
            "",
            accounting(one, 1, "RUNNING"),
            accounting(one, 1, "COMPLETED") + accounting(one, 2, "RUNNING"),
            accounting(one, 1, "COMPLETED") + accounting(one, 2, "CANCELLED by 1000"),
        ],
        squeue=[queue(one, 1, "PENDING", job="12_[1-2%1]"), queue(one, 2, "PENDING")],
    )
    view, found, time = follow(one, run)
    assert found == [
        *("1 PENDING", "2 PENDING", "1 RUNNING", "1 COMPLETED", "2 RUNNING", "2 CANCELLED"),
    ]
    assert view.count() == {"well": 1, "badly": 1}
    assert view.failed == 1
    assert time.pauses == [10, 10, 10]


def test_a_silent_slurm_is_given_up_after_some_polls_and_the_jobs_are_left_alone(
    watched: Make,
) -> None:
    one = watched()
    run = Script(
        sacct=[failed("Connection refused")], squeue=[failed("Unable to contact slurm controller")]
    )
    with pytest.raises(SchedulerError, match="Unable to contact") as caught:
        follow(one, run, tolerance=3)
    assert caught.value.exit_code == 3
    assert "left alone" in caught.value.hint
    assert [call[0] for call in run.calls] == ["sacct", "squeue"] * 3


def test_where_there_is_no_slurm_nobody_waits(watched: Make) -> None:
    one = watched()
    missing = failed("no such program", 127)
    with pytest.raises(SchedulerError):
        follow(one, Script(sacct=[missing], squeue=[missing]))


@pytest.mark.usefixtures("at_once")
def test_a_slurm_that_comes_back_is_taken_up_again(watched: Make, accounting: Line) -> None:
    one = watched(repeats=1)
    down = failed("Connection refused")
    run = Script(sacct=[down, down, accounting(one, 1, "COMPLETED")], squeue=[down, down, ""])
    view, found, time = follow(one, run, tolerance=3)
    assert found == ["1 UNKNOWN", "1 COMPLETED"]
    assert view.trouble == ""
    assert time.pauses == [20, 40]


def test_one_look_is_one_look(watched: Make, queue: Line) -> None:
    one = watched()
    run = Script(squeue=[queue(one, 1, "RUNNING")])
    view, found, time = follow(one, run, once=True)
    assert found == ["1 RUNNING", "2 UNKNOWN"]
    assert time.pauses == []
    assert view.time == T


@pytest.mark.parametrize("comes", [True, False], ids=["late", "never"])
def test_an_end_that_is_not_visible_yet_is_waited_for_but_not_for_ever(
    watched: Make, accounting: Line, *, comes: bool
) -> None:
    one = watched(repeats=1)
    array = one.campaign.arrays[0]
    time = Time()

    def pause(seconds: float) -> None:
        time.pause(seconds)
        if comes and time.now > T + 30:
            events: list[dict[str, Any]] = [
                {"event": "start"},
                *({"event": e, "exit": 0} for e in ("step-end", "end")),
            ]
            text = "".join(
                json.dumps({**event, "time": T, "attempt": 0}) + "\n" for event in events
            )
            store.status_path(one.directory, array, 1).write_text(text)

    run = Script(sacct=[accounting(one, 1, "COMPLETED")])
    view, found, _ = follow(one, run, clock=time, pause=pause)
    (state,) = view.states.values()
    assert found == ["1 COMPLETED", "1 COMPLETED"]
    assert (state.kind, state.step_exit, state.detail) == ("well", 0 if comes else None, "")
    assert time.now - T > 30
    assert [call[0] for call in run.calls] == ["sacct"]


def test_one_look_says_that_an_end_is_not_visible_yet(watched: Make, accounting: Line) -> None:
    one = watched(repeats=1)
    view, _, _ = follow(one, Script(sacct=[accounting(one, 1, "COMPLETED")]), once=True)
    (state,) = view.states.values()
    assert (state.word, state.kind) == ("COMPLETED", "running")
    assert "status not visible yet" in state.detail
    assert (view.failed, view.count()) == (1, {"running": 1})


@pytest.mark.usefixtures("at_once")
def test_a_looked_at_view_is_refreshed_between_polls(
    watched: Make, accounting: Line, queue: Line
) -> None:
    one = watched(repeats=1)
    run = Script(
        sacct=[accounting(one, 1, "RUNNING"), accounting(one, 1, "COMPLETED")],
        squeue=[queue(one, 1, "RUNNING")],
    )
    views: list[View] = []
    time = Time()
    watch(
        (one,), Sinks(view=views.append, refresh=3.0),
        run=run, floor=10.0, clock=time, pause=time.pause, chance=lambda: 0.0,
    )  # fmt: skip
    assert [view.time - T for view in views] == [0, 3, 6, 9, 10]
    assert sum(call[0] == "sacct" for call in run.calls) == 2


def ended(one: Watched, repeat: int = 1, *, signal: str = "") -> None:
    """Write down that the newest attempt of a repeat is over."""
    events = [
        {"event": "start", "time": T, "attempt": 0, "job": "9_1"},
        {"event": "signal", "time": T + 1, "attempt": 0, "signal": signal},
        {"event": "end", "time": T + 1, "attempt": 0, "exit": 143 if signal else 0},
    ]
    path = one.directory / one.campaign.arrays[0].status(repeat)
    path.write_text("".join(json.dumps(event) + "\n" for event in events))


def test_campaigns_that_still_live_are_found_with_one_question(
    watched: Make, queue: Line, tmp_path: Path
) -> None:
    over = watched("20261101T000000Z-pytorch-over01", job_id="1", repeats=1)
    ended(over)
    watched("20261102T000000Z-pytorch-gone01", job_id="2")
    alive = watched("20261103T000000Z-pytorch-live01", job_id="3")
    damaged = watched("20261104T000000Z-pytorch-torn01", job_id="4")
    (damaged.directory / "manifest.json").write_text("{")
    signalled = watched("20261105T000000Z-pytorch-term01", job_id="5", repeats=1)
    ended(signalled, signal="TERM")
    runs = alive.directory.parent
    run = Script(squeue=[queue(alive, 2, "PENDING") + queue(alive, 1, "COMPLETED")])
    assert monitor.unfinished(runs, run=run) == (alive,)
    assert [call[0] for call in run.calls] == ["squeue"]
    # Slurm may have put back what a signal ended, and can't be asked.
    silent = Script(squeue=[failed("Unable to contact slurm controller")])
    names = [one.campaign.id[-6:] for one in monitor.unfinished(runs, run=silent)]
    assert names == ["gone01", "live01", "term01"]
    # On a laptop with a copy of the campaigns nobody can be asked.
    absent = Script(squeue=[failed("squeue: not found", 127)])
    names = [one.campaign.id[-6:] for one in monitor.unfinished(runs, run=absent)]
    assert names == ["gone01", "live01"]
    assert monitor.unfinished(tmp_path, run=run) == ()


@pytest.mark.parametrize(
    "state", ["PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "COMPLETING", "RUNNING"]
)
@pytest.mark.parametrize("signal", ["", "TERM"], ids=["ended-well", "ended-by-signal"])
def test_a_requeued_campaign_is_not_over_although_its_attempt_wrote_its_end(
    watched: Make, queue: Line, state: str, signal: str
) -> None:
    one = watched("20261101T000000Z-pytorch-again1", job_id="1", repeats=1)
    ended(one, signal=signal)
    watched("20261102T000000Z-pytorch-newer1", job_id="2")
    run = Script(squeue=[queue(one, 1, state)])
    assert monitor.unfinished(one.directory.parent, run=run) == (one,)


def test_a_local_campaign_of_another_machine_is_not_over_until_its_repeats_are(
    watched: Make,
) -> None:
    one = watched("20261101T000000Z-pytorch-local1", job_id="local-1-1", scheduler="local")
    plan = {"machine": "elsewhere 1", "lock": "", "minutes": 1, "grace": 1, "elements": []}
    (one.directory / local.PLAN).write_text(json.dumps(plan))
    runs, run = one.directory.parent, Script()
    assert monitor.unfinished(runs, run=run) == (one,)
    ended(one, 1)
    assert monitor.unfinished(runs, run=run) == (one,)
    ended(one, 2)
    assert monitor.unfinished(runs, run=run) == ()
    assert run.calls == []


def test_campaigns_are_named_by_path_or_part_of_an_id_each_once(watched: Make) -> None:
    one = watched()
    runs = one.directory.parent
    found = monitor.named(["aaaaaa", str(one.directory), "20261121T"], runs)
    assert [item.campaign.id for item in found] == [one.campaign.id]
    with pytest.raises(UsageError):
        monitor.named(["bbbbbb"], runs)
    assert monitor.newest(runs).campaign.id == one.campaign.id
    with pytest.raises(UsageError, match="no campaign yet"):
        monitor.newest(runs / "elsewhere")


def test_how_far_a_repeat_is_comes_from_the_end_of_its_log(
    watched: Make, log: Callable[..., Path]
) -> None:
    one = watched()
    repeat = one.repeats[0]
    state = RepeatState("RUNNING", Kind.RUNNING, "sacct", attempt=1)
    log(one, 1, 60, attempt=1)
    read = monitor.progress_reader(one.directory)
    detail = monitor.detail(repeat, read(monitor.log_path(repeat, state)), now=T)
    assert detail.iteration == 60
    assert detail.throughput is not None
    assert detail.throughput == pytest.approx(64, rel=0.05)
    assert detail.ends == pytest.approx(T + 60 * 32 / detail.throughput)
    nothing = monitor.detail(repeat, read(one.directory / "absent"), now=T)
    assert (nothing.iteration, nothing.throughput, nothing.ends) == (None, None, None)


def test_a_campaign_without_a_usable_recipe_is_watched_all_the_same(watched: Make) -> None:
    one = watched()
    for text in ("[log]\nnonsense = 1\n", "["):
        (one.directory / "recipe.toml").write_text(text)
        assert monitor.progress_reader(one.directory)(one.directory / "x") is None
    (one.directory / "recipe.toml").unlink()
    assert monitor.progress_reader(one.directory)(one.directory / "x") is None


def drawn(view: View, *, unicode: bool = True) -> str:
    out = io.StringIO()
    screen = console(out, colour=False)
    screen.width = 120
    detail = Detail(57, 120, 123.456, T + 60.0)
    screen.print(draw(view, lambda *_: detail, unicode=unicode))
    return out.getvalue()


def test_the_table_shows_marks_progress_and_what_went_wrong(watched: Make) -> None:
    one = watched(repeats=4)
    array = one.campaign.arrays[0]
    kinds = ["COMPLETED", "FAILED", "RUNNING", "PENDING"]
    states = {
        (array.name, number): replace(
            RepeatState(word, parse(word).kind, "sacct"),
            nodes=("n1", "n2"),
            detail={"FAILED": "failed, exit status 3", "PENDING": "jobs come first\x1b[2J"}.get(
                word, ""
            ),
            start=T - 61.0,
            limit=3600.0,
        )
        for number, word in enumerate(kinds, start=1)
    }
    view = View(one.repeats, states, float(T))
    text = drawn(view)
    assert f"campaign {one.campaign.id}" in text
    assert "✓✗▶·" in text
    assert "repeat 2" in text
    assert "failed, exit status 3" in text
    assert "n[1-2]  57/120  123.46 samples/s  0:01:01 of 1:00:00  ends" in text
    assert "waiting: jobs come first" in text
    assert "\x1b" not in text
    assert "+x>." in drawn(view, unicode=False)
    assert "Slurm does not answer: down" in drawn(replace(view, trouble="down"))
    assert counts(view) == "1 completed, 1 failed, 1 running, 1 waiting"


def test_durations_are_shown_in_hours_minutes_seconds() -> None:
    assert [duration(value) for value in (0, 61.9, 360000)] == ["0:00:00", "0:01:01", "100:00:00"]
    assert duration(None) == ""


def test_only_jobs_of_the_campaign_are_cancelled(watched: Make, queue: Line) -> None:
    one = watched(shapes=(1, 2, 4))
    lines = (
        queue(one, 1, "RUNNING")
        + queue(one, 2, "PENDING", array=1, user="somebody")
        + queue(one, 2, "PENDING", array=1, name="somebody's job of that number")
        + queue(one, 1, "COMPLETED", array=2)
        + queue(one, 1, "RUNNING", name="another job of mine", job="99")
    )
    run = Script(squeue=[lines])
    target = cancel.find(one, run=run)
    assert target.jobs == ("12",)
    assert [repeat.number for repeat in target.repeats] == [1]
    cancel.cancel(one, target, run=run)
    assert run.calls[-1] == ("scancel", "12")
    nothing = Script()
    cancel.cancel(one, cancel.find(one, run=nothing), run=nothing)
    assert [call[0] for call in nothing.calls] == ["squeue"]


def test_nothing_is_cancelled_while_squeue_is_silent(watched: Make) -> None:
    one = watched()
    run = Script(squeue=[failed("Unable to contact slurm controller")])
    with pytest.raises(SchedulerError, match="Unable to contact"):
        cancel.find(one, run=run)


def test_a_reused_id_is_not_cancelled_and_a_second_job_of_the_name_is(
    watched: Make, queue: Line
) -> None:
    one = watched()
    lines = (
        queue(one, 1, "RUNNING", submit=int(one.since) - 1)
        + queue(one, 1, "RUNNING", name="the id was used again")
        + queue(one, 2, "PENDING", job="99_2")
    )
    target = cancel.find(one, run=Script(squeue=[lines]))
    assert target.jobs == ("99",)
    assert [repeat.number for repeat in target.repeats] == [2]


def test_a_job_that_ended_before_scancel_reached_it_is_no_error(watched: Make, queue: Line) -> None:
    one = watched()
    gone = failed("scancel: error: Kill job error on job id 12: Invalid job id specified")
    run = Script(squeue=[queue(one, 1, "RUNNING")], scancel=[gone])
    cancel.cancel(one, cancel.find(one, run=run), run=run)


def test_a_scancel_that_fails_is_reported(watched: Make, queue: Line) -> None:
    one = watched()
    run = Script(
        squeue=[queue(one, 1, "RUNNING")], scancel=[failed("scancel: error: Access denied")]
    )
    with pytest.raises(SchedulerError, match="Access denied"):
        cancel.cancel(one, cancel.find(one, run=run), run=run)


def test_a_local_campaign_whose_queue_is_gone_has_nothing_to_cancel(watched: Make) -> None:
    one = watched(job_id=f"local-{os.getpid()}-1", scheduler="local")
    run = Script()
    assert cancel.find(one, run=run).jobs == ()
    assert run.calls == []
