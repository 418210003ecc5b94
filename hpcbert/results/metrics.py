"""How good a number is: per GPU, in tokens, in steps, against the GPUs' peak, and in joules. Pure.

docs/explanation/metrics.md has the formulas and their sources. A metric that needs an unknown value
is None, and `unknown` names what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hpcbert.data.names import usual_predictions
from hpcbert.logs.arithmetic import median
from hpcbert.logs.sizes import stated_by
from hpcbert.model import Metrics
from hpcbert.results.peaks import peak

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcbert.model import Facts, Measured

# The size of BERT's uncased English vocabulary in the programs (google-research/bert@eedf571).
_VOCABULARY = 30522
_P95 = 0.95


class Model(NamedTuple):
    """The sizes that determine a model's operations.

    Attributes:
        intermediate: Width inside the feed-forward layer.
        vocabulary: Tokens that the masked-LM head distinguishes.
    """

    layers: int
    hidden: int
    intermediate: int
    vocabulary: int = _VOCABULARY


def model_named(name: str) -> Model | None:
    """Return the sizes of a named model, such as `bert-base`."""
    sizes = stated_by(name)
    if not sizes:
        return None
    return Model(sizes["layers"], sizes["hidden_size"], 4 * sizes["hidden_size"])


def model_flops(model: Model, length: int, masked: int | None = None) -> float:
    """Return the floating-point operations that training on one sample needs.

    6 operations for each token and weight of a matrix product (Kaplan et al. 2020,
    arXiv:2001.08361, section 2.1; the backward pass takes twice the forward pass): the blocks take
    all tokens, padding included, the masked-LM head the masked ones, and the pooler and its head
    one. The attention's own products are 12 * hidden * length^2 a layer (Chowdhery et al. 2022,
    arXiv:2204.02311, appendix B). Embeddings, norms, dropout, the optimizer and recomputation are
    left out.

    Args:
        model: The model.
        length: Tokens of a sample.
        masked: Masked tokens that are predicted; by default, the number in the data sets.
    """
    predicted = usual_predictions(length) if masked is None else masked
    hidden = model.hidden
    block = 4 * hidden**2 + 2 * hidden * model.intermediate
    return float(
        6 * model.layers * block * length
        + 12 * model.layers * hidden * length**2
        + 6 * (hidden**2 + hidden * model.vocabulary) * predicted
        + 6 * (hidden**2 + 2 * hidden)
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that this share of the values does not exceed (nearest rank)."""
    ranked = sorted(values)
    return ranked[max(0, -(-len(ranked) * round(share * 1000) // 1000) - 1)]


def metrics_of(point: Measured, speed: float | None) -> Metrics | None:
    """Return a point's metrics; None if it has no number.

    Args:
        point: The point with its runs.
        speed: The median, samples per second over all GPUs.
    """
    if speed is None:
        return None
    unknown: dict[str, str] = {}
    gpus = point.shape.gpus
    length = _length(point, unknown)
    model = model_named(point.group.model)
    flops = model_flops(model, length) if model and length else None
    if model is None:
        why = f"the sizes of {point.group.model} are unknown"
        unknown |= dict.fromkeys(("model_flops_per_sample", "mfu"), why)
    best = _peak(point, unknown)
    watts, memory = _sampled(point, unknown)
    steps = _steps(point, unknown)
    return Metrics(
        samples_per_second_per_gpu=speed / gpus,
        tokens_per_second=speed * length if length else None,
        step_seconds=median(steps) if steps else None,
        step_seconds_p95=percentile(steps, _P95) if steps else None,
        model_flops_per_sample=flops,
        peak_flops_per_second=best,
        mfu=speed * flops / (gpus * best) if flops and best else None,
        gpu_memory_mib=memory,
        watts=watts,
        samples_per_joule=speed / watts if watts else None,
        unknown=tuple(sorted(unknown.items())),
    )


def _only(facts: Facts, *names: str) -> tuple[str, ...]:
    """Return the values of the first of some facts that is known."""
    known = dict(facts)
    return next((known[name] for name in names if known.get(name)), ())


def _length(point: Measured, unknown: dict[str, str]) -> int | None:
    values = _only(point.facts, "sequence_length")
    if len(values) == 1 and values[0].isdigit() and int(values[0]) > 0:
        return int(values[0])
    why = "nothing says how many tokens a sample has"
    unknown |= dict.fromkeys(("tokens_per_second", "model_flops_per_sample", "mfu"), why)
    return None


def _peak(point: Measured, unknown: dict[str, str]) -> float | None:
    group = point.group
    names = _only(point.facts, "GPU", "device")
    found = peak(names[0], group.precision) if len(names) == 1 else None
    if group.device == "cpu":
        found, why = None, "it ran on the CPU, which has no known peak"
    elif not names:
        why = "nothing says what the GPUs are"
    elif len(names) > 1:
        why = f"the GPUs differ: {', '.join(names)}"
    else:
        why = f"no known data sheet states the peak of {names[0]} at {group.precision}"
    if found is None:
        unknown |= dict.fromkeys(("peak_flops_per_second", "mfu"), why)
    return found


def _sampled(point: Measured, unknown: dict[str, str]) -> tuple[float | None, float | None]:
    """Return watts and memory from the runs in which all GPUs were sampled."""
    own = [run.sampled for run in point.runs if run.valid and run.sampled]
    whole = [one for one in own if one.gpus == point.shape.gpus]
    if whole:
        memory = max(one.memory_mib for one in whole)
        return median([one.watts for one in whole]), memory
    names = ("watts", "samples_per_joule", "gpu_memory_mib")
    why = "nothing sampled the GPUs long enough inside the window"
    if point.group.device == "cpu":
        why = "it ran on the CPU, which is not sampled"
    elif own:
        why = f"{own[0].gpus} of {point.shape.gpus} GPUs were sampled"
    unknown |= dict.fromkeys(names, why)
    return None, None


def _steps(point: Measured, unknown: dict[str, str]) -> list[float]:
    valid = {run.repeat for run in point.runs if run.valid}
    steps = [one for repeat, own in point.steps if repeat in valid for one in own.measured]
    if not steps:
        why = "the logs print no times of single steps"
        unknown |= dict.fromkeys(("step_seconds", "step_seconds_p95"), why)
    return steps
