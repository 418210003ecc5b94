"""Whether accounting lets a job start, ever: account, QOS, and limits that it alone exceeds.

sbatch takes such jobs, and Slurm keeps them waiting without an end (seen with 22.05.8). What a
cluster does not enforce, or does not show to users, is passed over.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpcbert.finding import Finding
from hpcbert.scheduler.slurm import control
from hpcbert.scheduler.slurm.cluster import Cluster
from hpcbert.scheduler.slurm.questions import query
from hpcbert.slurm.rights import tres

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hpcbert.scheduler.base import World
    from hpcbert.scheduler.slurm.wanted import Wanted
    from hpcbert.slurm.rights import Cap, Rights
    from hpcbert.slurm.rules import Rules

_NAMES = {"node": "nodes", "cpu": "CPUs", "mem": "MiB of memory", "gres/gpu": "GPUs"}
# Limits on what jobs have at a time, which others' ends make room below, or never do.
_AT_A_TIME = re.compile(
    r"(?:Assoc|QOS)Grp(?!\w*(?:Minutes|Wall|Job|Submit))\w+|\w*Max\w+Per(?:User|Account)\w*"
)
_ACCOUNT, _QOS = "site.toml: slurm.account", "site.toml: slurm.qos"


def of_rights(jobs: Iterable[Wanted], cluster: Cluster) -> Iterator[Finding]:
    """Yield what of accounts, QOS and their limits stands in the way of jobs."""
    enforced = cluster.settings.enforced
    if "associations" not in enforced or not (cluster.rights.known and cluster.rights.own):
        return
    for job in dict.fromkeys(jobs):
        names = _partitions(job, cluster)
        wrong = tuple(_account(job, cluster, names))
        yield from wrong
        if wrong:
            continue
        yield from _qos(job, cluster, names) if "qos" in enforced else ()
        yield from _limits(job, cluster, names) if "limits" in enforced else ()


def _partitions(job: Wanted, cluster: Cluster) -> tuple[str, ...]:
    """Return the partitions that a job may run in, as far as there are such."""
    there = cluster.partitions
    named = [one.strip() for one in job.partition.split(",") if one.strip()]
    named = named or [name for name, one in there.items() if one.default]
    return tuple(one for one in named if one in there)


def _account(job: Wanted, cluster: Cluster, partitions: Sequence[str]) -> Iterator[Finding]:
    rights = cluster.rights
    known = sorted({one.account for one in rights.own})
    name = (job.account or rights.default).lower()
    hint = f"You are in {', '.join(known)}: name one with --account, or in the site.toml."
    if name not in known:
        what = f"You are not in account {name}." if name else "Jobs here must name an account."
        remedy = f"--account {_first(known, rights.default)}" if known else ""
        yield Finding("account", "fail", what, hint, _ACCOUNT, remedy=remedy)
        return
    rules = [cluster.rules[one] for one in partitions if one in cluster.rules]
    # Since 23.02 an account stands for all below it (src/slurmctld/partition_mgr.c).
    inherits = cluster.settings.version >= "23.02"
    above = [name, *(one.account for one in rights.above(name) if inherits)]
    if rules and not any(_takes(one, above) for one in rules):
        others = [one for one in known if any(rule.takes_account(one) for rule in rules)]
        may = f"Of yours {', '.join(others)} may: give --account." if others else ""
        yield Finding(
            "account",
            "fail",
            f"Account {name} may not use partition {', '.join(partitions)}{_allowed(rules[0])}.",
            may or "Name another partition with --partition, or ask the administrators.",
            _ACCOUNT,
            remedy=f"--account {others[0]}" if others else "",
        )


def _first(known: Sequence[str], default: str) -> str:
    """Return the default account where it is among some, else the first of them."""
    return default if default in known else known[0]


def _takes(rule: Rules, accounts: Sequence[str]) -> bool:
    """Say whether a partition takes an account, by any of the names that stand for it."""
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
        may = f"Of yours {', '.join(others)} may: give --qos." if others else ""
        yield Finding(
            "QOS",
            "fail",
            f"QOS {name} may not use partition {', '.join(partitions)}.",
            may or "Name another partition with --partition, or ask the administrators.",
            _QOS,
            remedy=f"--qos {others[0]}" if others else "",
        )


def _limits(job: Wanted, cluster: Cluster, partitions: Sequence[str]) -> Iterator[Finding]:
    """Yield what a job alone exceeds in each of its partitions; nothing if one lets it start."""
    asked = {"node": job.nodes}
    for one in job.resources:
        for name in {f"gres/{one.name}", f"gres/{one.name}:{one.kind}".rstrip(":")}:
            asked[name] = asked.get(name, 0) + one.count * job.nodes
    each = [tuple(_beyond(job, asked, cluster, one)) for one in partitions or ("",)]
    if all(each):
        yield from each[0]


def _beyond(
    job: Wanted, asked: Mapping[str, int], cluster: Cluster, partition: str
) -> Iterator[Finding]:
    rights, of_partition = cluster.rights, _own_qos(cluster, partition)
    caps = rights.caps(job.account, partition, job.qos, of_partition=of_partition)
    if found := first_exceeded(caps, asked):
        yield Finding(
            "limits",
            "fail",
            f"{found}: it would never start.",
            "Ask for less with --nodes or --gpus-per-node, or for another --account or --qos.",
            "site.toml: slurm.account, slurm.qos",
        )
    whose, most = rights.most_time(job.account, partition, job.qos, of_partition=of_partition)
    if job.limit.seconds is not None and job.limit.exceeds(most):
        yield Finding(
            "time limit",
            "fail",
            f"{whose} gives a job at most {most}; {job.limit} are asked for.",
            f"Ask for at most --time {most}, or for another --account or --qos.",
            "site.toml: slurm.time_limit",
            remedy=f"--time {most}",
        )


def _own_qos(cluster: Cluster, partition: str) -> str:
    return cluster.rules[partition].own_qos if partition in cluster.rules else ""


def first_exceeded(caps: Iterable[Cap], asked: Mapping[str, int]) -> str:
    """Return the first limit that one job alone exceeds, as a sentence; empty if there is none."""
    for cap in caps:
        for name, want, most in cap.exceeded(asked):
            what = _NAMES.get(name, name.removeprefix("gres/"))
            each = "in one job" if cap.key == "MaxTRES" else "at a time"
            return f"it asks for {want} {what}, and {cap.whose} may have {most} {each} ({cap.key})"
    return ""


class Hopeless:
    """Tells of waiting jobs which exceed a limit by themselves; each array is asked about once.

    Args:
        world: Its `run` starts Slurm's commands.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._clusters: dict[str, Cluster] = {}
        self._known: dict[tuple[str, str], str] = {}

    def why(self, job_id: str, cluster: str, reason: str) -> str:
        """Return why a job can never start; empty if it may, or nobody knows.

        Args:
            job_id: Of the array.
            cluster: Where it is; empty for this one.
            reason: Why it waits, by Slurm.
        """
        if not _AT_A_TIME.search(reason):
            return ""
        key = (cluster, job_id)
        if key not in self._known:
            self._known[key] = self._looked_up(*key)
        return self._known[key]

    def _looked_up(self, name: str, job_id: str) -> str:
        answer = query(self._world, control.show_argv(job_id, cluster=name), timeout=30)
        shown = control.read(answer.stdout) if answer.ok else None
        if shown is None:
            return ""
        cluster = self._clusters.setdefault(name, Cluster(self._world, name))
        fields = shown.fields
        # Until 22.05 `TRES`, then `ReqTRES`.
        asked = tres(fields.get("ReqTRES") or fields.get("TRES", ""))
        return next(iter(_each_hopeless(cluster.rights, cluster, fields, asked)), "")


def _each_hopeless(
    rights: Rights, cluster: Cluster, fields: Mapping[str, str], asked: Mapping[str, int]
) -> list[str]:
    """Return why a job can start in none of its partitions; nothing if it may in one."""
    found = []
    for partition in fields.get("Partition", "").split(","):
        qos, own = fields.get("QOS", ""), _own_qos(cluster, partition)
        caps = rights.caps(fields.get("Account", ""), partition, qos, of_partition=own)
        found.append(first_exceeded(caps, asked))
    return found if all(found) else []
