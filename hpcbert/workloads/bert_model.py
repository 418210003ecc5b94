"""The model of the BERT pre-training reference, and the operations that it needs."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from hpcbert.workloads.bert_data import FIELDS, Batch, Micro, Packing
from hpcbert.workloads.bert_settings import KERNELS, POSITIONS, PRECISIONS, Settings, SetupError

if TYPE_CHECKING:
    from collections.abc import Sequence

TILE, NEVER = 64, -1e4  # multiple that the vocabulary is padded to; the logit of a padding token


def select_attention(name: str) -> None:
    """Let PyTorch take one kernel for the attention, or any."""
    for kernel, switch in KERNELS.items():
        getattr(torch.backends.cuda, f"enable_{switch}_sdp")(name in ("auto", kernel))


def find_attention(settings: Settings, micro: Micro, device: torch.device) -> str:
    """Return the kernel that PyTorch takes for the attention of such micro batches.

    SetupError if --sdpa names one that cannot.
    """
    layout, (size, length) = micro.layout, micro.batch.input_ids.shape
    if layout is not None and layout.bounds is not None:
        return "flash, packed"
    size, mask = (size, micro.batch.attention_mask) if layout is None else (1, torch.empty(0))
    projected = torch.empty(
        *(size, length, 3, settings.heads, settings.hidden // settings.heads),
        dtype=PRECISIONS[settings.precision] or torch.float32,
        device=device,
        requires_grad=True,
    )
    query, key, value = projected.permute(2, 0, 3, 1, 4).unbind(0)
    key_mask = mask[:, None, None, :] if mask.numel() else None
    choose = torch.ops.aten._fused_sdp_choice  # which the attention itself asks
    try:
        number: int = choose(query, key, value, key_mask, settings.dropout, False)
    except RuntimeError as error:
        raise SetupError(f"--sdpa {settings.sdpa} cannot attend here: {error}") from error
    return [*KERNELS][number]


def autocast(settings: Settings, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which matrix products of fp32 weights are done in the precision."""
    dtype = PRECISIONS[settings.precision] if settings.weights != "bf16" else None
    return torch.autocast(device.type, dtype=dtype) if dtype else contextlib.nullcontext()


# --- Matrix products in FP8 -----------------------------------------------------------------------

# As in torchao's tensorwise recipe (pytorch/ao, torchao/float8): inputs and weights are rounded to
# e4m3 and gradients to e5m2, each tensor scaled so that its largest value is the largest of the
# format; products are summed in fp32 and returned in bf16.


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


# --- The model ------------------------------------------------------------------------------------


class Block(nn.Module):
    """One encoder layer, normalized after each residual sum as in the BERT paper."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.heads = settings.heads
        linear = Fp8Linear if settings.precision == "fp8" else nn.Linear
        self.query_key_value = linear(settings.hidden, 3 * settings.hidden)
        self.attention_output = linear(settings.hidden, settings.hidden)
        self.attention_norm = nn.LayerNorm(settings.hidden, eps=1e-12)
        self.expand = linear(settings.hidden, settings.intermediate)
        self.contract = linear(settings.intermediate, settings.hidden)
        self.norm = nn.LayerNorm(settings.hidden, eps=1e-12)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(
        self, hidden: Tensor, mask: Tensor | None, layout: Packing | None = None, longest: int = 0
    ) -> Tensor:
        """Return [B, S, hidden], for `mask` [B, 1, 1, S]; with a layout [T, hidden].

        `longest` is the most tokens that a sample may have.
        """
        projected = self.query_key_value(hidden)
        if layout is None:
            context = self._attend(projected, mask)
        elif layout.bounds is None:
            # One call a sample, without a mask: on CPUs faster than putting the padding back for
            # the attention alone (benchmarks/README.md).
            parts = projected.split(layout.lengths)
            context = torch.cat([self._attend(part.unsqueeze(0), None)[0] for part in parts])
        else:
            split = projected.unflatten(1, (3, self.heads, -1)).unbind(1)
            dropout = self.dropout.p if self.training else 0.0
            context = attend_packed(split, layout.bounds, longest, dropout).flatten(1)
        attended = self.attention_output(context)
        hidden = self.attention_norm(hidden + self.dropout(attended))
        expanded = functional.gelu(self.expand(hidden))
        result: Tensor = self.norm(hidden + self.dropout(self.contract(expanded)))
        return result

    def _attend(self, projected: Tensor, mask: Tensor | None) -> Tensor:
        batch, length, width = projected.shape
        split = projected.view(batch, length, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        dropout = self.dropout.p if self.training else 0.0
        context = functional.scaled_dot_product_attention(query, key, value, mask, dropout)
        return context.transpose(1, 2).reshape(batch, length, width // 3)


def attend_packed(parts: Sequence[Tensor], bounds: Tensor, longest: int, dropout: float) -> Tensor:
    """Return the attention within each of the samples that lie one behind the other.

    `parts` are query, key and value.

    The operator is what torch.nested calls for tensors of this form [T, heads, width]
    (pytorch/pytorch, torch/nested/_internal/sdpa.py); it exists on GPUs alone.
    """
    attend = torch.ops.aten._flash_attention_forward
    context: Tensor = attend(*parts, bounds, bounds, longest, longest, dropout, False, False)[0]
    return context


class Bert(nn.Module):
    """Embeddings, encoder and pooler (Devlin et al. 2019, section 3)."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.token = nn.Embedding(padded_vocab(settings), settings.hidden)
        self.position = nn.Embedding(POSITIONS, settings.hidden)
        self.segment = nn.Embedding(2, settings.hidden)
        self.norm = nn.LayerNorm(settings.hidden, eps=1e-12)
        self.dropout = nn.Dropout(settings.dropout)
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.layers))
        self.pooler = nn.Linear(settings.hidden, settings.hidden)

    def forward(
        self,
        input_ids: Tensor,
        segment_ids: Tensor,
        attention_mask: Tensor,
        layout: Packing | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the sequence [B, S, hidden] (with a layout [T, hidden]) and the pooled tokens."""
        length = input_ids.shape[1]
        if layout is None:
            position = self.position.weight[:length]
        else:
            input_ids = input_ids.flatten()[layout.places]
            segment_ids = segment_ids.flatten()[layout.places]
            position = self.position(layout.places % length)
        total = self.token(input_ids) + position + self.segment(segment_ids)
        hidden = self.dropout(self.norm(total))
        mask = attention_mask[:, None, None, :] if attention_mask.numel() else None
        for block in self.blocks:
            hidden = block(hidden, mask, layout, length)
        first = hidden[:, 0] if layout is None else hidden[layout.starts]
        return hidden, torch.tanh(self.pooler(first))


class BertForPreTraining(nn.Module):
    """BERT with its two pre-training heads; the masked-LM decoder shares the token embeddings."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.bert = Bert(settings)
        self.transform = nn.Linear(settings.hidden, settings.hidden)
        self.transform_norm = nn.LayerNorm(settings.hidden, eps=1e-12)
        self.decoder_bias = nn.Parameter(torch.zeros(padded_vocab(settings)))
        self.next_sentence = nn.Linear(settings.hidden, 2)
        self.chunk = settings.chunk
        self.apply(_initialize)
        with torch.no_grad():
            # Their probability is exactly 0, so that no gradient ever reaches them.
            self.decoder_bias[settings.vocab :] = NEVER
            self.bert.token.weight[settings.vocab :] = 0

    def forward(self, *fields: Any) -> tuple[Tensor, Tensor]:
        """Return the summed losses of masked tokens and of sentence pairs of a `Batch`.

        A `Packing` behind the batch's fields leaves padding out: of tokens and of predictions.
        """
        batch = Batch(*fields[:FIELDS])
        layout: Packing | None = fields[FIELDS] if len(fields) > FIELDS else None
        sequence, pooled = self.bert(
            batch.input_ids, batch.segment_ids, batch.attention_mask, layout
        )
        labels, weights = batch.masked_ids.flatten(), batch.masked_weights.flatten()
        if layout is None:
            index = batch.masked_positions.unsqueeze(-1).expand(-1, -1, sequence.shape[-1])
            masked = sequence.gather(1, index).flatten(0, 1)
        else:
            masked = sequence[layout.masked]
            labels, weights = labels[layout.predicted], weights[layout.predicted]
        masked = functional.gelu(self.transform(masked))
        # Like all other norms in full precision, which autocast sees to on GPUs only.
        masked = self.transform_norm(masked.to(self.decoder_bias.dtype))
        mlm_sum = self._sum_losses(masked, labels, weights)
        nsp_sum = _cross_entropy(self.next_sentence(pooled), batch.next_sentence_labels).sum()
        return mlm_sum, nsp_sum

    def _sum_losses(self, masked: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """Return the sum of the predictions' losses; of a chunk's logits, nothing is kept."""
        if not self.chunk:
            return self._sum_chunk(masked, labels, weights)
        columns = [torch.split(value, self.chunk) for value in (masked, labels, weights)]
        sums = [
            checkpoint(self._sum_chunk, *chunk, use_reentrant=False)
            for chunk in zip(*columns)  # noqa: B905  # needs Python 3.10
        ]
        return torch.stack(sums).sum()

    def _sum_chunk(self, masked: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        logits = functional.linear(masked, self.bert.token.weight, self.decoder_bias)
        return (_cross_entropy(logits, labels) * weights).sum()


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return functional.cross_entropy(wide, labels, reduction="none")


def padded_vocab(settings: Settings) -> int:
    """Return the rows of the embedding table: tensor cores want multiples of 64."""
    return -(-settings.vocab // TILE) * TILE


def count_parameters(settings: Settings, module: nn.Module) -> int:
    """Return the number of weights, without the rows that only pad the vocabulary."""
    rows = padded_vocab(settings) - settings.vocab
    return sum(value.numel() for value in module.parameters()) - rows * (settings.hidden + 1)


def _initialize(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def model_flops(settings: Settings, samples: float, work: Sequence[float]) -> float:
    """Return the floating-point operations that training on this many samples needs.

    6 N for each token (Kaplan et al. 2020, arXiv:2001.08361, section 2.1; backward is twice
    forward), where N are the weights of matrix products: of the blocks for real tokens, of the
    masked-LM head for predictions, of the pooler and its head for samples. Attention's own products
    are 12 * hidden * length^2 a sample and layer (Chowdhery et al. 2022, arXiv:2204.02311, B).
    Embeddings, norms, dropout, the optimizer and recomputation are left out.
    """
    tokens, squares, predictions = work
    hidden = settings.hidden
    block = 4 * hidden**2 + 2 * hidden * settings.intermediate
    return (
        6 * settings.layers * block * tokens
        + 12 * settings.layers * hidden * squares
        + 6 * (hidden**2 + hidden * settings.vocab) * predictions
        + 6 * (hidden**2 + 2 * hidden) * samples
    )
