"""The reference's model and optimizers, against a plain BERT in float64."""

import dataclasses
from typing import Any

import pytest
import torch

from hpcbert.workloads import bert_data, bert_model, bert_optimizers, bert_settings
from hpcbert.workloads.bert_ranks import Ranks
from tests.workloads import plain

CPU = torch.device("cpu")
SIZES = ("--dropout=0", "--layers=2", "--heads=4", "--vocab=200", "--batch-size=3")


def build(settings):
    torch.manual_seed(7)
    model = bert_model.BertForPreTraining(settings)
    return model, bert_data.synthesize(torch.arange(settings.batch_size), settings)


def gradient(model, batch, precision="fp32"):
    model.zero_grad(set_to_none=True)
    with bert_model.autocast(bert_settings.Settings(precision=precision), CPU):
        mlm_sum, nsp_sum = model(*batch)
    (mlm_sum + nsp_sum).backward()
    return torch.cat([value.grad.flatten().double() for value in model.parameters()])


def test_named_sizes_have_the_published_parameter_counts_and_can_be_overridden_one_by_one():
    # Those of the checkpoints, without the heads and with them; BERT-Tiny's is published without.
    encoders = {"tiny": 4_385_920, "base": 109_482_240, "large": 335_141_888}
    totals = {"base": 110_106_428, "large": 336_226_108}
    for name, encoder in encoders.items():
        chosen = bert_settings.parse_settings([f"--model={name}"])
        with torch.device("meta"):
            model = bert_model.BertForPreTraining(chosen)
        assert bert_model.padded_vocab(chosen) == 30528
        padding = (30528 - chosen.vocab) * chosen.hidden
        assert sum(value.numel() for value in model.bert.parameters()) - padding == encoder
        total = bert_model.count_parameters(chosen, model)
        assert total == totals.get(name, total)
    for name, sizes in bert_settings.MODELS.items():
        chosen = bert_settings.parse_settings([f"--model={name}"])
        assert (chosen.layers, chosen.hidden, chosen.heads) == sizes
        assert (chosen.intermediate, chosen.hidden // chosen.heads) == (4 * chosen.hidden, 64)
    words = ["--model=base", "--layers=3", "--hidden=384", "--heads=6"]
    chosen = bert_settings.parse_settings(words)
    assert (chosen.layers, chosen.hidden, chosen.heads, chosen.intermediate) == (3, 384, 6, 1536)
    assert bert_settings.parse_settings(["--intermediate=100"]).intermediate == 100


def test_losses_and_gradients_are_those_of_a_plain_bert_in_float64(settings):
    """Of samples with padding, and with places for predictions that have none."""
    for words in ((), ("--chunk=3",)):
        chosen = settings(*SIZES, "--batch-size=6", "--fill=0.5", *words)
        model, batch = build(chosen)
        assert not batch.attention_mask.all()
        assert not batch.masked_weights.all()
        model.double()
        weights = dict(model.named_parameters())
        expected = plain.loss_of(weights, batch, chosen)
        slopes = torch.autograd.grad(expected, list(weights.values()))
        mlm_sum, nsp_sum = model(*batch)
        loss = mlm_sum / batch.masked_weights.sum() + nsp_sum / 6
        assert loss.item() == pytest.approx(expected.item(), rel=1e-9), words
        gradients = torch.autograd.grad(loss, model.parameters())
        for slope, actual in zip(slopes, gradients, strict=True):
            assert torch.allclose(actual, slope, rtol=1e-6, atol=1e-12), words


def test_reduced_precision_gradients_agree_with_fp32(settings):
    model, batch = build(settings(*SIZES))
    full = gradient(model, batch)
    for precision, limit in (("bf16", 0.03), ("fp16", 0.004)):
        reduced = gradient(model, batch, precision)
        assert 0 < (reduced - full).norm() / full.norm() < limit
        assert torch.nn.functional.cosine_similarity(full, reduced, dim=0) > 1 - limit**2


def test_full_samples_need_no_mask(settings, monkeypatch):
    masks = []

    def attend(query, key, value, mask, dropout):
        masks.append(mask)
        return query

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
    for fill in ("full", "0.5", "generator"):
        chosen = settings(*SIZES, f"--fill={fill}")
        model, _ = build(chosen)
        model(*next(bert_data.synthetic_source(chosen, Ranks(), CPU)).batch)
    assert [mask is None for mask in masks] == [True, True, False, False, False, False]


def test_leaving_padding_out_changes_neither_losses_nor_gradients(settings, monkeypatch):
    """By the CPU's operator, and in the shapes of GPUs with a stand-in for the kernel there."""

    def attend_each(parts, bounds, _longest, _dropout):
        """What flash attention does on GPUs for samples that lie one behind the other."""
        pieces = [part.split(bounds.diff().tolist()) for part in parts]
        attend = torch.nn.functional.scaled_dot_product_attention
        shown = [
            attend(*(value.transpose(0, 1) for value in sample))
            for sample in zip(*pieces, strict=True)
        ]
        return torch.cat([sample.transpose(0, 1) for sample in shown])

    def assert_same(layout):
        for expected, actual in zip(model(*batch), model(*batch, layout), strict=True):
            assert torch.allclose(expected, actual, rtol=1e-12)
        padded, packed = gradient(model, batch), gradient(model, (*batch, layout))
        assert (packed - padded).norm() / padded.norm() < 1e-12

    model, batch = build(settings(*SIZES, "--batch-size=6", "--fill=0.5"))
    model.double()
    assert sum(bert_data.lay_out(batch).lengths) < batch.attention_mask.numel()
    assert_same(bert_data.lay_out(batch))
    monkeypatch.setattr(bert_model, "attend_packed", attend_each)
    real, (size, length) = int(batch.attention_mask.sum()), batch.input_ids.shape
    shapes = set()
    for budget in (real, real + 3, size * length):
        layout: Any = bert_data.lay_out(batch, budget)
        assert (int(layout.bounds[-1]), int(layout.bounds[size])) == (budget, real)
        assert int(layout.bounds.diff().max()) <= length
        assert_same(layout)
        shapes.add(tuple(value.shape for value in layout if isinstance(value, torch.Tensor)))
    assert len(shapes) == 3


def test_the_operators_that_gpus_alone_have_take_these_shapes_and_layouts(settings):
    """On the device "meta", where PyTorch checks the calls of GPUs and computes nothing."""
    for precision in ("fp16", "bf16", "fp8"):
        chosen = settings("--layers=2", "--batch-size=6", "--fill=0.5", f"--precision={precision}")
        batch = bert_data.synthesize(torch.arange(6), chosen)
        layout = bert_data.lay_out(batch, 128)
        fields = bert_data.convert((*batch, layout), lambda value: value.to("meta"))
        model: Any = bert_model.BertForPreTraining(chosen).to(bert_settings.PRECISIONS[precision])
        sum(model.to("meta")(*fields)).backward()
        assert all(value.grad.shape == value.shape for value in model.parameters()), precision


def test_all_micro_batches_have_the_shapes_of_one_budget(settings, monkeypatch):
    monkeypatch.setattr(bert_data, "has_flash", lambda *_: True)
    chosen = settings("--unpad", "--fill=0.5", "--synthetic-batches=9", "--iters=9", "--skip=0")
    source: Any = bert_data.synthetic_source(chosen, Ranks(), CPU)
    micros = [next(source) for _ in range(9)]
    assert len({float(micro.work[0]) for micro in micros}) > 1
    assert len({tuple(len(value) for value in micro.layout) for micro in micros}) == 1
    (tokens,) = {len(micro.layout.places) for micro in micros}
    most = max(int(micro.work[0]) for micro in micros)
    assert most <= tokens < most + bert_data.TILE


@pytest.mark.parametrize("size", [0.01, 30.0], ids=["not-clipped", "clipped"])
def test_lamb_agrees_with_nvidias_in_float64(trainer, size):
    lamb = trainer("--optimizer=lamb", "--lr=0.02", "--warmup=0", "--vocab=192")
    lamb.settings = dataclasses.replace(lamb.settings, iters=10**9)  # the rate stays
    generator = torch.Generator().manual_seed(3)
    weights = dict(lamb.module.named_parameters())
    with torch.no_grad():
        weights["transform.weight"].zero_()  # no trust ratio: its weights have no norm
        weights["next_sentence.weight"].zero_()  # nor has this one's update
    starts = {name: value.detach().double() for name, value in weights.items()}
    expected = {name: value.clone() for name, value in starts.items()}
    exact = plain.Optimizer("lamb")
    for _ in range(4):
        for name, value in weights.items():
            value.grad = size * torch.randn(value.shape, generator=generator) / value.numel() ** 0.5
            if name == "next_sentence.weight":
                value.grad.zero_()
        gradients = {name: value.grad.double() for name, value in weights.items()}
        exact.step(expected, gradients, 0.02)
        lamb._update()
    for name, value in weights.items():
        moved = float((expected[name] - starts[name]).norm())
        assert float((value.detach() - expected[name]).norm()) <= 1e-5 * moved + 1e-9, name


def test_lamb_leaves_out_what_has_no_gradient_and_takes_no_closure():
    idle, other = (torch.nn.Parameter(torch.ones(2, 2)) for _ in range(2))
    lamb = bert_optimizers.Lamb([{"params": [idle, other], "weight_decay": 0.01}], eps=1e-6)
    other.grad = torch.ones(2, 2)
    lamb.param_groups[0]["lr"] = 0.1
    lamb.step()
    assert torch.equal(idle, torch.ones(2, 2))
    assert not torch.equal(other, torch.ones(2, 2))
    with pytest.raises(ValueError, match="no closure"):
        lamb.step(float)


def test_the_rate_climbs_for_a_tenth_of_the_run_and_falls_without_dividing_by_zero(settings):
    assert bert_settings.parse_settings([]).warmup == 12
    assert bert_settings.parse_settings(["--iters=9", "--skip=0"]).warmup == 0
    for warmup in (0, 1, 9, 10, 10000):
        chosen = settings("--iters=10", "--skip=0", "--lr=2", f"--warmup={warmup}")
        rates = [bert_optimizers.learning_rate(step, chosen) for step in range(10)]
        assert all(0 < rate <= 2 for rate in rates), warmup
        # Iterations that a window in seconds adds.
        assert warmup > 10 or bert_optimizers.learning_rate(10, chosen) == 0
        peak = min(warmup, 10)
        assert rates[:peak] == sorted(rates[:peak]), warmup
        assert rates[peak:] == sorted(rates[peak:], reverse=True), warmup
        assert not 0 < warmup <= 10 or rates[warmup - 1] == 2


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e4], ids=["tiny", "usual", "huge"])
def test_products_in_fp8_are_those_in_fp32_within_the_formats_error(size):
    """e4m3 has 3 bits of mantissa and e5m2 has 2, and errors of single values average out."""
    torch.manual_seed(3)
    layer = bert_model.Fp8Linear(64, 48)
    torch.nn.init.zeros_(layer.bias)
    inputs = torch.randn(2, 16, 64) * size
    target = torch.randn(2, 16, 48)
    results = []
    for linear in (layer, torch.nn.Linear(64, 48)):
        linear.load_state_dict(layer.state_dict())
        current, values = linear.to(torch.bfloat16), inputs.to(torch.bfloat16).requires_grad_()
        product = current(values)
        product.backward(target.to(torch.bfloat16))
        results.append([product, values.grad, current.weight.grad, current.bias.grad])
    for actual, expected in zip(*results, strict=True):
        assert actual.dtype == torch.bfloat16
        error = (actual.double() - expected.double()).norm() / expected.double().norm()
        assert error < 0.08
    # It is another format, not bf16 under another name.
    assert not torch.equal(results[0][0], results[1][0])
