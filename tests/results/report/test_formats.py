"""Names stay text in every form of a report; a report in headless Chromium (`make browser`)."""

import csv
import io
import json
import os
import re
import shutil
import subprocess
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hpcbert.model import Group, Origin, Provenance, Steps
from hpcbert.results.document import NodeFacts, ResultSet, Source
from hpcbert.results.grid import Column, Grid
from hpcbert.results.reduce import tabulate
from hpcbert.results.report import figures, formats, model
from hpcbert.results.report.sections import compose_report
from hpcbert.results.words import LANGUAGES, Words
from tests.kit.cases import read_constant
from tests.kit.needs import lacks
from tests.kit.paths import REPOSITORY
from tests.kit.waiting import CEILING
from tests.results.test_reduce import make_point, make_run

HOSTILE = read_constant(__file__, "HOSTILE")
MADE = Provenance("0", "2026-11-21T10:00:00Z", "hpcbert report <x> --output 'a|b'")
USUAL = "usual"


def compose(name, language="en"):
    """Return the report on a table in which everything that can be named has a name."""
    texts = {"log": name, "nodes": (name,), "state_source": "sacct"}
    runs = [make_run(n, 10.0 + n, state="COMPLETED", **texts) for n in (1, 2)]
    runs.append(make_run(3, None, state=name, **texts))
    origin, steps = Origin("campaign", name, name), Steps((1, 2, 3), (0.5, 0.4, 0.4), 1, 3)
    values = {"runs": tuple(runs), "origin": origin, "steps": ((1, steps),)}
    groups = [Group(text, name, name, 32, name, name) for text in (name, f"{name} ")]
    shapes = ("1n1g", "1n8g", "2n8g")
    points = [make_point(shape, group=group, **values) for group in groups for shape in shapes]
    facts = NodeFacts("d", (name,), {"GPU": name, f"variable {name}": name})
    source = Source(
        "campaign", name, name, command=("hpcbert", name), site=name, image=name,
        environments=(facts,),
    )  # fmt: skip
    results = ResultSet(tabulate(points), None, (source,), (name,), (name,), ((name, name),))
    script = (name, f"echo {name}\n```\n</code></pre>")
    topology = {name: (f"\tGPU0\t{name}", f"GPU0\tX\t{name}")}
    files = model.SourceFiles(script, topology, {name: "0" * 64})
    inputs = model.ReportInput(name, MADE, results, (files,))
    return compose_report(inputs, Words(language))


def render_page(report):
    drawings = {entry.name: figures.draw(entry, formats=["svg"]) for entry in report.pictures}
    return formats.render_page(report, drawings)


@pytest.mark.slow
def test_a_page_takes_no_name_for_a_tag_and_has_every_figure_with_its_numbers():
    class Page(HTMLParser):
        def __init__(self, text):
            super().__init__()
            self.tags, self.attributes, self.text = [], [], ""
            self.feed(text)

        def handle_starttag(self, tag, attrs):
            self.tags.append(tag)
            self.attributes += attrs

        def handle_data(self, data):
            self.text += data

    name = " ".join(HOSTILE)
    report = compose(USUAL)
    plain, hostile = (Page(render_page(compose(text))) for text in (USUAL, name))
    assert hostile.tags == plain.tags
    assert {key for key, _ in hostile.attributes} == {key for key, _ in plain.attributes}
    assert " ".join(name.split()).replace("\x1b", "�") in " ".join(hostile.text.split())
    for key, value in plain.attributes + hostile.attributes:
        assert not key.startswith("on")
        if key in ("href", "src", "xlink:href"):
            assert (value or "").startswith(("#", "data:,"))
    ids = [value for key, value in plain.attributes if key == "id"]
    assert len(ids) == len(set(ids))
    labels = {value for key, value in plain.attributes if key == "aria-labelledby"}
    assert labels <= set(ids)
    pictures = {picture.panels[0].kind: picture for picture in report.pictures}
    assert pictures.keys() == {"scaling", "bars", "runs", "steps"}
    for picture in report.pictures:
        assert picture.alt
        points = sum(len(series.points) for series in picture.panels[0].series)
        assert len(picture.grid.rows) == points
    first, second = (figures.draw(pictures["scaling"]) for _ in range(2))
    assert first == second
    assert "<dc:date>" not in first["svg"].decode()


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_names_are_text_in_markdown_and_in_tables(name):
    def read_lines(report):
        text = formats.render_markdown(report)
        return re.sub(r"(?ms)^(`{3,})text$.*?^\1$", "", text).splitlines()

    report = compose(name)
    usual, lines = read_lines(compose(USUAL)), read_lines(report)
    # Scripts are longer where names have several lines; what is a heading or a table stays one.
    for begin in ("# ", "## ", "### ", "| ", "!["):
        counts = [sum(line.startswith(begin) for line in text) for text in (usual, lines)]
        assert counts[0] == counts[1], begin
    cells = {line.replace("\\|", "").count("|") for line in lines if line.startswith("| ")}
    assert cells == {line.count("|") for line in usual if line.startswith("| ")}
    assert "<script>" not in "\n".join(lines)
    for grid in report.grids:
        _, *table = csv.reader(io.StringIO(formats.render_csv(grid)))
        for row, values in zip(table, grid.rows, strict=True):
            for text, cell in zip(row, values, strict=True):
                if isinstance(cell, str):
                    assert not text.startswith(("=", "+", "-", "@"))
                else:  # Numbers are unrounded.
                    assert (float(text) if text else None) == cell


def test_latex_takes_no_name_for_a_command():
    columns = (Column("a_b"), Column("50%", ".1%"))
    text = formats.render_latex(Grid("n", "t", columns, ((r"\input{x}", 0.5), ("[x] & *", None))))
    assert r"\textbackslash{}input\{x\} & 50.0\% \\" in text
    assert r"{[x] \& *} &  \\" in text
    assert r"a\_b & 50\% \\" in text


@pytest.mark.slow
@pytest.mark.needs("pdflatex")
def test_latex_compiles(tmp_path):
    bodies = [formats.render_latex(grid) for name in HOSTILE for grid in compose(name).grids]
    start = r"\documentclass{article}\usepackage[T1]{fontenc}\usepackage{textcomp,booktabs}"
    text = "\n\n".join([rf"{start}\begin{{document}}\tiny", *bodies, r"\end{document}"])
    (tmp_path / "all.tex").write_text(text, encoding="utf-8")
    result = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"],
        cwd=tmp_path, capture_output=True, text=True, timeout=CEILING, check=False, errors="replace",
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-2000:]


def test_a_long_table_is_folded_and_both_languages_say_the_same():
    tables = tabulate([make_point("1n1g", [10.0] * 200)])
    report = compose_report(model.ReportInput("", MADE, ResultSet(tables)), Words("en"))
    page, markdown = render_page(report), formats.render_markdown(report)
    assert re.search(r"<summary>Runs of [^<]* \(200\)</summary>", page)
    assert "fp32_200.log" in page
    assert "fp32_200.log" not in markdown
    assert " (200)](tables/runs-1.csv)" in markdown
    reports = [compose(USUAL, language) for language in LANGUAGES]
    english, chinese = ([section.key for section in report.sections] for report in reports)
    assert english == chinese
    for grid, translated in zip(*(report.grids for report in reports), strict=True):
        for row, cells in zip(grid.rows, translated.rows, strict=True):
            numbers = [cell for cell in row if not isinstance(cell, str)]
            assert numbers == [cell for cell in cells if not isinstance(cell, str)]


PROGRAMS = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
CHROMIUM = next(filter(None, PROGRAMS), "")
MODULE = REPOSITORY / ".setup/axe/node_modules/axe-core/axe.min.js"
AXE = Path(os.environ.get("HPCBERT_AXE", MODULE))


def open_page(file, *words):
    """Open a page in Chromium, which reaches no network and has a profile of its own."""
    # No sandbox for root; no address is found; what the console says goes to stderr.
    argv = [CHROMIUM, "--headless=new", "--disable-gpu", "--no-first-run", "--no-sandbox"]
    argv += ["--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr"]
    argv += [f"--user-data-dir={file.parent / 'profile'}", *words, f"file://{file}"]
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=CEILING, check=True, errors="replace"
    )


def measure_page(file, expression, *words):
    """Return what a script says of a page, in a copy that allows scripts."""
    policy = r'<meta http-equiv="Content-Security-Policy"[^>]*>'
    text = re.sub(policy, "", file.read_text("utf-8"))
    libraries = [AXE.read_text("utf-8")] if "axe." in expression else []
    write = "document.body.setAttribute('data-answer', JSON.stringify(answer))"
    script = f"Promise.resolve({expression}).then(answer => {write})"
    scripts = "".join(f"<script>{source}</script>" for source in [*libraries, script])
    copy = file.with_name("measured.html")
    copy.write_text(text.replace("</body>", f"{scripts}</body>"), encoding="utf-8")
    result = open_page(copy, "--dump-dom", "--virtual-time-budget=30000", *words)
    match = re.search(r'data-answer="([^"]*)"', result.stdout)
    assert match, result.stderr[-2000:]
    return json.loads(unescape(match[1]))


def write_page(folder, name, language="en"):
    if not CHROMIUM:
        lacks("extras", "Chromium", "make browser")
    file = folder / "index.html"
    file.write_text(render_page(compose(name, language)), encoding="utf-8")
    return file


@pytest.mark.slow
def test_nothing_overflows_or_is_loaded_and_the_console_is_silent(tmp_path):
    file = write_page(tmp_path, " ".join(HOSTILE))
    result = open_page(file, "--dump-dom")
    assert "</html>" in result.stdout
    assert [line for line in result.stderr.splitlines() if ":CONSOLE" in line] == []
    names = "performance.getEntriesByType('resource').map(entry => entry.name)"
    assert measure_page(file, names) == []
    # In frames: a window of Chromium is no narrower than 500 pixels.
    frames = "".join(
        f'<iframe style="width:{width}px;height:900px;border:0" '
        f'srcdoc="{escape(file.read_text("utf-8"))}"></iframe>'
        for width in (400, 1400)
    )
    outer = tmp_path / "outer.html"
    outer.write_text(f"<!DOCTYPE html><body>{frames}</body>", encoding="utf-8")
    widths = "[f.contentWindow.innerWidth, f.contentDocument.documentElement.scrollWidth]"
    loaded = "new Promise(done => addEventListener('load', done))"
    expression = f"{loaded}.then(() => [...document.querySelectorAll('iframe')].map(f => {widths}))"
    sizes = measure_page(outer, expression, "--window-size=1600,2000")
    assert [inner for inner, _ in sizes] == [400, 1400]
    assert all(scroll <= inner for inner, scroll in sizes)


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_axe_names_no_violation(language, theme, tmp_path):
    if not AXE.is_file():
        lacks("extras", "axe-core", "make browser")
    expression = (
        "axe.run().then(report => report.violations.map("
        "rule => [rule.id, rule.nodes.map(node => node.html.slice(0, 200))]))"
    )
    dark = ["--blink-settings=preferredColorScheme=0"] if theme == "dark" else []
    assert measure_page(write_page(tmp_path, USUAL, language), expression, *dark) == []


@pytest.mark.slow
@pytest.mark.needs("pdftotext")
def test_the_page_prints_whole(tmp_path):
    printed = tmp_path / "page.pdf"
    words = (f"--print-to-pdf={printed}", "--no-pdf-header-footer")
    open_page(write_page(tmp_path, USUAL), *words)
    text = subprocess.run(
        ["pdftotext", "-layout", printed, "-"], capture_output=True, text=True, check=True
    ).stdout
    for key in ("environment", "results", "figures", "left-out", "digests"):
        assert Words("en")(f"section.{key}") in text
    assert "samples/s" in text
