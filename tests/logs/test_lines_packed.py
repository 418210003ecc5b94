"""Logs that were compressed, or written in wide characters."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcbert.logs import lines, scan
from hpcbert.logs.lines import NotALogError, read_ends, read_pieces
from hpcbert.logs.setting import Setting

TEXT = "".join(f"step {n} of 9 | loss 2.5 | 100 samples/s ünd so\n" for n in range(4000)).encode()
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "bzip2": bz2.compress,
}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A path whose name says nothing of what is in it."""
    return tmp_path / "run.log"


def read_content(path: Path) -> bytes:
    return b"".join(read_pieces(path))


@pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS)
def test_a_compressed_log_is_read_whatever_it_is_called(
    log: Path, pack: Callable[[bytes], bytes]
) -> None:
    log.write_bytes(pack(TEXT))
    assert read_content(log) == TEXT
    head, tail = read_ends(log)
    assert TEXT.startswith(head)
    assert TEXT.endswith(tail)
    assert len(tail) > lines.CHUNK // 8


@pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS)
def test_streams_that_were_joined_are_read_to_the_last(
    log: Path, pack: Callable[[bytes], bytes]
) -> None:
    log.write_bytes(pack(TEXT[:999]) + bytes(8) + pack(TEXT[999:]) + bytes(4))
    assert read_content(log) == TEXT


@pytest.mark.parametrize("name", ["utf-16-le", "utf-16-be", "utf-8"])
def test_a_byte_order_mark_says_the_encoding(log: Path, name: str) -> None:
    data = f"\ufeff{TEXT.decode()}".encode(name)
    log.write_bytes(data)
    assert read_content(log) == TEXT
    log.write_bytes(gzip.compress(data))
    assert read_content(log) == TEXT


@pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS)
def test_what_is_cut_short_or_damaged_says_so(log: Path, pack: Callable[[bytes], bytes]) -> None:
    compressed = pack(TEXT)
    log.write_bytes(compressed[: len(compressed) // 2])
    with pytest.raises(NotALogError, match=r"is cut short|can't be unpacked"):
        read_content(log)
    log.write_bytes(compressed[:24] + b"garbage" * 20 + compressed[160:])
    with pytest.raises(NotALogError, match="can't be unpacked as"):
        read_content(log)


@pytest.mark.slow
@pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS)
def test_a_file_that_unpacks_without_end_is_left(
    log: Path, pack: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_UNPACKED", 1 << 22)
    log.write_bytes(pack(bytes(1 << 24)))
    with pytest.raises(NotALogError, match="unpacks to more than 4 MiB"):
        read_content(log)


def test_the_memory_that_an_xz_file_asks_for_is_bounded(log: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 28}]
    log.write_bytes(lzma.compress(b"step\n", filters=filters, check=lzma.CHECK_NONE))
    with pytest.raises(NotALogError, match="can't be unpacked as xz"):
        read_content(log)


@pytest.mark.parametrize(
    "text", [b"BZh is a word\n", b"PK\n", b"\x00" * 64 + b"step 1\n", b"a\x00\n"]
)
def test_a_text_that_only_begins_alike_is_read_as_it_is(log: Path, text: bytes) -> None:
    log.write_bytes(text)
    assert lines.is_plain(text)
    read_content(log)


def test_a_compressed_log_gives_the_number_of_the_log(log: Path, repository: Path) -> None:
    from tests.kit.recipes import grammar, sample, setting

    recipe = grammar("ngc-tf1")
    log.write_bytes(sample("ngc-tf1"))
    plain = scan.read(log, recipe, recipe.rule(), setting("ngc-tf1"))
    assert plain.throughput
    for data in (gzip.compress(sample("ngc-tf1")), sample("ngc-tf1").decode().encode("utf-16")):
        log.write_bytes(data)
        assert scan.read(log, recipe, recipe.rule(), setting("ngc-tf1")) == plain
    log.write_bytes(gzip.compress(sample("ngc-tf1"))[:4000])
    (reason,) = scan.read(log, recipe, recipe.rule(), Setting()).reasons
    assert reason.code == "no-log"


@pytest.mark.parametrize("text", [b"rate: ", b"a" * 40], ids=["short", "long"])
def test_a_text_is_found_wherever_it_begins(text: bytes) -> None:
    for begin in (0, *range(28_950, 29_010), 57_990, 58_000):
        data = b"-" * begin + text + b"-" * 40_000 + b"\n" + text
        positions = {at for _, _, at, _ in lines.find_lines(data, (text,))}
        assert {begin, len(data) - len(text)} <= positions
        assert lines.has_text(data, text)
    assert not lines.has_text(b"-" * 60_000 + text[:-1], text)
