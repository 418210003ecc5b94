"""What collect makes of fingerprints, and that jobs leave them."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign.fingerprint import Environments
from tests.kit.drafts import reference
from tests.kit.nodes import leave, node
from tests.kit.scripts import RECORDER, SRUN, drafted, run_script, tool, with_python

TOOL_PATH = os.environ["PATH"]


@pytest.fixture
def two(build: Any) -> Any:
    """A campaign of the local scheduler, so that nobody has to be asked for states."""
    made = build("1n1g", "2n2g", repeats=2, scheduler="local")
    for repeat in (1, 2):
        for shape, rate in (("1n1g", 10.0), ("2n2g", 38.0)):
            made.complete(shape, repeat, rate)
            names = ("n1",) if shape == "1n1g" else ("n1", "n2")
            leave(made.directory, made.array(shape), repeat, *(node(name) for name in names))
    return made


def row(document: dict[str, Any], shape: str) -> dict[str, Any]:
    (table,) = document["data"]["tables"]
    found: dict[str, Any] = next(one for one in table["rows"] if one["shape"] == shape)
    return found


def test_equal_nodes_are_no_news(two: Any, collect_json: Any) -> None:
    document = collect_json(two.directory)
    for shape in ("1n1g", "2n2g"):
        assert row(document, shape)["flags"] == []
        assert row(document, shape)["differences"] == []
    nodes = row(document, "2n2g")["runs"][0]["environments"]
    assert [one["node"] for one in nodes] == ["n1", "n2"]
    assert len({one["digest"] for one in nodes}) == 1


def test_a_node_with_another_driver_is_flagged_in_every_format(two: Any, collect: Any) -> None:
    escape = "\x1b[31m"
    other = node("n2", host__cuda_driver=f"12.4{escape}|=1")
    leave(two.directory, two.array("2n2g"), 2, other)
    document = json.loads(collect(two.directory, "--json").stdout)
    found = row(document, "2n2g")
    assert found["flags"] == ["mixed-environment"]
    assert found["differences"] == [
        {
            "fact": "CUDA driver",
            "scope": "nodes",
            "values": [
                {"value": "12.2", "of": ["n1", "n2"]},
                {"value": f"12.4{escape}|=1", "of": ["n2"]},
            ],
        }
    ]
    assert found["median"] is not None
    text = collect(two.directory).stdout
    assert "! CUDA driver differs between nodes: 12.2 (n1, n2); 12.4�[31m|=1 (n2)" in text
    markdown = collect(two.directory, "--format", "markdown").stdout
    assert (
        "* 2n2g: CUDA driver differs between nodes: 12.2 (n1, n2); 12.4�\\[31m\\|=1 (n2)"
        in markdown
    )
    lines = list(csv.DictReader(io.StringIO(collect(two.directory, "--format", "csv").stdout)))
    assert lines[1]["flags"] == "mixed-environment"
    assert lines[1]["differences"].startswith("CUDA driver differs")
    for form in ("text", "markdown", "csv"):
        assert escape not in collect(two.directory, "--format", form).stdout


def test_a_point_on_another_kernel_than_the_baseline_is_flagged(
    two: Any, collect_json: Any
) -> None:
    for repeat in (1, 2):
        nodes = [node(name, host__kernel="6.8") for name in ("n1", "n2")]
        leave(two.directory, two.array("2n2g"), repeat, *nodes)
    document = collect_json(two.directory)
    assert row(document, "1n1g")["flags"] == []
    assert row(document, "2n2g")["differences"][0]["scope"] == "points"


def test_campaigns_that_share_a_table_are_compared(build: Any, collect_json: Any) -> None:
    made = []
    for name, shape, kernel in (("20261121-a", "1n1g", "5"), ("20261122-b", "1n2g", "6")):
        one = build(shape, name=name, repeats=1, scheduler="local")
        one.complete(shape, 1, 10.0)
        leave(one.directory, one.array(shape), 1, node(host__kernel=kernel))
        made.append(one.directory)
    document = collect_json(*made)
    assert row(document, "1n2g")["flags"] == ["single-run", "mixed-environment"]


def test_runs_that_do_not_count_are_not_compared(two: Any, collect_json: Any) -> None:
    two.log("2n2g", 2, two.text("2n2g", 38.0, last=3))
    leave(two.directory, two.array("2n2g"), 2, node("n1", host__kernel="6.8"))
    assert "mixed-environment" not in row(collect_json(two.directory), "2n2g")["flags"]


def test_damaged_and_hostile_files_are_passed_over(two: Any, collect_json: Any) -> None:
    folder = two.directory / "env"
    key = two.array("2n2g").point.key
    (folder / f"{key}.1.0.n1.json").write_bytes(b"\x80\x04\x95.")
    (folder / f"{key}.1.0.n2.json").unlink()
    (folder / f"{key}.1.0.n2.json").mkdir()
    document = collect_json(two.directory)
    assert document["exit_code"] == 0
    assert row(document, "2n2g")["runs"][0]["environments"] == []


def test_a_campaign_without_fingerprints_is_collected_as_before(
    build: Any, collect_json: Any
) -> None:
    made = build("1n1g", repeats=1, scheduler="local")
    made.complete("1n1g", 1, 10.0)
    assert row(collect_json(made.directory), "1n1g")["flags"] == ["single-run"]


def test_every_attempt_leaves_one_file_a_node(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tool(tools, "srun", SRUN)
    tool(tools, "scontrol", "#!/bin/bash\necho localhost\n")
    where = reference(tmp_path, env={"NCCL_ALGO": "Ring", "HF_TOKEN": "abc"})
    python = tool(tmp_path, "python", RECORDER)
    draft = drafted(with_python(where, python), scheduler="slurm", shape="1n1g")
    path = f"{tools}:{TOOL_PATH}"
    script = run_script(
        draft, tmp_path, PATH=path, SLURM_JOB_ID="5", SLURM_JOB_NODELIST="localhost"
    )
    assert script.returncode == 0, script.stderr
    (array,) = draft.campaign.arrays
    (fingerprint,) = Environments(draft.directory).of(array.point.key, 1, 0)
    assert fingerprint.facts["variable NCCL_ALGO"] == "Ring"
    (file,) = (draft.directory / "env").iterdir()
    data = json.loads(file.read_text())
    assert data["image"]["environment"]["HF_TOKEN"] == "<redacted>"
    assert data["host"]["kernel"]


def test_a_campaign_without_its_script_trains_all_the_same(tmp_path: Path) -> None:
    python = tool(tmp_path, "python", RECORDER)
    draft = drafted(with_python(reference(tmp_path), python))
    run_script(draft, tmp_path)
    assert list((draft.directory / "env").iterdir())
    (draft.directory / "scripts" / "describe.sh").unlink()
    (array,) = draft.campaign.arrays

    result = subprocess.run(
        ["bash", str(draft.directory / array.script)],
        env={"PATH": TOOL_PATH, "SLURM_ARRAY_TASK_ID": "2", "RECORD": str(tmp_path / "record")},
        capture_output=True,
        check=False,
    )
    assert result.returncode == 0
