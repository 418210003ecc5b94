"""Ranks that say hello, as processes of this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.kit.cases import cases
from tests.kit.needs import free_port
from tests.kit.paths import REPOSITORY
from tests.kit.waiting import CEILING

WORKLOADS = REPOSITORY / "hpcbert/workloads"


def program(folder: Path, *, patience: float) -> Path:
    """Return the program, with so many seconds of patience."""
    text = (WORKLOADS / "hello.py").read_text()
    path = folder / f"hello-{patience:g}.py"
    other = f"PATIENCE = {patience}"
    path.write_text(text.replace("PATIENCE = 10.0", other).replace("PATIENCE + 5", "PATIENCE"))
    return path


def run_ranks(programs: Iterable[Path], count: int, port: int, mpi: str = "no") -> list[str]:
    """Start ranks from 0 on, each a node of its own, and return what they print, sorted."""
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SLURM_NTASKS": str(count)}
    started = []
    for rank, path in enumerate(programs):
        env = {**os.environ, **variables, "SLURM_PROCID": str(rank), "SLURMD_NODENAME": f"n{rank}"}
        words = [sys.executable, "-S", str(path), mpi]
        started.append(subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True))
    lines = [process.communicate(timeout=CEILING)[0] for process in started]
    return sorted(line.replace("\t", " ") for text in lines for line in text.splitlines())


@pytest.fixture
def patient(tmp_path: Path) -> Path:
    """The program, which waits for ranks of a busy machine."""
    return program(tmp_path, patience=CEILING)


def test_ranks_meet(patient: Path) -> None:
    assert run_ranks([patient] * 3, 3, free_port()) == [
        "n0 port ok rank 0's port is free",
        "n1 hello ok ranks reach the first one",
        "n2 hello ok ranks reach the first one",
    ]


def test_a_rank_that_does_not_come_is_named_and_mpi_is_not_tried(
    patient: Path, tmp_path: Path
) -> None:
    first = program(tmp_path, patience=3.0)
    assert run_ranks([first, patient], 3, free_port(), "yes") == [
        "n0 hello fail rank 0 hears nothing from ranks 2",
        "n0 port ok rank 0's port is free",
        "n1 hello ok ranks reach the first one",
    ]


def test_a_port_that_is_taken_is_told_by_both_sides(tmp_path: Path) -> None:
    hasty = program(tmp_path, patience=0.5)
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        first, second = run_ranks([hasty] * 2, 2, port)
    assert first == f"n0 port fail {port}: Address already in use"
    assert second.startswith(f"n1 hello fail rank 1 does not reach rank 0 at 127.0.0.1:{port}: ")


@cases
def test_gpus_are_counted_against_what_was_asked(
    tmp_path: Path, listed: int | None, visible: str | None, detail: str
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    if listed is not None:
        lines = "\n".join(f"GPU {number}: V100 (UUID: GPU-{number})" for number in range(listed))
        (tools / "nvidia-smi").write_text(f"#!/bin/sh\ncat <<'END'\n{lines}\nEND\n")
        (tools / "nvidia-smi").chmod(0o755)
    env = {"PATH": f"{tools}:/usr/bin:/bin", "SLURMD_NODENAME": "n1", "SLURM_LOCALID": "0"}
    env |= {"SLURM_PROCID": "0"} | ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    words = [
        "bash",
        str(REPOSITORY / "hpcbert/shell/look.sh"),
        "rank",
        "hello.py",
        "true",
        "",
        "4",
        "no",
    ]
    result = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    (gpu_line,) = [line for line in result.stdout.splitlines() if "\tGPUs\t" in line]
    assert gpu_line.split("\t", 2)[2].replace("\t", " ") == detail
