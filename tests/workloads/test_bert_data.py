"""Micro batches of the reference: synthetic samples, and shards of HDF5 files."""

import threading
from collections import Counter
from unittest.mock import Mock, call

import h5py
import pytest
import torch

from hpcbert.prepare.data_making import DataPlan, make
from hpcbert.prepare.data_samples import StreamSettings, make_synthetic
from hpcbert.workloads import bert_data, bert_settings
from hpcbert.workloads.bert_ranks import Ranks
from tests.kit.cases import cases
from tests.kit.waiting import until

CPU = torch.device("cpu")
# What NVIDIA's files call the fields of a batch; the others have the same names.
COLUMNS = {"attention_mask": "input_mask", "masked_positions": "masked_lm_positions"}
COLUMNS |= {"masked_ids": "masked_lm_ids", "masked_weights": "masked_lm_weights"}


def take(source, count):
    return [next(source).batch for _ in range(count)]


def test_synthetic_batches_differ_until_they_come_again_and_by_their_seed(settings):
    pool = settings("--synthetic-batches=2", "--seed=1")
    first, second, third = take(bert_data.synthetic_source(pool, Ranks(), CPU), 3)
    other = bert_data.synthesize(torch.arange(4), settings("--seed=2"))
    assert not torch.equal(first.input_ids, other.input_ids)
    assert torch.equal(first.input_ids, third.input_ids)
    assert not torch.equal(first.input_ids, second.input_ids)


@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_synthetic_data_have_the_shape_and_statistics_of_bert(seed):
    batch = bert_data.synthesize(
        torch.arange(4000), bert_settings.parse_settings([f"--seed={seed}"])
    )
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
    assert float((now == bert_data.MASK).float().mean()) == pytest.approx(0.8, abs=0.01)
    assert float((now == before).float().mean()) == pytest.approx(0.1, abs=0.01)
    assert float(batch.next_sentence_labels.float().mean()) == pytest.approx(0.5, abs=0.03)
    commonest, count = Counter(before.tolist()).most_common(1)[0]
    assert commonest == bert_settings.FIRST_WORD
    assert 0.04 < count / len(before) < 0.1

    for fill in ("full", "wiki", "0.25", "0.9"):
        chosen = bert_settings.parse_settings([f"--fill={fill}"])
        lengths = bert_data.synthesize(torch.arange(4000), chosen).attention_mask.sum(dim=1)
        share = bert_settings.FILLS.get(fill) or float(fill)
        assert float(lengths.double().mean()) == pytest.approx(share * 128, abs=1), fill
        assert 5 <= int(lengths.min()) <= int(lengths.max()) <= 128
        assert (int(lengths.min()) == 128) == (fill == "full")


def write_shard(path, samples, settings, **changes):
    batch = bert_data.synthesize(torch.tensor(samples, dtype=torch.int64), settings)
    columns = {COLUMNS.get(name, name): values.int() for name, values in batch._asdict().items()}
    with h5py.File(path, "w") as shard:
        for name, values in {**columns, **changes}.items():
            if values is not None:
                shard.create_dataset(name, data=values.numpy(), compression="gzip")


def test_shards_are_read_in_order_round_and_round_and_shared_by_stride(
    settings, tmp_path, monkeypatch
):
    for count, size, expected in (
        (1, 3, [[(0, 0, 3)], [(0, 1, 3)], [(0, 2, 3)]]),
        (2, 3, [[(0, 0, 2)], [(1, 0, 1)], [(0, 1, 2)]]),
        (3, 2, [[(0, 0, 1), (2, 0, 1)], [(1, 0, 1)]]),
    ):
        assert [bert_data.assign_shards(count, Ranks(r, size)) for r in range(size)] == expected
    chosen = settings(f"--data={tmp_path}", "--batch-size=4")
    write_shard(tmp_path / "b_training_1.hdf5", [3, 4], chosen)
    write_shard(tmp_path / "a_training_0.hdf5", [0, 1, 2], chosen)
    (tmp_path / "a_test_0.hdf5").write_text("of no concern")
    source = bert_data.open_source(chosen, Ranks(), CPU)
    for samples in ([0, 1, 2, 3], [4, 0, 1, 2], [3, 4, 0, 1]):
        batch = bert_data.synthesize(torch.tensor(samples), chosen)
        for part, actual in zip(batch, *take(source, 1), strict=True):
            assert torch.equal(part, actual) or not actual.numel()  # all are full
            assert part.dtype == actual.dtype
    (tmp_path / "b_training_1.hdf5").unlink()
    monkeypatch.setattr(bert_data, "BLOCK", 1)
    small = settings(f"--data={tmp_path}", "--batch-size=1")
    everything = bert_data.synthesize(torch.arange(3), chosen).input_ids
    for rank in (0, 1):
        (shard,), _ = bert_data.find_shards(small, Ranks(rank, 2))
        rows = torch.cat([block.input_ids for block in bert_data.read_shard(shard, chosen)])
        assert torch.equal(rows, everything[rank::2])


def test_no_more_rows_are_needed_than_the_run_takes_and_a_break_ends_it(settings, tmp_path):
    chosen = settings(f"--data={tmp_path}", "--batch-size=2", "--iters=2", "--skip=0")
    write_shard(tmp_path / "training_0.h5", list(range(9)), chosen)
    (tmp_path / "training_1.h5").write_text("not reached")
    batches = take(bert_data.open_source(chosen, Ranks(), CPU), 5)
    # More iterations begin again, with rows that were checked.
    starts = [int(batch.input_ids[0, 1]) for batch in batches]
    assert starts == [*starts[:2], *starts[:2], starts[0]]
    assert starts[0] != starts[1]
    source = bert_data.open_source(chosen, Ranks(), CPU)
    (tmp_path / "training_0.h5").write_text("changed")
    with pytest.raises(bert_settings.SetupError, match=r"training_0\.h5: not a shard"):
        take(source, 30)


@cases
def test_malformed_shards_are_refused(settings, tmp_path, *, name, shape, value, dtype, complaint):
    changed = torch.full(shape, value, dtype=getattr(torch, dtype)) if shape else None
    write_shard(tmp_path / "training_0.h5", range(4), settings("--fill=0.5"), **{name: changed})
    with pytest.raises(bert_settings.SetupError, match=f"training_0.h5.*{complaint}"):
        bert_data.open_source(settings(f"--data={tmp_path}"), Ranks(), CPU)


def test_what_holds_no_batch_is_refused(settings, tmp_path):
    def refusal():
        with pytest.raises(bert_settings.SetupError) as refused:
            bert_data.open_source(settings(f"--data={tmp_path}"), Ranks(), CPU)
        return str(refused.value)

    path = tmp_path / "training.hdf5"
    assert "no file has 'training' in its name" in refusal()
    path.write_text("plain text")
    assert "training.hdf5: not a shard" in refusal()
    with h5py.File(path, "w") as shard:  # groups in place of datasets
        shard.create_group("input_ids")
        shard.create_group("masked_lm_positions")
    assert "training.hdf5: not a shard" in refusal()
    write_shard(path, [], settings())
    assert "not empty" in refusal()
    write_shard(path, [0, 1, 2], settings())
    assert "3 rows do not fill a batch of 4" in refusal()
    write_shard(path, [0, 1, 2, 3], settings())
    bert_data.open_source(settings(f"--data={tmp_path}"), Ranks(), CPU)
    with pytest.raises(bert_settings.SetupError, match="nowhere: No such file"):
        bert_data.open_source(settings(f"--data={tmp_path}/nowhere"), Ranks(), CPU)


def test_data_that_hpcbert_made_are_read_alike(settings, tmp_path, monkeypatch):
    stream = StreamSettings(32, 5, samples=50, fill="0.6")
    make(DataPlan(tmp_path, "hdf5", 3, stream))
    chosen = settings(f"--data={tmp_path / 'training'}", "--vocab=30522")
    samples = make_synthetic((torch.arange(100) % 50).numpy(), stream)
    for block in (7, 4096):
        monkeypatch.setattr(bert_data, "BLOCK", block)
        source = bert_data.open_source(chosen, Ranks(), CPU)
        batches = take(source, 25)  # twice around
        for name in bert_data.Batch._fields:
            expected = getattr(samples, COLUMNS.get(name, name))
            actual = torch.cat([getattr(batch, name) for batch in batches])
            assert actual.tolist() == expected.tolist(), name


def test_batches_are_read_pinned_and_sent_while_the_device_computes(settings, monkeypatch):
    batch, read = bert_data.synthesize(torch.arange(4), settings()), []

    def batches():
        while True:
            read.append(threading.current_thread().name)
            yield batch

    pin, move = (Mock(return_value=batch.input_ids) for _ in range(2))
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", move)
    form = bert_data.Form(is_full=False, unpads=False)
    gpu, ahead = torch.device("cuda", 0), bert_data.PREFETCHED // 4
    next(bert_data.prefetch(batches(), form, settings(), gpu))
    until(lambda: pin.call_count == 8 * (ahead + 1), lambda: str(len(read)))
    assert read == ["data_0"] * (ahead + 1)
    assert move.call_args_list == [call(gpu, non_blocking=True)] * 8


@cases
def test_samples_are_packed_where_flash_attention_can_take_them(
    settings, monkeypatch, words, capability, expected
):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    chosen = settings("--unpad", *words.split())
    assert bert_data.has_flash(chosen, torch.device("cuda", 0)) == expected
    assert not bert_data.has_flash(chosen, CPU)


def test_a_rank_without_padding_has_masks_where_another_has_and_is_refused_with_it(
    settings, tmp_path, two_ranks
):
    for number, fill in enumerate(("full", "0.5")):
        write_shard(tmp_path / f"training_{number}.h5", list(range(8)), settings(f"--fill={fill}"))
    code = """
import torch
attend = torch.nn.functional.scaled_dot_product_attention
def watch(query, key, value, mask, dropout):
    print("masked", mask is not None)
    return attend(query, key, value, mask, dropout)
torch.nn.functional.scaled_dot_product_attention = watch
workload.leave(workload.main())
"""
    first, second = two_ranks(f"--data={tmp_path}", "--iters=2", "--skip=1", code=code)
    assert str(tmp_path)[-150:] in first.stdout
    for output in (first.stdout, second.stdout):
        assert "masked True" in output
        assert "masked False" not in output
    (tmp_path / "training_1.h5").unlink()
    write_shard(tmp_path / "training_0.h5", list(range(7)), settings())
    first, second = two_ranks(f"--data={tmp_path}", status=2)
    assert "1 other rank(s) cannot use their data" in first.stderr
    assert "3 rows do not fill a batch of 4" in second.stderr
