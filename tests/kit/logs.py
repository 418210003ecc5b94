"""Logs as programs print them, stand-ins for such programs, and readers for logs."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli

from hpcbert.logs import grammar, scan
from hpcbert.logs.setting import Setting
from hpcbert.model import Shape
from tests.kit.cases import read_constant
from tests.kit.paths import REPOSITORY

ITERS, SKIP = 12, 2
# The start of logs, in seconds since the epoch: of recipes' programs, and of grammars/steps.toml.
START, BEGIN = 1763717655.5, 1763717655.25
# Recipe folders, and grammars, for tests only.
TEST_RECIPES = REPOSITORY / "tests" / "campaign" / "recipes"
GRAMMARS = REPOSITORY / "tests" / "logs" / "grammars"

# Printed by DLPerf for DeepSpeed (Oneflow-Inc/DLPerf@c202878, DeepSpeed/bert/README.md).
DEEPSPEED: dict[str, tuple[float, ...]] = read_constant(__file__, "DEEPSPEED")


def log(
    shape: str, rate: float, *, last: int | None = None, iters: int = ITERS, batch: int = 4,
    nan_at: int = 0, start: float = START, **facts: object,
) -> str:  # fmt: skip
    """Return a log of the PyTorch reference whose clock rule gives the rate, in samples/s.

    Example: `log("1n2g", 20.0, last=9, nan_at=3)` ends after 9 of its 12 iterations.

    `batch` is the batch size per device, `start` in seconds since the epoch; the log states `facts`.
    """
    gpus = Shape.parse(shape).gpus
    config = {"batch_size_per_device": batch, "accumulation": 1, "precision": "fp32"}
    config |= {"world_size": gpus, "global_batch_size": batch * gpus, **facts}
    seconds = batch * gpus / rate
    lines = [f"hpcbert-config {json.dumps(config)}"]
    lines += [
        f"iteration: {n}/{iters} loss: {'nan' if n == nan_at else '9.5'} mlm_loss: 8.8 "
        f"nsp_loss: 0.7 samples/s: {rate:.2f} time: {start + n * seconds:.6f}"
        for n in range(1, (iters if last is None else last) + 1)
    ]
    return "\n".join([*lines, ""])


def write_file(root: Path, name: str, data: bytes | str) -> Path:
    """Write a file below a folder, and the folders in its name."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def announce(folder: Path, name: str, group: str, target: str) -> None:
    """Let a folder of sys.path have an entry point, as a package does that pip installed."""
    info = folder / f"{name}-1.0.dist-info"
    write_file(info, "METADATA", f"Name: {name}\nVersion: 1.0\n")
    write_file(info, "entry_points.txt", f"[hpcbert.{group}]\n{name} = {target}\n")


def write_logs(
    folder: Path, rates: Mapping[str, Sequence[float]], *, batch: int = 4, **facts: Any
) -> Path:
    """Write a log of 120 iterations for each rate of a shape, as DLPerf keeps them.

    Example: `write_logs(tmp_path, {"1n1g": [10.0, 11.0]}, sequence_length=512)`.
    """
    runs = [(shape, *run) for shape in rates for run in enumerate(rates[shape], 1)]
    for number, (shape, repeat, rate) in enumerate(runs):
        text = log(shape, rate, iters=120, batch=batch, start=START + 1000 * number, **facts)
        write_file(folder, f"pytorch/{shape}/bert_b{batch}_fp32_{repeat}.log", text)
    return folder


def write_jobs(folder: Path, *names: str) -> Path:
    """Write logs of one point by names, of jobs that ran one after the other."""
    for number, name in enumerate(names):
        write_file(folder, name, log("1n1g", 100.0 + number, start=START + 3600 * number))
    return folder


def step(n: int, *, at: float | None = None, loss: str = "9.5", rate: object = "64.5") -> str:
    """Return a line that grammars/steps.toml reads; `at`: seconds, n by default."""
    moment = BEGIN + (n if at is None else at)
    return f"iteration: {n}/120 loss: {loss} samples/s: {rate} time: {moment:.6f}\n"


def steps(last: int = 120, first: int = 1, **fields: object) -> str:
    return "".join(step(n, **fields) for n in range(first, last + 1))  # type: ignore[arg-type]


def parse(source: str | Path) -> grammar.Grammar:
    """Return the grammar below `[log]` in a TOML text or file."""
    text = source if isinstance(source, str) else source.read_text()
    return grammar.parse(tomli.loads(text).get("log", {}), where="recipe.toml")


def read(
    folder: Path, source: str | Path | grammar.Grammar, text: str | bytes, rule: str = "",
    setting: Setting | None = None,
) -> scan.Reading:  # fmt: skip
    """Write a text to a folder and read it by a rule of a grammar, the first one unless named."""
    path = write_file(folder, "run.log", text)
    log_grammar = source if isinstance(source, grammar.Grammar) else parse(source)
    return scan.read(path, log_grammar, log_grammar.rule(rule), setting or Setting())


def codes(reading: scan.Reading) -> list[str]:
    return [reason.code for reason in reading.reasons]


WORDS = (
    *("submit", "--fw", "pytorch", "--model", "bert-tiny", "--batch-size", "2"),
    *("--iters", str(ITERS), "--skip", str(SKIP)),
)


def stand_in(folder: Path, bad: str, gpus: int = 1) -> Path:
    """Make the program; it runs the shell lines `bad` before it prints its log.

    It answers at once when `submit` asks which modules it lacks.
    """
    path = write_file(folder, "training.log", log(f"1n{gpus}g", 10.0, batch=2))
    # Printing takes no time, unlike training: a time around now is near enough.
    middle = START + ITERS / 2 * 0.2 * gpus
    text = (
        f'#!/bin/bash\n[[ $1 != -c ]] || exit 0\n{bad}\necho "$EPOCHREALTIME $BASHPID"\n'
        "exec awk -v now=\"${EPOCHREALTIME/,/.}\" -F ' time: ' "
        f"'NF > 1 {{ printf \"%s time: %.6f\\n\", $1, now + $2 - {middle}; next }} 1' "
        f"{shlex.quote(str(path))}\n"
    )
    program = write_file(folder, "stand-in", text)
    program.chmod(0o755)
    return program


SYSTEM: dict[str, str] = read_constant(__file__, "SYSTEM")
_RESULT: str = read_constant(__file__, "RESULT")


def write_submission(root: Path, seconds: list[int], samples: int = 3_000_000) -> Path:
    """Write the result folder of a system with a run of each duration; 0 missed the target."""
    write_file(root, "Org/systems/sys.json", json.dumps(SYSTEM))
    for number, duration in enumerate(seconds):
        status = "success" if duration else "aborted"
        text = _RESULT.format(stop=1000 + (duration or 9) * 1000, samples=samples, status=status)
        write_file(root, f"Org/results/sys/bert/result_{number}.txt", text)
    return root / "Org/results/sys/bert"
