"""From a request to points: shapes, batch sizes, protocols, devices, and how ranks are started."""

import re
import shutil
from dataclasses import replace
from functools import partial

import pytest

from hpcbert.config import recipe as recipes
from hpcbert.errors import ConfigError, UsageError
from hpcbert.model import Shape, parse_device
from hpcbert.scheduler.local.backend import list_elements
from hpcbert.script.draft import by_hand
from hpcbert.script.plan import Request, RequestCell, choose_device, list_shapes, plan
from tests.kit.cases import cases, read_constant
from tests.kit.cli import run
from tests.kit.drafts import OPTIONS, changed, combined, drafted, load, reference, settled
from tests.kit.logs import write_file
from tests.kit.recipes import STEP_LOG
from tests.kit.scripts import only_script

RECIPE = read_constant(__file__, "RECIPE") + STEP_LOG


@pytest.fixture
def site(tmp_path):
    return reference(tmp_path)


@pytest.fixture
def two(tmp_path):
    """A recipe for two devices."""
    write_file(tmp_path, "templates/two/recipe.toml", RECIPE)
    write_file(tmp_path, "templates/two/run.sh.j2", "exec train --on {{ point.device }}\n")
    return recipes.load(tmp_path / "templates" / "two")


on = partial(combined, Shape(1, 2))


@cases
def test_scaling_goes_through_dlperfs_shapes(largest, curve):
    assert " ".join(map(str, list_shapes(Shape.parse(largest)))) == curve


def test_points_are_every_combination_once_and_only_what_changes_the_number_is_identity(site):
    sizes, precisions = (8, 16, 8), ("fp32", "bf16", "fp32")
    request = combined(Shape(1, 2), precisions, sizes, scaling=True, model="bert-base")
    every = plan(load(), site, request).points
    assert len({point.key for point in every}) == len(every) == 2 * 2 * 2
    assert every[0].key == "bert-base_1n1g_fp32_b8"
    settings = {"seed": "7", "sequence_length": "64"}
    planned = plan(load(), site, combined(Shape(1, 8), settings=settings, accumulation=4))
    (point,) = planned.points
    assert (point.model, point.precision, point.batch_size_per_device) == ("bert-tiny", "fp32", 4)
    assert point.global_batch_size == 8 * 4 * 4
    assert point.options == (("sequence_length", 64), ("vocab_size", 8192))
    assert planned.options["seed"] == 7


@cases
def test_default_batch_sizes_grow_with_the_card(site, gres, device, expected):
    def size_of(size=0, scheduler="slurm"):
        own_site = changed(site, slurm={"gres": gres}, scheduler=scheduler, frameworks={})
        cells = (RequestCell(Shape(1, 1), "bf16", size),)
        (point,) = plan(load(), own_site, Request(Shape(1, 1), cells, device=device)).points
        return point.batch_size_per_device

    assert (size_of(), size_of(48)) == (expected, 48)
    assert size_of(scheduler="local") == min(expected, 64)


def test_a_protocol_sets_the_global_batch_of_every_shape(site):
    lamb = recipes.Preset("lamb", "LAMB", 220, 20, global_batch_size=65536, precisions=("fp16",))
    deep = recipes.Preset("micro", "DeepSpeed's", samples_per_device=1024)
    recipe = replace(load(), protocols={"lamb": lamb, "micro": deep})
    curve = plan(recipe, site, combined(Shape(4, 8), batch_sizes=(64,), scaling=True)).points
    assert {point.global_batch_size for point in curve} == {65536}
    assert [point.accumulation for point in curve] == [1024, 256, 128, 64, 32]
    assert {(point.protocol, point.precision) for point in curve} == {("lamb", "fp16")}
    assert plan(recipe, site, Request(Shape(1, 1), skip=5)).protocol.iters == 220
    other = combined(Shape(1, 8), batch_sizes=(32,), preset="micro")
    assert plan(recipe, site, other).points[0].accumulation == 1024 // 8
    assert plan(recipe, site, replace(other, accumulation=3)).points[0].accumulation == 3
    # Without a choice, a cell may name what follows anyway, as one of a campaign made again does.
    fixed, cell = replace(recipe, accumulation=False), RequestCell(Shape(1, 8), "fp16", 64, 128)
    assert plan(fixed, site, Request(cell.shape, (cell,))).points[0].accumulation == 128
    contradiction = Request(cell.shape, (replace(cell, accumulation=1),))
    for request in (replace(other, accumulation=3), contradiction):
        with pytest.raises(UsageError, match="does not support --accumulation"):
            plan(fixed, site, request)


@cases
def test_what_does_not_fit_is_refused(site, recipe, shape, *, fields, says, hint):
    request = combined(Shape.parse(shape or "1n1g"), **(fields or {}))
    with pytest.raises(UsageError, match=says) as refused:
        plan(load(recipe or "pytorch"), site, request)
    assert (hint or "") in refused.value.hint


@cases
def test_how_ranks_are_started(tmp_path, *, of_recipe, slurm, of_slurm, gpus, expected, warned):
    """By the recipe's kind, or the first of several that Slurm has, unless the site names one."""
    folder = shutil.copytree(load().folder, tmp_path / "pytorch")
    text = (folder / "recipe.toml").read_text().replace("\n", f"\nmpi = {of_recipe}\n", 1)
    (folder / "recipe.toml").write_text(text)
    draft = drafted(
        reference(tmp_path, slurm=slurm or {}), combined(Shape(1, gpus or 1), ("fp32",)),
        framework_recipe=recipes.load(folder), options={"mpi": of_slurm or ()},
    )  # fmt: skip
    assert draft.resolved.mpi == expected
    assert (f"--mpi={expected} " in only_script(draft)) == bool(expected)
    warnings = " ".join(draft.resolved.warnings)
    assert ("finds its ranks by pmix" in warnings) == bool(warned)


def test_a_recipe_on_the_cpu_is_otherwise_only_where_it_says_so(two, site, tmp_path):
    words = {"CPU": "cpu", "gpus": "gpu", " cuda ": "gpu", "tpu": "tpu", "": ""}
    assert {word: parse_device(word) for word in words} == words
    on_cpu = two.for_device("cpu")
    assert (on_cpu.launch, on_cpu.precisions) == ("per-gpu", ("fp32",))
    assert on_cpu.source.patches == ("cpu.patch",)
    assert on_cpu.problems == ("One.", "Two.")
    assert on_cpu.env == {"WORKERS": "1", "EVERYWHERE": "1"}
    assert on_cpu.for_device("cpu") == on_cpu
    assert two.for_device("gpu") == two
    # Its protocols are those that it names, in its order.
    text = RECIPE.replace("[on.cpu]", '[protocols.all]\nhelp = "Too."\n[on.cpu]')
    text = text.replace("[on.cpu.env]", 'protocols = ["any", "all"]\n[on.cpu.env]')
    write_file(tmp_path, "two/recipe.toml", text)
    recipe = recipes.load(tmp_path / "two")
    assert list(recipe.for_device("cpu").protocols) == ["any", "all"]
    assert list(recipe.protocols) == ["half", "any", "all"]
    assert plan(recipe, site, on(device="cpu")).points[0].protocol == "any"
    with pytest.raises(UsageError, match="half"):
        plan(recipe, site, on(device="cpu", preset="half"))


@cases
def test_a_recipe_that_contradicts_itself_is_refused(tmp_path, old, new, message):
    assert old in RECIPE
    write_file(tmp_path, "two/recipe.toml", RECIPE.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        recipes.load(tmp_path / "two")


def test_a_device_that_a_recipe_lacks_is_refused_and_a_wrong_one_is_found_at_the_site(site, two):
    with pytest.raises(UsageError, match="megatron runs on gpu, not on cpu") as refused:
        choose_device(load("megatron"), site, "cpu")
    assert "frameworks show" in refused.value.hint
    with pytest.raises(UsageError, match="no device 'cup'") as wrong:
        choose_device(two, settled(site, "two", device="cup"), "")
    assert "frameworks.two.device" in wrong.value.where


def test_the_cpu_is_part_of_a_points_names_and_no_gpu_is_asked_for(site):
    on_gpu, on_cpu = (drafted(site, on(device=device)) for device in ("gpu", "cpu"))
    (array,), (other,) = on_gpu.campaign.arrays, on_cpu.campaign.arrays
    assert other.point == replace(array.point, device="cpu")
    assert (array.point.key + "_cpu", array.name + "_cpu") == (other.point.key, other.name)
    assert other.script == "scripts/bert-tiny_1n2g_fp32_b4_cpu.sbatch"
    planned = plan(load(), site, on(device="cpu"))
    ((name,), _) = by_hand(planned, options=OPTIONS)
    assert name == "pytorch_bert-tiny_1n2g_fp32_b4_cpu.sbatch"
    for device, gpus in (("cpu", 0), ("gpu", 2), ("", 2)):
        elements = list_elements(drafted(site, on(device=device)).campaign)
        assert {element.gpus for element in elements} == {gpus}
    for runtime in ("none", "enroot", "pyxis"):
        where = changed(site, container={"runtime": runtime}, nodes={"interface": "ib0"})
        cpu_text = only_script(drafted(where, on(device="cpu")))
        gpu_text = only_script(drafted(where, on(device="gpu")))
        assert "--gres=gpu:2" in gpu_text
        assert "VISIBLE_DEVICES=" not in gpu_text
        assert "--device cuda" in gpu_text
        for word in ("--gres", "NCCL", "per-gpu"):
            assert word not in cpu_text
        for word in (" device=cpu\n", " CUDA_VISIBLE_DEVICES= ", "--device cpu"):
            assert word in cpu_text
    # More ranks than a node has GPUs may run on its CPU.
    text = only_script(drafted(site, Request(Shape(1, 12), device="cpu")))
    assert "--ntasks-per-node=12" in text


@cases
def test_a_job_with_gpus_trains_on_nothing_else(
    slurm, scheduler, requested, device, *, word, tmp_path
):
    site = reference(tmp_path, slurm=slurm)
    site = settled(site, device=device) if device else site
    request, options = on(device=requested or ""), {"scheduler": scheduler or "slurm"}
    text = only_script(drafted(site, request, options=options))
    assert re.findall(r"--device (\w+)", text) == ([word] if word else [])


def test_a_template_has_the_device_and_a_script_the_command_that_renders_it_again(
    empty_directory, tmp_path, two
):
    options = {"folders": (tmp_path / "templates", *OPTIONS.folders)}
    site = settled(reference(tmp_path), model="")
    for device, tasks, workers in (("cpu", 2, 1), ("gpu", 1, 4)):
        request = on(device=device, preset="any")
        text = only_script(drafted(site, request, framework_recipe=two, options=options))
        for words in (f"--on {device}", f"--ntasks-per-node={tasks}", f"WORKERS={workers}"):
            assert words in text
        run("render", "--device", device, "--output", tmp_path / "out", status=0)
    assert len(list((tmp_path / "out").glob("*.sbatch"))) == 2
    assert run("render", "--check", tmp_path / "out").returncode == 0


def test_a_device_has_models_of_its_own_and_may_have_room_for_few_ranks(site):
    request = Request(Shape(1, 1), device="cpu", model="bert-tiny", preset="dlperf")
    assert plan(load("paddle"), site, request).points[0].model == "bert-tiny"
    for shape in (Shape(1, 2), Shape(2, 1)):
        on_gpus = replace(request, shape=shape, device="gpu", model="bert-base")
        assert plan(load("paddle"), site, on_gpus).points[0].shape == shape
    two_ranks = replace(request, shape=Shape(1, 2), preset="")
    assert len(plan(load("paddle18"), site, two_ranks).points) == 1
