"""A report's tables as files: CSV for programs, LaTeX for papers.

LaTeX's tables need the packages booktabs and siunitx; each file says so.
"""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from hpcbert.results.delimited import cell

if TYPE_CHECKING:
    from hpcbert.report.blocks import Cell, Column, Grid

# The ten characters that are commands (The LaTeX Companion), and those that T1 lacks.
_TEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    "-": "{-}",
    "·": r"\textperiodcentered{}",
    "…": r"\dots{}",
}
_LATIN = range(0xC0, 0x100)
_HAN = range(0x2E80, 0xFFF0)


def comma_separated(grid: Grid) -> str:
    """Return a table as CSV, numbers unrounded; a spreadsheet sees no formula in it."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(cell(column.title) for column in grid.columns)
    writer.writerows(
        [cell(one) if isinstance(one, str) else one for one in row] for row in grid.rows
    )
    return stream.getvalue()


def latex(grid: Grid, *, han: bool = False) -> str:
    """Return a table as LaTeX.

    Args:
        grid: The table.
        han: Whether to keep Chinese signs: then it needs XeLaTeX with the package ctex.
    """
    packages = "booktabs, siunitx" + (", ctex (XeLaTeX)" if han else ", textcomp, fontenc (T1)")
    spec = "".join("l" if not one.form else _siunitx(grid, one) for one in grid.columns)
    titles = (f"{one.title} (%)" if one.form.endswith("%") else one.title for one in grid.columns)
    head = " & ".join(f"{{{escaped(one, han=han)}}}" for one in titles)
    return "\n".join(
        [
            f"% {grid.name}: needs {packages}",
            r"\begin{tabular}{" + spec + "}",
            r"\toprule",
            rf"{head} \\",
            r"\midrule",
            *(_line(grid.columns, row, han=han) for row in grid.rows),
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def escaped(text: str, *, han: bool = False) -> str:
    """Return text that LaTeX shows unchanged; signs that it lacks appear as their numbers."""
    return "".join(map(_sign_with_han if han else _sign, text))


def _sign_with_han(char: str) -> str:
    return char if ord(char) in _HAN else _sign(char)


def _sign(char: str) -> str:
    if char in _TEX:
        return _TEX[char]
    plain = (" " <= char <= "~") or ord(char) in _LATIN
    return char if plain else f"[U+{ord(char):04X}]"


def _line(columns: tuple[Column, ...], row: tuple[Cell, ...], *, han: bool) -> str:
    cells = (_cell(*pair, han=han) for pair in zip(columns, row, strict=True))
    return rf"{' & '.join(cells)} \\"


def _cell(column: Column, value: Cell, *, han: bool) -> str:
    if column.form and not isinstance(value, str):
        return _number(column, value)
    shown = escaped(column.shown(value), han=han)
    # In a column of numbers a text needs braces; so does text that `\\` would read as its argument.
    return f"{{{shown}}}" if column.form or shown.startswith(("[", "*")) else shown


def _number(column: Column, value: float | None) -> str:
    """Return a number as siunitx reads it: a share in percent, without the sign."""
    if value is None:
        return "{}"
    if column.form.endswith("%"):
        return format(value * 100, column.form[:-1] + "f")
    return format(value, column.form)


def _siunitx(grid: Grid, column: Column) -> str:
    """Return a column of numbers, aligned at their points."""
    if column.form.endswith("e"):
        return "S[table-format=1.3e2]"
    place = grid.columns.index(column)
    numbers = (row[place] for row in grid.rows)
    texts = [_number(column, one) for one in numbers if isinstance(one, int | float)]
    whole = max((len(one.lstrip("+-").partition(".")[0]) for one in texts), default=1)
    part = max((len(one.partition(".")[2]) for one in texts), default=0)
    return f"S[table-format={whole}.{part}]" if part else f"S[table-format={whole}]"
