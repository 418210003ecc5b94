"""Work that processes share gives what one process gives, whatever becomes of them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpcbert.system import workers
from tests.kit.cases import cases, read_constant
from tests.kit.logs import write_file
from tests.kit.paths import REPOSITORY
from tests.kit.waiting import CEILING, until

pytestmark = pytest.mark.slow


def start(folder, text, *values):
    """Start a program of three workers, in a session of its own, so that Ctrl-C is for it alone.

    The tests' own process may have threads.
    """
    begin = read_constant(__file__, "BEGIN")
    return subprocess.Popen(
        [sys.executable, "-c", begin + text, *map(str, values)],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def read_lines(process):
    out, err = process.communicate(timeout=CEILING)
    assert (process.returncode, err) == (0, "")
    return out.splitlines()


def test_results_are_in_order_the_first_error_is_raised_and_no_process_stays(tmp_path):
    """Where no process can be started, or next to threads, the process itself does the work."""
    lines = read_lines(start(tmp_path, read_constant(__file__, "SHARE")))
    assert lines == ["True False []", "3 []", "[True, True, True]", "[True, True, True]"]


@pytest.mark.parametrize("killed", [0, 2], ids=["first", "last"])
def test_a_killed_worker_is_reported_and_the_others_are_ended(tmp_path, killed):
    (line,) = read_lines(start(tmp_path, read_constant(__file__, "KILL"), killed))
    assert line.startswith("One of the processes that read files was killed")
    assert "ran out of memory" in line
    assert line.endswith("[]")


def test_ctrl_c_or_the_end_of_the_command_ends_all_of_them(tmp_path):
    def start_waiting(name, *values):
        folder = tmp_path / name
        folder.mkdir()
        process = start(folder, read_constant(__file__, "WAIT"), *values)
        until(lambda: len(list(folder.iterdir())) == 3, "processes")
        return process, [int(path.name) for path in folder.iterdir()]

    for send in (os.killpg, os.kill):  # from the terminal; to the command alone
        process, _ = start_waiting(send.__name__, 600, 3)
        send(process.pid, signal.SIGINT)
        assert read_lines(process) == ["interrupted []"], send
    process, pids = start_waiting("killed", 0.05, 10**6)
    process.kill()
    process.communicate()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the workers' end")


def test_little_work_is_done_here():
    results = workers.map_in_parallel(lambda _: os.getpid(), range(30), [50_000] * 30)
    assert set(results) == {os.getpid()}
    assert workers.map_in_parallel(str, (), ()) == []


@cases
def test_a_cgroup_limits_how_many_cores_there_are(tmp_path, monkeypatch, files, group, cores):
    for name, text in {**files, "group": f"{group}\n"}.items():
        write_file(tmp_path, name, text)
    monkeypatch.setattr(workers, "_CGROUPS", tmp_path)
    monkeypatch.setattr(workers, "_OWN_CGROUP", tmp_path / "group")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    assert workers.count_cores() == cores
