"""How logs are read: the options that every command shares that reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

import click

from hpcbert.errors import UsageError
from hpcbert.flows.collect import CollectRequest
from hpcbert.foreign.said import UserSettings, parse_settings
from hpcbert.logs.setting import END, Window
from hpcbert.model import PRECISIONS
from hpcbert.model import precision as spelled
from hpcbert.system.lazy import regex

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Unpack

_COUNT = regex(r"0*[1-9][0-9]{0,9}")


def _last_iteration(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """Read a number of iterations, or `end` for however far the run went."""
    if value is None or value == "end":
        return END if value else None
    if not _COUNT.fullmatch(value):
        raise click.BadParameter(f"{value!r} is neither a number above 0 nor `end`.")
    return int(value)


def _precision(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Read a precision in any of its spellings; click's callback."""
    if value is None or spelled(value) in PRECISIONS:
        return value and spelled(value)
    raise click.BadParameter(f"{value!r} is not one of {', '.join(PRECISIONS)}.")


_OPTIONS = (
    click.option("--fw", default="", help="Framework of logs whose path doesn't name it."),
    click.option("--rule", default="", help="How a log becomes a number; the recipe's first."),
    click.option(
        "--pattern", default="", help="How to read paths: '{nodes}n{gpus_per_node}g/*.log'."
    ),
    click.option("--nodes", type=click.IntRange(1), help="Where neither path nor log tells."),
    click.option("--gpus-per-node", type=click.IntRange(1), help="Likewise."),
    click.option("--batch-size", type=click.IntRange(1), help="Samples per device, likewise."),
    click.option("--precision", callback=_precision, help="Likewise."),
    click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="NAME=VALUE",
        help="Of a log, likewise: accumulation, global_batch_size, packing, sequence_length.",
    ),
    click.option("--model", default="", help="The model, and what it is called in the table."),
    click.option(
        "--skip", type=click.IntRange(0), help="Warm-up iterations, if not the protocol's."
    ),
    click.option(
        "--iters",
        callback=_last_iteration,
        metavar="N|end",
        help="Last iteration, if not the protocol's; `end`: the run's own.",
    ),
    click.option("--require-all", is_flag=True, help="No number for a point with a bad repeat."),
    click.option("--templates", multiple=True, help="A folder with recipes of your own."),
    click.option("--site", "site_file", default="", help="Whose runs, if no path is given."),
)


class ReadingOptions(TypedDict):
    """The values of the options, but for where recipes and runs are."""

    fw: str
    rule: str
    pattern: str
    nodes: int | None
    gpus_per_node: int | None
    batch_size: int | None
    precision: str | None
    settings: tuple[str, ...]
    model: str
    skip: int | None
    iters: int | None
    require_all: bool


def reading_options(body: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options, `--templates` and `--site` among them."""
    for option in reversed(_OPTIONS):
        body = option(body)
    return body


def requested(**given: Unpack[ReadingOptions]) -> CollectRequest:
    """Return what the options ask for.

    Raises:
        UsageError: They contradict each other.
    """
    skip, iters = given["skip"], given["iters"]
    if skip is not None and iters is not None and skip >= iters:
        raise UsageError(f"--skip must be below --iters, and {skip} is not below {iters}.")
    return CollectRequest(
        rule=given["rule"],
        pattern=given["pattern"],
        known=UserSettings(
            given["fw"],
            given["model"],
            given["nodes"],
            given["gpus_per_node"],
            given["batch_size"],
            given["precision"],
            parse_settings(given["settings"]),
        ),
        window=Window(skip, iters),
        require_all=given["require_all"],
    )
