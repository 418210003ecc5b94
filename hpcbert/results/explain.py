"""Explain a table's efficiency, in sentences with their numbers. Pure.

Each sentence is either a finding or names the run that would give one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from hpcbert.model import Group, Row, Shape, SpeedupTable
from hpcbert.results.metrics import ModelSize, find_model
from hpcbert.results.reduce import BASELINE
from hpcbert.results.wording import device_word, sanitize

# The gain without a node, as a share of the median, from which it is named.
_MIN_GAIN = 0.01
# As `Point.variant` and `Curves.variant` write them.
_BATCH_OPTIONS = {"acc": "--accumulation", "gbs": "--global-batch-size"}
_BATCH = re.compile(rf"({'|'.join(_BATCH_OPTIONS)})(\d+)")
# A folder of logs, and a note on several accumulations: no option asks for them.
_WITHOUT_OPTION = re.compile(r"system=.*|acc by shape")
# The excess of a 95th percentile over the median, as a share, from which it is reported.
_MIN_TAIL = 0.10
# Runs without a node that a statement about the node needs.
_MIN_RUNS_WITHOUT = 2
_POSITIONS, _SEGMENTS = 512, 2
_PLACES = {"node": "Inside a node", "nodes": "Between nodes"}


@dataclass(frozen=True)
class Observation:
    """One sentence.

    Attributes:
        about: `node`, `nodes`, `all-reduce`, `slow-node`, `steps` or `input`.
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
        bandwidths: Bus bandwidth of all-reduce as nccl-tests measured it, GB/s, by shape.
        waits: Shares of time that runs waited for input, by shape.
    """
    rows = [row for row in table.rows if row.median]
    if not rows:
        text = "No point has a number, so there is nothing to explain."
        return (Observation("nodes", None, text),)
    group = table.group
    speeds = {row.shape: row.median for row in rows if row.median}
    findings = [*_explain_losses(group, speeds)]
    for row in rows:
        findings += _explain_all_reduce(group, row.shape, speeds, bandwidths)
        findings += _explain_slow_node(row)
        findings += _explain_steps(row)
    return (*findings, *_explain_input(group, rows, waits))


def _submit_command(group: Group, shape: Shape) -> str:
    size = "max" if group.largest else group.batch_size_per_device
    words = [
        f"hpcbert submit --fw {group.framework} --model {group.model} {_shape_options(shape)}",
        f"--precision {group.precision} --batch-size {size}",
    ]
    for word in group.variant.split(","):
        name, equals, _ = word.partition("=")
        match = _BATCH.fullmatch(word)
        if not word or _WITHOUT_OPTION.fullmatch(word):
            continue
        if equals:
            words.append(f"--{'env' if name.isupper() else 'set'} {word}")
        elif match:
            words.append(f"{_BATCH_OPTIONS[match[1]]} {match[2]}")
        else:
            words.append("--xla" if word == "xla" else f"--protocol {word}")
    words += ["--device cpu"] if group.device == "cpu" else []
    return sanitize(" ".join(words))


def _shape_options(shape: Shape) -> str:
    return f"--nodes {shape.nodes} --gpus-per-node {shape.gpus_per_node}"


def _missing_run(group: Group, about: str, shape: Shape, missing: Shape) -> Observation:
    loss, command = f"{_PLACES[about]} the loss of {shape}", _submit_command(group, missing)
    text = f"{loss} is unknown without a run of {missing}: {command}"
    return Observation(about, shape, text, missing=True)


def _explain_loss(
    group: Group, speeds: Mapping[Shape, float], about: str, base_shape: Shape, shape: Shape
) -> Observation:
    """Compare the rate of a shape with that of a smaller one, times the difference in size."""
    base, speed = speeds.get(base_shape), speeds.get(shape)
    if base is None or speed is None:
        return _missing_run(group, about, shape, base_shape if base is None else shape)
    factor = shape.gpus // base_shape.gpus
    ideal = factor * base
    loss = 1 - speed / ideal
    text = (
        f"{_PLACES[about]} {shape} loses {loss:.1%}: it gives {speed:,.2f} samples/s, where "
        f"{factor} times the {base:,.2f} of {base_shape} are {ideal:,.2f}."
    )
    return Observation(about, shape, text, {"lost": loss, "ideal": ideal, "measured": speed})


def _explain_losses(group: Group, speeds: Mapping[Shape, float]) -> Iterator[Observation]:
    width = max(shape.gpus_per_node for shape in speeds)
    node = Shape(1, width)
    if width == 1:
        text = f"One {device_word(group)} per node: nothing is lost inside a node."
        yield Observation("node", node, text)
    else:
        yield _explain_loss(group, speeds, "node", BASELINE, node)
    shapes = [shape for shape in speeds if shape.nodes > 1]
    for shape in shapes:
        yield _explain_loss(group, speeds, "nodes", Shape(1, shape.gpus_per_node), shape)
    if not shapes:
        several = Shape(2, width)
        yield _missing_run(group, "nodes", several, several)


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


def _explain_all_reduce(
    group: Group, shape: Shape, speeds: Mapping[Shape, float], bandwidths: Mapping[Shape, float]
) -> list[Observation]:
    base_shape = Shape(1, shape.gpus_per_node) if shape.nodes > 1 else BASELINE
    model = find_model(group.model)
    if shape.gpus == 1 or group.device == "cpu" or not model or base_shape not in speeds:
        return []
    bandwidth = bandwidths.get(shape)
    if bandwidth is None:
        text = (
            f"The time of the network of {shape} alone is unknown without nccl-tests: "
            f"hpcbert submit --fw nccl-tests {_shape_options(shape)}"
        )
        missing = Observation("all-reduce", shape, text, missing=True)
        return [missing] if shape.nodes > 1 else []
    accumulations = re.findall(r"(?:^|,)acc(\d+)(?=,|$)", group.variant) or ["1"]
    samples = group.batch_size_per_device * int(accumulations[0])
    step = shape.gpus * samples / speeds[shape]
    lost = step - base_shape.gpus * samples / speeds[base_shape]
    size = count_parameters(model) * 4
    alone = 2 * (shape.gpus - 1) / shape.gpus * size / (bandwidth * 1e9)
    numbers = {
        "bytes": float(size),
        "gb_per_s": bandwidth,
        "alone_seconds": alone,
        "lost_seconds": lost,
        "step_seconds": step,
    }
    half = (
        "" if group.precision in {"fp32", "tf32"} else " (half of it if they are sent in 16 bits)"
    )
    text = (
        f"All-reduce of {size / 1e6:,.0f} MB of fp32 gradients over {shape} takes "
        f"{alone * 1e3:,.1f} ms{half} at the {bandwidth:,.1f} GB/s that nccl-tests measured; "
        f"a step of {step * 1e3:,.1f} ms lost {max(0.0, lost) * 1e3:,.1f} ms to {base_shape}: "
    )
    if lost <= alone:
        numbers["hidden"] = 1 - max(0.0, lost) / alone
        text += f"{numbers['hidden']:.0%} of it is hidden behind computation."
    else:
        text += f"the network alone does not explain {(lost - alone) * 1e3:,.1f} ms of that."
    return [Observation("all-reduce", shape, text, numbers)]


def _explain_slow_node(row: Row) -> list[Observation]:
    """Name a node that lowers the median: without its runs, the median would be higher."""
    measured = [
        (frozenset(run.nodes), run.throughput)
        for run in row.runs
        if run.valid and run.nodes and run.throughput
    ]
    if len(measured) < _MIN_RUNS_WITHOUT + 1 or not row.median:
        return []
    changes: list[tuple[float, int, str]] = []
    for node in sorted({node for nodes, _ in measured for node in nodes}):
        speeds = [speed for nodes, speed in measured if node not in nodes]
        if _MIN_RUNS_WITHOUT <= len(speeds) < len(measured):
            changes.append((median(speeds), len(speeds), node))
    if not changes:
        text = (
            f"All runs of {row.shape} had the same nodes, so they can't be compared with each "
            "other (in a step all ranks wait for the slowest): repeats on other nodes would show "
            "it, as an array makes them (--repeats-in array)."
        )
        missing = Observation("slow-node", row.shape, text, missing=True)
        return [missing] if row.shape.nodes > 1 else []
    best, count, node = max(changes, key=lambda change: change[0])
    gain = best / row.median - 1
    if gain < _MIN_GAIN:
        text = (
            f"No node of {row.shape} stands out: without the runs of any one of them the median "
            f"rises by {max(0.0, gain):.1%} at most."
        )
    else:
        text = (
            f"Without the runs on {sanitize(node)} the median of {row.shape} would be "
            f"{best:,.2f} samples/s instead of {row.median:,.2f}, {gain:.1%} more "
            f"({count} of {len(measured)} runs)."
        )
    numbers = {"median": row.median, "median_without": best, "gain": gain}
    numbers["runs_without"] = float(count)
    return [Observation("slow-node", row.shape, text, numbers)]


def _explain_steps(row: Row) -> list[Observation]:
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
    findings = []
    for row in rows:
        if shares := waits.get(row.shape, ()):
            share = median(list(shares))
            text = f"{row.shape} waited {share:.1%} of the time for its input."
            findings.append(Observation("input", row.shape, text, {"share": share}))
    if not findings:
        subject = f"{group.framework}'s logs don't say how long they waited for input"
        text = f"{sanitize(subject)}: compare with a run on synthetic data (--data synthetic)."
        return [Observation("input", None, text, missing=True)]
    return findings
