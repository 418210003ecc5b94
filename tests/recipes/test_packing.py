"""NVIDIA's MLPerf logs of packed samples: the global batch is twice the product of its factors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hpcbert.cli.collect import collect as command
from hpcbert.logs.scan import Reading
from hpcbert.logs.setting import Setting
from tests.kit.cases import cases
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
    lines += [
        format_event("gradient_accumulation_steps", 1),
        extra,
        format_event("run_start", None, 1000),
    ]
    lines += [
        format_event("eval_accuracy", 0.7, 2000),
        "{'global_steps': 10, 'eval_loss': 4.1, 'x': 0}",
    ]
    lines += [format_event("train_samples", 7680, 2000), format_event("run_stop", None, 2000)]
    lines += [format_event("tracked_stats", {"throughput": STATED, "epoch_num": 7680})]
    return "\n".join([*lines, ""]).encode()


def read_mlperf(
    tmp_path: Path, data: bytes, rule: str = "tracked-stats", settings: Setting = KNOWN
) -> Reading:
    return Reader("mlperf-bert", tmp_path).read(data, rule, settings)


def find_refusal(reading: Reading) -> str:
    assert reading.throughput is None
    (reason,) = reading.reasons
    assert reason.code == "config"
    return reason.detail


@pytest.mark.parametrize(
    ("platform", "nodes"),
    [
        *(("2xNVIDIA DGX H100", 2), ("4xXE9680", 4), ("2xB200server", 2)),
        *(("8xH100", None), ("8xH100-SXM5-80GB", None), ("8xA100_80GB", None)),
        *(("4xGB200", None), ("2xRTX4090", None), ("8xMI300X", None)),
    ],
)
def test_a_platform_counts_nodes_unless_it_names_gpus(
    tmp_path: Path, platform: str, nodes: int | None
) -> None:
    log = format_log().replace(b"1xNVIDIA DGX H100", platform.encode())
    facts = dict(read_mlperf(tmp_path, log, settings=KNOWN._replace(nodes=None)).facts)
    assert facts.get("nodes") == nodes


@cases
def test_of_several_signs_of_the_precision_the_surest_holds(
    tmp_path: Path, platform: str, lineno: int, batch: int, precision: str | None
) -> None:
    log = format_log(rank_batch=batch, total=batch * 16).decode()
    log = log.replace("1xNVIDIA DGX H100", platform).replace(
        '"lineno": 1}', f'"lineno": {lineno}}}'
    )
    settings = Setting(nodes=1, gpus_per_node=8) if platform.startswith("1x") else Setting()
    reading = read_mlperf(tmp_path, log.encode(), settings=settings)
    assert dict(entry[:2] for entry in reading.assumed).get("precision") == precision


def test_packing_is_read_from_what_the_log_states(tmp_path: Path) -> None:
    reading = read_mlperf(tmp_path, format_log())
    assert (reading.throughput, reading.setting.packing) == (STATED, 2)
    assert read_mlperf(tmp_path, format_log(), "run-clock").throughput == pytest.approx(7680)
    assert read_mlperf(tmp_path, format_log(total=384)).setting.packing is None


@cases
def test_packing_that_the_log_spells_out_serves_every_rule(tmp_path: Path, line: str) -> None:
    data = format_log(ranks=1, extra=line)
    assert read_mlperf(tmp_path, data).throughput == STATED
    assert read_mlperf(tmp_path, data, "run-clock").throughput == pytest.approx(7680)
    assert "x 1 x 2" in find_refusal(read_mlperf(tmp_path, format_log(total=384, extra=line)))


@pytest.mark.parametrize("rule", ["tracked-stats", "run-clock"])
@pytest.mark.parametrize("lines", [None, 15], ids=["whole", "cut"])
def test_a_second_run_in_the_log_is_refused(tmp_path: Path, rule: str, lines: int | None) -> None:
    first = b"".join(format_log().splitlines(keepends=True)[:lines])
    reading = read_mlperf(tmp_path, first + format_log(), rule)
    assert [(reason.code, reading.throughput) for reason in reading.reasons] == [("window", None)]
    assert "more than one" in reading.reasons[0].detail


@pytest.mark.parametrize("rule", ["tracked-stats", "run-clock"])
def test_packing_that_is_not_certain_is_asked_for(tmp_path: Path, rule: str) -> None:
    data = format_log(ranks=1)
    detail = find_refusal(read_mlperf(tmp_path, data, rule))
    assert "a global batch of 768 is not 48 samples on 8 GPUs" in detail
    assert "--set packing=2" in detail
    assert read_mlperf(tmp_path, data, rule, KNOWN._replace(packing=2)).throughput is not None
    assert "x 1 x 3" in find_refusal(read_mlperf(tmp_path, data, rule, KNOWN._replace(packing=3)))


@pytest.mark.parametrize(
    ("data", "settings"),
    [
        (format_log(total=1152), KNOWN),
        (format_log(extra="Namespace(max_predictions_per_seq=76, packed_samples=False)"), KNOWN),
        (format_log(total=384), KNOWN._replace(gpus_per_node=4)),
        (format_log(), KNOWN._replace(gpus_per_node=16)),
        (format_log(), KNOWN._replace(nodes=2, gpus_per_node=4)),
        (format_log(), KNOWN._replace(batch_size_per_device=96)),
    ],
    ids=["three times", "not packed", "half the GPUs", "twice the GPUs", "two nodes", "batch"],
)
def test_packing_explains_no_other_contradiction(
    tmp_path: Path, data: bytes, settings: Setting
) -> None:
    assert find_refusal(read_mlperf(tmp_path, data, settings=settings.settled({})[0]))


def test_no_other_recipe_knows_packing() -> None:
    assert grammar("pytorch").packing == 1


def test_collect_takes_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "result_0.txt"
    path.write_bytes(format_log(ranks=1))
    words = [str(path), "--fw=mlperf-bert", "--rule=tracked-stats", "--nodes=1", "--json"]
    words += ["--gpus-per-node=8", "--batch-size=48", "--precision=fp16"]
    refused = json.loads(CliRunner().invoke(command, words).stdout)
    assert refused["exit_code"] == 4
    (run,) = refused["data"]["tables"][0]["rows"][0]["runs"]
    assert "--set packing=2" in run["reasons"][0]["detail"]
    document = json.loads(CliRunner().invoke(command, [*words, "--set", "packing=2"]).stdout)
    assert document["data"]["tables"][0]["rows"][0]["median"] == STATED


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


@pytest.mark.parametrize("samples", [7680, 7712, 7000], ids=["whole", "overflowed", "packed"])
def test_all_samples_count_though_they_end_within_a_step(tmp_path: Path, samples: int) -> None:
    data = format_log().replace(
        b'"train_samples", "value": 7680', b'"train_samples", "value": %d' % samples
    )
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "result_0.txt").write_bytes(data.replace(b'"tracked_stats"', b'"other_stats"'))
    result = CliRunner().invoke(command, [str(logs), "--json"])
    (table,) = json.loads(result.stdout)["data"]["tables"]
    (row,) = table["rows"]
    assert (table["rule"], row["median"]) == ("run-clock", pytest.approx(samples))


def collect_runs(folder: Path, *logs: bytes) -> list[dict[str, Any]]:
    folder.mkdir()
    for number, log in enumerate(logs):
        (folder / f"result_{number}.txt").write_bytes(log.replace(b"tracked_stats", b"other"))
    result = CliRunner().invoke(command, [str(folder), "--rule=run-clock", "--json"])
    (table,) = json.loads(result.stdout)["data"]["tables"]
    runs: list[dict[str, Any]] = table["rows"][0]["runs"]
    return runs


def delay(log: bytes, ms: int) -> bytes:
    return re.sub(rb'(?<="time_ms": )\d+', lambda match: b"%d" % (int(match[0]) + ms), log)


def list_codes(runs: list[dict[str, Any]]) -> list[list[str]]:
    return [[reason["code"] for reason in run["reasons"]] for run in runs]


def test_the_time_of_a_run_begins_at_its_beginning(tmp_path: Path) -> None:
    """Runs overlap from run_start on, though the next line that the rule reads is at the end."""
    first = b"Clearing cache on n1\n" + format_log()
    later = delay(first, 500)
    assert list_codes(collect_runs(tmp_path / "1", first, later)) == [["shared-nodes"]] * 2
    elsewhere = later.replace(b"on n1", b"on n2")
    assert list_codes(collect_runs(tmp_path / "2", first, elsewhere)) == [[], []]


def test_a_copy_with_another_line_before_the_run_is_one(tmp_path: Path) -> None:
    log = b"Clearing cache on n1\n" + format_log()
    copy = log.replace(b"Clearing cache on n1\n", b"")
    assert list_codes(collect_runs(tmp_path / "1", log, copy)) == [[], ["duplicate"]]


def test_a_requeued_run_in_the_same_log_is_refused(tmp_path: Path) -> None:
    """The samples are those of the second attempt, and the first run_start is the first one's."""
    log = format_log()
    begin = re.split(rb"(?m)^(?=.*train_samples)", log)[0]
    # Where only rank 0 prints init_start, its number does not tell the attempts apart.
    again = delay(log, 5000).replace(b"init_start", b"other")
    (run,) = collect_runs(tmp_path / "logs", begin + again)
    assert (run["throughput"], run["reasons"][0]["code"]) == (None, "window")
