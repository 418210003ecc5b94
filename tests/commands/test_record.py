"""MLPerf's result folders as tables of the record."""

import json
from dataclasses import replace

import pytest
import tomli

from hpcbert.commands import record
from hpcbert.results import record as published
from tests.kit import cli, logs
from tests.kit.cases import cases, read_constant
from tests.kit.needs import require


def extract(folder):
    words = ("--round", "v9.9", "--commit", "0" * 40, "--year", "2030")
    return cli.run("record", "extract", folder, *words)


@cases
def test_minutes_leave_out_the_fastest_and_the_slowest(seconds: list[int], minutes):
    runs = [record.BenchmarkRun(seconds=duration or None) for duration in seconds]
    assert record.average_minutes(runs) == minutes


def test_a_folder_becomes_a_table(tmp_path):
    for samples in (3_000_000, 57):
        logs.write_submission(tmp_path / str(samples), [300] * 10, samples)
        text = extract(tmp_path / str(samples)).stdout
        assert 'name = "v9.9-org-sys"' in text
        assert 'facts.accelerator = "TPU v3"' in text
        assert ("minutes = 5.0" in text, "value = 10000.0" in text) == (True, samples == 3_000_000)
        assert "precision" not in text
    (tmp_path / "empty").mkdir()
    result = extract(tmp_path / "empty")
    assert (result.returncode, "results" in result.stderr) == (2, True)
    # Torn lines, endless numbers and two runs in a file are no result.
    path = next((tmp_path / "57/Org/results").rglob("result_*.txt"))
    assert record.read_benchmark_run(path).seconds == 300
    for text in (path.read_text() * 2, *read_constant(__file__, "DAMAGED")):
        path.write_text(text)
        assert record.read_benchmark_run(path) == record.BenchmarkRun()
    assert record.read_benchmark_run(tmp_path / "missing") == record.BenchmarkRun()


@cases
def test_the_batch_is_that_of_a_micro_batch_as_in_tables_of_logs(
    tmp_path, framework, records, expected
):
    folder = logs.write_submission(tmp_path / "checkout", [300] * 10)
    system = folder.parents[2] / "systems/sys.json"
    system.write_text(system.read_text().replace("JAX", framework))
    events = [{"time_ms": 1, "key": key, "value": value} for key, value in records.items()]
    lines = "".join(f":::MLLOG {json.dumps(event)}\n" for event in events)
    for path in folder.iterdir():
        path.write_text(lines + path.read_text())
    table = tomli.loads(extract(tmp_path / "checkout").stdout)["tables"][0]
    size = str(table.get("batch_size_per_device", ""))
    assert (size, table.get("variant", "")) == expected


def test_rows_follow_from_their_public_logs(shared):
    require("published")
    paths = sorted((shared / "logs").glob("mlcommons*"))
    cells = cli.run("record", "check", *paths, "--against", "mlperf", "--json").data["cells"]
    followed = {cell["rule"]: cell["found"] for cell in cells if cell["follows"]}
    assert (followed["minutes"], followed["run-clock"]) == (21.693, pytest.approx(2116.18))
    assert all(cell["follows"] or cell["gap"] for cell in cells)


def test_logs_that_two_rounds_have_confirm_both_or_contradict_a_number(tmp_path, monkeypatch):
    (folder,) = record.find_submissions([logs.write_submission(tmp_path, [300] * 10)])
    location = "v9.8", "0" * 40, record.name_submission(folder)
    runs = [record.read_benchmark_run(path) for path in record.list_logs(folder)]
    table = record.make_table(location, logs.SYSTEM, runs)
    assert table
    table = replace(table, source="mlperf")
    tables = (table, replace(table, name="v9.9-org-sys"))
    monkeypatch.setattr(published, "find_all_tables", lambda _: tables)
    words = ("record", "check", folder, "--against", "mlperf", "--json")
    cells = {cell["table"]: cell["follows"] for cell in cli.run(*words).data["cells"]}
    assert cells == {"mlperf:v9.8-org-sys": True, "mlperf:v9.9-org-sys": True}
    monkeypatch.undo()
    # A number that its logs contradict is an error.
    place = tmp_path / "NVIDIA/results/dgxa100_ngc21.05_pytorch"
    place.mkdir(parents=True)
    folder.rename(place / "bert")
    result = cli.run("record", "check", place, "--against", "mlperf", status=5)
    assert "v1.0-nvidia-dgxa100" in result.stderr
