"""What is taken for a lack of memory, and what is not, in the programs' own words."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import pytest

from hpcbert.config.toml import read
from hpcbert.logs import failures, grammar
from tests.kit.recipes import NAMES

ROOT = Path(__file__).parents[2]

# What says that the device's memory did not suffice, as the sources in shortage.toml print it.
DEVICE = {
    "torch 1.4": "RuntimeError: cuda runtime error (2) : out of memory at /opt/conda/THCStorage.cu:58",
    "torch 1.6": "RuntimeError: CUDA out of memory. Tried to allocate 352.00 MiB (GPU 0; 7.92 GiB "
    "total capacity; 1.67 GiB already allocated; 156.00 MiB free; 124.28 MiB cached)",
    "torch 2.1": "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 55.57 GiB. "
    "GPU 0 has a total capacty of 12.00 GiB of which 9.02 GiB is free.",
    "torch 2.5": "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB",
    "torch, C++": "  what():  CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 15.78 GiB",
    "torch, huge": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.",
    "torch, ROCm": "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has",
    "torch, XPU": "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 2.00 GiB.",
    "torch, Ascend": "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.96 GiB",
    "torch, cudaMallocAsync": "torch.cuda.OutOfMemoryError: Allocation on device 5 would exceed "
    "allowed memory. (out of memory)",
    "torch, runtime": "RuntimeError: CUDA error: out of memory",
    "torch 2.8, runtime": "torch.AcceleratorError: CUDA error: out of memory",
    "torch, ROCm, runtime": "RuntimeError: HIP error: out of memory",
    "torch, expandable segments": "RuntimeError: CUDA driver error: out of memory",
    "torch, inductor": "torch._inductor.exc.InductorError: RuntimeError: CUDA error: out of memory",
    "Transformer Engine": "RuntimeError: /tmp/te/transformer_engine/common/util/cuda_runtime.cpp:37 "
    "in function sm_arch: CUDA Error: out of memory",
    "cuBLAS": "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling "
    "`cublasCreate(handle)`",
    "cuBLAS, handle": "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling "
    "`cublasCreate(handle)`",
    "cuBLASLt, handle": "torch.AcceleratorError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when "
    "calling `cublasLtCreate(&handle)`",
    "hipBLAS": "RuntimeError: CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling "
    "`hipblasCreate(handle)`",
    "cuDNN": "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "cuDNN 9": "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "MIOpen": "RuntimeError: MIOpen error: miopenStatusAllocFailed",
    "Triton": "RuntimeError: Triton Error [CUDA]: out of memory",
    "Triton, HIP": "RuntimeError: Triton Error [HIP]:  Code: 2, Messsage: out of memory",
    "Triton, HIP, corrected": "RuntimeError: Triton Error [HIP]: Code: 2, Message: out of memory",
    "NCCL": "n1:3063028:3066148 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'",
    "NCCL 2.20": "n1:3063028:3066148 [3] alloc.h:178 NCCL WARN Cuda failure 2 'out of memory'",
    "NCCL, last error": "Cuda failure 'out of memory'",
    "NCCL, calloc": "n1:31:66 [3] include/alloc.h:183 NCCL WARN Failed to CUDA calloc 10485760 bytes",
    "NCCL, calloc, last error": "Failed to CUDA calloc async 608 bytes",
    "RCCL": "n1:31:66 [3] NCCL WARN HIP failure 'out of memory'",
    "nccl-tests": "node1: Test CUDA failure common.cu:730 'out of memory'",
    "CUDA samples": 'CUDA error at a.cu:7 code=2(cudaErrorMemoryAllocation) "cudaMalloc(&p, n)"',
    "CUDA, name": "cudaErrorMemoryAllocation: out of memory",
    "RMM": "  what():  std::bad_alloc: out_of_memory: CUDA error at: /rmm/mr.hpp:69: "
    "cudaErrorMemoryAllocation out of memory",
    "HSA": ":0:rocdevice.cpp :2984: 123 us: 4711 : Aborting with error : "
    "HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate the necessary resources. "
    "This error may also occur when the core runtime library needs to spawn threads or create "
    "internal OS-specific events. Code: 0x1008 Available Free mem : 24 MB",
    "Gaudi": "RuntimeError: [Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for "
    "size::268435456 (256)MB",
    "oneAPI": "RuntimeError: level_zero backend failed with error: 38 "
    "(UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
    "tf 1": "ResourceExhaustedError (see above for traceback): OOM when allocating tensor with "
    "shape[500,17,17,4032] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by "
    "allocator GPU_0_bfc",
    "tf 2.3": "tensorflow.python.framework.errors_impl.ResourceExhaustedError:  OOM when "
    "allocating tensor with shape[96,12,128,128] and type half on "
    "/job:worker/replica:0/task:1/device:GPU:7 by allocator GPU_7_bfc [Op:Softmax]",
    "tf 2.9": "OOM when allocating tensor with shape[8,512] and type float on "
    "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
    "tf 2.15": "tensorflow.python.framework.errors_impl.ResourceExhaustedError: {{function_node "
    "__wrapped__AddV2_device_/job:localhost/replica:0/task:0/device:GPU:0}} failed to allocate "
    "memory [Op:AddV2] name: ",
    "tf, kernel": "2018-06-08 17:26:00.908130: W tensorflow/core/framework/op_kernel.cc:1202] "
    "OP_REQUIRES failed at tile_ops.cc:123 : Resource exhausted: OOM when allocating tensor with "
    "shape[16,1,892800] and type float on /job:localhost/replica:0/task:0/device:GPU:0",
    "tf 2.6": "  (0) RESOURCE_EXHAUSTED:  OOM when allocating tensor with shape[8,512] and type "
    "float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
    "tf, cuBLAS": "2020-01-02 03:04:05.678901: E tensorflow/stream_executor/cuda/cuda_blas.cc:366] "
    "failed to create cublas handle: CUBLAS_STATUS_NOT_INITIALIZED",
    "xla": "Resource exhausted: Out of memory while trying to allocate 7406166528 bytes.",
    "xla, request": "RuntimeError: Resource exhausted: Failed to allocate request for 32.00MiB "
    "(33554432B) on device ordinal 0",
    "jax": "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating "
    "8589934592 bytes.",
    "jax, driver": "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: Failed to load in-memory CUBIN: "
    "CUDA_ERROR_OUT_OF_MEMORY: out of memory",
    "tpu, program": "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile "
    "permanent error. Ran out of memory in memory space hbm. Used 21.95G of 15.48G hbm.",
    "tpu, buffers": "  (1) Resource exhausted: Attempting to allocate 180.59M. That was not "
    "possible. There are 142.58M free.; (0x3x0_HBM1)",
    "tpu, program's buffers": "OP_REQUIRES failed at tpu_execute_op.cc:266 : RESOURCE_EXHAUSTED: "
    "Attempting to reserve 10.51G at the bottom of memory. That was not possible.",
    "driver": "2020-01-02 03:04:05.678901: E tensorflow/stream_executor/cuda/cuda_driver.cc:828] "
    "failed to allocate 2.96G (3179741184 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of "
    "memory",
    "paddle 2": "Out of memory error on GPU 0. Cannot allocate 98.000244MB memory on GPU 0, "
    "6.000000GB memory has been allocated and available memory is only 0.000000B.",
    "paddle 1.8": "Out of memory error on GPU 3. Cannot allocate 3.125000GB memory on GPU 3, "
    "available memory is only 117.750000MB.",
    "paddle, NPU": "Out of memory error on NPU 3. Cannot allocate 3.125000GB memory on NPU 3, ",
    "paddle, cuda": "OSError: (External) CUDA error(2), out of memory. ",
    "paddle, cublas": "ExternalError: CUBLAS error(3), CUBLAS_STATUS_ALLOC_FAILED. ",
    "mxnet 1.4": "mxnet.base.MXNetError: [11:18:15] src/storage/./pooled_storage_manager.h:157:"
    " cudaMalloc failed: out of memory",
    "mxnet 1.9": "MXNetError: cudaMalloc retry failed: out of memory",
    "mxnet, dmlc": "[08:45:46] src/storage/./pooled_storage_manager.h:80: cudaMalloc failed: out of "
    "memory",
    "mxnet, mshadow": "[08:45:46] /home/travis/3rdparty/mshadow/mshadow/./stream_gpu-inl.h:184: "
    "Check failed: e == cudaSuccess: CUDA: out of memory",
    "mxnet, cuBLAS": "[08:45:46] /home/travis/3rdparty/mshadow/mshadow/./stream_gpu-inl.h:112: Check "
    "failed: err == CUBLAS_STATUS_SUCCESS (1 vs. 0) : Create cublas handle failed",
    "oneflow 0.1": "F0808 14:02:36.887184 29334 cuda_util.cpp:88] Check failed: error == cudaSuccess "
    "(2 vs. 0) out of memory",
    "oneflow 0.3": "F0823 14:02:36.887184 29334 memory_allocator.cpp:43] Check failed: "
    "cudaMalloc(&ptr, size) : out of memory (2) ",
    "oneflow, cuBLAS": "F0823 14:02:36.887184 29334 cuda_stream_handle.cpp:43] Check failed: "
    "cublasCreate(&cublas_pmh_handle_) : CUBLAS_STATUS_NOT_INITIALIZED (1) ",
    "oneflow 0.9": "  what():  Error: CUDA out of memory. Tried to allocate 114.0 MB",
    "mindspore 1.1": "[EXCEPTION] DEVICE(77,7f2a,python):2021-02-03-04:06:10.123.456 [mindspore/ccsrc"
    "/runtime/device/gpu/gpu_memory_allocator.cc:79] AllocDeviceMem] Memory not enough: current "
    "free memory size[1048576] is smaller than required size[33554432].",
    "mindspore 1.1, kernel": "RuntimeError: mindspore/ccsrc/runtime/device/kernel_runtime.cc:441 "
    "AssignNodeOutputMem] Device memory isn't enough and alloc failed, alloc size:33554432",
    "mindspore 2": "[ERROR] RUNTIME_FRAMEWORK(1,7f,python):2023-11-28-21:28:17.917.989 [mindspore/"
    "ccsrc/runtime/graph_scheduler/actor/actor_common.h:70] Run] Device(id:0) memory isn't enough "
    "and alloc failed, kernel name: Default/MatMul-op1, alloc size: 33554432B.",
    "mindspore, Ascend": "Out of Memory!!! Request memory size: 33100113920B, Memory Statistic:",
    "mindspore, driver": "The cudaStreamCreateWithFlags failed, ret[2], out of memory",
}
# Words that only the program of one recipe speaks.
OWN = {
    "oneflow": "  what():  Error: out of memory ",
    "oneflow-models": "RuntimeError: out of memory",
}

HOST = {
    "torch": "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: "
    "can't allocate memory: you tried to allocate 68719476736 bytes. Error code 12 (Cannot allocate"
    " memory)",
    "tf": "ResourceExhaustedError: OOM when allocating tensor with shape[9,9] and type float on "
    "/job:localhost/replica:0/task:0/device:CPU:0 by allocator cpu",
    "tf, pinned": "2019-03-08 16:26:28.980572: E tensorflow/stream_executor/cuda/cuda_driver.cc:868] "
    "failed to alloc 3697684480 bytes on host: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
    "paddle": "MemoryError: (ResourceExhausted) Fail to alloc memory of 68719476736 size, error "
    "code is 12.",
    "paddle 1.8": "ResourceExhaustedError: Fail to alloc memory of 68719476736 size, error code is "
    "12.",
    "mxnet": "mxnet.base.MXNetError: [10:42:33] src/storage/./cpu_device_storage.h:72: Failed to "
    "allocate CPU Memory",
    "oneflow": "  what():  Error: CPU can't allocate memory. Tried to allocate 1490116.1 GB ",
    "mindspore": "[ERROR] DEVICE(13557,7fc37c3fe6c0,python):2026-11-22-03:21:19.937.322 [mindspore/"
    "ccsrc/plugin/res_manager/cpu/cpu_mem_manager/cpu_memory_pool.cc:76] AllocDeviceMem] malloc "
    "memory failed.",
    "mindspore, pinned": "[ERROR] MD(14433,7fea,python):2021-12-12-14:13:43.932.181 [mindspore/ccsrc/"
    "minddata/dataset/util/arena.cc:250] Init] cudaHostAlloc failed, ret[2], out of memory",
    "nccl, pinned": "n1:31:66 [3] include/alloc.h:83 NCCL WARN Failed to CUDA host alloc 4096 bytes",
    "slurm 20": "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0 cgroup. Some of your"
    " processes may have been killed by the cgroup out-of-memory handler.",
    "slurm 23": "slurmstepd: error: Detected 2 oom_kill events in StepId=7.batch. Some of the step "
    "tasks have been OOM Killed.",
    "kernel": "[ 1234.567890] Memory cgroup out of memory: Killed process 4711 (python) total-vm:9kB",
    "python": "MemoryError",
    "python, ENOMEM": "OSError: [Errno 12] Cannot allocate memory",
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
        "2023-11-01 16:19:17.812101: E tensorflow/compiler/xla/stream_executor/rocm/rocm_driver.cc:606]"
        " failed to allocate 127.99TiB (140729850295296 bytes) from device: HIP_ERROR_OutOfMemory"
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
    "MemoryError: ",  # Paddle's, before the line that names the memory
    "MemoryError: (ResourceExhausted) ",
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasSgemm(handle)`",
    "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(handle)`",
    "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
    "RuntimeError: Triton Error [CUDA]: device-side assert triggered",
    "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456",
    "n1:1:2 [0] enqueue.cc:54 NCCL WARN Cuda failure 'invalid resource handle'",
    "n1:1:2 [0] misc/shmutils.cc:112 NCCL WARN Error while creating shared memory segment /dev/shm/n",
    "RESOURCE_EXHAUSTED: Received message larger than max (5242880 vs. 4194304)",
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space vmem.",
    "HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate the necessary resources.",
    "export PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync",
    "what is a MemoryError: a lesson",
    "srun: error: n1: task 1: Killed",
)
# Bare, and as srun, mpirun, pdsh and a colourful logger would have it.
PREFIXES = ("", "  3: ", "[1,3]<stderr>:", "vs003: ", "\x1b[31m")
GRAMMAR = grammar.Grammar((), (), reader="none")


def _find_shortage(tmp_path: Path, *lines: str, recipe: str = "") -> failures.Failure | None:
    path = tmp_path / "run.log"
    path.write_text("".join(f"{line}\n" for line in ("it began", *lines, "it ended")))
    return failures.find_shortage(path, _load_grammar(recipe) if recipe else GRAMMAR)


@cache
def _load_grammar(recipe: str) -> grammar.Grammar:
    path = ROOT / "templates" / recipe / "recipe.toml"
    return grammar.parse(read(path)["log"], where=str(path))


@pytest.mark.parametrize("words", DEVICE)
def test_the_devices_memory_by_a_librarys_words(words: str, tmp_path: Path) -> None:
    line = DEVICE[words]
    for spelt in (line, line.upper(), line.lower()):
        for prefix in PREFIXES:
            failure = _find_shortage(tmp_path, prefix + spelt)
            assert failure, prefix + spelt
            assert failure.kind == "device-oom", prefix + spelt
            assert " ".join(spelt.split())[:40] in failure.said


@pytest.mark.parametrize("recipe", OWN)
def test_the_devices_memory_by_one_programs_words(recipe: str, tmp_path: Path) -> None:
    failure = _find_shortage(tmp_path, OWN[recipe], recipe=recipe)
    assert failure
    assert failure.kind == "device-oom"
    assert _find_shortage(tmp_path, OWN[recipe]) is None


def test_on_the_cpu_the_devices_memory_is_the_hosts(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text(f"{DEVICE['mindspore 2']}\n")
    failure = failures.find_shortage(path, GRAMMAR, "cpu")
    assert failure
    assert failure.kind == "host-oom"


@pytest.mark.parametrize("words", HOST)
def test_the_hosts_memory(words: str, tmp_path: Path) -> None:
    failure = _find_shortage(tmp_path, HOST[words])
    assert failure
    assert failure.kind == "host-oom"


@pytest.mark.parametrize("recipe", NAMES)
def test_what_only_speaks_of_memory_is_neither(recipe: str, tmp_path: Path) -> None:
    for line in NEITHER:
        assert _find_shortage(tmp_path, line, recipe=recipe) is None, line
        assert _find_shortage(tmp_path, line.lower(), recipe=recipe) is None, line


@pytest.mark.parametrize("recipe", NAMES)
def test_no_complete_log_speaks_of_a_lack(recipe: str) -> None:
    sample = ROOT / "templates" / recipe / "sample.log"
    assert failures.find_shortage(sample, _load_grammar(recipe)) is None


def test_the_first_words_count_but_for_slurms(tmp_path: Path) -> None:
    device, host = DEVICE["torch 2.5"], HOST["python"]
    pairs = ((device, host), (host, device), (device, HOST["slurm 23"]))
    results = [_find_shortage(tmp_path, *pair) for pair in pairs]
    kinds = [failure.kind for failure in results if failure]
    assert kinds == ["device-oom", "host-oom", "host-oom"]


@pytest.mark.parametrize("recipe", NAMES)
def test_a_nodes_grep_finds_the_same_words(recipe: str, tmp_path: Path) -> None:
    """The search for the largest batch, which is a shell's, against the reader."""
    words = failures.shortage_signs(_load_grammar(recipe), "gpu").words
    path = tmp_path / "words.log"
    lines = [*DEVICE.values(), *NEITHER, *HOST.values()]
    path.write_text("".join(f"{line}\n" for line in lines))
    grep = ["grep", "-aniP", "-e", words, str(path)]
    result = subprocess.run(grep, capture_output=True, text=True, check=False, env={"LC_ALL": "C"})
    numbers = [int(line.partition(":")[0]) for line in result.stdout.splitlines()]
    assert numbers == list(range(1, len(DEVICE) + 1)), result.stderr
