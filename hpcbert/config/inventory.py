"""What a site has and what a recipe knows, as frozen dataclasses; no I/O.

Apart from the nouns of `hpcbert.model`, which reading logs needs and these it does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping  # noqa: TC003  annotations are read
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from hpcbert.config import slurmwords
from hpcbert.config.decode import GIVEN, Invalid, Range
from hpcbert.config.schedulers import known
from hpcbert.model import OptionValue, Precision  # noqa: TC001  likewise
from hpcbert.timelimit import TimeLimit

if TYPE_CHECKING:
    from hpcbert.model import Shape

Runtime = Literal["none", "pyxis", "enroot"]
_HOUR = TimeLimit.parse("01:00:00")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise Invalid("is no name for an environment variable")
    return name


def _handed_on(program: str, words: tuple[str, ...]) -> tuple[str, ...]:
    if why := slurmwords.refusal(program, words):
        raise Invalid(f"can't be handed on: {why}", "Leave it out there.")
    return words


def _absolute(path: str) -> str:
    if path and not Path(path).is_absolute():
        raise Invalid("must be an absolute path: it is looked up on every node")
    return path


_Variable = Annotated[str, _variable]
_BatchSize = Annotated[int, Range(1, 1_000_000)]


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
class Dataset:
    """The files that a recipe's program reads below the data directory; names may hold `{OPTION}`.

    Attributes:
        files: Pattern of the training files.
        format: How they are written; `hpcbert.prepare.records` knows each.
        keys: Names that a record must have.
        at_least: How many files there must be.
        numbered: Option that says how many files there are; `*` in their names is 0, 1, 2, …
        also: Further files that must be there.
    """

    files: str
    format: str
    keys: tuple[str, ...] = ()
    at_least: int = 1
    numbered: str = ""
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """All that is known of a framework: one folder under templates/.

    Attributes:
        name: The folder's name.
        title: One line for a person.
        data: What it trains on, one sentence for a person.
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
        patches: Files of the folder that are applied to the program, in their order.
        incomplete: What a checkout of the commit lacks to run; empty if nothing.
        image: Container image reference, empty where upstream has none.
        base_image, install: What to build an image from where upstream's own does not do.
        copy: Where the program is copied to in a built image; the commands run there.
        writable: Whether ranks may write to the container's own files.
        workdir: Where ranks start in the container; empty for the image's own working directory.
        files: Files that ranks need, copied into a campaign.
        needs: Names of site settings the run cannot do without: `data`, `source`.
        dataset: What files of which form it reads; None where nothing is read.
        env: Environment variables that every rank gets.
        log: The `[log]` table, unread: `hpcbert.logs.grammar` knows its form.
        problems: Known problems of the upstream program, one sentence each.
        sample: What sample.log was and gives; None without one.
        digest: SHA-256 over the folder's files.
    """

    name: str
    title: str
    data: str
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
    patches: tuple[str, ...]
    incomplete: str
    image: str
    base_image: str
    install: tuple[str, ...]
    copy: str
    writable: bool
    workdir: str
    files: tuple[str, ...]
    needs: tuple[str, ...]
    dataset: Dataset | None
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
        source: Path of the upstream program's checkout, as the ranks see it; empty for the one
            that `prepare` made.
        repository: Where `prepare` fetches the program from, instead of the recipe's repository.
        python: Interpreter that ranks use; empty: hpcbert's own on this machine, else `python3`.
        model: Default model; empty for the recipe's.
        batch_sizes: Default samples per device by precision, before the recipe's.
        options: Defaults for the recipe's options, as typed in TOML; the recipe says later which
            it knows.
    """

    image: str = ""
    data: str = ""
    source: str = ""
    repository: str = ""
    python: str = ""
    model: str = ""
    batch_sizes: Mapping[Precision, _BatchSize] = field(default_factory=dict)
    options: Mapping[str, OptionValue] = field(default_factory=dict)


@dataclass(frozen=True)
class SlurmSettings:
    """How jobs are submitted: `[slurm]` in site.toml.

    Attributes:
        partition, account, qos, reservation, constraint: Passed to sbatch where not empty.
        gres: Name (and type) of the GPU resource, `gpu` or `gpu:v100`; empty: none is asked for.
        time_limit: Of one repeat.
        mpi: `srun --mpi=`; empty for the cluster's default.
        exclusive: Whether repeats get whole nodes.
        memory: `sbatch --mem=`; empty for the cluster's default.
        requeue: Whether Slurm may requeue a repeat after a node failure.
        sbatch_args, srun_args: Further options, one word each.
        poll_floor: Shortest interval between two queries of the scheduler, seconds.
    """

    partition: str = ""
    account: str = ""
    qos: str = ""
    reservation: str = ""
    constraint: str = ""
    gres: str = "gpu"
    time_limit: TimeLimit = _HOUR
    mpi: str = ""
    exclusive: bool = True
    memory: str = ""
    requeue: bool = True
    sbatch_args: Annotated[tuple[str, ...], partial(_handed_on, "sbatch")] = ()
    srun_args: Annotated[tuple[str, ...], partial(_handed_on, "srun")] = ()
    poll_floor: Annotated[float, Range(0.1, 3600, "must be above 0 seconds: 0.1 to 3600")] = 10.0

    @property
    def selection(self) -> tuple[str, ...]:
        """The options of sbatch and srun that say where a job may run and who pays for it."""
        names = ("partition", "account", "qos", "reservation", "constraint")
        values = ((name, getattr(self, name)) for name in names)
        return tuple(f"--{name}={value}" for name, value in values if value)


@dataclass(frozen=True)
class NodeSettings:
    """What nodes have: `[nodes]` in site.toml.

    Attributes:
        gpus_per_node: GPUs that a node has.
        cpus_per_gpu: CPUs to ask for with each GPU; 0 leaves it to the cluster.
        interface: Network interface with the addresses that ranks use; empty: what names resolve
            to.
    """

    gpus_per_node: Annotated[int, Range(1, 1024)] = 8
    cpus_per_gpu: Annotated[int, Range(0, 4096)] = 0
    interface: str = ""


@dataclass(frozen=True)
class ContainerSettings:
    """What ranks run in: `[container]` in site.toml.

    Attributes:
        runtime: How a container is entered; `none` for the host itself.
        images: Directory of the prepared images, absolute.
        mounts: Container mounts, `SRC[:DST[:FLAGS]]` each.
        home, remap_root, entrypoint: Whether the container has the home directory, a user that
            looks like root, and runs the image's entrypoint once a node.
        env: Names of host variables that win over the image's.
        scratch: Directory on the nodes' own disks for what enroot keeps; empty for enroot's own.
    """

    runtime: Runtime = "none"
    images: str = "images"
    mounts: tuple[str, ...] = ()
    home: bool = False
    remap_root: bool = False
    entrypoint: bool = False
    env: tuple[_Variable, ...] = ()
    scratch: Annotated[str, _absolute] = ""


@dataclass(frozen=True)
class Site:
    """One cluster, or this machine: a site.toml, nested as it is, under what a command line says.

    Attributes:
        where: The file that it was read from.
        runs: Directory of the campaigns, absolute.
        sources: Directory of the checkouts that `prepare` makes, absolute.
        env: Environment variables for every rank.
        frameworks: Settings by framework.
    """

    where: Annotated[str, GIVEN]
    name: str
    scheduler: Annotated[str, known]
    runs: str = "runs"
    sources: str = "sources"
    slurm: SlurmSettings = SlurmSettings()
    nodes: NodeSettings = NodeSettings()
    container: ContainerSettings = ContainerSettings()
    env: Mapping[_Variable, str] = field(default_factory=dict)
    frameworks: Mapping[str, FrameworkSettings] = field(default_factory=dict)

    def settings(self, framework: str) -> FrameworkSettings:
        """Return what the site says about a framework, or nothing but defaults."""
        return self.frameworks.get(framework, FrameworkSettings())
