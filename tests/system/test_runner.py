from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from hpcbert.system import runner
from hpcbert.system.runner import run
from tests.kit.waiting import CEILING


def test_a_command_is_given_its_input_and_heard_to_its_end() -> None:
    text = "x" * 300_000 + "\n"
    done = run(["sh", "-c", "cat; echo a >&2; exit 3"], stdin=text)
    assert (done.returncode, done.stdout, done.stderr) == (3, text, "a\n")
    assert run(["printf", "\\377\\n"]).stdout == "\N{REPLACEMENT CHARACTER}\n"
    assert run(["cat"]).ok
    assert run(["/no/such/program"]).returncode == 127
    assert run(["/etc/passwd"]).returncode == 126


@pytest.fixture
def late_once_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the time of a command be over as soon as something of it was read, however slow it is."""
    read, now, heard = os.read, time.monotonic, []

    def noted(handle: int, size: int) -> bytes:
        data = read(handle, size)
        heard.extend([data] if data else [])
        return data

    monkeypatch.setattr(os, "read", noted)
    monkeypatch.setattr(time, "monotonic", lambda: now() + 2 * CEILING * bool(heard))


@pytest.mark.usefixtures("late_once_heard")
def test_a_command_that_gives_no_answer_is_ended() -> None:
    done = run(["sh", "-c", "echo begun; sleep 3600"], timeout=CEILING)
    assert (done.returncode, done.stdout) == (124, "begun\n")
    assert f"gave no answer within {CEILING:g} s" in done.stderr


@pytest.mark.usefixtures("late_once_heard")
def test_who_keeps_a_pipe_open_keeps_nobody_waiting(tmp_path: Path) -> None:
    line = f"setsid sleep 3600 & echo $! >'{tmp_path}/pid'; echo done"
    done = run(["sh", "-c", line], timeout=CEILING)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert (done.returncode, done.stdout) == (124, "done\n")


def test_a_command_that_says_nothing_is_ended_when_its_time_is_over() -> None:
    assert run(["sleep", "3600"], timeout=0.1).returncode == 124


def test_a_command_that_closes_its_pipes_is_waited_for() -> None:
    assert run(["sh", "-c", "exec >&- 2>&-; sleep 0.3; exit 5"]).returncode == 5
    assert run(["sh", "-c", "exec >&- 2>&-; sleep 3600"], timeout=0.5).returncode == 124


def test_a_command_that_prints_without_end_is_ended() -> None:
    done = run(["yes"], timeout=CEILING)
    assert done.returncode == 124
    assert "printed more than 64 MiB" in done.stderr
    assert len(done.stdout) < runner.MOST + (1 << 20)
