"""Clusters that are not like the lab: types of GPUs, accounts, limits, private data, no PMIx."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcbert.config.site import read_site
from hpcbert.lab.lifecycle import down, up
from hpcbert.lab.record import Lab, LabPlan
from hpcbert.system.runner import run
from tests.kit.cases import read_constant
from tests.kit.cli import Cli
from tests.kit.doctor import find_missed, select_faults, set_key, typed
from tests.kit.lab import Checkout, User, runner_of
from tests.kit.lab_faults import start_daemon, stop_daemon
from tests.kit.waiting import until

SETTINGS = (
    "AccountingStorageEnforce=associations,limits,qos",
    "PartitionName=cpu Nodes=n3 Default=YES MaxTime=INFINITE",
    "PartitionName=old Nodes=n2 MaxTime=20",
    "PartitionName=ours Nodes=n1 AllowAccounts=other",
    "PartitionName=short Nodes=n1,n4 MaxTime=20",
    "MaxArraySize=4",
)


@pytest.fixture(scope="module")
def cluster(slurm_packages: None, checkout: Checkout, user: User) -> Iterator[Lab]:
    """Four nodes: two types of GPUs and none; accounts and limits bind; no PMIx."""
    directory = Path(tempfile.mkdtemp(prefix="hpcbert-other-", dir="/var/tmp"))
    directory.chmod(0o755)
    plan = LabPlan(
        directory=directory / "lab",
        nodes=4,
        gpus_per_node=4,
        gpu_types=("2080ti", "1g.10gb", "none", "2080ti"),
        slurmd_timeout=10,
        settings=SETTINGS,
        lacks=("mpi_pmix",),
    )
    notes: list[str] = []
    try:
        lab = up(plan, run=run, report=notes.append)
        for words in (
            ("add", "account", "proj"),
            ("add", "account", "other"),
            ("add", "user", user.name, "account=proj"),
        ):
            outcome = run(["sacctmgr", "-i", *words], env=lab.daemon_environment)
            assert outcome.ok, outcome
        yield lab
    finally:
        removal = down(plan.directory, run=run, report=notes.append)
        assert not removal.remains, removal.remains
        shutil.rmtree(directory)


@pytest.fixture
def directory(cluster: Lab, user: User) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="work-", dir=cluster.layout.runs))
    shutil.chown(path, user.uid, user.gid)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def hpcbert(cluster: Lab, user: User, checkout: Checkout, directory: Path) -> Cli:
    """hpcbert as an ordinary user of that cluster."""
    env = {"HPCBERT_SITE": str(directory / "site.toml"), "PYTHONPATH": str(checkout.path)}
    return Cli(directory, env, runner_of(user, cluster), checkout.python)


def configured(cluster: Lab, key: str, value: str) -> None:
    """Change a key of slurm.conf while the cluster runs; some are read at a restart alone."""
    path = cluster.layout.slurm_conf
    path.write_text(f"{path.read_text()}{key}={value}\n")
    assert run(["scontrol", "reconfigure"], env=cluster.daemon_environment).ok

    def is_set() -> bool:
        shown = run(["scontrol", "show", "config"], env=cluster.daemon_environment).stdout
        return any(
            line.split("=")[0].strip() == key and value in line for line in shown.splitlines()
        )

    until(is_set, lambda: f"{key} is not {value}")


@pytest.mark.site(
    "GPUs of several types",
    "slices of GPUs (MIG)",
    "default partition without GPUs",
    "an account for every job",
    "MaxTime under an hour",
    "PMI-2 and no PMIx",
)
def test_a_first_site_on_an_unusual_cluster(hpcbert: Cli, directory: Path) -> None:
    result = hpcbert("init", "--json", status=0)
    site = read_site(directory / "site.toml", base=directory, env={})
    assert (site.slurm.partition, site.slurm.gres, site.nodes.gpus_per_node) == (
        *("gpu", "gpu:2080ti"),
        4,
    )
    assert (site.slurm.account, site.slurm.mpi, site.slurm.memory) == ("proj", "pmi2", "0")
    texts = {
        choice["key"]: f"{choice['why']} {choice['others']}" for choice in result.data["choices"]
    }
    assert "the default, cpu, has no GPUs" in texts["slurm.partition"]
    ours = "ours (1 node with gpu:2080ti:4; it is for the accounts other only)"
    assert ours in texts["slurm.partition"]
    assert "slices of GPUs (MIG)" in texts["slurm.gres"]
    rehearsal = ("submit", "--nodes", "1", "--rehearse", "--json")
    shown = hpcbert(*rehearsal, "--gpus-per-node", "4", "--dry-run")
    assert shown.returncode == 0, shown
    hpcbert("init", "--force", "--partition", "old", status=0)
    short = read_site(directory / "site.toml", base=directory, env={})
    assert str(short.slurm.time_limit) == "00:20:00"
    lacks = hpcbert(*rehearsal, "--gpus-per-node", "2", "--fw", "mindspore")
    assert "pmi2" in str(lacks.document), lacks


def waiting(hpcbert: Cli, campaign: str, word: str) -> dict[str, Any]:
    """Return a repeat's state once Slurm has said why it waits, or how it ended."""
    state: dict[str, Any] = {}

    def is_reported() -> bool:
        result = hpcbert("monitor", campaign, "--once", "--json")
        state.update(result.events[0])
        return word in f"{state['reason']} {state['detail']}"

    until(is_reported, lambda: str(state), pause=0.2)
    return state


POINT = ("submit", "--nodes", "1", "--gpus-per-node", "4", "--repeats", "1", "--rehearse", "--json")


@pytest.mark.site("GrpTRES of an account", "a partition for some accounts")
@pytest.mark.parametrize(
    ("limit", "reason", "advice"),
    [
        ("GrpTRES=gres/gpu", "AssocGrpGRES", "if none of them runs, cancel it"),
        ("MaxTRESPerJob=gres/gpu", "AssocMaxGRESPerJob", "it can never start: cancel it"),
    ],
)
def test_what_never_starts_is_refused_and_told(
    hpcbert: Cli, cluster: Lab, directory: Path, *, limit: str, reason: str, advice: str
) -> None:
    hpcbert("init", status=0)
    other = hpcbert(*POINT, "--partition", "ours", status=2)
    assert "Account proj may not use partition ours" in other.error["message"]
    modify = ["sacctmgr", "-i", "modify", "account", "proj", "set"]
    try:
        assert run([*modify, f"{limit}=3"], env=cluster.daemon_environment).ok
        result = hpcbert(*POINT, status=0)
        state = waiting(hpcbert, result.data["campaign"], reason)
        assert "GPUs" in state["detail"]
        assert advice in state["advice"]
        assert "--gpus-per-node" in state["advice"]
        hpcbert("cancel", result.data["campaign"], "--yes")
    finally:
        run([*modify, f"{limit}=-1"], env=cluster.daemon_environment)


@pytest.mark.site("a directory that nodes lack")
def test_a_job_whose_directory_its_node_lacks_is_told_in_words(
    hpcbert: Cli, directory: Path
) -> None:
    hpcbert("init", status=0)
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        Path(place).chmod(0o777)
        result = hpcbert(*POINT, "--runs", f"{place}/runs", "--force", status=0)
        state = waiting(hpcbert, result.data["directory"], "is missing")
        # Slurm 24.11 and 26.05 make a directory for the output and start the job.
        before, after = "could not open the job's output", "ran nothing"
        assert (before in state["detail"]) != (after in state["detail"])
        assert "n1" in state["detail"]
        assert state["exit_code"] is None
        assert "all nodes mount" in state["advice"]


@pytest.mark.site("PrivateData")
def test_private_nodes_are_told_from_no_partitions(
    hpcbert: Cli, cluster: Lab, directory: Path
) -> None:
    before = cluster.layout.slurm_conf.read_text()
    try:
        configured(cluster, "PrivateData", "nodes")
        result = hpcbert("init", "--json", "--partition", "old", status=0)
        assert any("PrivateData" in warning for warning in result.document["warnings"])
        site = read_site(directory / "site.toml", base=directory, env={})
        assert (site.slurm.gres, site.nodes.gpus_per_node) == ("gpu", 4)
        configured(cluster, "PrivateData", "nodes,partitions")
        refused = hpcbert("init", "--json", "--force", status=2)
        assert "Only you can say" in refused.error["message"]
        diagnosis = hpcbert("doctor", "--json")
        assert not any("no partition" in finding["detail"] for finding in diagnosis.data)
    finally:
        cluster.layout.slurm_conf.write_text(before)
        configured(cluster, "PrivateData", "none")


def nodes_are(cluster: Lab, word: str, *names: str) -> None:
    """Wait until nodes are in a state."""
    words = ["sinfo", "-h", "-N", "-n", ",".join(names), "-o", "%T"]

    def states() -> set[str]:
        return set(run(words, env=cluster.daemon_environment).stdout.split())

    until(lambda: states() == {word}, lambda: str(states()), pause=0.3)


def test_a_doctor_finds_each_daemon_that_is_down(
    hpcbert: Cli, cluster: Lab, directory: Path
) -> None:
    everyone = cluster.plan.node_names
    plain = {"mpi": '""', "gres": '""'}
    text = cluster.layout.site.read_text()
    for key, value in plain.items():
        text = set_key(text, "slurm", key, value)
    (directory / "site.toml").write_text(text)
    findings: list[dict[str, Any]] = []
    try:
        stop_daemon(cluster, "n3")
        for name in ("slurmdbd", "munged", "slurmctld"):
            stop_daemon(cluster, name)
            findings += hpcbert("doctor", "--json").data
            start_daemon(cluster, name, run=run)
        nodes_are(cluster, "down*", "n3")
        findings += hpcbert("doctor", "--partition", "cpu", "--json").data
    finally:
        start_daemon(cluster, "n3", run=run)
        nodes_are(cluster, "idle", *everyone)
    missed = find_missed(select_faults("daemons"), findings)
    assert not missed, "\n".join(
        str(finding) for finding in (*missed, *findings) if "'ok'" not in str(finding)
    )


CHOSEN = read_constant(__file__, "CHOSEN")


def test_what_a_doctor_says_of_choices_helps_when_it_is_typed(
    hpcbert: Cli, cluster: Lab, directory: Path
) -> None:
    """Some choices hide others: each round types what the one before said, until all is well."""
    text, line = cluster.layout.site.read_text(), ["--nodes", "2", "--gpus-per-node", "4"]
    for key, value in CHOSEN.items():
        text = set_key(text, "slurm", key, value)
    node = ["scontrol", "update", "NodeName=n4"]
    rounds: list[list[dict[str, Any]]] = []
    try:
        assert run([*node, "State=DRAIN", "Reason=x"], env=cluster.daemon_environment).ok
        before = ("", [""])
        while (text, line) != before:
            (directory / "site.toml").write_text(text)
            rounds.append(hpcbert("doctor", *line, "--wait", "120", "--json").data)
            bad = [finding for finding in rounds[-1] if finding["status"] != "ok"]
            before, (text, line) = (text, line), typed(text, line, bad)
    finally:
        run([*node, "State=RESUME"], env=cluster.daemon_environment)
    bad = [finding for findings in rounds for finding in findings if finding["status"] != "ok"]
    missed = find_missed(select_faults("choices"), bad)
    assert not missed, "\n".join(map(str, (*missed, *bad, line)))
    # Debian's Open MPI speaks PMIx alone, which this cluster lacks.
    assert {finding["code"] for finding in rounds[-1] if finding["status"] != "ok"} <= {
        "arrays",
        "MPI",
        "job",
    }
    ran = {finding["code"]: finding["nodes"] for finding in rounds[-1]}
    assert (ran["hello"], ran["GPUs"]) == (["n1"], ["n1"])
