"""Write a first site.toml: the reference file with the values of this machine or cluster.

Each value comes from the command line, from what the cluster has, or from the user at a terminal,
who chooses the partition, the type of GPU, the account and the container runtime. If only the user
can know a value (which account pays, the names of private partitions), nothing is guessed.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcbert.config.options import RUNTIMES, runtime_name
from hpcbert.config.site import NodeSettings, Site, SlurmSettings
from hpcbert.errors import SchedulerError, UsageError, format_count
from hpcbert.lab.record import is_lab
from hpcbert.model import Protocol
from hpcbert.scheduler.slurm.admission import (
    derive_site_request,
    describe_forced_sharing,
    describe_restriction,
    find_time_limit,
)
from hpcbert.scheduler.slurm.cluster import HINTS, Cluster
from hpcbert.scheduler.slurm.examine import try_forms
from hpcbert.slurm.inventory import Partition, PartitionRules, choose_mpi
from hpcbert.system import machine
from hpcbert.system.decode import did_you_mean
from hpcbert.system.machine import MachineFacts
from hpcbert.timelimit import TimeLimit

_HEAD = re.compile(r"# The reference site:.*?(?=schema = )", re.DOTALL)
# What differs on a cluster from two cores: the real model, and no thread count.
_CLUSTER: dict[str, str | None] = {
    "env.OMP_NUM_THREADS": None,
    "frameworks.pytorch.model": '"bert-base"',
    "frameworks.pytorch.batch_sizes.fp32": None,
    "frameworks.pytorch.batch_sizes.bf16": None,
    "frameworks.pytorch.options.vocab_size": None,
}
_HOUR = TimeLimit.parse("01:00:00")
_MOST_SHOWN = 8
_CHOSEN_BY_USER = "you said so"
# Variables of Environment Modules and of Lmod.
_MODULES = ("MODULEPATH", "MODULESHOME", "LMOD_CMD")


@dataclass(frozen=True)
class Question:
    """A question for the user at a terminal.

    Attributes:
        name: What the question is about: `partition`.
        flag: The option that answers it.
        options: The possible answers, each with what is known about it.
        default: The answer if there is no terminal; empty: only the user can know.
    """

    name: str
    flag: str
    options: Mapping[str, str] = field(default_factory=dict)
    default: str = ""


@dataclass(frozen=True)
class SiteChoice:
    """One value of the site; empty if the cluster decides. `flag` is the option to change it."""

    key: str
    value: str
    why: str
    others: tuple[str, ...] = ()
    flag: str = ""


@dataclass
class Proposal:
    """A site in the making.

    Attributes:
        given: Values of the command line, by parameter; empty ones are left out.
        pick: Answers a question with one of its options, or with nothing.
        values: TOML values by dotted key; None to comment a key out.
        warnings: What the user must know before relying on the site.
    """

    name: str
    given: Mapping[str, Any]
    pick: Callable[[Question], str]
    values: dict[str, str | None]
    choices: list[SiteChoice] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def take(
        self, key: str, value: str, reason: str, options: Iterable[str] = (), flag: str = ""
    ) -> None:
        """Note a choice among options, as the value of its key."""
        alternatives = tuple(option for option in options if option != value)
        self.choices.append(SiteChoice(key, value, reason, alternatives, flag))
        is_number = value.isdigit() and key.endswith("_node")
        self.values[key] = value if is_number else json.dumps(value)

    def choose(self, question: Question, answer: str) -> str:
        """Return an answer of the command line, the only option, or what the user picks.

        Raises:
            UsageError: The answer is not among the options, or only the user can answer.
        """
        options = question.options
        if answer:
            if options and answer not in options:
                hint = did_you_mean(answer, options)
                raise UsageError(f"This cluster has no {question.name} {answer!r}.", hint=hint)
            return answer
        choice = next(iter(options)) if len(options) == 1 else self.pick(question)
        if not choice:
            options_text = "; ".join(options.values())
            hint = f"Give {question.flag}" + (f": {options_text}." if options_text else ".")
            raise UsageError(f"Only you can say which {question.name} to use.", hint=hint)
        return choice

    def value_of(self, key: str) -> str:
        """Return the value chosen for a key; empty if there is none."""
        return next((choice.value for choice in self.choices if choice.key == key), "")


def has_cluster(cluster: Cluster) -> bool:
    """Return whether there is a cluster here that answers.

    Raises:
        SchedulerError: There is one, but it does not answer, or a module may have its commands.
    """
    silence, environ = cluster.silence, cluster.context.environ
    if silence == "missing" and any(environ.get(name) for name in _MODULES):
        folders = [Path(folder) for folder in environ.get("MODULEPATH", "").split(":") if folder]
        modules = [path.name for folder in folders for path in folder.glob("[Ss]lurm*")]
        name = min(modules, default="NAME").removesuffix(".lua")
        raise SchedulerError(
            "Slurm's commands are not on this machine's PATH; a module may have them.",
            hint=f"Load Slurm, then repeat init: `module avail slurm`, `module load {name}`. "
            "--local: without Slurm.",
        )
    if silence in {"away", "failed"}:
        raise SchedulerError(
            f"{cluster.complaint}.", hint=f"{HINTS[silence]} --local: without Slurm."
        )
    return silence not in {"missing", "unconfigured"}


def propose(
    cluster: Cluster,
    surroundings: MachineFacts,
    cli_values: Mapping[str, Any],
    pick: Callable[[Question], str],
    *,
    folder: Path,
) -> Proposal:
    """Return the site that suits a cluster.

    Args:
        cluster: Says what it has.
        surroundings: What this machine has.
        cli_values: Values of the command line, by parameter.
        pick: Answers a question with one of its options.
        folder: The folder of the site.toml.

    Raises:
        UsageError: A requested value does not exist, or only the user can choose one.
    """
    name = cluster.settings.name or "cluster"
    values = {**_CLUSTER, "scheduler": '"slurm"', "name": json.dumps(name)}
    given = {name: value for name, value in cli_values.items() if value}
    proposal = Proposal(name, given, pick, values)
    offer = _choose_partition(proposal, cluster)
    partition = offer.name if offer else proposal.value_of("slurm.partition")
    rule = cluster.rules.get(partition) if offer else None
    if offer is None:
        _take_private_gpus(proposal)
    elif offer.kinds:
        _choose_gpus(proposal, offer, cluster.context.environ)
    else:
        _take_cpus(proposal, offer)
    _choose_account(proposal, cluster, partition, rule)
    _choose_qos(proposal, cluster, partition, rule)
    _choose_time_limit(proposal, cluster, offer)
    _choose_memory(proposal, cluster.memory(partition), rule)
    _choose_mpi(proposal, cluster)
    _choose_runtime(proposal, cluster, surroundings)
    _choose_interface(proposal, surroundings)
    _choose_runs(proposal, surroundings, folder)
    _choose_form(proposal, cluster)
    most_indices = cluster.settings.most_indices
    if most_indices is not None and most_indices < Protocol.repeats:
        proposal.warnings.append(
            f"An array has at most {most_indices} elements here (MaxArraySize): the "
            f"{Protocol.repeats} repeats of a point become several arrays."
        )
    return proposal


# --- What partitions offer ------------------------------------------------------------------------


@dataclass(frozen=True)
class _GpuKind:
    """GPUs of one type in a partition: `count` on most nodes that have any, `most` on one."""

    name: str
    count: int
    nodes: int
    most: int
    sliced: bool

    @property
    def gres(self) -> str:
        return f"gpu:{self.name}" if self.name else "gpu"

    def __str__(self) -> str:
        slices = ", slices of GPUs (MIG)" if self.sliced else ""
        return f"{format_count(self.nodes, 'node')} with {self.gres}:{self.count}{slices}"


@dataclass(frozen=True)
class _Offer:
    """A partition with its GPUs: whole ones before slices, many before few.

    Attributes:
        barred: Why the user can't run there, the end of a sentence; empty if no reason is known.
        risk: What may end its jobs early, a clause; empty if nothing is known.
    """

    partition: Partition
    kinds: tuple[_GpuKind, ...]
    barred: str
    risk: str
    forced_sharing: str

    @property
    def name(self) -> str:
        return self.partition.name

    @property
    def tier(self) -> tuple[bool, bool, bool]:
        return bool(self.barred), not self.kinds, all(kind.sliced for kind in self.kinds)

    @property
    def rank(self) -> tuple[object, ...]:
        """Its rank among others, the lowest first.

        First come partitions with GPUs that the user may use: whole ones before slices, jobs of an
        hour before shorter ones, jobs of any size before those of many nodes only, the default
        before other partitions, nodes of their own before shared ones, jobs that none preempts
        before others, many GPUs before few.
        """
        gpu_kinds = [kind for kind in self.kinds if not kind.sliced] or self.kinds
        return (
            *self.tier,
            _HOUR.exceeds(self.partition.limit),
            self.partition.least_nodes > 1,
            not self.partition.default,
            bool(self.forced_sharing),
            bool(self.risk),
            -sum(kind.nodes * kind.count for kind in gpu_kinds),
            self.name,
        )

    @property
    def gpus(self) -> str:
        return "; ".join(map(str, self.kinds))

    @property
    def bounds(self) -> list[str]:
        """What the partition allows a job: its time and nodes, as far as limited."""
        partition, bounds = self.partition, []
        if partition.limit.seconds is not None:
            bounds.append(f"{partition.limit} at most")
        if partition.least_nodes > 1:
            bounds.append(f"no fewer than {partition.least_nodes} nodes a job")
        if partition.most_nodes is not None:
            bounds.append(f"at most {partition.most_nodes} nodes a job")
        return bounds

    def __str__(self) -> str:
        gpus = self.gpus or f"no GPUs, {self.partition.nodes} nodes"
        caution = self.barred or self.risk
        ending = f"; {caution}" if caution else ""
        return f"{self.name} ({', '.join([gpus, *self.bounds])}{ending})"


def _list_offers(cluster: Cluster) -> list[_Offer]:
    """Return the offers of all partitions, best first."""
    offers = []
    for partition in cluster.partitions.values():
        rule = cluster.rules.get(partition.name)
        names = ", ".join(cluster.find_preempting(partition.name))
        risk = f"its jobs may be preempted by those of {names}" if names else ""
        sharing = rule.forced_sharing if rule else ""
        barred = _explain_bar(partition, rule, cluster)
        offers.append(_Offer(partition, _count_gpus(partition), barred, risk, sharing))
    return sorted(offers, key=lambda offer: offer.rank)


def _count_gpus(partition: Partition) -> tuple[_GpuKind, ...]:
    nodes: dict[str, Counter[int]] = {}
    sliced_types: set[str] = set()
    for group in partition.groups:
        counts: Counter[str] = Counter()
        for resource in group.resources:
            if resource.name == "gpu" and resource.count:
                counts[resource.kind] += resource.count
                sliced_types |= {resource.kind} if resource.sliced else set()
        for name, count in counts.items():
            nodes.setdefault(name, Counter())[count] += group.count
    kinds = []
    for name, sizes in nodes.items():
        count, node_count = max(sizes.items(), key=lambda size: (size[1], size[0]))
        kinds.append(_GpuKind(name, count, node_count, max(sizes), name in sliced_types))
    return tuple(sorted(kinds, key=lambda kind: (kind.sliced, -kind.nodes * kind.count, kind.name)))


def _explain_bar(partition: Partition, rule: PartitionRules | None, cluster: Cluster) -> str:
    """Return the reason why the user can't run there; empty if none is known."""
    if partition.state != "up":
        return f"it is {partition.state}"
    reason = describe_restriction(rule) if rule else ""
    enforced, own = cluster.settings.enforced, cluster.rights.own
    if reason or rule is None or "associations" not in enforced or not own:
        return reason
    associations = [entry for entry in own if entry.partition in {"", partition.name}]
    if not any(rule.takes_account(association.account) for association in associations):
        return f"it is for the accounts {', '.join(rule.accounts) or 'of others'} only"
    qos = {name for association in associations for name in association.qos}
    if "qos" in enforced and qos and not any(map(rule.takes_qos, qos)):
        return f"it is for the QOS {', '.join(rule.qos) or 'of others'} only"
    return ""


# --- Partition and GPUs ---------------------------------------------------------------------------


def _choose_partition(proposal: Proposal, cluster: Cluster) -> _Offer | None:
    """Choose the partition; None if Slurm shows none."""
    offers = _list_offers(cluster)
    answer, gpu_type = proposal.given.get("partition", ""), proposal.given.get("gpu_type", "")
    if not offers:
        question = Question("partition", "--partition, --gpus-per-node and --gpu-type")
        name = proposal.choose(question, answer)
        proposal.take("slurm.partition", name, f"{_CHOSEN_BY_USER}; Slurm shows no partitions")
        proposal.warnings.append(f"{cluster.complaint}. hpcbert could not check this site.")
        return None
    candidates = [
        offer
        for offer in offers
        if not gpu_type or gpu_type in [kind.name or "gpu" for kind in offer.kinds]
    ]
    if not candidates:
        kinds = {kind.name or "gpu" for offer in offers for kind in offer.kinds}
        hint = f"The cluster has: {', '.join(sorted(kinds)) or 'no GPUs'}."
        raise UsageError(f"No partition has GPUs of type {gpu_type!r}.", hint=hint)
    best = candidates[0]
    if not best.partition.exact:
        proposal.warnings.append(
            f"{cluster.complaint}. GPUs per node and types are whole partitions': check them."
        )
    options = {offer.name: str(offer) for offer in candidates if answer or offer.tier == best.tier}
    name = proposal.choose(Question("partition", "--partition", options, best.name), answer)
    chosen = next(offer for offer in candidates if offer.name == name)
    alternatives = [str(offer) for offer in candidates if offer is not chosen][:_MOST_SHOWN]
    reason = _explain_choice(chosen, candidates, answer)
    proposal.take("slurm.partition", name, reason, alternatives, "--partition")
    if chosen.barred:
        proposal.warnings.append(f"Partition {name} may refuse your jobs: {chosen.barred}.")
    if chosen.risk:
        mode = cluster.rules[name].preemption
        _warn_of_preemption(proposal, f"Partition {name}", mode, chosen.risk)
    if chosen.forced_sharing:
        proposal.warnings.append(describe_forced_sharing(name, chosen.forced_sharing))
    return chosen


def _warn_of_preemption(proposal: Proposal, source: str, mode: str, risk: str) -> None:
    consequence = "a repeat that is preempted is lost or starts again"
    proposal.warnings.append(f"{source} is preemptible ({mode}): {risk}, and {consequence}.")


def _explain_choice(chosen: _Offer, candidates: Iterable[_Offer], answer: str) -> str:
    """Return the reason for a partition: its GPUs, the drawback of the default, and its own."""
    gpus = chosen.gpus or "it has no GPUs, nor does any other partition"
    if answer:
        return f"{_CHOSEN_BY_USER}: {gpus}"
    risk = f"; {chosen.risk}" if chosen.risk else ""
    if chosen.partition.default:
        return f"the default: {gpus}{risk}"
    default = next((offer for offer in candidates if offer.partition.default), None)
    drawback = ""
    if default and default.barred:
        drawback = f"is not for you: {default.barred}"
    elif default and chosen.kinds and not default.kinds:
        drawback = "has no GPUs"
    elif default and default.bounds:
        drawback = f"allows {', '.join(default.bounds)}"
    return (
        f"{gpus}; the default, {default.name}, {drawback}{risk}"
        if default and drawback
        else f"{gpus}{risk}"
    )


def _take_private_gpus(proposal: Proposal) -> None:
    """Take type and number of GPUs from the user, where Slurm shows no partitions."""
    kind = proposal.given.get("gpu_type", "")
    question = Question("number of GPUs in a node", "--gpus-per-node")
    count = proposal.choose(question, str(proposal.given.get("gpus_per_node", "")))
    if not count.isdigit():
        raise UsageError(f"{count!r} is not a valid number of GPUs.", hint="Give --gpus-per-node.")
    proposal.take("slurm.gres", f"gpu:{kind}" if kind else "gpu", _CHOSEN_BY_USER, (), "--gpu-type")
    proposal.take("nodes.gpus_per_node", count, _CHOSEN_BY_USER, (), "--gpus-per-node")


def _take_cpus(proposal: Proposal, offer: _Offer) -> None:
    groups = offer.partition.groups
    resources = dict.fromkeys(str(resource) for group in groups for resource in group.resources)
    proposal.take("slurm.gres", "", f"partition {offer.name} has no GPUs", resources)
    proposal.values["frameworks.pytorch.device"] = '"cpu"'
    count = str(proposal.given.get("gpus_per_node", 1))
    proposal.take("nodes.gpus_per_node", count, "ranks a node", (), "--gpus-per-node")
    proposal.warnings.append(
        f"Partition {offer.name} has no GPUs: the reference runs on CPUs, in a table of its own."
    )


def _choose_gpus(proposal: Proposal, offer: _Offer, environ: Mapping[str, str]) -> None:
    """Choose the type of GPU and the number per node."""
    kinds = {kind.name or "gpu": kind for kind in offer.kinds}
    options = {name: str(kind) for name, kind in kinds.items()}
    usual = next(iter(kinds))
    question = Question("GPU type", "--gpu-type", options, usual)
    name = proposal.choose(question, proposal.given.get("gpu_type", ""))
    kind = kinds[name]
    reason = str(kind)
    if proposal.given.get("gpu_type") or name != usual:
        reason = f"{_CHOSEN_BY_USER}: {kind}"
    alternatives = [text for other, text in options.items() if other != name]
    proposal.take("slurm.gres", kind.gres, reason, alternatives, "--gpu-type")
    if kind.sliced:
        proposal.warnings.append(
            f"{kind.gres} is a slice of a GPU (MIG): NCCL does not join slices, so only one "
            "rank can run, and its throughput is not that of a GPU."
        )
    count = proposal.given.get("gpus_per_node", 0)
    if count > kind.most:
        raise UsageError(
            f"No node of partition {offer.name} has {kind.gres}:{count}.",
            hint=f"Ask for at most --gpus-per-node {kind.most}.",
        )
    reason = f"{_CHOSEN_BY_USER}; {kind}" if count else str(kind)
    proposal.take("nodes.gpus_per_node", str(count or kind.count), reason, (), "--gpus-per-node")
    if is_lab(environ):
        reason = "the lab's GPUs are fake: a rank without one trains on the CPU"
        proposal.take("frameworks.pytorch.device", "auto", reason)


# --- Account, QOS and limits ----------------------------------------------------------------------


def _choose_account(
    proposal: Proposal, cluster: Cluster, partition: str, rule: PartitionRules | None
) -> None:
    """Choose who pays, if the cluster needs to know."""
    rights, is_enforced = cluster.rights, "associations" in cluster.settings.enforced
    answer = proposal.given.get("account", "")
    usable_accounts = {
        association.account: f"account {association.account}"
        for association in rights.own
        if association.partition in {"", partition}
        if not is_enforced or rule is None or rule.takes_account(association.account)
    }
    default = rights.default if rights.default in usable_accounts else ""
    name = ""
    if answer or (is_enforced and usable_accounts):
        question = Question("account", "--account", usable_accounts if is_enforced else {}, default)
        name = proposal.choose(question, answer)
        reason = _CHOSEN_BY_USER if answer else "your default" if name == default else "yours"
    elif usable_accounts:
        reason = f"the cluster does not check it; yours is {default or ', '.join(usable_accounts)}"
    elif not is_enforced:
        reason = "the cluster requires none"
    elif not rights.known:
        reason = "accounting does not answer"
        proposal.warnings.append(
            "The cluster checks accounts, and accounting does not say which are yours: give "
            "--account if your default one is not right."
        )
    else:
        reason = "accounting shows none of yours"
        problem = "None of your accounts may use this partition"
        problem = problem if rights.own else "You have no account"
        proposal.warnings.append(f"{problem}: ask for one.")
    proposal.take("slurm.account", name, reason, usable_accounts, "--account")


def _choose_qos(
    proposal: Proposal, cluster: Cluster, partition: str, rule: PartitionRules | None
) -> None:
    """Choose the first QOS that the partition accepts, if it does not accept the default."""
    account, answer = proposal.value_of("slurm.account"), proposal.given.get("qos", "")
    association = cluster.rights.of(account, partition)
    names = association.qos if association else ()
    usable_qos = {name: f"QOS {name}" for name in names if rule is None or rule.takes_qos(name)}
    default = cluster.rights.qos_of(account, partition)
    is_enforced = "qos" in cluster.settings.enforced
    name, reason = "", f"the default, {default}" if default else "the default"
    if answer:
        name = proposal.choose(Question("QOS", "--qos", usable_qos if is_enforced else {}), answer)
        reason = _CHOSEN_BY_USER
    elif is_enforced and names and not usable_qos:
        proposal.warnings.append("None of your QOS may use this partition: ask for one.")
    elif is_enforced and default not in usable_qos and len(usable_qos) < len(names):
        name = next(iter(usable_qos))
        reason = f"partition {partition} does not accept {default or 'every QOS of yours'}"
    options = [option for option in usable_qos if option != default]
    proposal.take("slurm.qos", name, reason, options, "--qos")
    mode, preempting = cluster.find_preempting_qos(name or default)
    if preempting:
        risk = f"its jobs may be preempted by those of QOS {', '.join(preempting)}"
        _warn_of_preemption(proposal, f"QOS {name or default}", mode, risk)


def _choose_time_limit(proposal: Proposal, cluster: Cluster, offer: _Offer | None) -> None:
    """Choose the time limit: an hour, or the maximum of the partition, account or QOS."""
    partition = offer.name if offer else ""
    maximum = offer.partition.limit if offer else TimeLimit(None)
    owner = f"partition {partition}"
    if "limits" in cluster.settings.enforced:
        job = derive_site_request(_draft_site(proposal), 1)
        limit_owner, enforced_limit = find_time_limit(job, cluster, partition)
        if maximum.exceeds(enforced_limit):
            maximum, owner = enforced_limit, limit_owner
    answer = proposal.given.get("time_limit", "")
    limit, reason = _HOUR, "no limit is lower"
    if answer:
        limit, reason = TimeLimit.parse(answer), _CHOSEN_BY_USER
        if limit.exceeds(maximum):
            raise UsageError(f"{owner} allows a job at most {maximum}.", hint=f"--time {maximum}")
    elif _HOUR.exceeds(maximum):
        limit, reason = maximum, f"{owner} allows a job no more"
    elif maximum.seconds:
        reason = f"{owner} allows a job {maximum}"
    proposal.take("slurm.time_limit", str(limit), reason, (), "--time")


def _draft_site(proposal: Proposal) -> Site:
    """Return the site as chosen so far; its jobs have an hour if no limit is chosen."""
    value_of = proposal.value_of
    slurm = SlurmSettings(
        partition=value_of("slurm.partition"),
        account=value_of("slurm.account"),
        qos=value_of("slurm.qos"),
        gres=value_of("slurm.gres"),
        memory=value_of("slurm.memory"),
        time_limit=TimeLimit.parse(value_of("slurm.time_limit") or _HOUR.text),
    )
    nodes = NodeSettings(gpus_per_node=int(value_of("nodes.gpus_per_node") or 1))
    return Site("", proposal.name, "slurm", slurm=slurm, nodes=nodes)


def _choose_memory(proposal: Proposal, default: str, rule: PartitionRules | None) -> None:
    """Ask for all memory of exclusive nodes if the cluster would give only a part of it."""
    value, reason = "", "jobs get what their nodes have"
    if rule and rule.most_memory:
        reason = "its partition allows a job no more of a node (MaxMemPerNode, MiB)"
        value = str(rule.most_memory)
    elif default:
        value, reason = "0", f"exclusive jobs would get only the cluster's default ({default})"
    proposal.take("slurm.memory", value, reason)


def _choose_mpi(proposal: Proposal, cluster: Cluster) -> None:
    """Choose how ranks are started: by PMIx, or else PMI-2, if srun has it."""
    kinds = tuple(kind for kind in cluster.mpi if kind != "none")
    name, answer = choose_mpi(("pmix", "pmi2"), kinds), proposal.given.get("mpi", "")
    reason = f"srun has it; its default is {cluster.settings.mpi or 'none'}"
    if answer:
        if cluster.mpi and answer not in cluster.mpi:
            hint = f"srun has {', '.join(cluster.mpi)}."
            raise UsageError(f"srun has no MPI type {answer!r} here.", hint=hint)
        name, reason = answer, _CHOSEN_BY_USER
    elif not name:
        reason = "srun has neither pmix nor pmi2" if cluster.mpi else "srun does not say"
    elif not name.startswith("pmix"):
        reason = "srun has no pmix"
        proposal.warnings.append(f"{reason}: programs that need PMIx can't find their ranks.")
    proposal.take("slurm.mpi", name, reason, kinds, "--mpi")


# --- What this machine has ------------------------------------------------------------------------


def _choose_runtime(proposal: Proposal, cluster: Cluster, surroundings: MachineFacts) -> None:
    """Choose how ranks enter an image: by srun's plugin if there is one."""
    runtimes = {"pyxis": "srun has --container-image"} if cluster.pyxis else {}
    for program in reversed(surroundings.programs):
        if runtime_name(program) in RUNTIMES:
            runtimes[runtime_name(program)] = f"{program} is on this machine"
    options = {**runtimes, "none": "on the host, without a container"}
    name, reason = proposal.given.get("runtime", ""), _CHOSEN_BY_USER
    if not name:
        name, reason = "pyxis" if cluster.pyxis else "none", "no pyxis, enroot or Apptainer is here"
        if runtimes and tuple(runtimes) != ("pyxis",):
            question = Question("container runtime", "--runtime", options, name)
            name = proposal.pick(question) or name
        reason = options[name] if runtimes else reason
    proposal.take("container.runtime", name, reason, runtimes, "--runtime")


def _choose_interface(proposal: Proposal, surroundings: MachineFacts) -> None:
    """Take a network only from the user: nodes may have others than this machine."""
    usual = "what the nodes' names resolve to"
    name, reason = proposal.given.get("interface", ""), _CHOSEN_BY_USER
    if not name and surroundings.fast:
        options = {fast: f"{fast}, which this machine has" for fast in surroundings.fast}
        question = Question("network interface", "--interface", {"": usual, **options})
        name, reason = proposal.pick(question), "this machine has it"
    reason = reason if name else usual
    proposal.take("nodes.interface", name, reason, surroundings.interfaces, "--interface")


def _choose_runs(proposal: Proposal, surroundings: MachineFacts, folder: Path) -> None:
    """Choose where campaigns go: next to the file, or where other machines see them."""
    shared_folders = {name: f"{path}/hpcbert" for name, path in surroundings.shared.items()}
    runs_folder, reason = proposal.given.get("runs", ""), _CHOSEN_BY_USER
    private_folder = machine.find_local_directory(str(folder))
    if not runs_folder and private_folder and shared_folders:
        name, shared_folder = next(iter(shared_folders.items()))
        runs_folder = f"{shared_folder}/runs"
        reason = f"{private_folder} is each machine's own; ${name} is shared"
    elif not runs_folder:
        runs_folder, reason = "runs", f"in {folder}, which all nodes must see"
        if private_folder:
            proposal.warnings.append(
                f"{folder} lies below {private_folder}, which is local to each machine: set runs, "
                "sources and images to a directory that all nodes share."
            )
    proposal.take("runs", runs_folder, reason, shared_folders.values(), "--runs")
    if runs_folder != "runs":
        base = Path(runs_folder).parent
        proposal.values["sources"] = json.dumps(str(base / "sources"))
        proposal.values["container.images"] = json.dumps(str(base / "images"))


# --- What sbatch accepts --------------------------------------------------------------------------


def _choose_form(proposal: Proposal, cluster: Cluster) -> None:
    """Choose the form of a request that sbatch accepts; warn if it accepts none."""
    site = _draft_site(proposal)
    trial = try_forms(site, cluster)
    if not trial.refusal:
        return
    if not trial.accepted:
        proposal.warnings.append(f"sbatch refuses a job of this site: {trial.refusal}")
        return
    forms = [accepted.slurm for accepted in trial.accepted]
    reason = f"sbatch refuses a job without it: {trial.refusal}"
    if forms[0].gpu_option != site.slurm.gpu_option:
        proposal.take("slurm.gpu_option", forms[0].gpu_option, reason)
    if forms[0].constraint:
        constraints = [form.constraint for form in forms]
        proposal.take("slurm.constraint", forms[0].constraint, reason, constraints)
    if forms[0].sbatch_args:
        text = json.dumps(forms[0].sbatch_args)
        proposal.choices.append(SiteChoice("slurm.sbatch_args", text, reason))
        proposal.values["slurm.sbatch_args"] = text


def local_values(cli_values: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the command line's values for a site without Slurm, as TOML values by dotted key."""
    keys = {"gpus_per_node": "nodes.gpus_per_node", "time_limit": "slurm.time_limit"}
    keys |= {"runtime": "container.runtime", "runs": "runs"}
    return {key: json.dumps(cli_values[name]) for name, key in keys.items() if cli_values.get(name)}


# --- As text --------------------------------------------------------------------------------------


def describe_choices(choices: list[SiteChoice]) -> str:
    """Return the choices, their reasons and the alternatives, one line per value."""
    width = max(len(choice.key) for choice in choices)
    lines = []
    for choice in choices:
        lines.append(f"  {choice.key:<{width}}  {choice.value or '-'}: {choice.why}")
        if choice.others:
            text = f" ({choice.flag})" if choice.flag else ""
            lines.append(f"  {'':<{width}}  also there{text}: {'; '.join(choice.others)}")
    return "\n".join(lines)


def render_site(reference: str, values: Mapping[str, str | None]) -> str:
    """Return the reference site.toml with some values replaced and comments kept.

    Args:
        reference: Text of the reference file.
        values: TOML values by dotted key, None to comment the key out; each key must be in the
            reference.
    """
    section, lines = "", []
    head = "# Written by hpcbert init; every key is explained.\n"
    for line in _HEAD.sub(head, reference).split("\n"):
        if line.startswith("["):
            section = line.strip("[]") + "."
        name, equals, _ = line.partition(" = ")
        key = f"{section}{name}"
        if not equals or line.startswith("#") or key not in values:
            lines.append(line)
        else:
            lines.append(f"# {line}" if values[key] is None else f"{name} = {values[key]}")
    return "\n".join(lines)
