"""BERT pre-training in PyTorch: the reference workload, which needs only torch.

    python bert_pretrain.py --model base --batch-size 32 --precision bf16
    torchrun --nproc-per-node 8 bert_pretrain.py

This file has the training loop and its output. Next to it lie bert_settings.py (the command line),
bert_ranks.py (ranks and devices), bert_data.py (samples), bert_model.py and bert_optimizers.py.

A rank learns its place from RANK, WORLD_SIZE and LOCAL_RANK. Rank 0 prints, each line at once and
shorter than 1,000 bytes: `hpcbert-config {json}`, one line per iteration (an optimizer step), and
`hpcbert-result {json}`. Rates are samples per second over all ranks.

Exit status: 0 done; 1 an unexpected error; 2 arguments, environment or data are refused; 3 the loss
of an iteration is not finite, which ends every rank.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import json
import math
import os
import resource
import shutil
import statistics
import sys
import time
import traceback
from collections import deque
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

if __name__ == "__main__":
    # A campaign has a copy of these files, but no hpcbert: their package is the folder they lie in.
    siblings = sys.modules["hpcbert.workloads"] = ModuleType("hpcbert.workloads")
    siblings.__path__ = [str(Path(__file__).parent)]
    sys.dont_write_bytecode = True  # the campaign's folder holds what was submitted, nothing else

from hpcbert.workloads.bert_data import Micro, has_flash, open_source
from hpcbert.workloads.bert_model import (
    BertForPreTraining,
    autocast,
    count_parameters,
    find_attention,
    model_flops,
    select_attention,
)
from hpcbert.workloads.bert_optimizers import (
    Lamb,
    LossScale,
    learning_rate,
    make_optimizer,
    total_norm,
)
from hpcbert.workloads.bert_ranks import (
    Ranks,
    check_precision,
    choose_device,
    detect_ranks,
    device_name,
    join_ranks,
    largest_over_ranks,
    sum_over_ranks,
)
from hpcbert.workloads.bert_settings import MODES, Settings, SetupError, parse_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

REFUSED = 2
NON_FINITE_LOSS = 3
COMPILED_BUCKET = 100  # MiB of gradients that one all-reduce sums if the model is compiled


class NonFiniteLossError(Exception):
    """The loss of an iteration is infinite or not a number."""


def wants_compile(settings: Settings, device: torch.device) -> bool:
    """Return whether to use torch.compile: as set, or on GPUs wherever it can work.

    Inductor's kernels are Triton's, and Triton builds their launcher with a C compiler
    (triton-lang/triton, python/triton/runtime/build.py: CC, else gcc or clang). SetupError if
    shapes change from batch to batch, because each would be compiled.
    """
    has_shapes = not settings.unpad or has_flash(settings, device)
    if settings.compile == "true" and not has_shapes:
        raise SetupError(
            "--compile true and --unpad exclude each other where each batch has shapes of its own: "
            "that takes an NVIDIA GPU of compute capability 8.0 and --precision fp16 or bf16"
        )
    if settings.precision == "fp8" and not has_shapes:
        raise SetupError("--precision fp8 with --unpad needs an NVIDIA GPU, for fixed shapes")
    if settings.compile != "auto":
        return settings.compile == "true"
    has_compiler = bool(os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang"))
    can = has_compiler and importlib.util.find_spec("triton") is not None and has_shapes
    # Triton compiles for Volta and newer ones; all of AMD's numbers are larger.
    return can and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (7, 0)


def choose_compile(settings: Settings, ranks: Ranks, device: torch.device) -> bool:
    """Return whether every rank uses torch.compile.

    SetupError on every rank if only some can, because their buckets of gradients would differ, or
    if the mode cannot work.
    """
    compiles, mode = wants_compile(settings, device), settings.compile_mode
    count = int(sum_over_ranks(torch.tensor(float(compiles), device=device), ranks))
    if count not in (0, ranks.size):
        raise SetupError(
            f"only {count} of {ranks.size} ranks have the Triton and the C compiler that "
            "torch.compile needs: give --compile false, or install both on every node"
        )
    if mode != "default" and not compiles:
        raise SetupError(
            f"--compile-mode {mode} needs torch.compile, which --compile auto leaves out here: it "
            "takes a GPU, Triton, a C compiler and fixed shapes"
        )
    if mode == "reduce-overhead" and device.type != "cuda":
        raise SetupError("--compile-mode reduce-overhead replays CUDA graphs, which takes a GPU")
    return compiles


class Fetched(NamedTuple):
    """The micro batches of a step, and how many predictions those of all ranks have."""

    micros: list[Micro]
    work: Tensor  # `count_work` of this rank's
    predictions: Tensor  # float32, at least 1 once `sum` is done
    sum: Any  # a running all-reduce, or None


class Trainer:
    """One rank's model, optimizer and data; `module` is the model without any wrapper."""

    def __init__(
        self, settings: Settings, ranks: Ranks, device: torch.device, source: Iterator[Micro]
    ) -> None:
        # "highest" also undoes TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1, which some images set.
        torch.set_float32_matmul_precision("high" if settings.precision == "tf32" else "highest")
        select_attention(settings.sdpa)
        torch.manual_seed(settings.seed)
        self.module = BertForPreTraining(settings).to(device)
        if ranks.size > 1:
            # Processors of other kinds may draw other last digits, and of weights in fp32 behind
            # those in bf16, DistributedDataParallel knows nothing.
            for weight in self.module.parameters():
                dist.broadcast(weight.detach(), 0)
        # Equal weights but unequal dropout on every rank.
        torch.manual_seed(settings.seed + 1 + ranks.rank)
        self.optimizer = make_optimizer(self.module, settings.optimizer)
        # What computes: the same weights, or their copy in bf16, of which gradients and their
        # all-reduce are bf16 as well, and which follows the weights after each step.
        in_bf16 = settings.weights == "bf16"
        self._worker = copy.deepcopy(self.module).to(torch.bfloat16) if in_bf16 else self.module
        self.loss_scale = LossScale(settings.precision, device)
        self.settings, self.ranks, self.device, self.source = settings, ranks, device, source
        per_rank = settings.batch_size * settings.accumulation
        self.global_batch_size = per_rank * ranks.size
        self.steps, self.waited = 0, 0.0  # seconds that the host waited for batches
        self.iters = settings.iters  # of the run, which --window-seconds may prolong
        self.skipped_steps = torch.zeros((), dtype=torch.int64, device=device)
        # This rank's real tokens, squares of the samples' lengths, and predictions so far.
        self.work = torch.zeros(3, dtype=torch.float64, device=device)
        self.compiles = choose_compile(settings, ranks, device)
        self._parallel = self._distribute() if ranks.size > 1 else None
        self._model: Callable[..., Any] = self._parallel or self._worker
        if self.compiles:
            self._model = torch.compile(self._model, mode=MODES[settings.compile_mode])
            if isinstance(self.optimizer, Lamb):
                self.optimizer.compile()
        self._next: Fetched | None = None

    def _distribute(self) -> DistributedDataParallel:
        """Return the model with gradients that are summed over ranks.

        A compiled model has its gradients all at once at the end of each of its parts, which
        buckets bound (pytorch/pytorch, torch/_dynamo/backends/distributed.py): few large ones.
        """
        return DistributedDataParallel(
            self._worker,
            gradient_as_bucket_view=True,
            bucket_cap_mb=COMPILED_BUCKET if self.compiles else None,
            # Every micro step but the last would be a graph of its own.
            static_graph=self.settings.accumulation == 1,
        )

    def fetch(self) -> Fetched:
        """Return the micro batches of the next step, and begin to count their predictions."""
        if self._next is None:
            begin = time.perf_counter()
            micros = [next(self.source) for _ in range(self.settings.accumulation)]
            self.waited += time.perf_counter() - begin
            work = torch.stack([micro.work for micro in micros]).sum(0)
            predictions = work[2].float()
            is_alone = self.ranks.size == 1
            running = None if is_alone else dist.all_reduce(predictions, async_op=True)
            self._next = Fetched(micros, work, predictions, running)
        return self._next

    def step(self) -> Tensor:
        """Do one optimizer step and return this rank's share of both losses, on the device.

        Sums over all samples of the step are divided by counts over all ranks, so that the losses
        and gradients are those of one rank with the whole batch, however unevenly the predictions
        are spread over ranks and micro steps. Its price is one more all-reduce, of one number,
        which runs while the step before it ends.
        """
        if self.settings.compile_mode == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        fetched, self._next = self.fetch(), None
        self.work += fetched.work
        if fetched.sum is not None:
            fetched.sum.wait()
        predictions = fetched.predictions.clamp(min=1)
        total = torch.zeros(2, device=self.device)
        for number, micro in enumerate(fetched.micros, 1):
            # Gradients stay here until the last.
            parallel = self._parallel if number < len(fetched.micros) else None
            with parallel.no_sync() if parallel else contextlib.nullcontext():
                with autocast(self.settings, self.device):
                    mlm_sum, nsp_sum = self._model(*micro.batch, micro.layout)
                losses = torch.stack([mlm_sum / predictions, nsp_sum / self.global_batch_size])
                # DistributedDataParallel averages over ranks, but this needs the sum.
                torch.autograd.backward(losses.sum() * self.ranks.size * self.loss_scale.value)
            total += losses.detach()
        if self.steps + 1 < self.iters:
            self.fetch()
        self._update()
        return total

    def _update(self) -> None:
        self.optimizer.param_groups[0]["lr"].fill_(learning_rate(self.steps, self.settings))
        weights: list[Tensor] = list(self.module.parameters())
        working: list[Tensor] = list(self._worker.parameters())
        is_copied = self._worker is not self.module
        if is_copied:
            for weight in weights:
                weight.grad = torch.empty_like(weight) if weight.grad is None else weight.grad
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        if is_copied:
            copied = [value.grad for value in working if value.grad is not None]
            torch._foreach_copy_(gradients, copied)
            self._worker.zero_grad(set_to_none=True)
        limit, scale = self.settings.clip_norm, self.loss_scale
        divisor, overflow = None, None
        if limit or scale.moves:
            norm = total_norm(gradients)
            divisor = scale.value * (norm / (scale.value * (limit or math.inf))).clamp(min=1)
            overflow = 1 - norm.isfinite().float() if scale.moves else None
        self._apply(gradients, divisor, overflow)
        if overflow is not None:
            scale.move(overflow)
            self.skipped_steps += overflow.long()
        if is_copied:
            with torch.no_grad():
                torch._foreach_copy_(working, weights)
        else:
            self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1

    def _apply(
        self, gradients: list[Tensor], divisor: Tensor | None, overflow: Tensor | None
    ) -> None:
        """Step with gradients divided by `divisor`, unless they are not finite."""
        optimizer: Any = self.optimizer
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            # Scale and clipping need no separate pass over the gradients.
            optimizer.grad_scale, optimizer.found_inf = divisor, overflow
        elif divisor is not None:
            for gradient in gradients:
                gradient.div_(divisor)
            if overflow is not None and overflow:
                return
        optimizer.step()


def summarize_work(trainer: Trainer, rank_work: Tensor, rate: float) -> dict[str, float]:
    """Return what the samples of all ranks held in the window, at `rate` samples per second.

    `rank_work` is this rank's share of `Trainer.work`.
    """
    settings = trainer.settings
    work = sum_over_ranks(rank_work.clone(), trainer.ranks).tolist()
    samples = trainer.global_batch_size * (trainer.iters - settings.skip)
    return {
        "real_tokens_per_second": rate * work[0] / samples,
        "real_token_share": work[0] / (samples * settings.sequence_length),
        "model_flops_per_sample": model_flops(settings, samples, work) / samples,
    }


def emit(line: str, ranks: Ranks) -> None:
    """Write a line to stdout at once, on rank 0 only."""
    if ranks.rank == 0:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def describe_run(trainer: Trainer, backend: str) -> dict[str, Any]:
    """Return everything that determines the throughput, for `hpcbert-config`."""
    ranks, device = trainer.ranks, trainer.device
    options = asdict(trainer.settings)
    for name in ("master_addr", "master_port", "timeout", "all_reduce"):
        del options[name]
    options["batch_size_per_device"] = options.pop("batch_size")
    return {
        **options,
        "fill": None if options["data"] else options["fill"],
        "compile": trainer.compiles,
        "attention": find_attention(trainer.settings, trainer.fetch().micros[0], device),
        # The end of a path says more than its beginning, and the line must stay short.
        "data": options["data"][-150:] or "synthetic",
        "device": device.type,
        "threads": torch.get_num_threads(),
        "parameters": count_parameters(trainer.settings, trainer.module),
        "world_size": ranks.size,
        "global_batch_size": trainer.global_batch_size,
        "device_name": device_name(device),
        "backend": backend,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        **({"hip": torch.version.hip} if torch.version.hip else {}),
    }


def summarize_times(stamps: Sequence[float], skip: int, samples: int) -> dict[str, float]:
    """Reduce time stamps to the throughput of the window and the spread of its iterations.

    The stamps are seconds: the start, then the end of every iteration, of `samples` samples each.
    """
    seconds = [stamps[number] - stamps[number - 1] for number in range(1, len(stamps))]
    window = seconds[skip:]
    return {
        "samples_per_second": samples * len(window) / (stamps[-1] - stamps[skip]),
        "iteration_seconds_mean": statistics.fmean(window),
        "iteration_seconds_median": statistics.median(window),
        "iteration_seconds_min": min(window),
        "iteration_seconds_max": max(window),
        "first_iteration_seconds": seconds[0],
    }


def peak_memory(device: torch.device, ranks: Ranks) -> int:
    """Return the largest peak of any rank in bytes: allocated on its GPU, or resident."""
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return largest_over_ranks(peak, ranks, device)


# How many iterations later the host reads a loss. On a GPU the host queues the next iteration
# first, so that the device has work while the host prints; a CPU computes when it is asked to.
READ_LATE = {"cuda": 1, "cpu": 0}


class Ended(NamedTuple):
    """An iteration of which all work is queued; on a GPU it is over once `end` is."""

    number: int
    share: Tensor  # this rank's share of both losses, on the device
    losses: Tensor  # both losses of all ranks, in the host's memory when `end` has come
    end: Any  # seconds of time.perf_counter(), or a CUDA event


def mark_time(device: torch.device) -> Any:
    """Return the time now, or an event that records when the GPU has done its work so far."""
    if device.type != "cuda":
        return time.perf_counter()
    event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def seconds_between(start: Any, end: Any) -> float:
    """Return the seconds between two marks, and wait until the second one has come."""
    if isinstance(end, float):
        return end - float(start)
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000


def finish(trainer: Trainer, number: int, share: Tensor) -> Ended:
    """Queue what ends an iteration: the sum of losses, their way to the host, and the mark.

    The losses are all-reduced behind the optimizer's work, so the mark behind them is the end of
    the iteration on every device, not the moment when its work was queued. The cost is the latency
    of one all-reduce of two numbers. It also shows every rank the same loss, so that all end
    together.
    """
    losses = sum_over_ranks(share.clone(), trainer.ranks)
    if trainer.device.type == "cuda":
        host = torch.empty(losses.shape, dtype=losses.dtype, pin_memory=True)
        losses = host.copy_(losses, non_blocking=True)
    return Ended(number, share, losses, mark_time(trainer.device))


class Trained(NamedTuple):
    """The results of a training."""

    stamps: list[float]  # of the start and of each iteration's end
    loss: float  # the last
    work: Tensor  # `Trainer.work` of the window
    waited: float  # `Trainer.waited` of the window


def run_iterations(trainer: Trainer) -> Trained:
    """Train and print a line per iteration; every rank raises the same NonFiniteLossError."""
    settings, device = trainer.settings, trainer.device
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    # Seconds since 1970, unaffected by adjustments of the system's clock during the run.
    stamps, last_mark = [time.time()], mark_time(device)
    loss, work_before, waited = math.nan, trainer.work.clone(), trainer.waited
    waiting: deque[Ended] = deque()
    iteration = 0
    while iteration < trainer.iters:
        iteration += 1
        if iteration == settings.skip + 1:
            work_before, waited = trainer.work.clone(), trainer.waited
        waiting.append(finish(trainer, iteration, trainer.step()))
        is_last = iteration == trainer.iters
        while len(waiting) > (0 if is_last else READ_LATE[device.type]):
            ended = waiting.popleft()
            stamps.append(stamps[-1] + seconds_between(last_mark, ended.end))
            last_mark = ended.end
            loss = report(trainer, ended, stamps)
        if is_last and settings.window_seconds:
            trainer.iters = count_iterations(trainer, stamps)
    return Trained(stamps, loss, trainer.work - work_before, trainer.waited - waited)


def count_iterations(trainer: Trainer, stamps: Sequence[float]) -> int:
    """Return the iterations after which every rank's window has --window-seconds.

    Those so far if it has; else as many as its mean iteration says, and 5 %. The device has nothing
    to do while the ranks agree, which the window includes.
    """
    settings, count = trainer.settings, len(stamps) - 1
    seconds = stamps[-1] - stamps[settings.skip]
    if seconds < settings.window_seconds:
        factor = 1.05 * settings.window_seconds / seconds
        count = settings.skip + math.ceil(factor * (count - settings.skip))
    return largest_over_ranks(count, trainer.ranks, trainer.device)


def report(trainer: Trainer, ended: Ended, stamps: Sequence[float]) -> float:
    """Print the line of an iteration that is over, and return its loss; NonFiniteLossError."""
    mlm_loss, nsp_loss = ended.losses.tolist()
    loss: float = mlm_loss + nsp_loss
    rate = trainer.global_batch_size / (stamps[-1] - stamps[-2])
    emit(
        f"iteration: {ended.number}/{trainer.iters} loss: {loss:.4f} "
        f"mlm_loss: {mlm_loss:.4f} nsp_loss: {nsp_loss:.4f} samples/s: {rate:.2f} "
        f"time: {stamps[-1]:.6f}",
        trainer.ranks,
    )
    if not math.isfinite(loss):
        ranks, share = trainer.ranks, ended.share
        flags = torch.zeros(ranks.size, device=share.device)
        flags[ranks.rank] = float(not share.isfinite().all())
        culprits = sum_over_ranks(flags, ranks).nonzero().flatten().tolist()
        names = ", ".join(map(str, culprits)) if culprits else "none alone, the sum overflows"
        raise NonFiniteLossError(
            f"the loss of iteration {ended.number} is not finite; rank(s) it comes from: {names}"
        )
    return loss


def measure_all_reduce(settings: Settings, ranks: Ranks, device: torch.device) -> None:
    """Print the bus bandwidth of an all-reduce in GB/s, as nccl-tests does; train nothing.

    Over each link go 2 (n - 1) / n of the bytes (NVIDIA/nccl-tests, doc/PERFORMANCE.md).
    SetupError if the sum is wrong.
    """
    values = torch.empty(settings.all_reduce << 18, device=device)  # float32
    seconds = []
    for _ in range(settings.iters):
        values.fill_(1.0)
        sum_over_ranks(torch.zeros(1, device=device), ranks)  # all begin together
        start_mark = mark_time(device)
        sum_over_ranks(values, ranks)
        seconds.append(seconds_between(start_mark, mark_time(device)))
    if not bool((values == ranks.size).all()):
        raise SetupError(f"an all-reduce of ones over {ranks.size} ranks is not {ranks.size}")
    middle = sorted(seconds[settings.skip :])[(settings.iters - settings.skip) // 2]
    moved = 2 * (ranks.size - 1) / ranks.size * (settings.all_reduce << 20)
    emit(f"# Avg bus bandwidth    : {moved / middle / 1e9:.6f}", ranks)


def train(settings: Settings, ranks: Ranks, environment: Mapping[str, str], started: float) -> None:
    """Set up, train and report; `started` is `time.perf_counter()` when the program began."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    device = choose_device(settings.device, ranks)
    check_precision(settings.precision, device)
    backend = join_ranks(settings, ranks, device, environment)
    if settings.all_reduce:
        measure_all_reduce(settings, ranks, device)
        return
    source = open_source(settings, ranks, device)
    trainer = Trainer(settings, ranks, device, source)
    emit("hpcbert-config " + json.dumps(describe_run(trainer, backend)), ranks)
    run = run_iterations(trainer)
    times = summarize_times(run.stamps, settings.skip, trainer.global_batch_size)
    result = {
        "iters": trainer.iters,
        "skip": settings.skip,
        "global_batch_size": trainer.global_batch_size,
        "world_size": ranks.size,
        **times,
        **summarize_work(trainer, run.work, times["samples_per_second"]),
        "data_wait_seconds": run.waited,
        "final_loss": run.loss,
        "skipped_steps": int(trainer.skipped_steps),
        "peak_memory_bytes": peak_memory(device, ranks),
        "wall_seconds": time.perf_counter() - started,
    }
    emit("hpcbert-result " + json.dumps(result), ranks)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status."""
    started = time.perf_counter()
    settings = parse_settings(argv)
    ranks, status = Ranks(), 1
    try:
        ranks = detect_ranks(os.environ)
        train(settings, ranks, os.environ, started)
    except (SetupError, NonFiniteLossError) as error:
        message, status = str(error), REFUSED if isinstance(error, SetupError) else NON_FINITE_LOSS
    except BaseException:  # noqa: BLE001  # whatever it is, its traceback must come out
        message = traceback.format_exc()
    else:
        # Only now: after a failure it would wait for ranks that wait for this one in an all-reduce.
        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()
        return 0
    with contextlib.suppress(OSError):  # where a full disk has no room for it
        sys.stderr.write(f"bert_pretrain: error: rank {ranks.rank}: {message}\n")
        sys.stderr.flush()
    return status


def leave(status: int) -> None:
    """End the process at once, without Python's own clean-up.

    Gloo's threads outlive `destroy_process_group` and release the last collective's tensors, for
    which they need the interpreter. If it is being finalized just then, CPython before 3.14 ends
    the thread, C++ calls that a terminate, and a run that went well ends with SIGABRT (seen with
    PyTorch 2.13, Python 3.11, in 1 of about 60 trainings by 4 ranks).
    """
    with contextlib.suppress(OSError):  # of lines whose loss has ended the run already
        sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    leave(main())
