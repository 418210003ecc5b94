"""Repeats are repeats of one experiment, and each is a run of its own that nothing disturbed."""

import shutil

import pytest

from tests.kit import logs
from tests.kit.campaigns import node, write_nodes
from tests.kit.cases import cases, read_constant
from tests.kit.cli import codes, first_row, rows
from tests.kit.logs import write_file, write_jobs
from tests.kit.recipes import options_of, sample

WINDOW = ("--skip", 2, "--iters", 12)
BOTH = {"ok": 2, "asked": 2}


@pytest.mark.parametrize("runs", [2, 5])
def test_different_experiments_have_no_median(tmp_path, run, runs):
    def collect_row(*headers):
        """Return the row of logs of a framework that states facts above its steps."""
        shutil.rmtree(tmp_path / "logs", ignore_errors=True)
        for number, header in enumerate(headers, start=1):
            log = f"{header}\n{logs.log('1n1g', 100.0 + number)}"
            write_file(tmp_path, f"logs/1n1g/bert_b4_fp32_{number}.log", log)
        words = ("--fw", "stated", "--templates", tmp_path / "templates", *WINDOW)
        return first_row(run(tmp_path / "logs", *words))

    write_file(tmp_path, "templates/stated/recipe.toml", read_constant(__file__, "RECIPE"))
    facts = {"sequence_length": "128 512", "global_batch_size": "4 8", "accumulation": "1 4"}
    facts |= {"hidden_size": "768 1024", "model": "bert-base bert-large"}
    for fact, values in facts.items():
        usual, other = values.split()
        row = collect_row(*[f"{fact} = {usual}"] * (runs - 1), f"{fact} = {other}")
        assert (row["median"], codes(row)) == (None, [["incomparable"]] * runs)
        details = [entry["reasons"][0]["detail"] for entry in row["runs"]]
        # Layers and hidden size follow from the model.
        names = (f"{fact} differs", "accumulation differs", "hidden_size differs", "layers differs")
        assert all(any(name in detail for name in names) for detail in details)
    # What a log does not state differs from nothing; logs that differ at their end are no copies.
    lines = "x\n" * 10_000
    assert collect_row(f"{lines}sequence_length = 128", lines)["repeats"] == BOTH


def test_points_of_other_experiments_have_no_speedup_and_copies_no_number(tmp_path, run):
    logs.write_logs(tmp_path, {"1n1g": [101.0, 102.0], "1n2g": [202.0, 204.0]}, optimizer="adam")
    logs.write_logs(tmp_path, {"1n8g": [800.0, 801.0]}, day=1, optimizer="lamb")
    base, two, eight = rows(run(tmp_path))
    assert (base["speedup"], two["speedup"], eight["speedup"]) == (1, pytest.approx(2), None)
    assert {"mixed-environment", "no-baseline"} <= set(eight["flags"])
    (difference,) = eight["differences"]
    assert (difference["fact"], difference["scope"]) == ("optimizer", "points")
    # Copies of a log are one run, and under two points none.
    folder = tmp_path / "pytorch/1n1g"
    shutil.copy(folder / "bert_b4_fp32_1.log", folder / "bert_b4_fp32_3.log")
    row = first_row(run(folder))
    assert codes(row) == [[], [], ["duplicate"]]
    assert "bert_b4_fp32_1.log" in row["runs"][2]["reasons"][0]["detail"]
    pairs = {99.0: ("4g/bert_b4_fp32_1", "1g/bert_b16_fp32_1")}
    pairs[98.0] = ("1g/bert_b16_fp32_2", "1g/bert_b16_fp16_1")
    for rate, names in pairs.items():
        text = logs.log("1n4g", rate, iters=120).partition("\n")[2]
        for name in names:
            write_file(tmp_path, f"pytorch/1n{name}.log", text)
    four, *others = (table["rows"] for table in run(tmp_path)["data"]["tables"])
    reasons = [code for points in (four[2:3], *others) for row in points for code in codes(row)]
    assert reasons == [["duplicate"]] * 4


def build_on_nodes(build, *environments, shape="1n1g"):
    """Make a campaign of a repeat for each environment, each on a node of that."""
    built = build(shape, name=f"of-{shape}", repeats=len(environments), scheduler="local")
    for number, changes in enumerate(environments, start=1):
        built.complete(shape, number, 10.0 + number)
        write_nodes(built.directory, built.array(shape), number, node(**changes))
    return built.directory


@cases
def test_repeats_on_other_hardware_or_software_have_no_median(build, collect_json, changes, fact):
    """Another CPU matters where there is no GPU."""
    old, new = ({**changes["both"], **changes[key]} for key in ("old", "new"))
    row = first_row(collect_json(build_on_nodes(build, old, new, old)))
    if fact:
        assert (row["median"], codes(row)) == (None, [["incomparable"]] * 3)
        details = [run["reasons"][0]["detail"] for run in row["runs"]]
        assert all(f"{fact} differs between repeats" in detail for detail in details)
        assert all("(repeat 1, repeat 3); " in detail for detail in details)
    else:
        assert row["repeats"]["ok"] == 3


def test_repeats_on_one_mixture_of_nodes_count_and_a_copied_log_counts_nowhere(build, collect_json):
    gpus = [f"{n}, Tesla V100, 535.104.05, 81920, 400.00, 1410, 1593" for n in range(8)]
    built = build("2n2g", repeats=2, scheduler="local")
    for number in (1, 2):
        built.complete("2n2g", number, 10.0 + number)
        nodes = node("n1"), node("n2", host__gpus=gpus)
        write_nodes(built.directory, built.array("2n2g"), number, *nodes)
    row = first_row(collect_json(built.directory))
    assert (row["repeats"]["ok"], "mixed-environment" in row["flags"]) == (2, True)
    directory = build_on_nodes(build, {}, {}, {}, shape="1n4g")
    first, _, third = sorted(directory.rglob("*.log"))
    shutil.copy(third, first)
    assert codes(first_row(collect_json(directory))) == [["duplicate"], [], ["duplicate"]]


@cases
def test_logs_that_fall_on_one_point_are_repeats_only_if_the_user_says_so(
    names, pattern, tmp_path, run
):
    nodes = () if pattern and "gpu{" in pattern else ("--nodes", 1)
    words = (*(("--pattern", pattern) if pattern else ()), "--gpus-per-node", 1, *nodes, *WINDOW)
    folder = write_jobs(tmp_path / "pytorch", *names)
    document = run(folder, *words)
    assert document["exit_code"] == 2
    assert all(name in document["errors"][0]["message"] for name in names)
    assert "--as-repeats" in document["errors"][0]["hint"]
    row = first_row(run(folder, *words, "--as-repeats"))
    assert (row["repeats"], [entry["repeat"] for entry in row["runs"]]) == (BOTH, [1, 2])


def test_a_number_in_the_pattern_makes_repeats_and_no_invalid_log_is_pooled(tmp_path, run, build):
    point = ("--nodes", 1, "--gpus-per-node", 1, "--batch-size", 4, "--precision", "fp32", *WINDOW)
    for number, (names, pattern) in enumerate(read_constant(__file__, "NUMBERED")):
        folder = write_jobs(tmp_path / f"{number}/pytorch", *names)
        document = run(folder, *point, "--pattern", pattern)
        assert first_row(document)["repeats"] == BOTH, pattern
    folder = write_jobs(tmp_path / "pytorch", "x_fp32_bs4_gpu1.log", "x_fp32_bs4_gpu1_acc.log")
    write_file(folder, "x_fp32_bs4_gpu1_acc.log", logs.log("1n1g", 100, last=3))
    pattern = "*_{precision}_bs{batch_size}_gpu{gpus}*.log"
    document = run(folder, "--pattern", pattern, "--gpus-per-node", 1, *WINDOW)
    assert (document["exit_code"], first_row(document)["repeats"]) == (4, {"ok": 1, "asked": 1})
    (log,) = document["data"]["left_out"]
    assert "nothing says that it is a repeat of" in log["why"]
    assert "x_fp32_bs4_gpu1.log" in log["why"]
    document = run(build("1n1g", repeats=1).directory, "--as-repeats")
    assert "--as-repeats has no effect on campaigns" in document["errors"][0]["message"]


@cases
def test_runs_that_were_measured_at_the_same_time_are_no_repeats(seconds, hosts, ok, tmp_path, run):
    for number, delay in enumerate(seconds, start=1):
        head = f"{hosts[number - 1]}:71:99 [0] NCCL INFO Bootstrap : Using eth0\n" if hosts else ""
        log = head + logs.log("1n1g", 100.0 + number, start=logs.START + delay)
        write_file(tmp_path, f"pytorch/1n1g/bert_b4_fp32_{number}.log", log)
    row = first_row(run(tmp_path / "pytorch", *WINDOW))
    assert row["repeats"] == {"ok": ok, "asked": 3}
    reasons = [reason for entry in row["runs"] for reason in entry["reasons"]]
    assert all(reason["code"] == "shared-nodes" for reason in reasons)
    assert all("bert_b4_fp32_" in reason["detail"] for reason in reasons)


@cases
def test_logs_of_the_ranks_of_one_run_are_one_run(recipe, words, tmp_path, run):
    for rank in range(3):
        log = f"rank {rank}\n".encode() + sample(recipe) + f"rank {rank} ended\n".encode()
        write_file(tmp_path, f"logs/run_{rank}.log", log)
    row = first_row(run(tmp_path / "logs", *options_of(recipe), *words))
    assert codes(row) == [["shared-nodes"]] * 3
