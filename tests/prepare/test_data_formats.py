"""Training data: one stream in six formats, made again after a crash, checked to the last byte."""

import gzip
import hashlib
import json
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import zipfile
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbert.model import FORMAT_NAMES, usual_predictions
from hpcbert.prepare import data_formats as formats
from hpcbert.prepare import data_samples as samples
from hpcbert.prepare.data import read_first_record
from hpcbert.prepare.data_samples import StreamSettings, Vocabulary, make_synthetic, number_blocks
from tests.kit import cli
from tests.kit.cases import cases, read_constant
from tests.kit.logs import write_file
from tests.kit.waiting import CEILING
from tests.prepare.test_parts import hdf5

# Programs of these formats mask by themselves.
UNMASKED = ("paddle-text", "megatron")
STREAM = StreamSettings(32, 5, samples=60)


def make_data(directory, form="tfrecord", *words, status=None):
    few = ("--samples", 60, "--sequence-length", 32, "--predictions", 5)
    files = () if form == "megatron" else ("--files", 3)
    argv = ("data", "make", "--format", form, *few, *files, *words, directory, "--json")
    return cli.run(*argv, status=status)


def read_files(directory):
    """Return all files of the data but locks, whose names a lock that was taken over leaves behind."""
    paths = [path for path in sorted(directory.rglob("*")) if not path.name.startswith(".lock")]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths if path.is_file()}


def test_a_seed_gives_the_same_samples_for_ever():
    digest = hashlib.sha256()
    for numbers in number_blocks(0, 1000):
        digest.update(make_synthetic(numbers, StreamSettings(128, 20, samples=1000)).rows())
    # What the first thousand samples are: they must never change without a new schema.
    assert digest.hexdigest() == "f19c46750e83ceea5f7b1a61a022d7e8b0a634ae53f1ab03aa862b63990d5619"


@given(st.integers(8, 160), st.integers(1, 30), st.integers(0, 2**63 - 1), st.data())
@settings(max_examples=20, deadline=None)
def test_samples_are_such_as_bert_makes(length, predictions, seed, more):
    fill, vocabulary = more.draw(st.sampled_from(["generator", "full", "0.9"])), Vocabulary()
    least = min(predictions, length - 3)
    stream = StreamSettings(length, least, samples=50, fill=fill, seed=seed)
    samples = make_synthetic(np.arange(50), stream)
    assert (samples.input_ids[:, 0] == vocabulary.cls).all()
    assert samples.input_ids.min() >= 0
    assert samples.input_ids.max() < vocabulary.size
    for row in range(50):
        size, tokens = int(samples.lengths[row]), samples.originals[row].tolist()
        assert tokens[:size].count(vocabulary.sep) == 2
        assert tokens[size - 1] == vocabulary.sep
        assert not any(tokens[size:])
        segments = samples.segment_ids[row].tolist()
        first, second = tokens.index(vocabulary.sep) + 1, sum(segments)
        assert segments == [0] * first + [1] * second + [0] * (length - size)
        at = [place for place in samples.masked_lm_positions[row].tolist() if place]
        assert at == sorted(set(at))
        assert 1 <= len(at) <= max(1, round(0.15 * size + 0.01))
        assert all(tokens[place] >= vocabulary.first_word for place in at)
        assert samples.masked_lm_ids[row].tolist()[: len(at)] == [tokens[place] for place in at]


def test_masking_and_the_share_of_real_tokens_are_as_bert_has_them():
    samples = make_synthetic(np.arange(4096), StreamSettings(samples=4096))
    rows, columns = np.nonzero(samples.masked_lm_positions)
    places = samples.masked_lm_positions[rows, columns]
    now, was = samples.input_ids[rows, places], samples.masked_lm_ids[rows, columns]
    assert np.mean(now == Vocabulary().mask) == pytest.approx(0.8, abs=0.01)
    assert np.mean(now == was) == pytest.approx(0.1, abs=0.01)
    assert samples.next_sentence_labels.mean() == pytest.approx(0.5, abs=0.03)
    for fill, share in (("full", 1.0), ("wiki", 0.498), ("0.3", 0.3), ("0.75", 0.75)):
        filled = make_synthetic(np.arange(4096), StreamSettings(samples=4096, fill=fill))
        assert filled.input_mask.mean() == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("form", formats.FORMATS)
def test_a_format_holds_the_stream_and_its_samples_are_shown(form, tmp_path):
    """Some digests are of what each framework's own reader took, when the writer was made."""
    place = tmp_path / "x"
    result = make_data(place, form, status=0)
    document = json.loads((place / "data.json").read_text(encoding="utf-8"))
    assert result.data == {"directory": str(place), **document}
    assert document["stream_sha256"] == make_data(tmp_path / "y", "npz").data["stream_sha256"]
    make_data(tmp_path / "z", form)
    assert read_files(place) == read_files(tmp_path / "z")
    digest = hashlib.sha256(b"".join(read_files(place / "training").values())).hexdigest()
    assert digest == read_constant(__file__, "DIGESTS").get(form, digest)
    assert set(formats.FORMATS) == set(FORMAT_NAMES)
    checked = cli.run("data", "check", place, "--json", status=0)
    assert checked.data["samples"] == 60
    assert checked.data["mean_tokens"] == pytest.approx(document["mean_tokens"])
    most = formats.FORMATS[form].token_bytes * 32 + 12 * 5 + 256
    assert sum(file["bytes"] for file in document["files"]) <= 60 * most
    for number in (0, 25, 59):
        shown = cli.run("data", "show", place, "--sample", number, "--json").data
        right = make_synthetic(np.array([number]), STREAM)
        assert len(shown["tokens"]) == right.lengths[0]
        if form not in UNMASKED:
            assert (shown["tokens"][0], shown["label"]) == ("[CLS]", right.next_sentence_labels[0])
            positions = [at for at in right.masked_lm_positions[0].tolist() if at]
            assert [at for at, _ in shown["masked"]] == positions
    result = cli.run("data", "show", place, "--sample", 60, "--json", status=2)
    assert "0 to 59" in result.error["hint"]


@pytest.mark.parametrize("form", formats.FORMATS)
def test_samples_come_back_from_files_and_any_bytes_are_refused(form, tmp_path):
    stream = make_synthetic(np.arange(40), STREAM)
    paths = [tmp_path / name for name in formats.FORMATS[form].names(0, 1)]
    formats.FORMATS[form].write(paths, [stream])
    for number in range(40):
        sample, size = formats.read_sample(paths[0], form, number), int(stream.lengths[number])
        original = stream.originals[number, :size]
        if form not in UNMASKED:
            assert form != "hdf5" or sample["input_mask"].dtype == np.int8
            assert sample["input_ids"].tolist() == stream.input_ids[number].tolist()
            assert sample["masked_lm_ids"].tolist() == stream.masked_lm_ids[number].tolist()
            assert sample["next_sentence_labels"].item() == stream.next_sentence_labels[number]
            continue
        words = original >= Vocabulary().first_word
        assert (sample["input_ids"][words] == original[words]).all()
        assert sample["segment_ids"].tolist() == stream.segment_ids[number, :size].tolist()
    with pytest.raises((ValueError, IndexError)):
        formats.read_sample(paths[0], form, 40)
    path, rolls = tmp_path / "file.idx", random.Random(7)
    contents = [rolls.randbytes(size) for size in (1, 40, 4000)]
    contents += [b"", bytes(7), b"\xff" * 4096, b"PK\x03\x04", b"\x1f\x8b\x08", b"<html>" * 99]
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"\w+ \w+"):
            read_first_record(path, form, ["input_ids"])


@pytest.mark.torch
def test_usual_predictions_are_those_of_the_reference():
    from hpcbert.workloads.bert_settings import parse_settings

    for length in range(8, 513, 7):
        parsed = parse_settings([f"--sequence-length={length}"])
        assert parsed.predictions == usual_predictions(length)


def test_checksums_pickles_and_texts_are_as_their_formats_say(tmp_path):
    # RFC 3720, appendix B.4
    assert formats.crc32c(bytes(range(32))) == 0x46DD794E
    # As GluonNLP writes samples of unequal lengths (scripts/bert/data, write_to_files_np): named,
    # and closed.
    rows = np.array([[1, 2], [3]], dtype=object)
    np.savez_compressed(tmp_path / "part.npz", input_ids=rows, segment_ids=rows)
    names = read_first_record(tmp_path / "part.npz", "npz", ["input_ids"])
    assert names == "npz, input_ids, segment_ids"
    with pytest.raises(ValueError, match="pickle"):
        formats.read_sample(tmp_path / "part.npz", "npz", 0)
    # A map<string, Feature> of a text that is no UTF-8.
    record = b"\x0a\x0f\x0a\x0d\x0a\x04guid\x12\x05\x0a\x03\x0a\x01\xff"
    assert list(formats.decode_record(record, formats.TENSORFLOW)) == ["guid"]


def test_a_damaged_record_is_refused(tmp_path):
    def write_record(path, form):
        formats.FORMATS[form].write([path], [make_synthetic(np.arange(1), STREAM)])
        return path.read_bytes()

    path = tmp_path / "file.idx"

    def refuse(form, content, says):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=says):
            read_first_record(path, form, ["a"])

    record = write_record(path, "tfrecord")
    for place in (0, 9, 20, len(record) - 1):
        flipped = record[:place] + bytes([record[place] ^ 1]) + record[place + 1 :]
        refuse("tfrecord", flipped, "checksum is wrong")
    refuse("ofrecord", record, "protocol buffer|no features|no a")
    refuse("tfrecord", write_record(path, "ofrecord"), "checksum")
    hdf5(path, ["a"], rows=0)
    refuse("hdf5", path.read_bytes(), "hdf5")
    hdf5(path, ["a"])
    refuse("hdf5", path.read_bytes()[:600], "hdf5")
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("readme.txt", "nothing")
    refuse("npz", path.read_bytes(), "has no a")
    refuse("paddle-text", gzip.compress(b"a;b\n"), "2 fields")
    refuse("paddle-text", gzip.compress(b"a;b;c;d\n"), "int")
    refuse("megatron", b"MMIDIDX\0\0" + struct.pack("<QBQQ", 2, 8, 9, 2), "version")


@pytest.mark.parametrize("seed", [42, 7], ids=["the same data", "other data"])
def test_what_a_killed_run_left_is_not_taken_for_whole_and_made_again(seed, tmp_path):
    words = ["data", "make", "--format", "tfrecord", "--samples", "60", "--files", "6"]
    argv = [sys.executable, "-c", read_constant(__file__, "KILLED"), *words, str(tmp_path / "x")]
    dead = subprocess.run(argv, stdout=subprocess.DEVNULL, timeout=CEILING, check=False)
    assert dead.returncode == -9
    assert len(read_files(tmp_path / ".x.unfinished" / "training")) == 3
    assert cli.run("data", "check", tmp_path / "x").returncode == 2
    for name in ("x", "y"):
        assert cli.run(*words, "--seed", seed, tmp_path / name).returncode == 0
    assert read_files(tmp_path / "x") == read_files(tmp_path / "y")
    assert cli.run("data", "check", tmp_path / "x").returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir() if "lock" not in path.name) == ["x", "y"]


@cases
def test_what_is_there_is_never_written_over(name, says, tmp_path):
    if name:
        write_file(tmp_path, name, "")
    else:
        make_data(tmp_path / "x")
    before = sorted((str(path), path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    result = make_data(tmp_path / "x", "npz", status=2)
    assert says in result.error["message"].lower(), result
    assert sorted((str(path), path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


def test_a_full_disk_is_reported_before_anything_is_made(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 10))
    result = make_data(tmp_path / "x", "npz", status=1)
    assert "0 MiB are free" in result.error["message"]
    assert not read_files(tmp_path)


def test_data_are_made_behind_a_link_and_not_where_a_file_system_is_mounted(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    make_data(tmp_path / "link", "npz")
    assert (tmp_path / "data" / "data.json").is_file()
    (tmp_path / "mount").mkdir()
    monkeypatch.setattr(pathlib.Path, "is_mount", lambda _: True)
    assert "is mounted there" in make_data(tmp_path / "mount", "npz", status=2).error["message"]


@pytest.mark.parametrize("form", ["tfrecord", "megatron"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "missing", "another", "longer"])
def test_damage_is_found_and_not_shown(form, damage, tmp_path):
    make_data(tmp_path, form)
    path = max((tmp_path / "training").iterdir())
    content, middle = path.read_bytes(), path.stat().st_size // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    changed = {"cut": content[:-9], "flipped": flipped, "longer": content + b"\0"}
    if damage == "missing":
        path.unlink()
    elif damage == "another":
        path = tmp_path / "training" / "notes"
        path.write_text("")
    else:
        path.write_bytes(changed[damage])
    result = cli.run("data", "check", tmp_path, "--json", status=5)
    assert path.name in result.data["problems"][0]
    if form == "tfrecord" and damage == "flipped":
        path.write_bytes(b"x" * 40)
        shown = cli.run("data", "show", tmp_path, "--sample", 59, "--json", status=2)
        assert "data check" in shown.error["hint"]
        assert "checksum is wrong" in shown.error["message"]


@cases
def test_a_data_json_that_is_none_is_refused(content, says, tmp_path):
    make_data(tmp_path)
    path = tmp_path / "data.json"
    path.unlink() if content is None else path.write_text(content)
    for verb in ("check", "show"):
        assert says in cli.run("data", verb, tmp_path, "--json", status=2).error["message"]


def test_a_key_of_data_json_that_is_damaged_is_named(tmp_path):
    make_data(tmp_path)
    path = tmp_path / "data.json"
    text = path.read_text(encoding="utf-8")
    keys = ("vocabulary.sha256", "files[2].sha256", "files[2].name", "samples")
    for key, value in product(keys, (None, 7.5)):
        document = json.loads(text)
        tables = {"vocabulary": document["vocabulary"], "files[2]": document["files"][1]}
        place, _, name = key.rpartition(".")
        tables.get(place, document)[name] = value
        path.write_text(json.dumps(document))
        for verb in ("check", "show"):
            assert key in cli.run("data", verb, tmp_path, "--json", status=2).error["message"]


@cases
def test_bad_input_is_refused(words: list[str], says, tmp_path):
    result = make_data(tmp_path / "x", "npz", *words, status=2)
    assert says in result.error["message"] + result.error.get("where", ""), result
    assert not (tmp_path / "x").exists()


@pytest.fixture
def vocabulary(tmp_path):
    return write_file(tmp_path, "vocab.txt", read_constant(__file__, "VOCABULARY"))


def test_pairs_of_a_text_are_runs_of_it_and_more_samples_other_cuts(vocabulary, tmp_path):
    rolls, corpus = random.Random(3), tmp_path / "text"
    words = vocabulary.read_text().split()[9:-1]

    def roll_sentence():
        chosen = [rolls.choice(words).removeprefix("##") for _ in range(rolls.randint(3, 9))]
        return " ".join(chosen).capitalize() + "."

    for name in ("a.txt", "b/c.txt"):
        paragraphs = [
            rolls.choice([" ", "\n"]).join(roll_sentence() for _ in range(rolls.randint(1, 12)))
            for _ in range(20)
        ]
        write_file(corpus, name, "\n\n".join(paragraphs) + "\n")
    parsed = samples.read_corpus(samples.find_files(corpus), vocabulary, lowercase=True)
    pairs = samples.pair_sentences(parsed, StreamSettings(32, 5, samples=1), 0)
    starts = parsed.sentences[parsed.documents]
    assert pairs
    for pair in pairs:
        assert pair.first_size + pair.second_size <= 29
        assert min(pair.first_size, pair.second_size) >= 1
        same = (starts <= pair.first).sum() == (starts <= pair.second).sum()
        assert same == (not pair.label)
        assert not same or pair.second > pair.first
    assert 0.3 < sum(pair.label for pair in pairs) / len(pairs) < 0.8

    more = ("--sequence-length", 32, "--predictions", 5, "--text", corpus, "--vocab", vocabulary)

    def make(name, form, *words):
        argv = ("data", "make", "--format", form, *more, *words, tmp_path / name, "--json")
        return cli.run(*argv).data

    once = make("x", "npz")
    assert not once["synthetic"]
    assert (tmp_path / "x" / "vocab.txt").read_text().splitlines()[-1] == "."
    assert make("z", "hdf5")["stream_sha256"] == once["stream_sha256"]
    assert make("y", "npz", "--samples", 5 * once["samples"])["samples"] == 5 * once["samples"]
    rows = []
    for path in (tmp_path / "y" / "training").iterdir():
        with np.load(path) as arrays:
            rows += [row.tobytes() for row in arrays["input_ids"]]
    assert len(set(rows)) > 0.9 * len(rows)


@cases
def test_a_wrong_vocabulary_or_text_is_refused(vocabulary, tmp_path, words, text, says):
    options = ["--vocab", vocabulary]
    for option, content in (("--vocab", words), ("--text", text)):
        if content is not None:
            path = tmp_path / f"input{option}.txt"
            path.write_bytes(content.encode("latin-1"))
            options += [option, path]
    result = make_data(tmp_path / "x", "npz", *options)
    assert (result.returncode, says in result.error["message"]) == (2, True), result
    assert not (tmp_path / "x").exists()
