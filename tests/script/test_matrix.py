"""Every combination is made once, and all that can't be measured is told at once, with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbert.config import campaignfile, places, recipe
from hpcbert.config.recipe import Recipe
from hpcbert.config.site import Site
from hpcbert.errors import Refusals, UsageError
from hpcbert.model import Point, Shape
from hpcbert.script.matrix import list_plans
from hpcbert.script.plan import Request
from tests.kit.cases import cases
from tests.kit.drafts import changed, reference
from tests.kit.paths import TEMPLATES


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return reference(tmp_path)


def list_campaigns(site: Site, text: str) -> list[tuple[str, tuple[Point, ...]]]:
    """Return each campaign's framework and points."""
    path = Path(f"{site.runs}.toml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"schema = 1\n{text}")
    file = campaignfile.read(path)
    largest = Shape(file.nodes or 1, file.gpus_per_node or 1)

    def find(name: str) -> tuple[Recipe, Site]:
        return recipe.load(places.find_recipe(name, (TEMPLATES,))), site

    plans = list_plans(file, Request(largest), find, where=str(path))
    return [(campaign_plan.framework, campaign_plan.points) for campaign_plan in plans]


def format_points(points: tuple[Point, ...]) -> str:
    return " ".join(
        f"{point.shape}/{point.precision}/{point.batch_size_per_device}" for point in points
    )


def list_refusals(site: Site, text: str) -> list[str]:
    with pytest.raises(UsageError) as error:
        list_campaigns(site, text)
    usage_errors = error.value.each if isinstance(error.value, Refusals) else (error.value,)
    return [f"{usage_error.message} {usage_error.hint}" for usage_error in usage_errors]


def test_every_combination_is_a_point_and_those_of_one_use_a_campaign(site: Site) -> None:
    text = """
frameworks = ["pytorch", "oneflow"]
precisions = ["fp32", "amp"]
shapes = ["1n8g", "1n1g", "scaling"]
nodes = 2
gpus_per_node = 4
[batch_sizes]
fp32 = 32
fp16 = [64, 128]
[batch_sizes.oneflow]
fp16 = 96
"""
    (first, first_points), (second, second_points) = list_campaigns(site, text)
    assert (first, second) == ("pytorch", "oneflow")
    curve = ("1n1g", "1n4g", "1n8g", "2n4g")
    every = [f"{shape}/fp32/32" for shape in curve]
    every += [f"{shape}/fp16/{size}" for size in (64, 128) for shape in curve]
    assert format_points(first_points) == " ".join(every)
    ways = ("fp32/32", "fp16/96")
    assert format_points(second_points) == " ".join(
        f"{shape}/{way}" for way in ways for shape in curve
    )


def test_options_variables_and_models_make_campaigns_of_their_own(site: Site) -> None:
    text = """
frameworks = "pytorch"
models = ["bert-tiny", "bert-base"]
[options]
sequence_length = [64, 128]
[env]
B = "x"
A = ["1", "2"]
"""
    campaigns = [points for _, points in list_campaigns(site, text)]
    assert [len(points) for points in campaigns] == [1] * 8
    variants = [f"{point.model} {point.variant}" for (point,) in campaigns]
    assert len(set(variants)) == 8
    assert all(point.env == (("A", dict(point.env)["A"]), ("B", "x")) for (point,) in campaigns)


def test_the_same_point_said_twice_is_measured_once(site: Site) -> None:
    text = """
frameworks = "pytorch"
precisions = ["fp32", "single"]
shapes = ["1n1g", "scaling"]
gpus_per_node = 1
[[include]]
batch_sizes = 4
"""
    ((_, points),) = list_campaigns(site, text)
    assert format_points(points) == "1n1g/fp32/4"


def test_inclusions_add_and_exclusions_take_away_by_default_values_too(site: Site) -> None:
    text = """
frameworks = ["pytorch", "oneflow"]
precisions = ["fp32", "tf32"]
shapes = ["1n1g", "1n2g"]
[[include]]
frameworks = "pytorch"
precisions = "bf16"
env = { A = "1" }
[[exclude]]
frameworks = "oneflow"
precisions = "tf32"
[[exclude]]
frameworks = "pytorch"
batch_sizes = 4
precisions = "fp32"
shapes = "1n2g"
[[exclude]]
env = { A = "1" }
shapes = ["1n2g"]
"""
    campaigns = [
        (name, format_points(points), points[0].env) for name, points in list_campaigns(site, text)
    ]
    size = {
        **recipe.load(TEMPLATES / "pytorch").batch_sizes,
        **site.settings("pytorch").batch_sizes,
    }
    assert campaigns == [
        ("pytorch", f"1n1g/fp32/4 1n1g/tf32/{size['tf32']} 1n2g/tf32/{size['tf32']}", ()),
        ("oneflow", "1n1g/fp32/32 1n2g/fp32/32", ()),
        ("pytorch", f"1n1g/bf16/{size['bf16']}", (("A", "1"),)),
    ]


def test_precisions_that_sizes_name_are_measured(site: Site) -> None:
    ((_, points),) = list_campaigns(
        site, 'frameworks = "pytorch"\n[batch_sizes]\nbf16 = 8\nfp32 = 2\n'
    )
    assert format_points(points) == "1n1g/bf16/8 1n1g/fp32/2"


def test_all_that_cannot_be_measured_is_told_at_once(site: Site) -> None:
    text = """
frameworks = ["pytorch", "oneflw"]
models = ["bert-tiny", "bert-hug"]
precisions = ["fp32", "tf33"]
shapes = ["1n9g", "1n1g"]
[options]
sead = 3
seed = "7"
[env]
PYTHONUNBUFFERED = "0"
[[exclude]]
precisions = "fp23"
"""
    messages = list_refusals(site, text)
    for part in (
        "frameworks[2]: There is no framework 'oneflw'. Did you mean oneflow",
        "models[2]: pytorch: There is no model 'bert-hug' here. Did you mean",
        "precisions[2]: pytorch: There is no precision 'tf33' here. Did you mean tf32? Known here: ",
        "shapes[1]: pytorch: Nodes of site",
        "options.sead: pytorch: There is no option 'sead'. Did you mean seed?",
        "options.seed: pytorch: seed must be of type int, not '7'.",
        "env.PYTHONUNBUFFERED: pytorch: pytorch sets PYTHONUNBUFFERED itself, to '1'.",
        "exclude[1].precisions names 'fp23', which no point has. Did you mean fp32",
    ):
        assert len([message for message in messages if part in message]) == 1, (part, messages)
    assert len(messages) == 8


@cases
def test_what_is_refused_names_its_place(site: Site, text: str, message: str) -> None:
    (answer,) = list_refusals(site, text)
    assert message in answer


def test_an_interface_that_the_site_names_is_no_variable(site: Site) -> None:
    text = 'frameworks = "pytorch"\nenv = { NCCL_SOCKET_IFNAME = "eth9" }'
    assert list_campaigns(site, text)
    (message,) = list_refusals(changed(site, nodes={"interface": "ib0"}), text)
    assert "NCCL_SOCKET_IFNAME follows from nodes.interface, 'ib0'." in message


def test_points_of_a_common_batch_size_come_from_the_largest_in_their_order(site: Site) -> None:
    text = """
frameworks = "pytorch"
precisions = ["fp16", "bf16", "fp32"]
shapes = ["1n1g", "1n2g", "2n1g"]
batch_sizes = "max-common"
"""
    ((_, points),) = list_campaigns(site, text)
    assert [(point.shape.gpus, point.precision) for point in points] == [
        *((2, precision) for precision in ("fp16", "fp16", "bf16", "bf16", "fp32", "fp32")),
        *((1, precision) for precision in ("fp16", "bf16", "fp32")),
    ]
