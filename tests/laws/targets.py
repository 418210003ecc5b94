"""What is fuzzed: every reader of text that hpcbert did not write itself.

A target takes bytes and must return in time, in bounded memory, and raise nothing but HpcbertError.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path

from hpcbert import model
from hpcbert.campaign import record, store
from hpcbert.cli.output import replace_controls
from hpcbert.config import recipe, site
from hpcbert.config.toml import read as read_toml
from hpcbert.errors import HpcbertError
from hpcbert.logs import scan
from hpcbert.logs.grammar import parse as parse_grammar
from hpcbert.logs.setting import Setting
from hpcbert.results import compare as results_compare
from hpcbert.results import document
from hpcbert.results.compare import compare
from hpcbert.results.document import ResultSet
from hpcbert.results.reduce import tabulate
from hpcbert.slurm import commands
from hpcbert.slurm.hostlist import expand, fold
from hpcbert.slurm.reasons import describe_reason, find_reason_advice
from hpcbert.slurm.state_sources import convert_row
from hpcbert.slurm.states import Kind, RepeatState, parse_state
from tests.kit import campaigns
from tests.kit.campaigns import array
from tests.kit.paths import TEMPLATES
from tests.kit.recipes import NAMES, grammar, sample

SETTINGS = (
    Setting(skip=2, iters=12, reach=12),
    Setting(nodes=1, gpus_per_node=2, gpus=2, batch_size_per_device=8, skip=2, iters=12, reach=12),
)


@cache
def _folder() -> Path:
    path = Path(tempfile.mkdtemp(prefix="hpcbert-fuzz-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def _file(name: str, data: bytes) -> Path:
    path = _folder() / name
    path.write_bytes(data)
    return path


def log(data: bytes) -> None:
    """The log scanner, by the grammar and the rule that the first byte names."""
    log_grammar = grammar(NAMES[(data[0] if data else 0) % len(NAMES)])
    path = _file("fuzz.log", data[1:])
    scan.read_progress(path, log_grammar)
    for setting in SETTINGS:
        for rule in log_grammar.rules:
            reading = scan.read(path, log_grammar, rule, setting)
            assert (reading.throughput is None) == bool(reading.missing or reading.reasons)


def toml(data: bytes) -> None:
    """site.toml, recipe.toml and its grammar."""
    path = _file("recipe.toml", data)
    with contextlib.suppress(HpcbertError):
        read_toml(path)
    with contextlib.suppress(HpcbertError):
        site.read_site(path, base=_folder(), env={})
    with contextlib.suppress(HpcbertError):
        loaded = recipe.load(path.parent)
        parse_grammar(loaded.log, where="it")


def slurm(data: bytes) -> None:
    """What sacct and squeue print."""
    text = data.decode("utf-8", errors="replace")
    for listing in (commands.read_sacct(text), commands.read_squeue(text)):
        for row in listing.rows:
            row.covers(3)
            state = convert_row(row, "sacct")
            _shown(state)
    parse_state(text)
    describe_reason(text)
    find_reason_advice(text)
    replace_controls(text)


def _shown(state: RepeatState) -> None:
    for moment in (state.start, state.end):
        if moment is not None:
            model.format_utc(moment)
    assert len(state.nodes) <= 65536
    fold(state.nodes[:100])
    assert isinstance(state.advice, str)


def hosts(data: bytes) -> None:
    """Node lists."""
    text = data.decode("utf-8", errors="replace")
    names = expand(text)
    assert len(names) <= 65536
    assert sum(map(len, names)) <= max(len(text), 1 << 24)
    fold(names[:1000])


def status(data: bytes) -> None:
    """The status file that a job writes."""
    repeat_record = record.RepeatRecord(data)
    job_record = repeat_record.newest()
    assert 0 <= job_record.attempt < 100_000
    _shown(
        job_record.complete(job_record.end_state or RepeatState("RUNNING", Kind.RUNNING, "none"))
    )
    assert all(repeat_record.attempt(number) for number in repeat_record.attempts)
    assert isinstance(repeat_record.steps, tuple)


def manifest(data: bytes) -> None:
    """manifest.json, also where it is JSON of the right form with wrong content."""
    _file("manifest.json", data)
    with contextlib.suppress(HpcbertError):
        campaign = store.read_manifest(_folder())
        store.write_manifest(_folder(), campaign)
        for array in campaign.arrays:
            for number in array.repeats:
                array.element(number)
                store.log_path(_folder(), array, number)
                record.read_record(_folder() / array.status(number))


def results(data: bytes) -> None:
    """results.json; what is read of it is written and compared as any."""
    path = _file("results.json", data)
    with contextlib.suppress(HpcbertError):
        result_set = document.read_results(path)
        assert (
            document.parse_results(document.render_results(result_set), file="again") == result_set
        )
        compared = compare(result_set.tables, result_set.tables, names=("a", "b"), within=0.02)
        replace_controls(results_compare.comparison_view(compared, 0.02).text(80))
        results_compare.render_junit("hpcbert compare", [compared], ())


TARGETS: dict[str, Callable[[bytes], None]] = {
    "log": log,
    "toml": toml,
    "slurm": slurm,
    "hosts": hosts,
    "status": status,
    "manifest": manifest,
    "results": results,
}

SACCT = b"1_[5-7%1]|me|OUT_OF_ME+|0:9|ReqNodeNotAvail, n1|1795255599|Unknown|None|0|2|n[1-2]|c-b\n"
SQUEUE = b"1_4|me|CANCELLED by 0|1795255599|N/A|NONE|1-02:03:04|UNLIMITED|n[01-12,14]|c|Priority\n"


def seeds(name: str) -> list[bytes]:
    """Return what a fuzzer begins with."""
    if name == "log":
        return [
            bytes([number]) + sample(framework)[:4000] for number, framework in enumerate(NAMES)
        ]
    if name == "toml":
        return [path.read_bytes() for path in sorted(TEMPLATES.glob("*/recipe.toml"))[:4]]
    if name == "slurm":
        return [SACCT, SQUEUE, SACCT + SQUEUE]
    if name == "hosts":
        return [b"n[1-4,7],gpu[01-02]x[3-4]", b"None assigned", b"a[1-65000]b[1-2]"]
    if name == "status":
        event = {"event": "start", "time": 1795255599, "attempt": 1, "nodelist": "n[1-2]"}
        ends = {"event": "end", "time": 1795255699, "attempt": 1, "exit": 3}
        return [f"{json.dumps(event)}\n{json.dumps(ends)}\n".encode()]
    return [_manifest()] if name == "manifest" else [_results()]


def _results() -> bytes:
    group = model.Group("oneflow", "bert-base", "fp32", 32, "rate")
    runs = [
        model.Run(number, 0, 100.0 + number, True, (), "COMPLETED", "sacct", f"{number}.log")
        for number in (1, 2, 3, 4)
    ]
    points = [model.Measured(group, model.Shape(1, gpus), 5, tuple(runs)) for gpus in (1, 8)]
    return document.render_results(ResultSet(tabulate(points))).encode()


def _manifest() -> bytes:
    new_campaign = campaigns.manifest("x", array("x", repeats=2))
    return json.dumps({"schema": store.SCHEMA, **asdict(new_campaign)}).encode()
