"""BERT's pre-training written down a second time, in float64, formula by formula.

Nothing is shared with the reference but the names of its weights: no fused operation, no autocast,
no gather before the head, no optimizer of torch's.
"""

import math

import torch


def _linear(weights, name, inputs):
    return inputs @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _normalized(weights, name, inputs):
    centred = inputs - inputs.mean(-1, keepdim=True)
    scaled = centred / ((centred**2).mean(-1, keepdim=True) + 1e-12).sqrt()
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _gelu(inputs):
    return inputs * (1 + torch.erf(inputs / math.sqrt(2))) / 2


def _layer(weights, name, inputs, mask, heads):
    parts = _linear(weights, f"{name}.query_key_value", inputs).unflatten(-1, (3, heads, -1))
    query, key, value = parts.permute(2, 0, 3, 1, 4)
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    scores = scores.masked_fill(~mask[:, None, None, :], -math.inf)
    contexts = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
    attended = _linear(weights, f"{name}.attention_output", contexts)
    hidden = _normalized(weights, f"{name}.attention_norm", inputs + attended)
    wide = _gelu(_linear(weights, f"{name}.expand", hidden))
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
    everywhere = _normalized(
        weights, "transform_norm", _gelu(_linear(weights, "transform", hidden))
    )
    scores = everywhere @ tokens.T + weights["decoder_bias"][: settings.vocab]
    wrong = scores.logsumexp(-1, keepdim=True) - scores
    counting = batch.masked_weights.nonzero().tolist()
    masked = [
        wrong[row, batch.masked_positions[row, n], batch.masked_ids[row, n]] for row, n in counting
    ]
    pairs = -_linear(weights, "next_sentence", pooled).log_softmax(-1)
    labels = batch.next_sentence_labels
    return torch.stack(masked).mean() + pairs[range(len(labels)), labels].mean()


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
