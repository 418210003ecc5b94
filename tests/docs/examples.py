"""The JSON documents that docs/reference/json.md shows: real ones, of commands that run here.

    python -m tests.docs.examples     # writes them into the page; as root, those of a lab too

What differs from run to run (times, paths, digests, versions) is written alike, a long text is
cut, and of a long list the first few are shown.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hpcbert import __version__
from hpcbert.lab.record import DEFAULT_DIRECTORY
from hpcbert.model import JobRequest, Protocol
from tests.kit import campaigns
from tests.kit.cases import read_constant
from tests.kit.cli import CliResult, run
from tests.kit.containers import pointer
from tests.kit.logs import BEGIN, write_submission
from tests.kit.paths import REFERENCE, REPOSITORY

PAGE = REFERENCE / "json.md"
ONE, TWO, THREE = (
    f"20261121T1{hour}0000Z-pytorch-{6 * letter}" for hour, letter in enumerate("abc")
)
_NAMES = {"ONE": ONE, "TWO": TWO, "THREE": THREE}
LINES = {
    name: " ".join(_NAMES.get(word, word) for word in line.split())
    for name, line in read_constant(__file__, "LINES").items()
}
# Those that need a lab, which only root can start: both print its status.
OF_A_LAB = ("lab up", "lab status")
_BLOCK = re.compile(r"(<!-- example: ([a-z ]+) -->\n```json\n).*?(\n```)", re.DOTALL)
_ALIKE: dict[str, Any] = {**read_constant(__file__, "ALIKE"), "hpcbert": __version__}
_PATTERNS = (
    (re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "2026-11-21T10:00:00Z"),
    (
        re.compile(r"\b\d{8}T\d{6}Z-(\w+)-(?!aaaaaa|bbbbbb|cccccc)[0-9a-f]{6}\b"),
        rf"{ONE[:16]}-\1-dddddd",
    ),
    (re.compile(r"\b[0-9a-f]{64}\b"), "9f86d081884c7d65…"),
)
# What other checks of the doctor find is this machine's.
_OTHERWISE: dict[str, dict[str, Any]] = {
    "doctor": {"status": "success", "exit_code": 0, "errors": [], "warnings": []}
}
# Letters of a text, what is shown of a list, and letters of a line.
_LONGEST, _MOST, _WIDEST = 72, 3, 92


@contextmanager
def place() -> Iterator[Path]:
    """Yield a directory with three campaigns of two runs a point; in one of them a run failed."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HPCBERT_")}
    with tempfile.TemporaryDirectory() as name:
        home, before = Path(name).resolve(), Path.cwd()
        variables = {"HOME": str(home), "HPCBERT_RUNS": str(home / "runs"), "USER": "you"}
        with patch.dict(os.environ, {**clean, **variables}, clear=True):
            os.chdir(home)
            try:
                _planted(home / "runs", ONE, "1n1g", "1n2g")
                _planted(home / "runs", TWO, "1n1g", failed=2)
                _planted(home / "runs", THREE, "1n1g", faster=3.0)
                _image(home / "images")
                write_submission(home / "training_results", [300] * 10)
                _oneflow(home / "oneflow" / "bert_b32_fp32_1.log")
                yield home
            finally:
                os.chdir(before)


def _planted(runs: Path, name: str, *shapes: str, failed: int = 0, faster: float = 0.0) -> None:
    """Make a campaign that has ended.

    Args:
        failed: Number of the repeat that failed; 0: none did.
        faster: Samples per second and GPU that it has more than the others.
    """
    directives = ("job-name=bert", "array=1-2%1", "time=01:00:00")
    lines = [f"#SBATCH --{directive}" for directive in directives]
    script = "\n".join([*lines, f"campaign={runs / name}", "first_attempt=0", ""])
    built = campaigns.campaign(
        runs, *shapes, name=name, repeats=2, scheduler="local", protocol=Protocol(2, 120, 20),
        script_sha256=hashlib.sha256(script.encode()).hexdigest(),
    )  # fmt: skip
    request = JobRequest(output=str(runs / name / "slurm" / "%A_%a.out"))
    built = built.change(
        arrays=tuple(replace(array, request=request) for array in built.campaign.arrays)
    )
    for array in built.campaign.arrays:
        shape, gpus = str(array.point.shape), array.point.shape.gpus
        path = built.directory / array.script
        path.parent.mkdir(exist_ok=True)
        path.write_text(script)
        for number in array.repeats:
            rate, code = gpus * (60.0 + number + faster), int(number == failed)
            text = built.text(shape, rate, iters=120, last=60 if code else 120)
            built.log(shape, number, f"repeat {number}\n{text}")
            began = {"event": "start", "job": array.element(number), "host": "vm", "nodelist": "vm"}
            ended = {"event": "finished", "state": "FAILED" if code else "COMPLETED", "exit": code}
            built.mark(shape, number, began, {"event": "step"}, *campaigns.ended(code), ended)


def _image(folder: Path) -> None:
    """Make a prepared image."""
    folder.mkdir()
    image = folder / "pytorch+0123456789ab.sqsh"
    image.write_bytes(b"an image")
    note = pointer(image, "docker://nvcr.io#nvidia/pytorch:25.04-py3", "0123456789ab" + 52 * "0")
    (folder / "pytorch.json").write_text(json.dumps(note))


def _oneflow(path: Path) -> None:
    """Write a log that gives the rate which DLPerf published of it: 152.89 samples/s."""
    path.parent.mkdir()
    facts = ["batch_size_per_device = 32", "num_nodes = 1", "gpu_num_per_node = 1"]
    facts += ["use_fp16 = False"]
    steps = (
        f"step: {number}, total_loss: 9.5, mlm_loss: 8.8, nsp_loss: 0.7, throughput: 152.890 "
        f"{BEGIN + number * 32 / 152.89:.7f}"
        for number in range(120)
    )
    path.write_text("\n".join([*facts, *steps, ""]))


def shown(value: Any, home: str, key: str = "") -> Any:
    """Return a value as the page shows it."""
    if key in _ALIKE and value is not None:
        return _ALIKE[key]
    if isinstance(value, dict):
        entries = dict(list(value.items())[:_MOST]) if key == "settings" else value
        return {name: shown(item, home, name) for name, item in entries.items()}
    if isinstance(value, list):
        most = _MOST if value and not isinstance(value[0], dict | list) else 1
        return [shown(item, home) for item in value[:most]] + ["…"] * (len(value) > most)
    if isinstance(value, str):
        text = value.replace(home, "/home/you").replace(str(REPOSITORY), "/home/you/hpcbert")
        for pattern, new in _PATTERNS:
            text = pattern.sub(new, text)
        # Between words: half a word is a misspelling.
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rpartition(' ')[0]} …".lstrip()
    return float(f"{value:.10g}") if isinstance(value, float) else value


def documents() -> dict[str, str]:
    """Return what each command prints, by its name, as the page shows it."""
    examples = {}
    with place() as home:
        for name, line in LINES.items():
            with patch.object(sys, "argv", ["hpcbert", *line.split(), "--json"]):
                result = run(*line.split(), "--json")
            objects = [json.loads(text) for text in result.stdout.splitlines()]
            selected = [objects[0], objects[-1]] if len(objects) > 1 else objects
            selected[0] |= _OTHERWISE.get(name, {})
            if name == "report":  # as of `collect`
                selected[0]["data"]["tables"] = ["…"]
            examples[name] = "\n".join(written(shown(item, str(home))) for item in selected)
    return examples


def of_lab(result: CliResult, directory: Path) -> str:
    """Return what `lab up` or `lab status` printed, as the page shows it."""
    text = result.stdout.replace(str(directory), str(DEFAULT_DIRECTORY))
    return written(shown(json.loads(text), str(REPOSITORY)))


def on_a_lab() -> dict[str, str]:
    """Return the documents of a lab that is started for them; none where that is refused."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o755)  # or the lab's files would be elsewhere
        directory = Path(name) / "lab"
        options = ("--directory", directory, "--json")
        try:
            results = [run(*command.split(), *options) for command in OF_A_LAB]
        finally:
            run("lab", "down", *options)
    pairs = zip(OF_A_LAB, results, strict=True)
    return {
        command: of_lab(result, directory) for command, result in pairs if not result.returncode
    }


def written(value: Any, indent: str = "") -> str:
    """Return JSON that is as long as it must be: on one line what fits there."""
    line = json.dumps(value, ensure_ascii=False)
    if not value or not isinstance(value, dict | list) or len(indent + line) <= _WIDEST:
        return line
    inner = f"{indent}  "
    parts, ends = [], "[]" if isinstance(value, list) else "{}"
    for name, item in enumerate(value) if isinstance(value, list) else value.items():
        key = f"{json.dumps(name)}: " if isinstance(value, dict) else ""
        parts.append(f"{key}{written(item, inner)}")
    body = ",\n".join(f"{inner}{part}" for part in parts)
    return f"{ends[0]}\n{body}\n{indent}{ends[1]}"


def read_examples() -> dict[str, str]:
    """Return the documents that the page has."""
    text = PAGE.read_text(encoding="utf-8")
    return {block[2]: block[0].split("```json\n", 1)[1][:-4] for block in _BLOCK.finditer(text)}


if __name__ == "__main__":
    new = {**read_examples(), **documents(), **on_a_lab()}
    page = PAGE.read_text(encoding="utf-8")
    page = _BLOCK.sub(lambda block: f"{block[1]}{new[block[2]]}{block[3]}", page)
    PAGE.write_text(page, encoding="utf-8")
