"""Whether accounting lets a job start: account, QOS, and limits that it alone exceeds."""

from __future__ import annotations

import pytest

from hpcbert.scheduler.base import World
from hpcbert.scheduler.slurm.cluster import Cluster
from hpcbert.scheduler.slurm.permitted import Hopeless, of_rights
from hpcbert.scheduler.slurm.wanted import Wanted
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


def job(partition: str = "gpu", nodes: int = 1, minutes: int = 5, **who: str) -> Wanted:
    return Wanted(partition, nodes, TimeLimit(minutes * 60), resources("gpu:8"), **who)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    monkeypatch.setattr("hpcbert.system.ownership.name", lambda _: "me")
    parts = partition() + partition("closed", accounts="other,short", default="NO")
    parts += partition("fast", qos="high", default="NO") + partition("big", own_qos="cap")
    sinfo = "".join(
        f"{name}|up|2|infinite|1-infinite|gpu:8|n[1-2]\n"
        for name in ("gpu*", "closed", "fast", "big")
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
        (job(account="none"), "account", "not in account none", "You are in proj, short"),
        (job("closed"), "account", "proj may not use partition closed (AllowAccounts=other,short)",
         "Of yours short may"),
        (job(qos="gold"), "QOS", "You may not use QOS gold.", "high, normal"),
        (job("fast"), "QOS", "QOS normal may not use partition fast", "Of yours high may"),
        (job(nodes=2), "limits", "account proj may have 12 at a time (GrpTRES): it would never", "--gpus-per-node"),
        (job("big"), "limits", "8 GPUs, and QOS cap may have 4 at a time (GrpTRES)", "--qos"),
        (job(nodes=2, account="short"), "limits", "2 nodes, and account short may have 1 in one job",
         "--nodes"),
        (job(minutes=11, account="short"), "time limit", "account short gives a job at most 00:10:00", "--time 00:10:00"),
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
        ("AssocGrpGRESMinutes", "TRES", 16, ""),
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
