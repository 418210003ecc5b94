"""The options of submit, each declared once.

From a declaration come click's option (`hpcbert.cli.options`), the key of a campaign.toml
(`hpcbert.config.campaignfile`), the value of the site that it replaces (`hpcbert.config.site`), and
whether it has an effect with a scheduler. Each field's annotation has the type, the checks, and
what only a command line needs. Cheap enough to import for `--help`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, Literal, get_args

from hpcbert.config.schedulers import OWN, check_scheduler, find_traits
from hpcbert.model import PRECISIONS
from hpcbert.system import decode
from hpcbert.system.decode import Count, Filled, Invalid, Range, check_choice, suggest_similar
from hpcbert.timelimit import TimeLimit

AUTO_REPEATS = "auto"
# Tables are not published with fewer repeats; more than the maximum (a year of runs of an hour)
# are a typing error.
FEWEST_REPEATS, MOST_REPEATS = 5, 10_000
# Defaults: maximum number of runs, and widest interval of the median.
DEFAULT_MAX_REPEATS, DEFAULT_PRECISION = 15, 0.01
_SHARE = re.compile(r"(?P<number>\d{1,6}(?:\.\d{0,12})?|\.\d{1,12})\s*(?P<sign>%?)")


@dataclass(frozen=True)
class ShareRange:
    """Reads a share, `1%`, `1.5 %` or `0.01`, and refuses those outside the range."""

    low: float
    high: float

    def __call__(self, value: str | float) -> float:
        """Return the share."""
        share = -1.0 if isinstance(value, str) else value
        if match := _SHARE.fullmatch(str(value).strip()):
            share = float(match["number"]) / (100 if match["sign"] else 1)
        if self.low <= share <= self.high:
            return share
        bounds = f"{self.low * 100:.6g} % to {self.high * 100:.6g} %"
        raise Invalid(f"must be a share from {bounds}, such as 2% or 0.02", value=value)


Runtime = Literal["none", "pyxis", "enroot", "apptainer"]
RUNTIMES: tuple[str, ...] = get_args(Runtime)
# Common names of runtimes, and their names here.
_ALIASES = {"singularity": "apptainer"}
# Stands among shapes for the curve up to `nodes` and `gpus_per_node`.
SCALING = "scaling"
_NODES = re.compile(r"[\w.,\[\]-]+", re.ASCII)
_SEVERAL = "several by commas."
_XLA, _PREFLIGHT = "--xla/--no-xla", "--preflight/--no-preflight"
_CONCURRENT = "--concurrent-points/--no-concurrent-points"
_STOP = "--stop-on-failure/--no-stop-on-failure"
# The options that replace keys of other tables of the site.toml than [slurm].
_SITE_OPTIONS = {"container": ("runtime",), "framework": ("image", "data", "source", "python")}


@dataclass(frozen=True)
class Spec:
    """What a command line and the other users of an option need to know besides its type.

    Attributes:
        flags: Its flags, letters first, if that is not its name alone.
        metavar: What stands for its value in `--help`.
        default: What the command line shows as default; None: the field's own, not shown.
        read: Reads the typed text; returns the value or raises `Invalid`.
        program: Slurm's program without which it has no effect; empty: none.
    """

    help: str
    flags: str = ""
    metavar: str | None = None
    default: Any = None
    read: Callable[[str], Any] | None = None
    program: Literal["", "sbatch", "srun"] = ""


def runtime_name(text: str) -> str:
    """Return the runtime's name here, from its name or a common one."""
    return _ALIASES.get(text, text)


def check_runtime(text: str) -> str:
    """Return the runtime's name here.

    Raises:
        Invalid: No runtime has that name.
    """
    name: str = check_choice(RUNTIMES, runtime_name(text))
    return name


def check_node_list(text: str) -> str:
    """Return a node list as Slurm writes it, `n[1-4],n7`."""
    if text.startswith("-") or not _NODES.fullmatch(text) or "" in text.split(","):
        raise Invalid("must be node names as Slurm lists them, n[01-04],n07", value=text)
    return text


def check_time_limit(text: str) -> str:
    """Return a time limit in one of sbatch's forms."""
    try:
        TimeLimit.parse(text)
    except ValueError as error:
        raise Invalid(f"{TimeLimit.FORM}{error}", TimeLimit.FORMS) from None
    return text


def read_repeat_count(text: str) -> int | Literal["auto"]:
    """Read a number of repeats, or the word for an adaptive number."""
    if text == AUTO_REPEATS:
        return "auto"
    try:
        return int(text)
    except ValueError:
        hint = suggest_similar(text.lower(), [AUTO_REPEATS])
        message = f"{text!r} is neither a whole number nor {AUTO_REPEATS}."
        raise Invalid(message, hint) from None


_NodeList = Annotated[str, check_node_list]
_ZeroOrMore = Annotated[int, Range(0)]
_MEDIAN_SHARE = ShareRange(0.0001, 0.99)


@dataclass(frozen=True)
class PointOptions:
    """What to measure; a campaign.toml has axes instead."""

    frameworks: Annotated[
        tuple[str, ...],
        Spec(f"Framework: a recipe; {_SEVERAL}", "--fw", default=("pytorch",)),
    ] = ("pytorch",)
    shapes: Annotated[str, Spec("Instead of --nodes: 1n1g,1n8g,4n8g; scaling.", metavar="LIST")] = (
        ""
    )
    precision: Annotated[
        str, Spec(f"{', '.join(PRECISIONS)}; {_SEVERAL}", "--precision --dtype")
    ] = ""
    batch_size: Annotated[
        str, Spec("Samples per device: 32,64; fp32=32,fp16=64; max; max-common.", metavar="LIST")
    ] = ""
    model: Annotated[str, Spec("Model; default: the site's, or the recipe's first.")] = ""
    settings: Annotated[
        tuple[str, ...], Spec("Set an option of the recipe.", "--set", metavar="K=V")
    ] = ()
    env: Annotated[
        tuple[str, ...], Spec("Set a variable of the ranks; part of the point.", metavar="K=V")
    ] = ()
    scaling: Annotated[bool, Spec("Add the smaller shapes: 1n1g, 1n4g, 1n8g, 2n8g.")] = False


@dataclass(frozen=True)
class RunOptions:
    """How to run it: options, and keys of a campaign.toml."""

    nodes: Annotated[Count | None, Spec("Nodes.", "-N --nodes", default=1)] = None
    gpus_per_node: Annotated[Count | None, Spec("GPUs per node.", default=1)] = None
    device: Annotated[Filled, Spec("gpu or cpu; default: the site's, or the recipe's first.")] = ""
    protocol: Annotated[Filled, Spec("A protocol of the recipe; default: its first.")] = ""
    accumulation: Annotated[
        Count | None, Spec("Micro-batches per step; default: the protocol's.")
    ] = None
    global_batch_size: Annotated[
        Count | None, Spec("Samples per step, instead of --accumulation.")
    ] = None
    xla: Annotated[
        bool | None,
        Spec("Turn the framework's graph compiler on or off; default: the protocol's.", _XLA),
    ] = None
    repeats: Annotated[
        Count | Literal["auto"],
        Spec("Runs of each point.", default=5, metavar="N|auto", read=read_repeat_count),
    ] = 5
    max_repeats: Annotated[
        Annotated[int, Range(FEWEST_REPEATS, MOST_REPEATS)] | None,
        Spec("With --repeats auto: at most this many; 15."),
    ] = None
    precision_of_median: Annotated[
        Annotated[float, _MEDIAN_SHARE] | Annotated[str, _MEDIAN_SHARE] | None,
        Spec(
            "With --repeats auto: stop at this interval; 1%.", metavar="SHARE", read=_MEDIAN_SHARE
        ),
    ] = None
    iters: Annotated[Count | None, Spec("Iterations of a run; default: the protocol's.")] = None
    skip: Annotated[_ZeroOrMore | None, Spec("Warm-up iterations; default: the protocol's.")] = None
    window_seconds: Annotated[
        Annotated[int, Range(0, 86_400)] | None,
        Spec(
            "Add iterations until the window takes so long; default: the protocol's.",
            metavar="SECONDS",
        ),
    ] = None
    notify: Annotated[
        Filled,
        Spec(
            "Slurm mail events and address: END,FAIL,me@example.org.",
            metavar="WORDS",
            program="sbatch",
        ),
    ] = ""
    concurrent_repeats: Annotated[Count, Spec("Repeats at the same time.", program="sbatch")] = 1
    concurrent_points: Annotated[
        bool, Spec("Don't make points wait for each other.", _CONCURRENT, program="sbatch")
    ] = False
    stop_on_failure: Annotated[
        bool | None, Spec("Hold shapes back if the smallest fails.", _STOP)
    ] = None
    preflight: Annotated[
        bool, Spec("Measure the network first; exclude slow nodes.", _PREFLIGHT)
    ] = False
    max_gpu_hours: Annotated[
        Annotated[float, Range(0.001)] | None,
        Spec("Refuse to submit if it may take more.", metavar="HOURS"),
    ] = None
    repeats_in: Annotated[
        Literal["array", "one-job"],
        Spec("One array element per repeat, or all in one job on the same nodes.", default="array"),
    ] = "array"


@dataclass(frozen=True)
class SlurmOptions:
    """What to request of Slurm: options, and keys of `[slurm]` in campaign.toml and site.toml."""

    partition: Annotated[Filled, Spec("Slurm partition.", "-p --partition", program="sbatch")] = ""
    account: Annotated[Filled, Spec("Slurm account.", "-A --account", program="sbatch")] = ""
    qos: Annotated[Filled, Spec("Slurm quality of service.", "-q --qos", program="sbatch")] = ""
    reservation: Annotated[Filled, Spec("Slurm reservation.", program="sbatch")] = ""
    nodelist: Annotated[
        _NodeList,
        Spec(
            "Nodes to run on; a point takes the first.",
            "-w --nodelist",
            "NODELIST",
            program="sbatch",
        ),
    ] = ""
    exclude: Annotated[
        _NodeList, Spec("Nodes to avoid.", "-x --exclude", "NODELIST", program="sbatch")
    ] = ""
    time_limit: Annotated[
        str, check_time_limit, Spec("Limit of one repeat, HH:MM:SS.", "-t --time")
    ] = ""


@dataclass(frozen=True)
class Options(SlurmOptions, RunOptions, PointOptions):
    """All options that submit, plan and render share; empty values come from site and recipe.

    Attributes:
        runs, image: Paths are relative to the working directory.
        fw: The framework that image, data, source, python and repository belong to.
        repository: Where prepare fetches the program from; no option of submit.
    """

    sbatch_arg: Annotated[
        tuple[str, ...], Spec("Extra argument for sbatch.", metavar="WORD", program="sbatch")
    ] = ()
    srun_arg: Annotated[
        tuple[str, ...], Spec("Extra argument for srun.", metavar="WORD", program="srun")
    ] = ()
    site_file: Annotated[str, Spec("A site.toml, or its folder.", "--site")] = ""
    templates: Annotated[tuple[str, ...], Spec("A folder with recipes of your own.")] = ()
    scheduler: Annotated[
        str | None,
        Spec(
            "Use this instead of the site's scheduler.",
            metavar="|".join(OWN),
            read=check_scheduler,
        ),
    ] = None
    runs: Annotated[str, Spec("Directory of the campaigns.")] = ""
    runtime: Annotated[
        str | None, Spec("Container runtime.", metavar="|".join(RUNTIMES), read=check_runtime)
    ] = None
    image: Annotated[str, Spec("Container image.")] = ""
    data: Annotated[str, Spec("Training data, as the nodes see it.")] = ""
    source: Annotated[str, Spec("Checkout of the framework, as the nodes see it.")] = ""
    python: Annotated[str, Spec("Interpreter that the ranks use.")] = ""
    fw: str = ""
    repository: str = ""

    def site_values(self, table: str) -> dict[str, Any]:
        """Return the values that replace those of a table of the site.toml.

        Args:
            table: `slurm`, `container`, or `framework` for `frameworks.NAME`.
        """
        names = _SITE_OPTIONS.get(table, option_names(SlurmOptions))
        return {name: getattr(self, name) for name in names if getattr(self, name)}


@cache
def declared_options() -> dict[str, Spec]:
    """Return the declarations by the names of the fields, in the order of `--help`."""
    hints = decode.type_hints(Options)
    return {
        field.name: spec
        for field in fields(Options)
        for spec in get_args(hints[field.name])
        if isinstance(spec, Spec)
    }


def option_names(options_class: type[PointOptions | RunOptions | SlurmOptions]) -> tuple[str, ...]:
    """Return the options of one part."""
    return tuple(field.name for field in fields(options_class))


def list_unused(scheduler: str) -> tuple[str, ...]:
    """Return the options without an effect with a scheduler."""
    traits = find_traits(scheduler)
    return tuple(
        name
        for name, option in declared_options().items()
        if option.program and not getattr(traits, option.program)
    )
