"""Which rank of how many a process is, its device, and what it can compute with."""

from types import SimpleNamespace

import pytest
import torch

from hpcbert.workloads import bert_ranks
from hpcbert.workloads.bert_ranks import Ranks
from hpcbert.workloads.bert_settings import PRECISIONS, SetupError
from tests.kit.cases import cases

GPU = torch.device("cuda")


@cases
def test_ranks_are_those_of_the_launcher(environment, expected):
    assert bert_ranks.detect_ranks(environment) == Ranks(*expected)


@cases
def test_ranks_that_would_train_alone_or_twice_are_refused(environment, complaint):
    with pytest.raises(SetupError, match=complaint):
        bert_ranks.detect_ranks(environment)


def see_gpus(monkeypatch, count, capability=(9, 0), hip=None):
    chosen: list[int] = []
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    return chosen


@cases
def test_device_follows_the_local_rank_and_one_without_a_gpu_is_refused(
    monkeypatch, name, visible, local_rank, expected
):
    chosen = see_gpus(monkeypatch, visible)
    device = bert_ranks.choose_device(name, Ranks(local_rank, 8, local_rank))
    assert device == torch.device(expected)
    assert chosen == ([] if device.type == "cpu" else [device.index])
    see_gpus(monkeypatch, 4)
    with pytest.raises(SetupError, match="only 4 are visible"):
        bert_ranks.choose_device("cuda", Ranks(4, 8, 4))


@cases
def test_a_precision_that_would_be_another_one_is_refused(
    monkeypatch, precision, device, capability, complaint
):
    see_gpus(monkeypatch, 1)
    for usual in PRECISIONS:
        bert_ranks.check_precision(usual, GPU)
    see_gpus(monkeypatch, 1, capability)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    with pytest.raises(SetupError, match=complaint):
        bert_ranks.check_precision(precision, torch.device(device))
    # Products of PyTorch 2.4 return more than the product.
    see_gpus(monkeypatch, 1)
    of_2_4 = SimpleNamespace(_schema=SimpleNamespace(returns=("out", "amax")))
    monkeypatch.setattr(torch.ops.aten, "_scaled_mm", SimpleNamespace(default=of_2_4))
    with pytest.raises(SetupError, match=r"PyTorch 2\.5 or newer"):
        bert_ranks.check_precision("fp8", GPU)


def test_on_amd_s_gpus_ranks_meet_by_rccl_and_the_capability_is_none_of_nvidia_s(
    monkeypatch, settings
):
    see_gpus(monkeypatch, 1, (7, 5), hip="6.3.42134")
    for precision in {*PRECISIONS} - {"tf32", "fp8"}:
        bert_ranks.check_precision(precision, GPU)
    with pytest.raises(SetupError, match="AMD's GPUs"):
        bert_ranks.check_precision("tf32", GPU)
    joined, device = [], bert_ranks.choose_device("auto", Ranks(1, 2, 1))

    def join(*words, device_id, **_):
        joined.append((*words, device_id))

    monkeypatch.setattr("torch.distributed.init_process_group", join)
    variables = {"MASTER_ADDR": "n1", "MASTER_PORT": "1"}
    assert bert_ranks.join_ranks(settings(), Ranks(1, 2, 1), device, variables) == "nccl"
    assert (joined, str(device)) == ([("nccl", device)], "cuda:0")


def test_several_ranks_need_the_address_of_rank_0(settings):
    cpu = torch.device("cpu")
    with pytest.raises(SetupError, match="set MASTER_ADDR and MASTER_PORT"):
        bert_ranks.join_ranks(settings(), Ranks(0, 2, 0), cpu, {"MASTER_ADDR": "node1"})
    assert bert_ranks.join_ranks(settings(), Ranks(), cpu, {}) == "none"
