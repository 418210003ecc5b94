"""The doctor's look at nodes from inside a job: faults are planted on the lab's, many at once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpcbert.lab import Lab
from hpcbert.system.runner import run
from tests.kit import planting
from tests.kit.cli import Cli, Done
from tests.kit.lab import Checkout
from tests.kit.typing_remedies import set_key, typed


@dataclass
class Examined:
    """What a doctor said."""

    done: Done
    found: list[dict[str, Any]]
    text: str

    def of(self, check: str) -> dict[str, dict[str, Any]]:
        """Return the findings of one check, by the nodes that they name."""
        named = [one for one in self.found if one["name"].startswith(f"{check} (") and one["nodes"]]
        return {",".join(one["nodes"]): one for one in named}

    def bad(self) -> set[str]:
        return {f"{one['name']}: {one['detail']}" for one in self.found if one["status"] != "ok"}


@pytest.fixture
def doctor(hpcbert: Cli, work: Path, lab: Lab, checkout: Checkout) -> Callable[..., Examined]:
    """Runs the doctor at the lab's site, with changed lines and further ones."""

    def run(*words: str, text: str = "", more: str = "", **lines: str) -> Examined:
        text = text or f"{lab.layout.site.read_text()}\n{more}"
        for key, value in lines.items():
            text = set_key(text, "nodes" if key == "interface" else "slurm", key, value)
        (work / "site.toml").write_text(text)
        waits = ("--wait", "120") if "--nodes" in words else ()
        done = hpcbert("doctor", "--site", work, *words, *waits, "--json")
        return Examined(done, done.data or [], text)

    return run


ON_PYTORCH = '[frameworks.pytorch]\npython = "{python}"\n'


def test_a_job_says_what_its_nodes_see(
    doctor: Callable[..., Examined], work: Path, checkout: Checkout
) -> None:
    more = ON_PYTORCH.format(python=checkout.python)
    words = ("--nodes", "2", "--gpus-per-node", "1", "--fw", "pytorch")
    seen = doctor(*words, more=more, interface='"eth0"')
    assert (seen.done.returncode, seen.bad()) == (0, set())
    for check in ("runs", "delay", "names", "interface", "python", "framework", "tmp", "memlock"):
        assert list(seen.of(check)) == ["n1,n2"], check
    for check in ("ranks", "GPUs", "MPI", "clock", "shm", "programs", "home"):
        assert list(seen.of(check)) == ["n1,n2"], check
    assert list(seen.of("hello")) == ["n2"]
    assert list(seen.of("port")) == ["n1"]
    assert not list((work / "with a space/runs").glob(".doctor-*"))


def test_every_fault_of_a_node_is_found_beside_the_others(
    doctor: Callable[..., Examined], work: Path, lab: Lab, checkout: Checkout
) -> None:
    hosts = lab.layout.hosts.read_text().replace(" n3", " other")
    own = shutil.copy(str(shutil.which("scontrol")), work)
    clock = f"""#!/bin/bash
if [[ $* == "show config" ]]; then echo Configuration data as of 1000000000
else exec {own} "$@"; fi
"""
    more = (
        ON_PYTORCH.format(python="/no/such/python")
        + f'[frameworks.oneflow]\npython = "{checkout.python}"\ndata = "/no/data"\n'
        f'source = "{work}"\n'
    )
    with ExitStack() as stack:
        plant = stack.enter_context
        plant(planting.replaced(lab, "n2", "/etc/hosts", hosts, work))
        plant(planting.read_only(lab, "n4", work))
        plant(planting.mounted(lab, "n2", "/tmp", "-t", "tmpfs", "-o", "ro", "none"))
        plant(planting.mounted(lab, "n3", "/dev/shm", "-t", "tmpfs", "-o", "size=1m", "none"))
        plant(planting.limited(lab, "n3", "memlock", 65536))
        plant(planting.limited(lab, "n4", "nofile", 512))
        plant(planting.late(lab, "n3", work, 8))
        plant(planting.replaced(lab, "n2", "/usr/bin/scontrol", clock, work / "with a space"))
        words = ("--nodes", "4", "--gpus-per-node", "1", "--fw", "pytorch", "--fw", "oneflow")
        seen = doctor(*words, more=more)
    assert seen.done.returncode == 5
    runs, names, delay = seen.of("runs"), seen.of("names"), seen.of("delay")
    assert runs["n4"]["status"] == "fail"
    assert "can't be written to" in runs["n4"]["detail"]
    assert runs["n1,n2,n3"]["status"] == "ok"
    assert names["n2"]["remedy"] == 'site.toml: nodes.interface = "eth0"'
    assert (names["n2"]["status"], names["n2"]["detail"]) == (
        "fail",
        "n3 is not known; there are: eth0",
    )
    assert "late" in delay["n3"]["detail"]
    assert (seen.of("tmp")["n2"]["status"], seen.of("shm")["n3"]["status"]) == ("fail", "warn")
    assert "64 KiB" in seen.of("memlock")["n3"]["detail"]
    assert "512" in seen.of("files-open")["n4"]["detail"]
    assert "ahead of the controller's" in seen.of("clock")["n2"]["detail"]
    assert "there is no /no/data" in seen.of("files")["n1,n2,n3,n4"]["detail"]
    bad = seen.bad()
    everywhere = "(n[1-4])"
    assert f"python {everywhere}: there is no program /no/such/python" in bad
    assert any(one.startswith(f"framework {everywhere}") and "oneflow" in one for one in bad)


def test_ranks_that_do_not_meet_are_found_with_what_keeps_them_apart(
    doctor: Callable[..., Examined], lab: Lab, checkout: Checkout
) -> None:
    """Each of these hides what comes after it."""
    words = ("--nodes", "2", "--gpus-per-node", "2", "--fw", "ngc-tf1")
    more = f'[frameworks.ngc-tf1]\npython = "{checkout.python}"\n'
    alone = doctor(*words, more=more, mpi='"none"', srun_args='["--gpus-per-task=1"]')
    assert "a rank" in alone.of("MPI")["n1,n2"]["detail"]  # ends, or counts itself alone
    assert alone.of("MPI")["n1,n2"]["remedy"] == 'site.toml: slurm.mpi = "pmix"'
    assert "sees 1 GPU" in alone.of("GPUs")["n1,n2"]["detail"]
    assert "tensorflow" in alone.of("framework")["n1,n2"]["detail"]
    with ExitStack() as stack:
        for number, node in enumerate(lab.plan.node_names, start=1):
            stack.enter_context(planting.interface(lab, node, "apart0", f"10.77.{number}.1/32"))
        apart = doctor(*words, more=more, interface='"apart0"', gres='""')
    assert "does not reach rank 0" in apart.of("hello")["n2"]["detail"]
    assert "a rank sees 0 GPUs" in apart.of("GPUs")["n1,n2"]["detail"]
    lacking = doctor(*words, more=more, interface='"ib7"', gres='""')
    found = lacking.of("interface")["n1,n2"]
    assert (found["detail"], found["remedy"]) == (
        "there is no ib7; there are: eth0",
        'site.toml: nodes.interface = "eth0"',
    )
    assert lacking.of("ranks")["n1,n2"]["status"] == "fail"
    said = [one for one in (*alone.found, *lacking.found) if one["status"] != "ok"]
    kept = [one for one in said if not one["remedy"].startswith("hpcbert")]
    text, line = typed(lacking.text, words, kept)
    again = doctor(
        *line, text=set_key(set_key(text, "slurm", "srun_args", "[]"), "slurm", "gres", '"gpu"')
    )
    assert [one.partition(" ")[0] for one in again.bad()] == ["framework"]


def test_what_the_doctor_says_of_slurm_helps_when_it_is_typed(
    doctor: Callable[..., Examined], lab: Lab
) -> None:
    """Five choices that can't be had at once, and a node that is drained."""
    control = ["scontrol", "create", "PartitionName=brief", "Nodes=ALL", "MaxTime=5", "State=UP"]
    assert run([*control], env=lab.daemon_environment).ok
    assert run(
        ["scontrol", "update", "NodeName=n4", "State=DRAIN", "Reason=test"],
        env=lab.daemon_environment,
    ).ok
    try:
        chosen = {"partition": '"brief"', "reservation": '"nix"', "constraint": '"nix"'}
        more = {"gres": '"gpu:2080ti"', "mpi": '"nix"'}
        words = ("--nodes", "4", "--gpus-per-node", "2")
        found = doctor(*words, **chosen, **more)
        assert found.done.returncode == 5
        names = {one["name"] for one in found.found if one["status"] == "fail"}
        assert names == {
            *("GPUs", "MPI", "constraint", "reservation", "time limit", "nodes of the partition"),
            *("sbatch --test-only", "job"),
        }
        text, line = typed(found.text, words, found.found)
        again = doctor(*line, text=text)
        assert (again.done.returncode, again.bad()) == (0, set()), (line, text)
        assert "--nodes 3" in " ".join(line)
    finally:
        assert run(
            ["scontrol", "update", "NodeName=n4", "State=RESUME"], env=lab.daemon_environment
        ).ok
        assert run(["scontrol", "delete", "PartitionName=brief"], env=lab.daemon_environment).ok
