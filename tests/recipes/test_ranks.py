"""The script of each recipe's ranks, run with programs that only record their calls."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpcbert.logs.grammar import STARTED
from hpcbert.logs.setting import Setting
from hpcbert.model import Shape
from tests.kit.cases import cases, read_constant
from tests.kit.logs import write_file
from tests.kit.needs import free_port
from tests.kit.paths import REPOSITORY, TEMPLATES
from tests.kit.recipes import NAMES, Case, Reader, Run, World, core, grammar, load, presets, setting
from tests.kit.waiting import CEILING
from tests.recipes.test_flags import split_programs

PER_GPU = [name for name in NAMES if load(name).launch == "per-gpu"]
PER_NODE = [name for name in NAMES if load(name).launch == "per-node"]
# These read the variable or take the option; of the others each is told otherwise, or not at all.
BY_LOCAL_RANK = read_constant(__file__, "BY_LOCAL_RANK")
BY_HOROVOD = ("mxnet", "ngc-tf1")
UNTOLD = ("mindspore", "mindspore-models")
ALL = ",".join(map(str, range(8)))
WARMED = [name for name in NAMES if "num_warmup" in (TEMPLATES / name / "run.sh.j2").read_text()]
LOOPING = [name for name in NAMES if any("loops forever" in text for text in load(name).problems)]
# What gloo.py takes of Horovod 0.28.1, horovod/runner/http/http_server.py; and a program of which
# rank 0 lives until the other has been served, as it does under Horovod.
HOROVOD, PROGRAM = read_constant(__file__, "HOROVOD"), read_constant(__file__, "PROGRAM")


def test_a_rank_fails_with_its_program_and_has_no_number_without(name, tmp_path):
    world, read = World(name, tmp_path), Reader(name, tmp_path).read
    cases = {case.preset.name: case for case in core(load(name))}.values()
    scripts = [world.render(case) for case in cases]
    for script in scripts:
        failed = world.run(script, code=7, prints=TEMPLATES / name / "sample.log")
        assert failed.exit != 0, str(script.case)
        assert not list((tmp_path / "tmp").iterdir())
    silent = world.run(scripts[-1])
    for rule in grammar(name).rules if not silent.exit else ():
        reading = read(silent.output.encode(), rule.name)
        assert reading.throughput is None
        assert reading.reasons or reading.missing
    for folder in ("source", "data"):
        shutil.rmtree(tmp_path / folder)
    bare = world.run(scripts[-1])
    assert bare.exit or read(bare.output.encode(), settings=setting(name)).throughput is None


def test_rank_0_states_what_the_ranks_were_started_with(name, tmp_path):
    """Before its program prints anything, as the grammar reads it; not what the request says."""
    world = World(name, tmp_path)
    # Slurm started other nodes and ranks than were requested.
    ranks = {"HPCBERT_NODES": "3", "SLURM_NTASKS": "6"}
    scripts = [world.render(case) for case in core(load(name))[::5]]
    for script in scripts:
        run, point = world.run(script, env=ranks), script.point
        assert run.output.startswith(STARTED)
        facts = dict(Reader(name, tmp_path).read(run.output.encode(), settings=Setting()).facts)
        width = point.shape.gpus_per_node // load(name).tasks_per_node(point.shape)
        assert (facts["nodes"], facts["gpus"]) == (3, 6 * width)
        assert facts["batch_size_per_device"] == point.batch_size_per_device
        assert (facts["accumulation"], facts["precision"]) == (point.accumulation, point.precision)
        assert facts.get("model") == (point.model if "bert-" in point.model else None)
    assert STARTED not in world.run(scripts[0], env={**ranks, "SLURM_PROCID": "1"}).output


@pytest.mark.parametrize("recipe", WARMED)
def test_warm_up_is_never_as_long_as_the_training(recipe, tmp_path):
    """Adam of NVIDIA's TensorFlow 1 program then divides by zero."""
    world = World(recipe, tmp_path)
    for iters in (120, 10000):
        script = world.render(Case(Shape(4, 8), *presets(load(recipe))[0], iters=iters))
        (call,) = world.run(script, prints=TEMPLATES / recipe / "sample.log").calls
        words = split_programs(call)[-1][1]
        options = dict(word.split("=", 1) for word in words if "=" in word)
        assert options["--num_warmup_steps"] != options["--num_train_steps"]


@pytest.mark.parametrize("recipe", LOOPING)
def test_a_program_that_would_loop_for_ever_on_one_file_is_not_started(recipe, tmp_path):
    world = World(recipe, tmp_path)
    script = world.render(core(load(recipe))[0])
    for path in (tmp_path / "data").iterdir():
        if path.name not in ("training_0.hdf5", "part-0", "vocab.txt") and path.suffix != ".pt":
            path.unlink()
    assert world.run(script).refused


# --- Which GPU a rank takes, whatever of its node's it sees ---------------------------------------


def run_rank(
    recipe: str, tmp_path: Path, rank: int, shape: str = "2n8g", device: str = "gpu", **lists: str
) -> Run:
    """Run a rank that sees GPUs by lists: CUDA="0,1", and so on."""
    chosen = load(recipe).for_device("cpu") if device == "cpu" else load(recipe)
    world, case = World(recipe, tmp_path), Case(Shape.parse(shape), *presets(chosen)[0])
    ranks = dict.fromkeys(("SLURM_LOCALID", "SLURM_PROCID", "PMIX_RANK"), str(rank))
    visible = {f"{maker}_VISIBLE_DEVICES": lists.get(maker) for maker in ("CUDA", "ROCR", "HIP")}
    return world.run(world.render(case._replace(device=device)), env={**ranks, **visible})


@cases
def test_a_rank_takes_a_gpu_among_those_that_it_sees(rank, device, lists, hip, tmp_path):
    """`hip`: the list that HIP has to find."""
    environment = run_rank("pytorch", tmp_path, rank, **lists).environment
    assert environment["LOCAL_RANK"] == environment["HPCBERT_DEVICE"] == str(device)
    assert environment.get("HIP_VISIBLE_DEVICES") == hip


@pytest.mark.parametrize("recipe", PER_GPU)
@pytest.mark.parametrize("visible", [ALL, "3"], ids=["all of the node's", "its own"])
def test_every_recipe_s_program_is_told(recipe, visible, tmp_path):
    is_renumbered, device = visible == "3", "0" if visible == "3" else "3"
    result = run_rank(recipe, tmp_path, 3, CUDA=visible)
    assert {*BY_LOCAL_RANK, *BY_HOROVOD, *UNTOLD, "nccl-tests"} == set(PER_GPU)
    if is_renumbered and recipe in UNTOLD:
        assert result.refused
        assert "--gpus-per-task" in result.output
        return
    assert result.exit == 0, result.output
    words = result.calls[-1]
    if recipe in BY_LOCAL_RANK:
        assert result.environment["LOCAL_RANK"] == device
    elif recipe in BY_HOROVOD:
        assert (Path(words[1]).name == "own_device.py") == is_renumbered
        assert result.environment["HPCBERT_DEVICE"] == device
    elif recipe not in UNTOLD:
        assert result.environment.get("NCCL_TESTS_DEVICE") == (device if is_renumbered else None)
    rank_words = [word for word in words if word.startswith("--local_rank")]
    assert rank_words in ([], [f"--local_rank={device}"])


@pytest.mark.parametrize("recipe", PER_NODE)
@pytest.mark.parametrize(("visible", "refused"), [("0", True), (ALL, False)])
def test_a_process_that_drives_a_node_has_to_see_all_of_it(recipe, visible, refused, tmp_path):
    result = run_rank(recipe, tmp_path, 0, "1n8g", CUDA=visible)
    assert (result.refused, "--gpu-bind" in result.output) == (refused, refused)


@pytest.mark.parametrize(
    ("rank", "visible", "shape", "warned"),
    [
        *((0, "0", "2n8g", True), (1, "1", "2n8g", False)),
        *((0, ALL, "2n8g", False), (0, "0", "1n1g", False)),
    ],
)
def test_rank_0_warns_of_ranks_that_see_one_gpu_each(rank, visible, shape, warned, tmp_path):
    result = run_rank("pytorch", tmp_path, rank, shape, CUDA=visible)
    assert ("NCCL may have to copy" in result.output) == warned


@pytest.mark.parametrize("recipe", ["pytorch", "deepspeed", "mxnet", "oneflow-models"])
def test_on_cpus_the_rank_on_the_node_is_the_device(recipe, tmp_path):
    result = run_rank(recipe, tmp_path, 3, "1n8g", "cpu", CUDA="3")
    local = "HOROVOD_LOCAL_RANK" if recipe == "mxnet" else "LOCAL_RANK"
    assert result.environment[local] == "3"


# --- Programs that start a rank's program ---------------------------------------------------------


def test_a_horovod_program_is_answered_with_its_own_gpu(tmp_path):
    basics = "class HorovodBasics:\n    def local_rank(self):\n        return 3\n"
    program = "import sys, beside\nfrom horovod.common.basics import HorovodBasics\n"
    program += "print(HorovodBasics().local_rank(), beside.value, sys.argv[1:], __name__)\n"
    for file, text in {
        "horovod/__init__.py": "", "horovod/common/__init__.py": "",
        "horovod/common/basics.py": basics,
        "program/beside.py": "value = 7\n", "program/run.py": program,
    }.items():  # fmt: skip
        write_file(tmp_path, file, text)
    starter = REPOSITORY / "hpcbert" / "workloads" / "own_device.py"
    result = subprocess.run(
        [sys.executable, str(starter), str(tmp_path / "program/run.py"), "--a"], capture_output=True, text=True,
        check=True, env={"PYTHONPATH": str(tmp_path), "HPCBERT_DEVICE": "0"}, timeout=CEILING,
    )  # fmt: skip
    assert result.stdout == "0 7 ['--a'] __main__\n"


def test_ranks_of_mxnet_find_each_other_by_the_store_of_rank_0(tmp_path):
    """Without horovodrun and without MPI; the program runs as itself, in its folder."""
    write_file(tmp_path, "lib/horovod/runner/http/http_server.py", HOROVOD)
    folder = write_file(tmp_path, "a program/train.py", PROGRAM).parent
    write_file(folder, "neighbour.py", "")
    argv = [sys.executable, str(TEMPLATES / "mxnet" / "gloo.py"), "train.py", "--gpus="]
    store = {"ADDR": "127.0.0.1", "PORT": str(free_port())}
    variables = {f"HOROVOD_GLOO_RENDEZVOUS_{key}": value for key, value in store.items()}
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "lib"), **variables}
    ranks = [
        subprocess.Popen(
            argv, env={**env, "HOROVOD_RANK": rank}, cwd=folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in ("1", "0")
    ]  # fmt: skip
    outputs = [rank.communicate(timeout=CEILING) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert (folder / "seen").read_text() == "200"
    assert [out for out, _ in outputs] == ["__main__ ['train.py', '--gpus=']\n"] * 2
