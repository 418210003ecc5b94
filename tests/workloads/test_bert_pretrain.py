"""The reference program: its options, its log, its end; and training: what ranks, micro batches,
precisions and options must not change, and how it ends."""

import ast
import importlib
import json
import math
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from unittest.mock import Mock

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from hpcbert.workloads import bert_data, bert_model, bert_optimizers, bert_ranks, bert_settings
from hpcbert.workloads import bert_pretrain as workload
from tests.kit.cases import cases, read_constant
from tests.kit.cli import run
from tests.kit.paths import REPOSITORY
from tests.kit.recipes import load
from tests.kit.waiting import CEILING, until
from tests.workloads import plain
from tests.workloads.conftest import SMALL

SOURCE = Path(workload.__file__)
STEPS = ("--iters=5", "--skip=0", "--dropout=0", "--lr=1e-3", "--warmup=2", "--seed=4")


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
    ended = main("--device=cuda", status=2)
    assert ended.stdout == ""
    assert f"node {platform.node()}" in ended.stderr
    assert "CUDA_VISIBLE_DEVICES" in ended.stderr


@cases
def test_the_recipes_options_arrive_at_the_program(words, expected, empty_directory):
    more = [part for word in words for part in ("--set", word)]
    more += ["--precision", "bf16"] if "weights=bf16" in words else []
    (script,) = run("render", "--fw", "pytorch", *more, "--json").data.values()
    command = script.partition("exec -- ")[2].partition("\n}\n")[0].replace("\\\n", " ")
    parsed = vars(bert_settings.parse_settings(shlex.split(command)[2:]))
    assert {name: parsed[name] for name in expected} == expected


def losses_of(stdout):
    return [float(text) for text in re.findall(r" loss: (\S+)", stdout)]


def weights_of(module):
    return torch.cat([value.detach().flatten() for value in module.state_dict().values()])


def train(trainer):
    losses = [float(trainer.step().sum()) for _ in range(trainer.settings.iters)]
    return losses, weights_of(trainer.module)


@cases
def test_two_ranks_equal_one_rank_with_the_doubled_batch(
    trainer, two_ranks, tmp_path, *, optimizer, options, shares
):
    options = [*STEPS, *options]
    alone = trainer(*options, "--batch-size=8")
    if optimizer == "sgd":
        alone.optimizer = torch.optim.SGD(alone.module.parameters(), lr=torch.zeros(()))
    start = weights_of(alone.module)
    # The ranks have unequal numbers of predictions, or the test would miss a mean of means.
    source = bert_data.synthetic_source(alone.settings, alone.ranks, alone.device)
    counts = next(source).batch.masked_weights.sum(dim=1)
    assert counts[:4].sum() != counts[4:].sum()

    path, code = tmp_path / "weights.pt", read_constant(__file__, "KEEP_WEIGHTS")
    first, second = two_ranks(*options, *shares, optimizer, str(path), code=code)
    assert second.stdout == ""
    together = torch.cat([value.flatten() for value in torch.load(path).values()])
    losses, weights = train(alone)
    assert losses_of(first.stdout) == pytest.approx(losses, abs=2e-4)
    # Weights are compared by how far they moved, for that is what training did to them.
    moved = weights - start
    assert moved.norm() > 0.01
    assert (together - weights).norm() / moved.norm() < 1e-3
    config = json.loads(first.stdout.splitlines()[0].partition(" ")[2])
    assert (config["world_size"], config["backend"]) == (2, "gloo")
    assert config["global_batch_size"] == 8


def test_two_ranks_in_bf16_have_the_losses_of_one_in_fp32(trainer, two_ranks):
    words = ("--precision=bf16", "--accumulation=2", "--batch-size=2", "--optimizer=lamb")
    first, _ = two_ranks(*STEPS, *words)
    expected, _ = train(trainer(*STEPS, "--batch-size=8", "--optimizer=lamb"))
    assert losses_of(first.stdout) == pytest.approx(expected, abs=0.01)


def test_all_ranks_train_the_weights_of_rank_0(two_ranks):
    for precision in ("fp32", "bf16"):
        code = read_constant(__file__, "OTHER_WEIGHTS")
        first, second = two_ranks(*STEPS, f"--precision={precision}", code=code)
        weights = re.findall(r"^weights .+", first.stdout, re.MULTILINE)
        assert weights == re.findall(r"^weights .+", second.stdout, re.MULTILINE) != []


def test_gradients_cross_in_the_last_micro_step_only(trainer):
    accumulating = trainer("--accumulation=3")
    accumulating._parallel = Mock()
    accumulating._parallel.no_sync = Mock(wraps=nullcontext)
    accumulating.step()
    assert accumulating._parallel.no_sync.call_count == 2


def test_weights_in_bf16_follow_those_in_fp32(trainer):
    words = ("--precision=bf16", "--dropout=0", "--lr=1e-3", "--warmup=0")
    current, usual = trainer(*words), trainer(*words, "--weights=fp32")
    before = weights_of(current.module)
    losses = [float(current.step().sum()) for _ in range(4)]
    after = weights_of(current.module)
    assert after.dtype == torch.float32
    # Steps are smaller than bf16 can tell apart, and would be lost without weights in fp32.
    assert 0 < float((after - before).abs().max()) < 0.02
    assert torch.equal(weights_of(current._worker), after.to(torch.bfloat16))
    assert all(value.grad is None for value in current._worker.parameters())
    assert losses == pytest.approx([float(usual.step().sum()) for _ in range(4)], abs=0.02)


@cases
def test_losses_are_those_without_the_option(
    trainer, monkeypatch, base: list[str], variant: list[str], limit
):
    compile_model = partial(torch.compile, backend="aot_eager", fullgraph=True)
    monkeypatch.setattr(torch, "compile", lambda model, **_: compile_model(model))
    words = ("--iters=20", "--skip=0", "--dropout=0", "--lr=1e-3", "--warmup=2", *base)
    expected, actual = (train(trainer(*words, *extra))[0] for extra in ((), variant))
    assert expected[0] - expected[-1] > 0.05
    assert actual == pytest.approx(expected, abs=limit)


@pytest.fixture(scope="module")
def curve(tmp_path_factory):
    """benchmarks/curve.py, and the words of a run on the real text that it makes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(REPOSITORY / "benchmarks")
        module = importlib.import_module("curve")
        data = module.make_data(tmp_path_factory.mktemp("text"), 32, 80, 1000)
        words = [f"--data={data}", "--vocab=1000", "--predictions=4"]
        yield module, [*words, "--iters=20", "--skip=0", "--dropout=0"]


@cases
def test_real_text_is_learnt_as_by_a_plain_bert_in_float64(trainer, curve, options, limit):
    current = trainer(*curve[1], *options)
    settings = current.settings
    source = bert_data.open_source(settings, current.ranks, current.device)
    # All samples of the text are full.
    mask = torch.ones(settings.batch_size, settings.sequence_length, dtype=torch.bool)
    expected, exact = [], plain.Optimizer(settings.optimizer)
    weights = {
        name: value.double().clone().requires_grad_()
        for name, value in current.module.state_dict().items()
    }
    for step in range(settings.iters):
        batch = next(source).batch._replace(attention_mask=mask)
        loss = plain.loss_of(weights, batch, settings)
        tensors = torch.autograd.grad(loss, list(weights.values()))
        with torch.no_grad():
            rate = bert_optimizers.learning_rate(step, settings)
            exact.step(weights, dict(zip(weights, tensors, strict=True)), rate)
        expected.append(float(loss.detach()))
    # Batches differ by as much as is learnt, and each Python brings another text.
    assert fmean(expected[:5]) - fmean(expected[-5:]) > 0.2
    assert train(current)[0] == pytest.approx(expected, abs=limit)


@cases
@pytest.mark.needs("transformers")
def test_real_text_is_learnt_as_by_transformers(curve, options, limit):
    module, words = curve
    ours, theirs = module.curves([*SMALL, *words, *options])
    assert ours == pytest.approx(theirs, abs=limit)


def test_dropout_is_active_and_clipping_limits_the_step(trainer):
    calm, wild = trainer("--dropout=0"), trainer("--dropout=0.5")
    assert float(calm.step().sum()) != float(wild.step().sum())
    norms = []
    for limit in ("1e-3", "0"):
        clipped = trainer("--dropout=0", f"--clip-norm={limit}")
        clipped.optimizer.zero_grad = lambda **_: None
        clipped.step()
        gradients = [value.grad.flatten() for value in clipped.module.parameters()]
        norms.append(float(torch.cat(gradients).norm()))
    assert norms[0] == pytest.approx(1e-3, rel=1e-3)
    assert norms[1] > 0.1


def test_fp32_turns_tf32_off_and_tf32_turns_it_on(trainer):
    try:
        torch.set_float32_matmul_precision("high")
        trainer("--precision=fp32")
        assert torch.get_float32_matmul_precision() == "highest"
        chosen = bert_settings.parse_settings(["--model=tiny", "--precision=tf32", "--vocab=160"])
        workload.Trainer(chosen, bert_ranks.Ranks(), torch.device("cpu"), iter(()))
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_window_in_seconds_is_prolonged_by_its_mean_iteration(trainer, two_ranks):
    prolonged = trainer("--iters=4", "--skip=2", "--window-seconds=10")
    # Half of it, faster, long enough, and prolonged already.
    for ends, expected in (((7.0,), 23), ((6.9,), 26), ((17.0,), 4), ((7.0, 16.0), 5)):
        assert workload.count_iterations(prolonged, [0.0, 5.0, 6.0, 6.5, *ends]) == expected
    # Every rank trains until then.
    first, _ = two_ranks("--iters=5", "--skip=2", "--window-seconds=0.5")
    result = json.loads(first.stdout.splitlines()[-1].partition(" ")[2])
    assert result["iters"] > 5
    assert len(losses_of(first.stdout)) == result["iters"]
    assert 8 * (result["iters"] - 2) / result["samples_per_second"] >= 0.5
    assert 0 < result["real_token_share"] <= 1


def test_losses_that_are_read_late_are_the_same(main, monkeypatch):
    options = ("--iters=5", "--skip=1")
    at_once = main(*options)
    monkeypatch.setitem(workload.READ_LATE, "cpu", 1)
    late = main(*options)
    assert losses_of(late.stdout) == losses_of(at_once.stdout)
    assert len(losses_of(late.stdout)) == 5
    spoilt = main("--iters=50", "--lr=1e30", "--warmup=0", status=3)
    iteration = re.fullmatch(r"iteration: (\d+)/50 loss: nan .*", spoilt.stdout.splitlines()[-1])
    assert iteration
    assert f"the loss of iteration {iteration[1]} is not finite" in spoilt.stderr


def test_no_step_asks_the_device_for_a_number(trainer):
    class Unasked(TorchDispatchMode):
        """Fails where the host asks the device for a number, and so would wait for it."""

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            aten = torch.ops.aten
            assert function not in {aten._local_scalar_dense.default, aten.nonzero.default}, words
            return function(*args, **(kwargs or {}))

    for precision, optimizer in product(("fp32", "fp16", "bf16"), ("adamw", "lamb")):
        words = (f"--precision={precision}", f"--optimizer={optimizer}")
        small_trainer = trainer(*words)
        small_trainer.step()  # the optimizer's state is made
        with Unasked():
            small_trainer.step()


def test_a_step_that_overflows_changes_nothing(trainer):
    words = ("--precision=fp16", "--lr=1e-2", "--warmup=0", "--dropout=0")
    for optimizer in ("adamw", "lamb", "sgd"):
        name = f"--optimizer={optimizer.replace('sgd', 'adamw')}"
        overflowing, calm = (trainer(*words, name) for _ in "12")
        for current in (overflowing, calm) if optimizer == "sgd" else ():
            current.optimizer = torch.optim.SGD(current.module.parameters(), lr=torch.zeros(()))
        overflowing.step()
        calm.step()
        before = weights_of(overflowing.module)
        overflowing.loss_scale.value.fill_(2.0**60)
        overflowing.step()
        assert torch.equal(weights_of(overflowing.module), before), optimizer
        scale = float(overflowing.loss_scale.value)
        assert (int(overflowing.skipped_steps), scale) == (1, 2.0**59)
        # What comes after is as if nothing had been: means and counts are untouched, too.
        overflowing.loss_scale.value.fill_(2.0**16)
        overflowing.steps = calm.steps
        calm._next = None  # its batch is left out, too
        overflowing.step()
        calm.step()
        assert torch.equal(weights_of(overflowing.module), weights_of(calm.module)), optimizer
        assert not torch.equal(weights_of(overflowing.module), before)


def test_the_loss_scale_moves_as_pytorchs_does_and_its_overflows_are_counted(main, monkeypatch):
    theirs = torch.amp.GradScaler("cpu", growth_interval=2000)
    ours = bert_optimizers.LossScale("fp16", torch.device("cpu"))
    value = torch.nn.Parameter(torch.zeros(1))
    descent = torch.optim.SGD([value], lr=0.0)
    theirs.scale(value)
    for number in range(4100):
        is_overflow = number in (3, 4, 50)
        value.grad = torch.full((1,), math.inf if is_overflow else 1.0)
        theirs.step(descent)
        theirs.update()
        ours.move(torch.tensor(float(is_overflow)))
        assert float(ours.value) == theirs.get_scale()
    monkeypatch.setattr(bert_optimizers.LossScale, "START", 2.0**40)
    ended = main("--precision=fp16", "--iters=4", "--skip=0")
    assert json.loads(ended.stdout.splitlines()[-1].partition(" ")[2])["skipped_steps"] == 4
    assert all(map(math.isfinite, losses_of(ended.stdout)))


def test_a_loss_that_is_not_finite_on_one_rank_ends_every_rank(two_ranks):
    code = read_constant(__file__, "NAN_ON_RANK_1")
    first, second = two_ranks("--iters=50", code=code, status=3)
    assert first.stdout.splitlines()[-1].startswith("iteration: 3/50 loss: nan ")
    for rank, ended in enumerate((first, second)):
        assert ended.stderr == (
            f"bert_pretrain: error: rank {rank}: the loss of iteration 3 is not finite; "
            "rank(s) it comes from: 1\n"
        )


def test_a_rank_that_fails_ends_with_its_reason_although_the_group_can_not_be_destroyed(two_ranks):
    for rank, error, reason in read_constant(__file__, "ERRORS"):
        code = read_constant(__file__, "BLOCK_DESTROY").replace("RANK", str(rank))
        ended = two_ranks("--iters=4", "--skip=1", code=code.replace("ERROR", error), status=1)
        assert f"\n{reason}" in ended[rank].stderr
        assert "iteration: 1/4" in ended[0].stdout


@cases
def test_gpus_compile_where_they_can(settings, monkeypatch, words, missing, expected):
    def find(name):
        return None if missing == name else name

    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", find)
    monkeypatch.setattr("shutil.which", lambda _: find("gcc"))
    capability = (6 if missing == "volta" else 7, 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    device, *options = words
    assert workload.wants_compile(settings(*options), torch.device(device)) == expected


def test_compile_wraps_the_model_that_trains_on_all_ranks_or_on_none(
    trainer, monkeypatch, two_ranks
):
    wrapped = []

    def compile_model(model, mode):
        wrapped.append(model)
        return model

    monkeypatch.setattr(torch, "compile", compile_model)
    compiled = trainer("--compile=true")
    trainer()
    assert wrapped == [compiled.module]
    code = "import os\nworkload.wants_compile = lambda *_: os.environ['RANK'] == '1'\n"
    code += "workload.leave(workload.main())"  # a node has no C compiler
    for ended in two_ranks("--iters=4", "--skip=1", code=code, status=2):
        assert ended.stdout == ""
        assert "only 1 of 2 ranks" in ended.stderr
