"""Work that processes share gives what one process gives, byte for byte, whatever becomes of them."""

import gzip
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpcbert.system import workers
from tests.kit.campaigns import campaign
from tests.kit.cases import read_constant
from tests.kit.logs import log, write_file
from tests.kit.paths import REPOSITORY
from tests.kit.waiting import CEILING, until

pytestmark = pytest.mark.slow


def start(folder, text, *values):
    """Start a program of three workers, in a session of its own, so that Ctrl-C is for it alone."""
    argv = [sys.executable, "-c", read_constant(__file__, "BEGIN") + text, *map(str, values)]
    return subprocess.Popen(
        argv, cwd=folder, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def read_lines(process):
    out, err = process.communicate(timeout=CEILING)
    assert (process.returncode, err) == (0, "")
    return out.splitlines()


def collect(folder, processes, *words):
    """Return what is printed and written if so many processes read logs, without dates and seals."""
    process = start(folder, read_constant(__file__, "COLLECT"), processes, *words)
    *lines, started = read_lines(process)
    assert int(started) >= (processes if processes > 1 else 0)
    texts = ["\n".join(lines), *(path.read_text() for path in sorted(folder.glob("*.json")))]
    return [re.sub(r'"(date|recorded|seal)": ?"[^"]*"', "", text) for text in texts]


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


def test_a_campaign_with_good_and_damaged_logs_is_collected_alike(tmp_path):
    built = campaign(tmp_path / "runs", "1n1g", "1n2g", "1n4g", "2n4g", repeats=3).finish()
    chance = random.Random(16)
    for repeat in built.repeats:
        number, shape = repeat.number, str(repeat.array.point.shape)
        text = built.text(shape, 8.0, last=number, nan_at=number)
        copy, oom = built.text(shape, 8.0), "RuntimeError: CUDA error: out of memory\n"
        kinds = (text, text.replace("loss", "l\x1b[31moss"), copy, "\0" * 5000, oom)
        if chance.random() < 0.6:
            built.log(shape, number, chance.choice(kinds))
        elif chance.random() < 0.2:
            built.log_path(shape, number).unlink()
    directory = shutil.copytree(built.directory, tmp_path / "copy" / built.directory.name)
    alone = collect(built.directory, 1, "campaign", ".")
    assert "measurements" in {path.stem for path in built.directory.glob("*.json")}
    # Evidence that several processes recorded holds.
    assert collect(directory, 3, "campaign", ".") == alone
    assert collect(directory, 3, "campaign", ".") == alone


def test_foreign_logs_good_and_bad_are_collected_alike(tmp_path):
    chance = random.Random(7)
    for number in range(40):
        shape = chance.choice(("1n1g", "1n2g", "2n8g"))
        text = log(shape, chance.uniform(5, 90), batch=chance.choice((4, 4, 8))).encode()
        text = text[: chance.randrange(len(text))] if chance.random() < 0.3 else text
        is_packed = chance.random() < 0.2
        name = f"pytorch/{shape}/bert_b4_fp32_{number}.log{'.gz' if is_packed else ''}"
        write_file(tmp_path, name, gzip.compress(text) if is_packed else text)
    (alone,) = collect(tmp_path, 1, "command", "collect", tmp_path, "--json")
    assert '"tables"' in alone
    assert collect(tmp_path, 3, "command", "collect", tmp_path, "--json") == [alone]
