"""The options of all commands that read logs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import click

from hpcbert.campaign.user_settings import UserSettings, parse_settings
from hpcbert.cli.options import RESULTS_SITE, RULE, TEMPLATES
from hpcbert.commands.collect import CollectRequest
from hpcbert.errors import UsageError
from hpcbert.logs.setting import END, Window
from hpcbert.model import PRECISIONS, parse_precision

_COUNT = re.compile(r"0*[1-9][0-9]{0,9}")


def _read_last_iteration(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """Read a number of iterations, or `end` for the last iteration of the run."""
    if value is None or value == "end":
        return END if value else None
    if not _COUNT.fullmatch(value):
        raise click.BadParameter(f"{value!r} is neither a number above 0 nor `end`.")
    return int(value)


def _read_precision(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Read a precision in any of its spellings; click's callback."""
    if value is None or parse_precision(value) in PRECISIONS:
        return value and parse_precision(value)
    raise click.BadParameter(f"{value!r} is not one of {', '.join(PRECISIONS)}.")


_OPTIONS = (
    click.option("--fw", default="", help="Framework of logs without it in their path."),
    RULE,
    click.option("--pattern", default="", help="Form of paths: '{nodes}n{gpus_per_node}g/*.log'."),
    click.option(
        "--nodes", type=click.IntRange(1), help="Nodes, if neither path nor log has them."
    ),
    click.option(
        "--gpus-per-node", type=click.IntRange(1), help="GPUs per node, if neither has them."
    ),
    click.option(
        "--batch-size", type=click.IntRange(1), help="Samples per device, if neither has them."
    ),
    click.option("--precision", callback=_read_precision, help="Precision, if neither has it."),
    click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="NAME=VALUE",
        help="If neither has it: accumulation, global_batch_size, packing, sequence_length.",
    ),
    click.option("--model", default="", help="The model, and its name in the table."),
    click.option(
        "--skip", type=click.IntRange(0), help="Warm-up iterations; default: the protocol's."
    ),
    click.option(
        "--iters",
        callback=_read_last_iteration,
        metavar="N|end",
        help="Last iteration; default: the protocol's; `end`: the run's own.",
    ),
    click.option(
        "--require-all", is_flag=True, help="Give no number for a point with an invalid repeat."
    ),
    click.option(
        "--as-repeats", is_flag=True, help="All logs of a point are repeats, whatever their names."
    ),
    TEMPLATES,
    RESULTS_SITE,
)


def add_log_options(body: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command, including `--templates` and `--site`."""
    for option in reversed(_OPTIONS):
        body = option(body)
    return body


def make_collect_request(values: Mapping[str, Any]) -> CollectRequest:
    """Return the request that the options of `add_log_options` make.

    Raises:
        UsageError: The window of iterations is empty.
    """
    skip, iters = values["skip"], values["iters"]
    if skip is not None and iters is not None and skip >= iters:
        raise UsageError(f"--skip must be below --iters, and {skip} is not below {iters}.")
    known = UserSettings(
        values["fw"],
        values["model"],
        values["nodes"],
        values["gpus_per_node"],
        values["batch_size"],
        values["precision"],
        parse_settings(values["settings"]),
    )
    return CollectRequest(
        rule=values["rule"],
        pattern=values["pattern"],
        known=known,
        window=Window(skip, iters),
        require_all=values["require_all"],
        as_repeats=values["as_repeats"],
    )
