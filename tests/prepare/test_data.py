"""Data that prepare makes or checks: for each recipe, under the names it looks for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hpcbert.commands import prepare as flow
from hpcbert.config import recipe as recipes
from hpcbert.config.site import SYNTHETIC, Site
from hpcbert.errors import UsageError
from hpcbert.model import Shape
from hpcbert.prepare.parts import Context, Part
from hpcbert.script.materials import synthetic_folder
from hpcbert.script.plan import Request, read_options
from hpcbert.system import runner
from tests.kit import drafts
from tests.kit.cli import run
from tests.kit.drafts import drafted, load, settled
from tests.kit.paths import TEMPLATES
from tests.kit.recipes import NAMES

READING = [name for name in NAMES if recipes.load(TEMPLATES / name).dataset]


def site_with(folder: Path, name: str, samples: int = 64) -> Site:
    return settled(drafts.site(folder), name, data=SYNTHETIC, samples=samples)


def prepares(site: Site, name: str, *, dry: bool = False, **settings: str) -> Part:
    context = Context(
        run=runner.run, follow=runner.follow, say=lambda _: None, env={}, dry=dry, settings=settings
    )
    (part,) = flow.prepare(load(name), site, context, only=["data"])
    return part


@pytest.mark.parametrize("name", READING)
def test_a_recipe_finds_what_is_made_for_it(tmp_path: Path, name: str) -> None:
    site = site_with(tmp_path, name)
    planned = prepares(site, name, dry=True)
    assert planned.status == "planned", planned
    assert "64 synthetic samples" in planned.detail
    assert not Path(site.sources).exists()
    part = prepares(site, name)
    assert part.status == "done", part
    assert part.path.startswith(f"{site.sources}/{name}+synthetic-")
    again = prepares(site, name)
    assert (again.status, again.digest, again.path) == ("ready", part.digest, part.path)
    checked = run("data", "check", Path(part.path).parent / "made")
    assert checked.returncode == 0, checked
    used = drafted(
        site, framework_recipe=load(name), options={"dry": True}, request=Request(Shape(1, 1))
    )
    assert used.resolved.available_inputs.data == part.path
    assert [material.digest for material in used.campaign.materials] == [part.digest]


def test_other_options_are_other_data(tmp_path: Path) -> None:
    site, recipe = site_with(tmp_path, "pytorch"), load("pytorch")
    short = prepares(site, "pytorch", vocab_size="8192")
    assert short.status == "done"
    longer = prepares(site, "pytorch", sequence_length="512", vocab_size="8192")
    assert longer.path != short.path
    document = json.loads((Path(longer.path).parent / "made" / "data.json").read_text())
    assert (document["sequence_length"], document["predictions"]) == (512, 76)
    assert document["vocabulary"]["size"] == 8192
    assert document["samples"] == 64
    request = Request(Shape(1, 1), settings={"sequence_length": "512", "vocab_size": "8192"})
    assert (
        drafted(site, request, framework_recipe=recipe).resolved.available_inputs.data
        == longer.path
    )
    with pytest.raises(UsageError, match="must be of type int"):
        prepares(site, "pytorch", sequence_length="many")


def test_data_that_are_not_there_yet_are_told_before_submission(tmp_path: Path) -> None:
    site = settled(site_with(tmp_path, "tf2"), "tf2", data=SYNTHETIC, samples=64, source="/s")
    with pytest.raises(UsageError, match="tf2 needs data") as refused:
        drafted(site, framework_recipe=load("tf2"), request=Request(Shape(1, 1)))
    assert "hpcbert prepare --fw tf2" in refused.value.hint


def test_what_was_interrupted_is_taken_up(tmp_path: Path) -> None:
    site, recipe = site_with(tmp_path, "mxnet"), load("mxnet")
    folder = synthetic_folder(site, recipe, read_options(recipe, site, {}))
    # Killed between the making and the renaming, and after a beginning that is not whole.
    prepares(site, "mxnet")
    (folder / "data").rename(folder / ".data~99")
    assert prepares(site, "mxnet").status == "ready"
    (folder / "data").rename(folder / ".data~98")
    (folder / "made" / "data.json").unlink()
    (folder / "made" / ".unfinished").touch()
    min((folder / "made" / "training").iterdir()).unlink()
    assert prepares(site, "mxnet").status == "ready"


def test_a_recipe_that_reads_none_says_so(tmp_path: Path) -> None:
    site = site_with(tmp_path, "nccl-tests")
    assert prepares(site, "nccl-tests").status == "skipped"
    with pytest.raises(UsageError, match="reads no data"):
        drafted(site, framework_recipe=load("nccl-tests"), request=Request(Shape(1, 1)))


def test_too_few_samples_are_refused_with_nothing_made(tmp_path: Path) -> None:
    site = replace(site_with(tmp_path, "mxnet", samples=3))
    part = prepares(site, "mxnet")
    assert part.status == "failed"
    assert "3 samples don't fill" in part.detail
