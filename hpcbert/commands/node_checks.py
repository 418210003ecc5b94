"""From what programs print on nodes to findings, with what to do about each; pure.

Rows are printed by look.sh, hello.py and probe.sh: node, check, status and detail, between tabs.
`findings.toml` has the advice for each check.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hpcbert.config import toml
from hpcbert.container import symptoms
from hpcbert.finding import Finding
from hpcbert.slurm.hostlist import expand, fold

_TABLE = Path(__file__).with_name("findings.toml")
_STATUSES = ("ok", "warn", "fail")
_FIELDS = 4
# look.sh ends a detail so where another interface would do.
_INTERFACES = re.compile(r"; there are: (\S+)")
# What a job says when it goes wrong: its script, srun, Slurm's daemon on a node.
_ERROR_LINE = re.compile(r"(?:hpcbert: |\S+: error: |slurmstepd[\w.-]*: |srun: .*\boption\b).*")
_HARMLESS_LINE = re.compile(
    r"hpcbert: repeat \d+ attempt \d+ on |slurmstepd\S* error: couldn't chdir"
)
_MOST_ERROR_LINES = 5


@dataclass(frozen=True)
class NodeCheck:
    """One check of nodes or ranks.

    Attributes:
        hint: What to do about a problem.
        change: Name of the setting, package or file to change.
        remedy: What to type; names in braces are to be filled in.
        asks: The question, for the page.
    """

    hint: str
    change: str = ""
    remedy: str = ""
    asks: str = ""

    def remedy_for(self, detail: str, values: Mapping[str, str]) -> str:
        """Return what to type about a problem; empty if a name in braces has no value.

        Args:
            detail: The detail of the finding.
            values: What fills in braces.
        """
        interface = _INTERFACES.search(detail)
        fillers = {name: value for name, value in values.items() if value}
        if interface:
            fillers["there"] = interface[1]
        try:
            return self.remedy.format_map(fillers)
        except KeyError:
            return ""


@dataclass(frozen=True)
class NodeRow:
    """What a check printed on one node; `status` is `ok`, `warn` or `fail`."""

    node: str
    name: str
    status: str
    detail: str


@cache
def load_checks(kind: str) -> Mapping[str, NodeCheck]:
    """Return the checks of `nodes`, or of what `containers` need, by name."""
    return {name: NodeCheck(**values) for name, values in toml.read(_TABLE)[kind].items()}


def read_rows(output: str) -> tuple[NodeRow, ...]:
    """Return the rows in the output of a job; other lines are skipped."""
    rows = [line.split("\t") for line in output.splitlines()]
    return tuple(NodeRow(*row) for row in rows if len(row) == _FIELDS and row[2] in _STATUSES)


def read_nodes(output: str) -> tuple[str, ...]:
    """Return the nodes that printed any row, in the order of their first rows."""
    return tuple(dict.fromkeys(row.node for row in read_rows(output)))


def make_container_finding(
    where: str, name: str, status: str, detail: str, nodes: tuple[str, ...] = ()
) -> Finding:
    """Return the finding of a check of probe.sh; advice on a known symptom comes first."""
    heading = f"{name} ({where})"
    if status == "ok":
        return Finding(heading, status, detail, nodes=nodes)
    check = load_checks("containers").get(name, NodeCheck(""))
    symptom = symptoms.find_symptom(detail)
    hint = symptom.hint if symptom else check.hint
    return Finding(heading, status, detail, hint, check.change, nodes)


def find_problems(output: str, values: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the findings of a job, one for all nodes that agree.

    Args:
        output: The job's whole output.
        values: What fills in remedies.
    """
    rows = read_rows(output)
    bad_checks = {(row.node, row.name) for row in rows if row.status != "ok"}
    groups: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        # One good rank does not hide a bad one of its node.
        if row.status != "ok" or (row.node, row.name) not in bad_checks:
            groups.setdefault((row.name, row.status, row.detail), []).append(row.node)
    all_nodes = {row.node for row in rows}
    for (name, status, detail), node_names in groups.items():
        nodes = tuple(expand(fold(tuple(dict.fromkeys(node_names)))))  # in their order
        check = load_checks("nodes").get(name)
        if check is None:
            yield make_container_finding(fold(nodes), name, status, detail, nodes)
        elif status == "ok":
            yield Finding(f"{name} ({fold(nodes)})", status, detail, nodes=nodes)
        else:
            remedy = check.remedy_for(detail, values)
            if not remedy and set(nodes) < all_nodes:
                remedy = f"--exclude {','.join(nodes)}"
            heading = f"{name} ({fold(nodes)})"
            yield Finding(heading, status, detail, check.hint, check.change, nodes, remedy)


def find_missing_nodes(output: str, node_count: int, complaint: str) -> Iterator[Finding]:
    """Yield a finding if fewer nodes answered than requested."""
    answer_count = len(read_nodes(output))
    if answer_count < node_count:
        hint = "Look at `sinfo`; ask for fewer with --nodes."
        detail = f"{answer_count} of {node_count} nodes answered: {complaint or 'no answer'}"
        yield Finding(
            "nodes", "fail", detail, hint, "", (), f"--nodes {answer_count}" if answer_count else ""
        )


def find_missing_ranks(output: str, nodes: Sequence[str], runtime: str) -> Iterator[Finding]:
    """Yield a finding if ranks did not start on nodes of a job, with the reason.

    Args:
        output: The job's whole output.
        nodes: Those of the job.
        runtime: The site's container runtime.
    """
    started_nodes = {row.node for row in read_rows(output) if row.name == "ranks"}
    nodes_outside = tuple(
        node for node in nodes if f"hpcbert: {node}: not in the container" in output
    )
    rankless_nodes = nodes_outside or tuple(node for node in nodes if node not in started_nodes)
    if not rankless_nodes:
        return
    name, check = "ranks", load_checks("nodes")["ranks"]
    if runtime == "pyxis":
        name, check = "plugin", load_checks("containers")["plugin"]
    symptom = symptoms.find_symptom(output)
    hint = symptom.hint if symptom else check.hint
    detail = "; ".join(find_error_lines(output)) or "no rank started"
    yield Finding(
        f"{name} ({fold(rankless_nodes)})", "fail", detail, hint, check.change, rankless_nodes
    )


def find_error_lines(output: str) -> tuple[str, ...]:
    """Return what went wrong by the words of a job's script, of srun and of Slurm's daemons."""
    lines = [line for line in output.splitlines() if _ERROR_LINE.match(line)]
    return tuple(dict.fromkeys(line for line in lines if not _HARMLESS_LINE.match(line)))[
        :_MOST_ERROR_LINES
    ]
