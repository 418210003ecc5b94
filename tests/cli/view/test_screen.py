"""The full-screen view: sizes, keys, what it draws, and what it leaves alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign.suspects import RetryPolicy
from hpcbert.cli.view import app as screen
from hpcbert.cli.view.rows import Tree, make_filter, summarise
from hpcbert.cli.view.session import Offer, Session
from hpcbert.commands.monitor import RepeatProgress, View
from hpcbert.errors import SchedulerError
from hpcbert.slurm.states import Kind, RepeatState
from tests.kit.campaigns import Built, build
from tests.kit.waiting import until

pytestmark = pytest.mark.slow

SAID = "ModuleNotFoundError: No module named 'torch'"
NOW = 1_000_000.0


def state(word: str, kind: Kind, **changes: Any) -> RepeatState:
    return replace(RepeatState(word, kind, "sacct"), **changes)


DONE = state("COMPLETED", Kind.SUCCEEDED, elapsed=100.0)
FAILED = state("FAILED", Kind.FAILED, detail="failed, exit status 1", nodes=("n3",))
RUNS = state("RUNNING", Kind.RUNNING, start=NOW - 50, limit=3600.0, nodes=("n1", "n2"))
WAITS = state("PENDING", Kind.WAITING, detail="others have a higher priority")


class Scripted(Session):
    """Shows one view, and notes what it is asked for."""

    def __init__(self, built: Built, states: list[RepeatState]) -> None:
        super().__init__([built], RetryPolicy(0), floor=1.0, interval=1.0)
        self.one = built
        self.calls: list[str] = []
        self.now = View(
            built.repeats, {r.key: s for r, s in zip(built.repeats, states, strict=True)}, NOW
        )
        self.tree = Tree(built.repeats)
        self.looked: Any = ()

    def begin(self, show: Any, tell: Any, fail: Any) -> Any:
        self.show, self.fail = show, fail
        self.show_scene()

    def show_scene(self) -> None:
        details = {
            key: RepeatProgress(60, 120, 512.5, NOW + 50)
            for key, repeat_state in self.now.states.items()
            if repeat_state.kind is Kind.RUNNING
        }
        failures = {k: SAID for k, s in self.now.states.items() if s.kind is Kind.FAILED}
        self.show(self.tree, replace(summarise(self.tree, self.now, details), failures=failures))

    def change(self, number: int, to: RepeatState) -> None:
        states = dict(self.now.states)
        states[self.one.repeats[number].key] = to
        self.now = replace(self.now, states=states)
        self.show_scene()

    def leave(self) -> None:
        self.calls.append("leave")

    def show_details_of(self, rows: Any) -> None:
        self.looked = rows

    def offer_cancel(self, watched: Any) -> Offer | str:
        self.calls.append("look")
        return Offer("Cancel 3 repeats?", self._cancel)

    def _cancel(self) -> str:
        self.calls.append("cancel")
        return "Cancelled 3."

    def offer_retry(self, watched: Any) -> Offer | str:
        raise SchedulerError("Slurm does not answer.", hint="Ask it again.")


@pytest.fixture
def built(tmp_path: Path) -> Built:
    return build(tmp_path, "1n1g", "2n8g", repeats=5)


@pytest.fixture
def session(built: Built) -> Scripted:
    return Scripted(built, [DONE, RUNS, FAILED, FAILED, WAITS, *[WAITS] * 5])


def lines(app: screen.Monitor) -> list[str]:
    """Return the screen as text."""
    parts = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip).rstrip() for strip in parts]


def drive(
    session: Scripted,
    story: Callable[[screen.Monitor, Any], Coroutine[Any, Any, None]],
    size: tuple[int, int] = (100, 30),
    *,
    unicode: bool = True,
) -> screen.Monitor:
    app = screen.Monitor(session, unicode=unicode, colour=True)

    async def play() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await pilot.pause()
            await story(app, pilot)

    asyncio.run(play())
    return app


@pytest.mark.parametrize("size", [(60, 16), (80, 24), (100, 30), (160, 50), (250, 80), (20, 6)])
def test_every_size_shows_rows_and_keys_and_overflows_nowhere(
    session: Scripted, size: tuple[int, int]
) -> None:
    async def story(app: screen.Monitor, pilot: Any) -> None:
        screen_lines = lines(app)
        width, height = size
        assert len(screen_lines) == height
        assert max(map(len, screen_lines)) <= width
        if width < 60:
            return
        text = "\n".join(screen_lines)
        assert (
            "1 completed, 1 running, 2 failed" in " ".join(screen_lines[0].split())
            or "failed" in text
        )
        assert "60/120" in text
        assert "q quit" in screen_lines[-1]
        assert "2 repeats: ModuleNotFoundError" in text or width < 100
        assert ("0:00:50" in text) == (width >= 76)
        assert ("512.50" in text) == (width >= 120)
        assert ("n[1-2]" in text) == (width >= 140)

    drive(session, story, size)


def test_what_comes_while_the_screen_closes_is_dropped(session: Scripted) -> None:
    async def story(app: screen.Monitor, pilot: Any) -> None:
        await app.screen.remove_children()
        session.show_scene()
        await pilot.pause(0.7)

    drive(session, story)


def test_a_locale_without_unicode_gets_ascii(session: Scripted) -> None:
    async def story(app: screen.Monitor, pilot: Any) -> None:
        await pilot.press("down", "down", "down", "enter")
        await pilot.pause(0.7)
        assert "\n".join(lines(app)).isascii()

    drive(session, story, unicode=False)


def test_arrows_move_and_fold(session: Scripted) -> None:
    async def story(app: screen.Monitor, pilot: Any) -> None:
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

    drive(session, story)


def test_a_filter_takes_words_and_escape_takes_it_back(session: Scripted) -> None:
    async def story(app: screen.Monitor, pilot: Any) -> None:
        await pilot.press("/", *"failed", "space", *"n3")
        assert "filter: failed n3" in lines(app)[0]
        await pilot.press("enter", "down")
        rows = [line for line in lines(app) if "repeat " in line and "✗" in line]
        assert len(rows) == 2
        session.change(2, DONE)
        await pilot.pause()
        assert len([line for line in lines(app) if "✗" in line]) == 1
        await pilot.press("escape")
        assert "/13" in lines(app)[0]
        await pilot.press("/", *"nothing such", "escape")
        assert "/13" in lines(app)[0]

    drive(session, story)


@pytest.mark.parametrize(("size", "split_view"), [((140, 30), True), ((60, 16), False)])
def test_enter_shows_the_logs_tail_beside_and_it_grows(
    session: Scripted, size: tuple[int, int], split_view: bool
) -> None:
    log = session.one.log("1n1g", 2, "".join(f"step {n} of 120\n" for n in range(60)))

    async def story(app: screen.Monitor, pilot: Any) -> None:
        await pilot.press("down", "down", "down", "enter")
        await pilot.pause(0.1)
        screen_lines = lines(app)
        matches = [line for line in screen_lines if "step 59 of 120" in line]
        assert matches
        assert ("repeat" in matches[0] or not matches[0].startswith("step")) == split_view
        with log.open("a") as file:
            file.write("step 60 of 120\n")
        app._read_log()
        await pilot.pause()
        assert any("step 60 of 120" in line for line in lines(app))
        await pilot.press("tab", "home")
        assert any("step 0 of 120" in line for line in lines(app))
        await pilot.press("tab", "down")
        assert any("no log yet" in line for line in lines(app)), "it follows the cursor"
        await pilot.press("enter")
        assert not any("no log yet" in line for line in lines(app))

    drive(session, story, size)


def test_cancel_asks_first(session: Scripted) -> None:
    async def story(app: screen.Monitor, pilot: Any) -> None:
        for answer in ("n", "escape"):
            await pilot.press("c")
            await app.workers.wait_for_complete()
            await pilot.pause()
            assert "Cancel 3 repeats? y/n" in lines(app)[-1]
            await pilot.press("down", "x")
            assert "y/n" in lines(app)[-1], "only answers count"
            await pilot.press(answer)
            assert "q quit" in lines(app)[-1]
        assert "cancel" not in session.calls
        await pilot.press("c")
        await app.workers.wait_for_complete()
        await pilot.pause()
        await pilot.press("y")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert session.calls.count("cancel") == 1
        assert "Cancelled 3." in lines(app)[-1]

    drive(session, story)


def test_what_a_retry_refuses_is_said(session: Scripted) -> None:
    async def story(app: screen.Monitor, pilot: Any) -> None:
        await pilot.press("r")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "Slurm does not answer. Ask it again." in lines(app)[-1]
        await pilot.press("down")
        assert "q quit" in lines(app)[-1]

    drive(session, story)


@pytest.mark.parametrize(("key", "interrupted"), [("q", False), ("ctrl+c", True)])
def test_it_leaves(session: Scripted, key: str, interrupted: bool) -> None:
    async def story(app: screen.Monitor, pilot: Any) -> None:
        await pilot.press(key)

    app = drive(session, story)
    assert app.interrupted is interrupted
    assert not app.is_running


@pytest.mark.parametrize("touched", [False, True])
def test_when_all_is_over_it_stays_for_who_pressed_a_key(
    built: Built, monkeypatch: pytest.MonkeyPatch, touched: bool
) -> None:
    # A machine that is busy may take longer for a key than a short while.
    monkeypatch.setattr(screen, "_CLOSE_AFTER", 60.0 if touched else 0.2)

    async def story(app: screen.Monitor, pilot: Any) -> None:
        assert "all is over" in lines(app)[0]
        if touched:
            await pilot.press("down")
            app._close()
            await pilot.pause(0.5)
            assert app.is_running
            return
        await asyncio.to_thread(until, lambda: not app.is_running, "it stays")

    drive(Scripted(built, [DONE] * 10), story)


def test_of_thousands_of_repeats_those_on_the_screen_are_read(tmp_path: Path) -> None:
    built = build(tmp_path, "1n1g", repeats=10_000)
    session = Scripted(built, [WAITS] * 10_000)

    async def story(app: screen.Monitor, pilot: Any) -> None:
        await pilot.press("down", "right")
        await pilot.pause()
        assert "/10002" in lines(app)[0]
        assert len(session.looked) <= 30, "of more nothing is read"
        session.change(3, RUNS)
        await pilot.pause()
        assert any("RUNNING" in line for line in lines(app))

    drive(session, story)


def test_time_left_is_of_those_that_completed_or_of_the_log_that_runs(built: Built) -> None:
    tree = Tree(built.repeats)
    name = built.campaign.id
    keys = [row.key for row in tree.groups]
    view = View(
        built.repeats,
        {r.key: s for r, s in zip(built.repeats, [DONE, RUNS, *[WAITS] * 8], strict=True)},
        NOW,
    )
    shown = summarise(tree, view, {})
    assert shown.times_left[keys[1]] == 50 + 3 * 100, "one runs at a time"
    assert shown.times_left[name,] == 50 + 8 * 100
    states = {**view.states, built.repeats[0].key: WAITS}
    bare = replace(view, states=states)
    assert summarise(tree, bare, {}).times_left == {}
    details = {built.repeats[1].key: RepeatProgress(60, 120, 10.0, NOW + 30)}
    assert summarise(tree, bare, details).times_left[keys[1]] == 30 + 4 * 80
    over = replace(view, states=dict.fromkeys(states, DONE))
    assert summarise(tree, over, {}).over


@pytest.mark.parametrize(
    ("words", "count"),
    [("", None), ("failed", 2), ("FAILED 1n1g", 2), ("2n8g", 5), ("priority", 6), ("n3 none", 0)],
)
def test_what_a_filter_finds(session: Scripted, words: str, count: int | None) -> None:
    predicate = make_filter(words.split(), session.now)
    if count is None:
        assert predicate is None
    else:
        assert predicate
        assert sum(map(predicate, session.one.repeats)) == count
