"""The sections on the measured machines: the nodes, and how their GPUs are connected; pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from hpcbert.results.document import Source
from hpcbert.results.grid import Column, Grid
from hpcbert.results.report.model import Block, Code, Heading, Items, Paragraph, ReportInput, Words
from hpcbert.results.wording import sanitize

# The most different environments that are shown; results.json has all.
_MAX_GROUPS = 8
_MAX_NAMES = 6
# The facts that readers look for, in the order of DLPerf's reports: the first known name is used.
_MAIN_FACTS = {
    "system": ("system in the image",),
    "kernel": ("kernel",),
    "cpu": ("CPU",),
    "cpus": ("CPU numbers",),
    "memory": ("memory, GiB",),
    "gpu": ("GPU",),
    "gpus": ("GPUs",),
    "gpu-memory": ("GPU memory, MiB",),
    "clock": ("GPU clock limit, MHz",),
    "memory-clock": ("GPU memory clock limit, MHz",),
    "power": ("GPU power limit, W",),
    "driver": ("GPU driver",),
    "cuda": ("library libcudart", "package nvidia_cuda_runtime_cu12", "CUDA driver"),
    "cudnn": ("library libcudnn", "package nvidia_cudnn_cu12", "variable CUDNN_VERSION"),
    "nccl": ("library libnccl", "package nvidia_nccl_cu12", "variable NCCL_VERSION"),
    "image": ("image",),
    "python": ("Python",),
    "infiniband": ("InfiniBand",),
    "network": ("network",),
}
# Facts that are omitted if nothing ran on a GPU.
_GPU_FACTS = frozenset(
    (
        "gpu",
        "gpus",
        "gpu-memory",
        "clock",
        "memory-clock",
        "power",
        "driver",
        "cuda",
        "cudnn",
        "nccl",
    )
)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_LINKS = ("X", "SYS", "NODE", "PHB", "PXB", "PIX", "NV")
_LINK = re.compile(r"(X|SYS|NODE|PHB|PXB|PIX|NV(?=\d))\d*")


class _NodeGroup(NamedTuple):
    """Nodes that are equal as far as known; for logs, their facts."""

    source: str
    nodes: tuple[str, ...]
    facts: Mapping[str, str]


def describe_environment(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return the facts of the nodes; equal nodes appear once."""
    node_groups = _node_groups(inputs)
    on_gpus = any(table.group.device == "gpu" for table in inputs.tables)
    hidden_facts = () if on_gpus else _GPU_FACTS
    blocks: list[Block] = []
    for number, node_group in enumerate(node_groups[:_MAX_GROUPS], 1):
        blocks += _environment_blocks(number, node_group, hidden_facts, words)
    if len(node_groups) > _MAX_GROUPS:
        blocks.append(Paragraph(words("environment.more", count=len(node_groups) - _MAX_GROUPS)))
    return tuple(blocks) or (Paragraph(words("environment.none")),)


def _environment_blocks(
    number: int, node_group: _NodeGroup, hidden_facts: Collection[str], words: Words
) -> list[Block]:
    facts = {name: sanitize(value) for name, value in node_group.facts.items()}
    main_facts = {key: _first_known(facts, names) for key, names in _MAIN_FACTS.items()}
    rows = [(words(f"fact.{key}"), value) for key, value in main_facts.items() if value]
    missing = [
        words(f"fact.{key}")
        for key in _MAIN_FACTS
        if not main_facts[key] and key not in hidden_facts
    ]
    other_facts = tuple(
        (name, value) for name, value in sorted(facts.items()) if name not in _MAIN_NAMES
    )
    columns = words.columns("fact", "value")
    blocks: list[Block] = [Heading(words("environment.title", of=sanitize(node_group.source)))]
    if node_group.nodes:
        nodes = _list_names(map(sanitize, node_group.nodes), words)
        blocks.append(
            Paragraph(words("environment.nodes", count=len(node_group.nodes), nodes=nodes))
        )
    name = f"environment-{number}"
    if rows:
        blocks.append(Grid(name, words("environment.table", number=number), columns, tuple(rows)))
    if other_facts:
        # Logs give nothing else.
        title = words("environment.rest" if rows else "environment.stated", number=number)
        blocks.append(Grid(f"{name}-more", title, columns, other_facts, folded=bool(rows)))
    if not facts:
        blocks.append(Paragraph(words("environment.none")))
    elif missing:
        names = words("comma").join(missing)
        blocks.append(Paragraph(words("environment.missing", names=names)))
    return blocks


_MAIN_NAMES = {name for names in _MAIN_FACTS.values() for name in names}


def describe_topology(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return how GPUs, network cards and processors of a node are connected, with a legend."""
    nodes_by_matrix: dict[tuple[str, ...], list[str]] = {}
    for _, source_files in inputs.sources:
        for node, lines in source_files.topologies.items():
            nodes_by_matrix.setdefault(_matrix_lines(lines), []).append(node)
    if not nodes_by_matrix:
        return (Paragraph(words("topology.none")),)
    blocks: list[Block] = []
    for number, (lines, nodes) in enumerate(list(nodes_by_matrix.items())[:_MAX_GROUPS], 1):
        cells = [[sanitize(cell) for cell in line.split("\t")] for line in lines]
        title = words("topology.title", nodes=_list_names(dict.fromkeys(nodes), words))
        blocks.append(_matrix_block(cells, f"topology-{number}", title))
        used_links = {
            match[1] for line in cells for cell in line if (match := _LINK.fullmatch(cell))
        }
        blocks.append(
            Items(tuple(words(f"topology.{link}") for link in _LINKS if link in used_links))
        )
    return tuple(blocks)


def _node_groups(inputs: ReportInput) -> list[_NodeGroup]:
    """Return each environment with its first source; if there is none, the logs' facts."""
    groups: dict[str, _NodeGroup] = {}
    for source, _ in inputs.sources:
        for node_facts in source.environments:
            groups.setdefault(
                node_facts.digest, _NodeGroup(source.name, node_facts.nodes, node_facts.facts)
            )
        if not source.environments:
            groups[f"{source.kind} {source.name}"] = _NodeGroup(
                source.name, (), _log_facts(inputs, source)
            )
    return list(groups.values())


def _log_facts(inputs: ReportInput, source: Source) -> dict[str, str]:
    """Return the facts from the logs of a source, over all its points."""
    values: dict[str, dict[str, None]] = {}
    for table in inputs.tables:
        for row in table.rows:
            if row.origin and (row.origin.kind, row.origin.name) == (source.kind, source.name):
                for name, fact_values in row.facts:
                    values.setdefault(name, {}).update(dict.fromkeys(fact_values))
    return {name: ", ".join(value) for name, value in values.items()}


def _first_known(facts: dict[str, str], names: Iterable[str]) -> str:
    return next((facts[name] for name in names if facts.get(name)), "")


def _list_names(names: Iterable[str], words: Words) -> str:
    """Return the first few names and the number of the others."""
    unique = list(dict.fromkeys(names))
    text = words("comma").join(unique[:_MAX_NAMES])
    remaining = len(unique) - _MAX_NAMES
    return words("more", names=text, count=remaining) if remaining > 0 else text


def _matrix_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the lines of the matrix, without nvidia-smi's own legend."""
    matrix_lines = []
    for line in (_ANSI.sub("", raw_line).rstrip() for raw_line in lines):
        if line.strip().lower().startswith(("legend", "nic legend")):
            break
        if line.strip():
            matrix_lines.append(line)
    return tuple(matrix_lines)


def _matrix_block(cells: Sequence[list[str]], name: str, title: str) -> Block:
    """Return the matrix as a table if possible, else as it was printed."""
    header = [cell for cell in cells[0] if cell] if cells else []
    # nvidia-smi puts two tabs between some columns of the rows, and one between their headings.
    rows = [[cell for cell in row if cell][: len(header) + 1] for row in cells[1:]]
    if not rows or any(len(row) <= 1 for row in rows):
        return Code(title, "\n".join("  ".join(line) for line in cells))
    columns = (Column(""), *map(Column, header))
    padded_rows = (tuple(row + [""] * (len(columns) - len(row))) for row in rows)
    return Grid(name, title, columns, tuple(padded_rows))
