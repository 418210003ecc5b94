"""How good a number is: per GPU, in tokens, in steps, against the GPUs' peak, and in joules. Pure.

docs/explanation/metrics.md has the formulas and their sources. A metric that needs an unknown value
is None, and `unknown` names what it needs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import tomli

from hpcbert.logs.arithmetic import median
from hpcbert.logs.fields import loose_float
from hpcbert.logs.setting import Setting, model_facts, model_name
from hpcbert.model import USUAL_VOCABULARY, Facts, Measured, Metrics, usual_predictions

_P95 = 0.95
# Names of models with BERT's layers; ModernBERT's, for example, have other products.
_BERT = re.compile(r"(?:megatron[-_ ]?)?bert(?![a-z])|hidden size ", re.IGNORECASE)
# The facts that are sizes of a model.
_SIZES = ("hidden_size", "layers", "intermediate_size", "vocab_size", "predictions")
# No BERT of the published record comes near it. A higher number is doubtful; above 1 it is wrong.
HIGH_MFU = 0.8
# How far a printed sum may be above the exact one.
_ROUNDING = 1.0001
_ABOVE_PEAK = "it is above the GPUs' peak"
# nvidia-smi's MIG mode of a whole GPU, and the beginnings of amd-smi's partition: SPX/NPS1.
_NO_MIG = ("disabled", "[n/a]", "n/a")
_WHOLE = ("SPX", "N/A", "NPS1")
# What is unknown without the number of tokens of a sample.
_OF_SAMPLES = (
    *("tokens_per_second", "real_tokens_per_second", "model_flops_per_sample"),
    *("mfu", "mfu_padded"),
)
_CAUSES = "GPU, precision, sizes or throughput are wrong"
_PEAKS = Path(__file__).with_name("peaks.toml")


@cache
def load_peaks() -> tuple[Mapping[str, Any], ...]:
    """Return the dense peaks of accelerators, 10^12 operations per second by precision.

    Each has a `label`, its `source`, and a regular expression for the `name` that its driver,
    torch or the published record has for it.
    """
    return tuple(tomli.loads(_PEAKS.read_text(encoding="utf-8"))["peaks"])


def find_peak(gpu: str, precision: str) -> float | None:
    """Return an accelerator's dense peak in operations per second; None if unknown."""
    for peaks in load_peaks():
        if re.fullmatch(peaks["name"], gpu, re.IGNORECASE):
            return peaks[precision] * 1e12 if precision in peaks else None
    return None


class ModelSize(NamedTuple):
    """The sizes that determine a model's operations.

    Attributes:
        intermediate: Width inside the feed-forward layer.
        vocabulary: Tokens that the masked-LM head distinguishes.
    """

    layers: int
    hidden: int
    intermediate: int
    vocabulary: int = USUAL_VOCABULARY


def find_model(name: str) -> ModelSize | None:
    """Return the sizes of a named model, such as `bert-base`; None if the name is unknown."""
    sizes = model_facts(name)
    if "layers" not in sizes:
        return None
    return ModelSize(sizes["layers"], sizes["hidden_size"], 4 * sizes["hidden_size"])


class SampleWork(NamedTuple):
    """The work of training on one sample.

    Attributes:
        tokens: The sample's share of a sequence, padding included.
        real_tokens: Those that are not padding; None if unknown.
        flops: Operations, padding included; None if the model is unknown.
        real_flops: Those for tokens that are not padding.
    """

    tokens: float
    real_tokens: float | None = None
    flops: float | None = None
    real_flops: float | None = None


def model_flops(model: ModelSize, length: float, masked: float | None = None) -> float:
    """Return the floating-point operations that training on one sample needs.

    6 operations for each token and weight of a matrix product (Kaplan et al. 2020,
    arXiv:2001.08361, section 2.1; the backward pass takes twice the forward pass): the blocks take
    all tokens, padding included, the masked-LM head the masked ones, and the pooler and its head
    one. The attention's own products are 12 * hidden * length^2 a layer (Chowdhery et al. 2022,
    arXiv:2204.02311, appendix B). Embeddings, norms, dropout, the optimizer and recomputation are
    left out.

    Args:
        masked: Masked tokens that are predicted; by default, the number in the data sets.
    """
    predictions = usual_predictions(round(length)) if masked is None else masked
    hidden = model.hidden
    block = 4 * hidden**2 + 2 * hidden * model.intermediate
    return float(
        6 * model.layers * block * length
        + 12 * model.layers * hidden * length**2
        + 6 * (hidden**2 + hidden * model.vocabulary) * predictions
        + 6 * (hidden**2 + 2 * hidden)
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that this share of the values does not exceed (nearest rank)."""
    ranked = sorted(values)
    return ranked[max(0, -(-len(ranked) * round(share * 1000) // 1000) - 1)]


def compute_metrics(point: Measured, speed: float | None) -> Metrics | None:
    """Return a point's metrics; None if it has no number.

    Args:
        speed: The median, samples per second over all GPUs.
    """
    if speed is None:
        return None
    unknown: dict[str, str] = {}
    gpus = point.shape.gpus
    work = _sample_work(point, unknown)
    flops = work.flops if work else None
    peak_flops = _gpu_peak(point, unknown)
    rate = speed / (gpus * peak_flops) if peak_flops else None
    mfu, mfu_reason = _compute_mfu(work.real_flops if work else None, rate)
    padded_mfu, padded_reason = _compute_mfu(flops, rate)
    if padded_mfu is None and mfu:
        padded_reason = "the program leaves padding out: with it, it is above the GPUs' peak"
    elif padded_reason:
        padded_reason += ", or the program leaves padding out"
    if mfu_reason:
        unknown["mfu"] = mfu_reason
    if padded_reason:
        unknown["mfu_padded"] = padded_reason
    watts, memory = _sampled_gpus(point, unknown)
    steps = _measured_steps(point, unknown)
    return Metrics(
        samples_per_second_per_gpu=speed / gpus,
        tokens_per_second=speed * work.tokens if work else None,
        real_tokens_per_second=speed * work.real_tokens if work and work.real_tokens else None,
        sequences_per_second=_sequence_rate(point, speed, unknown),
        step_seconds=median(steps) if steps else None,
        step_seconds_p95=percentile(steps, _P95) if steps else None,
        model_flops_per_sample=flops,
        peak_flops_per_second=peak_flops,
        mfu=mfu,
        mfu_padded=padded_mfu,
        gpu_memory_mib=memory,
        watts=watts,
        samples_per_joule=speed / watts if watts else None,
        unknown=tuple(sorted(unknown.items())),
    )


def mfu_flags(metrics: Metrics | None) -> tuple[str, ...]:
    """Return the flags of a row with an MFU that GPUs do not reach in practice."""
    if metrics is None:
        return ()
    reasons = dict(metrics.unknown)
    if any(reasons.get(name, "").startswith(_ABOVE_PEAK) for name in ("mfu", "mfu_padded")):
        return ("impossible-mfu",)
    share = metrics.mfu or metrics.mfu_padded or 0.0
    return ("high-mfu",) if share > HIGH_MFU else ()


def _compute_mfu(flops: float | None, rate: float | None) -> tuple[float | None, str]:
    """Return an MFU; if it is above 1, none and the reason.

    Args:
        flops: Operations of a sample.
        rate: Samples per second, over the peak of all GPUs.
    """
    if flops is None or rate is None:
        return None, ""
    share = flops * rate
    return (share, "") if share <= 1 else (None, f"{_ABOVE_PEAK}, at {share:.1%}: {_CAUSES}")


def _first_known(facts: Facts, *names: str) -> tuple[str, ...]:
    """Return the values of the first known fact; empty if none is known."""
    values = dict(facts)
    return next((values[name] for name in names if values.get(name)), ())


def _positive_numbers(facts: Facts, name: str) -> list[float]:
    """Return the values of a fact that are numbers above 0."""
    values = (loose_float(text.encode()) for text in dict(facts).get(name, ()))
    return [number for number in values if 0 < number < math.inf]


def _agreed_size(facts: Facts, name: str) -> int | None:
    """Return a size on which all runs agree; otherwise None."""
    values = _positive_numbers(facts, name)
    return int(values[0]) if len(values) == 1 else None


def _describe_disagreement(facts: Facts) -> str:
    """Return the sizes in which runs differ, as a clause; empty if they agree."""
    values = {name: dict(facts).get(name, ()) for name in _SIZES}
    texts = [f"{name} {' and '.join(texts)}" for name, texts in values.items() if len(texts) > 1]
    return f"the runs differ in {', '.join(texts)}" if texts else ""


def _model_size(point: Measured) -> ModelSize | None:
    """Return the model's sizes: those that the logs state, else those of its name.

    The formula is BERT's: a model with another name and stated sizes has none.
    """
    facts = point.facts
    hidden, layers = _agreed_size(facts, "hidden_size"), _agreed_size(facts, "layers")
    name = next(iter(_first_known(facts, "model")), None)
    setting = Setting(model=name, hidden_size=hidden, layers=layers)
    model = find_model(model_name(setting)) or find_model(point.group.model)
    if hidden and layers and (model or _BERT.match(name or point.group.model)):
        model = ModelSize(layers, hidden, 4 * hidden)
    if model is None or _describe_disagreement(facts):
        return None
    return model._replace(
        intermediate=_agreed_size(facts, "intermediate_size") or model.intermediate,
        vocabulary=_agreed_size(facts, "vocab_size") or model.vocabulary,
    )


def _sample_work(point: Measured, unknown: dict[str, str]) -> SampleWork | None:
    """Return the work of a sample; of packed sequences, its share of one."""
    facts = point.facts
    length, packing = _agreed_size(facts, "sequence_length"), _agreed_size(facts, "packing") or 1
    shares = [share for share in _positive_numbers(facts, "real_token_share") if share <= 1]
    model = _model_size(point)
    if not shares:
        reason = "the logs do not state how many tokens are real and how many padding"
        unknown |= dict.fromkeys(("real_tokens_per_second", "mfu"), reason)
    padding = dict(facts).get("padding")
    if padding and not shares:
        reason = f"padding is {padding[0]}, and nothing says how many tokens are real"
        unknown |= dict.fromkeys(_OF_SAMPLES, reason)
        return None
    if model is None:
        reason = _describe_disagreement(facts) or f"the sizes of {point.group.model} are unknown"
        unknown |= dict.fromkeys(("model_flops_per_sample", "mfu", "mfu_padded"), reason)
    if length is None:
        reason = "nothing says how many tokens a sample has"
        unknown |= dict.fromkeys(_OF_SAMPLES, reason)
        return None
    tokens = length / packing
    real_tokens = tokens * median(shares) if shares else None
    if model is None:
        return SampleWork(tokens, real_tokens)
    masked = (_agreed_size(facts, "predictions") or usual_predictions(length)) / packing
    padded_flops = model_flops(model, tokens, masked)
    if real_tokens is None:
        return SampleWork(tokens, real_tokens, padded_flops)
    # Without the program's own sum, samples count as equally long, which gives the least work.
    stated = _positive_numbers(facts, "model_flops")
    real = model_flops(model, real_tokens, masked * real_tokens / tokens)
    real = median(stated) if stated else real
    if real <= padded_flops * _ROUNDING:
        return SampleWork(tokens, real_tokens, padded_flops, real)
    unknown["mfu"] = (
        f"the logs state {real:.4g} FLOP a sample; with padding it has {padded_flops:.4g}"
    )
    return SampleWork(tokens, real_tokens, padded_flops)


def _sequence_rate(point: Measured, speed: float, unknown: dict[str, str]) -> float | None:
    """Return sequences per second; a program that states no packing packs one sample into each."""
    factors = _positive_numbers(point.facts, "packing") or [1.0]
    if len(factors) == 1:
        return speed / factors[0]
    unknown["sequences_per_second"] = "the runs pack different numbers of samples into a sequence"
    return None


def _gpu_peak(point: Measured, unknown: dict[str, str]) -> float | None:
    group = point.group
    names = _first_known(point.facts, "GPU", "device")
    gpu_peak = find_peak(names[0], group.precision) if len(names) == 1 else None
    part = _describe_partition(point.facts)
    if group.device == "cpu":
        gpu_peak, reason = None, "it ran on the CPU, which has no known peak"
    elif not names:
        reason = "nothing says what the GPUs are"
    elif len(names) > 1:
        reason = f"the GPUs differ: {', '.join(names)}"
    elif part:
        gpu_peak, reason = None, f"the GPUs are partitioned ({part}), and peaks are of whole ones"
    else:
        reason = f"no known data sheet states the peak of {names[0]} at {group.precision}"
    if gpu_peak is None:
        unknown |= dict.fromkeys(("peak_flops_per_second", "mfu", "mfu_padded"), reason)
    return gpu_peak


def _describe_partition(facts: Facts) -> str:
    """Return the partitions of GPUs, as nvidia-smi or amd-smi names them; empty for whole GPUs."""
    modes = _first_known(facts, "GPU MIG mode")
    partitions = _first_known(facts, "GPU partition")
    parts = [f"MIG {mode}" for mode in modes if mode.lower() not in _NO_MIG]
    return ", ".join(parts + [name for name in partitions if not name.startswith(_WHOLE)])


def _sampled_gpus(point: Measured, unknown: dict[str, str]) -> tuple[float | None, float | None]:
    """Return watts and memory from the runs in which all GPUs were sampled."""
    samples = [run.sampled for run in point.runs if run.valid and run.sampled]
    complete = [sample for sample in samples if sample.gpus == point.shape.gpus]
    if complete:
        memory = max(sample.memory_mib for sample in complete)
        return median([sample.watts for sample in complete]), memory
    reason = "nothing sampled the GPUs long enough inside the window"
    if point.group.device == "cpu":
        reason = "it ran on the CPU, which is not sampled"
    elif samples:
        reason = f"{samples[0].gpus} of {point.shape.gpus} GPUs were sampled"
    unknown |= dict.fromkeys(("watts", "samples_per_joule", "gpu_memory_mib"), reason)
    return None, None


def _measured_steps(point: Measured, unknown: dict[str, str]) -> list[float]:
    valid_repeats = {run.repeat for run in point.runs if run.valid}
    steps: list[float] = []
    for repeat, run_steps in point.steps:
        if repeat in valid_repeats:
            steps += run_steps.measured
    if not steps:
        reason = "the logs print no times of single steps"
        unknown |= dict.fromkeys(("step_seconds", "step_seconds_p95"), reason)
    return steps
