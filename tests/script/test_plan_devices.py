"""What ranks compute on, from the command line to the script: GPUs, the CPU, or as the program finds."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.config import recipe as recipes
from hpcbert.config.recipe import Recipe
from hpcbert.errors import ConfigError, UsageError
from hpcbert.model import Shape, parse_device
from hpcbert.scheduler.local.backend import _list_elements
from hpcbert.script.draft import by_hand
from hpcbert.script.plan import Request, choose_device, plan
from tests.kit import drafts
from tests.kit.cases import cases, read_constant
from tests.kit.cli import run
from tests.kit.drafts import changed, combined, drafted, reference, settled
from tests.kit.logs import write_file
from tests.kit.recipes import STEP_LOG
from tests.kit.scripts import only_script

RECIPE = read_constant(__file__, "RECIPE")
RECIPE += STEP_LOG
RUN = "exec train --on {{ point.device }}\n"


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    write_file(tmp_path, "templates/two/recipe.toml", RECIPE)
    write_file(tmp_path, "templates/two/run.sh.j2", RUN)
    return recipes.load(tmp_path / "templates" / "two")


def make_request(on: str, **changes: Any) -> Request:
    return combined(Shape(1, 2), device=on, **changes)


@cases
def test_devices_are_understood_in_every_spelling(word: str, device: str) -> None:
    assert parse_device(word) == device


def test_a_recipe_on_the_cpu_is_otherwise_only_where_it_says_so(recipe: Recipe) -> None:
    on_cpu = recipe.for_device("cpu")
    assert (on_cpu.launch, on_cpu.precisions) == ("per-gpu", ("fp32",))
    assert on_cpu.source.patches == ("cpu.patch",)
    assert on_cpu.problems == ("One.", "Two.")
    assert on_cpu.env == {"WORKERS": "1", "EVERYWHERE": "1"}
    assert on_cpu.for_device("cpu") == on_cpu
    assert recipe.for_device("gpu") == recipe


@cases
def test_a_recipe_that_contradicts_itself_is_refused(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in RECIPE
    write_file(tmp_path, "two/recipe.toml", RECIPE.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        recipes.load(tmp_path / "two")


def test_the_protocols_of_a_device_are_those_that_it_names_in_its_order(tmp_path: Path) -> None:
    named = 'protocols = ["any", "all"]\n[on.cpu.env]'
    text = RECIPE.replace("[on.cpu]", '[protocols.all]\nhelp = "Too."\n[on.cpu]')
    write_file(tmp_path, "two/recipe.toml", text.replace("[on.cpu.env]", named))
    recipe = recipes.load(tmp_path / "two")
    assert list(recipe.for_device("cpu").protocols) == ["any", "all"]
    assert list(recipe.protocols) == ["half", "any", "all"]
    assert plan(recipe, reference(tmp_path), make_request("cpu")).points[0].protocol == "any"
    with pytest.raises(UsageError, match="half"):
        plan(recipe, reference(tmp_path), make_request("cpu", preset="half"))


def test_the_device_is_asked_for_or_the_sites_or_the_recipes_first(
    tmp_path: Path, recipe: Recipe
) -> None:
    site = reference(tmp_path)
    on_cpu = settled(site, "two", device="cpu")
    assert choose_device(recipe, site, "") == "gpu"
    assert choose_device(recipe, on_cpu, "") == "cpu"
    assert choose_device(recipe, on_cpu, "gpu") == "gpu"
    assert choose_device(drafts.load(), site, "") == "auto"
    assert plan(recipe, on_cpu, make_request("", preset="any")).points[0].device == "cpu"


def test_what_can_not_be_is_refused_with_a_name_for_what_can(
    tmp_path: Path, recipe: Recipe
) -> None:
    site = reference(tmp_path)
    with pytest.raises(UsageError, match="megatron runs on gpu, not on cpu") as refused:
        choose_device(drafts.load("megatron"), site, "cpu")
    assert "pytorch" in refused.value.hint
    assert "megatron" not in refused.value.hint
    with pytest.raises(UsageError, match="no device 'cup'") as wrong:
        choose_device(recipe, site, "cup")
    assert "Did you mean cpu" in wrong.value.hint
    with pytest.raises(UsageError, match="no device 'cup'") as wrong:
        choose_device(recipe, settled(site, "two", device="cup"), "")
    assert "frameworks.two.device" in wrong.value.where
    with pytest.raises(UsageError, match="no protocol 'half'"):
        plan(recipe, site, make_request("cpu", preset="half"))


def test_the_cpu_is_part_of_a_points_names(tmp_path: Path) -> None:
    site = reference(tmp_path)
    on_gpu, on_cpu = (drafted(site, make_request(device)) for device in ("gpu", "cpu"))
    (array,), (other,) = on_gpu.campaign.arrays, on_cpu.campaign.arrays
    assert other.point == replace(array.point, device="cpu")
    assert (array.point.key + "_cpu", array.name + "_cpu") == (other.point.key, other.name)
    assert other.script == "scripts/bert-tiny_1n2g_fp32_b4_cpu.sbatch"
    recipe = drafts.load()
    cpu_plan = plan(recipe, site, make_request("cpu"))
    ((name,), _) = by_hand(cpu_plan, site, recipe, options=drafts.OPTIONS)
    assert name == "pytorch_bert-tiny_1n2g_fp32_b4_cpu.sbatch"


@pytest.mark.parametrize("runtime", ["none", "enroot", "pyxis"])
def test_on_the_cpu_no_gpu_is_asked_for_or_looked_for(tmp_path: Path, runtime: str) -> None:
    site = changed(reference(tmp_path), container={"runtime": runtime}, nodes={"interface": "ib0"})
    on_cpu, on_gpu = (only_script(drafted(site, make_request(device))) for device in ("cpu", "gpu"))
    assert "--gres=gpu:2" in on_gpu
    for word in ("--gres", "NCCL", "per-gpu"):
        assert word not in on_cpu
    assert " device=cpu\n" in on_cpu
    assert " CUDA_VISIBLE_DEVICES= " in on_cpu
    assert "VISIBLE_DEVICES=" not in on_gpu
    assert "--device cpu" in on_cpu
    assert "--device cuda" in on_gpu


@cases
def test_a_job_with_gpus_trains_on_nothing_else(
    tmp_path: Path, slurm: dict[str, Any], expected: bool
) -> None:
    site = changed(reference(tmp_path), slurm=slurm)
    assert ("--device cuda" in only_script(drafted(site, make_request("")))) == expected


def test_more_ranks_than_a_node_has_gpus_may_run_on_its_cpu(tmp_path: Path) -> None:
    site, many = reference(tmp_path), Request(Shape(1, 12), device="cpu")
    assert "--ntasks-per-node=12" in only_script(drafted(site, many))
    with pytest.raises(UsageError, match="have 8 GPUs"):
        drafted(site, replace(many, device="gpu"))
    with pytest.raises(UsageError, match="not a multiple of 12 devices x 4"):
        drafted(site, replace(many, global_batch_size=7))


def test_a_template_is_told_the_device_and_gets_the_recipe_as_it_is_there(
    tmp_path: Path, recipe: Recipe
) -> None:
    options = {"folders": (tmp_path / "templates", *drafts.OPTIONS.folders)}
    for device, tasks, workers in (("cpu", 2, 1), ("gpu", 1, 4)):
        request = make_request(device, preset="any")
        site = settled(reference(tmp_path), model="")
        text = only_script(drafted(site, request, framework_recipe=recipe, options=options))
        for words in (f"--on {device}", f"--ntasks-per-node={tasks}", f"WORKERS={workers}"):
            assert words in text


def test_the_local_queue_shows_no_gpu_to_ranks_on_the_cpu(tmp_path: Path) -> None:
    for device, gpus in (("cpu", 0), ("gpu", 2), ("", 2)):
        draft = drafted(reference(tmp_path), make_request(device))
        elements = _list_elements(draft.campaign, lambda _: ())
        assert [element.gpus for element in elements] == [gpus] * 5


def test_a_script_names_the_command_that_renders_it_again(
    empty_directory: None, tmp_path: Path, recipe: Recipe
) -> None:
    """A round through `render --check`, for each device."""
    for on in ("cpu", "gpu"):
        result = run("render", "--device", on, "--output", tmp_path / "out")
        assert result.returncode == 0, result
    assert len(list((tmp_path / "out").glob("*.sbatch"))) == 2
    assert run("render", "--check", tmp_path / "out").returncode == 0


@cases
def test_the_reference_does_not_fall_back_to_cpus_where_gpus_are_requested(
    tmp_path: Path, case: tuple[str, str, dict[str, str], str, str]
) -> None:
    scheduler, requested, framework, gres, word = case
    site = settled(reference(tmp_path, slurm={"gres": gres}), **framework)
    request = combined(Shape(1, 2), device=requested)
    text = only_script(drafted(site, request, options={"scheduler": scheduler}))
    assert re.findall(r"--device (\w+)", text) == ([word] if word else [])


def test_a_device_has_models_of_its_own_and_may_have_room_for_one_rank_only(
    tmp_path: Path,
) -> None:
    site, paddle = reference(tmp_path), drafts.load("paddle")
    request = Request(Shape(1, 1), device="cpu", model="bert-tiny", preset="dlperf")
    assert plan(paddle, site, request).points[0].model == "bert-tiny"
    with pytest.raises(UsageError, match="no model 'bert-tiny'"):
        plan(paddle, site, replace(request, device="gpu"))
    for shape in (Shape(1, 2), Shape(2, 1)):
        with pytest.raises(UsageError, match=f"on cpu only as one rank, not as {shape}") as refused:
            plan(paddle, site, replace(request, shape=shape))
        assert "no collective operations" in refused.value.hint
        on_gpus = replace(request, shape=shape, device="gpu", model="bert-base")
        assert plan(paddle, site, on_gpus).points[0].shape == shape
    paddle18 = drafts.load("paddle18")
    assert len(plan(paddle18, site, replace(request, shape=Shape(1, 2), preset="")).points) == 1
    with pytest.raises(UsageError, match="on cpu only on one node, not as 2n1g"):
        plan(paddle18, site, replace(request, shape=Shape(2, 1), preset=""))
