"""`hpcbert report`: from campaigns, logs and saved results to a directory."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from hpcbert.results import document
from hpcbert.results.report import figures
from tests.kit.campaigns import node, write_nodes
from tests.kit.cases import cases
from tests.kit.cli import CliResult, run
from tests.kit.logs import TEST_RECIPES, write_file
from tests.kit.logs import log as pytorch_log
from tests.kit.needs import index

pytestmark = pytest.mark.slow
Report = Callable[..., CliResult]
DLPERF = "Oneflow-Inc+DLPerf/e36df2e/Tensorflow/resnet50v1.5"
RESULT = f"logs/{DLPERF}/result/resnet50_result.json"


@pytest.fixture
def report(empty_directory: None) -> Report:
    """Runs `hpcbert report WORDS --output out` in this process, without what only costs time."""
    return lambda *words: run("report", *words, "--output", "out", "--templates", TEST_RECIPES)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Logs of two shapes, three runs each."""
    for shape, gpus in (("1n1g", 1), ("1n2g", 2)):
        for repeat in (1, 2, 3):
            rate, start = gpus * (10.0 + repeat / 10), 1763717655.5 + 1000 * (3 * gpus + repeat)
            text = pytorch_log(shape, rate, iters=120, start=start)
            write_file(
                tmp_path / "logs",
                f"pytorch/{shape}/bert_b4_fp32_{repeat}.log",
                f"run {repeat}\n{text}",
            )
    return tmp_path / "logs"


def numbers(table: Path) -> list[list[str]]:
    return list(csv.reader(io.StringIO(table.read_text(encoding="utf-8"))))[1:]


@pytest.mark.needs("published")
def test_dlperf_s_set_becomes_the_tables_that_were_published(shared: Path, report: Report) -> None:
    """Its readme has every run by the printed rate, its JSON medians by the time stamps."""
    runs: dict[str, list[float]] = {}
    for log in index(shared):
        if DLPERF in log.name and log.nodes:
            runs.setdefault(f"{log.nodes}n{log.gpus // log.nodes}g", []).append(log.published)
    readme = {shape: round(median(speeds), 2) for shape, speeds in runs.items()}
    (stated,) = json.loads((shared / RESULT).read_text()).values()
    for rule, speeds in (
        ("rate", readme),
        ("dlperf-time", {name: row["median_speed"] for name, row in stated.items()}),
    ):
        result = report(shared / f"logs/{DLPERF}", "--fw", "tf2-resnet", "--rule", rule)
        assert result.returncode == 0, result.output
        for num, gpus, speed, speedup, *_ in numbers(Path("out/tables/results-1.csv")):
            shape = f"{num}n{int(gpus) // int(num)}g"
            assert round(float(speed), 2) == speeds.pop(shape)
            # DLPerf rounds medians before it divides them.
            assert float(speedup) == pytest.approx(stated[shape]["speedup"], abs=0.02)
        assert speeds == {}


def test_a_report_has_every_file_and_the_same_numbers(logs: Path, report: Report) -> None:
    path = min(logs.rglob("*_2.log"))
    path.write_text(f"HF_TOKEN=hf_0123456789abcdefgh\n{path.read_text()}")
    result = report(logs, "--with-logs", "--json")
    (warning,) = (text for text in result.document["warnings"] if "secret" in text)
    assert path.name in warning
    data = result.data
    files = set(data["files"])
    assert files >= {"index.html", "report.md", "report.zh.md", "results.json", "logs.zip"}
    figures = {Path(name).suffix for name in files if name.startswith("figures/")}
    assert figures == {".svg", ".png", ".pdf"}
    tables, sources = (
        {Path(name).stem for name in files if name.endswith(end)} for end in (".csv", ".tex")
    )
    assert tables == sources
    out = Path(data["directory"])
    assert files == {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    for line in (out / "SHA256SUMS").read_text().splitlines():
        digest, _, name = line.partition("  ")
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest
    (table,) = document.read_results(out / "results.json").tables
    assert table.rows[1].median == data["tables"][0]["rows"][1]["median"]
    with zipfile.ZipFile(out / "logs.zip") as archive:
        assert len(archive.namelist()) == 6
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert not re.findall(r'(?:src|href)="(?!#|data:,)', page)
    text = Path("out/report.md").read_text(encoding="utf-8")
    parts = ("# bert fp32 with pytorch on 1 to 2 GPUs", "Highest throughput: 20.40 samples/s",
             "Efficiency at the largest shape", "figures/scaling-1.svg", "**Medians of",
             "**Throughput of", "## Figures", "## How good", "## All runs", "## What was left out",
             "## Environment", "## Feature matrix", "## Appendix")  # fmt: skip
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    (row,) = numbers(Path("out/tables/pivot-1.csv"))
    assert (row[0], *row[2:4]) == ("pytorch", "fp32", "4")
    assert [float(cell) for cell in row[4:]] == pytest.approx([10.2, 20.4, 1.0])


def test_saved_results_give_the_report_again_and_again(logs: Path, report: Report) -> None:
    assert report(logs, "--title", "First").returncode == 0
    first = Path("out").rename("first")
    assert report(first / "results.json", "--title", "First").returncode == 0
    names = ("results-1.csv", "pivot-1.csv", "runs-1.csv", "figure-scaling-1.csv")
    for name in (*(f"tables/{table}" for table in names), "figures/scaling-1.svg"):
        assert (first / name).read_bytes() == (Path("out") / name).read_bytes()


def test_a_campaign_tells_its_nodes_commands_and_what_does_not_count(
    build: Callable[..., Any], report: Report
) -> None:
    built = build(
        "1n1g",
        "1n8g",
        repeats=2,
        scheduler="local",
        command=("hpcbert", "submit", "--fw", "pytorch"),
    )
    topology = [
        "\tGPU0\tGPU1\tCPU Affinity",
        "GPU0\t X \tNV12\t0-63",
        "GPU1\tNV12\t X \t0-63",
        "",
        "Legend:",
    ]
    built.complete("1n1g", 1, 10.0)
    built.complete("1n1g", 2, 10.2)
    built.complete("1n8g", 1, 78.0)
    built.log("1n8g", 2, built.text("1n8g", 78.0, last=7))
    built.started("1n8g", 2)
    built.ended("1n8g", 2, code=1)
    for array in built.campaign.arrays:
        (built.directory / array.script).write_text("#!/bin/bash\n# the script\n")
        for repeat in array.repeats:
            write_nodes(built.directory, array, repeat, node("n1", host__topology=topology))
    result = report(built.directory, "--json")
    assert result.returncode == 4
    assert result.document["status"] == "partial"
    text = Path("out/report.md").read_text(encoding="utf-8")
    assert "NVIDIA A100-SXM4-80GB" in text
    assert "| GPU0 | X | NV12 | 0-63 |" in text
    assert "NV\\#: over a bonded set" in text
    assert "hpcbert submit --fw pytorch" in text
    (script,) = Path("out/scripts").iterdir()
    assert f"](scripts/{script.name})" in text
    assert "# the script" in script.read_text(encoding="utf-8")
    assert "| pytorch | 1n8g fp32 | 2 | state:" in text
    assert "incomplete | fewer valid runs" in text
    assert "docker://nvcr.io\\#nvidia/pytorch" in text
    assert numbers(Path("out/tables/digests.csv"))


def test_an_archive_is_reported_as_its_campaign(build: Callable[..., Any], report: Report) -> None:
    built = build("1n1g", repeats=2, scheduler="local")
    built.finish()
    for array in built.campaign.arrays:
        (built.directory / array.script).write_text("#!/bin/bash\n# the script\n")
    assert run("collect", built.directory).returncode == 0
    assert run("archive", built.directory, "--output", "a.zip").returncode == 0
    assert report("a.zip", "--with-logs").returncode == 0
    (script,) = Path("out/scripts").iterdir()
    assert "# the script" in script.read_text(encoding="utf-8")
    with zipfile.ZipFile("out/logs.zip") as archive:
        assert len(archive.namelist()) == 2


def test_one_run_and_no_baseline_make_a_report_without_speedup(
    tmp_path: Path, report: Report
) -> None:
    write_file(tmp_path, "pytorch/1n2g/bert_b4_fp32_1.log", pytorch_log("1n2g", 20.0, iters=120))
    assert report(tmp_path / "pytorch").returncode == 0
    ((_, _, speed, speedup, efficiency, low, high, cv, count, marks),) = numbers(
        Path("out/tables/results-1.csv")
    )
    assert float(speed) == pytest.approx(20.0)
    assert (speedup, efficiency, low, high, cv, count) == ("", "", "", "", "", "1/1")
    assert "no-baseline" in marks


def test_no_run_that_counts_makes_a_report_without_figures(tmp_path: Path, report: Report) -> None:
    write_file(
        tmp_path, "pytorch/1n1g/bert_b4_fp32_1.log", pytorch_log("1n1g", 20.0, iters=120, last=9)
    )
    assert report(tmp_path / "pytorch").returncode == 4
    assert not Path("out/figures").exists()
    assert "There is nothing to draw" in Path("out/report.md").read_text()


def test_nothing_that_was_there_is_lost(logs: Path, report: Report) -> None:
    out = Path("out")
    out.mkdir()
    assert report(logs).returncode == 0
    assert report(logs, "--lang", "zh").returncode == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    for name, content in (
        ("notes.txt", "mine"),
        ("report.md", "changed"),
        ("figures/mine.svg", ""),
    ):
        path, old = out / name, before.get(out / name)
        path.write_text(content)
        result = report(logs, "--json")
        assert result.returncode == 2
        assert name in result.error["message"]
        assert path.read_text() == content
        path.unlink() if old is None else path.write_bytes(old)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert sorted(path.name for path in Path().iterdir() if "out" in path.name) == ["out"]


def test_another_directory_and_a_file_are_refused(
    logs: Path, report: Report, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    assert "nor a report" in report(logs, "--json").error["message"]
    assert (tmp_path / "out" / "thesis.tex").read_text() == "years of work"
    (tmp_path / "out" / "thesis.tex").unlink()
    (tmp_path / "out").rmdir()
    (tmp_path / "out").write_text("a file")
    assert "not a directory" in report(logs, "--json").error["message"]


@cases
def test_what_are_no_results_makes_no_report(text: str, report: Report, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(text)
    result = report("bad.json", "--json")
    assert result.returncode == 2, result.output
    assert "bug" not in result.error["message"]
    assert not Path("out").exists()


def test_a_report_of_failed_runs_has_reasons_and_nodes(
    build: Callable[..., Any], report: Report
) -> None:
    built = build("1n1g", repeats=1, scheduler="local")
    built.log("1n1g", 1, built.text("1n1g", 9.0, last=7))
    built.started("1n1g", 1)
    built.ended("1n1g", 1, code=1)
    network = ["eth0 physical -1 1500 up"]
    host = node("n1", host__network=network)
    write_nodes(built.directory, built.array("1n1g"), 1, host)
    assert report(built.directory).returncode == 4
    text = Path("out/report.md").read_text(encoding="utf-8")
    assert re.search(r"Invalid runs by reason: .*state \(1\)", text)
    assert "* 1n1g: repeat 1: state:" in text
    assert "NVIDIA A100-SXM4-80GB" in text
    assert "-1 Mb/s" not in text


def test_figures_come_in_the_size_of_their_place(logs: Path, report: Report) -> None:
    size = "slide"
    assert report(logs, "--size", size, "--title", "On our cluster").returncode == 0
    svg = Path("out/figures/scaling-1.svg").read_text(encoding="utf-8")
    width = float(re.findall(r'<svg[^>]* width="([\d.]+)pt"', svg)[0])
    assert width == pytest.approx(72 * figures.SIZES[size].width)
    assert ">On our cluster<" in svg
    assert "bert fp32" in svg


def test_a_report_goes_into_its_campaign(
    build: Callable[..., Any], empty_directory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build("1n1g", repeats=1, scheduler="local")
    built.finish()
    result = run("report", built.directory)
    page = built.directory / "report" / "index.html"
    assert page.is_file()
    assert str(page) in result.stdout
    # Again, over the first one; the campaign's evidence does not change.
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert "No browser" in run("report", built.directory, "--open").stderr
    # The browser is a command that takes a file: without a page it would fail.
    monkeypatch.setenv("BROWSER", "test -n %s")
    assert "No browser" not in run("report", built.directory, "--open").stderr
    assert run("audit", built.directory).returncode == 0
    result = run("report", built.directory, "dlperf:oneflow-fp32-b32", "--json")
    assert result.data["page"] == "report/index.html"
