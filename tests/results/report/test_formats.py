"""What names hold stays text in every form of a report."""

from __future__ import annotations

import csv
import io
import re
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hpcbert.model import Group, Measured, Origin, Provenance, Reason, Run, Shape, Steps
from hpcbert.results.document import NodeFacts, ResultSet, Source
from hpcbert.results.grid import Column, Grid
from hpcbert.results.reduce import tabulate
from hpcbert.results.report import figures, formats
from hpcbert.results.report.model import (
    LANGUAGES,
    Report,
    ReportInput,
    SourceFiles,
    StepTrace,
    Words,
)
from hpcbert.results.report.sections import compose_report
from tests.kit.cases import read_constant
from tests.kit.waiting import CEILING

HOSTILE = read_constant(__file__, "HOSTILE")
MADE = Provenance("0", "2026-11-21T10:00:00Z", "hpcbert report <x> --output 'a|b'")


def make_report_input(name: str) -> ReportInput:
    """Return what is reported of a table in which everything that can be named has a name."""
    bad = Run(3, 0, None, False, (Reason("loss", name),), name, "sacct", name, nodes=(name,))
    runs = tuple(
        Run(number, 0, 10.0 + number, True, (), "COMPLETED", "sacct", name, nodes=(name,))
        for number in (1, 2)
    )
    source = Source(
        "campaign", name, name, command=("hpcbert", name), site=name, image=name,
        environments=(NodeFacts("d", (name,), {"GPU": name, f"variable {name}": name}),),
    )  # fmt: skip
    origin = Origin("campaign", name, name)
    steps = Steps((1, 2, 3), (0.5, 0.4, 0.4), 1, 3)
    groups = (
        Group(name, name, name, 32, name, name),
        Group(f"{name} ", name, name, 32, name, name),
    )
    points = [
        Measured(group, Shape(nodes, 8), 3, (*runs, bad), origin=origin, steps=((1, steps),))
        for group in groups
        for nodes in (1, 2)
    ]
    tables = tabulate([Measured(groups[0], Shape(1, 1), 3, (*runs, bad), origin=origin), *points])
    results = ResultSet(tables, None, (source,), (name,), (name,), ((name, name),))
    backing = SourceFiles(
        (name, f"echo {name}\n```\n</code></pre>"),
        {name: (f"\tGPU0\t{name}", f"GPU0\tX\t{name}")},
        {name: "0" * 64},
    )
    stretch = StepTrace(
        groups[0], Shape(1, 8), 1, tuple(zip(steps.iterations, steps.seconds, strict=True)), (2, 3)
    )
    return ReportInput(name, MADE, results, (backing,), (), (stretch,))


class Text(HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def render_page(report: Report) -> str:
    drawings = {
        picture.name: figures.draw(picture, all_formats=False) for picture in report.pictures
    }
    return formats.render_page(report, drawings, Words(report.language))


@pytest.mark.slow
def test_names_are_text_on_the_page() -> None:
    name = " ".join(HOSTILE)
    plain, hostile = Text(), Text()
    usual = render_page(compose_report(make_report_input("usual"), Words("en")))
    plain.feed(usual)
    page = render_page(compose_report(make_report_input(name), Words("en")))
    hostile.feed(page)
    assert hostile.tags == plain.tags
    assert {key for key, _ in hostile.attributes} == {key for key, _ in plain.attributes}
    text = " ".join(name.split()).replace("\x1b", "�")
    assert text in " ".join("".join(hostile.text).split())
    for parser in (plain, hostile):
        links = [
            value or "" for key, value in parser.attributes if key in ("href", "src", "xlink:href")
        ]
        assert all(link.startswith(("#", "data:,")) for link in links)
        assert not {key for key, _ in parser.attributes if key.startswith("on")}


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_names_are_text_in_markdown(name: str) -> None:
    usual = formats.render_markdown(
        compose_report(make_report_input("usual"), Words("en"))
    ).splitlines()
    lines = formats.render_markdown(
        compose_report(make_report_input(name), Words("en"))
    ).splitlines()
    # Scripts are longer where names have several lines; what is a heading or a table stays one.
    for begin in ("# ", "## ", "### ", "| ", "!["):
        outside = [line for line in drop_fences(lines) if line.startswith(begin)]
        assert len(outside) == sum(line.startswith(begin) for line in drop_fences(usual)), begin
    cells = {
        line.replace("\\|", "").count("|") for line in drop_fences(lines) if line.startswith("| ")
    }
    assert cells == {line.count("|") for line in drop_fences(usual) if line.startswith("| ")}
    assert "<script>" not in "\n".join(drop_fences(lines))


def drop_fences(lines: list[str]) -> list[str]:
    outside, fence = [], ""
    for line in lines:
        if fence:
            fence = "" if line == fence else fence
        elif match := re.match(r"(`{3,})text$", line):
            fence = match[1]
        else:
            outside.append(line)
    return outside


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_no_cell_is_a_formula_and_numbers_are_unrounded(name: str) -> None:
    for grid in compose_report(make_report_input(name), Words("en")).grids:
        lines = list(csv.reader(io.StringIO(formats.render_csv(grid))))
        assert {len(line) for line in lines} == {len(grid.columns)}
        for line, row in zip(lines[1:], grid.rows, strict=True):
            for text, cell in zip(line, row, strict=True):
                if isinstance(cell, str):
                    assert not text.startswith(("=", "+", "-", "@"))
                else:
                    assert (float(text) if text else None) == cell


def test_latex_takes_no_name_for_a_command() -> None:
    columns = (Column("a_b"), Column("50%", ".1%"))
    text = formats.render_latex(Grid("n", "t", columns, ((r"\input{x}", 0.5), ("[x] & *", None))))
    assert r"\textbackslash{}input\{x\} & 50.0\% \\" in text
    assert r"{[x] \& *} &  \\" in text
    assert r"a\_b & 50\% \\" in text


@pytest.mark.slow
@pytest.mark.needs("pdflatex")
def test_latex_compiles(tmp_path: Path) -> None:
    bodies = [
        formats.render_latex(grid)
        for name in HOSTILE
        for grid in compose_report(make_report_input(name), Words("en")).grids
    ]
    start = r"\documentclass{article}\usepackage[T1]{fontenc}\usepackage{textcomp,booktabs}"
    text = "\n\n".join([rf"{start}\begin{{document}}\tiny", *bodies, r"\end{document}"])
    (tmp_path / "all.tex").write_text(text, encoding="utf-8")
    result = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"],
        cwd=tmp_path, capture_output=True, text=True, timeout=CEILING, check=False, errors="replace",
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-2000:]


@pytest.mark.slow
def test_every_figure_has_its_text_and_its_numbers_and_the_same_bytes_each_time() -> None:
    report = compose_report(make_report_input("usual"), Words("en"))
    pictures = {picture.panels[0].kind: picture for picture in report.pictures}
    assert pictures.keys() == {"scaling", "bars", "runs", "steps"}
    for picture in pictures.values():
        first, second = figures.draw(picture), figures.draw(picture)
        assert first == second
        assert "<dc:date>" not in first.svg
    for picture in report.pictures:
        assert picture.alt
        assert len(picture.grid.rows) == sum(
            len(series.points) for series in picture.panels[0].series
        )
    text = render_page(report)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'aria-labelledby="([^"]+)"', text)) <= set(ids)


def test_a_long_table_is_folded_and_its_file_has_all_rows() -> None:
    group = Group("pytorch", "bert-base", "fp16", 64, "rate")
    runs = tuple(Run(n, 0, 10.0, True, (), "COMPLETED", "sacct", f"{n}.log") for n in range(1, 201))
    tables = tabulate([Measured(group, Shape(1, 1), 200, runs)])
    report = compose_report(ReportInput("", MADE, ResultSet(tables)), Words("en"))
    page, markdown = render_page(report), formats.render_markdown(report)
    assert re.search(r"<summary>Runs of [^<]* \(200\)</summary>", page)
    assert "200.log" in page
    assert "200.log" not in markdown
    assert " (200)](tables/runs-1.csv)" in markdown


def test_both_languages_say_the_same() -> None:
    english, chinese = (
        compose_report(make_report_input("usual"), Words(language)) for language in LANGUAGES
    )
    assert [section.key for section in english.sections] == [
        section.key for section in chinese.sections
    ]
    for grids in zip(english.grids, chinese.grids, strict=True):
        numbers, others = (
            [[cell for cell in row if not isinstance(cell, str)] for row in grid.rows]
            for grid in grids
        )
        assert numbers == others


def test_a_table_of_the_cpu_says_nothing_of_gpus() -> None:
    report_input = make_report_input("usual")
    tables = tuple(
        replace(table, group=replace(table.group, device="cpu")) for table in report_input.tables
    )
    source = replace(report_input.results.sources[0], environments=())
    report_input = replace(
        report_input,
        results=replace(report_input.results, tables=tables, sources=(source,)),
        source_files=(),
    )
    for language in LANGUAGES:
        text = formats.render_markdown(compose_report(report_input, Words(language)))
        assert "GPU" not in text.replace("nvidia", "")
        assert "CPU" in text
