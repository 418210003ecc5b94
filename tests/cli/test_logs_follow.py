"""logs -f as a program, with a scripted Slurm on PATH."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.campaigns import Build
from tests.kit.waiting import CEILING

pytestmark = pytest.mark.slow


def test_it_follows_a_repeat_through_a_requeue_to_its_end(
    hpcbert: Any, slurm: Any, watched: Build
) -> None:
    built = watched(repeats=2)
    shape = str(built.campaign.arrays[0].point.shape)
    waits = built.sacct(2, "PENDING")
    slurm.answers(
        sacct=[built.sacct(1, "RUNNING") + waits] * 2 + [built.sacct(1, "REQUEUED") + waits],
        squeue=[built.squeue(1, "RUNNING") + built.squeue(2, "PENDING")],
    )
    status = built.directory / built.campaign.arrays[0].status(1)
    status.write_text('{"event":"start","time":1,"attempt":0}\n')
    first = built.log(shape, 1, "one\ntwo\n")
    with hpcbert.start("logs", "-f", "--tail", "1", built.campaign.id) as child:
        assert child.stdout.readline() == "two\n", "of those meant it is the one that runs"
        with first.open("a") as file:
            file.write("three\n")
        assert child.stdout.readline() == "three\n"
        with first.open("a") as file:
            file.write("four\n")
        again = built.log(shape, 1, "again one\n", attempt=1)
        with status.open("a") as file:
            file.write('{"event":"start","time":9,"attempt":1}\n')
        assert child.stdout.readline() == "four\n", "to the end of the first attempt's"
        assert child.stdout.readline() == "again one\n"
        message = "ModuleNotFoundError: No module named 'torch'"
        with again.open("a") as file:
            file.write(f"{message}\n")
        with status.open("a") as file:
            file.write('{"event":"finished","time":12,"attempt":1,"exit":1}\n')
        slurm.answers(sacct=[built.sacct(1, "FAILED", exit_code="1:0") + waits])
        out, complaint = child.communicate(timeout=CEILING)
    assert (child.returncode, out) == (0, f"{message}\n")
    assert "repeat 1: RUNNING" in complaint
    assert "repeat 1 attempt 1: FAILED" in complaint
    assert f"warning: Repeat 1 failed: {message}" in complaint


def test_it_waits_for_a_log_and_of_what_is_over_prints_all(
    hpcbert: Any, slurm: Any, watched: Build
) -> None:
    built = watched(repeats=1)
    shape = str(built.campaign.arrays[0].point.shape)
    slurm.answers(squeue=[built.squeue(1, "PENDING", reason="Priority")])
    with hpcbert.start("logs", "--follow", built.campaign.id) as child:
        line = child.stderr.readline()
        built.complete(shape, 1, 100.0)
        slurm.answers(sacct=[built.sacct(1, "COMPLETED")], squeue=[""])
        out, _ = child.communicate(timeout=CEILING)
    log = built.log_path(shape, 1).read_text()
    assert "repeat 1: PENDING (" in line
    assert (child.returncode, out) == (0, log)
    assert hpcbert("logs", "-f", built.campaign.id).stdout == log
