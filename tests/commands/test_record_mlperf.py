"""MLPerf's result folders as tables of the record."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import tomli

from hpcbert.commands import record
from hpcbert.commands.record import BenchmarkRun, read_benchmark_run
from hpcbert.results import record as published
from tests.kit.cases import cases
from tests.kit.cli import run
from tests.kit.logs import SYSTEM, write_submission
from tests.kit.needs import require


@cases
def test_minutes_leave_out_the_fastest_and_the_slowest(
    seconds: list[int], minutes: float | None
) -> None:
    runs = [BenchmarkRun(seconds=duration or None) for duration in seconds]
    assert record.average_minutes(runs) == minutes


@pytest.mark.parametrize(("samples", "rate"), [(3_000_000, 10_000.0), (57, None)])
def test_a_folder_becomes_a_table(tmp_path: Path, samples: int, rate: float | None) -> None:
    write_submission(tmp_path / "checkout", [300] * 10, samples)
    words = ("--round", "v9.9", "--commit", "0" * 40, "--year", "2030")
    text = run("record", "extract", tmp_path / "checkout", *words).stdout
    assert 'name = "v9.9-org-sys"' in text
    assert 'facts.accelerator = "TPU v3"' in text
    assert "minutes = 5.0" in text
    assert ("value = 10000.0" in text) == (rate is not None)
    assert "precision" not in text


@cases
def test_the_batch_is_that_of_a_micro_batch_as_in_tables_of_logs(
    tmp_path: Path, framework: str, records: dict[str, int], expected: tuple[str, str]
) -> None:
    folder = write_submission(tmp_path / "checkout", [300] * 10)
    system = folder.parents[2] / "systems/sys.json"
    system.write_text(system.read_text().replace("JAX", framework))
    for path in folder.iterdir():
        events = [{"time_ms": 1, "key": key, "value": value} for key, value in records.items()]
        lines = [f":::MLLOG {json.dumps(event)}\n" for event in events]
        path.write_text("".join(lines) + path.read_text())
    words = ("--round", "v9.9", "--commit", "0" * 40, "--year", "2030")
    text = run("record", "extract", tmp_path / "checkout", *words).stdout
    table = tomli.loads(text)["tables"][0]
    size, variant = table.get("batch_size_per_device", ""), table.get("variant", "")
    assert (str(size), variant) == expected


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    words = ("--round", "v9.9", "--commit", "0" * 40, "--year", "2030")
    result = run("record", "extract", tmp_path, *words)
    assert (result.returncode, "results" in result.stderr) == (2, True)


def test_rows_follow_from_their_public_logs(shared: Path) -> None:
    require("published")
    logs = sorted((shared / "logs").glob("mlcommons*"))
    cells = run("record", "check", *logs, "--against", "mlperf", "--json").data["cells"]
    followed = {cell["rule"]: cell["found"] for cell in cells if cell["follows"]}
    assert followed["minutes"] == 21.693
    assert followed["run-clock"] == pytest.approx(2116.18)
    assert all(cell["follows"] or cell["gap"] for cell in cells)


def test_a_number_that_its_logs_contradict_is_an_error(tmp_path: Path) -> None:
    folder = write_submission(tmp_path, [300] * 10)
    place = tmp_path / "NVIDIA" / "results" / "dgxa100_ngc21.05_pytorch"
    place.mkdir(parents=True)
    folder.rename(place / "bert")
    result = run("record", "check", place, "--against", "mlperf")
    assert result.returncode == 5
    assert "v1.0-nvidia-dgxa100" in result.stderr


def test_logs_that_two_rounds_have_confirm_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (submission,) = record.find_submissions([write_submission(tmp_path, [300] * 10)])
    location = "v9.8", "0" * 40, submission.path
    table = record.make_table(location, SYSTEM, submission.read_runs(), "")
    assert table
    source = published.load_source("mlperf")
    tables = ((source, table), (source, replace(table, name="v9.9-org-sys")))
    monkeypatch.setattr(published, "find_all_tables", lambda _: tables)
    cells = run("record", "check", submission.folder, "--against", "mlperf", "--json").data["cells"]
    assert {cell["table"]: cell["follows"] for cell in cells} == {
        "mlperf:v9.8-org-sys": True,
        "mlperf:v9.9-org-sys": True,
    }


def test_an_endless_number_is_none(tmp_path: Path) -> None:
    path = tmp_path / "result_0.txt"
    path.write_text(':::MLLOG {"time_ms": 5, "key": "global_batch_size", "value": Infinity}\n')
    assert read_benchmark_run(path) == BenchmarkRun()


def test_a_file_with_two_runs_has_no_result(tmp_path: Path) -> None:
    folder = write_submission(tmp_path, [300] * 10)
    path = next(folder.glob("result_*.txt"))
    assert read_benchmark_run(path).seconds == 300
    path.write_text(path.read_text() * 2)
    assert read_benchmark_run(path) == BenchmarkRun()


def test_torn_lines_are_no_records(tmp_path: Path) -> None:
    path = tmp_path / "result_0.txt"
    path.write_text(':::MLLOG {"time_ms": 5, "key": "run_st\n:::MLLOG [1]\n:::MLLOG {}\n')
    assert read_benchmark_run(path) == BenchmarkRun()
    assert read_benchmark_run(tmp_path / "missing") == BenchmarkRun()
