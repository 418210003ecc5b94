"""A bar shows how far long work has come: not for short work, and not for work inside other work."""

from __future__ import annotations

import io
import threading
from typing import Any

import click
import pytest

from hpcbert.cli.streams import ProgressBar, format_progress, shows_progress
from hpcbert.system.workers import follow_count, listen, track


def run_work(seconds: float, count: int = 10, inner: int = 0) -> str:
    """Return what a bar writes while items of some seconds each are done."""
    now = 0.0
    stream = io.StringIO()
    with listen(ProgressBar(stream, lambda: now).update):
        for _ in track(range(count), "reading logs"):
            for _ in track(range(inner), "hashing"):
                now += seconds / inner
            now += 0 if inner else seconds
    return stream.getvalue()


@pytest.mark.parametrize("inner", [0, 5])
def test_long_work_shows_count_rate_and_time(inner: int) -> None:
    text = run_work(1.0, inner=inner)
    assert "reading logs" in text
    assert "hashing" not in text
    assert "5/10, 1/s, 5 s left" in text
    assert text.endswith("\x1b[2K")


@pytest.mark.parametrize(("seconds", "count"), [(0.1, 10), (60.0, 1)], ids=["short", "one item"])
def test_short_work_shows_nothing(seconds: float, count: int) -> None:
    assert run_work(seconds, count) == ""


def test_minutes_and_thousands() -> None:
    assert format_progress("x", 1200, 5000, 120.0).endswith("1,200/5,000, 10/s, 6 min left")
    assert format_progress("x", 0, 74, 42.0).endswith("0/74, 42 s")
    assert format_progress("fetching, MB:", 84, 0, 42.0) == "fetching, MB: 84, 2/s, 42 s"
    assert format_progress("fetching, MB:", 0, 0, 4.0) == "fetching, MB: 0, 4 s"


@pytest.mark.slow
def test_the_work_of_another_process_is_followed() -> None:
    reports: list[tuple[str, int, int]] = []
    is_reported = threading.Event()

    def note(*values: Any) -> None:
        reports.append(values)
        is_reported.set()

    with listen(note), follow_count("installing", 3, lambda: 5):
        assert is_reported.wait(60)
    assert (reports[0], reports[-1]) == (("installing", 2, 3), ("installing", 3, 3))
    with follow_count("installing", 3, lambda: 5):
        pass
    reports.clear()
    is_reported.clear()
    with listen(note), follow_count("fetching", 0, lambda: 5):
        assert is_reported.wait(60)
    assert (reports[0], reports[-1]) == (("fetching", 5, 0), ("fetching", 1, 1))


@pytest.mark.parametrize(
    ("options", "is_terminal", "count"),
    [([], True, 1), (["--json"], True, 0), ([], False, 0)],
    ids=["terminal", "json", "pipe"],
)
def test_a_bar_is_for_people(
    monkeypatch: pytest.MonkeyPatch, options: list[str], is_terminal: bool, count: int
) -> None:
    streams: list[object] = []

    def make_bar(stream: io.StringIO) -> ProgressBar:
        streams.append(stream)
        return ProgressBar(stream)

    @click.command()
    @click.option("--json", "as_json", is_flag=True)
    def command(as_json: bool) -> None:
        shows_progress(lambda: as_json)()

    stderr = io.StringIO()
    monkeypatch.setattr(stderr, "isatty", lambda: is_terminal)
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setattr("hpcbert.cli.streams.ProgressBar", make_bar)
    command.main(options, standalone_mode=False)
    assert len(streams) == count
