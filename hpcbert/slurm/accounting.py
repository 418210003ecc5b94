"""The rights of a user in accounting: accounts, QOS and times, as sacctmgr prints them.

Columns are those of SchedMD/slurm, src/sacctmgr/common.c, 22.05 to 26.05. A limit on a group binds
all jobs of an account and of the accounts below it together; sacctmgr shows it with the account
that it is set on, and limits of a single job with every association that inherits them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hpcbert.slurm.inventory import parse_tres
from hpcbert.timelimit import TimeLimit

_ASSOCIATION = "Account,User,ParentName,Partition,QOS,DefaultQOS,MaxWall,GrpTRESRunMins,GrpWall"
_QOS = "Name,Flags,MaxWall,GrpTRESRunMins,GrpWall,Preempt,PreemptMode"
# A flag of QOS whose limits take precedence over those of the partition's QOS (sacctmgr(1)).
_OUTRANKS = "OverPartQOS"
# The name under which `minutes` has a limit on the time of all jobs, whatever they request.
WALL = "wall"


class MinutesCap(NamedTuple):
    """A limit on the minutes of all jobs together.

    Attributes:
        whose: Its owner: `account proj`, `QOS normal`.
        name: The resource that it counts: `gres/gpu`, `node`, or `WALL`.
        minutes: The maximum of resource x minutes.
    """

    whose: str
    name: str
    minutes: int


@dataclass(frozen=True)
class Association:
    """The rights of an account, or of a user in one.

    Attributes:
        account: Its name.
        parent: The account above, if the row is an account's.
        partition: Its partition; empty for all.
        qos: The QOS that it may use.
        default_qos: The QOS of its jobs by default; empty: the cluster's.
        limit: Time limit of one job.
        minutes: Its limits on minutes of all jobs together, by resource.
    """

    account: str
    parent: str = ""
    partition: str = ""
    qos: tuple[str, ...] = ()
    default_qos: str = ""
    limit: TimeLimit = field(default_factory=lambda: TimeLimit(None))
    minutes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Qos:
    """One quality of service.

    Attributes:
        flags: `DenyOnLimit`, `PartitionTimeLimit`, ….
        limit: Time limit of one job.
        minutes: As of an association.
        preempts: The QOS whose jobs its own may preempt, with preempt/qos.
        preemption: What happens to its own jobs then: `requeue`; `cluster`: as the cluster says.
    """

    flags: tuple[str, ...] = ()
    limit: TimeLimit = field(default_factory=lambda: TimeLimit(None))
    minutes: Mapping[str, int] = field(default_factory=dict)
    preempts: tuple[str, ...] = ()
    preemption: str = ""


@dataclass(frozen=True)
class Rights:
    """The requests that a user may make.

    Attributes:
        own: The user's associations.
        accounts: The accounts' own rows, with limits on all their users together.
        qos: All QOS by name.
        default: The account of jobs that name none; empty if unknown.
        known: Whether accounting answered.
    """

    own: tuple[Association, ...] = ()
    accounts: tuple[Association, ...] = ()
    qos: Mapping[str, Qos] = field(default_factory=dict)
    default: str = ""
    known: bool = False

    def of(self, account: str = "", partition: str = "") -> Association | None:
        """Return the association of a job: that of its partition before another."""
        name = (account or self.default).lower()
        by_partition = {
            association.partition: association
            for association in reversed(self.own)
            if association.account == name
        }
        return by_partition.get(partition) or by_partition.get("")

    def qos_of(self, account: str = "", partition: str = "") -> str:
        """Return the QOS of a job that names none; empty: the cluster's default, which is unknown.

        A single QOS that an association may use is its default, whether marked so or not.
        """
        association = self.of(account, partition)
        if association is None:
            return ""
        return association.default_qos or (association.qos[0] if len(association.qos) == 1 else "")

    def minutes_caps(
        self, account: str = "", partition: str = "", qos: str = "", *, of_partition: str = ""
    ) -> Iterator[MinutesCap]:
        """Yield the limits on minutes that bind a job; a QOS's replaces an account's.

        Args:
            account: The job's account; empty for the default one.
            qos: Its QOS; empty for the default one.
            of_partition: The partition's own QOS; empty if it has none.
        """
        limited: set[str] = set()
        for name in self.ranked_qos(account, partition, qos, of_partition):
            yield from _caps(f"QOS {name}", self.qos[name].minutes, limited)
            limited |= self.qos[name].minutes.keys()
        association = self.of(account, partition)
        if association is None:
            return
        yield from _caps(
            f"your part of account {association.account}", association.minutes, limited
        )
        for row in self.above(association.account):
            yield from _caps(f"account {row.account}", row.minutes, limited)

    def ranked_qos(
        self, account: str = "", partition: str = "", qos: str = "", of_partition: str = ""
    ) -> tuple[str, ...]:
        """Return the QOS that bind a job, in order of precedence."""
        job_qos = qos or self.qos_of(account, partition)
        precedence = [of_partition, job_qos]
        if job_qos in self.qos and _OUTRANKS in self.qos[job_qos].flags:
            precedence.reverse()
        return tuple(dict.fromkeys(name for name in precedence if name in self.qos))

    def most_time(
        self, account: str = "", partition: str = "", qos: str = "", *, of_partition: str = ""
    ) -> tuple[str, TimeLimit]:
        """Return the owner of a job's time limit, and the limit; arguments as of `minutes_caps`."""
        for name in self.ranked_qos(account, partition, qos, of_partition):
            if self.qos[name].limit.seconds is not None:
                return f"QOS {name}", self.qos[name].limit
        association = self.of(account, partition)
        if association is None:
            return "", TimeLimit(None)
        return f"account {association.account}", association.limit

    def above(self, account: str) -> Iterator[Association]:
        """Yield the rows of an account and of those above it."""
        rows = {association.account: association for association in self.accounts}
        visited: set[str] = set()
        while account in rows and account not in visited:
            visited.add(account)
            yield rows[account]
            account = rows[account].parent


def _caps(whose: str, minutes: Mapping[str, int], limited: set[str]) -> Iterator[MinutesCap]:
    for resource, most_minutes in minutes.items():
        if resource not in limited:
            yield MinutesCap(whose, resource, most_minutes)


def associations_argv(user: str, *, cluster: str = "") -> list[str]:
    """Return the query for a user's associations, or without a user for the accounts' own rows.

    Args:
        user: Login name; empty for accounts.
        cluster: Its name, if known: one database may serve several.
    """
    conditions = [f"user={user}", *([f"cluster={cluster}"] if cluster else [])]
    return ["sacctmgr", "-nP", "show", "assoc", *conditions, f"format={_ASSOCIATION}"]


def default_argv(user: str) -> list[str]:
    """Return the query for a user's default account."""
    return ["sacctmgr", "-nP", "show", "user", user, "format=User,DefaultAccount"]


def qos_argv() -> list[str]:
    """Return the query for all QOS."""
    return ["sacctmgr", "-nP", "show", "qos", f"format={_QOS}"]


def read_associations(text: str) -> tuple[Association, ...]:
    """Read the output of `associations_argv`; lines that can't be read are skipped."""
    return tuple(
        Association(
            account=row["Account"].strip(),
            parent=row["ParentName"],
            partition=row["Partition"],
            qos=_split_names(row["QOS"]),
            default_qos=row["DefaultQOS"],
            limit=TimeLimit.parse_reported(row["MaxWall"]),
            minutes=_read_minutes(row),
        )
        for row in _read_rows(text, _ASSOCIATION)
    )


def read_default(text: str, user: str) -> str:
    """Return the default account in the output of `default_argv`; empty if there is none."""
    rows = (line.partition("|")[::2] for line in text.splitlines())
    return next((account for name, account in rows if name == user), "")


def read_qos(text: str) -> dict[str, Qos]:
    """Read the output of `qos_argv`, by name."""
    return {
        row["Name"]: Qos(
            _split_names(row["Flags"]),
            TimeLimit.parse_reported(row["MaxWall"]),
            _read_minutes(row),
            _split_names(row["Preempt"]),
            row["PreemptMode"],
        )
        for row in _read_rows(text, _QOS)
    }


def _read_minutes(row: Mapping[str, str]) -> dict[str, int]:
    minutes = parse_tres(row["GrpTRESRunMins"])
    wall = TimeLimit.parse_reported(row["GrpWall"]).seconds
    return minutes if wall is None else {**minutes, WALL: wall // 60}


def _read_rows(text: str, columns: str) -> Iterator[dict[str, str]]:
    """Yield the fields of each line, by column; lines that can't be read are skipped."""
    names = columns.split(",")
    for line in text.splitlines():
        row = line.split("|")
        if len(row) >= len(names) and row[0]:
            yield dict(zip(names, row, strict=False))


def _split_names(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
