"""The doctor's look at nodes from inside jobs: all faults are planted at once, then typed away."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hpcbert.lab.record import Lab
from tests.kit.cases import read_constant
from tests.kit.doctor import find_missed, select_faults, set_key, typed
from tests.kit.lab import User
from tests.kit.lab_faults import late, limited, mounted, read_only, replaced
from tests.kit.logs import write_file
from tests.kit.scripts import tool


@contextmanager
def spoil_nodes(lab: Lab, work: Path, user: User) -> Iterator[None]:
    """Two nodes have about all that a node can have; two are well."""
    hosts = lab.layout.hosts.read_text().replace(" n3", " other")
    scontrol = shutil.copy(str(shutil.which("scontrol")), work)
    clock = read_constant(__file__, "CLOCK").format(scontrol)
    with ExitStack() as stack:
        for fault in (
            replaced(lab, "n4", "/etc/hosts", hosts, work),
            read_only(lab, "n4", work),
            mounted(lab, "n3", "/tmp", "-t", "tmpfs", "-o", "ro", "none"),
            mounted(lab, "n4", "/tmp", "-t", "tmpfs", "-o", "noexec,mode=1777", "none"),
            mounted(lab, "n4", user.home, "-t", "tmpfs", "-o", "mode=0", "none"),
            mounted(lab, "n3", "/dev/shm", "-t", "tmpfs", "-o", "size=1m", "none"),
            limited(lab, "n3", "memlock", 65536),
            limited(lab, "n4", "nofile", 512),
            replaced(lab, "n3", "/usr/bin/scontrol", clock, work),
            late(lab, "n3", work, 4),
        ):
            stack.enter_context(fault)
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
    missed = find_missed(select_faults("nodes", "ranks"), bad_findings)
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
