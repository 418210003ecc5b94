"""One lab, seen by an ordinary user."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcbert.lab.lifecycle import status
from hpcbert.lab.record import Lab
from hpcbert.system.runner import Outcome, run
from tests.docs.examples import of_lab, read_examples
from tests.kit import cli
from tests.kit.lab_faults import start_daemon, stop_daemon
from tests.kit.waiting import until

pytestmark = pytest.mark.slurm


def test_all_nodes_are_idle_and_all_daemons_alive(lab: Lab):
    # Slurm may be clearing up after another test's job.
    def idle() -> bool:
        return {node.state for node in status(lab.directory, run=run).nodes} == {"idle"}

    until(idle, lambda: status(lab.directory, run=run))
    now = status(lab.directory, run=run)
    assert now.healthy
    assert [node.name for node in now.nodes] == ["n1", "n2", "n3", "n4"]
    assert {daemon.name for daemon in now.daemons} == {
        "munged", "mariadbd", "slurmdbd", "slurmctld", "n1", "n2", "n3", "n4",
    }  # fmt: skip


def test_the_json_page_shows_the_status_of_a_lab(lab: Lab):
    result = cli.run("lab", "status", "--directory", lab.directory, "--json")
    page = read_examples()
    assert page["lab status"] == of_lab(result, lab.directory), "run: python -m tests.docs.examples"
    assert page["lab up"] == page["lab status"].replace('"lab status"', '"lab up"')


def test_thirty_two_ranks_see_their_own_gpu(
    pmix: None, as_user: Callable[..., Outcome], work: Path
):
    task = "echo $SLURM_PROCID $(hostname) $PMIX_RANK $SLURM_LOCALID $CUDA_VISIBLE_DEVICES"
    step = ["srun", "--nodes=4", "--ntasks-per-node=8", "--gpus-per-task=1", "--mpi=pmix"]
    outcome = as_user([*step, "bash", "-c", task], cwd=work)
    assert outcome.ok, outcome.stderr
    ranks = sorted((line.split() for line in outcome.stdout.splitlines()), key=lambda r: int(r[0]))
    assert ranks == [
        [str(rank), f"n{1 + rank // 8}", str(rank), str(rank % 8), str(rank % 8)]
        for rank in range(32)
    ]


def test_one_task_a_node_sees_all_gpus_of_the_node(as_user: Callable[..., Outcome], work: Path):
    step = ["srun", "--nodes=4", "--ntasks-per-node=1", "--gres=gpu:8", "printenv"]
    outcome = as_user([*step, "CUDA_VISIBLE_DEVICES"], cwd=work)
    assert outcome.stdout.split() == ["0,1,2,3,4,5,6,7"] * 4


def test_array_runs_one_by_one_and_sacct_knows_its_gpus(
    as_user: Callable[..., Outcome], work: Path
):
    script = "#!/bin/sh\nset -e\ndate +%s.%N\nsrun true\ndate +%s.%N\n"
    words = ["sbatch", "--parsable", "--array=1-3%1", "--nodes=2", "--gres=gpu:8"]
    submitted = as_user([*words, "--output=%a.out"], stdin=script, cwd=work)
    job = submitted.stdout.strip()
    assert job.isdecimal(), submitted.stderr

    def finished() -> list[str]:
        fields = "--format=JobID,State,ExitCode,NNodes,AllocTRES"
        rows = as_user(["sacct", "-XPn", "-j", job, fields]).stdout.splitlines()
        return rows if all("COMPLETED" in row for row in rows) and len(rows) == 3 else []

    rows = sorted(until(finished, "accounting never had all three"))
    assert [row.split("|")[:4] for row in rows] == [
        [f"{job}_{number}", "COMPLETED", "0:0", "2"] for number in (1, 2, 3)
    ]
    assert all("gres/gpu=16" in row for row in rows)
    times = sorted(
        tuple(float(line) for line in path.read_text().split()) for path in work.glob("*.out")
    )
    assert len(times) == 3
    assert all(earlier[1] <= next_[0] for earlier, next_ in itertools.pairwise(times))


def test_nodes_are_hosts_of_their_own(as_user: Callable[..., Outcome], lab: Lab, work: Path):
    look = (
        "echo $(hostname) $(hostname -i) $(cat /tmp/own.* /dev/shm/own.* 2>/dev/null);"
        "hostname >/tmp/own.$(hostname); hostname >/dev/shm/own.$(hostname)"
    )
    words = ["srun", "--nodes=4", "--ntasks-per-node=1", "bash", "-c", look]
    as_user(words, cwd=work)
    again = as_user(words, cwd=work)
    # Each sees what it wrote the first time, and nothing of the others.
    expected = [[f"n{n}", lab.network.address(f"n{n}"), f"n{n}", f"n{n}"] for n in range(1, 5)]
    assert sorted(line.split() for line in again.stdout.splitlines()) == expected
    # Tests of this worker's lab look for what others leave on a node.
    as_user([*words[:-1], "rm /tmp/own.* /dev/shm/own.*"], cwd=work)


def test_nodes_reach_each_other_by_name_over_tcp(
    as_user: Callable[..., Outcome], lab: Lab, work: Path, job_python: str
):
    connect = """
import socket, sys
name, port = sys.argv[1], int(sys.argv[2])
if socket.gethostname() == name:
    with socket.create_server((socket.gethostbyname(name), port)) as server:
        server.settimeout(900)
        print("server saw", server.accept()[1][0])
else:
    import time
    for _ in range(6000):
        try:
            with socket.create_connection((name, port), timeout=1) as client:
                print("client is", client.getsockname()[0])
            break
        except OSError:
            time.sleep(0.05)
"""
    (work / "connect.py").write_text(connect)
    words = ["srun", "--nodes=2", "--nodelist=n1,n2", "--ntasks-per-node=1", job_python]
    outcome = as_user([*words, "connect.py", "n1", "23456"], cwd=work)
    other = lab.network.address("n2")
    assert sorted(outcome.stdout.splitlines()) == [f"client is {other}", f"server saw {other}"]


def test_a_job_can_ask_and_submit_from_its_node(as_user: Callable[..., Outcome], work: Path):
    inner = "squeue -h | wc -l; sacct -XPn | wc -l; sbatch --parsable --wait --wrap true"
    outcome = as_user(["srun", "--nodes=1", "bash", "-c", inner], cwd=work)
    assert outcome.ok, outcome.stderr
    queued, _accounted, job = outcome.stdout.split()
    assert int(queued) >= 1
    assert job.isdecimal()


def test_secrets_are_closed_to_ordinary_users(as_user: Callable[..., Outcome], lab: Lab):
    layout = lab.layout
    secrets = (layout.munge_key, layout.etc / "slurmdbd.conf", layout.database_socket)
    assert not any(as_user(["cat", str(secret)]).ok for secret in secrets)
    assert "Permission denied" in as_user(["ls", str(layout.database)]).stderr
    assert as_user(["cat", str(layout.site), str(layout.slurm_conf), str(layout.env_sh)]).ok


def test_a_shell_that_sources_env_sh_uses_the_lab(as_user: Callable[..., Outcome], lab: Lab):
    shell = as_user(
        ["env", "-i", "PATH=/usr/bin:/bin", "bash", "-c", f". {lab.layout.env_sh}; sinfo -h"]
    )
    assert "n[1-4]" in shell.stdout


def test_a_lab_without_one_of_its_daemons_says_so(lab: Lab):
    stop_daemon(lab, "munged")
    try:
        assert not status(lab.directory, run=run).healthy
    finally:
        start_daemon(lab, "munged", run=run)
    until(lambda: status(lab.directory, run=run).healthy, "the lab never recovered")
