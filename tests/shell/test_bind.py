"""The CPUs of each rank: near its GPU, disjoint, as many as the site gives, from the kernel's own files."""

import os

import pytest

from hpcbert.model import Shape
from tests.kit import drafts
from tests.kit.logs import write_file
from tests.kit.recipes import SHELL, rank_command
from tests.kit.scripts import RECORDER, bash, drafted, only_script, run_script, tool, write_ranks

pytestmark = pytest.mark.slow

# Two processors of 64 cores with two threads each, four GPUs at each: numbered as Linux does.
SOCKETS = ("0-63,128-191",) * 4 + ("64-127,192-255",) * 4
# The first pair of GPUs hangs at the last domain, as in some machines of eight.
CROSSED = tuple(f"{16 * n}-{16 * n + 15}" for n in (3, 3, 1, 1, 2, 2, 0, 0))


def parse_numbers(text):
    ranges = (part.partition("-") for part in text.split(","))
    return {n for first, _, last in ranges for n in range(int(first), int(last or first) + 1)}


class Node:
    """A node with GPUs at places in its /sys, and a bash that finds it there."""

    def __init__(self, folder, near, cpus, threads=1, kind=("0x10de", "0x030200")):
        self.folder, self.allowed = folder, f"0-{cpus - 1}"
        files, cores = {"devices/system/cpu/online": self.allowed}, cpus // threads
        for cpu in range(cpus):
            path = f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
            files[path] = ",".join(str(cpu % cores + cores * n) for n in range(threads))
        devices = {number: (*kind, place) for number, place in enumerate(near, start=16)}
        # Near all CPUs, and no GPUs: a management controller and a switch.
        devices[1] = ("0x1a03", "0x030000", self.allowed)
        devices[15] = ("0x10de", "0x068000", self.allowed)
        for number, texts in devices.items():
            for name, text in zip(("vendor", "class", "local_cpulist"), texts, strict=True):
                files[f"bus/pci/devices/0000:{number:02x}:00.0/{name}"] = text
        for path, text in files.items():
            write_file(folder / "sys", path, f"{text}\n")
        tool(folder / "tools", "taskset", '#!/bin/bash\nprintf "%s " "$2" >"$OUT"\n')
        program = '#!/bin/bash\nprintf %s "${OMP_NUM_THREADS:-unset}" >>"$OUT"\n'
        self.python = tool(folder / "tools", "python", program)

    def ranks(self, shape="1n8g", *, device="gpu", variables=None, allowed="", **changes):
        """Return the CPUs of each rank of a node, none if it is not bound, and its threads."""
        settings = {"nodes": {"cpus_per_gpu": 16}, "env": {}, **changes}
        site = drafts.reference(self.folder, **settings)
        request = drafts.combined(Shape.parse(shape), device=device, repeats=1)
        site = drafts.settled(site, python=str(self.python))
        command = rank_command(only_script(drafts.drafted(site, request, options={"dry": True})))
        text = f"Name:\tbash\nCpus_allowed_list:\t{allowed or self.allowed}\n"
        status = write_file(self.folder, "status", text)
        for name in ("rank.bash", "bind.bash"):
            text = (SHELL / name).read_text().replace("/sys/", f"{self.folder}/sys/")
            text = text.replace("/proc/self/status", str(status))
            write_file(self.folder, f"library/{name}", text)
        words = command.replace(str(SHELL), f"{self.folder}/library")
        env = {"SLURM_NTASKS": "8", "HPCBERT_NODE_IPS": "127.0.0.1", "HPCBERT_NODES": "1"}
        ranks, out = [], self.folder / "out"
        for number in range(request.shape.gpus_per_node):
            env |= {"OUT": str(out), "SLURM_LOCALID": str(number), "SLURM_PROCID": str(number)}
            bash("-c", words, tools=self.folder / "tools", **{**env, **(variables or {})})
            *cpus, threads = out.read_text().split()
            out.unlink()
            ranks.append((parse_numbers(cpus[0]) if cpus else set(), threads))
        return ranks


def are_disjoint(ranks):
    every = [cpu for cpus, _ in ranks for cpu in cpus]
    return len(every) == len(set(every)) > 0


def test_each_rank_has_cpus_near_its_gpu_and_no_other_has_them(tmp_path):
    for near, cpus, threads in ((SOCKETS, 256, 2), (CROSSED, 64, 1)):
        node, share = Node(tmp_path / str(cpus), near, cpus, threads), min(16, cpus // 8)
        ranks = node.ranks()
        assert are_disjoint(ranks)
        for (rank_cpus, omp), place in zip(ranks, near, strict=True):
            assert rank_cpus <= parse_numbers(place)
            assert (len(rank_cpus), omp) == (share, str(share))
        # Ranks that see one GPU each come to the same shares.
        variables = {"CUDA_VISIBLE_DEVICES": "5", "SLURM_STEP_GPUS": "5"}
        variables["SLURM_JOB_GPUS"] = "0,1,2,3,4,5,6,7"
        assert node.ranks(variables=variables) == ranks
        assert near == CROSSED or node.ranks("1n1g") == ranks[:1]


def test_two_threads_of_a_core_are_of_one_rank_and_slurm_s_numbers_say_which_gpus_it_has(tmp_path):
    node = Node(tmp_path, SOCKETS, 256, 2)
    ranks = node.ranks(nodes={"cpus_per_gpu": 24})
    cores = [{cpu % 128 for cpu in cpus} for cpus, _ in ranks]
    assert all(len(core) == 16 for core in cores)
    assert len(set().union(*cores)) == 128
    assert {omp for _, omp in ranks} == {"24"}
    for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        ranks = node.ranks("1n4g", variables={name: "4,5,6,7", "CUDA_VISIBLE_DEVICES": "0,1,2,3"})
        assert are_disjoint(ranks)
        assert all(cpus and cpus <= parse_numbers(SOCKETS[4]) for cpus, _ in ranks)


def test_where_nothing_says_what_is_near_the_cpus_are_shared_evenly(tmp_path):
    for number, variables in enumerate(({}, {"SLURM_JOB_GPUS": "0,1,2,3,4,5,6,MIG-1[0]"})):
        ranks = Node(tmp_path / str(number), SOCKETS[:4], 64).ranks(variables=variables)
        assert [min(cpus) for cpus, _ in ranks] == list(range(0, 64, 8))
    assert (
        Node(tmp_path, (), 2).ranks(device="cpu", nodes={"cpus_per_gpu": 1}) == [(set(), "1")] * 8
    )


def test_gpus_of_amd_are_seen_too_and_what_slurm_gave_is_all_that_there_is(tmp_path):
    near = tuple(f"{first}-{first + 15}" for first in range(112, -1, -16))
    ranks = Node(tmp_path / "amd", near, 128, kind=("0x1002", "0x038000")).ranks()
    assert [min(cpus) for cpus, _ in ranks] == list(range(112, -1, -16))
    node = Node(tmp_path / "nvidia", CROSSED, 64)
    shared = {"slurm": {"exclusive": False}}
    ranks = node.ranks("1n2g", allowed="50-57", **shared)
    assert [cpus for cpus, _ in ranks] == [{50, 51, 52, 53}, {54, 55, 56, 57}]
    # Nobody keeps another job off these, which may be on them already.
    assert [cpus for cpus, _ in node.ranks("1n2g", **shared)] == [set(), set()]


def test_a_site_may_bind_otherwise_or_give_no_cpus(tmp_path):
    node = Node(tmp_path, SOCKETS, 256, 2)
    ranks = node.ranks("1n2g", device="cpu", nodes={"cpus_per_gpu": 4})
    assert are_disjoint(ranks)
    assert {(len(cpus), omp) for cpus, omp in ranks} == {(4, "4")}
    for binding in ("none", "cluster"):
        nodes = {"cpus_per_gpu": 4, "cpu_bind": binding}
        assert node.ranks("1n2g", nodes=nodes) == [(set(), "4")] * 2
        draft = drafted(drafts.reference(tmp_path, nodes=nodes), shape="4n8g", scheduler="slurm")
        words = only_script(draft).split("exec srun")[1]
        assert ("--cpu-bind=none" in words) == (binding == "none")
        assert "--cpus-per-task=4" in words
    assert node.ranks("1n1g", slurm={"srun_args": ("--cpu-bind=cores",)}) == [(set(), "16")]
    # Where nobody gives CPUs, each rank starts its share of threads.
    tool(tmp_path / "tools", "nproc", "#!/bin/bash\necho 256\n")
    nodes = {"cpus_per_gpu": 0}
    assert node.ranks("1n2g", nodes=nodes) == [(set(), "32")] * 2
    assert node.ranks("1n1g", nodes=nodes, env={"OMP_NUM_THREADS": "5"}) == [(set(), "5")]
    assert node.ranks("1n1g", nodes=nodes, variables={"OMP_NUM_THREADS": "6"}) == [(set(), "6")]


@pytest.mark.needs("cpus")
def test_the_kernel_binds_them(tmp_path):
    words = 'grep Cpus_allowed_list: /proc/self/status >"$RECORD.cpus.$SLURM_PROCID"\n'
    program = RECORDER.partition("exit ")[0] + words
    draft = write_ranks(tmp_path, program, site={"nodes": {"cpus_per_gpu": 1}, "env": {}})
    run_script(draft, tmp_path, status=0)
    first, second = ((tmp_path / f"record.cpus.{n}").read_text().split()[1] for n in (0, 1))
    assert first != second
    assert parse_numbers(first) | parse_numbers(second) <= os.sched_getaffinity(0)
    for rank in (0, 1):
        environment = (tmp_path / f"record.env.{rank}").read_text().split("\0")
        assert "OMP_NUM_THREADS=1" in environment
