"""hpcbert explain, hpcbert predict."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import click

from hpcbert.campaign.foreign import CollectRequest
from hpcbert.cli.campaigns import open_named
from hpcbert.cli.options import RULE, UNIT, make_reader
from hpcbert.cli.output import Result, returns_result
from hpcbert.cli.tables import takes_places
from hpcbert.commands.collect import Places, load_result_set
from hpcbert.errors import IncompleteError, format_count
from hpcbert.logs.input_wait import read_wait_share
from hpcbert.model import ARCHIVE, Group, Shape, SpeedupTable, Unit
from hpcbert.results.document import ResultSet
from hpcbert.results.explain import Observation
from hpcbert.results.explain import explain as explain_table
from hpcbert.results.metrics import table_factor
from hpcbert.results.scaling import fit_curve
from hpcbert.results.wording import device_word
from hpcbert.results.words import Words, name_table
from hpcbert.system.decode import Invalid

_SPEED = re.compile(r" is ([0-9.e+]{1,20}) GB/s")
# Logs of a point to read for waits for input.
_MAX_LOGS = 5
# The rule for large messages, such as the buckets in which gradients are sent.
_LARGE_MESSAGE_RULE = "busbw-32M"
_MAX_NODES = 1_000_000


@click.command()
@click.argument("paths", nargs=-1)
@click.option("--network", multiple=True, metavar="CAMPAIGN", help="Campaign of nccl-tests.")
@returns_result
@takes_places
def explain(*, paths: tuple[str, ...], network: tuple[str, ...], places: Places) -> Result:
    """Explain the efficiency of a result.

    PATHS are campaigns, by directory, archive, id or a part of the id; logs, or saved results;
    without any, the newest campaign. It reports the loss inside a node and between nodes, a node
    that lowers the median, the time of all-reduce alone against the time that a step lost, uneven
    steps, and waits for input, each with its numbers. If data is missing, it names the run that
    would provide it.

    \b
    Examples:
      hpcbert explain
      hpcbert explain 3f9a1c --network 20261121T120000Z-nccl-tests-77b0c2
    """
    # Waits for input are read from logs, which an archive's directory has until the command ends.
    opened_paths = [
        str(open_named([path], places.runs)[0].directory) if path.endswith(ARCHIVE) else path
        for path in paths
    ]
    results = load_result_set(opened_paths, places)
    speeds: dict[Shape, float] = {}
    if network:
        request = CollectRequest(rule=_LARGE_MESSAGE_RULE)
        speeds = read_bandwidths(load_result_set(network, places, request).tables)
    tables = []
    for table in results.tables:
        waits = _read_waits(table, results)
        tables.append((table.group, explain_table(table, bandwidths=speeds, waits=waits)))
    errors = () if tables else (IncompleteError("There is no table to explain."),)
    data = [
        {**vars(group), "findings": list(map(_finding_data, findings))}
        for group, findings in tables
    ]
    text = "\n\n".join("\n".join(_format_findings(group, findings)) for group, findings in tables)
    return Result({"tables": data}, text, errors, (*results.warnings, *results.refused))


def read_bandwidths(tables: Sequence[SpeedupTable]) -> dict[Shape, float]:
    """Return the bus bandwidth of each shape, GB/s: runs of nccl-tests give it as their reason."""
    speeds_by_shape: dict[Shape, list[float]] = {}
    for table in tables:
        for row in table.rows:
            for run in row.runs:
                for reason in run.reasons:
                    if reason.code == "rule" and (match := _SPEED.search(reason.detail)):
                        speeds_by_shape.setdefault(row.shape, []).append(float(match[1]))
    return {shape: median(speeds) for shape, speeds in speeds_by_shape.items()}


def _read_waits(table: SpeedupTable, results: ResultSet) -> dict[Shape, list[float]]:
    """Return the shares of time that runs of each shape waited for input."""
    directories = {source.name: Path(source.path) for source in results.sources if source.path}
    waits: dict[Shape, list[float]] = {}
    for row in table.rows:
        directory = Path()
        if row.origin and row.origin.kind == "campaign":
            directory = directories.get(row.origin.name, directory)
        logs = [run.log for run in row.runs if run.valid and run.log][:_MAX_LOGS]
        shares = (read_wait_share(directory / log) for log in logs)
        if measured := [share for share in shares if share is not None]:
            waits[row.shape] = measured
    return waits


def _finding_data(finding: Observation) -> dict[str, Any]:
    return {**vars(finding), "shape": str(finding.shape) if finding.shape else None}


def _format_findings(group: Group, findings: Sequence[Observation]) -> Iterator[str]:
    yield click.style(name_table(group, Words("en")), bold=True)
    for finding in findings:
        sign = click.style("?", fg="yellow") if finding.missing else "·"
        yield f"  {sign} {finding.text}"


def _read_node_counts(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    counts = [int(word) if word.isdecimal() else 0 for word in words]
    if not all(1 <= count <= _MAX_NODES for count in counts):
        raise Invalid(f"{text!r} is not a list of numbers of nodes, such as 16,64")
    return tuple(dict.fromkeys(counts))


@click.command()
@click.argument("paths", nargs=-1)
@click.option(
    "--nodes",
    callback=make_reader(_read_node_counts),
    required=True,
    metavar="N,N,…",
    help="Numbers of nodes.",
)
@UNIT
@RULE
@returns_result
@takes_places
def predict(
    *, paths: tuple[str, ...], nodes: tuple[int, ...], unit: Unit, rule: str, places: Places
) -> Result:
    """Predict the throughput of more nodes from the measured points.

    PATHS are campaigns, archives, logs or saved results; without any, the newest campaign. A model
    of the step time is fitted to those points of each table that have the same GPUs per node: the
    time on one node, and the part of the all-reduce between nodes that is not hidden. predict
    reports residuals and an interval, and refuses to extrapolate further than the points support;
    the exit code is then 4.

    \b
    Examples:
      hpcbert predict --nodes 8,16
      hpcbert predict 3f9a1c --nodes 16 --json
    """
    request = CollectRequest(rule=rule) if rule else None
    results = load_result_set(paths, places, request)
    data = [_forecast_data(table, nodes, unit) for table in results.tables]
    texts, refused = [], []
    for table, forecast in zip(results.tables, data, strict=True):
        title = name_table(table.group, Words("en"))
        device = device_word(table.group)
        texts.append(
            "\n".join([click.style(title, bold=True), *_format_forecast(forecast, device)])
        )
        refused += [
            f"{title}, {format_count(prediction['nodes'], 'node')}: {prediction['why']}"
            for prediction in forecast["predictions"]
            if prediction["why"]
        ]
    if not data:
        refused = ["No table has points to predict from."]
    return Result(
        data={"tables": data},
        text="\n\n".join(texts),
        errors=tuple(map(IncompleteError, refused)),
        warnings=(*results.warnings, *results.refused),
    )


def _forecast_data(table: SpeedupTable, nodes: Sequence[int], unit: Unit) -> dict[str, Any]:
    curve, factor = fit_curve(table), table_factor(table, unit)
    residuals = dict(curve.residuals)
    predictions = [dict(vars(curve.predict(count))) for count in nodes]
    for document in predictions:
        rates = {
            name: document[name] and document[name] * factor
            for name in ("throughput", "low", "high")
        }
        gpus = document["nodes"] * document["gpus_per_node"]
        per_gpu = rates["throughput"] and rates["throughput"] / gpus
        document["rates"] = {"unit": f"{unit}/s", **rates, "per_gpu": per_gpu}
    return {
        **vars(table.group),
        "gpus_per_node": curve.gpus_per_node,
        "step_seconds_of_one_gpu": curve.single_gpu_seconds,
        "points": [
            {"nodes": count, "step_seconds": seconds, "residual": residuals.get(count)}
            for count, seconds in curve.points
        ],
        "models": [
            {"step_seconds_of_one_node": fit.seconds, "terms": dict(fit.terms)}
            for fit in curve.fits
        ],
        "reach": curve.max_nodes,
        "predictions": predictions,
    }


def _format_forecast(forecast: dict[str, Any], device: str) -> Iterator[str]:
    gpus = forecast["gpus_per_node"]
    for point in forecast["points"]:
        residual = point["residual"]
        fitted = "" if residual is None else f", the model says {residual:+.1%}"
        yield f"  {point['nodes']}n{gpus}g  {point['step_seconds'] * 1e3:,.1f} ms a step{fitted}"
    for model in forecast["models"]:
        terms = [f" + {value * 1e3:,.1f} ms x {name}" for name, value in model["terms"].items()]
        seconds = model["step_seconds_of_one_node"]
        yield f"  model: {seconds * 1e3:,.1f} ms on one node{''.join(terms)}"
    for prediction in forecast["predictions"]:
        if not prediction["why"]:
            rates = prediction["rates"]
            yield (
                f"  {prediction['nodes']}n{gpus}g  {rates['throughput']:,.0f} {rates['unit']}, "
                f"{rates['low']:,.0f} to {rates['high']:,.0f}; "
                f"{prediction['efficiency']:.1%} of one node's rate per {device}, "
                f"{prediction['exposed_seconds'] * 1e3:,.1f} ms of each step wait for others"
            )
