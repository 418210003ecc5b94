"""Logs that several processes read give what one process gives, byte for byte."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.campaigns import Built, campaign
from tests.kit.cases import read_constant
from tests.kit.logs import TEST_RECIPES, log
from tests.kit.paths import REPOSITORY

pytestmark = pytest.mark.slow

# argv: how many processes, what is called, its words.
_PROGRAM = read_constant(__file__, "_PROGRAM")
_NOW = re.compile(r'"(?:date|recorded)": ?"[^"]*"|"seal": ?"[^"]*"')


def run_program(processes: int, *words: str) -> str:
    """Return what is printed; that many processes are started for it, at least."""
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(processes), *words],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert int(result.stderr.splitlines()[-1]) >= (processes if processes > 1 else 0), result
    return _NOW.sub("", result.stdout)


def finish_runs(built: Built) -> None:
    built.finish()


def damage_runs(built: Built) -> None:
    """Logs that are cut short, not finite, copied, missing, of something else, out of memory."""
    chance = random.Random(16)
    for array in built.campaign.arrays:
        shape = str(array.point.shape)
        for repeat in array.repeats:
            built.complete(shape, repeat, chance.uniform(5, 50))
            text = built.text(shape, 8.0, last=repeat, nan_at=repeat)
            kinds = (
                text,
                built.text(shape, 8.0),
                "RuntimeError: CUDA error: out of memory\n",
                "\0" * 5000,
                text.replace("loss", "l\x1b[31moss"),
            )
            if chance.random() < 0.6:
                built.log(shape, repeat, chance.choice(kinds))
            elif chance.random() < 0.2:
                built.log_path(shape, repeat).unlink()


@pytest.mark.parametrize("fill", [finish_runs, damage_runs])
def test_a_campaign(tmp_path: Path, fill: Callable[[Built], None]) -> None:
    built = campaign(tmp_path / "runs", "1n1g", "1n2g", "1n4g", "2n4g", repeats=3)
    fill(built)
    shutil.copytree(built.directory, tmp_path / "kept")
    outputs = []
    for processes in (1, 3, 3):
        printed = run_program(processes, "campaign", str(built.directory))
        written = [
            _NOW.sub("", (built.directory / name).read_text())
            for name in ("table.json", "measurements.json")
        ]
        outputs.append((printed, *written))
        if processes == 1:
            shutil.rmtree(built.directory)
            shutil.copytree(tmp_path / "kept", built.directory)
    assert outputs[0] == outputs[1]
    assert json.loads(outputs[1][0])
    # Evidence that several processes recorded holds.
    assert outputs[1] == outputs[2]


def test_foreign_logs_good_and_bad(tmp_path: Path) -> None:
    chance = random.Random(7)
    for number in range(40):
        shape = chance.choice(("1n1g", "1n2g", "2n8g"))
        folder = tmp_path / "pytorch" / shape
        folder.mkdir(parents=True, exist_ok=True)
        text = log(shape, chance.uniform(5, 90), batch=chance.choice((4, 4, 8)))
        if chance.random() < 0.3:
            text = text[: chance.randrange(len(text))]
        name = f"bert_b4_fp32_{number}.log"
        if chance.random() < 0.2:
            (folder / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (folder / name).write_text(text)
    words = ("collect", str(tmp_path), "--json")
    alone = run_program(1, "command", *words)
    assert run_program(3, "command", *words) == alone
    assert '"tables"' in alone


@pytest.mark.parametrize(
    "words",
    [
        ("Oneflow-Inc+DLPerf", "--fw", "tf2-resnet", "--templates", str(TEST_RECIPES)),
        (
            *("PaddlePaddle+Perf/v2.2-0abb1f6/Bert/OtherReports/PyTorch", "--fw", "ngc-pytorch"),
            *("--pattern", "*_{precision}_bs{batch_size}_gpu{gpus}.log", "--skip", "10"),
            *("--iters", "40", "--templates", str(TEST_RECIPES)),
        ),
    ],
    ids=["dlperf", "paddle"],
)
def test_real_logs(shared: Path, words: tuple[str, ...]) -> None:
    first, *options = words
    typed = ("command", "collect", str(shared / "logs" / first), *options, "--json")
    alone = run_program(1, *typed)
    assert run_program(3, *typed) == alone
    assert '"version"' in alone
