"""Fuzzing: each reader of text that hpcbert did not write takes any bytes, in bounded time and
memory, and raises nothing but HpcbertError.

HPCBERT_FUZZ_SECONDS=N fuzzes each reader for N seconds of processor time, not 0.3. A failing input is shown by
Hypothesis, and becomes a row of test_fuzz.toml once it is fixed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hpcbert import model
from hpcbert.campaign import record, store
from hpcbert.cli.output import replace_controls
from hpcbert.config import recipe, site, toml
from hpcbert.errors import HpcbertError
from hpcbert.logs import grammar, scan
from hpcbert.logs.setting import Setting
from hpcbert.results import compare, document
from hpcbert.results.reduce import tabulate
from hpcbert.slurm import commands, hostlist, reasons, states
from hpcbert.slurm.state_sources import convert_row
from tests.kit import campaigns, recipes
from tests.kit.cases import cases
from tests.kit.paths import TEMPLATES

pytestmark = pytest.mark.slow
SECONDS = float(os.environ.get("HPCBERT_FUZZ_SECONDS", "0.3"))
SHORT = Setting(skip=2, iters=12, reach=12)
SETTINGS = (SHORT, SHORT._replace(nodes=1, gpus_per_node=2, gpus=2, batch_size_per_device=8))
SACCT = b"1_[5-7%1]|me|OUT_OF_ME+|0:9|ReqNodeNotAvail, n1|1795255599|Unknown|None|0|2|n[1-2]|c-b\n"
SQUEUE = b"1_4|me|CANCELLED by 0|1795255599|N/A|NONE|1-02:03:04|UNLIMITED|n[01-12,14]|c|Priority\n"


def read_log(path: Path, data: bytes) -> None:
    """By the grammar that the first byte names, and all its rules."""
    log_grammar = recipes.grammar(recipes.NAMES[(data[0] if data else 0) % len(recipes.NAMES)])
    path.write_bytes(data[1:])
    scan.read_progress(path, log_grammar)
    for setting in SETTINGS:
        for rule in log_grammar.rules:
            reading = scan.read(path, log_grammar, rule, setting)
            assert (reading.throughput is None) == bool(reading.missing or reading.reasons)


def read_toml(path: Path, _: bytes) -> None:
    for read in (toml.read, lambda path: site.read_site(path, base=path.parent, env={})):
        with contextlib.suppress(HpcbertError):
            read(path)
    path.rename(path.with_name("recipe.toml"))
    grammar.parse(recipe.load(path.parent).log, where="it")


def show_state(state: states.RepeatState) -> None:
    for moment in (state.start, state.end):
        if moment is not None:
            model.format_utc(moment)
    assert len(state.nodes) <= 65536
    hostlist.fold(state.nodes[:100])
    assert isinstance(state.advice, str)


def read_slurm(_: Path, data: bytes) -> None:
    """What sacct and squeue print."""
    text = data.decode("utf-8", errors="replace")
    for listing in (commands.read_sacct(text), commands.read_squeue(text)):
        for row in listing.rows:
            row.covers(3)
            show_state(convert_row(row, "sacct"))
    for read in (states.parse_state, reasons.describe_reason, reasons.find_reason_advice):
        read(text)
    replace_controls(text)


def read_hosts(_: Path, data: bytes) -> None:
    text = data.decode("utf-8", errors="replace")
    names = hostlist.expand(text)
    assert len(names) <= 65536
    assert sum(map(len, names)) <= max(len(text), 1 << 24)
    hostlist.fold(names[:1000])


def read_status(_: Path, data: bytes) -> None:
    """The status file that a job writes."""
    repeat_record = record.RepeatRecord(data)
    job_record = repeat_record.newest()
    assert 0 <= job_record.attempt < 100_000
    running = states.RepeatState("RUNNING", states.Kind.RUNNING, "none")
    show_state(job_record.complete(job_record.end_state or running))
    assert all(repeat_record.attempt(number) for number in repeat_record.attempts)
    assert isinstance(repeat_record.steps, tuple)


def read_manifest(path: Path, _: bytes) -> None:
    """Also where it is JSON of the right form with wrong content."""
    folder = path.parent
    path.rename(folder / "manifest.json")
    campaign = store.read_manifest(folder)
    store.write_manifest(folder, campaign)
    for array in campaign.arrays:
        for number in array.repeats:
            array.element(number)
            store.log_path(folder, array, number)
            record.read_record(folder / array.status(number))


def read_results(path: Path, _: bytes) -> None:
    """What is read of results.json is written and compared as any."""
    results = document.read_results(path)
    assert document.parse_results(document.render_results(results), file="again") == results
    pair = compare.compare(results.tables, results.tables, names=("a", "b"), within=0.02)
    replace_controls(compare.comparison_view(pair, 0.02).text(80))
    compare.render_junit("hpcbert compare", [pair], ())


READERS = {
    function.__name__.removeprefix("read_"): function
    for function in (
        *(read_log, read_toml, read_slurm, read_hosts, read_status, read_manifest, read_results),
    )
}


def make_seeds(name: str) -> list[bytes]:
    """Return what a fuzzer of a reader begins with."""
    if name == "log":
        names = enumerate(recipes.NAMES)
        return [bytes([number]) + recipes.sample(name)[:4000] for number, name in names]
    if name == "toml":
        return [path.read_bytes() for path in sorted(TEMPLATES.glob("*/recipe.toml"))[:4]]
    if name == "manifest":
        campaign = campaigns.manifest("x", campaigns.array("x", repeats=2))
        return [json.dumps({"schema": store.SCHEMA, **asdict(campaign)}).encode()]
    if name == "results":
        group = model.Group("oneflow", "bert-base", "fp32", 32, "rate")
        runs = tuple(
            model.Run(n, 0, 100.0 + n, True, (), "COMPLETED", "sacct", f"{n}.log") for n in range(4)
        )
        points = [model.Measured(group, model.Shape(1, gpus), 5, runs) for gpus in (1, 8)]
        return [document.render_results(document.ResultSet(tabulate(points))).encode()]
    status = b'{"event": "start", "time": 1795255599, "attempt": 1, "nodelist": "n[1-2]"}\n'
    return {
        "slurm": [SACCT, SQUEUE, SACCT + SQUEUE],
        "hosts": [b"n[1-4,7],gpu[01-02]x[3-4]", b"None assigned", b"a[1-65000]b[1-2]"],
        "status": [status + status.replace(b'"start"', b'"end", "exit": 3')],
    }[name]


def check_reader(folder: Path, name: str, data: bytes) -> None:
    """Try one input, and hold the clock beside it."""
    path = folder / "input"
    path.write_bytes(data)
    begin = time.process_time()
    with contextlib.suppress(HpcbertError):
        READERS[name](path, data)
    assert time.process_time() - begin < 5.0


def write_out(text: str) -> bytes:
    """Return a text in which `<9 x 5000>` stands for 5,000 times a 9; they may be nested."""
    while short := re.search(r"<([^<>]*) x (\d+)>", text):
        text = text[: short.start()] + short[1] * int(short[2]) + text[short.end() :]
    return text.encode("latin-1")


@cases
def test_what_once_broke_a_reader_breaks_it_no_more(
    tmp_path: Path, reader: str, texts: tuple[str, ...]
) -> None:
    for text in texts:
        data = write_out(text)
        for inputs in [bytes([n]) + data for n in range(16)] if reader == "log" else [data]:
            check_reader(tmp_path, reader, inputs)


@pytest.mark.parametrize("name", READERS)
def test_any_bytes_are_read(tmp_path: Path, name: str) -> None:
    begun = make_seeds(name)
    for data in [*begun, b""]:
        check_reader(tmp_path, name, data)
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
        check_reader(tmp_path, name, data)

    check()


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_read(tmp_path: Path, name: str) -> None:
    """Cut, doubled, overwritten and joined pieces of what the readers know."""
    chance = random.Random(os.environ.get("HPCBERT_FUZZ_SEED", "1"))
    begun, end, tries = make_seeds(name), time.process_time() + SECONDS, 0
    fixed = (b"", b"9" * 400, b"-1", b"1e308", b"nan", b"\x00\xff", b"[]{}\"'|,:\n")
    while time.process_time() < end or tries < 10:
        tries += 1
        data = bytearray(chance.choice(begun)[: chance.choice([200, 4000])])
        for _ in range(chance.randint(1, 12)):
            at, size = chance.randint(0, len(data)), chance.choice([0, 1, 1, 4, 40])
            other = chance.choice(begun)
            cut = chance.randint(0, len(other))
            pieces = (*fixed, chance.randbytes(size), other[cut : cut + 40], data[at : at + 40] * 2)
            data[at : at + size] = chance.choice(pieces)
        check_reader(tmp_path, name, bytes(data))
