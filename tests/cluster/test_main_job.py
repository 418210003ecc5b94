"""The main job as an ordinary user on a real cluster, by sbatch or as steps of an allocation."""

import json
import re
import shlex

import pytest

from hpcbert.campaign import store
from hpcbert.script.quoting import directive
from hpcbert.script.resolve import PREFLIGHT
from tests.kit.cases import read_constant
from tests.kit.cli import first_row
from tests.kit.logs import WORDS, stand_in
from tests.kit.waiting import until

pytestmark = pytest.mark.slurm


def read_events(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_sbatch_reads_directives_as_they_were_typed(as_user):
    # sbatch --test-only shows no comment, so each is submitted, all at once.
    texts = ["a b", 'a"b', "a'b", "a\\b", "a#b", "#", "$(id)", "`id`", "a;b", "%j", "-x"]
    texts += ["é ü", " ", "a\\", "!"]
    comments = {}
    for text in texts:
        line = directive(f"--comment={text}")
        script = f"#!/bin/bash\n#SBATCH --begin=now+1hour\n#SBATCH {line}\ntrue\n"
        job = as_user(["sbatch", "--parsable", "--output=/dev/null"], stdin=script)
        assert job.ok, job.stderr
        comments[job.stdout.strip()] = text
    queue = as_user(["squeue", "-h", f"--jobs={','.join(comments)}", "--format=%A|%k"]).stdout
    as_user(["scancel", *comments])
    shown = dict(line.split("|", 1) for line in queue.splitlines())
    assert shown == comments


def test_a_rehearsal_gets_every_node_gpu_and_rank_and_makes_no_table(
    hpcbert, as_user, wait_for_end
):
    shape = ("--nodes", "4", "--gpus-per-node", "8", "--repeats", "2")
    words = ("submit", *shape, "--fw", "oneflow", "--rehearse", "--json")
    campaign = hpcbert(*words, status=0).data
    directory, job = wait_for_end(campaign["directory"]), campaign["arrays"][0]["job_id"]
    fields = "JobID,State,ExitCode,NNodes,AllocTRES%80"
    query = ["sacct", "-X", "-P", "-n", "-j", job, "-o", fields]

    def list_completed():
        table = [line.split("|") for line in as_user(query).stdout.splitlines()]
        return table if len(table) == 2 and all(row[1] == "COMPLETED" for row in table) else []

    # Accounting lags behind the queue.
    rows = until(list_completed, lambda: as_user(query).stdout, pause=0.5)
    assert [row[:4] for row in rows] == [[f"{job}_{n}", "COMPLETED", "0:0", "4"] for n in (1, 2)]
    assert all("gres/gpu=32" in row[4] for row in rows)
    for repeat in (1, 2):
        log = directory / f"logs/oneflow/bert/bz32/4n8g/bert_b32_fp32_{repeat}.log"
        pattern = r"REHEARSAL rank=(\d+)/4 .* node=(\d)/4 host=(\w+) gpus=(\S+)"
        ranks = re.findall(pattern, log.read_text())
        assert sorted(int(rank) for rank, *_ in ranks) == [0, 1, 2, 3]
        assert {host for _, _, host, _ in ranks} == {"n1", "n2", "n3", "n4"}
        assert {gpus for *_, gpus in ranks} == {"0,1,2,3,4,5,6,7"}
    table = hpcbert("collect", directory)
    assert table.returncode != 0
    assert not re.search(r"\d+\.\d\d ", table.stdout)
    assert "rehears" in table.output.lower()


def test_ranks_train_on_cpus_over_tcp_between_nodes_and_give_a_table(
    hpcbert, as_user, checkout, work
):
    result = hpcbert(
        *("submit", "--fw", "pytorch", "--nodes", "2", "--gpus-per-node", "1", "--scaling"),
        *("--device", "cpu", "--model", "bert-tiny", "--batch-size", "2", "--iters", "6"),
        *("--skip", "2", "--repeats", "1", "--python", checkout.python, "--wait", "--json"),
    )
    # What a rank that failed said is nowhere else.
    ends = [f"\n--- {path}\n{path.read_text()[-4000:]}" for path in sorted(work.rglob("*.log"))]
    assert result.returncode == 0, "".join((result.stderr, *ends))
    (table,) = result.data["tables"]
    assert (table["device"], [row["shape"] for row in table["rows"]]) == ("cpu", ["1n1g", "2n1g"])
    for row in table["rows"]:
        assert row["repeats"] == {"ok": 1, "asked": 1}
        assert row["median"] > 0
        assert "mixed-environment" not in row["flags"]
        (run,) = row["runs"]
        assert [environment["node"] for environment in run["environments"]] == run["nodes"]
        # Where controller and job agree, accounting, which may lag behind, is not waited for.
        assert (run["state"], run["state_source"] in {"sacct", "squeue"}) == ("COMPLETED", True)
    # No GPU is asked for, given or seen.
    (path,) = work.rglob("manifest.json")
    for array in json.loads(path.read_text())["arrays"]:
        query = ["sacct", "-X", "-P", "-n", "-j", array["job_id"], "-o", "AllocTRES%80"]
        assert "gpu" not in as_user(query).stdout
    shown = hpcbert("collect", path.parent).stdout
    assert "ranks (CPU)" in shown
    assert "GPU" not in shown
    logs = [log.read_text() for log in work.rglob("bert_b2_fp32_1.log")]
    assert ['"device": "cpu"' in log for log in logs] == [True, True]
    assert " CPU, " in hpcbert("audit", path.parent, status=0).stdout


def test_repeats_that_run_at_once_on_a_node_are_marked(hpcbert, work):
    """The lab's site lets jobs share nodes."""
    begun = f"{shlex.quote(str(hpcbert.cwd))}/begun"
    both = f"touch {begun}.$SLURM_ARRAY_TASK_ID\nuntil [[ -e {begun}.1 && -e {begun}.2 ]]; do sleep 0.1; done"
    words = ("--repeats", "2", "--concurrent-repeats", "2", "--sbatch-arg=--nodelist=n1")
    python = stand_in(hpcbert.cwd, both)
    result = hpcbert(*WORDS, *words, "--python", python, "--wait", "--json", status=0)
    (row,) = result.data["tables"][0]["rows"]
    assert "shared-nodes" in row["flags"], [run["reasons"] for run in row["runs"]]
    assert row["median"] > 0
    for path in work.rglob("status/*.jsonl"):
        (step,) = [event for event in read_events(path) if event["event"] == "step"]
        # The lab's controller has this machine's clock; a busy one takes its time between the two.
        assert abs(step["ahead"]) < 60


def test_campaigns_of_a_file_run_in_turn(hpcbert):
    """Ranks of each framework have the variable, on the nodes that are named."""
    (hpcbert.cwd / "campaign.toml").write_text(read_constant(__file__, "CAMPAIGN"))
    hpcbert("submit", "campaign.toml", "--rehearse", "--wait", "--force", status=0)
    paths = sorted((hpcbert.cwd / "runs").glob("*/manifest.json"))
    manifests = [json.loads(path.read_text()) for path in paths]
    first, second = sorted(manifests, key=lambda manifest: str(manifest["after"]))
    assert (first["framework"], second["framework"]) == ("pytorch", "oneflow")
    assert (first["after"], second["after"]) == ("", first["id"])
    assert not [array for manifest in manifests for array in manifest["arrays"] if array["changed"]]
    texts = [path.read_text() for path in (hpcbert.cwd / "runs").glob("*/env/*.nodes.jsonl")]
    assert ["NCCL_ALGO" in text for text in texts] == [True, True]
    assert all(re.search('"nodes":"(n1 n2|n2 n1)"', text) for text in texts)


def test_scripts_that_were_rendered_and_those_of_a_campaign_run_by_hand(hpcbert, as_user):
    python = stand_in(hpcbert.cwd, ":")
    # None of the caller's may change what runs.
    names = ("offset", "interface", "baseline", "sampling", "scratch", "count")
    env = {**dict.fromkeys(names, "7"), "PYXIS_CONTAINER_MOUNTS": "/nowhere:/nowhere"}
    env |= {"PYXIS_CONTAINER_WORKDIR": "/nowhere", "PYXIS_CONTAINER_ENV": "PATH"}
    rendered = hpcbert.cwd / "by hand"
    words = (*WORDS[1:], "--python", python)
    hpcbert("render", *words, "--repeats", "2", "--output", rendered, status=0)
    library = {path.name for path in (rendered / "scripts").iterdir()}
    assert {"job.bash", "slurm.bash", "watch.bash", "rank.bash", "describe.sh"} <= library
    assert not library & {"largest.bash", "enough.bash", "bind.bash", "local.bash", PREFLIGHT}
    hpcbert("submit", *words, "--repeats", "1", "--wait", status=0)
    (campaign,) = (hpcbert.cwd / "runs").iterdir()
    for folder, place, steps in ((rendered, "", 1), (campaign, "scripts/", 2)):
        (script,) = folder.glob(f"{place}*.sbatch")
        argv = ["sbatch", "--wait", "--array=1", f"{place}{script.name}"]
        outcome = as_user(argv, cwd=folder, env=env)
        outputs = "\n".join(path.read_text() for path in folder.rglob("*.out"))
        assert outcome.ok, outcome.stderr + outputs
        (status,) = folder.glob("status/*.1.jsonl")
        events = read_events(status)
        assert [event["exit"] for event in events if event["event"] == "step-end"] == [0] * steps
        assert steps > 1 or [event["event"] for event in events] == [
            *("start", "step", "step-end", "end"),
        ]
        assert list(folder.rglob("bert_*_1.log"))


@pytest.fixture
def allocate(as_user):
    """Return a function that gets an allocation and returns its job's id."""
    jobs = []

    def salloc(*words):
        outcome = as_user(["salloc", "--no-shell", "--cpus-per-task=4", *words])
        jobs.extend(re.findall(r"Granted job allocation (\d+)", outcome.stderr))
        assert jobs, outcome
        return jobs[-1]

    yield salloc
    as_user(["scancel", *jobs])


def list_steps(as_user, job):
    return as_user(["squeue", "--steps", "--noheader", "--jobs", job]).stdout.strip()


def test_a_smaller_point_runs_in_a_larger_allocation(hpcbert, as_user, work, allocate):
    report = f'[[ -z $SLURM_NTASKS ]] || echo "$SLURMD_NODENAME $SLURM_NTASKS $CUDA_VISIBLE_DEVICES" >>{work}/ranks'
    program = stand_in(work, f"{report}\n[[ $SLURM_PROCID == 0 ]] || exit 0", gpus=4)
    job = allocate("--nodes=2", "--ntasks-per-node=2", "--gres=gpu:4")
    line = [*WORDS, "--python", program, "--here"]
    for more, numbers in (
        (("--nodes", 3), "3 nodes, .* has 2"),
        (("--gpus-per-node", 8), "8 GPUs .* has 4"),
    ):
        assert re.search(numbers, hpcbert(*line, *more, status=2, SLURM_JOB_ID=job).stderr)
    assert not (hpcbert.cwd / "runs").exists()
    line += ["--nodes", "2", "--gpus-per-node", "2", "--repeats", "2", "--wait"]
    row = first_row(hpcbert(*line, "--json", status=0, SLURM_JOB_ID=job).document)
    assert [(run["valid"], len(run["nodes"])) for run in row["runs"]] == [(True, 2)] * 2
    ranks = [line.split() for line in (work / "ranks").read_text().splitlines()]
    assert len(ranks) == 2 * 4
    assert {node for node, _, _ in ranks} == set(row["runs"][0]["nodes"])
    assert {tuple(words) for _, *words in ranks} == {("4", "0,1")}
    (directory,) = (hpcbert.cwd / "runs").iterdir()
    campaign = store.read_manifest(directory)
    assert campaign.scheduler == "allocation"
    assert campaign.arrays[0].job_id.startswith(f"{job}-")
    assert list_steps(as_user, job) == ""
    as_user(["scancel", job])
    # In a batch script, whose allocation has the point's size; the same point is one more campaign.
    argv = [hpcbert.python, "-m", "hpcbert", *map(str, line)]
    sbatch = ("sbatch", "--wait", "--nodes=2", "--ntasks-per-node=2", "--gres=gpu:2")
    (work / "batch").write_text('#!/bin/bash\ncd "$1"\nshift\nexec "$@"\n')
    words = [*sbatch, "--output", f"{work}/out", f"{work}/batch", str(hpcbert.cwd), *argv]
    outcome = hpcbert.run(words, env=hpcbert.env, cwd=hpcbert.cwd)
    assert outcome.ok, (work / "out").read_text()
    row = first_row(hpcbert("collect", "--json", status=0).document)
    assert row["repeats"]["ok"] == 2


def test_what_ends_a_campaign_in_an_allocation_and_what_continues_it(
    hpcbert, as_user, work, allocate
):
    flag, began = work / "flag", work / "began"
    flag.touch()
    program = stand_in(work, f"touch {began}; while [[ -e {flag} ]]; do sleep 0.1; done")
    job = allocate("--nodes=1", "--gres=gpu:1")
    words = (*WORDS, "--repeats", "2", "--python", program, "--here")
    hpcbert(*words, status=0, SLURM_JOB_ID=job)
    until(began.exists, "no rank began")
    assert "RUNNING" in hpcbert("monitor", "--once", status=0).stdout
    hpcbert("retry", status=0)
    hpcbert("cancel", "--yes", status=0)
    hpcbert("monitor", status=0)
    assert list_steps(as_user, job) == ""
    hpcbert("collect", status=4)
    assert "allocation" in hpcbert("retry", status=2).stderr
    (directory,) = (hpcbert.cwd / "runs").iterdir()
    assert len(store.read_manifest(directory).arrays) == 1
    # The allocation ends while the first repeat runs; the second never starts.
    began.unlink()
    hpcbert("retry", status=0, SLURM_JOB_ID=job)
    until(began.exists, "no rank began")
    as_user(["scancel", job])
    assert f"job {job}, has ended" in str(hpcbert("monitor", "--json", status=0).events)
    flag.unlink()
    job = allocate("--nodes=1", "--gres=gpu:1")
    row = first_row(hpcbert("retry", "--wait", "--json", SLURM_JOB_ID=job, status=0).document)
    assert [(run["valid"], run["attempt"]) for run in row["runs"]] == [(True, 2)] * 2
