from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpcbert.workloads.bert_pretrain import Settings, Trainer
from tests.kit.ports import free_port
from tests.kit.waiting import CEILING

LAUNCHER_VARIABLES = re.compile(
    r"(RANK|WORLD_SIZE|LOCAL_RANK|MASTER_(ADDR|PORT)|PMIX_.*|OMPI_.*|SLURM_.*)"
)
SMALL = [
    "--device=cpu",
    "--model=tiny",
    "--hidden=32",
    "--vocab=160",
    "--sequence-length=32",
    "--predictions=5",
    "--batch-size=4",
    "--threads=1",
]


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
        from hpcbert.workloads import bert_pretrain as workload

        return workload.parse_settings([*SMALL, *options])

    return make


@pytest.fixture
def trainer(settings: Callable[..., Settings]) -> Callable[..., Trainer]:
    def make(*options: str) -> Trainer:
        from hpcbert.workloads import bert_pretrain as workload

        chosen, ranks = settings(*options), workload.Ranks()
        # As the program does: on a busy machine two threads wait for each other.
        importlib.import_module("torch").set_num_threads(chosen.threads)
        device = workload.choose_device(chosen.device, ranks)
        return workload.Trainer(chosen, ranks, device, workload.open_source(chosen, ranks, device))

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


@pytest.fixture
def start() -> Callable[..., subprocess.Popen[str]]:
    def run(
        code: str, *options: str, environment: Mapping[str, str], **streams: Any
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code, *SMALL, *options],
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            text=True,
            cwd=Path(__file__).parents[2],
            **streams,
        )

    return run


@pytest.fixture
def two_ranks(start: Callable[..., subprocess.Popen[str]]) -> Callable[..., list[Ended]]:
    """Run Python code, by default the program itself, as two ranks over the loopback device."""

    def run(*options: str, code: str = "") -> list[Ended]:
        port = str(free_port())
        processes = [
            start(
                code
                or "import sys; from hpcbert.workloads import bert_pretrain as workload\n"
                "sys.exit(workload.main())",
                *options,
                environment={
                    "SLURM_STEP_ID": "0",
                    "SLURM_PROCID": str(rank),
                    "SLURM_STEP_NUM_TASKS": "2",
                    "SLURM_LOCALID": str(rank),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": port,
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for rank in range(2)
        ]
        try:
            streams = [process.communicate(timeout=CEILING) for process in processes]
        finally:
            for process in processes:
                process.kill()
        return [
            Ended(process.returncode, *stream)
            for process, stream in zip(processes, streams, strict=True)
        ]

    return run
