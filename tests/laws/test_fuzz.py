"""Fuzzing: each reader of text that hpcbert did not write takes any bytes, in bounded time and
memory, and raises nothing but HpcbertError.

HPCBERT_FUZZ_SECONDS=N fuzzes each reader for N seconds of processor time, not 0.2. The file
`input` in the test's folder is what failed; once that is fixed, it is in KNOWN of test_fuzz.toml.
"""

import contextlib
import json
import os
import random
import re
import time
from dataclasses import asdict

import pytest

from hpcbert import model
from hpcbert.campaign import record, store
from hpcbert.cli.output import replace_controls
from hpcbert.config import recipe, site, toml
from hpcbert.errors import HpcbertError
from hpcbert.logs import grammar, scan
from hpcbert.logs.setting import Setting
from hpcbert.results import compare, document
from hpcbert.slurm import commands, hostlist, reasons, states
from hpcbert.slurm.state_sources import convert_row
from tests.kit import campaigns, recipes
from tests.kit.cases import read_constant
from tests.kit.paths import TEMPLATES
from tests.kit.slurm import sacct, squeue
from tests.results import test_reduce

pytestmark = pytest.mark.slow


def write_out(text):
    """Return a text in which `<9 x 5000>` stands for 5,000 times a 9; they may be nested."""
    while short := re.search(r"<([^<>]*) x (\d+)>", text):
        text = text[: short.start()] + short[1] * int(short[2]) + text[short.end() :]
    return text.encode("latin-1")


def damage(chance, seeds):
    """Return any bytes, or pieces of what a reader knows: cut, doubled, overwritten and joined."""
    text = chance.choice(seeds)[: chance.choice([200, 4000])]
    if chance.random() < 0.2:
        return chance.choice([chance.randbytes(400), bytes(chance.choices(text, k=300))])
    fixed = (b"", b"9" * 400, b"-1", b"1e308", b"nan", b"\x00\xff", b"[]{}\"'|,:\n")
    data = bytearray(text)
    for _ in range(chance.randint(1, 12)):
        at, size = chance.randint(0, len(data)), chance.choice([0, 1, 1, 4, 40])
        other = chance.choice(seeds)
        cut = chance.randint(0, len(other))
        pieces = (*fixed, chance.randbytes(size), other[cut : cut + 40], data[at : at + 40] * 2)
        data[at : at + size] = chance.choice(pieces)
    return bytes(data)


def fuzz(path, read, seeds, name):
    """Try what once broke a reader, and damaged seeds; none may take five seconds."""

    def check(data):
        for file in (path, path.with_name("input")):
            file.write_bytes(data)
        begin = time.process_time()
        with contextlib.suppress(HpcbertError):
            read(data)
        assert time.process_time() - begin < 5.0

    for data in [*seeds, b"", *map(write_out, read_constant(__file__, "KNOWN")[name])]:
        check(data)
    chance = random.Random(os.environ.get("HPCBERT_FUZZ_SEED", "1"))
    end = time.process_time() + float(os.environ.get("HPCBERT_FUZZ_SECONDS", "0.2"))
    tries = 0
    while time.process_time() < end or tries < 70:
        tries += 1
        check(damage(chance, seeds))


def show_state(state):
    for moment in (state.start, state.end):
        model.format_utc(moment or 0.0)
    assert len(state.nodes) <= 65536
    hostlist.fold(state.nodes[:100])
    assert isinstance(state.advice, str)


def test_logs_by_each_grammar_and_rule(tmp_path):
    short = Setting(skip=2, iters=12, reach=12)
    wide = short._replace(nodes=1, gpus_per_node=2, gpus=2, batch_size_per_device=8)
    path = tmp_path / "run.log"

    def read(data):
        """The first byte names the grammar."""
        name = recipes.NAMES[(data[0] if data else 0) % len(recipes.NAMES)]
        log_grammar = recipes.grammar(name)
        path.write_bytes(data[1:])
        scan.read_progress(path, log_grammar)
        for setting in (short, wide):
            for rule in log_grammar.rules:
                reading = scan.read(path, log_grammar, rule, setting)
                assert (reading.throughput is None) == bool(reading.missing or reading.reasons)

    for text in read_constant(__file__, "KNOWN")["each-grammar"]:
        for number in range(len(recipes.NAMES)):
            read(bytes([number]) + write_out(text))
    names = enumerate(recipes.NAMES)
    seeds = [bytes([number]) + recipes.sample(name)[:4000] for number, name in names]
    fuzz(path, read, seeds, "log")


def test_toml_of_sites_and_recipes(tmp_path):
    path = tmp_path / "recipe.toml"

    def read(_):
        with contextlib.suppress(HpcbertError):
            toml.read(path)
        with contextlib.suppress(HpcbertError):
            site.read_site(path, base=tmp_path, env={})
        grammar.parse(recipe.load(tmp_path).log, where="it")

    seeds = [file.read_bytes() for file in sorted(TEMPLATES.glob("*/recipe.toml"))[:4]]
    fuzz(path, read, seeds, "toml")


def test_the_output_of_sacct_and_squeue(tmp_path):
    columns = {"start": "Unknown", "end": "None", "exit_code": "0:9", "nodes": "n[01-12,14]"}
    waiting = sacct("1_[5-7%1]", "OUT_OF_ME+", reason="ReqNodeNotAvail, n1", **columns).encode()
    ended = squeue("1_4", "CANCELLED by 0", elapsed="1-02:03:04", limit="UNLIMITED").encode()

    def read(data):
        text = data.decode("utf-8", errors="replace")
        for listing in (commands.read_sacct(text), commands.read_squeue(text)):
            for row in listing.rows:
                row.covers(3)
                show_state(convert_row(row, "sacct"))
        for convert in (states.parse_state, reasons.describe_reason, reasons.find_reason_advice):
            convert(text)
        replace_controls(text)

    fuzz(tmp_path / "output", read, [waiting, ended, waiting + ended], "slurm")


def test_node_lists(tmp_path):
    def read(data):
        text = data.decode("utf-8", errors="replace")
        names = hostlist.expand(text)
        assert len(names) <= 65536
        assert sum(map(len, names)) <= max(len(text), 1 << 24)
        hostlist.fold(names[:1000])

    seeds = [b"n[1-4,7],gpu[01-02]x[3-4]", b"None assigned", b"a[1-65000]b[1-2]"]
    fuzz(tmp_path / "list", read, seeds, "hosts")


def test_status_files_of_jobs(tmp_path):
    def read(data):
        repeat_record = record.RepeatRecord(data)
        job_record = repeat_record.newest()
        assert 0 <= job_record.attempt < 100_000
        assert isinstance(job_record.exit, int | None)
        running = states.RepeatState("RUNNING", states.Kind.RUNNING, "none")
        show_state(job_record.complete(job_record.end_state or running))
        assert all(repeat_record.attempt(number) for number in repeat_record.attempts)
        assert isinstance(repeat_record.steps, tuple)

    start = b'{"event": "start", "time": 1795255599, "attempt": 1, "nodelist": "n[1-2]"}\n'
    seeds = [start + start.replace(b'"start"', b'"end", "exit": 3')]
    fuzz(tmp_path / "status", read, seeds, "status")


def test_manifests_of_the_right_form_with_wrong_content_too(tmp_path):
    def read(_):
        campaign = store.read_manifest(tmp_path)
        store.write_manifest(tmp_path, campaign)
        for array in campaign.arrays:
            for number in array.repeats:
                array.element(number)
                store.log_path(tmp_path, array, number)
                record.read_record(tmp_path / array.status(number))

    campaign = campaigns.campaign(tmp_path / "runs", "1n1g", repeats=2).campaign
    seeds = [json.dumps({"schema": store.SCHEMA, **asdict(campaign)}).encode()]
    fuzz(tmp_path / "manifest.json", read, seeds, "manifest")


def test_results_are_written_and_compared_as_any(tmp_path):
    path = tmp_path / "results.json"

    def read(_):
        results = document.read_results(path)
        assert document.parse_results(document.render_results(results), file="again") == results
        pair = compare.compare(results.tables, results.tables, names=("a", "b"), within=0.02)
        replace_controls(compare.comparison_view(pair, 0.02).text(80))
        compare.render_junit("hpcbert compare", [pair], ())

    points = (test_reduce.make_point(shape, [100.0, 101.0, 102.0]) for shape in ("1n1g", "1n8g"))
    results = document.ResultSet((test_reduce.make_table(*points),))
    fuzz(path, read, [document.render_results(results).encode()], "results")
