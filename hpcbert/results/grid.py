"""A table of any kind, its cells as values, as text, Markdown or CSV."""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import click

from hpcbert.results.wording import sanitize

Cell = str | int | float | None
NOTHING = "-"
GAP = "  "
_INDENT = " " * 4
# Texts are never folded to fewer characters, and the last column is never cut to fewer.
_MIN_FOLDED, _MIN_CUT = 20, 12
# A page folds a longer table.
_MAX_ROWS = 100
# An underscore inside a word marks no emphasis.
_MARKDOWN = re.compile(r"([\\`*{}\[\]<>#|~&!]|(?<![^\W_])_|_(?![^\W_]))")
# Characters that make a spreadsheet treat a cell as a formula (OWASP, CSV Injection).
_FORMULA = ("=", "+", "-", "@")


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        title: Its heading, with the unit.
        form: The format of its numbers, for `format`; `>` for texts on the right, empty for texts
            on the left.
    """

    title: str
    form: str = ""

    def format_cell(self, cell: Cell, *, nothing: str = "", separator: str = "") -> str:
        """Return a cell as text."""
        if cell is None:
            return nothing
        if isinstance(cell, str):
            return cell
        return format(cell, f"{separator}{self.form}" if self.form.endswith("f") else self.form)


def make_columns(*texts: str) -> tuple[Column, ...]:
    """Return columns from their titles, each with its form if it has one: `samples/s:.2f`."""
    pairs = (text.partition(":") for text in texts)
    return tuple(Column(title, form) for title, _, form in pairs)


@dataclass(frozen=True)
class Grid:
    """A table.

    Attributes:
        name: The name of its files, without ending.
        rows: Numbers unrounded; one cell per column.
        folded: Whether a page shows it only when asked, as it does a long one.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    folded: bool = False

    @property
    def is_folded(self) -> bool:
        """Whether a page shows the table only when asked."""
        return self.folded or len(self.rows) > _MAX_ROWS

    def format_rows(self, *, nothing: str = "", separator: str = "") -> list[list[str]]:
        """Return the cells as texts."""
        return [
            [
                column.format_cell(cell, nothing=nothing, separator=separator)
                for column, cell in zip(self.columns, row, strict=True)
            ]
            for row in self.rows
        ]

    def select(self, places: Sequence[int]) -> Grid:
        """Return the table with only the columns at some places, from 0."""
        columns = tuple(self.columns[place] for place in places)
        rows = tuple(tuple(row[place] for place in places) for row in self.rows)
        return replace(self, columns=columns, rows=rows)

    def without_empty(self) -> Grid:
        """Return the table without columns that have no value in any row."""
        places = range(len(self.columns))
        return self.select(
            [place for place in places if any(row[place] is not None for row in self.rows)]
        )


def format_number(value: float | None) -> str:
    """Return a number as text, or a dash if there is none."""
    return NOTHING if value is None else format(value, ",.2f")


def fold_text(text: str, width: int, indent: str = "") -> list[str]:
    """Return a text as lines of limited length, the later ones indented; 0: no limit."""
    if not width or len(text) <= width:
        return [text]
    # A long path is not folded, so that it can be copied.
    return textwrap.wrap(
        text,
        max(width, _MIN_FOLDED),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def align_rows(
    rows: Sequence[Sequence[str]], width: int = 0, *, right: Collection[int] = ()
) -> list[str]:
    """Return rows as lines with aligned columns.

    Args:
        width: Maximum length of a line: the last cell is cut. 0: no limit.
        right: Columns to align on the right, by number from 0.
    """
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if width:
        sizes[-1] = max(width - sum(sizes[:-1]) - len(GAP) * len(sizes[:-1]), _MIN_CUT)
    lines = []
    for row in rows:
        cells = []
        for place, (cell, size) in enumerate(zip(row, sizes, strict=True)):
            shortened = cell if len(cell) <= size else f"{cell[: size - 1]}…"
            cells.append(shortened.rjust(size) if place in right else shortened.ljust(size))
        lines.append(GAP.join(cells).rstrip())
    return lines


def format_lines(grid: Grid, width: int = 0) -> list[str]:
    """Return a table for a terminal: the titles, then a text for each row.

    Args:
        width: Maximum length of a line: the columns that do not fit follow below their row. 0: no
            limit.
    """
    titles = [column.title for column in grid.columns]
    rows = [[*map(sanitize, row)] for row in grid.format_rows(nothing=NOTHING, separator=",")]
    right = [place for place, column in enumerate(grid.columns) if column.form]
    count = len(titles)
    lines = align_rows([titles, *rows], right=right)
    while width and count > 1 and max(map(len, lines)) > width:
        count -= 1
        lines = align_rows([row[:count] for row in (titles, *rows)], right=right)
    head, *texts = lines
    for place, row in enumerate(rows):
        further_cells = zip(titles[count:], row[count:], strict=True)
        below = [f"{title} {cell}" for title, cell in further_cells if cell not in ("", NOTHING)]
        if below:
            folded = fold_text(_INDENT + ", ".join(below), width, _INDENT)
            texts[place] = "\n".join([texts[place], *folded])
    return [click.style(head, dim=True), *texts]


def escape_markdown(text: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    return _MARKDOWN.sub(r"\\\1", sanitize(text))


def format_markdown(grid: Grid) -> str:
    """Return a table as Markdown, without its title."""
    rows = [[column.title for column in grid.columns], *grid.format_rows()]
    head, *lines = (f"| {' | '.join(map(escape_markdown, row))} |" for row in rows)
    marks = " | ".join("---:" if column.form else ":---" for column in grid.columns)
    return "\n".join([head, f"| {marks} |", *lines])


def format_csv(titles: Iterable[str], rows: Iterable[Iterable[Cell]]) -> str:
    """Return a table as CSV, numbers unrounded; spreadsheets see texts instead of formulas."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    for row in (titles, *rows):
        cells = []
        for cell in row:
            flat = sanitize(cell) if isinstance(cell, str) else cell
            is_formula = isinstance(flat, str) and flat.startswith(_FORMULA)
            cells.append(f"'{flat}" if is_formula else flat)
        writer.writerow(cells)
    return stream.getvalue()


@dataclass(frozen=True)
class TableView:
    """A table with what surrounds it, for a terminal or as Markdown.

    Attributes:
        heading: Lines above the table in a terminal, with colours; Markdown has its title.
    """

    heading: tuple[str, ...]
    grid: Grid
    notes: tuple[str, ...] = ()
    legend: str = ""
    colours: tuple[str | None, ...] = ()

    def text(self, width: int = 0) -> str:
        """Return the view for a terminal, with colours."""
        head, *rows = format_lines(self.grid, width)
        colours = self.colours or (None,) * len(rows)
        lines = [part for line in self.heading for part in fold_text(line, width, GAP)]
        lines += ["", head] if lines else [head]
        for row, colour in zip(rows, colours, strict=True):
            lines.append(click.style(row, fg=colour) if colour else row)
        for note in self.notes:
            lines += fold_text(f"{GAP}· {sanitize(note)}", width, _INDENT)
        if self.legend:
            lines += ["", *fold_text(sanitize(self.legend), width)]
        return "\n".join(lines)

    def render(self, form: str, width: int) -> str:
        """Return the view as `markdown`, or for a terminal."""
        return self.markdown() if form == "markdown" else self.text(width)

    def markdown(self) -> str:
        """Return the view as Markdown, without colours."""
        parts = [f"### {escape_markdown(self.grid.title)}", format_markdown(self.grid)]
        if self.notes:
            parts.append("\n".join(f"* {escape_markdown(note)}" for note in self.notes))
        if self.legend:
            parts.append(escape_markdown(self.legend))
        return "\n\n".join(parts)
