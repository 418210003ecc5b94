"""Optimizers of the BERT pre-training reference: AdamW, LAMB, learning rate, loss scale."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hpcbert.workloads.bert_model import Block

if TYPE_CHECKING:
    from hpcbert.workloads.bert_settings import Settings

FUSED = True  # AdamW as one kernel for all parameters


def learning_rate(step: int, settings: Settings) -> float:
    """Return the rate of optimizer step `step` (from 0): linear up to the peak, then linear down.

    It is 0 in steps after --iters, which --window-seconds adds.
    """
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    return settings.lr * max(0, settings.iters - step) / max(1, settings.iters - settings.warmup)


class Lamb(torch.optim.Optimizer):
    """LAMB (You et al. 2020, arXiv:1904.00962) as NVIDIA's BERT runs it.

    NVIDIA/DeepLearningExamples@729963d, PyTorch/LanguageModeling/BERT: run_pretraining.py lines
    423-430, lamb_amp_opt/csrc/multi_tensor_lamb.cu; the same formula as NVIDIA/apex@6424da3,
    csrc/multi_tensor_lamb.cu. Gradients are clipped by their global norm, over all groups, before
    (--clip-norm, 1). Adam's means with bias correction give the update, decoupled decay is added to
    it (MOMENT_MODE_1), and it is scaled by the norm of the weights over its own, a tensor at a
    time; by 1 where either norm is zero. Tensors without decay, biases and norms, are not scaled
    (use_nvlamb off). A group's `parts` says how many of NVIDIA's tensors one of its tensors holds.

    `grad_scale` and `found_inf` are what torch's own fused optimizers take by these names: what
    gradients are divided by, and 1.0 where they are not finite and nothing must change. Nothing
    here asks the device for a number.
    """

    _step_supports_amp_scaling = True
    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None

    def __init__(self, groups: list[dict[str, Any]], eps: float, lr: Any = 0.0) -> None:
        super().__init__(groups, {"lr": lr, "betas": (0.9, 0.999), "eps": eps, "parts": 1})
        self._advance = _advance

    def compile(self) -> None:
        """Compute each group's update as one graph."""
        self._advance = torch.compile(_advance, fullgraph=True)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all tensors that have a gradient; closures are not supported."""
        if closure is not None:
            raise ValueError("Lamb takes no closure")
        for group in self.param_groups:
            values = [value for value in group["params"] if value.grad is not None]
            if values:
                self._update(values, [value.grad for value in values], group)

    def _update(self, values: list[Tensor], gradients: list[Any], group: dict[str, Any]) -> None:
        for value in values:
            if not self.state[value]:
                tensors = {"mean": torch.zeros_like(value), "square": torch.zeros_like(value)}
                self.state[value].update(tensors)
        if "step" not in group:
            group["step"] = torch.zeros((), device=values[0].device)
        scalars = (group["step"], group["lr"], self.grad_scale, self.found_inf)
        means = [self.state[value]["mean"] for value in values]
        squares = [self.state[value]["square"] for value in values]
        constants = (*group["betas"], group["eps"], group["weight_decay"], group["parts"])
        self._advance((values, gradients, means, squares), scalars, constants)


def _advance(
    tensors: tuple[list[Tensor], ...],
    scalars: tuple[Any, ...],
    constants: tuple[float, float, float, float, int],
) -> None:
    """Update a group's weights, means, squares and number of steps in place."""
    values, gradients, means, squares = tensors
    steps, rate, divisor, overflow = scalars
    beta, slow, eps, decay, parts = constants
    if divisor is not None:
        torch._foreach_div_(gradients, divisor)
    counts: Any = 1.0  # 0.0: the step overflowed, and changes nothing
    if overflow is not None:
        counts = 1.0 - overflow
        gradients = [
            gradient.where(counts > 0, torch.zeros_like(gradient)) for gradient in gradients
        ]
    steps += counts
    number = steps + (1 - counts)
    torch._foreach_mul_(means, 1 - (1 - beta) * counts)
    torch._foreach_add_(means, gradients, alpha=1 - beta)
    torch._foreach_mul_(squares, 1 - (1 - slow) * counts)
    torch._foreach_addcmul_(squares, gradients, gradients, 1 - slow)
    divisors = torch._foreach_div(squares, 1 - slow**number)
    torch._foreach_sqrt_(divisors)
    torch._foreach_add_(divisors, eps)
    updates = torch._foreach_div(means, 1 - beta**number)
    torch._foreach_div_(updates, divisors)
    if decay:
        torch._foreach_add_(updates, values, alpha=decay)
        _adapt(values, list(updates), parts)
    torch._foreach_mul_(updates, -rate * counts)
    torch._foreach_add_(values, updates)


def _adapt(values: list[Tensor], updates: list[Tensor], parts: int) -> None:
    """Scale each part of each update by LAMB's trust ratio."""
    pieces = [piece for update in updates for piece in update.chunk(parts)]
    weights = torch._foreach_norm([piece for value in values for piece in value.chunk(parts)])
    ratios = torch.stack(weights) / torch.stack(torch._foreach_norm(pieces))
    # Infinite or not a number where a norm is zero.
    usable = ratios.isfinite() & (ratios > 0)
    torch._foreach_mul_(pieces, list(ratios.where(usable, torch.ones_like(ratios))))


def make_optimizer(model: nn.Module, name: str = "adamw") -> torch.optim.Optimizer:
    """Return AdamW or LAMB with BERT's settings; biases and LayerNorms do not decay.

    All groups share one learning rate, a tensor on the model's device.

    google-research/bert, optimization.py: decay 0.01, betas 0.9 and 0.999, epsilon 1e-6; NVIDIA's
    LAMB takes the same.
    """
    threes = [part.query_key_value.weight for part in model.modules() if isinstance(part, Block)]
    three_ids = {id(value) for value in threes}
    matrices = [
        value for value in model.parameters() if value.dim() > 1 and id(value) not in three_ids
    ]
    vectors = [value for value in model.parameters() if value.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": 0.01},
        {"params": threes, "weight_decay": 0.01, "parts": 3},
        {"params": vectors, "weight_decay": 0.0},
    ]
    rate = torch.zeros((), device=vectors[0].device)
    if name == "lamb":
        return Lamb(groups, eps=1e-6, lr=rate)
    return torch.optim.AdamW(groups, lr=rate, eps=1e-6, fused=FUSED)


class LossScale:
    """The factor on losses that keeps fp16's gradients from becoming zero; 1 in other precisions.

    It moves as torch.amp.GradScaler's does by default, halved by an overflow and doubled after
    2,000 steps without, but whether a step overflowed stays on the device.
    """

    START = 2.0**16

    def __init__(self, precision: str, device: torch.device) -> None:
        self.moves = precision == "fp16"
        self.value = torch.full((), self.START if self.moves else 1.0, device=device)
        self._without = torch.zeros((), dtype=torch.int32, device=device)

    def move(self, overflow: Tensor) -> None:
        """Follow a step; `overflow` is 1.0 where its gradients were not finite, else 0.0."""
        torch._amp_update_scale_(self.value, self._without, overflow, 2.0, 0.5, 2000)


def total_norm(gradients: list[Tensor]) -> Tensor:
    """Return the norm of all gradients together, float32."""
    total: Tensor = torch.stack(list(torch._foreach_norm(gradients))).norm().float()
    return total
