"""hpcbert predict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from hpcbert.cli.options import RESULTS_SITE, RULE, TEMPLATES, UNIT
from hpcbert.cli.output import Result, returns_result
from hpcbert.commands.collect import CollectRequest, find_places, load_result_set
from hpcbert.errors import IncompleteError, format_count
from hpcbert.model import Group, Unit
from hpcbert.results.metrics import table_factor
from hpcbert.results.scaling import Curve, Prediction, fit_curve, parse_node_counts
from hpcbert.results.wording import device_word, sanitize, table_title


@dataclass(frozen=True)
class Forecast:
    """A table's model and what it predicts.

    Attributes:
        unit: What the shown rates count.
        factor: How many of these a sample has.
    """

    group: Group
    curve: Curve
    predictions: tuple[Prediction, ...]
    unit: Unit
    factor: float


def _read_node_counts(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        return parse_node_counts(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is not a list of numbers of nodes, such as 16,64."
        ) from None


@click.command(
    epilog="\b\nExamples:\n"
    "  hpcbert predict --nodes 8,16\n"
    "  hpcbert predict 3f9a1c --nodes 16 --json"
)
@click.argument("paths", nargs=-1)
@click.option(
    "--nodes", callback=_read_node_counts, required=True, metavar="N,N,…", help="Numbers of nodes."
)
@UNIT
@RULE
@TEMPLATES
@RESULTS_SITE
@returns_result
def predict(
    paths: tuple[str, ...],
    *,
    nodes: tuple[int, ...],
    unit: Unit,
    rule: str,
    templates: tuple[str, ...],
    site_file: str,
) -> Result:
    """Predict the throughput of more nodes from the measured points.

    PATHS are campaigns, archives, logs or saved results; without any, the newest campaign. A model
    of the step time is fitted to those points of each table that have the same GPUs per node: the
    time on one node, and the part of the all-reduce between nodes that is not hidden. predict
    reports residuals and an interval, and refuses to extrapolate further than the points support;
    the exit code is then 4.
    """
    request = CollectRequest(rule=rule) if rule else None
    results = load_result_set(paths, find_places(site_file, templates), request)
    forecasts = []
    for table in results.tables:
        curve = fit_curve(table)
        predictions, factor = tuple(map(curve.predict, nodes)), table_factor(table, unit)
        forecasts.append(Forecast(table.group, curve, predictions, unit, factor))
    refused = [
        f"{_format_title(forecast)}, {format_count(prediction.nodes, 'node')}: {prediction.why}"
        for forecast in forecasts
        for prediction in forecast.predictions
        if prediction.why
    ]
    if not forecasts:
        refused = ["No table has points to predict from."]
    return Result(
        data={"tables": [_forecast_data(forecast) for forecast in forecasts]},
        text="\n\n".join("\n".join(_format_forecast(forecast)) for forecast in forecasts),
        errors=tuple(map(IncompleteError, refused)),
        warnings=(*results.warnings, *results.refused),
    )


def _format_title(forecast: Forecast) -> str:
    group = forecast.group
    title = f"{table_title(group)} {group.batch} samples per device"
    return f"{title} {sanitize(group.variant)}" if group.variant else title


def _forecast_data(forecast: Forecast) -> dict[str, Any]:
    curve = forecast.curve
    return {
        **vars(forecast.group),
        "gpus_per_node": curve.gpus_per_node,
        "step_seconds_of_one_gpu": curve.single_gpu_seconds,
        "points": [
            {"nodes": nodes, "step_seconds": seconds, "residual": dict(curve.residuals).get(nodes)}
            for nodes, seconds in curve.points
        ],
        "models": [
            {"step_seconds_of_one_node": fit.seconds, "terms": dict(fit.terms)}
            for fit in curve.fits
        ],
        "reach": curve.max_nodes,
        "predictions": [
            {**vars(prediction), **_rate_data(prediction, forecast)}
            for prediction in forecast.predictions
        ],
    }


def _rate_data(prediction: Prediction, forecast: Forecast) -> dict[str, Any]:
    """Return a prediction's rates in another unit than samples; empty for samples."""
    if forecast.unit == "samples":
        return {}
    values = {name: getattr(prediction, name) for name in ("throughput", "low", "high")}
    scaled = {name: value and value * forecast.factor for name, value in values.items()}
    rate = scaled["throughput"]
    per_gpu = rate and rate / (prediction.nodes * prediction.gpus_per_node)
    return {"rates": {"unit": f"{forecast.unit}/s", **scaled, "per_gpu": per_gpu}}


def _format_forecast(forecast: Forecast) -> Iterator[str]:
    curve, device = forecast.curve, device_word(forecast.group)
    factor = forecast.factor
    yield click.style(_format_title(forecast), bold=True)
    for nodes, seconds in curve.points:
        residual = dict(curve.residuals).get(nodes)
        fitted = "" if residual is None else f", the model says {residual:+.1%}"
        yield f"  {nodes}n{curve.gpus_per_node}g  {seconds * 1e3:,.1f} ms a step measured{fitted}"
    for fit in curve.fits:
        terms = "".join(f" + {value * 1e3:,.1f} ms x {name}" for name, value in fit.terms)
        yield f"  model: {fit.seconds * 1e3:,.1f} ms on one node{terms}"
    for prediction in forecast.predictions:
        if prediction.throughput and prediction.low and prediction.high and prediction.efficiency:
            yield (
                f"  {prediction.nodes}n{prediction.gpus_per_node}g"
                f"  {prediction.throughput * factor:,.0f} {forecast.unit}/s, "
                f"{prediction.low * factor:,.0f} to {prediction.high * factor:,.0f}; "
                f"{prediction.efficiency:.1%} of one node's rate per {device}, "
                f"{(prediction.exposed_seconds or 0) * 1e3:,.1f} ms of each step wait for others"
            )
