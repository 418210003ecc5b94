"""BERT of transformers, trained as the reference workload trains its own: a peer to compare with.

It needs transformers 5 (`pip install transformers`); hpcbert itself does not. transformers lacks
LAMB, so this module has it, tensor by tensor, as a second opinion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForPreTraining

from hpcbert.workloads import bert_model, bert_optimizers, bert_settings
from hpcbert.workloads import bert_pretrain as workload

if TYPE_CHECKING:
    from collections.abc import Iterator

# Our name: their name; their three matrices of query, key and value are one of ours.
_PARTS = {
    "attention_output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "expand": "intermediate.dense",
    "contract": "output.dense",
    "norm": "output.LayerNorm",
}
_WHOLE = {
    "bert.position.weight": "bert.embeddings.position_embeddings.weight",
    "bert.segment.weight": "bert.embeddings.token_type_embeddings.weight",
}
_PAIRS = {
    "bert.norm": "bert.embeddings.LayerNorm",
    "bert.pooler": "bert.pooler.dense",
    "transform": "cls.predictions.transform.dense",
    "transform_norm": "cls.predictions.transform.LayerNorm",
    "next_sentence": "cls.seq_relationship",
}


class PlainLamb(torch.optim.Optimizer):
    """LAMB with NVIDIA's settings, a tensor at a time."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, {"lr": 0.0})
        self.steps = 0

    @torch.no_grad()
    def step(self, _closure: object = None) -> None:  # type: ignore[override]
        self.steps += 1
        for group in self.param_groups:
            for value in group["params"]:
                kept = self.state[value]
                first = kept.get("m", torch.zeros_like(value)) * 0.9 + 0.1 * value.grad
                second = kept.get("v", torch.zeros_like(value)) * 0.999 + 0.001 * value.grad**2
                kept.update(m=first, v=second)
                update = first / (1 - 0.9**self.steps)
                update /= (second / (1 - 0.999**self.steps)).sqrt() + 1e-6
                ratio = 1.0
                if group["weight_decay"]:
                    update += group["weight_decay"] * value
                    norms = float(value.norm()), float(update.norm())
                    ratio = norms[0] / norms[1] if all(norms) else 1.0
                value.sub_(group["lr"] * ratio * update)


def build(
    settings: bert_settings.Settings, module: bert_model.BertForPreTraining
) -> BertForPreTraining:
    """Return transformers' model with the weights of the reference's."""
    config = BertConfig(
        vocab_size=settings.vocab,
        hidden_size=settings.hidden,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        intermediate_size=settings.intermediate,
        hidden_dropout_prob=settings.dropout,
        attention_probs_dropout_prob=settings.dropout,
        attn_implementation="sdpa",
    )
    model = BertForPreTraining(config)
    model.load_state_dict(_translate(settings, module.state_dict()), strict=False)
    model.tie_weights()
    return model.train()


def _translate(settings: bert_settings.Settings, ours: dict[str, Tensor]) -> dict[str, Tensor]:
    theirs = {new: ours[old] for old, new in _WHOLE.items()}
    # Ours have rows of padding.
    tokens, bias = (ours[name][: settings.vocab] for name in ("bert.token.weight", "decoder_bias"))
    for name in ("bert.embeddings.word_embeddings", "cls.predictions.decoder"):
        theirs[f"{name}.weight"] = tokens
    theirs["cls.predictions.bias"] = theirs["cls.predictions.decoder.bias"] = bias
    pairs = dict(_PAIRS)
    for number in range(settings.layers):
        block, layer = f"bert.blocks.{number}", f"bert.encoder.layer.{number}"
        pairs |= {f"{block}.{old}": f"{layer}.{new}" for old, new in _PARTS.items()}
    for kind in ("weight", "bias"):
        theirs |= {f"{new}.{kind}": ours[f"{old}.{kind}"] for old, new in pairs.items()}
        for number in range(settings.layers):
            parts = ours[f"bert.blocks.{number}.query_key_value.{kind}"].chunk(3)
            for name, part in zip(("query", "key", "value"), parts, strict=True):
                where = f"bert.encoder.layer.{number}.attention.self.{name}.{kind}"
                theirs[where] = part
    return {name: value.clone() for name, value in theirs.items()}


class Peer:
    """Stands in for `workload.Trainer`: its model, data and settings, but another's code."""

    def __init__(self, trainer: workload.Trainer, source: Iterator[Any]) -> None:
        self.settings, self.device, self.source = trainer.settings, trainer.device, source
        self.model = build(self.settings, trainer.module).to(self.device)
        matrices = [value for value in self.model.parameters() if value.dim() > 1]
        vectors = [value for value in self.model.parameters() if value.dim() <= 1]
        groups = [
            {"params": matrices, "weight_decay": 0.01},
            {"params": vectors, "weight_decay": 0.0},
        ]
        is_lamb = self.settings.optimizer == "lamb"
        self.optimizer = PlainLamb(groups) if is_lamb else torch.optim.AdamW(groups, eps=1e-6)
        self.steps = 0

    def step(self) -> Tensor:
        """Do one optimizer step of one micro batch; return the loss."""
        batch = next(self.source).batch
        labels = torch.full_like(batch.input_ids, -100)
        rows, columns = batch.masked_weights.nonzero(as_tuple=True)
        labels[rows, batch.masked_positions[rows, columns]] = batch.masked_ids[rows, columns]
        with bert_model.autocast(self.settings, self.device):
            loss = self.model(
                input_ids=batch.input_ids,
                token_type_ids=batch.segment_ids,
                attention_mask=batch.attention_mask.long()
                if batch.attention_mask.numel()
                else None,
                labels=labels,
                next_sentence_label=batch.next_sentence_labels,
            ).loss
        loss.backward()
        if self.settings.clip_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = bert_optimizers.learning_rate(self.steps, self.settings)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        result: Tensor = loss.detach()
        return result
