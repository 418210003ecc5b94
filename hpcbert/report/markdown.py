"""A report as Markdown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpcbert.report.blocks import Block, Code, Grid, Heading, Items, Paragraph, Picture
from hpcbert.results.markdown import escape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcbert.report.blocks import Report

_FENCE = re.compile(r"`{3,}")


def render(report: Report) -> str:
    """Return the report; its figures are the files next to it."""
    parts = [f"# {escape(report.title)}", *map(escape, report.lead)]
    for section in report.sections:
        parts.append(f"## {escape(section.title)}")
        parts += [text for block in section.blocks for text in _block(block)]
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> Iterator[str]:
    match block:
        case Paragraph(text):
            yield escape(text)
        case Heading(text):
            yield f"### {escape(text)}"
        case Items(items):
            yield "\n".join(f"* {escape(one)}" for one in items)
        case Code(title, text):
            yield escape(title)
            # A fence that is longer than any in the text.
            fence = "`" * max([3, *(len(one) + 1 for one in _FENCE.findall(text))])
            yield f"{fence}text\n{text.rstrip()}\n{fence}"
        case Grid():
            yield f"**{escape(block.title)}**"
            yield _grid(block)
        case Picture():
            yield f"![{escape(block.alt)}](figures/{block.name}.svg)"
            yield f"*{escape(block.title)}*"
            yield _grid(block.grid)


def _grid(grid: Grid) -> str:
    lines = [
        [escape(one.title) for one in grid.columns],
        ["---:" if one.form else ":---" for one in grid.columns],
        *(
            [escape(column.shown(cell)) for column, cell in zip(grid.columns, row, strict=True)]
            for row in grid.rows
        ),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
