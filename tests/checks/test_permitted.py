"""Whether accounting lets a job start: account, QOS, and limits that it alone exceeds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpcbert.scheduler.base import World
from hpcbert.scheduler.slurm.alone import Hopeless
from hpcbert.scheduler.slurm.cluster import Cluster
from hpcbert.scheduler.slurm.permitted import of_rights
from hpcbert.scheduler.slurm.wanted import Wanted
from hpcbert.slurm import rights
from hpcbert.slurm.partitions import resources
from hpcbert.timelimit import TimeLimit
from tests.kit.cluster import Answers, partition

ENFORCED = (
    "ClusterName = c\nSLURM_VERSION = {}\nAccountingStorageEnforce = associations,limits,qos\n"
)
# Account, User, ParentName, Partition, QOS, DefaultQOS, MaxWall, GrpTRES, MaxTRES.
OWN = "proj|me|||high,normal|normal|||\nshort|me|||normal|normal|00:10:00||node=1\n"
ACCOUNTS = "root||||normal||||\nproj||root||normal|||gres/gpu=12|\nshort||root||normal||||\n"
USER = "{}|proj\n"


def job(partition: str = "gpu", nodes: int = 1, minutes: int = 5, **own: Any) -> Wanted:
    return Wanted(partition, nodes, TimeLimit(minutes * 60), resources("gpu:8"), tasks=8, **own)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    monkeypatch.setattr("hpcbert.system.ownership.name", lambda _: "me")
    parts = partition() + partition("closed", accounts="other,short", default="NO")
    parts += partition("fast", qos="high", default="NO") + partition("big", own_qos="cap")
    parts += partition("wide", default="NO")
    sinfo = "".join(
        f"{name}|up|2|infinite|1-infinite|gpu:8|n[1-2]\n"
        for name in ("gpu*", "closed", "fast", "big", "wide")
    )
    return Answers(
        sinfo=sinfo, partitions=parts, config=ENFORCED.format("22.05.8"), own=OWN,
        accounts=ACCOUNTS, user=USER.format("me"),
        qos="normal|||||||\nhigh|||gres/gpu=32||||\ncap|||gres/gpu=4||||\n",
    )  # fmt: skip


def found(one: Wanted, answers: Answers) -> list[tuple[str, str, str]]:
    cluster = Cluster(World(answers))
    return [(each.name, each.detail, each.hint) for each in of_rights([one], cluster)]


@pytest.mark.parametrize(
    "one",
    [
        job(),
        job(""),
        job("gpu", nodes=2, qos="high"),
        job("closed", account="short"),
        job("closed,gpu"),
        job("fast", qos="high"),
        job("big,gpu"),
        job("nowhere"),
    ],
    ids=str,
)
def test_what_may_start_is_let_through(one: Wanted, answers: Answers) -> None:
    assert found(one, answers) == []


@pytest.mark.parametrize(
    ("one", "name", "detail", "hint"),
    [
        (job(account="none"), "account", "not in account none", "Your accounts are proj, short"),
        (job("closed"), "account", "proj may not use partition closed (AllowAccounts=other,short)",
         "Of your accounts, short may"),
        (job(qos="gold"), "QOS", "You may not use QOS gold.", "high, normal"),
        (job("fast"), "QOS", "QOS normal may not use partition fast", "Of your QOS, high may"),
        (job(nodes=2), "limits", "account proj may have 12 at a time (GrpTRES): it would never", "--gpus-per-node"),
        (job("big"), "limits", "8 GPUs, and QOS cap may have 4 at a time (GrpTRES)", "--qos"),
        (job(nodes=2, account="short"), "limits", "2 nodes, and account short may have 1 in one job",
         "--nodes"),
        (job(minutes=11, account="short"), "time limit", "account short allows a job at most 00:10:00", "--time 00:10:00"),
    ],
    ids=lambda value: None if isinstance(value, Wanted) else value[:20],
)  # fmt: skip
def test_what_would_wait_for_ever_is_named(
    one: Wanted, name: str, detail: str, hint: str, answers: Answers
) -> None:
    ((kind, said, advised),) = found(one, answers)
    assert kind == name
    assert detail in said
    assert hint in advised


def limited(key: str, value: str, *, of_user: bool = False) -> str:
    """Return what sacctmgr prints of an account, or of a user in it, with one limit."""
    columns = rights.associations_argv("")[-1].removeprefix("format=").split(",")
    values = {"Account": "proj", "QOS": "high,normal", "DefaultQOS": "normal", key: value}
    values |= {"User": "me"} if of_user else {"ParentName": "root"}
    return "|".join(values.get(one, "") for one in columns) + "\n"


def qos_limited(key: str, value: str) -> str:
    columns = rights.qos_argv()[-1].removeprefix("format=").split(",")
    values = {"Name": "normal", key: value}
    return "|".join(values.get(one, "") for one in columns) + "\nhigh|||||||\n"


WHOLE = job(nodes=2, minutes=100, exclusive=True, memory="0")
SIZES = "".join(f"n{one}|wide|{cpus}|256000\n" for one, cpus in ((1, 64), (2, 32), (3, 64)))


@pytest.mark.parametrize(
    ("limit", "said", "remedy"),
    [
        ("account GrpTRESRunMins gres/gpu=800",
         "it asks for GPUs for 01:40:00, 1600 minutes of them, and account proj may have 800 at a time (GrpTRESRunMins)",
         "--time 00:50:00"),
        ("account GrpTRESRunMins cpu=960", "CPUs for 01:40:00, 9600 minutes", "--time 00:10:00"),
        ("account GrpTRESRunMins node=199", "199 at a time", "--time 01:39:00"),
        ("account GrpTRES cpu=95", "96 CPUs, and account proj may have 95 at a time", "--nodes 1"),
        ("account GrpTRES mem=500G", "", ""),
        ("account GrpTRES mem=499G", "512000 MiB of memory", "--nodes 1"),
        ("account GrpJobs 0", "account proj may have 0 jobs at a time (GrpJobs)", "--account short"),
        ("account GrpTRESMins gres/gpu=100", "", ""),
        ("account GrpWall 00:10:00", "", ""),
        ("user GrpTRESRunMins gres/gpu=800", "your part of account proj may have 800", "--time 00:50:00"),
        ("user MaxTRESMins gres/gpu=100", "100 in one job (MaxTRESMins)", "--time 00:06:00"),
        ("user MaxTRESPerNode gres/gpu=4", "8 GPUs of each node, and account proj may have 4 on a node", "--gpus-per-node 4"),
        ("user MaxTRES gres/gpu=8", "8 in one job", "--nodes 1"),
        ("user MaxJobs 0", "account proj may have 0 jobs", "--account short"),
        ("qos GrpTRESRunMins gres/gpu=800", "QOS normal may have 800", "--time 00:50:00"),
        ("qos MaxTRESMins gres/gpu=1", "QOS normal may have 1 in one job", "--qos high"),
        ("qos MaxTRESPerNode gres/gpu=4", "QOS normal may have 4 on a node", "--gpus-per-node 4"),
        ("qos MaxTRESPA node=1", "QOS normal may have 1 at a time", "--nodes 1"),
        ("qos GrpJobs 0", "QOS normal may have 0 jobs", "--qos high"),
        ("qos MaxJobsPU 0", "QOS normal may have 0 jobs", "--qos high"),
        ("qos MaxJobsPA 0", "QOS normal may have 0 jobs", "--qos high"),
    ],
)  # fmt: skip
def test_every_limit_that_one_job_alone_exceeds(
    limit: str, said: str, remedy: str, answers: Answers
) -> None:
    whose, key, value = limit.split()
    answers.sizes, answers.qos = SIZES, "normal|||||||\nhigh|||||||\n"
    answers.accounts = limited(key, value) if whose == "account" else limited("Comment", "")
    own = limited(key if whose == "user" else "Comment", value, of_user=True)
    answers.own = f"{own}short|me|||normal|normal|||\n"
    if whose == "qos":
        answers.qos = qos_limited(key, value)
    one = replace(WHOLE, partition="wide")
    bad = list(of_rights([one], Cluster(World(answers))))
    assert [(one.name, one.remedy) for one in bad] == ([("limits", remedy)] if said else [])
    assert not said or said in bad[0].detail


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("GrpTRESMins", "gres/gpu=100", "100 in all (GrpTRESMins)"),
        ("GrpWall", "00:10:00", "it asks for 100 minutes, and account proj may have 10 in all"),
    ],
)
def test_what_is_left_of_a_budget_binds_where_it_is_safe(
    key: str, value: str, said: str, answers: Answers
) -> None:
    answers.accounts = limited(key, value)
    answers.config = answers.config.replace("limits", "limits,safe")
    (found,) = of_rights([replace(WHOLE, partition="wide")], Cluster(World(answers)))
    assert said in found.detail


def test_a_demanded_account_is_named(answers: Answers) -> None:
    answers.user = "me|\n"
    ((kind, said, advised),) = found(job(), answers)
    assert (kind, said) == ("account", "Jobs here must name an account.")
    assert "proj, short" in advised


def test_an_account_stands_for_those_below_it_since_23_02(answers: Answers) -> None:
    answers.partitions = partition("gpu", accounts="root")
    assert found(job(), answers)
    answers.config = ENFORCED.format("24.11.5")
    assert found(job(), answers) == []


@pytest.mark.parametrize("silent", ["own", "config"])
def test_what_is_not_enforced_or_not_told_is_passed_over(silent: str, answers: Answers) -> None:
    answers.complaints = {silent: "Access/permission denied\n"}
    assert found(job("closed", nodes=2, account="none", qos="gold"), answers) == []


SHOWN = (
    "JobId=7 ArrayJobId=7 ArrayTaskId=1-5%1 JobName=x\n   UserId=me(1) GroupId=g(1)\n"
    "   Priority=1 Nice=0 Account=proj QOS=normal\n   Partition=gpu AllocNode:Sid=h:1\n"
    "   {}=cpu=2,mem=62.50G,node=2,billing=2,gres/gpu={}\n"
)


@pytest.mark.parametrize(
    ("reason", "key", "gpus", "why"),
    [
        ("AssocGrpGRES", "TRES", 16, "16 GPUs, and account proj may have 12 at a time"),
        ("AssocGrpGRES", "ReqTRES", 16, "16 GPUs"),
        ("AssocGrpGRES", "TRES", 12, ""),
        ("QOSMaxGRESPerUser", "TRES", 16, "16 GPUs"),
        ("Priority", "TRES", 16, ""),
        ("AssocGrpGRESMinutes", "TRES", 12, ""),
        ("AssocGrpSubmitJobsLimit", "TRES", 16, ""),
    ],
)
def test_a_job_that_waits_for_what_it_alone_exceeds(
    reason: str, key: str, gpus: int, why: str, answers: Answers
) -> None:
    answers.job = SHOWN.format(key, gpus)
    teller = Hopeless(World(answers))
    said = teller.why("7", "", reason)
    assert (why in said) if why else (said == "")
    asked = len(answers.calls)
    assert teller.why("7", "", reason) == said
    assert len(answers.calls) == asked


@pytest.mark.parametrize(
    ("reason", "key", "value", "why"),
    [
        ("AssocGrpGRESRunMinutes", "GrpTRESRunMins", "gres/gpu=100", "16 GPUs"),
        ("AssocGrpCPURunMinutesLimit", "GrpTRESRunMins", "cpu=10", "CPUs for 00:10:00, 20 minutes"),
        ("AssocMaxGRESPerNode", "MaxTRESPerNode", "gres/gpu=4", "8 GPUs of each node"),
        ("AssocMaxJobsLimit", "MaxJobs", "0", "0 jobs at a time"),
        ("AssocMaxJobsLimit", "MaxJobs", "1", ""),
    ],
)
def test_a_job_that_waits_for_any_limit_that_it_alone_exceeds(
    reason: str, key: str, value: str, why: str, answers: Answers
) -> None:
    group = key.startswith("Grp")
    answers.accounts = limited(key if group else "Comment", value)
    answers.own = limited("Comment" if group else key, value, of_user=True)
    answers.job = SHOWN.format("TRES", 16).replace("Priority=1", "TimeLimit=00:10:00 Priority=1")
    said = Hopeless(World(answers)).why("7", "", reason)
    assert (why.replace("16 GPUs", "GPUs for 00:10:00, 160 minutes") in said) if why else not said
