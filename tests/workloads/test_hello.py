"""Ranks that say hello, as processes of this machine."""

import os
import socket
import subprocess
import sys

from tests.kit.cases import cases
from tests.kit.logs import write_file
from tests.kit.needs import free_port
from tests.kit.paths import REPOSITORY
from tests.kit.scripts import run_program, tool
from tests.kit.waiting import CEILING


def test_ranks_meet_or_name_who_does_not_come_and_a_port_that_is_taken(tmp_path):
    def run_ranks(*patience, count, port=0, mpi="no"):
        """Start ranks from 0 on, each a node of its own and so patient, in seconds; return their lines."""
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port or free_port())}
        text, started = (REPOSITORY / "hpcbert/workloads/hello.py").read_text(), []
        for rank, seconds in enumerate(patience):
            program = text.replace("PATIENCE = 10.0", f"PATIENCE = {seconds}")
            path = write_file(tmp_path, f"{rank}.py", program.replace("PATIENCE + 5", "PATIENCE"))
            env = {**os.environ, **variables, "SLURM_NTASKS": str(count), "SLURM_PROCID": str(rank)}
            env["SLURMD_NODENAME"] = f"n{rank}"
            argv = [sys.executable, "-S", str(path), mpi]
            process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)
            started.append(process)
        lines = [process.communicate(timeout=CEILING)[0] for process in started]
        return sorted(line.replace("\t", " ") for text in lines for line in text.splitlines())

    assert run_ranks(*[CEILING] * 3, count=3) == [
        "n0 port ok rank 0's port is free",
        "n1 hello ok ranks reach the first one",
        "n2 hello ok ranks reach the first one",
    ]
    # Then MPI is not tried.
    assert run_ranks(3.0, CEILING, count=3, mpi="yes") == [
        "n0 hello fail rank 0 hears nothing from ranks 2",
        "n0 port ok rank 0's port is free",
        "n1 hello ok ranks reach the first one",
    ]
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        first, second = run_ranks(0.5, 0.5, count=2, port=port)
    assert first == f"n0 port fail {port}: Address already in use"
    assert second.startswith(f"n1 hello fail rank 1 does not reach rank 0 at 127.0.0.1:{port}: ")


@cases
def test_gpus_are_counted_against_what_was_asked(tmp_path, listed, visible, detail):
    if listed is not None:
        lines = "\n".join(f"GPU {number}: V100 (UUID: GPU-{number})" for number in range(listed))
        tool(tmp_path, "nvidia-smi", f"#!/bin/sh\ncat <<'END'\n{lines}\nEND\n")
    variables = {"SLURMD_NODENAME": "n1", "SLURM_LOCALID": "0", "SLURM_PROCID": "0"}
    variables |= {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    words = ("rank", "hello.py", "true", "", "4", "no")
    result = run_program("look.sh", *words, PATH=f"{tmp_path}:/usr/bin:/bin", **variables)
    (gpu_line,) = [line for line in result.stdout.splitlines() if "\tGPUs\t" in line]
    assert gpu_line.split("\t", 2)[2].replace("\t", " ") == detail
