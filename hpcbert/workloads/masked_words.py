"""Models and samples for programs that train on masked words: files of transformers and torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

# Hidden size, layers, attention heads, intermediate size (google-research/bert@eedf571, README.md;
# Hugging Face Hub, answerdotai/ModernBERT-base and -large, config.json).
SIZES = {
    "bert-tiny": (128, 2, 2, 512),
    "bert-mini": (256, 4, 4, 1024),
    "bert-small": (512, 4, 8, 2048),
    "bert-medium": (512, 8, 8, 2048),
    "bert-base": (768, 12, 12, 3072),
    "bert-large": (1024, 24, 16, 4096),
    "modernbert-base": (768, 22, 12, 1152),
    "modernbert-large": (1024, 28, 16, 2624),
}
MASK, IGNORED = 103, -100  # the token in place of a masked one; the label of all others
ROWS = 1024  # synthetic samples


def describe_sizes(model: str, sequence_length: int, **facts: Any) -> dict[str, Any]:
    """Return the settings of a configuration of transformers."""
    hidden, layers, heads, intermediate = SIZES[model]
    usual = 8192 if model.startswith("modernbert") else 512
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": intermediate,
        "max_position_embeddings": max(usual, sequence_length),
        **facts,
    }


def build_model(model: str, sequence_length: int, vocabulary: int) -> Any:
    """Return a model of transformers with new weights; of its own vocabulary for 0."""
    import transformers

    # Padding is 0 in our samples; ModernBERT's own is beyond a small vocabulary.
    words = {"vocab_size": vocabulary, "pad_token_id": 0} if vocabulary else {}
    settings = describe_sizes(model, sequence_length, **words)
    kind = transformers.ModernBertConfig if model.startswith("modern") else transformers.BertConfig
    return transformers.AutoModelForMaskedLM.from_config(kind(**settings))


def load_samples(options: Any, usual: int, vocabulary: int, count: int) -> RepeatedRows:
    """Return a run's samples: those in `options.data`, or synthetic ones.

    Args:
        options: With data, sequence_length, predictions and seed.
        usual: Masked tokens of a synthetic sample if predictions is 0.
    """
    length, predictions = options.sequence_length, options.predictions
    if not options.data:
        predictions = predictions or usual
        rows = make_rows(length, predictions, vocabulary, options.seed)
        return RepeatedRows(rows, count, predictions)
    rows, most = read_rows(options.data, length, vocabulary)
    if predictions not in (0, most):
        sys.exit(f"error: samples in {options.data} have {most} masked tokens, not {predictions}")
    return RepeatedRows(rows, count, most)


def make_rows(length: int, predictions: int, vocabulary: int, seed: int) -> dict[str, torch.Tensor]:
    """Return samples of random tokens without padding."""
    shape = (ROWS, length)
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(MASK + 1, vocabulary, shape, generator=generator)
    masked = torch.rand(shape, generator=generator).argsort(1) < predictions
    return {
        "input_ids": words.masked_fill(masked, MASK),
        "attention_mask": torch.ones(shape, dtype=torch.long),
        "labels": words.masked_fill(~masked, IGNORED),
    }


def read_rows(folder: str, length: int, vocabulary: int) -> tuple[dict[str, torch.Tensor], int]:
    """Return the samples of NVIDIA's HDF5 files, and the places for masked tokens in each.

    Exit if they don't fit length or vocabulary.
    """
    import h5py

    names = ("input_ids", "input_mask", "masked_lm_positions", "masked_lm_ids")
    columns: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    for path in sorted(Path(folder).glob("*training*")):
        with h5py.File(path) as file:
            for name in names:
                columns[name].append(torch.from_numpy(file[name][:].astype("int64")))
    if not columns["input_ids"]:
        sys.exit(f"error: {folder} has no file with training in its name")
    words, mask, positions, masked = (torch.cat(columns[name]) for name in names)
    if words.shape[1] != length:
        sys.exit(f"error: samples in {folder} have {words.shape[1]} tokens, not {length}")
    if max(int(words.max()), int(masked.max())) >= vocabulary:
        sys.exit(f"error: samples in {folder} have tokens above {vocabulary - 1}")
    # Places without a prediction have position 0, where [CLS] is.
    labels = torch.full_like(words, IGNORED).scatter_(1, positions, masked)
    labels[:, 0] = IGNORED
    return {"input_ids": words, "attention_mask": mask, "labels": labels}, masked.shape[1]


class RepeatedRows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """As many samples as a run needs: the rows again and again."""

    def __init__(self, rows: dict[str, torch.Tensor], count: int, predictions: int) -> None:
        self.rows, self.count, self.predictions = rows, count, predictions

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = index % len(self.rows["input_ids"])
        return {name: values[row] for name, values in self.rows.items()}

    def describe(self, vocabulary: int) -> str:
        """Return the line of facts that the recipes' grammars read.

        Padding counts as often as its samples are taken.
        """
        shares = self.rows["attention_mask"].double().mean(1)
        rounds, remainder = divmod(self.count, len(shares))
        share = float(rounds * shares.sum() + shares[:remainder].sum()) / self.count
        facts = f"predictions={self.predictions} vocab_size={vocabulary}"
        return f"samples: real_token_share={share:.6f} {facts}\n"
