"""The full-screen view: sizes, keys, what it draws, and what it leaves alone; in tmux, a real campaign."""

import asyncio
import re
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import wraps
from unittest.mock import Mock

import pytest

from hpcbert.campaign.suspects import RetryPolicy
from hpcbert.cli.view.app import Monitor
from hpcbert.cli.view.rows import Level, Scene, list_rows, make_filter
from hpcbert.cli.view.session import Offer, Session
from hpcbert.commands.monitor import RepeatProgress, View, read_rates
from hpcbert.errors import SchedulerError
from hpcbert.slurm.states import Kind, RepeatState
from tests.kit.cases import read_constant
from tests.kit.cli import Tmux
from tests.kit.logs import write_file
from tests.kit.waiting import until

pytestmark = pytest.mark.slow

NOW = 1_000_000.0
DONE = RepeatState("COMPLETED", Kind.SUCCEEDED, "sacct", elapsed=100.0, step_exit=0)
FAILED = RepeatState("FAILED", Kind.FAILED, "sacct", detail="exit status 1", nodes=("n3",))
RUNS = RepeatState("RUNNING", Kind.RUNNING, "sacct", start=NOW - 50, nodes=("n1", "n2"))
WAITS = RepeatState("PENDING", Kind.WAITING, "sacct", detail="others have a higher priority")


def make_view(campaigns, states):
    repeats = [repeat for built in campaigns for repeat in built.repeats]
    pairs = zip(repeats, states, strict=True)
    return View(tuple(repeats), {repeat.key: state for repeat, state in pairs}, NOW)


class Scripted(Session):
    """Shows one view; what it offers to cancel is cancelled, and Slurm does not answer a retry."""

    def __init__(self, campaigns, states):
        super().__init__(campaigns, RetryPolicy(0), floor=1.0, interval=1.0)
        self.now = make_view(campaigns, states)
        self.cancel = Mock(return_value="Cancelled 3.")

    def begin(self, show, notify, fail):
        self.show = show
        self.change()

    def change(self, *states):
        """Show the view, with other states of the first repeats."""
        keys = list(self.now.states)
        new = {**self.now.states, **dict(zip(keys, states, strict=False))}
        self.now = replace(self.now, states=new)
        runs = [key for key in keys if new[key].kind is Kind.RUNNING]
        progress = dict.fromkeys(runs, RepeatProgress(60, 120, 512.5, NOW + 50))
        failures = {key: "ModuleNotFoundError: torch" for key in keys if new[key] == FAILED}
        rates = {built.campaign.id: read_rates(built, new) for built in self.watched}
        rows = list_rows(self.now.repeats)
        self.show(Scene(self.now, rows, progress, failures, rates))

    def show_details_of(self, rows):
        self.visible = rows

    def offer_cancel(self, tracked_campaign):
        return Offer("Cancel 3 repeats?", self.cancel)

    def offer_retry(self, tracked_campaign):
        raise SchedulerError("Slurm does not answer.", hint="Ask it again.")


@pytest.fixture
def session(build):
    return Scripted([build("1n1g", "2n8g")], [DONE, RUNS, FAILED, FAILED, WAITS, *[WAITS] * 5])


def played(test):
    """Let a test be a coroutine."""
    return wraps(test)(lambda **values: asyncio.run(test(**values)))


@asynccontextmanager
async def opened(session, size=(100, 30), *, unicode=True):
    app = Monitor(session, unicode=unicode, colour=True)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        await pilot.pause()
        yield app, pilot


def lines(app):
    parts = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip).rstrip() for strip in parts]


@pytest.mark.parametrize("size", [(60, 16), (80, 24), (160, 50), (20, 6)])
@played
async def test_every_size_shows_rows_and_keys_and_overflows_nowhere(session, size):
    async with opened(session, size) as (app, _):
        (width, height), screen_lines = size, lines(app)
        assert len(screen_lines) == height
        assert max(map(len, screen_lines)) <= width
        text = "\n".join(screen_lines)
        if width >= 60:
            assert "q quit" in screen_lines[-1]
            assert "60/120" in text
            assert "512.50" in text
            assert "2 repeats: ModuleNotFoundError" in text or width < 100
            assert ("0:00:50" in text) == (width >= 76)
            assert ("n[1-2]" in text) == (width >= 140)
    async with opened(session, size, unicode=False) as (app, _):
        assert "\n".join(lines(app)).isascii()


@played
async def test_keys_and_clicks_move_fold_and_filter_and_escape_closes_the_innermost(session):
    async with opened(session) as (app, pilot):
        assert "1/13" in lines(app)[0]
        await pilot.press("down", "down", "j")
        assert "repeat 2  job 70_2  on n[1-2]" in lines(app)[-4]
        await pilot.press("left")
        assert "2/13" in lines(app)[0], "from a repeat to its point"
        await pilot.press("left")
        assert "2/8" in lines(app)[0], "which folds"
        await pilot.press("right", "end")
        assert "13/13" in lines(app)[0]
        await pilot.press("home", "pagedown", "pageup", "k", "up")
        assert "1/13" in lines(app)[0]
        for row, place in ((1, "2/13"), (1, "2/8"), (2, "3/8"), (1, "2/8"), (1, "2/13")):
            await pilot.click("#rows", offset=(5, row))
            assert place in lines(app)[0]
    for words, count in (("failed", 2), ("FAILED 1n1g", 2), ("2n8g", 5), ("priority", 6)):
        matches = make_filter(words.split(), session.now)
        assert sum(map(matches, session.now.repeats)) == count, words
    async with opened(session) as (app, pilot):
        await pilot.press("/", *"failed", "space", *"n3")
        assert "filter: failed n3" in lines(app)[0]
        await pilot.press("enter", "down")
        assert sum("✗" in line for line in lines(app)) == 2
        session.change(DONE, RUNS, DONE)
        await pilot.pause()
        assert sum("✗" in line for line in lines(app)) == 1
        await pilot.press("enter", "question_mark")
        assert any("close the innermost" in line for line in lines(app))
        await pilot.press("escape")
        assert not any("close the innermost" in line for line in lines(app))
        assert app._log_open
        await pilot.press("escape")
        assert (app._log_open, "filter: failed" in lines(app)[0]) == (False, True)
        await pilot.press("escape")
        assert "/13" in lines(app)[0]
        await pilot.press("/", *"nothing such", "escape", "escape")
        assert ("/13" in lines(app)[0], app.is_running) == (True, True)


@pytest.mark.parametrize("size", [(140, 30), (60, 16)], ids=["side by side", "alone"])
@played
async def test_enter_shows_the_log_s_tail_and_it_grows(session, size):
    log = session.watched[0].log("1n1g", 2, "".join(f"step {n} of 120\n" for n in range(60)))
    async with opened(session, size) as (app, pilot):
        await pilot.press("down", "down", "down", "enter")
        await pilot.pause(0.1)
        line = next(line for line in lines(app) if "step 59 of 120" in line)
        assert line.startswith("step") == (size[0] < 100)
        with log.open("a") as file:
            file.write(f"step 60 of 120 {'x' * 50}END\n")
        app._read_log()
        await pilot.pause()
        for text in ("step 60 of 120", "xEND"):
            assert any(text in line for line in lines(app)), "long lines are broken"
        await pilot.press("tab", "home")
        assert any("step 0 of 120" in line for line in lines(app))
        await pilot.press("tab", "down")
        assert any("no log yet" in line for line in lines(app)), "it follows the cursor"
        await pilot.press("enter")
        assert not any("no log yet" in line for line in lines(app))


@played
async def test_cancel_asks_first_what_a_retry_refuses_is_said_and_it_leaves(session):
    async def press(key):
        """Press a key, wait for what it starts, and return the last line."""
        await pilot.press(key)
        await app.workers.wait_for_complete()
        await pilot.pause()
        return lines(app)[-1]

    async with opened(session) as (app, pilot):
        for answer in ("n", "escape"):
            assert "Cancel 3 repeats? y/n" in await press("c")
            assert "y/n" in await press("x"), "only answers count"
            assert "q quit" in await press(answer)
        session.cancel.assert_not_called()
        await press("c")
        assert "Cancelled 3." in await press("y")
        session.cancel.assert_called_once_with()
        assert "Slurm does not answer. Ask it again." in await press("r")
        assert "q quit" in await press("down")
        await pilot.press("q")
    assert (app.interrupted, app.is_running) == (False, False)
    async with opened(session) as (app, pilot):
        await pilot.press("ctrl+c")
    assert (app.interrupted, app.is_running) == (True, False)


@played
async def test_when_all_is_over_it_stays_for_who_pressed_a_key(build, monkeypatch):
    session = Scripted([build("1n1g")], [DONE] * 5)
    # A machine that is busy may take longer for a key than a short while.
    monkeypatch.setattr("hpcbert.cli.view.app._CLOSE_AFTER", 60.0)
    async with opened(session) as (app, pilot):
        assert "all is over" in lines(app)[0]
        await pilot.press("down")
        app._close()
        await pilot.pause(0.5)
        assert app.is_running
    monkeypatch.setattr("hpcbert.cli.view.app._CLOSE_AFTER", 0.2)
    async with opened(session) as (app, _):
        await asyncio.to_thread(until, lambda: not app.is_running, "it stays")


@played
async def test_of_a_thousand_repeats_those_on_the_screen_are_read(build):
    session = Scripted([build("1n1g", repeats=1000)], [WAITS] * 1000)
    async with opened(session) as (app, pilot):
        await pilot.press("down", "right")
        await pilot.pause()
        assert "/1002" in lines(app)[0]
        assert len(session.visible) <= 30, "of more nothing is read"
        session.change(RUNS)
        await pilot.pause()
        assert any("RUNNING" in line for line in lines(app))


def test_time_left_is_of_those_that_completed_or_of_the_log_that_runs(build):
    built = build("1n1g", "2n8g")
    rows, name = list_rows(built.repeats), built.campaign.id
    _, point, *_ = (row for row in rows.values() if row.level is not Level.REPEAT)
    view = make_view([built], [DONE, RUNS, *[WAITS] * 8])
    shown = Scene(view, rows)
    assert shown.time_left(point) == 50 + 3 * 100, "one runs at a time"
    assert shown.time_left(rows[name,]) == 50 + 8 * 100
    bare = make_view([built], [WAITS, RUNS, *[WAITS] * 8])
    assert Scene(bare, rows).time_left(point) is None
    progress = {built.repeats[1].key: RepeatProgress(60, 120, 10.0, NOW + 30)}
    assert Scene(bare, rows, progress).time_left(point) == 30 + 4 * 80
    assert Scene(make_view([built], [DONE] * 10), rows).over
    first, second = (build("1n1g", name=f"20261121-pytorch-{end}", repeats=3) for end in "ab")
    row = [first, second.change(after=first.campaign.id)]
    for states, seconds in (([RUNS, WAITS], 50 + 100 + 2 * 100), ([DONE, DONE], 2 * 100)):
        view = make_view(row, [DONE, *states, DONE, WAITS, WAITS])
        assert Scene(view, list_rows(view.repeats)).total_time_left == seconds


@played
async def test_finished_points_have_a_median_an_efficiency_and_what_does_not_count(build):
    built = build("1n1g", "1n4g", repeats=2).finish()
    built.log("1n4g", 2, built.text("1n4g", 38.0))
    async with opened(Scripted([built], [DONE] * 4), (80, 24)) as (app, pilot):
        await pilot.press("down", "right")
        rows = lines(app)
        assert any(re.search(r"1n1g.* 10\.50 +100\.0%", row) for row in rows)
        assert any(re.search(r"1n4g.* 39\.00 +92\.9%", row) for row in rows)
        assert any(re.search(r"repeat 1.* 10\.00", row) for row in rows), "unfolded by a key"
        assert not any("38.00" in row for row in rows), "folded, as it has ended"
    async with opened(Scripted([built], [DONE, DONE, DONE, RUNS]), (80, 24)) as (app, _):
        assert any("repeat 1" in row and "40.00" in row for row in lines(app))
        assert not any("92.9%" in row for row in lines(app)), "not before its last repeat"
    built.log("1n4g", 2, "nothing\n")
    async with opened(Scripted([built], [DONE] * 4), (160, 50)) as (app, pilot):
        await pilot.press("down", "down", "right")
        assert any("repeat 2" in row and "invalid: " in row for row in lines(app))
        assert any("1n4g" in row and "40.00" in row and "incomplete" in row for row in lines(app))


@played
async def test_campaigns_of_one_name_are_told_apart(build):
    campaigns = []
    for algorithm in ("Ring", "Tree"):
        name = f"20261121T100000Z-pytorch-{algorithm.lower()}"
        built = build("1n1g", name=name, repeats=1)
        (array,) = built.campaign.arrays
        point = replace(array.point, env=(("NCCL_ALGO", algorithm),))
        arrays = (replace(array, point=point),)
        campaigns.append(built.change(name="a name that is long, week 47", arrays=arrays))
    for width in (80, 160):
        async with opened(Scripted(campaigns, [WAITS, WAITS]), (width, 24)) as (app, _):
            for algorithm in ("Ring", "Tree"):
                part = f"O={algorithm} "
                assert any(row.startswith("▾ a name") and part in row for row in lines(app))
            # An id is whole or absent.
            assert campaigns[0].campaign.id in " ".join(lines(app))
            assert not any("2026" in row and "pytorch-" not in row for row in lines(app))


@played
async def test_cancelled_repeats_did_not_fail_and_a_reason_to_wait_is_shown_once(build):
    built = build("1n1g", "2n8g")
    cancelled = RepeatState("CANCELLED", Kind.FAILED, "sacct", detail="was cancelled")
    states = [DONE, FAILED, cancelled, cancelled, WAITS, *[DONE] * 5]
    async with opened(Scripted([built], states), (120, 30)) as (app, _):
        assert "1 failed, 2 cancelled" in lines(app)[0].replace("1 waiting, ", "")
        assert sum("⊘" in row for row in lines(app)) == 2
    licence = replace(WAITS, detail="waits for a licence")
    # One point, and the four repeats of the other.
    for states, count in (([licence] * 10, 1), ([*[licence] * 9, WAITS], 5)):
        async with opened(Scripted([built], states), (160, 30)) as (app, _):
            rows = lines(app)
            end = -4 if count == 1 else None
            assert sum("waits for a licence" in row for row in rows[:end]) == count
            assert not any("waits: waits" in row for row in rows)


@pytest.mark.needs("tmux")
def test_a_real_campaign_is_watched_filtered_read_and_cancelled(hpcbert):
    """Repeat 2 lacks a module; repeat 3 stops at its third step until the test lets it go."""
    home, go = hpcbert.cwd, hpcbert.cwd / "go"
    train = read_constant(__file__, "TRAIN").replace("GO", str(go))
    hpcbert("init", "--local", "--force", status=0)
    write_file(home, "templates/standin/recipe.toml", read_constant(__file__, "RECIPE"))
    run = 'exec -- bash {{ files["train.sh"] }} {{ protocol.iters }}\n'
    write_file(home, "templates/standin/run.sh.j2", run)
    write_file(home, "templates/standin/train.sh", train)
    words = ("--nodes", "1", "--gpus-per-node", "1", "--repeats", "4", "--iters", "40")
    hpcbert("submit", "--fw", "standin", *words, "--skip", "2", status=0)
    names = ("PATH", "HOME", "PYTHONPATH")
    environment = [f"{name}={hpcbert.environment[name]}" for name in names]
    # Some export the size of the terminal that they began with.
    argv = ["env", "COLUMNS=33", *environment, hpcbert.python, "-m", "hpcbert", "monitor"]
    tmux = Tmux(home, argv, 100, 20)
    try:
        tmux.shows("3/40")
        tmux.shows("1 repeat: ModuleNotFoundError")
        tmux.shows("repeat 2  job", "Down", "Down", "Down")
        text = " ".join(tmux.shows_recorded("failed").split())
        assert "failed, exit status 1, in the measured step" in text
        tmux.shows("Traceback", "Enter")
        tmux.shows("ModuleNotFoundError: No module named 'nosuchmodule'")
        tmux.keys("Escape")
        tmux.no_longer_shows("Traceback")
        tmux.shows("filter: wait", *"/wait")
        tmux.shows("2/6", "Escape")
        tmux.shows("still wait or run", "r")
        tmux.run("resize-window", "-x", "60", "-y", "16")
        tmux.shows("Cancel 2 repeats of", "c")
        tmux.shows("all is over", "y")
        tmux.shows("1/6", "Home")
        tmux.shows("1 repeat: Modu")
        tmux.shows_recorded("cancelled-60x16")
        tmux.shows("Submit 3 repeats of", "r")
        tmux.shows("q quit", "n")
        assert "1 completed, 1 failed, 2 cancelled" in tmux.shows("left 0", "q")
    finally:
        tmux.end()
        go.touch()
        hpcbert("cancel", "standin", "--yes")
