"""The sections on the measured machines: the nodes, and how their GPUs are connected; pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from hpcbert.results.grid import Column, Grid
from hpcbert.results.report.model import Block, Code, Heading, Items, Paragraph
from hpcbert.results.words import plain

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from hpcbert.results.report.model import ReportInput
    from hpcbert.results.report.words import Words
    from hpcbert.results.resultset import Source

# The most different environments that are shown; results.json has all.
_SHOWN = 8
_NAMED = 6
# The facts that readers look for, in the order of DLPerf's reports: the first known name is used.
_FIRST = {
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
_OF_GPUS = frozenset(
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


class _Kind(NamedTuple):
    """Nodes that are equal as far as known; for logs, their facts."""

    source: str
    nodes: tuple[str, ...]
    facts: Mapping[str, str]


def environment(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return the facts of the nodes; equal nodes appear once."""
    kinds = _kinds(inputs)
    on_gpus = any(table.group.device == "gpu" for table in inputs.tables)
    unasked = () if on_gpus else _OF_GPUS
    blocks: list[Block] = []
    for number, kind in enumerate(kinds[:_SHOWN], 1):
        blocks += _described(number, kind, unasked, words)
    if len(kinds) > _SHOWN:
        blocks.append(Paragraph(words("environment.more", count=len(kinds) - _SHOWN)))
    return tuple(blocks) or (Paragraph(words("environment.none")),)


def _described(number: int, kind: _Kind, unasked: Collection[str], words: Words) -> list[Block]:
    told = {name: plain(value) for name, value in kind.facts.items()}
    first = {key: _first(told, names) for key, names in _FIRST.items()}
    rows = [(words(f"fact.{key}"), value) for key, value in first.items() if value]
    missing = [words(f"fact.{key}") for key in _FIRST if not first[key] and key not in unasked]
    rest = tuple((name, value) for name, value in sorted(told.items()) if name not in _TOLD)
    columns = words.columns("fact", "value")
    blocks: list[Block] = [Heading(words("environment.title", of=plain(kind.source)))]
    if kind.nodes:
        nodes = _listed(map(plain, kind.nodes), words)
        blocks.append(Paragraph(words("environment.nodes", count=len(kind.nodes), nodes=nodes)))
    name = f"environment-{number}"
    if rows:
        blocks.append(Grid(name, words("environment.table", number=number), columns, tuple(rows)))
    if rest:
        # Logs give nothing else.
        title = words("environment.rest" if rows else "environment.stated", number=number)
        blocks.append(Grid(f"{name}-more", title, columns, rest, folded=bool(rows)))
    if not told:
        blocks.append(Paragraph(words("environment.none")))
    elif missing:
        names = words("comma").join(missing)
        blocks.append(Paragraph(words("environment.missing", names=names)))
    return blocks


_TOLD = {name for names in _FIRST.values() for name in names}


def topology(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return how GPUs, network cards and processors of a node are connected, with a legend."""
    seen: dict[tuple[str, ...], list[str]] = {}
    for _, backing in inputs.sources:
        for node, lines in backing.topologies.items():
            seen.setdefault(_matrix(lines), []).append(node)
    if not seen:
        return (Paragraph(words("topology.none")),)
    blocks: list[Block] = []
    for number, (lines, nodes) in enumerate(list(seen.items())[:_SHOWN], 1):
        cells = [[plain(cell) for cell in line.split("\t")] for line in lines]
        title = words("topology.title", nodes=_listed(dict.fromkeys(nodes), words))
        blocks.append(_drawn(cells, f"topology-{number}", title))
        used = {match[1] for line in cells for cell in line if (match := _LINK.fullmatch(cell))}
        blocks.append(Items(tuple(words(f"topology.{link}") for link in _LINKS if link in used)))
    return tuple(blocks)


def _kinds(inputs: ReportInput) -> list[_Kind]:
    """Return each environment with its first source; if there is none, the logs' facts."""
    kinds: dict[str, _Kind] = {}
    for source, _ in inputs.sources:
        for node_facts in source.environments:
            kinds.setdefault(
                node_facts.digest, _Kind(source.name, node_facts.nodes, node_facts.facts)
            )
        if not source.environments:
            kinds[f"{source.kind} {source.name}"] = _Kind(source.name, (), _stated(inputs, source))
    return list(kinds.values())


def _stated(inputs: ReportInput, source: Source) -> dict[str, str]:
    """Return the facts from the logs of a source, over all its points."""
    values: dict[str, dict[str, None]] = {}
    for table in inputs.tables:
        for row in table.rows:
            if row.origin and (row.origin.kind, row.origin.name) == (source.kind, source.name):
                for name, told in row.facts:
                    values.setdefault(name, {}).update(dict.fromkeys(told))
    return {name: ", ".join(value) for name, value in values.items()}


def _first(told: dict[str, str], names: Iterable[str]) -> str:
    return next((told[name] for name in names if told.get(name)), "")


def _listed(names: Iterable[str], words: Words) -> str:
    """Return the first few names and the number of the others."""
    unique = list(dict.fromkeys(names))
    listed = words("comma").join(unique[:_NAMED])
    more = len(unique) - _NAMED
    return words("more", names=listed, count=more) if more > 0 else listed


def _matrix(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the lines of the matrix, without nvidia-smi's own legend."""
    found = []
    for line in (_ANSI.sub("", one).rstrip() for one in lines):
        if line.strip().lower().startswith(("legend", "nic legend")):
            break
        if line.strip():
            found.append(line)
    return tuple(found)


def _drawn(cells: Sequence[list[str]], name: str, title: str) -> Block:
    """Return the matrix as a table if possible, else as it was printed."""
    header = [cell for cell in cells[0] if cell] if cells else []
    # nvidia-smi puts two tabs between some columns of the rows, and one between their headings.
    rows = [[cell for cell in row if cell][: len(header) + 1] for row in cells[1:]]
    if not rows or any(len(row) <= 1 for row in rows):
        return Code(title, "\n".join("  ".join(line) for line in cells))
    columns = (Column(""), *map(Column, header))
    padded = (tuple(row + [""] * (len(columns) - len(row))) for row in rows)
    return Grid(name, title, columns, tuple(padded))
