"""Every combination is made once, and all that can't be measured is refused at once, with its place."""

import pytest

from hpcbert.config import campaignfile, places, recipe
from hpcbert.errors import Refusals, UsageError
from hpcbert.model import Shape
from hpcbert.script.matrix import list_plans
from hpcbert.script.plan import Request
from tests.kit.cases import cases
from tests.kit.drafts import load, reference
from tests.kit.logs import write_file
from tests.kit.paths import TEMPLATES


def plan_file(folder, text, **changes):
    """Return the plan of each campaign of a file, at the reference site with some changes."""
    site = reference(folder, **changes)
    path = write_file(folder, "matrix.toml", f"schema = 1\n{text}")
    file = campaignfile.read(path)
    request = Request(Shape(file.nodes or 1, file.gpus_per_node or 1))
    return list_plans(
        file, request, lambda name: (recipe.load(places.find_recipe(name, (TEMPLATES,))), site),
        where=str(path),
    )  # fmt: skip


@cases
def test_combinations_become_the_points_of_campaigns(tmp_path, text, campaigns: list[str]):
    """FRAMEWORK VARIABLES: SHAPE/PRECISION/BATCH SIZE …; `*` is the recipe's own size."""
    sizes = {**load().batch_sizes, **reference(tmp_path).settings("pytorch").batch_sizes}
    lines = []
    for plan in plan_file(tmp_path, text):
        variables = (f" {name}={value}" for name, value in plan.points[0].env)
        line = f"{plan.recipe.name}{''.join(variables)}:"
        for point in plan.points:
            line += f" {point.shape}/{point.precision}/{point.batch_size_per_device}"
        lines.append(line)
    for precision in ("bf16", "tf32"):
        usual = f"{precision}/{sizes[precision]}"
        campaigns = [line.replace(f"{precision}/*", usual) for line in campaigns]
    assert lines == campaigns


@cases
def test_all_that_cannot_be_measured_is_refused_at_once_with_its_place(
    tmp_path, interface, text, messages
):
    with pytest.raises(UsageError) as error:
        plan_file(tmp_path, text, nodes={"interface": interface or ""})
    each = error.value.each if isinstance(error.value, Refusals) else (error.value,)
    refusals = [f"{refusal.message} {refusal.hint}" for refusal in each]
    assert len(refusals) == len(messages)
    for message in messages:
        assert len([refusal for refusal in refusals if message in refusal]) == 1, refusals
    # A variable that follows from what the site names is refused there alone.
    assert not interface or plan_file(tmp_path, text)
