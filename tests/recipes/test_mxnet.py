"""Horovod's ranks find each other without horovodrun and without MPI: rank 0 keeps the store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.cases import read_constant
from tests.kit.needs import free_port
from tests.kit.paths import TEMPLATES
from tests.kit.waiting import CEILING

# What gloo.py takes of Horovod 0.28.1, horovod/runner/http/http_server.py.
HOROVOD = read_constant(__file__, "HOROVOD")
# Rank 0 lives until the other has been served, as it does under Horovod.
PROGRAM = read_constant(__file__, "PROGRAM")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    package = tmp_path / "lib" / "horovod" / "runner" / "http"
    package.mkdir(parents=True)
    (package / "http_server.py").write_text(HOROVOD)
    program = tmp_path / "a program"
    program.mkdir()
    (program / "train.py").write_text(PROGRAM)
    (program / "neighbour.py").write_text("")
    return tmp_path


def test_ranks_wait_for_the_store_and_run_the_program_as_itself(folder: Path) -> None:
    port = free_port()
    argv = [sys.executable, str(TEMPLATES / "mxnet" / "gloo.py"), "train.py", "--gpus="]
    ranks = []
    for rank in ("1", "0"):
        env = {
            **os.environ,
            "PYTHONPATH": str(folder / "lib"),
            "HOROVOD_RANK": rank,
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        }
        ranks.append(
            subprocess.Popen(
                argv,
                env=env,
                cwd=folder / "a program",
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    outputs = [rank.communicate(timeout=CEILING) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert (folder / "a program" / "seen").read_text() == "200"
    assert [out for out, _ in outputs] == ["__main__ ['train.py', '--gpus=']\n"] * 2
