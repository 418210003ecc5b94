"""NVIDIA's MLPerf logs of packed samples: the global batch is twice the product of its factors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hpcbert.logs.setting import Setting
from tests.kit.cases import cases
from tests.kit.cli import codes, run
from tests.kit.recipes import Reader, grammar, sample

# One node of Eos in v3.1, as its published result states it.
KNOWN = Setting(nodes=1, gpus_per_node=8, batch_size_per_device=48, precision="fp16", iters=11)
STATED = 7759.98


def format_event(key: str, value: object, ms: int = 0) -> str:
    fields = {"namespace": "", "time_ms": 1695000000000 + ms, "event_type": "POINT_IN_TIME"}
    metadata = {"file": "/workspace/bert/run_pretraining.py", "lineno": 1}
    return ":::MLLOG " + json.dumps({**fields, "key": key, "value": value, "metadata": metadata})


def format_log(*, ranks: int = 8, total: int = 768, rank_batch: int = 48, extra: str = "") -> bytes:
    """Return a log in the form of v3.0 to v4.1, with an evaluation of earlier versions."""
    lines = [format_event("init_start", None)] * ranks
    lines += [format_event("submission_platform", "1xNVIDIA DGX H100")]
    lines += [format_event("global_batch_size", total), format_event("d_batch_size", rank_batch)]
    lines += [format_event("gradient_accumulation_steps", 1), extra]
    lines += [format_event("run_start", None, 1000), format_event("eval_accuracy", 0.7, 2000)]
    lines += ["{'global_steps': 10, 'eval_loss': 4.1, 'x': 0}"]
    lines += [format_event("train_samples", 7680, 2000), format_event("run_stop", None, 2000)]
    lines += [format_event("tracked_stats", {"throughput": STATED, "epoch_num": 7680})]
    return "\n".join([*lines, ""]).encode()


@cases
def test_packing_is_read_stated_or_asked_for(
    tmp_path: Path,
    *,
    log: dict[str, Any],
    settings: dict[str, Any] | None,
    facts: dict[str, Any] | None,
    says: str | None,
) -> None:
    """By both rules: the printed rate and the clock of the run, or the same single reason."""
    setting = KNOWN._replace(**(settings or {})).settled({})[0]
    for rule, number in (("tracked-stats", STATED), ("run-clock", 7680)):
        reading = Reader("mlperf-bert", tmp_path).read(format_log(**log), rule, setting)
        assert reading.throughput == (None if says else pytest.approx(number)), reading
        assert [reason.code for reason in reading.reasons] == (["config"] if says else [])
        assert (says or "") in str(reading.reasons)
        read = {**dict(reading.facts), "packing": reading.setting.packing or 1}
        assert {name: read[name] for name in facts or {}} == (facts or {})


@cases
def test_a_platform_counts_nodes_unless_it_names_gpus_and_tells_the_precision(
    tmp_path: Path,
    *,
    platform: str,
    nodes: int | None,
    lineno: int | None,
    batch: int | None,
    precision: str | None,
) -> None:
    log = format_log(rank_batch=batch or 48, total=16 * (batch or 48)).decode()
    log = log.replace("1xNVIDIA DGX H100", platform).replace("1}", f"{lineno or 1}}}")
    shape = Setting(nodes=1, gpus_per_node=8) if nodes == 1 else Setting()
    reading = Reader("mlperf-bert", tmp_path).read(log.encode(), "tracked-stats", shape)
    assert dict(reading.facts).get("nodes") == nodes
    if lineno:
        assert dict(entry[:2] for entry in reading.assumed).get("precision") == precision


@pytest.mark.parametrize("lines", [None, 15], ids=["whole", "cut"])
def test_a_second_run_in_the_log_is_refused(tmp_path: Path, lines: int | None) -> None:
    first = b"".join(format_log().splitlines(keepends=True)[:lines])
    for rule in ("tracked-stats", "run-clock"):
        reading = Reader("mlperf-bert", tmp_path).read(first + format_log(), rule, KNOWN)
        assert [(reason.code, reading.throughput) for reason in reading.reasons] == [
            ("window", None)
        ]
        assert "more than one" in reading.reasons[0].detail
    assert grammar("pytorch").packing == 1


def test_collect_asks_for_the_packing_and_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "result_0.txt"
    path.write_bytes(format_log(ranks=1))
    words = [str(path), "--fw=mlperf-bert", "--rule=tracked-stats", "--nodes=1", "--json"]
    words += ["--gpus-per-node=8", "--batch-size=48", "--precision=fp16"]
    refused = run("collect", *words)
    assert refused.returncode == 4
    (entry,) = refused.data["tables"][0]["rows"][0]["runs"]
    assert "--set packing=2" in entry["reasons"][0]["detail"]
    (table,) = run("collect", *words, "--set", "packing=2").data["tables"]
    assert table["rows"][0]["median"] == STATED


@pytest.mark.parametrize(
    ("packing", "throughput"), [(None, None), (1, 5818.18), (2, 11636.36)], ids=str
)
def test_a_batch_of_unstated_packing_gives_no_number(
    tmp_path: Path, packing: int | None, throughput: float | None
) -> None:
    """The program packs two samples into one sequence, as its lost header says."""
    lines = sample("mlperf-bert-v5").splitlines(keepends=True)
    steps = b"".join(line for line in lines if b'"step_loss": ' in line)
    setting = KNOWN._replace(precision="fp8", accumulation=1, packing=packing, skip=60, iters=120)
    reading = Reader("mlperf-bert-v5", tmp_path).read(steps, "clock", setting)
    assert (reading.missing == "packing") == (packing is None)
    assert reading.throughput == (throughput and pytest.approx(throughput, abs=0.01))


def collect_runs(folder: Path, *logs: bytes, rule: str = "run-clock") -> dict[str, Any]:
    folder.mkdir()
    for number, log in enumerate(logs):
        (folder / f"result_{number}.txt").write_bytes(log.replace(b"tracked_stats", b"other"))
    (table,) = run("collect", folder, *(("--rule", rule) if rule else ()), "--json").data["tables"]
    assert table["rule"] == "run-clock"
    row: dict[str, Any] = table["rows"][0]
    return row


def test_all_samples_count_though_they_end_within_a_step(tmp_path: Path) -> None:
    for samples in (7680, 7712, 7000):  # whole, overflowed, packed
        log = format_log().replace(b'"value": 7680', b'"value": %d' % samples)
        row = collect_runs(tmp_path / str(samples), log, rule="")
        assert row["median"] == pytest.approx(samples)


def test_the_time_of_a_run_begins_at_its_beginning(tmp_path: Path) -> None:
    """Runs overlap from run_start on, though the next line that the rule reads is at the end."""

    def delay(log: bytes, ms: int) -> bytes:
        return re.sub(rb'(?<="time_ms": )\d+', lambda match: b"%d" % (int(match[0]) + ms), log)

    first = b"Clearing cache on n1\n" + format_log()
    later = delay(first, 500)
    assert codes(collect_runs(tmp_path / "1", first, later)) == [["shared-nodes"]] * 2
    elsewhere = later.replace(b"on n1", b"on n2")
    assert codes(collect_runs(tmp_path / "2", first, elsewhere)) == [[], []]
    # A copy with another line before the run is that run.
    copy = first.replace(b"Clearing cache on n1\n", b"")
    assert codes(collect_runs(tmp_path / "3", first, copy)) == [[], ["duplicate"]]
    # A requeued run in the same log: the samples are those of the second attempt, and the first
    # run_start is the first one's. Where only rank 0 prints init_start, its number tells nothing.
    begin = re.split(rb"(?m)^(?=.*train_samples)", format_log())[0]
    again = delay(format_log(), 5000).replace(b"init_start", b"other")
    row = collect_runs(tmp_path / "4", begin + again)
    assert (codes(row), row["median"]) == ([["window"]], None)
