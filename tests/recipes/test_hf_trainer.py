"""The Trainer's numbers, as its releases print them and as its files have them."""

from __future__ import annotations

import json
import platform
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcbert.logs.setting import Setting
from tests.kit.cases import cases
from tests.kit.paths import REPOSITORY
from tests.kit.recipes import Reader

_END = {"train_runtime": 63.0, "train_samples_per_second": 15.24, "train_loss": 6.5, "epoch": 1.0}


def make_history(loss: float = 6.9, scale: float = 1.0, later: int = 0) -> list[dict[str, Any]]:
    """Return the records of 120 steps of half a second after a start of two seconds."""
    return [
        {
            "loss": loss,
            "grad_norm": 2.3,
            "epoch": place / 120,
            "num_input_tokens_seen": place * 1024,
            "train_runtime": round(scale * (2.123 + place / 2), 4) + later,
            "train_tokens_per_second": place * 1024 / (2 + place / 2),
        }
        for place in range(20, 121, 20)
    ]


def print_history(history: list[dict[str, Any]], form: str) -> str:
    """Return a log of release 4, of release 5, or the file trainer_state.json."""
    if form == "trainer_state.json":
        steps = [{**record, "step": 20 * place} for place, record in enumerate(history, 1)]
        state = {"log_history": steps, "max_steps": 120, "train_batch_size": 4}
        return json.dumps(state, indent=2, sort_keys=True) + "\n"
    if form == "release 5":
        history = [
            {name: f"{n:.4g}" if isinstance(n, float) else n for name, n in record.items()}
            for record in history
        ]
    return "".join(f"{record}\n" for record in history)


@cases
def test_every_form_gives_the_same_number_or_a_reason(
    tmp_path: Path,
    *,
    records: dict[str, Any],
    last: int | None,
    end: dict[str, float] | None,
    changes: dict[str, int] | None,
    numbers: dict[str, float] | None,
    code: str | None,
) -> None:
    """A closing rate may include another start: then the clock of the whole run confirms it."""
    shape = {"nodes": 1, "gpus_per_node": 2, "gpus": 2, "accumulation": 1, "skip": 20, "iters": 120}
    run: dict[str, Any] = {**shape, "batch_size_per_device": 4, "sequence_length": 128}
    history = [*make_history(**records)[:last], end or _END]
    for form in ("release 4", "release 5", "trainer_state.json"):
        log = print_history(history, form).encode()
        for rule in numbers or ("elapsed",):
            number = (numbers or {}).get(rule)
            setting = Setting(**{**run, **(changes or {})})
            reading = Reader("hf-trainer", tmp_path).read(log, rule, setting)
            assert reading.throughput == (number and pytest.approx(number, rel=1e-2)), form
            assert not code or code in {reason.code for reason in reading.reasons}, reading


@pytest.mark.torch
def test_a_node_without_gpus_ends_the_run_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace())
    monkeypatch.syspath_prepend(REPOSITORY / "hpcbert" / "workloads")
    monkeypatch.setattr(sys, "argv", ["hf_trainer.py", "--model=bert-tiny"])
    with pytest.raises(SystemExit, match=f"no GPU on node {platform.node()}"):
        runpy.run_path(str(REPOSITORY / "templates/hf-trainer/hf_trainer.py"), run_name="__main__")
