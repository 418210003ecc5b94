"""The sections of a report, results first; pure."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import click

from hpcbert.config.recipe import Recipe
from hpcbert.model import UNFINISHED, Row, SpeedupTable
from hpcbert.results.document import Source
from hpcbert.results.formats import (
    PUBLISHED_COLUMNS,
    explain_unknown,
    metrics_grid,
    table_view,
)
from hpcbert.results.grid import Cell, Column, Grid
from hpcbert.results.report.figures import label_tables, list_devices, make_pictures, sort_shapes
from hpcbert.results.report.model import Block, Code, Heading, Report, ReportInput, Section
from hpcbert.results.wording import (
    cpu_suffix,
    describe_reasons,
    describe_repeats,
    describe_stop,
    sanitize,
)
from hpcbert.results.words import Words, flag_meanings, name_table
from hpcbert.slurm.hostlist import fold
from hpcbert.system import grouping

_MAX_NAMES = 6
# The most environments and topologies, and scripts.
_MAX_GROUPS, _MAX_SCRIPTS = 8, 8
_DATE = len("2026-11-23")
_DIGITS = 12
# The packages whose versions are a framework's.
_PACKAGE = re.compile(
    r"package (deepspeed|jax|megatron_core|mindspore\w*|mxnet\w*|oneflow\w*|paddlepaddle\w*|"
    r"tensorflow(_gpu|_cpu)?|torch|transformers)"
)
_VERSION = re.compile(r"v?\d+\.\d")
# The kernel's rate of a network card that does not state one, as of a virtual machine.
_UNKNOWN_RATE = "-1 Mb/s, "
_UNSAFE = re.compile(r"[^\w.-]", re.ASCII)


def compose_report(inputs: ReportInput, words: Words) -> Report:
    """Return a report in the language of the words."""
    provenance = inputs.provenance
    return Report(
        language=words.language,
        title=sanitize(inputs.title) or make_title(inputs, words),
        lead=summarize(inputs, words),
        origin=words("lead.made", version=provenance.hpcbert, date=provenance.date),
        sections=tuple(
            Section(
                key,
                words(f"section.{key}"),
                tuple(filter(None, write(inputs, words))),
                key in _FOLDED,
            )
            for key, write in _SECTIONS.items()
        ),
    )


def make_title(inputs: ReportInput, words: Words) -> str:
    """Return what was measured, on which devices and shapes, and when."""
    tables = inputs.tables
    if not tables:
        return words("title.none")
    days = {source.created[:_DATE] for source in inputs.results.sources}
    names = [f"{table.group.model} {table.group.precision}" for table in tables]
    devices = list_devices(tables) or [table.group.device.upper() for table in tables]
    text = words(
        "title",
        models=list_names(names, words),
        frameworks=list_names((table.group.framework for table in tables), words),
        devices=list_names(devices, words),
    )
    shapes = list(map(str, sort_shapes(tables)))
    dates = sorted(day for day in days if len(day) == _DATE)
    spans = [_name_span(values, words) for values in (shapes, dates) if values]
    return words("comma").join([text, *spans])


def _name_span(values: Sequence[str], words: Words) -> str:
    first, last = values[0], values[-1]
    return first if first == last else words("span", first=first, last=last)


def list_names(names: Iterable[str], words: Words) -> str:
    """Return the first names, each once, and the number of the others."""
    unique = list(dict.fromkeys(map(sanitize, names)))
    text = words("comma").join(unique[:_MAX_NAMES])
    more = len(unique) - _MAX_NAMES
    return words("more", names=text, count=more) if more > 0 else text


def summarize(inputs: ReportInput, words: Words) -> str:
    """Return the best throughput, the efficiency, how many runs are valid, and what is wrong."""
    rows = [row for table in inputs.tables for row in table.rows]
    sentences = _best_sentences(inputs.tables, words)
    efficiencies = []
    for name, table in zip(label_tables(inputs.tables, words), inputs.tables, strict=True):
        for row in [row for row in table.rows if row.efficiency and row.shape.gpus > 1][-1:]:
            share = format(row.efficiency, ".1%")
            text = words("lead.efficiency.of", name=name, share=share, shape=row.shape)
            efficiencies.append(text)
    if efficiencies:
        sentences.append(words("lead.efficiency", items=list_names(efficiencies, words)))
    own_rows = [row for row in rows if not row.published]
    if own_rows:
        ok, asked = sum(row.ok for row in own_rows), sum(row.asked for row in own_rows)
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
    sentences = []
    for median, table, row in list(best.values())[:_MAX_NAMES]:
        name, rate = name_table(table.group, words), format(median, ",.2f")
        sentences.append(words("lead.best", name=name, rate=rate, shape=row.shape))
    return sentences or [words("lead.none")]


def _fault_sentences(rows: Sequence[Row], words: Words) -> list[str]:
    codes = Counter(code for row in rows for code in _invalid_codes(row))
    unfinished = codes.pop(UNFINISHED, 0)
    flags = Counter(flag for row in rows if row.median for flag in row.flags)
    sentences = [words("lead.unfinished", count=unfinished)] if unfinished else []
    for key, counts in (("lead.invalid", codes), ("lead.flags", flags)):
        if counts:
            items = (sanitize(f"{name} ({count})") for name, count in counts.most_common())
            sentences.append(words(key, items=words("comma").join(items)))
    return sentences or [words("flags.none")]


def _invalid_codes(row: Row) -> Iterator[str]:
    for run in row.runs:
        yield from {} if run.valid else dict.fromkeys(reason.code for reason in run.reasons)


# --- results -------------------------------------------------------------------------------------


def describe_results(inputs: ReportInput, words: Words) -> Iterator[Block]:
    """Yield the main figure, one table across everything, and each table as it is published."""
    if not inputs.tables:
        yield words("results.none")
        return
    yield from make_pictures(inputs, words)[0][:1]
    tables = inputs.tables
    pivots = grouping.group(((table.group.model, table.group.device), table) for table in tables)
    for number, compared in enumerate(pivots.values(), 1):
        yield _make_pivot(number, compared, words)
    for number, table in enumerate(tables, 1):
        yield from _published_blocks(number, table, words)
    yield words("results.how")


def _published_blocks(number: int, table: SpeedupTable, words: Words) -> Iterator[Block]:
    view = table_view(table, words, f"results-{number}")
    yield view.grid.select(range(len(PUBLISHED_COLUMNS)))
    rule, *notes = map(sanitize, view.notes)
    yield rule
    yield tuple(notes)


def _make_pivot(number: int, tables: Sequence[SpeedupTable], words: Words) -> Grid:
    """Return all medians of a model: a row for each table and a column for each shape."""
    group, shapes = tables[0].group, sort_shapes(tables)
    # These are columns only where they differ.
    names = ("variant", "rule")
    extra = [name for name in names if len({getattr(table.group, name) for table in tables}) > 1]
    columns = words.columns("framework", "version", "precision", "batch:>", *extra)
    columns += tuple(Column(str(shape), ".2f") for shape in shapes)
    columns += words.columns("efficiency-largest:.1%")
    rows: list[tuple[Cell, ...]] = []
    for table in tables:
        texts = [table.group.framework, describe_version(table)]
        texts += [table.group.precision, table.group.batch]
        texts += [getattr(table.group, name) for name in extra]
        medians = {row.shape: row.median for row in table.rows}
        shares = [row.efficiency for row in table.rows if row.efficiency and row.shape.gpus > 1]
        numbers = (*(medians.get(shape) for shape in shapes), shares[-1] if shares else None)
        rows.append((*map(sanitize, texts), *numbers))
    variant = "" if "variant" in extra else group.variant
    name = sanitize(f"{group.model}{cpu_suffix(group)} {variant}")
    return Grid(f"pivot-{number}", words("pivot.table", name=name), columns, tuple(rows))


def describe_version(table: SpeedupTable) -> str:
    """Return the version of a table's framework: of its packages, its log, or its image."""
    facts = {name: values for row in table.rows for name, values in row.facts}
    packages = [name for name in sorted(facts) if _PACKAGE.fullmatch(name)]
    texts = [f"{name.removeprefix('package ')} {', '.join(facts[name])}" for name in packages]
    # In some logs it is the number of a build.
    texts = texts or [text for text in facts.get("version", ()) if _VERSION.match(text)]
    texts = texts or [image.rpartition("/")[2] for image in facts.get("image", ())]
    return sanitize(", ".join(texts))


def show_pictures(inputs: ReportInput, words: Words) -> Iterator[Block]:
    """Yield the figures after the main one."""
    pictures, more = make_pictures(inputs, words)
    yield from pictures[1:]
    if not pictures[1:]:
        yield words("figures.first" if pictures else "figures.none")
    if more:
        yield words("figures.more", count=more)


def describe_metrics(inputs: ReportInput, words: Words) -> Iterator[Block]:
    """Yield the flags, and each number's metrics: per device, in tokens, steps, operations."""
    tables = inputs.tables
    rows = [row for table in tables for row in table.rows]
    flags = {flag for row in rows for flag in row.flags}
    flags |= {flag for row in rows for run in row.runs for flag in run.flags}
    meanings = tuple((name, words(f"flag.{name}")) for name in flag_meanings() if name in flags)
    yield (
        Grid("flags", words("flags.table"), words.columns("flag", "meaning"), meanings)
        if meanings
        else words("flags.none")
    )
    for number, table in enumerate(tables, 1):
        title = words("metrics.table", name=name_table(table.group, words))
        grid = metrics_grid(table, f"metrics-{number}", title, words).without_empty()
        if grid.rows:
            yield grid
    yield explain_unknown(tables, words)


def list_runs(inputs: ReportInput, words: Words) -> Iterator[Block]:
    """Yield every run, including invalid ones."""
    columns = words.columns(
        *("shape", "repeat:d", "attempt:d", "throughput:.2f"),
        *("counts", "state", "nodes-names", "flags", "log"),
    )
    for number, table in enumerate(inputs.tables, 1):
        # A published median is not a run.
        rows = [row for row in table.rows if not (row.published and len(row.runs) == 1)]
        cells: list[tuple[Cell, ...]] = []
        for row in rows:
            for run in row.runs:
                counts = words("yes")
                if not run.valid:
                    counts = words("no-because", why=describe_reasons(run))
                texts = map(sanitize, (run.state, fold(run.nodes), ", ".join(run.flags), run.log))
                numbers = run.repeat, run.attempt, run.throughput
                cells.append((str(row.shape), *numbers, counts, *texts))
        if cells:
            title = words("runs.table", name=name_table(table.group, words))
            yield Grid(f"runs-{number}", title, columns, tuple(cells))


def list_left_out(inputs: ReportInput, words: Words) -> Iterator[Block]:
    """Yield the meaning of each reason why a run was left out, and the files that were."""
    results = inputs.results
    rows = (row for table in inputs.tables for row in table.rows)
    codes = dict.fromkeys(code for row in rows for code in _invalid_codes(row))
    meanings = {code: words.explain_reason(code) for code in codes}
    yield tuple(
        words("left-out.code", code=sanitize(code), text=text)
        for code, text in meanings.items()
        if text
    )
    if results.refused:
        yield Heading(words("left-out.refused"))
        yield tuple(map(sanitize, results.refused))
    if results.left_out:
        files = tuple(tuple(map(sanitize, file)) for file in results.left_out)
        titles = words.columns("file", "why")
        yield Grid("files-left-out", words("left-out.files"), titles, files)
    if results.warnings:
        yield Heading(words("left-out.warnings"))
        yield tuple(map(sanitize, results.warnings))
    if not (codes or results.refused or results.left_out or results.warnings):
        yield words("left-out.none")


# --- what they were measured on ------------------------------------------------------------------


def describe_environment(inputs: ReportInput, words: Words) -> Iterator[Block]:
    """Yield the facts of the nodes; equal nodes appear once, with their first source."""
    groups: dict[str, tuple[str, tuple[str, ...], Mapping[str, str]]] = {}
    for source, _ in inputs.sources:
        for entry in source.environments:
            groups.setdefault(entry.digest, (source.name, entry.nodes, entry.facts))
        if not source.environments:
            key = f"{source.kind} {source.name}"
            groups[key] = source.name, (), _log_facts(inputs, source)
    for number, (name, nodes, facts) in enumerate(list(groups.values())[:_MAX_GROUPS], 1):
        yield Heading(words("environment.title", of=sanitize(name)))
        if nodes:
            names = list_names(nodes, words)
            yield words("environment.nodes", count=len(nodes), nodes=names)
        yield from _environment_blocks(number, facts, words)
    if len(groups) > _MAX_GROUPS:
        yield words("environment.more", count=len(groups) - _MAX_GROUPS)
    if not groups:
        yield words("environment.none")


def _environment_blocks(number: int, facts: Mapping[str, str], words: Words) -> Iterator[Block]:
    texts = {key: sanitize(text).replace(_UNKNOWN_RATE, "") for key, text in facts.items()}
    rows, main_names = [], set()
    for title, names in words.main_facts():
        values = [texts[name] for name in names if texts.get(name)]
        rows += [(title, value) for value in values[:1]]
        main_names |= {*names}
    more_facts = tuple(fact for fact in sorted(texts.items()) if fact[0] not in main_names)
    columns, name = words.columns("fact", "value"), f"environment-{number}"
    if rows:
        yield Grid(name, words("environment.table", number=number), columns, tuple(rows))
    if more_facts:
        # Logs give nothing else.
        title = words("environment.rest" if rows else "environment.stated", number=number)
        yield Grid(f"{name}-more", title, columns, more_facts, folded=bool(rows))
    if not texts:
        yield words("environment.none")


def _log_facts(inputs: ReportInput, source: Source) -> dict[str, str]:
    values: dict[str, dict[str, None]] = {}
    for table in inputs.tables:
        for row in table.rows:
            if row.origin and (row.origin.kind, row.origin.name) == (source.kind, source.name):
                for name, fact_values in row.facts:
                    values.setdefault(name, {}).update(dict.fromkeys(fact_values))
    return {name: ", ".join(value) for name, value in values.items()}


def describe_topology(inputs: ReportInput, words: Words) -> Iterator[Block]:
    """Yield what `nvidia-smi topo -m` printed, once for nodes of the same topology."""
    nodes_by_text = grouping.group(
        (click.unstyle("\n".join(lines)).expandtabs(), node)
        for _, source_files in inputs.sources
        for node, lines in source_files.topologies.items()
    )
    if not nodes_by_text:
        yield words("topology.none")
    for text, nodes in list(nodes_by_text.items())[:_MAX_GROUPS]:
        yield Code(words("topology.title", nodes=list_names(nodes, words)), text)


def _describe_nodes(recipe: Recipe, words: Words) -> str:
    variants = {device: recipe.for_device(device) for device in recipe.devices}
    limits = [device for device, variant in variants.items() if variant.alone or variant.one_node]
    if len(limits) == len(variants):
        return words("no")
    return words("nodes.except", devices=", ".join(limits)) if limits else words("yes")


def _program_name(recipe: Recipe) -> str:
    source = recipe.source
    if not source.repository:
        return ""
    commit = f"@{source.commit[:_DIGITS]}" if source.commit else ""
    return f"{source.repository}{commit}" + (f":{source.path}" if source.path else "")


def _list_features(recipe: Recipe, words: Words) -> dict[str, str]:
    """Return what a program can do, by the ends of keys in the catalogue."""
    sizes = (f"{name} {size}" for name, size in recipe.batch_sizes.items())
    return {
        "models": ", ".join(recipe.models),
        "precisions": ", ".join(recipe.precisions),
        "batch-sizes": ", ".join(sizes),
        "devices": ", ".join(recipe.devices),
        "launch": words(f"launch.{recipe.launch}"),
        "nodes": _describe_nodes(recipe, words),
        "collectives": recipe.collectives,
        "mixed-precision": recipe.mixed_precision,
        "xla": words("yes" if recipe.xla else "no"),
        "accumulation": words("yes" if recipe.accumulation else "no"),
        "protocols": ", ".join(filter(None, recipe.protocols)),
        "options": ", ".join(recipe.options),
        "data": recipe.dataset.format if recipe.dataset else "",
        "image": recipe.image.reference or recipe.image.base,
        "program": _program_name(recipe),
    }


def describe_features(inputs: ReportInput, words: Words) -> Iterator[Block]:
    """Yield the features of each program, as its recipe states them, with sources."""
    names = dict.fromkeys(table.group.framework for table in inputs.tables)
    recipes = [recipe for recipe in inputs.recipes if recipe.name in names]
    if recipes:
        yield words("features.how")
        columns = words.columns("feature")
        columns += tuple(Column(sanitize(recipe.name)) for recipe in recipes)
        features = [_list_features(recipe, words) for recipe in recipes]
        rows = tuple(
            (words(f"feature.{key}"), *(sanitize(texts[key]) for texts in features))
            for key in features[0]
        )
        yield Grid("features", words("features.table"), columns, rows)
        yield tuple(_describe_source(recipe, words) for recipe in recipes)
    recipe_names = {recipe.name for recipe in recipes}
    unknown_names = [sanitize(name) for name in names if name not in recipe_names]
    if unknown_names:
        yield words("features.none", names=", ".join(unknown_names))


def _describe_source(recipe: Recipe, words: Words) -> str:
    digest = f"{recipe.digest[:_DIGITS]}…" if recipe.digest else words("unknown")
    text = words("features.source", name=sanitize(recipe.name), digest=digest)
    upstream = sanitize(_program_name(recipe))
    flags = ", ".join(map(sanitize, recipe.source.flags))
    text += words("features.upstream", program=upstream) if upstream else ""
    return text + (words("features.flags", tables=flags) if flags else "")


def describe_repetition(inputs: ReportInput, words: Words) -> Iterator[Block]:
    """Yield the means to repeat the runs: commands, versions, one script per campaign."""
    yield Code(words("repeat.report"), inputs.provenance.command)
    if inputs.results.made:
        yield Code(words("repeat.saved"), inputs.results.made.command)
    for number, (source, source_files) in enumerate(inputs.sources, 1):
        title = words(f"repeat.{source.kind}", name=sanitize(source.name))
        if source.kind == "record":
            yield (f"{title}: {sanitize(source.path)}",)
            continue
        yield Heading(title)
        if source.command:
            yield Code(words("repeat.command"), shlex.join(source.command))
        facts = tuple(
            (words(f"source.{key}"), sanitize(text)) for key, text in _source_facts(source) if text
        )
        if facts:
            columns = words.columns("fact", "value")
            yield Grid(f"source-{number}", words("repeat.facts"), columns, facts)
        name, text = source_files.script
        if text and number <= _MAX_SCRIPTS:
            file = f"scripts/{number}-{_UNSAFE.sub('_', name.rpartition('/')[2])}"
            yield Code(words("repeat.script", name=sanitize(name)), text, file)
    yield words("repeat.how")


def _source_facts(source: Source) -> Iterator[tuple[str, str]]:
    for key in ("created", "hpcbert", "site", "scheduler", "runtime", "image", "recipe_digest"):
        yield key, getattr(source, key)
    if protocol := source.protocol:
        repeats = describe_repeats(protocol), describe_stop(protocol)
        yield "repeats", ", ".join(filter(None, repeats))
        yield "iters", str(protocol.iters)
        yield "skip", str(protocol.skip)
        yield "window_seconds", f"{protocol.window_seconds} s" if protocol.window_seconds else ""
    for material in source.materials:
        yield material.kind, f"{material.name} ({material.digest})"


def list_digests(inputs: ReportInput, words: Words) -> Iterator[Block]:
    """Yield the SHA-256 of the files behind the numbers, and the sources without files."""
    rows = tuple(
        (sanitize(source.name), sanitize(path), digest)
        for source, source_files in inputs.sources
        for path, digest in source_files.digests.items()
    )
    if rows:
        columns = words.columns("origin", "file", "sha256")
        yield Grid("digests", words("digests.table"), columns, rows, folded=True)
    for source, source_files in inputs.sources:
        if not source_files.digests:
            yield words("digests.none", name=sanitize(source.name))
    yield words("digests.how")


_SECTIONS = {
    "results": describe_results,
    "figures": show_pictures,
    "metrics": describe_metrics,
    "runs": list_runs,
    "left-out": list_left_out,
    "environment": describe_environment,
    "topology": describe_topology,
    "features": describe_features,
    "repeat": describe_repetition,
    "digests": list_digests,
}
_FOLDED = ("environment", "topology", "features", "repeat", "digests")
