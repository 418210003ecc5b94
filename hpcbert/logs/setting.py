"""The known facts about a run, and those that its log adds."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

# Instead of an iteration: as far as the run went.
END = 1 << 40


# Options of recipes that are facts of a log too, by kind; 0 and "" leave the choice to a program.
RECORDED = {"sequence_length": int, "predictions": int, "vocab_size": int, "optimizer": str}
# Numbers that are not whole; kept as the log prints them.
FRACTIONS = ("real_token_share", "model_flops")
# What a table states about a run, and the setting that has it.
LABELS = {
    "nodes": "nodes",
    "gpus": "gpus",
    "batch": "batch_size_per_device",
    "precision": "precision",
    "model": "model",
    "sequence_length": "sequence_length",
}
# For each label that is a number, the powers of 2 of settings that change with it.
_NODES, _GPUS = {"nodes": 1, "gpus": 1}, {"gpus_per_node": 1, "gpus": 1}
_FEWER, _MORE = {"batch_size_per_device": -1}, {"batch_size_per_device": 1}
_OTHER_VALUES: Mapping[str, tuple[Mapping[str, int], ...]] = {
    "nodes": ({"nodes": 1, "gpus_per_node": -1},),
    "gpus": (_NODES, _GPUS, {**_NODES, **_FEWER}, {**_GPUS, **_FEWER}),
    "batch": (_MORE, {**_NODES, **_FEWER}, {**_GPUS, **_FEWER}),
    "sequence_length": ({"sequence_length": 1},),
}

# Hidden size and layers (google-research/bert@eedf571, README.md).
SIZES = {
    "bert-tiny": (128, 2),
    "bert-mini": (256, 4),
    "bert-small": (512, 4),
    "bert-medium": (512, 8),
    "bert-base": (768, 12),
    "bert-large": (1024, 24),
}
# Models of other layouts: their names can be compared, their sizes mean something else.
_OTHER_MODELS = re.compile(r"(?:modern|mosaic)bert-(?:tiny|base|large)")
_SPELLING = re.compile(r"(?:bert[-_])?([a-z]+)(?:[-_](?:un)?cased)?")


class UnknownError(Exception):
    """A setting that a number depends on is unknown; the message is its name."""


class Window(NamedTuple):
    """The window to measure instead of the protocol's; None: the protocol's.

    `iters` may be END.
    """

    skip: int | None = None
    iters: int | None = None


class Setting(NamedTuple):
    """What a rule must know to convert the numbers of a log to samples per second.

    None means unknown: the log may say.

    Attributes:
        tensor_parallel, pipeline_parallel, context_parallel: GPUs that share a layer, the layers,
            or a sample; their product is a replica. Unknown counts as 1.
        data_parallel: Replicas of the model, each with a batch of its own.
        batch_size_per_device: Samples of a replica in one micro-batch.
        device_batch: That micro-batch as a program states it, in its unit.
        batch_unit: `samples` or `tokens`.
        accumulation: Micro-batches in one optimizer step; unknown counts as 1.
        global_batch_size: Samples in one optimizer step over all devices.
        packing: Samples that one of the device's batch holds on average; unknown counts as 1.
        sequence_length: Tokens in a sample.
        intermediate_size: Width inside the feed-forward part of a layer.
        vocab_size: Tokens that the masked-LM head distinguishes.
        predictions: Masked tokens of a sample that it predicts, at most.
        real_token_share: Share of a sample's tokens that are not padding, as a text.
        model_flops: Operations that a sample needs without padding, as a text.
        rate_window: Records over which the program averages each printed rate.
        padding: `left out`, if the program computes real tokens only.
        weights: Their precision in computing, if the program prints it apart from `precision`.
        attention: The kernel of the attention, by its name in the program.
        xla: Whether the graph compiler is on: `true` or `false`.
        device_kind: What the ranks compute on: `gpu` or `cpu`.
        iters: Iterations of the protocol, warm-up included.
        reach: Iteration that the run must have reached, with any rule; 0 for none.
        sources: The source of a value, by its name, for messages: `--nodes`, `the path`.
    """

    nodes: int | None = None
    gpus_per_node: int | None = None
    gpus: int | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    context_parallel: int | None = None
    data_parallel: int | None = None
    batch_size_per_device: int | None = None
    device_batch: int | None = None
    batch_unit: str | None = None
    accumulation: int | None = None
    global_batch_size: int | None = None
    packing: int | None = None
    precision: str | None = None
    sequence_length: int | None = None
    model: str | None = None
    hidden_size: int | None = None
    layers: int | None = None
    intermediate_size: int | None = None
    vocab_size: int | None = None
    predictions: int | None = None
    real_token_share: str | None = None
    model_flops: str | None = None
    rate_window: int | None = None
    padding: str | None = None
    optimizer: str | None = None
    weights: str | None = None
    attention: str | None = None
    xla: str | None = None
    version: str | None = None
    device: str | None = None
    device_kind: str | None = None
    skip: int = 20
    iters: int = 120
    reach: int = 0
    sources: tuple[tuple[str, str], ...] = ()

    @property
    def gpus_per_replica(self) -> int:
        """GPUs that compute one batch together."""
        layers = (self.tensor_parallel or 1) * (self.pipeline_parallel or 1)
        return layers * (self.context_parallel or 1)

    def need(self, name: str) -> int:
        """Return a number that must be known."""
        value: int | None = getattr(self, name)
        if value is None:
            raise UnknownError(name)
        return value

    def batch(self, share: str, *, micro: bool) -> int:
        """Return the samples of one step.

        Args:
            share: `global`, `per-node` or `per-gpu`.

        Raises:
            UnknownError: A factor isn't known.
        """
        if share == "global" and not micro and self.global_batch_size is not None:
            return self.global_batch_size
        steps = (1 if micro else self.accumulation or 1) * (self.packing or 1)
        devices = {"global": "gpus", "per-node": "gpus_per_node"}.get(share)
        device_count = self.need(devices) if devices else 1
        if device_count % self.gpus_per_replica:
            raise UnknownError("data_parallel")
        return device_count // self.gpus_per_replica * self.need("batch_size_per_device") * steps

    def with_other(self, label: str) -> Iterator[Setting]:
        """Yield settings with twice and with half of a label's value, where these are whole.

        Of a product of two, the other factor stays, or balances it.
        """
        for sign in (1, -1):
            for powers in _OTHER_VALUES[label]:
                scaled = {
                    name: getattr(self, name) * 2.0 ** (sign * power)
                    for name, power in powers.items()
                    if getattr(self, name)
                }
                if scaled and all(value.is_integer() for value in scaled.values()):
                    whole_values: dict[str, Any] = {name: int(n) for name, n in scaled.items()}
                    yield self._replace(**whole_values)

    def settled(self, facts: Mapping[str, int | str]) -> tuple[Setting, tuple[str, ...]]:
        """Return the setting with a log's facts, and their contradictions.

        Contradictions are sentences; if there is one, the earlier value stays.
        """
        sources = dict(self.sources)
        disagreements = []
        new_values: dict[str, Any] = {}
        for name, log_value in facts.items():
            value = getattr(self, name)
            if value is None:
                new_values[name] = log_value
            elif value != log_value:
                source = f"{sources[name]} says" if name in sources else "expected"
                disagreements.append(f"the log says {name} = {log_value}, {source} {value}")
        setting = _derive_missing(self._replace(**new_values))
        return setting, (*disagreements, *_find_contradictions(setting))


def _derive_missing(setting: Setting) -> Setting:
    """Fill in what follows from the rest: of nodes, GPUs per node and GPUs; of the batch."""
    if setting.data_parallel and setting.gpus is None:
        setting = setting._replace(gpus=setting.data_parallel * setting.gpus_per_replica)
    nodes, gpus_per_node, gpus = setting.nodes, setting.gpus_per_node, setting.gpus
    if nodes and gpus_per_node and gpus is None:
        setting = setting._replace(gpus=nodes * gpus_per_node)
    elif gpus and gpus_per_node and nodes is None and gpus % gpus_per_node == 0:
        setting = setting._replace(nodes=gpus // gpus_per_node)
    elif gpus and nodes and gpus_per_node is None and gpus % nodes == 0:
        setting = setting._replace(gpus_per_node=gpus // nodes)
    if setting.batch_size_per_device is None:
        setting = setting._replace(batch_size_per_device=_samples_of_batch(setting))
    replicas = (setting.gpus or 0) // setting.gpus_per_replica
    total = setting.global_batch_size
    shares = replicas * (setting.accumulation or 0) * (setting.packing or 1)
    if setting.batch_size_per_device is None and shares and total and total % shares == 0:
        setting = setting._replace(batch_size_per_device=total // shares)
    micro_batch = replicas * (setting.batch_size_per_device or 0) * (setting.packing or 1)
    if micro_batch and total and setting.accumulation is None and total % micro_batch == 0:
        setting = setting._replace(accumulation=total // micro_batch)
    return setting


def _samples_of_batch(setting: Setting) -> int | None:
    """Return the whole samples in a device's batch as its program states it."""
    batch, length = setting.device_batch, setting.sequence_length
    if setting.batch_unit == "tokens":
        return batch // length if batch and length else None
    return batch if setting.batch_unit == "samples" else None


def _find_contradictions(setting: Setting) -> tuple[str, ...]:
    contradictions = []
    nodes, gpus_per_node, gpus = setting.nodes, setting.gpus_per_node, setting.gpus
    if nodes and gpus_per_node and gpus and nodes * gpus_per_node != gpus:
        contradictions.append(f"{nodes} nodes with {gpus_per_node} GPUs each are not {gpus} GPUs")
    replicas = (gpus or 0) // setting.gpus_per_replica
    if gpus and (setting.data_parallel or replicas) * setting.gpus_per_replica != gpus:
        count = f"{setting.data_parallel} " if setting.data_parallel else ""
        text = f"{setting.gpus_per_replica} GPUs each"
        contradictions.append(f"{count}replicas of {text} are not {gpus} GPUs")
    size, total = setting.batch_size_per_device, setting.global_batch_size
    if size != (_samples_of_batch(setting) or size):
        length = f" of {setting.sequence_length} tokens" if setting.batch_unit == "tokens" else ""
        contradictions.append(
            f"a batch of {setting.device_batch} {setting.batch_unit} is not {size} samples{length}"
        )
    factors = [factor for factor in (setting.accumulation, setting.packing) if factor]
    if size and gpus and total and size * replicas * math.prod(factors) != total:
        units = "GPUs" if replicas == gpus else f"replicas of {setting.gpus_per_replica} GPUs"
        product = " x ".join(map(str, (f"{replicas} {units}", *factors)))
        contradictions.append(f"a global batch of {total} is not {size} samples on {product}")
    return tuple(contradictions)


def derive_packing(facts: Mapping[str, Any], max_factor: int) -> int | None:
    """Return the packing factor, if a log's own facts allow no other reading.

    NVIDIA's MLPerf BERT counts the samples of packed sequences in its global batch, and those of
    a device before: the former is twice the product of the latter, GPUs and accumulation
    (mlcommons/training_results_v3.1@f33f944, NVIDIA/benchmarks/bert/implementations/v30-pytorch,
    run_pretraining.py, average_packing_rate).
    """
    names = ("gpus", "batch_size_per_device", "accumulation", "global_batch_size")
    if facts.get("packing") or any(facts.get(name) is None for name in names):
        return None
    *factors, total = (int(facts[name]) for name in names)
    product = math.prod(factors)
    return next((number for number in range(2, max_factor + 1) if number * product == total), None)


def model_facts(model: str) -> dict[str, Any]:
    """Return the facts of a model's run, by their names in FACTS; none for an unknown model."""
    match = _SPELLING.fullmatch(model.lower())
    name = f"bert-{match[1]}" if match else ""
    if _OTHER_MODELS.fullmatch(model.lower()):
        return {"model": model.lower()}
    if name not in SIZES:
        return {}
    hidden_size, layers = SIZES[name]
    return {"model": name, "hidden_size": hidden_size, "layers": layers}


def model_name(setting: Setting) -> str:
    """Return the name of a run's model; empty if unknown."""
    if setting.model:
        return setting.model
    model_names = [
        name
        for name, (hidden_size, layers) in SIZES.items()
        if setting.hidden_size in (None, hidden_size) and setting.layers in (None, layers)
    ]
    return model_names[0] if len(model_names) == 1 else ""


def model_heading(setting: Setting) -> str:
    """Return the name of a log's model, else its sizes; empty if both are unknown."""
    log_sizes = {"hidden size": setting.hidden_size, "layers": setting.layers}
    sizes = (f"{name} {size}" for name, size in log_sizes.items() if size)
    return model_name(setting) or ", ".join(sizes)
