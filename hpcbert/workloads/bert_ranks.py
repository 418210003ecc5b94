"""Ranks of the BERT pre-training reference: place, device, process group."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from hpcbert.workloads.bert_settings import SetupError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcbert.workloads.bert_settings import Settings


VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
# Where launchers that do not set these say how many processes they started: Slurm's step, Open MPI,
# MPICH and Intel MPI, MVAPICH.
SIZES = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")

LEAST_CAPABILITY = {"tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9)}


@dataclass(frozen=True)
class Ranks:
    """This process among the `size` processes of the run, one per device, and on its node."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0


def detect_ranks(environment: Mapping[str, str]) -> Ranks:
    """Return this process's place, from RANK, WORLD_SIZE and LOCAL_RANK; without them, one rank.

    SetupError if they are incomplete or contradict each other, or if they are missing and a
    launcher started several processes, because each would then train by itself.
    """
    if not any(name in environment for name in VARIABLES):
        for name in SIZES:
            if environment.get(name, "1") != "1":
                raise SetupError(
                    f"{name}={environment[name]}, but RANK, WORLD_SIZE and LOCAL_RANK are not set. "
                    "torchrun sets them; with srun, each task has to export RANK=$SLURM_PROCID "
                    "WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID"
                )
        return Ranks()
    for name in VARIABLES:
        if name not in environment:
            raise SetupError(f"{', '.join(VARIABLES)} are incomplete: no {name}")
        if not environment[name].isdigit():
            raise SetupError(f"{name}={environment[name]!r} is not a number")
    rank, size, local_rank = (int(environment[name]) for name in VARIABLES)
    if max(rank, local_rank) >= size:
        raise SetupError(
            f"RANK={rank}, WORLD_SIZE={size} and LOCAL_RANK={local_rank} contradict each other"
        )
    return Ranks(rank, size, local_rank)


def choose_device(name: str, ranks: Ranks) -> torch.device:
    """Return the CPU, or this rank's GPU among the visible ones; SetupError if there is none."""
    has_gpu = torch.cuda.is_available()
    if name == "cpu" or (name == "auto" and not has_gpu):
        return torch.device("cpu")
    if not has_gpu:
        raise SetupError(
            f"--device cuda: PyTorch {torch.__version__} sees no GPU on node {platform.node()}: "
            "look at nvidia-smi and CUDA_VISIBLE_DEVICES there, and whether it was built for "
            "GPUs; or train with --device cpu"
        )
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
    # With its device, NCCL connects at once and takes its buffers before activations fill the GPU.
    bound: dict[str, Any] = {"device_id": device} if device.type == "cuda" else {}
    try:
        dist.init_process_group(
            backend, rank=ranks.rank, world_size=ranks.size, timeout=limit, **bound
        )
    except (RuntimeError, ValueError) as error:
        raise SetupError(f"cannot join the other ranks at {address}:{port}: {error}") from error
    return backend


def sum_over_ranks(value: Tensor, ranks: Ranks) -> Tensor:
    """Replace `value` by the sum of every rank's, and return it."""
    if ranks.size > 1:
        dist.all_reduce(value)
    return value


def largest_over_ranks(number: float, ranks: Ranks, device: torch.device) -> int:
    """Return the largest of every rank's numbers, which are whole."""
    largest = torch.tensor(float(number), dtype=torch.float64, device=device)
    if ranks.size > 1:
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return int(largest)


def check_precision(precision: str, device: torch.device) -> None:
    """Raise SetupError for a precision that the device or this PyTorch would not really use."""
    # What PyTorch's build for ROCm calls a capability is AMD's own number of the architecture.
    on_nvidia = device.type == "cuda" and not torch.version.hip
    if precision == "tf32" and not on_nvidia:
        owner = "CPUs" if device.type == "cpu" else "AMD's GPUs"
        raise SetupError(f"--precision tf32 is a mode of NVIDIA's tensor cores, not of {owner}")
    if precision == "fp8" and torch.version.hip:
        raise SetupError("--precision fp8 needs a PyTorch with FP8 for NVIDIA's GPUs or CPUs")
    # Older ones also return the product's largest value (pytorch/pytorch, native_functions.yaml).
    if precision == "fp8" and len(torch.ops.aten._scaled_mm.default._schema.returns) > 1:
        raise SetupError(f"--precision fp8 needs PyTorch 2.5 or newer, not {torch.__version__}")
    least = LEAST_CAPABILITY.get(precision, (0, 0))
    if on_nvidia and torch.cuda.get_device_capability(device) < least:
        version = ".".join(map(str, least))
        raise SetupError(f"--precision {precision} needs compute capability {version} or newer")
    if precision == "tf32" and os.environ.get("NVIDIA_TF32_OVERRIDE") == "0":
        raise SetupError("--precision tf32 contradicts NVIDIA_TF32_OVERRIDE=0")


def device_name(device: torch.device) -> str:
    """Return the GPU's name by its driver, or the processor's."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    path = Path("/proc/cpuinfo")
    match = re.search(r"model name\s*: (.*)", path.read_text("utf-8") if path.exists() else "")
    return match.group(1) if match else platform.machine()
