"""The CPUs of each rank: near its GPU, disjoint, as many as the site gives, from the kernel's own files."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hpcbert.model import Shape
from hpcbert.script.plan import Request
from tests.kit import drafts
from tests.kit.drafts import reference
from tests.kit.logs import write_file
from tests.kit.recipes import SHELL, rank_command
from tests.kit.scripts import RECORDER, only_script, run_script, tool, with_python
from tests.kit.scripts import drafted as drafted_script
from tests.kit.waiting import CEILING

pytestmark = pytest.mark.slow

TASKSET = '#!/bin/bash\nprintf %s "$2" >"$BOUND"\n'
PRINTER = '#!/bin/bash\nprintf %s "${OMP_NUM_THREADS:-unset}" >"$THREADS"\n'
NVIDIA, AMD, BMC, SWITCH = (
    ("0x10de", "0x030200"),
    ("0x1002", "0x038000"),
    ("0x1a03", "0x030000"),
    ("0x10de", "0x068000"),
)
# Two processors of 64 cores with two threads each, four GPUs at each: numbered as Linux does.
SOCKETS = ("0-63,128-191",) * 4 + ("64-127,192-255",) * 4
# The first pair of GPUs hangs at the last domain, as in some machines of eight.
CROSSED = tuple(f"{16 * n}-{16 * n + 15}" for n in (3, 3, 1, 1, 2, 2, 0, 0))


def parse_numbers(text: str) -> set[int]:
    values: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        values.update(range(int(first), int(last or first) + 1))
    return values


class Node:
    """A node with GPUs at places in its /sys, and a bash that finds it there."""

    def __init__(self, folder: Path, near: tuple[str, ...], cpus: int, threads: int = 1) -> None:
        self.folder, self.allowed = folder, f"0-{cpus - 1}"
        write_file(folder, "sys/devices/system/cpu/online", self.allowed + "\n")
        for cpu in range(cpus):
            core = cpu % (cpus // threads)
            same = ",".join(str(core + cpus // threads * n) for n in range(threads))
            path = f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
            write_file(folder, path, same + "\n")
        for number, place in enumerate(near):
            self.device(f"0000:{number + 16:02x}:00.0", NVIDIA, place)
        self.device("0000:01:00.0", BMC, self.allowed)
        self.device("0000:0f:00.0", SWITCH, self.allowed)
        tool(folder / "tools", "taskset", TASKSET)
        tool(folder / "tools", "python", PRINTER)

    def device(self, name: str, kind: tuple[str, str], near: str) -> None:
        parts = zip(("vendor", "class", "local_cpulist"), (*kind, near), strict=True)
        for file, text in parts:
            write_file(self.folder, f"sys/bus/pci/devices/{name}/{file}", text + "\n")

    def ranks(
        self, shape: str = "1n8g", *, device: str = "gpu", variables: Mapping[str, str] = {},
        allowed: str = "", **changes: Any,
    ) -> list[tuple[set[int] | None, str]]:  # fmt: skip
        """Return the CPUs and the number of threads of each rank of a node."""
        settings = {"nodes": {"cpus_per_gpu": 16}, "env": {}, "runs": "/runs", **changes}
        site = with_python(reference(self.folder, **settings), self.folder / "tools" / "python")
        request = Request(Shape.parse(shape), device=device, repeats=1)
        draft = drafts.drafted(site, request, options={"dry": True})
        library = self.folder / "library"
        library.mkdir(exist_ok=True)
        status = write_file(
            self.folder, "status", f"Name:\tbash\nCpus_allowed_list:\t{allowed or self.allowed}\n"
        )
        for name in ("rank.bash", "bind.bash"):
            text = (SHELL / name).read_text().replace("/sys/", f"{self.folder}/sys/")
            (library / name).write_text(text.replace("/proc/self/status", str(status)))
        text = rank_command(only_script(draft)).replace(str(SHELL), str(library))
        return [self._rank(text, n, variables) for n in range(request.shape.gpus_per_node)]

    def _rank(
        self, text: str, number: int, variables: Mapping[str, str]
    ) -> tuple[set[int] | None, str]:
        bound, threads = (self.folder / f"{word}.{number}" for word in ("bound", "threads"))
        bound.unlink(missing_ok=True)
        environment = {
            "PATH": f"{self.folder / 'tools'}:{os.environ['PATH']}", "BOUND": str(bound),
            "THREADS": str(threads), "SLURM_LOCALID": str(number), "SLURM_PROCID": str(number),
            "SLURM_NTASKS": "8", "HPCBERT_NODE_IPS": "127.0.0.1", "HPCBERT_NODES": "1", **variables,
        }  # fmt: skip
        subprocess.run(["bash", "-c", text], env=environment, check=True, timeout=CEILING)
        return parse_numbers(bound.read_text()) if bound.exists() else None, threads.read_text()


def are_disjoint(ranks: list[tuple[set[int] | None, str]]) -> bool:
    every = [cpu for cpus, _ in ranks for cpu in cpus or ()]
    return len(every) == len(set(every)) > 0


@pytest.mark.parametrize(
    ("near", "cpus", "threads"), [(SOCKETS, 256, 2), (CROSSED, 64, 1)], ids=["sockets", "crossed"]
)
def test_each_rank_has_cpus_near_its_gpu_and_no_other_has_them(
    near: tuple[str, ...], cpus: int, threads: int, tmp_path: Path
) -> None:
    share = min(16, cpus // 8)
    ranks = Node(tmp_path, near, cpus, threads).ranks()
    assert are_disjoint(ranks)
    for (rank_cpus, omp), place in zip(ranks, near, strict=True):
        assert rank_cpus is not None
        assert rank_cpus <= parse_numbers(place)
        assert (len(rank_cpus), omp) == (share, str(share))


def test_two_threads_of_a_core_are_never_those_of_two_ranks(tmp_path: Path) -> None:
    ranks = Node(tmp_path, SOCKETS, 256, 2).ranks(nodes={"cpus_per_gpu": 24})
    cores = [{cpu % 128 for cpu in cpus or ()} for cpus, _ in ranks]
    assert all(len(core) == 16 for core in cores)
    assert len(set().union(*cores)) == 128
    assert {omp for _, omp in ranks} == {"24"}


def test_slurm_s_numbers_say_which_gpus_the_ranks_have(tmp_path: Path) -> None:
    node = Node(tmp_path, SOCKETS, 256, 2)
    assert node.ranks("1n1g") == node.ranks()[:1]
    for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        ranks = node.ranks("1n4g", variables={name: "4,5,6,7", "CUDA_VISIBLE_DEVICES": "0,1,2,3"})
        assert are_disjoint(ranks)
        assert all(cpus and cpus <= parse_numbers(SOCKETS[4]) for cpus, _ in ranks)


@pytest.mark.parametrize("shown", ["0", "5"])
def test_ranks_that_see_one_gpu_each_come_to_the_same_shares(shown: str, tmp_path: Path) -> None:
    node = Node(tmp_path, CROSSED, 64)
    variables = {"CUDA_VISIBLE_DEVICES": shown, "SLURM_STEP_GPUS": shown}
    assert node.ranks(variables={**variables, "SLURM_JOB_GPUS": "0,1,2,3,4,5,6,7"}) == node.ranks()


def test_where_nothing_says_what_is_near_the_cpus_are_shared_evenly(tmp_path: Path) -> None:
    for number, variables in enumerate(({}, {"SLURM_JOB_GPUS": "0,1,2,3,4,5,6,MIG-1[0]"})):
        ranks = Node(tmp_path / str(number), SOCKETS[:4], 64).ranks(variables=variables)
        assert [min(cpus or ()) for cpus, _ in ranks] == list(range(0, 64, 8))


def test_ranks_on_cpus_have_cpus_of_their_own(tmp_path: Path) -> None:
    ranks = Node(tmp_path, SOCKETS, 256, 2).ranks(device="cpu", nodes={"cpus_per_gpu": 4})
    assert are_disjoint(ranks)
    assert {(len(cpus or ()), omp) for cpus, omp in ranks} == {(4, "4")}


def test_gpus_of_amd_are_found_too(tmp_path: Path) -> None:
    node = Node(tmp_path, (), 128)
    for number in range(8):
        node.device(f"0000:{0xC1 - number * 16:02x}:00.0", AMD, f"{number * 16}-{number * 16 + 15}")
    ranks = node.ranks()
    assert [min(cpus or ()) for cpus, _ in ranks] == list(range(112, -1, -16))


def test_what_slurm_gave_is_all_that_there_is(tmp_path: Path) -> None:
    node = Node(tmp_path, CROSSED, 64)
    shared: dict[str, Any] = {"slurm": {"exclusive": False}}
    ranks = node.ranks("1n2g", allowed="50-57", **shared)
    assert [cpus for cpus, _ in ranks] == [{50, 51, 52, 53}, {54, 55, 56, 57}]
    # Nobody keeps another job off these, which may be on them already.
    assert {cpus is None for cpus, _ in node.ranks("1n2g", **shared)} == {True}


def test_fewer_cpus_than_ranks_are_shared_by_all(tmp_path: Path) -> None:
    ranks = Node(tmp_path, (), 2).ranks(device="cpu", nodes={"cpus_per_gpu": 1})
    assert ranks == [(None, "1")] * 8


@pytest.mark.parametrize("binding", ["none", "cluster"])
def test_a_site_may_bind_otherwise(binding: str, tmp_path: Path) -> None:
    nodes = {"cpus_per_gpu": 4, "cpu_bind": binding}
    node = Node(tmp_path, SOCKETS, 256, 2)
    assert node.ranks(nodes=nodes) == [(None, "4")] * 8
    assert node.ranks(slurm={"srun_args": ("--cpu-bind=cores",)}) == [(None, "16")] * 8
    text = only_script(
        drafted_script(reference(tmp_path, nodes=nodes), shape="4n8g", scheduler="slurm")
    )
    words = text.split("exec srun")[1]
    assert ("--cpu-bind=none" in words) == (binding == "none")
    assert "--cpus-per-task=4" in words


def test_where_nobody_gives_cpus_each_rank_starts_its_share_of_threads(tmp_path: Path) -> None:
    node = Node(tmp_path, SOCKETS, 256, 2)
    tool(tmp_path / "tools", "nproc", "#!/bin/bash\necho 256\n")
    nodes = {"cpus_per_gpu": 0}
    assert node.ranks("1n2g", nodes=nodes) == [(None, "32")] * 2
    assert node.ranks("1n1g", nodes=nodes, env={"OMP_NUM_THREADS": "5"}) == [(None, "5")]
    assert node.ranks("1n1g", nodes=nodes, variables={"OMP_NUM_THREADS": "6"}) == [(None, "6")]


@pytest.mark.needs("cpus")
def test_the_kernel_is_told(tmp_path: Path) -> None:
    program = (
        RECORDER.partition("exit ")[0]
        + 'grep Cpus_allowed_list: /proc/self/status >"$RECORD.cpus.$SLURM_PROCID"\n'
    )
    site = reference(tmp_path, nodes={"cpus_per_gpu": 1}, env={})
    draft = drafted_script(with_python(site, tool(tmp_path, "python", program)))
    script = run_script(draft, tmp_path)
    assert script.returncode == 0, script.stderr
    first, second = ((tmp_path / f"record.cpus.{n}").read_text().split()[1] for n in (0, 1))
    assert first != second
    assert parse_numbers(first) | parse_numbers(second) <= os.sched_getaffinity(0)
    for rank in (0, 1):
        environment = (tmp_path / f"record.env.{rank}").read_text().split("\0")
        assert "OMP_NUM_THREADS=1" in environment
