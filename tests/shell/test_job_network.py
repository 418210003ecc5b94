"""Addresses, ports, memory and messages of a job: of one kind, free, and the same for all of its ranks."""

import re
import socket

import pytest

from hpcbert.model import Shape
from tests.kit import scripts
from tests.kit.cases import cases
from tests.kit.drafts import reference
from tests.kit.logs import write_file
from tests.kit.needs import not_applicable
from tests.kit.recipes import SHELL, World, load, presets
from tests.kit.scripts import drafted, events, only_script, run_functions, run_script, tool

pytestmark = pytest.mark.slow


def run_job(
    folder, shape="1n2g", scheduler="local", *, tools=None, status=0, together=False, **site
):
    """Run a repeat's script; return what it says, the environment of rank 0, and its events."""
    options = {"shape": shape, "scheduler": scheduler, "together": together}
    draft = scripts.write_ranks(folder, site=site, **options)
    for name, text in (tools or {}).items():
        tool(folder / "tools", name, f"#!/bin/bash\n{text}\n")
    script = run_script(draft, folder, status=status, HOSTS="n1\nn2")
    path = folder / "record.env.0"
    return script.stderr, path.read_text().split("\0") if path.exists() else [], events(draft)


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1", "::"])
def test_a_port_that_somebody_has_is_passed_over(address, tmp_path):
    text = only_script(drafted(tmp_path, scheduler="slurm"))
    (sizes,) = re.findall(r"^nodes=.*$", text, re.MULTILINE)

    def read_port(job):
        return int(*run_functions(f'{sizes}\n. "$library/job.bash"\nfree_port {job}'))

    job = next(n for n in range(2500, 3500) if read_port(n) == 10000 + 2 * n)
    first = 10000 + 2 * job
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for rank in (0, 1):
        with socket.socket(family) as listener:
            try:
                listener.bind((address, first + rank))
            except OSError as error:
                not_applicable(f"{address}: {error}")
            listener.listen()
            chosen = read_port(job)
        assert chosen not in {first, first + rank}
        assert 10000 <= chosen < 30000
    assert read_port(job) == read_port(job + 10000) == first
    assert not first <= read_port(job + 1) < first + 2


@cases
def test_nodes_have_addresses_of_one_kind(four, six, chosen, tmp_path):
    answer = f'case $1:$2 in ahostsv4:*) echo "{four}" ;; ahostsv6:*) echo "{six}" ;; esac'
    tools = {"getent": answer, "ip": answer}
    message, words, _ = run_job(tmp_path, "2n1g", "slurm", tools=tools, status=int(not chosen))
    if not chosen:
        assert "set nodes.interface" in message
        assert not words
        return
    bare = f"[{chosen}]" if ":" in chosen else chosen
    expected = {f"MASTER_ADDR={chosen}", f"HPCBERT_NODE_IPS={chosen},{chosen}"}
    assert expected | {f"HPCBERT_NODE_HOSTS={bare},{bare}"} <= set(words)


@cases
def test_a_notice_of_scontrol_is_not_a_node(nodelist, names, expected, tmp_path):
    tool(tmp_path, "scontrol", f"#!/bin/bash\ncat <<'END'\n{names}\nEND\n")
    settings = f"nodes=2 tasks=2 SLURM_JOB_ID=5 SLURM_JOB_NODELIST='{nodelist}'"
    words = 'run_preflight() { :; }; choose_addresses() { echo "${node_names[*]}"; exit; }'
    program = f"{settings}\n{words}\n(prepare_nodes) 2>&1 || echo failed"
    lines = run_functions(program, "slurm.bash", tools=tmp_path)
    assert expected in "\n".join(lines)
    assert ("failed" in lines) == ("names" in expected)


def test_an_interface_may_have_ipv6_alone_one_rank_needs_none_and_a_node_without_it_is_named(
    tmp_path,
):
    def run(name, ip, shape="2n1g", status=0):
        """Run a script where the interface is ib0 and `ip` answers so on each node."""
        # The stand-in for srun runs a step on one node, whatever it is asked for.
        nodes = 'for SLURM_NODEID in 0 1; do export SLURM_NODEID; "${@:6}"; done; exit'
        srun = f'if [[ $* == *"addr show"* ]]; then {nodes}; fi\n{scripts.SRUN}'
        settings = {"nodes": {"interface": "ib0"}, "tools": {"srun": srun, "ip": ip}}
        return run_job(tmp_path / name, shape, "slurm", status=status, **settings)

    both = 'if [[ $1 == -6 ]]; then echo "2: ib0 inet6 fd00:5::7/64 scope global"; fi'
    _, words, _ = run("IPv6", both)
    assert "HPCBERT_NODE_IPS=fd00:5::7,fd00:5::7" in words
    run("single", "", "1n1g")
    for shape, node, count in (("2n1g", "0", 1), ("1n2g", "none", 2)):
        lacking = f"[[ $1 == -4 && $SLURM_NODEID == {node} ]]"
        ip = f'if {lacking}; then echo "2: ib0 inet 10.0.0.7/24"; fi'
        message, *_ = run(shape, ip, shape, status=1)
        lacks = [line for line in message.splitlines() if "has no interface ib0" in line]
        start = r"hpcbert: n2 has no interface ib0 \(nodes.interface in the site."
        assert re.match(start, lacks[-1])
        assert "lo" in lacks[-1].partition(", but ")[2].split()
        assert len(lacks) == count


def test_an_address_before_a_port_stands_in_brackets_and_oneflow_s_nodes_meet_at_the_job_s_port(
    tmp_path,
):
    for recipe in ("tf2", "perfzero", "paddle18"):
        (tmp_path / recipe).mkdir()
        world = World(recipe, tmp_path / recipe)
        case = {"shape": Shape(2, 8), **presets(load(recipe))[0]}
        run = world.run(world.render(case), env={"HPCBERT_NODE_IPS": "fd00::1,fd00::2"})
        assert run.exit == 0, run.output
        variable = "worker_endpoints" if recipe == "paddle18" else "TF_CONFIG"
        addresses = re.findall(r"\[fd00::\d\]:12345", run.environment[variable])
        assert addresses == ["[fd00::1]:12345", "[fd00::2]:12345"]
    world = World("oneflow", tmp_path)
    case = {"shape": Shape(2, 8), **presets(load("oneflow"))[0]}
    assert "--ctrl_port=12345" in world.run(world.render(case)).calls[-1]
    named = {**case, "settings": {"ctrl_port": "50051"}}
    assert "--ctrl_port=50051" in world.run(world.render(named)).calls[-1]


def test_a_page_cache_is_dropped_where_the_site_says_how(tmp_path):
    program = '#!/bin/bash\nprintf "%s\\n" "$@" >>"$RECORD.dropped"\n'
    dropper = str(tool(tmp_path / "a b", "drop", program))
    nodes = {"drop_caches": (dropper, "vm.drop_caches=3", "two words")}
    run_job(tmp_path, nodes=nodes, together=True)
    lines = (tmp_path / "record.dropped").read_text().splitlines()
    assert lines == ["vm.drop_caches=3", "two words"] * 2
    message, *_ = run_job(tmp_path / "other", nodes={"drop_caches": ("false",)})
    assert "page caches were not dropped" in message
    assert "caches=" not in only_script(drafted(tmp_path))


def test_nccl_writes_its_rings_once_beside_the_log_unless_somebody_set_it(tmp_path):
    _, first, _ = run_job(tmp_path)
    other = (tmp_path / "record.env.1").read_text().split("\0")
    assert "NCCL_DEBUG=INFO" in first
    (file,) = [word for word in first if word.startswith("NCCL_DEBUG_FILE=")]
    assert re.search(r"/env/bert-tiny_1n2g_\w+\.1\.0\.nccl$", file)
    assert not [word for word in other if word.startswith("NCCL_DEBUG")]
    _, words, _ = run_job(tmp_path / "other", env={"NCCL_DEBUG": "WARN"})
    assert [word for word in words if word.startswith("NCCL_DEBUG")] == ["NCCL_DEBUG=WARN"]


@cases
def test_a_whole_node_has_its_memory(exclusive, memory, words, expected: list[str], tmp_path):
    slurm = {"exclusive": exclusive, "memory": memory, "sbatch_args": words}
    text = only_script(drafted(reference(tmp_path, slurm=slurm), scheduler="slurm"))
    options = [word for word in scripts.sbatch_options(text) if word.startswith("--mem=")]
    assert options == expected


def test_a_job_writes_down_that_its_ranks_saw_one_gpu_each(tmp_path):
    for shown, apart in (("0", True), ("0,1", None)):
        env = {"CUDA_VISIBLE_DEVICES": shown}
        *_, job_events = run_job(tmp_path / shown, "1n2g", "slurm", env=env)
        (ended,) = [event for event in job_events if event["event"] == "step-end"]
        assert ended.get("apart") == apart


@cases
def test_little_locked_memory_is_reported_where_there_is_infiniband(state, limit, warned, tmp_path):
    world = World("pytorch", tmp_path)
    script = world.render({"shape": Shape(2, 1), "device": "gpu", **presets(load("pytorch"))[0]})
    if state:
        write_file(tmp_path, "sys/class/infiniband/mlx5_0/ports/1/state", state + "\n")
    text = (SHELL / "rank.bash").read_text().replace("/sys/class", f"{tmp_path}/sys/class")
    ulimit = "ulimit() { echo %s; }" % (limit or "unlimited")
    write_file(tmp_path, "library/rank.bash", f"{ulimit}\n{text}")
    run = world.run(script, library=tmp_path / "library")
    assert ("locked" in run.output or "may lock 64 KiB" in run.output) == warned
