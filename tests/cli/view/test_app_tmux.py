"""The view as a person has it: a local campaign that really runs, tmux, and keys."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.cases import read_constant
from tests.kit.cli import Tmux

pytestmark = [pytest.mark.slow, pytest.mark.needs("tmux")]

RUN = """exec -- bash {{ files["train.sh"] }} {{ protocol.iters }}
"""
# Repeat 2 lacks a module; repeat 3 stops at its third step until the test lets it go.
TRAIN = read_constant(__file__, "TRAIN")
RECIPE = read_constant(__file__, "RECIPE")


@pytest.fixture
def campaign(hpcbert: Any) -> Iterator[tuple[Path, Path]]:
    """Yield where hpcbert is at home, and the file that lets the campaign there go on."""
    home = Path(hpcbert.cwd)
    go = home / "go"
    folder = home / "templates" / "standin"
    folder.mkdir(parents=True)
    assert hpcbert("init", "--local", "--force").returncode == 0
    (folder / "recipe.toml").write_text(RECIPE)
    (folder / "run.sh.j2").write_text(RUN)
    (folder / "train.sh").write_text(TRAIN.replace("GO", shlex.quote(str(go))))
    words = ("--nodes", "1", "--gpus-per-node", "1", "--repeats", "4", "--iters", "40")
    result = hpcbert("submit", "--fw", "standin", *words, "--skip", "2")
    assert result.returncode == 0, result.stderr
    yield home, go
    go.touch()
    hpcbert("cancel", "standin", "--yes")


def test_a_campaign_is_watched_filtered_read_and_cancelled(
    hpcbert: Any, campaign: tuple[Path, Path]
) -> None:
    home, _ = campaign
    argv = [sys.executable, "-m", "hpcbert", "monitor"]
    environment = [f"{name}={hpcbert.environment[name]}" for name in ("PATH", "HOME", "PYTHONPATH")]
    # Some export the size of the terminal that they began with.
    tmux = Tmux(home, ["env", "COLUMNS=33", *environment, *argv], 100, 20)
    try:
        tmux.shows("3/40")
        tmux.shows("1 repeat: ModuleNotFoundError")
        tmux.keys("Down", "Down", "Down")
        tmux.shows("repeat 2  job")
        text = tmux.shows_recorded("failed")
        assert "failed, exit status 1, in the measured step" in " ".join(text.split())
        tmux.keys("Enter")
        tmux.shows("Traceback")
        tmux.shows("ModuleNotFoundError: No module named 'nosuchmodule'")
        tmux.keys("Escape")
        tmux.no_longer_shows("Traceback")
        tmux.keys("/", "w", "a", "i", "t")
        tmux.shows("filter: wait")
        tmux.keys("Escape")
        tmux.shows("2/6")
        tmux.keys("r")
        tmux.shows("still wait or run")
        tmux.run("resize-window", "-x", "60", "-y", "16")
        tmux.keys("c")
        tmux.shows("Cancel 2 repeats of")
        tmux.keys("y")
        tmux.shows("all is over")
        tmux.keys("Home")
        tmux.shows("1/6")
        tmux.shows("1 repeat: Modu")
        tmux.shows_recorded("cancelled-60x16")
        tmux.keys("r")
        tmux.shows("Submit 3 repeats of")
        tmux.keys("n")
        tmux.shows("q quit")
        tmux.keys("q")
        text = tmux.shows("left 0")
        assert "1 completed, 1 failed, 2 cancelled" in text
    finally:
        tmux.end()
