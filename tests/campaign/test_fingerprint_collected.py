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

from hpcbert.campaign.fingerprint import read_nodes
from tests.kit.campaigns import node, write_nodes
from tests.kit.drafts import reference
from tests.kit.scripts import RECORDER, SRUN, drafted, run_script, tool, with_python

TOOL_PATH = os.environ["PATH"]


@pytest.fixture
def built(build: Any) -> Any:
    """A campaign of the local scheduler, so that nobody has to be asked for states."""
    built = build("1n1g", "2n2g", repeats=2, scheduler="local")
    for repeat in (1, 2):
        for shape, rate in (("1n1g", 10.0), ("2n2g", 38.0)):
            built.complete(shape, repeat, rate)
            names = ("n1",) if shape == "1n1g" else ("n1", "n2")
            write_nodes(
                built.directory, built.array(shape), repeat, *(node(name) for name in names)
            )
    return built


def find_row(document: dict[str, Any], shape: str) -> dict[str, Any]:
    (table,) = document["data"]["tables"]
    match: dict[str, Any] = next(entry for entry in table["rows"] if entry["shape"] == shape)
    return match


def test_equal_nodes_are_no_news(built: Any, collect_json: Any) -> None:
    document = collect_json(built.directory)
    for shape in ("1n1g", "2n2g"):
        assert find_row(document, shape)["flags"] == []
        assert find_row(document, shape)["differences"] == []
    nodes = find_row(document, "2n2g")["runs"][0]["environments"]
    assert [entry["node"] for entry in nodes] == ["n1", "n2"]
    assert len({entry["digest"] for entry in nodes}) == 1


def test_a_node_with_another_driver_is_flagged_in_every_format(built: Any, collect: Any) -> None:
    escape = "\x1b[31m"
    other = node("n2", host__cuda_driver=f"12.4{escape}|=1")
    write_nodes(built.directory, built.array("2n2g"), 2, other)
    document = json.loads(collect(built.directory, "--json").stdout)
    point = find_row(document, "2n2g")
    assert point["flags"] == ["mixed-environment"]
    assert point["differences"] == [
        {
            "fact": "CUDA driver",
            "scope": "nodes",
            "values": [
                {"value": "12.2", "of": ["n1", "n2"]},
                {"value": f"12.4{escape}|=1", "of": ["n2"]},
            ],
        }
    ]
    assert point["median"] is not None
    text = collect(built.directory).stdout
    assert "! CUDA driver differs between nodes: 12.2 (n1, n2); 12.4�[31m|=1 (n2)" in text
    markdown = collect(built.directory, "--format", "markdown").stdout
    assert (
        "* 2n2g: CUDA driver differs between nodes: 12.2 (n1, n2); 12.4�\\[31m\\|=1 (n2)"
        in markdown
    )
    lines = list(csv.DictReader(io.StringIO(collect(built.directory, "--format", "csv").stdout)))
    assert lines[1]["flags"] == "mixed-environment"
    assert lines[1]["differences"].startswith("CUDA driver differs")
    for form in ("text", "markdown", "csv"):
        assert escape not in collect(built.directory, "--format", form).stdout


def test_a_point_on_another_kernel_than_the_baseline_is_flagged(
    built: Any, collect_json: Any
) -> None:
    for repeat in (1, 2):
        nodes = [node(name, host__kernel="6.8") for name in ("n1", "n2")]
        write_nodes(built.directory, built.array("2n2g"), repeat, *nodes)
    document = collect_json(built.directory)
    assert find_row(document, "1n1g")["flags"] == []
    assert find_row(document, "2n2g")["differences"][0]["scope"] == "points"


def test_campaigns_that_share_a_table_are_compared(build: Any, collect_json: Any) -> None:
    directories = []
    for name, shape, kernel in (("20261121-a", "1n1g", "5"), ("20261122-b", "1n2g", "6")):
        built = build(shape, name=name, repeats=1, scheduler="local")
        built.complete(shape, 1, 10.0)
        write_nodes(built.directory, built.array(shape), 1, node(host__kernel=kernel))
        directories.append(built.directory)
    document = collect_json(*directories)
    assert find_row(document, "1n2g")["flags"] == ["single-run", "mixed-environment"]


def test_runs_that_do_not_count_are_not_compared(built: Any, collect_json: Any) -> None:
    built.log("2n2g", 2, built.text("2n2g", 38.0, last=3))
    write_nodes(built.directory, built.array("2n2g"), 2, node("n1", host__kernel="6.8"))
    assert "mixed-environment" not in find_row(collect_json(built.directory), "2n2g")["flags"]


def test_damaged_and_hostile_files_are_passed_over(built: Any, collect_json: Any) -> None:
    folder = built.directory / "env"
    key = built.array("2n2g").point.key
    (folder / f"{key}.1.0.nodes.jsonl").write_bytes(b"\x80\x04\x95.")
    (folder / f"{key}.2.0.nodes.jsonl").unlink()
    (folder / f"{key}.2.0.nodes.jsonl").mkdir()
    document = collect_json(built.directory)
    assert document["exit_code"] == 0
    assert find_row(document, "2n2g")["runs"][0]["environments"] == []


def test_a_campaign_without_fingerprints_is_collected_as_before(
    build: Any, collect_json: Any
) -> None:
    built = build("1n1g", repeats=1, scheduler="local")
    built.complete("1n1g", 1, 10.0)
    assert find_row(collect_json(built.directory), "1n1g")["flags"] == ["single-run"]


def test_every_attempt_leaves_one_file(tmp_path: Path) -> None:
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
    (fingerprint,) = read_nodes(draft.directory, array.point.key, 1, 0)
    assert fingerprint.facts["variable NCCL_ALGO"] == "Ring"
    (file,) = (draft.directory / "env").iterdir()
    assert '"HF_TOKEN":"<redacted>"' in file.read_text()
    assert "kernel" in fingerprint.facts


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
