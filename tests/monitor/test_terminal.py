"""What monitor shows on terminals of every kind: small, dumb, without UTF-8."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from typing import Any

import pytest

from hpcbert.campaign.repeats import Watched

Make = Callable[..., Watched]
Line = Callable[..., str]


_CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SHAPES = tuple(range(1, 21))


def on_terminal(bench: Any, *words: str, rows: int = 24, columns: int = 80, **env: str) -> str:
    """Return what a command prints on a terminal of some size."""
    main, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"}
    }

    child = subprocess.Popen(
        [sys.executable, "-m", "hpcbert", *words],
        cwd=bench.path,
        env={**inherited, "PATH": bench.environment["PATH"], "HOME": str(bench.path), "TERM": "xterm", **env},
        stdin=end, stdout=end, stderr=end,
    )  # fmt: skip
    os.close(end)
    said = b""
    while True:
        try:
            part = os.read(main, 1 << 16)
        except OSError:  # the other end is closed: it is over
            break
        if not part:
            break
        said += part
    os.close(main)
    child.wait()
    return said.decode()


@pytest.fixture
def curve(slurm: Any, watched: Make, accounting: Line, queue: Line) -> Watched:
    """Twenty points of which one repeat fails and one still waits for a while."""
    one = watched(shapes=SHAPES)
    ends = {"array": 0}
    over = [
        accounting(
            one, repeat, "FAILED" if place == 3 else "COMPLETED", **(ends | {"array": place})
        )
        for place in range(len(SHAPES))
        for repeat in (1, 2)
    ]
    open_ = "".join(over[:-1]) + accounting(one, 2, "PENDING", array=len(SHAPES) - 1)
    waits = queue(one, 2, "PENDING", array=len(SHAPES) - 1, reason="Priority")
    slurm.answers(sacct=[open_, open_, "".join(over)], squeue=[waits, waits, ""])
    return one


@pytest.mark.parametrize("columns", [60, 80, 40])
def test_a_table_taller_than_the_screen_scrolls_and_a_narrow_one_folds(
    hpcbert: Any, curve: Watched, columns: int
) -> None:
    said = on_terminal(hpcbert, "monitor", str(curve.directory), rows=10, columns=columns)
    plain = _CODE.sub("", said).replace("\r", "\n")
    first = plain[: plain.rindex("bert-base 1n20g")] if columns > 40 else plain
    for gpus in SHAPES:
        assert f"1n{gpus}g" in plain
    assert "1n1g" in first
    assert "FAILED" in plain
    drawn = plain[: plain.index("completed")].splitlines()[:-1]
    assert max(map(len, drawn)) <= columns
    assert "…" not in plain


@pytest.mark.parametrize("term", ["dumb", "", "unknown"])
def test_a_dumb_terminal_gets_lines(hpcbert: Any, curve: Watched, term: str) -> None:
    said = on_terminal(hpcbert, "monitor", str(curve.directory), TERM=term)
    assert "\x1b[" not in _CODE.sub(lambda code: code[0] if code[0][-1] != "m" else "", said)
    lines = said.splitlines()
    for gpus in SHAPES:
        assert any(f"bert-base_1n{gpus}g_fp32_b32  2/2" in line for line in lines)
    assert any("FAILED" in line for line in lines)


@pytest.mark.parametrize("locale", ["C", "POSIX"])
def test_a_locale_without_utf8_gets_ascii(hpcbert: Any, curve: Watched, locale: str) -> None:
    said = on_terminal(hpcbert, "monitor", str(curve.directory), LC_ALL=locale)
    assert said.isascii()
    assert "++" in _CODE.sub("", said)
    other = on_terminal(hpcbert, "monitor", str(curve.directory), LC_ALL="C.UTF-8")
    assert "✓✓" in _CODE.sub("", other)
