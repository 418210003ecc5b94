"""The programs of benchmarks/: flags' rates, real runs of frameworks, and one GPU, on a CPU; check-images."""

import importlib
import json
import math
import sys
import time
from dataclasses import fields

import pytest

from hpcbert.config import toml
from hpcbert.container.reference import parse_reference
from tests.kit.paths import REPOSITORY
from tests.kit.recipes import NAMES, load
from tests.kit.registry import serving_tiny
from tests.kit.waiting import CEILING


@pytest.fixture
def program(monkeypatch):
    """Imports a program of benchmarks/ or .ci/."""
    for folder in ("benchmarks", ".ci"):
        monkeypatch.syspath_prepend(str(REPOSITORY / folder))
    return importlib.import_module


def test_types_of_every_benchmark_are_checked():
    project = toml.read_values(REPOSITORY / "pyproject.toml")
    programs = (REPOSITORY / "benchmarks").glob("*.py")
    assert project["tool"]["mypy"]["modules"] == sorted(path.stem for path in programs)


@pytest.mark.slow
def test_documented_rates_of_flags_are_those_of_a_simulation(program):
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
    simulated = read_cells(program("flags").report(150, 5))
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


def test_the_page_of_real_runs_has_every_recipe_and_rows_of_those_that_can(program):
    real = program("real")
    text, rows, frameworks = real.PAGE.read_text(encoding="utf-8"), real.read(), real.known()
    assert text == real.page(rows, frameworks, text)
    assert [framework.name for framework in frameworks if framework.has_script] == list(NAMES)
    assert all(f"\n| {framework.name} | " in text for framework in frameworks)
    able = {framework.name for framework in frameworks if "cpu" in framework.devices}
    assert {row.framework for row in rows} <= able
    assert len({(row.framework, row.ranks) for row in rows}) == len(rows)
    assert all(row.samples_per_second or row.result for row in rows)


@pytest.mark.torch
def test_a_real_run_names_what_was_prepared(program):
    real = program("real")
    (pytorch,) = (framework for framework in real.known() if framework.name == "pytorch")
    origin, packages, _ = real.described(pytorch, [])
    assert origin == "hpcbert's own"
    assert packages.startswith("torch==")


@pytest.mark.torch
def test_rows_are_measured_in_their_order_and_kept(program, tmp_path, monkeypatch):
    gpu, document = program("gpu"), toml.read(REPOSITORY / "benchmarks" / "gpu.toml")
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
def test_the_power_of_a_row_is_that_of_its_window(program, tmp_path):
    gpu, path = program("gpu"), tmp_path / "row.power.jsonl"
    samples = [[second, 700 if 5 <= second < 25 else 100, 1000] for second in range(40)]
    lines = {"node": "n1", "samples": samples}, {"node": "n1", "gpus": 1, "count": 40}
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert gpu.read_watts(path, 15) == 700
    assert gpu.read_watts(path, 100) is None
    assert not list(tmp_path.glob("*.json"))  # those are rows


@pytest.mark.torch
def test_every_choice_of_speed_has_a_row(program):
    gpu, document = program("gpu"), toml.read(REPOSITORY / "benchmarks" / "gpu.toml")
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


def test_a_registry_is_asked_for_every_image_of_a_recipe_and_none_was_removed(program):
    """NVIDIA removed its images with CUDA 10 (NVIDIA/nvidia-docker#1768)."""
    check_images = program("check_images")
    for auth in ("", "bearer"):
        with serving_tiny(auth=auth) as registry:
            for tag, answer in (("1.0", "there"), ("2.0", "refused: 404")):
                image = parse_reference(f"docker://{registry.host}#bert/tiny:{tag}")
                assert check_images.ask_registry(image, "http").startswith(answer), auth
    images = list(check_images.list_images())
    with_image = {name for name in NAMES if load(name).image.reference or load(name).image.base}
    assert {name for name, _ in images} == with_image
    references = [image.uri.split("#")[1] for _, image in images]
    assert not [text for text in references if text.startswith("nvidia/cuda:10")]
