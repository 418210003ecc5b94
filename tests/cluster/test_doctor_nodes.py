"""The doctor's look at nodes from inside jobs: all faults are planted at once, then typed away."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hpcbert.lab.record import Lab
from tests.kit.cases import read_constant
from tests.kit.cli import Cli
from tests.kit.doctor import find_missed, select_faults, set_key, typed
from tests.kit.lab import Checkout, User
from tests.kit.lab_faults import late, limited, mounted, read_only, replaced

CLOCK = """#!/bin/bash
if [[ $* == "show config" ]]; then echo Configuration data as of 1000000000
else exec {} "$@"; fi
"""
FRAMEWORKS = read_constant(__file__, "FRAMEWORKS")
# The interpreter of the environment that `prepare` would make: it has what was installed there.
PYTHON = """#!/bin/sh
PYTHONPATH={place}/modules exec '{python}' "$@"
"""


def prepared(place: Path, text: str) -> str:
    """Do what `hpcbert prepare` would, and return the site.toml's text after that."""
    (place / "data").mkdir()
    (place / "modules").mkdir()
    for name in ("tensorflow", "oneflow"):
        (place / "modules" / f"{name}.py").touch()
    return set_key(text, "frameworks.oneflow", "python", f'"{place}/python"')


@contextmanager
def bad_nodes(lab: Lab, work: Path, user: User) -> Iterator[None]:
    """Two nodes have about all that a node can have; two are well."""
    hosts = lab.layout.hosts.read_text().replace(" n3", " other")
    scontrol = shutil.copy(str(shutil.which("scontrol")), work)
    with ExitStack() as stack:
        plant = stack.enter_context
        plant(replaced(lab, "n4", "/etc/hosts", hosts, work))
        plant(read_only(lab, "n4", work))
        plant(mounted(lab, "n3", "/tmp", "-t", "tmpfs", "-o", "ro", "none"))
        plant(mounted(lab, "n4", "/tmp", "-t", "tmpfs", "-o", "noexec,mode=1777", "none"))
        plant(mounted(lab, "n4", user.home, "-t", "tmpfs", "-o", "mode=0", "none"))
        plant(mounted(lab, "n3", "/dev/shm", "-t", "tmpfs", "-o", "size=1m", "none"))
        plant(limited(lab, "n3", "memlock", 65536))
        plant(limited(lab, "n4", "nofile", 512))
        plant(replaced(lab, "n3", "/usr/bin/scontrol", CLOCK.format(scontrol), work))
        plant(late(lab, "n3", work, 4))
        yield


@pytest.mark.usefixtures("pmix")
def test_every_fault_of_nodes_is_found_and_what_is_typed_helps(
    hpcbert: Cli, work: Path, lab: Lab, checkout: Checkout, user: User
) -> None:
    """Some faults hide others: each round types what the one before said, until all is well."""
    place, line = work / "place", ["--nodes", "4", "--gpus-per-node", "2"]
    line += ["--fw", "ngc-tf1", "--fw", "oneflow"]
    place.mkdir()
    shutil.chown(place, user.name)
    python = place / "python"
    python.write_text(PYTHON.format(place=place, python=checkout.python))
    python.chmod(0o755)
    text = lab.layout.site.read_text() + FRAMEWORKS.format(place=place)
    chosen = {"mpi": '"none"', "srun_args": '["--gpus-per-task=1"]', "gres": '""'}
    for key, value in chosen.items():
        text = set_key(text, "slurm", key, value)
    text = set_key(text, "nodes", "interface", '"ib7"')
    rounds: list[list[dict[str, Any]]] = []
    with bad_nodes(lab, work, user):
        while not rounds or (
            any(finding["status"] != "ok" for finding in rounds[-1]) and len(rounds) < 7
        ):
            (work / "site.toml").write_text(text)
            result = hpcbert("doctor", "--site", work, *line, "--wait", "120", "--json")
            rounds.append(result.data)
            if len(rounds) == 1:
                text = prepared(place, text)
            bad = [finding for finding in result.data if finding["status"] != "ok"]
            text, line = typed(text, line, bad, home=user.home)
    bad = [finding for findings in rounds for finding in findings if finding["status"] != "ok"]
    missed = find_missed(select_faults("nodes", "ranks"), bad)
    assert not missed, "\n".join(map(str, (*missed, *bad, len(rounds), line)))
    last = {finding["code"]: finding for finding in rounds[-1]}
    texts = [str(finding) for finding in last.values() if finding["status"] != "ok"]
    assert not texts, "\n".join((*texts, *line, text))
    for check in ("runs", "delay", "names", "interface", "python", "framework", "files", "home"):
        assert last[check]["nodes"] == ["n1", "n2"], check
    for check in ("tmp", "shm", "memlock", "clock", "programs", "ranks", "GPUs", "MPI"):
        assert last[check]["nodes"] == ["n1", "n2"] or not last[check]["nodes"], check
    assert (last["hello"]["nodes"], last["port"]["nodes"]) == (["n1", "n2"], ["n1"])
    # Where the first round was, the late node may have brought a file back that was gone.
    assert not list((user.home / "runs").glob(".doctor-*"))
