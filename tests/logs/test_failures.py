"""The line that says why a run failed, out of all that is printed when one does."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbert.logs.failures import last_error
from tests.kit.cases import cases

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n'
GONE = "srun: error: n1: task 0: Exited with exit code 1\n"
MPIRUN = (
    "-----\nPrimary job  terminated normally, but 1 process returned\na non-zero exit code. "
    "Per user-direction, the job has been aborted.\n-----\nmpirun detected that one or more "
    "processes exited with non-zero status, thus causing\nthe job to be terminated.\n"
)
# By name the log, and its line.
SAID = {
    "python": (f"{TRACEBACK}    import torch\nModuleNotFoundError: No module named 'torch'\n{GONE}",
        "ModuleNotFoundError: No module named 'torch'"),
    "srun -l": ("".join(f" 3: {line}\n" for line in f"{TRACEBACK}ValueError: bad".splitlines()),
        "ValueError: bad"),
    "pdsh": ("".join(f"vs003: {line}\n" for line in f"{TRACEBACK}ValueError: bad".splitlines()),
        "ValueError: bad"),
    "torch's label": ("".join(f"[rank0]: {line}\n" for line in f"{TRACEBACK}a.B: bad".splitlines()),
        "a.B: bad"),
    "mpirun": ((f"[1,3]<stderr>:Traceback (most recent call last):\n[1,2]<stdout>:step 3\n"
        f'[1,3]<stderr>:  File "a"\n[1,3]<stderr>:queue.Empty\n{MPIRUN}'), "queue.Empty"),
    "windows' ends": (f"{TRACEBACK}ValueError: bad\n".replace("\n", "\r\n"), "ValueError: bad"),
    "a progress bar": ("1%\r2%\rRuntimeError: bad\n", "RuntimeError: bad"),
    "no traceback": ("oneflow._oneflow_internal.exception.Exception: bad\n",
        "oneflow._oneflow_internal.exception.Exception: bad"),
    "C++": (("terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: "
        "device-side assert triggered\nAborted (core dumped)\nmpirun noticed that process rank 0 "
        "with PID 7 on node n1 exited on signal 6 (Aborted).\n"),
        "what(): CUDA error: device-side assert triggered"),
    "glog": (("F0808 14:02:36.887184 29334 cuda_util.cpp:88] Check failed: error == cudaSuccess\n"
        "*** Check failure stack trace: ***\n"),
        "F0808 14:02:36.887184 29334 cuda_util.cpp:88] Check failed: error == cudaSuccess"),
    "torchrun": ((f"{TRACEBACK}RuntimeError: boom\nERROR:torch.distributed.elastic.multiprocessing."
        f"api:failed (exitcode: 1) local_rank: 0\n{TRACEBACK}torch.distributed.elastic."
        "multiprocessing.errors.ChildFailedError: \n====\ntrain.py FAILED\n"), "RuntimeError: boom"),
    "accelerate": ((f"{TRACEBACK}RuntimeError: boom\n{TRACEBACK}subprocess.CalledProcessError: "
        "Command '['python3']' returned non-zero exit status 1.\n"), "RuntimeError: boom"),
    "spawn": ((f"{TRACEBACK}torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 0 "
        f"terminated with the following error:\n{TRACEBACK}ValueError: bad\n"), "ValueError: bad"),
    "a cause in the next line": (f"{TRACEBACK}RuntimeError: \n        An attempt was made\n",
        "RuntimeError: An attempt was made"),
    "a name alone": (f"{TRACEBACK}AssertionError\nstep 7\n", "AssertionError"),
    "the last of two": ((f"{TRACEBACK}KeyError: 1\n\nDuring handling of the above exception, "
        f"another exception occurred:\n\n{TRACEBACK}ValueError: bad\n"), "ValueError: bad"),
    "a peer": (f"{TRACEBACK}AssertionError: bad\n{TRACEBACK}RuntimeError: Connection closed by peer\n",
        "AssertionError: bad"),
    "peers alone": (f"{TRACEBACK}RuntimeError: Connection closed by peer\n",
        "RuntimeError: Connection closed by peer"),
    "an interrupt": (f"{TRACEBACK}ValueError: bad\n{TRACEBACK}KeyboardInterrupt\n",
        "ValueError: bad"),
    "argparse": ("usage: train.py\ntrain.py: error: unrecognized arguments: --foo\n",
        "train.py: error: unrecognized arguments: --foo"),
    "bash": (f"bash: line 12: python9: command not found\n{GONE}",
        "bash: line 12: python9: command not found"),
    "ld.so": ("python3: error while loading shared libraries: libmpi.so.40: cannot open\n",
        "python3: error while loading shared libraries: libmpi.so.40: cannot open"),
    "python -m": ("/usr/bin/python3: No module named torch\n",
        "/usr/bin/python3: No module named torch"),
    "hpcbert": ("hpcbert: there is no vocabulary at /data/vocab.txt\n",
        "hpcbert: there is no vocabulary at /data/vocab.txt"),
    "hpcbert's news": (("hpcbert: repeat 1 attempt 0 on n1, log /x\nhpcbert: rank 0 has CPUs 0,1\n"
        "srun: error: Unable to create step for job 3: Invalid generic resource\n"
        "hpcbert: ranks are not bound to CPUs\n"),
        "srun: error: Unable to create step for job 3: Invalid generic resource"),
    "an option": ("srun: unrecognized option '--nix'\nTry \"srun --help\" for more information\n",
        "srun: unrecognized option '--nix'"),
    "an option's value": ("srun: option '--mem' requires an argument\n",
        "srun: option '--mem' requires an argument"),
    "slurm": (f"slurmstepd: error: execve(): python9: No such file or directory\n{GONE}",
        "slurmstepd: error: execve(): python9: No such file or directory"),
    "singularity": ("FATAL:   container creation failed: mount /x: no such directory\n",
        "FATAL: container creation failed: mount /x: no such directory"),
    "enroot": (("slurmstepd: error: pyxis:     [ERROR] No such file or directory: /x.sqsh\n"
        "slurmstepd: error: spank: required plugin failed\n"),
        "slurmstepd: error: pyxis: [ERROR] No such file or directory: /x.sqsh"),
    "nccl": ("n1:1:2 [0] ibvwrap.c:1 NCCL WARN Call to ibv_open_device failed\nstep 1\n",
        "n1:1:2 [0] ibvwrap.c:1 NCCL WARN Call to ibv_open_device failed"),
    "a signal": ("step 1\nsrun: error: n1: task 0: Segmentation fault (core dumped)\n",
        "Segmentation fault (core dumped)"),
    "mpirun's signal": (("mpirun noticed that process rank 0 with PID 7 on node n1 exited on signal "
        "9 (Killed).\n"), "Killed"),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_what_a_program_ends_with(name: str, tmp_path: Path) -> None:
    log, line = SAID[name]
    path = tmp_path / "run.log"
    path.write_bytes(b"step 1\n" + log.encode())
    assert last_error(path) == line
    path.write_bytes(b"\n".join([b"x" * 80] * 3400) + b"\n" + log.encode())
    assert last_error(path) == line, "over pieces"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "step 7 loss error 0.3\n",
        "0 errors\nuser.py:3: UserWarning: an Exception\n",
        f"{GONE}slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-21T10:00:00 ***\n",
        MPIRUN,
        "hpcbert: repeat 1 attempt 0 on n1, log /x\nhpcbert: rank 0 has CPUs 0,1\n",
        "hpcbert: n1: removal was cut after 45 s: your next job on this node goes on with /x (y)\n",
        "hpcbert: removal was cut after 60 s: your next job on n[1-4] goes on with it\n",
        "Traceback (most recent call last):\n",
        'Traceback (most recent call last):\n  File "a"\n' + "  more\n" * 1000,
    ],
    ids=[
        "empty",
        "a loss",
        "a warning",
        "slurm",
        "mpirun",
        "hpcbert",
        "removal",
        "step",
        "cut",
        "endless",
    ],
)
def test_what_is_no_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text(text)
    assert last_error(path) == ""
    assert last_error(tmp_path / "missing.log") == ""


@pytest.mark.parametrize(
    "noise", [b"\x00\xff" * 4000, b"Traceback (most recent call last):\n" * 99]
)
def test_what_is_no_text_raises_nothing(noise: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_bytes(noise)
    assert last_error(path) == ""


@cases
def test_of_an_output_of_several_attempts_only_one_counts(
    text: str, attempt: int | None, error: str, tmp_path: Path
) -> None:
    lines = {"B": "hpcbert: repeat 1 attempt {} on n1, log /x\n", "E": "a: error: no {}\n"}
    path = tmp_path / "7_1.out"
    path.write_text("".join(lines[word[0]].format(word[1]) for word in text.split()))
    assert last_error(path, attempt) == error
