"""Logs that were compressed, or written in wide characters."""

import bz2
import gzip
import lzma

import pytest

from hpcbert.logs import lines

TEXT = "".join(f"step {n} of 9 | loss 2.5 | 100 samples/s ünd so\n" for n in range(4000)).encode()


def read_content(path, data):
    """Write a file whose name says nothing of what is in it, and read it."""
    path.write_bytes(data)
    return b"".join(lines.read_pieces(path))


@pytest.mark.parametrize("packer", [gzip, lzma, bz2], ids=lambda packer: packer.__name__)
def test_a_compressed_log_is_read_to_its_last_stream_or_refused(tmp_path, packer, monkeypatch):
    pack = packer.compress
    log = tmp_path / "run.log"
    compressed = pack(TEXT)
    assert read_content(log, compressed) == TEXT
    head, tail = lines.read_ends(log)
    assert TEXT.startswith(head)
    assert TEXT.endswith(tail)
    assert len(tail) > lines.CHUNK // 8
    assert read_content(log, pack(TEXT[:999]) + bytes(8) + pack(TEXT[999:]) + bytes(4)) == TEXT
    with pytest.raises(lines.NotALogError, match=r"is cut short|can't be unpacked"):
        read_content(log, compressed[: len(compressed) // 2])
    with pytest.raises(lines.NotALogError, match="can't be unpacked as"):
        read_content(log, compressed[:24] + b"garbage" * 20 + compressed[160:])
    monkeypatch.setattr(lines, "MAX_UNPACKED", 1 << 20)
    with pytest.raises(lines.NotALogError, match="unpacks to more than 1 MiB"):
        read_content(log, pack(bytes(1 << 22)))


def test_a_byte_order_mark_says_the_encoding_and_other_bytes_are_the_text(tmp_path):
    log = tmp_path / "run.log"
    for name in ("utf-16-le", "utf-16-be", "utf-8"):
        data = f"\ufeff{TEXT.decode()}".encode(name)
        assert read_content(log, data) == read_content(log, gzip.compress(data)) == TEXT
    for text in (b"BZh is a word\n", b"PK\n", b"\x00" * 64 + b"step 1\n", b"a\x00\n"):
        assert lines.is_plain(text)
        assert read_content(log, text)
    # The memory that an xz file asks for is bounded.
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 28}]
    data = lzma.compress(b"step\n", filters=filters, check=lzma.CHECK_NONE)
    with pytest.raises(lines.NotALogError, match="can't be unpacked as xz"):
        read_content(log, data)


def test_a_text_is_found_wherever_it_begins():
    begins = (0, *range(28_950, 29_010), 57_990, 58_000)
    for text, begin in ((text, begin) for text in (b"rate: ", b"a" * 40) for begin in begins):
        data = b"-" * begin + text + b"-" * 40_000 + b"\n" + text
        positions = {at for _, _, at, _ in lines.find_lines(data, (text,))}
        assert {begin, len(data) - len(text)} <= positions
        assert lines.has_text(data, text)
    assert not lines.has_text(b"-" * 60_000 + b"rate:", b"rate: ")
