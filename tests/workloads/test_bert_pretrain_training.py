from __future__ import annotations

import contextlib
import json
import math
import re
from typing import Any

import pytest

from tests.kit.cases import cases

torch = pytest.importorskip("torch", reason="the reference workload needs PyTorch")
bert_data = pytest.importorskip("hpcbert.workloads.bert_data")
bert_optimizers = pytest.importorskip("hpcbert.workloads.bert_optimizers")
bert_ranks = pytest.importorskip("hpcbert.workloads.bert_ranks")
bert_settings = pytest.importorskip("hpcbert.workloads.bert_settings")
workload = pytest.importorskip("hpcbert.workloads.bert_pretrain")
dispatch: Any = pytest.importorskip("torch.utils._python_dispatch")

pytestmark = pytest.mark.torch

STEPS = ("--iters=5", "--skip=0", "--dropout=0", "--lr=1e-3", "--warmup=2", "--seed=4")
PLAIN_STEPS = (*STEPS, "--lr=0.3", "--clip-norm=0")
# Code of a rank; what runs it defines `workload`, the program.
KEEP_TRAINERS = """
import sys
import torch

trainers = []

class Kept(workload.Trainer):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        trainers.append(self)

workload.Trainer = Kept
"""
KEEP_WEIGHTS = f"""
{KEEP_TRAINERS}
path, optimizer = sys.argv.pop(), sys.argv.pop()
if optimizer == "sgd":
    workload.make_optimizer = lambda model, *_: torch.optim.SGD(model.parameters(), lr=torch.zeros(()))
status = workload.main()
if trainers[0].ranks.rank == 0:
    torch.save(trainers[0].module.state_dict(), path)
workload.leave(status)
"""
NAN_ON_RANK_1 = """
class Spoilt(workload.Trainer):
    def step(self):
        share = super().step()
        return share * float("nan") if self.ranks.rank == 1 and self.steps == 3 else share

workload.Trainer = Spoilt
workload.leave(workload.main())
"""


# A destroy that waits for ranks which wait for this one.
BLOCK_DESTROY = """
import threading

workload.dist.destroy_process_group = threading.Event().wait

class Failing(workload.Trainer):
    def step(self):
        if self.ranks.rank == RANK and self.steps == 1:
            raise ERROR
        return super().step()

workload.Trainer = Failing
workload.leave(workload.main())
"""

# A node without a C compiler.
COMPILE_ON_RANK_1 = """
import os

workload.wants_compile = lambda *_: os.environ["RANK"] == "1"
workload.leave(workload.main())
"""

# Ranks draw other weights, and print the sum of those after training.
OTHER_WEIGHTS = f"""
{KEEP_TRAINERS}
import os

set_seed = torch.manual_seed
torch.manual_seed = lambda seed: set_seed(seed + int(os.environ["RANK"]))
status = workload.main()
values = trainers[0].module.state_dict().values()
print("weights", float(sum(value.double().sum() for value in values)))
workload.leave(status)
"""


def losses_of(stdout):
    return [float(text) for text in re.findall(r" loss: (\S+)", stdout)]


def weights_of(module):
    return torch.cat([value.detach().flatten() for value in module.state_dict().values()])


def plain_descent(model):
    return torch.optim.SGD(model.parameters(), lr=torch.zeros(()))


def train(trainer):
    losses = [float(trainer.step().sum()) for _ in range(trainer.settings.iters)]
    return losses, weights_of(trainer.module)


def assert_same_training(expected, actual, start):
    # Weights are compared by how far they moved, for that is what training did to them.
    assert actual[0] == pytest.approx(expected[0], abs=2e-4)
    moved = expected[1] - start
    assert moved.norm() > 0.01
    assert (actual[1] - expected[1]).norm() / moved.norm() < 1e-3


# AdamW hardly feels a factor on all gradients; plain descent without clipping does.
@pytest.mark.parametrize(
    ("optimizer", "shares"),
    [
        ("adamw", ["--batch-size=4", "--unpad"]),
        ("sgd", ["--batch-size=2", "--accumulation=2"]),
    ],
)
def test_two_ranks_equal_one_rank_with_the_doubled_batch(
    trainer, two_ranks, tmp_path, optimizer, shares
):
    options = PLAIN_STEPS if optimizer == "sgd" else STEPS
    alone = trainer(*options, "--batch-size=8")
    if optimizer == "sgd":
        alone.optimizer = plain_descent(alone.module)
    start = weights_of(alone.module)
    # The ranks have unequal numbers of predictions, or the test would miss a mean of means.
    weights = next(bert_data.synthetic_source(alone.settings, alone.ranks, alone.device)).batch
    counts = weights.masked_weights.sum(dim=1)
    assert counts[:4].sum() != counts[4:].sum()

    path = tmp_path / "weights.pt"
    first, second = two_ranks(*options, *shares, optimizer, str(path), code=KEEP_WEIGHTS)
    assert (first.status, second.status) == (0, 0), first.stderr + second.stderr
    assert second.stdout == ""
    saved = torch.load(path)
    together = torch.cat([value.flatten() for value in saved.values()])
    assert_same_training(train(alone), (losses_of(first.stdout), together), start)
    config = json.loads(first.stdout.splitlines()[0].partition(" ")[2])
    assert (config["world_size"], config["backend"]) == (2, "gloo")
    assert config["global_batch_size"] == 8


def test_two_ranks_in_bf16_have_the_losses_of_one_in_fp32(trainer, two_ranks):
    words = ("--precision=bf16", "--accumulation=2", "--batch-size=2", "--optimizer=lamb")
    first, second = two_ranks(*STEPS, *words)
    assert (first.status, second.status) == (0, 0), first.stderr + second.stderr
    expected, _ = train(trainer(*STEPS, "--batch-size=8", "--optimizer=lamb"))
    assert losses_of(first.stdout) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_all_ranks_train_the_weights_of_rank_0(two_ranks, precision):
    ended = two_ranks(*STEPS, f"--precision={precision}", code=OTHER_WEIGHTS)
    assert [each.status for each in ended] == [0, 0], ended[0].stderr
    first, second = (re.findall(r"^weights .+", each.stdout, re.MULTILINE) for each in ended)
    assert first == second != []


def test_accumulation_equals_the_larger_batch(trainer):
    large = trainer(*PLAIN_STEPS, "--batch-size=6")
    parts = trainer(*PLAIN_STEPS, "--batch-size=2", "--accumulation=3")
    start = weights_of(large.module)
    for current in (large, parts):
        current.optimizer = plain_descent(current.module)
    assert_same_training(train(large), train(parts), start)


def test_gradients_cross_between_ranks_in_the_last_micro_step_only(trainer):
    calls = []

    class Parallel:
        def no_sync(self):
            calls.append("no_sync")
            return contextlib.nullcontext()

    accumulating = trainer("--accumulation=3")
    accumulating._parallel = Parallel()
    accumulating.step()
    assert calls == ["no_sync", "no_sync"]


def test_weights_in_bf16_follow_those_in_fp32(trainer):
    bf16_trainer = trainer("--precision=bf16", "--dropout=0", "--lr=1e-3", "--warmup=0")
    before = weights_of(bf16_trainer.module)
    losses = [float(bf16_trainer.step().sum()) for _ in range(4)]
    after = weights_of(bf16_trainer.module)
    assert after.dtype == torch.float32
    # Steps are smaller than bf16 can tell apart, and would be lost without weights in fp32.
    assert 0 < float((after - before).abs().max()) < 0.02
    assert torch.equal(weights_of(bf16_trainer._worker), after.to(torch.bfloat16))
    assert all(value.grad is None for value in bf16_trainer._worker.parameters())
    usual = trainer("--precision=bf16", "--weights=fp32", "--dropout=0", "--lr=1e-3", "--warmup=0")
    assert losses == pytest.approx([float(usual.step().sum()) for _ in range(4)], abs=0.02)


@pytest.mark.parametrize(
    ("base", "variant", "limit"),
    [
        ((), ("--chunk=7", "--sdpa=math"), 2e-6),
        ((), ("--unpad",), 2e-6),
        (("--precision=fp16", "--optimizer=lamb", "--lr=2e-2"), ("--compile=true",), 2e-3),
        (("--accumulation=2",), ("--compile=true", "--chunk=3"), 2e-6),
        (("--precision=bf16", "--weights=fp32"), ("--weights=bf16",), 0.02),
        (("--precision=bf16",), ("--compile=true",), 0.02),
        (("--precision=bf16",), ("--precision=fp8",), 0.02),
        (("--precision=fp8",), ("--compile=true",), 0.02),
    ],
    ids=lambda words: (
        "+".join(words).replace("-", "") or "plain" if isinstance(words, tuple) else ""
    ),
)
def test_twenty_losses_are_those_without_the_option(trainer, monkeypatch, base, variant, limit):
    compile_model = torch.compile
    monkeypatch.setattr(
        torch,
        "compile",
        lambda model, **_: compile_model(model, backend="aot_eager", fullgraph=True),
    )
    words = ("--iters=20", "--skip=0", "--dropout=0", "--lr=1e-3", "--warmup=2", *base)
    expected, actual = (trainer(*words, *extra) for extra in ((), variant))
    losses = [[float(each.step().sum()) for _ in range(20)] for each in (expected, actual)]
    assert losses[0][0] - losses[0][-1] > 0.05
    assert losses[1] == pytest.approx(losses[0], abs=limit)


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
    device = torch.device("cpu")
    try:
        torch.set_float32_matmul_precision("high")
        trainer("--precision=fp32")
        assert torch.get_float32_matmul_precision() == "highest"
        chosen = bert_settings.parse_settings(["--model=tiny", "--precision=tf32", "--vocab=160"])
        workload.Trainer(chosen, bert_ranks.Ranks(), device, iter(()))
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_fp16_counts_the_steps_that_overflow(main, monkeypatch):
    monkeypatch.setattr(bert_optimizers.LossScale, "START", 2.0**40)
    ended = main("--precision=fp16", "--iters=4", "--skip=0")
    assert ended.status == 0, ended.stderr
    result = json.loads(ended.stdout.splitlines()[-1].partition(" ")[2])
    assert result["skipped_steps"] == 4
    assert all(map(math.isfinite, losses_of(ended.stdout)))


@pytest.mark.parametrize(
    ("ends", "expected"),
    [((7.0,), 23), ((6.9,), 26), ((17.0,), 4), ((7.0, 16.0), 5)],
    ids=["half", "faster", "long-enough", "prolonged"],
)
def test_a_window_in_seconds_is_prolonged_by_its_mean_iteration(trainer, ends, expected):
    prolonged = trainer("--iters=4", "--skip=2", "--window-seconds=10")
    stamps = [0.0, 5.0, 6.0, 6.5, *ends]
    assert workload.count_iterations(prolonged, stamps) == expected


def test_every_rank_trains_until_the_window_has_its_seconds(two_ranks):
    first, second = two_ranks("--iters=5", "--skip=2", "--window-seconds=0.5")
    assert (first.status, second.status) == (0, 0), first.stderr + second.stderr
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
    spoilt = main("--iters=50", "--lr=1e30", "--warmup=0")
    assert spoilt.status == 3
    *_, last = spoilt.stdout.splitlines()
    iteration = re.fullmatch(r"iteration: (\d+)/50 loss: nan .*", last)
    assert iteration
    assert f"the loss of iteration {iteration[1]} is not finite" in spoilt.stderr


class Unasked(dispatch.TorchDispatchMode):  # type: ignore[misc]
    """Fails where the host asks the device for a number, and so would wait for it."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function not in ASKING, function
        return function(*args, **(kwargs or {}))


ASKING = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_no_step_asks_the_device_for_a_number(trainer, precision, optimizer):
    small_trainer = trainer(f"--precision={precision}", f"--optimizer={optimizer}")
    small_trainer.step()  # the optimizer's state is made
    with Unasked():
        small_trainer.step()


@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "sgd"])
def test_a_step_that_overflows_changes_nothing(trainer, monkeypatch, optimizer):
    options = ("--precision=fp16", "--lr=1e-2", "--warmup=0", "--dropout=0")
    overflowing, calm = (
        trainer(*options, f"--optimizer={optimizer.replace('sgd', 'adamw')}") for _ in "12"
    )
    if optimizer == "sgd":
        for current in (overflowing, calm):
            current.optimizer = plain_descent(current.module)
    overflowing.step()
    calm.step()
    before = weights_of(overflowing.module)
    overflowing.loss_scale.value.fill_(2.0**60)
    overflowing.step()
    assert torch.equal(weights_of(overflowing.module), before)
    assert (int(overflowing.skipped_steps), float(overflowing.loss_scale.value)) == (1, 2.0**59)
    # What comes after is as if nothing had been: means and counts are untouched, too.
    overflowing.loss_scale.value.fill_(2.0**16)
    overflowing.steps = calm.steps
    calm._next = None  # its batch is left out, too
    overflowing.step()
    calm.step()
    assert torch.equal(weights_of(overflowing.module), weights_of(calm.module))
    assert not torch.equal(weights_of(overflowing.module), before)


def test_the_loss_scale_moves_as_pytorchs_does():
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


def test_a_loss_that_is_not_finite_on_one_rank_ends_every_rank(two_ranks):
    first, second = two_ranks("--iters=50", code=NAN_ON_RANK_1)
    assert (first.status, second.status) == (3, 3)
    assert first.stdout.splitlines()[-1].startswith("iteration: 3/50 loss: nan ")
    for rank, ended in enumerate((first, second)):
        assert ended.stderr == (
            f"bert_pretrain: error: rank {rank}: the loss of iteration 3 is not finite; "
            "rank(s) it comes from: 1\n"
        )


def test_compile_wraps_the_model_that_trains(trainer, monkeypatch):
    wrapped = []

    def compile_model(model, mode):
        wrapped.append(model)
        return model

    monkeypatch.setattr(torch, "compile", compile_model)
    compiled = trainer("--compile=true")
    trainer()
    assert wrapped == [compiled.module]


@pytest.mark.parametrize(
    ("rank", "error", "reason"),
    [
        (
            1,
            "RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB')",
            "RuntimeError: CUDA out of",
        ),
        (1, "KeyboardInterrupt", "KeyboardInterrupt"),
        (0, "SystemExit('a library gave up')", "SystemExit: a library gave up"),
    ],
    ids=["memory", "interrupt", "exit"],
)
def test_a_rank_that_fails_ends_with_its_reason_although_the_group_can_not_be_destroyed(
    two_ranks, rank, error, reason
):
    code = BLOCK_DESTROY.replace("RANK", str(rank)).replace("ERROR", error)
    ended = two_ranks("--iters=4", "--skip=1", code=code)
    assert [each.status for each in ended] == [1, 1], ended[0].stderr + ended[1].stderr
    assert f"\n{reason}" in ended[rank].stderr
    assert "iteration: 1/4" in ended[0].stdout


def test_ranks_that_can_not_all_compile_are_refused(two_ranks):
    for ended in two_ranks("--iters=4", "--skip=1", code=COMPILE_ON_RANK_1):
        assert (ended.status, ended.stdout) == (2, "")
        assert "only 1 of 2 ranks" in ended.stderr


@cases
def test_gpus_compile_where_they_can(settings, monkeypatch, words, missing, expected):
    def find(name):
        return None if missing == name else name

    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(workload.importlib.util, "find_spec", find)
    monkeypatch.setattr(workload.shutil, "which", lambda _: find("gcc"))
    monkeypatch.setattr(
        torch.cuda, "get_device_capability", lambda _: (6 if missing == "volta" else 7, 0)
    )
    device, *options = words
    assert workload.wants_compile(settings(*options), torch.device(device)) == expected
