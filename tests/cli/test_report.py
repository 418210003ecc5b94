"""`hpcbert report`: from campaigns, logs and saved results to a directory."""

import csv
import hashlib
import re
import zipfile
from pathlib import Path

import pytest

from hpcbert.results import document
from hpcbert.results.report import figures
from tests.kit.campaigns import node, write_nodes
from tests.kit.cli import run
from tests.kit.logs import TEST_RECIPES, log, write_file

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("empty_directory")]


def report(*words, status=0):
    options = ("--output", "out", "--templates", TEST_RECIPES)
    return run("report", *words, *options, status=status)


def read(name):
    return Path("out", name).read_text(encoding="utf-8")


def rows(table):
    return list(csv.reader(read(f"tables/{table}.csv").splitlines()))[1:]


def test_a_report_has_every_file_and_saved_results_give_it_again_in_another_size(logs):
    text = f"HF_TOKEN=hf_0123456789abcdefgh\n{log('1n2g', 26.0, iters=120)}"
    write_file(logs, "pytorch/bert/bz4/1n2g/bert_b4_fp32_1.log", text)
    result = report(logs, "--with-logs", "--json")
    (warning,) = (text for text in result.document["warnings"] if "secret" in text)
    assert "bert_b4_fp32_1.log" in warning
    files, out = set(result.data["files"]), Path(result.data["directory"])
    assert files == {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert files >= {"index.html", "report.md", "report.zh.md", "results.json", "logs.zip"}
    endings = {Path(name).suffix for name in files if name.startswith("figures/")}
    assert endings == {".svg", ".png", ".pdf"}
    names = [{Path(name).stem for name in files if name.endswith(end)} for end in (".csv", ".tex")]
    assert names[0] == names[1]
    for line in read("SHA256SUMS").splitlines():
        digest, _, name = line.partition("  ")
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest
    (table,) = document.read_results(out / "results.json").tables
    assert table.rows[1].median == result.data["tables"][0]["rows"][1]["median"]
    with zipfile.ZipFile(out / "logs.zip") as archive:
        assert len(archive.namelist()) == 6
    assert not re.search(r'<script|(?:src|href)="(?!#|data:,)', read("index.html"))
    text = read("report.md")
    parts = ("# bert fp32 with pytorch on GPU, 1n1g to 1n2g", "Highest throughput: 26.00 samples/s",
             "Efficiency at the largest shape", "figures/scaling-1.svg", "**Medians of",
             "**pytorch bert fp32", "## Figures", "## How good", "## All runs", "## What was left out",
             "## Environment", "## Feature matrix", "## Appendix")  # fmt: skip
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    (row,) = rows("pivot-1")
    assert (row[0], *row[2:4]) == ("pytorch", "fp32", "4")
    assert [float(cell) for cell in row[4:]] == pytest.approx([13.0, 26.0, 1.0])

    first = Path("out").rename("first")
    report(first / "results.json")
    tables = ("results-1", "pivot-1", "runs-1", "figure-scaling-1")
    for name in (*(f"tables/{table}.csv" for table in tables), "figures/scaling-1.svg"):
        assert (first / name).read_bytes() == Path("out", name).read_bytes()
    report(logs, "--size", "slide", "--title", "On our cluster")
    svg = read("figures/scaling-1.svg")
    width = float(re.findall(r'<svg[^>]* width="([\d.]+)pt"', svg)[0])
    assert width == pytest.approx(72 * figures.SIZES["slide"].width)
    assert ">On our cluster<" in svg
    assert "bert fp32" in svg


def test_a_campaign_tells_its_nodes_commands_and_what_does_not_count(build):
    command = ("hpcbert", "submit", "--fw", "pytorch")
    built = build("1n1g", "1n8g", repeats=2, scheduler="local", command=command).finish()
    built.ended("1n8g", 2, code=1)
    topology = ["\tGPU0\tGPU1\tCPU Affinity", "GPU0\t X \tNV12\t0-63", "GPU1\tNV12\t X \t0-63"]
    host = node("n1", host__topology=[*topology, "", "Legend:"])
    for array in built.campaign.arrays:
        (built.directory / array.script).write_text("#!/bin/bash\n# the script\n")
        for repeat in array.repeats:
            write_nodes(built.directory, array, repeat, host)
    report(built.directory, status=4)
    (script,) = Path("out/scripts").iterdir()
    assert "# the script" in script.read_text(encoding="utf-8")
    text = read("report.md")
    for part in (
        *("NVIDIA A100-SXM4-80GB", "GPU0     X      NV12    0-63", "Legend:"),
        *("hpcbert submit --fw pytorch", f"](scripts/{script.name})"),
        *("* 1n8g, repeat 2 left out: state:", "incomplete | fewer valid runs"),
        "docker://nvcr.io\\#nvidia/pytorch",
    ):
        assert part in text
    assert rows("digests")


def test_runs_that_do_not_count_make_a_report_without_figures(build):
    built = build("1n1g", repeats=1, scheduler="local").complete("1n1g", 1, 78.0)
    built.ended("1n1g", 1, code=1)
    host = node("n1", host__network=["eth0 physical -1 1500 up"])
    write_nodes(built.directory, built.array("1n1g"), 1, host)
    report(built.directory, status=4)
    text = read("report.md")
    assert not Path("out/figures").exists()
    assert "There is nothing to draw" in text
    assert re.search(r"Invalid runs by reason: .*state \(1\)", text)
    assert "* 1n1g, repeat 1 left out: state:" in text
    assert "-1 Mb/s" not in text


def test_nothing_that_was_there_is_lost(logs):
    out = Path("out")
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    assert "nor a report" in report(logs, status=2).stderr
    (out / "thesis.tex").unlink()
    report(logs, "--lang", "zh")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    for name in ("notes.txt", "report.md", "figures/mine.svg"):
        path, old = out / name, before.get(out / name)
        path.write_text("mine")
        assert name in report(logs, status=2).stderr
        assert path.read_text() == "mine"
        path.unlink() if old is None else path.write_bytes(old)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert [path.name for path in Path().iterdir() if "out" in path.name] == ["out"]
    out.rename("was")
    out.write_text("a file")
    assert "not a directory" in report(logs, status=2).stderr
    Path("bad.json").write_text('{"schema": 99, "tables": []}')
    report("bad.json", status=2)


def test_a_report_goes_into_its_campaign_and_is_made_of_its_archive(build, monkeypatch):
    built = build("1n1g", repeats=2, scheduler="local").finish()
    (built.directory / built.campaign.arrays[0].script).write_text("#!/bin/bash\n# the script\n")
    page = built.directory / "report" / "index.html"
    assert str(page) in run("report", built.directory).stdout
    assert page.is_file()
    # Again, over the first one; the campaign's evidence does not change.
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert "No browser" in run("report", built.directory, "--open").stderr
    # The browser is a command that takes a file: without a page it would fail.
    monkeypatch.setenv("BROWSER", "test -n %s")
    assert "No browser" not in run("report", built.directory, "--open").stderr
    run("audit", built.directory, status=0)
    result = run("report", built.directory, "dlperf:oneflow-fp32-b32", "--json")
    assert result.data["page"] == "report/index.html"
    run("collect", built.directory, status=0)
    run("archive", built.directory, "--output", "a.zip", status=0)
    report("a.zip", "--with-logs")
    (script,) = Path("out/scripts").iterdir()
    assert "# the script" in script.read_text(encoding="utf-8")
    with zipfile.ZipFile("out/logs.zip") as archive:
        assert len(archive.namelist()) == 2
