"""Whether accounting ever lets a job start: account, QOS, and the limits that `alone` checks.

sbatch accepts such jobs, and Slurm keeps them waiting forever (seen with 22.05.8). What a cluster
does not enforce, or does not show to users, is skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcbert.finding import Finding
from hpcbert.scheduler.slurm import alone
from hpcbert.system import ownership

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hpcbert.scheduler.slurm.cluster import Cluster
    from hpcbert.scheduler.slurm.wanted import Wanted
    from hpcbert.slurm.rules import Rules

_ACCOUNT, _QOS = "site.toml: slurm.account", "site.toml: slurm.qos"


def of_rights(jobs: Iterable[Wanted], cluster: Cluster) -> Iterator[Finding]:
    """Yield the accounts, QOS and limits that prevent jobs from starting."""
    enforced = cluster.settings.enforced
    if "associations" not in enforced or not (cluster.rights.known and cluster.rights.own):
        return
    for job in dict.fromkeys(jobs):
        names = partitions_of(job, cluster)
        wrong = tuple(_account(job, cluster, names))
        yield from wrong
        if wrong:
            continue
        yield from _qos(job, cluster, names) if "qos" in enforced else ()
        yield from _limits(job, cluster, names) if "limits" in enforced else ()


def closed(rule: Rules, reservation: str = "") -> str:
    """Return whom a partition is for if this user is none of them; empty if it is for all.

    Args:
        rule: The partition's rules.
        reservation: The reservation of the job; empty for none.
    """
    if rule.for_root and not ownership.member(()):
        return "it is for root only"
    if rule.reserved and not reservation:
        return "it is for reservations only"
    if rule.groups and not ownership.member(rule.groups):
        return f"it is for the groups {', '.join(rule.groups)} only"
    return ""


def _limits(job: Wanted, cluster: Cluster, partitions: Sequence[str]) -> Iterator[Finding]:
    """Yield what a job alone exceeds, with a change that would let it start."""

    def may(other: Wanted) -> bool:
        wrong = (*_account(other, cluster, partitions), *_qos(other, cluster, partitions))
        return not wrong and not any(alone.exceeded(other, cluster, partitions))

    yield from alone.of_limits(job, cluster, partitions, may=may)


def partitions_of(job: Wanted, cluster: Cluster) -> tuple[str, ...]:
    """Return the existing partitions that a job may run in."""
    there = cluster.partitions
    named = [one.strip() for one in job.partition.split(",") if one.strip()]
    named = named or [name for name, one in there.items() if one.default]
    return tuple(one for one in named if one in there)


def _account(job: Wanted, cluster: Cluster, partitions: Sequence[str]) -> Iterator[Finding]:
    rights = cluster.rights
    known = sorted({one.account for one in rights.own})
    name = (job.account or rights.default).lower()
    hint = f"Your accounts are {', '.join(known)}: name one with --account, or in the site.toml."
    if name not in known:
        what = f"You are not in account {name}." if name else "Jobs here must name an account."
        remedy = f"--account {_first(known, rights.default)}" if known else ""
        yield Finding("account", "fail", what, hint, _ACCOUNT, remedy=remedy)
        return
    rules = [cluster.rules[one] for one in partitions if one in cluster.rules]
    # Since 23.02 an account also stands for all below it (src/slurmctld/partition_mgr.c).
    inherits = cluster.settings.version >= "23.02"
    above = [name, *(one.account for one in rights.above(name) if inherits)]
    if rules and not any(_takes(one, above) for one in rules):
        others = [one for one in known if any(rule.takes_account(one) for rule in rules)]
        may = f"Of your accounts, {', '.join(others)} may: give --account." if others else ""
        yield Finding(
            "account",
            "fail",
            f"Account {name} may not use partition {', '.join(partitions)}{_allowed(rules[0])}.",
            may or "Name another partition with --partition, or ask the administrators.",
            _ACCOUNT,
            remedy=f"--account {others[0]}" if others else "",
        )


def _first(known: Sequence[str], default: str) -> str:
    """Return the default account if it is among some, else the first of them."""
    return default if default in known else known[0]


def _takes(rule: Rules, accounts: Sequence[str]) -> bool:
    """Return whether a partition accepts an account, by any of the names that stand for it."""
    if any(one in rule.denied_accounts for one in accounts):
        return False
    return not rule.accounts or any(one in rule.accounts for one in accounts)


def _allowed(rule: Rules) -> str:
    return f" (AllowAccounts={','.join(rule.accounts)})" if rule.accounts else ""


def _qos(job: Wanted, cluster: Cluster, partitions: Sequence[str]) -> Iterator[Finding]:
    rights = cluster.rights
    found = [rights.of(job.account, one) for one in partitions or ("",)]
    usable = sorted({name for one in found if one for name in one.qos})
    name = job.qos or next((rights.qos_of(job.account, one) for one in partitions), "")
    if job.qos and usable and job.qos not in usable:
        hint = f"You may use {', '.join(usable)}: name one with --qos, or in the site.toml."
        what = f"You may not use QOS {job.qos}."
        yield Finding("QOS", "fail", what, hint, _QOS, remedy=f"--qos {usable[0]}")
        return
    rules = [cluster.rules[one] for one in partitions if one in cluster.rules]
    if name and rules and not any(one.takes_qos(name) for one in rules):
        others = [one for one in usable if any(rule.takes_qos(one) for rule in rules)]
        may = f"Of your QOS, {', '.join(others)} may: give --qos." if others else ""
        yield Finding(
            "QOS",
            "fail",
            f"QOS {name} may not use partition {', '.join(partitions)}.",
            may or "Name another partition with --partition, or ask the administrators.",
            _QOS,
            remedy=f"--qos {others[0]}" if others else "",
        )
