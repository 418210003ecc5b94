"""Rendered scripts, run by the shell they are for, with stand-ins for srun and the ranks' program."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcbert.commands.submit import write_campaign
from hpcbert.errors import UsageError
from hpcbert.model import LARGEST, Shape
from hpcbert.script.draft import Draft
from hpcbert.script.plan import Request
from hpcbert.slurm.reasons import ABSENT
from hpcbert.slurm.state_sources import reduce_events
from tests.kit import drafts
from tests.kit.cases import cases
from tests.kit.drafts import changed, reference, settled
from tests.kit.needs import require
from tests.kit.recipes import SHELL, rank_command
from tests.kit.scripts import (
    RECORDER,
    SRUN,
    drafted,
    events,
    only_script,
    records,
    run_script,
    run_written,
    shellcheck,
    tool,
    with_python,
)
from tests.kit.waiting import CEILING

pytestmark = pytest.mark.slow


def draft_ranks(folder: Path, program: str = RECORDER, **options: Any) -> Draft:
    """Draft two repeats whose ranks run a program."""
    return drafted(with_python(reference(folder), tool(folder, "python", program)), **options)


def run_bash(harness: str) -> None:
    command = ["bash", "-c", harness]
    result = subprocess.run(command, check=False, capture_output=True, timeout=CEILING)
    assert (result.returncode, result.stderr) == (0, b"")


WATCH = (SHELL / "watch.bash").read_text()


def test_local_ranks_run_with_their_variables_and_the_witness_tells_it(tmp_path: Path) -> None:
    python = tool(tmp_path / "a b", "python", RECORDER)
    draft = drafted(with_python(reference(tmp_path), python))
    script = run_script(draft, tmp_path)
    assert script.returncode == 0, script.stderr
    assert [event["event"] for event in events(draft)] == ["start", "step", "step-end", "end"]
    assert events(draft)[-1]["exit"] == 0
    log = draft.directory / "logs/pytorch/bert/bz4/1n2g/bert_b4_fp32_1.log"
    first, *lines = sorted(log.read_text().splitlines())
    assert first.startswith("hpcbert: ranks start with ")
    assert lines == ["rank 0 of 2", "rank 1 of 2"]
    for rank in (0, 1):
        (argv,) = records(tmp_path / f"record.argv.{rank}")
        assert "--batch-size" in argv


def test_a_node_without_the_campaign_runs_nothing_and_makes_nothing(tmp_path: Path) -> None:
    """Slurm 24.11 makes the directory of the output there; 22.05 does not start the job."""
    draft = draft_ranks(tmp_path)
    write_campaign(draft)
    (array,) = draft.campaign.arrays
    script = tmp_path / "spooled"
    (draft.directory / array.script).rename(script)
    shutil.rmtree(draft.directory)
    (draft.directory / "slurm").mkdir(parents=True)
    words = {**os.environ, "SLURM_ARRAY_TASK_ID": "1", "RECORD": str(tmp_path / "record")}
    result = subprocess.run(
        ["bash", str(script)], env=words, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (ABSENT, "")
    assert f"lacks the campaign {draft.directory}\n" in result.stderr
    assert [path.name for path in draft.directory.iterdir()] == ["slurm"]
    assert not list(tmp_path.glob("record*"))


@pytest.mark.parametrize(
    ("zone", "language"), [("Asia/Kolkata", "C.UTF-8"), ("EST5EDT", "de_DE.UTF-8")]
)
def test_the_step_s_moments_are_told_by_the_node_s_clocks(
    tmp_path: Path, zone: str, language: str
) -> None:
    draft = draft_ranks(tmp_path)
    before = time.time()
    script = run_script(draft, tmp_path, TZ=zone, LC_ALL=language)
    assert script.returncode == 0, script.stderr
    _, begun, ended, _ = events(draft)
    assert before <= float(str(begun["at"])) <= float(str(ended["at"])) <= time.time()
    assert 0 < float(str(begun["uptime"])) <= float(str(ended["uptime"]))
    offset = datetime.now(ZoneInfo(zone)).strftime("%z")
    assert begun["zone"] == ended["zone"] == offset
    assert begun["ahead"] is None


@cases
def test_how_far_the_controller_s_clock_is_ahead_is_asked_of_it(
    tmp_path: Path, answer: str, ahead: int | None
) -> None:
    tools = tmp_path / "tools"
    text = f'if [[ "$2" == config ]]; then {answer}; else echo localhost; fi'
    tool(tools, "scontrol", f"#!/bin/bash\n{text}\n")
    tool(tools, "srun", SRUN)
    draft = draft_ranks(tmp_path, scheduler="slurm")
    extra = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "localhost"}
    moment = time.monotonic()
    script = run_script(draft, tmp_path, PATH=f"{tools}:{os.environ['PATH']}", **extra)
    took = time.monotonic() - moment
    assert script.returncode == 0, script.stderr
    (begun,) = [event for event in events(draft) if event["event"] == "step"]
    measured = begun["ahead"]
    assert measured is None if ahead is None else abs(int(str(measured)) - ahead) <= 1 + took


@cases
def test_a_script_notices_that_it_was_suspended(
    tmp_path: Path, seconds: str, times: int, noticed: str
) -> None:
    """CONT alone, which Slurm sends before it ends a job, is none."""
    # Stops the whole job, be it that a rank, the script and all else is stopped at once, for a while.
    stop = "kill -STOP -- -'\"$GROUP\"'; sleep '\"$SECONDS_OFF\"'; " if noticed else ""
    pause = f"""#!/bin/bash
if ((SLURM_PROCID == 0)); then
  setsid --fork bash -c 'for n in {{1..{times}}}; do {stop}kill -CONT -- -'"$GROUP"'; sleep 0.1; done; touch '"$GO"
  until [[ -e $GO ]]; do sleep 0.05; done
fi
"""
    draft = draft_ranks(tmp_path, pause.replace("$GO", str(tmp_path / "go")))
    write_campaign(draft)
    (array,) = draft.campaign.arrays
    script = shlex.quote(str(draft.directory / array.script))
    result = subprocess.run(
        ["setsid", "--wait", "bash", "-c", f"GROUP=$$ exec bash {script}"],
        env={**os.environ, "SLURM_ARRAY_TASK_ID": "1", "SECONDS_OFF": seconds},
        capture_output=True,
        text=True,
        check=False,
        timeout=CEILING,
    )
    assert result.returncode == 0, result.stderr
    suspensions = [event for event in events(draft) if event["event"] == "suspended"]
    job_record = reduce_events(events(draft))
    assert job_record.watched
    if not noticed:
        # A very busy machine may itself keep the watcher from its look for half a second.
        assert all(0.5 <= float(str(event["seconds"])) < 3 for event in suspensions)
    else:
        # On a busy machine a short pause lasts long enough to be noticed by itself.
        assert {event["noticed"] for event in suspensions} <= {noticed, "signal"}
        assert job_record.suspended > 1
        assert [event["event"] for event in events(draft)][-1] == "end"


def test_a_pause_that_ends_with_the_repeat_is_seen_by_every_watcher(tmp_path: Path) -> None:
    """CONT and the word that the repeat is over may both wait when a watcher gets a processor again."""
    harness = f"""set -euo pipefail
mark() {{ echo "$1" >>"{tmp_path}/$own"; }}
{WATCH}
eval "$(declare -f look_at_time | sed '1s/.*/look()/')"
look_at_time() {{ look && : >"{tmp_path}/$own.looked"; }}
watchers=() ends=()
for own in {{1..24}}; do
  exec {{pause}}<> <(:)
  watch_time & watchers+=("$!") ends+=("$pause")
done
until [[ $(find "{tmp_path}" -name '*.looked' | wc -l) == 24 ]]; do sleep 0.1; done
kill -STOP "${{watchers[@]}}"
sleep 2
kill -CONT "${{watchers[@]}}"
for pause in "${{ends[@]}}"; do printf '\\n\\n' >&"$pause"; done
wait "${{watchers[@]}}"
"""
    run_bash(harness)
    paths = [tmp_path / str(number) for number in range(1, 25)]
    assert [set(path.read_text().split()) if path.exists() else set() for path in paths] == [
        {"suspended"}
    ] * 24


def test_a_watch_ends_whenever_it_is_told_to(tmp_path: Path) -> None:
    """Before the watcher has begun, and while its time for reading is up: it loses nothing, and says
    nothing."""
    harness = f"""set -euo pipefail
mark() {{ :; }}
{WATCH}
repeats() {{
  local watcher='' n wait moment
  exec {{wait}}<> <(:)
  for n in {{1..20}}; do
    watch step
    for moment in 0.09 0.10 0.11; do read -rt "$moment" -u "$wait" || true; done
    unwatch
    watch repeat
    unwatch
  done
}}
for n in {{1..8}}; do repeats & done
wait
"""
    run_bash(harness)


@cases
def test_short_pauses_of_the_measured_step_are_summed(
    tmp_path: Path, pauses: int, hundredths: int, signal: str, seconds: str | None
) -> None:
    """By a clock that the test moves on: a busy machine makes a pause longer."""
    clock, queue = tmp_path / "uptime", tmp_path / "schedstat"
    queue.write_text("0 0 0\n")
    functions = WATCH
    for file, path in (("/proc/uptime", clock), ("/proc/self/schedstat", queue)):
        assert file in functions
        functions = functions.replace(f"<{file}", f'<"{path}"')
    harness = f"""set -euo pipefail
mark() {{ echo "$@" >>"{tmp_path}/$own"; }}
{functions}
move_on() {{
  moment=$((moment + $1))
  printf '%d.%02d 0\\n' $((moment / 100)) $((moment % 100)) >"{clock}"
}}
read() {{ # waits a tenth of a second for the end of the watch; a pause falls in each third wait
  if [[ $1 != -rt ]]; then builtin read "$@"; return; fi
  if ((waits == {3 * pauses})); then return 0; fi
  if ((waits++ % 3)); then move_on 10; else move_on {10 + hundredths}; {signal}; fi
  return 1
}}
pause=0
for own in step repeat; do
  waits=0 moment=100000
  move_on 0
  watch_time "$own"
done
"""
    run_bash(harness)
    assert not (tmp_path / "repeat").exists()
    assert (tmp_path / "step").exists() is (seconds is not None)
    if seconds:
        event = f'suspended ,"seconds":{seconds},"noticed":"sum"\n'
        assert (tmp_path / "step").read_text() == event


@pytest.mark.parametrize("together", [False, True], ids=["array", "one-job"])
def test_a_failing_rank_gives_the_script_its_exit_status(tmp_path: Path, together: bool) -> None:
    draft = draft_ranks(tmp_path, together=together)
    assert ("#SBATCH --array" in only_script(draft)) != together
    script = run_script(draft, tmp_path, RANK_EXIT="7")
    assert script.returncode == 7
    for repeat in (1, 2) if together else (1,):
        assert [event.get("exit") for event in events(draft, repeat)] == [None, None, 7, 7]


def test_a_failing_rank_ends_the_others(tmp_path: Path) -> None:
    text = "#!/bin/bash\nif ((SLURM_PROCID == 1)); then exit 9; fi\nexec sleep 300\n"
    draft = draft_ranks(tmp_path, text)
    assert run_script(draft, tmp_path).returncode != 0
    assert events(draft)[-1]["event"] == "end"


def test_term_reaches_the_ranks_and_is_written_down(tmp_path: Path) -> None:
    text = f'#!/bin/bash\necho $$ >> "{tmp_path}/pids"\nexec sleep 300\n'
    draft = draft_ranks(tmp_path, text)
    write_campaign(draft)
    (array,) = draft.campaign.arrays
    environment = {**os.environ, "SLURM_ARRAY_TASK_ID": "1"}
    script = str(draft.directory / array.script)
    with subprocess.Popen(["bash", script], env=environment, stdout=subprocess.DEVNULL) as job:
        pids = tmp_path / "pids"
        while not pids.exists() or len(pids.read_text().split()) < 2:
            assert job.poll() is None
        job.terminate()
        assert job.wait(timeout=CEILING) != 0
    kinds = [event["event"] for event in events(draft)]
    assert kinds == ["start", "step", "signal", "step-end", "end"]
    assert not [pid for pid in pids.read_text().split() if Path(f"/proc/{pid}").exists()]


def test_a_requeued_repeat_keeps_its_first_log(tmp_path: Path) -> None:
    draft = draft_ranks(tmp_path)
    run_script(draft, tmp_path)
    run_written(draft, tmp_path, SLURM_RESTART_COUNT="1")
    folder = draft.directory / "logs/pytorch/bert/bz4/1n2g"
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["bert_b4_fp32_1.log", "bert_b4_fp32_1.r1.log"]
    assert [event["attempt"] for event in events(draft)] == [0, 0, 0, 0, 1, 1, 1, 1]


WORDS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=30)


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=WORDS, srun=WORDS.map("--x={}".format), value=WORDS, partition=WORDS)
def test_whatever_is_typed_arrives_at_ranks_and_srun_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, data: str, srun: str, value: str, partition: str
) -> None:
    """Data path, srun argument, environment value and partition of any text, through a real bash."""
    tmp_path = tmp_path_factory.mktemp("any text")
    tools = tmp_path / "bin"
    python = tool(tools, "python", RECORDER)
    tool(tools, "srun", SRUN)
    tool(tools, "scontrol", "#!/bin/bash\necho localhost\n")
    where = reference(
        tmp_path, env={"HPCBERT_PROBE": value}, slurm={"partition": partition, "srun_args": (srun,)}
    )
    site = with_python(where, python, data=data)
    if re.search(r"[\x00-\x1f\x7f]", partition):
        with pytest.raises(UsageError, match="control character"):
            drafted(site, scheduler="slurm", shape="1n1g")
        return
    draft = drafted(site, scheduler="slurm", shape="1n1g")
    path = f"{tools}:{os.environ['PATH']}"
    script = run_script(
        draft, tmp_path, PATH=path, SLURM_JOB_ID="5", SLURM_JOB_NODELIST="localhost"
    )
    assert script.returncode == 0, script.stderr
    (argv,) = records(tmp_path / "record.argv.0")
    if data:
        assert f"--data={data}" in argv
    assert srun in records(tmp_path / "record.srun")[-1]
    environment = (tmp_path / "record.env.0").read_bytes().decode().split("\0")
    assert f"HPCBERT_PROBE={value}" in environment


@pytest.mark.parametrize("framework", ["oneflow", "pytorch"])
@pytest.mark.parametrize("shape", ["1n1g", "4n8g"])
@pytest.mark.parametrize("runtime", ["none", "pyxis", "enroot"])
@pytest.mark.parametrize("rehearse", [False, True])
def test_scripts_are_clean_for_bash_and_shellcheck(
    tmp_path: Path, framework: str, shape: str, runtime: str, rehearse: bool
) -> None:
    where = reference(
        tmp_path, container={"runtime": runtime, "scratch": "/raid" if rehearse else ""}
    )
    image = "docker://a.b#c:1" if rehearse else "/i.sqsh"
    where = settled(where, framework, image=image, data="/d", source="/s")
    draft = drafted(where, framework, shape, "slurm", rehearse=rehearse)
    text = only_script(draft).replace(draft.directory.name, "campaign")
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    rank = f"set -euo pipefail\n{rank_command(text)}"
    assert subprocess.run(["bash", "-n"], input=rank, text=True, check=False).returncode == 0
    require("shellcheck")
    assert shellcheck(text) == ""
    assert shellcheck(f"#!/bin/bash\n{rank}\n") == ""


@pytest.mark.needs("shellcheck")
@pytest.mark.parametrize("exclusive", [True, False], ids=["exclusive", "shared"])
@pytest.mark.parametrize(("device", "size"), [("gpu", 0), ("cpu", 0), ("gpu", LARGEST)])
def test_scripts_that_bind_or_search_or_measure_first_are_clean(
    tmp_path: Path, device: str, size: int, exclusive: bool
) -> None:
    nodes = {"cpus_per_gpu": 4, "drop_caches": ("sudo", "drop", "a=3"), "interface": "ib0"}
    site = reference(tmp_path, nodes=nodes, slurm={"exclusive": exclusive})
    site = settled(site, "nccl-tests", options={"program": "/opt/a b/all_reduce_perf"})
    request = drafts.combined(Shape(2, 4), ("fp32",), (size,), device=device, repeats=1)
    options = {"dry": True, "preflight": True, "rehearse": not exclusive}
    for text in drafts.drafted(site, request, options=options).scripts.values():
        assert shellcheck(text) == ""


def test_a_tpu_is_driven_from_a_node_without_gpus(tmp_path: Path) -> None:
    request, recipe = Request(Shape(1, 32), preset="tpu"), drafts.load("perfzero")
    site, options = reference(tmp_path), {"dry": True}
    text = only_script(drafts.drafted(site, request, framework_recipe=recipe, options=options))
    assert "--gres" not in text
    assert "#SBATCH --ntasks-per-node=1\n" in text


def test_site_settings_become_directives(tmp_path: Path) -> None:
    slurm: dict[str, object] = {
        "partition": "gpu",
        "account": "acct",
        "qos": "high",
        "gres": "gpu:v100",
    }
    slurm |= {"memory": "0", "requeue": False, "exclusive": False}
    slurm["sbatch_args"] = ("--comment=a b#c",)
    where = reference(tmp_path, slurm=slurm, nodes={"cpus_per_gpu": 4})
    text = only_script(drafted(where, "pytorch", "1n2g", "slurm"))
    words = "--partition=gpu --account=acct --qos=high --gres=gpu:v100:2 --cpus-per-task=4"
    for line in (*words.split(), "--mem=0", "--no-requeue", '--comment="a b#c"', "--array=1-2%1"):
        assert f"#SBATCH {line}\n" in text
    assert "--exclusive" not in text
    assert "--cpus-per-task=4" in text.split("exec srun")[1]


def test_refusals_before_anything_is_written(tmp_path: Path) -> None:
    where = reference(tmp_path)
    with pytest.raises(UsageError, match="needs data and source"):
        drafted(where, "oneflow", "1n1g", "slurm")
    with pytest.raises(UsageError, match="has one node"):
        drafted(where, "pytorch", "2n1g")
    with pytest.raises(UsageError, match="belongs to srun"):
        drafted(changed(where, container={"runtime": "pyxis"}))
    with pytest.raises(UsageError, match="backslash"):
        drafted(replace(where, runs="/a\\b"))
    with pytest.raises(UsageError, match="control character"):
        drafted(replace(where, runs="/a\nb"))
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_leaves_missing_paths_open_and_says_so(tmp_path: Path) -> None:
    draft = drafted(reference(tmp_path), "oneflow", "4n8g", "slurm", dry=True)
    assert "--data_dir=/path/to/oneflow/data" in only_script(draft)
    assert "frameworks.oneflow.data" in draft.resolved.warnings[0]


def test_a_rehearsal_replays_the_sample_on_rank_0_only(tmp_path: Path) -> None:
    draft = drafted(reference(tmp_path), "oneflow", "1n1g", "local", rehearse=True)
    script = run_script(draft, tmp_path)
    assert script.returncode == 0, script.stderr
    log = (draft.directory / "logs/oneflow/bert/bz32/1n1g/bert_b32_fp32_1.log").read_text()
    header, *sample = log.splitlines()
    assert header.startswith("HPCBERT REHEARSAL rank=0/1")
    # Its nodes are not those of this machine.
    assert any("step: 119" in line for line in sample)
    assert {line.partition(" ")[0] for line in sample} == {"sample:"}


def test_percent_signs_in_a_path_are_no_patterns(tmp_path: Path) -> None:
    draft = drafted(reference(tmp_path, runs="/a %j b"), "pytorch", "1n1g", "slurm")
    assert '#SBATCH --output="/a %%j b/' in only_script(draft)


def test_committed_scripts_are_what_is_rendered(repository: Path) -> None:
    command = [sys.executable, "-m", "hpcbert", "render", "--check", "sbatch"]
    result = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def write_begun(draft: Draft, attempt: int, job: str, repeat: int = 1) -> Path:
    """Write down that a job has begun an attempt; return the status file."""
    (array,) = draft.campaign.arrays
    path = draft.directory / array.status(repeat)
    line = {"event": "start", "time": 1, "attempt": attempt, "job": job}
    path.write_text(json.dumps(line, separators=(",", ":")) + "\n")
    return path


@cases
@pytest.mark.parametrize("together", [False, True], ids=["array", "one-job"])
def test_a_job_that_is_requeued_after_a_retry_took_its_place_runs_and_writes_nothing(
    tmp_path: Path, *, restarts: int, attempt: int, job: str, runs: bool, together: bool
) -> None:
    draft = draft_ranks(tmp_path, together=together)
    write_campaign(draft)
    paths = [
        write_begun(draft, attempt, job.replace("_1", f"_{n}"), n) for n in (1, 2)[: 1 + together]
    ]
    before = [path.read_bytes() for path in paths]
    names = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_RESTART_COUNT": str(restarts)}
    written = run_written(draft, tmp_path, **names)
    if runs:
        assert written.returncode == 0, written.stderr
        assert events(draft)[-1]["event"] == "end"
        return
    assert written.returncode == 125
    assert [path.read_bytes() for path in paths] == before
    assert f"of repeat 1 belongs to job {job}: nothing is run" in written.stderr
    assert not list((draft.directory / "logs").rglob("*.log"))


def test_of_repeats_in_one_job_those_that_no_retry_repeats_are_run(tmp_path: Path) -> None:
    draft = draft_ranks(tmp_path, together=True)
    write_campaign(draft)
    path = write_begun(draft, 1, "20_2", 2)
    before = path.read_bytes()
    written = run_written(draft, tmp_path, SLURM_ARRAY_JOB_ID="7", SLURM_RESTART_COUNT="1")
    assert written.returncode == 0, written.stderr
    assert events(draft, 1)[-1]["event"] == "end"
    assert path.read_bytes() == before
