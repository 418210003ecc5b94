"""What programs print of a run is read as they mean it: a row for each case."""

import json
import platform
import re
import runpy
import sys
from datetime import datetime, timedelta, timezone
from itertools import product
from types import SimpleNamespace

import pytest

from hpcbert.logs import failures
from hpcbert.logs.grammar import Grammar
from hpcbert.logs.setting import Setting
from tests.kit import cli, logs
from tests.kit.cases import cases, read_constant
from tests.kit.paths import REPOSITORY, TEMPLATES
from tests.kit.recipes import HERE, grammar, printed, read

LOGS = read_constant(__file__, "LOGS")
DEVICE, HOST = read_constant(__file__, "DEVICE"), read_constant(__file__, "HOST")


def print_log(name, changes=(), **fields):
    """Return a log of the table, with changes as of re.sub.

    A line may show `n`, the iteration, and `before`, the one before it; `at`, a date, and `epoch`,
    its seconds, which go on by the `pace`, in seconds; and what `values` has: one for each line in
    turn, or a number for each iteration.
    """
    log = {"head": "", "pace": (1.0,), "values": {}, "end": "", **LOGS[name], **fields}
    lines = [printed(log["sample"]).decode()] if "sample" in log else []
    lines += [(HERE / "recorded" / log["file"]).read_text()] if "file" in log else []
    shown_values = {**LOGS[name].get("values", {}), **log["values"]}
    at = datetime(2023, 5, 22, 9, 0, 0, 345000, tzinfo=timezone.utc)
    for place, n in enumerate(range(*log["iterations"]) if "line" in log else ()):
        at += timedelta(seconds=log["pace"][place % len(log["pace"])])
        values = {
            key: value[place % len(value)] if isinstance(value, tuple) else value * n
            for key, value in shown_values.items()
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
    tmp_path, *, log, changes, fields, settings, recipes, numbers, rules, facts, codes, says, lacks
):
    """`numbers` by the name of a rule, or a reason or a missing setting by all `rules`.

    Several logs are forms of one: each release prints another.
    """
    forms, expected = log.split(), numbers or {}
    setting = Setting(**{**LOGS[forms[0]]["setting"], **(settings or {})}).settled({})[0]
    for form, recipe in product(forms, recipes or (LOGS[forms[0]]["recipe"],)):
        text = print_log(form, changes or (), **(fields or {}))
        usual = [rule.name for rule in grammar(recipe).rules]
        for rule in rules or expected or usual:
            reading = read(recipe, tmp_path, text.encode(), rule, setting)
            value = expected.get(rule)
            assert reading.throughput == (value and pytest.approx(value, rel=1e-3)), reading
            assert tuple(reason.code for reason in reading.reasons) == (codes or ()), reading
            assert (says or "") in "; ".join(map(str, [*reading.reasons, *reading.flags]))
            assert reading.missing == (lacks or "")
            stated = {**dict(reading.facts), **reading.setting._asdict()}
            assert {name: stated.get(name) for name in facts or {}} == (facts or {})


@pytest.mark.parametrize("recipe", ["mindspore", "mindspore-models"])
def test_every_form_of_mindspores_loss_is_read_and_each_steps_counts(recipe, tmp_path):
    """MindSpore 1 prints a tensor without dimensions, MindSpore 2 one of a single number.

    With loss scaling it is the first of several outputs (mindspore-ai/models@9d99f64, src/utils.py).
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
    tmp_path, run, *, log, changes, options, median, shape, table, codes: list[str]
):
    path = tmp_path / "program-1234567.out"
    path.write_text(print_log(log, changes or ()))
    (read,) = run(path, *(options or ()))["data"]["tables"]
    (row,) = read["rows"]
    assert row["median"] == (median and pytest.approx(median, rel=1e-3))
    assert shape in (None, row["shape"])
    assert {name: read[name] for name in table or {}} == (table or {})
    assert [reason["code"] for reason in row["runs"][0]["reasons"]] == (codes or [])


@pytest.mark.parametrize("rule", ["rate", "footer"])
def test_samples_of_two_lengths_inside_the_window_give_no_number_by_any_rule(rule, tmp_path):
    toml = read_constant(__file__, "WITH_LENGTHS")
    setting = Setting(nodes=1, gpus_per_node=8, gpus=8, batch_size_per_device=32)
    for last, expected in ((128, []), (512, ["config"])):
        lengths = [128] * 60 + [last] * 60
        steps = enumerate(lengths, start=1)
        lines = [f"step {n} of {length} tokens: 50.0 samples/s\n" for n, length in steps]
        text = "".join([*lines, "total 50.0 samples/s\n"])
        assert logs.codes(logs.read(tmp_path, toml, text, rule, setting)) == expected


@pytest.mark.torch
def test_a_node_without_gpus_ends_the_run_with_its_name(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace())
    monkeypatch.syspath_prepend(REPOSITORY / "hpcbert" / "workloads")
    monkeypatch.setattr(sys, "argv", ["hf_trainer.py", "--model=bert-tiny"])
    with pytest.raises(SystemExit, match=f"no GPU on node {platform.node()}"):
        runpy.run_path(str(REPOSITORY / "templates/hf-trainer/hf_trainer.py"), run_name="__main__")


def write_results(root, *texts):
    """Write a folder of tinygrad's results, each run of another day, and its system."""
    system = {"number_of_nodes": "1", "accelerators_per_node": "6", "framework": "tinygrad"}
    logs.write_file(root, "tinycorp/systems/tinybox_red.json", json.dumps(system))
    folder = root / "tinycorp/results/tinybox_red/bert"
    for number, text in enumerate(texts):
        log = text.replace('"time_ms": 1684', f'"time_ms": 168{5 + number}')
        logs.write_file(folder, f"result_{number}.txt", log)
    return folder


def test_a_folder_of_results_gives_the_rate_of_whole_runs_of_bert_and_none_is_started(
    tmp_path, run, empty_directory
):
    """From run_start, compilation and evaluations included: the record has the same rates."""
    whole_runs = [print_log("tinygrad-run", pace=(pace,)) for pace in (600.0, 480.0, 500.0)]
    document = run(write_results(tmp_path / "whole", *whole_runs))
    row, (table,) = cli.first_row(document), document["data"]["tables"]
    assert (row["median"], row["shape"]) == (pytest.approx(192.0, rel=1e-6), "1n6g")
    labels = ("framework", "model", "precision", "batch_size_per_device", "rule")
    expected = ("mlperf-tinygrad", "bert-large", "fp16", 16, "run-clock")
    assert tuple(table[name] for name in labels) == expected
    assumed = {entry["name"]: entry["option"] for entry in document["data"]["assumed"]}
    assert assumed["precision"] == "--precision"

    other = print_log("tinygrad-run", [('"bert"', '"retinanet"')])
    assert "No recipe reads" in cli.run("collect", write_results(tmp_path / "other", other)).stderr
    assert "does not start" in cli.run("submit", "--fw", "mlperf-tinygrad", status=2).stderr


@cases
def test_a_platform_counts_nodes_unless_it_names_gpus_and_tells_the_precision(
    tmp_path, changes, nodes, precision
):
    shape = Setting(nodes=1, gpus_per_node=8) if nodes == 1 else Setting()
    log = print_log("mlperf-bert", changes).encode()
    reading = read("mlperf-bert", tmp_path, log, "tracked-stats", shape)
    assert dict(reading.facts).get("nodes") == nodes
    assert dict(entry[:2] for entry in reading.assumed).get("precision") == precision


def test_the_time_of_a_run_begins_at_its_beginning_and_all_its_samples_count(tmp_path):
    """Runs overlap from run_start on, though the next line that the rule reads is at the end."""

    def collect_runs(name, *texts, rule=("--rule", "run-clock")):
        for number, text in enumerate(texts):
            log = text.replace("tracked_stats", "other")
            logs.write_file(tmp_path / name, f"result_{number}.txt", log)
        (table,) = cli.run("collect", tmp_path / name, *rule, "--json").data["tables"]
        assert table["rule"] == "run-clock"
        return table["rows"][0]

    def delay(log: str, ms: int) -> str:
        return re.sub(r'(?<="time_ms": )\d+', lambda match: str(int(match[0]) + ms), log)

    log = print_log("mlperf-bert")
    first = "Clearing cache on n1\n" + log
    later = delay(first, 500)
    assert cli.codes(collect_runs("1", first, later)) == [["shared-nodes"]] * 2
    elsewhere = later.replace("on n1", "on n2")
    assert cli.codes(collect_runs("2", first, elsewhere)) == [[], []]
    # A copy with another line before the run is that run.
    assert cli.codes(collect_runs("3", first, log)) == [[], ["duplicate"]]
    # A requeued run in the same log: the samples are those of the second attempt, and the first
    # run_start is the first one's. Where only rank 0 prints init_start, its number tells nothing.
    begin = re.split(r"(?m)^(?=.*train_samples)", log)[0]
    again = delay(log, 5000).replace("init_start", "other")
    row = collect_runs("4", begin + again)
    assert (cli.codes(row), row["median"]) == ([["window"]], None)
    # Samples end within a step: whole, overflowed, packed.
    for samples in (7680, 7712, 7000):
        ended = log.replace('"value": 7680', f'"value": {samples}')
        assert collect_runs(str(samples), ended, rule=())["median"] == pytest.approx(samples)


def find_shortage(folder, *lines, words=None, device="gpu"):
    words = words or Grammar((), (), reader="none")
    path = logs.write_file(folder, "run.log", "\n".join(["it began", *lines, "it ended", ""]))
    failure = failures.find_shortage(path, words, device)
    return (failure.kind, failure.said) if failure else ("", "")


def test_a_lack_of_memory_is_the_devices_or_the_hosts_by_a_librarys_words(tmp_path):
    # Bare, and as srun, mpirun, pdsh and a colourful logger would have it.
    prefixes = ("", "  3: ", "[1,3]<stderr>:", "vs003: ", "\x1b[31m")
    for name, line in DEVICE.items():
        for spelt in (line, line.upper(), line.lower()):
            for prefix in prefixes:
                kind, words = find_shortage(tmp_path, prefix + spelt)
                assert kind == "device-oom", f"{name}: {prefix}{spelt}"
                assert " ".join(spelt.split())[:40] in words
    for name, line in HOST.items():
        assert find_shortage(tmp_path, line)[0] == "host-oom", name
    # Words that only the program of one recipe speaks.
    for recipe, line in {
        "oneflow": "  what():  Error: out of memory ",
        "oneflow-models": "RuntimeError: out of memory",
    }.items():
        assert find_shortage(tmp_path, line, words=grammar(recipe))[0] == "device-oom"
        assert find_shortage(tmp_path, line) == ("", "")
    assert find_shortage(tmp_path, DEVICE["mindspore 2"], device="cpu")[0] == "host-oom"
    device, host = DEVICE["torch 2.5"], HOST["python"]
    assert find_shortage(tmp_path, device, host)[0] == "device-oom"
    assert find_shortage(tmp_path, host, device)[0] == "host-oom"
    assert find_shortage(tmp_path, device, HOST["slurm 23"])[0] == "host-oom"


def test_what_only_speaks_of_memory_is_no_lack_for_the_reader_nor_for_a_nodes_grep(name, tmp_path):
    """The search for the largest batch is a shell's."""
    words, neither = grammar(name), read_constant(__file__, "NEITHER")
    assert failures.find_shortage(TEMPLATES / name / "sample.log", words) is None
    for line in neither:
        for spelt in (line, line.lower()):
            assert find_shortage(tmp_path, spelt, words=words) == ("", ""), spelt
    path = logs.write_file(
        tmp_path, "words.log", "\n".join([*DEVICE.values(), *neither, *HOST.values(), ""])
    )
    grep = ["grep", "-aniP", "-e", failures.shortage_signs(words, "gpu")[0], str(path)]
    result = cli.start_process(grep, env={"LC_ALL": "C"})
    numbers = [int(line.partition(":")[0]) for line in result.stdout.splitlines()]
    assert numbers == list(range(1, len(DEVICE) + 1)), result.stderr
