"""Which GPU a rank takes, whatever of its node's it sees: by every recipe's own command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from hpcbert.model import Shape
from tests.kit.cases import read_constant
from tests.kit.logs import write_file
from tests.kit.paths import REPOSITORY
from tests.kit.recipes import NAMES, Case, Run, World, load, presets
from tests.kit.waiting import CEILING

PER_GPU = [name for name in NAMES if load(name).launch == "per-gpu"]
PER_NODE = [name for name in NAMES if load(name).launch == "per-node"]
# These read the variable or take the option; of the others each is told otherwise, or not at all.
BY_LOCAL_RANK = read_constant(__file__, "BY_LOCAL_RANK")
BY_HOROVOD = ("mxnet", "ngc-tf1")
UNTOLD = ("mindspore", "mindspore-models")
MANY = Shape(2, 8)


class View(NamedTuple):
    """What a rank sees of its node.

    Attributes:
        rank: Its number on its node.
        device: The number that it has to take.
        CUDA, ROCR, HIP: Their lists of visible devices.
        hip: The list that HIP has to find.
    """

    rank: int
    device: int
    CUDA: str | None = None
    ROCR: str | None = None
    HIP: str | None = None
    hip: str | None = None

    @property
    def environment(self) -> dict[str, str | None]:
        ranks = dict.fromkeys(("SLURM_LOCALID", "SLURM_PROCID", "PMIX_RANK"), str(self.rank))
        lists = {f"{name}_VISIBLE_DEVICES": getattr(self, name) for name in ("CUDA", "ROCR", "HIP")}
        return {**ranks, **lists}


ALL = ",".join(map(str, range(8)))
VIEWS = {name: View(**view) for name, view in read_constant(__file__, "VIEWS").items()}


def run_rank(name: str, world: World, view: View, shape: Shape = MANY) -> Run:
    case = Case(shape, *presets(load(name))[0], device="gpu")
    return world.run(world.render(case), env=view.environment)


@pytest.mark.parametrize("view", VIEWS.values(), ids=list(VIEWS))
def test_a_rank_takes_a_gpu_among_those_that_it_sees(view: View, tmp_path: Path) -> None:
    result = run_rank("pytorch", World("pytorch", tmp_path), view)
    assert (
        result.environment["LOCAL_RANK"] == result.environment["HPCBERT_DEVICE"] == str(view.device)
    )
    assert result.environment.get("HIP_VISIBLE_DEVICES") == view.hip


@pytest.mark.parametrize("recipe", PER_GPU)
@pytest.mark.parametrize("view", ["all of the node's", "its own, by the node's number"])
def test_every_recipe_s_program_is_told(recipe: str, view: str, tmp_path: Path) -> None:
    rank_view = VIEWS[view]
    is_renumbered = rank_view.device != rank_view.rank
    result = run_rank(recipe, World(recipe, tmp_path), rank_view)
    if is_renumbered and recipe in UNTOLD:
        assert result.refused
        assert "--gpus-per-task" in result.output
        return
    assert result.exit == 0, result.output
    words, device = result.calls[-1], str(rank_view.device)
    if recipe in BY_LOCAL_RANK:
        assert result.environment["LOCAL_RANK"] == device
    elif recipe in BY_HOROVOD:
        assert (Path(words[1]).name == "own_device.py") == is_renumbered
        assert result.environment["HPCBERT_DEVICE"] == device
    elif recipe not in UNTOLD:
        assert recipe == "nccl-tests"
        assert result.environment.get("NCCL_TESTS_DEVICE") == (device if is_renumbered else None)
    rank_words = [word for word in words if word.startswith("--local_rank")]
    assert rank_words in ([], [f"--local_rank={device}"])


def test_all_recipes_with_a_rank_a_gpu_are_tried() -> None:
    assert {*BY_LOCAL_RANK, *BY_HOROVOD, *UNTOLD, "nccl-tests"} == set(PER_GPU)


@pytest.mark.parametrize("recipe", PER_NODE)
@pytest.mark.parametrize(("visible", "refused"), [("0", True), ("0,1,2,3,4,5,6,7", False)])
def test_a_process_that_drives_a_node_has_to_see_all_of_it(
    recipe: str, visible: str, refused: bool, tmp_path: Path
) -> None:
    result = run_rank(recipe, World(recipe, tmp_path), View(0, 0, visible), Shape(1, 8))
    assert result.refused == refused, result.output
    assert ("--gpu-bind" in result.output) == refused


@pytest.mark.parametrize(
    ("rank", "visible", "warned"), [(0, "0", True), (1, "1", False), (0, ALL, False)]
)
def test_rank_0_warns_of_ranks_that_see_one_gpu_each(
    rank: int, visible: str, warned: bool, tmp_path: Path
) -> None:
    result = run_rank("pytorch", World("pytorch", tmp_path), View(rank, 0, visible))
    assert ("NCCL may have to copy" in result.output) == warned


def test_one_gpu_alone_is_nothing_to_warn_of(tmp_path: Path) -> None:
    result = run_rank("pytorch", World("pytorch", tmp_path), View(0, 0, "0"), Shape(1, 1))
    assert "NCCL" not in result.output


@pytest.mark.parametrize("recipe", ["pytorch", "deepspeed", "mxnet", "oneflow-models"])
def test_on_cpus_the_rank_on_the_node_is_the_device(recipe: str, tmp_path: Path) -> None:
    world, cpu_recipe = World(recipe, tmp_path), load(recipe).for_device("cpu")
    case = Case(Shape(1, 8), *presets(cpu_recipe)[0], device="cpu")
    result = world.run(world.render(case), env=VIEWS["its own, by the node's number"].environment)
    local = "HOROVOD_LOCAL_RANK" if recipe == "mxnet" else "LOCAL_RANK"
    assert result.environment[local] == "3"


def test_a_horovod_program_is_answered_with_its_own_gpu(tmp_path: Path) -> None:
    write_file(
        tmp_path,
        "horovod/common/basics.py",
        "class HorovodBasics:\n    def local_rank(self):\n        return 3\n",
    )
    write_file(tmp_path, "horovod/__init__.py", "")
    write_file(tmp_path, "horovod/common/__init__.py", "")
    write_file(tmp_path, "program/beside.py", "value = 7\n")
    program = write_file(
        tmp_path, "program/run.py",
        "import sys, beside\nfrom horovod.common.basics import HorovodBasics\n"
        "print(HorovodBasics().local_rank(), beside.value, sys.argv[1:], __name__)\n",
    )  # fmt: skip
    path = REPOSITORY / "hpcbert" / "workloads" / "own_device.py"
    result = subprocess.run(
        [sys.executable, str(path), str(program), "--a"], capture_output=True, text=True,
        check=True, env={"PYTHONPATH": str(tmp_path), "HPCBERT_DEVICE": "0"}, timeout=CEILING,
    )  # fmt: skip
    assert result.stdout == "0 7 ['--a'] __main__\n"
