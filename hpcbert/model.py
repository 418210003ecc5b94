"""The nouns of hpcbert as frozen dataclasses; no I/O.

site, recipe, shape, point, repeat, attempt, campaign, rule, throughput: CONTRIBUTING.md.
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args

from hpcbert.errors import UsageError, join_names
from hpcbert.system.decode import (
    GIVEN,
    Count,
    EncodedAs,
    Filled,
    IgnoreUnknown,
    Invalid,
    Range,
    TableKeys,
)
from hpcbert.system.grouping import group

# fp8: matrix products with a scale per tensor; mxfp8, nvfp4: with one per block of 32 or 16 values
# (OCP Microscaling Formats 1.0; NVIDIA/TransformerEngine, docs/examples/fp8_primer.ipynb).
Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
# Their names in frameworks, DLPerf's folders and by people; automatic mixed precision is fp16.
_SPELLINGS = {
    "fp32": ("float32", "float", "single", "f32"),
    "tf32": ("tensorfloat32", "tensorfloat"),
    "fp16": ("amp", "mixed", "half", "float16", "f16"),
    "bf16": ("bfloat16", "bfloat"),
    "fp8": ("float8", "f8"),
}


# What ranks compute on. `auto`: GPUs, or the CPU if the program finds none; its log says which.
Device = Literal["gpu", "cpu", "auto"]


DEVICES: tuple[Device, ...] = ("gpu", "cpu", "auto")


def parse_device(word: str) -> str:
    """Return the device that a word names, or the word itself."""
    normalized = word.strip().lower()
    return {"gpus": "gpu", "cuda": "gpu", "cpus": "cpu"}.get(normalized, normalized)


def parse_precision(word: str) -> str:
    """Return the precision that a word names, or the word itself."""
    normalized = word.strip().lower().replace("-", "").replace("_", "")
    precisions = [name for name, words in _SPELLINGS.items() if normalized in (name, *words)]
    return next(iter(precisions), normalized if normalized in PRECISIONS else word)


# What a rate counts: samples; tokens, padding included; or sequences, into which programs may pack
# several samples.
Unit = Literal["samples", "tokens", "sequences"]
UNITS: tuple[Unit, ...] = get_args(Unit)

FormatName = Literal["tfrecord", "ofrecord", "hdf5", "npz", "paddle-text", "megatron"]
FORMAT_NAMES: tuple[FormatName, ...] = get_args(FormatName)
# google-research/bert@eedf571, create_pretraining_data.py predicts 15 % of the tokens; the
# published data sets of 128 tokens hold 20 predictions, one more.
PREDICTED_PERCENT = 15
_PUBLISHED_PREDICTIONS = {128: 20}

# Tokens of BERT's uncased English vocabulary in the programs (google-research/bert@eedf571).
USUAL_VOCABULARY = 30522


def usual_predictions(length: int) -> int:
    """Return the most predictions in a sample of `length` tokens: 20 of 128, 76 of 512."""
    return _PUBLISHED_PREDICTIONS.get(length, max(1, length * PREDICTED_PERCENT // 100))


# The batch size of a point that is measured at the largest size that fits its devices, or the
# devices of all points of its curve; and their words.
LARGEST, LARGEST_IN_COMMON = -1, -2
LARGEST_WORDS = {"max": LARGEST, "max-common": LARGEST_IN_COMMON}

OptionValue = str | int | float | bool
Scope = Literal["nodes", "repeats", "points"]

# How a campaign's name begins.
_STAMP = "%Y%m%dT%H%M%SZ"
_SHAPE = re.compile(r"([1-9]\d{0,4})n([1-9]\d{0,2})g")


def format_utc(seconds: float) -> str:
    """Return seconds since the epoch as ISO 8601 UTC, whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def parse_utc(text: object) -> float | None:
    """Return the seconds since the epoch of a text of `format_utc`; None for anything else."""
    return _parse_time(str(text)[:19], "%Y-%m-%dT%H:%M:%S")


def format_stamp(seconds: float) -> str:
    """Return seconds since the epoch as in campaigns' names: `20260131T120000Z`."""
    return time.strftime(_STAMP, time.gmtime(seconds))


def parse_stamp(name: str) -> float | None:
    """Return the time in a campaign's name, seconds since the epoch; None if it has none."""
    return _parse_time(name[:16], _STAMP)


def _parse_time(text: str, form: str) -> float | None:
    try:
        return float(calendar.timegm(time.strptime(text, form)))
    except (ValueError, OverflowError):
        return None


@dataclass(frozen=True, order=True)
class Shape:
    """N nodes with G GPUs each, both at least 1, written `NnGg`."""

    nodes: int
    gpus_per_node: int

    @property
    def gpus(self) -> int:
        """GPUs over all nodes."""
        return self.nodes * self.gpus_per_node

    def __str__(self) -> str:
        return f"{self.nodes}n{self.gpus_per_node}g"

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Read `4n8g`.

        Raises:
            UsageError: The text has another form.
        """
        match = _SHAPE.fullmatch(text)
        if match is None:
            raise UsageError(
                f"{text!r} is not a valid shape.", hint="Write nodes and GPUs per node: 4n8g."
            )
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True)
class Point:
    """A measurement: everything that changes the number is part of its identity.

    Attributes:
        batch_size_per_device: Samples in one micro-batch of one GPU; LARGEST: as many as fit, which
            the point's first repeat finds out; LARGEST_IN_COMMON: as the first point of its curve
            finds out for all.
        accumulation: Micro-batches in one optimizer step.
        xla: Whether the framework's graph compiler (XLA, torch.compile) is on.
        options: The recipe's other options, if they differ from its defaults, by name.
        env: Requested environment variables of the ranks, by name; they are part of the
            measurement.
        samples_per_step: Samples in one optimizer step over all GPUs, from which the accumulation
            follows once the batch size is known; 0 if it does not.
    """

    framework: str
    model: str
    shape: Shape
    precision: str
    batch_size_per_device: int
    accumulation: int = 1
    xla: bool = False
    options: tuple[tuple[str, OptionValue], ...] = ()
    protocol: str = ""
    device: Device = "gpu"
    env: tuple[tuple[str, str], ...] = ()
    samples_per_step: int = 0

    @property
    def largest(self) -> bool:
        """Whether its batch size is the largest that fits its devices, still unknown."""
        return self.batch_size_per_device in LARGEST_WORDS.values()

    @property
    def is_common(self) -> bool:
        """Whether that size is one for all points of its curve."""
        return self.batch_size_per_device == LARGEST_IN_COMMON

    @property
    def batch(self) -> str:
        """Its batch size as typed: `32`, `max`, or `max-common`."""
        words = {size: word for word, size in LARGEST_WORDS.items()}
        return words.get(self.batch_size_per_device, str(self.batch_size_per_device))

    def sized(self, size: int) -> Point:
        """Return the point with the batch size that was found for it."""
        accumulation = self.samples_per_step // (self.shape.gpus * size) or self.accumulation
        return replace(
            self, batch_size_per_device=size, accumulation=accumulation, samples_per_step=0
        )

    @property
    def global_batch_size(self) -> int:
        """Samples in one optimizer step over all GPUs; meaningless for an unknown batch size."""
        return self.shape.gpus * self.batch_size_per_device * self.accumulation

    @property
    def variant(self) -> str:
        """The difference from points of its shape, precision and batch; may be empty."""
        words = [self.protocol] if self.protocol else []
        words += [f"acc{self.accumulation}"] if self.accumulation != 1 else []
        words += [f"gbs{self.samples_per_step}"] if self.samples_per_step else []
        words += ["xla"] if self.xla else []
        words += [f"{name}={value}" for name, value in (*self.options, *self.env)]
        return ",".join(words)

    @property
    def key(self) -> str:
        """Identity within a campaign, safe as a file and job name: `bert-base_4n8g_fp32_b32`.

        On the CPU it ends with `_cpu`.
        """
        device = "_cpu" if self.device == "cpu" else ""
        return f"{self.model}_{self.shape}_{self.precision}_b{self.batch}{device}"

    @property
    def search(self) -> str:
        """Where its jobs record the search for the largest batch, relative to the campaign.

        Points with a common size share the record.
        """
        if not self.is_common:
            return f"status/{self.key}.search.jsonl"
        return f"status/{self.key.replace(f'_{self.shape}_', '_')}.search.jsonl"


@dataclass(frozen=True)
class Protocol(IgnoreUnknown):
    """The number of repeats and the iterations of a point.

    DLPerf's: five runs of 120 iterations, of which the first 20 are warm-up and the next 100 count
    (Oneflow-Inc/DLPerf@c89430b, README.md).

    Attributes:
        repeats: Runs of each point; the maximum if `precision_of_median` is given.
        iters: Iterations of one run, warm-up included.
        window_seconds: Least length of the window: the program trains on after `iters` until it is
            reached, and the window ends where the run does; 0: at `iters`.
        precision_of_median: Runs stop once the interval of the median is narrower than this share
            of the median; None: all runs are made.
    """

    repeats: int = 5
    iters: int = 120
    skip: int = 20
    precision_of_median: float | None = None
    window_seconds: int = 0


@dataclass(frozen=True)
class JobRequest:
    """What the `#SBATCH` lines of an array's script request, each value as sbatch reads it.

    Attributes:
        job_name, comment: Marks by which the job is found.
        array: Indices and throttle, `1-5%1`; empty for one job.
        nodes, tasks_per_node, cpus_per_task: 0 tasks if they are not requested.
        partition, account, qos, clusters: Empty for the default ones.
        gres, memory: Per node; empty if they are not requested.
        nodelist, exclude: Nodes that it must and must not have, as Slurm writes them.
    """

    job_name: str = ""
    comment: str = ""
    array: str = ""
    nodes: int = 1
    tasks_per_node: int = 0
    cpus_per_task: int = 1
    partition: str = ""
    account: str = ""
    qos: str = ""
    clusters: str = ""
    gres: str = ""
    memory: str = ""
    time_limit: str = ""
    exclusive: bool = True
    nodelist: str = ""
    exclude: str = ""
    requeue: bool = False
    output: str = ""

    @property
    def indices(self) -> str:
        """The array's indices, `1-5`."""
        return self.array.partition("%")[0]

    @property
    def throttle(self) -> str:
        """The number of elements that run at a time; empty for one job."""
        return self.array.partition("%")[2]


@dataclass(frozen=True)
class Array:
    """One point as submitted: one script, one `sbatch` call, one job array.

    Attributes:
        name: Job name; contains campaign and point, so that the job can be found without its id.
        log: Path of a repeat's log relative to the campaign, with `{repeat}` in it.
        state: `intended` before sbatch is called, then `submitted` or `refused`.
        job_id: What sbatch answered: the array's job id, without cluster name.
        submitted: When it answered, ISO 8601 UTC; empty before that. If `intended`, its job is not
            known, and sbatch must not be called for it again.
        together: Whether `job_id` is one job that runs the repeats one after another on the same
            nodes, instead of an array with an element for each.
        called: When sbatch was about to be called, ISO 8601 UTC; empty before that.
        retry: 0, or the number of this retry of the point; `repeats` are then those it repeats.
        first_attempt: Number of its first attempt: a retry continues the numbers before it.
        why: For each repeat of a retry its number, its state and what was wrong with it.
        cluster: The cluster that sbatch submits to, as in `--clusters`, then the one that it named
            in its answer; empty: the default of its own configuration.
        workdir: Directory that sbatch was called in, without symbolic links.
        seen: When the controller, or the job's own record, first showed that `job_id` is its job,
            ISO 8601 UTC; empty: neither has yet.
        submit_time: When its job was submitted by the controller's clock, seconds since the epoch;
            None if the controller has not shown it.
        offset: The difference between a repeat's number and its array index: indices end at the
            cluster's MaxArraySize, however many repeats a point has.
        changed: Where the controller's settings differ from the request: its name for the setting,
            the request, its value.
        preflight: Whether it measures the network of the nodes before any point: one job, which
            the other arrays wait for, and no point of a table.
    """

    point: Point
    name: str
    repeats: tuple[int, ...]
    script: str
    script_sha256: str
    log: str
    request: JobRequest = field(default_factory=JobRequest)
    state: Literal["intended", "submitted", "refused"] = "intended"
    job_id: str = ""
    submitted: str = ""
    error: str = ""
    together: bool = False
    called: str = ""
    retry: int = 0
    first_attempt: int = 0
    excluded: tuple[tuple[str, str], ...] = ()
    why: tuple[tuple[int, str, str], ...] = ()
    cluster: str = ""
    workdir: str = ""
    seen: str = ""
    changed: tuple[tuple[str, str, str], ...] = ()
    submit_time: float | None = None
    offset: int = 0
    preflight: bool = False

    @property
    def indices(self) -> tuple[int, ...]:
        """The array indices of its repeats."""
        return tuple(repeat - self.offset for repeat in self.repeats)

    @property
    def is_unconfirmed(self) -> bool:
        """Whether sbatch was called for it, but Slurm has not shown its job yet."""
        if self.state == "submitted":
            return bool(self.workdir) and not self.seen
        return bool(self.called)

    @property
    def is_doubtful(self) -> bool:
        """Whether the job whose id sbatch printed has none of the array's marks."""
        return self.is_unconfirmed and any(setting == "JobName" for setting, _, _ in self.changed)

    def is_described_by(self, name: str, workdir: str) -> bool:
        """Return whether the controller showed this name, not the array's, and this directory."""
        settings = {setting: value for setting, _, value in self.changed}
        return settings.get("JobName") == name and settings.get("WorkDir") in {workdir, None}

    def element(self, repeat: int) -> str:
        """Return the job id of one repeat in Slurm, `123_4`; empty before submission."""
        if self.together or not self.job_id:
            return self.job_id
        return f"{self.job_id}_{repeat - self.offset}"

    def status(self, repeat: int) -> str:
        """Return the path of a repeat's status file, relative to the campaign."""
        return f"status/{self.point.key}.{repeat}.jsonl"


@dataclass(frozen=True)
class Material(IgnoreUnknown):
    """Something that `prepare` made and a campaign used.

    Attributes:
        kind: `image`, `source`, `environment` or `data`.
        name: Its name: an image reference, `REPOSITORY@COMMIT`, `Python 3.9.18`, a format.
        digest: `sha256:…` of an image's file, `git-tree:…` of a checkout, patches applied;
            `packages:…` of a virtual environment: SHA-256 over its packages' names and versions;
            `listing:…` of data: SHA-256 over every file's name, size and beginning.
    """

    kind: Literal["image", "source", "environment", "data"]
    name: str
    path: str
    digest: str


# The file that makes a directory a campaign, and the suffix of archives.
MANIFEST = "manifest.json"
ARCHIVE = ".zip"
# How the name of a campaign begins while it is removed; it is none any more.
REMOVED = ".hpcbert-removed-"


@dataclass(frozen=True)
class Campaign:
    """Everything that one `submit` started: the content of a manifest.json.

    Attributes:
        id: `<utc>-<framework>-<random>`, also the directory's name.
        scheduler: `slurm`, `local` or another of `hpcbert.config.schedulers`.
        runtime: Container runtime: `pyxis`, `enroot` or `none`.
        image: Image reference or path as given to the runtime; empty without one.
        recipe_digest: Digest of the recipe's folder when it was used.
        concurrent_repeats: How many repeats of a point may run at the same time.
        concurrent_points: Whether points may run at the same time; otherwise each waits for the one
            before it, so that no two share the network.
        arrays: One per point, in the order of submission; last the preflight, which is submitted
            first.
        materials: Image, source and data as `prepare` recorded them, if it did.
        after: Id of the campaign next to it that was submitted with it and must be over first;
            empty if there is none.
        library: Name and SHA-256 of each file in `scripts/` that its scripts read.
        shares_nodes: Whether its partition overrules the request for whole nodes: jobs that hpcbert
            does not see may run on them too.
        submission: Id of the first campaign that one command line or file made with this one; empty
            if it made no other.
    """

    id: str
    created: str
    hpcbert: str
    user: str
    command: tuple[str, ...]
    scheduler: str
    site: str
    runtime: str
    image: str
    framework: str
    recipe_digest: str
    protocol: Protocol
    concurrent_repeats: int
    concurrent_points: bool
    rehearse: bool
    arrays: tuple[Array, ...]
    materials: tuple[Material, ...] = ()
    uid: int | None = None
    name: str = ""
    after: str = ""
    library: tuple[tuple[str, str], ...] = ()
    submission: str = ""
    position: int = 0
    shares_nodes: bool = False

    @property
    def owner(self) -> str:
        """The submitter in Slurm's commands: the uid, which USER can't change."""
        return self.user if self.uid is None else str(self.uid)

    @cached_property
    def measured(self) -> tuple[Array, ...]:
        """The arrays of its points: all but the preflight."""
        return tuple(array for array in self.arrays if not array.preflight)

    @property
    def variant(self) -> str:
        """The variant that all its points share; may be empty."""
        variants = {array.point.variant for array in self.measured}
        return variants.pop() if len(variants) == 1 else ""

    @property
    def preflight(self) -> Array | None:
        """The job that measures the network of the nodes before any point; None without one."""
        return next((array for array in self.arrays if array.preflight), None)

    @property
    def in_order(self) -> tuple[Array, ...]:
        """All arrays in the order of submission."""
        return tuple(sorted(self.arrays, key=lambda array: not array.preflight))

    @cached_property
    def current(self) -> tuple[tuple[Array, int], ...]:
        """Every repeat with the array that it was submitted in last, points in order."""
        newest = {
            (array.point, number): array for array in self.measured for number in array.repeats
        }
        return tuple((array, number) for (_, number), array in newest.items())

    @cached_property
    def of_point(self) -> dict[Point, tuple[Array, ...]]:
        """The arrays of each point, oldest first."""
        groups = group((array.point, array) for array in self.measured)
        return {point: tuple(arrays) for point, arrays in groups.items()}

    @property
    def accepted(self) -> bool:
        """Whether the scheduler accepted an array, or may have: an answer may be missing."""
        return any(
            array.state == "submitted" or (array.state == "intended" and array.called)
            for array in self.arrays
        )

    @property
    def unsubmitted(self) -> tuple[Array, ...]:
        """The arrays that are not in the scheduler yet and that no retry replaced."""
        return tuple(
            array
            for array in self.arrays
            if array.state != "submitted" and not self.is_superseded(array)
        )

    def is_superseded(self, array: Array) -> bool:
        """Return whether retries replaced every repeat of an array."""
        return not array.preflight and array.name not in self._current_names

    @cached_property
    def _current_names(self) -> frozenset[str]:
        return frozenset(array.name for array, _ in self.current)


def _parse_shape(text: str) -> Shape:
    try:
        return Shape.parse(text)
    except UsageError as error:
        raise Invalid("must be a shape such as 4n8g", value=text) from error


def _check_positive(value: float) -> float:
    if value <= 0:
        raise Invalid("must be above 0", value=value)
    return value


def _last_iteration(iters: int | str) -> int | None:
    return None if isinstance(iters, str) else iters


# Values of documents of results.
ShapeText = Annotated[Shape, EncodedAs(str, _parse_shape)]
Speed = Annotated[float, _check_positive]
Whole = Annotated[int, Range(0)]


# The reason of a repeat that waits or runs.
UNFINISHED = "unfinished"


@dataclass(frozen=True)
class Reason(IgnoreUnknown):
    """Why a repeat is invalid.

    Attributes:
        code: One of a small vocabulary: `state`, `exit`, `no-log`, `format`, `incomplete`,
            `window`, `contradiction`, `loss`, `config`, `clock`, `shared-nodes`, `rehearsal`,
            `rule`, `device-oom`, `host-oom`, `error`, `search`, `unfinished`.
    """

    code: str
    detail: str

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


@dataclass(frozen=True)
class Attempt(IgnoreUnknown):
    """One of several runs of a repeat; all stay on record, one is used.

    Attributes:
        attempt: Its number, from 0.
        job: Its id in Slurm, `123_4`; empty if it never got one.
        state: How it ended: the scheduler's word if known, else the job's own.
        start, end: Seconds since the epoch; None if not recorded.
        log: Path of its log relative to the campaign; empty if there is none.
        state_source: The source: `sacct`, `squeue`, `status-file`, `manifest` (a retry wrote it
            there), `none`.
    """

    attempt: int
    job: str
    state: str
    detail: str
    nodes: tuple[str, ...]
    start: float | None
    end: float | None
    log: str
    state_source: str


@dataclass(frozen=True)
class Sampled(IgnoreUnknown):
    """Power and memory of a run's GPUs while it was measured, from the samplers on its nodes.

    Attributes:
        watts: Mean over the window, of all its GPUs together.
        memory_mib: The most that one of them used, MiB.
        samples: How often each node's GPUs were sampled in it, the fewest of all nodes.
    """

    watts: float
    memory_mib: float
    gpus: int
    seconds: float
    samples: int


@dataclass(frozen=True)
class Metrics(IgnoreUnknown):
    """The metrics of a point; None if something needed for a value is unknown.

    Attributes:
        tokens_per_second: The median times a sample's tokens, padding included; of packed
            sequences, its share of one.
        real_tokens_per_second: The same without padding.
        sequences_per_second: The median over the samples that are packed into a sequence.
        step_seconds: Median time of an iteration, as the logs count them, inside the windows of all
            valid runs.
        step_seconds_p95: The time that 95 % of these do not exceed.
        model_flops_per_sample: Floating-point operations that training on one sample needs,
            padding included.
        peak_flops_per_second: Dense peak of one GPU at the precision, as its vendor states it.
        mfu: Model FLOP utilization: the share of the GPUs' peak that the operations for real tokens
            are.
        mfu_padded: The same with padding counted as work.
        watts: Mean power of all GPUs together inside the window; the median of the valid runs.
        unknown: For each value that is None, its name, and why, as a clause.
    """

    samples_per_second_per_gpu: Speed | None = None
    tokens_per_second: Speed | None = None
    real_tokens_per_second: Speed | None = None
    sequences_per_second: Speed | None = None
    step_seconds: Speed | None = None
    step_seconds_p95: Speed | None = None
    model_flops_per_sample: Speed | None = None
    peak_flops_per_second: Speed | None = None
    mfu: Speed | None = None
    mfu_padded: Speed | None = None
    gpu_memory_mib: Speed | None = None
    watts: Speed | None = None
    samples_per_joule: Speed | None = None
    unknown: tuple[Annotated[tuple[str, str], TableKeys("metric", "why")], ...] = ()


@dataclass(frozen=True)
class Note(IgnoreUnknown):
    """A clause about a flag of a run: the numbers behind it."""

    flag: str
    detail: str


class JobOutput(NamedTuple):
    """The output of a job script, to which each attempt of a requeued job appends."""

    path: Path
    attempt: int


@dataclass(frozen=True)
class Run(IgnoreUnknown):
    """One repeat in a table.

    Attributes:
        attempt: 0, or the number of attempts before this one.
        throughput: Samples per second over all GPUs; None if there is no trusted number.
        state: The scheduler's word for it (`COMPLETED`, …), `UNKNOWN`, or `-` for logs that
            hpcbert did not submit.
        state_source: `sacct`, `squeue`, `status-file`, `none`.
        log: Path of its log, relative to the campaign or as given.
        attempts: All its attempts, including this one; empty if there was only one.
        environments: Name and digest of each node's fingerprint; equal nodes have equal digests.
        flags: Marks of this repeat, for example `outlier`; its row has them too.
    """

    repeat: Count
    attempt: Whole
    throughput: Speed | None
    valid: bool
    reasons: tuple[Reason, ...]
    state: str
    state_source: str
    log: str
    nodes: tuple[str, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    environments: tuple[Annotated[tuple[str, str], TableKeys("node", "digest")], ...] = ()
    flags: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    sampled: Sampled | None = None


def valid_throughputs(runs: Iterable[Run]) -> list[float]:
    """Samples per second of the valid runs."""
    return [run.throughput for run in runs if run.valid and run.throughput is not None]


@dataclass(frozen=True)
class Difference(IgnoreUnknown):
    """Something about the nodes that differs and can change a number.

    Attributes:
        scope: Whether it differs between `nodes` of one repeat, `repeats` of a point, or `points`.
        values: Each value, with the nodes, repeats or shapes that have it.
        decisive: Whether runs that differ in it are different experiments.
    """

    fact: str
    scope: Scope
    values: tuple[Annotated[tuple[str, tuple[str, ...]], TableKeys("value", "of")], ...]
    decisive: bool = False

    def __str__(self) -> str:
        parts = [
            f"{value or 'empty'} ({join_names(owners, most=4)})" for value, owners in self.values
        ]
        return f"{self.fact} differs between {self.scope}: {'; '.join(parts)}"


@dataclass(frozen=True)
class Group:
    """The common settings of all rows of one table.

    Attributes:
        variant: `Point.variant`: accumulation, XLA and options.
        device: `gpu`, or `cpu` if ranks computed on that; `gpu` too if unknown.
        largest: Whether the batch size is the largest that fits the devices, as its runs
            found it; the size is 0 if they found none.
    """

    framework: Filled
    model: Filled
    precision: Filled
    batch_size_per_device: Whole
    rule: str
    variant: str = ""
    device: Literal["gpu", "cpu"] = "gpu"
    largest: bool = False

    @property
    def batch(self) -> str:
        """Its batch size for people: `32`, or `max (176)` where that was found to be the most."""
        size = self.batch_size_per_device
        if not self.largest:
            return str(size)
        return f"max ({size})" if size else "max"


@dataclass(frozen=True)
class Counted(IgnoreUnknown):
    """The measured part of each run.

    Attributes:
        iters: Requested last iteration; None for the end of the run.
        counted: The rule's reading of that, as text: `iterations 21 to 120`.
    """

    skip: Whole
    iters: Annotated[int | None, EncodedAs(Count | Literal["end"], _last_iteration)]
    counted: str


@dataclass(frozen=True)
class Adaptive(IgnoreUnknown):
    """The result of repeating a point until its median was precise enough.

    Attributes:
        precision_of_median: The required width of the median's interval, as a share of the median.
        unneeded: Numbers of the runs that were not needed.
    """

    precision_of_median: Annotated[float, Range(0)]
    max_repeats: Count
    unneeded: tuple[int, ...] = ()


@dataclass(frozen=True)
class Provenance(IgnoreUnknown):
    """Which version made tables, when, and with which command.

    Attributes:
        date: ISO 8601 UTC.
        command: The command line, secrets masked.
    """

    hpcbert: str
    date: str
    command: str


@dataclass(frozen=True)
class Origin(IgnoreUnknown):
    """The source of a point's numbers.

    Attributes:
        name: Its name: the campaign's id, the logs' path, a table of the record.
        path: Where it is now; empty if unknown. A copy has the same origin.
    """

    kind: Literal["campaign", "logs", "record"]
    name: str
    path: str = field(default="", compare=False)


def _list_facts(facts: Mapping[str, tuple[str, ...]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple(facts.items())


# Facts from nodes and logs: each fact by name, with all values seen. Documents write a table.
Facts = Annotated[
    tuple[tuple[str, tuple[str, ...]], ...], EncodedAs(Mapping[str, tuple[str, ...]], _list_facts)
]


@dataclass(frozen=True)
class Steps:
    """The iterations of one run, up to the end of its window.

    Attributes:
        iterations: The end of each record, in completed iterations, as the log counts them: in
            micro-batches, if the program counts those.
        seconds: Time of one iteration, averaged over those that the record covers.
        after, until: The window: iterations above `after` up to `until` are measured.
    """

    iterations: Sequence[int]
    seconds: Sequence[float]
    after: int
    until: int

    @property
    def measured(self) -> list[float]:
        """Seconds of the iterations in the window."""
        pairs = zip(self.iterations, self.seconds, strict=True)
        return [seconds for iteration, seconds in pairs if self.after < iteration <= self.until]


@dataclass(frozen=True, kw_only=True)
class PointRecord(IgnoreUnknown):
    """What a point keeps when its runs are reduced to a row.

    Attributes:
        flags: Those of docs/explanation/numbers.md, including the marks of its valid runs.
        differences: Differences between the nodes of its valid runs, or from those of another
            point's: behind `mixed-environment`.
        facts: Facts from the nodes and the logs of its valid runs.
        steps: Durations of the iterations of its runs, by repeat, as far as logs have them.
        adaptive: None if the number of repeats was fixed.
        unchecked: Labels of its table that a valid log does not confirm: `gpus`, `batch`.
    """

    runs: tuple[Run, ...] = ()
    flags: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    window: Counted | None = None
    origin: Origin | None = None
    facts: Facts = ()
    steps: Annotated[tuple[tuple[int, Steps], ...], GIVEN] = field(
        default=(), compare=False, repr=False
    )
    adaptive: Adaptive | None = None
    unchecked: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measured(PointRecord):
    """One point with all its runs, before they are reduced; its flags are those of measuring."""

    group: Group
    shape: Shape
    asked: int


@dataclass(frozen=True)
class RepeatCount(IgnoreUnknown):
    """How many repeats of a point are valid, and how many were requested."""

    ok: Whole
    asked: Whole


@dataclass(frozen=True)
class Row(PointRecord):
    """One point of a speedup table; numbers unrounded, None if missing.

    Attributes:
        median, mean, min, max: Samples per second over the valid runs.
        cv: Standard deviation (n - 1) over mean; None below two valid runs.
        speedup: Ratio to the baseline row's median.
        efficiency: Speedup over the ratio of GPUs.
    """

    shape: ShapeText
    median: Speed | None
    repeats: RepeatCount
    mean: Speed | None = None
    min: Speed | None = None
    max: Speed | None = None
    cv: Annotated[float, Range(0)] | None = None
    speedup: Speed | None = None
    efficiency: Speed | None = None
    metrics: Metrics | None = None

    @property
    def ok(self) -> int:
        """Number of valid runs."""
        return self.repeats.ok

    @property
    def asked(self) -> int:
        """Number of requested runs."""
        return self.repeats.asked

    @property
    def unfinished(self) -> int:
        """Number of runs that wait or run."""
        return sum(any(reason.code == UNFINISHED for reason in run.reasons) for run in self.runs)

    @property
    def published(self) -> bool:
        """Whether it is from the published record: its runs may be a median alone."""
        return self.origin is not None and self.origin.kind == "record"


@dataclass(frozen=True)
class SpeedupTable:
    """The rows that share a group.

    Attributes:
        rows: In order of GPUs, then nodes.
        unit: What its rates count. Documents keep samples, and add the rates in the unit.
    """

    group: Group
    baseline: Shape | None
    rows: tuple[Row, ...]
    unit: Unit = "samples"
