"""Folders as they lie in repositories are read without options."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.kit import logs
from tests.kit.cases import cases, read_constant
from tests.kit.cli import Collect, CollectJson, first_row
from tests.kit.logs import write_file
from tests.kit.recipes import printed
from tests.recipes.test_hf_trainer import make_history, print_history
from tests.recipes.test_packing import format_log

Document = dict[str, Any]
NVIDIA_V1 = "logs/mlcommons+training_results_v1.0/50619b5/NVIDIA/results"
START = 1763717655.5
TEMPLATES = Path(__file__).parents[2] / "templates"


def list_tables(document: Document) -> list[tuple[str, list[str], list[int]]]:
    """Return variant, shapes and valid repeats of each table."""
    return [
        (
            table["variant"],
            [row["shape"] for row in table["rows"]],
            [row["repeats"]["ok"] for row in table["rows"]],
        )
        for table in document["data"]["tables"]
    ]


def list_assumed(document: Document) -> dict[str, tuple[str, str]]:
    return {
        entry["name"]: (entry["value"], entry["option"]) for entry in document["data"]["assumed"]
    }


def write_jobs(root: Path, *names: str) -> Path:
    """Write logs of one point that ran one after the other."""
    for number, name in enumerate(names):
        write_file(root, name, logs.log("1n1g", 100.0 + number, start=START + number * 3600))
    return root


@cases
def test_logs_of_one_folder_are_repeats_and_folders_are_systems(
    tmp_path: Path,
    collect_json: CollectJson,
    names: tuple[str, ...],
    tables: list[list[Any]],
) -> None:
    document = collect_json(write_jobs(tmp_path / "x", *names), "--skip", 2, "--iters", 12)
    assert sorted([*table] for table in list_tables(document)) == sorted(tables)
    assert list_assumed(document)["framework"] == ("pytorch", "--fw")


def test_logs_that_may_be_of_two_experiments_leave_the_others_their_table(
    tmp_path: Path, collect_json: CollectJson
) -> None:
    names = ("a/train.log", "a/train.log.1", "b/slurm-1.out", "b/slurm-2.out")
    document = collect_json(write_jobs(tmp_path / "x", *names), "--skip", 2, "--iters", 12)
    assert list_tables(document) == [("system=b", ["1n1g"], [2])]
    left_out = [Path(entry["path"]).name for entry in document["data"]["left_out"]]
    assert (left_out, document["exit_code"]) == (["train.log", "train.log.1"], 4)


def test_a_system_keeps_the_sequence_length(tmp_path: Path, collect_json: CollectJson) -> None:
    for number, name in enumerate(("A100/slurm-1.out", "V100/slurm-2.out")):
        log = logs.log("1n1g", 100.0, start=START + number * 3600)
        write_file(tmp_path / "x", name, log.replace('{"', '{"sequence_length": 512, "', 1))
    document = collect_json(tmp_path / "x", "--skip", 2, "--iters", 12)
    variants = [variant for variant, _, _ in list_tables(document)]
    assert variants == ["sequence_length=512,system=A100", "sequence_length=512,system=V100"]


def test_of_a_jobs_tasks_one_file_is_read(tmp_path: Path, collect_json: CollectJson) -> None:
    write_jobs(tmp_path / "x", "bert_71_0.out", "bert_72_0.out")
    for job, number in ((71, 0), (72, 1)):
        log = logs.log("1n1g", 100.0 + number, start=START + number * 3600)
        write_file(tmp_path / "x", f"bert_{job}_1.out", log)
    write_file(tmp_path / "x", "bert_71_2.out", "waiting for rank 0\n")
    document = collect_json(tmp_path / "x", "--skip", 2, "--iters", 12)
    assert list_tables(document) == [("", ["1n1g"], [2])]
    left_out = {Path(entry["path"]).name: entry for entry in document["data"]["left_out"]}
    assert set(left_out) == {"bert_71_1.out", "bert_71_2.out", "bert_72_1.out"}
    assert all("another task" in entry["why"] for entry in left_out.values())


@pytest.mark.slow
def test_systems_of_mlperf_get_tables_of_their_own(shared: Path, collect_json: CollectJson) -> None:
    document = collect_json(shared / NVIDIA_V1)
    variants = {table["variant"].split(",")[-1] for table in document["data"]["tables"]}
    assert len(variants) == len(document["data"]["tables"]) > 1
    assert {table["rule"] for table in document["data"]["tables"]} == {"run-clock"}


@pytest.mark.parametrize("last_line", ["", "RuntimeError: NCCL communicator was aborted"])
def test_a_window_to_the_end_is_assumed_unless_the_log_ends_with_an_error(
    tmp_path: Path, collect_json: CollectJson, last_line: str
) -> None:
    log = logs.log("1n1g", 100.0, last=60)
    write_file(tmp_path / "x", "slurm-4711.out", f"{log}{last_line}\n")
    document = collect_json(tmp_path / "x")
    assert first_row(document)["repeats"]["ok"] == (0 if last_line else 1)
    if not last_line:
        assert list_assumed(document)["window"] == (
            "iterations 21 to the end",
            "--skip and --iters",
        )


@pytest.mark.parametrize("words", [(), ("--iters", "end")], ids=["assumed", "requested"])
def test_a_window_to_the_end_does_not_end_where_a_record_is_damaged(
    tmp_path: Path, collect_json: CollectJson, words: tuple[str, ...]
) -> None:
    lines = logs.log("1n1g", 100.0, last=60).splitlines(keepends=True)
    write_file(tmp_path / "x", "slurm-4711.out", "".join([*lines[:41], *lines[40:]]))
    row = first_row(collect_json(tmp_path / "x", *words))
    assert row["median"] is None
    assert "printed twice" in row["runs"][0]["reasons"][0]["detail"]


def _contradict_footer() -> str:
    log = (TEMPLATES / "ngc-tf1/sample.log").read_text()
    return re.sub(r"( -  throughput_train : )\S+", r"\g<1>541.0", log)


def _contradict_beginning() -> str:
    """Return a log whose rates and times agree only after the protocol's window."""
    *lines, end = logs.log("1n1g", 100.0, iters=1200).splitlines(keepends=True)
    lines[1:121] = [line.replace("s/s: 100.00", "s/s: 150.00") for line in lines[1:121]]
    return "".join([*lines, end])


@pytest.mark.parametrize(
    ("log", "words"),
    [
        pytest.param(
            _contradict_footer(), ("--nodes", 1, "--gpus-per-node", 8), id="no other rule"
        ),
        pytest.param(_contradict_beginning(), (), id="no other window"),
    ],
)
def test_contradictory_numbers_give_none(
    tmp_path: Path, run: CollectJson, log: str, words: tuple[object, ...]
) -> None:
    write_file(tmp_path / "x", "slurm-4711.out", log)
    document = run(tmp_path / "x", *words)
    assert first_row(document)["median"] is None
    assert first_row(document)["runs"][0]["reasons"][0]["code"] == "contradiction"


def test_an_explanation_has_facts_with_their_lines_and_all_rules(
    tmp_path: Path, collect: Collect, collect_json: CollectJson
) -> None:
    path = write_file(tmp_path, "slurm-4711.out", "noise\n" + logs.log("1n1g", 100.0, last=60))
    document = collect_json("--explain", path)
    (log,) = document["data"]["logs"]
    facts = {fact["name"]: (fact["value"], fact["line"]) for fact in log["facts"]}
    assert (log["framework"], facts["precision"]) == ("pytorch", ("fp32", 2))
    outcomes = {outcome["rule"]: outcome for outcome in log["outcomes"]}
    assert len(outcomes) > 1
    assert [name for name, outcome in outcomes.items() if outcome["is_chosen"]]
    text = collect("-v", path).stdout
    assert "precision = fp32: line 2: hpcbert-config" in text
    assert all(name in text for name in outcomes)


def test_an_explanation_names_the_description_of_the_system(
    tmp_path: Path, collect_json: CollectJson
) -> None:
    system = '{"number_of_nodes": 2, "accelerators_per_node": 4}'
    description = write_file(tmp_path, "Org/systems/SYS.json", system)
    log = "\n".join(logs.log("2n4g", 100.0, last=60).splitlines()[1:])
    path = write_file(tmp_path, "Org/results/SYS/bert/result_0.txt", log)
    (explanation,) = collect_json("--explain", path)["data"]["logs"]
    facts = {fact["name"]: (fact["value"], fact["text"]) for fact in explanation["facts"]}
    assert facts["gpus_per_node"] == (4, f"of {description}")


def test_an_explanation_says_why_a_log_has_no_number(
    tmp_path: Path, collect_json: CollectJson
) -> None:
    document = collect_json("--explain", write_file(tmp_path, "x.log", "nobody knows\n"))
    assert document["exit_code"] == 4
    assert "no line of a known" in document["data"]["logs"][0]["problem"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"", "is empty", id="empty"),
        pytest.param(bytes(range(256)) * 20, "is not a text file", id="binary"),
        pytest.param(None, "can't be read: No such file", id="a link to nothing"),
    ],
)
def test_a_file_that_no_program_wrote_is_named_with_the_reason(
    tmp_path: Path, collect_json: CollectJson, content: bytes | None, words: str
) -> None:
    write_file(tmp_path, "x/slurm-1.out", logs.log("1n1g", 100.0))
    path = tmp_path / "x/slurm-2.out"
    path.symlink_to("nothing") if content is None else path.write_bytes(content)
    (left_out,) = collect_json(tmp_path / "x", "--skip", 2, "--iters", 12)["data"]["left_out"]
    assert words in left_out["why"]


@pytest.mark.parametrize(("model", "length"), [("rn50", None), ("bert", 128)])
def test_only_a_bert_has_the_recipes_sequence_length(
    tmp_path: Path, collect_json: CollectJson, model: str, length: int | None
) -> None:
    name = f"x/tf2/2n8g/{model}_b32_fp32_1.log"
    write_file(tmp_path, name, printed("tf2").decode())
    row = first_row(collect_json(tmp_path / "x"))
    tokens = row["metrics"]["tokens_per_second"]
    assert tokens == (length and pytest.approx(row["median"] * length))


def test_speedups_do_not_compare_folders(tmp_path: Path, collect_json: CollectJson) -> None:
    write_file(tmp_path, "x/A100/slurm-1.out", logs.log("1n1g", 100.0))
    write_file(tmp_path, "x/V100/slurm-2.out", logs.log("1n4g", 390.0, start=START + 3600))
    document = collect_json(tmp_path / "x", "--skip", 2, "--iters", 12)
    assert list_tables(document) == [
        ("system=A100", ["1n1g"], [1]),
        ("system=V100", ["1n4g"], [1]),
    ]


def _report(rate: float, count: int) -> dict[str, Any]:
    return {
        "latency": {"unit": "s", "values": [0.5] * count},
        "throughput": {"unit": "samples/s", "value": rate},
    }


TRAINING_REPORT = {
    "overall": _report(60.0, 12),
    "warmup": _report(9.0, 2),
    "train": _report(64.25, 9),
}
CONFIGURATION = read_constant(__file__, "CONFIGURATION")
METHOD = "official.benchmark.bert_pretrain_benchmark.X.benchmark_perf_1x8_gpu_fp16_seq128_200_steps"
SUMMARY = {
    "benchmark_result": {
        "name": METHOD,
        "metrics": [{"name": "exp_per_second", "value": 344.07}],
    },
    "benchmark_info": {"harness_name": "perfzero"},
}


@pytest.mark.parametrize(
    ("files", "words", "expected"),
    [
        pytest.param(
            {"benchmark_report.json": TRAINING_REPORT, "benchmark_config.json": CONFIGURATION},
            (),
            ("hf-trainer", "1n1g", 64.25),
            id="optimum-benchmark",
        ),
        pytest.param(
            {"perfzero_summary.json": SUMMARY},
            ("--batch-size", 32),
            ("perfzero", "1n8g", 344.07),
            id="PerfZero",
        ),
    ],
)
def test_files_of_results_are_read(
    tmp_path: Path,
    collect_json: CollectJson,
    files: dict[str, Any],
    words: tuple[object, ...],
    expected: tuple[str, str, float],
) -> None:
    for name, content in files.items():
        write_file(tmp_path, f"x/run/{name}", json.dumps(content, indent=2))
    document = collect_json(tmp_path / "x", *words)
    (table,) = document["data"]["tables"]
    (row,) = table["rows"]
    assert (table["framework"], row["shape"], row["median"]) == expected


def test_an_inference_report_is_refused(tmp_path: Path, collect_json: CollectJson) -> None:
    report = {"load": {}, "forward": _report(5.6, 10)}
    write_file(tmp_path, "x/benchmark_report.json", json.dumps(report, indent=4))
    document = collect_json(tmp_path / "x")
    assert document["exit_code"] != 0
    assert "5.6" not in json.dumps(document["data"])


def test_a_file_of_results_beside_a_valid_log_is_its_run(
    tmp_path: Path, collect_json: CollectJson
) -> None:
    write_file(tmp_path, "x/run.log", logs.log("1n1g", 100.0))
    write_file(tmp_path, "x/benchmark_report.json", json.dumps(TRAINING_REPORT, indent=4))
    write_file(tmp_path, "x/benchmark_config.json", json.dumps(CONFIGURATION, indent=4))
    document = collect_json(tmp_path / "x", "--skip", 2, "--iters", 12)
    assert [table["framework"] for table in document["data"]["tables"]] == ["pytorch"]
    why = {Path(entry["path"]).name: entry["why"] for entry in document["data"]["left_out"]}
    assert "run.log" in why["benchmark_report.json"]


TRAINER = (
    *("--nodes", 1, "--gpus-per-node", 2, "--batch-size", 4, "--precision", "fp16"),
    *("--set", "sequence_length=128", "--set", "accumulation=1"),
)
STATE, RESULTS = "trainer_state.json", "all_results.json"


def write_trainer_file(folder: Path, name: str, scale: float = 1.0) -> None:
    """Write what the Trainer does about 120 steps at 16 samples/s; in a scale of its time."""
    end = {"train_runtime": 63.0 * scale, "train_samples_per_second": 15.24 / scale}
    text = (
        json.dumps(end, indent=4)
        if name == RESULTS
        else print_history([*make_history(scale=scale), end], name)
    )
    write_file(folder, name, text)


@cases
def test_a_trainers_files_are_one_run(
    tmp_path: Path, collect_json: CollectJson, names: tuple[str, ...], read: str, rule: str
) -> None:
    for name in names:
        path = tmp_path / "x" / name
        write_trainer_file(path.parent, path.name)
    document = collect_json(tmp_path / "x", *TRAINER)
    (run,) = first_row(document)["runs"]
    assert (run["log"], run["valid"]) == (f"{tmp_path}/x/{read}", True)
    assert document["data"]["tables"][0]["rule"] == rule


@pytest.mark.parametrize("name", [STATE, RESULTS])
def test_a_file_that_contradicts_the_log_beside_it_leaves_no_number(
    tmp_path: Path, collect_json: CollectJson, name: str
) -> None:
    write_trainer_file(tmp_path / "x", "train.log")
    write_trainer_file(tmp_path / "x", name, scale=0.5)
    (run,) = first_row(collect_json(tmp_path / "x", *TRAINER))["runs"]
    assert (run["throughput"], run["reasons"][0]["code"]) == (None, "contradiction")
    assert name in run["reasons"][0]["detail"]


RANK = "device: cuda:0 n_gpu: 8, distributed training: True, 16-bits training: True"


def write_results(folder: Path, *damages: str) -> Path:
    """Write a log of MLPerf's form for each damage: lost start lines, a lost end, or none."""
    for number, damage in enumerate(damages, start=1):
        text = format_log(ranks=2 if damage == "start" else 8, extra=RANK).decode()
        text = text.replace("1695000", f"169{number}000").replace("7759.98", f"77{number}9.98")
        lines = [line for line in text.splitlines() if damage != "end" or '"run_stop"' not in line]
        write_file(folder, f"result_{number}.txt", "\n".join([*lines, ""]))
    return folder


def test_damaged_start_lines_contradict_nothing(tmp_path: Path, collect_json: CollectJson) -> None:
    folder = write_results(tmp_path / "SYSTEM/bert", "", "start", "")
    row = first_row(collect_json(folder, "--set", "packing=2"))
    assert row["repeats"] == {"ok": 3, "asked": 3}
    assert [Path(run["log"]).name for run in row["runs"]] == [
        "result_1.txt",
        "result_2.txt",
        "result_3.txt",
    ]


def test_a_run_without_its_end_is_incomplete(tmp_path: Path, collect_json: CollectJson) -> None:
    folder = write_results(tmp_path / "SYSTEM/bert", "", "end", "")
    (bad,) = (
        run
        for run in first_row(collect_json(folder, "--set", "packing=2"))["runs"]
        if not run["valid"]
    )
    assert (bad["repeat"], bad["reasons"][0]["code"]) == (2, "incomplete")
    assert "run_stop" in bad["reasons"][0]["detail"]


def test_lines_of_two_recipes_name_both(tmp_path: Path, collect_json: CollectJson) -> None:
    shutil.copytree(TEMPLATES / "pytorch", tmp_path / "templates/copy")
    write_file(tmp_path, "x/slurm-1.out", logs.log("1n1g", 100.0))
    document = collect_json(tmp_path / "x", "--templates", tmp_path / "templates")
    assert document["exit_code"] == 2
    (error,) = document["errors"]
    assert "copy and of pytorch" in error["message"]
    assert "--fw copy or --fw pytorch" in error["hint"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe", sorted(path.parent.name for path in TEMPLATES.glob("*/sample.log"))
)
def test_a_sample_is_its_own_recipes_or_names_what_it_lacks(
    recipe: str, tmp_path: Path, collect_json: CollectJson
) -> None:
    folder = tmp_path / "x"
    folder.mkdir()
    (folder / "slurm-4711.out").write_bytes(printed(recipe))
    document = collect_json(folder)
    tables = (document["data"] or {}).get("tables", ())
    frameworks = {table["framework"] for table in tables if table["rows"][0]["median"]}
    assert frameworks <= {recipe}
    assert frameworks or document["exit_code"] in {2, 4}
