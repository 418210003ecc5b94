"""Collecting what hpcbert never submitted; what options, paths and lines say of a log must agree."""

import gzip
import json
import re
import shlex

import pytest

from hpcbert.campaign.foreign import read_system
from hpcbert.logs.setting import SIZES, Setting, model_facts, model_name
from hpcbert.results import record
from tests.kit import cli, logs
from tests.kit.cases import cases, read_constant
from tests.kit.cli import codes, first_row, only_run, rows
from tests.kit.logs import write_file
from tests.kit.paths import REPOSITORY
from tests.kit.recipes import options_of, printed, sample

WINDOW = ("--skip", 2, "--iters", 12)


def test_the_thirty_logs_of_dlperf_give_the_json_that_it_published(shared, collect):
    folder = shared / "logs/Oneflow-Inc+DLPerf/e36df2e/Tensorflow/resnet50v1.5"
    words = ("--fw", "tf2-resnet", "--rule", "dlperf-time", "--format", "dlperf-json")
    published = json.loads((folder / "result" / "resnet50_result.json").read_text())
    assert json.loads(collect(folder, *words).stdout) == published


def test_bad_logs_are_in_no_median_and_say_why(tmp_path, collect, collect_json):
    folder = logs.write_logs(tmp_path, dict([*logs.DEEPSPEED.items()][:3]), batch=32) / "pytorch"
    first, _, third, _, fifth = sorted((folder / "1n4g").iterdir())
    first.write_text("".join(first.read_text().splitlines(keepends=True)[:-2]))
    third.write_text(logs.log("1n4g", 575.07, iters=120, batch=32, nan_at=57))
    fifth.write_text("srun: error: n1: tasks 0-3: Killed\n")
    before = sorted(path.name for path in folder.rglob("*"))
    document = collect_json(folder)
    assert sorted(path.name for path in folder.rglob("*")) == before
    assert (document["status"], document["exit_code"]) == ("partial", 4)
    assert document["errors"][0]["code"] == "incomplete"
    row = rows(document)[1]
    assert row["median"] == pytest.approx((573.84 + 587.55) / 2)
    assert codes(row) == [["incomplete"], [], ["loss"], [], ["incomplete"]]
    assert [run["throughput"] for run in row["runs"] if not run["valid"]] == [None] * 3
    text = collect(folder)
    assert "repeat 3 left out: loss: the loss is nan at iteration 57" in text.stdout
    assert "repeat 1 left out: incomplete: the log ends at iteration 118 of 120" in text.stdout
    assert "3 of 15 repeats are invalid" in text.stderr
    fifth.write_text("n1:77:99 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'\n")
    (folder / "1n8g/bert_b32_fp32_2.log").unlink()
    strict = rows(collect_json(folder, "--require-all"))
    assert codes(strict[1])[4] == ["incomplete", "device-oom"]
    assert [strict[1][key] for key in ("median", "speedup")] == [None, None]
    assert strict[1]["repeats"]["ok"] == 2
    assert codes(strict[2])[1] == ["no-log"]


def test_numbers_in_names_are_repeats_and_attempts(tmp_path, collect, collect_json, run):
    """Runs from zero become runs from one; of several attempts, the last good one counts."""
    for name, rate in (("0", 100), ("1", 101), ("1.r1", 200), ("1.r2", 300)):
        last = 50 if name == "1.r2" else 120
        log = logs.log("1n1g", rate, iters=120, last=last, start=logs.START + 1000 * rate)
        write_file(tmp_path, f"a/pytorch/1n1g/bert_b4_fp32_{name}.log", log)
    row = first_row(collect_json(tmp_path / "a"))
    assert row["repeats"] == {"ok": 2, "asked": 2}
    numbers = [(run["repeat"], run["attempt"], round(run["throughput"])) for run in row["runs"]]
    assert numbers == [(1, 0, 100), (2, 1, 200)]
    other = logs.write_logs(tmp_path / "b", {"1n1g": [500.0]})
    result = collect(tmp_path / "a", other, status=2)
    assert f"{tmp_path}/a/pytorch/1n1g/bert_b4_fp32_0.log" in result.stderr
    assert f"{other}/pytorch/1n1g/bert_b4_fp32_1.log" in result.stderr
    # Rehearsed logs make no table.
    (path,) = other.rglob("*.log")
    path.write_text(f"HPCBERT REHEARSAL rank=0/1\n{path.read_text()}")
    document = collect_json(other)
    assert (document["data"]["tables"], document["exit_code"]) == ([], 4)
    text = collect(other)
    assert (text.stdout, "500" in text.output) == ("", False)
    assert "1 rehearsed, nothing was trained" in text.stderr
    # Text names files where their numbers are others.
    for number, last in enumerate((7, 12, 12)):
        log = logs.log("1n1g", 100, last=last, start=logs.START + 1e4 * number)
        write_file(tmp_path, f"pytorch/1n1g/bert_b4_fp32_{number}.log", log)
        write_file(tmp_path, f"named/pytorch/1n1g/bert_b4_fp32_{number + 1}.log", log)
        write_file(tmp_path, f"as/pytorch/1n1g/{2 - number}/run.log", log)
    (reason,) = first_row(run(tmp_path / "named", *WINDOW))["runs"][0]["reasons"]
    assert reason["detail"] == "the log ends at iteration 7 of 12"
    assert (
        "1n1g, bert_b4_fp32_0.log left out: incomplete: "
        in collect(tmp_path / "pytorch", *WINDOW).stdout
    )
    assert "1n1g, repeat 1 left out: incomplete: " in collect(tmp_path / "named", *WINDOW).stdout
    markdown = collect(tmp_path / "pytorch", *WINDOW, "--format", "markdown").stdout
    assert "_0.log left out: incomplete" in markdown.replace("\\", "")
    words = ("--pattern", "{nodes}n{gpus_per_node}g/*/run.log", "--as-repeats")
    output = collect(tmp_path / "as", *words, *WINDOW).stdout
    assert re.search(r"\S+/2/run.log left out: incomplete", output), output


def test_patterns_and_flags_supply_what_paths_lack_or_have_wrong(tmp_path, collect, collect_json):
    for number in (1, 2):
        log = logs.log("2n8g", 10.0, iters=120, batch=32, start=logs.START + 1e4 * number)
        write_file(tmp_path, f"x/run{number}-on-2x8.txt", log.partition("\n")[2])
    pattern = ("--pattern", "run{repeat}-on-{nodes}x{gpus_per_node}.txt")
    words = (tmp_path / "x", *pattern, "--rule", "rate")
    missing = collect(*words, status=2)
    assert "x/run1-on-2x8.txt" in missing.stderr
    assert "--batch-size --precision" in missing.stderr
    options = ("--fw", "pytorch", "--batch-size", "32", "--precision", "fp16", "--model", "m")
    (table,) = collect_json(*words, *options)["data"]["tables"]
    assert (table["model"], table["precision"], table["rows"][0]["shape"]) == ("m", "fp16", "2n8g")
    assert [run["repeat"] for run in table["rows"][0]["runs"]] == [1, 2]
    # DLPerf's OneFlow logs are all named fp32 (Oneflow-Inc/DLPerf@c89430b, cp_logs.sh).
    header = "gpu_num_per_node = 1\nnum_nodes = 1\nbatch_size_per_device = 64\nuse_fp16 = True\n"
    steps = "".join(
        f"step: {n}, total_loss: 9.7, mlm_loss: 8.9, nsp_loss: 0.7, throughput: 64.9 {1e9 + n}\n"
        for n in range(19, 120, 20)
    )
    write_file(tmp_path, "logs/oneflow/1n1g/bert_base_b64_fp32_0.log", header + steps)
    assert codes(first_row(collect_json(tmp_path / "logs"))) == [["config"]]
    names = ("--pattern", "{nodes}n{gpus_per_node}g/*_b{batch_size}_*_{repeat}.log")
    right = collect_json(tmp_path / "logs", *names, "--precision", "fp16")
    assert first_row(right)["median"] == pytest.approx(64)
    assert right["data"]["tables"][0]["precision"] == "fp16"


def test_a_log_without_its_header_or_of_another_length_belongs_to_its_siblings(
    tmp_path, run, collect_json
):
    facts = {"batch_size_per_device": 8, "accumulation": 4}
    log = logs.log("1n1g", 32.0, iters=120, batch=32, **facts)
    write_file(tmp_path, "logs/pytorch/1n1g/run1.log", log)
    write_file(tmp_path, "logs/pytorch/1n1g/run2.log", "")
    document = collect_json(tmp_path / "logs", "--pattern", "run{repeat}.log")
    (row,) = rows(document)
    assert document["data"]["tables"][0]["variant"] == "acc4"
    assert (round(row["median"]), row["repeats"]) == (32, {"ok": 1, "asked": 2})
    assert row["flags"] == ["single-run", "incomplete", "accumulation", "unchecked"]
    assert row["unchecked"] == ["model"]
    # A run that ended before the others needs a closing line, after all records.
    logs.write_logs(tmp_path / "x", {"1n1g": [100.0, 100.0]})
    short = logs.log("1n1g", 100.0, iters=120, last=90, start=logs.START + 5000)
    closing = 'hpcbert-result {"samples_per_second": 100.0, "final_loss": 9.5}\n'
    between = short.replace("\n", f"\n{closing}")
    for text, is_valid in ((short + closing, True), (between, False), (f"{short}Killed\n", False)):
        write_file(tmp_path, "x/pytorch/1n1g/bert_b4_fp32_3.log", text)
        last_run = first_row(run(tmp_path / "x", "--iters", "end"))["runs"][2]
        assert last_run["valid"] is is_valid, text
    (reason,) = last_run["reasons"]
    assert "ends at iteration 90, that of another repeat at 120" in reason["detail"]


@cases
def test_mistakes_are_usage_errors(tmp_path, collect_json, words, complaint):
    logs.write_logs(tmp_path, {"1n1g": [1.0]})
    document = collect_json(tmp_path, *words)
    assert (document["status"], document["exit_code"]) == ("error", 2)
    assert complaint in document["errors"][0]["message"]


def find_options(detail):
    """Return the first options that a message says to type."""
    (words,) = re.findall(r"type (--rule [^,;]+)", detail)
    return shlex.split(words)


@pytest.mark.slow
@cases
def test_a_rule_without_a_record_names_those_that_give_a_number(  # noqa: PLR0917
    folder, words, options, records, rule, window, shared, run, collect_json
):
    detail = first_row(run(shared / folder, *words))["runs"][0]["reasons"][0]["detail"]
    assert detail.startswith("the log has no record ")
    assert records in detail
    assert " ".join(find_options(detail)) == options
    row = first_row(run(shared / folder, *words, *find_options(detail)))
    assert row["repeats"]["ok"] == row["repeats"]["asked"] > 0
    for explanation in collect_json("--explain", shared / folder, *words)["data"]["logs"]:
        outcomes = {outcome["rule"]: outcome for outcome in explanation["outcomes"]}
        assert outcomes[rule]["throughput"] > 0
        assert outcomes[rule]["window"] == window


def test_a_window_that_the_log_does_not_reach_names_one_that_it_has(tmp_path, run):
    for framework, skip, iters in (("pytorch", 150, 300), ("hf-trainer", 20, 500)):
        write_file(tmp_path, f"{framework}/run_1.log", sample(framework))
        words = (tmp_path / framework, *options_of(framework))
        detail = only_run(run(*words, "--skip", skip, "--iters", iters))["reasons"][0]["detail"]
        assert detail.startswith("the log ends at iteration 120 of ")
        options = ("--skip", skip, "--iters", iters, *find_options(detail))
        assert only_run(run(*words, *options))["valid"]


@cases
def test_facts_that_contradict_each_other_are_the_reason(recipe, head, message, tmp_path, run):
    """They end the reading: what follows them is unknown, but not because the log lacks it."""
    write_file(tmp_path, "logs/run_1.log", head.encode() + printed(recipe))
    document = run(tmp_path / "logs", *options_of(recipe)[:4])
    assert document["exit_code"] in {2, 4}
    assert message in str(document)
    assert "Neither the path nor the log" not in str(document)
    (reason,) = only_run(run(tmp_path / "logs", *options_of(recipe)))["reasons"]
    assert (reason["code"], message in reason["detail"]) == ("config", True), reason


@cases
def test_a_shape_is_that_of_the_only_description(tmp_path, files, shape):
    folder = tmp_path / "NVIDIA/results/dgx/bert"
    for name, text in files.items():
        write_file(folder, name, text)
    assert read_system(folder)[:2] == (shape or (None, None))


def read_reason(document):
    """Return code and detail of the only reason against the only run."""
    (entry,) = only_run(document)["reasons"]
    return entry["code"], entry["detail"]


def drop_lines(recipe, lost):
    """Return a recipe's sample without some lines."""
    lines = printed(recipe).decode(errors="replace").splitlines(keepends=True)
    return "".join(line for line in lines if not (lost and re.search(lost, line)))


def test_folders_and_names_label_a_log_and_options_that_agree_are_taken(tmp_path, run):
    """DLPerf keeps the logs of NVIDIA's PyTorch BERT in folders called pytorch."""
    log = sample("ngc-tf1")
    write_file(tmp_path, "logs/bs64_fp16_gpu8.log", log)
    words = ("--fw", "ngc-tf1", "--pattern", "bs{batch_size}_{precision}_gpu{gpus}.log")
    assert only_run(run(tmp_path / "logs", *words, "--nodes", 1))["valid"]
    assert only_run(run(tmp_path / "logs", *words, "--gpus-per-node", 8))["valid"]
    document = run(tmp_path / "logs", *words, "--nodes", 1, "--gpus-per-node", 4)
    message = "The path says gpus = 8, but --nodes with --gpus-per-node says 1 x 4"
    assert message in document["errors"][0]["message"]
    name = "pytorch/1n8g/bert-base-adam-training_b32_fp32_1.log"
    write_file(tmp_path, name, sample("ngc-pytorch"))
    assert only_run(run(tmp_path / "pytorch", "--fw", "ngc-pytorch"))["valid"]
    path = write_file(tmp_path, "fp16/bz64/1n8g/first.log", log)
    assert only_run(run(path, "--fw", "ngc-tf1"))["valid"]
    document = run(path, "--fw", "ngc-tf1", "--precision", "fp32")
    assert "The path says precision = fp16, but --precision says fp32" in str(document["errors"])
    path = write_file(tmp_path, "fp32/bz64/1n8g/first.log", log)
    assert read_reason(run(path, "--fw", "ngc-tf1"))[0] == "config"
    # A folder that says otherwise is named.
    pattern = "{nodes}n{gpus_per_node}g/bert_b{batch_size}_{precision}_{repeat}.log"
    for folder in ("fp32", "logs-fp32", "bz32", "fp16_ngc_bert_b96"):
        name = f"{folder}/ngc-tf1/{folder}/1n8g/bert_b64_fp16_1.log"
        path = write_file(tmp_path, name, log)
        message = run(tmp_path / folder / "ngc-tf1")["errors"][0]["message"]
        assert ("The path says" in message, message.count(" = ")) == (True, 2), folder
        assert only_run(run(path, "--fw", "ngc-tf1", "--pattern", pattern))["valid"]


@cases
def test_labels_that_contradict_each_other_are_refused_by_both_values(  # noqa: PLR0917
    tmp_path, run, recipe, name, words, refusal, message
):
    """An option never relabels a path, and no label a log."""
    write_file(tmp_path, f"logs/{name}", sample(recipe or "ngc-tf1"))
    document = run(tmp_path / "logs", *words)
    if refusal == "usage":
        assert document["exit_code"] == 2
        assert message in document["errors"][0]["message"]
        assert not (document.get("data") or {}).get("tables")
    else:
        code, detail = read_reason(document)
        assert (code, message in detail) == ("config", True), detail


@cases
def test_what_is_no_log_of_the_framework_says_what_it_is(  # noqa: PLR0917
    tmp_path, run, text, packed, recipe, code, message
):
    data = sample(recipe) if recipe else text.encode("latin-1") * 50
    data = gzip.compress(data) if packed else data
    write_file(tmp_path, "oneflow/1n1g/bert_b32_fp32_1.log", data[:-9] if packed == "cut" else data)
    reason_code, detail = read_reason(run(tmp_path / "oneflow"))
    assert (reason_code, message in detail) == (code, True), detail


@cases
def test_a_label_of_a_real_log_is_confirmed_contradicted_or_marked(  # noqa: PLR0917
    tmp_path, shared, run, log, name, words, message, unchecked
):
    folder, source = tmp_path / "x", shared / "logs/PaddlePaddle+Perf/v2.0-ee2e639/Bert"
    write_file(folder, name, (source / log).read_bytes())
    pattern = ("--pattern", "*_{precision}_bs{batch_size}_gpu{gpus}.log", "--gpus-per-node", 8)
    row = first_row(run(folder, *pattern, *words))
    if message:
        (reason,) = row["runs"][0]["reasons"]
        assert (reason["code"], message in reason["detail"]) == ("config", True), reason
    else:
        assert row["median"], row
        labels = {"nodes", "gpus", "batch", "precision", "model"}
        assert labels & {*row["unchecked"]} == {*unchecked}


@cases
def test_each_label_that_nothing_confirms_is_marked_by_its_name(  # noqa: PLR0917
    recipe, lost, options, labels, confirmed, tmp_path, run
):
    write_file(tmp_path, "logs/run_1.log", drop_lines(recipe, lost))
    row = first_row(run(tmp_path / "logs", *options_of(recipe), *(options or ())))
    assert row["runs"][0]["valid"], row["runs"][0]["reasons"]
    assert {*(labels or ())} <= {*row["unchecked"]}
    assert not {*(confirmed or ())} & {*row["unchecked"]}
    assert ("unchecked" in row["flags"]) is bool(row["unchecked"])


def test_a_product_confirms_neither_of_its_factors(tmp_path, run, collect):
    """A clock and a global rate agree for 1 GPU of 4 samples, and for 2 of 2."""
    log = logs.log("1n1g", 100.0).partition("\n")[2]
    for gpus, batch in ((1, 4), (2, 2)):
        path = write_file(tmp_path, f"pytorch/1n{gpus}g/bert_b{batch}_fp32_1.log", log)
        row = first_row(run(path, *WINDOW))
        assert row["median"] == pytest.approx(100.0, rel=1e-3)
        labels = row["unchecked"]
        assert {"gpus", "batch", "precision", "model"} <= {*labels}
        assert f": unchecked: {', '.join(labels)}" in collect(path, *WINDOW).stdout
        markdown = collect(path, *WINDOW, "--format", "markdown").stdout
        assert f": unchecked: {', '.join(labels)}" in markdown
    path = write_file(tmp_path, "pytorch/1n2g/bert_b4_fp32_1.log", log)
    assert read_reason(run(path, *WINDOW))[0] == "contradiction"


def test_a_log_of_another_model_than_stated_is_refused(tmp_path, run, build, collect_json):
    for stated in ("large", "BERT_LARGE", "bert-large-uncased"):
        for by, model in (("--model", "run"), ("the path", stated)):
            log = write_file(tmp_path, f"logs/1n1g/{model}_b8_fp32_1.log", sample("pytorch"))
            words = ("--model", stated) if by == "--model" else ()
            code, detail = read_reason(run(log, "--fw", "pytorch", *words))
            assert code == "config"
            assert f"the log says model = bert-tiny, {by} says bert-large" in detail
            assert f"the log says hidden_size = 128, {by} says 1024" in detail
    # Nor is it in a campaign, where all is checked.
    built = build("1n1g", repeats=2)
    for repeat, model in enumerate(("tiny", "large"), start=1):
        hidden, layers = SIZES[f"bert-{model}"]
        built.complete("1n1g", repeat, 90.0, model=model, hidden=hidden, layers=layers)
    row = first_row(collect_json(built.directory))
    assert [run["valid"] for run in row["runs"]] == [True, False]
    assert "hidden_size = 1024, expected 128" in row["runs"][1]["reasons"][0]["detail"]
    assert "unchecked" not in row["flags"]


def test_a_model_has_the_name_of_its_sizes():
    for model, (hidden, layers) in SIZES.items():
        assert model_name(Setting(hidden_size=hidden, layers=layers)) == model
        assert model_facts(model) == {"model": model, "hidden_size": hidden, "layers": layers}
    assert model_name(Setting(layers=24)) == "bert-large"
    unnamed = [Setting(layers=4), Setting(hidden_size=1536), Setting()]
    assert [model_name(setting) for setting in unnamed] == [""] * 3
    assert model_facts("my-bert") == model_facts("bert") == {}
    # They are those of the reference program, which would load PyTorch.
    program = (REPOSITORY / "hpcbert/workloads/bert_settings.py").read_text()
    models = re.findall(r'"(\w+)": \((\d+), (\d+), \d+\)', program)
    assert {f"bert-{name}": (int(hidden), int(layers)) for name, layers, hidden in models} == SIZES


@cases
def test_a_table_of_another_model_is_not_headed_as_berts(  # noqa: PLR0917
    recipe, lines, model, lost, tmp_path, run
):
    # Lines of the samples that state a model.
    sizes = r"(?:hidden_size|num_layers|num_hidden_layers)[: .=]+\d+|model_name_or_path="
    write_file(tmp_path, "logs/run_1.log", lines + drop_lines(recipe, sizes if lost else ""))
    document = run(tmp_path / "logs", *options_of(recipe))
    assert [table["model"] for table in document["data"]["tables"]] == [model]
    # Whoever says that it is BERT is contradicted.
    code, detail = read_reason(run(tmp_path / "logs", *options_of(recipe), "--model", "bert-base"))
    assert (code, "--model says" in detail) == ("config", True)


def test_models_of_two_points_are_both_in_the_heading(tmp_path, run):
    for batch, model in ((4, "base"), (8, "large")):
        logs.write_logs(tmp_path, {"1n1g": [10.0]}, batch=batch, model=model)
    pattern = ("--pattern", "*_b{batch_size}_{precision}_{repeat}.log", "--nodes", 1)
    document = run(tmp_path, *pattern, "--gpus-per-node", 1)
    assert {table["model"] for table in document["data"]["tables"]} == {"bert-base or bert-large"}


@cases
def test_a_precision_that_a_program_names_elsewhere_is_read(  # noqa: PLR0917
    recipe, lines, before, nodes, precision, tmp_path, run
):
    """Its program prints `16-bits training: True`, or parameters of 16 bits, all the same."""
    text = printed(recipe).decode(errors="replace").replace("torch.float32", "torch.bfloat16")
    for content in (lines + text, text.replace(before, before + lines, 1)):
        log = write_file(tmp_path, "logs/run_1.log", content)
        shape = ("--nodes", nodes or 1, "--gpus-per-node", 8)
        words = ("--fw", recipe, "--pattern", "*_{repeat}.log", *shape)
        (table,) = run(log, *words)["data"]["tables"]
        assert table["precision"] == precision
        code, detail = read_reason(run(log, *words, "--precision", "fp16"))
        assert code == "config"
        assert f"the log says precision = {precision}, --precision says fp16" in detail


def test_logs_of_two_sequence_lengths_are_two_points_each_compared_with_its_own(
    tmp_path, monkeypatch
):
    folder, saved = tmp_path / "logs", tmp_path / "saved.json"
    for length, rate in ((128, 10.0), (512, 3.0)):
        logs.write_logs(folder / f"{length}", {"1n1g": [rate] * 5}, sequence_length=length)
        # The last log is invalid and belongs to the length that it states.
        cut = logs.log("1n1g", rate, iters=120, last=50, sequence_length=length)
        write_file(folder, f"{length}/pytorch/1n1g/bert_b4_fp32_5.log", cut)
    tables = cli.run("collect", folder, "--json").data["tables"]
    points = {table["variant"]: table["rows"] for table in tables}
    medians = {variant: round(row["median"]) for variant, (row,) in points.items()}
    assert medians == {"": 10, "sequence_length=512": 3}
    assert all(row["repeats"] == {"ok": 4, "asked": 5} for (row,) in points.values())
    assert cli.run("collect", folder).stdout.count("sequence_length=512") == 1
    cli.run("collect", folder, "--format", "json", "--output", saved)
    (comparison,) = cli.run("compare", saved, folder, "--json").data["comparisons"]
    assert [round(point["ratio"], 6) for point in comparison["points"]] == [1.0, 1.0]
    words = ("--by", "sequence-length", "--unit", "tokens", "--json")
    (comparison,) = cli.run("compare", folder, *words).data["comparisons"]
    assert {comparison["base"], comparison["new"]} == {"128", "512"}
    ratio, expected = comparison["points"][0]["ratio"], 3 * 512 / (10 * 128)
    assert ratio == pytest.approx(expected if comparison["base"] == "128" else 1 / expected)
    # A published number is checked with logs of its length.
    source = write_file(tmp_path, "data/own.toml", read_constant(__file__, "RECORD"))
    monkeypatch.setattr(record, "DATA", source.parent)
    monkeypatch.setattr(record, "source_names", record.source_names.__wrapped__)
    monkeypatch.setattr(record, "load_source", record.load_source.__wrapped__)
    published = ("--against", "own", "--model", "bert-tiny")
    for length, exit_code in ((128, 0), (512, 2)):
        logs.write_logs(tmp_path, {"1n1g": [10.0]}, sequence_length=length)
        result = cli.run("record", "check", tmp_path / "pytorch", *published)
        assert result.returncode == exit_code
