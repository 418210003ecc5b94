"""`submit --here`: an ordinary user's campaigns as steps of an allocation that is there already."""

import re

import pytest

from hpcbert.campaign import store
from tests.kit.cli import first_row
from tests.kit.logs import WORDS, stand_in
from tests.kit.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


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


def test_what_ends_it_and_what_continues_it(hpcbert, as_user, work, allocate):
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
