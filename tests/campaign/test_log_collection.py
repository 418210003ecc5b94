"""Folders of logs as they lie in repositories; what is in no table is named, with why."""

import bz2
import gzip
import json
import re
import shutil
from pathlib import Path

import pytest

from tests.kit import logs
from tests.kit.cases import cases, read_constant
from tests.kit.cli import codes, first_row, only_run, rows
from tests.kit.logs import write_file, write_jobs
from tests.kit.paths import TEMPLATES
from tests.kit.recipes import printed
from tests.recipes.test_programs import print_log, write_results

WINDOW = ("--skip", 2, "--iters", 12)
BOTH = {"ok": 2, "asked": 2}


def list_left_out(document):
    """Return why each file was left out, by its name."""
    return {Path(log["path"]).name: log["why"] for log in document["data"]["left_out"]}


def list_rows(document):
    tables = document["data"]["tables"]
    pairs = ((table["variant"], row) for table in tables for row in table["rows"])
    return sorted((variant, row["shape"], row["repeats"]["ok"]) for variant, row in pairs)


def test_what_is_left_out_is_named_and_what_may_be_a_log_is_a_loss(tmp_path, collect, collect_json):
    pytorch = logs.write_logs(tmp_path, {"1n1g": [101.0, 102.0]}) / "pytorch"
    folder = pytorch / "1n1g"
    first, second = sorted(folder.iterdir())
    likely = ("bert_b4_fp32_run2.log", "bert_b4_fp32_3.LOG", "bert_b4_fp32_3.log.zst", "a-7.out")
    for name in likely:
        shutil.copy(first, folder / name)
    document = collect_json(pytorch)
    assert (document["status"], document["exit_code"]) == ("partial", 4)
    assert all("a name in DLPerf's form" in list_left_out(document)[name] for name in likely)
    assert first_row(document)["repeats"] == BOTH
    text = collect(pytorch, status=4)
    assert "101.50" in text.stdout
    why = "because it does not have a name in DLPerf's form"
    words = (why, "hpcbert left out what may be 4 logs", *likely)
    assert all(word in text.stderr for word in words)
    for name in likely:
        (folder / name).unlink()
    for number in range(12):
        write_file(pytorch, f"result/table{number}.json", "{}")
    write_file(pytorch, "README.md", "numbers")
    document = collect_json(pytorch)
    assert document["exit_code"] == 0
    assert set(list_left_out(document)) == {"README.md", *(f"table{n}.json" for n in range(12))}
    (line,) = (line for line in collect(pytorch).stderr.splitlines() if "left out" in line)
    assert "left out 13 files, each because it does not have the name of a log" in line
    assert "and 3 more" in line
    # A pattern leaves out what it does not fit; a file that is named is a loss.
    other = write_file(folder, "other.log", "x")
    pattern = ("--pattern", "bert_b{batch_size}_{precision}_{repeat}.log")
    for places, code in (((pytorch,), 0), ((first, second, other), 4)):
        document = collect_json(*places, *pattern)
        assert (document["exit_code"], first_row(document)["repeats"]) == (code, BOTH)
        assert "does not match the pattern" in list_left_out(document)["other.log"]


def test_copies_of_a_log_and_what_is_unknown_are_left_out_and_another_log_is_refused(
    tmp_path, collect, collect_json
):
    root = logs.write_logs(tmp_path / "logs", {"1n1g": [101.0, 102.0]})
    pytorch = root / "pytorch"
    plain = pytorch / "1n1g/bert_b4_fp32_1.log"
    packed, link = plain.with_suffix(".log.gz"), plain.with_name("bert_b4_fp32_3.log")
    plain.write_text("long before\n" * 2000 + plain.read_text())
    packed.write_bytes(gzip.compress(logs.log("1n1g", 300.0, iters=120).encode()))
    assert "are both repeat 1 of one point" in collect(pytorch, status=2).stderr
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    link.symlink_to(plain.name)
    document = collect_json(pytorch)
    assert first_row(document)["repeats"] == BOTH
    assert "which was read" in list_left_out(document)[packed.name]
    assert "is a link to" in list_left_out(document)[link.name]
    link.unlink()
    packed.with_suffix(".bz2").write_bytes(bz2.compress(plain.read_bytes()))
    plain.unlink()
    document = collect_json(pytorch)
    assert (document["exit_code"], first_row(document)["repeats"]) == (0, BOTH)
    assert list(list_left_out(document)) == [packed.name]
    # An unknown file or framework stops no table.
    write_file(root, "unknown/1n1g/bert_b4_fp32_1.log", "nobody knows\n" * 9)
    write_file(pytorch, "mystery/bert_b4_fp32_1.log", "nobody knows either\n" * 9)
    pattern = "{framework}/{nodes}n{gpus_per_node}g/bert_b{batch_size}_{precision}_{repeat}.log"
    whys = []
    for words in ((), ("--pattern", pattern)):
        document = collect_json(root, *words)
        assert (document["exit_code"], first_row(document)["repeats"]) == (4, BOTH)
        whys += sorted(log["why"] for log in document["data"]["left_out"])
    clauses = ("It has no number", "names no framework", "no framework 'unknown'")
    assert all(any(clause in why for why in whys) for clause in clauses)


def test_each_reason_is_printed_once(tmp_path, collect):
    for size in (4, 8):
        for suffix, last in (("", 12), ("_acc", 3)):
            log = logs.log("1n1g", 100.0, batch=size, last=last)
            write_file(tmp_path, f"x/a_fp32_bs{size}_gpu1{suffix}.log", log)
    result = collect(tmp_path / "x", "--gpus-per-node", 1, *WINDOW)
    (line,) = (line for line in result.stderr.splitlines() if "left out 2 files" in line)
    assert (result.returncode, "because it has no number" in line) == (4, True)
    assert line.count(f"{tmp_path}/x/a_fp32_bs") == 2
    logs.write_submission(tmp_path, [9, 10])
    write_file(tmp_path, "Org/results/sys/bert/notes.log", "hello\n")
    result = collect(tmp_path / "Org/results")
    assert (result.returncode, result.stderr.count("error:")) == (2, 2)
    assert all(words in result.stderr for words in ("record extract", "no line of a known one"))


def test_a_window_may_go_on_to_the_end(tmp_path, collect, collect_json):
    def write_runs(*, last=220, end=""):
        """Write two logs, which are faster from iteration 121 on."""
        for number in (1, 2):
            start, rate = logs.START + 10_000 * number, 100.0 + number
            slow = logs.log("1n1g", rate, iters=220, last=min(last, 120), start=start)
            start += 120 * 4 / rate - 120 * 4 / (rate + 100)
            fast = logs.log("1n1g", rate + 100, iters=220, last=last, start=start)
            text = "\n".join([slow.rstrip(), *fast.splitlines()[121:], end])
            write_file(tmp_path, f"pytorch/1n1g/bert_b4_fp32_{number}.log", text)

    write_runs()
    row = first_row(collect_json(tmp_path, "--iters", "end"))
    assert row["median"] == pytest.approx(135, rel=1e-3)
    assert row["window"] == {"skip": 20, "iters": "end", "counted": "iterations 21 to the end"}
    row = first_row(collect_json(tmp_path, "--skip", "120", "--iters", "end"))
    assert row["median"] == pytest.approx(201.5)
    assert first_row(collect_json(tmp_path))["median"] == pytest.approx(101.5)
    for value in ("End", "0", "1e3", "٣"):
        result = collect(tmp_path, "--iters", value)
        refusal = "neither a number above 0 nor `end`"
        assert (result.returncode, refusal in result.stderr) == (2, True)
    for last in (0, 1, 17):
        write_runs(last=last, end="x\n")
        document = collect_json(tmp_path, "--iters", "end")
        assert (document["exit_code"], first_row(document)["repeats"]["ok"]) == (4, 0)
        assert "1099511627776" not in json.dumps(document)


def test_a_log_that_ends_badly_or_contradicts_itself_gives_no_number(tmp_path, collect_json, run):
    lines = logs.log("1n1g", 100.0, last=60).splitlines(keepends=True)
    place, folder = "slurm-4711.out", tmp_path / "x"
    write_file(folder, place, "".join(lines))
    document = collect_json(folder)
    assert first_row(document)["repeats"]["ok"] == 1
    (window,) = (fact for fact in document["data"]["assumed"] if fact["name"] == "window")
    assert (window["value"], window["option"]) == ("iterations 21 to the end", "--skip and --iters")
    write_file(folder, place, "".join([*lines, "RuntimeError: NCCL communicator was aborted\n"]))
    assert first_row(collect_json(folder))["repeats"]["ok"] == 0
    write_file(folder, place, "".join([*lines[:41], *lines[40:]]))
    for words in ((), ("--iters", "end")):
        entry = only_run(collect_json(folder, *words))
        assert entry["throughput"] is None
        assert "printed twice" in entry["reasons"][0]["detail"]
    # Contradictory numbers: a footer, and rates that agree with the times after the window alone.
    log = (TEMPLATES / "ngc-tf1/sample.log").read_text()
    footer = re.sub(r"( -  throughput_train : )\S+", r"\g<1>541.0", log)
    *lines, end = logs.log("1n1g", 100.0, iters=1200).splitlines(keepends=True)
    lines[1:121] = [line.replace("s/s: 100.00", "s/s: 150.00") for line in lines[1:121]]
    for text, gpus in ((footer, 8), ("".join([*lines, end]), 1)):
        write_file(folder, place, text)
        entry = only_run(run(folder, "--nodes", 1, "--gpus-per-node", gpus))
        assert (entry["throughput"], entry["reasons"][0]["code"]) == (None, "contradiction")


def test_gpus_alone_give_the_shapes_of_one_folder(tmp_path, collect, collect_json):
    for gpus in (1, 4, 8, 32, 12):
        for number in (1, 2):
            start = logs.START + 10_000 * number
            log = logs.log(f"1n{gpus}g", 100.0 * gpus, iters=120, start=start)
            write_file(tmp_path, f"x/bs4_fp32_gpu{gpus}_run{number}.log", log)
    pattern = "bs{batch_size}_{precision}_gpu{gpus}_run{repeat}.log"
    words = (tmp_path / "x", "--fw", "pytorch", "--pattern", pattern)
    document = collect_json(*words)
    assert document["exit_code"] == 4
    assert "has nodes" in list_left_out(document)["bs4_fp32_gpu12_run1.log"]
    for path in (tmp_path / "x").glob("*gpu12*"):
        path.unlink()
    expected = rows(collect_json(*words, "--gpus-per-node", "8"))
    assert [row["shape"] for row in expected] == ["1n1g", "1n4g", "1n8g", "4n8g"]
    assert rows(document) == rows(collect_json(*words)) == expected
    text = collect(*words).stdout
    assert (
        "only their GPUs are known, and a node usually has 8; override it by --gpus-per-node"
        in text
    )
    for nodes in ("1 with 4", "1 with 8", "4 with 8"):
        assert f"nodes = {nodes} GPUs each" in text
    four = rows(collect_json(*words, "--gpus-per-node", "4"))
    assert [row["shape"] for row in four] == ["1n1g", "1n4g", "2n4g", "8n4g"]


@cases
def test_a_file_that_no_program_wrote_is_named_with_the_reason(tmp_path, collect_json, text, why):
    path = write_jobs(tmp_path / "x", "slurm-1.out") / "slurm-2.out"
    path.symlink_to("nothing") if text is None else path.write_bytes(text.encode("latin-1") * 20)
    (reason,) = list_left_out(collect_json(tmp_path / "x", *WINDOW)).values()
    assert why in reason


@cases
def test_logs_of_one_folder_are_repeats_and_folders_are_systems(
    tmp_path, collect_json, names, tables
):
    document = collect_json(write_jobs(tmp_path / "x", *names), *WINDOW)
    assert list_rows(document) == sorted(tables)
    (framework,) = (fact for fact in document["data"]["assumed"] if fact["name"] == "framework")
    assert (framework["value"], framework["option"]) == ("pytorch", "--fw")


def test_systems_and_experiments_get_tables_of_their_own_and_tasks_of_a_job_one(
    tmp_path, collect_json
):
    names = ("a/train.log", "a/train.log.1", "b/slurm-1.out", "b/slurm-2.out")
    document = collect_json(write_jobs(tmp_path / "x", *names), *WINDOW)
    assert list_rows(document) == [("system=b", "1n1g", 2)]
    assert set(list_left_out(document)) == {"train.log", "train.log.1"}
    assert document["exit_code"] == 4
    for number, name in enumerate(("A100/slurm-1.out", "V100/slurm-2.out")):
        shape, start = f"1n{1 + 3 * number}g", logs.START + number * 3600
        log = logs.log(shape, 100.0, start=start, sequence_length=512)
        write_file(tmp_path / "y", name, log)
    variant = "sequence_length=512,system="
    systems = [(f"{variant}A100", "1n1g", 1), (f"{variant}V100", "1n4g", 1)]
    assert list_rows(collect_json(tmp_path / "y", *WINDOW)) == systems
    # Of a job's tasks, one file is read.
    write_jobs(tmp_path / "z", "bert_71_0.out", "bert_72_0.out")
    write_jobs(tmp_path / "z", "bert_71_1.out", "bert_72_1.out")
    write_file(tmp_path / "z", "bert_71_2.out", "waiting for rank 0\n")
    document = collect_json(tmp_path / "z", *WINDOW)
    assert list_rows(document) == [("", "1n1g", 2)]
    left_out = list_left_out(document)
    assert set(left_out) == {"bert_71_1.out", "bert_71_2.out", "bert_72_1.out"}
    assert all("another task" in why for why in left_out.values())


def test_only_a_bert_has_the_recipes_sequence_length(tmp_path, collect_json):
    for model, length in (("rn50", None), ("bert", 128)):
        path = write_file(tmp_path, f"{model}/tf2/2n8g/{model}_b32_fp32_1.log", printed("tf2"))
        row = first_row(collect_json(path))
        tokens = row["metrics"]["tokens_per_second"]
        assert tokens == (length and pytest.approx(row["median"] * length))


def test_runs_of_a_numbered_layout_count_once_if_they_are_whole_and_for_their_own_system(
    tmp_path, run
):
    """Two of tinycorp's v4.1 logs differ only in the seed, behind the end of the run."""
    runs = [print_log("tinygrad-run", pace=(pace,)) for pace in (600.0, 601.0)]
    folder = write_results(tmp_path, *runs)
    other, systems = folder.parent.parent / "tinybox_green/bert", tmp_path / "tinycorp/systems"
    shutil.copytree(folder, other)
    shutil.copy(systems / "tinybox_red.json", systems / "tinybox_green.json")
    for path in other.iterdir():
        # Another day: the runs of both systems do not overlap.
        path.write_text(path.read_text().replace('"time_ms": 168', '"time_ms": 169'))
    cut = other / "result_1.txt"
    cut.write_text(cut.read_text().rpartition(":::MLLOG")[0])
    text = (folder / "result_0.txt").read_text()
    noise = "7: ERROR sharp_create_job failed: no manager\n" * 4000
    (folder / "result_0.txt").write_text(text + noise)
    (folder / "result_2.txt").write_text(f"{text}seed 2\n")
    document = run(folder.parent.parent)
    green, red = sorted(
        (table["rows"][0] for table in document["data"]["tables"]), key=lambda row: len(row["runs"])
    )
    assert (green["repeats"], red["repeats"]) == ({"ok": 1, "asked": 2}, {"ok": 2, "asked": 3})
    assert codes(red) == [[], [], ["duplicate"]]
    assert document["data"]["left_out"] == []
    # Of MLPerf's lines, those of the end must be whole.
    rank = r"device: cuda:0 n_gpu: 8, distributed training: True, 16-bits training: True\n"
    stated = [('^(?=.*"run_start")', rank)]
    good, torn = (print_log("mlperf-bert", stated, iterations=(0, ranks)) for ranks in (8, 2))
    endless = "".join(line for line in good.splitlines(keepends=True) if "run_stop" not in line)
    for damaged, reasons in ((torn, []), (endless, ["incomplete"])):
        for number, text in enumerate((good, damaged, good), start=1):
            log = text.replace("1695000", f"169{number}000").replace("7759.98", f"77{number}9.98")
            write_file(tmp_path / "SYSTEM/bert", f"result_{number}.txt", log)
        row = first_row(run(tmp_path / "SYSTEM/bert", "--set", "packing=2"))
        assert codes(row) == [[], reasons, []]
    assert "run_stop" in row["runs"][1]["reasons"][0]["detail"]


def test_an_explanation_has_facts_with_their_lines_all_rules_or_the_problem(
    tmp_path, collect, collect_json
):
    path = write_file(tmp_path, "slurm-4711.out", "noise\n" + logs.log("1n1g", 100.0, last=60))
    (log,) = collect_json("--explain", path)["data"]["logs"]
    facts = {fact["name"]: (fact["value"], fact["line"]) for fact in log["facts"]}
    assert (log["framework"], facts["precision"]) == ("pytorch", ("fp32", 2))
    rules = [outcome["rule"] for outcome in log["outcomes"]]
    assert len([outcome for outcome in log["outcomes"] if outcome["is_chosen"]]) == 1 < len(rules)
    text = collect("-v", path).stdout
    assert all(words in text for words in ("precision = fp32: line 2: hpcbert-config", *rules))
    system = '{"number_of_nodes": 2, "accelerators_per_node": 4}'
    description = write_file(tmp_path, "Org/systems/SYS.json", system)
    content = "\n".join(logs.log("2n4g", 100.0, last=60).splitlines()[1:])
    path = write_file(tmp_path, "Org/results/SYS/bert/result_0.txt", content)
    (log,) = collect_json("--explain", path)["data"]["logs"]
    facts = {fact["name"]: (fact["value"], fact["text"]) for fact in log["facts"]}
    assert facts["gpus_per_node"] == (4, f"of {description}")
    document = collect_json("--explain", write_file(tmp_path, "x.log", "nobody knows\n"))
    assert document["exit_code"] == 4
    assert "no line of a known" in document["data"]["logs"][0]["problem"]
    # Lines of two recipes name both.
    shutil.copytree(TEMPLATES / "pytorch", tmp_path / "templates/copy")
    write_jobs(tmp_path / "x", "slurm-1.out")
    document = collect_json(tmp_path / "x", "--templates", tmp_path / "templates")
    (error,) = document["errors"]
    assert (document["exit_code"], "copy and of pytorch" in error["message"]) == (2, True)
    assert "--fw copy or --fw pytorch" in error["hint"]


@cases
def test_files_of_results_are_read(tmp_path, collect_json, files, words, expected):
    for name, content in files.items():
        write_file(tmp_path, f"x/run/{name}", json.dumps(content, indent=2))
    document = collect_json(tmp_path / "x", *(words or ()))
    assert ("5.6" in str(document["data"]), document["exit_code"]) == (False, 0 if expected else 2)
    for table in document["data"]["tables"] if expected else ():
        (row,) = table["rows"]
        assert (table["framework"], row["shape"], row["median"]) == expected


def test_files_of_results_next_to_a_log_are_of_its_run(tmp_path, collect_json):
    write_jobs(tmp_path / "x", "run.log")
    for name, content in read_constant(__file__, "REPORT").items():
        write_file(tmp_path, f"x/{name}", json.dumps(content, indent=4))
    document = collect_json(tmp_path / "x", *WINDOW)
    assert [table["framework"] for table in document["data"]["tables"]] == ["pytorch"]
    assert "run.log" in list_left_out(document)["benchmark_report.json"]

    def write_trainer_file(path, scale=1.0):
        """Write what the Trainer does about 120 steps at 16 samples/s; in a scale of its time."""
        end = {"train_runtime": 63.0 * scale, "train_samples_per_second": 15.24 / scale}
        text = json.dumps(end, indent=4)
        if path.name != "all_results.json":
            form = "hf-trainer-state" if path.name == "trainer_state.json" else "hf-trainer-4"
            seconds = tuple(scale * (2.123 + n / 2) for n in range(20, 121, 20))
            changes = [("63.01", str(63 * scale)), ("15.24", str(15.24 / scale))]
            text = print_log(form, changes, values={"seconds": seconds})
        write_file(path.parent, path.name, text)

    setting = ("--set", "sequence_length=128", "--set", "accumulation=1", "--precision", "fp16")
    words = (*setting, "--nodes", 1, "--gpus-per-node", 2, "--batch-size", 4)
    for number, (names, read, rule) in enumerate(read_constant(__file__, "TRAINER")):
        folder = tmp_path / f"{number}"
        for name in names:
            write_trainer_file(folder / name)
        document = collect_json(folder, *words)
        run = only_run(document)
        assert (run["log"], run["valid"]) == (f"{folder}/{read}", True)
        assert document["data"]["tables"][0]["rule"] == rule
    # One that contradicts the log leaves no number.
    for name in ("trainer_state.json", "all_results.json"):
        folder = tmp_path / f"of-{name}"
        write_trainer_file(folder / "train.log")
        write_trainer_file(folder / name, scale=0.5)
        run = only_run(collect_json(folder, *words))
        assert (run["throughput"], run["reasons"][0]["code"]) == (None, "contradiction")
        assert name in run["reasons"][0]["detail"]


@pytest.mark.slow
def test_a_sample_is_its_own_recipes_or_names_what_it_lacks(tmp_path, collect_json):
    for path in TEMPLATES.glob("*/sample.log"):
        recipe = path.parent.name
        write_file(tmp_path, f"{recipe}/slurm-4711.out", printed(recipe))
        document = collect_json(tmp_path / recipe)
        tables = (document["data"] or {}).get("tables", ())
        frameworks = {table["framework"] for table in tables if table["rows"][0]["median"]}
        assert frameworks <= {recipe}
        assert frameworks or document["exit_code"] in {2, 4}, recipe
