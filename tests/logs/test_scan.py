"""What stands in the place of a log, and what happens to logs: always a number that is right, or
a reason."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hpcbert.errors import ConfigError
from hpcbert.logs import scan
from hpcbert.logs.lines import CHUNK, LINE
from hpcbert.logs.scan import Reading
from hpcbert.logs.setting import Setting
from tests.kit.cases import cases
from tests.kit.logs import Reader, codes, grammar_file, parse, step, steps

ONE = Setting(nodes=1, gpus_per_node=1, gpus=1, batch_size_per_device=32)
# Each of these tests is of one rule: what the others say of the same log is test_crosscheck.py's.
STEPS = grammar_file("steps").read_text().replace('kind = "', 'cross_check = false\nkind = "')
COUNTED = STEPS.replace('time = "epoch"', 'time = "epoch"\nrepeated = "count"')


# --- What is no log ---------------------------------------------------------------------------


def test_what_is_in_a_logs_place_is_said(tmp_path: Path) -> None:
    grammar = parse(STEPS)
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "folder.log").mkdir()
    (tmp_path / "loop.log").symlink_to(tmp_path / "loop.log")
    expected = {
        "pipe.log": "pipe.log can't be read: it is a pipe, not a file",
        "folder.log": "folder.log can't be read: it is a directory, not a file",
        "absent.log": "absent.log can't be read: No such file or directory",
        "loop.log": "loop.log can't be read: Too many levels of symbolic links",
        "/dev/zero": "zero can't be read: it is a device or socket, not a file",
    }
    for name, detail in expected.items():
        reading = scan.read(tmp_path / name, grammar, grammar.rule(), ONE)
        assert [str(reason) for reason in reading.reasons] == [f"no-log: {detail}"]
        assert reading.throughput is None
        assert scan.read_progress(tmp_path / name, grammar) == scan.Progress()


@pytest.mark.needs("permissions")
def test_a_log_that_may_not_be_read_is_said(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text(steps())
    path.chmod(0)
    grammar = parse(STEPS)
    reading = scan.read(path, grammar, grammar.rule(), ONE)
    assert "Permission denied" in str(reading.reasons)


# --- The window -------------------------------------------------------------------------------


def render(places: str) -> str:
    """Return a log of steps, from the words of test_scan.toml."""
    lines = []
    for word in places.split():
        match = re.fullmatch(r"(\d+)(?:-(\d+))?(?:@(\d+)|\+(-?\d+))?", word)
        assert match
        first, last, at, later = (None if text is None else int(text) for text in match.groups())
        for n in range(first or 0, (last or first or 0) + 1):
            lines += [step(n, at=n + (later or 0) if at is None else at)]
    return "".join(lines)


@cases
def test_a_log_gives_its_number_or_a_reason(
    read: Reader,
    places: str,
    numbers: dict[str, float | str],
    *,
    repeated: str | None,
    window: str | None,
    changes: dict[str, int] | None,
    head: str | None,
    tail: str | None,
) -> None:
    toml = STEPS
    if repeated:
        toml = toml.replace('time = "epoch"', f'time = "epoch"\nrepeated = "{repeated}"')
    if window:
        bounds = f'after = {{ {window} = "skip" }}\nuntil = {{ {window} = "iters" }}'
        toml = toml.replace('kind = "clock"', f'kind = "clock"\n{bounds}')
    settings: dict[str, Any] = changes or {}
    for rule, expected in numbers.items():
        log = (head or "") + render(places) + (tail or "")
        reading = read(toml, log, rule, ONE._replace(**settings))
        if isinstance(expected, str):
            assert reading.throughput is None
            assert expected in str(reading.reasons[0])
        else:
            assert reading.throughput == pytest.approx(expected)


def test_repetition_without_end_is_not_kept(read: Reader) -> None:
    log = steps(50) + "".join(step(50, at=50 + n / 10) for n in range(1, 3000))
    assert codes(read(COUNTED, log, "rate", ONE)) == ["window"]


def test_a_number_that_is_cut_off_does_not_count(read: Reader) -> None:
    log = steps()
    throughput = read(STEPS, log, "clock", ONE).throughput
    for cut in range(1, len(step(120)) + 1):
        reading = read(STEPS, log[:-cut], "clock", ONE)
        assert reading.throughput in (None, throughput), log[-80:-cut]


# --- Time and numbers -------------------------------------------------------------------------


@pytest.mark.parametrize("rate", ["0", "-5", "0.0", "1e999", "nan", "inf", "1_0", "fast", "--"])
def test_a_rate_that_is_none_spoils_the_window(read: Reader, rate: str) -> None:
    log = "".join(step(n, rate=rate if n == 70 else "64.5") for n in range(1, 121))
    reading = read(STEPS, log, "rate", ONE)
    assert reading.throughput is None
    assert codes(reading) == ["rule"]


@pytest.mark.parametrize("loss", ["nan", "NaN", "-nan", "inf", "-inf", "1.#QNAN", "nan(ind)"])
@pytest.mark.parametrize("where", [1, 20, 70, 120])
def test_a_loss_that_is_not_finite_spoils_the_run(read: Reader, loss: str, where: int) -> None:
    log = "".join(step(n, loss=loss if n == where else "9.5") for n in range(1, 121))
    for rule in ("clock", "rate", "footer"):
        reading = read(STEPS, log + "result: 5.5\n", rule, ONE)
        assert [str(reason) for reason in reading.reasons] == [
            f"loss: the loss is {loss} at iteration {where}"
        ]
        assert reading.throughput is None


@pytest.mark.parametrize("chunk", [90, CHUNK])
def test_the_loss_of_the_last_iteration_may_come_after_it(
    read: Reader, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    apart = STEPS.replace(" loss: (?P<loss>\\S+)", " loss: \\S+").replace(
        "[[log.rules]]",
        "[[log.records]]\nname = 'loss'\ncontains = 'train loss '\n"
        "match = 'train loss (?P<loss>.+)$'\n\n[[log.rules]]",
        1,
    )
    monkeypatch.setattr("hpcbert.logs.lines.CHUNK", chunk)
    log = "".join(step(n) + "train loss 9.5\n" for n in range(1, 120)) + step(120)
    assert codes(read(apart, log + "train loss nan\n", "clock", ONE)) == ["loss"]
    later = log + "train loss 9.5\n" + step(121) + "train loss nan\n"
    assert read(apart, later, "clock", ONE).throughput == 32


TIMES = STEPS.replace('"epoch"', '"{form}"').replace(
    "time: (?P<time>[\\d.]+)", "time: (?P<time>.+)$"
)


@pytest.mark.parametrize(
    ("form", "stamps"),
    [
        ("epoch-ms", [f"{1683423505070 + 1000 * n}" for n in range(120)]),
        ("date-time", [f"2024-02-28 23:{58 + n // 60}:{n % 60:02}.25" for n in range(120)]),
        (
            "date-time",
            [f"2024-02-28T23:59:{n:02},250" for n in range(60)]
            + [f"2024-02-29-00:00:{n:02}.250" for n in range(60)],
        ),
        (
            "time-of-day",
            [f"23:59:{n:02}" for n in range(60)] + [f"0:00:{n:02}.0" for n in range(60)],
        ),
        (
            "month-day",
            [f"0228 23:59:{n:02}" for n in range(60)] + [f"0301 00:00:{n:02}" for n in range(60)],
        ),
        (
            "month-day",
            [f"0228 23:59:{n:02}" for n in range(60)] + [f"0229 00:00:{n:02}" for n in range(60)],
        ),
        (
            "month-day",
            [f"1231 23:59:{n:02}" for n in range(60)] + [f"0101 00:00:{n:02}" for n in range(60)],
        ),
        (
            "ctime",
            [f"Thu Dec 31 23:59:{n:02} 2020" for n in range(60)]
            + [f"Fri Jan  1 00:00:{n:02} 2021" for n in range(60)],
        ),
    ],
)
def test_time_stamps_of_every_form_go_on_over_midnight(
    read: Reader, form: str, stamps: list[str]
) -> None:
    log = "".join(
        f"iteration: {n}/120 loss: 9.5 samples/s: 1 time: {stamp}\n"
        for n, stamp in enumerate(stamps, start=1)
    )
    toml = TIMES.replace("{form}", form)
    assert read(toml, log, "clock", ONE).throughput == pytest.approx(32)


@pytest.mark.parametrize("form", ["epoch", "date-time", "month-day", "time-of-day", "ctime"])
@pytest.mark.parametrize("stamp", ["", "now", "25:99", "9999-99-99 00:00:00", "Foo Bar 1", "1e5"])
def test_time_stamps_of_another_form_are_refused(read: Reader, form: str, stamp: str) -> None:
    log = steps(119) + f"iteration: 120/120 loss: 9.5 samples/s: 1 time: {stamp}\n"
    assert read(TIMES.replace("{form}", form), log, "clock", ONE).throughput is None


# --- Facts and rehearsals ---------------------------------------------------------------------


def test_a_log_tells_what_nobody_else_does(read: Reader) -> None:
    setting = Setting(nodes=1, gpus_per_node=1, gpus=1)
    assert read(STEPS, steps(), "clock", setting).missing == "batch_size_per_device"
    assert read(STEPS, "batch: 32\n" + steps(), "clock", setting).throughput == 32


def test_a_fact_that_is_cut_off_is_none(read: Reader) -> None:
    assert read(STEPS, "batch: 3", "clock", Setting()).setting.batch_size_per_device is None


def test_batch_sizes_must_multiply_to_the_global_one(read: Reader) -> None:
    toml = STEPS.replace("^batch: (?P<batch_size_per_device>", "^batch: (?P<global_batch_size>")
    eight = Setting(nodes=1, gpus_per_node=8, gpus=8, batch_size_per_device=32, accumulation=2)
    assert read(toml, "batch: 512\n" + steps(), "clock", eight).throughput == 512
    wrong = read(toml, "batch: 500\n" + steps(), "clock", eight)
    assert codes(wrong) == ["config"]
    derived = read(toml, "batch: 512\n" + steps(), "clock", eight._replace(accumulation=None))
    assert derived.setting.accumulation == 2


# --- Footers ----------------------------------------------------------------------------------


def test_closing_lines_must_agree_unless_the_recipe_chooses(read: Reader) -> None:
    log = steps() + "result: 5.5\nresult: 5.50\n"
    assert read(STEPS, log, "footer", ONE).throughput == 5.5
    log += "result: 7.5\n"
    assert "5.50 and 7.5" in str(read(STEPS, log, "footer", ONE).reasons)
    for choice, expected in (("first", 5.5), ("last", 7.5)):
        toml = STEPS.replace('record = "result"', f'record = "result"\nwhich = "{choice}"')
        assert read(toml, log, "footer", ONE).throughput == expected


# --- What launchers and file systems do to logs -----------------------------------------------


def test_labels_bars_and_colours_are_undone(read: Reader) -> None:
    anchored = STEPS.replace("'iteration: ", "'^iteration: ")
    bar = "Iteration:  61%|███| 703/1148 [02:05<01:20,  5.53it/s]"
    dressings = [
        "  0: {}",
        "[1,0]<stdout>:{}",
        "Thu Dec 17 17:24:46 2020[1,0]<stdout>:{}",
        "vs003: {}",
        "[rank0]: {}",
        "\x1b[32m{}\x1b[0m",
        bar + "\r{}",
        bar + "Sat Dec 19 11:00:02 2020[1,0]<stdout>:{}",
    ]
    for dressing in dressings:
        dressed = "".join(dressing.format(step(n).rstrip()) + "\n" for n in range(1, 121))
        for log in (dressed, dressed.replace("\n", "\r\n"), dressed.replace("\n", "\r")):
            assert read(anchored, log, "clock", ONE).throughput == 32, dressing


def label_lines(text: str, ranks: int = 3) -> str:
    """Label lines as srun -l does: cut after 1,024 bytes, other ranks' lines in between."""
    labelled = []
    for line in text.splitlines():
        for start in range(0, max(1, len(line)), 1024):
            labelled.append(f"0: {line[start : start + 1024]}\n")
            labelled += [f"{rank}: noise\n" for rank in range(1, ranks)]
    return "".join(labelled)


@pytest.mark.parametrize("length", [960, 1000, 1010, 1024, 2040])
def test_lines_that_srun_cut_are_put_together(
    read: Reader, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = label_lines("".join("x" * length + step(n) for n in range(1, 121)))
    assert read(STEPS, log, "clock", ONE).throughput == 32
    monkeypatch.setattr("hpcbert.logs.lines.CHUNK", 3000)
    assert read(STEPS, log, "clock", ONE).throughput == 32


@pytest.mark.slow
def test_holes_of_zero_bytes_make_no_numbers(read: Reader) -> None:
    log = steps().encode()
    for place in range(len(steps(119)), len(log)):
        holed = log[:place] + bytes(300) + log[place:]
        assert read(STEPS, holed, "clock", ONE).throughput in (None, 32)
        holed = log[:place] + bytes(9) + log[place + 9 :]
        assert read(STEPS, holed, "clock", ONE).throughput in (None, 32)


def test_glued_records_and_long_lines_count(read: Reader) -> None:
    assert read(STEPS, steps().replace("\n", " "), "clock", ONE).throughput == 32
    assert read(STEPS, steps(119) + "=" * (3 * LINE) + step(120), "clock", ONE).throughput == 32


def test_bytes_that_are_no_text_do_not_matter(read: Reader) -> None:
    noise = bytes(range(1, 256)) * 3
    log = noise + b"\n" + steps(60).encode() + noise + b"\n"
    log += steps(120, 61).encode() + noise
    assert read(STEPS, log, "clock", ONE).throughput == 32


def test_pieces_of_any_size_give_the_same_number(
    read: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = "batch: 32\n" + steps()
    for size in (len(step(120)), 97, 128, 1000, 4096):
        monkeypatch.setattr("hpcbert.logs.lines.CHUNK", size)
        assert read(STEPS, log, "clock", ONE).throughput == 32


# --- Bounds -----------------------------------------------------------------------------------


def test_reading_stops_where_the_rule_and_the_gate_have_all_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.log"
    path.write_text(steps())
    with path.open("r+b") as file:
        file.truncate(2 << 30)
    sizes: list[int] = []
    real = os.read

    def counted(descriptor: int, size: int) -> bytes:
        sizes.append(size)
        return real(descriptor, size)

    monkeypatch.setattr(os, "read", counted)
    grammar = parse(STEPS)
    assert scan.read(path, grammar, grammar.rule(), ONE).throughput == 32
    assert sum(sizes) <= 3 * CHUNK


def test_a_line_without_end_is_passed_over_in_little_memory(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "run.log"
    with path.open("wb") as file:
        file.write(steps(60).encode())
        for _ in range(40):
            file.write(b"=" * (1 << 20))
        file.write(b"\n")
        file.write(steps(120, 61).encode())
    grammar = parse(STEPS)
    tracemalloc.start()
    reading = scan.read(path, grammar, grammar.rule("rate"), ONE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reading.throughput == 64.5
    assert peak < 16 * CHUNK


def test_a_hostile_line_takes_no_time(read: Reader) -> None:
    began = time.process_time()
    read(STEPS, "iteration: 1/2 loss: 1 " * 50_000 + "\n" + steps(), "clock", ONE)
    assert time.process_time() - began < 5


# --- Progress and the escape hatch ------------------------------------------------------------


def test_progress_reads_the_end_of_a_log_that_grows(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("noise\n" * 100_000 + steps(57) + step(58)[:-9])
    grammar = parse(STEPS)
    assert scan.read_progress(path, grammar) == scan.Progress(57, 64.5, 9.5)
    path.write_text("starting\n")
    assert scan.read_progress(path, grammar) == scan.Progress()


def test_progress_by_the_clock_takes_the_batch_from_the_header(tmp_path: Path) -> None:
    rate = '[[log.rules]]\nname = "rate"\ncross_check = false\nkind = "rate"\n'
    toml = STEPS.replace(rate, "")
    toml = toml.replace(
        "'^batch: (?P<batch_size_per_device>\\d+)$'", "'^batch: (?P<global_batch_size>\\d+)$'"
    )
    path = tmp_path / "run.log"
    path.write_text("batch: 64\n" + "noise\n" * 50_000 + steps(57))
    assert scan.read_progress(path, parse(toml)) == scan.Progress(57, 64.0, 9.5)


def read_number(path: Path, setting: Setting) -> Reading:
    return Reading(float(path.read_text()) * setting.need("gpus"), setting=setting)


def test_a_log_that_no_grammar_describes_is_read_by_an_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.log"
    path.write_text("12.5")
    info = tmp_path / "site" / "brought-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: brought\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[hpcbert.grammars]\none-number = {__name__}:read_number\nbroken = hpcbert.absent:read\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(info.parent)])
    grammar = parse('[log]\ngrammar = "entry-point:one-number"\n')
    assert grammar.rule().name == "one-number"
    assert scan.read(path, grammar, grammar.rule(), Setting(gpus=4)).throughput == 50
    assert scan.read_progress(path, grammar) == scan.Progress()
    broken = parse('[log]\ngrammar = "entry-point:broken"\n')
    with pytest.raises(ConfigError, match=r"hpcbert\.absent"):
        scan.read(path, broken, broken.rule(), ONE)


# --- Windows of several ranks and of records --------------------------------------------------

RANKS = STEPS.replace('time = "epoch"', 'time = "epoch"\nranks = "gpu"')


def render_ranks(skew: float = 0.5) -> str:
    return "".join(
        f"{rank}: {step(n, at=n + rank * skew)}" for n in range(1, 121) for rank in (0, 1)
    )


def test_a_clock_of_several_ranks_takes_their_median_time(read: Reader) -> None:
    two = ONE._replace(gpus_per_node=2, gpus=2)
    assert read(RANKS, render_ranks(), "clock", two).throughput == pytest.approx(64)
    assert codes(
        read(RANKS, render_ranks().replace(f"1: {step(20, at=20.5)}", ""), "clock", two)
    ) == ["window"]


def test_of_how_many_ranks_print_somebody_must_know(read: Reader) -> None:
    assert read(RANKS, render_ranks(), "rate", Setting()).missing == "gpus"
    one_each = RANKS.replace('ranks = "gpu"', 'ranks = "node"')
    two_nodes = ONE._replace(nodes=2, gpus=2)
    assert read(one_each, render_ranks(), "rate", two_nodes).throughput == 64.5


def test_a_record_of_several_lines_at_the_end_of_a_file(read: Reader) -> None:
    toml = STEPS.replace(
        "match = 'result: (?P<rate>[\\d.]+)'", "match = 'result: \\n(?P<rate>[\\d.]+) x'\nlines = 4"
    )
    assert read(toml, steps() + "result: \n5.5 x\n", "footer", ONE).throughput == 5.5
    assert read(toml, steps() + "result: \n5.5 xy", "footer", ONE).throughput == 5.5
    for torn in ("result: \n5.5 x", "result: \n5.5", "result: \n", "result: "):
        assert read(toml, steps() + torn, "footer", ONE).throughput is None
