"""The options that submit and render share: one frozen dataclass, from which click's are made."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import click

from hpcbert.cli.conflicts import Conflict
from hpcbert.config import adaptive
from hpcbert.config.overrides import RUNTIMES, SCALING, Overrides, runtime_name
from hpcbert.config.schedulers import TABLE
from hpcbert.errors import UsageError
from hpcbert.system.decode import Invalid, did_you_mean
from hpcbert.timelimit import TimeLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


_Words = tuple[str, ...]
_SHOWN = {"show_default": True}
_WHOLE, _COUNT = {"type": int}, {"type": click.IntRange(1)}
_SEVERAL = "several by commas."
_IN = "One array element per repeat, or all in one job on the same nodes."


def checked_limit(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """Refuse a time limit in none of sbatch's forms; click's callback for `--time`."""
    try:
        if value:
            TimeLimit.parse(value)
    except ValueError as error:
        raise click.BadParameter(f"{error} {TimeLimit.FORMS}") from error
    return value


def checked_repeats(
    _ctx: click.Context, _param: click.Parameter, value: str | int
) -> int | Literal["auto"]:
    """Read a number of repeats, or the word for an adaptive number."""
    if value == adaptive.AUTO:
        return "auto"
    try:
        return int(value)
    except ValueError:
        hint = did_you_mean(str(value).lower(), [adaptive.AUTO])
        message = f"{value!r} is neither a whole number nor {adaptive.AUTO}. {hint}".rstrip()
        raise click.BadParameter(message) from None


def checked_share(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    """Read the required precision of a median."""
    try:
        return None if value is None else adaptive.share(value)
    except Invalid as error:
        raise click.BadParameter(str(error)) from None


def checked_number(
    _ctx: click.Context, _param: click.Parameter, value: float | None
) -> float | None:
    """Refuse NaN, which click's ranges let through."""
    if value is not None and math.isnan(value):
        raise click.BadParameter("nan is not a number.")
    return value


def pairs(words: Iterable[str], flag: str = "--set") -> dict[str, str]:
    """Read the arguments of `--set` and `--env`.

    Raises:
        UsageError: One does not have the form NAME=VALUE, or a variable has two values.
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{flag} needs NAME=VALUE, not {word!r}.")
        if flag == "--env" and name.strip() in found:
            hint = f'A campaign.toml can measure several: env = {{ {name} = ["a", "b"] }}'
            raise UsageError(f"{flag} gives {name} two values.", hint=hint)
        found[name.strip()] = value
    return found


def split(text: str) -> tuple[str, ...]:
    """Return the words of a comma-separated text; none of an empty text.

    Raises:
        UsageError: One of several is empty.
    """
    words = tuple(word.strip() for word in text.split(","))
    if words == ("",):
        return ()
    if "" in words:
        raise UsageError(f"{text!r} has an empty entry.", hint="Remove the comma too many.")
    return words


class RuntimeName(click.Choice[str]):
    """A container runtime, by its name or a common alias."""

    def __init__(self) -> None:
        super().__init__(RUNTIMES)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the runtime's own name."""
        return super().convert(runtime_name(value), param, ctx)


def _one_of(names: Iterable[str]) -> dict[str, Any]:
    return {"type": click.Choice(list(names))}


_MOST_HOURS = 1e9  # more is a typing error: a million GPUs for a month
_HOURS = {
    "type": click.FloatRange(0, _MOST_HOURS, min_open=True),
    "metavar": "HOURS",
    "callback": checked_number,
}
_FW = {"flag": "--fw", "multiple": True}
_LIST = {"metavar": "LIST"}
_ENV = {"metavar": "K=V"}
_NODES = {"metavar": "NODES"}
_REPEATS = {"type": str, "callback": checked_repeats, "metavar": "N|auto"}
_MOST = {"type": click.IntRange(adaptive.FEWEST, adaptive.MOST)}
_SHARE = {"type": str, "callback": checked_share, "metavar": "SHARE"}
_STOP = {"flag": "--stop-on-failure/--no-stop-on-failure", "is_flag": True}
_MAIL = {"metavar": "WORDS"}
_TIME = {"flag": "--time", "callback": checked_limit}


@dataclass(frozen=True)
class PointOptions(Overrides):
    """What a command line says about points and site; `--help` lists the fields in this order.

    Each field's annotation has its help and further arguments of `click.option`; the flag is its
    name unless the annotation names another.
    """

    frameworks: Annotated[_Words, f"Framework: a recipe; {_SEVERAL}", _FW, _SHOWN] = ("pytorch",)
    nodes: Annotated[int, "Nodes.", _COUNT, _SHOWN] = 1
    gpus_per_node: Annotated[int, "GPUs per node.", _COUNT, _SHOWN] = 1
    device: Annotated[str, "gpu or cpu; default: the site's, or the recipe's first."] = ""
    precision: Annotated[str, f"fp32, tf32, fp16, bf16; {_SEVERAL}"] = ""
    shapes: Annotated[str, "Instead of --nodes: 1n1g,1n8g,4n8g; scaling.", _LIST] = ""
    batch_size: Annotated[str, "Samples per device: 32,64 or fp32=32,fp16=64,max.", _LIST] = ""
    model: Annotated[str, "Model; default: the site's, or the recipe's first."] = ""
    preset: Annotated[
        str, "A protocol of the recipe; default: its first.", {"flag": "--protocol"}
    ] = ""
    accumulation: Annotated[
        int | None, "Micro-batches per step; default: the protocol's.", _COUNT
    ] = None
    global_batch_size: Annotated[
        int | None, "Samples per step, instead of --accumulation.", _COUNT
    ] = None
    xla: Annotated[bool, "Turn the framework's graph compiler on."] = False
    settings: Annotated[
        _Words, "Set an option of the recipe.", {"flag": "--set", "metavar": "K=V"}
    ] = ()
    env: Annotated[_Words, "Set a variable of the ranks; part of the point.", _ENV] = ()
    scaling: Annotated[bool, "Add the smaller shapes: 1n1g, 1n4g, 1n8g, 2n8g."] = False
    repeats: Annotated[int | Literal["auto"], "Runs of each point.", _SHOWN, _REPEATS] = 5
    max_repeats: Annotated[int | None, "With --repeats auto: at most this many; 15.", _MOST] = None
    precision_of_median: Annotated[
        float | None, "With --repeats auto: stop at this interval; 1%.", _SHARE
    ] = None
    iters: Annotated[int | None, "Iterations of a run; default: the protocol's.", _WHOLE] = None
    skip: Annotated[int | None, "Warm-up iterations; default: the protocol's.", _WHOLE] = None
    site_file: Annotated[str, "A site.toml, or its folder.", {"flag": "--site"}] = ""
    templates: Annotated[_Words, "A folder with recipes of your own."] = ()
    scheduler: Annotated[
        str | None, "Use this instead of the site's scheduler.", _one_of(TABLE)
    ] = None
    runtime: Annotated[str | None, "Container runtime.", {"type": RuntimeName()}] = None
    runs: Annotated[str, "Directory of the campaigns."] = ""
    partition: Annotated[str, "Slurm partition."] = ""
    account: Annotated[str, "Slurm account."] = ""
    qos: Annotated[str, "Slurm quality of service."] = ""
    notify: Annotated[str, "Slurm mail events and address: END,FAIL,me@example.org.", _MAIL] = ""
    reservation: Annotated[str, "Slurm reservation."] = ""
    nodelist: Annotated[str, "Nodes to run on; a point takes the first.", _NODES] = ""
    exclude: Annotated[str, "Nodes to avoid.", _NODES] = ""
    time_limit: Annotated[str, "Limit of one repeat, HH:MM:SS.", _TIME] = ""
    image: Annotated[str, "Container image."] = ""
    data: Annotated[str, "Training data, as the nodes see it."] = ""
    source: Annotated[str, "Checkout of the framework, as the nodes see it."] = ""
    python: Annotated[str, "Interpreter that the ranks use."] = ""
    sbatch_arg: Annotated[_Words, "Extra argument for sbatch.", {"metavar": "WORD"}] = ()
    srun_arg: Annotated[_Words, "Extra argument for srun.", {"metavar": "WORD"}] = ()
    concurrent_repeats: Annotated[int, "Repeats at the same time.", _COUNT] = 1
    concurrent_points: Annotated[bool, "Don't make points wait for each other."] = False
    stop_on_failure: Annotated[bool | None, "Hold shapes back if the smallest fails.", _STOP] = None
    preflight: Annotated[bool, "Measure the network first; exclude slow nodes."] = False
    max_gpu_hours: Annotated[float | None, "Refuse to submit if it may take more.", _HOURS] = None
    repeats_in: Annotated[str, _IN, _one_of(("array", "one-job")), _SHOWN] = "array"

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> PointOptions:
        """Return the shared options among a command's parameters."""
        return cls(**{name: parameters[name] for name in cls.__annotations__})


SHARED_CONFLICTS = (
    Conflict(("scaling",), lambda given: given["shapes"], "with --shapes, which can include it"),
    Conflict(
        ("nodes", "gpus_per_node"),
        lambda given: given["shapes"] and SCALING not in split(given["shapes"]),
        "with --shapes",
    ),
    Conflict(
        ("concurrent_repeats",),
        lambda given: given["repeats_in"] == "one-job",
        "with --repeats-in one-job",
    ),
    Conflict(
        ("stop_on_failure",),
        lambda given: given["concurrent_points"] and given["stop_on_failure"],
        "with --concurrent-points",
    ),
    Conflict(
        ("global_batch_size",),
        lambda given: given["accumulation"] is not None,
        "with --accumulation, of which it follows",
    ),
)


def point_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say what to measure and on which site; they arrive as one argument."""

    @functools.wraps(function)
    def filled(**parameters: Any) -> None:
        others = parameters.keys() - PointOptions.__annotations__
        function(PointOptions.of(parameters), **{name: parameters[name] for name in others})

    hints, nothing = get_type_hints(PointOptions, include_extras=True), PointOptions()
    for name in reversed(PointOptions.__annotations__):
        text, *more = hints[name].__metadata__
        default = getattr(nothing, name)
        words: dict[str, Any] = {"is_flag": default is False, "multiple": default == ()}
        for one in more:
            words |= one
        flag = words.pop("flag", f"--{name.replace('_', '-')}")
        filled = click.option(flag, name, default=default, help=text, **words)(filled)
    return filled
