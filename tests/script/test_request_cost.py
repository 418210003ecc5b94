"""What a submission takes at most, and what is refused because of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcbert.errors import UsageError
from hpcbert.model import Shape
from hpcbert.script.request import (
    Cost,
    array_costs,
    format_hours,
    hours_unit,
    refuse_expensive,
    sum_hours,
)
from hpcbert.timelimit import TimeLimit
from tests.kit.cases import cases
from tests.kit.drafts import combined, drafted, reference


def list_costs(
    folder: Path, *, limit: str = "02:00:00", options: Any = None, **fields: Any
) -> tuple[Cost, ...]:
    fields = {"shape": Shape(2, 8), "precisions": ("fp32",), "device": "gpu", **fields}
    site = reference(folder, slurm={"time_limit": TimeLimit.parse(limit)})
    return array_costs(drafted(site, combined(**fields), options=options).campaign.arrays)


def sum_all(costs: tuple[Cost, ...]) -> tuple[float | None, float | None]:
    nodes = sum_hours(cost.on_nodes(cost.hours) for cost in costs)
    return nodes, sum_hours(cost.on_devices(cost.hours) for cost in costs)


def test_repeats_times_nodes_times_devices_times_the_limit(tmp_path: Path) -> None:
    assert sum_all(list_costs(tmp_path)) == (20.0, 160.0)
    assert sum_all(list_costs(tmp_path, scaling=True)) == (50.0, 10.0 + 40.0 + 80.0 + 160.0)
    assert sum_all(list_costs(tmp_path, repeats=1, precisions=("fp32", "bf16"))) == (8.0, 64.0)
    (cost,) = costs = list_costs(tmp_path, options={"together": True})
    assert (cost.repeats, cost.jobs, sum_all(costs)) == (5, 1, (4.0, 32.0))
    (cost,) = list_costs(tmp_path, repeats=25, options={"most_indices": 10})
    assert (cost.repeats, cost.jobs) == (25, 25)


@pytest.mark.parametrize(
    ("device", "unit"), [("gpu", "GPU-hours"), ("cpu", "rank-hours"), ("auto", "device-hours")]
)
def test_ranks_on_cpus_are_not_called_gpus(tmp_path: Path, device: str, unit: str) -> None:
    assert hours_unit(list_costs(tmp_path, device=device)) == unit


def test_what_costs_more_is_refused_with_the_sum(tmp_path: Path) -> None:
    costs = list_costs(tmp_path, scaling=True)
    refuse_expensive(costs, 290.0)
    with pytest.raises(UsageError, match="up to 290 GPU-hours, more than 289") as caught:
        refuse_expensive(costs, 289.0)
    assert "bert-tiny_2n8g_fp32_b4 5 x 16 x 02:00:00 = 160" in str(caught.value)
    assert "--max-gpu-hours 290" in caught.value.hint
    refuse_expensive(costs, 870.0, tries=3)
    with pytest.raises(UsageError, match=r"up to 870 GPU-hours, .* each up to 3 times"):
        refuse_expensive(costs, 869.0, tries=3)


def test_without_a_limit_nothing_bounds_the_cost(tmp_path: Path) -> None:
    costs = list_costs(tmp_path, limit="UNLIMITED")
    assert sum_all(costs) == (None, None)
    with pytest.raises(UsageError, match="no upper limit") as caught:
        refuse_expensive(costs, 1e9)
    assert "--time" in caught.value.hint


@cases
def test_hours_are_written_as_people_read_them(number: float | None, text: str) -> None:
    assert format_hours(number) == text
