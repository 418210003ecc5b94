"""Fingerprints as nodes write them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from hpcbert.campaign.fingerprint import name_record
from hpcbert.model import Array

FIELDS = "index,name,driver_version,memory.total,power.limit,clocks.max.sm,clocks.max.memory"
NODE: dict[str, Any] = {
    "nodes": "n1",
    "host": {
        "kernel": "5.15.0-100",
        "machine": "x86_64",
        "cpu": "AMD EPYC 7742",
        "cpus": "0-255",
        "memory_kb": "1055916032",
        "network": ["eth0 physical 25000 1500 up", "lo0 virtual 10000 1500 up"],
        "infiniband": ["mlx5_0:1|InfiniBand|200 Gb/sec (4X HDR)|4: ACTIVE"],
        "gpu_fields": FIELDS,
        "gpus": [
            f"{n}, NVIDIA A100-SXM4-80GB, 535.104.05, 81920, 400.00, 1410, 1593" for n in range(8)
        ],
        "cuda_driver": "12.2",
    },
    "image": {
        "reference": "/images/nvcr.io+nvidia+pytorch+25.04-py3+0123456789ab.sqsh",
        "os": "Ubuntu 24.04.2 LTS",
        "python": "python3.12",
        "packages": ["torch-2.7.0a0+7c8ec84dab.nv25.03", "numpy-1.26.4"],
        "libraries": ["libnccl.so.2.25.1"],
        "environment": {"NCCL_DEBUG": "WARN", "PATH": "/usr/bin", "CUDA_VISIBLE_DEVICES": "0"},
    },
}


def node(name: str = "n1", **changes: Any) -> dict[str, Any]:
    """Return a node; `host__kernel="6"` changes a key, None removes it."""
    data = copy.deepcopy(NODE)
    data["nodes"] = name
    for path, value in changes.items():
        place: Any = data
        *folders, last = path.split("__")
        for folder in folders:
            place = place[folder]
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return data


def raw(name: str = "n1", **changes: Any) -> bytes:
    return json.dumps(node(name, **changes)).encode()


def write_nodes(directory: Path, array: Array, repeat: int, *nodes: dict[str, Any]) -> None:
    """Write the file of one repeat's nodes; those that it has already stay, under other names."""
    path = name_record(directory, array.point.key, repeat, 0)
    path.parent.mkdir(exist_ok=True)
    lines = path.read_text().splitlines() if path.exists() else []
    renewed = {facts["nodes"] for facts in nodes}
    lines = [line for line in lines if json.loads(line)["nodes"] not in renewed]
    path.write_text("".join(f"{line}\n" for line in [*lines, *map(json.dumps, nodes)]))
