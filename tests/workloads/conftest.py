from __future__ import annotations

import importlib
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.kit.cases import read_constant
from tests.kit.needs import free_port
from tests.kit.waiting import CEILING

if find_spec("torch"):
    from hpcbert.workloads.bert_pretrain import Trainer
    from hpcbert.workloads.bert_settings import Settings
else:  # These can't even be imported without PyTorch.
    collect_ignore_glob = ["test_bert_*.py"]

LAUNCHER_VARIABLES = re.compile(
    r"(RANK|WORLD_SIZE|LOCAL_RANK|MASTER_(ADDR|PORT)|PMI.*|OMPI_.*|MV2_.*|SLURM_.*)"
)
SMALL = read_constant(__file__, "SMALL")

_FORK = read_constant(__file__, "_FORK")


@dataclass(frozen=True)
class Ended:
    """How one process ended."""

    status: int
    stdout: str
    stderr: str


@pytest.fixture(autouse=True)
def without_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if LAUNCHER_VARIABLES.fullmatch(name):
            monkeypatch.delenv(name)


@pytest.fixture
def settings() -> Callable[..., Settings]:
    def make(*options: str) -> Settings:
        from hpcbert.workloads import bert_settings

        return bert_settings.parse_settings([*SMALL, *options])

    return make


@pytest.fixture
def trainer(settings: Callable[..., Settings]) -> Callable[..., Trainer]:
    def make(*options: str) -> Trainer:
        from hpcbert.workloads import bert_data, bert_ranks
        from hpcbert.workloads import bert_pretrain as workload

        chosen, ranks = settings(*options), bert_ranks.Ranks()
        # As the program does: on a busy machine two threads wait for each other.
        importlib.import_module("torch").set_num_threads(chosen.threads)
        device = bert_ranks.choose_device(chosen.device, ranks)
        return workload.Trainer(chosen, ranks, device, bert_data.open_source(chosen, ranks, device))

    return make


@pytest.fixture
def main(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Run the program within the test's own process, as one rank."""

    def run(*options: str) -> Ended:
        from hpcbert.workloads import bert_pretrain as workload

        capsys.readouterr()
        status = workload.main([*SMALL, *options])
        return Ended(status, *capsys.readouterr())

    return run


def start_program(code: str, *options: str, **streams: Any) -> subprocess.Popen[str]:
    """Start Python code with the options of a small run."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *SMALL, *options],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
        cwd=Path(__file__).parents[2],
        **streams,
    )


@pytest.fixture(scope="session")
def rank_server() -> Iterator[subprocess.Popen[str]]:
    """Imports PyTorch once, and forks two ranks for each line that it reads."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "start_new_session": True}
    with start_program(_FORK, **pipes) as process:
        yield process
        # The ranks are of its session.
        os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def two_ranks(rank_server: subprocess.Popen[str], tmp_path: Path) -> Callable[..., list[Ended]]:
    """Run Python code, by default the program itself, as two ranks over the loopback device."""
    stdin, stdout = rank_server.stdin, rank_server.stdout
    assert stdin
    assert stdout

    def run(*options: str, code: str = "workload.leave(workload.main())") -> list[Ended]:
        port = str(free_port())
        environment = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        folder = tmp_path / "ranks"
        folder.mkdir()
        print(
            json.dumps([str(folder), code, [*SMALL, *options], environment]), file=stdin, flush=True
        )
        readable, _, _ = select.select([stdout], [], [], CEILING)
        assert readable, "the ranks did not end"
        return [
            Ended(int(status), *((folder / f"{rank}.{end}").read_text() for end in ("out", "err")))
            for rank, status in enumerate(stdout.readline().split())
        ]

    return run
