"""The shape of a system, from the descriptions that lie next to its logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcbert.campaign.foreign import read_system
from tests.kit.logs import write_file

FOLDER = "NVIDIA/results/dgx/bert"


def describe(nodes: object, accelerators: object) -> str:
    return json.dumps({"number_of_nodes": nodes, "accelerators_per_node": accelerators})


@pytest.mark.parametrize(
    ("files", "shape"),
    [
        pytest.param({"NVIDIA/systems/dgx.json": describe("2", "8")}, (2, 8), id="its own"),
        pytest.param({f"{FOLDER}/x.json": describe(1, 4)}, (1, 4), id="a copy"),
        pytest.param(
            {f"{FOLDER}/x.json": describe(1, 4), f"{FOLDER}/y.json": describe(2, 8)},
            (None, None),
            id="two shapes",
        ),
        pytest.param(
            {f"{FOLDER}/x.json": "{", f"{FOLDER}/y.json": describe(2, 8)}, (2, 8), id="damaged"
        ),
        pytest.param({f"{FOLDER}/x.json": describe(0, 8)}, (None, None), id="no node"),
        pytest.param({f"{FOLDER}/x.json": describe(float("inf"), 8)}, (None, None), id="endless"),
    ],
)
def test_a_shape_is_that_of_the_only_description(
    tmp_path: Path, files: dict[str, str], shape: tuple[int | None, int | None]
) -> None:
    for name, text in files.items():
        write_file(tmp_path, name, text)
    assert read_system(tmp_path / FOLDER)[:2] == shape
