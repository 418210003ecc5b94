"""A table of ranks on the CPU says so, and is never one with those of GPUs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import tomli

from hpcbert.campaign import store
from hpcbert.model import Device, Group, Provenance
from hpcbert.results.formats import FORMATS
from hpcbert.results.reduce import tabulate
from tests.kit import cli
from tests.kit.campaigns import Built, collect_campaigns, report_states
from tests.kit.cases import cases
from tests.results.test_formats import make_point

MADE = Provenance("1.2.3", "2026-11-21T10:00:00Z", "hpcbert collect")
ON_GPU = Group("oneflow", "bert-base", "fp32", 32, "rate")
ON_CPU = replace(ON_GPU, device="cpu")
CONFIG = "hpcbert-config {"


def move_to_device(built: Built, device: Device, stated: str = "") -> Built:
    """Let a campaign have been asked for on a device, and its logs state one."""
    arrays = tuple(
        replace(array, point=replace(array.point, device=device)) for array in built.campaign.arrays
    )
    changed = built.change(arrays=arrays)
    changed.finish()
    for path in changed.directory.rglob("*.log"):
        text = path.read_text()
        config = f'{CONFIG}"device": "{stated}", ' if stated else CONFIG
        path.write_text(text.replace(CONFIG, config))
    return changed


@pytest.mark.parametrize("name", FORMATS)
def test_no_form_calls_ranks_on_the_cpu_gpus(name: str) -> None:
    flagged = [2.0, 9.0, 1.0]
    (table,) = tabulate([make_point(ON_CPU, "1n1g", flagged), make_point(ON_CPU, "1n2g", [99.0])])
    text = FORMATS[name].write((table,), MADE, 0)
    output = "\n".join([text, *FORMATS[name].omissions((table,), MADE)])
    assert "cpu" in output.lower()
    assert "GPU" not in output
    same = FORMATS[name].write(tabulate([make_point(ON_GPU, "1n1g", [1.0])]), MADE, 0)
    assert "CPU" not in same


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("collect",),
        ("collect", "--format", "wide"),
        ("collect", "--format", "markdown"),
        ("explain",),
        ("predict", "--nodes", "8"),
        ("compare", "{}"),
        ("monitor", "--once"),
        ("report", "--output", "{out}"),
    ],
    ids=" ".join,
)
def test_no_command_calls_ranks_on_the_cpu_gpus(
    build: Callable[..., Built], words: tuple[str, ...], tmp_path: Path
) -> None:
    built = move_to_device(build("1n1g", "1n2g", "2n2g", "4n2g", repeats=2), "cpu", "cpu")
    out = tmp_path / "out"
    places = {"{}": str(built.directory), "{out}": str(out)}
    first, *options = (places.get(word, word) for word in words)
    result = cli.run(first, str(built.directory), *options)
    pages = [*out.glob("*.md"), *out.glob("*.html"), *out.glob("*/*.svg"), *out.glob("*/*.csv")]
    output = result.output + "".join(path.read_text() for path in pages)
    assert len(output) > 50, result
    any_case = re.IGNORECASE if first == "collect" else 0  # Options and keys are called gpu.
    assert not re.findall(r".*\bGPUs?\b.*", output, any_case)


def test_both_in_one_document_are_two_tables() -> None:
    tables = tabulate([make_point(ON_CPU, "1n1g", [1.0]), make_point(ON_GPU, "1n1g", [100.0])])
    assert [table.group.device for table in tables] == ["cpu", "gpu"]
    assert all(row.speedup == 1.0 for table in tables for row in table.rows)
    document = json.loads(FORMATS["json"].write(tables, MADE, 0))
    assert [table["device"] for table in document["tables"]] == ["cpu", "gpu"]
    narrow = FORMATS["text"].write(tables[:1], MADE, 40)
    assert "ranks (CPU)" in narrow
    markdown = FORMATS["markdown"].write(tables, MADE, 0)
    assert "| node_num | rank_num |" in markdown
    assert "| node_num | gpu_num |" in markdown
    assert "over all devices" in markdown


@cases
def test_the_table_is_of_what_was_computed_on(
    build: Callable[..., Built], device: Device, stated: str, table: str
) -> None:
    built = move_to_device(build("1n1g", "1n2g", repeats=2), device, stated)
    result = collect_campaigns(built.directory, states=report_states())
    (speedup_table,) = result.tables
    assert speedup_table.group.device == table
    assert [row.ok for row in speedup_table.rows] == [2, 2]


@pytest.mark.parametrize(("device", "stated"), [("gpu", "cpu"), ("cpu", "cuda")])
def test_a_run_on_another_device_than_asked_for_does_not_count(
    build: Callable[..., Built], device: Device, stated: str
) -> None:
    built = move_to_device(build("1n1g", repeats=2), device, stated)
    (table,) = collect_campaigns(built.directory, states=report_states()).tables
    (row,) = table.rows
    assert row.ok == 0
    assert "device_kind" in row.runs[0].reasons[0].detail


def test_a_recipe_has_a_default_rule_for_each_device(build: Callable[..., Built]) -> None:
    built = build("1n1g", repeats=2)
    recipe = built.directory / store.RECIPE
    text = recipe.read_text()
    default, other = (entry["name"] for entry in tomli.loads(text)["log"]["rules"][:2])
    recipe.write_text(text.replace("[on.cpu]\n", f'[on.cpu]\nrule = "{other}"\n'))
    for device, rule in (("gpu", default), ("cpu", other)):
        built = move_to_device(built, cast("Device", device))
        (table,) = collect_campaigns(built.directory, states=report_states(), rule="").tables
        assert table.group.rule == rule
        (table,) = collect_campaigns(built.directory, states=report_states(), rule=default).tables
        assert table.group.rule == default


def test_runs_on_two_devices_share_no_table(build: Callable[..., Built]) -> None:
    built = move_to_device(build("1n1g", repeats=2), "cpu")
    other = move_to_device(build("1n1g", repeats=2, name="20261121-pytorch-def"), "gpu")
    for log in built.directory.rglob("*.log"):
        log.write_text(f"this is on the CPU\n{log.read_text()}")
    result = collect_campaigns(built.directory, other.directory, states=report_states())
    assert {table.group.device for table in result.tables} == {"cpu", "gpu"}


def test_logs_from_elsewhere_are_of_the_device_that_they_state(
    build: Callable[..., Built], collect_json: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    for stated, device in (("cpu", "cpu"), ("cuda", "gpu"), ("", "gpu")):
        built = move_to_device(
            build("1n1g", repeats=2, name=f"c-{stated or 'none'}"), "auto", stated
        )
        logs = tmp_path / f"logs-{stated}"
        (built.directory / "logs").rename(logs)
        document = collect_json(logs)
        (table,) = document["data"]["tables"]
        assert table["device"] == device


@pytest.mark.parametrize(
    ("group", "rates", "is_named"),
    [
        pytest.param(ON_CPU, (80.0, 100.0), True, id="noisy ranks on CPUs"),
        pytest.param(ON_CPU, (99.9, 100.0), False, id="ranks on CPUs that agree"),
        pytest.param(ON_GPU, (80.0, 100.0), False, id="noisy GPUs"),
    ],
)
def test_a_busy_machine_is_named_beside_noisy_ranks_on_cpus(
    group: Group, rates: tuple[float, float], is_named: bool
) -> None:
    tables = tabulate([make_point(group, "1n1g", list(rates))])
    assert ("other programs" in FORMATS["text"].write(tables, MADE, 0)) == is_named
