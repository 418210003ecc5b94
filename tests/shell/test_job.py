"""The shell library of job scripts: its files are sourced, and one function is called."""

from __future__ import annotations

import json
import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from tests.kit.cases import cases, read_constant
from tests.kit.drafts import reference
from tests.kit.recipes import SHELL
from tests.kit.scripts import (
    RECORDER,
    drafted,
    events,
    run_script,
    slurm_in,
    tool,
    with_python,
)
from tests.kit.waiting import CEILING

# What a script has set when it sources the file of its container runtime.
SETTINGS = """
set -euo pipefail
SLURM_JOB_ID=5 job_name=5 tool=enroot tasks=4 devices_per_task=1
"""


def read_sources(*files: str) -> str:
    """Return the lines that source files of the library."""
    return "\n".join(["set -euo pipefail", *(f'. "$library/{file}"' for file in files)])


def run_bash(program: str) -> list[str]:
    """Run a program in a shell that finds the library in $library; return the lines it prints."""
    result = subprocess.run(
        ["bash", "-c", f"library='{SHELL}'\n{program}"],
        capture_output=True, text=True, check=True, timeout=CEILING,
    )  # fmt: skip
    return result.stdout.splitlines()


@pytest.mark.parametrize("file", ["pyxis.bash", "joined.bash"])
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_container_gets_no_driver_for_ranks_on_the_cpu(file: str, device: str) -> None:
    show = 'echo "${NVIDIA_VISIBLE_DEVICES-unset}"; printf "%s\\n" "${handed_over[@]}"'
    driver, *names = run_bash(
        f'{SETTINGS}device={device}\n{read_sources("job.bash")}\nhanded_over=(SITE_VARIABLE)\n. "$library/{file}"\n{show}'
    )
    on_cpu = device == "cpu"
    assert driver == ("void" if on_cpu else "unset")
    assert ("NVIDIA_VISIBLE_DEVICES" in names) == on_cpu
    assert ("HPCBERT_NCCL_LOG" in names) != on_cpu
    assert {"HPCBERT_NODES", "HPCBERT_NODE_IPS", "MASTER_ADDR", "SITE_VARIABLE"} <= set(names)


@cases
def test_a_container_keeps_of_a_login_what_its_image_lacks(
    image: str | None, added: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "environment"
    if image is not None:
        file.write_text(image)
    run_bash(f"""{SETTINGS}device=cpu
. "$library/job.bash"
. "$library/pyxis.bash"
unset SHELL USER LOGNAME
PATH=/login HOME=/home/u
keep_defaults '{file}'
keep_defaults '{file}'""")
    lines = file.read_text().split("\n") if file.exists() else []
    assert [line for line in lines if line] == [*filter(None, (image or "").split("\n")), *added]


@cases
def test_an_interface_reaches_the_ranks_libraries(device: str, names: list[str]) -> None:
    program = f"""
set -euo pipefail
nodes=1 tasks=1 device={device} handed_over=() node_names=(n1) step=()
. "$library/slurm.bash"
interface=ib0
choose_on_interface
printf '%s\\n' "${{handed_over[@]}}"
for name in "${{handed_over[@]}}"; do declare -p "$name"; done
"""
    assert run_bash(program) == [*names, *(f'declare -x {name}="ib0"' for name in names)]


def test_variables_of_the_caller_with_the_library_s_names_change_nothing(tmp_path: Path) -> None:
    draft = drafted(with_python(reference(tmp_path), tool(tmp_path, "python", RECORDER)))
    names = ("offset", "baseline", "sampling", "interface", "scratch", "caches", "surroundings")
    script = run_script(draft, tmp_path, **dict.fromkeys((*names, "handed_over", "count"), "7"))
    assert script.returncode == 0, script.stderr
    assert [event["event"] for event in events(draft)] == ["start", "step", "step-end", "end"]
    assert str(events(draft)[0]["job"]).endswith("_1")


@pytest.mark.parametrize("file", ["pyxis.bash", "joined.bash"])
@pytest.mark.parametrize(("status", "lines"), [(0, 0), (1, 0), (124, 1), (137, 1)], ids=str)
def test_a_removal_that_was_cut_on_a_node_is_reported(file: str, status: int, lines: int) -> None:
    program = f"""{SETTINGS}device=cpu
. "$library/job.bash"
. "$library/{file}"
step=() SLURM_JOB_NODELIST=n[1-4]
timeout() {{ return {status}; }}
leave 2>&1 || true
"""
    printed = run_bash(program)
    assert len(printed) == lines
    assert all("removal was cut" in line and "n[1-4]" in line for line in printed)


PYXIS = (
    *("IMAGE", "MOUNTS", "WORKDIR", "NAME", "SAVE", "MOUNT_HOME", "REMAP_ROOT", "ENTRYPOINT"),
    *("ENTRYPOINT_LOG", "WRITABLE", "READONLY", "ENV"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*(f"PYXIS_CONTAINER_{name}" for name in PYXIS), "PYXIS_X"])
def test_a_variable_of_pyxis_does_not_reach_a_step(name: str, tmp_path: Path) -> None:
    slurm = slurm_in(tmp_path / "bin")
    site = with_python(reference(tmp_path), tool(tmp_path, "python", RECORDER))
    draft = drafted(site, shape="1n1g", scheduler="slurm")
    result = run_script(draft, tmp_path, **slurm, **{name: "other"})
    assert result.returncode == 0, result.stderr
    environment = (tmp_path / "record.env.0").read_text().split("\0")
    assert not [line for line in environment if line.startswith("PYXIS_")]


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT"])
def test_a_number_that_is_none_ends_the_job_before_it_is_calculated_with(name: str) -> None:
    program = f"{read_sources('job.bash')}\n(check_environment) 2>&1 || echo $?"
    printed = run_bash(f"{name}='x[$(touch /dev/null)]'\n{program}")
    assert printed == [f"hpcbert: {name} is not a number", "125"]


@cases
def test_a_rank_takes_its_gpu_among_those_it_sees(
    shown: str, rank: int, devices: int, device: str
) -> None:
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    program = f"""
{read_sources("rank.bash")}
unset {" ".join(names)} HPCBERT_DEVICE
{shown} SLURM_LOCALID={rank} SLURM_PROCID={rank + 1} tasks=4 devices={devices}
find_device
echo "$HPCBERT_DEVICE"
"""
    assert run_bash(program) == [device]


def test_a_process_that_drives_more_gpus_than_it_sees_fails() -> None:
    settings = "CUDA_VISIBLE_DEVICES=0 SLURM_LOCALID=0 SLURM_PROCID=0 tasks=1 devices=8"
    program = f"{read_sources('rank.bash')}\n{settings}\n(find_device 2>&1) || echo $?"
    message, code = run_bash(program)
    assert "drives 8 GPUs and sees 1" in message
    assert code == "1"


@cases
def test_the_lists_of_amd_are_not_applied_twice(rocr: str, hip: str, corrected: str) -> None:
    program = f"""
{read_sources("rank.bash")}
ROCR_VISIBLE_DEVICES={rocr} HIP_VISIBLE_DEVICES={hip}
correct_amd_list
echo "$HIP_VISIBLE_DEVICES"
"""
    assert run_bash(program) == [corrected]


def test_options_of_a_rank_end_before_its_command() -> None:
    program = f"""
{read_sources("rank.bash")}
read_options --tasks 8 --on-gpus --bind A='x y' -- program --tasks 9
echo "$words $tasks $on_gpus $bind"
declare -p A
"""
    assert run_bash(program) == ["6 8 1 1", 'declare -x A="x y"']


def test_a_rank_refuses_an_option_that_it_does_not_know() -> None:
    program = f"{read_sources('rank.bash')}\n(read_options --other 2>&1) || echo $?"
    assert run_bash(program) == ["hpcbert: rank.bash does not know --other", "125"]


@cases
def test_a_list_of_cpus_is_read(text: str, numbers: str) -> None:
    assert run_bash(f'{read_sources("bind.bash")}\nlist "{text}"\necho "${{listed[*]}}"') == [
        numbers
    ]


@cases
def test_addresses_of_a_node_alone_are_not_usable(addresses: str, usable: bool) -> None:
    program = (
        f"{read_sources('slurm.bash')}\nif usable {addresses}; then echo yes; else echo no; fi"
    )
    assert run_bash(program) == ["yes" if usable else "no"]


RESOLVER = read_constant(__file__, "RESOLVER")


@pytest.mark.parametrize(
    ("nodes", "calls"),
    [((1, 2, 3, 4), ["5 names"]), (tuple(range(8, 78)), ["65 names", "7 names"]), ((5, 7, 8), ["4 names", *["2 names"] * 3])],
    ids=["one call", "two calls", "one is unknown"],
)  # fmt: skip
def test_all_nodes_are_resolved_in_few_calls(
    nodes: tuple[int, ...], calls: list[str], tmp_path: Path
) -> None:
    names = " ".join(f"n{number}" for number in nodes)
    resolver = RESOLVER.format(calls=tmp_path / "calls")
    program = f"{read_sources('slurm.bash')}\nnode_names=({names})\n{resolver}\nresolved ahostsv4"
    expected = ["" if number == 7 else f"10.0.0.{number}" for number in nodes]
    assert run_bash(program) == expected
    assert sorted((tmp_path / "calls").read_text().splitlines()) == sorted(calls)


@pytest.mark.parametrize(("nodes", "in_file"), [(7000, False), (8200, True)])
def test_a_list_too_long_for_a_variable_is_in_a_file(
    nodes: int, in_file: bool, tmp_path: Path
) -> None:
    (tmp_path / "env").mkdir()
    program = f"""
{read_sources("slurm.bash")}
handed_over=() nodes={nodes} campaign={tmp_path} point=p attempt=1 SLURM_JOB_ID=5
for ((at = 0; at < nodes; at++)); do node_ips+=("10.100.100.10"); done
share_addresses
bash -c 'echo "${{#HPCBERT_NODE_IPS}} ${{HPCBERT_NODE_FILE-}}"'
for words in 'echo "$MASTER_ADDR"' 'echo "$HPCBERT_NODE_HOSTS"'; do
  (on_gpus= ; . "$library/rank.bash"; prepare_network "$words" 2>&1 && echo ran) || echo $?
done
"""
    first, *outcomes = run_bash(program)
    file = tmp_path / "env" / "p.5.1.addresses"
    assert first == (f"0 {file}" if in_file else f"{14 * nodes - 1} ")
    assert file.exists() is in_file
    assert outcomes[0] == "ran"
    assert ("too short" in outcomes[1], outcomes[-1]) == (
        (True, "125") if in_file else (False, "ran")
    )


@cases
def test_a_step_ends_with_the_status_of_the_task_that_failed_first(
    code: int, line: str, status: int, tmp_path: Path
) -> None:
    (tmp_path / "a.srun").write_text(f"{line}\n" if line else "")
    program = f"{read_sources('slurm.bash')}\nlog={tmp_path}/a.log\nsettle {code} 2>&1 || echo $?"
    assert run_bash(program) == [*([line] if line else []), *([str(status)] if status else [])]
    assert not (tmp_path / "a.srun").exists()


def test_a_pause_is_recorded_in_seconds(tmp_path: Path) -> None:
    program = f"""
{read_sources("job.bash")}
status={tmp_path}/status attempt=2
report_pause 1234 signal
report_pause 605 sum
"""
    run_bash(program)
    lines = (tmp_path / "status").read_text().splitlines()
    pauses = [json.loads(line) for line in lines]
    assert [(pause["event"], pause["seconds"], pause["noticed"]) for pause in pauses] == [
        ("suspended", 12.34, "signal"),
        ("suspended", 6.05, "sum"),
    ]
    assert {pause["attempt"] for pause in pauses} == {2}


@cases
def test_a_gap_in_the_clock_is_a_pause(
    missing: int, continued: int, seconds: list[int], tmp_path: Path
) -> None:
    program = f"""
{read_sources("job.bash")}
report_pause() {{ echo "$1"; }}
queued_for=0 continued={continued} begun=0 short=0 seen=0
look_at_time
seen=$((seen - {missing} - 10))
look_at_time
"""
    printed = [round(int(line) / 100) for line in run_bash(program)]
    assert printed == seconds


SEARCH = f"""
{read_sources("job.bash", "largest.bash")}
attempt=0 repeat=1 search=record.jsonl point=p granularity=8 start=32 most=4096
"""


@cases
def test_the_largest_batch_is_found_by_doubling_and_halving(
    start: int | None, room: int, tried: str, largest: int, tmp_path: Path
) -> None:
    program = f"""
campaign={tmp_path}
{SEARCH}
tried='' start={start or 32}
run_probe() {{
  tried+=" $1"
  local fits=false
  if (($1 <= {room})); then fits=true; fi
  tell probe "\\"size\\":$1,\\"fits\\":$fits"
}}
find_largest >/dev/null 2>&1 || true
echo "$tried"
echo "$batch"
"""
    sizes, batch = run_bash(program)
    assert sizes.split() == tried.split()
    assert batch == str(largest)
    again = run_bash(program.replace('echo "$tried"', 'echo "again:$tried"'))
    assert again == ["again:", batch], "the record is read, and nothing is tried again"


@cases
def test_a_lack_of_memory_is_read_from_status_or_log(
    code: int, log: str, says: str | None, tmp_path: Path
) -> None:
    (tmp_path / "log").write_text(f"{log}\n")
    settings = "exits='17 18' memory='out of memory'"
    program = f"campaign={tmp_path}\n{SEARCH}\n{settings}\ntoo_large {code} {tmp_path}/log || true"
    assert run_bash(program) == ([says] if says else [])


@cases
def test_a_repeat_is_spared_if_those_that_ended_are_enough(
    ended: int, code: int, result: str, last: str | None, tmp_path: Path
) -> None:
    (tmp_path / "status").mkdir()
    for repeat in range(1, ended + 1):
        path = tmp_path / "status" / f"p.{repeat}.jsonl"
        path.write_text('{"event":"step-end","exit":0}\n')
    program = f"""
campaign={tmp_path} point=p
{read_sources("job.bash", "enough.bash")}
fewest=3 package=/nowhere status=$campaign/status/p.9.jsonl attempt=0
decider=(bash -c 'echo "\\"percent\\":1"; exit {code}')
if enough 9 >&2 2>/dev/null; then echo spared; else echo runs; fi
"""
    assert run_bash(program) == [result]
    path = tmp_path / "status" / "p.9.jsonl"
    recorded = [json.loads(line)["event"] for line in path.read_text().splitlines()] if last else []
    assert recorded == ([last] if last else [])


def test_repeats_that_have_not_begun_leave_the_queue(tmp_path: Path) -> None:
    (tmp_path / "status").mkdir()
    (tmp_path / "status" / "p.12.jsonl").write_text("begun\n")
    program = f"""
campaign={tmp_path} point=p
{read_sources("job.bash", "enough.bash")}
offset=10 count=3 first_attempt=0 said='"percent":1' SLURM_ARRAY_JOB_ID=7
scancel() {{ echo "$*"; }}
spare_others
"""
    assert run_bash(program) == ["--quiet --state=PENDING 7"]
    files = {path.name: path.read_text() for path in (tmp_path / "status").iterdir()}
    assert set(files) == {"p.11.jsonl", "p.12.jsonl", "p.13.jsonl"}
    assert files["p.12.jsonl"] == "begun\n"
    assert '"unneeded"' in files["p.11.jsonl"]
    assert '"end"' in files["p.13.jsonl"]


def test_no_two_files_that_a_script_sources_define_one_function() -> None:
    # Of each of these, a script sources one.
    alternatives = [{"local.bash", "slurm.bash"}, {"joined.bash", "pyxis.bash"}]
    files_of_function = defaultdict(set)
    for path in Path(SHELL).glob("*.bash"):
        for name in re.findall(r"^(\w+)\(\)", path.read_text("utf-8"), re.MULTILINE):
            files_of_function[name].add(path.name)
    shared = {name: files for name, files in files_of_function.items() if len(files) > 1}
    assert {name for name, files in shared.items() if files not in alternatives} == set()
    assert "launch" in shared


@pytest.mark.slow
@pytest.mark.needs("shellcheck")
def test_the_library_is_clean_for_shellcheck_as_it_lies() -> None:
    files = [str(path) for path in sorted(Path(SHELL).iterdir())]
    result = subprocess.run(
        ["shellcheck", "--norc", *files],
        capture_output=True, text=True, check=False, timeout=CEILING,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("limit", ["8000000", "unlimited"])
def test_a_node_reports_a_limit_of_the_address_space(limit: str, tmp_path: Path) -> None:
    look = f"bash \"$library/look.sh\" node '{tmp_path}' '{tmp_path}' ''"
    program = f"ulimit -v {limit}\n{look} | grep -a address-space"
    (row,) = run_bash(
        f"export PATH=/usr/bin:/bin\nmkdir -p '{tmp_path}/scripts'\ntouch '{tmp_path}/scripts/look.sh'\n{program}"
    )
    assert ("warn" in row.split("\t")) == (limit != "unlimited")
