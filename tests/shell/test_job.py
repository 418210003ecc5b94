"""The shell library of job scripts: its files are sourced, and one function is called."""

import gzip
import json
import re
import shlex
import shutil
from collections import Counter, defaultdict

import pytest

from hpcbert.model import Shape
from hpcbert.system.processes import read_proc_file
from tests.kit import drafts, scripts
from tests.kit.cases import cases, read_constant
from tests.kit.cli import start_process
from tests.kit.recipes import SHELL
from tests.kit.scripts import (
    events,
    kinds,
    only_script,
    run_functions,
    run_script,
    tool,
    write_ranks,
)
from tests.kit.waiting import until

# What a script has set when it sources the file of its container runtime.
SETTINGS = "SLURM_JOB_ID=5 job_name=5 tool=enroot tasks=4 devices_per_task=1 handed_over=()\n"
SEARCH = "attempt=0 repeat=1 search=record.jsonl point=p granularity=8 most=4096 campaign="
# A site whose nodes are sampled each second.
SAMPLING = {"nodes": {"sampling": 1}}


@pytest.mark.parametrize("file", ["pyxis.bash", "joined.bash"])
def test_a_container_on_cpus_gets_no_driver_and_a_removal_that_was_cut_is_reported(file):
    show = 'echo "${NVIDIA_VISIBLE_DEVICES-unset}"; printf "%s\\n" "${handed_over[@]}"'
    sources = f'. "$library/job.bash"\nhanded_over=(SITE_VARIABLE)\n. "$library/{file}"\n'
    for on_cpu in (True, False):
        device = "cpu" if on_cpu else "gpu"
        driver, *names = run_functions(f"{SETTINGS}device={device}\n{sources}{show}")
        assert driver == ("void" if on_cpu else "unset")
        assert ("NVIDIA_VISIBLE_DEVICES" in names) == on_cpu
        assert ("HPCBERT_NCCL_LOG" in names) != on_cpu
        assert {"HPCBERT_NODES", "HPCBERT_NODE_IPS", "MASTER_ADDR", "SITE_VARIABLE"} <= set(names)
    for status, lines in ((0, 0), (1, 0), (124, 1), (137, 1)):
        leave = f"timeout() {{ return {status}; }}\nleave 2>&1 || true"
        settings = f"{SETTINGS}device=cpu\n{sources}step=() SLURM_JOB_NODELIST=n[1-4]\n"
        printed = run_functions(f"{settings}{leave}")
        assert len(printed) == lines, status
        assert all("removal was cut" in line and "n[1-4]" in line for line in printed)


@cases
def test_a_container_keeps_of_a_login_what_its_image_lacks(image, added, tmp_path):
    file = tmp_path / "environment"
    if image is not None:
        file.write_text(image)
    keep = "unset SHELL USER LOGNAME\nPATH=/login HOME=/home/u\n" + f"keep_defaults '{file}'\n" * 2
    run_functions(f'{SETTINGS}device=cpu\n. "$library/job.bash"\n. "$library/pyxis.bash"\n{keep}')
    lines = file.read_text().split("\n") if file.exists() else []
    assert [line for line in lines if line] == [*filter(None, (image or "").split("\n")), *added]


def test_variables_of_the_caller_change_nothing(tmp_path):
    """Neither those with the library's names, nor pyxis', which would reach a step."""
    draft = write_ranks(tmp_path, shape="1n1g", scheduler="slurm")
    names = ("offset", "baseline", "sampling", "interface", "scratch", "caches", "surroundings")
    pyxis = [f"PYXIS_CONTAINER_{name}" for name in read_constant(__file__, "PYXIS")]
    variables = dict.fromkeys((*names, "handed_over", "count", *pyxis, "PYXIS_X"), "7")
    run_script(draft, tmp_path, status=0, **variables)
    assert kinds(draft) == ["start", "step", "step-end", "end"]
    assert events(draft)[0]["job"].endswith("_1")
    environment = (tmp_path / "record.env.0").read_text().split("\0")
    assert not [line for line in environment if line.startswith("PYXIS_")]


@cases
def test_a_repeat_of_one_rank_starts_few_programs(scheduler, programs, tmp_path):
    draft = write_ranks(tmp_path, shape="1n1g", scheduler=scheduler)
    # As Pythons are, a link.
    python = (tmp_path / "python").rename(tmp_path / "python3.12")
    (tmp_path / "python").symlink_to(python)
    started, count = tmp_path / "started", '#!/bin/bash\necho "${0##*/}" >>"$STARTED"\n'
    for name in filter(shutil.which, read_constant(__file__, "COUNTED")):
        path = shlex.quote(str(shutil.which(name)))
        tool(tmp_path / "tools", name, f'{count}exec {path} "$@"\n')
    for name, text in (("srun", scripts.SRUN), ("scontrol", scripts.SCONTROL)):
        tool(tmp_path / "tools", name, count + text)
    # The first repeat makes the folders.
    for repeat in ("1", "2"):
        started.write_text("")
        run_script(draft, tmp_path, status=0, SLURM_ARRAY_TASK_ID=repeat, STARTED=str(started))
    assert Counter(started.read_text().split()) == programs


@cases
def test_a_function_prints(files, program, lines):
    assert run_functions(program, *files) == list(lines)


@cases
def test_a_rank_takes_its_gpu_among_those_it_sees(shown, rank, devices, device):
    settings = f"SLURM_LOCALID={rank} SLURM_PROCID={rank + 1} tasks=4 devices={devices}"
    program = f'{shown} {settings}\nfind_device\necho "$HPCBERT_DEVICE"'
    assert run_functions(program, "rank.bash") == [device]


def test_all_nodes_are_resolved_in_few_calls(tmp_path):
    every = [((1, 2, 3, 4), ["5 names"]), (tuple(range(8, 78)), ["65 names", "7 names"])]
    # One is unknown.
    for nodes, calls in (*every, ((5, 7, 8), ["4 names", *["2 names"] * 3])):
        path = tmp_path / f"calls of {len(nodes)}"
        names = " ".join(f"n{number}" for number in nodes)
        resolver = read_constant(__file__, "RESOLVER").format(calls=path)
        program = f"node_names=({names})\n{resolver}\nresolved ahostsv4"
        expected = ["" if number == 7 else f"10.0.0.{number}" for number in nodes]
        assert run_functions(program, "slurm.bash") == expected
        assert sorted(path.read_text().splitlines()) == sorted(calls)


def test_a_list_too_long_for_a_variable_is_in_a_file(tmp_path):
    (tmp_path / "env").mkdir()
    file = tmp_path / "env" / "p.5.1.addresses"
    for nodes, in_file in ((7000, False), (8200, True)):
        program = f"""
handed_over=() nodes={nodes} campaign={tmp_path} point=p attempt=1 SLURM_JOB_ID=5
for ((at = 0; at < nodes; at++)); do node_ips+=("10.100.100.10"); done
share_addresses
bash -c 'echo "${{#HPCBERT_NODE_IPS}} ${{HPCBERT_NODE_FILE-}}"'
for words in 'echo "$MASTER_ADDR"' 'echo "$HPCBERT_NODE_HOSTS"'; do
  (on_gpus= ; . "$library/rank.bash"; prepare_network "$words" 2>&1 && echo ran) || echo $?
done
"""
        first, *outcomes = run_functions(program, "slurm.bash")
        assert first == (f"0 {file}" if in_file else f"{14 * nodes - 1} ")
        assert file.exists() is in_file
        assert outcomes[0] == "ran"
        assert ("too short" in outcomes[1], outcomes[-1]) == (in_file, "125" if in_file else "ran")


@cases
def test_a_step_ends_with_the_status_of_the_task_that_failed_first(code, line, status, tmp_path):
    (tmp_path / "a.srun").write_text(f"{line}\n" if line else "")
    printed = run_functions(f"log={tmp_path}/a.log\nsettle {code} 2>&1 || echo $?", "slurm.bash")
    assert printed == [*([line] if line else []), *([str(status)] if status else [])]
    assert not (tmp_path / "a.srun").exists()


def test_a_gap_in_the_clock_is_a_pause_which_is_recorded_in_seconds(tmp_path):
    # A pause in hundredths of a second; 2: after SIGCONT.
    for missing, continued, seconds in ((300, 0, 0), (300, 2, 3), (700, 0, 7), (20, 2, 0)):
        program = f"""report_pause() {{ echo "$1"; }}
queued_for=0 continued={continued} begun=0 short=0 seen=0
look_at_time
seen=$((seen - {missing} - 10))
look_at_time
"""
        lines = run_functions(program, "job.bash")
        assert [round(int(line) / 100) for line in lines] == [seconds] * (seconds > 0), missing
    pauses = "report_pause 1234 signal\nreport_pause 605 sum"
    run_functions(f"status={tmp_path}/status attempt=2\n{pauses}", "job.bash")
    events = [json.loads(line) for line in (tmp_path / "status").read_text().splitlines()]
    names = ("event", "seconds", "noticed", "attempt")
    expected = [("suspended", 12.34, "signal", 2), ("suspended", 6.05, "sum", 2)]
    assert [tuple(event[name] for name in names) for event in events] == expected


@cases
def test_the_largest_batch_is_the_last_that_fits_of_those_tried(
    start, room, tried, largest, tmp_path
):
    program = f"""{SEARCH}{tmp_path} tried='' start={start or 32}
run_probe() {{
  tried+=" $1"
  local fits=false
  if (($1 <= {room})); then fits=true; fi
  tell probe "\\"size\\":$1,\\"fits\\":$fits"
}}
find_largest >/dev/null 2>&1 || true
echo "tried:$tried" "$batch"
"""
    files = ("job.bash", "largest.bash")
    assert run_functions(program, *files) == [f"tried: {tried} {largest}"]
    assert run_functions(program, *files) == [f"tried: {largest}"], "the record is read"


@cases
def test_a_lack_of_memory_is_read_from_status_or_log(code, log, says, tmp_path):
    (tmp_path / "log").write_text(f"{log}\n")
    settings = f"{SEARCH}{tmp_path} exits='17 18' memory='out of memory'"
    program = f"{settings}\ntoo_large {code} {tmp_path}/log || true"
    assert run_functions(program, "job.bash", "largest.bash") == ([says] if says else [])


@cases
def test_a_repeat_is_spared_if_those_that_ended_are_enough(ended, code, result, last, tmp_path):
    (tmp_path / "status").mkdir()
    for repeat in range(1, ended + 1):
        path = tmp_path / "status" / f"p.{repeat}.jsonl"
        path.write_text('{"event":"step-end","exit":0}\n')
    program = f"""campaign={tmp_path} point=p attempt=0
fewest=3 package=/nowhere status=$campaign/status/p.9.jsonl
decider=(bash -c 'echo "\\"percent\\":1"; exit {code}')
if enough 9 >&2 2>/dev/null; then echo spared; else echo runs; fi
"""
    assert run_functions(program, "job.bash", "enough.bash") == [result]
    path = tmp_path / "status" / "p.9.jsonl"
    recorded = [json.loads(line)["event"] for line in path.read_text().splitlines()] if last else []
    assert recorded == ([last] if last else [])


def test_a_node_reports_a_limit_of_the_address_space(tmp_path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/look.sh").touch()
    look = f"bash \"$library/look.sh\" node '{tmp_path}' '{tmp_path}' '' | grep -a address-space"
    for limit in ("8000000", "unlimited"):
        (row,) = run_functions(f"PATH=/usr/bin:/bin\nulimit -v {limit}\n{look}")
        assert ("warn" in row.split("\t")) == (limit != "unlimited")


def test_no_two_files_that_a_script_sources_define_one_function():
    # Of each of these, a script sources one.
    alternatives = [{"local.bash", "slurm.bash"}, {"joined.bash", "pyxis.bash"}]
    files_of_function = defaultdict(set)
    for path in SHELL.glob("*.bash"):
        for name in re.findall(r"^(\w+)\(\)", path.read_text("utf-8"), re.MULTILINE):
            files_of_function[name].add(path.name)
    shared = {name: files for name, files in files_of_function.items() if len(files) > 1}
    assert {name for name, files in shared.items() if files not in alternatives} == set()
    assert "launch" in shared


@pytest.mark.slow
@pytest.mark.needs("shellcheck")
def test_the_library_is_clean_for_shellcheck_as_it_lies():
    result = start_process(["shellcheck", "--norc", *map(str, sorted(SHELL.iterdir()))])
    assert result.ok, result.stdout


@pytest.mark.parametrize(
    ("scheduler", "shape"), [("local", "1n2g"), ("slurm", "1n2g"), ("slurm", "2n2g")]
)
def test_the_sampler_looks_at_each_node_while_the_step_runs_and_ends_with_it(
    scheduler, shape, tmp_path
):
    """The rank ends when the sampler has looked, and nvidia-smi goes on forever."""
    for name, text in read_constant(__file__, "SAMPLER_TOOLS").items():
        tool(tmp_path / "tools", name, text)
    rank = read_constant(__file__, "SAMPLED_RANK")
    draft = write_ranks(tmp_path, rank, site=SAMPLING, shape=shape, scheduler=scheduler)
    run_script(draft, tmp_path, status=0, HOSTS="n1\nn2" if shape == "2n2g" else "n1")
    (pid,) = (tmp_path / "record.smi").read_text().split()
    until(lambda: b"sleep" not in read_proc_file(pid, "cmdline"), "the sampler goes on")
    if shape == "2n2g":
        steps = scripts.records(tmp_path / "record.srun")
        (sampler,) = [step for step in steps if "--overlap" in step]
        assert {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--mpi=none"} <= set(sampler)
        return
    (file,) = (draft.directory / "env").glob("*.1.0.power.json")
    data = json.loads(file.read_bytes())
    assert (data["gpus"], data["samples"]) == (2, [[0, 500, 3000]])
    lines = gzip.decompress(file.with_name(f"{file.name}l.gz").read_bytes()).splitlines()
    assert json.loads(lines[-1])["count"] == 1
    assert len(list(file.parent.glob("*.power.*"))) == 2


def test_where_nobody_measures_power_or_the_tool_is_missing_nothing_of_it_is_run(tmp_path):
    for sampling, device in ((0, ""), (1, "cpu")):
        site = drafts.reference(tmp_path, nodes={"sampling": sampling})
        draft = drafts.drafted(site, drafts.combined(Shape(1, 2), device=device, repeats=1))
        assert "sample" not in only_script(draft).replace("samples per device", "")
    draft = write_ranks(tmp_path, "#!/bin/bash\n", site=SAMPLING)
    run_script(draft, tmp_path, status=0)
    assert not [*(draft.directory / "env").glob("*.power.json")]
