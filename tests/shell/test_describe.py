"""describe.sh, run by the shell it is for, where it may meet anything: bytes, secrets, vendors' tools."""

import json
import os
import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbert.campaign import fingerprint
from hpcbert.system import redact
from tests.kit.cases import cases, read_constant
from tests.kit.logs import write_file
from tests.kit.recipes import SHELL
from tests.kit.scripts import bash, run_functions, tool

pytestmark = pytest.mark.slow

SCRIPT = (SHELL / "describe.sh").read_text()


def describe(folder, part="both", *words, script=SCRIPT, **environment):
    """Have a node described, by PART, REFERENCE, PYTHON and more, with the tools in `bin`."""
    argv = ("-c", script, "describe", part, *(words or ("img", "python3")))
    variables = {"SLURMD_NODENAME": "n1", **environment}
    result = bash(*argv, tools=folder / "bin", **variables)
    with (folder / "printed").open("a") as printed:
        printed.write(result.stdout)
    return result


def gather(folder):
    """Return what nodes.bash makes of the lines that nodes printed."""
    file = write_file(folder, "nodes.jsonl", "")
    run_functions(f"gather '{file}' <'{folder}/printed'", "nodes.bash")
    return file.read_bytes()


def read_fingerprint(folder):
    (parsed,) = fingerprint.parse(gather(folder))
    return parsed


def read_part(folder, part):
    """Return the objects of a part of the node, joined as a job joins them."""
    data: dict[str, object] = {}
    environment: dict[str, str] = {}
    for line in gather(folder).splitlines():
        objects = json.loads(line.decode("ascii")).get(part, {})
        environment |= objects.pop("environment", {})
        data |= objects
    return {**data, "environment": environment}


@settings(max_examples=10)
@given(
    st.lists(st.binary(max_size=60), min_size=1, max_size=30),
    st.lists(st.from_regex(r"[ -~]{0,50}", fullmatch=True), min_size=1, max_size=40),
)
def test_any_bytes_in_the_environment_come_back_and_what_python_masks_bash_masks_too(
    tmp_path_factory, values, texts
):
    folder = tmp_path_factory.mktemp("env")
    raw = {f"OMP_X{number}": value.replace(b"\0", b"") for number, value in enumerate(values)}
    plain = {f"V{number}": text for number, text in enumerate(texts)}
    describe(folder, SLURMD_NODENAME=raw["OMP_X0"], **raw, **plain)
    environment = read_part(folder, "image")["environment"]
    for name, value in raw.items():
        assert environment[name].encode("latin-1") == value or environment[name] == redact.MASK
    for name, text in plain.items():
        assert redact.mask_text(text) == text or environment[name] == redact.MASK


def test_secrets_are_not_written(tmp_path):
    word, rows = "Zq8vN2kLw93MxT7rBd5Y", read_constant(__file__, "SECRETS")
    variables = {row["name"]: row["value"].format(word) for row in rows}
    reference = f"https://me:hf_{word}@host/image"
    options = {"EMPTY_TOKEN": "", "PLAIN": "a b", **variables}
    describe(tmp_path, "both", reference, "python3", **options)
    assert word not in (tmp_path / "printed").read_text()
    image = read_part(tmp_path, "image")
    assert image["reference"] == redact.MASK
    environment = image["environment"]
    assert {environment[name] for name in variables} == {redact.MASK}
    assert (environment["EMPTY_TOKEN"], environment["PLAIN"]) == ("", "a b")
    # The names and forms of secrets are those of the Python side.
    assert f"readonly NAMES='{redact.NAMES}'" in SCRIPT
    assert f"readonly FORMS='(^|[^A-Za-z0-9])({redact.FORMS})'" in SCRIPT


def test_the_images_part_is_of_the_container(tmp_path):
    python = tool(tmp_path / "bin", "python", f"#!/bin/bash\ntouch {tmp_path}/started\n")
    host = describe(tmp_path, "host", NCCL_ALGO="Tree")
    assert host.stderr == ""
    assert "image" not in read_fingerprint(tmp_path).scopes
    image = describe(tmp_path, "image", "img", python, NCCL_ALGO="Ring")
    assert all(len(line) < 1024 for line in host.stdout.splitlines() + image.stdout.splitlines())
    assert read_fingerprint(tmp_path).nodes == ("n1",)
    data = read_part(tmp_path, "image")
    assert (data["reference"], data["environment"]["NCCL_ALGO"]) == ("img", "Ring")
    # The site's interpreter is named, and never started.
    assert data["python"] == "python"
    assert read_part(tmp_path, "host")["kernel"] == os.uname().release
    assert int(read_part(tmp_path, "host")["memory_kb"]) > 0
    assert not (tmp_path / "started").exists()


@cases
def test_a_job_joins_the_lines_of_its_nodes(tmp_path, lines, expected):
    (tmp_path / "printed").write_text("".join(f"{line}\n" for line in lines))
    documents = [json.loads(line) for line in gather(tmp_path).splitlines()]
    texts = {data.pop("nodes"): data for data in documents}
    assert texts == {nodes: json.loads(part) for nodes, part in expected.items()}
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_equal_nodes_of_an_allocation_print_equal_objects(tmp_path):
    for name in ("n1", "n2"):
        describe(tmp_path, SLURMD_NODENAME=name, SLURM_NODEID=name[1:], SLURM_JOB_ID="5", OMP_X="1")
    lines = [json.loads(line) for line in gather(tmp_path).splitlines()]
    assert {line["nodes"] for line in lines} == {"n1 n2"}
    assert any("OMP_X" in str(line) for line in lines)
    assert read_fingerprint(tmp_path).nodes == ("n1", "n2")


@pytest.mark.parametrize("old", ["", "1"])
def test_gpus_as_nvidia_smi_lists_them(tmp_path, old):
    tool(tmp_path / "bin", "nvidia-smi", read_constant(__file__, "GPUS"))
    describe(tmp_path, OLD=old, OMP_NUM_THREADS="é\x1b[31m")
    host = read_part(tmp_path, "host")
    assert host["gpus"][1] == "1, NVIDIA H100 80GB HBM3, 550.54.15, 81559, 700.00, 1980, 2619"
    assert host["cuda_driver"] == "12.4"
    assert host["topology"][1].split() == ["GPU0", "X", "NV18"]
    assert ("vbios_version" in host["gpu_fields"]) is not bool(old)
    if old:
        facts = read_fingerprint(tmp_path).facts
        assert (facts["GPU"], facts["GPUs"]) == ("NVIDIA H100 80GB HBM3", "2")
        assert facts["variable OMP_NUM_THREADS"] == "é\x1b[31m"


@cases
def test_what_a_vendors_tool_prints_is_read(tmp_path, tools, facts):
    for name, text in tools.items():
        tool(tmp_path / "bin", name, text)
    describe(tmp_path)
    every = read_fingerprint(tmp_path).facts
    assert {name: text for name, text in every.items() if name.startswith("GPU")} == facts


def test_a_broken_tool_only_leaves_the_gpus_out_and_on_cpus_none_is_run(tmp_path):
    names = ("nvidia-smi", "amd-smi", "rocm-smi", "hl-smi")

    def describe_with(body, *names, words=(), script=SCRIPT):
        for name in names:
            tool(tmp_path / "bin", name, f"#!/bin/bash\n{body}\n")
        describe(tmp_path, "both", "img", "python3", *words, script=script)

    describe_with("exec sleep 9999", *names, script=SCRIPT.replace("PATIENCE=20", "PATIENCE=0.3"))
    for body in ("printf '\\xff\\0\\x1b[31m'", "echo garbage; kill -9 $$", "exit 9"):
        describe_with(body, *names)
    assert "gpus" not in read_part(tmp_path, "host")
    for name in names[1:]:
        for text in ("", "GPU: 0\n", "device,\ncard0,\n", "card0\n", "0,\n"):
            describe_with(f"printf %s {shlex.quote(text)}", name)
    assert "GPU" not in read_fingerprint(tmp_path).facts
    describe_with(f"touch {tmp_path}/started", *names, words=("cpu",))
    assert not (tmp_path / "started").exists()
