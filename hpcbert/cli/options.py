"""The options that submit and render share: one frozen dataclass, of which click's are made."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    get_args,
    get_type_hints,
)

import click

from hpcbert import timelimit
from hpcbert.cli.conflicts import Conflict
from hpcbert.config import site
from hpcbert.config.schedulers import TABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


RepeatsIn = Literal["array", "one-job"]
_Words = tuple[str, ...]
_COUNT = click.IntRange(1)
_SHOWN = {"show_default": True}
_SEVERAL = "several by commas."


def checked_limit(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """Refuse what is not a time limit in one of sbatch's forms; click's callback for `--time`."""
    try:
        if value:
            timelimit.read(value)
    except ValueError as error:
        raise click.BadParameter(f"{error} {timelimit.FORMS}") from error
    return value


class Flag(NamedTuple):
    """How a field of `PointOptions` is typed.

    Attributes:
        words: What `click.option` takes beyond the flag and its help.
    """

    flag: str
    help: str
    words: dict[str, Any]


def _flag(flag: str, text: str, **words: Any) -> Flag:
    return Flag(flag, text, words)


@dataclass(frozen=True)
class PointOptions:
    """What a command line says of points and site; `--help` lists the fields in this order."""

    fw: Annotated[str, _flag("--fw", "Framework: a recipe's name.", **_SHOWN)] = "pytorch"
    nodes: Annotated[int, _flag("--nodes", "Nodes.", type=_COUNT, **_SHOWN)] = 1
    gpus_per_node: Annotated[
        int, _flag("--gpus-per-node", "GPUs a node.", type=_COUNT, **_SHOWN)
    ] = 1
    precision: Annotated[str, _flag("--precision", f"fp32, tf32, fp16, bf16; {_SEVERAL}")] = ""
    batch_size: Annotated[str, _flag("--batch-size", f"Samples per device; {_SEVERAL}")] = ""
    model: Annotated[str, _flag("--model", "Model; the site's or recipe's first by default.")] = ""
    preset: Annotated[str, _flag("--protocol", "A recipe's protocol; its first.")] = ""
    accumulation: Annotated[
        int | None,
        _flag("--accumulation", "Micro-batches in one step; the protocol's.", type=_COUNT),
    ] = None
    global_batch_size: Annotated[
        int | None, _flag("--global-batch-size", "Samples in one step, instead.", type=_COUNT)
    ] = None
    xla: Annotated[bool, _flag("--xla", "Turn the framework's graph compiler on.")] = False
    settings: Annotated[_Words, _flag("--set", "A recipe's option.", metavar="K=V")] = ()
    scaling: Annotated[
        bool, _flag("--scaling", "Also the smaller shapes: 1n1g, 1n4g, 1n8g, 2n8g.")
    ] = False
    repeats: Annotated[int, _flag("--repeats", "Runs of each point.", **_SHOWN)] = 5
    iters: Annotated[
        int | None, _flag("--iters", "Iterations of a run; the protocol's, mostly 120.", type=int)
    ] = None
    skip: Annotated[
        int | None, _flag("--skip", "Warm-up iterations; the protocol's, mostly 20.", type=int)
    ] = None
    site_file: Annotated[str, _flag("--site", "A site.toml, or its folder.")] = ""
    templates: Annotated[_Words, _flag("--templates", "A folder with recipes of your own.")] = ()
    scheduler: Annotated[
        str | None, _flag("--scheduler", "Instead of the site's.", type=click.Choice(list(TABLE)))
    ] = None
    runtime: Annotated[
        str | None, _flag("--runtime", "Container runtime.", type=click.Choice(site.RUNTIMES))
    ] = None
    runs: Annotated[str, _flag("--runs", "Directory of the campaigns.")] = ""
    partition: Annotated[str, _flag("--partition", "Slurm partition.")] = ""
    account: Annotated[str, _flag("--account", "Slurm account.")] = ""
    qos: Annotated[str, _flag("--qos", "Slurm quality of service.")] = ""
    time_limit: Annotated[
        str, _flag("--time", "Limit of one repeat, HH:MM:SS.", callback=checked_limit)
    ] = ""
    image: Annotated[str, _flag("--image", "Container image.")] = ""
    data: Annotated[str, _flag("--data", "Training data, as the nodes see it.")] = ""
    source: Annotated[str, _flag("--source", "Checkout of the framework's program, likewise.")] = ""
    python: Annotated[str, _flag("--python", "Interpreter that the ranks use.")] = ""
    sbatch_arg: Annotated[
        _Words, _flag("--sbatch-arg", "One more word for sbatch.", metavar="WORD")
    ] = ()
    srun_arg: Annotated[_Words, _flag("--srun-arg", "One more word for srun.", metavar="WORD")] = ()
    concurrent_repeats: Annotated[
        int, _flag("--concurrent-repeats", "Repeats at the same time.", type=_COUNT)
    ] = 1
    concurrent_points: Annotated[
        bool, _flag("--concurrent-points", "Don't let each point wait for the one before.")
    ] = False
    repeats_in: Annotated[
        RepeatsIn,
        _flag(
            "--repeats-in",
            "One array element a repeat, or all in one job on the same nodes.",
            type=click.Choice(get_args(RepeatsIn)),
            **_SHOWN,
        ),
    ] = "array"

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> PointOptions:
        """Return the options among a command's parameters, which may have others."""
        return cls(**{one.name: parameters[one.name] for one in fields(cls)})


SHARED_CONFLICTS = (
    Conflict(
        ("concurrent_repeats",),
        lambda given: given["repeats_in"] == "one-job",
        "with --repeats-in one-job",
    ),
    Conflict(
        ("global_batch_size",),
        lambda given: given["accumulation"] is not None,
        "with --accumulation, of which it follows",
    ),
)


def point_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say what is measured, and on which site; they arrive as one argument."""
    own = {one.name: one.default for one in fields(PointOptions)}

    @functools.wraps(function)
    def filled(**parameters: Any) -> None:
        rest = {name: value for name, value in parameters.items() if name not in own}
        function(PointOptions.of(parameters), **rest)

    hints = get_type_hints(PointOptions, include_extras=True)
    for name, default in reversed(own.items()):
        (typed,) = hints[name].__metadata__
        filled = click.option(
            typed.flag,
            name,
            default=default,
            is_flag=isinstance(default, bool),
            multiple=isinstance(default, tuple),
            help=typed.help,
            **typed.words,
        )(filled)
    return filled
