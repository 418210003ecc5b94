"""Clusters that are not like the lab: types of GPUs, accounts, limits, private data, no PMIx."""

import re
import shutil
import tempfile
from pathlib import Path

import pytest

from hpcbert.config.site import read_site
from hpcbert.lab.daemons import run_checked
from hpcbert.lab.record import LabPlan
from hpcbert.system.runner import run
from tests.kit.cases import read_constant
from tests.kit.doctor import find_missed, set_key, typed
from tests.kit.lab import runner_of, start_daemon, started, stop_daemon
from tests.kit.waiting import until

POINT = ("submit", "--nodes", "1", "--gpus-per-node", "4", "--repeats", "1", "--rehearse", "--json")


def must(cluster, *words):
    """Run a command as an administrator; return what it prints."""
    return run_checked(run, words, env=cluster.daemon_environment)


@pytest.fixture(scope="module")
def cluster(slurm_packages, open_directory, checkout, user):
    """Four nodes: two types of GPUs and none; accounts and limits bind; no PMIx."""
    plan = LabPlan(
        directory=open_directory / "other-cluster", nodes=4, gpus_per_node=4,
        gpu_types=("2080ti", "1g.10gb", "none", "2080ti"), lacks=("mpi_pmix",),
        settings=read_constant(__file__, "SETTINGS"),
    )  # fmt: skip
    with started(plan) as lab:
        for words in ("account proj", "account other", f"user {user.name} account=proj"):
            must(lab, "sacctmgr", "-i", "add", *words.split())
        yield lab


@pytest.fixture
def hpcbert(cluster, user, checkout):
    """hpcbert of an ordinary user of that cluster, in a directory without a site."""
    path = Path(tempfile.mkdtemp(prefix="work-", dir=cluster.layout.runs))
    shutil.chown(path, user.uid, user.gid)
    yield checkout.cli(path, runner_of(user, cluster), HPCBERT_SITE=str(path / "site.toml"))
    shutil.rmtree(path)


@pytest.mark.site("GPUs of several types", "slices of GPUs (MIG)")
@pytest.mark.site("default partition without GPUs", "an account for every job")
@pytest.mark.site("MaxTime under an hour", "PMI-2 and no PMIx")
def test_a_first_site_on_an_unusual_cluster(hpcbert):
    path = hpcbert.cwd / "site.toml"
    result = hpcbert("init", "--json", status=0)
    site = read_site(path, base=hpcbert.cwd, env={})
    slurm = site.slurm
    assert (slurm.partition, slurm.gres, site.nodes.gpus_per_node) == ("gpu", "gpu:2080ti", 4)
    assert (slurm.account, slurm.mpi, slurm.memory) == ("proj", "pmi2", "0")
    choices = {choice["key"]: choice for choice in result.data["choices"]}
    texts = {key: f"{choice['why']} {choice['others']}" for key, choice in choices.items()}
    assert "the default is cpu (no GPUs" in texts["slurm.partition"]
    ours = "ours (1 node with gpu:2080ti:4, it is for the accounts other only)"
    assert ours in texts["slurm.partition"]
    assert "slices of GPUs (MIG)" in texts["slurm.gres"]
    hpcbert(*POINT, "--dry-run", status=0)
    hpcbert("init", "--force", "--partition", "old", status=0)
    short = read_site(path, base=hpcbert.cwd, env={})
    assert str(short.slurm.time_limit) == "00:20:00"
    lacks = hpcbert(*POINT, "--gpus-per-node", "2", "--fw", "mindspore")
    assert "pmi2" in str(lacks.document), lacks


def wait_for_state(hpcbert, campaign, text):
    """Return a repeat's state once Slurm has said why it waits, or how it ended."""

    def read_state():
        state, *_ = hpcbert("monitor", campaign, "--once", "--json").events
        return state if text in f"{state['reason']} {state['detail']}" else None

    return until(read_state, lambda: hpcbert("monitor", campaign, "--once").stdout, pause=0.2)


@pytest.mark.site("GrpTRES of an account", "a partition for some accounts")
def test_what_never_starts_is_refused_and_told(hpcbert, cluster):
    hpcbert("init", status=0)
    other = hpcbert(*POINT, "--partition", "ours", status=2)
    assert "Account proj may not use partition ours" in other.error["message"]
    modify = ("sacctmgr", "-i", "modify", "account", "proj", "set")
    for limit, reason, advice in (
        ("GrpTRES=gres/gpu", "AssocGrpGRES", "if none of them runs, cancel it"),
        ("MaxTRESPerJob=gres/gpu", "AssocMaxGRESPerJob", "it can never start: cancel it"),
    ):
        try:
            must(cluster, *modify, f"{limit}=3")
            campaign = hpcbert(*POINT, status=0).data["campaign"]
            state = wait_for_state(hpcbert, campaign, reason)
            assert "GPUs" in state["detail"]
            assert advice in state["advice"]
            assert "--gpus-per-node" in state["advice"]
            hpcbert("cancel", campaign, "--yes")
        finally:
            must(cluster, *modify, f"{limit}=-1")


@pytest.mark.site("a directory that nodes lack")
def test_a_job_whose_directory_its_node_lacks_is_told_in_words(hpcbert):
    hpcbert("init", status=0)
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        Path(place).chmod(0o777)
        result = hpcbert(*POINT, "--runs", f"{place}/runs", "--force", status=0)
        state = wait_for_state(hpcbert, result.data["directory"], "is missing")
    # Slurm 24.11 and 26.05 make a directory for the output and start the job.
    before, after = "could not open the job's output", "ran nothing"
    assert (before in state["detail"]) != (after in state["detail"])
    assert "n1" in state["detail"]
    assert state["exit_code"] is None
    assert "all nodes mount" in state["advice"]


@pytest.mark.site("PrivateData")
def test_private_nodes_are_told_from_no_partitions(hpcbert, cluster):
    path, before = cluster.layout.slurm_conf, cluster.layout.slurm_conf.read_text()

    def configure(value):
        """Change a key of slurm.conf while the cluster runs; some are read at a restart alone."""
        path.write_text(f"{before}PrivateData={value}\n")
        must(cluster, "scontrol", "reconfigure")
        pattern = re.compile(rf"^PrivateData +=.*{value}", re.MULTILINE)
        show = ("scontrol", "show", "config")
        until(lambda: pattern.search(must(cluster, *show)), f"PrivateData is not {value}")

    try:
        configure("nodes")
        result = hpcbert("init", "--json", "--partition", "old", status=0)
        assert any("PrivateData" in warning for warning in result.document["warnings"])
        site = read_site(hpcbert.cwd / "site.toml", base=hpcbert.cwd, env={})
        assert (site.slurm.gres, site.nodes.gpus_per_node) == ("gpu", 4)
        configure("nodes,partitions")
        refused = hpcbert("init", "--json", "--force", status=2)
        assert "Only you can say" in refused.error["message"]
        diagnosis = hpcbert("doctor", "--json")
        assert not any("no partition" in finding["detail"] for finding in diagnosis.data)
    finally:
        configure("none")


def test_a_doctor_finds_each_daemon_that_is_down(hpcbert, cluster):
    def wait_for_nodes(word, *names):
        words = ("sinfo", "-h", "-N", "-n", ",".join(names), "-o", "%T")
        until(lambda: {*must(cluster, *words).split()} == {word}, f"{names} {word}", pause=0.3)

    text = cluster.layout.site.read_text()
    for key in ("mpi", "gres"):
        text = set_key(text, "slurm", key, '""')
    (hpcbert.cwd / "site.toml").write_text(text)
    findings = []
    try:
        stop_daemon(cluster, "n3")
        for name in ("slurmdbd", "munged", "slurmctld"):
            stop_daemon(cluster, name)
            findings += hpcbert("doctor", "--json").data
            start_daemon(cluster, name)
        wait_for_nodes("down*", "n3")
        findings += hpcbert("doctor", "--partition", "cpu", "--json").data
    finally:
        start_daemon(cluster, "n3")
        wait_for_nodes("idle", *cluster.plan.node_names)
    missed = find_missed(findings, "daemons")
    bad = [finding for finding in findings if finding["status"] != "ok"]
    assert not missed, "\n".join(map(str, (*missed, *bad)))


def test_what_a_doctor_says_of_choices_helps_when_it_is_typed(hpcbert, cluster):
    """Some choices hide others: each round types what the one before said, until all is well."""
    text, line = cluster.layout.site.read_text(), ["--nodes", "2", "--gpus-per-node", "4"]
    for key, value in read_constant(__file__, "CHOSEN").items():
        text = set_key(text, "slurm", key, value)
    findings: list[dict[str, object]] = []
    before, bad, bad_findings = ("", [""]), findings, findings
    try:
        must(cluster, "scontrol", "update", "NodeName=n4", "State=DRAIN", "Reason=x")
        while (text, line) != before:
            (hpcbert.cwd / "site.toml").write_text(text)
            findings = hpcbert("doctor", *line, "--wait", "120", "--json").data
            bad = [finding for finding in findings if finding["status"] != "ok"]
            bad_findings = [*bad_findings, *bad]
            before, (text, line) = (text, line), typed(text, line, bad)
    finally:
        must(cluster, "scontrol", "update", "NodeName=n4", "State=RESUME")
    missed = find_missed(bad_findings, "choices")
    assert not missed, "\n".join(map(str, (*missed, *bad_findings, line)))
    # Debian's Open MPI speaks PMIx alone, which this cluster lacks.
    assert {finding["code"] for finding in bad} <= {"arrays", "MPI", "job"}
    nodes = {finding["code"]: finding["nodes"] for finding in findings}
    assert (nodes["hello"], nodes["GPUs"]) == (["n1"], ["n1"])
