"""What describe.sh makes of the tools of AMD and Intel: of outputs that others recorded."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from hpcbert.campaign import fingerprint
from hpcbert.campaign.fingerprint import Fingerprint
from tests.kit.cases import cases, read_constant
from tests.kit.paths import REPOSITORY
from tests.kit.scripts import tool
from tests.kit.waiting import CEILING

pytestmark = pytest.mark.slow

SCRIPT = REPOSITORY / "hpcbert" / "shell" / "describe.sh"

# ROCm/amdsmi, docs/how-to/amdsmi-cli-tool.md ("Example output from amd-smi static"), an MI300A.
MI300A = read_constant(__file__, "MI300A")
# The same page, "Get specific static information": no driver and no memory were asked for.
MI350X = read_constant(__file__, "MI350X")
# easybuilders/easybuild-framework, pull request 3978, of March 2022: both tables.
MI100_DRIVER = "device,Driver version\ncardsystem,4.18.0-348.12.2.el8_5.x86_64\n"
MI100 = """\
device,Card series,Card model,Card vendor,Card SKU
card0,Arcturus GL-XL [AMD Instinct MI100],0x0c34,Advanced Micro Devices Inc. [AMD/ATI],D34316
card1,Arcturus GL-XL [AMD Instinct MI100],0x0c34,Advanced Micro Devices Inc. [AMD/ATI],D34316
"""
# marimo-team/marimo, issue 9237, of April 2026.
RX7900 = """\
device,GPU use (%),VRAM Total Memory (B),VRAM Total Used Memory (B),Card Series,Card Model,Card Vendor,Card SKU,Subsystem ID,Device Rev,Node ID,GUID,GFX Version
card0,0,21458059264,27856896,Radeon RX 7900 XT,0x744c,Advanced Micro Devices Inc. [AMD/ATI],D70401XT,0x471e,0xcc,1,26967,gfx1100
"""
# inureyes/all-smi 0.26.2, src/device/hlsmi/parser.rs: the line that it says hl-smi prints for
# index,uuid,name,driver_version,memory.total,…
GAUDI3 = (
    "0, 01P4-HL3090A0-18-U4V193-22-07-00, HL-325L, 1.22.1-97ec1a4, 131072 MiB, 672 MiB, "
    "130400 MiB, 226 W, 850 W, 36 C, 0 %"
)
GAUDI_COLUMNS = ("index", "uuid", "name", "driver_version", "memory.total")
# Prints what was recorded, as far as it is asked for: columns by name, or a file by option.
HL_SMI = read_constant(__file__, "HL_SMI")


def describe_node(folder: Path, tools: dict[str, str], *words: str) -> Fingerprint:
    for name, text in tools.items():
        tool(folder / "bin", name, text)
    path = f"{folder / 'bin'}:/usr/bin:/bin"
    file = folder / "nodes.jsonl"
    program = '. "${1%/*}/nodes.bash"; bash "$@" | gather "$FILE"'
    subprocess.run(
        ["bash", "-c", program, "job", str(SCRIPT), "both", "img", "python3", *words],
        env={"PATH": path, "SLURMD_NODENAME": "n1", "FILE": str(file)}, check=True, timeout=CEILING,
    )  # fmt: skip
    (parsed,) = fingerprint.parse(file.read_bytes())
    return parsed


def render_tool(text: str) -> str:
    return f"#!/bin/bash\nprintf %s {shlex.quote(text)}\n"


def render_rocm_smi(cards: str, driver: str = "") -> str:
    return (
        f"#!/bin/bash\ncase $* in *driver*) printf %s {shlex.quote(driver)} ;; "
        f"*) printf %s {shlex.quote(cards)} ;; esac\n"
    )


TOOLS = {
    "mi300a": {
        "amd-smi": render_tool("".join(MI300A.replace("{number}", str(n)) for n in range(4)))
    },
    "mi350x": {"amd-smi": render_tool(MI350X)},
    "mi100": {"rocm-smi": render_rocm_smi(MI100, MI100_DRIVER)},
    "rx7900": {"amd-smi": "#!/bin/bash\nexit 1\n", "rocm-smi": render_rocm_smi(RX7900)},
    "gaudi3": {"hl-smi": HL_SMI.format(columns=",".join(GAUDI_COLUMNS), line=shlex.quote(GAUDI3))},
}


@cases
def test_what_a_vendors_tool_tells_is_read(
    tmp_path: Path, tools: str, facts: dict[str, str]
) -> None:
    description = describe_node(tmp_path, TOOLS[tools])
    assert {name: text for name, text in description.facts.items() if name[:3] == "GPU"} == facts


@pytest.mark.parametrize("name", ["amd-smi", "rocm-smi", "hl-smi"])
@pytest.mark.parametrize("text", ["", "GPU: 0\n", "device,\ncard0,\n", "card0\n", "0,\n"])
def test_a_tool_that_tells_nothing_is_no_failure(name: str, text: str, tmp_path: Path) -> None:
    assert "GPU" not in describe_node(tmp_path, {name: render_tool(text)}).facts


@pytest.mark.parametrize("name", ["amd-smi", "rocm-smi", "hl-smi"])
def test_on_cpus_no_tool_is_asked(name: str, tmp_path: Path) -> None:
    path = tmp_path / "asked"
    describe_node(tmp_path, {name: f"#!/bin/bash\ntouch {shlex.quote(str(path))}\n"}, "cpu")
    assert not path.exists()


def test_variables_of_the_allocation_are_no_difference_between_runs() -> None:
    hidden = {f"{vendor}_VISIBLE_DEVICES": "0" for vendor in ("CUDA", "HIP", "ROCR", "HABANA")}
    text = {**hidden, "HIP_FORCE_DEV_KERNARG": "1", "HSA_XNACK": "0"}
    raw = str({"nodes": "n1", "host": {}, "image": {"environment": text}})
    (parsed,) = fingerprint.parse(raw.replace("'", '"').encode())
    assert parsed.facts == {"variable HIP_FORCE_DEV_KERNARG": "1", "variable HSA_XNACK": "0"}
