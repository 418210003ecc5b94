"""Write a first site.toml: the reference file with the values of this machine or cluster.

Each value comes from the command line, from what the cluster has, or from the user at a terminal,
who chooses the partition, the type of GPU, the account and the container runtime. If only the user
can know a value (which account pays, the names of private partitions), nothing is guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcbert.commands.site_choices import GpuKind, PartitionOffer, list_offers
from hpcbert.config.options import RUNTIMES, runtime_name
from hpcbert.config.site import NodeSettings, Site, SlurmSettings
from hpcbert.errors import SchedulerError, UsageError
from hpcbert.lab.plan import is_lab
from hpcbert.model import Protocol
from hpcbert.scheduler.slurm.admission import (
    derive_site_demand,
    describe_forced_sharing,
    find_time_limit,
)
from hpcbert.scheduler.slurm.cluster import HINTS, Cluster
from hpcbert.scheduler.slurm.trial import try_forms
from hpcbert.slurm.inventory import PartitionRules, choose_mpi
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
    options: Mapping[str, str]
    default: str = ""


@dataclass(frozen=True)
class SiteChoice:
    """One value of the site.

    Attributes:
        key: Its key in the site.toml.
        value: The chosen value; empty if the cluster decides.
        why: The reason, as the end of a sentence.
        others: The alternatives.
        flag: The option to choose otherwise.
    """

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
        choices: What was chosen.
        values: TOML values by dotted key; None to comment a key out.
        warnings: What the user must know before relying on the site.
    """

    given: Mapping[str, Any]
    pick: Callable[[Question], str]
    choices: list[SiteChoice] = field(default_factory=list)
    values: dict[str, str | None] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The cluster's name."""
        return str(json.loads(self.values.get("name") or '""'))

    def take(
        self, key: str, value: str, reason: str, alternatives: tuple[str, ...] = (), flag: str = ""
    ) -> None:
        """Note a choice, as the value of its key."""
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
        if len(options) == 1:
            return next(iter(options))
        choice = self.pick(question)
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
    silence = cluster.silence
    if silence == "missing":
        _refuse_unloaded(cluster.context.environ)
    if silence in {"missing", "unconfigured"}:
        return False
    if silence in {"away", "failed"}:
        raise SchedulerError(
            f"{cluster.complaint}.", hint=f"{HINTS[silence]} --local: without Slurm."
        )
    return True


def _refuse_unloaded(environ: Mapping[str, str]) -> None:
    """Refuse a machine without Slurm's commands where `module load` may provide them."""
    if not any(environ.get(name) for name in _MODULES):
        return
    folders = [Path(folder) for folder in environ.get("MODULEPATH", "").split(":") if folder]
    names = sorted(
        {path.name.removesuffix(".lua") for folder in folders for path in folder.glob("[Ss]lurm*")}
    )
    where = f"and the module {names[0]} is not loaded" if names else "but it has modules"
    raise SchedulerError(
        f"Slurm's commands are not on this machine's PATH, {where}.",
        hint=f"Load Slurm, then repeat init: `module avail slurm`, `module load "
        f"{names[0] if names else 'NAME'}`. --local: without Slurm.",
    )


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
    proposal = Proposal(
        {name: value for name, value in cli_values.items() if value},
        pick,
        values={**_CLUSTER, "scheduler": '"slurm"'},
    )
    proposal.values["name"] = json.dumps(cluster.settings.name or "cluster")
    offer = _choose_partition(proposal, cluster)
    partition = offer.name if offer else ""
    rule = cluster.rules.get(partition)
    if offer is None:
        _take_private_gpus(proposal)
    elif offer.kinds:
        _choose_gpus(proposal, offer, cluster.context.environ)
    else:
        _take_cpus(proposal, offer)
    _choose_account(proposal, cluster, partition, rule)
    _choose_qos(proposal, cluster, partition, rule)
    _choose_time_limit(proposal, cluster, offer)
    _choose_memory(proposal, cluster, partition, rule)
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


# --- Partition and GPUs ---------------------------------------------------------------------------


def _choose_partition(proposal: Proposal, cluster: Cluster) -> PartitionOffer | None:
    """Choose the partition; None if Slurm shows none."""
    candidates = _filter_by_gpu(list_offers(cluster), proposal.given.get("gpu_type", ""))
    answer = proposal.given.get("partition", "")
    if not candidates:
        question = Question("partition", "--partition, --gpus-per-node and --gpu-type", {})
        name = proposal.choose(question, answer)
        proposal.take("slurm.partition", name, f"{_CHOSEN_BY_USER}; Slurm shows no partitions")
        proposal.warnings.append(f"{cluster.complaint}. hpcbert could not check this site.")
        return None
    if not cluster.partitions[candidates[0].name].exact:
        proposal.warnings.append(
            f"{cluster.complaint}. GPUs per node and types are whole partitions': check them."
        )
    best = candidates[0]
    options = {offer.name: str(offer) for offer in candidates if answer or offer.tier == best.tier}
    name = proposal.choose(Question("partition", "--partition", options, best.name), answer)
    chosen = next(offer for offer in candidates if offer.name == name)
    reason = _explain_choice(chosen, candidates)
    if answer:
        reason = f"{_CHOSEN_BY_USER}: {_describe_gpus(chosen)}"
    alternatives = tuple(str(offer) for offer in candidates if offer is not chosen)[:_MOST_SHOWN]
    proposal.take("slurm.partition", name, reason, alternatives, "--partition")
    if chosen.barred:
        proposal.warnings.append(f"Partition {name} may refuse your jobs: {chosen.barred}.")
    if chosen.risk:
        mode = cluster.rules[name].preemption
        proposal.warnings.append(_describe_preemption(f"Partition {name}", mode, chosen.risk))
    if chosen.forced_sharing:
        proposal.warnings.append(describe_forced_sharing(name, chosen.forced_sharing))
    return chosen


def _describe_preemption(source: str, mode: str, risk: str) -> str:
    consequence = "a repeat that is preempted is lost or starts again"
    return f"{source} is preemptible ({mode}): {risk}, and {consequence}."


def _describe_gpus(offer: PartitionOffer) -> str:
    return "; ".join(map(str, offer.kinds)) or "it has no GPUs, nor does any other partition"


def _explain_choice(best: PartitionOffer, candidates: tuple[PartitionOffer, ...]) -> str:
    """Return the reason for a partition: its GPUs, the drawback of the default, and its own."""
    risk = f"; {best.risk}" if best.risk else ""
    if best.partition.default:
        return f"the default: {_describe_gpus(best)}{risk}"
    default = next((offer for offer in candidates if offer.partition.default), None)
    if default is None or not default.drawback(best):
        return f"{_describe_gpus(best)}{risk}"
    drawback = f"the default, {default.name}, {default.drawback(best)}"
    return f"{_describe_gpus(best)}; {drawback}{risk}"


def _filter_by_gpu(
    candidates: tuple[PartitionOffer, ...], gpu_type: str
) -> tuple[PartitionOffer, ...]:
    """Return the partitions that have a type of GPU; all if none is wanted.

    Raises:
        UsageError: None has it.
    """
    if not gpu_type:
        return candidates
    matches = [
        offer for offer in candidates if gpu_type in [kind.name or "gpu" for kind in offer.kinds]
    ]
    if candidates and not matches:
        kinds = {kind.gres.removeprefix("gpu:") for offer in candidates for kind in offer.kinds}
        hint = f"The cluster has: {', '.join(sorted(kinds)) or 'no GPUs'}."
        raise UsageError(f"No partition has GPUs of type {gpu_type!r}.", hint=hint)
    return tuple(matches)


def _take_private_gpus(proposal: Proposal) -> None:
    """Take type and number of GPUs from the user, where Slurm shows no partitions."""
    kind = proposal.given.get("gpu_type", "")
    question = Question("number of GPUs in a node", "--gpus-per-node", {})
    count = proposal.choose(question, str(proposal.given.get("gpus_per_node", "")))
    if not count.isdigit():
        raise UsageError(f"{count!r} is not a valid number of GPUs.", hint="Give --gpus-per-node.")
    proposal.take("slurm.gres", f"gpu:{kind}" if kind else "gpu", _CHOSEN_BY_USER, (), "--gpu-type")
    proposal.take("nodes.gpus_per_node", count, _CHOSEN_BY_USER, (), "--gpus-per-node")


def _take_cpus(proposal: Proposal, offer: PartitionOffer) -> None:
    groups = offer.partition.groups
    alternatives = dict.fromkeys(str(resource) for group in groups for resource in group.resources)
    proposal.take("slurm.gres", "", f"partition {offer.name} has no GPUs", tuple(alternatives))
    proposal.values["frameworks.pytorch.device"] = '"cpu"'
    count = str(proposal.given.get("gpus_per_node", 1))
    proposal.take("nodes.gpus_per_node", count, "ranks a node", (), "--gpus-per-node")
    proposal.warnings.append(
        f"Partition {offer.name} has no GPUs: the reference runs on CPUs, in a table of its own."
    )


def _choose_gpus(proposal: Proposal, offer: PartitionOffer, environ: Mapping[str, str]) -> None:
    """Choose the type of GPU and the number per node."""
    kind = _choose_kind(proposal, offer.kinds)
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


def _choose_kind(proposal: Proposal, kinds: tuple[GpuKind, ...]) -> GpuKind:
    options = {kind.name or "gpu": str(kind) for kind in kinds}
    question = Question("GPU type", "--gpu-type", options, kinds[0].name or "gpu")
    name = proposal.choose(question, proposal.given.get("gpu_type", ""))
    kind = next(kind for kind in kinds if (kind.name or "gpu") == name)
    texts = tuple(str(other) for other in kinds if other is not kind)
    is_picked = proposal.given.get("gpu_type") or kind is not kinds[0]
    text = f"{_CHOSEN_BY_USER}: {kind}" if is_picked else str(kind)
    proposal.take("slurm.gres", kind.gres, text, texts, "--gpu-type")
    if kind.sliced:
        proposal.warnings.append(
            f"{kind.gres} is a slice of a GPU (MIG): NCCL does not join slices, so only one "
            "rank can run, and its throughput is not that of a GPU."
        )
    return kind


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
    if answer or (is_enforced and usable_accounts):
        question = Question("account", "--account", usable_accounts if is_enforced else {}, default)
        name = proposal.choose(question, answer)
        alternatives = tuple(other for other in usable_accounts if other != name)
        reason = _CHOSEN_BY_USER if answer else "your default" if name == default else "yours"
        proposal.take("slurm.account", name, reason, alternatives, "--account")
        return
    reason = "the cluster requires none"
    if usable_accounts:
        reason = f"the cluster does not check it; yours is {default or ', '.join(usable_accounts)}"
    elif is_enforced and not rights.known:
        reason = "accounting does not answer"
        proposal.warnings.append(
            "The cluster checks accounts, and accounting does not say which are yours: give "
            "--account if your default one is not right."
        )
    elif is_enforced:
        reason = "accounting shows none of yours"
        problem = "None of your accounts may use this partition"
        proposal.warnings.append(
            f"{problem if rights.own else 'You have no account'}: ask for one."
        )
    proposal.take("slurm.account", "", reason, tuple(usable_accounts), "--account")


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
    if answer:
        name = proposal.choose(Question("QOS", "--qos", usable_qos if is_enforced else {}), answer)
        reason = _CHOSEN_BY_USER
    elif (
        not is_enforced or not usable_qos or default in usable_qos or set(usable_qos) == set(names)
    ):
        name, reason = "", f"the default, {default}" if default else "the default"
    else:
        name = next(iter(usable_qos))
        reason = f"partition {partition} does not accept {default or 'every QOS of yours'}"
    if is_enforced and names and not usable_qos and not name:
        proposal.warnings.append("None of your QOS may use this partition: ask for one.")
    alternatives = tuple(other for other in usable_qos if other not in {name, default})
    proposal.take("slurm.qos", name, reason, alternatives, "--qos")
    mode, preempting = cluster.find_preempting_qos(name or default)
    if preempting:
        risk = f"its jobs may be preempted by those of QOS {', '.join(preempting)}"
        proposal.warnings.append(_describe_preemption(f"QOS {name or default}", mode, risk))


def _choose_time_limit(proposal: Proposal, cluster: Cluster, offer: PartitionOffer | None) -> None:
    """Choose the time limit: an hour, or the maximum of the partition, account or QOS."""
    partition = offer.name if offer else ""
    maximum = offer.partition.limit if offer else TimeLimit(None)
    owner = f"partition {partition}"
    if "limits" in cluster.settings.enforced:
        job = derive_site_demand(_draft_site(proposal), 1)
        limit_owner, enforced_limit = find_time_limit(job, cluster, partition)
        if maximum.exceeds(enforced_limit):
            maximum, owner = enforced_limit, limit_owner
    answer = proposal.given.get("time_limit", "")
    if answer:
        limit, reason = TimeLimit.parse(answer), _CHOSEN_BY_USER
        if limit.exceeds(maximum):
            raise UsageError(f"{owner} allows a job at most {maximum}.", hint=f"--time {maximum}")
    elif _HOUR.exceeds(maximum):
        limit, reason = maximum, f"{owner} allows a job no more"
    else:
        limit, reason = _HOUR, "no limit is lower"
        if maximum.seconds:
            reason = f"{owner} allows a job {maximum}"
    proposal.take("slurm.time_limit", str(limit), reason, (), "--time")


def _draft_site(proposal: Proposal) -> Site:
    """Return the site as chosen so far; its jobs have an hour if no limit is chosen."""
    slurm = SlurmSettings(
        partition=proposal.value_of("slurm.partition"),
        account=proposal.value_of("slurm.account"),
        qos=proposal.value_of("slurm.qos"),
        gres=proposal.value_of("slurm.gres"),
        memory=proposal.value_of("slurm.memory"),
        time_limit=TimeLimit.parse(proposal.value_of("slurm.time_limit") or _HOUR.text),
    )
    nodes = NodeSettings(gpus_per_node=int(proposal.value_of("nodes.gpus_per_node") or 1))
    return Site("", proposal.name, "slurm", slurm=slurm, nodes=nodes)


def _choose_memory(
    proposal: Proposal, cluster: Cluster, partition: str, rule: PartitionRules | None
) -> None:
    """Ask for all memory of exclusive nodes if the cluster would give only a part of it."""
    default = cluster.memory(partition)
    value, reason = "", "jobs get what their nodes have"
    if rule and rule.most_memory:
        reason = f"partition {partition} allows a job no more of a node (MaxMemPerNode, MiB)"
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
        proposal.warnings.append(
            "srun has no pmix: programs that need PMIx can't find their ranks."
        )
    alternatives = tuple(kind for kind in kinds if kind != name)
    proposal.take("slurm.mpi", name, reason, alternatives, "--mpi")


# --- What this machine has ------------------------------------------------------------------------


def _choose_runtime(proposal: Proposal, cluster: Cluster, surroundings: MachineFacts) -> None:
    """Choose how ranks enter an image: by srun's plugin if there is one."""
    runtimes = {"pyxis": "srun has --container-image"} if cluster.pyxis else {}
    for program in reversed(surroundings.programs):
        if runtime_name(program) in RUNTIMES:
            runtimes[runtime_name(program)] = f"{program} is on this machine"
    default = "pyxis" if cluster.pyxis else "none"
    options = {**runtimes, "none": "on the host, without a container"}
    name, reason = proposal.given.get("runtime", ""), _CHOSEN_BY_USER
    if not name:
        name, reason = default, "no pyxis, enroot or Apptainer is here"
        if runtimes and tuple(runtimes) != ("pyxis",):
            question = Question("container runtime", "--runtime", options, default)
            name = proposal.pick(question) or default
        if runtimes:
            reason = options[name]
    alternatives = tuple(other for other in runtimes if other != name)
    proposal.take("container.runtime", name, reason, alternatives, "--runtime")


def _choose_interface(proposal: Proposal, surroundings: MachineFacts) -> None:
    """Take a network only from the user: nodes may have others than this machine."""
    name, reason = proposal.given.get("interface", ""), _CHOSEN_BY_USER
    if not name and surroundings.fast:
        options = {"": "what the nodes' names resolve to"}
        options |= {
            interface: f"{interface}, which this machine has" for interface in surroundings.fast
        }
        name = proposal.pick(Question("network interface", "--interface", options))
        reason = "this machine has it"
    interfaces = tuple(other for other in surroundings.interfaces if other != name)
    reason = reason if name else "what the nodes' names resolve to"
    proposal.take("nodes.interface", name, reason, interfaces, "--interface")


def _choose_runs(proposal: Proposal, surroundings: MachineFacts, folder: Path) -> None:
    """Choose where campaigns go: next to the file, or where other machines see them."""
    shared_folders = {name: f"{path}/hpcbert" for name, path in surroundings.shared.items()}
    runs_folder, reason = proposal.given.get("runs", ""), _CHOSEN_BY_USER
    private_folder = machine.find_local_directory(str(folder))
    if not runs_folder and private_folder and shared_folders:
        name, shared_folder = next(iter(shared_folders.items()))
        runs_folder = f"{shared_folder}/runs"
        reason = f"{private_folder} is each machine's own; ${name} is shared"
    elif not runs_folder and private_folder:
        runs_folder, reason = "runs", f"in {folder}"
        proposal.warnings.append(
            f"{folder} lies below {private_folder}, which is local to each machine: set runs, "
            "sources and images to a directory that all nodes share."
        )
    elif not runs_folder:
        runs_folder, reason = "runs", f"in {folder}, which all nodes must see"
    proposal.take("runs", runs_folder, reason, tuple(shared_folders.values()), "--runs")
    if runs_folder != "runs":
        base = Path(runs_folder).parent
        proposal.values["sources"] = json.dumps(str(base / "sources"))
        proposal.values["container.images"] = json.dumps(str(base / "images"))


# --- What sbatch accepts --------------------------------------------------------------------------


def _choose_form(proposal: Proposal, cluster: Cluster) -> None:
    """Choose the form of a request that sbatch accepts; warn if it accepts none."""
    site = _draft_site(proposal)
    trial, slurm = try_forms(site, cluster), site.slurm
    if not trial.refusal:
        return
    if not trial.accepted:
        proposal.warnings.append(f"sbatch refuses a job of this site: {trial.refusal}")
        return
    chosen, *alternatives = (accepted.slurm for accepted in trial.accepted)
    reason = f"sbatch refuses a job without it: {trial.refusal}"
    if chosen.gpu_option != slurm.gpu_option:
        proposal.take("slurm.gpu_option", chosen.gpu_option, reason)
    if chosen.constraint:
        constraints = tuple(slurm.constraint for slurm in alternatives)
        proposal.take("slurm.constraint", chosen.constraint, reason, constraints)
    if chosen.sbatch_args:
        text = json.dumps(chosen.sbatch_args)
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
    width = max((len(choice.key) for choice in choices), default=0)
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
        is_replaced = equals and not line.startswith("#") and key in values
        lines.append(_replace_value(line, name, values[key]) if is_replaced else line)
    return "\n".join(lines)


def _replace_value(line: str, name: str, value: str | None) -> str:
    return f"# {line}" if value is None else f"{name} = {value}"
