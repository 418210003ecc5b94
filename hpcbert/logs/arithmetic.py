"""The arithmetic from the numbers in a log to samples per second."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from hpcbert.logs.grammar import Record, Rule
from hpcbert.logs.setting import Setting
from hpcbert.model import Reason

_NUMBER = re.compile(rb"[+-]?\d{1,18}(?:\.\d*)?(?:[eE][+-]?\d{1,3})?")


class CannotReduceError(Exception):
    """A log gives no number; `reason` says why."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = Reason(code, detail)


def parse_number(text: bytes) -> float:
    """Return a plain decimal number."""
    if not _NUMBER.fullmatch(text):
        raise CannotReduceError("rule", f"{text[:40].decode(errors='replace')!r} is not a number")
    return float(text)


def require_positive(value: float) -> float:
    """Return a value that must be finite and above zero."""
    if not (math.isfinite(value) and value > 0):
        raise CannotReduceError("rule", f"the log prints a rate or time of {value:g} in the window")
    return value


def duration(moments: Sequence[float]) -> float:
    """Return the seconds from the first moment to the last; moments must not go back."""
    for earlier, later in pairwise(moments):
        if not later >= earlier:
            problem = "goes back" if later < earlier else "can't be read"
            raise CannotReduceError("rule", f"time {problem} inside the window")
    seconds = moments[-1] - moments[0]
    if seconds <= 0:
        raise CannotReduceError("rule", "no time passes inside the window")
    return seconds


def throughput(rule: Rule, value: float, setting: Setting) -> float:
    """Return one printed rate in samples per second over all GPUs; raises as `throughputs`."""
    return throughputs(rule, (value,), setting)[0]


def throughputs(rule: Rule, values: Sequence[float], setting: Setting) -> list[float]:
    """Return printed rates in samples per second over all GPUs.

    Raises:
        CannotReduceError: They are bandwidths, which are not throughputs.
        UnknownError: A factor isn't known.
    """
    if rule.unit == "GB/s" and values:
        detail = f"{rule.name} is {values[0]:g} GB/s, which is not a throughput"
        raise CannotReduceError("rule", detail)
    by_node = rule.scope == "per-node" or (rule.scope == "per-rank" and rule.record.ranks == "node")
    width = 1 if rule.scope == "global" else setting.need("nodes" if by_node else "gpus")
    tokens = setting.need("sequence_length") if rule.unit == "tokens" else 1
    factor = width / tokens
    return [value * factor for value in values]


def count_completed(record: Record, number: int, setting: Setting) -> float:
    """Return the completed iterations of a record that prints a number for them.

    They are whole unless the samples of an irregular record end within a step: packed ones do, and
    a micro-batch whose gradients overflow may be trained outside a step.

    Raises:
        CannotReduceError: So many samples or tokens are not a whole number of steps.
        UnknownError: The samples of a step, or the tokens of a sample, are unknown.
    """
    if record.counts_steps:
        return number + 1 - record.first
    length = setting.need("sequence_length") if record.counts == "tokens" else 1
    step = setting.batch("global", micro=False) * length
    if number % step and record.irregular:
        return number / step + 1 - record.first
    if number % step:
        detail = f"{number} {record.counts} are not whole steps of {step}"
        raise CannotReduceError("rule", f"{detail}: check GPUs, batch size and sequence length")
    return number // step + 1 - record.first


def average(rule: Rule, values: Sequence[float], stride: int, setting: Setting) -> float:
    """Reduce the window's numbers, one per record of `stride` iterations, to a throughput."""
    for value in values:
        require_positive(value)
    if rule.kind == "rate":
        return throughput(rule, _mean(values, rule), setting)
    batch = setting.batch(rule.batch, micro=rule.record.counts == "micro-batches")
    if rule.kind == "elapsed":
        return batch * stride * len(values) / math.fsum(values)
    rates = values if rule.kind == "step-rate" else [1 / value for value in values]
    return _mean(rates, rule) * batch


def average_each(rule: Rule, values: Sequence[float], stride: int, setting: Setting) -> list[float]:
    """Return the throughput of each record, as `average` gives it for the record alone."""
    if rule.kind == "rate" and rule.average != "harmonic":
        return throughputs(rule, [require_positive(value) for value in values], setting)
    untrimmed_rule = replace(rule, trim=0) if rule.trim else rule
    return [average(untrimmed_rule, [value], stride, setting) for value in values]


def _mean(values: Sequence[float], rule: Rule) -> float:
    if rule.average == "median":
        return median(values)
    trimmed_values = sorted(values)[rule.trim : len(values) - rule.trim] if rule.trim else values
    if not trimmed_values:
        raise CannotReduceError("window", f"{len(values)} records are too few to trim {rule.trim}")
    if rule.average == "harmonic":
        return len(trimmed_values) / math.fsum(1 / value for value in trimmed_values)
    return math.fsum(trimmed_values) / len(trimmed_values)
