"""What programs print of a run is read as they mean it: a row for each case."""

import json
import platform
import re
import runpy
import sys
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import product
from types import SimpleNamespace

import pytest

from hpcbert.logs.setting import Setting
from tests.kit import cli, logs
from tests.kit.cases import cases, read_constant
from tests.kit.paths import REPOSITORY
from tests.kit.recipes import HERE, grammar, printed, read, sample

LOGS = read_constant(__file__, "LOGS")


def print_log(name, changes=(), **fields):
    """Return a log of the table, with changes as of re.sub.

    A line may show `n`, the iteration, and `before`, the one before it; `at`, a date, and `epoch`,
    its seconds, which go on by the `pace`, in seconds; and what `values` has: one for each line in
    turn, or a number for each iteration.
    """
    log = {"head": "", "pace": (1.0,), "values": {}, "end": "", **LOGS[name], **fields}
    lines = [printed(log["sample"]).decode()] if "sample" in log else []
    lines += [(HERE / "recorded" / log["file"]).read_text()] if "file" in log else []
    at = datetime(2023, 5, 22, 9, 0, 0, 345000, tzinfo=timezone.utc)
    for place, n in enumerate(range(*log["iterations"]) if "line" in log else ()):
        at += timedelta(seconds=log["pace"][place % len(log["pace"])])
        values = {
            key: value[place % len(value)] if isinstance(value, tuple) else value * n
            for key, value in log["values"].items()
        }
        shown = {"n": n, "before": n - 1, "at": at, "ms": at.microsecond // 1000}
        lines.append(log["line"].format(**shown, epoch=at.timestamp(), **values))
    text = "".join([log["head"], *lines, log["end"]])
    for old, new in changes:
        text, count = re.subn(old, new, text, flags=re.MULTILINE)
        assert count, f"{name} has no {old}"
    return text


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
    expected = numbers or {}
    for recipe in recipes or (LOGS[log]["recipe"],):
        usual = [rule.name for rule in grammar(recipe).rules]
        for rule in rules or expected or usual:
            reading = read(recipe, tmp_path, text.encode(), rule, setting)
            value = expected.get(rule)
            assert reading.throughput == (value and pytest.approx(value, rel=1e-3)), reading
            assert tuple(reason.code for reason in reading.reasons) == (codes or ()), reading
            assert (says or "") in "; ".join(map(str, [*reading.reasons, *reading.flags]))
            assert reading.missing == (missing or "")
            stated = {**dict(reading.facts), **reading.setting._asdict()}
            assert {name: stated.get(name) for name in facts or {}} == (facts or {})


@pytest.mark.parametrize("recipe", ["mindspore", "mindspore-models"])
def test_every_form_of_mindspores_loss_is_read_and_each_steps_counts(recipe, tmp_path):
    """MindSpore 1 prints a tensor without dimensions, MindSpore 2 one of a single number.

    With loss scaling the loss is the first of several outputs (mindspore-ai/models@9d99f64,
    src/utils.py).
    """
    setting, forms = Setting(**LOGS["mindspore"]["setting"]), read_constant(__file__, "OUTPUTS")
    for outputs, (loss, step) in product(forms, (("11.05", 0), ("nan", 7), ("-inf", 8))):
        changes = [("LOSS", forms[outputs].format("11.05"))]
        if step:  # 7 is within an epoch, 8 at its end
            shown = forms[outputs].format(loss)
            changes.insert(0, (f"(step: {step}, outputs are )LOSS", rf"\g<1>{shown}"))
        reading = read(recipe, tmp_path, print_log("mindspore", changes).encode(), "", setting)
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


def test_a_recipe_without_a_unit_reads_no_other_and_each_rule_minds_the_lengths(tmp_path):
    toml, read_log = read_constant(__file__, "WITHOUT_UNIT"), partial(logs.read, tmp_path)
    setting = Setting(nodes=1, gpus_per_node=1, gpus=1)
    for shown in ("65.5 Ktokens/s", "65536.0 tokens/s", "65.5 k tokens per sec"):
        text = "".join(f"step {n}: speed {shown} of epoch 1\n" for n in range(1, 121))
        assert read_log(toml, text, "", setting).throughput is None
        assert read_log(toml.replace(".*? of epoch", ""), text, "", setting).throughput is None
        assert read_log(toml, text.replace(shown, "512.0"), "", setting).throughput == 512
    toml = read_constant(__file__, "WITH_LENGTHS")
    setting = Setting(nodes=1, gpus_per_node=8, gpus=8, batch_size_per_device=32)
    for last, rule in product((128, 512), ("rate", "footer")):
        lengths = [last if n > 60 else 128 for n in range(1, 121)]
        lines = [
            f"step {n} of {size} tokens: 50.0 samples/s\n" for n, size in enumerate(lengths, 1)
        ]
        reading = read_log(toml, "".join([*lines, "total 50.0 samples/s\n"]), rule, setting)
        assert logs.codes(reading) == ([] if last == 128 else ["config"]), rule


def make_history(loss=6.9, scale=1.0, later=0):
    """Return the Trainer's records of 120 steps of half a second after a start of two seconds."""
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


def print_history(history, form):
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
    run = {**shape, "batch_size_per_device": 4, "sequence_length": 128}
    trained = {"train_runtime": 63.0, "train_samples_per_second": 15.24, "train_loss": 6.5}
    history = [*make_history(**records)[:last], end or {**trained, "epoch": 1.0}]
    for form in ("release 4", "release 5", "trainer_state.json"):
        log = print_history(history, form).encode()
        for rule in numbers or ("elapsed",):
            number = (numbers or {}).get(rule)
            setting = Setting(**{**run, **(changes or {})})
            reading = read("hf-trainer", tmp_path, log, rule, setting)
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


def format_event(ms, key, value=None, *, file="/workspace/bert/run_pretraining.py", **metadata):
    event = {"namespace": "", "time_ms": 1695000000000 + round(ms), "event_type": "POINT_IN_TIME"}
    metadata = {"file": file, "lineno": 1, **metadata}
    return f":::MLLOG {json.dumps({**event, 'key': key, 'value': value, 'metadata': metadata})}"


def format_run(rate, benchmark="bert"):
    """Return a log of tinygrad: 20 times 1,000 steps and an evaluation, `rate` samples/s in all.

    Their batch is that of tinycorp/results/tinybox_red in mlcommons/training_results_v5.0@0fdc28f.
    """
    event = partial(format_event, file="tinygrad/examples/mlperf/model_train.py")
    lines = [event(0, "submission_benchmark", benchmark), event(1e3, "init_start")]
    lines += [event(1.7e6, "run_start"), event(1.71e6, "global_batch_size", 96)]
    lines += [event(1.71e6, "max_sequence_length", 512)]
    lines += [event(1.71e6, "gradient_accumulation_steps", 1)]
    for samples in range(96_000, 20 * 96_000 + 1, 96_000):
        stop = 1.7e6 + 1000 * samples / rate
        lines.append(event(stop - 5000, "eval_start", epoch_num=samples))
        lines.append(event(stop, "eval_accuracy", 0.1, epoch_num=samples))
    return "\n".join([*lines, event(stop, "run_stop"), ""])


def write_runs(root, *texts):
    """Write a folder of results, each run of another day, and its system."""
    system = {"number_of_nodes": "1", "accelerators_per_node": "6", "framework": "tinygrad"}
    logs.write_file(root, "tinycorp/systems/tinybox_red.json", json.dumps(system))
    folder = root / "tinycorp/results/tinybox_red/bert"
    for number, text in enumerate(texts):
        log = text.replace('"time_ms": 1695', f'"time_ms": 16{96 + number}')
        logs.write_file(folder, f"result_{number}.txt", log)
    return folder


def test_a_folder_of_results_gives_the_rate_of_the_whole_run(tmp_path, run):
    """From run_start, compilation and evaluations included: the record has the same rates."""
    document = run(write_runs(tmp_path, *map(format_run, (160.0, 170.0, 165.0))))
    row, (table,) = cli.first_row(document), document["data"]["tables"]
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


# One node of Eos in v3.1, as its published result states it.
EOS = Setting(nodes=1, gpus_per_node=8, batch_size_per_device=48, precision="fp16", iters=11)
STATED = 7759.98


def format_log(*, ranks=8, total=768, rank_batch=48, extra=""):
    """Return NVIDIA's MLPerf log in the form of v3.0 to v4.1, with an evaluation of earlier versions.

    Its samples are packed: the global batch is twice the product of its factors.
    """
    lines = [format_event(0, "init_start")] * ranks
    lines += [format_event(0, "submission_platform", "1xNVIDIA DGX H100")]
    lines += [format_event(0, "global_batch_size", total)]
    lines += [format_event(0, "d_batch_size", rank_batch)]
    lines += [format_event(0, "gradient_accumulation_steps", 1), extra]
    lines += [format_event(1000, "run_start"), format_event(2000, "eval_accuracy", 0.7)]
    lines += ["{'global_steps': 10, 'eval_loss': 4.1, 'x': 0}"]
    lines += [format_event(2000, "train_samples", 7680), format_event(2000, "run_stop")]
    lines += [format_event(0, "tracked_stats", {"throughput": STATED, "epoch_num": 7680})]
    return "\n".join([*lines, ""]).encode()


@cases
def test_packing_is_read_stated_or_asked_for(tmp_path, *, log, settings, facts, says):
    """By both rules: the printed rate and the clock of the run, or the same single reason."""
    setting = EOS._replace(**(settings or {})).settled({})[0]
    for rule, number in (("tracked-stats", STATED), ("run-clock", 7680)):
        reading = read("mlperf-bert", tmp_path, format_log(**log), rule, setting)
        assert reading.throughput == (None if says else pytest.approx(number)), reading
        assert [reason.code for reason in reading.reasons] == (["config"] if says else [])
        assert (says or "") in str(reading.reasons)
        stated = {**dict(reading.facts), "packing": reading.setting.packing or 1}
        assert {name: stated[name] for name in facts or {}} == (facts or {})


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
    reading = read("mlperf-bert", tmp_path, log.encode(), "tracked-stats", shape)
    assert dict(reading.facts).get("nodes") == nodes
    if lineno:
        assert dict(entry[:2] for entry in reading.assumed).get("precision") == precision


def test_a_second_run_in_the_log_is_refused(tmp_path):
    """After a whole one, and after one that was cut."""
    for lines, rule in product((None, 15), ("tracked-stats", "run-clock")):
        first = b"".join(format_log().splitlines(keepends=True)[:lines])
        reading = read("mlperf-bert", tmp_path, first + format_log(), rule, EOS)
        assert (logs.codes(reading), reading.throughput) == (["window"], None)
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


def test_a_batch_of_unstated_packing_gives_no_number(tmp_path):
    """The program packs two samples into one sequence, as its lost header says."""
    lines = sample("mlperf-bert-v5").splitlines(keepends=True)
    steps = b"".join(line for line in lines if b'"step_loss": ' in line)
    for packing, rate in ((None, None), (1, 5818.18), (2, 11636.36)):
        setting = EOS._replace(precision="fp8", accumulation=1, packing=packing, skip=60, iters=120)
        reading = read("mlperf-bert-v5", tmp_path, steps, "clock", setting)
        assert (reading.missing == "packing") == (packing is None)
        assert reading.throughput == (rate and pytest.approx(rate, abs=0.01))


def test_the_time_of_a_run_begins_at_its_beginning_and_all_its_samples_count(tmp_path):
    """Runs overlap from run_start on, though the next line that the rule reads is at the end."""

    def collect_runs(name, *texts, rule=("--rule", "run-clock")):
        for number, text in enumerate(texts):
            log = text.replace(b"tracked_stats", b"other")
            logs.write_file(tmp_path / name, f"result_{number}.txt", log)
        (table,) = cli.run("collect", tmp_path / name, *rule, "--json").data["tables"]
        assert table["rule"] == "run-clock"
        return table["rows"][0]

    def delay(log: bytes, ms: int) -> bytes:
        return re.sub(rb'(?<="time_ms": )\d+', lambda match: b"%d" % (int(match[0]) + ms), log)

    first = b"Clearing cache on n1\n" + format_log()
    later = delay(first, 500)
    assert cli.codes(collect_runs("1", first, later)) == [["shared-nodes"]] * 2
    elsewhere = later.replace(b"on n1", b"on n2")
    assert cli.codes(collect_runs("2", first, elsewhere)) == [[], []]
    # A copy with another line before the run is that run.
    copy = first.replace(b"Clearing cache on n1\n", b"")
    assert cli.codes(collect_runs("3", first, copy)) == [[], ["duplicate"]]
    # A requeued run in the same log: the samples are those of the second attempt, and the first
    # run_start is the first one's. Where only rank 0 prints init_start, its number tells nothing.
    begin = re.split(rb"(?m)^(?=.*train_samples)", format_log())[0]
    again = delay(format_log(), 5000).replace(b"init_start", b"other")
    row = collect_runs("4", begin + again)
    assert (cli.codes(row), row["median"]) == ([["window"]], None)
    # Samples end within a step: whole, overflowed, packed.
    for samples in (7680, 7712, 7000):
        log = format_log().replace(b'"value": 7680', b'"value": %d' % samples)
        assert collect_runs(str(samples), log, rule=())["median"] == pytest.approx(samples)
