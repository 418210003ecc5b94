from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.config.recipe import Option, Preset, Recipe
from hpcbert.config.site import Site
from hpcbert.errors import UsageError
from hpcbert.model import Shape
from hpcbert.script.plan import Request, RequestCell, list_shapes, plan
from hpcbert.system.decode import Invalid
from tests.kit.cases import cases
from tests.kit.drafts import combined, load, reference


@pytest.fixture
def recipe() -> Recipe:
    return load()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return reference(tmp_path)


@cases
def test_scaling_goes_through_dlperfs_shapes(largest: str, curve: str) -> None:
    shapes = list_shapes(Shape.parse(largest))
    assert " ".join(map(str, shapes)) == curve


def test_points_are_every_combination_once(recipe: Recipe, site: Site) -> None:
    request = combined(
        Shape(1, 2), ("fp32", "bf16", "fp32"), (8, 16, 8), scaling=True, model="bert-base"
    )
    points = plan(recipe, site, request).points
    assert len(points) == 2 * 2 * 2
    assert len({point.key for point in points}) == len(points)
    assert points[0].key == "bert-base_1n1g_fp32_b8"


@cases
def test_default_batch_sizes_grow_with_the_card(
    recipe: Recipe, site: Site, gres: str, device: str, expected: int
) -> None:
    def plan_size(size: int = 0, scheduler: str = "slurm") -> int:
        slurm = replace(site.slurm, gres=gres)
        own_site = replace(site, scheduler=scheduler, slurm=slurm, frameworks={})
        cells = (RequestCell(Shape(1, 1), "bf16", size),)
        (point,) = plan(recipe, own_site, Request(Shape(1, 1), cells, device=device)).points
        return point.batch_size_per_device

    assert plan_size() == expected
    assert plan_size(48) == 48
    assert plan_size(scheduler="local") == min(expected, 64)


def test_a_protocol_sets_the_global_batch_of_every_shape(recipe: Recipe, site: Site) -> None:
    lamb = Preset("lamb", "LAMB", 220, 20, global_batch_size=65536, precisions=("fp16",))
    deep = Preset("micro", "DeepSpeed's", samples_per_device=1024)
    with_protocols = replace(recipe, protocols={"lamb": lamb, "micro": deep})
    points = plan(
        with_protocols, site, combined(Shape(4, 8), batch_sizes=(64,), scaling=True)
    ).points
    assert {point.global_batch_size for point in points} == {65536}
    assert [point.accumulation for point in points] == [1024, 256, 128, 64, 32]
    assert {(point.protocol, point.precision) for point in points} == {("lamb", "fp16")}
    assert plan(with_protocols, site, Request(Shape(1, 1), skip=5)).protocol.iters == 220
    other = combined(Shape(1, 8), batch_sizes=(32,), preset="micro")
    assert plan(with_protocols, site, other).points[0].accumulation == 1024 // 8
    request = replace(other, accumulation=3)
    assert plan(with_protocols, site, request).points[0].accumulation == 3


def test_only_options_that_change_the_number_are_identity(recipe: Recipe, site: Site) -> None:
    settings = {"seed": "7", "sequence_length": "64"}
    request = combined(Shape(1, 8), settings=settings, accumulation=4)
    measurement_plan = plan(recipe, site, request)
    (point,) = measurement_plan.points
    assert (point.model, point.precision, point.batch_size_per_device) == ("bert-tiny", "fp32", 4)
    assert point.global_batch_size == 8 * 4 * 4
    assert point.options == (("sequence_length", 64), ("vocab_size", 8192))
    assert measurement_plan.options["seed"] == 7


@cases
def test_what_does_not_fit_is_refused(
    recipe: Recipe, site: Site, shape: str | None, fields: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        plan(recipe, site, combined(Shape.parse(shape or "1n1g"), **fields))


@cases
def test_bounds_hold_the_default_too_and_are_for_numbers(
    kind: Any, default: Any, bounds: dict[str, float], says: str
) -> None:
    with pytest.raises(Invalid, match=says):
        Option("x", kind, default, "Help.", **bounds)  # type: ignore[arg-type]


def test_accumulation_needs_a_recipe_that_knows_it(recipe: Recipe, site: Site) -> None:
    with pytest.raises(UsageError, match="does not support --accumulation"):
        plan(replace(recipe, accumulation=False), site, Request(Shape(1, 1), accumulation=2))
