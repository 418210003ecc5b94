from __future__ import annotations

import dataclasses

import pytest

torch = pytest.importorskip("torch", reason="the reference workload needs PyTorch")
bert_data = pytest.importorskip("hpcbert.workloads.bert_data")
bert_model = pytest.importorskip("hpcbert.workloads.bert_model")
bert_optimizers = pytest.importorskip("hpcbert.workloads.bert_optimizers")
bert_ranks = pytest.importorskip("hpcbert.workloads.bert_ranks")
bert_settings = pytest.importorskip("hpcbert.workloads.bert_settings")
workload = pytest.importorskip("hpcbert.workloads.bert_pretrain")
plain = pytest.importorskip("tests.workloads.plain")

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


# The counts are those of the published checkpoints: 109,482,240 and 335,141,888 without the heads.
@pytest.mark.parametrize(
    ("name", "encoder", "total"),
    [
        ("tiny", 4_385_920, None),
        ("base", 109_482_240, 110_106_428),
        ("large", 335_141_888, 336_226_108),
    ],
)
def test_named_sizes_have_the_published_parameter_counts(name, encoder, total):
    chosen = bert_settings.parse_settings([f"--model={name}"])
    with torch.device("meta"):
        model = bert_model.BertForPreTraining(chosen)
    rows = bert_model.padded_vocab(chosen)
    assert rows == 30528
    padding = (rows - chosen.vocab) * chosen.hidden
    assert sum(value.numel() for value in model.bert.parameters()) - padding == encoder
    assert total is None or bert_model.count_parameters(chosen, model) == total


def test_full_samples_need_no_mask(settings, monkeypatch):
    masks = []

    def attend(query, key, value, mask, dropout):
        masks.append(mask)
        return query

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
    for fill in ("full", "0.5", "generator"):
        chosen = settings(*SIZES, f"--fill={fill}")
        model, _ = build(chosen)
        model(*next(bert_data.synthetic_source(chosen, bert_ranks.Ranks(), CPU)).batch)
    assert [mask is None for mask in masks] == [True, True, False, False, False, False]


@pytest.mark.parametrize("words", [(), ("--chunk=3",)], ids=["whole", "chunks"])
def test_losses_and_gradients_are_those_of_a_plain_bert_in_float64(settings, words):
    chosen = settings(*SIZES, "--batch-size=6", "--fill=0.5", *words)
    model, batch = build(chosen)
    model.double()
    weights = dict(model.named_parameters())
    expected = plain.loss_of(weights, batch, chosen)
    slopes = torch.autograd.grad(expected, list(weights.values()))
    mlm_sum, nsp_sum = model(*batch)
    loss = mlm_sum / batch.masked_weights.sum() + nsp_sum / 6
    assert loss.item() == pytest.approx(expected.item(), rel=1e-9)
    for slope, actual in zip(slopes, torch.autograd.grad(loss, model.parameters()), strict=True):
        assert torch.allclose(actual, slope, rtol=1e-6, atol=1e-12)


@pytest.mark.torch
@pytest.mark.parametrize(("precision", "limit"), [("bf16", 0.03), ("fp16", 0.004)])
def test_reduced_precision_gradients_agree_with_fp32(settings, precision, limit):
    model, batch = build(settings(*SIZES))
    full = gradient(model, batch)
    reduced = gradient(model, batch, precision)
    assert 0 < (reduced - full).norm() / full.norm() < limit
    assert torch.nn.functional.cosine_similarity(full, reduced, dim=0) > 1 - limit**2


def test_padding_tokens_and_padding_predictions_do_not_touch_the_losses(settings):
    chosen = settings(*SIZES, "--batch-size=64")
    model, batch = build(chosen)
    model.eval()
    padding = ~batch.attention_mask
    unasked = batch.masked_weights == 0
    assert padding.any()
    assert unasked.any()
    other = batch._replace(
        input_ids=batch.input_ids.masked_fill(padding, 150),
        masked_ids=batch.masked_ids.masked_fill(unasked, 150),
    )
    with torch.no_grad():
        for expected, actual in zip(model(*batch), model(*other), strict=True):
            assert torch.allclose(expected, actual, rtol=1e-6)


@pytest.mark.torch
def test_leaving_padding_out_changes_neither_losses_nor_gradients(settings):
    model, batch = build(settings(*SIZES, "--batch-size=6", "--fill=0.5"))
    model.double()
    layout = bert_data.lay_out(batch)
    assert sum(layout.lengths) < batch.attention_mask.numel()
    for expected, actual in zip(model(*batch), model(*batch, layout), strict=True):
        assert torch.allclose(expected, actual, rtol=1e-12)
    padded, packed = gradient(model, batch), gradient(model, (*batch, layout))
    assert (packed - padded).norm() / padded.norm() < 1e-12


def attend_each(parts, bounds, _longest, _dropout):
    """What flash attention does on GPUs for samples that lie one behind the other."""
    pieces = [part.split(bounds.diff().tolist()) for part in parts]
    attend = torch.nn.functional.scaled_dot_product_attention
    shown = [
        attend(*(value.transpose(0, 1) for value in sample)) for sample in zip(*pieces, strict=True)
    ]
    return torch.cat([sample.transpose(0, 1) for sample in shown])


def test_a_fixed_budget_of_tokens_changes_neither_losses_nor_gradients(settings, monkeypatch):
    """The shapes on GPUs, with a stand-in for the kernel that exists there alone."""
    monkeypatch.setattr(bert_model, "attend_packed", attend_each)
    chosen = settings(*SIZES, "--batch-size=6", "--fill=0.5")
    model, batch = build(chosen)
    model.double()
    real, (size, length) = int(batch.attention_mask.sum()), batch.input_ids.shape
    shapes = set()
    for budget in (real, real + 3, size * length):
        layout = bert_data.lay_out(batch, budget)
        assert (int(layout.bounds[-1]), int(layout.bounds[size])) == (budget, real)
        assert int(layout.bounds.diff().max()) <= length
        for expected, actual in zip(model(*batch), model(*batch, layout), strict=True):
            assert torch.allclose(expected, actual, rtol=1e-12)
        padded, packed = gradient(model, batch), gradient(model, (*batch, layout))
        assert (packed - padded).norm() / padded.norm() < 1e-12
        shapes.add(tuple(value.shape for value in layout if isinstance(value, torch.Tensor)))
    assert len(shapes) == 3


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp8"])
def test_the_operators_that_gpus_alone_have_take_these_shapes_and_layouts(settings, precision):
    """On the device "meta", where PyTorch checks the calls of GPUs and computes nothing."""
    chosen = settings("--layers=2", "--batch-size=6", "--fill=0.5", f"--precision={precision}")
    batch = bert_data.synthesize(torch.arange(6), chosen)
    layout = bert_data.lay_out(batch, 128)
    fields = bert_data.convert((*batch, layout), lambda value: value.to("meta"))
    model = bert_model.BertForPreTraining(chosen).to(bert_settings.PRECISIONS[precision])
    sum(model.to("meta")(*fields)).backward()
    assert all(value.grad.shape == value.shape for value in model.parameters())


def test_all_micro_batches_have_the_shapes_of_one_budget(settings, monkeypatch):
    monkeypatch.setattr(bert_data, "has_flash", lambda *_: True)
    chosen = settings("--unpad", "--fill=0.5", "--synthetic-batches=9", "--iters=9", "--skip=0")
    source = bert_data.synthetic_source(chosen, bert_ranks.Ranks(), CPU)
    micros = [next(source) for _ in range(9)]
    assert len({float(micro.work[0]) for micro in micros}) > 1
    assert len({tuple(len(value) for value in micro.layout) for micro in micros}) == 1
    (tokens,) = {len(micro.layout.places) for micro in micros}
    most = max(int(micro.work[0]) for micro in micros)
    assert most <= tokens < most + bert_data.TILE


@pytest.mark.parametrize("size", [0.01, 1.0, 30.0], ids=["not-clipped", "clipped", "far-clipped"])
def test_lamb_agrees_with_nvidias_in_float64(trainer, size):
    lamb_trainer = trainer("--optimizer=lamb", "--lr=0.02", "--warmup=0", "--vocab=192")
    generator = torch.Generator().manual_seed(3)
    names = [name for name, _ in lamb_trainer.module.named_parameters()]
    with torch.no_grad():
        lamb_trainer.module.transform.weight.zero_()  # no trust ratio: its weights have no norm
        lamb_trainer.module.next_sentence.weight.zero_()  # nor has this one's update
    lamb_trainer.settings = dataclasses.replace(
        lamb_trainer.settings, iters=10**9
    )  # the rate stays
    starts = [value.detach().clone() for value in lamb_trainer.module.parameters()]
    gradients = [
        [
            size * torch.randn(start.shape, generator=generator) / start.numel() ** 0.5
            for start in starts
        ]
        for _ in range(4)
    ]
    for step in gradients:
        step[names.index("next_sentence.weight")].zero_()
        for value, values in zip(lamb_trainer.module.parameters(), step, strict=True):
            value.grad = values.clone()
        lamb_trainer._update()
    expected = {name: start.double() for name, start in zip(names, starts, strict=True)}
    exact = plain.Optimizer("lamb")
    for step in gradients:
        exact.step(
            expected, {n: values.double() for n, values in zip(names, step, strict=True)}, 0.02
        )
    for start, target, value in zip(
        starts, expected.values(), lamb_trainer.module.parameters(), strict=True
    ):
        moved = float((target - start).norm())
        assert float((value.detach() - target).norm()) <= 1e-5 * moved + 1e-9


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


@pytest.mark.parametrize(("words", "steps"), [([], 12), (["--iters=9", "--skip=0"], 0)])
def test_warm_up_is_a_tenth_of_the_run(words, steps):
    assert bert_settings.parse_settings(words).warmup == steps
    assert bert_settings.parse_settings([*words, "--warmup=7"]).warmup == 7


@pytest.mark.parametrize("warmup", [0, 1, 9, 10, 10000])
def test_learning_rate_climbs_and_falls_without_dividing_by_zero(settings, warmup):
    chosen = settings("--iters=10", "--skip=0", "--lr=2", f"--warmup={warmup}")
    rates = [bert_optimizers.learning_rate(step, chosen) for step in range(10)]
    assert all(0 < rate <= 2 for rate in rates)
    # Iterations that a window in seconds adds.
    assert warmup > 10 or bert_optimizers.learning_rate(10, chosen) == 0
    peak = min(warmup, 10)
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    if 0 < warmup <= 10:
        assert rates[warmup - 1] == 2


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
