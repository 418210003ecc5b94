"""The command line of the BERT pre-training reference: options, limits and contradictions."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

POSITIONS = 512
FIRST_WORD = 104  # id of the first ordinary token of BERT's uncased English vocabulary
SHORT, MASKED = 0.1, 0.15  # shares of samples that are short and of tokens that are masked
PREDICTIONS = {128: 20}  # of the published data sets; of other lengths MASKED of the tokens
# Mean share of real tokens by name; "wiki": 255 of 512, as MLPerf Training's Wikipedia has.
FILLS = {"full": 1.0, "wiki": 255 / 512}
# What activations are; fp8 is the precision of the encoder's matrix products.
PRECISIONS = {
    "fp32": None,
    "tf32": None,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8": torch.bfloat16,
}
IN_BF16 = ("bf16", "fp8")
FP8_MULTIPLE = 16  # of rows and columns in FP8, for tensor cores
# Kernels of torch.nn.functional.scaled_dot_product_attention in the order of PyTorch's numbers
# (torch.nn.attention.SDPBackend), each with the name of its switch.
KERNELS = {"math": "math", "flash": "flash", "efficient": "mem_efficient", "cudnn": "cudnn"}
# Modes of torch.compile. The last one without its CUDA graphs, so that each mode shows one thing.
MODES = {
    "default": "default",
    "reduce-overhead": "reduce-overhead",
    "max-autotune": "max-autotune-no-cudagraphs",
}

# Layers, hidden size, heads. google-research/bert, README.md: "Smaller BERT Models" and BERT-Base,
# BERT-Large; there heads = hidden / 64 and intermediate = 4 * hidden throughout.
MODELS = {"tiny": (2, 128, 2), "mini": (4, 256, 4), "small": (4, 512, 8), "medium": (8, 512, 8)}
MODELS.update({"base": (12, 768, 12), "large": (24, 1024, 16)})


class SetupError(Exception):
    """Arguments, environment or data do not allow a run; the message says what to change."""


def _option(default: Any, text: str, low: float = 0, high: float = math.inf, **extra: Any) -> Any:
    return field(default=default, metadata={"limits": (low, high), "help": text, **extra})


@dataclass(frozen=True)
class Settings:
    """The command line, one field per option, with its default, meaning and limits."""

    model: str = _option("base", "named size", choices=tuple(MODELS))
    layers: int = _option(0, "number of blocks; 0: the named size's")
    hidden: int = _option(0, "width; 0: the named size's")
    heads: int = _option(0, "attention heads; 0: the named size's")
    intermediate: int = _option(0, "width inside the feed-forward layer; 0: four times --hidden")
    vocab: int = _option(30522, "number of tokens", FIRST_WORD + 1)
    dropout: float = _option(0.1, "probability, also inside the attention", 0, 0.99)
    sequence_length: int = _option(128, "tokens a sample, padding included", 5, POSITIONS)
    predictions: int = _option(0, "masked tokens a sample, at most; 0: 20 of 128, else 15 %%")
    fill: str = _option("generator", "real tokens: generator, full, wiki, or their mean share")
    unpad: bool = _option(False, "leave padding out of the computation")
    batch_size: int = _option(32, "samples per device and micro step", 1)
    accumulation: int = _option(1, "micro steps per optimizer step", 1)
    precision: str = _option(
        "fp32",
        "fp16 by autocast; fp8: the encoder's products, else bf16",
        choices=tuple(PRECISIONS),
    )
    weights: str = _option(
        "auto",
        "what computes; bf16, which auto takes where --precision is bf16: a copy of those in fp32",
        choices=("auto", "fp32", "bf16"),
    )
    sdpa: str = _option(
        "auto", "kernel of the attention; auto: PyTorch's choice", choices=("auto", *KERNELS)
    )
    chunk: int = _option(0, "predictions whose logits are held at a time; 0: all")
    iters: int = _option(120, "optimizer steps", 1)
    skip: int = _option(20, "first iterations that the result leaves out")
    window_seconds: float = _option(
        0.0, "least seconds of what is left after --skip: more iterations follow until it has them"
    )
    lr: float = _option(1e-4, "peak learning rate")
    optimizer: str = _option("adamw", "AdamW, or NVIDIA's LAMB", choices=("adamw", "lamb"))
    warmup: int = _option(-1, "optimizer steps up to the peak; -1: a tenth of --iters", -1)
    clip_norm: float = _option(1.0, "limit of the gradient's norm; 0: none")
    seed: int = _option(42, "of weights, dropout and synthetic data", 0, 2**32 - 1)
    data: str = _option("", "directory of HDF5 files; without it the data are synthetic")
    synthetic_batches: int = _option(32, "distinct micro batches a rank, used in turn", 1)
    device: str = _option("auto", "auto prefers GPUs", choices=("auto", "cpu", "cuda"))
    compile: str = _option(
        "auto",
        "torch.compile; auto: on GPUs, where shapes stay the same",
        choices=("auto", "true", "false"),
    )
    compile_mode: str = _option(
        "default", "of torch.compile; reduce-overhead: CUDA graphs", choices=tuple(MODES)
    )
    threads: int = _option(0, "CPU threads a rank; 0: torch's choice")
    master_addr: str = _option("", "host of rank 0, instead of MASTER_ADDR")
    master_port: int = _option(0, "port of rank 0, instead of MASTER_PORT", 0, 65535)
    timeout: float = _option(600.0, "seconds to wait for another rank", 1)
    all_reduce: int = _option(0, "MiB; only measure an all-reduce of so much; 0: train", 0, 4096)


def _converter(kind: str, low: float, high: float) -> Callable[[str], Any]:
    """Return an argparse type: a text, or a finite number with low <= number <= high."""

    def convert(text: str) -> float:
        try:
            number = int(text) if kind == "int" else float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number ({kind})") from None
        if not (math.isfinite(number) and low <= number <= high):
            limits = f"at least {low}" if high == math.inf else f"between {low} and {high}"
            raise argparse.ArgumentTypeError(f"{text} is not {limits}")
        return number

    return str if kind == "str" else convert


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, from the fields of `Settings`."""
    parser = argparse.ArgumentParser(
        prog="bert_pretrain.py",
        description="Pre-train BERT on synthetic or real data and report samples per second.",
        epilog="Ranks come from RANK, WORLD_SIZE and LOCAL_RANK. Exit status: 0 done, 1 unexpected"
        " error, 2 refused arguments, environment or data, 3 non-finite loss.",
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    for option in fields(Settings):
        kind = str(option.type)  # a text, because annotations are not evaluated in this file
        keywords = {"help": option.metadata["help"], "default": option.default}
        if kind == "bool":
            keywords["action"] = "store_true"
        else:
            keywords["type"] = _converter(kind, *option.metadata["limits"])
            keywords["choices"] = option.metadata.get("choices")
        parser.add_argument("--" + option.name.replace("_", "-"), **keywords)
    return parser


def parse_settings(argv: Sequence[str] | None = None) -> Settings:
    """Read the command line; a wrong argument ends the program with status 2 and a sentence."""
    parser = make_parser()
    values = vars(parser.parse_args(argv))
    for number, name in enumerate(("layers", "hidden", "heads")):
        values[name] = values[name] or MODELS[values["model"]][number]
    values["intermediate"] = values["intermediate"] or 4 * values["hidden"]
    length = values["sequence_length"]
    default = PREDICTIONS.get(length, max(1, length * round(100 * MASKED) // 100))
    values["predictions"] = values["predictions"] or default
    if values["weights"] == "auto":
        values["weights"] = "bf16" if values["precision"] in IN_BF16 else "fp32"
    if values["warmup"] < 0:
        values["warmup"] = values["iters"] // 10
    settings = Settings(**values)
    for is_wrong, sentence in _contradictions(settings):
        if is_wrong:
            parser.error(sentence)
    try:
        mean_words(settings)
    except ValueError as error:
        parser.error(f"--fill {settings.fill}: {error}")
    return settings


def _contradictions(settings: Settings) -> list[tuple[Any, str]]:
    """Return the conditions that make the settings wrong, each with a sentence about it."""
    length, precision, weights = settings.sequence_length, settings.precision, settings.weights
    sizes = (settings.hidden, settings.intermediate, settings.batch_size * length)
    has_old_torch = not hasattr(torch.amp, "is_autocast_available")
    is_left_out = settings.compile == "false" and settings.compile_mode != "default"
    # A replayed graph would overwrite the gradients of the micro step before it.
    overwrites = settings.compile_mode == "reduce-overhead" and settings.accumulation > 1
    has_no_copy = weights == "bf16" and precision not in IN_BF16
    is_odd = precision == "fp8" and any(size % FP8_MULTIPLE for size in sizes)
    own_lengths = "--fill is for synthetic data: those of --data are as full as they are"
    return [
        (has_old_torch, f"This program needs PyTorch 2.4 or newer, this is {torch.__version__}"),
        (settings.hidden % settings.heads, "--heads does not divide --hidden"),
        (settings.skip >= settings.iters, "--skip leaves nothing of --iters"),
        (settings.predictions > length - 3, "--predictions exceeds --sequence-length - 3"),
        (is_left_out, f"--compile-mode {settings.compile_mode} needs --compile, which is false"),
        (overwrites, "--compile-mode reduce-overhead needs --accumulation 1"),
        (has_no_copy, f"--weights bf16 needs --precision bf16 or fp8, not {precision}"),
        (precision == "fp8" and weights != "bf16", "--precision fp8 needs --weights bf16"),
        (is_odd, f"--precision fp8: of {sizes}, not all are multiples of {FP8_MULTIPLE}"),
        (settings.data and settings.fill != "generator", own_lengths),
    ]


def mean_words(settings: Settings) -> int:
    """Return a synthetic sample's mean of words, without [CLS] and both [SEP]; ValueError."""
    if settings.fill == "generator":
        return round((1 - SHORT / 2) * settings.sequence_length) - 3
    try:
        share = FILLS.get(settings.fill) or float(settings.fill)
    except ValueError:
        raise ValueError(f"neither generator, {', '.join(FILLS)} nor a number") from None
    least = 5 / settings.sequence_length  # [CLS], two [SEP] and a word in each segment
    if not least <= share <= 1:
        raise ValueError(f"not between {least:.3g} and 1")
    return round(share * settings.sequence_length) - 3
