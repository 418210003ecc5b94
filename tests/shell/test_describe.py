"""describe.sh, run by the shell it is for, where it may meet anything."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcbert.campaign import fingerprint
from hpcbert.system import redact
from tests.kit.cases import cases
from tests.kit.paths import REPOSITORY
from tests.kit.scripts import tool
from tests.kit.waiting import CEILING

pytestmark = pytest.mark.slow

SCRIPT = REPOSITORY / "hpcbert" / "shell" / "describe.sh"
TOOLS = f"{Path(shutil.which('bash') or '/bin/bash').parent}:/usr/bin:/bin"


def describe(
    folder: Path, part: str = "both", *, tools: str = TOOLS, script: str = "",
    python: str = "python3", reference: str = "img", **environment: str | bytes,
) -> subprocess.CompletedProcess[bytes]:  # fmt: skip
    env = {"PATH": tools, "SLURMD_NODENAME": "n1", **environment}
    words = ["bash", "-c", script or SCRIPT.read_text(), "describe", part, reference, python]
    result = subprocess.run(words, env=env, capture_output=True, check=False, timeout=CEILING)
    folder.mkdir(exist_ok=True)
    with (folder / "printed").open("ab") as printed:
        printed.write(result.stdout)
    return result


def read_description(folder: Path) -> dict[str, Any]:
    """Return the objects of one node, joined as a job joins them."""
    data: dict[str, Any] = {"host": {}, "image": {}}
    for line in gather((folder / "printed").read_bytes(), folder / "nodes.jsonl").splitlines():
        for key, value in json.loads(line.decode("ascii")).items():
            if key not in data:
                data[key] = value
            elif isinstance(value, dict):
                environment = value.pop("environment", {})
                data[key].update(value)
                data[key].setdefault("environment", {}).update(environment)
    return data


def gather(printed: bytes, file: Path) -> bytes:
    """Return what nodes.bash makes of the lines of nodes."""
    words = ["bash", "-c", f'. "{SCRIPT.with_name("nodes.bash")}"; gather "$1"', "job", str(file)]
    subprocess.run(words, input=printed, capture_output=True, check=True, timeout=CEILING)
    return file.read_bytes() if file.exists() else b""


def nvidia_smi(folder: Path, body: str) -> str:
    tool(folder, "nvidia-smi", f"#!/bin/bash\n{body}\n")
    return f"{folder}:{TOOLS}"


SETTINGS = settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
VALUES = st.binary(max_size=60).map(lambda raw: raw.replace(b"\0", b""))


@SETTINGS
@given(st.lists(VALUES, min_size=1, max_size=30), VALUES)
def test_any_bytes_in_the_environment_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, values: list[bytes], node: bytes
) -> None:
    folder = tmp_path_factory.mktemp("env")
    variables: Any = {f"OMP_X{number}": value for number, value in enumerate(values)}
    assert describe(folder, SLURMD_NODENAME=node, **variables).returncode == 0
    environment = read_description(folder)["image"]["environment"]
    for name, value in variables.items():
        assert environment[name].encode("latin-1") == value or environment[name] == redact.MASK


def test_secrets_are_not_written(tmp_path: Path) -> None:
    word = "Zq8vN2kLw93MxT7rBd5Y"
    variables = {
        "WANDB_API_KEY": word,
        "HF_TOKEN": word,
        "MYSQL_PWD": word,
        "aws_secret_access_key": word,
        "A": f"hf_{word}",
        "B": f"https://me:{word}@host/x",
        "C": f"--password={word}",
        "D": f"Authorization: Bearer {word}",
        "E": f"X_TOKEN={word},Y=1",
        "F": f"-----BEGIN PRIVATE KEY-----\n{word}",
        "G": f"https://h/?api_key={word}",
        "H": f'{{"client_secret": "{word}"}}',
    }
    reference = f"https://me:hf_{word}@host/image"
    describe(tmp_path, reference=reference, EMPTY_TOKEN="", PLAIN="a b", **variables)
    assert word not in (tmp_path / "printed").read_text()
    image = read_description(tmp_path)["image"]
    assert image["reference"] == redact.MASK
    environment = image["environment"]
    assert {environment[name] for name in variables} == {redact.MASK}
    assert (environment["EMPTY_TOKEN"], environment["PLAIN"]) == ("", "a b")


@SETTINGS
@given(st.lists(st.from_regex(r"[ -~]{0,50}", fullmatch=True), min_size=1, max_size=40))
def test_what_python_masks_bash_masks_too(
    tmp_path_factory: pytest.TempPathFactory, values: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("env")
    variables: Any = {f"V{number}": value for number, value in enumerate(values)}
    describe(folder, **variables)
    environment = read_description(folder)["image"]["environment"]
    for name, value in variables.items():
        if redact.mask_text(value) != value:
            assert environment[name] == redact.MASK


def test_the_names_of_secrets_are_those_of_the_python_side() -> None:
    script = SCRIPT.read_text()
    assert f"readonly NAMES='{redact.NAMES}'" in script
    assert f"readonly FORMS='(^|[^A-Za-z0-9])({redact.FORMS})'" in script


def test_the_images_part_is_of_the_container(tmp_path: Path) -> None:
    trap = tool(tmp_path, "python", f"#!/bin/bash\ntouch {tmp_path}/started\n")
    host = describe(tmp_path, "host", NCCL_ALGO="Tree")
    assert (host.returncode, host.stderr) == (0, b"")
    assert not read_description(tmp_path)["image"]
    (described,) = fingerprint.parse((tmp_path / "nodes.jsonl").read_bytes())
    assert "image" not in described.scopes
    image = describe(tmp_path, "image", NCCL_ALGO="Ring", python=str(trap))
    assert all(len(line) < 1024 for line in host.stdout.splitlines() + image.stdout.splitlines())
    data = read_description(tmp_path)
    assert (data["nodes"], data["image"]["reference"]) == ("n1", "img")
    assert data["image"]["environment"]["NCCL_ALGO"] == "Ring"
    assert data["host"]["kernel"] == os.uname().release
    assert int(data["host"]["memory_kb"]) > 0
    # The site's interpreter is named, and never started.
    assert data["image"]["python"] == "python"
    assert not (tmp_path / "started").exists()


def lines_of(node: str, text: str, size: int = 9) -> list[str]:
    """Return the lines in which a node prints an object."""
    starts = range(0, len(text), size)
    return [f"hpcbert-node {node} {at} {len(text)} <{text[at : at + size]}>" for at in starts]


A, B = '{"host":{"kernel":"6.1 x"}}', '{"host":{"kernel":"5.4"}}'


@cases
def test_a_job_joins_the_lines_of_its_nodes(
    tmp_path: Path, lines: list[str], expected: dict[str, str]
) -> None:
    text = gather("".join(f"{line}\n" for line in lines).encode(), tmp_path / "nodes.jsonl")
    documents = [json.loads(line) for line in text.splitlines()]
    assert {data.pop("nodes"): data for data in documents} == {
        nodes: json.loads(part) for nodes, part in expected.items()
    }
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_equal_nodes_print_equal_objects(tmp_path: Path) -> None:
    for node in ("n1", "n2"):
        describe(tmp_path, SLURMD_NODENAME=node, SLURM_NODEID=node[1:], SLURM_JOB_ID="5", OMP_X="1")
    text = gather((tmp_path / "printed").read_bytes(), tmp_path / "nodes.jsonl")
    names = {line["nodes"] for line in map(json.loads, text.splitlines()) if "OMP_X" in str(line)}
    assert names == {"n1 n2"}
    assert {json.loads(line)["nodes"] for line in text.splitlines()} == {"n1 n2"}
    (pair,) = fingerprint.parse(text)
    assert pair.nodes == ("n1", "n2")


GPUS = """case $1 in
--query-gpu=*) if [[ $1 == *vbios* && -n $OLD ]]; then echo 'Field "vbios_version" is not a valid field'; exit 2; fi
  printf '%s, NVIDIA H100 80GB HBM3, 550.54.15, 81559, 700.00, 1980, 2619\\n' 0 1 ;;
--version) printf 'NVIDIA-SMI version  : 550.54\\nCUDA Version        : 12.4\\n' ;;
topo) printf '\\tGPU0\\tGPU1\\nGPU0\\t X \\tNV18\\n' ;;
esac"""


@pytest.mark.parametrize("old", ["", "1"])
def test_gpus_as_nvidia_smi_lists_them(tmp_path: Path, old: str) -> None:
    tools = nvidia_smi(tmp_path / "bin", GPUS)
    describe(tmp_path / "env", tools=tools, OLD=old)
    host = read_description(tmp_path / "env")["host"]
    assert host["gpus"][1] == "1, NVIDIA H100 80GB HBM3, 550.54.15, 81559, 700.00, 1980, 2619"
    assert host["cuda_driver"] == "12.4"
    assert host["topology"][1].split() == ["GPU0", "X", "NV18"]
    assert ("vbios_version" in host["gpu_fields"]) is not bool(old)


@pytest.mark.parametrize(
    "body", ["exit 9", "echo garbage; kill -9 $$", "printf '\\xff\\0\\x1b[31m'"]
)
def test_a_broken_nvidia_smi_only_leaves_the_gpus_out(tmp_path: Path, body: str) -> None:
    result = describe(tmp_path / "env", tools=nvidia_smi(tmp_path / "bin", body))
    assert result.returncode == 0
    assert "gpus" not in read_description(tmp_path / "env")["host"]


def test_what_hangs_is_ended(tmp_path: Path) -> None:
    tools = nvidia_smi(tmp_path / "bin", "exec sleep 300")
    script = SCRIPT.read_text().replace("PATIENCE=20", "PATIENCE=1")
    began = time.monotonic()
    assert describe(tmp_path / "env", tools=tools, script=script).returncode == 0
    assert time.monotonic() - began < 250
    assert "gpus" not in read_description(tmp_path / "env")["host"]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    tools = nvidia_smi(tmp_path / "bin", GPUS)
    describe(tmp_path, tools=tools, OLD="1", OMP_NUM_THREADS="é\x1b[31m")
    printed = (tmp_path / "printed").read_bytes()
    (parsed,) = fingerprint.parse(gather(printed, tmp_path / "nodes.jsonl"))
    assert parsed.facts["GPU"] == "NVIDIA H100 80GB HBM3"
    assert parsed.facts["GPUs"] == "2"
    assert parsed.facts["variable OMP_NUM_THREADS"] == "é\x1b[31m"
