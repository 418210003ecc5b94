"""Which log `hpcbert logs` prints, and what it follows."""

import os

import pytest

from tests.kit.cli import run
from tests.kit.waiting import CEILING


def test_the_newest_log_is_printed_and_a_script_s_output_comes_after(build, empty_directory):
    built = build("1n1g", repeats=2)
    assert "no log yet" in run("logs", status=4).stderr
    (built.directory / "slurm" / "70_2.out").write_text("from the script\n")
    script = run("logs", "--repeat", "2")
    assert (script.stdout, "no log yet" in script.stderr) == ("from the script\n", True)
    first = built.reach(1, 30)
    os.utime(first, (2, 2))
    assert run("logs").stdout == first.read_text(), "that of ranks, not a later script's output"
    second = built.reach(2, 40)
    os.utime(second, (1, 1))
    assert run("logs", "--path").stdout == f"{first}\n"
    assert run("logs", "pytorch").stdout == first.read_text()
    assert run("logs", "--repeat", "2").stdout == second.read_text()
    lines = second.read_text().splitlines()
    assert run("logs", "--repeat", "2", "--tail", "3").stdout.splitlines() == lines[-3:]
    assert run("logs", "--tail", "0").stdout == ""
    data = run("logs", "--repeat", "2", "--tail", "1", "--json").data
    assert (data["path"], data["bytes"]) == (str(second), second.stat().st_size)
    assert data["lines"] == lines[-1:]
    again = built.reach(1, 6, attempt=1)
    starts = ({"event": "start", "attempt": attempt} for attempt in (0, 1))
    built.mark("1n1g", 1, *starts)
    assert run("logs", "--repeat", "1", "--path").stdout == f"{again}\n", "the newest attempt's"
    for words, part in (
        (("--point", "bert-tiny_1n1g_fp32_b5"), "Did you mean bert-tiny_1n1g_fp32_b4?"),
        (("--repeat", "9"), "Repeats are numbered from 1 to 2."),
        (("nosuch",), "There is no campaign"),
    ):
        assert part in run("logs", *words, status=2).stderr


@pytest.mark.slow
def test_a_log_can_not_steer_a_terminal_and_a_pipe_is_no_log(hpcbert, watched):
    path = watched().reach(1, 1)
    path.write_bytes("\x1b[2Jé\x07\n".encode() * 3)
    _, text = hpcbert.on_terminal("logs", "--repeat", "1")
    assert "é" in text
    assert not {"\x1b", "\x07"} & set(text)
    path.unlink()
    os.mkfifo(path)
    assert hpcbert("logs", "--repeat", "1").returncode == 4


@pytest.mark.slow
def test_a_repeat_is_followed_through_a_requeue_to_its_end(hpcbert, slurm, watched):
    built, message = watched(repeats=2), "ModuleNotFoundError: No module named 'torch'"
    waits = built.sacct(2, "PENDING")
    slurm.answers(
        sacct=[built.sacct(1, "RUNNING") + waits] * 2 + [built.sacct(1, "REQUEUED") + waits],
        squeue=[built.squeue(1, "RUNNING") + built.squeue(2, "PENDING")],
    )
    built.mark("1n1g", 1, {"event": "start", "attempt": 0})
    first = built.log("1n1g", 1, "one\ntwo\n")
    with hpcbert.start("logs", "-f", "--tail", "1", built.campaign.id) as child:
        assert child.stdout
        assert child.stdout.readline() == "two\n", "of those meant it is the one that runs"
        with first.open("a") as file:
            file.write("three\n")
        assert child.stdout.readline() == "three\n"
        with first.open("a") as file:
            file.write("four\n")
        again = built.log("1n1g", 1, "again one\n", attempt=1)
        built.mark("1n1g", 1, {"event": "start"}, attempt=1)
        assert child.stdout.readline() == "four\n", "to the end of the first attempt's"
        assert child.stdout.readline() == "again one\n"
        with again.open("a") as file:
            file.write(f"{message}\n")
        built.mark("1n1g", 1, {"event": "finished", "exit": 1}, attempt=1)
        slurm.answers(sacct=[built.sacct(1, "FAILED", exit_code="1:0") + waits])
        out, complaint = child.communicate(timeout=CEILING)
    assert (child.returncode, out) == (0, f"{message}\n")
    assert "repeat 1: RUNNING" in complaint
    assert "repeat 1 attempt 1: FAILED" in complaint
    assert f"warning: Repeat 1 failed: {message}" in complaint


@pytest.mark.slow
def test_a_log_is_waited_for_and_of_what_is_over_all_is_printed(hpcbert, slurm, watched):
    built = watched(repeats=1)
    slurm.answers(squeue=[built.squeue(1, "PENDING", reason="Priority")])
    with hpcbert.start("logs", "--follow", built.campaign.id) as child:
        assert child.stderr
        assert "repeat 1: PENDING (" in child.stderr.readline()
        built.complete("1n1g", 1, 100.0)
        slurm.answers(sacct=[built.sacct(1, "COMPLETED")], squeue=[""])
        out, _ = child.communicate(timeout=CEILING)
    log = built.log_path("1n1g", 1).read_text()
    assert (child.returncode, out) == (0, log)
    assert hpcbert("logs", "-f", built.campaign.id).stdout == log
