"""The sections of a report, results first; pure.

`tables` has those with the results; the title and the first paragraph are here.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from hpcbert.config.recipe import Recipe
from hpcbert.model import UNFINISHED, Row, SpeedupTable
from hpcbert.results.document import Source
from hpcbert.results.grid import Cell, Column, Grid
from hpcbert.results.report import tables
from hpcbert.results.report.model import (
    Block,
    Code,
    Heading,
    Items,
    Paragraph,
    Report,
    ReportInput,
    Section,
    Words,
)
from hpcbert.results.report.pictures import label_tables, list_devices
from hpcbert.results.wording import (
    describe_reasons,
    describe_repeats,
    describe_stop,
    sanitize,
    table_title,
)

_MAX_NAMES = 6
_DATE = len("2026-11-23")


def make_title(inputs: ReportInput, words: Words) -> str:
    """Return what was measured, on which devices, and when."""
    if not inputs.tables:
        return words("title.none")
    groups = [table.group for table in inputs.tables]
    dates = sorted(
        source.created[:_DATE] for source in inputs.results.sources if len(source.created) >= _DATE
    )
    when = words("title.measured", first=dates[0], last=dates[-1]) if dates else ""
    if dates and dates[0] == dates[-1]:
        when = dates[0]
    text = words(
        "title",
        models=list_names((f"{group.model} {group.precision}" for group in groups), words),
        frameworks=list_names((group.framework for group in groups), words),
        devices=_describe_devices(inputs.tables, words),
    )
    return text + (words("title.date", date=when) if when else "")


def list_names(names: Iterable[str], words: Words) -> str:
    """Return the first names, each once, and the number of the others."""
    unique = list(dict.fromkeys(map(sanitize, names)))
    text = words("comma").join(unique[:_MAX_NAMES])
    remaining = len(unique) - _MAX_NAMES
    return words("more", names=text, count=remaining) if remaining > 0 else text


def _describe_devices(tables: Iterable[SpeedupTable], words: Words) -> str:
    """Return the smallest and the largest number of devices, with their names if known."""
    tables = tuple(tables)
    counts = sorted({row.shape.gpus for table in tables for row in table.rows}) or [0]
    kinds = {table.group.device for table in tables}
    kind = kinds.pop() if len(kinds) == 1 else "mixed"
    span = str(counts[0])
    if len(counts) > 1:
        span = words("span", first=counts[0], last=counts[-1])
    names = list_names(list_devices(tables), words) if kind == "gpu" else ""
    text = _count_devices(kind, span, words)
    return words("devices.named", devices=text, names=names) if names else text


def _count_devices(kind: str, span: str, words: Words) -> str:
    return words(f"devices.{kind}-1") if span == "1" else words(f"devices.{kind}", count=span)


def describe_results(inputs: ReportInput, words: Words) -> str:
    """Return the best throughput, the efficiency, how many runs are valid, and what is wrong."""
    rows = [row for table in inputs.tables for row in table.rows]
    sentences = [*_best_sentences(inputs.tables, words), *_efficiency_sentences(inputs, words)]
    own_rows = [row for row in rows if not row.published]
    asked = sum(row.asked for row in own_rows)
    if own_rows:
        ok = sum(row.ok for row in own_rows)
        sentences.append(words("lead.counts", points=len(own_rows), ok=ok, asked=asked))
    if len(own_rows) < len(rows):
        sentences.append(words("lead.published", count=len(rows) - len(own_rows)))
    return " ".join([*sentences, *_fault_sentences(rows, words)])


def _best_sentences(tables: Iterable[SpeedupTable], words: Words) -> list[str]:
    """Return the highest throughput of each model: numbers of two models don't compare."""
    best: dict[tuple[str, str], tuple[float, SpeedupTable, Row]] = {}
    for table in tables:
        key = table.group.model, table.group.device
        for row in table.rows:
            if row.median and (key not in best or row.median > best[key][0]):
                best[key] = row.median, table, row
    if not best:
        return [words("lead.none")]
    sentences = []
    for median, table, row in best.values():
        batch = words("batch-short", size=table.group.batch)
        name = f"{table_title(table.group)} {batch} {sanitize(table.group.variant)}".rstrip()
        devices = _count_devices(table.group.device, str(row.shape.gpus), words)
        rate, unit = format(median, ",.2f"), words("axis.throughput")
        sentences.append(
            words("lead.best", name=name, rate=rate, unit=unit, devices=devices, shape=row.shape)
        )
    return sentences[:_MAX_NAMES]


def _efficiency_sentences(inputs: ReportInput, words: Words) -> list[str]:
    """Return the efficiency of each table's largest shape; of many tables, the range."""
    ends = []
    for name, table in zip(label_tables(inputs.tables, words), inputs.tables, strict=True):
        rows = [row for row in table.rows if row.efficiency and row.shape.gpus > 1]
        if rows:
            ends.append((rows[-1].efficiency or 0.0, name, rows[-1]))
    if not ends:
        return []
    is_range = len(ends) > _MAX_NAMES
    items = [
        words("lead.efficiency.of", name=name, share=format(share, ".1%"), shape=row.shape)
        for share, name, row in (sorted(ends, key=lambda end: end[0]) if is_range else ends)
    ]
    if is_range:
        return [words("lead.efficiency.range", least=items[0], most=items[-1])]
    return [words("lead.efficiency", items=words("comma").join(items))]


def _fault_sentences(rows: Iterable[Row], words: Words) -> list[str]:
    """Return the reasons of invalid runs and the flags, each with how often it occurs."""
    rows = tuple(rows)
    codes = Counter(
        code
        for row in rows
        for run in row.runs
        if not run.valid
        for code in {reason.code for reason in run.reasons}
    )
    unfinished = codes.pop(UNFINISHED, 0)
    flags = Counter(flag for row in rows if row.median for flag in row.flags)
    sentences = [words("lead.unfinished", count=unfinished)] if unfinished else []
    if codes:
        sentences.append(words("lead.invalid", items=_list_counts(codes, words)))
    if flags:
        sentences.append(words("lead.flags", items=_list_counts(flags, words)))
    return sentences or [words("flags.none")]


def _list_counts(counts: Counter[str], words: Words) -> str:
    return words("comma").join(
        sanitize(f"{name} ({count})") for name, count in counts.most_common()
    )


# The most different environments that are shown; results.json has all.
_MAX_GROUPS = 8
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
_MAIN_NAMES = {name for names in _MAIN_FACTS.values() for name in names}
# The kernel's rate of a network card that does not state one, as of a virtual machine.
_UNKNOWN_RATE = "-1 Mb/s, "
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_LINKS = ("X", "SYS", "NODE", "PHB", "PXB", "PIX", "NV")
_LINK = re.compile(r"(X|SYS|NODE|PHB|PXB|PIX|NV(?=\d))\d*")
_UNSAFE = re.compile(r"[^\w.-]", re.ASCII)
# The most scripts on a page; the others are named with their digests.
_MAX_SCRIPTS = 8
_DIGITS = 12


def compose_report(inputs: ReportInput, words: Words) -> Report:
    """Return a report in the language of the words."""
    made = inputs.provenance
    return Report(
        language=words.language,
        title=sanitize(inputs.title) or make_title(inputs, words),
        lead=describe_results(inputs, words),
        origin=words("lead.made", version=made.hpcbert, date=made.date),
        sections=tuple(
            Section(key, words(f"section.{key}"), write(inputs, words), folded=key in _FOLDED)
            for key, write in _SECTIONS.items()
        ),
    )


class _NodeGroup(NamedTuple):
    """Nodes that are equal as far as known; for logs, their facts."""

    source: str
    nodes: tuple[str, ...]
    facts: Mapping[str, str]


def describe_environment(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return the facts of the nodes; equal nodes appear once."""
    groups = _node_groups(inputs)
    blocks: list[Block] = []
    for number, group in enumerate(groups[:_MAX_GROUPS], 1):
        blocks += _environment_blocks(number, group, words)
    if len(groups) > _MAX_GROUPS:
        blocks.append(Paragraph(words("environment.more", count=len(groups) - _MAX_GROUPS)))
    return tuple(blocks) or (Paragraph(words("environment.none")),)


def _environment_blocks(number: int, group: _NodeGroup, words: Words) -> list[Block]:
    facts = {
        name: sanitize(value).replace(_UNKNOWN_RATE, "") for name, value in group.facts.items()
    }
    main_facts = {key: _first_known(facts, names) for key, names in _MAIN_FACTS.items()}
    rows = [(words(f"fact.{key}"), value) for key, value in main_facts.items() if value]
    more_facts = tuple(fact for fact in sorted(facts.items()) if fact[0] not in _MAIN_NAMES)
    columns = words.columns("fact", "value")
    blocks: list[Block] = [Heading(words("environment.title", of=sanitize(group.source)))]
    if group.nodes:
        nodes = list_names(group.nodes, words)
        blocks.append(Paragraph(words("environment.nodes", count=len(group.nodes), nodes=nodes)))
    name = f"environment-{number}"
    if rows:
        blocks.append(Grid(name, words("environment.table", number=number), columns, tuple(rows)))
    if more_facts:
        # Logs give nothing else.
        title = words("environment.rest" if rows else "environment.stated", number=number)
        blocks.append(Grid(f"{name}-more", title, columns, more_facts, folded=bool(rows)))
    if not facts:
        blocks.append(Paragraph(words("environment.none")))
    return blocks


def describe_topology(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return the links between a node's GPUs, network cards and processors, with a legend."""
    nodes_by_matrix: dict[tuple[str, ...], list[str]] = {}
    for _, source_files in inputs.sources:
        for node, lines in source_files.topologies.items():
            nodes_by_matrix.setdefault(_matrix_lines(lines), []).append(node)
    if not nodes_by_matrix:
        return (Paragraph(words("topology.none")),)
    blocks: list[Block] = []
    for number, (lines, nodes) in enumerate(list(nodes_by_matrix.items())[:_MAX_GROUPS], 1):
        cells = [[sanitize(cell) for cell in line.split("\t")] for line in lines]
        title = words("topology.title", nodes=list_names(nodes, words))
        blocks.append(_matrix_block(cells, f"topology-{number}", title))
        matches = [_LINK.fullmatch(cell) for row in cells for cell in row]
        links = {match[1] for match in matches if match}
        blocks.append(Items(tuple(words(f"topology.{link}") for link in _LINKS if link in links)))
    return tuple(blocks)


def _node_groups(inputs: ReportInput) -> list[_NodeGroup]:
    """Return each environment with its first source; if there is none, the logs' facts."""
    groups: dict[str, _NodeGroup] = {}
    for source, _ in inputs.sources:
        for node_facts in source.environments:
            group = _NodeGroup(source.name, node_facts.nodes, node_facts.facts)
            groups.setdefault(node_facts.digest, group)
        if not source.environments:
            group = _NodeGroup(source.name, (), _log_facts(inputs, source))
            groups[f"{source.kind} {source.name}"] = group
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


def _yes_or_no(value: bool, words: Words) -> str:
    return words("yes" if value else "no")


def _describe_nodes(recipe: Recipe, words: Words) -> str:
    """Return whether a program runs on several nodes, with the devices on which it does not."""
    variants = {device: recipe.for_device(device) for device in recipe.devices}
    limits = [device for device, variant in variants.items() if variant.alone or variant.one_node]
    if len(limits) == len(variants):
        return words("no")
    return words("nodes.except", devices=", ".join(limits)) if limits else words("yes")


# Each row by the end of its key in the catalogue.
_FEATURES: Mapping[str, Callable[[Recipe, Words], str]] = {
    "models": lambda recipe, _: ", ".join(recipe.models),
    "precisions": lambda recipe, _: ", ".join(recipe.precisions),
    "batch-sizes": lambda recipe, _: ", ".join(
        f"{name} {size}" for name, size in recipe.batch_sizes.items()
    ),
    "devices": lambda recipe, _: ", ".join(recipe.devices),
    "launch": lambda recipe, words: words(f"launch.{recipe.launch}"),
    "nodes": _describe_nodes,
    "collectives": lambda recipe, _: recipe.collectives,
    "mixed-precision": lambda recipe, _: recipe.mixed_precision,
    "xla": lambda recipe, words: _yes_or_no(bool(recipe.xla), words),
    "accumulation": lambda recipe, words: _yes_or_no(recipe.accumulation, words),
    "protocols": lambda recipe, _: ", ".join(filter(None, recipe.protocols)),
    "options": lambda recipe, _: ", ".join(recipe.options),
    "data": lambda recipe, _: recipe.dataset.format if recipe.dataset else "",
    "image": lambda recipe, _: recipe.image.reference or recipe.image.base,
    "program": lambda recipe, _: _program_name(recipe),
}


def describe_features(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return the features of each program, as its recipe states them, with sources."""
    names = dict.fromkeys(table.group.framework for table in inputs.tables)
    recipes = [recipe for recipe in inputs.recipes if recipe.name in names]
    recipe_names = {recipe.name for recipe in recipes}
    unknown_names = [sanitize(name) for name in names if name not in recipe_names]
    blocks: list[Block] = []
    if recipes:
        columns = words.columns("feature")
        columns += tuple(Column(sanitize(recipe.name)) for recipe in recipes)
        rows = tuple(
            (words(f"feature.{key}"), *(sanitize(describe(recipe, words)) for recipe in recipes))
            for key, describe in _FEATURES.items()
        )
        blocks += [
            Paragraph(words("features.how")),
            Grid("features", words("features.table"), columns, rows),
            Items(tuple(_describe_source(recipe, words) for recipe in recipes)),
        ]
    if unknown_names:
        blocks.append(Paragraph(words("features.none", names=", ".join(unknown_names))))
    return tuple(blocks)


def _describe_source(recipe: Recipe, words: Words) -> str:
    digest = f"{recipe.digest[:_DIGITS]}…" if recipe.digest else words("unknown")
    text = words("features.source", name=sanitize(recipe.name), digest=digest)
    upstream = sanitize(_program_name(recipe))
    flags = ", ".join(map(sanitize, recipe.source.flags))
    text += words("features.upstream", program=upstream) if upstream else ""
    return text + (words("features.flags", tables=flags) if flags else "")


def _program_name(recipe: Recipe) -> str:
    source = recipe.source
    if not source.repository:
        return ""
    commit = f"@{source.commit[:_DIGITS]}" if source.commit else ""
    return f"{source.repository}{commit}" + (f":{source.path}" if source.path else "")


def describe_repetition(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return the means to repeat the runs: commands, versions, one script per campaign."""
    blocks: list[Block] = [Code(words("repeat.report"), inputs.provenance.command)]
    if inputs.results.made:
        blocks.append(Code(words("repeat.saved"), inputs.results.made.command))
    columns = words.columns("fact", "value")
    for number, (source, source_files) in enumerate(inputs.sources, 1):
        title = words(f"repeat.{source.kind}", name=sanitize(source.name))
        if source.kind == "record":
            blocks.append(Items((f"{title}: {sanitize(source.path)}",)))
            continue
        blocks.append(Heading(title))
        if source.command:
            blocks.append(Code(words("repeat.command"), shlex.join(source.command)))
        facts = tuple(
            (words(f"source.{key}"), sanitize(text)) for key, text in _source_facts(source) if text
        )
        if facts:
            blocks.append(Grid(f"source-{number}", words("repeat.facts"), columns, facts))
        name, text = source_files.script
        if text and number <= _MAX_SCRIPTS:
            file = f"scripts/{number}-{_UNSAFE.sub('_', name.rpartition('/')[2])}"
            blocks.append(Code(words("repeat.script", name=sanitize(name)), text, file))
    return (*blocks, Paragraph(words("repeat.how")))


def _source_facts(source: Source) -> Iterator[tuple[str, str]]:
    """Yield versions, protocol and materials of a campaign, by the ends of their catalogue keys."""
    for key in ("created", "hpcbert", "site", "scheduler", "runtime", "image", "recipe_digest"):
        yield key, getattr(source, key)
    if protocol := source.protocol:
        repeats = describe_repeats(protocol), describe_stop(protocol)
        yield "repeats", ", ".join(filter(None, repeats))
        yield "iters", str(protocol.iters)
        yield "skip", str(protocol.skip)
        if protocol.window_seconds:
            yield "window_seconds", f"{protocol.window_seconds} s"
    for material in source.materials:
        yield material.kind, f"{material.name} ({material.digest})"


def list_left_out(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return the files and runs left out of all medians, and why."""
    blocks: list[Block] = []
    rows: list[tuple[Cell, ...]] = [
        (
            sanitize(table.group.framework),
            f"{row.shape} {sanitize(table.group.precision)}",
            run.repeat,
            describe_reasons(run),
            sanitize(run.log),
        )
        for table in inputs.tables
        for row in table.rows
        for run in row.runs
        if not run.valid
    ]
    if rows:
        columns = words.columns("framework", "point", "repeat:d", "why", "log")
        codes = _code_meanings(inputs, words)
        blocks += [Grid("left-out", words("left-out.runs"), columns, tuple(rows)), Items(codes)]
    if inputs.results.refused:
        blocks.append(Heading(words("left-out.refused")))
        blocks.append(Items(tuple(map(sanitize, inputs.results.refused))))
    if inputs.results.left_out:
        titles = words.columns("file", "why")
        files = tuple(tuple(map(sanitize, file)) for file in inputs.results.left_out)
        blocks.append(Grid("files-left-out", words("left-out.files"), titles, files))
    if inputs.results.warnings:
        blocks.append(Heading(words("left-out.warnings")))
        blocks.append(Items(tuple(map(sanitize, inputs.results.warnings))))
    return tuple(blocks) or (Paragraph(words("left-out.none")),)


def list_digests(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return the SHA-256 of the files behind the numbers, and the sources without files."""
    rows = tuple(
        (sanitize(source.name), sanitize(path), digest)
        for source, source_files in inputs.sources
        for path, digest in source_files.digests.items()
    )
    blocks: list[Block] = []
    if rows:
        columns = words.columns("origin", "file", "sha256")
        blocks.append(Grid("digests", words("digests.table"), columns, rows, folded=True))
    for source, source_files in inputs.sources:
        if not source_files.digests:
            blocks.append(Paragraph(words("digests.none", name=sanitize(source.name))))
    return (*blocks, Paragraph(words("digests.how")))


def _code_meanings(inputs: ReportInput, words: Words) -> tuple[str, ...]:
    """Return the meaning of the codes of the reasons."""
    codes = dict.fromkeys(
        reason.code
        for table in inputs.tables
        for row in table.rows
        for run in row.runs
        if not run.valid
        for reason in run.reasons
    )
    meanings = ((sanitize(code), words.translate(f"reason.{code}", "")) for code in codes)
    return tuple(words("left-out.code", code=code, text=text) for code, text in meanings if text)


_SECTIONS = {
    "results": tables.describe_results,
    "figures": tables.show_pictures,
    "metrics": tables.describe_metrics,
    "runs": tables.list_runs,
    "left-out": list_left_out,
    "environment": describe_environment,
    "topology": describe_topology,
    "features": describe_features,
    "repeat": describe_repetition,
    "digests": list_digests,
}
_FOLDED = ("environment", "topology", "features", "repeat", "digests")
