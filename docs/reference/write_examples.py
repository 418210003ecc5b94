"""The JSON documents that json.md shows: `make pages` writes them there.

They are real ones, of commands that run here; as root, those of a lab too. What differs from run to
run (times, paths, digests, versions) is written alike, a long text is cut, and of a long list the
first few are shown.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hpcbert import __version__
from hpcbert.lab.record import DEFAULT_DIRECTORY
from hpcbert.model import JobRequest, Protocol
from tests.kit import campaigns, cli
from tests.kit.cases import read_constant
from tests.kit.containers import pointer
from tests.kit.logs import BEGIN, write_file, write_submission
from tests.kit.paths import REFERENCE, REPOSITORY

PAGE = REFERENCE / "json.md"
ONE, TWO, THREE = (
    f"20261121T1{hour}0000Z-pytorch-{6 * letter}" for hour, letter in enumerate("abc")
)
LINES = {
    name: line.replace("ONE", ONE).replace("TWO", TWO).replace("THREE", THREE)
    for name, line in read_constant(__file__, "LINES").items()
}
# Those that need a lab, which only root can start: both print its status.
OF_A_LAB = ("lab up", "lab status")
_BLOCK = re.compile(r"(<!-- example: ([a-z ]+) -->\n```json\n)(.*?)(\n```)", re.DOTALL)
_ALIKE: dict[str, Any] = {**read_constant(__file__, "ALIKE"), "hpcbert": __version__}
_PATTERNS = {
    r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z": "2026-11-21T10:00:00Z",
    r"\b\d{8}T\d{6}Z-(\w+)-(?!a{6}|b{6}|c{6})[0-9a-f]{6}\b": rf"{ONE[:16]}-\1-dddddd",
    r"\b[0-9a-f]{64}\b": "9f86d081884c7d65…",
}
# Letters of a text, what is shown of a list, and letters of a line.
_LONGEST, _MOST, _WIDEST = 72, 3, 92


def _fill(home: Path) -> None:
    """Make what the commands read; of the campaigns, the second has a run that failed."""
    _plant(home / "runs", ONE, "1n1g", "1n2g")
    _plant(home / "runs", TWO, "1n1g", failed=2)
    _plant(home / "runs", THREE, "1n1g", faster=3.0)
    image = write_file(home, "images/pytorch+0123456789ab.sqsh", "an image")
    reference, digest = "docker://nvcr.io#nvidia/pytorch:25.04-py3", f"0123456789ab{0:052}"
    write_file(home, "images/pytorch.json", json.dumps(pointer(image, reference, digest)))
    write_submission(home / "training_results", [300] * 10)
    # A log that gives the rate which DLPerf published of it.
    facts = "batch_size_per_device = 32\nnum_nodes = 1\ngpu_num_per_node = 1\nuse_fp16 = False\n"
    steps = (
        f"step: {number}, total_loss: 9.5, mlm_loss: 8.8, nsp_loss: 0.7, throughput: 152.890 "
        f"{BEGIN + number * 32 / 152.89:.7f}\n"
        for number in range(120)
    )
    write_file(home, "oneflow/bert_b32_fp32_1.log", facts + "".join(steps))


def _plant(runs: Path, name: str, *shapes: str, failed: int = 0, faster: float = 0.0) -> None:
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
    arrays = (replace(array, request=request) for array in built.campaign.arrays)
    built = built.change(arrays=tuple(arrays))
    for array in built.campaign.arrays:
        shape, gpus = str(array.point.shape), array.point.shape.gpus
        write_file(built.directory, str(array.script), script)
        for number in array.repeats:
            rate, code = gpus * (60.0 + number + faster), int(number == failed)
            text = built.text(shape, rate, iters=120, last=60 if code else 120)
            built.log(shape, number, f"repeat {number}\n{text}")
            began = {"event": "start", "job": array.element(number), "host": "vm", "nodelist": "vm"}
            ended = {"event": "finished", "state": "FAILED" if code else "COMPLETED", "exit": code}
            built.mark(shape, number, began, {"event": "step"}, *campaigns.ended(code), ended)


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
        for pattern, new in _PATTERNS.items():
            text = re.sub(pattern, new, text)
        # Between words: half a word is a misspelling.
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rpartition(' ')[0]} …".lstrip()
    return float(f"{value:.10g}") if isinstance(value, float) else value


def documents() -> dict[str, str]:
    """Return what each command prints, by its name, as the page shows it."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HPCBERT_")}
    examples = {}
    with tempfile.TemporaryDirectory() as name:
        home = Path(name).resolve()
        _fill(home)
        env = {**clean, "HOME": str(home), "HPCBERT_RUNS": str(home / "runs"), "USER": "you"}
        for command, line in LINES.items():
            argv = ["hpcbert", *line.split(), "--json"]
            with patch.object(sys, "argv", argv):
                result = cli.run_here(argv, env=env, cwd=home)
            objects = [json.loads(text) for text in result.stdout.splitlines()]
            selected = [objects[0], objects[-1]] if len(objects) > 1 else objects
            if command == "doctor":  # what other checks of it find is this machine's
                selected[0] |= {"status": "success", "exit_code": 0, "errors": [], "warnings": []}
            if command == "report":  # as of `collect`
                selected[0]["data"]["tables"] = ["…"]
            examples[command] = "\n".join(written(shown(item, str(home))) for item in selected)
    return examples


def of_lab(result: cli.CliResult, directory: Path) -> str:
    """Return what `lab up` or `lab status` printed, as the page shows it."""
    text = result.stdout.replace(str(directory), str(DEFAULT_DIRECTORY))
    return written(shown(json.loads(text), str(REPOSITORY)))


def on_a_lab() -> dict[str, str]:
    """Return the documents of a lab that is started for them; none where that is refused."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o755)  # or the lab's files would be elsewhere
        options = ("--directory", Path(name) / "lab", "--json")
        try:
            results = {command: cli.run(*command.split(), *options) for command in OF_A_LAB}
        finally:
            cli.run("lab", "down", *options)
        started = {command: result for command, result in results.items() if not result.returncode}
        return {command: of_lab(result, Path(name) / "lab") for command, result in started.items()}


def written(value: Any, indent: str = "") -> str:
    """Return JSON that is as long as it must be: on one line what fits there."""
    line = json.dumps(value, ensure_ascii=False)
    if not value or not isinstance(value, dict | list) or len(indent + line) <= _WIDEST:
        return line
    inner = f"{indent}  "
    if isinstance(value, dict):
        parts = [f"{json.dumps(name)}: {written(item, inner)}" for name, item in value.items()]
    else:
        parts = [written(item, inner) for item in value]
    body = ",\n".join(f"{inner}{part}" for part in parts)
    return f"{line[0]}\n{body}\n{indent}{line[-1]}"


def read_examples() -> dict[str, str]:
    """Return the documents that the page has."""
    return {block[2]: block[3] for block in _BLOCK.finditer(PAGE.read_text(encoding="utf-8"))}


if __name__ == "__main__":
    new = {**read_examples(), **documents(), **on_a_lab()}
    page = PAGE.read_text(encoding="utf-8")
    page = _BLOCK.sub(lambda block: f"{block[1]}{new[block[2]]}{block[4]}", page)
    PAGE.write_text(page, encoding="utf-8")
