"""Write a first site.toml: the reference file with the values of this machine or cluster.

Each value is chosen once, and printed with the reason and the alternatives. If only the user can
know a value (which account pays, the names of private partitions), nothing is guessed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcbert.config.options import RUNTIMES, runtime_name
from hpcbert.errors import SchedulerError
from hpcbert.flows import slurmchoices
from hpcbert.flows.choices import Choice, Proposal, Question, SiteChoices
from hpcbert.scheduler.slurm.cluster import HINTS
from hpcbert.system import machine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hpcbert.scheduler.slurm.cluster import Cluster
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


def present(cluster: Cluster) -> bool:
    """Return whether there is a cluster here that can be asked.

    Raises:
        SchedulerError: There is one, but it does not answer.
    """
    why = cluster.silence
    if why in {"missing", "unconfigured"}:
        return False
    if why in {"away", "failed"}:
        raise SchedulerError(f"{cluster.complaint}.", hint=f"{HINTS[why]} --local: without Slurm.")
    return True


def propose(
    cluster: Cluster,
    here: Surroundings,
    asked: SiteChoices,
    pick: Callable[[Question], str],
    *,
    folder: Path,
) -> Proposal:
    """Return the site that suits a cluster.

    Args:
        cluster: Says what it has.
        here: What this machine has.
        asked: What the command line says.
        pick: Answers a question with one of its options.
        folder: The folder of the site.toml.

    Raises:
        UsageError: A requested value does not exist, or only the user can choose one.
    """
    made = Proposal(asked, pick, values={**_CLUSTER, "scheduler": '"slurm"'})
    made.values["name"] = json.dumps(cluster.settings.name or "cluster")
    offer = slurmchoices.partition(made, cluster)
    slurmchoices.gpus(made, offer)
    slurmchoices.account(made, cluster, offer)
    slurmchoices.qos(made, cluster, offer)
    slurmchoices.time_limit(made, cluster, offer)
    slurmchoices.arrays(made, cluster)
    slurmchoices.memory(made, cluster, offer)
    slurmchoices.mpi(made, cluster)
    _runtime(made, cluster, here)
    _interface(made, here)
    _runs(made, here, folder)
    return made


def _runtime(
    made: Proposal,
    cluster: Cluster,
    here: Surroundings,
) -> None:
    """Choose how ranks enter an image: by srun's plugin if there is one."""
    found = {"pyxis": "srun has --container-image"} if cluster.pyxis else {}
    found |= {
        runtime_name(one): f"{one} is on this machine"
        for one in reversed(here.programs)
        if runtime_name(one) in RUNTIMES
    }
    default = "pyxis" if cluster.pyxis else "none"
    options = {**found, "none": "on the host, without a container"}
    question = Question("container runtime", "--runtime", options, default)
    if made.asked.runtime:
        name, why = made.asked.runtime, "you said so"
    elif len(found) > 1 or (found and default == "none"):
        name = made.pick(question) or default
        why = options[name]
    else:
        why = "no pyxis, enroot or Apptainer is here"
        name, why = default, options[default] if found else why
    others = tuple(one for one in found if one != name)
    made.take(Choice("container.runtime", name, why, others, "--runtime"))


def _interface(made: Proposal, here: Surroundings) -> None:
    """Choose a network only if the user says so: nodes may have others than this machine."""
    name, why = made.asked.interface, "you said so"
    if not name:
        options = {"": "what the nodes' names resolve to"}
        options |= {one: f"{one}, which this machine has" for one in here.fast}
        fast = bool(here.fast)
        name = made.pick(Question("network interface", "--interface", options)) if fast else ""
        why = "what the nodes' names resolve to" if not name else "this machine has it"
    others = tuple(one for one in here.interfaces if one != name)
    made.take(Choice("nodes.interface", name, why, others, "--interface"))


def _runs(made: Proposal, here: Surroundings, folder: Path) -> None:
    """Choose where campaigns go: next to the file, or where other machines see them."""
    shared = {name: f"{place}/hpcbert" for name, place in here.shared.items()}
    if made.asked.runs:
        place, why = made.asked.runs, "you said so"
    elif not (private := machine.private(str(folder))):
        place, why = "runs", f"in {folder}, which all nodes must see"
    elif shared:
        name = next(iter(shared))
        place, why = f"{shared[name]}/runs", f"{private} is each machine's own; ${name} is shared"
    else:
        place, why = "runs", f"in {folder}"
        made.warnings.append(
            f"{folder} lies below {private}, which is local to each machine: set runs, sources "
            "and images to a directory that all nodes share."
        )
    made.take(Choice("runs", place, why, tuple(shared.values()), "--runs"))
    if place != "runs":
        base = Path(place).parent
        made.values |= {"sources": json.dumps(str(base / "sources"))}
        made.values |= {"container.images": json.dumps(str(base / "images"))}


def local_values(said: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the command line's values for a site without Slurm, as TOML values by dotted key."""
    keys = {"gpus_per_node": "nodes.gpus_per_node", "time_limit": "slurm.time_limit"}
    keys |= {"runtime": "container.runtime", "runs": "runs"}
    return {key: json.dumps(said[name]) for name, key in keys.items() if said.get(name)}


# --- As text --------------------------------------------------------------------------------------


def told(choices: list[Choice]) -> str:
    """Return the choices, their reasons and the alternatives, one line per value."""
    width = max((len(one.key) for one in choices), default=0)
    lines = []
    for one in choices:
        lines.append(f"  {one.key:<{width}}  {one.value or '-'}: {one.why}")
        if one.others:
            how = f" ({one.flag})" if one.flag else ""
            lines.append(f"  {'':<{width}}  also there{how}: {'; '.join(one.others)}")
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
