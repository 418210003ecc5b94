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
from hpcbert.model import JobRequest, Protocol
from hpcbert.scheduler.slurm.admission import describe_restriction, find_time_limit, make_finding
from hpcbert.scheduler.slurm.cluster import HINTS, Cluster
from hpcbert.scheduler.slurm.examine import try_forms
from hpcbert.slurm.inventory import Partition, PartitionRules, Resource, choose_mpi
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
# The parameters of the command line that set keys of the site.
_PARAMETERS = {
    "slurm.partition": "partition",
    "slurm.gres": "gpu_type",
    "nodes.gpus_per_node": "gpus_per_node",
    "slurm.account": "account",
    "slurm.qos": "qos",
    "slurm.time_limit": "time_limit",
    "slurm.mpi": "mpi",
    "container.runtime": "runtime",
    "nodes.interface": "interface",
    "runs": "runs",
}
_HOUR = TimeLimit.parse("01:00:00")
_MOST_SHOWN = 8
_CHOSEN_BY_USER = "you said so"
# Variables of Environment Modules and of Lmod.
_MODULES = ("MODULEPATH", "MODULESHOME", "LMOD_CMD")


def _flag_of(key: str) -> str:
    """Return the option that sets a key; empty if none does."""
    flag = f"--{_PARAMETERS[key]}" if key in _PARAMETERS else ""
    return flag.replace("_limit", "").replace("_", "-")


@dataclass(frozen=True)
class Question:
    """A question for the user at a terminal.

    Attributes:
        name: `partition`.
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
        folder: The folder of the site.toml.
        cli_values: Values of the command line, by parameter.
        pick: Answers a question with one of its options, or with nothing.
        values: TOML values by dotted key; None to comment a key out.
        warnings: What the user must know before relying on the site.
    """

    cluster: Cluster
    surroundings: MachineFacts
    folder: Path
    cli_values: Mapping[str, Any]
    pick: Callable[[Question], str]
    values: dict[str, str | None] = field(default_factory=dict)
    choices: list[SiteChoice] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.cluster.settings.name or "cluster"

    @property
    def rules(self) -> PartitionRules | None:
        """The conditions of the chosen partition for jobs; None if Slurm does not show them."""
        return self.cluster.rules.get(self.value_of("slurm.partition"))

    def answer(self, key: str) -> str:
        """Return the command line's value of a key; empty if there is none."""
        return str(self.cli_values.get(_PARAMETERS[key]) or "")

    def take(self, key: str, value: Any, reason: str, options: Iterable[str] = ()) -> None:
        """Note a choice among options, as the value of its key."""
        alternatives = tuple(option for option in options if option != value)
        text = value if isinstance(value, str) else json.dumps(value)
        self.choices.append(SiteChoice(key, text, reason, alternatives, _flag_of(key)))
        self.values[key] = json.dumps(value)

    def choose(
        self, key: str, name: str, options: Mapping[str, str], default: str = "", *, also: str = ""
    ) -> str:
        """Return the answer of the command line, the only option, or what the user picks.

        Args:
            also: Other options of the command line that the user has to give.

        Raises:
            UsageError: The answer is not among the options, or only the user can answer.
        """
        answer = self.answer(key)
        if answer and options and answer not in options:
            hint = did_you_mean(answer, options)
            raise UsageError(f"This cluster has no {name} {answer!r}.", hint=hint)
        flag = f"{_flag_of(key)}{also}"
        question = Question(name, flag, options, default)
        choice = answer or (next(iter(options)) if len(options) == 1 else self.pick(question))
        if not choice:
            hint = f"Give {flag}: {'; '.join(options.values())}".rstrip(": ") + "."
            raise UsageError(f"Only you can say which {name} to use.", hint=hint)
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
        raise SchedulerError(
            "Slurm's commands are not on this machine's PATH; a module may have them.",
            hint="Load Slurm, then repeat init: `module avail slurm`, `module load NAME`. "
            "--local: without Slurm.",
        )
    if silence in {"away", "failed"}:
        hint = f"{HINTS[silence]} --local: without Slurm."
        raise SchedulerError(f"{cluster.complaint}.", hint=hint)
    return silence not in {"missing", "unconfigured"}


def complete(proposal: Proposal) -> None:
    """Choose every value of the site that suits a cluster.

    Raises:
        UsageError: A requested value does not exist, or only the user can choose one.
    """
    proposal.values |= {**_CLUSTER, "scheduler": '"slurm"', "name": json.dumps(proposal.name)}
    offer = _choose_partition(proposal)
    if offer is None:
        _take_private_gpus(proposal)
    elif offer.kinds:
        _choose_gpus(proposal, offer)
    else:
        _take_cpus(proposal, offer)
    _choose_account(proposal)
    _choose_qos(proposal)
    _choose_time_limit(proposal, offer.partition.limit if offer else TimeLimit(None))
    _choose_memory(proposal)
    _choose_mpi(proposal)
    _choose_runtime(proposal)
    _choose_interface(proposal)
    _choose_runs(proposal)
    _choose_form(proposal)
    most_indices = proposal.cluster.settings.most_indices
    if most_indices is not None and most_indices < Protocol.repeats:
        proposal.warnings.append(
            f"An array has at most {most_indices} elements here (MaxArraySize): the "
            f"{Protocol.repeats} repeats of a point become several arrays."
        )


# --- What partitions offer ------------------------------------------------------------------------


@dataclass(frozen=True)
class _GpuKind:
    """GPUs of one type in a partition: as many on most nodes that have any, `most` on one."""

    gpus: Resource
    nodes: int
    most: int

    @property
    def name(self) -> str:
        return self.gpus.kind or "gpu"

    def __str__(self) -> str:
        slices = ", slices of GPUs (MIG)" if self.gpus.sliced else ""
        return f"{format_count(self.nodes, 'node')} with {self.gpus}{slices}"


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
        return bool(self.barred), not self.kinds, all(kind.gpus.sliced for kind in self.kinds)

    @property
    def rank(self) -> tuple[object, ...]:
        """Its rank among others, the lowest first.

        First come partitions with GPUs that the user may use: whole ones before slices, jobs of an
        hour before shorter ones, jobs of any size before those of many nodes only, the default
        before other partitions, nodes of their own before shared ones, jobs that none preempts
        before others, many GPUs before few.
        """
        gpu_kinds = [kind for kind in self.kinds if not kind.gpus.sliced] or self.kinds
        return (
            *self.tier,
            _HOUR.exceeds(self.partition.limit),
            self.partition.least_nodes > 1,
            not self.partition.default,
            bool(self.forced_sharing),
            bool(self.risk),
            -sum(kind.nodes * kind.gpus.count for kind in gpu_kinds),
            self.name,
        )

    @property
    def terms(self) -> str:
        """Its GPUs, what it allows a job, and what speaks against it."""
        partition = self.partition
        texts = [str(kind) for kind in self.kinds] or [f"no GPUs, {partition.nodes} nodes"]
        if partition.limit.seconds is not None:
            texts.append(f"{partition.limit} at most")
        if partition.least_nodes > 1:
            texts.append(f"no fewer than {partition.least_nodes} nodes a job")
        if partition.most_nodes is not None:
            texts.append(f"at most {partition.most_nodes} nodes a job")
        texts += filter(None, [self.barred or self.risk])
        return ", ".join(texts)

    def __str__(self) -> str:
        return f"{self.name} ({self.terms})"


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
    for group in partition.groups:
        counts: Counter[str] = Counter()
        for resource in group.resources:
            if resource.name == "gpu" and resource.count:
                counts[resource.kind] += resource.count
        for name, count in counts.items():
            nodes.setdefault(name, Counter())[count] += group.count
    kinds = []
    for name, sizes in nodes.items():
        count, node_count = max(sizes.items(), key=lambda size: (size[1], size[0]))
        kinds.append(_GpuKind(Resource("gpu", name, count), node_count, max(sizes)))
    kinds.sort(key=lambda kind: (kind.gpus.sliced, -kind.nodes * kind.gpus.count, kind.gpus.kind))
    return tuple(kinds)


def _explain_bar(partition: Partition, rule: PartitionRules | None, cluster: Cluster) -> str:
    """Return the reason why the user can't run there; empty if none is known."""
    if partition.state != "up":
        return f"it is {partition.state}"
    reason = describe_restriction(rule) if rule else ""
    enforced, own = cluster.settings.enforced, cluster.rights.own
    if reason or rule is None or "associations" not in enforced or not own:
        return reason
    associations = [entry for entry in own if entry.partition in {"", partition.name}]
    if not any(cluster.takes_account(rule, entry.account) for entry in associations):
        return f"it is for the accounts {', '.join(rule.accounts) or 'of others'} only"
    qos = {name for association in associations for name in association.qos}
    if "qos" in enforced and qos and not any(map(rule.takes_qos, qos)):
        return f"it is for the QOS {', '.join(rule.qos) or 'of others'} only"
    return ""


# --- Partition and GPUs ---------------------------------------------------------------------------


def _choose_partition(proposal: Proposal) -> _Offer | None:
    """Choose the partition; None if Slurm shows none."""
    cluster, gpu_type = proposal.cluster, proposal.answer("slurm.gres")
    offers, answer = _list_offers(cluster), proposal.answer("slurm.partition")
    if not offers:
        also = ", --gpus-per-node and --gpu-type"
        name = proposal.choose("slurm.partition", "partition", {}, also=also)
        proposal.take("slurm.partition", name, f"{_CHOSEN_BY_USER}; Slurm shows no partitions")
        proposal.warnings.append(f"{cluster.complaint}. hpcbert could not check this site.")
        return None
    types = {offer.name: [kind.name for kind in offer.kinds] for offer in offers}
    candidates = [offer for offer in offers if not gpu_type or gpu_type in types[offer.name]]
    if not candidates:
        names = sorted({kind for kinds in types.values() for kind in kinds})
        hint = f"The cluster has: {', '.join(names) or 'no GPUs'}."
        raise UsageError(f"No partition has GPUs of type {gpu_type!r}.", hint=hint)
    best = candidates[0]
    if not best.partition.exact:
        proposal.warnings.append(
            f"{cluster.complaint}. GPUs per node and types are whole partitions': check them."
        )
    options = {offer.name: str(offer) for offer in candidates if answer or offer.tier == best.tier}
    name = proposal.choose("slurm.partition", "partition", options, best.name)
    chosen = next(offer for offer in candidates if offer.name == name)
    alternatives = [str(offer) for offer in candidates if offer is not chosen][:_MOST_SHOWN]
    default = next((offer for offer in candidates if offer.partition.default), chosen)
    reason = chosen.terms if default is chosen else f"{chosen.terms}; the default is {default}"
    if answer or chosen.partition.default:
        reason = f"{_CHOSEN_BY_USER if answer else 'the default'}: {reason}"
    proposal.take("slurm.partition", name, reason, alternatives)
    if chosen.barred:
        proposal.warnings.append(f"Partition {name} may refuse your jobs: {chosen.barred}.")
    if chosen.risk:
        mode = cluster.rules[name].preemption
        _warn_of_preemption(proposal, f"Partition {name}", mode, chosen.risk)
    if chosen.forced_sharing:
        finding = make_finding("shared-nodes", partition=name, sharing=chosen.forced_sharing)
        proposal.warnings.append(finding.detail)
    return chosen


def _warn_of_preemption(proposal: Proposal, source: str, mode: str, risk: str) -> None:
    consequence = "a repeat that is preempted is lost or starts again"
    proposal.warnings.append(f"{source} is preemptible ({mode}): {risk}, and {consequence}.")


def _take_private_gpus(proposal: Proposal) -> None:
    """Take type and number of GPUs from the user, where Slurm shows no partitions."""
    kind = proposal.answer("slurm.gres")
    count = proposal.choose("nodes.gpus_per_node", "number of GPUs in a node", {})
    if not count.isdigit():
        raise UsageError(f"{count!r} is not a valid number of GPUs.", hint="Give --gpus-per-node.")
    proposal.take("slurm.gres", f"gpu:{kind}" if kind else "gpu", _CHOSEN_BY_USER)
    proposal.take("nodes.gpus_per_node", int(count), _CHOSEN_BY_USER)


def _take_cpus(proposal: Proposal, offer: _Offer) -> None:
    reason = f"partition {offer.name} has no GPUs"
    resources = tuple(offer.partition.resources)
    proposal.choices.append(SiteChoice("slurm.gres", "", reason, resources))
    proposal.values["slurm.gres"] = '""'
    proposal.values["frameworks.pytorch.device"] = '"cpu"'
    count = proposal.answer("nodes.gpus_per_node") or "1"
    proposal.take("nodes.gpus_per_node", int(count), "ranks a node")
    proposal.warnings.append(
        f"Partition {offer.name} has no GPUs: the reference runs on CPUs, in a table of its own."
    )


def _choose_gpus(proposal: Proposal, offer: _Offer) -> None:
    """Choose the type of GPU and the number per node."""
    kinds = {kind.name: kind for kind in offer.kinds}
    options = {name: str(kind) for name, kind in kinds.items()}
    usual = next(iter(kinds))
    name = proposal.choose("slurm.gres", "GPU type", options, usual)
    kind = kinds[name]
    is_chosen = proposal.answer("slurm.gres") or name != usual
    reason = f"{_CHOSEN_BY_USER}: {kind}" if is_chosen else str(kind)
    alternatives = [text for other, text in options.items() if other != name]
    gres = f"gpu:{kind.gpus.kind}".rstrip(":")
    proposal.take("slurm.gres", gres, reason, alternatives)
    if kind.gpus.sliced:
        proposal.warnings.append(
            f"{gres} is a slice of a GPU (MIG): NCCL does not join slices, so only one "
            "rank can run, and its throughput is not that of a GPU."
        )
    count = proposal.answer("nodes.gpus_per_node") or str(kind.gpus.count)
    if int(count) > kind.most:
        raise UsageError(
            f"No node of partition {offer.name} has {gres}:{count}.",
            hint=f"Ask for at most --gpus-per-node {kind.most}.",
        )
    proposal.take("nodes.gpus_per_node", int(count), str(kind))
    if is_lab(proposal.cluster.context.environ):
        reason = "the lab's GPUs are fake: a rank without one trains on the CPU"
        proposal.take("frameworks.pytorch.device", "auto", reason)


# --- Account, QOS and limits ----------------------------------------------------------------------


def _choose_account(proposal: Proposal) -> None:
    """Choose who pays, if the cluster needs to know."""
    cluster, rights, rules = proposal.cluster, proposal.cluster.rights, proposal.rules
    is_enforced = "associations" in cluster.settings.enforced
    answer = proposal.answer("slurm.account")
    usable_accounts = {
        association.account: f"account {association.account}"
        for association in rights.own
        if association.partition in {"", proposal.value_of("slurm.partition")}
        if not is_enforced or rules is None or cluster.takes_account(rules, association.account)
    }
    name, reason = answer, _CHOSEN_BY_USER if answer else "the cluster does not check it"
    if is_enforced and (answer or usable_accounts):
        default = rights.default if rights.default in usable_accounts else ""
        name = proposal.choose("slurm.account", "account", usable_accounts, default)
        reason = _CHOSEN_BY_USER if answer else "yours"
    elif is_enforced:
        reason = "none is known to be yours"
        proposal.warnings.append(
            "You have no account that may use this partition: ask for one."
            if rights.known
            else "The cluster checks accounts, and accounting does not say which are yours: give "
            "--account if your default one is not right."
        )
    proposal.take("slurm.account", name, reason, usable_accounts)


def _choose_qos(proposal: Proposal) -> None:
    """Choose the first QOS that the partition accepts, if it does not accept the default."""
    cluster, rules, answer = proposal.cluster, proposal.rules, proposal.answer("slurm.qos")
    account, partition = proposal.value_of("slurm.account"), proposal.value_of("slurm.partition")
    association = cluster.rights.of(account, partition)
    names = association.qos if association else ()
    usable_qos = {name: f"QOS {name}" for name in names if rules is None or rules.takes_qos(name)}
    default = cluster.rights.qos_of(account, partition)
    is_enforced = "qos" in cluster.settings.enforced
    name, reason = "", f"the default, {default}".rstrip(", ")
    if answer:
        name = proposal.choose("slurm.qos", "QOS", usable_qos if is_enforced else {})
        reason = _CHOSEN_BY_USER
    elif is_enforced and names and not usable_qos:
        proposal.warnings.append("None of your QOS may use this partition: ask for one.")
    elif is_enforced and default not in usable_qos and len(usable_qos) < len(names):
        name = next(iter(usable_qos))
        reason = f"partition {partition} does not accept {default or 'every QOS of yours'}"
    proposal.take("slurm.qos", name, reason, [qos for qos in usable_qos if qos != default])
    mode, preempting = cluster.find_preempting_qos(name or default)
    if preempting:
        risk = f"its jobs may be preempted by those of QOS {', '.join(preempting)}"
        _warn_of_preemption(proposal, f"QOS {name or default}", mode, risk)


def _choose_time_limit(proposal: Proposal, maximum: TimeLimit) -> None:
    """Choose the time limit: an hour, or the maximum of the partition, account or QOS."""
    cluster, partition = proposal.cluster, proposal.value_of("slurm.partition")
    owner = f"partition {partition}"
    if "limits" in cluster.settings.enforced:
        value_of = proposal.value_of
        job = JobRequest(account=value_of("slurm.account"), qos=value_of("slurm.qos"))
        limit_owner, enforced_limit = find_time_limit(job, cluster, partition)
        if maximum.exceeds(enforced_limit):
            maximum, owner = enforced_limit, limit_owner
    answer = proposal.answer("slurm.time_limit")
    limit, reason = _HOUR, f"{owner} allows a job {maximum}"
    if answer:
        limit, reason = TimeLimit.parse(answer), _CHOSEN_BY_USER
        if limit.exceeds(maximum):
            raise UsageError(f"{owner} allows a job at most {maximum}.", hint=f"--time {maximum}")
    elif _HOUR.exceeds(maximum):
        limit = maximum
    proposal.take("slurm.time_limit", str(limit), reason)


def _choose_memory(proposal: Proposal) -> None:
    """Ask for all memory of exclusive nodes if the cluster would give only a part of it."""
    rules = proposal.rules
    default = proposal.cluster.memory(proposal.value_of("slurm.partition"))
    value, reason = "", "jobs get what their nodes have"
    if rules and rules.most_memory:
        reason = "its partition allows a job no more of a node (MaxMemPerNode, MiB)"
        value = str(rules.most_memory)
    elif default:
        value, reason = "0", f"exclusive jobs would get only the cluster's default ({default})"
    proposal.take("slurm.memory", value, reason)


def _choose_mpi(proposal: Proposal) -> None:
    """Choose how ranks are started: by PMIx, or else PMI-2, if srun has it."""
    types, answer = proposal.cluster.mpi, proposal.answer("slurm.mpi")
    kinds = [kind for kind in types if kind != "none"]
    name = choose_mpi(("pmix", "pmi2"), kinds)
    reason = f"srun's default is {proposal.cluster.settings.mpi or 'none'}"
    if answer:
        name = proposal.choose("slurm.mpi", "MPI type", dict.fromkeys(types, ""))
        reason = _CHOSEN_BY_USER
    elif name and not name.startswith("pmix"):
        proposal.warnings.append("srun has no pmix: programs that need it can't find their ranks.")
    proposal.take("slurm.mpi", name, reason, kinds)


# --- What this machine has ------------------------------------------------------------------------


def _choose_runtime(proposal: Proposal) -> None:
    """Choose how ranks enter an image: by srun's plugin if there is one."""
    runtimes = {"pyxis": "srun has --container-image"} if proposal.cluster.pyxis else {}
    for program in reversed(proposal.surroundings.programs):
        if runtime_name(program) in RUNTIMES:
            runtimes[runtime_name(program)] = f"{program} is on this machine"
    options = {**runtimes, "none": "on the host, without a container"}
    name, reason = proposal.answer("container.runtime"), _CHOSEN_BY_USER
    if not name:
        name = "pyxis" if "pyxis" in runtimes else "none"
        if set(runtimes) - {"pyxis"}:
            name = proposal.choose("container.runtime", "container runtime", options, name)
        reason = options[name]
    proposal.take("container.runtime", name, reason, runtimes)


def _choose_interface(proposal: Proposal) -> None:
    """Take a network only from the user: nodes may have others than this machine."""
    usual, surroundings = "what the nodes' names resolve to", proposal.surroundings
    name = proposal.answer("nodes.interface")
    if not name and surroundings.fast:
        options = {fast: f"{fast}, which this machine has" for fast in surroundings.fast}
        question = Question("network interface", "--interface", {"": usual, **options})
        name = proposal.pick(question)
    reason = _CHOSEN_BY_USER if name else usual
    proposal.take("nodes.interface", name, reason, surroundings.interfaces)


def _choose_runs(proposal: Proposal) -> None:
    """Choose where campaigns go: next to the file, or where other machines see them."""
    folder = proposal.folder
    shared_folders = [f"{path}/hpcbert" for path in proposal.surroundings.shared.values()]
    runs_folder, reason = proposal.answer("runs"), _CHOSEN_BY_USER
    private_folder = machine.find_local_directory(str(folder))
    if not runs_folder and private_folder and shared_folders:
        runs_folder = f"{shared_folders[0]}/runs"
        reason = f"{private_folder} is each machine's own"
    elif not runs_folder:
        runs_folder, reason = "runs", f"in {folder}, which all nodes must see"
        if private_folder:
            proposal.warnings.append(
                f"{folder} lies below {private_folder}, which is local to each machine: set runs, "
                "sources and images to a directory that all nodes share."
            )
    proposal.take("runs", runs_folder, reason, shared_folders)
    if runs_folder != "runs":
        base = Path(runs_folder).parent
        proposal.values["sources"] = json.dumps(str(base / "sources"))
        proposal.values["container.images"] = json.dumps(str(base / "images"))


# --- What sbatch accepts --------------------------------------------------------------------------


def _choose_form(proposal: Proposal) -> None:
    """Choose the form of a request that sbatch accepts; warn if it accepts none."""
    value_of = proposal.value_of
    keys = ("partition", "account", "qos", "gres", "memory")
    values: dict[str, Any] = {key: value_of(f"slurm.{key}") for key in keys}
    slurm = SlurmSettings(**values, time_limit=TimeLimit.parse(value_of("slurm.time_limit")))
    nodes = NodeSettings(gpus_per_node=int(value_of("nodes.gpus_per_node")))
    site = Site("", proposal.name, "slurm", slurm=slurm, nodes=nodes)
    trial = try_forms(site, proposal.cluster)
    if trial.refusal and not trial.accepted:
        proposal.warnings.append(f"sbatch refuses a job of this site: {trial.refusal}")
    if not trial.accepted:
        return
    forms = trial.accepted
    reason = f"sbatch refuses a job without it: {trial.refusal}"
    if forms[0].gpu_option != site.slurm.gpu_option:
        proposal.take("slurm.gpu_option", forms[0].gpu_option, reason)
    if forms[0].constraint:
        constraints = [form.constraint for form in forms]
        proposal.take("slurm.constraint", forms[0].constraint, reason, constraints)
    if forms[0].sbatch_args:
        proposal.take("slurm.sbatch_args", forms[0].sbatch_args, reason)


def local_values(typed: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the command line's values for a site without Slurm, as TOML values by dotted key."""
    return {key: json.dumps(typed[name]) for key, name in _PARAMETERS.items() if typed.get(name)}


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
