"""What has bitten people: launchers that hide failures, loops forever, schedules that divide by zero."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbert.model import Shape
from tests.kit.needs import not_applicable
from tests.kit.paths import TEMPLATES
from tests.kit.recipes import Case, World, core, load, presets
from tests.recipes.flagtables import split_programs


def _list_calls(name: str, case: Case, tmp_path: Path) -> list[tuple[str, list[str]]]:
    world = World(name, tmp_path)
    run = world.run(world.render(case), prints=TEMPLATES / name / "sample.log")
    return [program for call in run.calls for program in split_programs(call)]


def test_slurm_starts_the_ranks_and_nobody_hides_their_failures(name: str, tmp_path: Path) -> None:
    # They need ssh and host files, or exit 0 whatever becomes of the ranks (microsoft/DeepSpeed@1afca8f,
    # deepspeed/launcher/runner.py and launch.py). Slurm starts the ranks.
    launchers = {
        "deepspeed",
        "deepspeed.launcher.launch",
        "deepspeed.launcher.runner",
        "horovodrun",
        "mpiexec",
        "mpirun",
        "orterun",
        "pdsh",
        "ssh",
    }
    for number, case in enumerate({c.preset.name: c for c in core(load(name))}.values()):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert not launchers & {program for program, _ in _list_calls(name, case, folder)}


@pytest.mark.parametrize("iters", [120, 2000, 10000])
def test_warm_up_is_never_as_long_as_the_training(name: str, iters: int, tmp_path: Path) -> None:
    """Adam of NVIDIA's TensorFlow 1 program then divides by zero."""
    for _, words in _list_calls(
        name, Case(Shape(4, 8), *presets(load(name))[0], iters=iters), tmp_path
    ):
        options = dict(word.split("=", 1) for word in words if "=" in word)
        assert options.get("--num_warmup_steps", "-") != options.get("--num_train_steps")


def test_a_program_that_would_loop_for_ever_on_one_file_is_not_started(
    name: str, tmp_path: Path
) -> None:
    recipe = load(name)
    if not any("loops forever" in problem for problem in recipe.problems):
        not_applicable(f"{name} tells of no such loop")
    world = World(name, tmp_path)
    script = world.render(core(recipe)[0])
    for path in (tmp_path / "data").iterdir():
        if path.name not in ("training_0.hdf5", "part-0", "vocab.txt") and path.suffix != ".pt":
            path.unlink()
    assert world.run(script).refused
