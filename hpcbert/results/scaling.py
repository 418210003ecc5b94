"""A model of the time of a step on more nodes, fitted to measured points. Pure.

A step takes the time on one node plus the part of the all-reduce between nodes that computation
does not hide. The model assumes only how that part grows with the number of nodes N: by the bytes
that a ring between nodes carries, (N-1)/N, or one over all GPUs, (NG-1)/(NG) (Patarasuk and Yuan
2009, J. Parallel Distrib. Comput. 69, 117-124: 2(p-1)/p of the data through each link); by the
latency of a tree, log2 N; by that of a ring, N-1. No coefficient is negative. Overlap does not need
its own term: the coefficients exclude the time that it hides on every number of nodes.

Few points can't distinguish these. So each model that the points allow is fitted, and the interval
is as wide as their predictions differ; docs/explanation/prediction.md says how good it is.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import mul

from hpcbert.model import SpeedupTable

# How far beyond the largest measured number of nodes the published tables allow a check.
MAX_EXTRAPOLATION = 4
# How much wider than the models' own range the interval is, on either side: chosen by the published
# tables.
MARGIN = 0.05
# Two node counts determine one coefficient; a model needs one point more than it has coefficients.
_MIN_POINTS = 2
# Models are as good as the best one if their squared relative residuals are at most this multiple
# of its own, plus this.
_ALIKE_FACTOR, _NOISE = 4.0, 1e-4
_NEGATIVE = -1e-12
# Terms with a smaller pivot, as a share of the first, can't be distinguished.
_DEPENDENT = 1e-12

# Growth of the exposed all-reduce with nodes and GPUs per node.
GROWTH: dict[str, Callable[[int, int], float]] = {
    "ring": lambda nodes, _: (nodes - 1) / nodes,
    "flat ring": lambda nodes, gpus: 0.0 if nodes == 1 else 1 - 1 / (nodes * gpus),
    "tree": lambda nodes, _: math.log2(nodes),
    "ring latency": lambda nodes, _: float(nodes - 1),
}
_SINGLE_TERMS = (("ring",), ("flat ring",), ("tree",), ("ring latency",))
_PAIRED_TERMS = (("ring", "ring latency"), ("tree", "ring latency"))


@dataclass(frozen=True)
class Fit:
    """One model.

    Attributes:
        residual: Sum of the squared relative residuals.
    """

    seconds: float
    terms: tuple[tuple[str, float], ...]
    residual: float

    def step_seconds(self, nodes: int, gpus_per_node: int) -> float:
        """Return the seconds of a step that this model predicts."""
        return self.seconds + math.fsum(
            value * GROWTH[name](nodes, gpus_per_node) for name, value in self.terms
        )


@dataclass(frozen=True)
class Curve:
    """The known growth of a table over nodes.

    Attributes:
        gpus_per_node: On each node, the same for all points.
        fits: The models that the points allow, the best first.
        reason: Why there are no models, as sentences; empty if there are some.
        spread: Half the range of a point's runs divided by its median; the largest of these.
    """

    gpus_per_node: int
    batch: int
    points: tuple[tuple[int, float], ...]
    single_gpu_seconds: float | None
    fits: tuple[Fit, ...]
    reason: str = ""
    spread: float = 0.0

    @property
    def max_nodes(self) -> int:
        """The largest number of nodes for a prediction: a multiple of the largest measured one."""
        return MAX_EXTRAPOLATION * max((nodes for nodes, _ in self.points), default=0)

    @property
    def residuals(self) -> tuple[tuple[int, float], ...]:
        """For each measured number of nodes, the model's error as a share of the measurement."""
        return tuple(
            (nodes, self.seconds(nodes) / seconds - 1)
            for nodes, seconds in self.points
            if self.fits
        )

    def seconds(self, nodes: int) -> float:
        """Return the seconds of a step: the middle of the models' predictions."""
        if len(self.points) == _MIN_POINTS:
            return self.fits[0].step_seconds(nodes, self.gpus_per_node)
        return statistics.median([fit.step_seconds(nodes, self.gpus_per_node) for fit in self.fits])

    def predict(self, nodes: int) -> Prediction:
        """Return the prediction for some nodes, or the reason for its absence."""
        reason = self.reason
        if nodes > self.max_nodes and not reason:
            largest = max(count for count, _ in self.points)
            factor, enough = nodes / largest, math.ceil(nodes / MAX_EXTRAPOLATION)
            reason = (
                f"{nodes} nodes are {factor:g} times the {largest} that were measured, and beyond "
                f"{MAX_EXTRAPOLATION} times the model was never compared with a measurement. "
                f"A run on {enough} nodes would be enough."
            )
        if reason:
            return Prediction(nodes, self.gpus_per_node, why=reason)
        times = [fit.step_seconds(nodes, self.gpus_per_node) for fit in self.fits]
        margin = max(MARGIN, self.spread)
        middle, low, high = self.seconds(nodes), min(times), max(times)
        samples = nodes * self.gpus_per_node * self.batch
        single_node_seconds = self.fits[0].seconds
        return Prediction(
            nodes,
            self.gpus_per_node,
            throughput=samples / middle,
            low=samples / (high * (1 + margin)),
            high=samples / (low * (1 - margin)),
            step_seconds=middle,
            exposed_seconds=max(0.0, middle - single_node_seconds),
            efficiency=single_node_seconds / middle,
        )


@dataclass(frozen=True)
class Prediction:
    """The prediction for some nodes; None if there is none.

    Attributes:
        throughput: Samples per second over all GPUs; `low` and `high` are its interval.
        exposed_seconds: The part of it that waits for the all-reduce between nodes.
        efficiency: The rate per GPU divided by that on one node.
    """

    nodes: int
    gpus_per_node: int
    throughput: float | None = None
    low: float | None = None
    high: float | None = None
    step_seconds: float | None = None
    exposed_seconds: float | None = None
    efficiency: float | None = None
    why: str = ""


def fit_curve(table: SpeedupTable) -> Curve:
    """Fit a table's growth over nodes, at the number of GPUs per node with the most node counts."""
    batch = table.group.batch_size_per_device
    measured = [(row, row.median) for row in table.rows if row.median]
    seconds = {row.shape: row.shape.gpus * batch / median for row, median in measured}
    counts = Counter(shape.gpus_per_node for shape in seconds)
    width = max(counts, key=lambda gpus: (counts[gpus], gpus), default=0)
    node_seconds = {
        shape.nodes: time for shape, time in seconds.items() if shape.gpus_per_node == width
    }
    points = tuple(sorted(node_seconds.items()))
    single_gpu_seconds = next((time for shape, time in seconds.items() if shape.gpus == 1), None)
    missing_run = _describe_missing_run(points, width)
    fits = () if missing_run else _fit_models(points, width)
    spreads = [
        ((row.max or 0.0) - (row.min or 0.0)) / 2 / median
        for row, median in measured
        if row.shape.gpus_per_node == width
    ]
    spread = max(spreads, default=0.0)
    return Curve(width, batch, points, single_gpu_seconds, fits, missing_run, spread)


def _describe_missing_run(points: Sequence[tuple[int, float]], width: int) -> str:
    """Return the run that would make a prediction possible; empty if none is missing."""
    if len(points) >= _MIN_POINTS:
        return ""
    if not points:
        return "No point has a number."
    (measured_nodes, _), suffix = points[0], f"n{width}g"
    suggested_nodes = 2 * measured_nodes if measured_nodes == 1 else 1
    return (
        f"{measured_nodes}{suffix} alone says nothing about more nodes. "
        f"A run of {suggested_nodes}{suffix} would show the cost of the network."
    )


def _fit_models(points: Sequence[tuple[int, float]], width: int) -> tuple[Fit, ...]:
    """Return the models that the points allow, the best first; each fits two points exactly."""
    if len(points) == _MIN_POINTS:
        return tuple(_fit_model(names, points, width) for names in _SINGLE_TERMS[:3])
    fits = [_fit_model(names, points, width) for names in (*_SINGLE_TERMS, *_PAIRED_TERMS)]
    fits.sort(key=lambda fit: fit.residual)
    limit = _ALIKE_FACTOR * fits[0].residual + _NOISE
    return tuple(fit for fit in fits if fit.residual <= limit)


def _fit_model(names: Sequence[str], points: Sequence[tuple[int, float]], width: int) -> Fit:
    """Return the least squares of relative residuals with no coefficient below zero.

    There are so few terms that all subsets are tried.
    """
    fits = [
        fit
        for count in range(len(names) + 1)
        for terms in combinations(names, count)
        if (fit := _fit_terms(terms, points, width)) is not None
    ]
    return min(fits, key=lambda fit: fit.residual)


def _fit_terms(names: Sequence[str], points: Sequence[tuple[int, float]], width: int) -> Fit | None:
    equations = [
        [1 / seconds, *(GROWTH[name](nodes, width) / seconds for name in names)]
        for nodes, seconds in points
    ]
    solution = _solve_least_squares(equations)
    if solution is None or min(solution) < _NEGATIVE:
        return None
    errors = [math.fsum(map(mul, equation, solution)) - 1 for equation in equations]
    residual = math.fsum(error**2 for error in errors)
    return Fit(solution[0], tuple(zip(names, solution[1:], strict=True)), residual)


def _solve_least_squares(equations: Sequence[Sequence[float]]) -> list[float] | None:
    """Return x for which equations times x is nearest to ones, by the normal equations; None: any.

    Not numpy's: its last digits differ between machines, and they order models that fit exactly.
    """
    columns = [*zip(*equations, strict=True)]
    size = len(columns)
    system = [
        [*(math.fsum(map(mul, column, other)) for other in columns), math.fsum(column)]
        for column in columns
    ]
    for place in range(size):
        pivot = max(range(place, size), key=lambda row: abs(system[row][place]))
        if abs(system[pivot][place]) < _DEPENDENT * abs(system[0][0]):
            return None
        system[place], system[pivot] = system[pivot], system[place]
        for row in range(size):
            if row != place:
                share = system[row][place] / system[place][place]
                pairs = zip(system[row], system[place], strict=True)
                system[row] = [value - share * pivot_value for value, pivot_value in pairs]
    return [system[place][size] / system[place][place] for place in range(size)]
