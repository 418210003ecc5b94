"""How good a number is: per GPU, in tokens, in steps, against the GPUs' peak, and in joules. Pure.

docs/explanation/metrics.md has the formulas and their sources, and how rates in tokens and
sequences differ from those in samples. A metric that needs an unknown value is None, and `unknown`
names what it needs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import tomli

from hpcbert.errors import UsageError
from hpcbert.logs.fields import loose_float
from hpcbert.logs.setting import Setting, model_facts, model_name
from hpcbert.model import (
    USUAL_VOCABULARY,
    Facts,
    Measured,
    Metrics,
    Row,
    SpeedupTable,
    Unit,
    usual_predictions,
)

# The metric with a row's rate in a unit.
_UNITS = {"tokens": "tokens_per_second", "sequences": "sequences_per_second"}
_RATES = ("median", "mean", "min", "max")
_UNIT_ROUNDING = 1 + 1e-9
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
_CAUSES = "padding is left out, or GPU, precision, sizes or throughput are wrong"
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
    tokens, real_tokens, flops, real_flops = _sample_work(point, unknown)
    peak_flops = _gpu_peak(point, unknown)
    rate = speed / (gpus * peak_flops) if peak_flops else None
    mfu = _compute_mfu("mfu", real_flops, rate, unknown)
    mfu_padded = _compute_mfu("mfu_padded", flops, rate, unknown)
    if mfu and unknown.get("mfu_padded", "").startswith(_ABOVE_PEAK):
        reason = "the program leaves padding out: with it, it is above the GPUs' peak"
        unknown["mfu_padded"] = reason
    watts, memory = _sampled_gpus(point, unknown)
    steps = _measured_steps(point, unknown)
    # A program that states no packing packs one sample into each sequence.
    packings = _positive_numbers(point.facts, "packing") or [1.0]
    if len(packings) > 1:
        reason = "the runs pack different numbers of samples into a sequence"
        unknown["sequences_per_second"] = reason
    return Metrics(
        samples_per_second_per_gpu=speed / gpus,
        tokens_per_second=speed * tokens if tokens else None,
        real_tokens_per_second=speed * real_tokens if real_tokens else None,
        sequences_per_second=speed / packings[0] if len(packings) == 1 else None,
        step_seconds=median(steps) if steps else None,
        step_seconds_p95=percentile(steps, _P95) if steps else None,
        model_flops_per_sample=flops,
        peak_flops_per_second=peak_flops,
        mfu=mfu,
        mfu_padded=mfu_padded,
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


def _compute_mfu(
    name: str, flops: float | None, rate: float | None, unknown: dict[str, str]
) -> float | None:
    if flops is None or rate is None:
        return None
    share = flops * rate
    if share <= 1:
        return share
    unknown[name] = f"{_ABOVE_PEAK}, at {share:.1%}: {_CAUSES}"
    return None


def _first_known(facts: Facts, *names: str) -> tuple[str, ...]:
    values = dict(facts)
    return next((values[name] for name in names if values.get(name)), ())


def _positive_numbers(facts: Facts, name: str) -> list[float]:
    values = (loose_float(text.encode()) for text in dict(facts).get(name, ()))
    return [number for number in values if 0 < number < math.inf]


def _agreed_size(facts: Facts, name: str) -> int | None:
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


def _sample_work(point: Measured, unknown: dict[str, str]) -> tuple[float | None, ...]:
    """Return a sample's tokens and operations; of packed sequences, its share of one.

    Tokens with padding, tokens without, operations with padding, operations without; None if
    unknown.
    """
    facts = point.facts
    length, packing = _agreed_size(facts, "sequence_length"), _agreed_size(facts, "packing") or 1
    shares = [share for share in _positive_numbers(facts, "real_token_share") if share <= 1]
    model, padding = _model_size(point), dict(facts).get("padding")
    if not shares:
        reason = "the logs do not state how many tokens are real and how many padding"
        unknown |= dict.fromkeys(("real_tokens_per_second", "mfu"), reason)
    reason = "nothing says how many tokens a sample has"
    if padding and not shares:
        length = None
        reason = f"padding is {padding[0]}, and nothing says how many tokens are real"
    if length is None:
        unknown |= dict.fromkeys(_OF_SAMPLES, reason)
        return None, None, None, None
    tokens = length / packing
    real_tokens = tokens * median(shares) if shares else None
    if model is None:
        reason = _describe_disagreement(facts) or f"the sizes of {point.group.model} are unknown"
        unknown |= dict.fromkeys(("model_flops_per_sample", "mfu", "mfu_padded"), reason)
        return tokens, real_tokens, None, None
    masked = (_agreed_size(facts, "predictions") or usual_predictions(length)) / packing
    flops = model_flops(model, tokens, masked)
    if real_tokens is None:
        return tokens, None, flops, None
    # Without the program's own sum, samples count as equally long, which gives the least work.
    stated = _positive_numbers(facts, "model_flops")
    real_flops = model_flops(model, real_tokens, masked * real_tokens / tokens)
    real_flops = median(stated) if stated else real_flops
    if real_flops <= flops * _ROUNDING:
        return tokens, real_tokens, flops, real_flops
    unknown["mfu"] = (
        f"the logs state {real_flops:.4g} FLOP a sample; with padding it has {flops:.4g}"
    )
    return tokens, real_tokens, flops, None


def _gpu_peak(point: Measured, unknown: dict[str, str]) -> float | None:
    group, facts = point.group, point.facts
    names = ("a CPU",) if group.device == "cpu" else _first_known(facts, "GPU", "device")
    modes = [mode for mode in _first_known(facts, "GPU MIG mode") if mode.lower() not in _NO_MIG]
    parts = [f"MIG {mode}" for mode in modes]
    parts += [name for name in _first_known(facts, "GPU partition") if not name.startswith(_WHOLE)]
    # Peaks are of whole GPUs, all of one kind.
    gpu_peak = None
    if len(names) == 1 and not parts:
        gpu_peak = find_peak(names[0], group.precision)
    if gpu_peak is None:
        devices = ", ".join((*names, *parts)) or "unknown GPUs"
        reason = f"no known data sheet states the peak of {devices} at {group.precision}"
        unknown |= dict.fromkeys(("peak_flops_per_second", "mfu", "mfu_padded"), reason)
    return gpu_peak


def _sampled_gpus(point: Measured, unknown: dict[str, str]) -> tuple[float | None, float | None]:
    samples = [run.sampled for run in point.runs if run.valid and run.sampled]
    complete = [sample for sample in samples if sample.gpus == point.shape.gpus]
    if complete:
        memory = max(sample.memory_mib for sample in complete)
        return median([sample.watts for sample in complete]), memory
    reason = "nothing sampled all devices long enough inside the window"
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


# --- rates in tokens and sequences instead of samples --------------------------------------------


def convert_tables(tables: Iterable[SpeedupTable], unit: Unit) -> tuple[SpeedupTable, ...]:
    """Return tables with their rates in a unit; a row whose samples are of unknown size has none.

    Raises:
        UsageError: No row with a number has one in that unit.
    """
    tables = tuple(tables)
    if all(table.unit == unit for table in tables):
        return tables
    converted = tuple(
        replace(table, unit=unit, rows=tuple(_convert_row(row, unit) for row in table.rows))
        for table in tables
    )
    reasons = explain_missing(tables, unit)
    if reasons and not any(row.median for table in converted for row in table.rows):
        reason = reasons[0].partition(": ")[2]
        hint = "--unit samples needs nothing."
        if "padding" not in reason:
            hint = f"--set sequence_length=N says it for logs; {hint}"
        raise UsageError(f"No point has a rate in {unit}/s: {reason}.", hint=hint)
    return converted


def convert_known(tables: Iterable[SpeedupTable], unit: Unit) -> tuple[SpeedupTable, ...]:
    """Return those of some tables that have rates in a unit, in that unit."""
    return tuple(
        convert_tables([table], unit)[0]
        for table in tables
        if any(_factor(row, unit) for row in table.rows)
    )


def mark_tables(tables: Iterable[SpeedupTable], unit: Unit) -> tuple[SpeedupTable, ...]:
    """Return tables for documents: in samples per second, to be written with rates in a unit."""
    return tuple(replace(table, unit=unit) for table in tables)


def explain_missing(tables: Iterable[SpeedupTable], unit: Unit) -> tuple[str, ...]:
    """Return a sentence for each row with a number that has none in a unit."""
    sentences = []
    for table in tables:
        for row in table.rows:
            if row.median and _factor(row, unit) is None:
                reasons = dict(row.metrics.unknown) if row.metrics else {}
                reason = reasons.get(_UNITS[unit], "the saved results do not state it")
                point = f"{table.group.framework} {row.shape}"
                sentences.append(f"{point} has no rate in {unit}/s: {reason}")
    return tuple(sentences)


def _factor(row: Row, unit: Unit) -> float | None:
    if unit == "samples":
        return 1.0
    rate = row_rate(row, unit)
    return rate / row.median if rate and row.median else None


def _convert_row(row: Row, unit: Unit) -> Row:
    factor = _factor(row, unit)
    if factor is None:
        row = replace(row, speedup=None, efficiency=None, cv=None)

    def scale(value: float | None) -> float | None:
        return value * factor if value is not None and factor is not None else None

    runs = tuple(replace(run, throughput=scale(run.throughput)) for run in row.runs)
    rates: dict[str, Any] = {name: scale(getattr(row, name)) for name in _RATES}
    return replace(row, runs=runs, **rates)


def row_rate(row: Row, unit: Unit) -> float | None:
    """Return a row's median in a unit; None if unknown."""
    return row.median if unit == "samples" else getattr(row.metrics, _UNITS[unit], None)


def real_rate(row: Row, unit: Unit) -> float | None:
    """Return the tokens per second that are not padding; None if unknown, or in other units."""
    return row.metrics.real_tokens_per_second if row.metrics and unit == "tokens" else None


def table_factor(table: SpeedupTable, unit: Unit) -> float:
    """Return the tokens or sequences of a sample, the same in all rows of a table.

    Raises:
        UsageError: It is unknown, or differs between rows.
    """
    missing = explain_missing([table], unit)
    if missing:
        raise UsageError(f"{missing[0]}.", hint="Leave --unit out.")
    factors = [_factor(row, unit) or 1.0 for row in table.rows if row.median] or [1.0]
    if max(factors) > min(factors) * _UNIT_ROUNDING:
        raise UsageError(
            f"The points of {table.group.framework} differ in the {unit} of a sample, "
            f"{min(factors):g} and {max(factors):g}.",
            hint="Leave --unit out, or name the points of one length.",
        )
    return factors[0]


def per_device(row: Row) -> float | None:
    """Return the median over the number of devices."""
    return None if row.median is None else row.median / row.shape.gpus


def rate_data(row: Row, unit: Unit) -> dict[str, Any]:
    """Return a row's rates in a unit, as docs/reference/json.md describes them."""
    converted = _convert_row(row, unit)
    return {
        "unit": f"{unit}/s",
        **{name: getattr(converted, name) for name in _RATES},
        "per_gpu": per_device(converted),
        "real": real_rate(row, unit),
    }
