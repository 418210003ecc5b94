"""Addresses and ports of a job: of one kind, free, and the same for all of its ranks."""

from __future__ import annotations

import re
import socket
import subprocess
from pathlib import Path

import pytest

from hpcbert.model import Shape
from tests.kit.cases import cases
from tests.kit.drafts import reference
from tests.kit.logs import write_file
from tests.kit.needs import not_applicable
from tests.kit.recipes import SHELL, Case, World, load, presets
from tests.kit.scripts import (
    RECORDER,
    drafted,
    events,
    only_script,
    run_script,
    slurm_in,
    tool,
    with_python,
)
from tests.kit.waiting import CEILING

pytestmark = pytest.mark.slow


def read_port(text: str, job: int) -> int:
    """Return the port that a script's own function gives a job."""
    (sizes,) = re.findall(r"^nodes=.*$", text, re.MULTILINE)
    result = subprocess.run(
        ["bash", "-euc", f"{sizes}\n. '{SHELL}/job.bash'\nfree_port {job}"],
        capture_output=True, text=True, check=True, timeout=CEILING,
    )  # fmt: skip
    return int(result.stdout)


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1", "::"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_port_that_somebody_has_is_passed_over(address: str, rank: int, tmp_path: Path) -> None:
    text = only_script(drafted(reference(tmp_path), shape="1n2g", scheduler="slurm"))
    job = next(n for n in range(2500, 3500) if read_port(text, n) == 10000 + 2 * n)
    first = 10000 + 2 * job
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listener:
        try:
            listener.bind((address, first + rank))
        except OSError as error:
            not_applicable(f"{address}: {error}")
        listener.listen()
        chosen = read_port(text, job)
    assert chosen not in {first, first + rank}
    assert 10000 <= chosen < 30000
    assert read_port(text, job) == read_port(text, job + 10000) == first
    assert read_port(text, job + 1) >= first + 2 or read_port(text, job + 1) < first


def run_with_addresses(
    tmp_path: Path, getent: str, **changes: object
) -> tuple[str, dict[str, str]]:
    """Run a script of two nodes with a name service; return what it says, and rank 0's environment."""
    python = tool(tmp_path, "python", RECORDER)
    draft = drafted(
        with_python(reference(tmp_path, **changes), python), shape="2n1g", scheduler="slurm"
    )
    words = slurm_in(tmp_path / "tools", scontrol="printf '%s\\n' n1 n2")
    tool(tmp_path / "tools", "getent", f"#!/bin/bash\n{getent}\n")
    tool(tmp_path / "tools", "ip", f"#!/bin/bash\n{getent}\n")
    script = run_script(draft, tmp_path, **words)
    path = tmp_path / "record.env.0"
    assignments = path.read_text().split("\0") if path.exists() else []
    return script.stderr, dict(word.split("=", 1) for word in assignments if "=" in word)


BOTH = 'case $1:$2 in ahostsv4:*) echo "{four}" ;; ahostsv6:*) echo "{six}" ;; esac'


@cases
def test_nodes_have_addresses_of_one_kind(four: str, six: str, chosen: str, tmp_path: Path) -> None:
    message, variables = run_with_addresses(tmp_path, BOTH.format(four=four, six=six))
    if not chosen:
        assert "set nodes.interface" in message
        assert not variables
        return
    assert variables["MASTER_ADDR"] == chosen
    assert variables["HPCBERT_NODE_IPS"] == f"{chosen},{chosen}"
    bare = f"[{chosen}]" if ":" in chosen else chosen
    assert variables["HPCBERT_NODE_HOSTS"] == f"{bare},{bare}"


@cases
def test_a_notice_of_scontrol_is_not_a_node(
    nodelist: str, names: str, expected: str, tmp_path: Path
) -> None:
    tool(tmp_path, "scontrol", f"#!/bin/bash\ncat <<'END'\n{names}\nEND\n")
    settings = f"nodes=2 tasks=2 SLURM_JOB_ID=5 SLURM_JOB_NODELIST='{nodelist}'"
    words = 'run_preflight() { :; }; choose_addresses() { echo "${node_names[*]}"; exit; }'
    sources = f"set -euo pipefail\n. '{SHELL}/slurm.bash'"
    program = f"{sources}\n{settings}\n{words}\nprepare_nodes 2>&1"
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    result = subprocess.run(
        ["bash", "-c", program], capture_output=True, text=True, check=False, env=environment
    )
    assert expected in result.stdout
    assert (result.returncode == 0) == ("names" not in expected)


def run_on_interface(
    tmp_path: Path, ip: str, *, shape: str = "2n1g"
) -> subprocess.CompletedProcess[str]:
    """Run a script where the interface is ib0 and `ip` answers so on each node, by SLURM_NODEID."""
    # The stand-in runs a step on one node, whatever it is asked for.
    python = tool(tmp_path, "python", RECORDER)
    site = reference(tmp_path, nodes={"interface": "ib0"})
    draft = drafted(with_python(site, python), shape=shape, scheduler="slurm")
    words = slurm_in(tmp_path / "tools", scontrol="printf '%s\\n' n1 n2")
    step = '#!/bin/bash\nfor SLURM_NODEID in 0 1; do export SLURM_NODEID; if [[ $* == *"addr show"* ]]; then "${@:6}"; fi; done\n'
    real = (tmp_path / "tools" / "srun").read_text()
    tool(tmp_path / "tools", "one", real)
    tool(
        tmp_path / "tools",
        "srun",
        step + 'if [[ $* == *"addr show"* ]]; then exit; fi\nexec one "$@"\n',
    )
    tool(tmp_path / "tools", "ip", f"#!/bin/bash\n{ip}\n")
    return run_script(draft, tmp_path, **words)


def test_an_interface_may_have_ipv6_alone(tmp_path: Path) -> None:
    both = 'if [[ $1 == -6 ]]; then echo "2: ib0 inet6 fd00:5::7/64 scope global"; fi'
    result = run_on_interface(tmp_path, both)
    assert result.returncode == 0, result
    words = (tmp_path / "record.env.0").read_text().split("\0")
    assert "HPCBERT_NODE_IPS=fd00:5::7,fd00:5::7" in words


@pytest.mark.parametrize("shape", ["2n1g", "1n2g"])
def test_the_node_that_lacks_the_interface_is_named_with_what_it_has(
    shape: str, tmp_path: Path
) -> None:
    node = "0" if shape == "2n1g" else "none"
    ip = f'if [[ $1 == -4 && $SLURM_NODEID == {node} ]]; then echo "2: ib0 inet 10.0.0.7/24"; fi'
    result = run_on_interface(tmp_path, ip, shape=shape)
    assert result.returncode == 1, result
    lacks = [line for line in result.stderr.splitlines() if "has no interface ib0" in line]
    assert lacks[-1].startswith("hpcbert: n2 has no interface ib0 (nodes.interface in the site.")
    assert "lo" in lacks[-1].partition(", but ")[2].split()
    assert len(lacks) == (1 if shape == "2n1g" else 2)


def test_one_rank_needs_no_interface(tmp_path: Path) -> None:
    assert run_on_interface(tmp_path, "", shape="1n1g").returncode == 0


@pytest.mark.parametrize("recipe", ["tf2", "perfzero", "paddle18"])
def test_an_address_before_a_port_stands_in_brackets(recipe: str, tmp_path: Path) -> None:
    world, loaded_recipe = World(recipe, tmp_path), load(recipe)
    name = "gpu" if recipe == "perfzero" else ""
    preset = loaded_recipe.protocols.get(name) or presets(loaded_recipe)[0][0]
    case = Case(Shape(2, 8), preset, (preset.precisions or loaded_recipe.precisions)[0])
    run = world.run(world.render(case), env={"HPCBERT_NODE_IPS": "fd00::1,fd00::2"})
    assert run.exit == 0, run.output
    variable = "worker_endpoints" if recipe == "paddle18" else "TF_CONFIG"
    assert re.findall(r"\[fd00::\d\]:12345", run.environment[variable]) == [
        "[fd00::1]:12345",
        "[fd00::2]:12345",
    ]


def test_oneflow_s_nodes_meet_at_the_job_s_own_port(tmp_path: Path) -> None:
    world = World("oneflow", tmp_path)
    case = Case(Shape(2, 8), *presets(load("oneflow"))[0])
    assert "--ctrl_port=12345" in world.run(world.render(case)).calls[-1]
    named = case._replace(settings=(("ctrl_port", "50051"),))
    assert "--ctrl_port=50051" in world.run(world.render(named)).calls[-1]


def test_a_page_cache_is_dropped_where_the_site_says_how(tmp_path: Path) -> None:
    python = tool(tmp_path, "python", RECORDER)
    dropper = tool(
        tmp_path / "a b", "drop", '#!/bin/bash\nprintf "%s\\n" "$@" >>"$RECORD.dropped"\n'
    )
    nodes = {"drop_caches": (str(dropper), "vm.drop_caches=3", "two words")}
    draft = drafted(with_python(reference(tmp_path, nodes=nodes), python), together=True)
    script = run_script(draft, tmp_path)
    assert script.returncode == 0, script.stderr
    dropped = (tmp_path / "record.dropped").read_text().splitlines()
    assert dropped == ["vm.drop_caches=3", "two words"] * 2
    assert "caches=" not in only_script(drafted(reference(tmp_path / "other")))


def test_a_page_cache_that_stays_is_no_failure(tmp_path: Path) -> None:
    site = reference(tmp_path, nodes={"drop_caches": ("false",)})
    script = run_script(drafted(with_python(site, tool(tmp_path, "python", RECORDER))), tmp_path)
    assert script.returncode == 0
    assert "page caches were not dropped" in script.stderr


def test_nccl_tells_its_rings_once_beside_the_log(tmp_path: Path) -> None:
    draft = drafted(with_python(reference(tmp_path), tool(tmp_path, "python", RECORDER)))
    script = run_script(draft, tmp_path)
    assert script.returncode == 0, script.stderr
    first, other = ((tmp_path / f"record.env.{n}").read_text().split("\0") for n in (0, 1))
    assert "NCCL_DEBUG=INFO" in first
    (array,) = draft.campaign.arrays
    assert f"NCCL_DEBUG_FILE={draft.directory}/env/{array.point.key}.1.0.nccl" in first
    assert not [word for word in other if word.startswith("NCCL_DEBUG")]


@pytest.mark.parametrize("value", ["WARN", "VERSION"])
def test_nccl_is_told_nothing_where_somebody_did(value: str, tmp_path: Path) -> None:
    site = reference(tmp_path, env={"NCCL_DEBUG": value})
    run_script(drafted(with_python(site, tool(tmp_path, "python", RECORDER))), tmp_path)
    first = (tmp_path / "record.env.0").read_text().split("\0")
    assert f"NCCL_DEBUG={value}" in first
    assert not [word for word in first if word.startswith("NCCL_DEBUG_FILE")]


@cases
def test_a_whole_node_has_its_memory(
    exclusive: bool, memory: str, words: tuple[str, ...], expected: str | None, tmp_path: Path
) -> None:
    slurm = {"exclusive": exclusive, "memory": memory, "sbatch_args": words}
    text = only_script(drafted(reference(tmp_path, slurm=slurm), scheduler="slurm"))
    lines = [line for line in text.splitlines() if line.startswith("#SBATCH --mem=")]
    texts = [f"#SBATCH {word}" for word in words if word.startswith("--mem=")]
    assert lines == ([f"#SBATCH --mem={expected}"] if expected else texts)


def test_a_job_writes_down_that_its_ranks_saw_one_gpu_each(tmp_path: Path) -> None:
    python = tool(tmp_path, "python", RECORDER)
    for number, (shown, apart) in enumerate((("0", True), ("0,1", None))):
        site = reference(tmp_path / str(number), env={"CUDA_VISIBLE_DEVICES": shown})
        draft = drafted(with_python(site, python), scheduler="slurm")
        words = slurm_in(tmp_path / "tools")
        script = run_script(draft, tmp_path, **words)
        assert script.returncode == 0, script.stderr
        (ended,) = [event for event in events(draft) if event["event"] == "step-end"]
        assert ended.get("apart") == apart


INFINIBAND = "sys/class/infiniband/mlx5_0/ports/1/state"


@cases
def test_little_locked_memory_is_told_where_there_is_infiniband(
    state: str, limit: str, warned: bool, tmp_path: Path
) -> None:
    world = World("pytorch", tmp_path)
    script = world.render(Case(Shape(2, 1), *presets(load("pytorch"))[0], device="gpu"))
    if state:
        (tmp_path / INFINIBAND).parent.mkdir(parents=True)
        (tmp_path / INFINIBAND).write_text(state + "\n")
    text = (SHELL / "rank.bash").read_text().replace("/sys/class", f"{tmp_path}/sys/class")
    ulimit = "ulimit() { echo %s; }" % (limit or "unlimited")
    write_file(tmp_path, "library/rank.bash", f"{ulimit}\n{text}")
    run = world.run(script, library=tmp_path / "library")
    assert ("locked" in run.output or "may lock 64 KiB" in run.output) == warned
