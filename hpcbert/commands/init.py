"""Write a first site.toml: the reference file with the values of this machine or cluster.

Each value comes from the command line, from what the cluster has, or from the user at a terminal,
who chooses the partition, the type of GPU, the account and the container runtime. If only the user
can know a value (which account pays, the names of private partitions), nothing is guessed.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcbert.commands.offers import offers
from hpcbert.config.options import RUNTIMES, runtime_name
from hpcbert.errors import SchedulerError, UsageError
from hpcbert.model import Protocol
from hpcbert.scheduler.slurm.admission import Demand, most_time
from hpcbert.scheduler.slurm.cluster import HINTS
from hpcbert.slurm.controller import fitting_mpi
from hpcbert.slurm.partitions import resources
from hpcbert.system import machine
from hpcbert.system.decode import did_you_mean
from hpcbert.timelimit import TimeLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hpcbert.commands.offers import GpuKind, Offer
    from hpcbert.scheduler.slurm.cluster import Cluster
    from hpcbert.slurm.rules import Rules
    from hpcbert.system.machine import Surroundings

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
_YOURS = "you said so"


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
class Choice:
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
    choices: list[Choice] = field(default_factory=list)
    values: dict[str, str | None] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The cluster's name."""
        return str(json.loads(self.values.get("name") or '""'))

    def take(
        self, key: str, value: str, why: str, others: tuple[str, ...] = (), flag: str = ""
    ) -> None:
        """Note a choice, as the value of its key."""
        self.choices.append(Choice(key, value, why, others, flag))
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
        picked = self.pick(question)
        if not picked:
            listed = "; ".join(options.values())
            hint = f"Give {question.flag}" + (f": {listed}." if listed else ".")
            raise UsageError(f"Only you can say which {question.name} to use.", hint=hint)
        return picked

    def value_of(self, key: str) -> str:
        """Return the value chosen for a key; empty if there is none."""
        return next((choice.value for choice in self.choices if choice.key == key), "")


def present(cluster: Cluster) -> bool:
    """Return whether there is a cluster here that can be asked.

    Raises:
        SchedulerError: There is one, but it does not answer.
    """
    silence = cluster.silence
    if silence in {"missing", "unconfigured"}:
        return False
    if silence in {"away", "failed"}:
        raise SchedulerError(
            f"{cluster.complaint}.", hint=f"{HINTS[silence]} --local: without Slurm."
        )
    return True


def propose(
    cluster: Cluster,
    surroundings: Surroundings,
    given: Mapping[str, Any],
    pick: Callable[[Question], str],
    *,
    folder: Path,
) -> Proposal:
    """Return the site that suits a cluster.

    Args:
        cluster: Says what it has.
        surroundings: What this machine has.
        given: Values of the command line, by parameter.
        pick: Answers a question with one of its options.
        folder: The folder of the site.toml.

    Raises:
        UsageError: A requested value does not exist, or only the user can choose one.
    """
    proposal = Proposal(
        {name: value for name, value in given.items() if value},
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
        _choose_gpus(proposal, offer)
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
    most = cluster.settings.most_indices
    if most is not None and most < Protocol.repeats:
        proposal.warnings.append(
            f"An array has at most {most} elements here (MaxArraySize): the {Protocol.repeats} "
            "repeats of a point become several arrays."
        )
    return proposal


# --- Partition and GPUs ---------------------------------------------------------------------------


def _choose_partition(proposal: Proposal, cluster: Cluster) -> Offer | None:
    """Choose the partition; None if Slurm shows none."""
    found = _with_gpu_type(offers(cluster), proposal.given.get("gpu_type", ""))
    answer = proposal.given.get("partition", "")
    if not found:
        question = Question("partition", "--partition, --gpus-per-node and --gpu-type", {})
        name = proposal.choose(question, answer)
        proposal.take("slurm.partition", name, f"{_YOURS}; Slurm shows no partitions")
        proposal.warnings.append(f"{cluster.complaint}. hpcbert could not check this site.")
        return None
    if not cluster.partitions[found[0].name].exact:
        proposal.warnings.append(
            f"{cluster.complaint}. GPUs per node and types are whole partitions': check them."
        )
    good = found if answer else [offer for offer in found if offer.tier == found[0].tier]
    options = {offer.name: str(offer) for offer in good}
    name = proposal.choose(Question("partition", "--partition", options, good[0].name), answer)
    best = next(offer for offer in found if offer.name == name)
    text = f"{_YOURS}: {_contents(best)}" if answer else _reason(best, found)
    texts = tuple(str(offer) for offer in found if offer is not best)[:_MOST_SHOWN]
    proposal.take("slurm.partition", name, text, texts, "--partition")
    if best.barred:
        proposal.warnings.append(f"Partition {name} may refuse your jobs: {best.barred}.")
    return best


def _contents(offer: Offer) -> str:
    return "; ".join(map(str, offer.kinds)) or "it has no GPUs, nor does any other partition"


def _reason(best: Offer, found: tuple[Offer, ...]) -> str:
    """Return why a partition is the best: it is the default, or the default has a drawback."""
    if best.partition.default:
        return f"the default: {_contents(best)}"
    default = next((offer for offer in found if offer.partition.default), None)
    if default is None or not default.drawback(best):
        return _contents(best)
    return f"{_contents(best)}; the default, {default.name}, {default.drawback(best)}"


def _with_gpu_type(found: tuple[Offer, ...], wanted: str) -> tuple[Offer, ...]:
    """Return the partitions that have a type of GPU; all if none is wanted.

    Raises:
        UsageError: None has it.
    """
    if not wanted:
        return found
    having = [offer for offer in found if wanted in {kind.name or "gpu" for kind in offer.kinds}]
    if found and not having:
        kinds = {kind.gres.removeprefix("gpu:") for offer in found for kind in offer.kinds}
        hint = f"The cluster has: {', '.join(sorted(kinds))}." if kinds else ""
        hint = hint or "The cluster has no GPUs."
        raise UsageError(f"No partition has GPUs of type {wanted!r}.", hint=hint)
    return tuple(having)


def _take_private_gpus(proposal: Proposal) -> None:
    """Take type and number of GPUs from the user, where Slurm shows no partitions."""
    kind = proposal.given.get("gpu_type", "")
    question = Question("number of GPUs in a node", "--gpus-per-node", {})
    count = proposal.choose(question, str(proposal.given.get("gpus_per_node", "")))
    if not count.isdigit():
        raise UsageError(f"{count!r} is not a valid number of GPUs.", hint="Give --gpus-per-node.")
    proposal.take("slurm.gres", f"gpu:{kind}" if kind else "gpu", _YOURS, (), "--gpu-type")
    proposal.take("nodes.gpus_per_node", count, _YOURS, (), "--gpus-per-node")


def _take_cpus(proposal: Proposal, offer: Offer) -> None:
    groups = offer.partition.groups
    others = dict.fromkeys(str(resource) for group in groups for resource in group.resources)
    proposal.take("slurm.gres", "", f"partition {offer.name} has no GPUs", tuple(others))
    proposal.values["frameworks.pytorch.device"] = '"cpu"'
    count = str(proposal.given.get("gpus_per_node", 1))
    proposal.take("nodes.gpus_per_node", count, "ranks a node", (), "--gpus-per-node")
    proposal.warnings.append(
        f"Partition {offer.name} has no GPUs: the reference runs on CPUs, in a table of its own."
    )


def _choose_gpus(proposal: Proposal, offer: Offer) -> None:
    """Choose the type of GPU and the number per node."""
    kind = _choose_kind(proposal, offer.kinds)
    count = proposal.given.get("gpus_per_node", 0)
    if count > kind.most:
        raise UsageError(
            f"No node of partition {offer.name} has {kind.gres}:{count}.",
            hint=f"Ask for at most --gpus-per-node {kind.most}.",
        )
    text = f"{_YOURS}; {kind}" if count else str(kind)
    others = (f"{kind.fewer} nodes of the partition have another number",) if kind.fewer else ()
    proposal.take("nodes.gpus_per_node", str(count or kind.count), text, others, "--gpus-per-node")


def _choose_kind(proposal: Proposal, kinds: tuple[GpuKind, ...]) -> GpuKind:
    options = {kind.name or "gpu": str(kind) for kind in kinds}
    question = Question("GPU type", "--gpu-type", options, kinds[0].name or "gpu")
    name = proposal.choose(question, proposal.given.get("gpu_type", ""))
    kind = next(kind for kind in kinds if (kind.name or "gpu") == name)
    texts = tuple(str(other) for other in kinds if other is not kind)
    is_picked = proposal.given.get("gpu_type") or kind is not kinds[0]
    text = f"{_YOURS}: {kind}" if is_picked else str(kind)
    proposal.take("slurm.gres", kind.gres, text, texts, "--gpu-type")
    if kind.sliced:
        proposal.warnings.append(
            f"{kind.gres} is a slice of a GPU (MIG): NCCL does not join slices, so only one "
            "rank can run, and its throughput is not that of a GPU."
        )
    return kind


# --- Account, QOS and limits ----------------------------------------------------------------------


def _choose_account(
    proposal: Proposal, cluster: Cluster, partition: str, rule: Rules | None
) -> None:
    """Choose who pays, if the cluster needs to know."""
    rights, bound = cluster.rights, "associations" in cluster.settings.enforced
    answer = proposal.given.get("account", "")
    usable = {
        association.account: f"account {association.account}"
        for association in rights.own
        if association.partition in {"", partition}
        if not bound or rule is None or rule.takes_account(association.account)
    }
    default = rights.default if rights.default in usable else ""
    if answer or (bound and usable):
        question = Question("account", "--account", usable if bound else {}, default)
        name = proposal.choose(question, answer)
        others = tuple(other for other in usable if other != name)
        why = _YOURS if answer else "your default" if name == default else "yours"
        proposal.take("slurm.account", name, why, others, "--account")
        return
    why = "the cluster requires none"
    if usable:
        why = f"the cluster does not check it; yours is {default or ', '.join(usable)}"
    elif bound and not rights.known:
        why = "accounting does not answer"
        proposal.warnings.append(
            "The cluster checks accounts, and accounting does not say which are yours: give "
            "--account if your default one is not right."
        )
    elif bound:
        why = "accounting shows none of yours"
        may = "None of your accounts may use this partition"
        proposal.warnings.append(f"{may if rights.own else 'You have no account'}: ask for one.")
    proposal.take("slurm.account", "", why, tuple(usable), "--account")


def _choose_qos(proposal: Proposal, cluster: Cluster, partition: str, rule: Rules | None) -> None:
    """Choose the first QOS that the partition accepts, if it does not accept the default."""
    account, answer = proposal.value_of("slurm.account"), proposal.given.get("qos", "")
    association = cluster.rights.of(account, partition)
    names = association.qos if association else ()
    usable = {name: f"QOS {name}" for name in names if rule is None or rule.takes_qos(name)}
    default = cluster.rights.qos_of(account, partition)
    bound = "qos" in cluster.settings.enforced
    if answer:
        name = proposal.choose(Question("QOS", "--qos", usable if bound else {}), answer)
        why = _YOURS
    elif not bound or not usable or default in usable or set(usable) == set(names):
        name, why = "", f"the default, {default}" if default else "the default"
    else:
        name = next(iter(usable))
        why = f"partition {partition} does not accept {default or 'every QOS of yours'}"
    if bound and names and not usable and not name:
        proposal.warnings.append("None of your QOS may use this partition: ask for one.")
    others = tuple(other for other in usable if other not in {name, default})
    proposal.take("slurm.qos", name, why, others, "--qos")


def _choose_time_limit(proposal: Proposal, cluster: Cluster, offer: Offer | None) -> None:
    """Choose the time limit: an hour, or the maximum of the partition, account or QOS."""
    partition = offer.name if offer else ""
    most = offer.partition.limit if offer else TimeLimit(None)
    owner = f"partition {partition}"
    if "limits" in cluster.settings.enforced:
        who, longest = most_time(_smallest_job(proposal, partition), cluster, partition)
        if most.exceeds(longest):
            most, owner = longest, who
    answer = proposal.given.get("time_limit", "")
    if answer:
        limit, why = TimeLimit.parse(answer), _YOURS
        if limit.exceeds(most):
            raise UsageError(f"{owner} allows a job at most {most}.", hint=f"--time {most}")
    elif _HOUR.exceeds(most):
        limit, why = most, f"{owner} allows a job no more"
    else:
        limit, why = _HOUR, f"{owner} allows a job {most}" if most.seconds else "no limit is lower"
    proposal.take("slurm.time_limit", str(limit), why, (), "--time")


def _smallest_job(proposal: Proposal, partition: str) -> Demand:
    """Return a job on one whole node, with what was chosen for it."""
    count, gres = proposal.value_of("nodes.gpus_per_node"), proposal.value_of("slurm.gres")
    return Demand(
        partition,
        1,
        _HOUR,
        resources(f"{gres}:{count}" if gres else ""),
        proposal.value_of("slurm.account"),
        proposal.value_of("slurm.qos"),
        tasks=int(count or 1),
    )


def _choose_memory(
    proposal: Proposal, cluster: Cluster, partition: str, rule: Rules | None
) -> None:
    """Ask for all memory of exclusive nodes if the cluster would give only a part of it."""
    default = cluster.memory(partition)
    value, why = "", "jobs get what their nodes have"
    if rule and rule.most_memory:
        why = f"partition {partition} allows a job no more of a node (MaxMemPerNode, MiB)"
        value = str(rule.most_memory)
    elif default:
        value, why = "0", f"exclusive jobs would get only the cluster's default ({default})"
    proposal.take("slurm.memory", value, why)


def _choose_mpi(proposal: Proposal, cluster: Cluster) -> None:
    """Choose how ranks are started: by PMIx, or else PMI-2, if srun has it."""
    kinds = tuple(kind for kind in cluster.mpi if kind != "none")
    name, answer = fitting_mpi(("pmix", "pmi2"), kinds), proposal.given.get("mpi", "")
    why = f"srun has it; its default is {cluster.settings.mpi or 'none'}"
    if answer:
        if cluster.mpi and answer not in cluster.mpi:
            hint = f"srun has {', '.join(cluster.mpi)}."
            raise UsageError(f"srun has no MPI type {answer!r} here.", hint=hint)
        name, why = answer, _YOURS
    elif not name:
        why = "srun has neither pmix nor pmi2" if cluster.mpi else "srun does not say"
    elif not name.startswith("pmix"):
        why = "srun has no pmix"
        proposal.warnings.append(
            "srun has no pmix: programs that need PMIx can't find their ranks."
        )
    others = tuple(kind for kind in kinds if kind != name)
    proposal.take("slurm.mpi", name, why, others, "--mpi")


# --- What this machine has ------------------------------------------------------------------------


def _choose_runtime(proposal: Proposal, cluster: Cluster, surroundings: Surroundings) -> None:
    """Choose how ranks enter an image: by srun's plugin if there is one."""
    found = {"pyxis": "srun has --container-image"} if cluster.pyxis else {}
    for program in reversed(surroundings.programs):
        if runtime_name(program) in RUNTIMES:
            found[runtime_name(program)] = f"{program} is on this machine"
    default = "pyxis" if cluster.pyxis else "none"
    options = {**found, "none": "on the host, without a container"}
    name, why = proposal.given.get("runtime", ""), _YOURS
    if not name:
        name, why = default, "no pyxis, enroot or Apptainer is here"
        if found and tuple(found) != ("pyxis",):
            question = Question("container runtime", "--runtime", options, default)
            name = proposal.pick(question) or default
        if found:
            why = options[name]
    others = tuple(other for other in found if other != name)
    proposal.take("container.runtime", name, why, others, "--runtime")


def _choose_interface(proposal: Proposal, surroundings: Surroundings) -> None:
    """Take a network only from the user: nodes may have others than this machine."""
    name, why = proposal.given.get("interface", ""), _YOURS
    if not name and surroundings.fast:
        options = {"": "what the nodes' names resolve to"}
        options |= {each: f"{each}, which this machine has" for each in surroundings.fast}
        name = proposal.pick(Question("network interface", "--interface", options))
        why = "this machine has it"
    interfaces = tuple(other for other in surroundings.interfaces if other != name)
    why = why if name else "what the nodes' names resolve to"
    proposal.take("nodes.interface", name, why, interfaces, "--interface")


def _choose_runs(proposal: Proposal, surroundings: Surroundings, folder: Path) -> None:
    """Choose where campaigns go: next to the file, or where other machines see them."""
    shared = {name: f"{place}/hpcbert" for name, place in surroundings.shared.items()}
    place, why = proposal.given.get("runs", ""), _YOURS
    private = machine.private(str(folder))
    if not place and private and shared:
        name = next(iter(shared))
        place, why = f"{shared[name]}/runs", f"{private} is each machine's own; ${name} is shared"
    elif not place:
        place, why = "runs", f"in {folder}" if private else f"in {folder}, which all nodes must see"
        if private:
            proposal.warnings.append(
                f"{folder} lies below {private}, which is local to each machine: set runs, "
                "sources and images to a directory that all nodes share."
            )
    proposal.take("runs", place, why, tuple(shared.values()), "--runs")
    if place != "runs":
        base = Path(place).parent
        proposal.values["sources"] = json.dumps(str(base / "sources"))
        proposal.values["container.images"] = json.dumps(str(base / "images"))


def local_values(given: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the command line's values for a site without Slurm, as TOML values by dotted key."""
    keys = {"gpus_per_node": "nodes.gpus_per_node", "time_limit": "slurm.time_limit"}
    keys |= {"runtime": "container.runtime", "runs": "runs"}
    return {key: json.dumps(given[name]) for name, key in keys.items() if given.get(name)}


# --- As text --------------------------------------------------------------------------------------


def described(choices: list[Choice]) -> str:
    """Return the choices, their reasons and the alternatives, one line per value."""
    width = max((len(choice.key) for choice in choices), default=0)
    lines = []
    for choice in choices:
        lines.append(f"  {choice.key:<{width}}  {choice.value or '-'}: {choice.why}")
        if choice.others:
            text = f" ({choice.flag})" if choice.flag else ""
            lines.append(f"  {'':<{width}}  also there{text}: {'; '.join(choice.others)}")
    return "\n".join(lines)


def site_text(reference: str, values: Mapping[str, str | None]) -> str:
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
        known = equals and not line.startswith("#") and key in values
        lines.append(_replaced(line, name, values[key]) if known else line)
    return "\n".join(lines)


def _replaced(line: str, name: str, value: str | None) -> str:
    return f"# {line}" if value is None else f"{name} = {value}"
