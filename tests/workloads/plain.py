"""BERT's pre-training written down a second time, in float64, formula by formula.

It shares with the reference the names of the weights and PyTorch's plain functions: it has no fused
attention, no autocast, no gather before the head, and no optimizer of torch's.
"""

import math

import torch
from torch.nn import functional


def _linear(weights, name, inputs):
    return functional.linear(inputs, weights[f"{name}.weight"], weights[f"{name}.bias"])


def _normalized(weights, name, inputs):
    weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    return functional.layer_norm(inputs, inputs.shape[-1:], weight, bias, 1e-12)


def _layer(weights, name, inputs, mask, heads):
    parts = _linear(weights, f"{name}.query_key_value", inputs).unflatten(-1, (3, heads, -1))
    query, key, value = parts.permute(2, 0, 3, 1, 4)
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    scores = scores.masked_fill(~mask[:, None, None, :], -math.inf)
    contexts = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
    attended = _linear(weights, f"{name}.attention_output", contexts)
    hidden = _normalized(weights, f"{name}.attention_norm", inputs + attended)
    wide = functional.gelu(_linear(weights, f"{name}.expand", hidden))
    return _normalized(weights, f"{name}.norm", hidden + _linear(weights, f"{name}.contract", wide))


def loss_of(weights, batch, settings):
    """Return the mean loss of predictions plus that of sentence pairs."""
    tokens = weights["bert.token.weight"][: settings.vocab]
    position = weights["bert.position.weight"][: settings.sequence_length]
    segments = weights["bert.segment.weight"][batch.segment_ids]
    hidden = _normalized(weights, "bert.norm", tokens[batch.input_ids] + position + segments)
    for number in range(settings.layers):
        name = f"bert.blocks.{number}"
        hidden = _layer(weights, name, hidden, batch.attention_mask, settings.heads)
    pooled = torch.tanh(_linear(weights, "bert.pooler", hidden[:, 0]))
    everywhere = functional.gelu(_linear(weights, "transform", hidden))
    everywhere = _normalized(weights, "transform_norm", everywhere)
    scores = everywhere @ tokens.T + weights["decoder_bias"][: settings.vocab]
    rows, places = batch.masked_weights.nonzero().T
    masked = scores[rows, batch.masked_positions[rows, places]]
    pairs = _linear(weights, "next_sentence", pooled)
    masked_loss = functional.cross_entropy(masked, batch.masked_ids[rows, places])
    return masked_loss + functional.cross_entropy(pairs, batch.next_sentence_labels)


class Optimizer:
    """AdamW as PyTorch's, or LAMB as NVIDIA's kernels have it, with clipping by the global norm.

    NVIDIA/DeepLearningExamples@729963d, PyTorch/LanguageModeling/BERT/lamb_amp_opt/csrc,
    multi_tensor_lamb.cu: lines 79 (clipping), 148-155 (update) and 277-282 (trust ratio).
    """

    def __init__(self, name):
        self._is_lamb, self._steps = name == "lamb", 0
        self._means, self._squares = {}, {}

    def step(self, weights, gradients, rate):
        self._steps += 1
        norm = math.sqrt(sum(float((tensor**2).sum()) for tensor in gradients.values()))
        for name, gradient in gradients.items():
            # NVIDIA's model has query, key and value apart; here they are one matrix.
            parts = 3 if name.endswith("query_key_value.weight") else 1
            pieces = zip(weights[name].chunk(parts), gradient.chunk(parts), strict=True)
            for number, (value, piece) in enumerate(pieces):
                value.sub_(rate * self._update((name, number), value, piece / max(norm, 1.0)))

    def _update(self, key, value, gradient):
        decay = 0.01 if value.dim() > 1 else 0.0
        mean = self._means[key] = 0.9 * self._means.get(key, 0) + 0.1 * gradient
        square = self._squares[key] = 0.999 * self._squares.get(key, 0) + 0.001 * gradient**2
        deviation = (square / (1 - 0.999**self._steps)).sqrt()
        update = mean / (1 - 0.9**self._steps) / (deviation + 1e-6) + decay * value
        norms = float(value.norm()), float(update.norm())
        return update * (norms[0] / norms[1]) if self._is_lamb and decay and all(norms) else update
