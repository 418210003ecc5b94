from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcbert.system import often
from hpcbert.system.often import Often
from hpcbert.system.runner import Outcome, run
from tests.kit.paths import REPOSITORY
from tests.kit.waiting import CEILING, until

quick = Often(run, "sh")


def test_it_does_what_the_runner_does(tmp_path: Path) -> None:
    env = {**os.environ, "WHO": "me"}
    line = "printf '%s|' \"$@\" $WHO $(pwd -P); cat; echo a >&2; exit 3"
    for words in (["a b", ""], ["\n", "\udcff"], ["x" * 100_000]):
        argv = ["sh", "-c", line, "sh", *words]
        done = quick(argv, env=env, cwd=tmp_path)
        assert done == run(argv, env=env, cwd=tmp_path)
        assert done.returncode == 3
    assert quick(["sh", "-c", "cat"], stdin="in").stdout == "in"
    assert quick(["printf", "x"]).stdout == "x"
    assert quick(["sh", "-c", "kill -9 $$"]).returncode == -signal.SIGKILL
    assert quick(["sh", "-c", "sleep 60"], timeout=0.3).returncode == 124


def test_its_program_leads_a_session_and_ignores_the_signals_that_the_runners_does() -> None:
    argv = ["sh", "-c", "cd /proc/$$; cut -d ' ' -f 5,6 stat; grep SigIgn status; echo $$"]
    group, session, _, ignored, pid = quick(argv).stdout.split()
    assert (group, session) == (pid, pid)
    assert ignored == run(argv).stdout.split()[3]
    assert not int(ignored, 16) & 1 << signal.SIGPIPE - 1


def test_another_runner_gets_every_command() -> None:
    def scripted(argv: Sequence[str], **_: object) -> Outcome:
        return Outcome(tuple(argv), 0, "scripted", "")

    assert Often(scripted, "sh")(["sh", "-c", "echo started"]).stdout == "scripted"


@pytest.mark.parametrize("program", ["/no/such/program", "no-such-program", "/etc/passwd"])
def test_a_program_that_can_not_be_started_is_reported_as_by_the_runner(program: str) -> None:
    assert Often(run, program)([program, "x"]) == run([program, "x"])


@pytest.mark.parametrize("setpriv", ["", "#!/bin/sh\nexit 1\n"], ids=["missing", "too old"])
def test_without_setpriv_commands_run_as_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setpriv: str
) -> None:
    often._leash.cache_clear()
    which, old = shutil.which, tmp_path / "setpriv"
    old.write_text(setpriv)
    old.chmod(0o700)
    found = str(old) if setpriv else None
    monkeypatch.setattr(
        shutil,
        "which",
        lambda name, path=None: found if name == "setpriv" else which(name, path=path),
    )
    try:
        assert quick(["sh", "-c", "echo $0"]).stdout == "sh\n"
    finally:
        often._leash.cache_clear()


PARENT = """
import sys
from hpcbert.system import often, runner
if sys.argv[2]:
    often._leash = lambda pid: (sys.argv[2], "--pdeathsig", "KILL")
often.Often(runner.run, "sh")(["sh", "-c", "echo $$ >$0; exec sleep 60", sys.argv[1]])
"""


def parent(note: Path, setpriv: str = "") -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen([sys.executable, "-c", PARENT, str(note), setpriv], env=env)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_dies_with_its_parent(tmp_path: Path, number: signal.Signals) -> None:
    note = tmp_path / "pid"
    with parent(note) as running:
        until(lambda: note.exists() and note.read_text().endswith("\n"), "its start")
        running.send_signal(number)
        running.wait(CEILING)
    pid = int(note.read_text())
    until(lambda: not alive(pid), "its end")


def test_it_does_not_start_once_its_parent_is_dead(tmp_path: Path) -> None:
    """The parent dies before the command has requested to die with it."""
    note, slow, ended = tmp_path / "pid", tmp_path / "setpriv", tmp_path / "ended"
    os.mkfifo(fifo := tmp_path / "fifo")
    slow.write_text(
        f"#!/bin/sh\necho $$ >'{fifo}'\nread -r go <'{fifo}'\nsetpriv \"$@\" 2>/dev/null\necho $? >'{ended}'\n"
    )
    slow.chmod(0o700)
    with parent(note, str(slow)) as running:
        fifo.read_text()
        running.kill()
        running.wait(CEILING)
    fifo.write_text("go\n")
    until(lambda: ended.exists() and ended.read_text().endswith("\n"), "the end of setpriv")
    assert ended.read_text() != "0\n"
    assert not note.exists()


def alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"
