"""The programs of benchmarks/: flags' rates, real runs of frameworks, and one GPU, on a CPU."""

import importlib
import math
import sys
import time
from dataclasses import fields

import pytest

from hpcbert.config import toml
from tests.kit.paths import REPOSITORY
from tests.kit.recipes import NAMES
from tests.kit.waiting import CEILING


@pytest.fixture
def benchmark(monkeypatch):
    """Imports a program of benchmarks/."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    return importlib.import_module


@pytest.mark.slow
def test_documented_rates_of_flags_are_those_of_a_simulation(benchmark):
    def read_cells(text):
        """Return the cells of each line of a page's tables, by table and first cell."""
        lines, title = {}, ""
        for line in text.splitlines():
            first, *values = (cell.strip() for cell in line.strip("|").split("|"))
            title = (title or " ".join((first, *values))) if line[:1] == "|" else ""
            if title:
                lines[f"{title}: {first}"] = values
        return lines

    page = REPOSITORY / "docs" / "explanation" / "numbers.md"
    simulated = read_cells(benchmark("flags").report(150, 5))
    written = read_cells(page.read_text(encoding="utf-8"))
    assert set(simulated) <= set(written)
    shares = [
        (line, float(ours.rstrip(" %")) / 100, float(theirs.rstrip(" %")) / 100)
        for line, values in simulated.items()
        for ours, theirs in zip(values, written[line], strict=True)
        if ours.endswith("%")
    ]
    assert len(shares) > 60
    for line, ours, theirs in shares:
        # Four standard errors of the short simulation, the long one's rounding, and a rare event.
        room = 4 * math.sqrt(theirs * (1 - theirs) / 150) + 0.0005 + 2 / 150
        assert ours == pytest.approx(theirs, abs=room), line


def test_the_page_of_real_runs_has_every_recipe_and_rows_of_those_that_can(benchmark):
    real = benchmark("real")
    text, rows, frameworks = real.PAGE.read_text(encoding="utf-8"), real.read(), real.known()
    assert text == real.page(rows, frameworks, text)
    assert [framework.name for framework in frameworks if framework.has_script] == list(NAMES)
    assert all(f"\n| {framework.name} | " in text for framework in frameworks)
    able = {framework.name for framework in frameworks if "cpu" in framework.devices}
    assert {row.framework for row in rows} <= able
    assert len({(row.framework, row.ranks) for row in rows}) == len(rows)
    assert all(row.samples_per_second or row.result for row in rows)


@pytest.mark.torch
def test_a_real_run_names_what_was_prepared(benchmark):
    real = benchmark("real")
    (pytorch,) = (framework for framework in real.known() if framework.name == "pytorch")
    program, packages, _ = real.described(pytorch, [])
    assert program == "hpcbert's own"
    assert packages.startswith("torch==")


@pytest.mark.torch
def test_rows_are_measured_in_their_order_and_kept(benchmark, tmp_path, monkeypatch):
    gpu, document = benchmark("gpu"), toml.read(REPOSITORY / "benchmarks" / "gpu.toml")
    rows = gpu.plan_rows(document, "cpu")
    bench = gpu.Bench(tmp_path, document["cpu"], device="cpu", end=time.monotonic() + CEILING)
    first = gpu.measure_rows(bench, rows[:1], "About this machine.")
    head, _, measured, *_ = first.splitlines()
    cells = dict(zip(head.split(" | "), measured.split(" | "), strict=True))
    assert float(cells["samples/s"]) > 0, first
    assert (tmp_path / "table.md").read_text() == first
    bench.end = time.monotonic()
    table = gpu.measure_rows(bench, rows, "About this machine.").splitlines()
    assert table[:3] == first.splitlines()[:3]
    assert len(table) > 12
    assert all("not run: the time is up" in line for line in table[3:] if line[:1] == "|")
    (tmp_path / "machine").write_text('{"torch": "2.4.0"}')
    words = ["gpu.py", "--device=cpu", f"--output={tmp_path}", "--minutes=0"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match=r"2\.4\.0[\s\S]*another --output"):
        gpu.main()


@pytest.mark.torch
def test_every_choice_of_speed_has_a_row(benchmark):
    gpu, document = benchmark("gpu"), toml.read(REPOSITORY / "benchmarks" / "gpu.toml")
    for device in ("cuda", "cpu"):
        rows = gpu.plan_rows(document, device)
        names = {row.name for row in rows}
        assert len(names) == len(rows)
        assert {row.baseline for row in rows if row.baseline} <= names
        assert {row.kind for row in rows} == set(gpu.RUNNERS)
        default = gpu.MODES[document[device]["default"]]
        assert rows[0] == next(row for row in rows if row.words[-1] == default)
        words = {word for row in rows for word in row.words}
        for option in fields(gpu.Settings):
            flag = "--" + option.name.replace("_", "-")
            if str(option.type) == "bool":
                assert flag in words
            elif option.name not in document["sizes"]:
                values = document["values"].get(option.name, option.metadata.get("choices") or ())
                choices = {*values} - {"auto", option.default}
                assert {f"{flag}={choice}" for choice in choices} <= words, flag
