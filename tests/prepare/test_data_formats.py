"""Training data: one stream in six formats, made again after a crash, checked to the last byte."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbert.model import FORMAT_NAMES, usual_predictions
from hpcbert.prepare import data_formats as formats
from hpcbert.prepare import data_making as making
from hpcbert.prepare import data_samples as samples
from hpcbert.prepare.data import read_first_record
from hpcbert.prepare.data_formats import FORMATS, read_sample
from hpcbert.prepare.data_samples import StreamSettings, Vocabulary, make_synthetic, number_blocks
from tests.kit import cli
from tests.kit.cases import cases
from tests.kit.cli import CliResult
from tests.kit.waiting import CEILING

# Programs of these formats mask by themselves.
UNMASKED = ("paddle-text", "megatron")


def make_data(directory: Path, form: str = "tfrecord", *words: object) -> CliResult:
    few = ("--samples", 60, "--sequence-length", 32, "--predictions", 5)
    files = () if form == "megatron" else ("--files", 3)
    return cli.run("data", "make", "--format", form, *few, *files, *words, directory, "--json")


def read_document(directory: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((directory / "data.json").read_text(encoding="utf-8"))
    return document


def read_files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (directory / "training").iterdir()}


# --- The stream -----------------------------------------------------------------------------------


def test_a_seed_gives_the_same_samples_for_ever() -> None:
    digest = hashlib.sha256()
    for numbers in number_blocks(0, 1000):
        digest.update(make_synthetic(numbers, StreamSettings(128, 20, samples=1000)).rows())
    # What the first thousand samples are: they must never change without a new schema.
    assert digest.hexdigest() == "f19c46750e83ceea5f7b1a61a022d7e8b0a634ae53f1ab03aa862b63990d5619"


@given(st.integers(8, 160), st.integers(1, 30), st.integers(0, 2**63 - 1), st.data())
@settings(max_examples=40, deadline=None)
def test_samples_are_such_as_bert_makes(
    length: int, predictions: int, seed: int, more: Any
) -> None:
    predictions = min(predictions, length - 3)
    fill = more.draw(st.sampled_from(["generator", "full", "0.9"]))
    vocabulary = Vocabulary()
    stream = StreamSettings(length, predictions, samples=50, fill=fill, seed=seed)
    samples = make_synthetic(np.arange(50), stream, vocabulary)
    assert (samples.input_ids[:, 0] == vocabulary.cls).all()
    assert samples.input_ids.min() >= 0
    assert samples.input_ids.max() < vocabulary.size
    for row in range(50):
        size = int(samples.lengths[row])
        tokens = samples.originals[row].tolist()
        assert tokens[:size].count(vocabulary.sep) == 2
        assert tokens[size - 1] == vocabulary.sep
        assert not any(tokens[size:])
        second = samples.segment_ids[row].tolist()
        assert second == [0] * (tokens.index(vocabulary.sep) + 1) + [1] * sum(second) + [0] * (
            length - size
        )
        at = [place for place in samples.masked_lm_positions[row].tolist() if place]
        assert at == sorted(set(at))
        assert 1 <= len(at) <= max(1, round(0.15 * size + 0.01))
        assert all(tokens[place] >= vocabulary.first_word for place in at)
        assert samples.masked_lm_ids[row].tolist()[: len(at)] == [tokens[place] for place in at]


def test_masking_is_eight_ninths_of_ten_as_bert_has_it() -> None:
    samples = make_synthetic(np.arange(4096), StreamSettings(samples=4096))
    rows, columns = np.nonzero(samples.masked_lm_positions)
    places = samples.masked_lm_positions[rows, columns]
    now, was = samples.input_ids[rows, places], samples.masked_lm_ids[rows, columns]
    assert np.mean(now == Vocabulary().mask) == pytest.approx(0.8, abs=0.01)
    assert np.mean(now == was) == pytest.approx(0.1, abs=0.01)
    assert samples.next_sentence_labels.mean() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(
    ("fill", "share"), [("full", 1.0), ("wiki", 0.498), ("0.3", 0.3), ("0.75", 0.75), ("1", 1.0)]
)
def test_fill_is_the_mean_share_of_real_tokens(fill: str, share: float) -> None:
    samples = make_synthetic(np.arange(4096), StreamSettings(samples=4096, fill=fill))
    assert samples.input_mask.mean() == pytest.approx(share, abs=0.01)


# --- Formats --------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
def test_a_format_holds_the_stream(form: str, tmp_path: Path) -> None:
    result = make_data(tmp_path / "x", form)
    assert result.returncode == 0, result
    document = read_document(tmp_path / "x")
    assert result.data == {"directory": str(tmp_path / "x"), **document}
    other = make_data(tmp_path / "y", "npz")
    assert document["stream_sha256"] == other.data["stream_sha256"]
    make_data(tmp_path / "z", form)
    assert read_files(tmp_path / "x") == read_files(tmp_path / "z")
    checked = cli.run("data", "check", tmp_path / "x", "--json")
    assert checked.returncode == 0, checked
    assert checked.data["samples"] == 60
    assert checked.data["mean_tokens"] == pytest.approx(document["mean_tokens"])
    most = FORMATS[form].token_bytes * 32 + 12 * 5 + 256
    assert sum(file["bytes"] for file in document["files"]) <= 60 * most


@pytest.mark.parametrize("form", FORMATS)
def test_samples_come_back_from_files(form: str, tmp_path: Path) -> None:
    stream = make_synthetic(np.arange(40), StreamSettings(32, 5, samples=40))
    paths = [tmp_path / name for name in FORMATS[form].names(0, 1)]
    FORMATS[form].write(paths, [stream])
    for number in range(40):
        sample, size = read_sample(paths[0], form, number), int(stream.lengths[number])
        if form not in UNMASKED:
            masked = sample["input_ids"].tolist(), sample["masked_lm_ids"].tolist()
            right = stream.input_ids[number].tolist(), stream.masked_lm_ids[number].tolist()
            assert masked == right
            assert sample["next_sentence_labels"].item() == stream.next_sentence_labels[number]
            continue
        words = stream.originals[number, :size] >= Vocabulary().first_word
        assert (sample["input_ids"][words] == stream.originals[number, :size][words]).all()
        assert sample["segment_ids"].tolist() == stream.segment_ids[number, :size].tolist()
    with pytest.raises((ValueError, IndexError)):
        read_sample(paths[0], form, 40)


@pytest.mark.torch
def test_the_reference_reads_the_hdf5_files(tmp_path: Path) -> None:
    import torch

    from hpcbert.workloads import bert_data, bert_settings

    assert make_data(tmp_path / "x", "hdf5").returncode == 0
    run_settings = bert_settings.Settings(sequence_length=32, predictions=5)
    stream = make_synthetic(np.arange(60), StreamSettings(32, 5, samples=60))
    paths = sorted((tmp_path / "x" / "training").iterdir())
    shards = [bert_data.Shard(path, 0, 1) for path in paths]
    batches = [block for shard in shards for block in bert_data.read_shard(shard, run_settings)]
    assert (torch.cat([batch.input_ids for batch in batches]).numpy() == stream.input_ids).all()
    masked = torch.cat([batch.masked_ids for batch in batches]).numpy()
    assert (masked == stream.masked_lm_ids).all()
    with h5py.File(paths[0]) as file:
        assert file["input_mask"].dtype == np.int8
    assert set(FORMAT_NAMES) == set(FORMATS)
    for length in range(8, 513):
        parsed = bert_settings.parse_settings([f"--sequence-length={length}"])
        assert parsed.predictions == usual_predictions(length)


@cases
def test_a_format_is_what_its_frameworks_own_reader_takes(
    form: str, sha256: str, tmp_path: Path
) -> None:
    """What each of them read to the last record, value by value, when the writer was made."""
    make_data(tmp_path / "x", form)
    digest = hashlib.sha256()
    for _, content in sorted(read_files(tmp_path / "x").items()):
        digest.update(content)
    assert digest.hexdigest() == sha256


# --- Records, written byte by byte as their formats say -------------------------------------------


@given(st.lists(st.integers(0, 2**40), max_size=40))
def test_integers_of_a_record_come_back(values: list[int]) -> None:
    for dialect in (formats.TENSORFLOW, formats.ONEFLOW):
        record = formats.encode_record({"x": np.array(values, dtype=np.int64)}, dialect)
        assert formats.decode_record(record, dialect)["x"].tolist() == values


def message(number: int, content: bytes) -> bytes:
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


def feature_map(*names: str) -> bytes:
    """Return map<string, Feature> as field 1, each with a list of 7 and 300."""
    numbers = message(3, message(1, b"\x07\xac\x02"))
    return b"".join(message(1, message(1, name.encode()) + message(2, numbers)) for name in names)


def tfrecord(*names: str) -> bytes:
    data = message(1, feature_map(*names))
    length = struct.pack("<Q", len(data))
    return b"".join(piece + masked_crc(piece) for piece in (length, data))


def masked_crc(data: bytes) -> bytes:
    value = formats.crc32c(data)
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def ofrecord(*names: str) -> bytes:
    data = feature_map(*names)
    return struct.pack("<q", len(data)) + data


def npz(*names: str) -> bytes:
    content = io.BytesIO()
    arrays: dict[str, Any] = dict.fromkeys(names, np.zeros(3))
    np.savez(content, **arrays)
    return content.getvalue()


def hdf5(*names: str, rows: int = 3) -> bytes:
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        for name in names:
            file[name] = np.zeros((rows, 4), dtype="i4")
    return content.getvalue()


def archive_of_text() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        file.writestr("readme.txt", "nothing")
    return content.getvalue()


WRITERS = {"tfrecord": tfrecord, "ofrecord": ofrecord, "npz": npz, "hdf5": hdf5}


def test_the_checksum_is_castagnolis() -> None:
    # RFC 3720, appendix B.4
    assert formats.crc32c(bytes(32)) == 0x8A9136AA
    assert formats.crc32c(b"\xff" * 32) == 0x62A8AB43
    assert formats.crc32c(bytes(range(32))) == 0x46DD794E


@pytest.mark.parametrize("form", WRITERS)
def test_a_first_record_has_names(form: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(WRITERS[form]("input_ids", "segment_ids"))
    assert read_first_record(path, form, ["input_ids"]) == f"{form}, input_ids, segment_ids"
    with pytest.raises(ValueError, match="has no a, input_mask"):
        read_first_record(path, form, ["input_ids", "a", "input_mask"])


def test_arrays_that_are_pickled_are_named_and_stay_closed(tmp_path: Path) -> None:
    """As GluonNLP writes samples of unequal lengths (scripts/bert/data, write_to_files_np)."""
    rows = np.array([[1, 2], [3]], dtype=object)
    np.savez_compressed(tmp_path / "part.npz", input_ids=rows, segment_ids=rows)
    names = read_first_record(tmp_path / "part.npz", "npz", ["input_ids"])
    assert names == "npz, input_ids, segment_ids"
    with pytest.raises(ValueError, match="pickle"):
        read_sample(tmp_path / "part.npz", "npz", 0)


def test_a_feature_of_text_has_a_name(tmp_path: Path) -> None:
    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    text = field(2, field(1, field(1, b"\xff")))
    record = field(1, field(1, field(1, b"guid") + text))
    assert list(formats.decode_record(record, formats.TENSORFLOW)) == ["guid"]


DAMAGED: Mapping[str, tuple[str, bytes, str]] = {
    **{
        f"bit-of-byte-{place}": (
            "tfrecord",
            tfrecord("a")[:place] + bytes([tfrecord("a")[place] ^ 1]) + tfrecord("a")[place + 1 :],
            "checksum is wrong",
        )
        for place in (0, 9, 20, len(tfrecord("a")) - 1)
    },
    "ofrecord-as-tfrecord": ("tfrecord", ofrecord("input_ids"), "checksum"),
    "tfrecord-as-ofrecord": ("ofrecord", tfrecord("a"), "protocol buffer|no features|no a"),
    "hdf5-without-rows": ("hdf5", hdf5("a", rows=0), "hdf5"),
    "hdf5-cut": ("hdf5", hdf5("a")[:600], "hdf5"),
    "zip-of-text": ("npz", archive_of_text(), "is not an array"),
    "two-fields": ("paddle-text", gzip.compress(b"a;b\n"), "2 fields"),
    "words": ("paddle-text", gzip.compress(b"a;b;c;d\n"), "int"),
    "another-version": ("megatron", b"MMIDIDX\0\0" + struct.pack("<QBQQ", 2, 8, 9, 2), "version"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_record_is_refused(name: str, tmp_path: Path) -> None:
    form, content, says = DAMAGED[name]
    path = tmp_path / "file.idx"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=says):
        read_first_record(path, form, ["a"])


@pytest.mark.parametrize("form", FORMATS)
def test_any_bytes_are_refused_with_a_sentence(form: str, tmp_path: Path) -> None:
    path = tmp_path / "file.idx"
    rolls = random.Random(7)
    contents = [rolls.randbytes(size) for size in (1, 40, 4000)]
    contents += [b"", bytes(7), b"\xff" * 4096, b"PK\x03\x04", b"\x1f\x8b\x08", b"<html>" * 99]
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"\w+ \w+"):
            read_first_record(path, form, ["input_ids"])


# --- Made again -----------------------------------------------------------------------------------


def plan_of(directory: Path, form: str, seed: int = 42) -> making.DataPlan:
    return making.DataPlan(directory, form, 3, StreamSettings(32, 5, samples=60, seed=seed))


def interrupt_second_file(form: str, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let the writer of a format write its second file and then fail."""
    write = FORMATS[form].write
    calls: list[object] = []

    def failing(paths: Any, stream: Any) -> None:
        calls.append(paths)
        write(paths, stream)
        if len(calls) == 2:
            raise error

    monkeypatch.setitem(FORMATS, form, FORMATS[form]._replace(write=failing))


@pytest.mark.parametrize("seed", [42, 7], ids=["the same data", "other data"])
@pytest.mark.parametrize("form", ["tfrecord", "hdf5", "paddle-text"])
def test_unfinished_data_are_made_again(
    form: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        interrupt_second_file(form, patched, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            making.make(plan_of(tmp_path / "x", form))
    assert cli.run("data", "check", tmp_path / "x").returncode == 2
    making.make(plan_of(tmp_path / "x", form, seed))
    making.make(plan_of(tmp_path / "y", form, seed))
    assert read_files(tmp_path / "x") == read_files(tmp_path / "y")
    assert read_document(tmp_path / "x") == read_document(tmp_path / "y")
    assert not [path for path in (tmp_path / "x").glob(".*") if not path.name.startswith(".lock")]


@pytest.mark.slow
def test_a_run_that_is_killed_leaves_nothing_that_is_taken_for_whole(tmp_path: Path) -> None:
    code = """
import os, signal
from hpcbert.__main__ import main
from hpcbert.prepare.data_formats import FORMATS
form, calls = FORMATS["tfrecord"], []
def killed(paths, stream):
    form.write(paths, stream)
    calls.append(paths)
    if len(calls) == 3: os.kill(os.getpid(), signal.SIGKILL)
FORMATS["tfrecord"] = form._replace(write=killed)
main()
"""
    words = ["data", "make", "--format", "tfrecord", "--samples", 2000, "--files", 40]
    argv = [str(word) for word in (*words, tmp_path / "x")]
    dead = subprocess.run(
        [sys.executable, "-c", code, *argv], stdout=subprocess.DEVNULL, timeout=CEILING, check=False
    )
    assert dead.returncode == -9
    assert len(read_files(tmp_path / "x")) == 3
    assert cli.run("data", "check", tmp_path / "x").returncode == 2
    # As if it had been killed while it wrote the settings.
    (tmp_path / "x" / ".data.json.1.00000000.tmp").touch()
    assert cli.run(*argv).returncode == 0
    assert cli.run("data", "check", tmp_path / "x").returncode == 0
    # A lock that was taken over from the dead leaves a name behind.
    assert not [path for path in (tmp_path / "x").glob(".*") if not path.name.startswith(".lock")]


def write_nothing(place: Path, name: str) -> None:
    place.mkdir()
    (place / name).write_text("")


OTHER: dict[str, tuple[Callable[[Path], object], str]] = {
    "complete": (make_data, "complete"),
    "a-file": (lambda place: write_nothing(place, "notes"), "not empty"),
    "hidden": (lambda place: write_nothing(place, ".hidden"), "not empty"),
    "no-directory": (lambda place: place.write_text(""), "directory"),
}


@pytest.mark.parametrize("name", OTHER)
def test_what_is_there_is_never_written_over(name: str, tmp_path: Path) -> None:
    place = tmp_path / "x"
    prepare, says = OTHER[name]
    prepare(place)
    before = sorted((str(path), path.stat().st_mtime_ns) for path in place.rglob("*"))
    result = make_data(place, "npz")
    assert result.returncode == 2, result
    assert says in result.error["message"].lower(), result
    assert sorted((str(path), path.stat().st_mtime_ns) for path in place.rglob("*")) == before


def test_a_full_disk_is_reported_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 10))
    result = make_data(tmp_path / "x", "npz")
    assert result.returncode == 1
    assert "0 MiB are free" in result.error["message"]
    assert not read_files(tmp_path / "x")


# --- Checked and shown ----------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["tfrecord", "megatron"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "missing", "another", "longer"])
def test_damage_is_found(form: str, damage: str, tmp_path: Path) -> None:
    place = tmp_path / "x"
    make_data(place, form)
    path = max((place / "training").iterdir())
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "another":
        (place / "training" / "notes").write_text("")
    else:
        middle = len(content) // 2
        changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        new = {"cut": content[:-9], "flipped": changed, "longer": content + b"\0"}
        path.write_bytes(new[damage])
    result = cli.run("data", "check", place, "--json")
    assert result.returncode == 5, result
    assert result.data["problems"]
    name = "notes" if damage == "another" else path.name
    assert name in result.data["problems"][0]


@cases
def test_a_data_json_that_is_none_is_refused(
    content: str | None, says: str, tmp_path: Path
) -> None:
    make_data(tmp_path / "x")
    path = tmp_path / "x" / "data.json"
    path.unlink() if content is None else path.write_text(content)
    for verb in ("check", "show"):
        result = cli.run("data", verb, tmp_path / "x", "--json")
        assert result.returncode == 2
        assert says in result.error["message"]


@pytest.mark.parametrize(
    "key", ["vocabulary.sha256", "files[2].sha256", "files[2].name", "samples"]
)
@pytest.mark.parametrize("value", [None, 7.5], ids=["nothing", "another-kind"])
def test_a_key_of_data_json_that_is_damaged_is_named(
    key: str, value: object, tmp_path: Path
) -> None:
    make_data(tmp_path / "x")
    document = read_document(tmp_path / "x")
    table = {"vocabulary": document["vocabulary"], "files[2]": document["files"][1]}
    place, _, name = key.rpartition(".")
    table.get(place, document)[name] = value
    (tmp_path / "x" / "data.json").write_text(json.dumps(document))
    for verb in ("check", "show"):
        result = cli.run("data", verb, tmp_path / "x", "--json")
        assert (result.returncode, key in result.error["message"]) == (2, True), result


@pytest.mark.parametrize("form", FORMATS)
def test_a_sample_is_shown_as_text(form: str, tmp_path: Path) -> None:
    make_data(tmp_path / "x", form)
    for number in (0, 25, 59):
        result = cli.run("data", "show", tmp_path / "x", "--sample", number, "--json")
        assert result.returncode == 0, result
        right = make_synthetic(np.array([number]), StreamSettings(32, 5, samples=60))
        assert len(result.data["tokens"]) == right.lengths[0]
        if form not in UNMASKED:
            assert result.data["tokens"][0] == "[CLS]"
            assert result.data["label"] == right.next_sentence_labels[0]
            positions = [place for place in right.masked_lm_positions[0].tolist() if place]
            assert [place for place, _ in result.data["masked"]] == positions
    result = cli.run("data", "show", tmp_path / "x", "--sample", 60, "--json")
    assert (result.returncode, "0 to 59" in result.error["hint"]) == (2, True)


def test_a_sample_of_a_damaged_file_is_not_shown(tmp_path: Path) -> None:
    make_data(tmp_path / "x")
    max((tmp_path / "x" / "training").iterdir()).write_bytes(b"x" * 40)
    result = cli.run("data", "show", tmp_path / "x", "--sample", 59, "--json")
    assert result.returncode == 2
    assert "checksum is wrong" in result.error["message"]
    assert "data check" in result.error["hint"]


# --- Bad input ------------------------------------------------------------------------------------


@cases
def test_bad_input_is_refused(words: list[str], says: str, tmp_path: Path) -> None:
    result = make_data(tmp_path / "x", "npz", *words)
    assert result.returncode == 2, result
    assert says in result.error["message"] + result.error.get("where", ""), result
    assert not (tmp_path / "x").exists()


# --- Text -----------------------------------------------------------------------------------------

WORDS = ["the", "cat", "dog", "saw", "a", "tree", "##s", "ran", "to", "house", "."]


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    path = tmp_path / "vocab.txt"
    special = ["[PAD]", *(f"[unused{n}]" for n in range(4)), "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    path.write_text("\n".join([*special, *WORDS]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    rolls = random.Random(3)

    def sentence() -> str:
        chosen = [rolls.choice(WORDS[:-1]).removeprefix("##") for _ in range(rolls.randint(3, 9))]
        return " ".join(chosen).capitalize() + "."

    folder = tmp_path / "text"
    (folder / "b").mkdir(parents=True)
    for name in ("a.txt", "b/c.txt"):
        paragraphs = [
            rolls.choice([" ", "\n"]).join(sentence() for _ in range(rolls.randint(1, 12)))
            for _ in range(20)
        ]
        (folder / name).write_text("\n\n".join(paragraphs) + "\n", encoding="utf-8")
    return folder


Text = Callable[..., CliResult]


@pytest.fixture
def from_text(corpus: Path, vocabulary: Path) -> Text:
    def run(place: Path, form: str, *words: object) -> CliResult:
        more = ("--sequence-length", 32, "--predictions", 5, "--text", corpus)
        return cli.run(
            "data", "make", "--format", form, *more, "--vocab", vocabulary, *words, place, "--json"
        )

    return run


def test_pairs_of_a_text_are_runs_of_it(
    from_text: Text, vocabulary: Path, tmp_path: Path, corpus: Path
) -> None:
    parsed = samples.read_corpus(samples.find_files(corpus), vocabulary, lowercase=True)
    stream = StreamSettings(32, 5, samples=1)
    pairs = samples.pair_sentences(parsed, stream, 0)
    starts = parsed.sentences.tolist()
    documents_at = [starts[index] for index in parsed.documents.tolist()]

    def document(token: int) -> int:
        return sum(token >= start for start in documents_at)

    assert pairs
    for pair in pairs:
        assert pair.first_size + pair.second_size <= 29
        assert min(pair.first_size, pair.second_size) >= 1
        same = document(pair.first) == document(pair.second)
        assert same == (not pair.label)
        assert not same or pair.second > pair.first
    labels = [pair.label for pair in pairs]
    assert 0.3 < sum(labels) / len(labels) < 0.8


def test_more_samples_than_a_text_has_are_other_cuts_of_it(from_text: Text, tmp_path: Path) -> None:
    once = from_text(tmp_path / "x", "npz")
    assert not once.data["synthetic"]
    assert (tmp_path / "x" / "vocab.txt").read_text().splitlines()[-1] == "."
    assert from_text(tmp_path / "z", "hdf5").data["stream_sha256"] == once.data["stream_sha256"]
    samples = once.data["samples"]
    more = from_text(tmp_path / "y", "npz", "--samples", 5 * samples)
    assert more.data["samples"] == 5 * samples
    rows = []
    for path in (tmp_path / "y" / "training").iterdir():
        with np.load(path) as arrays:
            rows += [row.tobytes() for row in arrays["input_ids"]]
    assert len(set(rows)) > 0.9 * len(rows)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[CLS]\n[SEP]\n", "has no"),
        ("a\n[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nb\n", "begin with [PAD]"),
        ("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n", "no words"),
        (b"\xff\xfe", "can't be read"),
    ],
    ids=["special-missing", "padding-elsewhere", "no-words", "no-text"],
)
def test_a_wrong_vocabulary_is_refused(content: str | bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    result = make_data(tmp_path / "x", "npz", "--vocab", path)
    assert (result.returncode, says in result.error["message"]) == (2, True), result


def test_a_text_that_is_none_is_refused(vocabulary: Path, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"One.\n\nTwo.\xff\n")
    result = make_data(tmp_path / "x", "npz", "--vocab", vocabulary, "--text", path)
    assert (result.returncode, "can't be read" in result.error["message"]) == (2, True), result
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("content", ["", "One sentence.\n", "One.\nTwo.\nThree.\n"])
def test_a_text_that_is_too_short_is_refused(
    content: str, vocabulary: Path, tmp_path: Path
) -> None:
    path = tmp_path / "text.txt"
    path.write_text(content)
    result = make_data(tmp_path / "x", "npz", "--vocab", vocabulary, "--text", path)
    assert (result.returncode, "two documents" in result.error["message"]) == (2, True), result
