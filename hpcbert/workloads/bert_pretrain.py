"""BERT pre-training in PyTorch: the reference workload, one file that needs only torch.

    python bert_pretrain.py --model base --batch-size 32 --precision bf16
    srun -n 16 python bert_pretrain.py --master-addr node1 --master-port 29500
    torchrun --nproc-per-node 8 bert_pretrain.py

A rank learns its place from the innermost launcher, because that one started this process:

1. torchrun: RANK, WORLD_SIZE and LOCAL_RANK.
2. Open MPI's mpirun: OMPI_COMM_WORLD_RANK (or PMIX_RANK), OMPI_COMM_WORLD_SIZE and
   OMPI_COMM_WORLD_LOCAL_RANK. Its daemons are a Slurm step too, so it comes before Slurm.
3. A Slurm step: SLURM_PROCID, SLURM_STEP_NUM_TASKS (else SLURM_NTASKS) and SLURM_LOCALID, but only
   where SLURM_STEP_ID names a step: a batch script sees SLURM_PROCID=0 and SLURM_NTASKS=N as well.
4. None of these: one rank.

It refuses an incomplete set, and two launchers that disagree about the rank.

Rank 0 prints, each line at once and shorter than 1,000 bytes: `hpcbert-config {json}`, one line per
iteration (an optimizer step), and `hpcbert-result {json}`. Rates are samples per second over all
ranks.

Exit status: 0 done; 1 an unexpected error; 2 arguments, environment or data are refused; 3 the loss
of an iteration is not finite, which ends every rank.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import importlib.util
import itertools
import json
import math
import os
import platform
import re
import resource
import shutil
import statistics
import sys
import time
import zipfile
import zlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

REFUSED = 2
NON_FINITE_LOSS = 3

POSITIONS = 512
CLS, SEP, MASK, FIRST_WORD = 101, 102, 103, 104  # ids of BERT's uncased English vocabulary
TILE, NEVER = 64, -1e4  # multiple that the vocabulary is padded to; the logit of a padding token
SHORT, MASKED, AS_MASK, AS_OTHER = 0.1, 0.15, 0.8, 0.1  # shares of samples, tokens, masked tokens
BLOCK, PREFETCHED = 4096, 4  # rows that are read at a time; micro batches that are ready ahead
PREDICTIONS = {128: 20}  # of the published data sets; of other lengths MASKED of the tokens
# Mean share of real tokens by name; "wiki": 255 of 512, as MLPerf Training's Wikipedia has.
FILLS = {"full": 1.0, "wiki": 255 / 512}
PRECISIONS = {"fp32": None, "tf32": None, "fp16": torch.float16, "bf16": torch.bfloat16}

# Layers, hidden size, heads. google-research/bert, README.md: "Smaller BERT Models" and BERT-Base,
# BERT-Large; there heads = hidden / 64 and intermediate = 4 * hidden throughout.
MODELS = {"tiny": (2, 128, 2), "mini": (4, 256, 4), "small": (4, 512, 8), "medium": (8, 512, 8)}
MODELS.update({"base": (12, 768, 12), "large": (24, 1024, 16)})


# Dense peaks in 10^12 operations a second, by the name that the driver reports. Sources: NVIDIA's
# data sheets "V100" (2020), "A100 80GB" (2021), "H100", "H200" and "GH200" (2024), "HGX B200"
# (2025); from H100 on they state tensor cores with sparsity, which is twice the dense peak.
_A100 = {"fp16": 312.0, "bf16": 312.0, "tf32": 156.0, "fp32": 19.5}
_H100 = {"fp16": 989.5, "bf16": 989.5, "tf32": 494.5, "fp32": 67.0}
_H100_NVL = {"fp16": 835.5, "bf16": 835.5, "tf32": 417.5, "fp32": 60.0}
PEAKS = {
    r"(NVIDIA |Tesla )V100-SXM2-(16|32)GB": {"fp16": 125.0, "fp32": 15.7},
    r"(NVIDIA |Tesla )V100-PCIE-(16|32)GB": {"fp16": 112.0, "fp32": 14.0},
    r"(NVIDIA )?A100-(SXM4|SXM|PCIE)-(40|80)GB|NVIDIA A100 80GB PCIe": _A100,
    r"NVIDIA (H100 80GB HBM3|H200|GH200 \d+GB)": _H100,
    r"NVIDIA (H100 NVL|H200 NVL)": _H100_NVL,
    r"NVIDIA H100 PCIe": {"fp16": 756.5, "bf16": 756.5, "tf32": 378.0, "fp32": 51.0},
    r"NVIDIA B200": {"fp16": 2250.0, "bf16": 2250.0, "tf32": 1100.0, "fp32": 75.0},
}


FUSED = True  # AdamW as one kernel for all parameters


class SetupError(Exception):
    """Arguments, environment or data do not allow a run; the message says what to change."""


class NonFiniteLossError(Exception):
    """The loss of an iteration is infinite or not a number."""


def _option(default: Any, text: str, low: float = 0, high: float = math.inf, **extra: Any) -> Any:
    return field(default=default, metadata={"limits": (low, high), "help": text, **extra})


@dataclass(frozen=True)
class Settings:
    """The command line, one field per option, with its default, meaning and limits."""

    model: str = _option("base", "named size", choices=tuple(MODELS))
    layers: int = _option(0, "number of blocks; 0: the named size's")
    hidden: int = _option(0, "width; 0: the named size's")
    heads: int = _option(0, "attention heads; 0: the named size's")
    intermediate: int = _option(0, "width inside the feed-forward layer; 0: four times --hidden")
    vocab: int = _option(30522, "number of tokens", FIRST_WORD + 1)
    dropout: float = _option(0.1, "probability, also inside the attention", 0, 0.99)
    sequence_length: int = _option(128, "tokens a sample, padding included", 5, POSITIONS)
    predictions: int = _option(0, "masked tokens a sample, at most; 0: 20 of 128, else 15 %%")
    fill: str = _option("generator", "real tokens: generator, full, wiki, or their mean share")
    unpad: bool = _option(False, "leave padding out of the computation")
    batch_size: int = _option(32, "samples per device and micro step", 1)
    accumulation: int = _option(1, "micro steps per optimizer step", 1)
    precision: str = _option("fp32", "fp16 and bf16 by autocast", choices=tuple(PRECISIONS))
    weights: str = _option("fp32", "bf16: kept in fp32 too", choices=("fp32", "bf16"))
    iters: int = _option(120, "optimizer steps", 1)
    skip: int = _option(20, "first iterations that the result leaves out")
    lr: float = _option(1e-4, "peak learning rate")
    optimizer: str = _option("adamw", "AdamW, or NVIDIA's LAMB", choices=("adamw", "lamb"))
    warmup: int = _option(-1, "optimizer steps up to the peak; -1: a tenth of --iters", -1)
    clip_norm: float = _option(1.0, "limit of the gradient's norm; 0: none")
    seed: int = _option(42, "of weights, dropout and synthetic data", 0, 2**32 - 1)
    data: str = _option("", "directory of HDF5 or npz files; without it the data are synthetic")
    synthetic_batches: int = _option(32, "distinct micro batches a rank, used in turn", 1)
    device: str = _option("auto", "auto prefers GPUs", choices=("auto", "cpu", "cuda"))
    compile: str = _option(
        "auto", "torch.compile; auto: on GPUs, unless --unpad", choices=("auto", "true", "false")
    )
    threads: int = _option(0, "CPU threads a rank; 0: torch's choice")
    master_addr: str = _option("", "host of rank 0, instead of MASTER_ADDR")
    master_port: int = _option(0, "port of rank 0, instead of MASTER_PORT", 0, 65535)
    timeout: float = _option(600.0, "seconds to wait for another rank", 1)
    all_reduce: int = _option(0, "MiB; only measure an all-reduce of so much; 0: train", 0, 4096)


def _converter(kind: str, low: float, high: float) -> Callable[[str], Any]:
    """Return an argparse type: a text, or a finite number with low <= number <= high."""

    def convert(text: str) -> float:
        try:
            number = int(text) if kind == "int" else float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number ({kind})") from None
        if not (math.isfinite(number) and low <= number <= high):
            limits = f"at least {low}" if high == math.inf else f"between {low} and {high}"
            raise argparse.ArgumentTypeError(f"{text} is not {limits}")
        return number

    return str if kind == "str" else convert


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, from the fields of `Settings`."""
    parser = argparse.ArgumentParser(
        prog="bert_pretrain.py",
        description="Pre-train BERT on synthetic or real data and report samples per second.",
        epilog="Ranks come from torchrun, mpirun or a Slurm step. Exit status: 0 done, 1 unexpected"
        " error, 2 refused arguments, environment or data, 3 non-finite loss.",
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    for option in fields(Settings):
        kind = str(option.type)  # a text, because annotations are not evaluated in this file
        keywords = {"help": option.metadata["help"], "default": option.default}
        if kind == "bool":
            keywords["action"] = "store_true"
        else:
            keywords["type"] = _converter(kind, *option.metadata["limits"])
            keywords["choices"] = option.metadata.get("choices")
        parser.add_argument("--" + option.name.replace("_", "-"), **keywords)
    return parser


def parse_settings(argv: Sequence[str] | None = None) -> Settings:
    """Read the command line; a wrong argument ends the program with status 2 and a sentence."""
    parser = make_parser()
    values = vars(parser.parse_args(argv))
    for number, name in enumerate(("layers", "hidden", "heads")):
        values[name] = values[name] or MODELS[values["model"]][number]
    values["intermediate"] = values["intermediate"] or 4 * values["hidden"]
    length = values["sequence_length"]
    default = PREDICTIONS.get(length, max(1, length * round(100 * MASKED) // 100))
    values["predictions"] = values["predictions"] or default
    if values["warmup"] < 0:
        values["warmup"] = values["iters"] // 10
    settings = Settings(**values)
    for is_wrong, sentence in _contradictions(settings):
        if is_wrong:
            parser.error(sentence)
    try:
        mean_words(settings)
    except ValueError as error:
        parser.error(f"--fill {settings.fill}: {error}")
    return settings


def _contradictions(settings: Settings) -> list[tuple[Any, str]]:
    """Return the conditions that make the settings wrong, each with a sentence about it."""
    words, version = settings.sequence_length - 3, torch.__version__
    return [
        (
            not hasattr(torch.amp, "is_autocast_available"),
            f"This program needs PyTorch 2.4 or newer, this is {version}",
        ),
        (
            settings.hidden % settings.heads,
            f"--heads {settings.heads} does not divide --hidden {settings.hidden}",
        ),
        (
            settings.skip >= settings.iters,
            f"--skip {settings.skip} leaves nothing of --iters {settings.iters}",
        ),
        (
            settings.predictions > words,
            f"--predictions {settings.predictions} exceeds --sequence-length - 3: {words}",
        ),
        (
            settings.compile == "true" and settings.unpad,
            "--compile and --unpad exclude each other: each batch has shapes of its own",
        ),
        (
            settings.weights == "bf16" and settings.precision != "bf16",
            f"--weights bf16 needs --precision bf16, not {settings.precision}",
        ),
        (
            settings.data and settings.fill != "generator",
            "--fill is for synthetic data: those of --data are as full as they are",
        ),
    ]


def mean_words(settings: Settings) -> int:
    """Return a synthetic sample's mean of words, without [CLS] and both [SEP]; ValueError."""
    if settings.fill == "generator":
        return round((1 - SHORT / 2) * settings.sequence_length) - 3
    try:
        share = FILLS.get(settings.fill) or float(settings.fill)
    except ValueError:
        raise ValueError(f"neither generator, {', '.join(FILLS)} nor a number") from None
    least = 5 / settings.sequence_length  # [CLS], two [SEP] and a word in each segment
    if not least <= share <= 1:
        raise ValueError(f"not between {least:.3g} and 1")
    return round(share * settings.sequence_length) - 3


# For each launcher: the variables that identify it, then those of rank, size and local rank; of
# alternatives, the first one that is set. The innermost launcher comes first.
LAUNCHERS = {
    "torchrun": ("RANK WORLD_SIZE LOCAL_RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "mpirun": (
        "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_RANK PMIX_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
    ),
    # Slurm sets SLURM_STEP_ID in steps only: the ids of batch scripts and interactive shells are
    # negative (SchedMD/slurm 00623ba, src/common/env.c, setup_env). SLURM_NTASKS can be the
    # allocation's; the step knows its own size better.
    "slurm": (
        "SLURM_STEP_ID",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS SLURM_NTASKS",
        "SLURM_LOCALID",
    ),
}


@dataclass(frozen=True)
class Ranks:
    """This process among the `size` processes of the run, one per device, and on its node."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    launcher: str = "none"


def detect_ranks(environment: Mapping[str, str]) -> Ranks:
    """Return this process's place, from the launcher's variables as the module's text describes."""
    for launcher, (evidence, *variables) in LAUNCHERS.items():
        if any(name in environment for name in evidence.split()):
            rank, size, local = (_read_number(environment, names.split()) for names in variables)
            ranks = Ranks(rank, size, local, launcher)
            return _check_ranks(ranks, environment.get("PMIX_RANK", ""))
    if "PMIX_RANK" in environment:
        raise SetupError(
            "PMIX_RANK is set, but neither OMPI_COMM_WORLD_SIZE nor a Slurm step gives the number "
            "of ranks; start with mpirun, srun or torchrun, or unset PMIX_RANK for a single rank"
        )
    return Ranks()


def _read_number(environment: Mapping[str, str], names: Sequence[str]) -> int:
    name = next((name for name in names if name in environment), "")
    if not name:
        raise SetupError(f"the launcher's variables are incomplete: no {' or '.join(names)}")
    if not environment[name].isdigit():
        raise SetupError(f"{name}={environment[name]!r} is not a number")
    return int(environment[name])


def _check_ranks(ranks: Ranks, pmix_rank: str) -> Ranks:
    if max(ranks.rank, ranks.local_rank) >= ranks.size:
        raise SetupError(f"the launcher's variables contradict each other: {ranks}")
    if ranks.launcher != "torchrun" and pmix_rank not in ("", str(ranks.rank)):
        raise SetupError(
            f"PMIX_RANK={pmix_rank} contradicts rank {ranks.rank} of {ranks.launcher}; unset the "
            "variables of the launcher that did not start this process"
        )
    return ranks


def choose_device(name: str, ranks: Ranks) -> torch.device:
    """Return the CPU, or this rank's GPU among the visible ones; SetupError if there is none."""
    has_gpu = torch.cuda.is_available()
    if name == "cpu" or (name == "auto" and not has_gpu):
        return torch.device("cpu")
    if not has_gpu:
        raise SetupError("--device cuda: PyTorch sees no GPU here")
    visible = torch.cuda.device_count()
    # Where the launcher shows each task its own GPU only, that one is number 0 for every task.
    index = 0 if visible == 1 else ranks.local_rank
    if index >= visible:
        raise SetupError(f"local rank {ranks.local_rank} has no GPU, only {visible} are visible")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def join_ranks(
    settings: Settings, ranks: Ranks, device: torch.device, environment: Mapping[str, str]
) -> str:
    """Create the process group, unless there is only one rank, and return the backend's name.

    SetupError if the address of rank 0 is unknown or not every rank gets there in time.
    """
    if ranks.size == 1:
        return "none"
    address = settings.master_addr or environment.get("MASTER_ADDR", "")
    port = str(settings.master_port or environment.get("MASTER_PORT", ""))
    if not address or not port:
        raise SetupError(
            f"{ranks.size} ranks need the address of rank 0: set MASTER_ADDR and MASTER_PORT or "
            "give --master-addr and --master-port"
        )
    # PyTorch's build for ROCm calls AMD's GPUs "cuda" and RCCL "nccl".
    backend = "nccl" if device.type == "cuda" else "gloo"
    # env:// and not tcp://, because under torchrun the port is already served by its agent.
    os.environ.update(MASTER_ADDR=address, MASTER_PORT=port)
    limit = timedelta(seconds=settings.timeout)
    try:
        dist.init_process_group(backend, rank=ranks.rank, world_size=ranks.size, timeout=limit)
    except (RuntimeError, ValueError) as error:
        raise SetupError(f"cannot join the other ranks at {address}:{port}: {error}") from error
    return backend


def sum_over_ranks(value: Tensor, ranks: Ranks) -> Tensor:
    """Replace `value` by the sum of every rank's, and return it."""
    if ranks.size > 1:
        dist.all_reduce(value)
    return value


def check_precision(precision: str, device: torch.device) -> None:
    """Raise SetupError for a precision that the device or this PyTorch would not really use."""
    on_cpu = device.type == "cpu"
    if on_cpu and precision == "tf32":
        raise SetupError("--precision tf32 is a mode of NVIDIA's tensor cores, not of CPUs")
    if not on_cpu and torch.version.hip:
        # What PyTorch's build for ROCm calls a capability is AMD's own number of the architecture.
        if precision == "tf32":
            raise SetupError(
                "--precision tf32 is a mode of NVIDIA's tensor cores, not of AMD's GPUs"
            )
    elif not on_cpu and precision in ("tf32", "bf16"):
        if torch.cuda.get_device_capability(device) < (8, 0):
            raise SetupError(f"--precision {precision} needs compute capability 8.0 or newer")
        if precision == "tf32" and os.environ.get("NVIDIA_TF32_OVERRIDE") == "0":
            raise SetupError("--precision tf32 contradicts NVIDIA_TF32_OVERRIDE=0")


def autocast(settings: Settings, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which matrix products of fp32 weights are done in the precision."""
    dtype = PRECISIONS[settings.precision] if settings.weights == "fp32" else None
    return torch.autocast(device.type, dtype=dtype) if dtype else contextlib.nullcontext()


class Batch(NamedTuple):
    """One micro batch: B samples of S tokens with P predictions each."""

    input_ids: Tensor  # int64 [B, S]
    segment_ids: Tensor  # 0 or 1, int64 [B, S]
    attention_mask: Tensor  # False for padding, bool [B, S]
    masked_positions: Tensor  # 0 for padding, int64 [B, P]
    masked_ids: Tensor  # the tokens to predict, int64 [B, P]
    masked_weights: Tensor  # 1 for a prediction and 0 for padding, float32 [B, P]
    next_sentence_labels: Tensor  # 0 or 1, int64 [B]


FIELDS = len(Batch._fields)


class Packing(NamedTuple):
    """Where the T real tokens of a micro batch are, for a model that leaves padding out."""

    lengths: tuple[int, ...]  # real tokens of each sample
    places: Tensor  # of the real tokens among all B * S, int64 [T]
    starts: Tensor  # of each sample's first token among the real ones, int64 [B]
    predicted: Tensor  # of the N predictions that are not padding among all B * P, int64 [N]
    masked: Tensor  # of their tokens among the real ones, int64 [N]


def lay_out(batch: Batch) -> Packing:
    """Find the real tokens and predictions; on a GPU this waits, so sources do it beforehand."""
    lengths = batch.attention_mask.sum(dim=1)
    predicted = batch.masked_weights.flatten().nonzero()[:, 0]
    rows = predicted // batch.masked_positions.shape[1]
    among_real = batch.attention_mask.flatten().cumsum(0) - 1
    among_all = rows * batch.input_ids.shape[1] + batch.masked_positions.flatten()[predicted]
    return Packing(
        lengths=tuple(lengths.tolist()),
        places=batch.attention_mask.flatten().nonzero()[:, 0],
        starts=lengths.cumsum(0) - lengths,
        predicted=predicted,
        masked=among_real[among_all],
    )


class Block(nn.Module):
    """One encoder layer, normalized after each residual sum as in the BERT paper."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.heads = settings.heads
        self.query_key_value = nn.Linear(settings.hidden, 3 * settings.hidden)
        self.attention_output = nn.Linear(settings.hidden, settings.hidden)
        self.attention_norm = nn.LayerNorm(settings.hidden, eps=1e-12)
        self.expand = nn.Linear(settings.hidden, settings.intermediate)
        self.contract = nn.Linear(settings.intermediate, settings.hidden)
        self.norm = nn.LayerNorm(settings.hidden, eps=1e-12)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, hidden: Tensor, mask: Tensor | None, lengths: tuple[int, ...] = ()) -> Tensor:
        """Return [B, S, hidden], for `mask` [B, 1, 1, S]; or [T, hidden], for T = sum(lengths)."""
        projected = self.query_key_value(hidden)
        if lengths:
            # One call a sample, without a mask: on CPUs faster than putting the padding back for
            # the attention alone (benchmarks/README.md).
            parts = projected.split(lengths)
            context = torch.cat([self._attend(part.unsqueeze(0), None)[0] for part in parts])
        else:
            context = self._attend(projected, mask)
        attended = self.attention_output(context)
        hidden = self.attention_norm(hidden + self.dropout(attended))
        expanded = functional.gelu(self.expand(hidden))
        result: Tensor = self.norm(hidden + self.dropout(self.contract(expanded)))
        return result

    def _attend(self, projected: Tensor, mask: Tensor | None) -> Tensor:
        batch, length, width = projected.shape
        split = projected.view(batch, length, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        dropout = self.dropout.p if self.training else 0.0
        context = functional.scaled_dot_product_attention(query, key, value, mask, dropout)
        return context.transpose(1, 2).reshape(batch, length, width // 3)


class Bert(nn.Module):
    """Embeddings, encoder and pooler (Devlin et al. 2019, section 3)."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.is_full = settings.fill == "full"  # a mask would only slow the attention down
        self.token = nn.Embedding(padded_vocab(settings), settings.hidden)
        self.position = nn.Embedding(POSITIONS, settings.hidden)
        self.segment = nn.Embedding(2, settings.hidden)
        self.norm = nn.LayerNorm(settings.hidden, eps=1e-12)
        self.dropout = nn.Dropout(settings.dropout)
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.layers))
        self.pooler = nn.Linear(settings.hidden, settings.hidden)

    def forward(
        self,
        input_ids: Tensor,
        segment_ids: Tensor,
        attention_mask: Tensor,
        layout: Packing | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the sequence [B, S, hidden] (with a layout [T, hidden]) and the pooled tokens."""
        length, lengths = input_ids.shape[1], layout.lengths if layout else ()
        if layout is None:
            position = self.position.weight[:length]
        else:
            input_ids = input_ids.flatten()[layout.places]
            segment_ids = segment_ids.flatten()[layout.places]
            position = self.position(layout.places % length)
        total = self.token(input_ids) + position + self.segment(segment_ids)
        hidden = self.dropout(self.norm(total))
        mask = None if self.is_full else attention_mask[:, None, None, :]
        for block in self.blocks:
            hidden = block(hidden, mask, lengths)
        first = hidden[:, 0] if layout is None else hidden[layout.starts]
        return hidden, torch.tanh(self.pooler(first))


class BertForPreTraining(nn.Module):
    """BERT with its two pre-training heads; the masked-LM decoder shares the token embeddings."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.bert = Bert(settings)
        self.transform = nn.Linear(settings.hidden, settings.hidden)
        self.transform_norm = nn.LayerNorm(settings.hidden, eps=1e-12)
        self.decoder_bias = nn.Parameter(torch.zeros(padded_vocab(settings)))
        self.next_sentence = nn.Linear(settings.hidden, 2)
        self.apply(_initialize)
        with torch.no_grad():
            # Their probability is exactly 0, so that no gradient ever reaches them.
            self.decoder_bias[settings.vocab :] = NEVER
            self.bert.token.weight[settings.vocab :] = 0

    def forward(self, *fields: Any) -> tuple[Tensor, Tensor]:
        """Return the summed losses of masked tokens and of sentence pairs of a `Batch`.

        A `Packing` behind the batch's fields leaves padding out: of tokens and of predictions.
        """
        batch = Batch(*fields[:FIELDS])
        layout: Packing | None = fields[FIELDS] if len(fields) > FIELDS else None
        sequence, pooled = self.bert(
            batch.input_ids, batch.segment_ids, batch.attention_mask, layout
        )
        labels, weights = batch.masked_ids.flatten(), batch.masked_weights.flatten()
        if layout is None:
            index = batch.masked_positions.unsqueeze(-1).expand(-1, -1, sequence.shape[-1])
            masked = sequence.gather(1, index).flatten(0, 1)
        else:
            masked = sequence[layout.masked]
            labels, weights = labels[layout.predicted], weights[layout.predicted]
        masked = functional.gelu(self.transform(masked))
        # Like all other norms in full precision, which autocast sees to on GPUs only.
        masked = self.transform_norm(masked.to(self.decoder_bias.dtype))
        logits = functional.linear(masked, self.bert.token.weight, self.decoder_bias)
        mlm_sum = (_cross_entropy(logits, labels) * weights).sum()
        nsp_sum = _cross_entropy(self.next_sentence(pooled), batch.next_sentence_labels).sum()
        return mlm_sum, nsp_sum


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return functional.cross_entropy(wide, labels, reduction="none")


def padded_vocab(settings: Settings) -> int:
    """Return the rows of the embedding table: tensor cores want multiples of 64."""
    return -(-settings.vocab // TILE) * TILE


def count_parameters(settings: Settings, module: nn.Module) -> int:
    """Return the number of weights, without the rows that only pad the vocabulary."""
    rows = padded_vocab(settings) - settings.vocab
    return sum(value.numel() for value in module.parameters()) - rows * (settings.hidden + 1)


def _initialize(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def _mix(bits: Tensor) -> Tensor:
    """Hash 32-bit numbers held in int64: "lowbias32" of skeeto/hash-prospector.

    The second factor is written negative so that no product leaves 64 bits.
    """
    bits = bits & 0xFFFFFFFF
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    bits = ((bits ^ (bits >> 15)) * (0x846CA68B - 2**32)) & 0xFFFFFFFF
    return bits ^ (bits >> 16)


class Noise:
    """Random numbers of samples: a row depends on its sample's number and the seed alone."""

    def __init__(self, samples: Tensor, seed: int) -> None:
        self._keys = _mix(samples + (seed + 1) * 0x9E3779B9).unsqueeze(1)
        self._streams = itertools.count(1)

    def bits(self, width: int) -> Tensor:
        """Return the next `width` 32-bit numbers of each sample, int64 [B, width]."""
        columns = torch.arange(width, device=self._keys.device) * 0x9E3779B9
        return _mix(_mix(self._keys + next(self._streams) * 0x85EBCA6B) + columns)

    def uniform(self, width: int = 1) -> Tensor:
        """Return numbers in [0, 1), float64 [B, width]."""
        return self.bits(width).double() / 2**32

    def words(self, width: int, vocab: int) -> Tensor:
        """Return ordinary tokens by Zipf's law, int64 [B, width]."""
        powers = float(vocab - FIRST_WORD + 1) ** self.uniform(width)
        return (FIRST_WORD - 1 + powers.long()).clamp(max=vocab - 1)


def synthesize(samples: Tensor, settings: Settings) -> Batch:
    """Make the synthetic samples with the given numbers, int64 [B], on their device.

    A sample is the same whichever rank makes it, in whichever batch. The statistics are those of
    google-research/bert, create_pretraining_data.py: nine of ten samples are full, the others of
    any length, unless --fill spreads the lengths evenly around a mean; the two segments meet
    anywhere; 15 % of the tokens are predicted, 80 % of them replaced by [MASK] and 10 % by another
    word; half of the pairs are labelled random.
    """
    noise, room = Noise(samples, settings.seed), settings.sequence_length - 3
    is_short, size = noise.uniform() < SHORT, noise.uniform()
    if settings.fill == "generator":
        total = torch.where(is_short, 2 + (size * (room - 1)).long(), room)
    else:
        mean = mean_words(settings)
        reach = min(mean - 2, room - mean)
        total = mean - reach + (size * (2 * reach + 1)).long()
    first = 1 + (noise.uniform() * (total - 1)).long()
    position = torch.arange(settings.sequence_length, device=samples.device)
    attention_mask = position < total + 3
    is_separator = (position == first + 1) | (position == total + 2)
    is_word = attention_mask & ~is_separator & (position > 0)
    words = noise.words(settings.sequence_length, settings.vocab)
    input_ids = torch.where(is_word, words, SEP * is_separator.long())
    input_ids[:, 0] = CLS
    positions, is_wanted = _choose_masked(noise, is_word, total + 3, settings.predictions)
    originals = input_ids.gather(1, positions)
    fate = noise.uniform(settings.predictions)
    other_words = noise.words(settings.predictions, settings.vocab)
    replaced = torch.where(fate < AS_MASK + AS_OTHER, other_words, originals)
    # Padding predictions sit on position 0, where they put back what was there: [CLS].
    replaced = torch.where(is_wanted, replaced.masked_fill(fate < AS_MASK, MASK), originals)
    return Batch(
        input_ids=input_ids.scatter(1, positions, replaced),
        segment_ids=(attention_mask & (position > first + 1)).long(),
        attention_mask=attention_mask,
        masked_positions=positions,
        masked_ids=originals * is_wanted,
        masked_weights=is_wanted.float(),
        next_sentence_labels=(noise.bits(1) % 2).squeeze(1),
    )


def _choose_masked(
    noise: Noise, is_word: Tensor, tokens: Tensor, predictions: int
) -> tuple[Tensor, Tensor]:
    counts = (tokens * MASKED).round().long().clamp(1, predictions)
    is_wanted = torch.arange(predictions, device=counts.device) < counts
    length = is_word.shape[1]
    # The position makes the key unique, so that no sort can settle a tie in another way.
    keys = noise.bits(length) * length + torch.arange(length, device=counts.device)
    order = keys.masked_fill(~is_word, 2**62).argsort(dim=1)
    return order[:, :predictions] * is_wanted, is_wanted


def synthetic_source(
    settings: Settings, ranks: Ranks, device: torch.device
) -> Iterator[tuple[Any, ...]]:
    """Make a rank's micro batches before the clock starts, and repeat them without end.

    Micro batch i of all ranks together is a run of consecutive samples, so two ranks see together
    what one rank with the doubled batch sees.
    """
    size = settings.batch_size
    distinct = min(settings.synthetic_batches, settings.iters * settings.accumulation)
    starts = ((number * ranks.size + ranks.rank) * size for number in range(distinct))
    pool = [
        synthesize(torch.arange(start, start + size, device=device), settings) for start in starts
    ]
    return itertools.cycle([with_layout(batch, settings) for batch in pool])


def with_layout(batch: Batch, settings: Settings) -> tuple[Any, ...]:
    """Return the model's arguments: a batch's fields, and a `Packing` to leave padding out."""
    return (*batch, lay_out(batch)) if settings.unpad else batch


def assign_shards(count: int, ranks: Ranks) -> list[tuple[int, int, int]]:
    """Return the shards that a rank reads: number, first row and row stride of each.

    Shards go round robin. Where there are fewer shards than ranks, the ranks that meet at a shard
    take its rows in turn.
    """
    if count >= ranks.size:
        return [(number, 0, 1) for number in range(ranks.rank, count, ranks.size)]
    shard = ranks.rank % count
    return [(shard, ranks.rank // count, len(range(shard, ranks.size, count)))]


class Shard(NamedTuple):
    """One rank's part of a file: rows `first`, `first` + `stride` and so on."""

    path: Path
    first: int
    stride: int


@contextlib.contextmanager
def open_columns(path: Path) -> Iterator[Mapping[str, Any]]:
    """Open a file of training data: names and arrays, or what h5py reads like them.

    HDF5 is NVIDIA's (NVIDIA/DeepLearningExamples@fd9fecd, PyTorch/LanguageModeling/BERT), npz is
    GluonNLP's (dmlc/gluon-nlp@7b7bf60, scripts/bert/data), both by create_pretraining_data.py.
    """
    with path.open("rb") as file:
        is_zip = file.read(4) == b"PK\x03\x04"
    # Only --data needs more than torch.
    package = "numpy" if is_zip else "h5py"
    try:
        reader = importlib.import_module(package)
    except ImportError as error:
        raise SetupError(f"--data needs the Python package {package}") from error
    if not is_zip:
        with reader.File(path, "r") as columns:
            yield columns
        return
    # Opened here: numpy leaves a file open that is not a whole zip file.
    with path.open("rb") as file, reader.load(file, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    if {"input_ids", "valid_lengths"} <= set(arrays):
        position = reader.arange(arrays["input_ids"].shape[-1])
        arrays["input_mask"] = (position < arrays["valid_lengths"][:, None]).astype("int8")
    yield arrays


def read_shard(shard: Shard, settings: Settings) -> Iterator[Batch]:
    """Yield a shard's rows, some thousand at a time.

    SetupError if the file is not training data, or does not fit the settings.
    """
    try:
        with open_columns(shard.path) as columns:
            _check_columns(columns, settings)
            count = len(columns["input_ids"])
            for begin in range(0, count, BLOCK):
                rows = range(begin, min(begin + BLOCK, count))
                selection = slice((shard.first - begin) % shard.stride, None, shard.stride)
                yield _read_rows(columns, slice(rows.start, rows.stop), selection, settings)
    except (*UNREADABLE, zipfile.BadZipFile, zlib.error) as error:
        raise SetupError(f"{shard.path}: not a shard that fits the settings: {error}") from error


UNREADABLE = (OSError, KeyError, AttributeError, TypeError, ValueError, IndexError, RuntimeError)


def _expected(settings: Settings) -> dict[str, tuple[tuple[int, ...], int, str]]:
    """Return each column's shape of a row, limit of values, and the options to blame."""
    length, predictions, vocab = settings.sequence_length, settings.predictions, settings.vocab
    return {
        "input_ids": ((length,), vocab, "--sequence-length, --vocab"),
        "input_mask": ((length,), 2, "--sequence-length"),
        "segment_ids": ((length,), 2, "--sequence-length"),
        "masked_lm_positions": ((predictions,), length, "--predictions, --sequence-length"),
        "masked_lm_ids": ((predictions,), vocab, "--predictions, --vocab"),
        "next_sentence_labels": ((), 2, ""),
    }


def _check_columns(columns: Mapping[str, Any], settings: Settings) -> None:
    for name, (shape, _, blamed) in _expected(settings).items():
        if name not in columns:
            raise ValueError(f"it has no {name}")
        column, expected = columns[name], (len(columns["input_ids"]), *shape)
        if column.shape != expected or column.dtype.kind not in "iu" or not column.size:
            actual = f"{column.dtype} {tuple(column.shape)}"
            hint = f" ({blamed})" if column.shape[1:] != shape and blamed else ""
            raise ValueError(
                f"{name} is {actual}, which should be integers {expected}, not empty{hint}"
            )


def _read_rows(
    columns: Mapping[str, Any], rows: slice, selection: slice, settings: Settings
) -> Batch:
    values = {}
    for name, (_, limit, blamed) in _expected(settings).items():
        column = values[name] = torch.from_numpy(columns[name][rows].astype("int64"))[selection]
        if column.numel() and not 0 <= int(column.min()) <= int(column.max()) < limit:
            hint = f" ({blamed})" if blamed else ""
            raise ValueError(f"{name} has values outside 0 to {limit - 1}{hint}")
    mask, positions = values["input_mask"].bool(), values["masked_lm_positions"]
    # Position 0 holds [CLS], which is never masked: there it pads the list.
    weights = (positions != 0).float()
    if "masked_lm_weights" in columns:
        weights = torch.from_numpy(columns["masked_lm_weights"][rows].astype("float32"))[selection]
        if weights.shape != positions.shape or not ((weights == 0) | (weights == 1)).all():
            raise ValueError("masked_lm_weights must have 0 or 1 for each prediction")
    if not mask[:, 0].all():
        raise ValueError("input_mask leaves out the first token of a sample")
    if not mask.gather(1, positions).all():
        raise ValueError("masked_lm_positions has a prediction in the padding")
    return Batch(
        input_ids=values["input_ids"],
        segment_ids=values["segment_ids"],
        attention_mask=mask,
        masked_positions=positions,
        masked_ids=values["masked_lm_ids"],
        masked_weights=weights,
        next_sentence_labels=values["next_sentence_labels"],
    )


def find_shards(settings: Settings, ranks: Ranks) -> list[Shard]:
    """Return this rank's part of the data, after a look at as many rows as the run needs.

    SetupError if there are no shards, one is malformed, or the rows do not fill a batch.
    """
    directory = Path(settings.data)
    try:
        paths = sorted(path for path in directory.iterdir() if "training" in path.name)
    except OSError as error:
        raise SetupError(f"--data {directory}: {error.strerror}") from error
    if not paths:
        raise SetupError(f"--data {directory}: no file has 'training' in its name")
    shares = assign_shards(len(paths), ranks)
    shards = [Shard(paths[number], first, stride) for number, first, stride in shares]
    needed, count = settings.iters * settings.accumulation * settings.batch_size, 0
    for block in itertools.chain.from_iterable(read_shard(shard, settings) for shard in shards):
        count += len(block.input_ids)
        if count >= needed:
            break
    if count < settings.batch_size:
        raise SetupError(
            f"--data {directory}: {count} rows do not fill a batch of {settings.batch_size}"
        )
    return shards


def batches_of(shards: Sequence[Shard], settings: Settings) -> Iterator[Batch]:
    """Yield the shards' rows in order, one micro batch at a time, without end."""
    batch: Batch | None = None
    for shard in itertools.cycle(shards):
        for block in read_shard(shard, settings):
            parts = [block] if batch is None else [batch, block]
            batch = Batch(*(torch.cat(values) for values in zip(*parts)))  # noqa: B905  # needs 3.10
            while len(batch.input_ids) >= settings.batch_size:
                yield Batch(*(values[: settings.batch_size] for values in batch))
                batch = Batch(*(values[settings.batch_size :] for values in batch))


class Prefetcher:
    """Micro batches that a thread reads, lays out and pins while the device computes."""

    def __init__(self, batches: Iterator[Batch], settings: Settings, device: torch.device) -> None:
        self._batches, self._settings, self._device = batches, settings, device
        self._thread = ThreadPoolExecutor(1, "data")
        self._waiting = deque(self._thread.submit(self._prepare) for _ in range(PREFETCHED))

    def _prepare(self) -> tuple[Any, ...]:
        batch = with_layout(next(self._batches), self._settings)
        if self._device.type == "cuda":
            batch = convert(batch, Tensor.pin_memory)
        return batch

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self

    def __next__(self) -> tuple[Any, ...]:
        """Return the next micro batch, on its way to the device."""
        batch = self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(self._prepare))
        moved: tuple[Any, ...] = convert(batch, self._to_device)
        return moved

    def _to_device(self, value: Tensor) -> Tensor:
        return value.to(self._device, non_blocking=True)


def convert(values: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return named or plain tuples of tensors and numbers with the tensors changed."""
    if isinstance(values, Tensor):
        return change(values)
    if not isinstance(values, tuple):
        return values
    changed = [convert(value, change) for value in values]
    return type(values)(*changed) if hasattr(values, "_fields") else tuple(changed)


def open_source(
    settings: Settings, ranks: Ranks, device: torch.device
) -> Iterator[tuple[Any, ...]]:
    """Return this rank's endless micro batches.

    If one rank cannot use its data, every rank raises SetupError, so that none waits.
    """
    if not settings.data:
        return synthetic_source(settings, ranks, device)
    failure, shards = None, None
    try:
        shards = find_shards(settings, ranks)
    except SetupError as error:
        failure = error
    failures = sum_over_ranks(torch.tensor(float(shards is None), device=device), ranks)
    if failures or shards is None:
        raise failure or SetupError(f"{int(failures)} other rank(s) cannot use their data")
    return Prefetcher(batches_of(shards, settings), settings, device)


def learning_rate(step: int, settings: Settings) -> float:
    """Return the rate of optimizer step `step` (from 0): linear up to the peak, then linear down.

    The divisor of the second part is never zero: it is reached only where warmup <= step < iters.
    """
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    return settings.lr * (settings.iters - step) / (settings.iters - settings.warmup)


class Lamb(torch.optim.Optimizer):
    """LAMB (You et al. 2020, arXiv:1904.00962) as NVIDIA's BERT runs it.

    NVIDIA/DeepLearningExamples@729963d, PyTorch/LanguageModeling/BERT: run_pretraining.py lines
    423-430, lamb_amp_opt/csrc/multi_tensor_lamb.cu; the same formula as NVIDIA/apex@6424da3,
    csrc/multi_tensor_lamb.cu. Gradients are clipped by their global norm, over all groups, before
    (--clip-norm, 1). Adam's means with bias correction give the update, decoupled decay is added to
    it (MOMENT_MODE_1), and it is scaled by the norm of the weights over its own, a tensor at a
    time; by 1 where either norm is zero. Tensors without decay, biases and norms, are not scaled
    (use_nvlamb off). A group's `parts` says how many of NVIDIA's tensors one of its tensors holds.

    `grad_scale` and `found_inf` are what torch's own fused optimizers take by these names: what
    gradients are divided by, and 1.0 where they are not finite and nothing must change. Nothing
    here asks the device for a number.
    """

    _step_supports_amp_scaling = True
    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None

    def __init__(self, groups: list[dict[str, Any]], eps: float) -> None:
        super().__init__(groups, {"lr": 0.0, "betas": (0.9, 0.999), "eps": eps, "parts": 1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all tensors that have a gradient; closures are not supported."""
        if closure is not None:
            raise ValueError("Lamb takes no closure")
        for group in self.param_groups:
            values = [value for value in group["params"] if value.grad is not None]
            if values:
                self._update(values, [value.grad for value in values], group)

    def _update(self, values: list[Tensor], gradients: list[Any], group: dict[str, Any]) -> None:
        for value in values:
            if not self.state[value]:
                tensors = {"mean": torch.zeros_like(value), "square": torch.zeros_like(value)}
                self.state[value].update(tensors)
        means = [self.state[value]["mean"] for value in values]
        squares = [self.state[value]["square"] for value in values]
        if self.grad_scale is not None:
            torch._foreach_div_(gradients, self.grad_scale)
        counts: Any = 1.0  # 0.0: the step overflowed, and changes nothing
        if self.found_inf is not None:
            counts = 1.0 - self.found_inf
            gradients = [
                gradient.where(counts > 0, torch.zeros_like(gradient)) for gradient in gradients
            ]
        steps = group["step"] = group.get("step", 0.0) + counts
        number = steps + (1 - counts)
        beta, slow = group["betas"]
        torch._foreach_mul_(means, 1 - (1 - beta) * counts)
        torch._foreach_add_(means, gradients, alpha=1 - beta)
        torch._foreach_mul_(squares, 1 - (1 - slow) * counts)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - slow)
        divisors = torch._foreach_div(squares, 1 - slow**number)
        torch._foreach_sqrt_(divisors)
        torch._foreach_add_(divisors, group["eps"])
        updates = torch._foreach_div(means, 1 - beta**number)
        torch._foreach_div_(updates, divisors)
        if group["weight_decay"]:
            torch._foreach_add_(updates, values, alpha=group["weight_decay"])
            _adapt(values, list(updates), group["parts"])
        torch._foreach_mul_(updates, -group["lr"] * counts)
        torch._foreach_add_(values, updates)


def _adapt(values: list[Tensor], updates: list[Tensor], parts: int) -> None:
    """Scale each part of each update by LAMB's trust ratio."""
    pieces = [piece for update in updates for piece in update.chunk(parts)]
    weights = torch._foreach_norm([piece for value in values for piece in value.chunk(parts)])
    ratios = torch.stack(weights) / torch.stack(torch._foreach_norm(pieces))
    # Infinite or not a number where a norm is zero.
    usable = ratios.isfinite() & (ratios > 0)
    torch._foreach_mul_(pieces, list(ratios.where(usable, torch.ones_like(ratios))))


def make_optimizer(model: nn.Module, name: str = "adamw") -> torch.optim.Optimizer:
    """Return AdamW or LAMB with BERT's settings; biases and LayerNorms do not decay.

    google-research/bert, optimization.py: decay 0.01, betas 0.9 and 0.999, epsilon 1e-6; NVIDIA's
    LAMB takes the same.
    """
    threes = [part.query_key_value.weight for part in model.modules() if isinstance(part, Block)]
    three_ids = {id(value) for value in threes}
    matrices = [
        value for value in model.parameters() if value.dim() > 1 and id(value) not in three_ids
    ]
    vectors = [value for value in model.parameters() if value.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": 0.01},
        {"params": threes, "weight_decay": 0.01, "parts": 3},
        {"params": vectors, "weight_decay": 0.0},
    ]
    if name == "lamb":
        return Lamb(groups, eps=1e-6)
    return torch.optim.AdamW(groups, lr=0.0, eps=1e-6, fused=FUSED)


def wants_compile(settings: Settings, device: torch.device) -> bool:
    """Return whether to use torch.compile: as set, or on GPUs wherever it can work.

    Inductor's kernels are Triton's, and Triton builds their launcher with a C compiler
    (triton-lang/triton, python/triton/runtime/build.py: CC, else gcc or clang).
    """
    if settings.compile != "auto":
        return settings.compile == "true"
    has_compiler = bool(os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang"))
    can = has_compiler and importlib.util.find_spec("triton") is not None
    return can and device.type == "cuda" and not settings.unpad


class LossScale:
    """The factor on losses that keeps fp16's gradients from becoming zero; 1 in other precisions.

    It moves as torch.amp.GradScaler's does by default, halved by an overflow and doubled after
    2,000 steps without, but whether a step overflowed stays on the device.
    """

    START = 2.0**16

    def __init__(self, precision: str, device: torch.device) -> None:
        self.moves = precision == "fp16"
        self.value = torch.full((), self.START if self.moves else 1.0, device=device)
        self._without = torch.zeros((), dtype=torch.int32, device=device)

    def move(self, overflow: Tensor) -> None:
        """Follow a step; `overflow` is 1.0 where its gradients were not finite, else 0.0."""
        torch._amp_update_scale_(self.value, self._without, overflow, 2.0, 0.5, 2000)


def total_norm(gradients: list[Tensor]) -> Tensor:
    """Return the norm of all gradients together, float32."""
    total: Tensor = torch.stack(list(torch._foreach_norm(gradients))).norm().float()
    return total


class Trainer:
    """One rank's model, optimizer and data; `module` is the model without any wrapper."""

    def __init__(
        self,
        settings: Settings,
        ranks: Ranks,
        device: torch.device,
        source: Iterator[tuple[Any, ...]],
    ) -> None:
        # "highest" also undoes TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1, which some images set.
        torch.set_float32_matmul_precision("high" if settings.precision == "tf32" else "highest")
        torch.manual_seed(settings.seed)
        self.module = BertForPreTraining(settings).to(device)
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
        self.skipped_steps = torch.zeros((), dtype=torch.int64, device=device)
        # This rank's real tokens, squares of the samples' lengths, and predictions so far.
        self.work = torch.zeros(3, dtype=torch.float64, device=device)
        parallel = DistributedDataParallel if ranks.size > 1 else None
        self._parallel = parallel(self._worker, gradient_as_bucket_view=True) if parallel else None
        model: Callable[..., Any] = self._parallel or self._worker
        self.compiles = wants_compile(settings, device)
        self._model = torch.compile(model) if self.compiles else model

    def step(self) -> Tensor:
        """Do one optimizer step and return this rank's share of both losses, on the device.

        Sums over all samples of the step are divided by counts over all ranks, so that the losses
        and gradients are those of one rank with the whole batch, however unevenly the predictions
        are spread over ranks and micro steps. Its price is one more all-reduce, of one number.
        """
        begin = time.perf_counter()
        batches = [next(self.source) for _ in range(self.settings.accumulation)]
        self.waited += time.perf_counter() - begin
        work = torch.stack([count_work(Batch(*fields[:FIELDS])) for fields in batches]).sum(0)
        self.work += work
        predictions = work[2].float()
        predictions = sum_over_ranks(predictions, self.ranks).clamp(min=1)
        total = torch.zeros(2, device=self.device)
        for number, batch in enumerate(batches, 1):
            with self._gradients_stay_here(number < len(batches)):
                with autocast(self.settings, self.device):
                    mlm_sum, nsp_sum = self._model(*batch)
                losses = torch.stack([mlm_sum / predictions, nsp_sum / self.global_batch_size])
                # DistributedDataParallel averages over ranks, but this needs the sum.
                torch.autograd.backward(losses.sum() * self.ranks.size * self.loss_scale.value)
            total += losses.detach()
        self._update()
        return total

    def _gradients_stay_here(self, is_partial: bool) -> contextlib.AbstractContextManager[Any]:
        if is_partial and self._parallel is not None:
            return self._parallel.no_sync()
        return contextlib.nullcontext()

    def _update(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.steps, self.settings)
        weights: list[Tensor] = list(self.module.parameters())
        working: list[Tensor] = list(self._worker.parameters())
        is_copied = self._worker is not self.module
        if is_copied:
            for weight, copied in zip(weights, working):  # noqa: B905  # needs Python 3.10
                weight.grad = None if copied.grad is None else copied.grad.to(weight.dtype)
            self._worker.zero_grad(set_to_none=True)
        gradients = [weight.grad for weight in weights if weight.grad is not None]
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
        self.optimizer.zero_grad(set_to_none=True)
        if is_copied:
            with torch.no_grad():
                torch._foreach_copy_(working, weights)
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


def count_work(batch: Batch) -> Tensor:
    """Return real tokens, squares of the samples' lengths, and predictions, float64 [3]."""
    lengths = batch.attention_mask.sum(dim=1).double()
    return torch.stack([lengths.sum(), lengths.square().sum(), batch.masked_weights.sum().double()])


def model_flops(settings: Settings, samples: float, work: Sequence[float]) -> float:
    """Return the floating-point operations that training on this many samples needs.

    6 N for each token (Kaplan et al. 2020, arXiv:2001.08361, section 2.1; backward is twice
    forward), where N are the weights of matrix products: of the blocks for real tokens, of the
    masked-LM head for predictions, of the pooler and its head for samples. Attention's own products
    are 12 * hidden * length^2 a sample and layer (Chowdhery et al. 2022, arXiv:2204.02311, B).
    Embeddings, norms, dropout, the optimizer and recomputation are left out.
    """
    tokens, squares, predictions = work
    hidden = settings.hidden
    block = 4 * hidden**2 + 2 * hidden * settings.intermediate
    return (
        6 * settings.layers * block * tokens
        + 12 * settings.layers * hidden * squares
        + 6 * (hidden**2 + hidden * settings.vocab) * predictions
        + 6 * (hidden**2 + 2 * hidden) * samples
    )


def peak_flops(name: str, precision: str) -> float | None:
    """Return a device's dense peak, operations per second, by its vendor; None if unknown."""
    for pattern, peaks in PEAKS.items():
        if re.fullmatch(pattern, name) and precision in peaks:
            return peaks[precision] * 1e12
    return None


def summarize_work(trainer: Trainer, rank_work: Tensor, rate: float) -> dict[str, Any]:
    """Return the metrics of all ranks' work in the window at `rate` samples per second.

    `rank_work` is this rank's share of `Trainer.work`. MFU is model FLOP by the devices' peak:
    `mfu` leaves padding out, `mfu_padded` counts it as work, as most published figures do.
    """
    settings, ranks = trainer.settings, trainer.ranks
    work = sum_over_ranks(rank_work.clone(), ranks).tolist()
    samples = trainer.global_batch_size * (settings.iters - settings.skip)
    length = settings.sequence_length
    full = (length, length**2, settings.predictions)
    per_sample = model_flops(settings, samples, work) / samples
    peak = peak_flops(device_name(trainer.device), settings.precision)
    share = rate / (peak * ranks.size) if peak else None
    return {
        "real_tokens_per_second": rate * work[0] / samples,
        "real_token_share": work[0] / (samples * length),
        "model_flops_per_sample": per_sample,
        "mfu": per_sample * share if share else None,
        "mfu_padded": model_flops(settings, 1, full) * share if share else None,
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
    for name in ("master_addr", "master_port", "timeout"):
        del options[name]
    options["batch_size_per_device"] = options.pop("batch_size")
    return {
        **options,
        "fill": None if options["data"] else options["fill"],
        "compile": trainer.compiles,
        # The end of a path says more than its beginning, and the line must stay short.
        "data": options["data"][-200:] or "synthetic",
        "device": device.type,
        "threads": torch.get_num_threads(),
        "parameters": count_parameters(trainer.settings, trainer.module),
        "world_size": ranks.size,
        "global_batch_size": trainer.global_batch_size,
        "device_name": device_name(device),
        "backend": backend,
        "launcher": ranks.launcher,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        **({"hip": torch.version.hip} if torch.version.hip else {}),
    }


def device_name(device: torch.device) -> str:
    """Return the GPU's name by its driver, or the processor's."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    path = Path("/proc/cpuinfo")
    match = re.search(r"model name\s*: (.*)", path.read_text("utf-8") if path.exists() else "")
    return match.group(1) if match else platform.machine()


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
    largest = torch.tensor(float(peak), dtype=torch.float64, device=device)
    if ranks.size > 1:
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return int(largest)


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
    for iteration in range(1, settings.iters + 1):
        if iteration == settings.skip + 1:
            work_before, waited = trainer.work.clone(), trainer.waited
        waiting.append(finish(trainer, iteration, trainer.step()))
        is_last = iteration == settings.iters
        while len(waiting) > (0 if is_last else READ_LATE[device.type]):
            ended = waiting.popleft()
            stamps.append(stamps[-1] + seconds_between(last_mark, ended.end))
            last_mark = ended.end
            loss = report(trainer, ended, stamps)
    return Trained(stamps, loss, trainer.work - work_before, trainer.waited - waited)


def report(trainer: Trainer, ended: Ended, stamps: Sequence[float]) -> float:
    """Print the line of an iteration that is over, and return its loss; NonFiniteLossError."""
    mlm_loss, nsp_loss = ended.losses.tolist()
    loss: float = mlm_loss + nsp_loss
    rate = trainer.global_batch_size / (stamps[-1] - stamps[-2])
    emit(
        f"iteration: {ended.number}/{trainer.settings.iters} loss: {loss:.4f} "
        f"mlm_loss: {mlm_loss:.4f} nsp_loss: {nsp_loss:.4f} samples/s: {rate:.2f} "
        f"time: {stamps[-1]:.6f}",
        trainer.ranks,
    )
    if not math.isfinite(loss):
        raise NonFiniteLossError(_describe_failure(ended.number, ended.share, trainer.ranks))
    return loss


def _describe_failure(iteration: int, share: Tensor, ranks: Ranks) -> str:
    flags = torch.zeros(ranks.size, device=share.device)
    flags[ranks.rank] = float(not share.isfinite().all())
    culprits = sum_over_ranks(flags, ranks).nonzero().flatten().tolist()
    names = ", ".join(map(str, culprits)) if culprits else "none alone, the sum overflows"
    return f"the loss of iteration {iteration} is not finite; rank(s) it comes from: {names}"


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
        "iters": settings.iters,
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
    ranks = Ranks()
    try:
        ranks = detect_ranks(os.environ)
        if ranks.launcher == "none" and os.environ.get("SLURM_NTASKS", "1") != "1":
            _complain(
                ranks, "note: not inside a Slurm step, so this is one rank; use srun for more"
            )
        train(settings, ranks, os.environ, started)
    except SetupError as error:
        _complain(ranks, str(error))
        return REFUSED
    except NonFiniteLossError as error:
        _complain(ranks, str(error))
        return NON_FINITE_LOSS
    finally:
        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()
    return 0


def _complain(ranks: Ranks, message: str) -> None:
    sys.stderr.write(f"bert_pretrain: rank {ranks.rank}: {message}\n")
    sys.stderr.flush()


def leave(status: int) -> None:
    """End the process at once, without Python's own clean-up.

    Gloo's threads outlive `destroy_process_group` and release the last collective's tensors, for
    which they need the interpreter. If it is being finalized just then, CPython before 3.14 ends
    the thread, C++ calls that a terminate, and a run that went well ends with SIGABRT (seen with
    PyTorch 2.13, Python 3.11, in 1 of about 60 trainings by 4 ranks).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    leave(main())
