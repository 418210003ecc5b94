"""What stands in the place of a log, and what happens to logs: a number that is right, or a reason."""

import os
import re
import sys
import time
import tracemalloc

import pytest

from hpcbert.errors import ConfigError
from hpcbert.logs import lines, scan
from hpcbert.logs.setting import Setting
from tests.kit.cases import cases, read_constant
from tests.kit.logs import GRAMMARS, announce, codes, parse, step, steps

ONE = Setting(nodes=1, gpus_per_node=1, gpus=1, batch_size_per_device=32)
# Each of these tests is of one rule: what the others say of the same log is test_crosscheck.py's.
STEPS = (GRAMMARS / "steps.toml").read_text().replace('kind = "', 'cross_check = false\nkind = "')


def test_what_is_in_a_logs_place_is_said(tmp_path):
    grammar = parse(STEPS)
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "folder.log").mkdir()
    (tmp_path / "loop.log").symlink_to(tmp_path / "loop.log")
    expected = {
        "pipe.log": "pipe.log can't be read: it is not a regular file",
        "folder.log": "folder.log can't be read: it is not a regular file",
        "absent.log": "absent.log can't be read: No such file or directory",
        "loop.log": "loop.log can't be read: Too many levels of symbolic links",
        "/dev/zero": "zero can't be read: it is not a regular file",
    }
    for name, detail in expected.items():
        reading = scan.read(tmp_path / name, grammar, grammar.rule(), ONE)
        assert [str(reason) for reason in reading.reasons] == [f"no-log: {detail}"]
        assert reading.throughput is None
        assert scan.read_progress(tmp_path / name, grammar) == scan.Progress()


@cases
def test_a_log_gives_its_number_or_a_reason(read, places, numbers, *, edits, changes, head, tail):
    toml, log = STEPS, head or ""
    for old, new in (edits or {}).items():
        assert old in toml
        toml = toml.replace(old, new)
    for word in places.split():
        match = re.fullmatch(r"(\d+)(?:-(\d+))?(?:@(\d+)|\+(-?\d+))?", word)
        assert match
        first, last, at, later = match.groups()
        for n in range(int(first), int(last or first) + 1):
            log += step(n, at=n + int(later or 0) if at is None else int(at))
    for rule, expected in numbers.items():
        reading = read(toml, log + (tail or ""), rule, ONE._replace(**(changes or {})))
        if isinstance(expected, str):
            assert reading.throughput is None
            assert expected in str(reading.reasons[0])
        else:
            assert reading.throughput == pytest.approx(expected)


def test_a_number_that_is_cut_off_or_none_spoils_the_run(read):
    assert read(STEPS, "batch: 3", "clock", Setting()).setting.batch_size_per_device is None
    for rate in ("0", "-5", "0.0", "1e999", "nan", "inf", "1_0", "fast", "--"):
        log = "".join(step(n, rate=rate if n == 70 else "64.5") for n in range(1, 121))
        reading = read(STEPS, log, "rate", ONE)
        assert (reading.throughput, codes(reading)) == (None, ["rule"]), rate
    for loss in ("nan", "NaN", "-nan", "inf", "-inf", "1.#QNAN", "nan(ind)"):
        for where, rule in ((1, "clock"), (20, "rate"), (70, "footer"), (120, "clock")):
            log = "".join(step(n, loss=loss if n == where else "9.5") for n in range(1, 121))
            (reason,) = read(STEPS, log + "result: 5.5\n", rule, ONE).reasons
            assert str(reason) == f"loss: the loss is {loss} at iteration {where}"


def test_the_loss_of_the_last_iteration_may_come_after_it(read, monkeypatch):
    apart = STEPS.replace(" loss: (?P<loss>\\S+)", " loss: \\S+")
    apart = apart.replace("[[log.rules]]", read_constant(__file__, "LOSS_RECORD"), 1)
    log = "".join(step(n) + "train loss 9.5\n" for n in range(1, 120)) + step(120)
    later = log + "train loss 9.5\n" + step(121) + "train loss nan\n"
    for chunk in (lines.CHUNK, 90):
        monkeypatch.setattr("hpcbert.logs.lines.CHUNK", chunk)
        assert codes(read(apart, log + "train loss nan\n", "clock", ONE)) == ["loss"]
        assert read(apart, later, "clock", ONE).throughput == 32


@cases
def test_time_stamps_go_on_over_midnight_and_others_are_refused(read, form, before, after):
    toml = STEPS.replace("time: (?P<time>[\\d.]+)", "time: (?P<time>.+)$")
    toml = toml.replace('"epoch"', f'"{form}"')
    log = "".join(
        f"iteration: {n + 1}/120 loss: 9.5 samples/s: 1 time: "
        f"{(before if n < 60 else after).format(n=n % 60, seconds=1683423505 + n)}\n"
        for n in range(120)
    )
    assert read(toml, log, "clock", ONE).throughput == pytest.approx(32)
    for stamp in ("", "now", "25:99", "9999-99-99 00:00:00", "Foo Bar 1", "1e5"):
        log = steps(119) + f"iteration: 120/120 loss: 9.5 samples/s: 1 time: {stamp}\n"
        assert read(toml, log, "clock", ONE).throughput is None, stamp


def test_labels_bars_colours_and_the_cuts_of_srun_are_undone(read, monkeypatch):
    """srun -l cuts after 1,024 bytes; lines of other ranks come in between."""
    anchored = STEPS.replace("'iteration: ", "'^iteration: ")
    for dressing in read_constant(__file__, "DRESSINGS"):
        dressed = "".join(dressing.format(step(n).rstrip()) + "\n" for n in range(1, 121))
        for log in (dressed, dressed.replace("\n", "\r\n"), dressed.replace("\n", "\r")):
            assert read(anchored, log, "clock", ONE).throughput == 32, dressing
    for length in (960, 1000, 1010, 1024, 2040):
        log = ""
        for line in ("x" * length + step(n).rstrip("\n") for n in range(1, 121)):
            for start in range(0, len(line), 1024):
                log += f"0: {line[start : start + 1024]}\n1: noise\n2: noise\n"
        for chunk in (lines.CHUNK, 3000):
            with monkeypatch.context() as patch:
                patch.setattr("hpcbert.logs.lines.CHUNK", chunk)
                assert read(STEPS, log, "clock", ONE).throughput == 32, (length, chunk)


def test_glued_records_other_bytes_and_pieces_of_any_size_give_the_same_number(read, monkeypatch):
    noise = bytes(range(1, 256)) * 3
    logs = (
        steps().replace("\n", " ").encode(),
        (steps(119) + "=" * (3 * lines.LINE) + step(120)).encode(),
        b"\n".join([noise, steps(60).encode() + noise, steps(120, 61).encode() + noise]),
    )
    assert [read(STEPS, log, "clock", ONE).throughput for log in logs] == [32, 32, 32]
    for size in (len(step(120)), 97, 128, 1000, 4096):
        monkeypatch.setattr("hpcbert.logs.lines.CHUNK", size)
        assert read(STEPS, "batch: 32\n" + steps(), "clock", ONE).throughput == 32


def test_a_log_without_end_takes_no_more_memory_and_time_than_its_number(
    read, tmp_path, monkeypatch
):
    path, grammar = tmp_path / "run.log", parse(STEPS)
    path.write_text(steps(60) + "=" * (20 * lines.CHUNK) + "\n" + steps(120, 61))
    tracemalloc.start()
    reading = scan.read(path, grammar, grammar.rule("rate"), ONE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reading.throughput == 64.5
    assert peak < 16 * lines.CHUNK
    counted = STEPS.replace('time = "epoch"', 'time = "epoch"\nrepeated = "count"')
    log = steps(50) + "".join(step(50, at=50 + n / 10) for n in range(1, 3000))
    assert codes(read(counted, log, "rate", ONE)) == ["window"]
    began = time.process_time()
    read(STEPS, "iteration: 1/2 loss: 1 " * 50_000 + "\n" + steps(), "clock", ONE)
    assert time.process_time() - began < 5
    # scan.Reading stops where the rule and the gate have all they need.
    path.write_text(steps())
    os.truncate(path, 2 << 30)
    sizes, real = [], os.read

    def read_counted(file, size):
        sizes.append(size)
        return real(file, size)

    monkeypatch.setattr(os, "read", read_counted)
    assert scan.read(path, grammar, grammar.rule(), ONE).throughput == 32
    assert sum(sizes) <= 3 * lines.CHUNK


def test_progress_reads_the_end_of_a_log_that_grows(tmp_path):
    path = tmp_path / "run.log"
    path.write_text("noise\n" * 100_000 + steps(57) + step(58)[:-9])
    assert scan.read_progress(path, parse(STEPS)) == scan.Progress(57, 64.5)
    path.write_text("starting\n")
    assert scan.read_progress(path, parse(STEPS)) == scan.Progress()
    # By the clock, with the batch of the header.
    clock = STEPS.replace('[[log.rules]]\nname = "rate"\ncross_check = false\nkind = "rate"\n', "")
    clock = clock.replace("^batch: (?P<batch_size_per_device>", "^batch: (?P<global_batch_size>")
    path.write_text("batch: 64\n" + "noise\n" * 50_000 + steps(57))
    assert scan.read_progress(path, parse(clock)) == scan.Progress(57, 64.0)


def test_an_entry_point_that_can_not_be_imported_is_named(tmp_path, monkeypatch):
    announce(tmp_path, "broken", "grammars", "hpcbert.absent:read")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    grammar, path = parse('[log]\ngrammar = "entry-point:broken"\n'), tmp_path / "run.log"
    assert grammar.rule().name == "broken"
    assert scan.read_progress(path, grammar) == scan.Progress()
    with pytest.raises(ConfigError, match=r"hpcbert\.absent"):
        scan.read(path, grammar, grammar.rule(), ONE)


def test_a_clock_of_several_ranks_takes_their_median_time(read):
    toml = STEPS.replace('time = "epoch"', 'time = "epoch"\nranks = "gpu"')
    log = "".join(f"{rank}: {step(n, at=n + rank / 2)}" for n in range(1, 121) for rank in (0, 1))
    two = ONE._replace(gpus_per_node=2, gpus=2)
    assert read(toml, log, "clock", two).throughput == pytest.approx(64)
    lacking = log.replace(f"1: {step(20, at=20.5)}", "")
    assert codes(read(toml, lacking, "clock", two)) == ["window"]
    # Somebody must say how many ranks print.
    assert read(toml, log, "rate", Setting()).missing == "gpus"
    one_each = toml.replace('ranks = "gpu"', 'ranks = "node"')
    assert read(one_each, log, "rate", ONE._replace(nodes=2, gpus=2)).throughput == 64.5


def test_a_record_of_several_lines_ends_with_its_file_or_the_next_one(read, monkeypatch):
    toml = STEPS.replace(
        "match = 'result: (?P<rate>[\\d.]+)'", "match = 'result: \\n(?P<rate>[\\d.]+) x'\nlines = 4"
    )
    for end in ("\n", "y"):
        assert read(toml, f"{steps()}result: \n5.5 x{end}", "footer", ONE).throughput == 5.5
    for torn in ("result: \n5.5 x", "result: \n5.5", "result: \n", "result: "):
        assert read(toml, steps() + torn, "footer", ONE).throughput is None
    log = "".join(f"[batch={n}]:\n loss: 9.5\n rate: {n}\n" for n in range(1, 121))
    many = read_constant(__file__, "MANY_LINES")
    assert read(many, log, "rate", ONE).throughput == pytest.approx(70.5)
    assert codes(read(many, log.replace(" rate: 50\n", ""), "rate", ONE)) == ["window"]
    for size in range(70, 300, 7):
        monkeypatch.setattr("hpcbert.logs.lines.CHUNK", size)
        assert read(many, log, "rate", ONE).throughput == pytest.approx(70.5), size


@cases
def test_a_record_that_counts_samples_or_tokens_by_a_clock_from_the_start(
    read, *, counts, unit, form, size, begin, setting, expected
):
    """8 samples of 128 tokens in half a second; a record every 20 of 120 steps."""
    toml = read_constant(__file__, "TOKENS").replace('"tokens"\n', f'"{counts or "tokens"}"\n')
    toml = toml.replace('"elapsed"\n', '"elapsed-hours"\n', 1) if unit else toml
    log = "".join(
        f"tokens={place * (size or 1024)} after "
        f"{(form or '{:.4f}').format(((begin or 0.123) + place / 2) / (unit or 1))}\n"
        for place in range(20, 121, 20)
    )
    values = {"batch_size_per_device": 8, "sequence_length": 128, **setting}
    values = {key: None if value == "none" else value for key, value in values.items()}
    settings = Setting(nodes=1, gpus_per_node=1, gpus=1)._replace(**values)
    reading = read(toml, log, "elapsed", settings)
    if isinstance(expected, str):
        assert reading.throughput is None
        assert expected in (reading.missing or str(reading.reasons))
    else:
        assert reading.throughput == pytest.approx(expected, rel=1e-3), reading
        assert reading.measured.end is None  # seconds since the start are no date
