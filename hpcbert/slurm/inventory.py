"""What a cluster has: sinfo's and scontrol's output about partitions, nodes and reservations.

Generic resources are read in each form that Slurm prints (SchedMD/slurm, 22.05 to 26.05,
src/interfaces/gres.c, _foreach_node_state_log, and src/common/slurmdb_defs.c for TRES). Keys of
scontrol are those of src/api/partition_info.c and reservation_info.c. Users see scontrol's
partitions even if nodes are private (`PrivateData=nodes`), which makes sinfo print nothing. Keys of
the settings are those of src/api/config_info.c; the list of MPI types comes from
src/common/plugrack.c, plugrack_print_mpi_plugins (before 22.05 in log lines on stderr).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import ceil
from typing import Any, TypeVar

from hpcbert.slurm.hostlist import expand
from hpcbert.timelimit import TimeLimit

_PARTITION_FIELDS = "%P|%a|%D|%l|%s|%G|%N"
_STATE_FIELDS = "%N|%P|%T"
_FEATURE_FIELDS = "%P|%f|%D"
_SINFO = ("sinfo", "--noheader", "--all")
# One line per group of equal nodes of a partition, even of hidden ones.
PARTITIONS_QUERY = [*_SINFO, f"--format={_PARTITION_FIELDS}"]
# One line for each partition of a node.
STATES_QUERY = [*_SINFO, "--Node", f"--format={_STATE_FIELDS}"]
# One line per reason for which nodes are drained or failed.
DRAINS_QUERY = [*_SINFO, "--list-reasons", "--format=%N|%E"]
# One line per group of nodes with equal features.
FEATURES_QUERY = [*_SINFO, f"--format={_FEATURE_FIELDS}"]
# One line per partition, even for hidden ones.
RULES_QUERY = ["scontrol", "--all", "--oneliner", "show", "partition"]
# The controller's settings.
CONFIG_QUERY = ["scontrol", "show", "config"]
# The types of MPI that srun starts ranks with, on stdout or stderr.
MPI_QUERY = ["srun", "--mpi=list"]
_PAIR = re.compile(r"(?:^|\s)([A-Z]\w*)=(\S*)")
# What stands for no names, or for all; and for no value of a setting.
_NO_NAMES = {"", "N/A", "NONE", "(null)", "ALL"}
_NOTHING = {"", "none", "(null)", "n/a"}
_COUNT = re.compile(r"(\d{1,6})([KMG]?)")
_THOUSANDS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
_MOST_GPUS = 1024
# With FORCE:1, a job shares its resources with none of its partition (slurm.conf(5)).
_FORCED = re.compile(r"FORCE(?::(?!1$)\d+)?")
# Of a job without a request; 0 and UNLIMITED stand for all.
_DEFAULT_MEMORY = re.compile(r"\b(DefMemPer\w+) *= *([1-9]\d*)")
# The default MaxArraySize of 1001 ends an array's indices at 1000.
MOST_INDICES = 1000
_PREEMPTING = ("CANCEL", "REQUEUE", "SUSPEND")
# A resource that jobs see and do not use up; no type has this name.
_UNCONSUMED = "no_consume"
# `1g.10gb`, `a100_3g.20gb`, `nvidia_h100_80gb_hbm3_1g.10gb+me`, as slurmd names NVIDIA's slices.
_SLICE = re.compile(r"(?:.*[_-])?\d+g\.\d+gb(?:[.+].*)?", re.IGNORECASE)


# --- Slurm's texts --------------------------------------------------------------------------------

RecordT = TypeVar("RecordT", "Partition", "PartitionRules", "Controller", "Association", "Qos")


def _read_record(kind: type[RecordT], texts: Mapping[str, str], **extra_values: Any) -> RecordT:
    """Return a record with what its fields' metadata read from the texts of Slurm's keys."""
    values = {
        entry.name: read(texts.get(key, ""))
        for entry in fields(kind)
        for key, read in entry.metadata.items()
    }
    return kind(**extra_values, **values)


def _read_number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _split_names(text: str) -> tuple[str, ...]:
    words = (word.strip() for word in text.split(","))
    return () if text in _NO_NAMES else tuple(word for word in words if word)


def read_preemption(text: str) -> str:
    """Return what happens to preempted jobs; GANG and WITHIN alone preempt none."""
    modes = [mode for mode in text.split(",") if mode in _PREEMPTING]
    return modes[0] if modes else ""


def _read_name(text: str) -> str:
    return "" if text.lower() in _NOTHING else text


def _read_positive(text: str) -> int | None:
    return _read_number(text) or None


def _read_forced_sharing(text: str) -> str:
    return text if _FORCED.fullmatch(text) else ""


def _is_yes(text: str) -> bool:
    return text == "YES"


# --- Partitions and nodes -------------------------------------------------------------------------


@dataclass(frozen=True)
class Resource:
    """One generic resource of a node, or of a job's request: `gpu:v100:8`."""

    name: str
    kind: str
    count: int

    @property
    def sliced(self) -> bool:
        """Whether it is a slice of a GPU (MIG), by its type."""
        return _SLICE.fullmatch(self.kind) is not None

    def __str__(self) -> str:
        return ":".join(filter(None, (self.name, self.kind, str(self.count))))


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of a partition with the same resources."""

    count: int
    names: tuple[str, ...]
    resources: tuple[Resource, ...]

    def list_matches(self, resource: Resource) -> list[Resource]:
        """Return the resources of a request's name, and type if it has one."""
        return [
            candidate
            for candidate in self.resources
            if candidate.name == resource.name and resource.kind in {"", candidate.kind}
        ]

    def has(self, resource: Resource) -> bool:
        """Return whether each node has this much of a resource, of all its types together."""
        return sum(match.count for match in self.list_matches(resource)) >= resource.count


@dataclass(frozen=True)
class Partition:
    """One partition.

    Attributes:
        exact: Whether its nodes are known, so that a request that none of them can meet is refused.
    """

    name: str
    default: bool = field(metadata={"Default": _is_yes})
    state: str = field(metadata={"State": lambda text: text.lower() or "up"})
    limit: TimeLimit = field(metadata={"MaxTime": TimeLimit.parse_reported})
    most_nodes: int | None = field(metadata={"MaxNodes": _read_number})
    groups: tuple[NodeGroup, ...]
    exact: bool = True
    least_nodes: int = field(default=1, metadata={"MinNodes": lambda text: _read_number(text) or 1})

    @property
    def nodes(self) -> int:
        """Number of its nodes."""
        return sum(group.count for group in self.groups)

    @property
    def resources(self) -> tuple[str, ...]:
        """The resources of its nodes, each once: `gpu:v100:8`."""
        texts = (str(resource) for group in self.groups for resource in group.resources)
        return tuple(dict.fromkeys(texts))

    def list_matches(self, resource: Resource) -> list[Resource]:
        """Return the resources of its nodes of a request's name, and type if it has one."""
        return [match for group in self.groups for match in group.list_matches(resource)]

    @property
    def node_names(self) -> set[str]:
        """The names of its nodes, as far as they are known."""
        return self.fitting(())

    def fitting(self, requirements: Sequence[Resource]) -> set[str]:
        """Return the names of the nodes that have all of some resources."""
        return {
            name
            for group in self.groups
            if all(map(group.has, requirements))
            for name in group.names
        }


def _read_rows(text: str, form: str) -> Iterator[list[str]]:
    """Yield the fields of each line that sinfo printed in a format; other lines are skipped.

    The first field is a name: a notice between pipes has blanks there.
    """
    for line in text.splitlines():
        words = line.strip().split("|")
        if len(words) == form.count("|") + 1 and len(words[0].split()) == 1:
            yield words


def read_partitions(text: str) -> dict[str, Partition]:
    """Read the output of `PARTITIONS_QUERY`, by name; lines that can't be read are skipped."""
    partitions: dict[str, Partition] = {}
    for label, state, count, limit, sizes, gres, nodes in _read_rows(text, _PARTITION_FIELDS):
        node_count = _read_number(count.strip())
        if node_count is None:
            continue
        name = label.removesuffix("*")
        previous_groups = partitions[name].groups if name in partitions else ()
        # `1-infinite`, `1-4` or `2`
        least_nodes, _, most_nodes = sizes.strip().rpartition("-")
        partitions[name] = Partition(
            name=name,
            default=label.endswith("*"),
            state=state.strip(),
            limit=TimeLimit.parse_reported(limit),
            most_nodes=_read_number(most_nodes),
            groups=(*previous_groups, NodeGroup(node_count, expand(nodes), parse_resources(gres))),
            least_nodes=_read_number(least_nodes or most_nodes) or 1,
        )
    return partitions


def parse_resources(text: str) -> tuple[Resource, ...]:
    """Read generic resources as sinfo prints and sbatch takes them, or as a TRES of accounting.

    `gpu:8`, `gpu:2080ti:8(S:0-1)`, `gpu:a100:4,gpu:1g.10gb:7(IDX:0-6)`, `gpu:h100:no_consume:8`,
    `gres/gpu:h100=8`, `(null)`. Only what follows the last colon, or `=`, is a count:
    a type may begin with a digit, or be a number (`gpu:4090:8`). No node has more than
    `_MOST_GPUS`, so that `gpu:4090` alone is a type too.
    """
    # Commas also appear in parentheses.
    words = re.sub(r"\([^)]*\)", "", text.strip()).split(",")
    return tuple(resource for word in words if (resource := _parse_resource(word)) is not None)


def _parse_resource(word: str) -> Resource | None:
    text = word.strip().removeprefix("gres/").removeprefix("gres:").replace("=", ":")
    name, *fields = (part for part in text.split(":") if part != _UNCONSUMED)
    match = _COUNT.fullmatch(fields[-1]) if fields else None
    if not name:
        return None
    count = int(match[1]) * _THOUSANDS[match[2]] if match else 0
    # Of a whole partition there may be more.
    is_type = name == "gpu" and len(fields) == 1 and count > _MOST_GPUS and "=" not in word
    if match is None or is_type:
        return Resource(name, ":".join(fields), 1)
    return Resource(name, ":".join(fields[:-1]), count)


# States of nodes that run jobs or could (sinfo(1), NODE STATE CODES); a mark after a state, for
# example `*` for a node that does not answer, means that it can't.
USABLE = frozenset({"idle", "mixed", "allocated", "completing", "reserved", "planned", "blocked"})


def _is_in_partition(label: str, partition: str) -> bool:
    """Return whether a label is a partition's; empty: that of the default one, marked `*`."""
    if partition:
        return label.removesuffix("*") == partition
    return label.endswith("*")


def read_usable_nodes(text: str, partition: str) -> dict[str, bool]:
    """Return a partition's nodes by name, True for those that run jobs or could.

    Args:
        text: The output of `STATES_QUERY`.
        partition: The partition, in all functions here; empty for the default one.
    """
    return {name: state in USABLE for name, state in read_node_states(text, partition).items()}


def read_node_states(text: str, partition: str) -> dict[str, str]:
    """Return the state of each of a partition's nodes, in small letters: `idle`, `down*`."""
    return {
        name: state.removesuffix("+").lower()
        for name, label, state in _read_rows(text, _STATE_FIELDS)
        if _is_in_partition(label, partition)
    }


def read_drain_reasons(text: str) -> dict[str, tuple[str, ...]]:
    """Return the nodes of each reason from the output of `DRAINS_QUERY`."""
    rows = (line.strip().partition("|") for line in text.splitlines())
    return {reason: expand(names) for names, bar, reason in rows if bar and len(names.split()) == 1}


@dataclass(frozen=True)
class PartitionRules:
    """A partition's conditions for jobs.

    Attributes:
        partition: The partition as far as the controller describes it: nodes of one kind, of which
            only the averages are known.
        accounts, qos: Those that may use it; if empty, all.
        denied_accounts, denied_qos: Those that may not.
        groups: Groups of users that may; if empty, all.
        own_qos: The QOS with limits on its jobs, in addition to their own; empty: there is none.
        memory: As in `Controller.memory`; empty: the cluster's.
        most_memory: The most memory of a node that a job may request, in MiB; None: no limit.
        tier: Its PriorityTier: jobs of higher ones may preempt its own.
        preemption: What happens to its jobs then (PreemptMode): `REQUEUE`; empty: never.
        forced_sharing: Its OverSubscribe if that overrules `--exclusive`, `FORCE:4`; else empty.
    """

    partition: Partition
    memory: str
    accounts: tuple[str, ...] = field(metadata={"AllowAccounts": _split_names})
    denied_accounts: tuple[str, ...] = field(metadata={"DenyAccounts": _split_names})
    qos: tuple[str, ...] = field(metadata={"AllowQos": _split_names})
    denied_qos: tuple[str, ...] = field(metadata={"DenyQos": _split_names})
    groups: tuple[str, ...] = field(metadata={"AllowGroups": _split_names})
    own_qos: str = field(metadata={"QoS": lambda text: "" if text in _NO_NAMES else text})
    reserved: bool = field(metadata={"ReqResv": _is_yes})
    for_root: bool = field(metadata={"RootOnly": _is_yes})
    most_memory: int | None = field(metadata={"MaxMemPerNode": _read_positive})
    tier: int = field(metadata={"PriorityTier": lambda text: _read_number(text) or 0})
    preemption: str = field(metadata={"PreemptMode": read_preemption})
    forced_sharing: str = field(metadata={"OverSubscribe": _read_forced_sharing})

    def takes_account(self, *names: str) -> bool:
        """Return whether at least one of the accounts is allowed and none is denied."""
        allowed = not self.accounts or any(name in self.accounts for name in names)
        return allowed and not any(name in self.denied_accounts for name in names)

    def takes_qos(self, qos: str) -> bool:
        """Return whether a QOS is allowed and not denied; without a list, all are allowed."""
        return (not self.qos or qos in self.qos) and qos not in self.denied_qos


def read_rules(text: str) -> dict[str, PartitionRules]:
    """Read the output of `RULES_QUERY`, by name; lines that can't be read are skipped."""
    rules = {}
    for line in text.splitlines():
        keys = dict(_PAIR.findall(line))
        if name := keys.get("PartitionName"):
            count = _read_number(keys.get("TotalNodes", "")) or 0
            group = NodeGroup(count, expand(keys.get("Nodes", "")), _average_resources(keys, count))
            partition = _read_record(Partition, keys, name=name, groups=(group,), exact=False)
            memory = _read_memory(line)
            rules[name] = _read_record(PartitionRules, keys, partition=partition, memory=memory)
    return rules


def _read_memory(text: str) -> str:
    match = _DEFAULT_MEMORY.search(text)
    return f"{match[1]}={match[2]}" if match else ""


def _average_resources(keys: dict[str, str], nodes: int) -> tuple[Resource, ...]:
    """Return each node's average share of the partition's sums; typed resources before others."""
    if not nodes:
        return ()
    words = keys.get("TRES", "").split(",")
    totals = parse_resources(",".join(word for word in words if word.startswith("gres/")))
    typed = {resource.name for resource in totals if resource.kind}
    return tuple(
        replace(resource, count=ceil(resource.count / nodes))
        for resource in totals
        if resource.kind or resource.name not in typed
    )


def count_features(text: str, partition: str) -> Counter[str]:
    """Return how many of a partition's nodes have each feature."""
    counts: Counter[str] = Counter()
    for label, features, count in _read_rows(text, _FEATURE_FIELDS):
        if count.isdigit() and _is_in_partition(label, partition):
            counts.update(dict.fromkeys(_split_names(features), int(count)))
    return counts


# --- The controller's settings, and srun's kinds of MPI -------------------------------------------

_KEY = re.compile(r"^(\w+) *= (.*)$", re.MULTILINE)
# What `AccountingStorageEnforce` makes Slurm check of a job (slurm.conf(5)); `all` means all these.
_CHECKS = frozenset({"associations", "limits", "qos", "safe", "wckeys"})
_TYPE = re.compile(r"[a-z]\w*")
_LISTED = re.compile(r"MPI (?:plugin )?types are")
_VERSIONS = "specific pmix plugin versions available:"


def _read_most_indices(text: str) -> int | None:
    return max(1, int(text) - 1) if text.isdigit() else None


def _read_enforced(text: str) -> frozenset[str]:
    """Return the enforced checks of jobs, including those that others imply."""
    words = frozenset(word.strip().lower() for word in text.split(","))
    checks = _CHECKS if "all" in words else words & _CHECKS
    if "safe" in checks:
        checks |= {"limits"}
    return checks | {"associations"} if checks & _CHECKS else checks


@dataclass(frozen=True)
class Controller:
    """The keys of slurm.conf that matter for jobs.

    Attributes:
        name: The cluster's name; empty if unknown.
        most_indices: Largest number of indices of an array; None if unknown.
        memory: What a job gets that requests no memory, as slurm.conf has it, `DefMemPerCPU=4000`,
            in MiB; empty: all that a node has.
        enforced: Which parts of accounting bind jobs: `associations`, `limits`, `qos`, `safe`.
        preempt_type: Whose jobs preempt others: `preempt/qos`, `preempt/partition_prio`.
        preemption: What happens to preempted jobs (PreemptMode), unless partition or QOS says.
    """

    memory: str
    name: str = field(metadata={"ClusterName": _read_name})
    version: str = field(metadata={"SLURM_VERSION": str})
    most_indices: int | None = field(metadata={"MaxArraySize": _read_most_indices})
    mpi: str = field(metadata={"MpiDefault": _read_name})
    enforced: frozenset[str] = field(metadata={"AccountingStorageEnforce": _read_enforced})
    preempt_type: str = field(metadata={"PreemptType": str})
    preemption: str = field(metadata={"PreemptMode": str})


def read_config(text: str) -> Controller:
    """Read the output of `CONFIG_QUERY`; what is missing from it stays unknown."""
    keys = {name: value.strip() for name, value in _KEY.findall(text)}
    return _read_record(Controller, keys, memory=_read_memory(text))


def read_mpi(text: str) -> tuple[str, ...]:
    """Return the types of MPI that srun has, in its order: `pmix`, `pmi2`, `none`, `pmix_v4`."""
    heading = _LISTED.search(text)
    lines = text[heading.end() :].splitlines()[1:] if heading else []
    names = [line.strip().removeprefix("srun: ").removeprefix("mpi/") for line in lines]
    plain = [name for name in names if _TYPE.fullmatch(name)]
    versions = [line.partition(_VERSIONS)[2] for line in lines if _VERSIONS in line]
    exact = [word.strip() for line in versions for word in line.split(",") if word.strip()]
    return tuple(dict.fromkeys((*plain, *exact)))


def choose_mpi(preferences: Sequence[str], available: Sequence[str]) -> str:
    """Return the first wanted type of MPI that srun has; empty if it has none of them.

    A cluster with only one version of PMIx may name it that way: `pmix_v4` counts as `pmix`.
    """
    for preference in preferences:
        versions = sorted(name for name in available if name.startswith(f"{preference}_v"))
        if version := preference if preference in available else next(reversed(versions), ""):
            return version
    return ""


# --- The user's rights in accounting --------------------------------------------------------------

# Columns of SchedMD/slurm, src/sacctmgr/common.c, 22.05 to 26.05.
_ASSOCIATION = "Account,User,ParentName,Partition,QOS,DefaultQOS,MaxWall"
_QOS = "Name,Flags,MaxWall,Preempt,PreemptMode"
QOS_QUERY = ["sacctmgr", "-nP", "show", "qos", f"format={_QOS}"]
# A flag of QOS whose limits take precedence over those of the partition's QOS (sacctmgr(1)).
_OUTRANKS = "OverPartQOS"


@dataclass(frozen=True)
class Association:
    """The rights of an account, or of a user in one.

    Attributes:
        parent: The account above, if the row is an account's.
        default_qos: The QOS of its jobs by default; empty: the cluster's.
    """

    account: str = field(metadata={"Account": str.strip})
    parent: str = field(metadata={"ParentName": str})
    partition: str = field(metadata={"Partition": str})
    qos: tuple[str, ...] = field(metadata={"QOS": _split_names})
    default_qos: str = field(metadata={"DefaultQOS": str})
    limit: TimeLimit = field(metadata={"MaxWall": TimeLimit.parse_reported})


@dataclass(frozen=True)
class Qos:
    """One quality of service.

    Attributes:
        flags: `DenyOnLimit`, `PartitionTimeLimit`, ….
        preempts: The QOS whose jobs its own may preempt, with preempt/qos.
        preemption: What happens to its own jobs then: `requeue`; `cluster`: as the cluster says.
    """

    flags: tuple[str, ...] = field(metadata={"Flags": _split_names})
    limit: TimeLimit = field(metadata={"MaxWall": TimeLimit.parse_reported})
    preempts: tuple[str, ...] = field(metadata={"Preempt": _split_names})
    preemption: str = field(metadata={"PreemptMode": str})


@dataclass(frozen=True)
class Rights:
    """The requests that a user may make.

    Attributes:
        accounts: The accounts' own rows.
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

    def most_time(
        self, account: str = "", partition: str = "", qos: str = "", *, of_partition: str = ""
    ) -> tuple[str, TimeLimit]:
        """Return the owner of a job's time limit, and the limit; a QOS's replaces an account's."""
        job_qos = qos or self.qos_of(account, partition)
        precedence = [of_partition, job_qos]
        if job_qos in self.qos and _OUTRANKS in self.qos[job_qos].flags:
            precedence.reverse()
        for name in precedence:
            if name in self.qos and self.qos[name].limit.seconds is not None:
                return f"QOS {name}", self.qos[name].limit
        association = self.of(account, partition)
        if association is None:
            return "", TimeLimit(None)
        return f"account {association.account}", association.limit

    def above(self, account: str) -> list[str]:
        """Return an account and those above it."""
        parents = {association.account: association.parent for association in self.accounts}
        names: list[str] = []
        while account in parents and account not in names:
            names.append(account)
            account = parents[account]
        return names


def associations_argv(user: str, *, cluster: str = "") -> list[str]:
    """Return the query for a user's associations, or without a user for the accounts' own rows.

    Args:
        cluster: Its name, if known: one database may serve several.
    """
    conditions = [f"user={user}", *([f"cluster={cluster}"] if cluster else [])]
    return ["sacctmgr", "-nP", "show", "assoc", *conditions, f"format={_ASSOCIATION}"]


def default_argv(user: str) -> list[str]:
    """Return the query for a user's default account."""
    return ["sacctmgr", "-nP", "show", "user", user, "format=User,DefaultAccount"]


def read_associations(text: str) -> tuple[Association, ...]:
    """Read the output of `associations_argv`; lines that can't be read are skipped."""
    return tuple(_read_record(Association, row) for row in _read_columns(text, _ASSOCIATION))


def read_default(text: str, user: str) -> str:
    """Return the default account in the output of `default_argv`; empty if there is none."""
    rows = (line.partition("|")[::2] for line in text.splitlines())
    return next((account for name, account in rows if name == user), "")


def read_qos(text: str) -> dict[str, Qos]:
    """Read the output of `QOS_QUERY`, by name."""
    return {row["Name"]: _read_record(Qos, row) for row in _read_columns(text, _QOS)}


def _read_columns(text: str, columns: str) -> Iterator[dict[str, str]]:
    names = columns.split(",")
    for line in text.splitlines():
        row = line.split("|")
        if len(row) >= len(names) and row[0]:
            yield dict(zip(names, row, strict=False))
