from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="the reference workload needs PyTorch")
workload = pytest.importorskip("hpcbert.workloads.bert_pretrain")

CPU = torch.device("cpu")
SIZES = ("--dropout=0", "--layers=2", "--heads=4", "--vocab=200", "--batch-size=3")


def build(settings):
    torch.manual_seed(7)
    model = workload.BertForPreTraining(settings)
    return model, workload.synthesize(torch.arange(settings.batch_size), settings)


def gradient(model, batch, precision="fp32"):
    model.zero_grad(set_to_none=True)
    with workload.autocast(precision, CPU):
        mlm_sum, nsp_sum = model(*batch)
    (mlm_sum + nsp_sum).backward()
    return torch.cat([value.grad.flatten().double() for value in model.parameters()])


# The counts are those of the published checkpoints: 109,482,240 and 335,141,888 without the heads.
@pytest.mark.parametrize(
    ("name", "encoder", "whole"),
    [
        ("tiny", 4_385_920, None),
        ("base", 109_482_240, 110_106_428),
        ("large", 335_141_888, 336_226_108),
    ],
)
def test_named_sizes_have_the_published_parameter_counts(name, encoder, whole):
    with torch.device("meta"):
        model = workload.BertForPreTraining(workload.parse_settings([f"--model={name}"]))

    def count(module):
        return sum(value.numel() for value in module.parameters())

    assert count(model.bert) == encoder
    assert whole is None or count(model) == whole


@pytest.mark.torch
def test_gradient_is_the_slope_of_the_loss(settings):
    model, batch = build(settings(*SIZES))
    model.double()
    slopes = gradient(model, batch)
    direction = torch.randn(slopes.shape, generator=torch.Generator().manual_seed(1)).double()
    direction /= direction.norm()
    start = torch.nn.utils.parameters_to_vector(model.parameters()).detach()

    def loss(distance):
        with torch.no_grad():
            torch.nn.utils.vector_to_parameters(start + distance * direction, model.parameters())
            return float(sum(model(*batch)))

    slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
    assert slope == pytest.approx(float(slopes @ direction), rel=1e-5)


@pytest.mark.torch
def test_fp32_gradients_agree_with_float64(settings):
    model, batch = build(settings(*SIZES))
    single = gradient(model, batch)
    double = gradient(model.double(), batch)
    assert (single - double).norm() / double.norm() < 1e-5


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
        for expected, found in zip(model(*batch), model(*other), strict=True):
            assert torch.allclose(expected, found, rtol=1e-6)


@pytest.mark.torch
def test_leaving_padding_out_changes_neither_losses_nor_gradients(settings):
    model, batch = build(settings(*SIZES, "--batch-size=6", "--fill=0.5"))
    model.double()
    layout = workload.lay_out(batch)
    assert sum(layout.lengths) < batch.attention_mask.numel()
    for expected, found in zip(model(*batch), model(*batch, layout), strict=True):
        assert torch.allclose(expected, found, rtol=1e-12)
    padded, packed = gradient(model, batch), gradient(model, (*batch, layout))
    assert (packed - padded).norm() / padded.norm() < 1e-12


def test_a_new_model_knows_nothing(settings):
    chosen = settings(*SIZES, "--batch-size=64")
    model, batch = build(chosen)
    with torch.no_grad():
        mlm_sum, nsp_sum = model(*batch)
    assert float(mlm_sum / batch.masked_weights.sum()) == pytest.approx(math.log(200), abs=0.1)
    assert float(nsp_sum / 64) == pytest.approx(math.log(2), abs=0.05)


def test_attention_is_the_same_without_the_fused_function(monkeypatch):
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 10, 8)
    mask = torch.arange(10) < torch.tensor([[10], [6]])
    fused = workload.attend(query, key, value, mask[:, None, None], 0.0)
    monkeypatch.delattr(torch.nn.functional, "scaled_dot_product_attention")
    plain = workload.attend(query, key, value, mask[:, None, None], 0.0)
    assert torch.allclose(fused, plain, atol=1e-6)


def test_a_block_is_the_encoder_layer_of_the_paper(settings):
    chosen = settings(*SIZES)
    block = workload.Block(chosen)
    reference = torch.nn.TransformerEncoderLayer(
        chosen.hidden,
        chosen.heads,
        chosen.intermediate,
        dropout=0.0,
        activation="gelu",
        layer_norm_eps=1e-12,
        batch_first=True,
        norm_first=False,
    )
    pairs = {
        "self_attn.in_proj_": "query_key_value.",
        "self_attn.out_proj.": "attention_output.",
        "linear1.": "expand.",
        "linear2.": "contract.",
        "norm1.": "attention_norm.",
        "norm2.": "norm.",
    }
    state = block.state_dict()
    reference.load_state_dict(
        {a + kind: state[b + kind] for a, b in pairs.items() for kind in ("weight", "bias")}
    )
    hidden = torch.randn(3, 10, chosen.hidden)
    mask = torch.arange(10) < torch.tensor([[10], [7], [2]])
    expected = reference(hidden, src_key_padding_mask=~mask)
    assert torch.allclose(block(hidden, mask[:, None, None]), expected, atol=1e-5)


def test_only_matrices_decay(settings):
    model, _ = build(settings(*SIZES))
    decaying, free = workload.make_optimizer(model, CPU).param_groups
    assert decaying["weight_decay"] == 0.01
    assert free["weight_decay"] == 0
    names = {id(value): name for name, value in model.named_parameters()}
    assert all("norm" in names[id(value)] or "bias" in names[id(value)] for value in free["params"])
    assert len(decaying["params"]) + len(free["params"]) == len(names)


def lamb_in_float64(value, gradients, rate, decay):
    """The update of You et al. 2020 with bias correction, written down tensor by tensor."""
    value, mean, square = value.double(), 0.0, 0.0
    for number, gradient in enumerate(gradients, 1):
        mean = 0.9 * mean + 0.1 * gradient.double()
        square = 0.999 * square + 0.001 * gradient.double() ** 2
        update = mean / (1 - 0.9**number) / ((square / (1 - 0.999**number)) ** 0.5 + 1e-6)
        if decay:
            update = update + decay * value
            norms = float(value.norm()), float(update.norm())
            update = update * (norms[0] / norms[1] if all(norms) else 1.0)
        value = value - rate * update
    return value


def test_lamb_agrees_with_a_plain_one_in_float64():
    torch.manual_seed(3)
    starts = [torch.randn(6, 5), torch.zeros(4, 3), torch.randn(7), torch.zeros(3)]
    gradients = [[torch.randn_like(start) for start in starts] for _ in range(6)]
    values = [torch.nn.Parameter(start.clone()) for start in starts]
    idle = torch.nn.Parameter(torch.ones(2, 2))
    groups = [
        {"params": [*values[:2], idle], "weight_decay": 0.01},
        {"params": values[2:], "weight_decay": 0.0},
    ]
    lamb = workload.Lamb(groups, eps=1e-6)
    for group in lamb.param_groups:
        group["lr"] = 0.02
    for step in gradients:
        for value, gradient_of in zip(values, step, strict=True):
            value.grad = gradient_of.clone()
        lamb.step()
    for number, value in enumerate(values):
        own = [step[number] for step in gradients]
        expected = lamb_in_float64(starts[number], own, 0.02, 0.01 if value.dim() > 1 else 0.0)
        moved = (expected - starts[number]).norm()
        assert (value.detach() - expected).norm() / moved < 1e-5
    assert torch.equal(idle, torch.ones(2, 2))
    with pytest.raises(ValueError, match="no closure"):
        lamb.step(float)


@pytest.mark.parametrize(("words", "steps"), [([], 12), (["--iters=9", "--skip=0"], 0)])
def test_warm_up_is_a_tenth_of_the_run(words, steps):
    assert workload.parse_settings(words).warmup == steps
    assert workload.parse_settings([*words, "--warmup=7"]).warmup == 7


@pytest.mark.parametrize("warmup", [0, 1, 9, 10, 10000])
def test_learning_rate_climbs_and_falls_without_dividing_by_zero(settings, warmup):
    chosen = settings("--iters=10", "--skip=0", "--lr=2", f"--warmup={warmup}")
    rates = [workload.learning_rate(step, chosen) for step in range(10)]
    assert all(0 < rate <= 2 for rate in rates)
    peak = min(warmup, 10)
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    if 0 < warmup <= 10:
        assert rates[warmup - 1] == 2
