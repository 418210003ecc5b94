from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hpcbert.campaign import store
from hpcbert.cli.collect import command
from hpcbert.model import Array, Campaign, Point, Protocol, Shape

RECIPES = Path(__file__).resolve().parent / "recipes"
ITERS, SKIP = 12, 2


@pytest.fixture
def collect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs `hpcbert collect WORDS` away from any site, with the tests' own recipes."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HPCBERT_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> Result:
        argv = [*map(str, words), "--templates", str(RECIPES)]
        return CliRunner().invoke(command, argv, catch_exceptions=False)

    return run


@pytest.fixture
def collect_json(collect: Callable[..., Result]) -> Callable[..., dict[str, Any]]:
    """Runs it with --json and returns the document, whose exit code must be the process's."""

    def run(*words: object) -> dict[str, Any]:
        result = collect(*words, "--json")
        document: dict[str, Any] = json.loads(result.stdout)
        assert document["exit_code"] == result.exit_code
        assert document["command"] == "collect"
        return document

    return run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Runs `hpcbert collect WORDS --json` with hpcbert's own recipes and returns the document."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HPCBERT_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)

    def invoke(*words: object) -> dict[str, Any]:
        argv = [*map(str, words), "--json"]
        result = CliRunner().invoke(command, argv, catch_exceptions=False)
        document: dict[str, Any] = json.loads(result.stdout)
        assert document["exit_code"] == result.exit_code
        return document

    return invoke


def pytorch_log(
    shape: str,
    rate: float,
    *,
    last: int = ITERS,
    batch: int = 4,
    nan_at: int = 0,
    start: float = 1763717655.5,
) -> str:
    gpus = Shape.parse(shape).gpus
    config = {"batch_size_per_device": batch, "accumulation": 1, "precision": "fp32"}
    config |= {"world_size": gpus, "global_batch_size": batch * gpus}
    seconds = batch * gpus / rate
    lines = [f"hpcbert-config {json.dumps(config)}"]
    lines += [
        f"iteration: {n}/{ITERS} loss: {'nan' if n == nan_at else '9.5'} mlm_loss: 8.8 "
        f"nsp_loss: 0.7 samples/s: {rate:.2f} time: {start + n * seconds:.6f}"
        for n in range(1, last + 1)
    ]
    return "\n".join([*lines, ""])


@dataclass(frozen=True)
class Built:
    """A campaign on disk."""

    directory: Path
    campaign: Campaign

    def array(self, shape: str) -> Array:
        return next(one for one in self.campaign.arrays if str(one.point.shape) == shape)

    def log(self, shape: str, repeat: int, text: str, attempt: int = 0) -> None:
        path = store.log_path(self.directory, self.array(shape), repeat, attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def mark(self, shape: str, repeat: int, *events: dict[str, Any], attempt: int = 0) -> None:
        path = store.status_path(self.directory, self.array(shape), repeat)
        with path.open("a") as file:
            for event in events:
                file.write(json.dumps({"time": 1763717655, "attempt": attempt, **event}) + "\n")

    def started(self, shape: str, repeat: int, *, attempt: int = 0) -> None:
        start = {"event": "start", "job": "7_1", "host": "n1", "nodelist": "n[1-2]", "pid": 4}
        self.mark(shape, repeat, start, {"event": "step"}, attempt=attempt)

    def ended(self, shape: str, repeat: int, *, code: int = 0, attempt: int = 0) -> None:
        events = ({"event": "step-end", "exit": code}, {"event": "end", "exit": code})
        self.mark(shape, repeat, *events, attempt=attempt)

    def text(self, shape: str, rate: float, **changes: Any) -> str:
        """Return a log of the PyTorch reference whose clock rule gives the rate."""
        return pytorch_log(shape, rate, **changes)

    def complete(self, shape: str, repeat: int, rate: float, **changes: Any) -> None:
        # No two runs print the same bytes: logs that do are copies.
        text = f"this is repeat {repeat}\n{self.text(shape, rate, **changes)}"
        self.log(shape, repeat, text)
        self.started(shape, repeat)
        self.ended(shape, repeat)

    def change(self, **changes: Any) -> Built:
        campaign = replace(self.campaign, **changes)
        store.write_manifest(self.directory, campaign)
        return Built(self.directory, campaign)


@pytest.fixture
def build(tmp_path: Path, repository: Path) -> Callable[..., Built]:
    """Makes campaigns of the PyTorch reference, as submit would leave them."""

    def make(
        *shapes: str, name: str = "20261121-pytorch-abc", repeats: int = 5, **changes: Any
    ) -> Built:
        directory = tmp_path / "runs" / name
        store.create(directory)
        arrays = tuple(_array(name, shape, number, repeats) for number, shape in enumerate(shapes))
        values: dict[str, Any] = {
            "id": name,
            "created": "2026-11-21T10:00:00Z",
            "hpcbert": "0",
            "user": "u",
            "command": ("hpcbert", "submit"),
            "scheduler": "slurm",
            "site": "test",
            "runtime": "none",
            "image": "",
            "framework": "pytorch",
            "recipe_digest": "",
            "protocol": Protocol(repeats, ITERS, SKIP),
            "concurrent_repeats": 1,
            "concurrent_points": False,
            "rehearse": False,
            "arrays": arrays,
        }
        campaign = Campaign(**{**values, **changes})
        store.write_manifest(directory, campaign)
        shutil.copy(repository / "templates" / "pytorch" / "recipe.toml", directory)
        return Built(directory, campaign)

    return make


def _array(name: str, shape: str, number: int, repeats: int) -> Array:
    point = Point("pytorch", "bert-tiny", Shape.parse(shape), "fp32", 4)
    return Array(
        point=point,
        name=f"hpcbert-{name}-{point.key}",
        repeats=tuple(range(1, repeats + 1)),
        script=f"scripts/{point.key}.sbatch",
        script_sha256="",
        log=f"logs/pytorch/bert/bz4/{shape}/bert_b4_fp32_{{repeat}}.log",
        state="submitted",
        job_id=str(70 + number),
        submitted="2026-11-21T10:00:00Z",
    )
