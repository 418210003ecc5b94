"""Whatever a request says reaches the ranks of every recipe, or is refused."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.config.site import FrameworkSettings
from hpcbert.errors import UsageError
from hpcbert.model import Shape
from hpcbert.script.plan import Request, RequestCell
from tests.kit import drafts
from tests.kit.recipes import NAMES, load, rank_command


def render_ranks(name, request, data="/d"):
    """Return the commands of a rank, at a site that names everything that the recipe needs."""
    settings = FrameworkSettings(data=data, source="/s", image="/i.sqsh")
    site = drafts.reference(Path("/runs"), runs="/runs", frameworks={name: settings})
    draft = drafts.drafted(site, request, framework_recipe=load(name), options={"dry": True})
    return rank_command(*draft.scripts.values()).rpartition("\nexec bash ")[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_value_changes_the_commands_of_the_ranks_or_is_refused(name):
    def change_value(option):
        """Return a value of an option that is not its default."""
        if option.kind == "bool":
            return not option.default
        if option.kind == "str":
            return next((choice for choice in option.choices if choice != option.default), "wiki")
        doubled = option.default * 2 or 2
        is_too_large = option.at_most is not None and doubled > option.at_most
        return type(option.default)(option.default / 2 if is_too_large else doubled)

    for device in load(name).devices:
        recipe = load(name).for_device(device)
        shape = Shape(1, 1) if recipe.alone else Shape(1, 8)
        for protocol in recipe.protocols:
            preset = recipe.preset(protocol)
            precisions = preset.precisions or recipe.precisions
            changes: list[dict[str, Any]] = [
                {"cells": (RequestCell(shape, "", 6),)},
                *({"cells": (RequestCell(shape, word, 0),)} for word in precisions[1:]),
                *({"model": model} for model in recipe.models[1:]),
                *({"settings": {key: change_value(recipe.options[key])}} for key in recipe.options),
                {"accumulation": (preset.accumulation or 1) + 2},
                {"iters": preset.iters + 20},
                {"window_seconds": 7},
                {"xla": not preset.xla},
            ]
            cells = (RequestCell(shape, "", 0),)
            request = Request(shape, cells=cells, preset=protocol, device=device)
            commands = render_ranks(name, request)
            for change in changes:
                # A compiler that the recipe does not have is off in any case.
                is_without = not recipe.xla and change == {"xla": False}
                with suppress(UsageError):
                    changed_commands = render_ranks(name, replace(request, **change))
                    assert changed_commands != commands or is_without, (device, protocol, change)


def test_a_compiler_can_be_turned_off_and_a_value_without_effect_is_refused():
    for name, protocol, present, absent in (
        ("ngc-tf1", "lamb", "--nouse_xla", " --use_xla"),
        ("pytorch", "", "--compile false", "--compile true"),
    ):
        commands = render_ranks(name, Request(Shape(1, 8), preset=protocol, xla=False))
        assert present in commands
        assert absent not in commands
    # A value that only other data need is refused.
    request = Request(Shape(1, 1), settings={"fill": "wiki"})
    assert "--fill wiki" in render_ranks("pytorch", request, data="")
    with pytest.raises(UsageError, match="--set fill has no effect"):
        render_ranks("pytorch", request)
