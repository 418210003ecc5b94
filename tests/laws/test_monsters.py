"""Files of impossible size, and things that are no files, where a log or a record should be.

Each is read by a process of its own whose address space is bounded and whose time is measured.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.cases import read_constant
from tests.kit.needs import require
from tests.kit.paths import REPOSITORY, TEMPLATES
from tests.kit.waiting import CEILING
from tests.laws.targets import seeds

pytestmark = pytest.mark.slow

GIB = 1 << 30
# Address space; the interpreter with all that it imports takes about 60 MiB of it.
MEMORY = 400 << 20
# Of a processor, however many others want it.
SECONDS = 120

PRELUDE = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
resource.setrlimit(resource.RLIMIT_CPU, ({SECONDS}, {SECONDS}))
sys.path.insert(0, {str(REPOSITORY)!r})
from pathlib import Path
from hpcbert.errors import HpcbertError
path = Path(sys.argv[1])
"""
LOG = read_constant(__file__, "LOG")
STATUS = """
from hpcbert.campaign import record
seen = record.read_record(path).newest()
print(seen.start, seen.exit)
"""
MANIFEST = """
from hpcbert.campaign import store
try:
    store.read_json(path)
except HpcbertError as error:
    print(error)
"""
TOML = """
from hpcbert.config.toml import read
try:
    read(path)
except HpcbertError as error:
    print(error)
"""


def answer(code: str, path: Path, *more: Path) -> str:
    result = subprocess.run(
        [sys.executable, "-c", PRELUDE + code, str(path), *map(str, more)],
        capture_output=True, text=True, timeout=CEILING, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout


def of_log(path: Path) -> str:
    return answer(LOG, path, TEMPLATES / "pytorch" / "recipe.toml")


def lines(first: int, last: int) -> bytes:
    return b"".join(
        b"iteration: %d/12 loss: 9.5 mlm_loss: 8.8 nsp_loss: 0.7 samples/s: 100.00 "
        b"time: 1795256184.%06d\n" % (n, n * 80000)
        for n in range(first, last + 1)
    )


HEADER = b'hpcbert-config {"batch_size_per_device": 8, "world_size": 1, "precision": "fp32"}\n'


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "bert.log"


def sparse(path: Path, size: int, *pieces: tuple[int, bytes]) -> None:
    with path.open("wb") as file:
        file.truncate(size)
        for at, text in pieces:
            file.seek(at)
            file.write(text)


def test_a_log_of_two_gibibytes_with_its_records_first(log: Path) -> None:
    sparse(log, 2 * GIB, (0, HEADER + lines(1, 12)))
    assert of_log(log).startswith("100.0  12\n")


def test_a_log_of_two_gibibytes_with_its_end_at_the_end(log: Path) -> None:
    # Between them one line of zero bytes: what a file system leaves that lost its pages.
    last = lines(7, 12)
    sparse(log, 2 * GIB, (0, HEADER + lines(1, 6)), (2 * GIB - len(last) - 1, b"\n" + last))
    assert of_log(log) == "100.0  12\n12\n"


def test_a_line_of_a_gibibyte(log: Path) -> None:
    with log.open("wb") as file:
        file.write(HEADER + lines(1, 6))
        for _ in range(GIB >> 24):
            file.write(b"x" * (1 << 24))
        file.write(b"\n" + lines(7, 12))
    assert of_log(log) == "100.0  12\n12\n"
    log.unlink()


def test_two_gibibytes_of_nothing(log: Path) -> None:
    sparse(log, 2 * GIB)
    assert of_log(log) == "None incomplete 0\nNone\n"


@pytest.mark.parametrize(
    "noise",
    [
        random.Random(1).randbytes(1 << 22),
        b"\xff\xfe" * (1 << 20),
        b"\x00" * (1 << 20),
        b"\r" * (1 << 20),
        b"\x1b[" * 99,
    ],
    ids=["binary", "no UTF-8", "NUL", "returns", "escapes"],
)
def test_noise_between_records_changes_nothing(log: Path, noise: bytes) -> None:
    log.write_bytes(HEADER + lines(1, 6) + noise + b"\n" + lines(7, 12))
    assert of_log(log).splitlines()[0] == "100.0  12"
    log.write_bytes(noise)
    assert of_log(log) == "None incomplete 0\nNone\n"


def make(kind: str, path: Path) -> Path:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "device":
        return Path("/dev/zero")
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    elif kind == "huge":
        sparse(path, 2 * GIB)
    return path


@pytest.mark.parametrize(
    "kind", ["pipe", "directory", "loop", "device", "link to a device", "nothing"]
)
def test_what_is_no_file_is_said_to_be_none(tmp_path: Path, kind: str) -> None:
    path = make(kind, tmp_path / "it")
    assert of_log(path) == "None no-log 0\nNone\n"
    assert answer(STATUS, path) == "None None\n"
    for code in (MANIFEST, TOML):
        assert "Can't read" in answer(code, path)


def test_records_of_two_gibibytes_are_not_read(tmp_path: Path) -> None:
    path = make("huge", tmp_path / "it")
    assert answer(STATUS, path) == "None None\n"
    for code in (MANIFEST, TOML):
        assert "it has more than" in answer(code, path)


def test_what_nobody_may_read_is_said_to_be_so(tmp_path: Path) -> None:
    require("permissions")
    path = tmp_path / "it"
    path.write_bytes(seeds("status")[0])
    path.chmod(0)
    assert of_log(path).startswith("None no-log")
    assert answer(STATUS, path) == "None None\n"
    for code in (MANIFEST, TOML):
        assert "Can't read" in answer(code, path)
