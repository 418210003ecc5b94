"""What a submission takes at most, and what is refused because of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcbert.errors import UsageError
from hpcbert.model import Shape
from hpcbert.script import cost
from hpcbert.script.cost import Cost
from hpcbert.timelimit import TimeLimit
from tests.kit.cases import cases
from tests.kit.drafts import combined, drafted, reference


def list_costs(
    tmp_path: Path, limit: str = "02:00:00", options: Any = None, **request: Any
) -> list[Cost]:
    site = reference(tmp_path, slurm={"time_limit": TimeLimit.parse(limit)})
    combination = combined(
        **{"shape": Shape(2, 8), "precisions": ("fp32",), "device": "gpu", **request}
    )
    draft = drafted(site, combination, options=options)
    return list(cost.array_costs(draft.campaign.arrays))


def sum_hours(point_costs: list[Cost]) -> tuple[float | None, float | None]:
    return (
        cost.sum_hours(point_cost.on_nodes(point_cost.hours) for point_cost in point_costs),
        cost.sum_hours(point_cost.on_devices(point_cost.hours) for point_cost in point_costs),
    )


def test_repeats_times_nodes_times_devices_times_the_limit(tmp_path: Path) -> None:
    assert sum_hours(list_costs(tmp_path)) == (20.0, 160.0)
    assert sum_hours(list_costs(tmp_path, scaling=True)) == (50.0, 10.0 + 40.0 + 80.0 + 160.0)
    assert sum_hours(list_costs(tmp_path, repeats=1, precisions=("fp32", "bf16"))) == (8.0, 64.0)


def test_repeats_that_share_a_job_share_its_limit(tmp_path: Path) -> None:
    (point_cost,) = list_costs(tmp_path, options={"together": True})
    assert (point_cost.repeats, point_cost.jobs) == (5, 1)
    assert sum_hours([point_cost]) == (4.0, 32.0)


def test_the_parts_of_a_point_that_has_several_arrays_are_one_point(tmp_path: Path) -> None:
    (point_cost,) = list_costs(tmp_path, repeats=25, options={"most_indices": 10})
    assert (point_cost.repeats, point_cost.jobs) == (25, 25)


def test_ranks_on_cpus_are_not_called_gpus(tmp_path: Path) -> None:
    words = {
        device: cost.hours_unit(list_costs(tmp_path, device=device))
        for device in ("gpu", "cpu", "auto")
    }
    assert words == {"gpu": "GPU-hours", "cpu": "rank-hours", "auto": "device-hours"}


def test_what_costs_more_is_refused_with_the_sum(tmp_path: Path) -> None:
    point_costs = list_costs(tmp_path, scaling=True)
    cost.refuse_expensive(point_costs, 290.0)
    with pytest.raises(UsageError, match="up to 290 GPU-hours, more than 289") as caught:
        cost.refuse_expensive(point_costs, 289.0)
    assert "bert-tiny_2n8g_fp32_b4 5 x 16 x 02:00:00 = 160" in str(caught.value)
    assert "--max-gpu-hours 290" in caught.value.hint


def test_retries_may_cost_as_much_again(tmp_path: Path) -> None:
    point_costs = list_costs(tmp_path)
    with pytest.raises(UsageError, match=r"up to 480 GPU-hours, .* each up to 3 times"):
        cost.refuse_expensive(point_costs, 479.0, tries=3)
    cost.refuse_expensive(point_costs, 480.0, tries=3)


def test_without_a_limit_nothing_bounds_the_cost(tmp_path: Path) -> None:
    point_costs = list_costs(tmp_path, limit="UNLIMITED")
    assert sum_hours(point_costs) == (None, None)
    with pytest.raises(UsageError, match="no upper limit") as caught:
        cost.refuse_expensive(point_costs, 1e9)
    assert "--time" in caught.value.hint


@cases
def test_hours_are_written_as_people_read_them(number: float | None, text: str) -> None:
    assert cost.format_hours(number) == text
