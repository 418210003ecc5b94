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
from hpcbert.commands.monitor import Rates, RepeatProgress, View, read_rates
from hpcbert.errors import SchedulerError
from hpcbert.slurm.states import Kind, RepeatState
from tests.kit.campaigns import Built, campaign
from tests.kit.waiting import until

pytestmark = pytest.mark.slow

SAID = "ModuleNotFoundError: No module named 'torch'"
NOW = 1_000_000.0


def state(word: str, kind: Kind, **changes: Any) -> RepeatState:
    return replace(RepeatState(word, kind, "sacct"), **changes)


DONE = state("COMPLETED", Kind.SUCCEEDED, elapsed=100.0, step_exit=0)
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
        self.rates: dict[str, Rates] = {}

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
        scene = summarise(self.tree, self.now, details)
        self.show(self.tree, replace(scene, failures=failures, rates=self.rates))

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
    return campaign(tmp_path, "1n1g", "2n8g", repeats=5)


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


@pytest.mark.parametrize("size", [(60, 16), (80, 24), (160, 50), (20, 6)])
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
        assert "60/120" in text
        assert "q quit" in screen_lines[-1]
        assert "2 repeats: ModuleNotFoundError" in text or width < 100
        assert ("0:00:50" in text) == (width >= 76)
        assert "512.50" in text
        assert ("n[1-2]" in text) == (width >= 140)

    drive(session, story, size)


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
            file.write(f"step 60 of 120 {'x' * 60}END\n")
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
    built = campaign(tmp_path, "1n1g", repeats=10_000)
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


def read_screen(
    campaigns: list[Built], states: list[RepeatState], size: tuple[int, int], *keys: str
) -> list[str]:
    """Return the screen about ended and other repeats of campaigns, after some keys."""
    session = Scripted(campaigns[0], states[: len(campaigns[0].repeats)])
    repeats = tuple(repeat for built in campaigns for repeat in built.repeats)
    by_key = {repeat.key: value for repeat, value in zip(repeats, states, strict=True)}
    session.now, session.tree = View(repeats, by_key, NOW), Tree(repeats)
    session.rates = {built.campaign.id: read_rates(built, by_key) for built in campaigns}
    screens: list[list[str]] = []

    async def story(app: screen.Monitor, pilot: Any) -> None:
        await pilot.press(*keys)
        await pilot.pause()
        screens.append(lines(app))

    drive(session, story, size)
    return screens[0]


@pytest.mark.parametrize("size", [(80, 24), (160, 50)], ids=["80x24", "160x50"])
def test_finished_points_have_a_median_and_an_efficiency(
    build: Callable[..., Built], size: tuple[int, int]
) -> None:
    built = build("1n1g", "1n4g", repeats=2)
    for shape, rates in {"1n1g": (100, 110), "1n4g": (400, 380)}.items():
        for repeat, rate in enumerate(rates, 1):
            built.complete(shape, repeat, rate)
    rows = read_screen([built], [DONE] * 4, size, "down", "right")
    base, point = (next(row for row in rows if shape in row) for shape in ("1n1g", "1n4g"))
    assert "105.00" in base
    assert "100.0%" in base
    assert ("390.00" in point, "92.9%" in point) == (True, True)
    assert any("repeat 1" in row and "100.00" in row for row in rows), "unfolded by a key"
    assert not any("380.00" in row for row in rows), "folded, as it has ended"
    rows = read_screen([built], [DONE, DONE, DONE, RUNS], size)
    assert any("repeat 1" in row and "400.00" in row for row in rows)
    assert not any("92.9%" in row for row in rows), "not before its last repeat"


def test_an_invalid_repeat_has_a_reason_and_no_rate(build: Callable[..., Built]) -> None:
    built = build("1n1g", repeats=2)
    built.complete("1n1g", 1, 100)
    built.log("1n1g", 2, "nothing\n")
    built.started("1n1g", 2)
    built.ended("1n1g", 2)
    rows = read_screen([built], [DONE, DONE], (160, 50))
    assert any("repeat 2" in row and "invalid: " in row for row in rows)
    assert any("1n1g" in row and "100.00" in row and "incomplete" in row for row in rows)


@pytest.mark.parametrize("width", [80, 160])
def test_campaigns_of_one_name_are_told_apart(tmp_path: Path, width: int) -> None:
    campaigns = []
    for algorithm in ("Ring", "Tree"):
        name = f"20261121T100000Z-pytorch-{algorithm.lower()}"
        built = campaign(tmp_path, "1n1g", name=name, repeats=1)
        (array,) = built.campaign.arrays
        point = replace(array.point, env=(("NCCL_ALGO", algorithm),))
        arrays = (replace(array, point=point),)
        campaigns.append(built.change(name="a name that is long, week 47", arrays=arrays))
    rows = read_screen(campaigns, [WAITS, WAITS], (width, 24))
    for algorithm in ("Ring", "Tree"):
        assert any(row.startswith("▾ a name") and f"O={algorithm} " in row for row in rows)
    # An id is whole or absent.
    assert campaigns[0].campaign.id in " ".join(rows)
    assert not any("2026" in row and "pytorch-" not in row for row in rows)


def test_cancelled_repeats_did_not_fail(built: Built) -> None:
    cancelled = state("CANCELLED", Kind.FAILED, detail="was cancelled")
    rows = read_screen([built], [DONE, FAILED, cancelled, cancelled, WAITS, *[DONE] * 5], (120, 30))
    assert "1 failed, 2 cancelled" in rows[0].replace("1 waiting, ", "")
    assert sum("⊘" in row for row in rows) == 2


def test_one_reason_for_waiting_is_shown_once(built: Built) -> None:
    waits = replace(WAITS, detail="waits for a licence")
    rows = read_screen([built], [waits] * 10, (160, 30))
    assert sum("waits for a licence" in row for row in rows[:-4]) == 1
    assert not any("waits: waits" in row for row in rows)
    waits_otherwise = [waits] * 9 + [WAITS]
    rows = read_screen([built], waits_otherwise, (160, 30))
    assert sum("waits for a licence" in row for row in rows) == 5, "one point, and four repeats"


@pytest.mark.parametrize(
    ("states", "seconds"),
    [([RUNS, WAITS], 50 + 100 + 2 * 100), ([DONE, DONE], 2 * 100)],
    ids=["both alive", "one over"],
)
def test_campaigns_in_a_row_take_the_sum_of_their_times(
    tmp_path: Path, states: list[RepeatState], seconds: float
) -> None:
    first = campaign(tmp_path, "1n1g", name="20261121-pytorch-a", repeats=3)
    second = campaign(tmp_path, "1n1g", name="20261121-pytorch-b", repeats=3)
    second = second.change(after=first.campaign.id)
    repeats = (*first.repeats, *second.repeats)
    values = [DONE, *states, DONE, WAITS, WAITS]
    view = View(repeats, {r.key: s for r, s in zip(repeats, values, strict=True)}, NOW)
    assert summarise(Tree(repeats), view, {}).time_left == seconds


def test_a_click_selects_and_folds(session: Scripted) -> None:
    async def story(app: screen.Monitor, pilot: Any) -> None:
        await pilot.click("#rows", offset=(5, 1))
        assert "2/13" in lines(app)[0]
        await pilot.click("#rows", offset=(5, 1))
        assert "2/8" in lines(app)[0]
        await pilot.click("#rows", offset=(5, 2))
        assert "3/8" in lines(app)[0]

    drive(session, story)


def test_escape_closes_the_innermost(session: Scripted) -> None:
    async def story(app: screen.Monitor, pilot: Any) -> None:
        await pilot.press("/", *"failed", "enter", "enter", "question_mark")
        assert any("close the innermost" in line for line in lines(app))
        await pilot.press("escape")
        assert not any("close the innermost" in line for line in lines(app))
        assert app._log_open
        await pilot.press("escape")
        assert (app._log_open, "filter: failed" in lines(app)[0]) == (False, True)
        await pilot.press("escape")
        assert "/13" in lines(app)[0]
        await pilot.press("escape")
        assert app.is_running

    drive(session, story)


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
