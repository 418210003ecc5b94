"""Explain a table's efficiency, in sentences with their numbers. Pure.

Each sentence is either a finding or names the run that would give one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hpcbert.logs.arithmetic import median
from hpcbert.model import Group, Row, Shape, SpeedupTable
from hpcbert.results.metrics import ModelSize, find_model
from hpcbert.results.reduce import BASELINE
from hpcbert.results.wording import device_word, sanitize

# Shares of the median below which a slow node, or a wait, is not reported.
_MIN_GAIN, _MIN_WAIT = 0.01, 0.01
# How far a 95th percentile must be above the median to be reported, as a share.
_MIN_TAIL = 0.10
# Runs without a node that a statement about the node needs.
_MIN_RUNS_WITHOUT = 2
_POSITIONS, _SEGMENTS = 512, 2


@dataclass(frozen=True)
class Observation:
    """One sentence.

    Attributes:
        about: `node`, `nodes`, `all-reduce`, `slow-node`, `steps` or `input`.
        shape: The point that it is about; None for the table.
        text: The sentence.
        numbers: The numbers in it, by name.
        missing: Whether it names the run that would give the answer, instead of a finding.
    """

    about: str
    shape: Shape | None
    text: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    missing: bool = False


def explain(
    table: SpeedupTable,
    *,
    bandwidths: Mapping[Shape, float],
    waits: Mapping[Shape, Sequence[float]],
) -> tuple[Observation, ...]:
    """Explain the efficiency in a table's rows.

    Args:
        table: The table.
        bandwidths: Bus bandwidth of all-reduce as nccl-tests measured it, GB/s, by shape.
        waits: Shares of time that runs waited for input, by shape.
    """
    rows = [row for row in table.rows if row.median]
    if not rows:
        return (
            Observation("nodes", None, "No point has a number, so there is nothing to explain."),
        )
    findings = [_explain_node_loss(table, rows), *_explain_network_loss(table, rows)]
    for row in rows:
        findings += _explain_all_reduce(table.group, row, rows, bandwidths)
        findings += _explain_slow_node(row)
        findings += _explain_steps(row)
    return (*findings, *_explain_input(table.group, rows, waits))


def _submit_command(group: Group, shape: Shape, *, fw: str = "") -> str:
    """Return the command that measures a shape."""
    text = (
        "" if fw else f" --precision {group.precision} --batch-size {group.batch_size_per_device}"
    )
    text += " --device cpu" if group.device == "cpu" and not fw else ""
    shape_options = f"--nodes {shape.nodes} --gpus-per-node {shape.gpus_per_node}"
    return sanitize(f"hpcbert submit --fw {fw or group.framework} {shape_options}{text}")


def _row_of_shape(rows: Sequence[Row], shape: Shape) -> Row | None:
    return next((row for row in rows if row.shape == shape), None)


def _explain_node_loss(table: SpeedupTable, rows: Sequence[Row]) -> Observation:
    """Report the loss inside a node: the rate of one GPU compared with that of a whole node."""
    width = max(row.shape.gpus_per_node for row in rows)
    node_shape = Shape(1, width)
    if width == 1:
        text = f"One {device_word(table.group)} per node: nothing is lost inside a node."
        return Observation("node", node_shape, text)
    single_row, node_row = _row_of_shape(rows, BASELINE), _row_of_shape(rows, node_shape)
    if single_row is None or node_row is None or not (single_row.median and node_row.median):
        missing_shape = BASELINE if single_row is None else node_shape
        text = f"The loss inside a node is unknown without a run of {missing_shape}: "
        return Observation(
            "node", node_shape, text + _submit_command(table.group, missing_shape), missing=True
        )
    ideal = width * single_row.median
    loss = 1 - node_row.median / ideal
    text = (
        f"Inside a node {loss:.1%} is lost: {node_shape} gives {node_row.median:,.2f} samples/s, where "
        f"{width} times the {single_row.median:,.2f} of one {device_word(table.group)} are "
        f"{ideal:,.2f}."
    )
    return Observation(
        "node", node_shape, text, {"lost": loss, "ideal": ideal, "measured": node_row.median}
    )


def _explain_network_loss(table: SpeedupTable, rows: Sequence[Row]) -> list[Observation]:
    """Report the loss between nodes: the rate of one node compared with that of several."""
    multi_node_rows = [row for row in rows if row.shape.nodes > 1]
    if not multi_node_rows:
        width = max(row.shape.gpus_per_node for row in rows)
        next_shape = Shape(2, width)
        text = f"The loss between nodes is unknown without a run of {next_shape}: "
        text += _submit_command(table.group, next_shape)
        return [Observation("nodes", next_shape, text, missing=True)]
    findings = []
    for row in multi_node_rows:
        node_row = _row_of_shape(rows, Shape(1, row.shape.gpus_per_node))
        if node_row is None or not node_row.median or not row.median:
            missing_shape = Shape(1, row.shape.gpus_per_node)
            text = f"The loss of {row.shape} between nodes is unknown without a run of {missing_shape}: "
            text += _submit_command(table.group, missing_shape)
            findings.append(Observation("nodes", row.shape, text, missing=True))
            continue
        ideal = row.shape.nodes * node_row.median
        loss = 1 - row.median / ideal
        text = (
            f"Between nodes {row.shape} loses {loss:.1%}: it gives {row.median:,.2f} samples/s, "
            f"where {row.shape.nodes} times the {node_row.median:,.2f} of one node are {ideal:,.2f}."
        )
        numbers = {"lost": loss, "ideal": ideal, "measured": row.median}
        findings.append(Observation("nodes", row.shape, text, numbers))
    return findings


def count_parameters(model: ModelSize) -> int:
    """Return the number of weights, and so of gradients, of a BERT with pre-training heads.

    Embeddings with their norm, blocks, pooler, both heads; the masked-LM head shares its matrix
    with the embeddings (google-research/bert@eedf571, modeling.py and run_pretraining.py).
    """
    hidden, intermediate = model.hidden, model.intermediate
    block = (
        4 * (hidden**2 + hidden) + 2 * hidden * intermediate + intermediate + hidden + 4 * hidden
    )
    embeddings = (model.vocabulary + _POSITIONS + _SEGMENTS) * hidden + 2 * hidden
    heads = (hidden**2 + hidden) + 2 * hidden + model.vocabulary + 2 * hidden + 2
    return embeddings + model.layers * block + (hidden**2 + hidden) + heads


def _accumulation(group: Group) -> int:
    words = group.variant.split(",")
    texts = (word.removeprefix("acc") for word in words if word.startswith("acc"))
    return next((int(word) for word in texts if word.isdecimal()), 1)


def _explain_all_reduce(
    group: Group, row: Row, rows: Sequence[Row], bandwidths: Mapping[Shape, float]
) -> list[Observation]:
    """Compare the time of all-reduce alone with the time that a step lost."""
    shape = row.shape
    base = _row_of_shape(rows, Shape(1, shape.gpus_per_node) if shape.nodes > 1 else BASELINE)
    model = find_model(group.model)
    uses_nccl = shape.gpus > 1 and group.device != "cpu"
    if not uses_nccl or base is None or model is None or not (row.median and base.median):
        return []
    bandwidth = bandwidths.get(shape)
    if bandwidth is None:
        if shape.nodes == 1:
            return []
        text = f"The time of the network of {shape} alone is unknown without nccl-tests: "
        text += _submit_command(group, shape, fw="nccl-tests")
        return [Observation("all-reduce", shape, text, missing=True)]
    samples = group.batch_size_per_device * _accumulation(group)
    step_seconds = shape.gpus * samples / row.median
    lost_seconds = step_seconds - base.shape.gpus * samples / base.median
    size = count_parameters(model) * 4
    network_seconds = 2 * (shape.gpus - 1) / shape.gpus * size / (bandwidth * 1e9)
    numbers = {"bytes": float(size), "gb_per_s": bandwidth, "alone_seconds": network_seconds}
    numbers |= {"lost_seconds": lost_seconds, "step_seconds": step_seconds}
    half_note = (
        "" if group.precision in {"fp32", "tf32"} else " (half of it if they are sent in 16 bits)"
    )
    text = (
        f"All-reduce of {size / 1e6:,.0f} MB of fp32 gradients over {shape} takes "
        f"{network_seconds * 1e3:,.1f} ms{half_note} at the {bandwidth:,.1f} GB/s that nccl-tests measured; a step of "
        f"{step_seconds * 1e3:,.1f} ms lost {max(0.0, lost_seconds) * 1e3:,.1f} ms to {base.shape}: "
    )
    if lost_seconds <= 0:
        text += "all of it is hidden behind computation."
    elif lost_seconds <= network_seconds:
        numbers["hidden"] = 1 - lost_seconds / network_seconds
        text += f"{1 - lost_seconds / network_seconds:.0%} of it is hidden behind computation."
    else:
        text += f"the network alone does not explain {(lost_seconds - network_seconds) * 1e3:,.1f} ms of that."
    return [Observation("all-reduce", shape, text, numbers)]


def _explain_slow_node(row: Row) -> list[Observation]:
    """Name a node that lowers the median: without its runs, the median would be higher."""
    runs = [(frozenset(run.nodes), run.throughput) for run in row.runs if run.valid]
    measured_runs = [(nodes, speed) for nodes, speed in runs if nodes and speed]
    if len(measured_runs) < _MIN_RUNS_WITHOUT + 1 or not row.median:
        return []
    changes: dict[str, tuple[float, int]] = {}
    for node in sorted(set().union(*(nodes for nodes, _ in measured_runs))):
        speeds_without = [speed for nodes, speed in measured_runs if node not in nodes]
        if _MIN_RUNS_WITHOUT <= len(speeds_without) < len(measured_runs):
            changes[node] = median(speeds_without), len(speeds_without)
    if not changes:
        text = (
            f"All runs of {row.shape} had the same nodes, so they can't be compared with each "
            "other (in a step all ranks wait for the slowest): repeats on other nodes would show "
            "it, as an array makes them (--repeats-in array)."
        )
        return (
            [Observation("slow-node", row.shape, text, missing=True)] if row.shape.nodes > 1 else []
        )
    node, (best_median, count) = max(changes.items(), key=lambda change: change[1][0])
    gain = best_median / row.median - 1
    numbers = {
        "median": row.median,
        "median_without": best_median,
        "gain": gain,
        "runs_without": float(count),
    }
    if gain < _MIN_GAIN:
        text = (
            f"No node of {row.shape} stands out: without the runs of any one of them the median "
            f"rises by {max(0.0, gain):.1%} at most."
        )
    else:
        text = (
            f"Without the runs on {sanitize(node)} the median of {row.shape} would be {best_median:,.2f} "
            f"samples/s instead of {row.median:,.2f}, {gain:.1%} more ({count} of {len(measured_runs)} "
            "runs)."
        )
    return [Observation("slow-node", row.shape, text, numbers)]


def _explain_steps(row: Row) -> list[Observation]:
    """Report whether some steps take much longer than most."""
    metrics = row.metrics
    if metrics is None or not metrics.step_seconds or not metrics.step_seconds_p95:
        return []
    tail = metrics.step_seconds_p95 / metrics.step_seconds - 1
    if tail < _MIN_TAIL:
        return []
    text = (
        f"Steps of {row.shape} are uneven: the median is {metrics.step_seconds * 1e3:,.1f} ms, one "
        f"in twenty takes {metrics.step_seconds_p95 * 1e3:,.1f} ms or more, {tail:.0%} longer."
    )
    return [Observation("steps", row.shape, text, {"tail": tail})]


def _explain_input(
    group: Group, rows: Sequence[Row], waits: Mapping[Shape, Sequence[float]]
) -> list[Observation]:
    """Report the share of the time that programs waited for their input."""
    findings = []
    for row in rows:
        if shares := waits.get(row.shape, ()):
            share = median(list(shares))
            text = f"{row.shape} waited {share:.1%} of the time for its input"
            text += "." if share >= _MIN_WAIT else ": that does not matter."
            findings.append(Observation("input", row.shape, text, {"share": share}))
    if not findings:
        subject = f"{group.framework}'s logs don't say how long they waited for input"
        text = f"{sanitize(subject)}: compare with a run on synthetic data (--data synthetic)."
        return [Observation("input", None, text, missing=True)]
    return findings
