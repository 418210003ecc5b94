"""What programs print of a run is read as they mean it: a row for each case."""

import json
import platform
import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcbert.logs.setting import Setting
from tests.kit import cli
from tests.kit.cases import cases, read_constant
from tests.kit.cli import first_row
from tests.kit.logs import Reader as GrammarReader
from tests.kit.paths import REPOSITORY
from tests.kit.recipes import Reader, grammar, sample
from tests.recipes.logs import LOGS, print_log

# MindSpore 1 prints a tensor without dimensions, MindSpore 2 one of a single number; with loss
# scaling the loss is the first of several outputs (mindspore-ai/models@9d99f64, src/utils.py).
OUTPUTS: dict[str, str] = read_constant(__file__, "OUTPUTS")


@cases
def test_a_log_gives_the_number_that_its_program_means_or_a_reason(
    tmp_path,
    *,
    log,
    changes,
    fields,
    settings,
    recipes,
    numbers,
    rules,
    facts,
    codes,
    says,
    missing,
):
    """`numbers` by the name of a rule, or a reason or a missing setting by all `rules`."""
    text = print_log(log, changes or (), **(fields or {}))
    setting = Setting(**{**LOGS[log]["setting"], **(settings or {})}).settled({})[0]
    expected: dict[str, float] = numbers or {}
    for recipe in recipes or (LOGS[log]["recipe"],):
        usual = [rule.name for rule in grammar(recipe).rules]
        for rule in rules or expected or usual:
            reading = Reader(recipe, tmp_path).read(text.encode(), rule, setting)
            value = expected.get(rule)
            assert reading.throughput == (value and pytest.approx(value, rel=1e-3)), reading
            assert tuple(reason.code for reason in reading.reasons) == (codes or ()), reading
            assert (says or "") in "; ".join(map(str, [*reading.reasons, *reading.flags]))
            assert reading.missing == (missing or "")
            read = {**dict(reading.facts), **reading.setting._asdict()}
            assert {name: read.get(name) for name in facts or {}} == (facts or {})


@pytest.mark.parametrize("outputs", OUTPUTS)
@pytest.mark.parametrize("recipe", ["mindspore", "mindspore-models"])
def test_every_form_of_mindspores_loss_is_read_and_each_steps_counts(recipe, outputs, tmp_path):
    setting, read = Setting(**LOGS["mindspore"]["setting"]), Reader(recipe, tmp_path).read
    for loss, step in (("11.05", 0), ("nan", 7), ("-inf", 8)):
        changes = [("LOSS", OUTPUTS[outputs].format("11.05"))]
        if step:  # 7 is within an epoch, 8 at its end
            shown = OUTPUTS[outputs].format(loss)
            changes.insert(0, (f"(step: {step}, outputs are )LOSS", rf"\g<1>{shown}"))
        reading = read(print_log("mindspore", changes).encode(), "", setting)
        if not step:
            assert reading.throughput == pytest.approx(16 * 20 / 10.15), reading
        elif outputs != "scientific":
            assert f"the loss is {loss} at iteration {step}" in str(reading.reasons), reading


@cases
def test_a_log_that_is_collected_alone_has_its_labels(
    tmp_path,
    run,
    *,
    log,
    changes,
    options,
    median,
    shape,
    table,
    codes: list[str],
):
    path = tmp_path / "program-1234567.out"
    path.write_text(print_log(log, changes or ()))
    (read,) = run(path, *(options or ()))["data"]["tables"]
    (row,) = read["rows"]
    assert row["median"] == (median and pytest.approx(median, rel=1e-3))
    assert shape in (None, row["shape"])
    assert {name: read[name] for name in table or {}} == (table or {})
    assert [reason["code"] for reason in row["runs"][0]["reasons"]] == (codes or [])


def test_runs_of_two_depths_are_not_repeats(tmp_path, run):
    for number, layers in ((1, 12), (2, 24)):
        model = f"model:\n  name: flex_bert\n  model_config:\n    num_hidden_layers: {layers}\n"
        text = print_log("composer", [(r"\A", model)])
        (tmp_path / f"composer-123456{number}.out").write_text(text)
    (table,) = run(tmp_path)["data"]["tables"]
    reasons = [entry["reasons"][0]["code"] for entry in table["rows"][0]["runs"]]
    assert reasons == ["incomparable", "incomparable"]


@pytest.mark.parametrize("shown", ["65.5 Ktokens/s", "65536.0 tokens/s", "65.5 k tokens per sec"])
def test_a_recipe_without_a_unit_reads_no_other(shown, tmp_path):
    toml: str = read_constant(__file__, "WITHOUT_UNIT")
    text = "".join(f"step {n}: speed {shown} of epoch 1\n" for n in range(1, 121))
    read, setting = GrammarReader(tmp_path), Setting(nodes=1, gpus_per_node=1, gpus=1)
    assert read(toml, text, "", setting).throughput is None
    assert read(toml.replace(".*? of epoch", ""), text, "", setting).throughput is None
    assert read(toml, text.replace(shown, "512.0"), "", setting).throughput == 512


@pytest.mark.parametrize("rule", ["rate", "footer"])
@pytest.mark.parametrize(("last", "expected"), [(128, []), (512, ["config"])])
def test_a_rule_of_another_record_minds_the_lengths_too(rule, last, expected, tmp_path):
    lengths = [last if n > 60 else 128 for n in range(1, 121)]
    lines = [f"step {n} of {size} tokens: 50.0 samples/s\n" for n, size in enumerate(lengths, 1)]
    text = "".join([*lines, "total 50.0 samples/s\n"])
    setting = Setting(nodes=1, gpus_per_node=8, gpus=8, batch_size_per_device=32)
    reading = GrammarReader(tmp_path)(read_constant(__file__, "WITH_LENGTHS"), text, rule, setting)
    assert [reason.code for reason in reading.reasons] == expected


# --- The Trainer's numbers, as its releases print them and as its files have them ------------------


_TRAINED = {
    "train_runtime": 63.0,
    "train_samples_per_second": 15.24,
    "train_loss": 6.5,
    "epoch": 1.0,
}


def make_history(loss: float = 6.9, scale: float = 1.0, later: int = 0) -> list[dict[str, Any]]:
    """Return the records of 120 steps of half a second after a start of two seconds."""
    return [
        {
            "loss": loss,
            "grad_norm": 2.3,
            "epoch": place / 120,
            "num_input_tokens_seen": place * 1024,
            "train_runtime": round(scale * (2.123 + place / 2), 4) + later,
            "train_tokens_per_second": place * 1024 / (2 + place / 2),
        }
        for place in range(20, 121, 20)
    ]


def print_history(history: list[dict[str, Any]], form: str) -> str:
    """Return a log of release 4, of release 5, or the file trainer_state.json."""
    if form == "trainer_state.json":
        steps = [{**record, "step": 20 * place} for place, record in enumerate(history, 1)]
        state = {"log_history": steps, "max_steps": 120, "train_batch_size": 4}
        return json.dumps(state, indent=2, sort_keys=True) + "\n"
    if form == "release 5":
        history = [
            {name: f"{n:.4g}" if isinstance(n, float) else n for name, n in record.items()}
            for record in history
        ]
    return "".join(f"{record}\n" for record in history)


@cases
def test_every_form_gives_the_same_number_or_a_reason(
    tmp_path,
    *,
    records,
    last,
    end,
    changes,
    numbers,
    code,
):
    """A closing rate may include another start: then the clock of the whole run confirms it."""
    shape = {"nodes": 1, "gpus_per_node": 2, "gpus": 2, "accumulation": 1, "skip": 20, "iters": 120}
    run: dict[str, Any] = {**shape, "batch_size_per_device": 4, "sequence_length": 128}
    history = [*make_history(**records)[:last], end or _TRAINED]
    for form in ("release 4", "release 5", "trainer_state.json"):
        log = print_history(history, form).encode()
        for rule in numbers or ("elapsed",):
            number = (numbers or {}).get(rule)
            setting = Setting(**{**run, **(changes or {})})
            reading = Reader("hf-trainer", tmp_path).read(log, rule, setting)
            assert reading.throughput == (number and pytest.approx(number, rel=1e-2)), form
            assert not code or code in {reason.code for reason in reading.reasons}, reading


@pytest.mark.torch
def test_a_node_without_gpus_ends_the_run_with_its_name(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace())
    monkeypatch.syspath_prepend(REPOSITORY / "hpcbert" / "workloads")
    monkeypatch.setattr(sys, "argv", ["hf_trainer.py", "--model=bert-tiny"])
    with pytest.raises(SystemExit, match=f"no GPU on node {platform.node()}"):
        runpy.run_path(str(REPOSITORY / "templates/hf-trainer/hf_trainer.py"), run_name="__main__")


# --- Logs of tinygrad's program, which hpcbert reads and does not start ----------------------------


_PROGRAM = '"metadata": {"file": "tinygrad/examples/mlperf/model_train.py", "lineno": 917'
_SYSTEM = {"number_of_nodes": "1", "accelerators_per_node": "6", "framework": "tinygrad"}
# mlcommons/training_results_v5.0@0fdc28f, tinycorp/results/tinybox_red: samples of a step.
_GLOBAL_BATCH = 96


def format_run(rate: float, benchmark: str = "bert") -> str:
    """Return the log of a run: 20 times 1,000 steps and an evaluation, `rate` samples/s in all."""

    def format_tinygrad_event(
        seconds: float, key: str, value: object = None, samples: int = 0
    ) -> str:
        head = f'{{"namespace": "", "time_ms": {1745530925055 + round(seconds * 1000)}'
        body = f'"event_type": "POINT_IN_TIME", "key": "{key}", "value": {json.dumps(value)}'
        more = f', "epoch_num": {samples}' if samples else ""
        return f":::MLLOG {head}, {body}, {_PROGRAM}{more}}}}}\n"

    header = {"global_batch_size": _GLOBAL_BATCH, "max_sequence_length": 512}
    text = format_tinygrad_event(0, "submission_benchmark", benchmark) + format_tinygrad_event(
        1, "init_start"
    )
    text += format_tinygrad_event(1700, "run_start")
    for key, value in {**header, "gradient_accumulation_steps": 1}.items():
        text += format_tinygrad_event(1710, key, value)
    stop = 0.0
    for samples in range(1000 * _GLOBAL_BATCH, 20001 * _GLOBAL_BATCH, 1000 * _GLOBAL_BATCH):
        stop = 1700 + samples / rate
        text += format_tinygrad_event(stop - 5, "eval_start", None, samples)
        text += format_tinygrad_event(stop, "eval_accuracy", 0.1, samples)
    return text + format_tinygrad_event(stop, "run_stop")


def write_runs(root: Path, *texts: str) -> Path:
    """Write a folder of results, each run of another day, and its system."""
    folder = root / "tinycorp" / "results" / "tinybox_red" / "bert"
    folder.mkdir(parents=True)
    systems = root / "tinycorp" / "systems"
    systems.mkdir()
    (systems / "tinybox_red.json").write_text(json.dumps(_SYSTEM))
    for number, text in enumerate(texts):
        log = text.replace('"time_ms": 1745', f'"time_ms": 17{46 + number}')
        (folder / f"result_{number}.txt").write_text(log)
    return folder


def test_a_folder_of_results_gives_the_rate_of_the_whole_run(tmp_path, run):
    """From run_start, compilation and evaluations included: the record has the same rates."""
    document = run(write_runs(tmp_path, *map(format_run, (160.0, 170.0, 165.0))))
    row, (table,) = first_row(document), document["data"]["tables"]
    assert (row["median"], row["shape"]) == (pytest.approx(165.0, rel=1e-6), "1n6g")
    labels = ("framework", "model", "precision", "batch_size_per_device", "rule")
    assert [table[name] for name in labels] == [
        *("mlperf-tinygrad", "bert-large", "fp16", 16, "run-clock")
    ]
    assumed = {entry["name"]: entry["option"] for entry in document["data"]["assumed"]}
    assert assumed["precision"] == "--precision"


def test_other_benchmarks_and_cut_runs_give_no_number_and_none_is_started(
    tmp_path, empty_directory
):
    cut = format_run(160.0).rpartition(":::MLLOG")[0]
    for log, words in ((format_run(160.0, "retinanet"), "No recipe reads"), (cut, "run_stop")):
        (tmp_path / words).mkdir()
        result = cli.run("collect", write_runs(tmp_path / words, log))
        assert result.returncode != 0
        assert words in result.output
    result = cli.run("submit", "--fw", "mlperf-tinygrad")
    assert (result.returncode, "does not start" in result.stderr) == (2, True)


# --- NVIDIA's MLPerf logs of packed samples: the global batch is twice the product of its factors --


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
def test_packing_is_read_stated_or_asked_for(tmp_path, *, log, settings, facts, says):
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
    tmp_path,
    *,
    platform,
    nodes,
    lineno,
    batch,
    precision,
):
    log = format_log(rank_batch=batch or 48, total=16 * (batch or 48)).decode()
    log = log.replace("1xNVIDIA DGX H100", platform).replace("1}", f"{lineno or 1}}}")
    shape = Setting(nodes=1, gpus_per_node=8) if nodes == 1 else Setting()
    reading = Reader("mlperf-bert", tmp_path).read(log.encode(), "tracked-stats", shape)
    assert dict(reading.facts).get("nodes") == nodes
    if lineno:
        assert dict(entry[:2] for entry in reading.assumed).get("precision") == precision


@pytest.mark.parametrize("lines", [None, 15], ids=["whole", "cut"])
def test_a_second_run_in_the_log_is_refused(tmp_path, lines):
    first = b"".join(format_log().splitlines(keepends=True)[:lines])
    for rule in ("tracked-stats", "run-clock"):
        reading = Reader("mlperf-bert", tmp_path).read(first + format_log(), rule, KNOWN)
        assert [(reason.code, reading.throughput) for reason in reading.reasons] == [
            ("window", None)
        ]
        assert "more than one" in reading.reasons[0].detail
    assert grammar("pytorch").packing == 1


def test_collect_asks_for_the_packing_and_takes_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "result_0.txt"
    path.write_bytes(format_log(ranks=1))
    words = [str(path), "--fw=mlperf-bert", "--rule=tracked-stats", "--nodes=1", "--json"]
    words += ["--gpus-per-node=8", "--batch-size=48", "--precision=fp16"]
    refused = cli.run("collect", *words)
    assert refused.returncode == 4
    (entry,) = refused.data["tables"][0]["rows"][0]["runs"]
    assert "--set packing=2" in entry["reasons"][0]["detail"]
    (table,) = cli.run("collect", *words, "--set", "packing=2").data["tables"]
    assert table["rows"][0]["median"] == STATED


@pytest.mark.parametrize(
    ("packing", "throughput"), [(None, None), (1, 5818.18), (2, 11636.36)], ids=str
)
def test_a_batch_of_unstated_packing_gives_no_number(tmp_path, packing, throughput):
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
    (table,) = cli.run("collect", folder, *(("--rule", rule) if rule else ()), "--json").data[
        "tables"
    ]
    assert table["rule"] == "run-clock"
    row: dict[str, Any] = table["rows"][0]
    return row


def test_all_samples_count_though_they_end_within_a_step(tmp_path):
    for samples in (7680, 7712, 7000):  # whole, overflowed, packed
        log = format_log().replace(b'"value": 7680', b'"value": %d' % samples)
        row = collect_runs(tmp_path / str(samples), log, rule="")
        assert row["median"] == pytest.approx(samples)


def test_the_time_of_a_run_begins_at_its_beginning(tmp_path):
    """Runs overlap from run_start on, though the next line that the rule reads is at the end."""

    def delay(log: bytes, ms: int) -> bytes:
        return re.sub(rb'(?<="time_ms": )\d+', lambda match: b"%d" % (int(match[0]) + ms), log)

    first = b"Clearing cache on n1\n" + format_log()
    later = delay(first, 500)
    assert cli.codes(collect_runs(tmp_path / "1", first, later)) == [["shared-nodes"]] * 2
    elsewhere = later.replace(b"on n1", b"on n2")
    assert cli.codes(collect_runs(tmp_path / "2", first, elsewhere)) == [[], []]
    # A copy with another line before the run is that run.
    copy = first.replace(b"Clearing cache on n1\n", b"")
    assert cli.codes(collect_runs(tmp_path / "3", first, copy)) == [[], ["duplicate"]]
    # A requeued run in the same log: the samples are those of the second attempt, and the first
    # run_start is the first one's. Where only rank 0 prints init_start, its number tells nothing.
    begin = re.split(rb"(?m)^(?=.*train_samples)", format_log())[0]
    again = delay(format_log(), 5000).replace(b"init_start", b"other")
    row = collect_runs(tmp_path / "4", begin + again)
    assert (cli.codes(row), row["median"]) == ([["window"]], None)
