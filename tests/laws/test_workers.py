"""Logs that several processes read give what one process gives, byte for byte."""

import gzip
import json
import os
import random
import re
import shutil
import subprocess
import sys

import pytest

from tests.kit.campaigns import campaign
from tests.kit.cases import read_constant
from tests.kit.logs import log
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
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert int(result.stderr.splitlines()[-1]) >= (processes if processes > 1 else 0), result
    return _NOW.sub("", result.stdout)


def test_a_campaign_with_good_and_damaged_logs(tmp_path):
    built = campaign(tmp_path / "runs", "1n1g", "1n2g", "1n4g", "2n4g", repeats=3)
    built.finish()
    chance = random.Random(16)
    for repeat in built.repeats:
        number, shape = repeat.number, str(repeat.array.point.shape)
        text = built.text(shape, 8.0, last=number, nan_at=number)
        copy, oom = built.text(shape, 8.0), "RuntimeError: CUDA error: out of memory\n"
        kinds = (text, text.replace("loss", "l\x1b[31moss"), copy, "\0" * 5000, oom)
        if chance.random() < 0.6:
            built.log(shape, number, chance.choice(kinds))
        elif chance.random() < 0.2:
            built.log_path(shape, number).unlink()
    shutil.copytree(built.directory, tmp_path / "kept")
    outputs = []
    for processes in (1, 3, 3):
        printed = run_program(processes, "campaign", str(built.directory))
        names = ("table.json", "measurements.json")
        written = [_NOW.sub("", (built.directory / name).read_text()) for name in names]
        outputs.append((printed, *written))
        if processes == 1:
            shutil.rmtree(built.directory)
            shutil.copytree(tmp_path / "kept", built.directory)
    # Evidence that several processes recorded holds.
    assert outputs[0] == outputs[1] == outputs[2]
    assert json.loads(outputs[1][0])


def test_foreign_logs_good_and_bad(tmp_path):
    chance = random.Random(7)
    for number in range(40):
        shape = chance.choice(("1n1g", "1n2g", "2n8g"))
        path = tmp_path / "pytorch" / shape / f"bert_b4_fp32_{number}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = log(shape, chance.uniform(5, 90), batch=chance.choice((4, 4, 8))).encode()
        text = text[: chance.randrange(len(text))] if chance.random() < 0.3 else text
        if chance.random() < 0.2:
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(text))
        else:
            path.write_bytes(text)
    words = ("command", "collect", str(tmp_path), "--json")
    alone = run_program(1, *words)
    assert run_program(3, *words) == alone
    assert '"tables"' in alone
