"""The sections of a report, in the order of DLPerf's reports; pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from typing import NamedTuple

from hpcbert.config.recipe import Recipe
from hpcbert.results.document import Source
from hpcbert.results.grid import Cell, Column, Grid
from hpcbert.results.report import machines, tables
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
from hpcbert.results.wording import (
    FLAGS,
    adapt_to_devices,
    describe_reasons,
    describe_repeats,
    describe_stop,
    sanitize,
)

# The most scripts on a page; the others are named with their digests.
_MAX_SCRIPTS = 8
_DIGITS = 12


def compose_report(inputs: ReportInput, words: Words) -> Report:
    """Return a report in one language."""
    provenance = inputs.made
    rows = [row for table in inputs.tables for row in table.rows]
    counts = words(
        "lead.counts",
        points=len(rows),
        ok=sum(row.ok for row in rows),
        asked=sum(row.asked for row in rows),
    )
    made_text = words("lead.made", version=provenance.hpcbert, date=provenance.date)
    return Report(
        language=words.language,
        title=sanitize(inputs.title) or words("title"),
        lead=(counts, made_text),
        sections=tuple(
            Section(key, words(f"section.{key}"), write(inputs, words))
            for key, write in _SECTIONS.items()
        ),
    )


class _Feature(NamedTuple):
    """One row: its key in recipe.toml, and the value."""

    key: str
    where: str
    tell: Callable[[Recipe, Words], str]


def _yes_or_no(value: bool, words: Words) -> str:
    return words("yes" if value else "no")


_FEATURES = (
    _Feature("models", "models", lambda recipe, _: ", ".join(recipe.models)),
    _Feature("precisions", "precisions", lambda recipe, _: ", ".join(recipe.precisions)),
    _Feature(
        "batch-sizes",
        "[batch_sizes]",
        lambda recipe, _: ", ".join(f"{name} {size}" for name, size in recipe.batch_sizes.items()),
    ),
    _Feature("devices", "devices", lambda recipe, _: ", ".join(recipe.devices)),
    _Feature("launch", "launch", lambda recipe, words: words(f"launch.{recipe.launch}")),
    _Feature("xla", "xla", lambda recipe, words: _yes_or_no(recipe.xla, words)),
    _Feature(
        "accumulation", "accumulation", lambda recipe, words: _yes_or_no(recipe.accumulation, words)
    ),
    _Feature(
        "protocols", "[protocols]", lambda recipe, _: ", ".join(filter(None, recipe.protocols))
    ),
    _Feature("options", "[options]", lambda recipe, _: ", ".join(recipe.options)),
    _Feature(
        "data", "[dataset]", lambda recipe, _: recipe.dataset.format if recipe.dataset else ""
    ),
    _Feature("image", "[image]", lambda recipe, _: recipe.image.reference or recipe.image.base),
    _Feature("program", "[source]", lambda recipe, _: _program_name(recipe)),
)


def describe_features(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return the features of each program, as its recipe states them, with sources."""
    names = dict.fromkeys(table.group.framework for table in inputs.tables)
    recipes = [recipe for recipe in inputs.recipes if recipe.name in names]
    recipe_names = {recipe.name for recipe in recipes}
    unknown_names = [sanitize(name) for name in names if name not in recipe_names]
    blocks: list[Block] = []
    if recipes:
        columns = (
            *words.columns("feature"),
            *(Column(sanitize(recipe.name)) for recipe in recipes),
        )
        rows: list[tuple[Cell, ...]] = []
        for feature in _FEATURES:
            values = [sanitize(feature.tell(recipe, words)) for recipe in recipes]
            cells = [f"{text} [{place}]" if text else "" for place, text in enumerate(values, 1)]
            rows.append((words(f"feature.{feature.key}", where=feature.where), *cells))
        blocks += [
            Paragraph(words("features.how")),
            Grid("features", words("features.table"), columns, tuple(rows)),
            Heading(words("features.sources")),
            Items(
                tuple(
                    _describe_source(place, recipe, words)
                    for place, recipe in enumerate(recipes, 1)
                )
            ),
        ]
        blocks += [block for recipe in recipes for block in _problem_blocks(recipe, words)]
    if unknown_names:
        blocks.append(Paragraph(words("features.none", names=", ".join(unknown_names))))
    return tuple(blocks)


def _describe_source(place: int, recipe: Recipe, words: Words) -> str:
    digest = f"{recipe.digest[:_DIGITS]}…" if recipe.digest else words("unknown")
    text = words("features.source", place=place, name=sanitize(recipe.name), digest=digest)
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


def _problem_blocks(recipe: Recipe, words: Words) -> tuple[Block, ...]:
    if not recipe.problems:
        return ()
    title = words("features.problems", name=sanitize(recipe.name))
    return (Heading(title), Items(tuple(map(sanitize, recipe.problems))))


def describe_repetition(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return how to repeat it: commands, versions, one rendered script per campaign."""
    blocks: list[Block] = [Code(words("repeat.report"), inputs.made.command)]
    if inputs.results.made:
        blocks.append(Code(words("repeat.saved"), inputs.results.made.command))
    columns = words.columns("fact", "value")
    for number, (source, source_files) in enumerate(inputs.sources, 1):
        blocks.append(Heading(words(f"repeat.{source.kind}", name=sanitize(source.name))))
        if source.command:
            blocks.append(Code(words("repeat.command"), shlex.join(source.command)))
        facts = tuple(
            (words(f"source.{key}"), sanitize(text)) for key, text in _source_facts(source) if text
        )
        if facts:
            blocks.append(Grid(f"source-{number}", words("repeat.facts"), columns, facts))
        name, text = source_files.script
        if text and number <= _MAX_SCRIPTS:
            blocks.append(Code(words("repeat.script", name=sanitize(name)), text, folded=True))
    return (*blocks, Paragraph(words("repeat.how")))


def _source_facts(source: Source) -> Iterator[tuple[str, str]]:
    """Yield what a campaign used, by the end of its key in the catalogue."""
    for key in ("created", "hpcbert", "site", "scheduler", "runtime", "image", "recipe_digest"):
        yield key, getattr(source, key)
    if protocol := source.protocol:
        yield (
            "repeats",
            ", ".join(filter(None, (describe_repeats(protocol), describe_stop(protocol)))),
        )
        yield "iters", str(protocol.iters)
        yield "skip", str(protocol.skip)
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
        blocks += [
            Heading(words("left-out.refused")),
            Items(tuple(map(sanitize, inputs.results.refused))),
        ]
    if inputs.results.left_out:
        titles = words.columns("file", "why")
        files = tuple(
            (sanitize(path), sanitize(reason)) for path, reason in inputs.results.left_out
        )
        blocks.append(Grid("files-left-out", words("left-out.files"), titles, files))
    if inputs.results.warnings:
        blocks += [
            Heading(words("left-out.warnings")),
            Items(tuple(map(sanitize, inputs.results.warnings))),
        ]
    return tuple(blocks) or (Paragraph(words("left-out.none")),)


def explain_flags(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return the meaning of the flags in the tables."""
    rows = [row for table in inputs.tables for row in table.rows]
    used_flags = {
        flag
        for row in rows
        for flag in (*row.flags, *(run_flag for run in row.runs for run_flag in run.flags))
    }
    meanings = tuple(
        (name, adapt_to_devices(words.known(f"flag.{name}", text), inputs.tables))
        for name, text in FLAGS.items()
        if name in used_flags
    )
    if not meanings:
        return (Paragraph(words("flags.none")),)
    columns = words.columns("flag", "meaning")
    return (Grid("flags", words("flags.table"), columns, meanings),)


def list_digests(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return the digests of the files behind the numbers."""
    rows = tuple(
        (sanitize(source.name), sanitize(path), digest)
        for source, source_files in inputs.sources
        for path, digest in source_files.digests.items()
    )
    bare_sources = [source for source, source_files in inputs.sources if not source_files.digests]
    blocks: list[Block] = []
    if rows:
        columns = words.columns("origin", "file", "sha256")
        blocks.append(Grid("digests", words("digests.table"), columns, rows, folded=True))
    blocks += [
        Paragraph(words("digests.none", name=sanitize(source.name))) for source in bare_sources
    ]
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
    meanings = ((sanitize(code), words.known(f"reason.{code}", "")) for code in codes)
    return tuple(words("left-out.code", code=code, text=text) for code, text in meanings if text)


_SECTIONS = {
    "environment": machines.describe_environment,
    "topology": machines.describe_topology,
    "features": describe_features,
    "repeat": describe_repetition,
    "results": tables.describe_results,
    "metrics": tables.describe_metrics,
    "figures": tables.show_pictures,
    "runs": tables.list_runs,
    "left-out": list_left_out,
    "flags": explain_flags,
    "digests": list_digests,
}
