from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.kit.cases import cases

torch = pytest.importorskip("torch", reason="the reference workload needs PyTorch")
bert_ranks = pytest.importorskip("hpcbert.workloads.bert_ranks")
bert_settings = pytest.importorskip("hpcbert.workloads.bert_settings")

RANK = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
# What Slurm sets in a step, and in the batch script of the same job.
BATCH_SCRIPT = {"SLURM_JOB_ID": "12", "SLURM_PROCID": "0", "SLURM_NTASKS": "16"}
STEP = {**BATCH_SCRIPT, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "16", "SLURM_LOCALID": "0"}


def without(environment, *names):
    return {name: value for name, value in environment.items() if name not in names}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        pytest.param({}, bert_ranks.Ranks(), id="alone"),
        pytest.param(RANK, bert_ranks.Ranks(3, 8, 1), id="torchrun"),
        pytest.param({**STEP, **RANK}, bert_ranks.Ranks(3, 8, 1), id="run.sh"),
        pytest.param(BATCH_SCRIPT, bert_ranks.Ranks(), id="batch-script"),
        pytest.param({**STEP, "SLURM_STEP_NUM_TASKS": "1"}, bert_ranks.Ranks(), id="one-task"),
    ],
)
def test_rank_detection(environment, expected):
    assert bert_ranks.detect_ranks(environment) == expected


@cases
def test_ranks_that_would_train_alone_or_twice_are_refused(environment, complaint):
    with pytest.raises(bert_settings.SetupError, match=complaint):
        bert_ranks.detect_ranks(environment)


def see_gpus(monkeypatch, count, capability=(9, 0)):
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    return chosen


@cases
def test_device_follows_the_local_rank(monkeypatch, name, visible, local_rank, expected):
    chosen = see_gpus(monkeypatch, visible)
    device = bert_ranks.choose_device(name, bert_ranks.Ranks(local_rank, 8, local_rank))
    assert device == torch.device(expected)
    assert chosen == ([] if device.type == "cpu" else [device.index])


@pytest.mark.parametrize(
    ("visible", "complaint"), [(0, "no GPU|without GPUs"), (4, "only 4 are visible")]
)
def test_a_rank_without_gpu_is_refused(monkeypatch, visible, complaint):
    see_gpus(monkeypatch, visible)
    with pytest.raises(bert_settings.SetupError, match=complaint):
        bert_ranks.choose_device("cuda", bert_ranks.Ranks(4, 8, 4))


@cases
def test_a_precision_that_would_be_another_one_is_refused(
    monkeypatch, precision, device, capability, complaint
):
    see_gpus(monkeypatch, 1, capability)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    with pytest.raises(bert_settings.SetupError, match=complaint):
        bert_ranks.check_precision(precision, torch.device(device))


def test_on_amd_s_gpus_the_capability_is_none_of_nvidia_s(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.3.42134")
    see_gpus(monkeypatch, 1, (7, 5))
    for precision in {*bert_settings.PRECISIONS} - {"tf32", "fp8"}:
        bert_ranks.check_precision(precision, torch.device("cuda"))
    with pytest.raises(bert_settings.SetupError, match="AMD's GPUs"):
        bert_ranks.check_precision("tf32", torch.device("cuda"))


def test_on_amd_s_gpus_ranks_meet_by_rccl_which_is_called_nccl(monkeypatch, settings):
    monkeypatch.setattr(torch.version, "hip", "6.3.42134")
    see_gpus(monkeypatch, 1, (9, 4))
    joined = []
    monkeypatch.setattr(
        bert_ranks.dist,
        "init_process_group",
        lambda *words, device_id, **_: joined.append((*words, device_id)),
    )
    ranks = bert_ranks.Ranks(1, 2, 1)
    device = bert_ranks.choose_device("auto", ranks)
    assert str(device) == "cuda:0"
    variables = {"MASTER_ADDR": "n1", "MASTER_PORT": "1"}
    assert bert_ranks.join_ranks(settings(), ranks, device, variables) == "nccl"
    assert joined == [("nccl", device)]


def test_products_in_fp8_that_return_more_than_the_product_are_refused(monkeypatch):
    see_gpus(monkeypatch, 1, (9, 0))
    of_2_4 = SimpleNamespace(_schema=SimpleNamespace(returns=("out", "amax")))
    monkeypatch.setattr(torch.ops.aten, "_scaled_mm", SimpleNamespace(default=of_2_4))
    with pytest.raises(bert_settings.SetupError, match=r"PyTorch 2\.5 or newer"):
        bert_ranks.check_precision("fp8", torch.device("cuda"))


def test_real_precisions_pass(monkeypatch):
    see_gpus(monkeypatch, 1, (9, 0))
    for precision in bert_settings.PRECISIONS:
        bert_ranks.check_precision(precision, torch.device("cuda"))


def test_several_ranks_need_the_address_of_rank_0(settings):
    ranks = bert_ranks.Ranks(0, 2, 0)
    with pytest.raises(bert_settings.SetupError, match="set MASTER_ADDR and MASTER_PORT"):
        bert_ranks.join_ranks(settings(), ranks, torch.device("cpu"), {"MASTER_ADDR": "node1"})


def test_one_rank_needs_no_address(settings):
    alone = bert_ranks.join_ranks(settings(), bert_ranks.Ranks(), torch.device("cpu"), {})
    assert alone == "none"


def test_an_all_reduce_alone_is_measured_in_nccl_tests_words(two_ranks):
    first, second = two_ranks("--all-reduce=1", "--iters=4", "--skip=1")
    assert (first.status, second.status) == (0, 0), first.stderr + second.stderr
    words, _, rate = first.stdout.strip().rpartition(": ")
    assert words.rstrip() == "# Avg bus bandwidth"
    assert float(rate) > 0
    assert second.stdout == ""
