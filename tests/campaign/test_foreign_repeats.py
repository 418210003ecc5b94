"""Which logs are repeats of one point: those that names number, of runs that followed each other."""

from __future__ import annotations

from pathlib import Path

from tests.kit import logs
from tests.kit.cases import cases
from tests.kit.cli import CollectJson, first_row, rows
from tests.kit.logs import write_file
from tests.kit.recipes import options_of, sample

RATES = (100.0, 130.0)
# Seconds between the beginnings of two runs, far more than each takes.
APART = 3600.0


def write_logs(root: Path, *names: str, apart: float = APART) -> Path:
    for number, (name, rate) in enumerate(zip(names, RATES, strict=True)):
        write_file(
            root, f"pytorch/{name}", logs.log("1n1g", rate, start=1763717655.5 + number * apart)
        )
    return root / "pytorch"


WINDOW = ("--skip", 2, "--iters", 12)
PATTERN = "*_{precision}_bs{batch_size}_gpu{gpus}*.log"
GIVEN = ("--nodes", 1, "--gpus-per-node", 1, "--batch-size", 4, "--precision", "fp32", *WINDOW)


@cases
def test_logs_that_fall_on_one_point_are_repeats_only_if_the_user_says_so(
    names: tuple[str, str], words: tuple[str, ...], tmp_path: Path, run: CollectJson
) -> None:
    words = (
        *words,
        "--gpus-per-node",
        "1",
        *(("--nodes", "1") if "gpu{" not in str(words) else ()),
    )
    words = (*words, *map(str, WINDOW))
    folder = write_logs(tmp_path, *names)
    document = run(folder, *words)
    assert document["exit_code"] == 2
    message = document["errors"][0]["message"]
    assert all(name in message for name in names), message
    assert "--as-repeats" in document["errors"][0]["hint"]
    (row,) = rows(run(folder, *words, "--as-repeats"))
    assert row["repeats"] == {"ok": 2, "asked": 2}
    assert [entry["repeat"] for entry in row["runs"]] == [1, 2]


@cases
def test_a_number_in_the_pattern_says_that_logs_are_repeats(
    names: tuple[str, str], pattern: str, tmp_path: Path, run: CollectJson
) -> None:
    folder = write_logs(tmp_path, *names)
    row = first_row(run(folder, *GIVEN, "--pattern", pattern))
    assert row["repeats"] == {"ok": 2, "asked": 2}


def test_an_invalid_log_beside_another_experiment_is_left_out(
    tmp_path: Path, run: CollectJson
) -> None:
    folder = write_logs(tmp_path, "x_fp32_bs4_gpu1.log", "x_fp32_bs4_gpu1_acc.log")
    write_file(folder, "x_fp32_bs4_gpu1_acc.log", logs.log("1n1g", 100, last=3))
    document = run(folder, "--pattern", PATTERN, "--gpus-per-node", 1, *WINDOW)
    assert document["exit_code"] == 4
    assert first_row(document)["repeats"] == {"ok": 1, "asked": 1}
    (log,) = document["data"]["left_out"]
    assert "nothing says that it is a repeat of" in log["why"]
    assert "x_fp32_bs4_gpu1.log" in log["why"]


def test_options_about_repeats_have_no_effect_on_campaigns(build: object, run: CollectJson) -> None:
    built = build("1n1g", repeats=1)  # type: ignore[operator]
    document = run(built.directory, "--as-repeats")
    assert "--as-repeats has no effect on campaigns" in document["errors"][0]["message"]


def test_two_real_logs_with_and_without_accumulation_are_not_pooled(
    shared: Path, run: CollectJson
) -> None:
    folder = shared / "logs/PaddlePaddle+Perf/v2.0-ee2e639/Bert/OtherReports/PyTorch/logs"
    start = "bert_base_lamb_pretraining.pyt_bert_pretraining_phase1"
    names = [f"{start}{suffix}_fp32_bs32_gpu32.log" for suffix in ("", "_without_gradacc")]
    words = ("--pattern", PATTERN, "--fw", "ngc-pytorch", "--rule", "footer", "--gpus-per-node", 8)
    document = run(*(folder / name for name in names), *words)
    assert document["exit_code"] == 2
    assert all(name in document["errors"][0]["message"] for name in names)


def write_shifted_logs(root: Path, *seconds: float, hosts: tuple[str, ...] = ()) -> Path:
    """Write logs of one point that begin so many seconds after the first; each takes about 0.5."""
    for number, delay in enumerate(seconds, start=1):
        start, host = 1763717655.5 + delay, hosts[number - 1] if hosts else ""
        head = f"{host}:71:99 [0] NCCL INFO Bootstrap : Using eth0\n" if host else ""
        log = head + logs.log("1n1g", 100.0 + number, start=start)
        write_file(root, f"pytorch/1n1g/bert_b4_fp32_{number}.log", log)
    return root / "pytorch"


@cases
def test_runs_that_were_measured_at_the_same_time_are_no_repeats(
    seconds: tuple[float, ...], hosts: tuple[str, ...], ok: int, tmp_path: Path, run: CollectJson
) -> None:
    row = first_row(run(write_shifted_logs(tmp_path, *seconds, hosts=hosts), *WINDOW))
    assert row["repeats"] == {"ok": ok, "asked": 3}
    refused = [entry["reasons"] for entry in row["runs"] if not entry["valid"]]
    assert all(reason["code"] == "shared-nodes" for reasons in refused for reason in reasons)
    assert all("bert_b4_fp32_" in reason["detail"] for reasons in refused for reason in reasons)


@cases
def test_logs_of_the_ranks_of_one_run_are_one_run(
    recipe: str, words: tuple[str, ...], tmp_path: Path, run: CollectJson
) -> None:
    for rank in range(3):
        log = sample(recipe) + f"rank {rank} ended\n".encode()
        write_file(tmp_path, f"logs/run_{rank}.log", f"rank {rank}\n".encode() + log)
    words = (*options_of(recipe), *words)
    row = first_row(run(tmp_path / "logs", *words))
    codes = [[reason["code"] for reason in run["reasons"]] for run in row["runs"]]
    assert (row["repeats"]["ok"], codes) == (0, [["shared-nodes"]] * 3)
