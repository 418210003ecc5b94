"""What monitor shows on terminals of every kind: small, dumb, without UTF-8, without a keyboard."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
from collections.abc import Callable
from typing import Any

import pytest

from tests.kit.campaigns import Built
from tests.kit.waiting import CEILING

pytestmark = pytest.mark.slow

_CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SHAPES = tuple(range(1, 21))


@pytest.fixture
def curve(slurm: Any, watched: Callable[..., Built]) -> Built:
    """Twenty points of which one repeat fails and one still waits for a while."""
    built = watched(shapes=SHAPES)
    ends = {"array": 0}
    over = [
        built.sacct(repeat, "FAILED" if place == 3 else "COMPLETED", **(ends | {"array": place}))
        for place in range(len(SHAPES))
        for repeat in (1, 2)
    ]
    open_ = "".join(over[:-1]) + built.sacct(2, "PENDING", array=len(SHAPES) - 1)
    waits = built.squeue(2, "PENDING", array=len(SHAPES) - 1, reason="Priority")
    slurm.answers(sacct=[open_, open_, "".join(over)], squeue=[waits, waits, ""])
    return built


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_dumb_terminal_gets_lines(hpcbert: Any, curve: Built, term: str) -> None:
    _, output = hpcbert.on_terminal("monitor", str(curve.directory), TERM=term)
    assert "\x1b[" not in _CODE.sub(lambda code: code[0] if code[0][-1] != "m" else "", output)
    lines = output.splitlines()
    for gpus in SHAPES:
        assert any(f"bert-tiny_1n{gpus}g_fp32_b4  2/2" in line for line in lines)
    assert any("FAILED" in line for line in lines)


def test_plain_is_lines_on_any_terminal(hpcbert: Any, curve: Built) -> None:
    _, output = hpcbert.on_terminal("monitor", "--plain", str(curve.directory))
    assert sum("COMPLETED" in line for line in output.splitlines()) == 2 * len(SHAPES) - 2
    assert "\x1b[?1049h" not in output


def test_a_locale_without_utf8_gets_ascii(hpcbert: Any, curve: Built) -> None:
    _, output = hpcbert.on_terminal("monitor", str(curve.directory), LC_ALL="C", keyboard=False)
    assert output.isascii()


def test_a_terminal_that_goes_without_a_signal_ends_the_view(
    hpcbert: Any, slurm: Any, watched: Callable[..., Built]
) -> None:
    built = watched(shapes=(1,))
    waits = "".join(built.squeue(repeat, "PENDING", reason="Priority") for repeat in (1, 2))
    slurm.answers(sacct="", squeue=waits)
    ours, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with hpcbert.start(
        "monitor", str(built.directory), env={**hpcbert.environment, "TERM": "xterm"},
        start_new_session=True, stdin=end, stdout=end, stderr=end,
    ) as child:  # fmt: skip
        os.close(end)
        while b"bert-tiny" not in os.read(ours, 1 << 16):
            pass
        os.close(ours)
        child.wait(CEILING)
