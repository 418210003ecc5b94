"""Choose a site's settings of Slurm, each by what the cluster has and allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcbert.errors import UsageError
from hpcbert.flows.choices import Choice, Question
from hpcbert.flows.offers import offers
from hpcbert.model import Protocol
from hpcbert.scheduler.slurm.admission import Demand, most_time
from hpcbert.slurm.controller import fitting_mpi
from hpcbert.slurm.partitions import resources
from hpcbert.timelimit import TimeLimit

if TYPE_CHECKING:
    from hpcbert.flows.choices import Proposal
    from hpcbert.flows.offers import GpuKind, Offer
    from hpcbert.scheduler.slurm.cluster import Cluster
    from hpcbert.slurm.rights import Rights

_HOUR = TimeLimit.parse("01:00:00")
_MOST_SHOWN = 8
# What to give if Slurm shows no partitions.
_THREE = "--partition, --gpus-per-node and --gpu-type"


def partition(made: Proposal, cluster: Cluster) -> Offer | None:
    """Choose the partition; None if Slurm shows none."""
    found = _having(made, offers(cluster))
    if not found:
        question = Question("partition", _THREE, {})
        name = made.choose(question, made.asked.partition)
        made.take(Choice("slurm.partition", name, "you said so; Slurm shows no partitions"))
        made.warnings.append(f"{cluster.complaint}. hpcbert could not check this site.")
        return None
    if not cluster.partitions[found[0].name].exact:
        made.warnings.append(
            f"{cluster.complaint}. GPUs per node and types are whole partitions': check them."
        )
    good = [one for one in found if one.rank[:3] == found[0].rank[:3]]
    question = Question(
        "partition",
        "--partition",
        {one.name: str(one) for one in (found if made.asked.partition else good)},
        good[0].name,
    )
    name = made.choose(question, made.asked.partition)
    best = next(one for one in found if one.name == name)
    others = tuple(str(one) for one in found if one is not best)[:_MOST_SHOWN]
    why = _why_partition(best, found, said=bool(made.asked.partition))
    made.take(Choice("slurm.partition", name, why, others, "--partition"))
    if best.barred:
        made.warnings.append(f"Partition {name} may refuse your jobs: {best.barred}.")
    return best


def _having(made: Proposal, found: tuple[Offer, ...]) -> tuple[Offer, ...]:
    """Return the partitions that have the requested type of GPU.

    Raises:
        UsageError: None has it.
    """
    wanted = made.asked.gpu_type
    having = tuple(one for one in found if wanted in {kind.name or "gpu" for kind in one.kinds})
    if wanted and found and not having:
        there = sorted({kind.gres.removeprefix("gpu:") for one in found for kind in one.kinds})
        hint = f"The cluster has: {', '.join(there)}." if there else "The cluster has no GPUs."
        raise UsageError(f"No partition has GPUs of type {wanted!r}.", hint=hint)
    return having if wanted else found


def _why_partition(best: Offer, found: tuple[Offer, ...], *, said: bool) -> str:
    default = next((one for one in found if one.partition.default), None)
    has = "; ".join(map(str, best.kinds)) or "it has no GPUs, nor does any other partition"
    if said:
        return f"you said so: {has}"
    if best is default:
        return f"the default: {has}"
    if default is not None and default.barred:
        return f"{has}; the default, {default.name}, is not for you: {default.barred}"
    if default is not None and best.kinds and not default.kinds:
        return f"{has}; the default, {default.name}, has no GPUs"
    if default is not None and default.bounds:
        return f"{has}; the default, {default.name}, allows {', '.join(default.bounds)}"
    return has


def gpus(made: Proposal, offer: Offer | None) -> None:
    """Choose the type of GPU and the number per node."""
    if offer is None:
        gres = f"gpu:{made.asked.gpu_type}" if made.asked.gpu_type else "gpu"
        question = Question("number of GPUs in a node", "--gpus-per-node", {})
        count = made.choose(question, str(made.asked.gpus_per_node or ""))
        if not count.isdigit():
            raise UsageError(
                f"{count!r} is not a valid number of GPUs.", hint="Give --gpus-per-node."
            )
        made.take(Choice("slurm.gres", gres, "you said so", (), "--gpu-type"))
        made.take(Choice("nodes.gpus_per_node", count, "you said so", (), "--gpus-per-node"))
        return
    if not offer.kinds:
        groups = offer.partition.groups
        there = tuple(dict.fromkeys(str(one) for group in groups for one in group.resources))
        made.take(Choice("slurm.gres", "", f"partition {offer.name} has no GPUs", there))
        made.values["frameworks.pytorch.device"] = '"cpu"'
        count = str(made.asked.gpus_per_node or 1)
        made.take(Choice("nodes.gpus_per_node", count, "ranks a node", (), "--gpus-per-node"))
        made.warnings.append(
            f"Partition {offer.name} has no GPUs: the reference runs on CPUs, in a table of "
            "its own."
        )
        return
    kind = _kind(made, offer.kinds)
    why = f"{kind}"
    others = (f"{kind.fewer} nodes of the partition have another number",) if kind.fewer else ()
    each = made.asked.gpus_per_node or kind.count
    if each > kind.most:
        raise UsageError(
            f"No node of partition {offer.name} has {kind.gres}:{each}.",
            hint=f"Ask for at most --gpus-per-node {kind.most}.",
        )
    if made.asked.gpus_per_node:
        why = f"you said so; {why}"
    made.take(Choice("nodes.gpus_per_node", str(each), why, others, "--gpus-per-node"))


def _kind(made: Proposal, kinds: tuple[GpuKind, ...]) -> GpuKind:
    question = Question(
        "GPU type",
        "--gpu-type",
        {one.name or "gpu": str(one) for one in kinds},
        kinds[0].name or "gpu",
    )
    name = made.choose(question, made.asked.gpu_type)
    kind = next(one for one in kinds if (one.name or "gpu") == name)
    others = tuple(str(one) for one in kinds if one is not kind)
    if made.asked.gpu_type or kind is not kinds[0]:
        why = "you said so"
    elif not others:
        why = "the only type"
    else:
        mixed = any(one.sliced for one in kinds) and not kind.sliced
        as_many = any(one.all == kind.all for one in kinds if one is not kind)
        why = "whole GPUs" if mixed else "as many as others" if as_many else "the most GPUs"
    made.take(Choice("slurm.gres", kind.gres, f"{why}: {kind}", others, "--gpu-type"))
    if kind.sliced:
        made.warnings.append(
            f"{kind.gres} is a slice of a GPU (MIG): NCCL does not join slices, so only one "
            "rank can run, and its throughput is not that of a GPU."
        )
    return kind


def account(made: Proposal, cluster: Cluster, offer: Offer | None) -> None:
    """Choose who pays, if the cluster needs to know."""
    rights, bound = cluster.rights, "associations" in cluster.settings.enforced
    partition = offer.name if offer else ""
    rule = cluster.rules.get(partition)
    own = [one for one in rights.own if one.partition in {"", partition}]
    usable = {
        one.account: f"account {one.account}"
        for one in own
        if not bound or rule is None or rule.takes_account(one.account)
    }
    if not usable and not made.asked.account:
        _no_account(made, rights, bound=bound)
        return
    default = rights.default if rights.default in usable else ""
    if not bound and not made.asked.account:
        why = f"the cluster does not check it; yours is {default or ', '.join(usable)}"
        made.take(Choice("slurm.account", "", why, tuple(usable), "--account"))
        return
    question = Question("account", "--account", usable if bound else {}, default)
    name = made.choose(question, made.asked.account)
    others = tuple(one for one in usable if one != name)
    why = "you said so" if made.asked.account else "your default" if name == default else "yours"
    made.take(Choice("slurm.account", name, why, others, "--account"))


def _no_account(made: Proposal, rights: Rights, *, bound: bool) -> None:
    """Leave the account out, and say what that means if the cluster checks it."""
    why = "the cluster requires none"
    if bound and not rights.known:
        why = "accounting does not answer"
        made.warnings.append(
            "The cluster checks accounts, and accounting does not say which are yours: give "
            "--account if your default one is not right."
        )
    elif bound:
        why = "accounting shows none of yours"
        may = (
            "None of your accounts may use this partition" if rights.own else "You have no account"
        )
        made.warnings.append(f"{may}: ask for one.")
    made.take(Choice("slurm.account", "", why, (), "--account"))


def qos(
    made: Proposal,
    cluster: Cluster,
    offer: Offer | None,
) -> None:
    """Choose the QOS if the default one does not work."""
    partition = offer.name if offer else ""
    account = made.said("slurm.account")
    own = cluster.rights.of(account, partition)
    rule = cluster.rules.get(partition)
    names = own.qos if own else ()
    usable = {one: f"QOS {one}" for one in names if rule is None or rule.takes_qos(one)}
    default = cluster.rights.qos_of(account, partition)
    bound = "qos" in cluster.settings.enforced
    if made.asked.qos:
        name = made.choose(Question("QOS", "--qos", usable if bound else {}), made.asked.qos)
        why = "you said so"
    elif not bound or not usable or default in usable or set(usable) == set(names):
        name, why = "", f"the default{f', {default}' if default else ''}"
    else:
        question = Question("QOS", "--qos", usable, next(iter(usable)))
        name = made.choose(question, "")
        why = f"partition {partition} does not accept {default or 'every QOS of yours'}"
    if bound and names and not usable and not name:
        made.warnings.append("None of your QOS may use this partition: ask for one.")
    others = tuple(one for one in usable if one not in {name, default})
    made.take(Choice("slurm.qos", name, why, others, "--qos"))


def time_limit(made: Proposal, cluster: Cluster, offer: Offer | None) -> None:
    """Choose the time limit: an hour, or the maximum of the partition, account or QOS."""
    partition = offer.name if offer else ""
    most = offer.partition.limit if offer else TimeLimit(None)
    whose = f"partition {partition}"
    if "limits" in cluster.settings.enforced:
        who, longest = most_time(_smallest_job(made, partition), cluster, partition)
        if most.exceeds(longest):
            most, whose = longest, who
    if made.asked.time_limit:
        limit, why = TimeLimit.parse(made.asked.time_limit), "you said so"
        if limit.exceeds(most):
            raise UsageError(f"{whose} allows a job at most {most}.", hint=f"--time {most}")
    elif _HOUR.exceeds(most):
        limit, why = most, f"{whose} allows a job no more"
    else:
        limit, why = _HOUR, f"{whose} allows a job {most}" if most.seconds else "no limit is lower"
    made.take(Choice("slurm.time_limit", str(limit), why, (), "--time"))


def _smallest_job(made: Proposal, partition: str) -> Demand:
    """Return a job on one whole node, with what was chosen for it."""
    count, gres = made.said("nodes.gpus_per_node"), made.said("slurm.gres")
    return Demand(
        partition,
        1,
        _HOUR,
        resources(f"{gres}:{count}" if gres else ""),
        made.said("slurm.account"),
        made.said("slurm.qos"),
        tasks=int(count or 1),
    )


def arrays(made: Proposal, cluster: Cluster) -> None:
    """Warn if the usual repeats of a point are more than an array may have."""
    most = cluster.settings.most_indices
    if most is not None and most < Protocol.repeats:
        made.warnings.append(
            f"An array has at most {most} elements here (MaxArraySize): the {Protocol.repeats} "
            "repeats of a point become several arrays."
        )


def memory(made: Proposal, cluster: Cluster, offer: Offer | None) -> None:
    """Ask for all memory of exclusive nodes if the cluster would give only a part of it."""
    partition = offer.name if offer else ""
    default, rule = cluster.memory(partition), cluster.rules.get(partition)
    if rule and rule.most_memory:
        why = f"partition {partition} allows a job no more of a node (MaxMemPerNode, MiB)"
        made.take(Choice("slurm.memory", str(rule.most_memory), why))
    elif default:
        why = f"exclusive jobs would get only the cluster's default ({default})"
        made.take(Choice("slurm.memory", "0", why))
    else:
        made.take(Choice("slurm.memory", "", "jobs get what their nodes have"))


def mpi(made: Proposal, cluster: Cluster) -> None:
    """Choose how ranks are started: by PMIx, or else PMI-2, if srun has it."""
    there = tuple(one for one in cluster.mpi if one != "none")
    name = fitting_mpi(("pmix", "pmi2"), there)
    why = f"srun has it; its default is {cluster.settings.mpi or 'none'}"
    if made.asked.mpi:
        if cluster.mpi and made.asked.mpi not in cluster.mpi:
            hint = f"srun has {', '.join(cluster.mpi)}."
            raise UsageError(f"srun has no MPI type {made.asked.mpi!r} here.", hint=hint)
        name, why = made.asked.mpi, "you said so"
    elif not name:
        why = "srun has neither pmix nor pmi2" if there or cluster.mpi else "srun does not say"
    elif not name.startswith("pmix"):
        why = "srun has no pmix"
        made.warnings.append("srun has no pmix: programs that need PMIx can't find their ranks.")
    others = tuple(one for one in there if one != name)
    made.take(Choice("slurm.mpi", name, why, others, "--mpi"))
