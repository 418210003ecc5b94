"""The tutorial's picture: the figure that a report has, of the table that the page shows.

python benchmarks/picture.py      # writes docs/tutorial/first-table.svg
"""

from __future__ import annotations

import re
from pathlib import Path

from hpcbert.model import Group, Provenance, Row, Shape, SpeedupTable
from hpcbert.report import figures
from hpcbert.report.content import compose
from hpcbert.report.given import Given
from hpcbert.report.words import Words
from hpcbert.results.resultset import ResultSet

PAGE = Path(__file__).resolve().parent.parent / "docs" / "tutorial" / "first-table.md"
PICTURE = PAGE.with_suffix(".svg")
_ROW = re.compile(
    r"^ +(?P<nodes>\d+) +(?P<ranks>\d+) +(?P<median>[\d.]+) +(?P<min>[\d.]+) \.\. (?P<max>[\d.]+)"
    r" +(?P<cv>[\d.]+)% +(?P<speedup>[\d.]+) +(?P<efficiency>[\d.]+)% +(?P<ok>\d+)/(?P<asked>\d+)",
    re.MULTILINE,
)


def table() -> SpeedupTable:
    """Return the page's first table."""
    first = PAGE.read_text(encoding="utf-8").split("```text", 1)[1].split("```", 1)[0]
    rows = []
    for found in _ROW.finditer(first):
        number = {name: float(found[name]) for name in ("median", "min", "max", "cv", "speedup")}
        shape = Shape(int(found["nodes"]), int(found["ranks"]))
        whole = {"ok": int(found["ok"]), "asked": int(found["asked"])}
        efficiency = float(found["efficiency"]) / 100
        rows.append(
            Row(shape, mean=None, efficiency=efficiency, flags=(), runs=(), **number, **whole)
        )
    group = Group("pytorch", "bert-tiny", "fp32", 4, "clock", device="cpu")
    return SpeedupTable(group, rows[0].shape, tuple(rows))


def picture() -> str:
    """Return the figure as SVG."""
    given = Given("", Provenance("", "", ""), ResultSet((table(),)))
    (first, *_) = compose(given, Words("en")).pictures
    return figures.draw(first, forms=False).svg


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
