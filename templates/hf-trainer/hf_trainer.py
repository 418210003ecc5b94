"""Pre-train BERT or ModernBERT on masked words with the Trainer of Hugging Face's transformers.

It builds a model, a data set and the Trainer from its options; the Trainer does the rest. Each rank
is one process of torch.distributed: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile

import masked_words
import torch
import transformers


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
    parser.add_argument("--model", required=True, choices=list(masked_words.SIZES))
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16", "fp16"])
    parser.add_argument("--device", default="gpu", choices=["gpu", "cpu"])
    parser.add_argument("--data", default="", help="directory of HDF5 files; without: synthetic")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--lr", type=float, default=1e-4)
    numbers = {"batch-size": 32, "accumulation": 1, "iters": 120, "logging-steps": 20}
    numbers |= {"sequence-length": 128, "predictions": 0, "vocab": 0, "workers": 0, "seed": 42}
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def main() -> None:
    """Train."""
    options = parse_options()
    if options.device == "gpu" and not torch.cuda.is_available():
        # The Trainer would take the CPU.
        sys.exit(f"error: PyTorch sees no GPU on node {platform.node()}; --device cpu needs none")
    transformers.set_seed(options.seed)
    length = options.sequence_length
    model = masked_words.build_model(options.model, length, options.vocab)
    vocabulary = model.config.vocab_size
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    count = options.iters * options.batch_size * options.accumulation * ranks
    usual = {128: 20}.get(length, length * 15 // 100)
    samples = masked_words.load_samples(options, usual, vocabulary, count)
    with tempfile.TemporaryDirectory() as folder:
        arguments = build_arguments(options, folder)
        if arguments.process_index == 0:
            sys.stdout.write(
                f"{samples.describe(vocabulary)}"
                f"transformers {transformers.__version__}, torch {torch.__version__} {arguments}\n"
            )
        transformers.Trainer(model, arguments, train_dataset=samples).train()


if __name__ == "__main__":
    main()
