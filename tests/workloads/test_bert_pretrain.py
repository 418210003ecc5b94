"""The reference program: its options, its log, its end."""

import ast
import json
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from hpcbert.workloads import bert_data, bert_model, bert_settings
from hpcbert.workloads import bert_pretrain as workload
from tests.kit.cases import cases, read_constant
from tests.kit.cli import run
from tests.kit.recipes import load
from tests.kit.waiting import CEILING, until
from tests.workloads.conftest import SMALL

SOURCE = Path(workload.__file__)


def test_a_copy_of_the_recipes_files_needs_only_torch_prints_at_once_and_leaves_nothing(tmp_path):
    files, folder, log = load("pytorch").files, tmp_path / "copy", tmp_path / "log"
    folder.mkdir()
    siblings = {f"hpcbert.workloads.{Path(name).stem}" for name in files}
    for name in files:
        tree = ast.parse(SOURCE.with_name(name).read_text("utf-8"), feature_version=(3, 8))
        names = {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        for node in ast.walk(tree):
            names |= {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
        roots = {name.partition(".")[0] for name in names - siblings}
        assert roots - sys.stdlib_module_names <= {"torch"}
        shutil.copy(SOURCE.with_name(name), folder)
    argv = [sys.executable, "-I", "-W", "error", str(folder / SOURCE.name), *SMALL]
    with log.open("w") as stream:
        process = subprocess.Popen(
            [*argv, "--iters=1000000"], stdout=stream, stderr=subprocess.STDOUT
        )
    try:
        until(lambda: "iteration: 2/1000000 loss: " in log.read_text(), log.read_text)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=CEILING) == -signal.SIGTERM
    finally:
        process.kill()
    assert sorted(path.name for path in folder.iterdir()) == sorted(files)


def test_the_end_waits_for_no_finalization_of_python_nor_for_room_for_the_log(two_ranks):
    """Gloo's threads may need the interpreter while it is torn down, and then abort."""
    run = f"runpy.run_path({str(SOURCE)!r}, run_name='__main__')"
    code = f"import atexit, os, runpy\natexit.register(os._exit, 99)\n{run}"
    for options, status in (((), 0), (("--lr=1e30", "--warmup=0"), workload.NON_FINITE_LOSS)):
        first, _ = two_ranks("--iters=30", "--skip=1", *options, code=code, status=status)
        assert ("hpcbert-result" in first.stdout) == (status == 0)
    code = """
import os, threading
for stream in (1, 2):
    os.dup2(os.open("/dev/full", os.O_WRONLY), stream)
threading.Thread(target=threading.Event().wait).start()  # Python's own end waits for it
workload.leave(workload.main())
"""
    two_ranks("--iters=4", "--skip=1", code=code, status=1)


def test_an_all_reduce_is_measured_in_the_words_of_nccl_tests(two_ranks):
    first, second = two_ranks("--all-reduce=1", "--iters=4", "--skip=1")
    words, _, rate = first.stdout.strip().rpartition(": ")
    assert words.rstrip() == "# Avg bus bandwidth"
    assert float(rate) > 0
    assert second.stdout == ""


def test_log_and_result_agree(main):
    ended = main("--iters=12", "--skip=4", "--accumulation=2", "--batch-size=2")
    assert ended.stderr == ""
    head, *lines, tail = ended.stdout.splitlines()
    assert max(map(len, ended.stdout.splitlines())) < 1000
    assert head.startswith("hpcbert-config ")
    config = {**read_constant(__file__, "CONFIG"), "torch": torch.__version__}
    assert config.items() <= json.loads(head.partition(" ")[2]).items()

    names = {"loss": "loss", "mlm_loss": "mlm", "nsp_loss": "nsp"}
    losses = " ".join(rf"{name}: (?P<{key}>\d+\.\d{{4}})" for name, key in names.items())
    form = rf"iteration: (?P<iteration>\d+)/12 {losses} samples/s: (?P<rate>\d+\.\d\d) "
    matches = [re.fullmatch(form + r"time: (?P<time>\d{10}\.\d{6})", line) for line in lines]
    records = [match.groupdict() for match in matches if match]
    assert [int(record["iteration"]) for record in records] == list(range(1, 13))
    stamps = [float(record["time"]) for record in records]
    assert abs(stamps[-1] - time.time()) < 60
    for before, record in zip(stamps, records[1:], strict=False):
        seconds, loss = float(record["time"]) - before, float(record["mlm"]) + float(record["nsp"])
        assert float(record["rate"]) == pytest.approx(4 / seconds, rel=0.01)
        assert float(record["loss"]) == pytest.approx(loss, abs=2e-4)

    assert tail.startswith("hpcbert-result ")
    result = json.loads(tail.partition(" ")[2])
    assert (result["iters"], result["skip"], result["global_batch_size"]) == (12, 4, 4)
    rate = 4 * 8 / (stamps[11] - stamps[3])
    assert result["samples_per_second"] == pytest.approx(rate, rel=1e-4)
    assert result["iteration_seconds_mean"] == pytest.approx(4 / rate, rel=1e-4)
    low, middle, high = (result[f"iteration_seconds_{name}"] for name in ("min", "median", "max"))
    assert low <= middle <= high
    assert result["final_loss"] == pytest.approx(float(records[-1]["loss"]), abs=1e-4)
    assert result["skipped_steps"] == 0
    assert 0 <= result["data_wait_seconds"] < result["wall_seconds"]
    assert result["first_iteration_seconds"] > 0
    assert result["wall_seconds"] > stamps[-1] - stamps[0]
    assert 50e6 < result["peak_memory_bytes"] < 20e9


def test_window_starts_after_the_skipped_iterations_and_is_weighed_by_its_work(main):
    ends = [100.0, 110.0, 111.0, 113.0]
    times = workload.summarize_times(ends, skip=1, samples=6)
    assert times == read_constant(__file__, "TIMES")
    assert workload.summarize_times(ends, skip=0, samples=13)["samples_per_second"] == 3.0
    ended = main("--iters=3", "--skip=1", "--fill=0.5", "--batch-size=2")
    result = json.loads(ended.stdout.splitlines()[-1].partition(" ")[2])
    chosen = bert_settings.parse_settings([*SMALL, "--fill=0.5"])
    batch = bert_data.synthesize(torch.arange(2, 6), chosen)
    lengths = batch.attention_mask.sum(dim=1)
    tokens, squares = int(lengths.sum()), int((lengths**2).sum())
    assert result["real_token_share"] == pytest.approx(tokens / (4 * 32))
    rate = result["samples_per_second"] * tokens / 4
    assert result["real_tokens_per_second"] == pytest.approx(rate)
    work = (tokens, squares, int(batch.masked_weights.sum()))
    expected = bert_model.model_flops(chosen, 4, work) / 4
    assert result["model_flops_per_sample"] == pytest.approx(expected)


def test_the_longest_header_stays_short(trainer, monkeypatch):
    assert "hip" not in workload.describe_run(trainer(), "none")
    monkeypatch.setattr(torch.version, "hip", "6.3.42134")
    described = workload.describe_run(trainer(), "nccl")
    assert described["hip"] == "6.3.42134"
    longest = {**described, "data": "x" * 150, **read_constant(__file__, "LONGEST")}
    assert len("hpcbert-config " + json.dumps(longest)) < 1000


def test_operations_are_those_of_the_matrix_products_and_that_pytorch_counts(settings):
    # 50 % of 989 TFLOP/s are 7,071 samples/s of BERT-Base and 2,055 of BERT-Large.
    for name, goal in (("base", 7071), ("large", 2055)):
        chosen = bert_settings.parse_settings([f"--model={name}"])
        needed = bert_model.model_flops(chosen, 1, (128, 128**2, 20))
        assert 0.5 * 989e12 / needed == pytest.approx(goal, rel=1e-3)
    # Nor is the padding of the vocabulary work of the model's: here it has none.
    chosen = settings("--fill=full", "--dropout=0", "--layers=3", "--vocab=192")
    model = bert_model.BertForPreTraining(chosen)
    batch = bert_data.synthesize(torch.arange(4), chosen)
    # PyTorch does not count the products inside the CPU's fused attention.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        sum(model(*batch)).backward()
    work = bert_data.count_work(batch).tolist()
    needed = bert_model.model_flops(chosen, 4, work)
    assert counter.get_total_flops() == pytest.approx(needed, rel=1e-9)


@cases
def test_bad_arguments_end_with_status_2_and_a_sentence(capsys, options: list[str], complaint):
    with pytest.raises(SystemExit) as ended:
        workload.main(options)
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


@cases
def test_what_this_device_can_not_do_ends_with_status_2(main, options: list[str], complaint):
    ended = main(*options, status=2)
    bert_model.select_attention("auto")
    assert ended.stdout == ""
    assert complaint in ended.stderr


def test_help_names_every_option_and_an_older_pytorch_is_refused(monkeypatch, capsys):
    with pytest.raises(SystemExit) as ended:
        workload.main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for option in ("--batch-size", "--accumulation", "--precision", "--data", "--master-addr"):
        assert option in text
    assert "3 non-finite loss" in " ".join(text.split())
    monkeypatch.delattr(torch.amp, "is_autocast_available")
    with pytest.raises(SystemExit):
        bert_settings.parse_settings([])
    assert "needs PyTorch 2.4 or newer" in capsys.readouterr().err


def test_a_device_that_is_not_there_ends_with_status_2(main, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for cuda, reason in ((None, "without GPUs"), ("13.0", "_DEVICES=''")):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        ended = main("--device=cuda", status=2)
        assert ended.stdout == ""
        assert f"node {platform.node()}" in ended.stderr
        assert reason in ended.stderr


@cases
def test_the_recipes_options_arrive_at_the_program(words, expected, empty_directory):
    more = [part for word in words for part in ("--set", word)]
    more += ["--precision", "bf16"] if "weights=bf16" in words else []
    (script,) = run("render", "--fw", "pytorch", *more, "--json").data.values()
    command = script.partition("exec -- ")[2].partition("\n}\n")[0].replace("\\\n", " ")
    parsed = vars(bert_settings.parse_settings(shlex.split(command)[2:]))
    assert {name: parsed[name] for name in expected} == expected
