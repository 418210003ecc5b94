"""The sections of a report, in the order of DLPerf's reports; pure."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, NamedTuple

from hpcbert.results.grid import Column, Grid
from hpcbert.results.report import machines, tables
from hpcbert.results.report.model import (
    Block,
    Code,
    Heading,
    Items,
    Paragraph,
    Report,
    Section,
)
from hpcbert.results.words import FLAGS, of_devices, plain, repeats_of, until, why

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hpcbert.config.recipe import Recipe
    from hpcbert.results.grid import Cell
    from hpcbert.results.report.model import ReportInput
    from hpcbert.results.report.words import Words
    from hpcbert.results.resultset import Source

# The most scripts on a page; the others are named with their digests.
_SCRIPTS = 8
_DIGITS = 12


def compose(inputs: ReportInput, words: Words) -> Report:
    """Return a report in one language."""
    provenance = inputs.made
    rows = [row for table in inputs.tables for row in table.rows]
    counts = words(
        "lead.counts",
        points=len(rows),
        ok=sum(row.ok for row in rows),
        asked=sum(row.asked for row in rows),
    )
    how = words("lead.made", version=provenance.hpcbert, date=provenance.date)
    return Report(
        language=words.language,
        title=plain(inputs.title) or words("title"),
        lead=(counts, how),
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


def _yes(value: bool, words: Words) -> str:
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
    _Feature("xla", "xla", lambda recipe, words: _yes(recipe.xla, words)),
    _Feature(
        "accumulation", "accumulation", lambda recipe, words: _yes(recipe.accumulation, words)
    ),
    _Feature(
        "protocols", "[protocols]", lambda recipe, _: ", ".join(filter(None, recipe.protocols))
    ),
    _Feature("options", "[options]", lambda recipe, _: ", ".join(recipe.options)),
    _Feature(
        "data", "[dataset]", lambda recipe, _: recipe.dataset.format if recipe.dataset else ""
    ),
    _Feature("image", "[image]", lambda recipe, _: recipe.image.reference or recipe.image.base),
    _Feature("program", "[source]", lambda recipe, _: _program(recipe)),
)


def features(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return the features of each program, as its recipe states them, with sources."""
    names = dict.fromkeys(table.group.framework for table in inputs.tables)
    recipes = [recipe for recipe in inputs.recipes if recipe.name in names]
    known = {recipe.name for recipe in recipes}
    strangers = [plain(name) for name in names if name not in known]
    blocks: list[Block] = []
    if recipes:
        columns = (*words.columns("feature"), *(Column(plain(recipe.name)) for recipe in recipes))
        rows: list[tuple[Cell, ...]] = []
        for feature in _FEATURES:
            told = [plain(feature.tell(recipe, words)) for recipe in recipes]
            marked = [f"{text} [{place}]" if text else "" for place, text in enumerate(told, 1)]
            rows.append((words(f"feature.{feature.key}", where=feature.where), *marked))
        blocks += [
            Paragraph(words("features.how")),
            Grid("features", words("features.table"), columns, tuple(rows)),
            Heading(words("features.sources")),
            Items(tuple(_source(place, recipe, words) for place, recipe in enumerate(recipes, 1))),
        ]
        blocks += [block for recipe in recipes for block in _problems(recipe, words)]
    if strangers:
        blocks.append(Paragraph(words("features.none", names=", ".join(strangers))))
    return tuple(blocks)


def _source(place: int, recipe: Recipe, words: Words) -> str:
    digest = f"{recipe.digest[:_DIGITS]}…" if recipe.digest else words("unknown")
    told = words("features.source", place=place, name=plain(recipe.name), digest=digest)
    upstream = plain(_program(recipe))
    flags = ", ".join(map(plain, recipe.source.flags))
    told += words("features.upstream", program=upstream) if upstream else ""
    return told + (words("features.flags", tables=flags) if flags else "")


def _program(recipe: Recipe) -> str:
    source = recipe.source
    if not source.repository:
        return ""
    commit = f"@{source.commit[:_DIGITS]}" if source.commit else ""
    return f"{source.repository}{commit}" + (f":{source.path}" if source.path else "")


def _problems(recipe: Recipe, words: Words) -> tuple[Block, ...]:
    if not recipe.problems:
        return ()
    title = words("features.problems", name=plain(recipe.name))
    return (Heading(title), Items(tuple(map(plain, recipe.problems))))


def repeating(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return how to repeat it: commands, versions, one rendered script per campaign."""
    blocks: list[Block] = [Code(words("repeat.report"), inputs.made.command)]
    if inputs.results.made:
        blocks.append(Code(words("repeat.saved"), inputs.results.made.command))
    columns = words.columns("fact", "value")
    for number, (source, backing) in enumerate(inputs.sources, 1):
        blocks.append(Heading(words(f"repeat.{source.kind}", name=plain(source.name))))
        if source.command:
            blocks.append(Code(words("repeat.command"), shlex.join(source.command)))
        facts = tuple((words(f"source.{key}"), plain(text)) for key, text in _used(source) if text)
        if facts:
            blocks.append(Grid(f"source-{number}", words("repeat.facts"), columns, facts))
        name, text = backing.script
        if text and number <= _SCRIPTS:
            blocks.append(Code(words("repeat.script", name=plain(name)), text, folded=True))
    return (*blocks, Paragraph(words("repeat.how")))


def _used(source: Source) -> Iterator[tuple[str, str]]:
    """Yield what a campaign used, by the end of its key in the catalogue."""
    for key in ("created", "hpcbert", "site", "scheduler", "runtime", "image", "recipe_digest"):
        yield key, getattr(source, key)
    if protocol := source.protocol:
        yield "repeats", ", ".join(filter(None, (repeats_of(protocol), until(protocol))))
        yield "iters", str(protocol.iters)
        yield "skip", str(protocol.skip)
    for material in source.materials:
        yield material.kind, f"{material.name} ({material.digest})"


def left_out(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return the files and runs left out of all medians, and why."""
    blocks: list[Block] = []
    rows: list[tuple[Cell, ...]] = [
        (
            plain(table.group.framework),
            f"{row.shape} {plain(table.group.precision)}",
            run.repeat,
            why(run),
            plain(run.log),
        )
        for table in inputs.tables
        for row in table.rows
        for run in row.runs
        if not run.valid
    ]
    if rows:
        columns = words.columns("framework", "point", "repeat:d", "why", "log")
        codes = _codes(inputs, words)
        blocks += [Grid("left-out", words("left-out.runs"), columns, tuple(rows)), Items(codes)]
    if inputs.results.refused:
        blocks += [
            Heading(words("left-out.refused")),
            Items(tuple(map(plain, inputs.results.refused))),
        ]
    if inputs.results.left_out:
        titles = words.columns("file", "why")
        files = tuple((plain(path), plain(reason)) for path, reason in inputs.results.left_out)
        blocks.append(Grid("files-left-out", words("left-out.files"), titles, files))
    if inputs.results.warnings:
        blocks += [
            Heading(words("left-out.warnings")),
            Items(tuple(map(plain, inputs.results.warnings))),
        ]
    return tuple(blocks) or (Paragraph(words("left-out.none")),)


def flags(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return the meaning of the flags in the tables."""
    rows = [row for table in inputs.tables for row in table.rows]
    used = {
        flag for row in rows for flag in (*row.flags, *(f for run in row.runs for f in run.flags))
    }
    told = tuple(
        (name, of_devices(words.known(f"flag.{name}", text), inputs.tables))
        for name, text in FLAGS.items()
        if name in used
    )
    if not told:
        return (Paragraph(words("flags.none")),)
    columns = words.columns("flag", "meaning")
    return (Grid("flags", words("flags.table"), columns, told),)


def digests(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return the digests of the files behind the numbers."""
    rows = tuple(
        (plain(source.name), plain(path), digest)
        for source, backing in inputs.sources
        for path, digest in backing.digests.items()
    )
    bare = [source for source, backing in inputs.sources if not backing.digests]
    blocks: list[Block] = []
    if rows:
        columns = words.columns("origin", "file", "sha256")
        blocks.append(Grid("digests", words("digests.table"), columns, rows, folded=True))
    blocks += [Paragraph(words("digests.none", name=plain(source.name))) for source in bare]
    return (*blocks, Paragraph(words("digests.how")))


def _codes(inputs: ReportInput, words: Words) -> tuple[str, ...]:
    """Return the meaning of the codes of the reasons."""
    found = dict.fromkeys(
        reason.code
        for table in inputs.tables
        for row in table.rows
        for run in row.runs
        if not run.valid
        for reason in run.reasons
    )
    told = ((plain(code), words.known(f"reason.{code}", "")) for code in found)
    return tuple(words("left-out.code", code=code, text=text) for code, text in told if text)


_SECTIONS = {
    "environment": machines.environment,
    "topology": machines.topology,
    "features": features,
    "repeat": repeating,
    "results": tables.results,
    "metrics": tables.metrics,
    "figures": tables.figures,
    "runs": tables.runs,
    "left-out": left_out,
    "flags": flags,
    "digests": digests,
}
