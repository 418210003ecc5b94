"""The Trainer's numbers, as its releases print them and as its files have them."""

from __future__ import annotations

import json
import platform
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcbert.logs.setting import Setting
from tests.kit.paths import REPOSITORY
from tests.kit.recipes import Reader

_SETTING = Setting(
    nodes=1, gpus_per_node=2, gpus=2, batch_size_per_device=4, sequence_length=128,
    accumulation=1, skip=20, iters=120,
)  # fmt: skip
_END = {"train_runtime": 63.0, "train_samples_per_second": 15.24, "train_loss": 6.5, "epoch": 1.0}


def make_history(loss: float = 6.9, scale: float = 1.0) -> list[dict[str, float]]:
    """Return the records of 120 steps of half a second after a start of two seconds."""
    return [
        {
            "loss": loss,
            "grad_norm": 2.3,
            "epoch": place / 120,
            "num_input_tokens_seen": place * 1024,
            "train_runtime": round(scale * (2.123 + place / 2), 4),
            "train_tokens_per_second": place * 1024 / (2 + place / 2),
        }
        for place in range(20, 121, 20)
    ]


def print_history(history: list[dict[str, float]], form: str) -> str:
    """Return a log of release 4, of release 5, or the file trainer_state.json."""
    if form == "trainer_state.json":
        steps = [{**record, "step": 20 * place} for place, record in enumerate(history, 1)]
        state = {"log_history": steps, "max_steps": 120, "train_batch_size": 4}
        return json.dumps(state, indent=2, sort_keys=True) + "\n"
    if form == "release 4":
        return "".join(f"{record}\n" for record in history)
    return "".join(
        str({name: f"{n:.4g}" if isinstance(n, float) else n for name, n in record.items()}) + "\n"
        for record in history
    )


_FORMS = ("release 4", "release 5", "trainer_state.json")


@pytest.mark.parametrize("form", _FORMS)
def test_every_form_gives_the_same_numbers(form: str, tmp_path: Path) -> None:
    log = print_history([*make_history(), _END], form).encode()
    readings = [
        Reader("hf-trainer", tmp_path).read(log, rule, _SETTING) for rule in ("elapsed", "closing")
    ]
    assert [reading.throughput for reading in readings] == pytest.approx([16, 15.24], rel=1e-3)


@pytest.mark.parametrize(("later", "closing"), [(60, 7.856), (-10, 18.39)], ids=["slow", "fast"])
def test_a_closing_rate_may_include_another_start(
    later: int, closing: float, tmp_path: Path
) -> None:
    """Where the machine has less to spare inside the window, the clock of the whole run confirms it."""
    history = make_history()
    for record in history:
        record["train_runtime"] += later
    end = {"train_runtime": 62.2 + later, "train_samples_per_second": closing}
    log = print_history([*history, end], "release 5").encode()
    reading = Reader("hf-trainer", tmp_path).read(log, "elapsed", _SETTING)
    assert reading.throughput == pytest.approx(16, rel=1e-2), reading


@pytest.mark.parametrize("form", _FORMS)
@pytest.mark.parametrize(
    ("history", "changes", "code"),
    [
        pytest.param(make_history(), {"sequence_length": 64}, "window", id="length"),
        pytest.param(make_history(), {"sequence_length": 100}, "rule", id="odd length"),
        pytest.param(make_history(float("nan")), {}, "loss", id="loss"),
        pytest.param(make_history()[:4], {}, "incomplete", id="short"),
        pytest.param(
            make_history(scale=0.001), {}, "contradiction", id="clock against the closing rate"
        ),
    ],
)
def test_what_does_not_fit_gives_no_number(
    form: str,
    history: list[dict[str, float]],
    changes: Mapping[str, int],
    code: str,
    tmp_path: Path,
) -> None:
    log = print_history([*history, _END], form).encode()
    setting = _SETTING._replace(**changes)  # type: ignore[arg-type]
    reading = Reader("hf-trainer", tmp_path).read(log, "elapsed", setting)
    assert reading.throughput is None
    assert code in {reason.code for reason in reading.reasons}, reading


@pytest.mark.torch
def test_a_node_without_gpus_ends_the_run_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace())
    monkeypatch.syspath_prepend(REPOSITORY / "hpcbert" / "workloads")
    monkeypatch.setattr(sys, "argv", ["hf_trainer.py", "--model=bert-tiny"])
    with pytest.raises(SystemExit, match=f"no GPU on node {platform.node()}"):
        runpy.run_path(str(REPOSITORY / "templates/hf-trainer/hf_trainer.py"), run_name="__main__")
