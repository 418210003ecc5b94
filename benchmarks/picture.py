"""The figures of the documents, drawn as in a report, and written to the pages' folders.

* docs/tutorial/first-table.svg: of the table that the page shows.
* docs/pictures/published.svg, of the README: of DLPerf's published tables; in the other sizes of
  `hpcbert report --size`, published-slide.svg and published-column.svg, of docs/how-to/report.md.

python benchmarks/picture.py
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hpcbert.model import Group, Provenance, RepeatCount, Row, Shape, SpeedupTable
from hpcbert.results import record
from hpcbert.results.document import ResultSet
from hpcbert.results.report import figures
from hpcbert.results.report.model import ReportInput, SourceFiles
from hpcbert.results.report.sections import compose_report
from hpcbert.results.words import Words

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "tutorial" / "first-table.md"
PICTURE = PAGE.with_suffix(".svg")
PUBLISHED = DOCS / "pictures" / "published.svg"
# Four of the frameworks, as `hpcbert report` takes them.
TABLES = [f"dlperf:{name}-fp32-b32" for name in ("oneflow", "ngc-pytorch", "ngc-tf1", "paddle18")]
_ROW = re.compile(
    r"^ +(?P<nodes>\d+) +(?P<ranks>\d+) +(?P<median>[\d.]+) +(?P<speedup>[\d.]+)"
    r" +(?P<efficiency>[\d.]+)% +(?P<min>[\d.]+) +(?P<max>[\d.]+) +(?P<cv>[\d.]+)%"
    r" +(?P<ok>\d+)/(?P<asked>\d+)",
    re.MULTILINE,
)


def table() -> SpeedupTable:
    """Return the page's first table."""
    first = PAGE.read_text(encoding="utf-8").split("```text", 1)[1].split("```", 1)[0]
    rows = []
    for found in _ROW.finditer(first):
        names = ("median", "min", "max", "cv", "speedup")
        number: dict[str, Any] = {name: float(found[name]) for name in names}
        shape = Shape(int(found["nodes"]), int(found["ranks"]))
        repeats = RepeatCount(int(found["ok"]), int(found["asked"]))
        efficiency = float(found["efficiency"]) / 100
        rows.append(Row(shape, repeats=repeats, efficiency=efficiency, **number))
    group = Group("pytorch", "bert-tiny", "fp32", 4, "clock", device="cpu")
    return SpeedupTable(group, rows[0].shape, tuple(rows))


def published() -> ResultSet:
    """Return the published tables."""
    return record.published_results(TABLES)


def picture(shown: ResultSet | None = None, size: str = figures.DEFAULT_SIZE) -> str:
    """Return a report's first figure as SVG: of the tutorial's table, or of others."""
    results = shown or ResultSet((table(),))
    source_files = tuple(SourceFiles() for _ in results.sources)
    given = ReportInput("", Provenance("", "", ""), results, source_files)
    (first, *_) = compose_report(given, Words("en")).pictures
    return figures.draw(first, size=size, formats=["svg"])["svg"].decode()


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
    for size in figures.SIZES:
        ending = "" if size == figures.DEFAULT_SIZE else f"-{size}"
        file = PUBLISHED.with_stem(f"{PUBLISHED.stem}{ending}")
        file.write_text(picture(published(), size), encoding="utf-8")
