from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the reference workload needs PyTorch")
workload = pytest.importorskip("hpcbert.workloads.bert_pretrain")

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
MPIRUN = {
    "PMIX_RANK": "5",
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "6",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
}
STEP = {
    "SLURM_JOB_ID": "12",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "9",
    "SLURM_NTASKS": "16",
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_LOCALID": "1",
}
BATCH_SCRIPT = {
    "SLURM_JOB_ID": "12",
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "16",
    "SLURM_LOCALID": "0",
}


def without(environment, *names):
    return {name: value for name, value in environment.items() if name not in names}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        pytest.param({}, workload.Ranks(), id="alone"),
        pytest.param(TORCHRUN, workload.Ranks(3, 8, 1, "torchrun"), id="torchrun"),
        pytest.param(MPIRUN, workload.Ranks(5, 6, 2, "mpirun"), id="mpirun"),
        pytest.param(STEP, workload.Ranks(9, 16, 1, "slurm"), id="slurm"),
        pytest.param(
            without(STEP, "SLURM_STEP_NUM_TASKS"), workload.Ranks(9, 16, 1, "slurm"), id="old-slurm"
        ),
        pytest.param(BATCH_SCRIPT, workload.Ranks(), id="batch-script"),
        pytest.param(
            {**BATCH_SCRIPT, **TORCHRUN}, workload.Ranks(3, 8, 1, "torchrun"), id="torchrun-in-job"
        ),
        pytest.param(
            {**STEP, **TORCHRUN}, workload.Ranks(3, 8, 1, "torchrun"), id="torchrun-in-step"
        ),
        pytest.param(
            {**STEP, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", **MPIRUN},
            workload.Ranks(5, 6, 2, "mpirun"),
            id="mpirun-daemons-are-a-step",
        ),
        pytest.param(
            without(MPIRUN, "OMPI_COMM_WORLD_RANK"), workload.Ranks(5, 6, 2, "mpirun"), id="pmix"
        ),
        pytest.param(
            {**STEP, "PMIX_RANK": "9"}, workload.Ranks(9, 16, 1, "slurm"), id="srun-mpi-pmix"
        ),
        pytest.param(
            {**STEP, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_LOCALID": "0"},
            workload.Ranks(0, 1, 0, "slurm"),
            id="single-task-step-of-a-larger-allocation",
        ),
    ],
)
def test_rank_detection(environment, expected):
    assert workload.detect_ranks(environment) == expected


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        (without(TORCHRUN, "WORLD_SIZE"), "no WORLD_SIZE"),
        (without(TORCHRUN, "RANK"), "no RANK"),
        (without(TORCHRUN, "LOCAL_RANK"), "no LOCAL_RANK"),
        ({**STEP, "WORLD_SIZE": "16"}, "no RANK"),
        ({**TORCHRUN, "RANK": "8"}, "rank=8, size=8"),
        ({**TORCHRUN, "RANK": "-1"}, "RANK='-1' is not a number"),
        ({**TORCHRUN, "RANK": ""}, "RANK='' is not a number"),
        (without(MPIRUN, "OMPI_COMM_WORLD_SIZE"), "no OMPI_COMM_WORLD_SIZE"),
        (without(MPIRUN, "OMPI_COMM_WORLD_LOCAL_RANK"), "no OMPI_COMM_WORLD_LOCAL_RANK"),
        ({**MPIRUN, "PMIX_RANK": "4"}, "PMIX_RANK=4 contradicts rank 5 of mpirun"),
        (without(STEP, "SLURM_PROCID"), "no SLURM_PROCID"),
        (without(STEP, "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"), "no SLURM_STEP_NUM_TASKS or SLURM"),
        (without(STEP, "SLURM_LOCALID"), "no SLURM_LOCALID"),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "4"}, "contradict each other"),
        ({**STEP, "PMIX_RANK": "8"}, "PMIX_RANK=8 contradicts rank 9 of slurm"),
        ({"PMIX_RANK": "0"}, "PMIX_RANK is set, but neither"),
        ({**BATCH_SCRIPT, "PMIX_RANK": "0"}, "PMIX_RANK is set, but neither"),
    ],
)
def test_incomplete_or_contradictory_variables_are_refused(environment, complaint):
    with pytest.raises(workload.SetupError, match=complaint):
        workload.detect_ranks(environment)


def see_gpus(monkeypatch, count, capability=(9, 0)):
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    return chosen


@pytest.mark.parametrize(
    ("name", "visible", "local_rank", "expected"),
    [
        ("auto", 0, 0, "cpu"),
        ("cpu", 8, 0, "cpu"),
        ("auto", 8, 5, "cuda:5"),
        ("cuda", 1, 0, "cuda:0"),
        ("cuda", 1, 7, "cuda:0"),
    ],
)
def test_device_follows_the_local_rank(monkeypatch, name, visible, local_rank, expected):
    chosen = see_gpus(monkeypatch, visible)
    device = workload.choose_device(name, workload.Ranks(local_rank, 8, local_rank))
    assert device == torch.device(expected)
    assert chosen == ([] if device.type == "cpu" else [device.index])


@pytest.mark.parametrize(("visible", "complaint"), [(0, "sees no GPU"), (4, "only 4 are visible")])
def test_a_rank_without_gpu_is_refused(monkeypatch, visible, complaint):
    see_gpus(monkeypatch, visible)
    with pytest.raises(workload.SetupError, match=complaint):
        workload.choose_device("cuda", workload.Ranks(4, 8, 4))


@pytest.mark.parametrize(
    ("precision", "device", "capability", "complaint"),
    [
        ("tf32", "cpu", (0, 0), "not of CPUs"),
        ("tf32", "cuda", (7, 0), r"compute capability 8\.0"),
        ("bf16", "cuda", (7, 5), r"compute capability 8\.0"),
        ("tf32", "cuda", (8, 0), "NVIDIA_TF32_OVERRIDE=0"),
    ],
)
def test_a_precision_that_would_be_another_one_is_refused(
    monkeypatch, precision, device, capability, complaint
):
    see_gpus(monkeypatch, 1, capability)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    with pytest.raises(workload.SetupError, match=complaint):
        workload.check_precision(precision, torch.device(device))


def test_on_amd_s_gpus_the_capability_is_none_of_nvidia_s(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.3.42134")
    see_gpus(monkeypatch, 1, (7, 5))
    for precision in {*workload.PRECISIONS} - {"tf32"}:
        workload.check_precision(precision, torch.device("cuda"))
    with pytest.raises(workload.SetupError, match="AMD's GPUs"):
        workload.check_precision("tf32", torch.device("cuda"))


def test_on_amd_s_gpus_ranks_meet_by_rccl_which_is_called_nccl(monkeypatch, settings):
    monkeypatch.setattr(torch.version, "hip", "6.3.42134")
    see_gpus(monkeypatch, 1, (9, 4))
    joined = []
    monkeypatch.setattr(
        workload.dist, "init_process_group", lambda *words, **_: joined.append(words)
    )
    ranks = workload.Ranks(1, 2, 1, "slurm")
    device = workload.choose_device("auto", ranks)
    assert str(device) == "cuda:0"
    variables = {"MASTER_ADDR": "n1", "MASTER_PORT": "1"}
    assert workload.join_ranks(settings(), ranks, device, variables) == "nccl"
    assert joined == [("nccl",)]


def test_real_precisions_pass(monkeypatch):
    see_gpus(monkeypatch, 1, (8, 0))
    for precision in workload.PRECISIONS:
        workload.check_precision(precision, torch.device("cuda"))


def test_several_ranks_need_the_address_of_rank_0(settings):
    ranks = workload.Ranks(0, 2, 0, "slurm")
    with pytest.raises(workload.SetupError, match="set MASTER_ADDR and MASTER_PORT"):
        workload.join_ranks(settings(), ranks, torch.device("cpu"), {"MASTER_ADDR": "node1"})


def test_one_rank_needs_no_address(settings):
    alone = workload.join_ranks(settings(), workload.Ranks(), torch.device("cpu"), {})
    assert alone == "none"


def test_a_batch_script_is_told_that_it_is_one_rank(monkeypatch, main):
    for name, value in BATCH_SCRIPT.items():
        monkeypatch.setenv(name, value)
    ended = main("--data=/nonexistent")
    assert ended.status == 2
    assert "not inside a Slurm step" in ended.stderr


def test_an_all_reduce_alone_is_measured_in_nccl_tests_words(two_ranks):
    first, second = two_ranks("--all-reduce=1", "--iters=4", "--skip=1")
    assert (first.status, second.status) == (0, 0), first.stderr + second.stderr
    words, _, rate = first.stdout.strip().rpartition(": ")
    assert words.rstrip() == "# Avg bus bandwidth"
    assert float(rate) > 0
    assert second.stdout == ""
