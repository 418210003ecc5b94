"""What each recipe takes for a lack of memory, and what it does not, in the programs' own words."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import pytest

from hpcbert.config.toml import read
from hpcbert.logs import failures, grammar
from tests.kit.recipes import NAMES

ROOT = Path(__file__).parents[2]

TORCH = {
    "torch 1.6": "RuntimeError: CUDA out of memory. Tried to allocate 352.00 MiB (GPU 0; 7.92 GiB "
    "total capacity; 1.67 GiB already allocated; 156.00 MiB free; 124.28 MiB cached)",
    "torch 2.1": "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 55.57 GiB. "
    "GPU 0 has a total capacty of 12.00 GiB of which 9.02 GiB is free.",
    "torch 2.5": "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB",
    "torch, C++": "  what():  CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 15.78 GiB",
    "torch, runtime": "RuntimeError: CUDA error: out of memory",
    "cuBLAS": "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling "
    "`cublasCreate(handle)`",
    "cuDNN": "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "cuDNN 9": "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
}
TENSORFLOW = {
    "tf 1": "ResourceExhaustedError (see above for traceback): OOM when allocating tensor with "
    "shape[500,17,17,4032] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by "
    "allocator GPU_0_bfc",
    "tf 2.3": "tensorflow.python.framework.errors_impl.ResourceExhaustedError:  OOM when "
    "allocating tensor with shape[96,12,128,128] and type half on "
    "/job:worker/replica:0/task:1/device:GPU:7 by allocator GPU_7_bfc [Op:Softmax]",
    "tf, kernel": "2018-06-08 17:26:00.908130: W tensorflow/core/framework/op_kernel.cc:1202] "
    "OP_REQUIRES failed at tile_ops.cc:123 : Resource exhausted: OOM when allocating tensor with "
    "shape[16,1,892800] and type float on /job:localhost/replica:0/task:0/device:GPU:0",
    "tf 2.6": "  (0) RESOURCE_EXHAUSTED:  OOM when allocating tensor with shape[8,512] and type "
    "float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
    "xla": "Resource exhausted: Out of memory while trying to allocate 7406166528 bytes.",
    "xla, request": "RuntimeError: Resource exhausted: Failed to allocate request for 32.00MiB "
    "(33554432B) on device ordinal 0",
    "driver": "2020-01-02 03:04:05.678901: E tensorflow/stream_executor/cuda/cuda_driver.cc:828] "
    "failed to allocate 2.96G (3179741184 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of "
    "memory",
}
PADDLE = {
    "paddle 2": "Out of memory error on GPU 0. Cannot allocate 98.000244MB memory on GPU 0, "
    "6.000000GB memory has been allocated and available memory is only 0.000000B.",
    "paddle 1.8": "Out of memory error on GPU 3. Cannot allocate 3.125000GB memory on GPU 3, "
    "available memory is only 117.750000MB.",
    "cuda": "OSError: (External) CUDA error(2), out of memory. ",
    "cublas": "ExternalError: CUBLAS error(3), CUBLAS_STATUS_ALLOC_FAILED. ",
}
ONEFLOW = {
    "0.1": "F0808 14:02:36.887184 29334 cuda_util.cpp:88] Check failed: error == cudaSuccess "
    "(2 vs. 0) out of memory",
    "0.3": "F0823 14:02:36.887184 29334 memory_allocator.cpp:43] Check failed: cudaMalloc(&ptr,"
    " size) : out of memory (2) ",
    "0.8": "  what():  Error: out of memory ",
    "0.9": "  what():  Error: CUDA out of memory. Tried to allocate 114.0 MB",
}
MINDSPORE = {
    "1.1": "[EXCEPTION] DEVICE(77,7f2a,python):2021-02-03-04:06:10.123.456 [mindspore/ccsrc/"
    "runtime/device/gpu/gpu_memory_allocator.cc:79] AllocDeviceMem] Memory not enough: current "
    "free memory size[1048576] is smaller than required size[33554432].",
    "1.1, kernel": "RuntimeError: mindspore/ccsrc/runtime/device/kernel_runtime.cc:441 "
    "AssignNodeOutputMem] Device memory isn't enough and alloc failed, alloc size:33554432",
    "2": "[ERROR] RUNTIME_FRAMEWORK(1,7f,python):2023-11-28-21:28:17.917.989 [mindspore/ccsrc/"
    "runtime/graph_scheduler/actor/actor_common.h:70] Run] Device(id:0) memory isn't enough and"
    " alloc failed, kernel name: Default/MatMul-op1, alloc size: 33554432B.",
    "Ascend": "Out of Memory!!! Request memory size: 33100113920B, Memory Statistic:",
    "driver": "The cudaStreamCreateWithFlags failed, ret[2], out of memory",
}
# What says that the device's memory did not suffice, as the sources in the recipes print it.
DEVICE = {
    **dict.fromkeys(("pytorch", "deepspeed", "ngc-pytorch", "megatron", "mlperf-bert"), TORCH),
    **dict.fromkeys(("tf2", "perfzero", "ngc-tf1"), TENSORFLOW),
    **dict.fromkeys(("paddle", "paddle18"), PADDLE),
    "mxnet": {
        "mxnet 1.4": "mxnet.base.MXNetError: [11:18:15] src/storage/./pooled_storage_manager.h:157:"
        " cudaMalloc failed: out of memory",
        "mxnet 1.9": "MXNetError: cudaMalloc retry failed: out of memory",
        "dmlc": "[08:45:46] src/storage/./pooled_storage_manager.h:80: cudaMalloc failed: out of "
        "memory",
        "mshadow": "[08:45:46] /home/travis/3rdparty/mshadow/mshadow/./stream_gpu-inl.h:184: Check "
        "failed: e == cudaSuccess: CUDA: out of memory",
    },
    **dict.fromkeys(("oneflow", "oneflow-models"), ONEFLOW),
    **dict.fromkeys(("mindspore", "mindspore-models"), MINDSPORE),
    "nccl-tests": {"test": "node1: Test CUDA failure common.cu:730 'out of memory'"},
}
NCCL = (
    "n1:3063028:3066148 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'",
    "n1:3063028:3066148 [3] alloc.h:178 NCCL WARN Cuda failure 2 'out of memory'",
    "Cuda failure 'out of memory'",
)

HOST = {
    "pytorch": "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: "
    "can't allocate memory: you tried to allocate 68719476736 bytes. Error code 12 (Cannot allocate"
    " memory)",
    "tf2": "ResourceExhaustedError: OOM when allocating tensor with shape[9,9] and type float on "
    "/job:localhost/replica:0/task:0/device:CPU:0 by allocator cpu",
    "ngc-tf1": "2019-03-08 16:26:28.980572: E tensorflow/stream_executor/cuda/cuda_driver.cc:868] "
    "failed to alloc 3697684480 bytes on host: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
    "paddle": "MemoryError: (ResourceExhausted) Fail to alloc memory of 68719476736 size, error "
    "code is 12.",
    "paddle18": "ResourceExhaustedError: Fail to alloc memory of 68719476736 size, error code is "
    "12.",
    "mxnet": "mxnet.base.MXNetError: [10:42:33] src/storage/./cpu_device_storage.h:72: Failed to "
    "allocate CPU Memory",
    "oneflow": "  what():  Error: CPU can't allocate memory. Tried to allocate 1490116.1 GB ",
    "mindspore": "[ERROR] DEVICE(13557,7fc37c3fe6c0,python):2026-11-22-03:21:19.937.322 [mindspore/"
    "ccsrc/plugin/res_manager/cpu/cpu_mem_manager/cpu_memory_pool.cc:76] AllocDeviceMem] malloc "
    "memory failed.",
    "mindspore, pinned": "[ERROR] MD(14433,7fea,python):2021-12-12-14:13:43.932.181 [mindspore/ccsrc/"
    "minddata/dataset/util/arena.cc:250] Init] cudaHostAlloc failed, ret[2], out of memory",
}
# What every recipe takes for the host's memory.
HOSTS_OWN = {
    "slurm 20": "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0 cgroup. Some of your"
    " processes may have been killed by the cgroup out-of-memory handler.",
    "slurm 23": "slurmstepd: error: Detected 2 oom_kill events in StepId=7.batch. Some of the step "
    "tasks have been OOM Killed.",
    "python": "MemoryError",
    "numpy": "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 60.0 GiB for an array",
    "c++": "  what():  std::bad_alloc",
}
# Lines that only speak of memory, or hold the words as somebody's text.
NEITHER = (
    "GPU 0 has 15.78 GiB of memory",
    "If you see CUDA out of memory, lower the batch size.",
    "Namespace(note='RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB')",
    'args: {"note": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"}',
    (
        "2025-03-17 17:48:09.935747: W tensorflow/core/common_runtime/bfc_allocator.cc:275] Allocator "
        "(GPU_0_bfc) ran out of memory trying to allocate 2.10GiB with freed_by_count=0. The caller "
        "indicates that this is not a failure, but may mean that there could be performance gains"
    ),
    (
        "2025-03-17 17:48:09.854267: I tensorflow/stream_executor/cuda/cuda_driver.cc:739] failed to "
        "allocate 2.12G (2282521344 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory"
    ),
    (
        "Hint: If you want to see a list of allocated tensors when OOM happens, add "
        "report_tensor_allocations_upon_oom to RunOptions"
    ),
    (
        "[WARNING] PRE_ACT(4711,7f2a,python):2021-02-03-04:06:10.123.456 [mindspore/ccsrc/backend/"
        "optimizer/mem_reuse/mem_swap_manager.cc:310] RetreatSwapInfo] Retreat memory swap level"
    ),
    "2. If no, please decrease the batch size of your model.",
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
    "n1:1:2 [0] enqueue.cc:54 NCCL WARN Cuda failure 'invalid resource handle'",
    "what is a MemoryError: a lesson",
    "srun: error: n1: task 1: Killed",
)
# Bare, and as srun, mpirun, pdsh and a colourful logger would have it.
PREFIXES = ("", "  3: ", "[1,3]<stderr>:", "vs003: ", "\x1b[31m")


def _find_shortage(recipe: str, tmp_path: Path, *lines: str) -> failures.Failure | None:
    path = tmp_path / "run.log"
    path.write_text("".join(f"{line}\n" for line in ("it began", *lines, "it ended")))
    return failures.find_shortage(path, _load_grammar(recipe))


@cache
def _load_grammar(recipe: str) -> grammar.Grammar:
    path = ROOT / "templates" / recipe / "recipe.toml"
    return grammar.parse(read(path)["log"], where=str(path))


def test_every_recipe_says_how_its_program_speaks_of_the_devices_memory() -> None:
    assert set(DEVICE) == set(NAMES)
    for recipe in NAMES:
        assert {failure.kind for failure in _load_grammar(recipe).failures} >= {"device-oom"}, (
            recipe
        )


@pytest.mark.parametrize("recipe", NAMES)
def test_the_devices_memory(recipe: str, tmp_path: Path) -> None:
    for line in (*DEVICE[recipe].values(), *NCCL):
        for prefix in PREFIXES:
            failure = _find_shortage(recipe, tmp_path, prefix + line)
            assert failure, prefix + line
            assert failure.kind == "device-oom", prefix + line
            assert " ".join(line.split())[:40] in failure.said


def test_on_the_cpu_the_devices_memory_is_the_hosts(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text(f"{MINDSPORE['2']}\n")
    failure = failures.find_shortage(path, _load_grammar("mindspore-models"), "cpu")
    assert failure
    assert failure.kind == "host-oom"


@pytest.mark.parametrize("words", HOST)
def test_the_hosts_memory_by_the_frameworks_words(words: str, tmp_path: Path) -> None:
    failure = _find_shortage(words.partition(",")[0], tmp_path, HOST[words])
    assert failure
    assert failure.kind == "host-oom"


@pytest.mark.parametrize("recipe", NAMES)
def test_the_hosts_memory_by_slurms_and_the_languages_words(recipe: str, tmp_path: Path) -> None:
    for line in HOSTS_OWN.values():
        failure = _find_shortage(recipe, tmp_path, line)
        assert failure, line
        assert failure.kind == "host-oom", line


@pytest.mark.parametrize("recipe", NAMES)
def test_what_only_speaks_of_memory_is_neither(recipe: str, tmp_path: Path) -> None:
    for line in NEITHER:
        assert _find_shortage(recipe, tmp_path, line) is None, line
        assert _find_shortage(recipe, tmp_path, line.lower()) is None, line


@pytest.mark.parametrize("recipe", NAMES)
def test_letters_count_in_either_case(recipe: str, tmp_path: Path) -> None:
    for line in DEVICE[recipe].values():
        for spelt in (line.upper(), line.lower()):
            failure = _find_shortage(recipe, tmp_path, spelt)
            assert failure, spelt
            assert failure.kind == "device-oom", spelt


@pytest.mark.parametrize("recipe", NAMES)
def test_no_complete_log_speaks_of_a_lack(recipe: str) -> None:
    sample = ROOT / "templates" / recipe / "sample.log"
    assert failures.find_shortage(sample, _load_grammar(recipe)) is None


@pytest.mark.parametrize("recipe", NAMES)
def test_the_first_words_count_but_for_slurms(recipe: str, tmp_path: Path) -> None:
    device, host = next(iter(DEVICE[recipe].values())), HOSTS_OWN["python"]
    first = _find_shortage(recipe, tmp_path, device, host)
    second = _find_shortage(recipe, tmp_path, host, device)
    killed = _find_shortage(recipe, tmp_path, device, HOSTS_OWN["slurm 23"])
    assert first
    assert second
    assert killed
    assert (first.kind, second.kind, killed.kind) == ("device-oom", "host-oom", "host-oom")


@pytest.mark.parametrize("recipe", NAMES)
def test_a_nodes_grep_finds_the_same_words(recipe: str, tmp_path: Path) -> None:
    """The search for the largest batch, which is a shell's, against the reader."""
    words = failures.shortage_signs(_load_grammar(recipe), "gpu").words
    path = tmp_path / "words.log"
    lines = [*DEVICE[recipe].values(), *NEITHER]
    path.write_text("".join(f"{line}\n" for line in lines))
    grep = ["grep", "-aniP", "-e", words, str(path)]
    result = subprocess.run(grep, capture_output=True, text=True, check=False, env={"LC_ALL": "C"})
    numbers = [int(line.partition(":")[0]) for line in result.stdout.splitlines()]
    assert numbers == list(range(1, len(DEVICE[recipe]) + 1)), result.stderr
