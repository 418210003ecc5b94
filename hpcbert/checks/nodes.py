"""The findings of a job on its nodes, and what to do about them; pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpcbert.checks.catalogue import CHECKS, remedy
from hpcbert.checks.containers import advised
from hpcbert.container import probe, symptoms
from hpcbert.finding import Finding
from hpcbert.slurm.hostlist import expand, fold

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_NODES = "nodes"
# What a job says when it goes wrong: its script, srun, Slurm's daemon on a node.
_COMPLAINT = re.compile(r"(?:hpcbert: |\S+: error: |slurmstepd[\w.-]*: |srun: .*\boption\b).*")
_USUAL = re.compile(r"hpcbert: repeat \d+ attempt \d+ on |slurmstepd\S* error: couldn't chdir")
_MOST = 5


def found(printed: str, known: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what look.sh, hello.py and probe.sh printed, one finding for all nodes that agree.

    Args:
        printed: A job's whole output; other lines are skipped.
        known: What fills in remedies, by `catalogue.NodeCheck`.
    """
    rows = probe.read(printed)
    bad = {(one.node, one.name) for one in rows if one.status != "ok"}
    everyone = set(seen(printed))
    told = [one for one in rows if one.status != "ok" or (one.node, one.name) not in bad]
    for (name, status, detail), names in probe.by_finding(told).items():
        nodes = tuple(expand(fold(names)))  # in their order
        where = f"{name} ({fold(nodes)})"
        if name not in CHECKS:
            yield advised(fold(nodes), name, status, detail, nodes)
            continue
        check, fine = CHECKS[name], status == "ok"
        yield Finding(
            where,
            status,
            detail,
            "" if fine else check.hint,
            "" if fine else check.change,
            nodes,
            "" if fine else remedy(name, detail, known) or _without(nodes, everyone),
        )


def _without(nodes: Sequence[str], everyone: set[str]) -> str:
    """Return the option that excludes bad nodes, if there are others."""
    return f"--exclude {','.join(nodes)}" if set(nodes) < everyone else ""


def seen(printed: str) -> tuple[str, ...]:
    """Return the nodes that said anything, in the order of their first words."""
    return tuple(dict.fromkeys(one.node for one in probe.read(printed)))


def silent(printed: str, wanted: int, complaint: str) -> Iterator[Finding]:
    """Yield that fewer nodes answered than were asked for, if they were."""
    there = seen(printed)
    if len(there) < wanted:
        hint = "Look at `sinfo`; ask for fewer with --nodes."
        detail = f"{len(there)} of {wanted} nodes answered: {complaint or 'no answer'}"
        remedy = f"--nodes {len(there)}" if there else ""
        yield Finding(_NODES, "fail", detail, hint, "", (), remedy)


def outside(printed: str, nodes: Sequence[str], runtime: str) -> Iterator[Finding]:
    """Yield that ranks did not start on nodes, and what kept them.

    Args:
        printed: All that a job printed.
        nodes: Those of the job.
        runtime: The site's container runtime.
    """
    started = {one.node for one in probe.read(printed) if one.name == "ranks"}
    bare = tuple(node for node in nodes if f"hpcbert: {node}: not in the container" in printed)
    left = bare or tuple(node for node in nodes if node not in started)
    if not left:
        return
    lines = complaints(printed)
    known, check = symptoms.explain(printed), CHECKS["ranks"]
    name, hint, change = "ranks", check.hint, check.change
    if runtime == "pyxis":
        general = probe.REMEDIES["plugin"]
        name, hint, change = "plugin", general.hint, general.change
    where, why = f"{name} ({fold(left)})", "; ".join(lines) or "no rank started"
    yield Finding(where, "fail", why, known.hint if known else hint, change, left)


def complaints(printed: str) -> tuple[str, ...]:
    """Return what went wrong by the words of a job's script, of srun and of Slurm's daemons."""
    lines = [line for line in printed.splitlines() if _COMPLAINT.match(line)]
    return tuple(dict.fromkeys(line for line in lines if not _USUAL.match(line)))[:_MOST]


def explained(printed: str, lines: Sequence[str]) -> str:
    """Return what to do about what a job complained of."""
    known = symptoms.explain(printed)
    if known:
        return known.hint
    return "The findings above say why; else see what it says." if lines else "Look at `sinfo`."
