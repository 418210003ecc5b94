from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcbert.errors import CheckError
from hpcbert.lab.daemons import find_marked, is_listening, run_checked, spawn
from hpcbert.system.processes import Process, end_processes, identify
from hpcbert.system.runner import run
from tests.kit.waiting import CEILING, until

ENVIRONMENT = {"PATH": os.environ["PATH"]}


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    marking = {**ENVIRONMENT, "HPCBERT_TEST": f"mark-{os.getpid()}"}
    with subprocess.Popen(["sleep", "3600"], env=marking) as process:
        yield process
        process.kill()


def identify_process(process: subprocess.Popen[bytes]) -> Process:
    identified = identify(process.pid)
    assert identified is not None
    return identified


def test_a_process_that_ended_is_not_alive_even_before_it_is_reaped(
    sleeper: subprocess.Popen[bytes],
):
    process = identify_process(sleeper)
    assert end_processes([process], timeout=CEILING)
    assert not process.alive
    assert identify(process.pid) is None
    assert sleeper.wait() == -signal.SIGKILL


def test_a_pid_that_is_used_again_is_never_hit(sleeper: subprocess.Popen[bytes]):
    process = identify_process(sleeper)
    other = Process(process.pid, process.start - 1)
    assert not other.alive
    assert end_processes([other], timeout=1)
    assert process.alive


def test_a_process_that_ignores_a_signal_is_reported(tmp_path: Path):
    words = ["sh", "-c", "trap '' TERM; touch ready; sleep 3600 & wait; wait"]
    with subprocess.Popen(words, cwd=tmp_path, start_new_session=True) as process:
        until((tmp_path / "ready").exists, "the process never began")
        assert not end_processes(
            [identify_process(process)], signal_number=signal.SIGTERM, timeout=0.2
        )
        os.killpg(process.pid, signal.SIGKILL)


def test_processes_are_found_by_their_mark(sleeper: subprocess.Popen[bytes]):
    assert list(find_marked(f"HPCBERT_TEST=mark-{os.getpid()}")) == [identify_process(sleeper)]
    assert list(find_marked("HPCBERT_TEST=mark-")) == []


def test_a_listener_is_seen_without_a_connection():
    ourselves = identify(os.getpid())
    assert ourselves is not None
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert is_listening(ourselves, port)
    assert not is_listening(ourselves, port)


def test_a_spawned_daemon_outlives_the_command_that_started_it(tmp_path: Path):
    log = tmp_path / "log"
    pid = spawn(
        run, ["sh", "-c", "echo out; echo err >&2; exec sleep 3600"], log=log, env=ENVIRONMENT
    )
    process = identify(pid)
    assert process is not None
    try:
        assert Path(f"/proc/{pid}/cwd").readlink() == Path("/")
        assert os.getsid(pid) not in (os.getsid(0), 0)
        until(lambda: log.read_text().count("\n") == 2, log.read_text)
        assert log.read_text() == "out\nerr\n"
    finally:
        assert end_processes([process], timeout=CEILING)


def test_a_daemon_whose_prelude_fails_is_an_error_with_its_complaint(tmp_path: Path):
    with pytest.raises(CheckError, match="no such thing"):
        spawn(
            run,
            ["sleep", "60"],
            log=tmp_path / "log",
            env=ENVIRONMENT,
            prelude="echo no such thing >&2; exit 1",
        )


def test_a_command_that_must_succeed_complains_in_its_own_words():
    with pytest.raises(CheckError, match="oh dear") as caught:
        run_checked(run, ["sh", "-c", "echo oh dear >&2; false"], env=ENVIRONMENT)
    assert caught.value.where.startswith("sh")
    with pytest.raises(CheckError, match="exit status 3"):
        run_checked(run, ["sh", "-c", "exit 3"], env=ENVIRONMENT)
