"""Of any log: the right number, or a reason; never another number. So too of files of impossible size,
and of what is no file, where a log or a record should be: they are read within bounds."""

import json
import os
import random
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcbert.logs.setting import Setting
from tests.kit import recipes
from tests.kit.cases import read_constant
from tests.kit.cli import start_process
from tests.kit.logs import log
from tests.kit.paths import REPOSITORY, TEMPLATES

pytestmark = pytest.mark.slow
SETTING = Setting(
    nodes=1, gpus_per_node=2, gpus=2, batch_size_per_device=8, skip=4, iters=24, reach=24
)  # fmt: skip
RATES = read_constant(__file__, "RATES")
EXAMPLES = settings(max_examples=150, suppress_health_check=list(HealthCheck))
SIZE = 400 << 20
LOG = log("1n1g", 100.0, batch=8).encode()
FIRST, LAST = LOG[: LOG.index(b"iteration: 7/")], LOG[LOG.index(b"iteration: 7/") :]
WHOLE, NOTHING = ["100.0", "", "12", "12"], ["None", "incomplete", "0", "None"]


def render_lines(name):
    """Return the lines of a log whose right number RATES has."""
    head, line, every, tail = read_constant(__file__, "LOGS")[name].values()
    steps = [
        line.format(n=n, rate=113 + n, pytorch=1763717655.25 + n / 8, oneflow=1598056519.25 + n / 8)
        for n in range(every - (every > 1), 25, every)
    ]
    return [text.encode() for text in (*head, *steps, *tail, "")]


def check_number(folder, case, content):
    """Check that a damaged log has the right number, or a reason."""
    name, rule, rate = case
    reading = recipes.read(name, folder, content, rule, SETTING)
    if reading.throughput is None:
        assert reading.reasons or reading.missing
    else:
        assert reading.throughput == pytest.approx(rate)
        assert not reading.reasons


def read_files(*paths):
    """Return the answers of all readers, in a process whose memory and processor time are bounded."""
    words = map(str, (TEMPLATES / "pytorch", *paths))
    argv = [sys.executable, "-c", read_constant(__file__, "PROGRAM"), *words]
    result = start_process(argv, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
    assert result.ok, result.stderr[-2000:]
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("case", RATES, ids=str)
def test_a_log_cut_at_any_byte(tmp_path, case):
    name, rule, rate = case
    content = b"\n".join(render_lines(name))
    assert recipes.read(name, tmp_path, content, rule, SETTING).throughput == pytest.approx(rate)
    for length in range(0, len(content), 17):
        check_number(tmp_path, case, content[:length])


@EXAMPLES
@given(case=st.sampled_from(RATES), data=st.data(), lose=st.booleans())
def test_lines_lost_doubled_or_swapped(tmp_path, case, data, *, lose):
    lines = render_lines(case[0])
    place = st.integers(0, len(lines) - 2)
    if lose:
        lost = data.draw(st.sets(place, max_size=4))
        lines = [line for at, line in enumerate(lines) if at not in lost]
    else:
        for at, line in data.draw(st.lists(st.tuples(place, place), min_size=1, max_size=3)):
            lines.insert(at, lines[line])
    check_number(tmp_path, case, b"\n".join(lines))


@EXAMPLES
@given(
    case=st.sampled_from(RATES),
    noise=st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=80)), max_size=6),
)
def test_noise_between_lines_does_not_matter(tmp_path, case, noise):
    name, rule, rate = case
    lines = render_lines(name)
    for where, text in noise:
        if not any(word in text.lower() for word in (b"iteration", b"step", b"hpcbert", b"\0")):
            # After the first line: how a file begins says whether it is compressed.
            lines.insert(max(1, int(where * (len(lines) - 1))), text)
    reading = recipes.read(name, tmp_path, b"\n".join(lines), rule, SETTING)
    assert reading.throughput == pytest.approx(rate)


@EXAMPLES
@given(case=st.sampled_from(RATES), data=st.data(), noise=st.binary(max_size=3000))
def test_a_hole_anywhere_and_random_bytes(tmp_path, case, data, noise):
    content = b"\n".join(render_lines(case[0]))
    at, hole = data.draw(st.integers(0, len(content))), data.draw(st.integers(1, 400))
    tail = content[at + data.draw(st.sampled_from([0, hole])) :]
    check_number(tmp_path, case, content[:at] + bytes(hole) + tail)
    reading = recipes.read(case[0], tmp_path, noise, case[1], SETTING)
    assert reading.throughput is None
    assert reading.reasons


def test_files_larger_than_the_memory(tmp_path):
    # Between the pieces is one line of zero bytes: what a file system leaves that lost its pages.
    pieces = {"log": {0: LOG}, "apart": {0: FIRST, SIZE - len(LAST) - 1: b"\n" + LAST}, "empty": {}}
    for name, texts in pieces.items():
        with (tmp_path / name).open("wb") as file:
            file.truncate(SIZE)
            for at, text in texts.items():
                file.seek(at)
                file.write(text)
    first, apart, empty = read_files(*(tmp_path / name for name in pieces))
    assert first["log"][:3] == WHOLE[:3]
    assert (apart["log"], empty["log"]) == (WHOLE, NOTHING)
    assert empty["status"] == ["None", "None"]
    assert all("it has more than" in empty[name][0] for name in ("manifest", "toml"))


def test_a_mebibyte_of_noise_between_records_changes_nothing_and_alone_gives_none(tmp_path):
    noises = [text * (1 << 20) for text in (b"\xff\xfe", b"\x00", b"\r")]
    noises += [random.Random(1).randbytes(1 << 20), b"\x1b[" * 99]
    paths = []
    for number, noise in enumerate(noises):
        paths += [tmp_path / f"{number}.log", tmp_path / f"{number}.noise"]
        paths[-2].write_bytes(FIRST + noise + b"\n" + LAST)
        paths[-1].write_bytes(noise)
    logs = [answer["log"] for answer in read_files(*paths)]
    assert [values[:3] for values in logs[::2]] == [WHOLE[:3]] * len(noises)
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
