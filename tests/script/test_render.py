"""Rendered scripts, run by the shell they are for, with stand-ins for srun and the ranks' program."""

import itertools
import os
import pwd
import re
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbert.container import runtimes
from hpcbert.errors import UsageError
from hpcbert.model import LARGEST, Shape
from hpcbert.script.draft import by_hand
from hpcbert.script.plan import Request, plan
from hpcbert.slurm.reasons import ABSENT
from hpcbert.slurm.state_sources import reduce_events
from tests.kit import drafts, scripts
from tests.kit.cases import cases, read_constant
from tests.kit.cli import Cli, start_process
from tests.kit.containers import REAL_ENROOT, Image, open_stand_ins
from tests.kit.drafts import changed, load, reference, settled
from tests.kit.logs import write_file
from tests.kit.needs import require
from tests.kit.paths import REPOSITORY
from tests.kit.recipes import RUNTIMES, SHELL, rank_command
from tests.kit.scripts import (
    drafted,
    drafted_in,
    events,
    kinds,
    only_script,
    run_program,
    run_script,
    write_ranks,
)
from tests.kit.waiting import CEILING, until

pytestmark = pytest.mark.slow

WATCH = (SHELL / "watch.bash").read_text()
START = '{"event":"start","time":1,"attempt":%d,"job":"%s"}\n'
WORDS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=30)


def start_script(draft, *words):
    script = str(draft.directory / draft.campaign.arrays[0].script)
    env = {**os.environ, "SLURM_ARRAY_TASK_ID": "1"}
    return subprocess.Popen([*words, script], env=env, text=True, stderr=subprocess.PIPE)


@pytest.mark.parametrize(
    ("zone", "offset", "language"),
    [("Asia/Kolkata", "+0530", "C.UTF-8"), ("EST5", "-0500", "de_DE.UTF-8")],
)
def test_local_ranks_run_and_the_nodes_clocks_give_the_moments(tmp_path, zone, offset, language):
    draft = write_ranks(tmp_path)
    before = time.time()
    run_script(draft, tmp_path, status=0, TZ=zone, LC_ALL=language)
    assert kinds(draft) == ["start", "step", "step-end", "end"]
    _, begun, ended, last = events(draft)
    assert last["exit"] == 0
    assert before <= begun["at"] <= ended["at"] <= time.time()
    assert 0 < begun["uptime"] <= ended["uptime"]
    assert begun["zone"] == ended["zone"] == offset
    assert begun["ahead"] is None
    log = draft.directory / "logs/pytorch/bert/bz4/1n2g/bert_b4_fp32_1.log"
    # Bash warns of a language that the machine does not have.
    texts = [line for line in log.read_text().splitlines() if "setlocale" not in line]
    first, *lines = sorted(texts)
    assert first.startswith("hpcbert: ranks start with ")
    assert lines == ["rank 0 of 2", "rank 1 of 2"]
    for rank in (0, 1):
        (argv,) = scripts.records(tmp_path / f"record.argv.{rank}")
        assert "--batch-size" in argv
    # A requeued repeat keeps its first log.
    run_script(draft, tmp_path, SLURM_RESTART_COUNT="1")
    assert sorted(path.name for path in log.parent.iterdir()) == [log.name, f"{log.stem}.r1.log"]
    assert [event["attempt"] for event in events(draft)] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_node_without_the_campaign_runs_nothing_and_makes_nothing(tmp_path):
    """Slurm 24.11 makes the directory of the output there; 22.05 does not start the job."""
    draft = write_ranks(tmp_path)
    script = tmp_path / "spooled"
    (draft.directory / draft.campaign.arrays[0].script).rename(script)
    shutil.rmtree(draft.directory)
    (draft.directory / "slurm").mkdir(parents=True)
    words: Any = {**os.environ, "SLURM_ARRAY_TASK_ID": "1", "RECORD": str(tmp_path / "record")}
    result = scripts.bash(script, status=ABSENT, **words)
    assert result.stdout == ""
    assert f"lacks the campaign {draft.directory}\n" in result.stderr
    assert [path.name for path in draft.directory.iterdir()] == ["slurm"]
    assert not list(tmp_path.glob("record*"))


@cases
def test_how_far_the_controller_s_clock_is_ahead_is_asked_of_it(tmp_path, answer, ahead):
    words = f'if [[ "$2" == config ]]; then {answer}; else echo localhost; fi'
    scripts.tool(tmp_path / "tools", "scontrol", f"#!/bin/bash\n{words}\n")
    draft = write_ranks(tmp_path, scheduler="slurm")
    moment = time.monotonic()
    run_script(draft, tmp_path, status=0)
    seconds = time.monotonic() - moment
    (begun,) = [event for event in events(draft) if event["event"] == "step"]
    measured = begun["ahead"]
    assert measured is None if ahead is None else abs(measured - ahead) <= 1 + seconds


def test_a_failing_rank_ends_the_others_and_gives_the_script_its_exit_status(tmp_path):
    text = "#!/bin/bash\nif ((SLURM_PROCID == 1)); then exit 7; fi\nexec sleep 300\n"
    for together in (False, True):
        draft = write_ranks(tmp_path / str(together), text, together=together)
        assert ("#SBATCH --array" in only_script(draft)) != together
        run_script(draft, tmp_path, status=7)
        for repeat in (1, 2) if together else (1,):
            assert [event.get("exit") for event in events(draft, repeat)] == [None, None, 7, 7]
    # TERM reaches the ranks and is written down.
    pids = tmp_path / "pids"
    draft = write_ranks(tmp_path, f'#!/bin/bash\necho $$ >> "{pids}"\nexec sleep 300\n')
    with start_script(draft, "bash") as job:
        until(lambda: pids.exists() and len(pids.read_text().split()) == 2, "ranks do not start")
        job.terminate()
        job.communicate(timeout=CEILING)
    assert job.returncode != 0
    assert kinds(draft) == ["start", "step", "signal", "step-end", "end"]
    assert not [pid for pid in pids.read_text().split() if Path(f"/proc/{pid}").exists()]


@cases
def test_a_job_that_is_requeued_after_a_retry_took_its_place_runs_and_writes_nothing(
    tmp_path, *, restarts, attempt, job, runs
):
    draft = write_ranks(tmp_path)
    path = draft.directory / draft.campaign.arrays[0].status(1)
    path.write_text(START % (attempt, job))
    names = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_RESTART_COUNT": str(restarts)}
    written = run_script(draft, tmp_path, status=0 if runs else 125, **names)
    if runs:
        assert kinds(draft)[-1] == "end"
        return
    assert path.read_text() == START % (attempt, job)
    assert f"of repeat 1 belongs to job {job}: nothing is run" in written.stderr
    assert not list((draft.directory / "logs").rglob("*.log"))


def test_of_repeats_in_one_job_those_that_no_retry_repeats_are_run(tmp_path):
    for retried in ((1, 2), (2,)):
        draft = write_ranks(tmp_path / f"{len(retried)}", together=True)
        (array,) = draft.campaign.arrays
        paths = {number: draft.directory / array.status(number) for number in retried}
        for number, path in paths.items():
            path.write_text(START % (1, f"20_{number}"))
        names = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}
        run_script(draft, tmp_path, status=125 if 1 in retried else 0, **names)
        for number, path in paths.items():
            assert path.read_text() == START % (1, f"20_{number}")
        assert kinds(draft)[-1] == ("start" if 1 in retried else "end")


@cases
def test_a_script_notices_that_it_was_suspended(tmp_path, seconds, stops):
    """CONT alone, which Slurm sends before it ends a job, is none."""
    # Stops the whole job for a while: a rank, the script and all else at once.
    stop = f"kill -STOP -- -$0; sleep {seconds}; " if stops else ""
    pause = read_constant(__file__, "PAUSE") % {"stop": stop, "folder": tmp_path}
    draft = write_ranks(tmp_path, pause)
    words = ("setsid", "--wait", "bash", "-c", 'GROUP=$$ exec bash "$0"')
    with start_script(draft, *words) as script:
        _, errors = script.communicate(timeout=CEILING)
    assert script.returncode == 0, errors
    suspensions = [event for event in events(draft) if event["event"] == "suspended"]
    record = reduce_events(events(draft))
    assert record.watched
    if stops:
        assert {event["noticed"] for event in suspensions} <= {"signal"}
        assert record.suspended > 1
        assert kinds(draft)[-1] == "end"
    # A very busy machine may itself keep the watcher from its look for half a second.
    assert all(0.5 <= event["seconds"] < 3 for event in suspensions if not stops)


def run_watchers(folder, harness, watch=WATCH):
    """Run watchers, whose marks are kept in files of their names."""
    mark = f'mark() {{ echo "$@" >>"{folder}/${{own-none}}"; }}'
    program = f"set -euo pipefail\n{mark}\n{watch}\n{harness}"
    assert scripts.bash("-c", program, "watch", folder).stderr == ""


def test_a_pause_that_ends_with_the_repeat_is_seen_and_a_watch_ends_whenever_it_is_to(tmp_path):
    """CONT and the word that the repeat is over may both wait when a watcher gets a processor again."""
    run_watchers(tmp_path, read_constant(__file__, "PAUSED_AT_THE_END"))
    texts = [(tmp_path / str(number)).read_text() for number in range(1, 25)]
    assert [text.partition(" ")[0] for text in texts] == ["suspended"] * 24
    # Before the watcher has begun, and while its time for reading is up: it says nothing.
    run_watchers(tmp_path, read_constant(__file__, "ENDED_EARLY"))


@cases
def test_short_pauses_of_the_measured_step_are_summed(
    tmp_path, pauses, hundredths, signal, seconds
):
    """By a clock that the test moves on: a busy machine makes a pause longer."""
    watch = WATCH
    for file, path in (("/proc/uptime", "uptime"), ("/proc/self/schedstat", "schedstat")):
        assert file in watch
        watch = watch.replace(f"<{file}", f'<"{tmp_path}/{path}"')
    (tmp_path / "schedstat").write_text("0 0 0\n")
    values = {"pauses": pauses, "hundredths": hundredths, "signal": signal}
    run_watchers(tmp_path, read_constant(__file__, "CLOCK") % values, watch)
    assert not (tmp_path / "repeat").exists()
    assert (tmp_path / "step").exists() is (seconds is not None)
    if seconds:
        event = f'suspended ,"seconds":{seconds},"noticed":"sum"\n'
        assert (tmp_path / "step").read_text() == event


@settings(max_examples=12)
@given(data=WORDS, srun=WORDS.map("--x={}".format), value=WORDS, partition=WORDS)
def test_whatever_is_typed_arrives_at_ranks_and_srun_or_is_refused(
    tmp_path_factory, data, srun, value, partition
):
    """Data path, srun argument, environment value and partition of any text, through a real bash."""
    folder = tmp_path_factory.mktemp("any text")
    slurm = {"partition": partition, "srun_args": (srun,)}
    where = reference(folder, env={"HPCBERT_PROBE": value}, slurm=slurm)
    python = scripts.tool(folder, "python", scripts.RECORDER)
    site = settled(where, python=str(python), data=data)
    if re.search(r"[\x00-\x1f\x7f]", partition):
        with pytest.raises(UsageError, match="control character"):
            drafted(site, scheduler="slurm", shape="1n1g")
        return
    draft = drafted(site, scheduler="slurm", shape="1n1g")
    run_script(draft, folder, status=0)
    (argv,) = scripts.records(folder / "record.argv.0")
    assert not data or f"--data={data}" in argv
    assert srun in scripts.records(folder / "record.srun")[-1]
    environment = (folder / "record.env.0").read_bytes().decode().split("\0")
    assert f"HPCBERT_PROBE={value}" in environment


@pytest.mark.needs("shellcheck")
def test_scripts_that_rehearse_bind_search_or_measure_first_are_clean_for_shellcheck(tmp_path):
    """Those of all recipes and runtimes are in tests/recipes."""
    texts = []
    for runtime, framework in itertools.product(RUNTIMES, ("oneflow", "pytorch")):
        site = reference(tmp_path, container={"runtime": runtime, "scratch": "/raid"})
        image = "/i.sif" if runtime == "apptainer" else "docker://a.b#c:1"
        site = settled(site, framework, image=image, data="/d", source="/s")
        texts.append(only_script(drafted(site, framework, "4n8g", "slurm", rehearse=True)))
        texts.append(f"#!/bin/bash\nset -euo pipefail\n{rank_command(texts[-1])}\n")
    nodes = {"cpus_per_gpu": 4, "drop_caches": ("sudo", "drop", "a=3"), "interface": "ib0"}
    combinations = (("gpu", 0, True), ("gpu", 0, False), ("cpu", 0, True), ("gpu", LARGEST, False))
    for device, size, exclusive in combinations:
        site = reference(tmp_path, nodes=nodes, slurm={"exclusive": exclusive})
        site = settled(site, "nccl-tests", options={"program": "/opt/a b/all_reduce_perf"})
        request = drafts.combined(Shape(2, 4), ("fp32",), (size,), device=device, repeats=1)
        options = {"dry": True, "preflight": True, "rehearse": not exclusive}
        texts += drafts.drafted(site, request, options=options).scripts.values()
    files = [write_file(tmp_path, f"{number}.sh", text) for number, text in enumerate(texts)]
    result = start_process(["shellcheck", "--shell=bash", "--norc", *map(str, files)])
    assert result.ok, result.stdout


def test_site_settings_become_directives(tmp_path):
    words = "--partition=gpu --account=acct --qos=high --gres=gpu:v100:2 --cpus-per-task=4"
    slurm: Any = {"partition": "gpu", "account": "acct", "qos": "high", "gres": "gpu:v100"}
    slurm |= {"memory": "0", "requeue": False, "exclusive": False}
    slurm["sbatch_args"] = ("--comment=a b#c",)
    site = reference(tmp_path, slurm=slurm, nodes={"cpus_per_gpu": 4})
    text = only_script(drafted(site, "pytorch", "1n2g", "slurm"))
    for line in (*words.split(), "--mem=0", "--no-requeue", '--comment="a b#c"', "--array=1-2%1"):
        assert f"#SBATCH {line}\n" in text
    assert "--exclusive" not in text
    assert "--cpus-per-task=4" in text.split("exec srun")[1]
    text = only_script(drafted(reference(tmp_path, runs="/a %j b"), "pytorch", "1n1g", "slurm"))
    assert '#SBATCH --output="/a %%j b/' in text
    request, recipe = drafts.combined(Shape(1, 32), preset="tpu"), drafts.load("perfzero")
    tpu: Any = {"framework_recipe": recipe, "options": {"dry": True}}
    text = only_script(drafts.drafted(reference(tmp_path), request, **tpu))
    assert "--gres" not in text
    assert "#SBATCH --ntasks-per-node=1\n" in text


def test_refusals_before_anything_is_written(tmp_path):
    site = reference(tmp_path)
    with pytest.raises(UsageError, match="needs data and source"):
        drafted(site, "oneflow", "1n1g", "slurm")
    with pytest.raises(UsageError, match="has one node"):
        drafted(site, "pytorch", "2n1g")
    with pytest.raises(UsageError, match="belongs to srun"):
        drafted(changed(site, container={"runtime": "pyxis"}))
    for runs, problem in (("/a\\b", "backslash"), ("/a\nb", "control character")):
        with pytest.raises(UsageError, match=problem):
            drafted(replace(site, runs=runs))
    draft = drafted(site, "oneflow", "4n8g", "slurm", dry=True)
    assert "--data_dir=/path/to/oneflow/data" in only_script(draft)
    assert "frameworks.oneflow.data" in draft.resolved.warnings[0]
    assert list(tmp_path.iterdir()) == []


def test_a_rehearsal_replays_the_sample_on_rank_0_only(tmp_path):
    draft = drafted(reference(tmp_path), "oneflow", "1n1g", "local", rehearse=True)
    run_script(draft, tmp_path, status=0)
    log = (draft.directory / "logs/oneflow/bert/bz32/1n1g/bert_b32_fp32_1.log").read_text()
    header, *sample = log.splitlines()
    assert header.startswith("HPCBERT REHEARSAL rank=0/1")
    # Its nodes are not those of this machine.
    assert any("step: 119" in line for line in sample)
    assert {line.partition(" ")[0] for line in sample} == {"sample:"}


def test_committed_scripts_are_what_is_rendered():
    Cli(REPOSITORY)("render", "--check", "sbatch", status=0)


TEXT = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=20)


def run_campaign(draft, folder, status=0, **env):
    """Write a campaign and run its script; return the calls of srun."""
    script = scripts.run_script(draft, folder, status=status, NODE="node3", NO_RANKS="1", **env)
    assert ("node3: not in the container" in script.stderr) == (status == 125)
    return scripts.records(folder / "record.srun")


def test_pyxis_gets_every_flag_and_makes_the_container_outside_the_measured_step(tmp_path):
    def read_flags(call):
        words = [word for word in call if word.startswith(("--container", "--no-container"))]
        return dict(word.partition("=")[::2] for word in words)

    settings: Any = {"mounts": ("/scratch:/scratch:ro",), "env": ("HF_HOME",), "data": "/data"}
    draft = drafted_in(tmp_path, "pyxis", "/images/d e.sqsh", **settings)
    calls = run_campaign(draft, tmp_path, INSIDE="1", PYXIS_CONTAINER_IMAGE="other")
    create, inside, outside, measured, leave = calls
    assert read_flags(create)["--container-image"] == "/images/d e.sqsh"
    text = f"{draft.directory}:{draft.directory}"
    switches = {"--no-container-mount-home", "--no-container-remap-root", "--container-writable"}
    names = {"MASTER_ADDR", "MASTER_PORT", "HPCBERT_NODES", "HPCBERT_NODE_IPS", "HF_HOME"}
    for call in (create, inside, measured):
        values = read_flags(call)
        assert values["--container-name"] == "hpcbert-5"
        assert values["--container-mounts"].startswith(f"{text},/data:/data,/scratch:/scratch:ro,")
        assert names <= set(values["--container-env"].split(","))
        assert switches | {"--no-container-entrypoint"} <= set(values)
    assert "--container-image" not in read_flags(measured)
    assert not read_flags(outside)
    assert not read_flags(leave)
    assert leave[-2:] == ["remove", "hpcbert-5"]
    assert "-l" not in measured
    assert "container" in kinds(draft)
    # A node without the plugin ends the job before training.
    draft = drafted_in(tmp_path / "plain", "pyxis")
    calls = run_campaign(draft, tmp_path / "plain", status=125)
    assert kinds(draft) == ["start", "end"]
    assert scripts.events(draft)[-1]["exit"] == 125
    assert not [call for call in calls if "--output" in " ".join(call)]


def test_settings_of_site_and_recipe_reach_both_runtimes_and_enroot_imports(tmp_path):
    flags: Any = dict.fromkeys(("home", "remap_root", "entrypoint"), True)
    point: Any = {"shape": "2n1g", "workdir": "/work dir"}
    point["tables"] = {"nodes": {"interface": "ib0"}}
    for runtime, words in read_constant(__file__, "SETTINGS").items():
        text = only_script(drafted_in(tmp_path, runtime, scratch="/raid x", **flags, **point))
        assert [word for word in (*words, "interface=ib0\n") if word not in text] == []
    text = only_script(drafted_in(tmp_path, "enroot", "nvcr.io/nvidia/pytorch:25.04-py3"))
    uri = "'docker://nvcr.io#nvidia/pytorch:25.04-py3'"
    assert f"import_image {uri} '{tmp_path}/a b/images' nvcr.io+nvidia+pytorch+25.04-py3" in text
    text = only_script(drafted_in(tmp_path, "enroot", "/images/x.sqsh"))
    assert "image=/images/x.sqsh\n" in text
    assert "import_image" not in text


def test_a_campaign_brings_what_its_script_runs_and_by_hand_it_stays_where_it_was_submitted(
    tmp_path, monkeypatch
):
    joining = {"enter", "join", "sweep", "image"}
    files = {"pyxis": {"pyxis", "sweep"}, "enroot": {*joining, "enroot"}, "none": set()}
    files["apptainer"] = {*joining, "apptainer"}
    every = {f"scripts/{name}.sh" for name in {*joining, *runtimes.RUNTIMES}}
    for runtime, names in files.items():
        draft = drafted_in(tmp_path, runtime, "/i.sif" if runtime == "apptainer" else "/i.sqsh")
        copies = dict(draft.copies)
        assert every & set(copies) == {f"scripts/{name}.sh" for name in names}
        assert ("joined.bash" in only_script(draft)) == (runtime in {"enroot", "apptainer"})
        assert all(source.is_file() for source in copies.values())
    monkeypatch.chdir(REPOSITORY)
    for runtime in ("pyxis", "enroot"):
        site = settled(reference(tmp_path, container={"runtime": runtime}), image="/i.sqsh")
        planned = plan(load(), site, Request(Shape(1, 1)))
        texts, copied = by_hand(planned, options=drafts.OPTIONS)
        (text,) = texts.values()
        assert "workdir" in text
        assert '"$campaign:$campaign"' in text
        assert ("scripts/enter.sh" in copied) == (runtime == "enroot")


def test_what_a_runtime_can_not_carry_is_refused(tmp_path):
    for mount in ("/$HOME:/x", '/a"b:/x', "/`id`:/x", "/a\\b:/x"):
        drafted_in(tmp_path, "enroot", mounts=(mount,))
        with pytest.raises(UsageError, match="a shell would expand"):
            drafted_in(tmp_path, "pyxis", mounts=(mount,))
    for runtime in ("pyxis", "enroot"):
        with pytest.raises(UsageError, match="comma or a colon"):
            drafted_in(tmp_path, runtime, data="/a,b")
        with pytest.raises(UsageError, match="read as the name"):
            drafted_in(tmp_path, runtime, "x.sqsh")


@settings(max_examples=40, deadline=None)
@given(mount=TEXT, workdir=TEXT, scratch=TEXT, image=TEXT)
def test_any_text_arrives_as_one_word_at_enter_sh(tmp_path_factory, mount, workdir, scratch, image):
    mount = "/" + mount.translate({ord(char): "_" for char in ":,"})
    mount = mount if mount.isprintable() else "/x"
    image = f"/{image}" if image.isprintable() and image.strip() == image else "/y"
    places = {"mounts": (mount,), "scratch": f"/{scratch}", "workdir": workdir}
    text = only_script(drafted_in(tmp_path_factory.mktemp("words"), "enroot", image, **places))
    part = text.split("begin_job\n")[1].split("\ncreate_container")[0].replace("/scripts/", "/")
    settings = "device=gpu tasks=1 devices_per_task=1 job_name=5 handed_over=()"
    show = 'printf \'%s\\0\' "${container[@]}" "${enter[@]}"'
    program = f"campaign='{SHELL}' library='{SHELL}' {settings}\n{part}\n{show}"
    arguments = scripts.bash("-uc", program).stdout.split("\0")[:-1]
    pairs = dict(itertools.pairwise(arguments))
    assert (pairs["--image"], pairs["--scratch"]) == (image, f"/{scratch}")
    assert f"{mount}:{mount}" in arguments
    assert not workdir or pairs["--workdir"] == workdir


def find_enroot(folder):
    require("squashfs")
    return f"{REAL_ENROOT or open_stand_ins(folder / 'stand-ins')}:{os.environ['PATH']}"


def test_the_local_scheduler_runs_ranks_in_one_container_and_leaves_nothing(tmp_path):
    path = find_enroot(tmp_path)
    image = Image(environment={"PYTORCH_VERSION": "2"}, files={"etc/marker": "inside\n"})
    words = "$(cat /etc/marker) $RANK $WORLD_SIZE $(readlink /proc/self/ns/mnt)"
    python = scripts.tool(tmp_path, "python", f"#!/bin/bash\necho {words}\n")
    container = {"scratch": str(tmp_path / "kept"), "mounts": (str(tmp_path),)}
    site = reference(tmp_path, container={"runtime": "enroot", **container})
    site = settled(site, image=str(image.write(tmp_path / "i.sqsh")), python=str(python))
    draft = scripts.drafted(site, together=True)
    scripts.run_script(draft, tmp_path, status=0, PATH=path)
    logs = sorted((draft.directory / "logs").rglob("*.log"))
    assert len(logs) == 2
    for log in logs:
        first, *messages = sorted(log.read_text().splitlines())
        assert first.startswith("hpcbert: ranks start with ")
        lines = [line.rsplit(maxsplit=1) for line in messages]
        assert sorted(message for message, _ in lines) == ["inside 0 2", "inside 1 2"]
        assert len({namespace for _, namespace in lines}) == 1
    for folder in ("data", "state"):
        (kept,) = (tmp_path / "kept").glob(f"*/{folder}")
        assert list(kept.iterdir()) == []


@cases
def test_the_image_wins_over_its_profile_and_what_it_lacks_is_there(
    environment, path, home, tmp_path
):
    """Debian's /etc/profile, which a login shell reads, replaces PATH."""
    env = {"PATH": find_enroot(tmp_path), "HOME": "/host", "SLURM_LOCALID": "0"}
    env |= {"SLURM_NTASKS": "1", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    profile = {"etc/profile": "PATH=/usr/local/bin:/usr/bin:/bin:/usr/games\nexport PATH\n"}
    image = Image(environment=environment, files=profile).write(tmp_path / "i.sqsh")
    options = ("--name", "hpcbert-7", "--scratch", tmp_path / "kept")
    image_options = (*options, "--image", image, "--no-entrypoint")
    run_program("enter.sh", "create", *image_options, **env)
    command = ("--", "sh", "-c", 'echo "$PATH"; echo "$HOME"; echo "$USER"')
    printed = run_program("enter.sh", "enter", *image_options, *command, **env).stdout
    run_program("enter.sh", "remove", *options, **env)
    account = pwd.getpwuid(os.geteuid())
    assert printed.splitlines() == [path, home or account.pw_dir, account.pw_name]


@cases
def test_enter_sh_refuses_words_that_it_can_not_follow(words, says):
    refused = run_program("enter.sh", *words, status=125, SLURMD_NODENAME="node7")
    assert says in refused.stderr


def test_what_a_plugin_puts_around_ranks_is_around_what_describes_them(tmp_path):
    every = (("--environment=/e d/f.toml",), ("--uenv", "pytorch/v2.6:v1", "--view=default"))
    for number, (words, runtime) in enumerate(itertools.product(every, ("none", "pyxis"))):
        image, folder = "" if runtime == "none" else "/i.sqsh", tmp_path / str(number)
        tables = {"slurm": {"srun_args": ("--network=x", *words, "--label")}}
        draft = drafted_in(folder, runtime, image, tables=tables)
        calls = run_campaign(draft, folder, INSIDE="1")
        described = {call[call.index("describe") + 1]: call for call in calls if "describe" in call}
        (measured,) = [call for call in calls if "--network=x" in call]
        assert set(words) <= set(measured)
        assert set(words) <= set(described["image"])
        assert not {"--network=x", "--label"} & set(described["image"])
        assert not set(words) & set(described["host"])
    # Without a plugin, one step describes node and interpreter.
    draft = drafted_in(tmp_path, "none", "", tables={"slurm": {"srun_args": ("--label",)}})
    calls = run_campaign(draft, tmp_path)
    assert [call[call.index("describe") + 1] for call in calls if "describe" in call] == ["both"]
