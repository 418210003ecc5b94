"""One lab, seen by an ordinary user."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from docs.reference.write_examples import of_lab, read_examples
from hpcbert.lab.lifecycle import status
from hpcbert.system.runner import run
from tests.kit import cli
from tests.kit.lab import start_daemon, stop_daemon
from tests.kit.logs import write_file
from tests.kit.waiting import until
from tests.prepare.test_parts import PATCH, RECIPE, git, make_sources

pytestmark = pytest.mark.slurm


def test_status_shows_idle_nodes_and_each_daemon(lab):
    def show():
        return status(lab.directory, run=run)

    # Slurm may be clearing up after another test's job.
    until(lambda: {node.state for node in show().nodes} == {"idle"}, show)
    assert show().healthy
    nodes = ["n1", "n2", "n3", "n4"]
    assert [node.name for node in show().nodes] == nodes
    names = {daemon.name for daemon in show().daemons}
    assert names == {"munged", "mariadbd", "slurmdbd", "slurmctld", *nodes}
    result = cli.run("lab", "status", "--directory", lab.directory, "--json")
    page = read_examples()
    assert page["lab status"] == of_lab(result, lab.directory), "run: make pages"
    assert page["lab up"] == page["lab status"].replace('"lab status"', '"lab up"')
    stop_daemon(lab, "munged")
    try:
        assert not show().healthy
    finally:
        start_daemon(lab, "munged")
    until(lambda: show().healthy, "the lab never recovered")


def test_ranks_see_their_gpus_and_nodes_are_hosts_of_their_own(pmix, as_user, lab, work):
    def run_step(*words):
        outcome = as_user(["srun", "--nodes=4", *words], cwd=work)
        assert outcome.ok, outcome.stderr
        return sorted(line.split() for line in outcome.stdout.splitlines())

    task = "echo $SLURM_PROCID $(hostname) $PMIX_RANK $SLURM_LOCALID $CUDA_VISIBLE_DEVICES"
    words = ("--ntasks-per-node=8", "--gpus-per-task=1", "--mpi=pmix", "bash", "-c", task)
    assert sorted(run_step(*words), key=lambda rank: int(rank[0])) == [
        [str(rank), f"n{1 + rank // 8}", str(rank), str(rank % 8), str(rank % 8)]
        for rank in range(32)
    ]
    shown = run_step("--ntasks-per-node=1", "--gres=gpu:8", "printenv", "CUDA_VISIBLE_DEVICES")
    assert shown == [["0,1,2,3,4,5,6,7"]] * 4
    look = (
        "echo $(hostname) $(hostname -i) $(cat /tmp/own.* /dev/shm/own.* 2>/dev/null);"
        "hostname >/tmp/own.$(hostname); hostname >/dev/shm/own.$(hostname)"
    )
    run_step("--ntasks-per-node=1", "bash", "-c", look)
    # Each sees what it wrote the first time, and nothing of the others.
    expected = [[f"n{n}", lab.network.address(f"n{n}"), f"n{n}", f"n{n}"] for n in range(1, 5)]
    assert run_step("--ntasks-per-node=1", "bash", "-c", look) == expected
    # Tests of this worker's lab look for what others leave on a node.
    run_step("--ntasks-per-node=1", "bash", "-c", "rm /tmp/own.* /dev/shm/own.*")


def test_secrets_are_closed_and_settings_are_open_to_ordinary_users(as_user, lab):
    layout = lab.layout
    secrets = (layout.munge_key, layout.etc / "slurmdbd.conf", layout.database_socket)
    assert not any(as_user(["cat", str(secret)]).ok for secret in secrets)
    assert "Permission denied" in as_user(["ls", str(layout.database)]).stderr
    assert as_user(["cat", str(layout.site), str(layout.slurm_conf), str(layout.env_sh)]).ok
    shell = ["env", "-i", "PATH=/usr/bin:/bin", "bash", "-c", f". {layout.env_sh}; sinfo -h"]
    assert "n[1-4]" in as_user(shell).stdout


def test_what_prepare_makes_in_a_lab_is_what_a_submission_uses(hpcbert, lab, work):
    """As in the lab's shell: the site is that of HPCBERT_SITE, and nothing else is said of it."""
    # Templates of a framework whose program lies in a repository beside them, and its data.
    make_sources(work)
    upstream, image = work / "upstream", "docker://registry.example.org#bert/tiny:1.0"
    commit = git(upstream, "rev-parse", "HEAD")
    recipe = RECIPE.format(repository=upstream, commit=commit, image=image, build="")
    templates = write_file(work, "templates/tiny/recipe.toml", recipe).parent
    write_file(templates, "run.sh.j2", "exec -- python3 {{ source }}/train.py\n")
    write_file(templates, "fix.patch", PATCH)
    hpcbert = replace(hpcbert, env={"PYTHONPATH": hpcbert.env["PYTHONPATH"]})
    options = ("--fw", "tiny", "--templates", templates.parent, "--json")
    # Git 2.39 and 2.47 read no repository of another user, here root's; 2.55 does.
    first = hpcbert("prepare", *options, "--only=source")
    if first.returncode:
        assert first.returncode == 4
        assert "safe.directory" in first.error["message"]
        assert "Run the command that git names" in first.error["hint"]
    subprocess.run(["chown", "-R", f"--reference={work}", str(upstream)], check=True)
    (part,) = hpcbert("prepare", *options, "--only=source", status=0).data["parts"]
    assert part["status"] == ("done" if first.returncode else "ready")
    parts = hpcbert("prepare", *options, "--data", work / "data", status=0).data["parts"]
    states = {entry["kind"]: entry["status"] for entry in parts}
    assert (states["source"], states["image"]) == ("ready", "skipped")
    assert states["data"] in {"done", "ready"}
    source = Path(part["path"])
    assert source.is_relative_to(lab.layout.sources)
    assert (source / "bert" / "train.py").read_text() == 'print("right")\n'
    shape = ("--nodes", "1", "--gpus-per-node", "1", "--data", work / "data")
    (array,) = hpcbert("submit", *shape, "--dry-run", *options, status=0).data["arrays"]
    assert str(source) in array["script_text"]
