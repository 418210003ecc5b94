"""The doctor's look at nodes from inside jobs: all faults are planted at once, then typed away."""

import shutil
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hpcbert.lab.daemons import run_checked, spawn
from hpcbert.system.runner import run
from tests.kit.cases import read_constant
from tests.kit.doctor import find_missed, set_key, typed
from tests.kit.lab import read_daemon
from tests.kit.logs import write_file
from tests.kit.scripts import tool


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
