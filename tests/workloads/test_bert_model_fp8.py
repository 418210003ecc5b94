from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the reference workload needs PyTorch")
bert_model = pytest.importorskip("hpcbert.workloads.bert_model")


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
