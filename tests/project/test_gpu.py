"""The measurement of one device runs to its end on a CPU, and keeps what it has."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from hpcbert.config import toml
from tests.kit.cases import read_constant
from tests.kit.paths import REPOSITORY

pytestmark = pytest.mark.torch

BENCHMARKS = REPOSITORY / "benchmarks"
PROGRAM = [sys.executable, str(BENCHMARKS / "gpu.py"), "--device=cpu"]
CONFIGURATION = read_constant(__file__, "CONFIGURATION")


@pytest.fixture(autouse=True, scope="module")
def torch() -> None:
    pytest.importorskip("torch", reason="the reference workload needs PyTorch")


@pytest.fixture(scope="module")
def gpu() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module("gpu")
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.mark.slow
def test_rows_are_measured_in_their_order_and_kept(tmp_path: Path) -> None:
    command = [*PROGRAM, f"--output={tmp_path}"]
    text = subprocess.run(
        [*command, "--minutes=0.4"], capture_output=True, text=True, check=True, timeout=90
    ).stdout
    _, _, *rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line[:1] == "|"]
    assert len(rows) > 10
    assert float(rows[0][1]) > 0, text
    assert all(len(row) >= 8 and (row[1] != "-" or row[-1]) for row in rows)
    assert (tmp_path / "table.md").read_text() == text
    again = subprocess.run([*command, "--minutes=0"], capture_output=True, text=True, check=True)
    assert (again.stdout, again.stderr) == (text, "")
    machine = tmp_path / "machine"
    machine.write_text(json.dumps({**json.loads(machine.read_text()), "torch": "2.4.0"}))
    other = subprocess.run([*command, "--minutes=0"], capture_output=True, text=True, check=False)
    assert other.returncode == 1
    assert "2.4.0" in other.stderr
    assert "another --output" in other.stderr


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_every_choice_of_speed_has_a_row(gpu: Any, device: str) -> None:
    document = toml.read(BENCHMARKS / "gpu.toml")
    rows = gpu.plan_rows(document, device)
    names = [row.name for row in rows]
    assert len(set(names)) == len(names)
    assert {row.baseline for row in rows if row.baseline} <= set(names)
    assert {row.kind for row in rows} == set(gpu.RUNNERS)
    headline = [row for row in rows if row.words[-1] == gpu.MODES[document[device]["default"]]]
    assert rows[0] == headline[0]
    words = {word for row in rows for word in row.words}
    for option in fields(gpu.Settings):
        name = "--" + option.name.replace("_", "-")
        if str(option.type) == "bool":
            assert name in words
        elif option.name not in document["sizes"]:
            values = document["values"].get(option.name, option.metadata.get("choices") or ())
            choices = {*values} - {"auto", option.default}
            assert {f"{name}={choice}" for choice in choices} <= words, name
