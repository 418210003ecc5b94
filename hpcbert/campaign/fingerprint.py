"""The facts of a run's nodes that can change a number: read, compared, distinguished; pure.

`describe.sh` prints them on the nodes, and `gather` of nodes.bash joins them: one file per attempt,
each of whose lines has facts and the names of the nodes that share them. Contents are treated as
untrusted text: bounded, of known types, or left out.

sample.sh records power and memory of the GPUs, and the job adds up the samples of all nodes
(add_samples of nodes.bash). It does not know when the window begins: a program prints its
iterations, not the times of its first and last one. The window is the stretch of its length in
which the GPUs used the most power: outside of it they load, compile, warm up, and end.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import tomli

from hpcbert.model import Difference, Measured, Sampled, Scope
from hpcbert.system import files
from hpcbert.system.grouping import group, group_sorted

LARGEST = 1 << 26
_LONGEST = 200
_MOST = 1000
_UNSET = "not set"
_ABSENT = "none"

# Variables that change the behaviour of libraries; not those that an allocation sets.
_RELEVANT = re.compile(
    r"(?:NCCL|RCCL|HIP|HSA|ROCM|ROCBLAS|MIOPEN|HCCL|HABANA|PT_HPU|OMP|KMP|MKL|OPENBLAS|GOMP|CUDA|CUDNN|CUBLAS|NVTE|UCX|OMPI_MCA|FI|GLOO|TORCH|"
    r"PYTORCH|TF|XLA|FLAGS|JAX|HOROVOD|ONEFLOW|MXNET|MS|DALI)_\w+|LD_PRELOAD|LD_LIBRARY_PATH|"
    r"\w+_VERSION|NVIDIA_BUILD_ID",
    re.ASCII,
)
_ALLOCATED = re.compile(
    r"(?:CUDA|HIP|HABANA)_VISIBLE_(?:DEVICES|MODULES)|CUDA_MPS_\w+|CUDA_DEVICE_ORDER_\w+|SLURM\w*|HPCBERT_\w+|BASH_VERSION|"
    r"(?:NCCL|GLOO)_SOCKET_IFNAME"
)
_PACKAGE = re.compile(r"(?P<name>[A-Za-z0-9_.]+?)-(?P<version>\d[^-]*)(?:-.*)?")
_LIBRARY = re.compile(r"(?P<name>[A-Za-z0-9_]+)\.so\.(?P<version>[\w.]+)")
_DIGEST = re.compile(r"@sha256:([0-9a-f]{64})|\+([0-9a-f]{12})\.sqsh")
_TABLES = tomli.loads(Path(__file__).with_name("facts.toml").read_text(encoding="utf-8"))
# Facts from a run's log are compared like facts of nodes, in a scope of their own.
LOG = "log"
# Runs that differ in these are different experiments: the device, and the framework's version.
_DECISIVE = re.compile(
    r"GPU|GPU memory, MiB|GPU MIG mode|GPU partition|machine|"
    r"package (?:deepspeed|jax|megatron_core|mindspore\w*|mxnet\w*|"
    r"oneflow\w*|paddlepaddle\w*|tensorflow\w*|torch)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Fingerprint:
    """The facts of one node, or of several that are equal; unknown facts are not among them.

    Attributes:
        scopes: The parts that were gathered at all: a fact missing from them is known to be absent.
    """

    nodes: tuple[str, ...]
    facts: Mapping[str, str]
    scopes: frozenset[str] = frozenset()

    @property
    def digest(self) -> str:
        """SHA-256 of the relevant facts, 12 hexadecimal digits: equal nodes have equal ones."""
        text = json.dumps([sorted(self.facts.items()), sorted(self.scopes)])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]

    @property
    def summary(self) -> str:
        """The node in a few words."""
        parts = ((form, self.facts.get(name)) for name, form in _TABLES["summary"].items())
        return " ".join(form.format(fact) for form, fact in parts if fact).rstrip(",")


def parse(raw: bytes) -> tuple[Fingerprint, ...]:
    """Read what an attempt's nodes printed; nodes without a host's part are left out.

    Damaged lines are left out, and so is all of a file that is larger than LARGEST bytes.
    """
    facts: dict[str, dict[str, str]] = {}
    with_host: set[str] = set()
    with_image: set[str] = set()
    for names, document in read_documents(raw):
        host, image = _as_table(document.get("host")), _as_table(document.get("image"))
        part = _read_host(host) | _read_image(image)
        for node in names:
            facts.setdefault(node, {}).update(part)
        with_host.update(names if "host" in document else ())
        with_image.update(names if image else ())
    alike = group(
        ((tuple(sorted(facts[node].items())[:_MOST]), node in with_image), node)
        for node in sorted(with_host)
    )
    return tuple(
        Fingerprint(tuple(nodes), dict(items), frozenset({"image"} if has_image else ()))
        for (items, has_image), nodes in alike.items()
    )


def read_documents(raw: bytes) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Yield the objects that nodes printed, each with the names of the nodes that are equal."""
    for line in raw.decode("utf-8", "replace").split("\n") if len(raw) <= LARGEST else ():
        with suppress(ValueError, RecursionError):
            document = json.loads(line)
            if isinstance(document, dict) and isinstance(document.get("nodes"), str):
                yield [node[:_LONGEST] for node in document["nodes"].split()], document


def _as_table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _as_text(value: Any) -> str:
    """Return a text as describe.sh meant it, on one line and bounded."""
    if not isinstance(value, str):
        return ""
    try:
        text = value.encode("latin-1").decode("utf-8", "replace")
    except UnicodeEncodeError:
        text = value
    return " ".join(text.split())[:_LONGEST]


def _as_texts(value: Any) -> list[str]:
    return [_as_text(item) for item in value[:_MOST]] if isinstance(value, list) else []


def _read_host(data: Mapping[str, Any]) -> dict[str, str]:
    facts = {name: _as_text(data.get(key)) for key, name in _TABLES["host"].items()}
    facts |= _read_gpus(_as_text(data.get("gpu_fields")).split(","), _as_texts(data.get("gpus")))
    facts["memory, GiB"] = _round_memory(_as_text(data.get("memory_kb")))
    facts["network"] = _describe_network(_as_texts(data.get("network")))
    facts["InfiniBand"] = _describe_infiniband(_as_texts(data.get("infiniband")))
    return {name: text for name, text in facts.items() if text}


def _read_gpus(fields: list[str], lines: list[str]) -> dict[str, str]:
    cards = [line.split(", ") for line in lines]
    if not cards or any(len(card) != len(fields) for card in cards):
        return {}
    facts = {"GPUs": str(len(cards))}
    for column, field in enumerate(fields):
        texts = sorted({card[column].strip() for card in cards} - {"", "N/A"})
        if field in _TABLES["gpu"] and texts:
            facts[_TABLES["gpu"][field]] = ", ".join(texts)
    return facts


def _round_memory(kilobytes: str) -> str:
    """Return the installed memory: the kernel keeps a few percent of it to itself."""
    if not kilobytes.isdigit() or not 1 << 20 <= int(kilobytes) < 1 << 50:
        return ""
    step: int = 1 << max(0, int(kilobytes).bit_length() - 4)
    return f"{-(-int(kilobytes) // step) * step / (1 << 20):g}"


def _describe_network(lines: list[str]) -> str:
    """Return rates and MTUs of the cards that are up; names differ between equal nodes."""
    cards = [line.split() for line in lines]
    return _count_kinds(
        f"{card[2]} Mb/s, MTU {card[3]}"
        for card in cards
        if len(card) == 5 and card[1] == "physical" and card[4] == "up"  # noqa: PLR2004
    )


def _describe_infiniband(lines: list[str]) -> str:
    ports = [line.split("|") for line in lines]
    return _count_kinds(
        f"{port[2]}, {port[1]}"
        for port in ports
        if len(port) == 4 and "ACTIVE" in port[3]  # noqa: PLR2004
    )


def _count_kinds(kinds: Iterable[str]) -> str:
    return "; ".join(f"{count} x {kind}" for kind, count in sorted(Counter(kinds).items()))


def _read_image(data: Mapping[str, Any]) -> dict[str, str]:
    reference = _as_text(data.get("reference"))
    digest = _DIGEST.search(reference)
    facts = {"image": f"sha256 {(digest[1] or digest[2])[:12]}" if digest else reference}
    keys = {"system in the image": "os", "Python": "python", "ROCm": "rocm"}
    facts |= {name: _as_text(data.get(key)) for name, key in keys.items()}
    facts = {name: text for name, text in facts.items() if text}
    facts |= _read_versions(_as_texts(data.get("packages")), _PACKAGE, "package")
    facts |= _read_versions(_as_texts(data.get("libraries")), _LIBRARY, "library")
    for name, value in list(_as_table(data.get("environment")).items())[:_MOST]:
        if _RELEVANT.fullmatch(name) and not _ALLOCATED.fullmatch(name):
            facts[f"variable {name}"] = _as_text(value)
    return facts


def _read_versions(names: list[str], form: re.Pattern[str], kind: str) -> dict[str, str]:
    matches = filter(None, map(form.fullmatch, names))
    versions = group_sorted((f"{kind} {match['name']}", match["version"]) for match in matches)
    return {name: ", ".join(texts) for name, texts in versions.items()}


class NodeSample(NamedTuple):
    """A fingerprint, and the shape and the repeat that it is of."""

    point: str
    repeat: int
    fingerprint: Fingerprint


def find_differences_within(node_samples: Iterable[NodeSample]) -> tuple[Difference, ...]:
    """Return the differences between the nodes of a point's repeats."""
    samples = tuple(node_samples)
    differences = []
    for name, values in _find_differing(samples):
        by_repeat = group((sample.repeat, value) for value in values for sample in values[value])
        is_within = any(len({*texts}) > 1 for texts in by_repeat.values())
        differences.append(_make_difference(name, "nodes" if is_within else "repeats", values))
    return tuple(differences)


def find_differences_between(
    base: Iterable[NodeSample], node_samples: Iterable[NodeSample]
) -> tuple[Difference, ...]:
    """Return the differences between a point and the one that it is compared with.

    What differs within one of them already says nothing about the two.
    """
    base_samples, point_samples = tuple(base), tuple(node_samples)
    mixed_names = {
        name for part in (base_samples, point_samples) for name, _ in _find_differing(part)
    }
    return tuple(
        _make_difference(name, "points", values)
        for name, values in _find_differing((*base_samples, *point_samples))
        if name not in mixed_names and name not in _TABLES["varying"]["by_shape"]
    )


def _find_differing(
    node_samples: tuple[NodeSample, ...],
) -> list[tuple[str, dict[str, list[NodeSample]]]]:
    """Return the facts that have several values, and the samples with each value."""
    names = dict.fromkeys(
        name
        for node_sample in node_samples
        for name in node_sample.fingerprint.facts
        if name not in _TABLES["varying"]["by_run"]
    )
    differing = []
    for name in names:
        values = group((_get_value(sample.fingerprint, name), sample) for sample in node_samples)
        stated = {value: samples for value, samples in values.items() if value is not None}
        if len(stated) > 1:
            differing.append((name, stated))
    return differing


def _get_value(fingerprint: Fingerprint, name: str) -> str | None:
    """Return a fact's value; None if unknown, which differs from no other value."""
    kind = name.partition(" ")[0]
    if name in fingerprint.facts or "image" not in fingerprint.scopes:
        return fingerprint.facts.get(name)
    return {"variable": _UNSET, "package": _ABSENT, "library": _ABSENT}.get(kind)


def _make_difference(name: str, scope: Scope, values: dict[str, list[NodeSample]]) -> Difference:
    labelled = []
    for value, samples in values.items():
        labels = {
            "nodes": [node for sample in samples for node in sample.fingerprint.nodes],
            "repeats": [f"repeat {sample.repeat}" for sample in samples],
            "points": [sample.point for sample in samples],
        }
        labelled.append((value, tuple(dict.fromkeys(labels[scope]))))
    fingerprints = [sample.fingerprint for samples in values.values() for sample in samples]
    is_of_log = any(LOG in fingerprint.scopes for fingerprint in fingerprints)
    # Without a GPU, the CPU is the device.
    on_cpu = name == "CPU" and not any("GPU" in fingerprint.facts for fingerprint in fingerprints)
    is_decisive = is_of_log or on_cpu or _DECISIVE.fullmatch(name) is not None
    return Difference(fact=name, scope=scope, decisive=is_decisive, values=tuple(labelled))


NODES = ".nodes.jsonl"


def name_record(directory: Path, key: str, repeat: int, attempt: int, ending: str = NODES) -> Path:
    """Return the path of what one attempt's nodes recorded."""
    return directory / "env" / f"{key}.{repeat}.{attempt}{ending}"


def read_nodes(directory: Path, key: str, repeat: int, attempt: int) -> tuple[Fingerprint, ...]:
    """Return the fingerprints of one attempt, one for all nodes that are equal."""
    try:
        return parse(files.read(name_record(directory, key, repeat, attempt)))
    except OSError:
        return ()


def list_nodes(fingerprints: Iterable[Fingerprint]) -> tuple[tuple[str, str], ...]:
    """Return the name of each node with its digest, in order of the names."""
    digests = [(fingerprint.nodes, fingerprint.digest) for fingerprint in fingerprints]
    return tuple(sorted((node, digest) for nodes, digest in digests for node in nodes))


def compare_points(points: Iterable[tuple[Measured, Sequence[NodeSample]]]) -> tuple[Measured, ...]:
    """Return points with the facts of their nodes, and with the differences between these.

    A table's points are also compared with its baseline, the unit of its speedups.
    """
    point_samples = [(point, tuple(node_samples)) for point, node_samples in points]
    by_size = sorted(point_samples, key=lambda pair: (pair[0].shape.gpus, pair[0].shape.nodes))
    # The smallest with facts of its nodes is the last to be written.
    baselines = {point.group: samples for point, samples in reversed(by_size) if samples}
    compared = []
    for point, samples in point_samples:
        differences = find_differences_within(samples)
        differences += find_differences_between(baselines.get(point.group, ()), samples)
        values = group_sorted(
            item for sample in samples for item in sample.fingerprint.facts.items()
        )
        facts = tuple((name, tuple(values[name])) for name in sorted(values))
        compared.append(replace(point, differences=differences, facts=facts))
    return tuple(compared)


# --- Power and memory of a run's GPUs -------------------------------------------------------------

ENDING = ".power.json"
# Samples inside a window below which no result is given.
_MIN_SAMPLES = 5
# Watts and MiB above which a sample is invalid.
_MAX_WATTS, _MAX_MEMORY = 1e9, 1e8


def read_power(path: Path, *, seconds: float) -> Sampled | None:
    """Return the power in the stretch of a length with the most power; None if there is none.

    The file is JSON: the number of `gpus`, and in `samples` the seconds since the first sample, the
    watts of all GPUs, and the MiB of the fullest.
    """
    try:
        data = json.loads(files.read(path))
        gpus = int(data["gpus"])
        rows = [(float(time), float(watts), float(mib)) for time, watts, mib in data["samples"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    is_sound = all(
        0 <= time < math.inf and 0 <= watts <= _MAX_WATTS and 0 <= mib <= _MAX_MEMORY
        for time, watts, mib in rows
    )
    if not is_sound or gpus < 1 or len(rows) < _MIN_SAMPLES:
        return None
    times, watts, memory = zip(*rows, strict=True)
    sums = [0.0, *accumulate(watts)]
    # Two samples are this far apart; one may be missing at each end of a stretch.
    gap = (times[-1] - times[0]) / (len(times) - 1)
    best, last = (0.0, 0, 0), 0
    for first, begin in enumerate(times):
        while last < len(times) and times[last] <= begin + seconds:
            last += 1
        if last - first >= _MIN_SAMPLES and times[last - 1] - begin > seconds - 2 * gap:
            best = max(best, ((sums[last] - sums[first]) / (last - first), first, last))
    mean, first, last = best
    if not last:
        return None
    return Sampled(mean, max(memory[first:last]), gpus, seconds, last - first)
