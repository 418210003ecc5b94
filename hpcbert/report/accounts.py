"""The sections on how to repeat the runs, on omissions, flags and digests; pure."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from hpcbert.report.blocks import Block, Code, Heading, Items, Paragraph
from hpcbert.results.grid import Grid
from hpcbert.results.words import FLAGS, of_devices, plain, repeats_of, until, why

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcbert.report.model import ReportInput
    from hpcbert.report.words import Words
    from hpcbert.results.grid import Cell
    from hpcbert.results.resultset import Source

# The most scripts on a page; the others are named with their digests.
_SCRIPTS = 8


def repeating(given: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return how to repeat it: commands, versions, one rendered script per campaign."""
    blocks: list[Block] = [Code(words("repeat.report"), given.made.command)]
    if given.results.made:
        blocks.append(Code(words("repeat.saved"), given.results.made.command))
    columns = words.columns("fact", "value")
    for number, (source, backing) in enumerate(given.sources, 1):
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
    for one in source.materials:
        yield one.kind, f"{one.name} ({one.digest})"


def left_out(given: ReportInput, words: Words) -> tuple[Block, ...]:
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
        for table in given.tables
        for row in table.rows
        for run in row.runs
        if not run.valid
    ]
    if rows:
        columns = words.columns("framework", "point", "repeat:d", "why", "log")
        codes = _codes(given, words)
        blocks += [Grid("left-out", words("left-out.runs"), columns, tuple(rows)), Items(codes)]
    if given.results.refused:
        blocks += [
            Heading(words("left-out.refused")),
            Items(tuple(map(plain, given.results.refused))),
        ]
    if given.results.left_out:
        titles = words.columns("file", "why")
        files = tuple((plain(path), plain(reason)) for path, reason in given.results.left_out)
        blocks.append(Grid("files-left-out", words("left-out.files"), titles, files))
    if given.results.warnings:
        blocks += [
            Heading(words("left-out.warnings")),
            Items(tuple(map(plain, given.results.warnings))),
        ]
    return tuple(blocks) or (Paragraph(words("left-out.none")),)


def flags(given: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return the meaning of the flags in the tables."""
    rows = [row for table in given.tables for row in table.rows]
    used = {
        flag for row in rows for flag in (*row.flags, *(f for run in row.runs for f in run.flags))
    }
    told = tuple(
        (name, of_devices(words.known(f"flag.{name}", text), given.tables))
        for name, text in FLAGS.items()
        if name in used
    )
    if not told:
        return (Paragraph(words("flags.none")),)
    columns = words.columns("flag", "meaning")
    return (Grid("flags", words("flags.table"), columns, told),)


def digests(given: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return the digests of the files behind the numbers."""
    rows = tuple(
        (plain(source.name), plain(path), digest)
        for source, backing in given.sources
        for path, digest in backing.digests.items()
    )
    bare = [source for source, backing in given.sources if not backing.digests]
    blocks: list[Block] = []
    if rows:
        columns = words.columns("origin", "file", "sha256")
        blocks.append(Grid("digests", words("digests.table"), columns, rows, folded=True))
    blocks += [Paragraph(words("digests.none", name=plain(source.name))) for source in bare]
    return (*blocks, Paragraph(words("digests.how")))


def _codes(given: ReportInput, words: Words) -> tuple[str, ...]:
    """Return the meaning of the codes of the reasons."""
    found = dict.fromkeys(
        reason.code
        for table in given.tables
        for row in table.rows
        for run in row.runs
        if not run.valid
        for reason in run.reasons
    )
    told = ((plain(code), words.known(f"reason.{code}", "")) for code in found)
    return tuple(words("left-out.code", code=code, text=text) for code, text in told if text)
