"""Campaigns on disk and a scripted Slurm on PATH."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import store
from hpcbert.campaign.repeats import Watched
from hpcbert.model import Array, Campaign, Point, Protocol, Shape
from tests.waiting import CEILING

T = 1_795_255_599
KEY = "bert-base_1n1g_fp32_b32"

# Each call takes the next answer of its program, the last one again and again.
PROGRAM = """\
#!/bin/sh
''''exec {python} "$0" "$@" # '''
import json, os, sys
from pathlib import Path
folder = Path(__file__).parent
name = Path(sys.argv[0]).name
with (folder / "calls").open("a") as file:
    file.write(json.dumps([name, *sys.argv[1:]]) + "\\n")
number = sum(json.loads(line)[0] == name for line in (folder / "calls").open()) - 1
answers = json.loads((folder / "answers.json").read_text()).get(name, [[0, "", ""]])
code, out, complaint = answers[min(number, len(answers) - 1)]
sys.stdout.write(out)
sys.stderr.write(complaint)
sys.exit(code)
"""


@dataclass
class ScriptedSlurm:
    """sacct, squeue and scancel as programs on PATH."""

    folder: Path

    def answers(self, **programs: list[Any]) -> None:
        """Set what each program prints, call by call: a text, or status, text and complaint."""
        full = {
            name: [[0, one, ""] if isinstance(one, str) else one for one in answers]
            for name, answers in programs.items()
        }
        (self.folder / "answers.json").write_text(json.dumps(full))

    def calls(self, program: str) -> list[list[str]]:
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call for line in lines if (call := json.loads(line))[0] == program]


@pytest.fixture
def slurm(tmp_path: Path) -> ScriptedSlurm:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sacct", "squeue", "scancel", "sbatch"):
        (folder / name).write_text(PROGRAM.format(python=shlex.quote(sys.executable)))
        (folder / name).chmod(0o755)
    (folder / "answers.json").write_text("{}")
    return ScriptedSlurm(folder)


@dataclass
class Bench:
    """A directory with a site whose Slurm is the scripted one."""

    path: Path
    slurm: ScriptedSlurm

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": f"{self.slurm.folder}:{os.environ['PATH']}"}

    def start(
        self, *words: str, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "hpcbert", *words],
            cwd=self.path,
            env={**self.environment, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def __call__(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        with self.start(*words, **options) as child:
            out, complaint = child.communicate(timeout=CEILING)
        return subprocess.CompletedProcess(words, child.returncode, out, complaint)


@pytest.fixture
def hpcbert(tmp_path: Path, slurm: ScriptedSlurm) -> Bench:
    path = tmp_path / "with a space"
    path.mkdir()
    (path / "site.toml").write_text(
        'schema = 1\nname = "t"\nscheduler = "slurm"\n[slurm]\npoll_floor = 0.2\n'
    )
    return Bench(path, slurm)


@pytest.fixture
def watched(tmp_path: Path) -> Callable[..., Watched]:
    """Make a submitted campaign of one point under the site's runs directory."""

    def make(
        name: str = "20261121T100000Z-pytorch-aaaaaa",
        *,
        job_id: str = "12",
        repeats: int = 2,
        shapes: tuple[int, ...] = (1,),
        scheduler: str = "slurm",
    ) -> Watched:
        directory = tmp_path / "with a space" / "runs" / name
        store.create(directory)
        campaign = Campaign(
            id=name,
            created="2026-11-21T09:56:40Z",
            hpcbert="0",
            user="nobody",
            command=("hpcbert", "submit"),
            scheduler=scheduler,  # type: ignore[arg-type]
            site="t",
            runtime="none",
            image="",
            framework="pytorch",
            recipe_digest="",
            protocol=Protocol(repeats),
            concurrent_repeats=1,
            concurrent_points=False,
            rehearse=False,
            arrays=tuple(
                _array(name, Shape(1, gpus), str(int(job_id) + place), repeats)
                if job_id.isdigit()
                else _array(name, Shape(1, gpus), job_id, repeats)
                for place, gpus in enumerate(shapes)
            ),
        )
        store.write_manifest(directory, campaign)
        recipe = Path(__file__).parents[2] / "templates" / "pytorch" / "recipe.toml"
        store.write_text(directory / store.RECIPE, recipe.read_text())
        return Watched(directory, campaign)

    return make


def _array(name: str, shape: Shape, job_id: str, repeats: int) -> Array:
    point = Point("pytorch", "bert-base", shape, "fp32", 32)
    return Array(
        point=point,
        name=f"hpcbert-{name}-{point.key}",
        repeats=tuple(range(1, repeats + 1)),
        script=f"scripts/{point.key}.sbatch",
        script_sha256="",
        log=f"logs/{point.key}_{{repeat}}.log",
        state="submitted",
        job_id=job_id,
        submitted="2026-11-21T10:00:00Z",
    )


@pytest.fixture
def accounting() -> Callable[..., str]:
    """Return a line of sacct about a repeat."""

    def line(one: Watched, repeat: int, state: str, *, exit_code: str = "0:0", **more: Any) -> str:
        array = one.campaign.arrays[more.get("array", 0)]
        user, name = more.get("user", "nobody"), more.get("name", array.name)
        times = f"{T}|{T + 1}|{T + 9}|8|60"
        job = array.element(repeat)
        return f"{job}|{user}|{state}|{exit_code}|None|{times}|n[1-2]|{name}\n"

    return line


@pytest.fixture
def queue() -> Callable[..., str]:
    """Return a line of squeue about a repeat."""

    def line(one: Watched, repeat: int, state: str, **more: Any) -> str:
        array = one.campaign.arrays[more.get("array", 0)]
        user, name = more.get("user", "nobody"), more.get("name", array.name)
        times = f"{more.get('submit', T)}|{T + 1}|NONE|0:08|1:00:00"
        job = more.get("job", array.element(repeat))
        return f"{job}|{user}|{state}|{times}|n[1-2]|{name}|{more.get('reason', 'None')}\n"

    return line


@pytest.fixture
def log() -> Callable[..., Path]:
    """Write a log of the PyTorch reference that reached some iteration."""

    def write(one: Watched, repeat: int, iteration: int, attempt: int = 0) -> Path:
        path = store.log_path(one.directory, one.campaign.arrays[0], repeat, attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            f"iteration: {n}/120 loss: 9.5 mlm_loss: 8.8 nsp_loss: 0.6 samples/s: 64.0 "
            f"time: {T + n / 2}\n"
            for n in range(1, iteration + 1)
        ]
        path.write_text("".join(lines))
        return path

    return write
