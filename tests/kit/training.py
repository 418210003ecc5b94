"""A stand-in for a training program: it prints a log, or fails as the test requests."""

from __future__ import annotations

import shlex
from pathlib import Path

from tests.kit.logs import ITERS, SKIP, pytorch

START = 1763717655.5
WORDS = (
    *("submit", "--fw", "pytorch", "--model", "bert-tiny", "--batch-size", "2"),
    *("--iters", str(ITERS), "--skip", str(SKIP)),
)


def log(gpus: int = 1) -> str:
    """Return a log of the PyTorch reference: 12 iterations, two samples a device."""
    return pytorch(f"1n{gpus}g", 10.0, batch=2, start=START)


def stand_in(folder: Path, bad: str, gpus: int = 1) -> Path:
    """Make the program; it runs the shell lines `bad` before it prints its log."""
    (folder / "training.log").write_text(log(gpus))
    program = folder / "stand-in"
    # Printing takes no time, unlike training: a time around now is near enough.
    middle = START + ITERS / 2 * 0.2 * gpus
    program.write_text(
        f'#!/bin/bash\n{bad}\necho "$EPOCHREALTIME $BASHPID"\n'
        "exec awk -v now=\"${EPOCHREALTIME/,/.}\" -F ' time: ' "
        f"'NF > 1 {{ printf \"%s time: %.6f\\n\", $1, now + $2 - {middle}; next }} 1' "
        f"{shlex.quote(str(folder))}/training.log\n"
    )
    program.chmod(0o755)
    return program
