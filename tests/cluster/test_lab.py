"""One lab, seen by an ordinary user, by the doctor when its nodes are spoilt, and by `accept`."""

import json
import shutil
import subprocess
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from docs.reference.write_examples import of_lab, read_examples
from hpcbert.lab.daemons import run_checked, spawn
from hpcbert.lab.lifecycle import status
from hpcbert.system.runner import run
from tests.kit import cli
from tests.kit.cases import read_constant
from tests.kit.doctor import find_missed, set_key, typed
from tests.kit.lab import read_daemon, start_daemon, stop_daemon
from tests.kit.logs import START, WORDS, log, write_file
from tests.kit.scripts import tool
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


@contextmanager
def spoil_nodes(lab, work, user):
    """Two nodes have about all that a node can have; two are well."""
    order, undo = partial(run_checked, run, env=lab.daemon_environment), ExitStack()

    def on(node, *argv):
        spaces = ("--net", "--mount", "--uts", "--ipc", "--pid")
        return ["nsenter", f"--target={lab.host(node).pid}", *spaces, *map(str, argv)]

    def mount(node, path, *options):
        order(on(node, "mount", *options, path))
        undo.callback(order, on(node, "umount", "--lazy", path))

    def replace(node, path, text):
        mount(node, path, "--bind", tool(work, f"{node}-{Path(path).name}", text))

    def limit(node, kind, most):
        words = ["prlimit", f"--pid={read_daemon(lab, node).pid}"]
        usual = order([*words, f"--{kind}", "--output=SOFT", "--noheadings"]).strip()
        order([*words, f"--{kind}={most}:"])
        undo.callback(order, [*words, f"--{kind}={usual}:"])

    with undo:
        replace("n4", "/etc/hosts", lab.layout.hosts.read_text().replace(" n3", " other"))
        mount("n4", work, "--bind", work)
        order(on("n4", "mount", "-o", "remount,bind,ro", work))
        mount("n3", "/tmp", "-t", "tmpfs", "-o", "ro", "none")
        mount("n4", "/tmp", "-t", "tmpfs", "-o", "noexec,mode=1777", "none")
        mount("n4", user.home, "-t", "tmpfs", "-o", "mode=0", "none")
        mount("n3", "/dev/shm", "-t", "tmpfs", "-o", "size=1m", "none")
        limit("n3", "memlock", 65536)
        limit("n4", "nofile", 512)
        scontrol = shutil.copy(str(shutil.which("scontrol")), work)
        replace("n3", "/usr/bin/scontrol", read_constant(__file__, "CLOCK").format(scontrol))
        # Between n3 and the others, files are 4 s late, as on NFS with caches: the node has its own
        # copy of the directory, which itself is in the node's /dev/shm.
        paths = (work, "/dev/shm/hpcbert-original")
        order(on("n3", "bash", "-c", read_constant(__file__, "COPY"), "copy", *paths))
        undo.callback(order, on("n3", "umount", "--lazy", *paths))
        keep = ["bash", "-c", read_constant(__file__, "KEEP"), "keep", *map(str, paths), "4"]
        env = lab.daemon_environment
        spawn(run, keep, log=lab.layout.log("late-n3"), env=env, enter=on("n3"))
        yield


@pytest.mark.usefixtures("pmix")
def test_every_fault_of_nodes_is_found_and_what_is_typed_helps(hpcbert, work, lab, checkout, user):
    """Some faults hide others: each round types what the one before said, until all is well."""
    place, line = work / "place", ["--nodes", "4", "--gpus-per-node", "2"]
    line += ["--fw", "ngc-tf1", "--fw", "oneflow"]
    # The interpreter of the environment that `prepare` would make: it has what was installed there.
    text = f"#!/bin/sh\nPYTHONPATH={place}/modules exec '{checkout.python}' \"$@\"\n"
    python = tool(place, "python", text)
    shutil.chown(place, user.name)
    site = lab.layout.site.read_text() + read_constant(__file__, "FRAMEWORKS").format(place=place)
    for key, value in (("mpi", "none"), ("gres", "")):
        site = set_key(site, "slurm", key, f'"{value}"')
    site = set_key(site, "slurm", "srun_args", '["--gpus-per-task=1"]')
    site = set_key(site, "nodes", "interface", '"ib7"')
    findings: list[dict[str, Any]] = []
    bad, bad_findings = findings, findings
    with spoil_nodes(lab, work, user):
        for number in range(7):
            (work / "site.toml").write_text(site)
            findings = hpcbert("doctor", "--site", work, *line, "--wait", "120", "--json").data
            bad = [finding for finding in findings if finding["status"] != "ok"]
            bad_findings = [*bad_findings, *bad]
            if not bad:
                break
            if not number:
                # What `hpcbert prepare` does.
                (place / "data").mkdir()
                for name in ("tensorflow", "oneflow"):
                    write_file(place, f"modules/{name}.py", "")
                site = set_key(site, "frameworks.oneflow", "python", f'"{python}"')
            site, line = typed(site, line, bad, home=user.home)
    missed = find_missed(bad_findings, "nodes", "ranks")
    assert not missed, "\n".join(map(str, (*missed, *bad_findings, line)))
    assert not bad, "\n".join((*map(str, bad), *line, site))
    nodes = {finding["code"]: finding["nodes"] for finding in findings}
    for check in ("runs", "delay", "names", "interface", "python", "framework", "files", "home"):
        assert nodes[check] == ["n1", "n2"], check
    for check in ("tmp", "shm", "memlock", "clock", "programs", "ranks", "GPUs", "MPI"):
        assert nodes[check] in (["n1", "n2"], []), check
    assert (nodes["hello"], nodes["port"]) == (["n1", "n2"], ["n1"])
    # Where the first round was, the late node may have brought a file back that was gone.
    assert not list((user.home / "runs").glob(".doctor-*"))


def test_a_loaded_node_and_another_driver_are_named_on_the_lab(hpcbert, lab):
    def read_states(result):
        return {entry["node"]: entry["state"] for entry in result.data["nodes"]}

    # It prints a log at 10.4 samples/s, up to 1 % faster; 10 % slower on the node that `load` names.
    load, base = hpcbert.cwd / "load", hpcbert.cwd / "base.json"
    text = read_constant(__file__, "PROGRAM")
    text = text.format(load=f"'{load}'", start=START, log=log("1n1g", 10.0, batch=2))
    program = ("--python", tool(hpcbert.cwd, "program", text))
    # Each node has a GPU; n3 has another driver.
    tool(hpcbert.cwd / "bin", "nvidia-smi", read_constant(__file__, "NVIDIA_SMI"))
    hpcbert(*WORDS, "--device", "gpu", *program, "--wait", "--json", status=0)
    hpcbert("collect", "--output", base, status=0)
    path = f"{hpcbert.cwd}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    accept = ("accept", base, "--each-node", *program, "--json")
    clean = hpcbert(*accept, PATH=path, status=0)
    assert read_states(clean) == dict.fromkeys(("n1", "n2", "n3", "n4"), "like")
    (odd,) = clean.data["differences"]
    assert (odd["node"], odd["fact"], odd["value"]) == ("n3", "GPU driver", "550.54")
    load.write_text("n2\n")
    loaded = hpcbert(*accept, "--junit", "accept.xml", PATH=path, status=7)
    assert read_states(loaded) == {"n1": "like", "n2": "slower", "n3": "like", "n4": "like"}
    # `store.list_submission` looks for ids of one time.
    assert len({Path(result).name.partition("-")[0] for result in loaded.data["results"]}) == 1
    # The jobs are there still: what an interrupted command left is judged later.
    name = json.loads((Path(loaded.data["results"][0]) / "manifest.json").read_text())["name"]
    assert f"--each-node {name}" in loaded.stderr
    again = hpcbert("accept", base, "--each-node", name, "--json", "--tolerance", "50%")
    assert read_states(again) == read_states(loaded)
    history = hpcbert("nodes", "n[2-3]", "--json", status=0).data
    assert {entry["node"] for entry in history} == {"n2", "n3"}
    ratios = [entry["ratio"] for entry in history if entry["node"] == "n2"]
    # The first campaign may have run on another node.
    assert ratios[0] is None
    assert 0.85 < ratios[-1] < 0.95
    drain = ["scontrol", "update", "nodename=n4", "reason=test"]
    assert run([*drain, "state=drain"], env=lab.daemon_environment).ok
    try:
        drained = hpcbert(*accept, "--nodelist", "n1,n4", PATH=path, status=4)
    finally:
        assert run([*drain, "state=resume"], env=lab.daemon_environment).ok
    assert read_states(drained) == {"n1": "unknown"}
    assert "n4 was not measured" in drained.document["errors"][-1]["message"]
