"""Data that prepare makes or checks: for each recipe, under the names it looks for."""

import json
from pathlib import Path

import pytest

from hpcbert.config import recipe as recipes
from hpcbert.config.site import SYNTHETIC
from hpcbert.errors import UsageError
from hpcbert.model import Shape
from hpcbert.script.materials import synthetic_folder
from hpcbert.script.plan import Request, read_options
from tests.kit import drafts
from tests.kit.cli import run
from tests.kit.paths import TEMPLATES
from tests.kit.recipes import NAMES
from tests.prepare.test_parts import prepare

READING = [name for name in NAMES if recipes.load(TEMPLATES / name).dataset]


def site_with(folder, name, samples=64, source=""):
    return drafts.settled(drafts.site(folder), name, data=SYNTHETIC, samples=samples, source=source)


def prepares(site, name, *, dry=False, **settings):
    return prepare(drafts.load(name), site, "data", dry=dry, settings=settings)["data"]


@pytest.mark.parametrize("name", READING)
def test_a_recipe_finds_what_is_made_for_it(tmp_path, name):
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
    run("data", "check", Path(part.path).parent / "made", status=0)
    used = drafts.drafted(
        site, Request(Shape(1, 1)), framework_recipe=drafts.load(name), options={"dry": True}
    )
    assert used.resolved.available_inputs.data == part.path
    assert [material.digest for material in used.campaign.materials] == [part.digest]


def test_other_options_are_other_data(tmp_path):
    site = site_with(tmp_path, "pytorch")
    options = {"sequence_length": "512", "vocab_size": "8192"}
    short = prepares(site, "pytorch", vocab_size="8192")
    longer = prepares(site, "pytorch", sequence_length="512", vocab_size="8192")
    assert short.status == "done"
    assert longer.path != short.path
    document = json.loads((Path(longer.path).parent / "made" / "data.json").read_text())
    assert (document["sequence_length"], document["predictions"]) == (512, 76)
    assert (document["vocabulary"]["size"], document["samples"]) == (8192, 64)
    used = drafts.drafted(site, Request(Shape(1, 1), settings=options))
    assert used.resolved.available_inputs.data == longer.path


def test_what_was_interrupted_is_taken_up(tmp_path):
    site, recipe = site_with(tmp_path, "mxnet"), drafts.load("mxnet")
    folder = synthetic_folder(site, recipe, read_options(recipe, site, {}))
    # Killed between the making and the renaming.
    prepares(site, "mxnet")
    (folder / "data").rename(folder / ".data")
    min((folder / "made" / "training").iterdir()).unlink()
    assert prepares(site, "mxnet").status == "ready"


def test_what_can_not_be_made_or_is_not_there_is_told(tmp_path):
    assert prepares(site_with(tmp_path, "nccl-tests"), "nccl-tests").status == "skipped"
    part = prepares(site_with(tmp_path, "mxnet", samples=3), "mxnet")
    assert (part.status, "3 samples don't fill" in part.detail) == ("failed", True)
    with pytest.raises(UsageError, match="must be of type int"):
        prepares(site_with(tmp_path, "pytorch"), "pytorch", sequence_length="many")
    hints = {}
    for name, text in (("nccl-tests", "reads no data"), ("tf2", "tf2 needs data")):
        site = site_with(tmp_path, name, source="/s" if name == "tf2" else "")
        with pytest.raises(UsageError, match=text) as refused:
            drafts.drafted(site, framework_recipe=drafts.load(name), request=Request(Shape(1, 1)))
        hints[name] = refused.value.hint
    assert "hpcbert prepare --fw tf2" in hints["tf2"]
