"""Work that processes share gives what one process gives, whatever becomes of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcbert.system import workers
from tests.kit.cases import cases, read_constant
from tests.kit.paths import REPOSITORY
from tests.kit.waiting import CEILING, until

pytestmark = pytest.mark.slow

# A process of its own: one that tests run in may have threads. Three processes side by side.
_BEGIN = read_constant(__file__, "_BEGIN")
Program = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Starts a program in a session of its own, so that Ctrl-C is of its processes alone."""

    def start(text: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", _BEGIN + text],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start


def read_lines(process: subprocess.Popen[str]) -> list[str]:
    out, err = process.communicate(timeout=CEILING)
    assert (process.returncode, err) == (0, "")
    return out.splitlines()


def test_results_come_in_the_order_of_the_items_from_several_processes(program: Program) -> None:
    text = """
made = workers.map_in_parallel(lambda one: (one, os.getpid()), range(500), [huge] * 500)
print([one for one, _ in made] == list(range(500)), main in {pid for _, pid in made}, children())
"""
    assert read_lines(program(text)) == ["True False []"]


def test_of_several_errors_the_first_one_is_raised(program: Program) -> None:
    text = """
def work(one):
    if one in (3, 7): raise ValueError(one)
    return one
try: workers.map_in_parallel(work, range(9), [huge] * 9)
except ValueError as error: print(error, children())
"""
    assert read_lines(program(text)) == ["3 []"]


@pytest.mark.parametrize("killed", [0, 2], ids=["first", "last"])
def test_a_killed_worker_is_reported_and_the_others_are_ended(
    program: Program, killed: int
) -> None:
    text = f"""
def work(item):
    # One is killed once all have work.
    (pathlib.Path.cwd() / str(item)).touch()
    while len(list(pathlib.Path.cwd().iterdir())) < 3: time.sleep(0.01)
    if item == {killed}: os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
try: workers.map_in_parallel(work, range(3), [huge] * 3)
except HpcbertError as error: print(error, error.hint, children())
"""
    (line,) = read_lines(program(text))
    assert line.startswith("One of the processes that read files was killed")
    assert "ran out of memory" in line
    assert line.endswith("[]")


_WAITING = """
def work(one):
    (pathlib.Path.cwd() / str(os.getpid())).touch()
    time.sleep(600)
try: workers.map_in_parallel(work, range(3), [huge] * 3)
except KeyboardInterrupt: print("interrupted", children())
"""


def wait_for_workers(folder: Path) -> list[int]:
    names = until(lambda: paths if len(paths := list(folder.iterdir())) == 3 else [], "processes")
    return [int(name.name) for name in names]


@pytest.mark.parametrize("send", [os.killpg, os.kill], ids=["terminal", "command-alone"])
def test_ctrl_c_ends_all_of_them(
    program: Program, tmp_path: Path, send: Callable[[int, int], None]
) -> None:
    process = program(_WAITING)
    wait_for_workers(tmp_path)
    send(process.pid, signal.SIGINT)
    assert read_lines(process) == ["interrupted []"]


def test_workers_end_soon_after_the_command_was_killed(program: Program, tmp_path: Path) -> None:
    text = _WAITING.replace("600", "0.05").replace("3)", "10**6)").replace("* 3", "* 10**6")
    process = program(text)
    pids = wait_for_workers(tmp_path)
    process.kill()
    process.communicate()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the workers' end")


def test_where_no_process_can_be_started_this_one_does_the_work(program: Program) -> None:
    text = """
def refuse(): raise BlockingIOError(11, "no more processes")
os.fork = refuse
print(workers.map_in_parallel(lambda one: os.getpid() == main, range(3), [huge] * 3))
"""
    assert read_lines(program(text)) == ["[True, True, True]"]


def test_beside_threads_no_process_is_started(program: Program) -> None:
    text = """
import threading
end = threading.Event()
threading.Thread(target=end.wait).start()
print(workers.map_in_parallel(lambda one: os.getpid() == main, range(3), [huge] * 3))
end.set()
"""
    assert read_lines(program(text)) == ["[True, True, True]"]


def test_little_work_is_done_here() -> None:
    results = workers.map_in_parallel(lambda _: os.getpid(), range(30), [50_000] * 30)
    assert set(results) == {os.getpid()}
    assert workers.map_in_parallel(str, (), ()) == []


@cases
def test_a_cgroup_limits_how_many_cores_there_are(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    group: str,
    cores: int,
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "group").write_text(f"{group}\n")
    monkeypatch.setattr(workers, "_CGROUPS", tmp_path)
    monkeypatch.setattr(workers, "_OWN_CGROUP", tmp_path / "group")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    assert workers.count_cores() == cores
