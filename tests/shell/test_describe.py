"""describe.sh, run by the shell it is for, where it may meet anything: bytes, secrets, vendors' tools."""

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbert.campaign import fingerprint
from hpcbert.campaign.fingerprint import Fingerprint
from hpcbert.system import redact
from hpcbert.system.runner import Outcome
from tests.kit.cases import cases, read_constant
from tests.kit.recipes import SHELL
from tests.kit.scripts import bash, run_functions, tool

pytestmark = pytest.mark.slow

SCRIPT = (SHELL / "describe.sh").read_text()
WORD = "Zq8vN2kLw93MxT7rBd5Y"


class Node:
    """A node's folder: `bin` has its tools, `printed` what describe.sh printed."""

    def __init__(self, folder: Path, **tools: str) -> None:
        self.folder, self.printed = folder, folder / "printed"
        for name, text in tools.items():
            tool(folder / "bin", name.replace("_", "-"), text)

    def describe(self, part="both", *words: str, script=SCRIPT, **environment: Any) -> Outcome:
        """Have it described, by PART, REFERENCE, PYTHON and more; every command succeeds."""
        argv = ("-c", script, "describe", part, *(words or ("img", "python3")))
        variables = {"SLURMD_NODENAME": "n1", **environment}
        result = bash(*argv, tools=self.folder / "bin", **variables)
        with self.printed.open("a") as printed:
            printed.write(result.stdout)
        return result

    def gather(self) -> bytes:
        """Return what nodes.bash makes of the lines of nodes."""
        file = self.folder / "nodes.jsonl"
        file.write_bytes(b"")
        run_functions(f"gather '{file}' <'{self.printed}'", "nodes.bash")
        return file.read_bytes()

    def fingerprint(self) -> Fingerprint:
        (parsed,) = fingerprint.parse(self.gather())
        return parsed

    def read(self, part: str) -> dict[str, Any]:
        """Return the objects of a part of the node, joined as a job joins them."""
        data: dict[str, Any] = {"environment": {}}
        for line in self.gather().splitlines():
            objects = json.loads(line.decode("ascii")).get(part, {})
            data["environment"].update(objects.pop("environment", {}))
            data.update(objects)
        return data


@settings(max_examples=10)
@given(
    st.lists(st.binary(max_size=60), min_size=1, max_size=30),
    st.lists(st.from_regex(r"[ -~]{0,50}", fullmatch=True), min_size=1, max_size=40),
)
def test_any_bytes_in_the_environment_come_back_and_what_python_masks_bash_masks_too(
    tmp_path_factory, values, texts
):
    node = Node(tmp_path_factory.mktemp("env"))
    raw = {f"OMP_X{number}": value.replace(b"\0", b"") for number, value in enumerate(values)}
    plain = {f"V{number}": text for number, text in enumerate(texts)}
    node.describe(SLURMD_NODENAME=raw["OMP_X0"], **raw, **plain)
    environment = node.read("image")["environment"]
    for name, value in raw.items():
        assert environment[name].encode("latin-1") == value or environment[name] == redact.MASK
    for name, text in plain.items():
        assert redact.mask_text(text) == text or environment[name] == redact.MASK


def test_secrets_are_not_written(tmp_path):
    node, rows = Node(tmp_path), read_constant(__file__, "SECRETS")
    variables = {row["name"]: row["value"].format(WORD) for row in rows}
    reference = f"https://me:hf_{WORD}@host/image"
    node.describe("both", reference, "python3", EMPTY_TOKEN="", PLAIN="a b", **variables)
    assert WORD not in (tmp_path / "printed").read_text()
    image = node.read("image")
    assert image["reference"] == redact.MASK
    environment = image["environment"]
    assert {environment[name] for name in variables} == {redact.MASK}
    assert (environment["EMPTY_TOKEN"], environment["PLAIN"]) == ("", "a b")
    # The names and forms of secrets are those of the Python side.
    assert f"readonly NAMES='{redact.NAMES}'" in SCRIPT
    assert f"readonly FORMS='(^|[^A-Za-z0-9])({redact.FORMS})'" in SCRIPT


def test_the_images_part_is_of_the_container(tmp_path):
    node = Node(tmp_path, python=f"#!/bin/bash\ntouch {tmp_path}/started\n")
    host = node.describe("host", NCCL_ALGO="Tree")
    assert host.stderr == ""
    assert "image" not in node.fingerprint().scopes
    image = node.describe("image", "img", f"{tmp_path}/bin/python", NCCL_ALGO="Ring")
    assert all(len(line) < 1024 for line in host.stdout.splitlines() + image.stdout.splitlines())
    assert node.fingerprint().nodes == ("n1",)
    data = node.read("image")
    assert (data["reference"], data["environment"]["NCCL_ALGO"]) == ("img", "Ring")
    # The site's interpreter is named, and never started.
    assert data["python"] == "python"
    assert node.read("host")["kernel"] == os.uname().release
    assert int(node.read("host")["memory_kb"]) > 0
    assert not (tmp_path / "started").exists()


@cases
def test_a_job_joins_the_lines_of_its_nodes(tmp_path, lines, expected):
    (tmp_path / "printed").write_text("".join(f"{line}\n" for line in lines))
    documents = [json.loads(line) for line in Node(tmp_path).gather().splitlines()]
    texts = {data.pop("nodes"): data for data in documents}
    assert texts == {nodes: json.loads(part) for nodes, part in expected.items()}
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_equal_nodes_of_an_allocation_print_equal_objects(tmp_path):
    node = Node(tmp_path)
    for name in ("n1", "n2"):
        node.describe(SLURMD_NODENAME=name, SLURM_NODEID=name[1:], SLURM_JOB_ID="5", OMP_X="1")
    lines = [json.loads(line) for line in node.gather().splitlines()]
    assert {line["nodes"] for line in lines} == {"n1 n2"}
    assert any("OMP_X" in str(line) for line in lines)
    assert node.fingerprint().nodes == ("n1", "n2")


@pytest.mark.parametrize("old", ["", "1"])
def test_gpus_as_nvidia_smi_lists_them(tmp_path, old):
    node = Node(tmp_path, nvidia_smi=read_constant(__file__, "GPUS"))
    node.describe(OLD=old, OMP_NUM_THREADS="é\x1b[31m")
    host = node.read("host")
    assert host["gpus"][1] == "1, NVIDIA H100 80GB HBM3, 550.54.15, 81559, 700.00, 1980, 2619"
    assert host["cuda_driver"] == "12.4"
    assert host["topology"][1].split() == ["GPU0", "X", "NV18"]
    assert ("vbios_version" in host["gpu_fields"]) is not bool(old)
    if old:
        facts = node.fingerprint().facts
        assert (facts["GPU"], facts["GPUs"]) == ("NVIDIA H100 80GB HBM3", "2")
        assert facts["variable OMP_NUM_THREADS"] == "é\x1b[31m"


@cases
def test_what_a_vendors_tool_prints_is_read(tmp_path, tools, facts):
    node = Node(tmp_path, **tools)
    node.describe()
    gpu_facts = {name: text for name, text in node.fingerprint().facts.items() if name[:3] == "GPU"}
    assert gpu_facts == facts


def test_a_broken_tool_only_leaves_the_gpus_out_and_on_cpus_none_is_run(tmp_path):
    node, names = Node(tmp_path), ("nvidia-smi", "amd-smi", "rocm-smi", "hl-smi")

    def describe(body, *names, words=(), script=SCRIPT):
        for name in names:
            tool(tmp_path / "bin", name, f"#!/bin/bash\n{body}\n")
        node.describe("both", "img", "python3", *words, script=script)

    describe("exec sleep 9999", *names, script=SCRIPT.replace("PATIENCE=20", "PATIENCE=0.3"))
    for body in ("printf '\\xff\\0\\x1b[31m'", "echo garbage; kill -9 $$", "exit 9"):
        describe(body, *names)
    assert "gpus" not in node.read("host")
    for name in names[1:]:
        for text in ("", "GPU: 0\n", "device,\ncard0,\n", "card0\n", "0,\n"):
            describe(f"printf %s {shlex.quote(text)}", name)
    assert "GPU" not in node.fingerprint().facts
    describe(f"touch {tmp_path}/started", *names, words=("cpu",))
    assert not (tmp_path / "started").exists()
