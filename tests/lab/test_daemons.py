"""Processes of a lab: known by their mark and start, ended for certain, left running on purpose."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from hpcbert.errors import CheckError
from hpcbert.lab.daemons import find_marked, run_checked, spawn
from hpcbert.system.processes import Process, end_processes, identify
from hpcbert.system.runner import run
from tests.kit.waiting import CEILING, until

ENVIRONMENT = {"PATH": os.environ["PATH"]}


def test_a_process_is_found_by_its_mark_and_ended_unless_its_pid_is_another_s():
    marking = {**ENVIRONMENT, "HPCBERT_TEST": f"mark-{os.getpid()}"}
    with subprocess.Popen(["sleep", "3600"], env=marking) as sleeper:
        try:
            process = identify(sleeper.pid)
            assert process
            assert list(find_marked(f"HPCBERT_TEST=mark-{os.getpid()}")) == [process]
            assert list(find_marked("HPCBERT_TEST=mark-")) == []
            other = Process(process.pid, process.start - 1)
            assert not other.alive
            assert end_processes([other], timeout=1)
            assert identify(process.pid) == process
            assert end_processes([process], timeout=CEILING)
            assert identify(process.pid) is None, "even before it is reaped"
            assert sleeper.wait() == -signal.SIGKILL
        finally:
            sleeper.kill()


def test_a_process_that_ignores_a_signal_is_reported(tmp_path):
    words = ["sh", "-c", "trap '' TERM; touch ready; sleep 3600 & wait; wait"]
    with subprocess.Popen(words, cwd=tmp_path, start_new_session=True) as child:
        until((tmp_path / "ready").exists, "the process never began")
        process = identify(child.pid)
        assert process
        assert not end_processes([process], signal_number=signal.SIGTERM, timeout=0.2)
        os.killpg(child.pid, signal.SIGKILL)


def test_a_daemon_outlives_the_command_that_started_it_or_complains(tmp_path):
    log, words = tmp_path / "log", ["sh", "-c", "echo out; echo err >&2; exec sleep 3600"]
    process = identify(spawn(run, words, log=log, env=ENVIRONMENT))
    assert process
    try:
        assert Path(f"/proc/{process.pid}/cwd").readlink() == Path("/")
        assert os.getsid(process.pid) not in (os.getsid(0), 0)
        until(lambda: log.read_text() == "out\nerr\n", log.read_text)
    finally:
        assert end_processes([process], timeout=CEILING)
    prelude = "echo no such thing >&2; exit 1"
    with pytest.raises(CheckError, match="no such thing"):
        spawn(run, ["sleep", "60"], log=log, env=ENVIRONMENT, prelude=prelude)
    with pytest.raises(CheckError, match="oh dear") as caught:
        run_checked(run, ["sh", "-c", "echo oh dear >&2; false"], env=ENVIRONMENT)
    assert caught.value.where.startswith("sh")
    with pytest.raises(CheckError, match="exit status 3"):
        run_checked(run, ["sh", "-c", "exit 3"], env=ENVIRONMENT)
