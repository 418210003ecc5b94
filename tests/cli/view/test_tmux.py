"""The view as a person has it: a local campaign that really runs, tmux, and keys."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]

SCREENS = Path(__file__).with_name("screens")
RUN = """exec -- bash {{ files["train.sh"] }} {{ protocol.iters }}
"""
# Repeat 2 lacks a module; repeat 3 stops at its third step until the test lets it go.
TRAIN = """#!/bin/bash
set -euo pipefail
for ((step = 1; step <= $1; step++)); do
  echo "step $step of $1 | 1000 samples/s"
  if ((SLURM_ARRAY_TASK_ID == 2)); then
    python3 -c 'import nosuchmodule'
  fi
  if ((SLURM_ARRAY_TASK_ID == 3 && step == 3)); then
    until [[ -e GO ]]; do sleep 0.1; done
  fi
done
"""
RECIPE = r"""
schema = 1
title = "A stand-in"
launch = "per-gpu"
models = ["bert-base"]
precisions = ["fp32"]
files = ["train.sh"]

[batch_sizes]
fp32 = 32

[[log.records]]
name = "step"
contains = "samples/s"
match = 'step (?P<iteration>\d+) of \d+ \| (?P<rate>\S+) samples/s'

[[log.rules]]
name = "rate"
kind = "rate"
record = "step"
"""


class Tmux:
    """A terminal in which one program runs.

    Args:
        folder: Where the program runs.
        argv: The program.
    """

    def __init__(self, folder: Path, argv: list[str], columns: int, rows: int) -> None:
        # A socket's path is short; what a terminal shows does not depend on this one's locale.
        self._socket = tempfile.mkdtemp(prefix="tmux")
        self._base = ["tmux", "-u", "-f", "/dev/null", "-S", f"{self._socket}/socket"]
        line = f"{shlex.join(argv)}; echo left $?; exec sleep 600"
        self.run(
            *("new-session", "-d", "-x", str(columns), "-y", str(rows)), "-c", str(folder),
            f"env -u NO_COLOR LC_ALL=C.UTF-8 bash -c {shlex.quote(line)}",
        )  # fmt: skip

    def run(self, *words: str) -> str:
        return subprocess.run(
            [*self._base, *words],
            check=True,
            capture_output=True,
            encoding="utf-8",
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        ).stdout

    def end(self) -> None:
        self.run("kill-server")
        shutil.rmtree(self._socket)

    def keys(self, *names: str) -> None:
        for name in names:
            self.run("send-keys", name)

    def screen(self) -> str:
        return self.run("capture-pane", "-p")

    def shows(self, words: str) -> str:
        """Wait until a text is on the screen, and return the screen."""
        return until(
            lambda: text if words in (text := self.screen()) else "",
            lambda: f"{words!r} on\n{self.screen()}",
        )


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
    done = hpcbert("submit", "--fw", "standin", *words, "--skip", "2")
    assert done.returncode == 0, done.stderr
    yield home, go
    go.touch()
    hpcbert("cancel", "standin", "--yes")


def normal(screen: str) -> str:
    """Return a screen without what differs from run to run."""
    screen = re.sub(r"\d{8}T\d{6}Z-[\w-]*", lambda found: "C" * len(found[0]), screen)
    screen = re.sub(r"CANCELLED .*", "CANCELLED", screen)
    screen = re.sub(r"\d:\d\d:\d\d", "H:MM:SS", screen)
    # Where the sentence on a repeat folds, and so the empty lines left, depends on how long its job's
    # name is.
    screen = re.sub(r"(repeat \d  job) .*\n(arrows)", r"\1 ...\n\2", screen, flags=re.DOTALL)
    text = "\n".join(line.rstrip() for line in screen.splitlines())
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def recorded(name: str, screen: str) -> str:
    """Return a recorded screen; with RECORD_SCREENS in the environment record this one first."""
    path = SCREENS / f"{name}.txt"
    if os.environ.get("RECORD_SCREENS"):
        path.write_text(normal(screen))
    return normal(path.read_text())


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
        text = tmux.shows("repeat 2  job")
        assert normal(text) == recorded("failed", text)
        assert "failed, exit status 1, in the measured step" in " ".join(text.split())
        tmux.keys("Enter")
        text = tmux.shows("Traceback")
        assert "ModuleNotFoundError: No module named 'nosuchmodule'" in text
        # Together with the next key an escape would be that key with Alt.
        tmux.keys("Escape")
        until(lambda: "Traceback" not in tmux.screen(), "the log's end")
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
        text = tmux.shows("all is over")
        tmux.keys("Home")
        tmux.shows("1/6")
        text = tmux.shows("1 repeat: ModuleNot")
        assert normal(text) == recorded("cancelled-60x16", text)
        tmux.keys("r")
        tmux.shows("Submit 3 repeats of")
        tmux.keys("n")
        tmux.shows("q quit")
        tmux.keys("q")
        text = tmux.shows("left 0")
        assert "1 completed, 3 failed" in text
    finally:
        tmux.end()
