from __future__ import annotations

import math
import threading
from collections import Counter

import pytest

from hpcbert.prepare.data_making import DataPlan, make
from hpcbert.prepare.data_samples import StreamSettings, make_synthetic
from tests.kit.cases import cases
from tests.kit.waiting import until

torch = pytest.importorskip("torch", reason="the reference workload needs PyTorch")
bert_data = pytest.importorskip("hpcbert.workloads.bert_data")
bert_ranks = pytest.importorskip("hpcbert.workloads.bert_ranks")
bert_settings = pytest.importorskip("hpcbert.workloads.bert_settings")
workload = pytest.importorskip("hpcbert.workloads.bert_pretrain")

CPU = torch.device("cpu")


def pile(parts):
    return [torch.cat(tensors) for tensors in zip(*parts, strict=True)]


def take(source, count):
    return [next(source).batch for _ in range(count)]


def test_two_ranks_see_together_what_one_rank_sees_with_the_doubled_batch(settings):
    half, double = settings("--batch-size=5"), settings("--batch-size=10")
    single = bert_data.synthetic_source(double, bert_ranks.Ranks(), CPU)
    first, second = (bert_data.synthetic_source(half, bert_ranks.Ranks(r, 2), CPU) for r in (0, 1))
    for _ in range(3):
        together = pile([*take(first, 1), *take(second, 1)])
        for expected, actual in zip(*take(single, 1), together, strict=True):
            assert torch.equal(expected, actual)


def test_accumulated_micro_batches_are_the_larger_batch(settings):
    small = bert_data.synthetic_source(settings("--accumulation=3"), bert_ranks.Ranks(), CPU)
    large = bert_data.synthetic_source(settings("--batch-size=12"), bert_ranks.Ranks(), CPU)
    for expected, actual in zip(*take(large, 1), pile(take(small, 3)), strict=True):
        assert torch.equal(expected, actual)


def test_synthetic_batches_repeat_after_the_pool(settings):
    words = ("--synthetic-batches=2", "--seed=1")
    source = bert_data.synthetic_source(settings(*words), bert_ranks.Ranks(), CPU)
    first, second, third = take(source, 3)
    other = bert_data.synthesize(torch.arange(4), settings("--seed=2"))
    assert not torch.equal(first.input_ids, other.input_ids)
    assert torch.equal(first.input_ids, third.input_ids)
    assert not torch.equal(first.input_ids, second.input_ids)


@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_synthetic_data_have_the_shape_and_statistics_of_bert(seed):
    chosen = bert_settings.parse_settings([f"--seed={seed}"])
    batch = bert_data.synthesize(torch.arange(4000), chosen)
    lengths = batch.attention_mask.sum(dim=1)
    assert float((lengths == 128).float().mean()) == pytest.approx(0.9, abs=0.02)
    assert int(lengths.min()) >= 5
    assert torch.all(batch.input_ids[:, 0] == bert_data.CLS)
    # The second [SEP] is the last token, and the first one ends segment 0.
    last = (lengths - 1).unsqueeze(1)
    assert torch.all(batch.input_ids.gather(1, last) == bert_data.SEP)
    starts = (1 - batch.segment_ids).masked_fill(~batch.attention_mask, 0).sum(dim=1, keepdim=True)
    assert torch.all(batch.input_ids.gather(1, starts - 1) == bert_data.SEP)
    assert torch.all((batch.input_ids == 0) == ~batch.attention_mask)
    assert int(batch.input_ids.max()) < 30522

    weights = batch.masked_weights.bool()
    assert torch.equal(weights.sum(1), (lengths * 0.15).round().clamp(1, 20).long())
    assert not batch.masked_positions[~weights].any()
    assert all(len(set(row[:5].tolist())) == 5 for row in batch.masked_positions[lengths == 128])
    now = batch.input_ids.gather(1, batch.masked_positions)[weights]
    before = batch.masked_ids[weights]
    assert int(before.min()) >= bert_settings.FIRST_WORD
    fates = Counter(
        "mask" if new == bert_data.MASK else "kept" if new == old else "other"
        for new, old in zip(now.tolist(), before.tolist(), strict=True)
    )
    assert fates["mask"] / len(now) == pytest.approx(0.8, abs=0.01)
    assert fates["other"] / len(now) == pytest.approx(0.1, abs=0.01)
    assert float(batch.next_sentence_labels.float().mean()) == pytest.approx(0.5, abs=0.03)
    commonest, count = Counter(before.tolist()).most_common(1)[0]
    assert commonest == bert_settings.FIRST_WORD
    assert 0.04 < count / len(before) < 0.1


@pytest.mark.parametrize("fill", ["full", "wiki", "0.25", "0.9"])
def test_fill_sets_the_mean_share_of_real_tokens(fill):
    chosen = bert_settings.parse_settings([f"--fill={fill}"])
    lengths = bert_data.synthesize(torch.arange(4000), chosen).attention_mask.sum(dim=1)
    share = bert_settings.FILLS.get(fill) or float(fill)
    assert float(lengths.double().mean()) == pytest.approx(share * 128, abs=1)
    assert 5 <= int(lengths.min()) <= int(lengths.max()) <= 128
    assert (int(lengths.min()) == 128) == (fill == "full")


# --- HDF5 shards ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "size", "expected"),
    [
        (1, 1, [[(0, 0, 1)]]),
        (1, 3, [[(0, 0, 3)], [(0, 1, 3)], [(0, 2, 3)]]),
        (2, 3, [[(0, 0, 2)], [(1, 0, 1)], [(0, 1, 2)]]),
        (3, 2, [[(0, 0, 1), (2, 0, 1)], [(1, 0, 1)]]),
    ],
)
def test_shards_go_round_robin_and_are_shared_by_stride(count, size, expected):
    assigned = [
        bert_data.assign_shards(count, bert_ranks.Ranks(rank, size)) for rank in range(size)
    ]
    assert assigned == expected


def write_shard(path, samples, settings, **changes):
    h5py = pytest.importorskip("h5py")
    batch = bert_data.synthesize(torch.tensor(samples, dtype=torch.int64), settings)
    datasets = {
        "input_ids": batch.input_ids.int(),
        "input_mask": batch.attention_mask.char(),
        "segment_ids": batch.segment_ids.char(),
        "masked_lm_positions": batch.masked_positions.int(),
        "masked_lm_ids": batch.masked_ids.int(),
        "next_sentence_labels": batch.next_sentence_labels.char(),
        **changes,
    }
    with h5py.File(path, "w") as shard:
        for name, values in datasets.items():
            if values is not None:
                shard.create_dataset(name, data=values.numpy(), compression="gzip")


def test_shards_are_read_in_order_round_and_round(settings, tmp_path):
    chosen = settings(f"--data={tmp_path}", "--batch-size=4")
    write_shard(tmp_path / "b_training_1.hdf5", [3, 4], chosen)
    write_shard(tmp_path / "a_training_0.hdf5", [0, 1, 2], chosen)
    (tmp_path / "a_test_0.hdf5").write_text("of no concern")
    source = bert_data.open_source(chosen, bert_ranks.Ranks(), CPU)
    for samples in ([0, 1, 2, 3], [4, 0, 1, 2], [3, 4, 0, 1]):
        expected = bert_data.synthesize(torch.tensor(samples), chosen)
        for expected_part, actual in zip(expected, *take(source, 1), strict=True):
            assert torch.equal(expected_part, actual) or not actual.numel()  # all are full
            assert expected_part.dtype == actual.dtype


def test_ranks_that_share_a_shard_take_different_rows(settings, tmp_path, monkeypatch):
    chosen = settings(f"--data={tmp_path}", "--batch-size=2")
    write_shard(tmp_path / "training.h5", list(range(5)), chosen)
    everything = bert_data.synthesize(torch.arange(5), chosen).input_ids
    monkeypatch.setattr(bert_data, "BLOCK", 2)
    for rank in (0, 1):
        (shard,), _ = bert_data.find_shards(chosen, bert_ranks.Ranks(rank, 2))
        rows = torch.cat([block.input_ids for block in bert_data.read_shard(shard, chosen)])
        assert torch.equal(rows, everything[rank::2])


@pytest.mark.torch
def test_a_rank_without_padding_has_masks_where_another_has_padding(settings, tmp_path, two_ranks):
    write_shard(tmp_path / "training_0.h5", list(range(8)), settings("--fill=full"))
    write_shard(tmp_path / "training_1.h5", list(range(8)), settings("--fill=0.5"))
    code = """
import torch

attend = torch.nn.functional.scaled_dot_product_attention

def watch(query, key, value, mask, dropout):
    print("masked", mask is not None)
    return attend(query, key, value, mask, dropout)

torch.nn.functional.scaled_dot_product_attention = watch
workload.leave(workload.main())
"""
    for ended in two_ranks(f"--data={tmp_path}", "--iters=2", "--skip=1", code=code):
        assert ended.status == 0, ended.stderr
        assert "masked True" in ended.stdout
        assert "masked False" not in ended.stdout


def test_no_more_rows_are_needed_than_the_run_takes(settings, tmp_path):
    chosen = settings(f"--data={tmp_path}", "--batch-size=2", "--iters=2", "--skip=0")
    write_shard(tmp_path / "training_0.h5", list(range(9)), chosen)
    (tmp_path / "training_1.h5").write_text("not reached")
    taken = take(bert_data.open_source(chosen, bert_ranks.Ranks(), CPU), 5)
    # More iterations begin again, with rows that were checked.
    starts = [int(batch.input_ids[0, 1]) for batch in taken]
    assert starts == [*starts[:2], *starts[:2], starts[0]]
    assert starts[0] != starts[1]


@cases
def test_samples_are_packed_where_flash_attention_can_take_them(
    settings, monkeypatch, words, capability, expected
):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    chosen = settings("--unpad", *words.split())
    assert bert_data.has_flash(chosen, torch.device("cuda", 0)) == expected
    assert not bert_data.has_flash(chosen, CPU)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"segment_ids": None}, "segment_ids"),
        ({"input_ids": torch.zeros(4, 16).int()}, "input_ids is int32 .4, 16."),
        ({"masked_lm_ids": torch.zeros(4, 9, dtype=torch.int32)}, "masked_lm_ids"),
        ({"input_mask": torch.ones(3, 32, dtype=torch.int8)}, "input_mask is int8 .3, 32."),
        ({"input_mask": torch.ones(4, 32)}, "input_mask is float32"),
        ({"input_mask": torch.zeros(4, 32, dtype=torch.int8)}, "leaves out the first token"),
        ({"masked_lm_positions": torch.full((4, 5), -1)}, "masked_lm_positions has values"),
        ({"next_sentence_labels": torch.zeros(4, 1).int()}, "next_sentence_labels"),
        (
            {"input_ids": torch.zeros(4, 1024).int()},
            r"4, 32., not empty .--sequence-length, --vocab",
        ),
        ({"input_ids": torch.full((4, 32), 160)}, "outside 0 to 159 .--sequence-length, --vocab"),
        ({"input_ids": torch.full((4, 32), math.nan)}, "input_ids is float32"),
        ({"masked_lm_positions": torch.full((4, 5), 31)}, "a prediction in the padding"),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value),
)
def test_malformed_shards_are_refused(settings, tmp_path, changes, complaint):
    chosen = settings(f"--data={tmp_path}")
    written = settings("--fill=0.5")
    write_shard(tmp_path / "training_0.h5", list(range(4)), written, **changes)
    with pytest.raises(bert_settings.SetupError, match=f"training_0.h5.*{complaint}"):
        bert_data.open_source(chosen, bert_ranks.Ranks(), CPU)


@pytest.mark.parametrize("block", [7, 4096])
def test_data_that_hpcbert_made_are_read_alike(settings, tmp_path, monkeypatch, block):
    monkeypatch.setattr(bert_data, "BLOCK", block)
    stream = StreamSettings(32, 5, samples=50, fill="0.6")
    make(DataPlan(tmp_path, "hdf5", 3, stream))
    chosen = settings(f"--data={tmp_path / 'training'}", "--vocab=30522")
    source = bert_data.open_source(chosen, bert_ranks.Ranks(), CPU)
    batch = bert_data.Batch(*pile(take(source, 25)))  # twice around
    rows = torch.arange(100) % 50
    samples = make_synthetic(rows.numpy(), stream)
    for name, values in (
        ("input_ids", samples.input_ids),
        ("segment_ids", samples.segment_ids),
        ("attention_mask", samples.input_mask),
        ("masked_positions", samples.masked_lm_positions),
        ("masked_ids", samples.masked_lm_ids),
        ("masked_weights", samples.masked_lm_weights),
        ("next_sentence_labels", samples.next_sentence_labels),
    ):
        assert getattr(batch, name).tolist() == values.tolist(), name


def test_a_file_that_breaks_after_the_start_ends_the_run_with_a_sentence(settings, tmp_path, main):
    write_shard(tmp_path / "training_0.h5", list(range(8)), settings())
    options = (f"--data={tmp_path}", "--iters=30", "--skip=1")
    chosen = settings(*options)
    source = bert_data.open_source(chosen, bert_ranks.Ranks(), CPU)
    (tmp_path / "training_0.h5").write_text("changed")
    with pytest.raises(bert_settings.SetupError, match=r"training_0\.h5: not a shard"):
        take(source, 30)


def test_batches_are_read_pinned_and_sent_while_the_device_computes(settings, monkeypatch):
    calls = []

    def pin(tensor):
        calls.append("pin")
        return tensor

    def move(tensor, device, *, non_blocking):
        calls.append(f"{device} {non_blocking}")
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", move)
    chosen = settings()
    batch = bert_data.synthesize(torch.arange(4), chosen)
    read = []

    def batches():
        while True:
            read.append(threading.current_thread().name)
            yield batch

    form = bert_data.Form(is_full=False, unpads=False)
    next(bert_data.prefetch(batches(), form, chosen, torch.device("cuda", 0)))
    ahead = bert_data.PREFETCHED // 4
    until(lambda: calls.count("pin") == 8 * (ahead + 1), lambda: str(len(read)))
    assert set(read) == {"data_0"}
    assert (len(read), calls.count("cuda:0 True")) == (ahead + 1, 8)


@pytest.mark.parametrize(
    ("rows", "complaint"), [((), "not empty"), ((0, 1, 2), "3 rows do not fill a batch of 4")]
)
def test_too_few_rows_are_refused(settings, tmp_path, rows, complaint):
    chosen = settings(f"--data={tmp_path}")
    write_shard(tmp_path / "training_0.h5", list(rows), chosen)
    with pytest.raises(bert_settings.SetupError, match=complaint):
        bert_data.open_source(chosen, bert_ranks.Ranks(), CPU)


@pytest.mark.parametrize("group", [False, True], ids=["text", "a group in place of a dataset"])
def test_a_file_of_another_kind_is_refused(settings, tmp_path, group):
    h5py = pytest.importorskip("h5py")
    if group:
        with h5py.File(tmp_path / "training.hdf5", "w") as shard:
            shard.create_group("input_ids")
            shard.create_group("masked_lm_positions")
    else:
        (tmp_path / "training.hdf5").write_text("plain text")
    with pytest.raises(bert_settings.SetupError, match=r"training\.hdf5: not a shard"):
        bert_data.open_source(settings(f"--data={tmp_path}"), bert_ranks.Ranks(), CPU)


def test_a_directory_without_shards_is_refused(settings, tmp_path):
    with pytest.raises(bert_settings.SetupError, match="no file has 'training' in its name"):
        bert_data.open_source(settings(f"--data={tmp_path}"), bert_ranks.Ranks(), CPU)
    with pytest.raises(bert_settings.SetupError, match="nowhere: No such file"):
        bert_data.open_source(settings(f"--data={tmp_path}/nowhere"), bert_ranks.Ranks(), CPU)


@pytest.mark.torch
def test_shards_train_without_their_padding(settings, tmp_path, main):
    write_shard(tmp_path / "training.h5", list(range(8)), settings("--fill=0.5"))
    options = (f"--data={tmp_path}", "--iters=3", "--skip=1", "--dropout=0")
    padded, packed = main(*options), main(*options, "--unpad")
    assert packed.status == 0
    assert str(tmp_path)[-200:] in padded.stdout.splitlines()[0]
    first, second = (
        [line.split(" samples/s")[0] for line in ended.stdout.splitlines()[1:4]]
        for ended in (padded, packed)
    )
    assert first == second


@pytest.mark.torch
def test_every_rank_is_refused_where_one_has_too_few_rows(settings, tmp_path, two_ranks):
    write_shard(tmp_path / "training.h5", list(range(7)), settings())
    first, second = two_ranks(f"--data={tmp_path}")
    assert (first.status, second.status) == (2, 2)
    assert "1 other rank(s) cannot use their data" in first.stderr
    assert "3 rows do not fill a batch of 4" in second.stderr
