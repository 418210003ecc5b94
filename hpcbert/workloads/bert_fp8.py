"""Matrix products in FP8 of the BERT pre-training reference.

As in torchao's tensorwise recipe (pytorch/ao, torchao/float8): inputs and weights are rounded to
e4m3 and gradients to e5m2, each tensor scaled so that its largest value is the largest of the
format; products are summed in fp32 and returned in bf16.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def quantize(values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return values rounded to a format of 8 bits, and what to multiply them with."""
    largest = torch.finfo(dtype).max
    scale = (values.abs().amax().float() / largest).clamp(min=1e-12)
    return (values.float() / scale).clamp(-largest, largest).to(dtype), scale


def multiply(rows: tuple[Tensor, Tensor], columns: tuple[Tensor, Tensor]) -> Tensor:
    """Return [N, K] times the transpose of [M, K], both quantized."""
    (values, scale), (weight, weight_scale) = rows, columns
    product: Tensor = torch._scaled_mm(
        values.contiguous(),
        weight.contiguous().t(),
        scale_a=scale,
        scale_b=weight_scale,
        out_dtype=torch.bfloat16,
    )
    return product


class _Product(torch.autograd.Function):
    """Inputs [N, K] times the transpose of a weight [M, K]."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor) -> Tensor:
        rows = quantize(inputs, torch.float8_e4m3fn)
        columns = quantize(weight, torch.float8_e4m3fn)
        ctx.save_for_backward(*rows, *columns)
        return multiply(rows, columns)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        values, scale, weight, weight_scale = ctx.saved_tensors
        rounded, rounded_scale = quantize(gradients[0], torch.float8_e5m2)
        of_inputs = multiply((rounded, rounded_scale), (weight.t(), weight_scale))
        of_weight = multiply((rounded.t(), rounded_scale), (values.t(), scale))
        return of_inputs, of_weight


class Fp8Linear(nn.Linear):
    """A linear layer whose three products are in FP8; it takes and returns bf16."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [..., out] of [..., in]."""
        apply: Any = _Product.apply
        product: Tensor = apply(inputs.flatten(0, -2), self.weight)
        return product.view(*inputs.shape[:-1], -1) + self.bias
