"""What options, paths and lines say of a log must agree; what no line confirms is marked by name."""

import gzip
import json
import re

import pytest

from hpcbert.logs.setting import SIZES, Setting, model_facts, model_name
from hpcbert.results import record
from tests.kit import cli, logs
from tests.kit.cases import cases, read_constant
from tests.kit.cli import Document, first_row, only_run
from tests.kit.logs import write_file
from tests.kit.paths import REPOSITORY
from tests.kit.recipes import options_of, printed, sample

TF1 = "1n8g/bert_b64_fp16_1.log"
PATTERN = "{nodes}n{gpus_per_node}g/bert_b{batch_size}_{precision}_{repeat}.log"
PERF = "logs/PaddlePaddle+Perf/v2.0-ee2e639/Bert"


def read_reason(document: Document) -> tuple[str, str]:
    """Return code and detail of the only reason against the only run."""
    (entry,) = only_run(document)["reasons"]
    return entry["code"], entry["detail"]


def drop_lines(recipe: str, lost: str) -> str:
    """Return a recipe's sample without some lines."""
    lines = printed(recipe).decode(errors="replace").splitlines(keepends=True)
    return "".join(line for line in lines if not (lost and re.search(lost, line)))


@cases
def test_an_option_never_relabels_a_path(tmp_path, run, pattern, words, message):
    write_file(tmp_path, f"ngc-tf1/{TF1}", sample("ngc-tf1"))
    place = (tmp_path, "--pattern", pattern) if pattern else (tmp_path / "ngc-tf1",)
    document = run(*place, *words)
    assert document["exit_code"] == 2
    assert message in document["errors"][0]["message"]
    assert not (document.get("data") or {}).get("tables")


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


@pytest.mark.parametrize("folder", ["fp32", "logs-fp32", "bz32", "fp16_ngc_bert_b96"])
def test_a_folder_that_says_otherwise_is_named(tmp_path, run, folder):
    path = write_file(tmp_path, f"ngc-tf1/{folder}/{TF1}", sample("ngc-tf1"))
    document = run(tmp_path / "ngc-tf1")
    message = document["errors"][0]["message"]
    assert ("The path says" in message, message.count(" = ")) == (True, 2)
    assert only_run(run(path, "--fw", "ngc-tf1", "--pattern", PATTERN))["valid"]


@pytest.mark.slow
@cases
def test_a_log_that_says_otherwise_is_refused_by_both_values(  # noqa: PLR0917
    tmp_path, run, recipe, name, words, message
):
    path = write_file(tmp_path, f"logs/{name}", sample(recipe))
    code, detail = read_reason(run(path, *words))
    assert (code, message in detail) == ("config", True), detail


def test_a_setting_of_logs_is_a_known_name_and_a_whole_number(tmp_path, run):
    path = write_file(tmp_path, TF1, sample("ngc-tf1"))
    for word in ("packing", "packing=0", "packing=2.5", "nodes=2", "=2"):
        document = run(path, "--fw", "ngc-tf1", "--set", word)
        assert (document["exit_code"], "--set" in document["errors"][0]["message"]) == (2, True)
    twice = run(path, "--fw", "ngc-tf1", "--set", "packing=2", "--set", "packing=2")
    assert "twice" in twice["errors"][0]["message"]


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
    folder = tmp_path / "x"
    write_file(folder, name, (shared / PERF / log).read_bytes())
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
    log, window = logs.log("1n1g", 100.0).partition("\n")[2], ("--skip", 2, "--iters", 12)
    for gpus, batch in ((1, 4), (2, 2)):
        path = write_file(tmp_path, f"pytorch/1n{gpus}g/bert_b{batch}_fp32_1.log", log)
        row = first_row(run(path, *window))
        assert row["median"] == pytest.approx(100.0, rel=1e-3)
        labels = row["unchecked"]
        assert {"gpus", "batch", "precision", "model"} <= {*labels}
        assert f"! unchecked: {', '.join(labels)}" in collect(path, *window).stdout
        markdown = collect(path, *window, "--format", "markdown").stdout
        assert f": unchecked: {', '.join(labels)}" in markdown
    path = write_file(tmp_path, "pytorch/1n2g/bert_b4_fp32_1.log", log)
    assert read_reason(run(path, *window))[0] == "contradiction"


# --- Models and precisions ------------------------------------------------------------------------

# Lines of the samples that state a model.
OWN_SIZES = r"(?:hidden_size|num_layers|num_hidden_layers)[: .=]+\d+|model_name_or_path="


@pytest.mark.parametrize("stated", ["large", "BERT_LARGE", "bert-large-uncased"])
def test_a_log_of_another_model_than_stated_is_refused(stated, tmp_path, run):
    for by, model in (("--model", "run"), ("the path", stated)):
        log = write_file(tmp_path, f"logs/1n1g/{model}_b8_fp32_1.log", sample("pytorch"))
        words = ("--model", stated) if by == "--model" else ()
        code, detail = read_reason(run(log, "--fw", "pytorch", *words))
        assert code == "config"
        assert f"the log says model = bert-tiny, {by} says bert-large" in detail
        assert f"the log says hidden_size = 128, {by} says 1024" in detail


def test_a_campaign_counts_no_log_of_another_model_and_checks_all(build, collect_json):
    built = build("1n1g", repeats=2)
    for repeat, model in enumerate(("tiny", "large"), start=1):
        hidden, layers = SIZES[f"bert-{model}"]
        stated = json.dumps({"model": model, "hidden": hidden, "layers": layers})
        built.complete("1n1g", repeat, 90.0 + repeat)
        text = built.text("1n1g", 90.0 + repeat)
        built.log("1n1g", repeat, f"hpcbert-config {stated}\n{text}")
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
    write_file(tmp_path, "logs/run_1.log", lines + drop_lines(recipe, OWN_SIZES if lost else ""))
    document = run(tmp_path / "logs", *options_of(recipe))
    assert [table["model"] for table in document["data"]["tables"]] == [model]
    # Whoever says that it is BERT is contradicted.
    code, detail = read_reason(run(tmp_path / "logs", *options_of(recipe), "--model", "bert-base"))
    assert (code, "--model says" in detail) == ("config", True)


def test_models_of_two_points_are_both_in_the_heading(tmp_path, run):
    base = printed("megatron").decode()
    sizes = {
        "micro_batch_size ": (32, 16),
        "global_batch_size ": (256, 128),
        "batch size:": (256, 128),
    }
    halved = base
    for name, (old, new) in sizes.items():
        halved = re.sub(rf"({name}[ .]*){old}\b", rf"\g<1>{new}", halved)
    write_file(tmp_path, "logs/run_1.log", base)
    write_file(tmp_path, "logs/run_2.log", f"building GPT2 model ...\n{halved}")
    shape = ("--nodes", "1", "--gpus-per-node", "8", "--precision", "fp32")
    document = run(tmp_path / "logs", "--fw", "megatron", "--pattern", "run_*.log", *shape)
    assert {table["model"] for table in document["data"]["tables"]} == {"GPT2 or bert-base"}


@pytest.mark.slow
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


def test_logs_of_two_sequence_lengths_are_two_points_each_compared_with_its_own(tmp_path):
    for repeat in range(1, 6):
        for length, rate in ((128, 10.0), (512, 3.0)):
            # The last log is invalid and belongs to the length that it states.
            last, start = 50 if repeat == 5 else 120, 1763717655.5 + 10_000 * repeat
            text = logs.log("1n1g", rate, iters=120, last=last, start=start)
            text = text.replace(
                'hpcbert-config {"', f'hpcbert-config {{"sequence_length": {length}, "'
            )
            write_file(tmp_path / "logs", f"{length}/pytorch/1n1g/bert_b4_fp32_{repeat}.log", text)
    folder, saved = tmp_path / "logs", tmp_path / "saved.json"
    tables = {
        table["variant"]: table["rows"]
        for table in cli.run("collect", folder, "--json").data["tables"]
    }
    assert {variant: round(row["median"]) for variant, (row,) in tables.items()} == {
        "": 10,
        "sequence_length=512": 3,
    }
    assert all(row["repeats"] == {"ok": 4, "asked": 5} for (row,) in tables.values())
    assert cli.run("collect", folder).stdout.count("sequence_length=512") == 1
    cli.run("collect", folder, "--format", "json", "--output", saved)
    (comparison,) = cli.run("compare", saved, folder, "--json").data["comparisons"]
    assert [round(point["ratio"], 6) for point in comparison["points"]] == [1.0, 1.0]
    words = ("--by", "sequence-length", "--unit", "tokens", "--json")
    (comparison,) = cli.run("compare", folder, *words).data["comparisons"]
    assert {comparison["base"], comparison["new"]} == {"128", "512"}
    ratio, expected = comparison["points"][0]["ratio"], 3 * 512 / (10 * 128)
    assert ratio == pytest.approx(expected if comparison["base"] == "128" else 1 / expected)


@pytest.mark.parametrize(("length", "exit_code"), [(128, 0), (512, 2)])
def test_a_published_number_is_checked_with_logs_of_its_length(
    tmp_path, monkeypatch, length, exit_code
):
    text = logs.log("1n1g", 10.0, iters=120)
    text = text.replace('hpcbert-config {"', f'hpcbert-config {{"sequence_length": {length}, "')
    write_file(tmp_path, "pytorch/1n1g/bert_b4_fp32_1.log", text)
    source = write_file(tmp_path, "data/own.toml", read_constant(__file__, "RECORD"))
    monkeypatch.setattr(record, "DATA", source.parent)
    monkeypatch.setattr(record, "source_names", record.source_names.__wrapped__)
    monkeypatch.setattr(record, "load_source", record.load_source.__wrapped__)
    words = ("--against", "own", "--model", "bert-tiny")
    result = cli.run("record", "check", tmp_path / "pytorch", *words)
    assert result.returncode == exit_code
