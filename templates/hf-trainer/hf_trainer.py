"""Pre-train BERT or ModernBERT on masked words with the Trainer of Hugging Face's transformers.

It builds a model, a data set and the Trainer from its options; the Trainer does the rest. Each rank
is one process of torch.distributed: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import torch
import transformers

# Hidden size, layers, attention heads (google-research/bert@eedf571, README.md). The rest, and
# ModernBERT-base, are the defaults of transformers' configurations.
BERT = {
    "bert-tiny": (128, 2, 2),
    "bert-mini": (256, 4, 4),
    "bert-small": (512, 4, 8),
    "bert-medium": (512, 8, 8),
    "bert-base": (768, 12, 12),
    "bert-large": (1024, 24, 16),
}
# The same and the intermediate size (Hugging Face Hub, answerdotai/ModernBERT-large, config.json).
MODERNBERT = {"modernbert-base": (768, 22, 12, 1152), "modernbert-large": (1024, 28, 16, 2624)}
MASK, IGNORED = 103, -100  # the token in place of a masked one; the label of all others
ROWS = 1024  # synthetic samples


def build_model(options: argparse.Namespace) -> torch.nn.Module:
    """Return the model, with new weights."""
    if options.model in MODERNBERT:
        hidden, layers, heads, intermediate = MODERNBERT[options.model]
        kind, other = transformers.ModernBertConfig, {}
    else:
        hidden, layers, heads = BERT[options.model]
        kind, intermediate = transformers.BertConfig, 4 * hidden
        other = {"vocab_size": options.vocab}
    positions = max(8192 if options.model in MODERNBERT else 512, options.sequence_length)
    config = kind(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=intermediate,
        max_position_embeddings=positions,
        **other,
    )
    return transformers.AutoModelForMaskedLM.from_config(config)


def make_rows(options: argparse.Namespace, vocabulary: int) -> dict[str, torch.Tensor]:
    """Return samples of random tokens without padding."""
    shape = (ROWS, options.sequence_length)
    generator = torch.Generator().manual_seed(options.seed)
    words = torch.randint(MASK + 1, vocabulary, shape, generator=generator)
    masked = torch.rand(shape, generator=generator).argsort(1) < options.predictions
    return {
        "input_ids": words.masked_fill(masked, MASK),
        "attention_mask": torch.ones(shape, dtype=torch.long),
        "labels": words.masked_fill(~masked, IGNORED),
    }


def read_rows(options: argparse.Namespace, vocabulary: int) -> dict[str, torch.Tensor]:
    """Return the samples of NVIDIA's HDF5 files; exit if they don't fit the options."""
    import h5py

    names = ("input_ids", "input_mask", "masked_lm_positions", "masked_lm_ids")
    columns: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    for path in sorted(Path(options.data).glob("*training*")):
        with h5py.File(path) as file:
            for name in names:
                columns[name].append(torch.from_numpy(file[name][:].astype("int64")))
    if not columns["input_ids"]:
        sys.exit(f"error: {options.data} has no file with training in its name")
    words, mask, positions, masked = (torch.cat(columns[name]) for name in names)
    if words.shape[1] != options.sequence_length:
        sys.exit(
            f"error: samples in {options.data} have {words.shape[1]} tokens,"
            f" not {options.sequence_length}"
        )
    if max(words.max(), masked.max()) >= vocabulary:
        sys.exit(f"error: samples in {options.data} have tokens above {vocabulary - 1}")
    # Places without a prediction have position 0, where [CLS] is.
    labels = torch.full_like(words, IGNORED).scatter_(1, positions, masked)
    labels[:, 0] = IGNORED
    return {"input_ids": words, "attention_mask": mask, "labels": labels}


class Samples(torch.utils.data.Dataset):  # type: ignore[misc]
    """As many samples as a run needs: the rows again and again."""

    def __init__(self, rows: dict[str, torch.Tensor], count: int) -> None:
        self.rows, self.count = rows, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = index % len(self.rows["input_ids"])
        return {name: values[row] for name, values in self.rows.items()}


def build_arguments(options: argparse.Namespace, folder: str) -> transformers.TrainingArguments:
    """Return the Trainer's own options."""
    return transformers.TrainingArguments(
        output_dir=folder,
        max_steps=options.iters,
        per_device_train_batch_size=options.batch_size,
        gradient_accumulation_steps=options.accumulation,
        learning_rate=options.lr,
        bf16=options.precision == "bf16",
        fp16=options.precision == "fp16",
        torch_compile=options.compile,
        use_cpu=options.device == "cpu",
        dataloader_num_workers=options.workers,
        ddp_find_unused_parameters=False,
        seed=options.seed,
        logging_steps=options.logging_steps,
        # Without it the Trainer prints neither a clock nor a count.
        include_num_input_tokens_seen="all",
        log_level="info",
        # Without a progress bar, a rank of each node prints the records; with one, only rank 0.
        disable_tqdm=os.environ.get("RANK", "0") == "0",
        save_strategy="no",
        report_to="none",
    )


def parse_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, choices=[*BERT, *MODERNBERT])
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16", "fp16"])
    parser.add_argument("--device", default="gpu", choices=["gpu", "cpu"])
    parser.add_argument("--data", default="", help="directory of HDF5 files; without: synthetic")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--lr", type=float, default=1e-4)
    numbers = {"batch-size": 32, "accumulation": 1, "iters": 120, "logging-steps": 20}
    numbers |= {"sequence-length": 128, "predictions": 20, "vocab": 30522, "workers": 0, "seed": 42}
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def main() -> None:
    """Train."""
    options = parse_options()
    transformers.set_seed(options.seed)
    model = build_model(options)
    load = read_rows if options.data else make_rows
    rows = load(options, model.config.vocab_size)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    count = options.iters * options.batch_size * options.accumulation * ranks
    with tempfile.TemporaryDirectory() as folder:
        arguments = build_arguments(options, folder)
        if arguments.process_index == 0:
            sys.stdout.write(
                f"transformers {transformers.__version__}, torch {torch.__version__} {arguments}\n"
            )
        transformers.Trainer(model, arguments, train_dataset=Samples(rows, count)).train()


if __name__ == "__main__":
    main()
