"""Queries to Slurm, and what they say that a cluster has and allows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import tomli

from hpcbert.campaign.repeats import Repeat
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.slurm import commands, inventory
from hpcbert.slurm.inventory import Controller, Partition, PartitionRules, Rights
from hpcbert.slurm.state_sources import Answer
from hpcbert.system import files
from hpcbert.system.grouping import group
from hpcbert.system.runner import Outcome

# Why a question has no answer: the command is not installed, its configuration has no cluster,
# munge does not run here or is not the controller's, its daemon is down, it hides information from
# ordinary users, or it failed otherwise.
Silence = Literal["", "missing", "unconfigured", "unsigned", "away", "private", "failed"]
_SILENCES: dict[Any, dict[str, Any]] = tomli.loads(
    Path(__file__).with_name("silences.toml").read_text(encoding="utf-8")
)
HINTS: dict[Silence, str] = {kind: row["hint"] for kind, row in _SILENCES.items()}
# Another query would take as long and get the same answer.
_UNREACHABLE = ("missing", "unconfigured", "unsigned", "away")
_MISSING, _TIMEOUT = 127, 124
# There is nothing to ask, so that asking again is useless. A configuration's file that is gone may
# be back in a moment, on a file system that answers late.
_USELESS = ("accounting storage is disabled", "Could not establish a configuration source")


def run_query(context: SchedulerContext, argv: Sequence[str], *, timeout: float = 60.0) -> Outcome:
    """Run a command that queries or cancels, without the caller's own settings of Slurm."""
    environment = commands.query_environment(context.environ)
    # It may outlive this process: it submits nothing.
    run = partial(context.run, env=environment, timeout=timeout, death_signal=None)
    outcome = run(argv)
    older_argv = () if outcome.ok else commands.simplify_query(argv, outcome.stderr)
    return run(older_argv) if older_argv else outcome


def group_by_cluster(repeats: Iterable[Repeat]) -> dict[str, list[Repeat]]:
    """Return repeats by the cluster that has them; empty: the one of Slurm's configuration."""
    return group((repeat.array.cluster, repeat) for repeat in repeats)


def ask_squeue(context: SchedulerContext, repeats: Iterable[Repeat]) -> tuple[Outcome, Answer]:
    """Ask for all jobs of the submitters of repeats."""
    return run_queries(
        context,
        [
            commands.squeue_argv(users=_list_owners(cluster_repeats), cluster=cluster)
            for cluster, cluster_repeats in group_by_cluster(repeats).items()
        ],
    )


def ask_sacct(context: SchedulerContext, repeats: Iterable[Repeat]) -> tuple[Outcome, Answer]:
    """Ask for the history of repeats, which have job ids."""
    return run_queries(
        context,
        [
            commands.sacct_argv(
                [repeat.array.job_id for repeat in cluster_repeats],
                users=_list_owners(cluster_repeats),
                since=min(repeat.watched.since for repeat in cluster_repeats),
                cluster=cluster,
            )
            for cluster, cluster_repeats in group_by_cluster(repeats).items()
        ],
    )


def _list_owners(repeats: Iterable[Repeat]) -> list[str]:
    return [repeat.watched.campaign.owner for repeat in repeats]


def run_queries(
    context: SchedulerContext, queries: Sequence[Sequence[str]]
) -> tuple[Outcome, Answer]:
    """Make at least one query; return all answers as one, or the first failure."""
    outcomes = [run_query(context, argv, timeout=30) for argv in queries]
    failed = next((outcome for outcome in outcomes if not outcome.ok), None)
    if failed:
        useless = any(words in failed.stderr for words in _USELESS)
        return failed, "absent" if useless or failed.returncode == _MISSING else "failed"
    text = "\n".join(outcome.stdout for outcome in outcomes)
    return replace(outcomes[0], stdout=text), "answered"


def classify_silence(outcome: Outcome) -> Silence:
    """Return the cause of a Slurm command's silence; empty if it answered."""
    if outcome.ok:
        return ""
    if outcome.returncode == _MISSING:
        return "missing"
    if outcome.returncode == _TIMEOUT:
        return "away"
    matches = (
        kind
        for kind, row in _SILENCES.items()
        if any(words in outcome.stderr for words in row["words"])
    )
    return next(matches, "failed")


def describe_silence(kind: Silence, outcome: Outcome) -> str:
    """Return a sentence on a command's silence, with the last line of its stderr."""
    lines = [line.strip() for line in outcome.stderr.splitlines() if line.strip()]
    ending = f": {lines[-1]}" if lines and kind != "missing" else ""
    return f"{_SILENCES[kind]['sentence']}{ending}"


@dataclass(frozen=True)
class Cluster:
    """The cluster of this machine's Slurm configuration, or another that it knows.

    Each query is run when first needed, and once.

    Attributes:
        name: Of another cluster; empty for this one.
    """

    context: SchedulerContext
    name: str = ""

    def _ask(self, argv: list[str]) -> Outcome:
        return run_query(self.context, commands.add_cluster_option(argv, self.name), timeout=30)

    def _read(self, argv: list[str]) -> str:
        """Return what a query prints; empty if it fails."""
        outcome = self._ask(argv)
        return outcome.stdout if outcome.ok else ""

    @cached_property
    def _sinfo(self) -> Outcome:
        return self._ask(inventory.PARTITIONS_QUERY)

    @cached_property
    def rules(self) -> Mapping[str, PartitionRules]:
        """What partitions allow, by name; none if the controller does not answer."""
        return inventory.read_rules(self._read(inventory.RULES_QUERY))

    def find_preempting(self, partition: str) -> tuple[str, ...]:
        """Return the partitions whose jobs may preempt those of one."""
        rule = self.rules.get(partition)
        by_tier = self.settings.preempt_type.endswith("partition_prio")
        if rule is None or not rule.preemption or not by_tier:
            return ()
        return tuple(
            name
            for name, other in self.rules.items()
            if other.tier > rule.tier and rule.partition.node_names & other.partition.node_names
        )

    def find_preempting_qos(self, qos: str) -> tuple[str, tuple[str, ...]]:
        """Return what happens to preempted jobs of a QOS, and the QOS whose jobs preempt them.

        Slurm looks at the jobs' own QOS, not at the partition's (SchedMD/slurm,
        src/plugins/preempt/qos/preempt_qos.c).
        """
        if qos not in self.rights.qos or not self.settings.preempt_type.endswith("/qos"):
            return "", ()
        own_mode = self.rights.qos[qos].preemption.upper()
        is_own = own_mode not in {"", "CLUSTER"}
        mode = inventory.read_preemption(own_mode if is_own else self.settings.preemption)
        preempting = (name for name, other in self.rights.qos.items() if qos in other.preempts)
        return mode, tuple(preempting) if mode else ()

    @cached_property
    def partitions(self) -> Mapping[str, Partition]:
        """The partitions by name; for private nodes, only the sums over a partition's nodes."""
        if self._sinfo.ok:
            return inventory.read_partitions(self._sinfo.stdout)
        if classify_silence(self._sinfo) in _UNREACHABLE:
            return {}
        return {name: rule.partition for name, rule in self.rules.items()}

    @cached_property
    def states(self) -> str:
        """What sinfo prints about every node's state, for `slurm.nodes`; empty if it fails."""
        return self._read(inventory.STATES_QUERY)

    @cached_property
    def features(self) -> str:
        """What sinfo prints about the nodes' features; empty if it fails."""
        return self._read(inventory.FEATURES_QUERY)

    @property
    def silence(self) -> Silence:
        """Why the partitions are unknown; empty if they are known, at least in part."""
        return "" if self.partitions else classify_silence(self._sinfo) or "private"

    @property
    def complaint(self) -> str:
        """Why the nodes are unknown, as a sentence; empty if they are known."""
        if self._sinfo.ok:
            return "" if self.partitions else "Slurm shows you no partitions"
        return describe_silence(classify_silence(self._sinfo), self._sinfo)

    @cached_property
    def settings(self) -> Controller:
        """The controller's own settings; nothing if it does not answer."""
        return inventory.read_config(self._read(inventory.CONFIG_QUERY))

    @cached_property
    def mpi(self) -> tuple[str, ...]:
        """The types of MPI that srun has; none if it does not say."""
        outcome = run_query(self.context, inventory.MPI_QUERY, timeout=30)
        return inventory.read_mpi(f"{outcome.stdout}\n{outcome.stderr}")

    @cached_property
    def pyxis(self) -> bool:
        """Whether srun enters containers by itself."""
        return "--container-image" in run_query(self.context, ["srun", "--help"], timeout=30).stdout

    @cached_property
    def rights(self) -> Rights:
        """What this user may request; unknown if accounting does not answer."""
        user, cluster = files.user_name(os.geteuid()), self.name or self.settings.name
        ask = partial(run_query, self.context, timeout=30)
        own = ask(inventory.associations_argv(user, cluster=cluster))
        if not own.ok:
            return Rights()
        above = ask(inventory.associations_argv("", cluster=cluster))
        default = ask(inventory.default_argv(user)).stdout
        return Rights(
            own=inventory.read_associations(own.stdout),
            accounts=inventory.read_associations(above.stdout),
            qos=inventory.read_qos(ask(inventory.QOS_QUERY).stdout),
            default=inventory.read_default(default, user),
            known=True,
        )

    def takes_account(self, rule: PartitionRules, account: str) -> bool:
        """Return whether a partition takes an account.

        Since 23.02 an account also stands for all below it (SchedMD/slurm,
        src/slurmctld/partition_mgr.c).
        """
        above = self.rights.above(account) if self.settings.version >= "23.02" else ()
        return rule.takes_account(account, *above)

    def memory(self, partition: str) -> str:
        """Return the setting that limits the memory of a job that requests none; empty: none."""
        partition_memory = self.rules[partition].memory if partition in self.rules else ""
        return partition_memory or self.settings.memory
