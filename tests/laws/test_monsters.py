"""Files of impossible size, and things that are no files, where a log or a record should be.

They are read by a process of its own whose address space and processor time are bounded.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.cases import read_constant
from tests.kit.paths import REPOSITORY, TEMPLATES
from tests.kit.waiting import CEILING

pytestmark = pytest.mark.slow

# The interpreter with all that it imports takes about 60 MiB of its 400 MiB.
PROGRAM = read_constant(__file__, "PROGRAM")
SIZE = 512 << 20
HEADER = b'hpcbert-config {"batch_size_per_device": 8, "world_size": 1, "precision": "fp32"}\n'
STEP = read_constant(__file__, "STEP").encode()
FIRST, LAST = (
    b"".join(STEP % (n, n * 80000) for n in span) for span in (range(1, 7), range(7, 13))
)
WHOLE, NOTHING = ["100.0", "", "12", "12"], ["None", "incomplete", "0", "None"]


def read_files(*paths: Path) -> list[dict[str, list[str]]]:
    """Return what each reader says of each file."""
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, TEMPLATES / "pytorch" / "recipe.toml", *paths],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, timeout=CEILING, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-2000:]
    return [json.loads(line) for line in result.stdout.splitlines()]


def write_sparse(path: Path, *pieces: tuple[int, bytes]) -> Path:
    with path.open("wb") as file:
        file.truncate(SIZE)
        for at, text in pieces:
            file.seek(at)
            file.write(text)
    return path


def test_files_larger_than_the_memory(tmp_path):
    first, apart, empty = read_files(
        write_sparse(tmp_path / "first", (0, HEADER + FIRST + LAST)),
        # Between them one line of zero bytes: what a file system leaves that lost its pages.
        write_sparse(tmp_path / "apart", (0, HEADER + FIRST), (SIZE - len(LAST) - 1, b"\n" + LAST)),
        write_sparse(tmp_path / "empty"),
    )
    assert first["log"][:3] == WHOLE[:3]
    assert apart["log"] == WHOLE
    assert empty["log"] == NOTHING
    assert empty["status"] == ["None", "None"]
    assert all("it has more than" in empty[name][0] for name in ("manifest", "toml"))


def test_noise_between_records_changes_nothing_and_alone_gives_none(tmp_path):
    noises = (
        random.Random(1).randbytes(1 << 20), b"\xff\xfe" * (1 << 20), b"\x00" * (1 << 20),
        b"\r" * (1 << 20), b"\x1b[" * 99,
    )  # fmt: skip
    paths = []
    for number, noise in enumerate(noises):
        between, alone = tmp_path / f"{number}.log", tmp_path / f"{number}.noise"
        between.write_bytes(HEADER + FIRST + noise + b"\n" + LAST)
        alone.write_bytes(noise)
        paths += [between, alone]
    logs = [answer["log"] for answer in read_files(*paths)]
    assert [log[:3] for log in logs[::2]] == [WHOLE[:3]] * len(noises)
    assert logs[1::2] == [NOTHING] * len(noises)


def test_what_is_no_file_is_said_to_be_none(tmp_path):
    names = ("pipe", "directory", "loop", "link to a device", "nothing")
    pipe, directory, loop, link, nothing = (tmp_path / name for name in names)
    os.mkfifo(pipe)
    directory.mkdir()
    loop.symlink_to(loop.name)
    link.symlink_to("/dev/zero")
    for answer in read_files(pipe, directory, loop, link, nothing, Path("/dev/zero")):
        assert answer["log"] == ["None", "no-log", "0", "None"]
        assert answer["status"] == ["None", "None"]
        assert all("Can't read" in answer[name][0] for name in ("manifest", "toml"))


@pytest.mark.needs("permissions")
def test_what_nobody_may_read_is_said_to_be_so(tmp_path):
    path = tmp_path / "it"
    path.write_text('{"event": "start", "time": 1795255599, "attempt": 1}\n')
    path.chmod(0)
    (answer,) = read_files(path)
    assert answer["log"][:2] == ["None", "no-log"]
    assert answer["status"] == ["None", "None"]
    assert all("Can't read" in answer[name][0] for name in ("manifest", "toml"))
