"""The formats of a report: one template each.

The page loads nothing: no script, no font, nothing from a network. LaTeX's tables need the packages
booktabs and siunitx; each file says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from hpcbert.results.grid import Cell, Column, Grid, escape_markdown, format_csv, format_markdown
from hpcbert.results.report.figures import Drawing, inline_svg
from hpcbert.results.report.model import Picture, Report, Words

if TYPE_CHECKING:
    from jinja2 import Environment

_FENCE = re.compile(r"`{3,}")
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


@cache
def _template_environment(escape_text: Callable[[str], str] | None = None) -> Environment:
    """Return templates in which a function escapes every value but Markup; None: as HTML."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    def finalize(value: object) -> object:
        return escape_text(str(value)) if escape_text and not isinstance(value, Markup) else value

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=select_autoescape(("html.j2",)),
        finalize=finalize,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["kind"] = lambda block: type(block).__name__
    return environment


def render_page(report: Report, drawings: Mapping[str, Drawing], words: Words) -> str:
    """Return a report as one page."""

    def figure(picture: Picture) -> Markup:
        # matplotlib escapes what it writes.
        svg = drawings[picture.name].svg
        return Markup(inline_svg(svg, picture.name, f"{picture.name}-alt"))  # noqa: S704

    template = _template_environment().get_template("page.html.j2")
    return template.render(report=report, words=words, figure=figure)


def render_markdown(report: Report) -> str:
    """Return a report as Markdown; figures, scripts and long tables are the files next to it."""

    def table(grid: Grid) -> Markup:
        return Markup(format_markdown(grid))  # noqa: S704 - its cells are escaped

    template = _template_environment(escape_markdown).get_template("report.md.j2")
    numbers = Words(report.language)("page.numbers")
    text = template.render(report=report, table=table, code=_fence_text, numbers=numbers)
    return text.rstrip("\n") + "\n"


def _fence_text(text: str) -> Markup:
    """Return a text between fences that are longer than any in it."""
    fence = "`" * max([3, *(len(fence) + 1 for fence in _FENCE.findall(text))])
    return Markup(f"{fence}text\n{text.rstrip()}\n{fence}")  # noqa: S704 - nothing ends the fence


def render_csv(grid: Grid) -> str:
    """Return a table as CSV, numbers unrounded."""
    return format_csv((column.title for column in grid.columns), grid.rows)


def render_latex(grid: Grid, *, han: bool = False) -> str:
    """Return a table as LaTeX.

    Args:
        han: Whether to keep Chinese signs: then it needs XeLaTeX with the package ctex.
    """
    escaped = partial(escape_latex, han=han)
    rows = [
        [_latex_cell(column, cell, escaped) for column, cell in zip(grid.columns, row, strict=True)]
        for row in grid.rows
    ]
    template = _template_environment().get_template("table.tex.j2")
    spec = "".join(_latex_column(grid, place) for place in range(len(grid.columns)))
    titles = [
        escaped(f"{column.title} (%)" if column.form.endswith("%") else column.title)
        for column in grid.columns
    ]
    return template.render(name=grid.name, han=han, spec=spec, titles=titles, rows=rows)


def escape_latex(text: str, *, han: bool) -> str:
    """Return text that LaTeX shows unchanged; signs that it lacks appear as their numbers."""
    return "".join(char if han and ord(char) in _HAN else _latex_sign(char) for char in text)


def _latex_sign(char: str) -> str:
    if char in _TEX:
        return _TEX[char]
    plain = (" " <= char <= "~") or ord(char) in _LATIN
    return char if plain else f"[U+{ord(char):04X}]"


def _latex_cell(column: Column, cell: Cell, escaped: Callable[[str], str]) -> str:
    if column.numeric and not isinstance(cell, str):
        return "{}" if cell is None else _latex_number(column, cell)
    text = escaped(column.format_cell(cell))
    # In a column of numbers a text needs braces; so does text that `\\` would read as its argument.
    return f"{{{text}}}" if column.numeric or text.startswith(("[", "*")) else text


def _latex_number(column: Column, value: float) -> str:
    """Return a number as siunitx reads it: a share in percent, without the sign."""
    if column.form.endswith("%"):
        return format(value * 100, column.form[:-1] + "f")
    return format(value, column.form)


def _latex_column(grid: Grid, place: int) -> str:
    """Return the type of a column; numbers are aligned at their points."""
    column = grid.columns[place]
    if not column.numeric:
        return "r" if column.form else "l"
    if column.form.endswith("e"):
        return "S[table-format=1.3e2]"
    cells: list[Any] = [row[place] for row in grid.rows]
    numbers = [_latex_number(column, cell) for cell in cells if isinstance(cell, int | float)]
    count = max((len(text.lstrip("+-").partition(".")[0]) for text in numbers), default=1)
    part = max((len(text.partition(".")[2]) for text in numbers), default=0)
    return f"S[table-format={count}.{part}]" if part else f"S[table-format={count}]"
