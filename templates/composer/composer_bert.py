"""Pre-train MosaicBERT, BERT or ModernBERT on masked words with Composer's Trainer.

It builds a model, a data set and the Trainer from its options, with the optimizer and the schedule
of MosaicBERT's configuration; the Trainer does the rest. MosaicBERT's model is that of its authors:
examples/benchmarks/bert of a checkout of mosaicml/examples. Each rank is one process: RANK,
WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK, MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import composer
import masked_words
import torch
from composer.callbacks import SpeedMonitor
from composer.models import HuggingFaceModel
from composer.optim import DecoupledAdamW, LinearWithWarmupScheduler
from composer.utils import dist

PRECISIONS = {"fp32": "fp32", "bf16": "amp_bf16", "fp16": "amp_fp16"}
# Batches of which a printed rate is the mean: Composer's default, 100, mixes window and warm-up.
WINDOW = 1


def build_model(options: argparse.Namespace) -> Any:
    """Return the model, with new weights."""
    if not options.model.startswith("mosaicbert"):
        return masked_words.build_model(options.model, options.sequence_length, options.vocab)
    sys.path.insert(0, options.source)
    from src.bert_layers import BertForMaskedLM
    from src.configuration_bert import BertConfig

    # alibi_starting_size, dropout of the attention: BertConfig's own.
    size = options.model.replace("mosaicbert", "bert")
    words = options.vocab or 30522
    settings = masked_words.describe_sizes(size, options.sequence_length, vocab_size=words)
    return BertForMaskedLM(BertConfig(**settings, use_cache=False))


def count_samples(options: argparse.Namespace) -> int:
    """Return the samples of one batch of all ranks."""
    return int(options.batch_size * options.accumulation * dist.get_world_size())


def build_trainer(
    options: argparse.Namespace, model: Any, samples: masked_words.RepeatedRows
) -> composer.Trainer:
    """Return the Trainer: yamls/main/mosaic-bert-base-uncased.yaml, without evaluation."""
    optimizer = DecoupledAdamW(
        model.parameters(), lr=options.lr, betas=(0.9, 0.98), eps=1e-6, weight_decay=1e-5
    )
    return composer.Trainer(
        model=HuggingFaceModel(model, use_logits=True),
        train_dataloader=torch.utils.data.DataLoader(
            samples,
            batch_size=options.batch_size * options.accumulation,
            sampler=dist.get_sampler(samples, drop_last=True),
            drop_last=True,
            num_workers=options.workers,
            pin_memory=options.device == "gpu",
        ),
        optimizers=optimizer,
        schedulers=LinearWithWarmupScheduler(t_warmup="0.06dur", alpha_f=0.02),
        max_duration=f"{options.iters}ba",
        device=options.device,
        precision=PRECISIONS[options.precision],
        device_train_microbatch_size=options.batch_size,
        compile_config={} if options.compile else None,
        callbacks=[SpeedMonitor(window_size=WINDOW)],
        progress_bar=False,
        # Every rank would print; Composer's launcher hides the others of a node.
        log_to_console=dist.get_global_rank() == 0,
        console_log_interval="1ba",
        seed=options.seed,
    )


def parse_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--precision", default="fp32", choices=list(PRECISIONS))
    parser.add_argument("--device", default="gpu", choices=["gpu", "cpu"])
    parser.add_argument("--source", default="", help="folder of MosaicBERT's program")
    parser.add_argument("--data", default="", help="directory of HDF5 files; without: synthetic")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--lr", type=float, default=5e-4)
    numbers = {"batch-size": 32, "accumulation": 1, "iters": 120}
    numbers |= {"sequence-length": 128, "predictions": 0, "vocab": 0, "workers": 0, "seed": 17}
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def main() -> None:
    """Train."""
    options = parse_options()
    dist.initialize_dist(options.device)
    composer.utils.reproducibility.seed_all(options.seed)
    model = build_model(options)
    vocabulary = model.config.vocab_size
    usual, count = options.sequence_length * 3 // 10, options.iters * count_samples(options)
    samples = masked_words.load_samples(options, usual, vocabulary, count)
    trainer = build_trainer(options, model, samples)
    if dist.get_global_rank() == 0:
        # As MosaicBERT's program prints its configuration.
        sys.stdout.write(
            f"precision: {PRECISIONS[options.precision]}\n"
            f"max_seq_len: {options.sequence_length}\n"
            f"global_train_batch_size: {count_samples(options)}\n"
            f"compile_model: {str(options.compile).lower()}\n"
            f"padding: {'unpadded' if options.model.startswith('mosaicbert') else 'padded'}\n"
            f"{samples.describe(vocabulary)}"
            f"speed_monitor:\n  window_size: {WINDOW}\n"
        )
    trainer.fit()


if __name__ == "__main__":
    main()
