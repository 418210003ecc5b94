"""A report as one page that loads nothing: no script, no font, nothing from a network."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert.report.figures import inline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jinja2 import Template

    from hpcbert.report.blocks import Picture, Report
    from hpcbert.report.figures import Drawing
    from hpcbert.report.words import Words

_FOLDER = Path(__file__).parent


def render(report: Report, drawings: Mapping[str, Drawing], words: Words) -> str:
    """Return the page.

    Args:
        report: The report.
        drawings: One for each figure, by name.
        words: Those of the report's language.
    """
    return _template().render(report=report, words=words, figure=_figure(drawings))


def _figure(drawings: Mapping[str, Drawing]) -> object:
    from markupsafe import Markup

    def figure(picture: Picture) -> Markup:
        # matplotlib escapes what it writes.
        svg = drawings[picture.name].svg
        return Markup(inline(svg, picture.name, f"{picture.name}-alt"))  # noqa: S704

    return figure


@cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["kind"] = lambda block: type(block).__name__
    return made.get_template("page.html.j2")
