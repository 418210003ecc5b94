"""The nouns of hpcbert as frozen dataclasses; no I/O.

site, recipe, shape, point, repeat, attempt, campaign, rule, throughput: docs/reference/words.md.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hpcbert.errors import UsageError

Precision = Literal["fp32", "tf32", "fp16", "bf16"]
PRECISIONS: tuple[str, ...] = ("fp32", "tf32", "fp16", "bf16")
OptionValue = str | int | float | bool

_SHAPE = re.compile(r"([1-9]\d{0,4})n([1-9]\d{0,2})g")


@dataclass(frozen=True, order=True)
class Shape:
    """N nodes with G GPUs each, written `NnGg`.

    Attributes:
        nodes: Number of nodes, at least 1.
        gpus_per_node: GPUs used on every node, at least 1.
    """

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
            raise UsageError(f"{text!r} is no shape.", hint="Write nodes and GPUs per node: 4n8g.")
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True)
class Point:
    """What is measured: everything that changes the number is part of its identity.

    Attributes:
        framework: Name of the recipe.
        model: Name of the model, for example `bert-base`.
        shape: Nodes and GPUs per node.
        precision: fp32, tf32, fp16 or bf16.
        batch_size_per_device: Samples in one micro-batch of one GPU.
        accumulation: Micro-batches in one optimizer step.
        xla: Whether the framework's graph compiler (XLA, torch.compile) is on.
        protocol: Name of the recipe's protocol; empty where it has but one.
        options: The recipe's other options where they differ from its defaults, by name.
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

    @property
    def global_batch_size(self) -> int:
        """Samples in one optimizer step over all GPUs."""
        return self.shape.gpus * self.batch_size_per_device * self.accumulation

    @property
    def variant(self) -> str:
        """What tells this point from others of its shape, precision and batch; may be empty."""
        words = [self.protocol] if self.protocol else []
        words += [f"acc{self.accumulation}"] if self.accumulation != 1 else []
        words += ["xla"] if self.xla else []
        words += [f"{name}={value}" for name, value in self.options]
        return ",".join(words)

    @property
    def key(self) -> str:
        """Identity within a campaign, safe as a file and job name: `bert-base_4n8g_fp32_b32`."""
        return f"{self.model}_{self.shape}_{self.precision}_b{self.batch_size_per_device}"


@dataclass(frozen=True)
class Protocol:
    """How often and over which iterations a point is measured.

    DLPerf's: five runs; of 120 iterations the first 20 are warm-up and the next 100 count
    (Oneflow-Inc/DLPerf@c89430b, README.md).

    Attributes:
        repeats: Runs of each point.
        iters: Iterations of one run, warm-up included.
        skip: Warm-up iterations.
    """

    repeats: int = 5
    iters: int = 120
    skip: int = 20


@dataclass(frozen=True)
class Array:
    """One point as it is submitted: one script, one `sbatch` call, one job array.

    Attributes:
        name: Job name; carries campaign and point, so that the job can be found without its id.
        repeats: Array indices, from 1.
        script: Path of the rendered script, relative to the campaign.
        script_sha256: Its digest, hexadecimal.
        log: Path of a repeat's log relative to the campaign, with `{repeat}` in it.
        state: `intended` before sbatch is called, then `submitted` or `refused`.
        job_id: What sbatch answered: the array's job id, without cluster name.
        submitted: When it answered, ISO 8601 UTC; empty before.
        error: Why it was refused.
        together: Whether `job_id` is one job that runs the repeats one after another on the same
            nodes, instead of an array with an element for each.
    """

    point: Point
    name: str
    repeats: tuple[int, ...]
    script: str
    script_sha256: str
    log: str
    state: Literal["intended", "submitted", "refused"] = "intended"
    job_id: str = ""
    submitted: str = ""
    error: str = ""
    together: bool = False

    def element(self, repeat: int) -> str:
        """Return the job id that Slurm knows one repeat by, `123_4`; empty before submission."""
        if self.together or not self.job_id:
            return self.job_id
        return f"{self.job_id}_{repeat}"

    def status(self, repeat: int) -> str:
        """Return where the job writes what happens to one repeat, relative to the campaign."""
        return f"status/{self.point.key}.{repeat}.jsonl"


def read_events(raw: bytes) -> tuple[dict[str, Any], ...]:
    """Return the events in the content of a status file, oldest first.

    A line that is no JSON object (a full disk cuts lines) is passed over.
    """
    events = []
    for line in raw.split(b"\n"):
        with contextlib.suppress(ValueError, RecursionError):
            event = json.loads(line)
            if isinstance(event, dict):
                events.append(event)
    return tuple(events)


@dataclass(frozen=True)
class Campaign:
    """What one `submit` started: the content of a manifest.json.

    Attributes:
        id: `<utc>-<framework>-<random>`, also the directory's name.
        created: ISO 8601 UTC.
        hpcbert: Version that made it.
        user: Login name of who submitted.
        command: The command line that was typed.
        scheduler: `slurm` or `local`.
        site: Name of the site.
        runtime: Container runtime: `pyxis`, `enroot` or `none`.
        image: Image reference or path as handed to the runtime; empty without one.
        framework: Name of the recipe; its recipe.toml is copied beside the manifest.
        recipe_digest: Digest of the recipe's folder when it was used.
        protocol: Repeats, iterations and warm-up of every point.
        concurrent_repeats: How many repeats of a point may run at the same time.
        concurrent_points: Whether points may run at the same time; else each waits for the one
            before it, so that no two share the network.
        rehearse: Whether ranks replay the recipe's sample log instead of training.
        arrays: One a point, in the order of submission.
    """

    id: str
    created: str
    hpcbert: str
    user: str
    command: tuple[str, ...]
    scheduler: Literal["slurm", "local"]
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


@dataclass(frozen=True)
class Reason:
    """Why a repeat doesn't count.

    Attributes:
        code: One of a small vocabulary: `state`, `exit`, `no-log`, `incomplete`, `window`,
            `loss`, `config`, `rehearsal`, `rule`.
        detail: A sentence for a person.
    """

    code: str
    detail: str

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


@dataclass(frozen=True)
class Run:
    """One repeat as it stands in a table.

    Attributes:
        repeat: Its number, from 1.
        attempt: 0, or how often Slurm had requeued it before this run.
        throughput: Samples per second over all GPUs; None where there is no trusted number.
        valid: Whether it counts.
        reasons: Why it does not, empty if it does.
        state: The scheduler's word for it (`COMPLETED`, …), `UNKNOWN`, or `-` for logs that
            hpcbert did not submit.
        state_source: `sacct`, `squeue`, `status-file`, `none`.
        log: Path of its log, relative to the campaign or as given.
        nodes: Names of the nodes it ran on, where known.
    """

    repeat: int
    attempt: int
    throughput: float | None
    valid: bool
    reasons: tuple[Reason, ...]
    state: str
    state_source: str
    log: str
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Group:
    """What all rows of one table share.

    Attributes:
        rule: Name of the rule that turned logs into numbers.
        variant: `Point.variant`: accumulation, XLA and options.
    """

    framework: str
    model: str
    precision: str
    batch_size_per_device: int
    rule: str
    variant: str = ""


@dataclass(frozen=True)
class Measured:
    """One point with all its runs, before they are reduced.

    Attributes:
        group: The table it belongs to.
        asked: Repeats that were asked for.
        runs: One a repeat, in order.
        flags: Marks that the measuring has set already, for example `accumulation`.
    """

    group: Group
    shape: Shape
    asked: int
    runs: tuple[Run, ...]
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """One point of a speedup table; numbers unrounded, None where there is none.

    Attributes:
        median, mean, min, max: Samples per second over the valid runs.
        cv: Standard deviation (n - 1) over mean; None below two valid runs.
        speedup: Ratio to the baseline row's median.
        efficiency: Speedup over the ratio of GPUs.
        ok: Valid runs.
        asked: Runs asked for.
        flags: `superlinear`, `outlier`, `incomplete`, `mixed-nodes`, `no-baseline`, `accumulation`.
    """

    shape: Shape
    median: float | None
    mean: float | None
    min: float | None
    max: float | None
    cv: float | None
    speedup: float | None
    efficiency: float | None
    ok: int
    asked: int
    flags: tuple[str, ...]
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class SpeedupTable:
    """The rows that share a group.

    Attributes:
        baseline: Shape whose median is the unit of speedup, or None.
        rows: In the order of GPUs, then nodes.
    """

    group: Group
    baseline: Shape | None
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Option:
    """One setting that a recipe takes through `--set NAME=VALUE`.

    Attributes:
        kind: `str`, `int`, `float` or `bool`.
        choices: The only values allowed, if any.
        measured: Whether it changes the number and so is part of a point's identity.
    """

    name: str
    kind: str
    default: OptionValue
    help: str
    choices: tuple[OptionValue, ...] = ()
    measured: bool = True


@dataclass(frozen=True)
class Preset:
    """A protocol that a recipe knows by name, `[protocols.NAME]`: what a request leaves open.

    Attributes:
        iters, skip: Iterations and warm-up.
        accumulation: Micro-batches in one optimizer step, where it is the same for all shapes.
        global_batch_size: Samples in one optimizer step, from which the accumulation follows.
        samples_per_device: The same as a multiple of the batch size per device.
        xla: Whether the graph compiler is on.
        precisions: The precisions that it is for; empty for all of the recipe's.
        gpus: Whether the nodes' GPUs do the work; a TPU is driven from a node that has none.
    """

    name: str = ""
    help: str = ""
    iters: int = 120
    skip: int = 20
    accumulation: int = 1
    global_batch_size: int = 0
    samples_per_device: int = 0
    xla: bool = False
    precisions: tuple[str, ...] = ()
    gpus: bool = True


@dataclass(frozen=True)
class Sample:
    """What the run of a recipe's sample.log was, and what it must reduce to.

    Attributes:
        throughput: Samples per second by the name of a rule.
    """

    shape: Shape
    batch_size_per_device: int
    precision: str
    accumulation: int
    throughput: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Recipe:
    """All that is known of a framework: one folder under templates/.

    Attributes:
        name: The folder's name.
        title: One line for a person.
        folder: Path of the folder.
        launch: `per-gpu` (one task a GPU) or `per-node` (one task a node).
        mpi: `srun --mpi=` that its ranks need, where the site names none; mostly empty.
        models: Names that `--model` takes; the first is the default.
        precisions: Precisions it can run; the first is the default.
        batch_sizes: Default samples per device by precision.
        xla: Whether `--xla` means anything.
        accumulation: Whether `--accumulation` does.
        options: What `--set` takes.
        protocols: The protocols it knows by name, the first is the default; always one.
        repository, commit, path: Where the upstream program comes from.
        flags: Names of the tables of flags that hold for the program at that commit.
        image: Container image reference, empty where upstream has none.
        base_image, install: What to build an image from where upstream has none.
        files: Files that ranks need, copied into a campaign.
        needs: Names of site settings the run cannot do without: `data`, `source`.
        env: Environment variables that every rank gets.
        log: The `[log]` table, unread: `hpcbert.logs.grammar` knows its form.
        problems: Known problems of the upstream program, one sentence each.
        sample: What sample.log was and gives; None without one.
        digest: SHA-256 over the folder's files.
    """

    name: str
    title: str
    folder: str
    launch: Literal["per-gpu", "per-node"]
    mpi: str
    models: tuple[str, ...]
    precisions: tuple[str, ...]
    batch_sizes: tuple[tuple[str, int], ...]
    xla: bool
    accumulation: bool
    options: tuple[Option, ...]
    protocols: tuple[Preset, ...]
    repository: str
    commit: str
    path: str
    flags: tuple[str, ...]
    image: str
    base_image: str
    install: tuple[str, ...]
    files: tuple[str, ...]
    needs: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    log: dict[str, Any] = field(compare=False)
    problems: tuple[str, ...]
    sample: Sample | None
    digest: str

    def preset(self, name: str) -> Preset:
        """Return the protocol of a name, the first for an empty one.

        Raises:
            KeyError: It has none of that name.
        """
        named = {one.name: one for one in self.protocols}
        return named[name] if name else self.protocols[0]

    def tasks_per_node(self, shape: Shape) -> int:
        """Return how many srun tasks this launch style wants on each node."""
        return shape.gpus_per_node if self.launch == "per-gpu" else 1


@dataclass(frozen=True)
class FrameworkSettings:
    """What a site says about one framework: `[frameworks.NAME]` in site.toml.

    Attributes:
        image: Image reference or path that stands in for the recipe's; empty for the recipe's.
        data: Path of the training data on every node.
        source: Path of the upstream program's checkout, as the ranks see it.
        python: Interpreter that ranks use; empty: hpcbert's own on this machine, else `python3`.
        model: Default model; empty for the recipe's.
        batch_sizes: Default samples per device by precision, before the recipe's.
        options: Defaults for the recipe's options.
    """

    image: str = ""
    data: str = ""
    source: str = ""
    python: str = ""
    model: str = ""
    batch_sizes: tuple[tuple[str, int], ...] = ()
    options: tuple[tuple[str, OptionValue], ...] = ()


@dataclass(frozen=True)
class Site:
    """One cluster, or this machine: what a site.toml says.

    Attributes:
        where: The file that it was read from.
        runs: Directory of the campaigns, absolute.
        partition, account, qos, reservation, constraint: Passed to sbatch where not empty.
        gres: Name (and type) of the GPU resource, `gpu` or `gpu:v100`; empty: none is asked for.
        time_limit: Of one repeat, in Slurm's form `HH:MM:SS`.
        mpi: `srun --mpi=`; empty for the cluster's default.
        exclusive: Whether repeats get whole nodes.
        memory: `sbatch --mem=`; empty for the cluster's default.
        requeue: Whether Slurm may requeue a repeat after a node failure.
        sbatch_args, srun_args: Further options, one word each.
        poll_floor: Shortest interval between two queries of the scheduler, seconds.
        gpus_per_node: GPUs that a node has.
        cpus_per_gpu: CPUs to ask for with each GPU; 0 leaves it to the cluster.
        interface: Network interface whose addresses ranks shall use; empty: what names resolve to.
        mounts: Container mounts, `SRC[:DST[:FLAGS]]` each.
        env: Environment variables for every rank.
        frameworks: Settings by framework.
    """

    where: str
    name: str
    scheduler: Literal["slurm", "local"]
    runs: str
    partition: str
    account: str
    qos: str
    reservation: str
    constraint: str
    gres: str
    time_limit: str
    mpi: str
    exclusive: bool
    memory: str
    requeue: bool
    sbatch_args: tuple[str, ...]
    srun_args: tuple[str, ...]
    poll_floor: float
    gpus_per_node: int
    cpus_per_gpu: int
    interface: str
    runtime: str
    mounts: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    frameworks: tuple[tuple[str, FrameworkSettings], ...]

    def settings(self, framework: str) -> FrameworkSettings:
        """Return what the site says about a framework, or nothing but defaults."""
        return dict(self.frameworks).get(framework, FrameworkSettings())

    def with_settings(self, framework: str, settings: FrameworkSettings) -> Site:
        """Return the site with other settings for one framework."""
        others = tuple(pair for pair in self.frameworks if pair[0] != framework)
        return replace(self, frameworks=(*others, (framework, settings)))
