"""Every combination is made once, and all that can't be measured is refused at once, with its place."""

from pathlib import Path

import pytest

from hpcbert.config import campaignfile, places, recipe
from hpcbert.config.site import Site
from hpcbert.errors import Refusals, UsageError
from hpcbert.model import Point, Shape
from hpcbert.script.matrix import list_plans
from hpcbert.script.plan import Request
from tests.kit.cases import cases, read_constant
from tests.kit.drafts import changed, reference
from tests.kit.paths import TEMPLATES


@pytest.fixture
def site(tmp_path):
    return reference(tmp_path)


def list_campaigns(site: Site, text: str) -> list[tuple[str, tuple[Point, ...]]]:
    """Return each campaign's framework and points."""
    path = Path(f"{site.runs}.toml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"schema = 1\n{text}")
    file = campaignfile.read(path)
    request = Request(Shape(file.nodes or 1, file.gpus_per_node or 1))

    def find(name):
        return recipe.load(places.find_recipe(name, (TEMPLATES,))), site

    plans = list_plans(file, request, find, where=str(path))
    return [(plan.framework, plan.points) for plan in plans]


def list_refusals(site: Site, text: str) -> list[str]:
    with pytest.raises(UsageError) as error:
        list_campaigns(site, text)
    refusals = error.value.each if isinstance(error.value, Refusals) else (error.value,)
    return [f"{refusal.message} {refusal.hint}" for refusal in refusals]


@cases
def test_combinations_become_the_points_of_campaigns(site, text, campaigns: list[str]):
    """FRAMEWORK VARIABLES: SHAPE/PRECISION/BATCH SIZE …; `*` is the recipe's own size."""
    defaults = recipe.load(TEMPLATES / "pytorch").batch_sizes
    sizes = {**defaults, **site.settings("pytorch").batch_sizes}
    lines = []
    for framework, points in list_campaigns(site, text):
        words = [framework, *(f"{name}={value}" for name, value in points[0].env)]
        fields = [(point.shape, point.precision, point.batch_size_per_device) for point in points]
        lines.append(f"{' '.join(words)}: {' '.join('/'.join(map(str, f)) for f in fields)}")
    assert lines == [
        line.replace("bf16/*", f"bf16/{sizes['bf16']}").replace("tf32/*", f"tf32/{sizes['tf32']}")
        for line in campaigns
    ]


def test_options_variables_and_models_make_campaigns_of_their_own(site):
    campaigns = [points for _, points in list_campaigns(site, read_constant(__file__, "VARIANTS"))]
    assert [len(points) for points in campaigns] == [1] * 8
    assert len({f"{point.model} {point.variant}" for (point,) in campaigns}) == 8
    assert all(point.env == (("A", dict(point.env)["A"]), ("B", "x")) for (point,) in campaigns)


def test_all_that_cannot_be_measured_is_refused_at_once(site):
    messages = list_refusals(site, read_constant(__file__, "REFUSED"))
    parts = read_constant(__file__, "REFUSALS")
    assert len(messages) == len(parts)
    for part in parts:
        assert len([message for message in messages if part in message]) == 1, (part, messages)
    # A variable that follows from what the site names is refused there alone.
    text = 'frameworks = "pytorch"\nenv = { NCCL_SOCKET_IFNAME = "eth9" }'
    assert list_campaigns(site, text)
    (message,) = list_refusals(changed(site, nodes={"interface": "ib0"}), text)
    assert "NCCL_SOCKET_IFNAME follows from nodes.interface, 'ib0'." in message


@cases
def test_what_is_refused_names_its_place(site, text, message):
    (answer,) = list_refusals(site, text)
    assert message in answer


def test_points_of_a_common_batch_size_come_from_the_largest_in_their_order(site):
    text = """frameworks = "pytorch"
precisions = ["fp16", "bf16", "fp32"]
shapes = ["1n1g", "1n2g", "2n1g"]
batch_sizes = "max-common"
"""
    ((_, points),) = list_campaigns(site, text)
    assert [(point.shape.gpus, point.precision) for point in points] == [
        *((2, precision) for precision in ("fp16", "fp16", "bf16", "bf16", "fp32", "fp32")),
        *((1, precision) for precision in ("fp16", "bf16", "fp32")),
    ]
