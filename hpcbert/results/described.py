"""The parts of a document of results: `results.saved` reads it by this description.

The numbers of the tables are compared with their runs: a changed table is refused.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - the reader of documents looks it up
from dataclasses import dataclass, field, fields
from math import isclose
from typing import Annotated, Any, Literal, TypeVar

from hpcbert.config.decode import Count, Invalid, Open, Range, Written
from hpcbert.errors import UsageError
from hpcbert.logs.arithmetic import median
from hpcbert.model import (
    Adaptive,
    Attempt,
    Counted,
    Difference,
    Group,
    Material,
    Metrics,
    Note,
    Origin,
    Protocol,
    Provenance,
    Reason,
    Row,
    Run,
    Sampled,
    Scope,
    Shape,
    SpeedupTable,
)
from hpcbert.results.resultset import NodeFacts, Source

T = TypeVar("T")

# hpcbert writes all digits; another program may have dropped the last one.
_NEAR = 1e-9


def _shape(text: str) -> Shape:
    try:
        return Shape.parse(text)
    except UsageError as error:
        raise Invalid("must be a shape such as 4n8g", value=text) from error


def _positive(value: float) -> float:
    if value <= 0:
        raise Invalid("must be above 0", value=value)
    return value


def _named(text: str) -> str:
    if not text:
        raise Invalid("is empty")
    return text


ShapeText = Annotated[Shape, Written(str, _shape)]
Speed = Annotated[float, _positive]
Whole = Annotated[int, Range(0)]


@dataclass(frozen=True)
class _Made(Provenance, Open):
    """How the tables were made."""


@dataclass(frozen=True)
class _Reason(Reason, Open):
    """Why a run is invalid."""


@dataclass(frozen=True)
class _Attempt(Attempt, Open):
    """One attempt of a repeat."""


@dataclass(frozen=True)
class _Origin(Origin, Open):
    """The origin of a row."""


@dataclass(frozen=True)
class _Environment(Open):
    """A node's fingerprint."""

    node: str
    digest: str


@dataclass(frozen=True)
class _Sampled(Sampled, Open):
    """The samples of a run's GPUs."""


@dataclass(frozen=True)
class _Unknown(Open):
    """An unknown metric of a point."""

    metric: str
    why: str


@dataclass(frozen=True)
class _Metrics(Open):
    """The metrics of a point."""

    samples_per_second_per_gpu: Speed | None = None
    tokens_per_second: Speed | None = None
    real_tokens_per_second: Speed | None = None
    step_seconds: Speed | None = None
    step_seconds_p95: Speed | None = None
    model_flops_per_sample: Speed | None = None
    peak_flops_per_second: Speed | None = None
    mfu: Speed | None = None
    mfu_padded: Speed | None = None
    gpu_memory_mib: Speed | None = None
    watts: Speed | None = None
    samples_per_joule: Speed | None = None
    unknown: tuple[_Unknown, ...] = ()

    @property
    def metrics(self) -> Metrics:
        """It as the model has it."""
        return model_of(Metrics, self, unknown=tuple((one.metric, one.why) for one in self.unknown))


@dataclass(frozen=True)
class _Note(Note, Open):
    """The numbers behind a flag."""


@dataclass(frozen=True)
class _Run(Open):
    """One repeat."""

    repeat: Count
    attempt: Whole
    throughput: Speed | None
    valid: bool
    state: str
    state_source: str
    log: str
    reasons: tuple[_Reason, ...] = ()
    flags: tuple[str, ...] = ()
    notes: tuple[_Note, ...] = ()
    nodes: tuple[str, ...] = ()
    environments: tuple[_Environment, ...] = ()
    attempts: tuple[_Attempt, ...] = ()
    sampled: _Sampled | None = None

    def __post_init__(self) -> None:
        if self.valid and self.throughput is None:
            raise Invalid("is missing, but the run is valid", key="throughput")

    @property
    def run(self) -> Run:
        """It as the model has it."""
        return model_of(
            Run,
            self,
            reasons=tuple(model_of(Reason, one) for one in self.reasons),
            notes=tuple(model_of(Note, note) for note in self.notes),
            environments=tuple((one.node, one.digest) for one in self.environments),
            attempts=tuple(model_of(Attempt, one) for one in self.attempts),
            sampled=self.sampled and model_of(Sampled, self.sampled),
        )


@dataclass(frozen=True)
class _Value(Open):
    """One of the values of a fact that differs."""

    value: str
    of: tuple[str, ...]


@dataclass(frozen=True)
class _Difference(Open):
    """The differences between nodes."""

    fact: str
    scope: Scope
    values: tuple[_Value, ...]

    @property
    def difference(self) -> Difference:
        """The same in the model's form; documents omit its effect on verdicts."""
        return Difference(self.fact, self.scope, tuple((one.value, one.of) for one in self.values))


@dataclass(frozen=True)
class _Window(Open):
    """The measured part of each run."""

    skip: Whole
    iters: Count | Literal["end"]
    counted: str


@dataclass(frozen=True)
class _Repeats(Open):
    """Valid repeats, and requested ones."""

    ok: Whole
    asked: Whole


@dataclass(frozen=True)
class _Adaptive(Open):
    """Why a point's repeats ended."""

    precision_of_median: Annotated[float, Range(0)]
    max_repeats: Count
    unneeded: tuple[int, ...] = ()

    @property
    def adaptive(self) -> Adaptive:
        """It as the model has it."""
        return Adaptive(self.precision_of_median, self.max_repeats, self.unneeded)


@dataclass(frozen=True)
class _Row(Open):
    """One point."""

    shape: ShapeText
    median: Speed | None
    repeats: _Repeats
    mean: Speed | None = None
    min: Speed | None = None
    max: Speed | None = None
    cv: Annotated[float, Range(0)] | None = None
    speedup: Speed | None = None
    efficiency: Speed | None = None
    flags: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    window: _Window | None = None
    differences: tuple[_Difference, ...] = ()
    origin: _Origin | None = None
    facts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    metrics: _Metrics | None = None
    adaptive: _Adaptive | None = None
    runs: tuple[_Run, ...] = ()

    def __post_init__(self) -> None:
        speeds = [one.throughput for one in self.runs if one.valid and one.throughput is not None]
        published = self.origin is not None and self.origin.kind == "record"
        if not published and self.repeats.ok != len(speeds):
            found = f"is {self.repeats.ok}, but {len(speeds)} of its runs are valid"
            raise Invalid(found, key="repeats.ok")
        if self.median is None or published:
            return
        if not speeds:
            raise Invalid(f"is {self.median:g}, but none of its runs is valid", key="median")
        _hold("median", self.median, median(speeds))
        _hold("min", self.min, min(speeds))
        _hold("max", self.max, max(speeds))

    @property
    def row(self) -> Row:
        """It as the model has it."""
        window = self.window
        iters = None if window is None or window.iters == "end" else int(window.iters)
        return model_of(
            Row,
            self,
            ok=self.repeats.ok,
            asked=self.repeats.asked,
            runs=tuple(one.run for one in self.runs),
            differences=tuple(one.difference for one in self.differences),
            counted=Counted(window.skip, iters, window.counted) if window else None,
            origin=self.origin and model_of(Origin, self.origin),
            facts=tuple(self.facts.items()),
            metrics=self.metrics and self.metrics.metrics,
            adaptive=self.adaptive and self.adaptive.adaptive,
            steps=(),
        )


@dataclass(frozen=True, kw_only=True)
class _Table(Group, Open):
    """The rows that share a group."""

    framework: Annotated[str, _named]
    model: Annotated[str, _named]
    precision: Annotated[str, _named]
    batch_size_per_device: Whole
    baseline: ShapeText | None
    rows: tuple[_Row, ...]

    def __post_init__(self) -> None:
        shapes = [one.shape for one in self.rows]
        base = next((one.median for one in self.rows if one.shape == self.baseline), None)
        for number, one in enumerate(self.rows, 1):
            place = f"rows[{number}]"
            if one.shape in shapes[: number - 1]:
                raise Invalid(f"is {one.shape}, which is there already", key=place)
            if one.speedup is not None and base and one.median:
                speedup = one.median / base
                _hold(f"{place}.speedup", one.speedup, speedup)
                _hold(f"{place}.efficiency", one.efficiency, speedup / one.shape.gpus)

    @property
    def table(self) -> SpeedupTable:
        """It as the model has it."""
        return SpeedupTable(
            model_of(Group, self), self.baseline, tuple(one.row for one in self.rows)
        )


@dataclass(frozen=True)
class _Taken(NodeFacts, Open):
    """The facts of some nodes."""


@dataclass(frozen=True)
class _Protocol(Protocol, Open):
    """The protocol of the points."""


@dataclass(frozen=True)
class _Material(Material, Open):
    """A part that `prepare` had made."""


@dataclass(frozen=True)
class _Source(Source, Open):
    """The source of points."""

    protocol: _Protocol | None = None
    materials: tuple[_Material, ...] = ()
    environments: tuple[_Taken, ...] = ()

    @property
    def source(self) -> Source:
        """It as the model has it."""
        return model_of(
            Source,
            self,
            protocol=self.protocol and model_of(Protocol, self.protocol),
            materials=tuple(model_of(Material, one) for one in self.materials),
            environments=tuple(model_of(NodeFacts, one) for one in self.environments),
        )


@dataclass(frozen=True)
class _LeftOut(Open):
    """A file that no table uses."""

    path: str
    why: str


@dataclass(frozen=True)
class Results(Open):
    """The whole document."""

    tables: tuple[_Table, ...]
    made: _Made | None = None
    sources: tuple[_Source, ...] = ()
    refused: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    left_out: tuple[_LeftOut, ...] = ()


@dataclass(frozen=True)
class Envelope(Open):
    """The document that `--json` prints."""

    version: int
    command: str
    data: Results


def model_of(kind: type[T], part: object, **made: Any) -> T:
    """Return a part of a document in the model's form."""
    names = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: getattr(part, name) for name in names if name not in made}, **made)


def _hold(key: str, stated: float | None, found: float) -> None:
    """Compare a number with the result of its runs.

    Raises:
        Invalid: They differ.
    """
    if stated is not None and not isclose(stated, found, rel_tol=_NEAR):
        raise Invalid(f"is {stated!r}, but its runs give {found!r}", key=key)
