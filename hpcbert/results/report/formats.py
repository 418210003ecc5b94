"""The formats of a report: one template each.

The page loads nothing: no script, no font, nothing from a network. LaTeX's tables need the package
booktabs and others; each file says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from hpcbert.results.grid import Grid, escape_markdown, format_csv, format_markdown
from hpcbert.results.report.figures import inline_svg
from hpcbert.results.report.model import Picture, Report
from hpcbert.results.words import Words

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


def render_page(report: Report, drawings: Mapping[str, Mapping[str, bytes]]) -> str:
    """Return a report as one page."""

    def figure(picture: Picture) -> Markup:
        # matplotlib escapes what it writes.
        svg = drawings[picture.name]["svg"].decode()
        return Markup(inline_svg(svg, picture.name, f"{picture.name}-alt"))  # noqa: S704

    template = _template_environment().get_template("page.html.j2")
    return template.render(report=report, words=Words(report.language), figure=figure)


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
    """Return a table as LaTeX; numbers of a column have equally many decimals, on the right.

    Args:
        han: Whether to keep Chinese signs: then it needs XeLaTeX with the package ctex.
    """
    rows = [[escape_latex(text, han=han) for text in row] for row in grid.format_rows()]
    template = _template_environment().get_template("table.tex.j2")
    spec = "".join("r" if column.form else "l" for column in grid.columns)
    titles = [escape_latex(column.title, han=han) for column in grid.columns]
    return template.render(name=grid.name, han=han, spec=spec, titles=titles, rows=rows)


def escape_latex(text: str, *, han: bool) -> str:
    """Return text that LaTeX shows unchanged; signs that it lacks appear as their numbers."""
    signs = []
    for char in text:
        code = ord(char)
        plain = " " <= char <= "~" or code in _LATIN or (han and code in _HAN)
        signs.append(_TEX.get(char, char if plain else f"[U+{code:04X}]"))
    escaped = "".join(signs)
    # After `\\` these would be its argument.
    return f"{{{escaped}}}" if escaped.startswith(("[", "*")) else escaped
