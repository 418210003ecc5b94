"""Fuzzing: any bytes are read in bounded time, and nothing but HpcbertError is ever raised.

HPCBERT_FUZZ_SECONDS=N fuzzes each reader for N seconds instead of one. A failing input is shown by
Hypothesis, and goes into `KNOWN` once it is fixed.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hpcbert.errors import HpcbertError
from tests.laws.targets import SACCT, TARGETS, seeds

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("HPCBERT_FUZZ_SECONDS", "1"))
LIMIT = 5.0
DIGITS = b"9" * 5000


def bounded(name: str, data: bytes) -> None:
    """Try one input, and hold the clock beside it."""
    begin = time.process_time()
    with contextlib.suppress(HpcbertError):
        TARGETS[name](data)
    assert time.process_time() - begin < LIMIT


@pytest.mark.parametrize("name", TARGETS)
def test_what_once_broke_a_reader_breaks_it_no_more(name: str) -> None:
    # What once broke a reader.
    inputs = {
        "slurm": [
            SACCT.replace(b"0:9", DIGITS + b":0"),
            SACCT.replace(b"1795255599", b"9" * 15),
            SACCT.replace(b"%1]", b"%" + DIGITS + b"]"),
            SACCT.replace(b"n[1-2]", b"n[5-2]"),
            b"1_4|me|R|1|2|3|" + DIGITS + b":00|" + DIGITS + b"-1:00|n|c|x\n",
        ],
        "hosts": [
            b"a" * 1_000_000 + b"[1-60000]",
            b"[" * 100_000,
            b"," * 100_000,
            b"n[5-2]",
            (b"a" * 4000 + b"[1-100],") * 300,
            b"a[" + b"1," * 70_000 + b"]",
        ],
        "status": [
            b'{"event": "start", "time": 179525559795255599}',
            b'{"event": "end", "attempt": 1000000000000, "exit": 0}',
            b'{"event": "end", "time": ' + DIGITS + b"}",
            b'{"event": "end", "time": 1e999, "exit": true}',
            b"[" * 100_000,
            b'{"event": "start", "nodelist": "n[1-65536]"}',
        ],
        "manifest": [
            b"[" * 200_000,
            b"{" + b'"a":{' * 50_000,
            b'{"schema": ' + DIGITS + b"}",
            b"\xff",
        ],
        "results": [
            b'{"tables": ' + b"[" * 50_000,
            b'{"tables": ' + DIGITS + b"}",
            b'{"tables": [{"rows": 1e999}]}',
            b'{"tables": [], "made": NaN}',
        ],
        "toml": [
            b"a = " + b"[" * 50_000,
            b"schema = " + DIGITS,
            b"a" + b".a" * 20_000 + b" = 1",
            b"\xff",
        ],
        "log": [
            bytes([number]) + text
            for number in range(16)
            for text in (
                b"iteration: " + DIGITS + b"/1 loss: 1 x samples/s: 1 time: 1.5\n",
                DIGITS + b": iteration: 1/1 loss: 1 x samples/s: 1 time: 1.5\n",
                b'hpcbert-config {"world_size": ' + DIGITS + b"}\n",
                b"step: "
                + DIGITS
                + b", total_loss: 1, mlm_loss: 1, nsp_loss: 1, throughput: 1 1.5\n",
                b"\r" * 70_000 + b"\x1b[" * 50_000,
                b" " * 300_000 + b"1: x\n",
            )
        ],
    }
    for data in [*inputs[name], *seeds(name), b""]:
        bounded(name, data)


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes_are_read(name: str) -> None:
    begun = seeds(name)
    alphabet = st.sampled_from(sorted({bytes([byte]) for text in begun for byte in text}))
    texts = (
        st.binary(max_size=400)
        | st.lists(alphabet, max_size=300).map(b"".join)
        | st.lists(st.sampled_from(begun), max_size=2).map(b"".join)
    )

    @settings(
        max_examples=60, deadline=None, database=None, phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(texts)
    def check(data: bytes) -> None:
        bounded(name, data)

    check()


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_files_are_read(name: str) -> None:
    """Cut, doubled, overwritten and joined pieces of what the readers know."""
    chance = random.Random(os.environ.get("HPCBERT_FUZZ_SEED", "1"))
    begun, end = seeds(name), time.monotonic() + SECONDS
    tries = 0
    while time.monotonic() < end or tries < 10:
        tries += 1
        bounded(name, damaged(chance, begun))


def damaged(chance: random.Random, begun: list[bytes]) -> bytes:
    data = bytearray(chance.choice(begun)[: chance.choice([200, 4000])])
    for _ in range(chance.randint(1, 12)):
        at, size = chance.randint(0, len(data)), chance.choice([0, 1, 1, 4, 40])
        other = chance.choice(begun)
        cut = chance.randint(0, len(other))
        piece: Any = chance.choice(
            [
                b"",
                chance.randbytes(size),
                other[cut : cut + 40],
                data[at : at + 40] * 2,
                b"9" * 400,
                b"-1",
                b"1e308",
                b"nan",
                b"\x00\xff",
                b"[]{}\"'|,:\n",
            ]
        )
        data[at : at + size] = piece
    return bytes(data)
