"""Whether accounting lets a job start: account, QOS and time."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.slurm.admission import Demand, find_missing_rights
from hpcbert.scheduler.slurm.cluster import Cluster
from hpcbert.slurm import accounting
from hpcbert.slurm.inventory import parse_resources
from hpcbert.timelimit import TimeLimit
from tests.kit.cases import cases
from tests.kit.cluster import Answers, partition

ENFORCED = (
    "ClusterName = c\nSLURM_VERSION = {}\nAccountingStorageEnforce = associations,limits,qos\n"
)
# Account, User, ParentName, Partition, QOS, DefaultQOS, MaxWall, GrpTRESRunMins, GrpWall.
OWN = "proj|me|||high,normal|normal|||\nshort|me|||normal|normal|00:10:00||node=1\n"
ACCOUNTS = "root||||normal||||\nproj||root||normal||||\nshort||root||normal||||\n"
USER = "{}|proj\n"


def job(partition: str = "gpu", nodes: int = 1, minutes: int = 5, **options: Any) -> Demand:
    return Demand(
        partition, nodes, TimeLimit(minutes * 60), parse_resources("gpu:8"), tasks=8, **options
    )


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    monkeypatch.setattr("hpcbert.system.ownership.user_name", lambda _: "me")
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
        qos="normal||||\nhigh||||\ncap||||\n",
    )  # fmt: skip


def list_missing_rights(demand: Demand, answers: Answers) -> list[tuple[str, str, str]]:
    cluster = Cluster(SchedulerContext(answers))
    return [
        (missing_right.name, missing_right.detail, missing_right.hint)
        for missing_right in find_missing_rights([demand], cluster)
    ]


@pytest.mark.parametrize(
    "demand",
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
    ids=[
        "any-account",
        "default-partition",
        "qos",
        "account",
        "one-of-two-partitions",
        "partition-with-qos",
        "partition-of-capped-qos",
        "unknown-partition",
    ],
)
def test_what_may_start_is_let_through(demand: Demand, answers: Answers) -> None:
    assert list_missing_rights(demand, answers) == []


@pytest.mark.parametrize(
    ("demand", "name", "detail", "hint"),
    [
        (job(account="none"), "account", "not in account none", "Your accounts are proj, short"),
        (job("closed"), "account", "proj may not use partition closed (AllowAccounts=other,short)",
         "Of your accounts, short may"),
        (job(qos="gold"), "QOS", "You may not use QOS gold.", "high, normal"),
        (job("fast"), "QOS", "QOS normal may not use partition fast", "Of your QOS, high may"),
        (job(minutes=11, account="short"), "time limit", "account short allows a job at most 00:10:00", "--time 00:10:00"),
    ],
    ids=lambda value: None if isinstance(value, Demand) else value[:20],
)  # fmt: skip
def test_what_would_wait_for_ever_is_named(
    demand: Demand, name: str, detail: str, hint: str, answers: Answers
) -> None:
    ((kind, message, advised),) = list_missing_rights(demand, answers)
    assert kind == name
    assert detail in message
    assert hint in advised


@cases
def test_time_that_accounting_does_not_allow_is_named(
    columns: str, detail: str, remedy: str, answers: Answers
) -> None:
    answers.accounts = account_row(columns)
    bad = list(find_missing_rights([job("wide", 2, 100)], Cluster(SchedulerContext(answers))))
    assert [(finding.name, finding.remedy) for finding in bad] == (
        [("limits", remedy)] if detail else []
    )
    assert not bad or detail in bad[0].detail


def test_a_budget_of_time_binds_where_it_is_safe(answers: Answers) -> None:
    answers.accounts = account_row("GrpWall 00:10:00")
    answers.config = answers.config.replace("limits", "limits,safe")
    (bad,) = find_missing_rights([job("wide", 2, 100)], Cluster(SchedulerContext(answers)))
    assert "account proj (GrpWall) allows a job at most 00:10:00" in bad.detail


def test_a_qos_replaces_the_limit_of_an_account(answers: Answers) -> None:
    answers.accounts = account_row("GrpTRESRunMins gres/gpu=80")
    names = accounting.qos_argv()[-1].removeprefix("format=").split(",")
    values = {"Name": "normal", "GrpTRESRunMins": "gres/gpu=800"}
    answers.qos = "|".join(values.get(name, "") for name in names)
    (bad,) = find_missing_rights([job("wide", 2, 100)], Cluster(SchedulerContext(answers)))
    assert "QOS normal (GrpTRESRunMins) allows a job at most 00:50:00" in bad.detail


def account_row(limit: str) -> str:
    """Return what sacctmgr prints of account proj with one limit, `COLUMN VALUE`."""
    column, _, value = limit.partition(" ")
    names = accounting.associations_argv("")[-1].removeprefix("format=").split(",")
    values = {"Account": "proj", "ParentName": "root", "QOS": "normal", column: value}
    return "|".join(values.get(name, "") for name in names) + "\n"


def test_a_demanded_account_is_named(answers: Answers) -> None:
    answers.user = "me|\n"
    ((kind, message, advised),) = list_missing_rights(job(), answers)
    assert (kind, message) == ("account", "Jobs here must name an account.")
    assert "proj, short" in advised


def test_an_account_stands_for_those_below_it_since_23_02(answers: Answers) -> None:
    answers.partitions = partition("gpu", accounts="root")
    assert list_missing_rights(job(), answers)
    answers.config = ENFORCED.format("24.11.5")
    assert list_missing_rights(job(), answers) == []


@pytest.mark.parametrize("silent", ["own", "config"])
def test_what_is_not_enforced_or_not_told_is_passed_over(silent: str, answers: Answers) -> None:
    answers.complaints = {silent: "Access/permission denied\n"}
    assert list_missing_rights(job("closed", nodes=2, account="none", qos="gold"), answers) == []
