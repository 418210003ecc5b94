"""The shell library of job scripts: its files are sourced, and one function is called."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.kit.drafts import reference
from tests.kit.recipes import SHELL
from tests.kit.scripts import RECORDER, drafted, events, run_script, tool, with_python
from tests.kit.waiting import CEILING

# What a script has set when it sources the file of its container runtime.
SETTINGS = """
set -euo pipefail
SLURM_JOB_ID=5 job_name=5 tool=enroot tasks=4 devices_per_task=1 handed_over=(SITE_VARIABLE)
"""


def bash(program: str) -> list[str]:
    """Run a program in a shell that finds the library in $library; return the lines it prints."""
    result = subprocess.run(
        ["bash", "-c", f"library='{SHELL}'\n{program}"],
        capture_output=True, text=True, check=True, timeout=CEILING,
    )  # fmt: skip
    return result.stdout.splitlines()


@pytest.mark.parametrize("file", ["pyxis.bash", "joined.bash"])
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_container_gets_no_driver_for_ranks_on_the_cpu(file: str, device: str) -> None:
    show = 'echo "${NVIDIA_VISIBLE_DEVICES-unset}"; printf "%s\\n" "${handed_over[@]}"'
    driver, *names = bash(f'{SETTINGS}device={device}\n. "$library/{file}"\n{show}')
    on_cpu = device == "cpu"
    assert driver == ("void" if on_cpu else "unset")
    assert ("NVIDIA_VISIBLE_DEVICES" in names) == on_cpu
    assert ("HPCBERT_NCCL_LOG" in names) != on_cpu
    assert {"HPCBERT_NODES", "HPCBERT_NODE_IPS", "MASTER_ADDR", "SITE_VARIABLE"} <= set(names)


@pytest.mark.parametrize(
    ("image", "added"),
    [
        (None, ["PATH=/login", "HOME=/home/u"]),
        ("", ["PATH=/login", "HOME=/home/u"]),
        ("PATH=/image", ["HOME=/home/u"]),
        ("A=1\n  PATH=/image\nHOME=/root\n", []),
        ("MY_PATH=/x\n# PATH=/x\nA=PATH=/x\n", ["PATH=/login", "HOME=/home/u"]),
        ("PATH=\n", ["HOME=/home/u"]),
    ],
    ids=["no file", "empty", "no line end", "all", "near misses", "empty value"],
)
def test_a_container_keeps_of_a_login_what_its_image_lacks(
    image: str | None, added: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "environment"
    if image is not None:
        file.write_text(image)
    bash(f"""{SETTINGS}device=cpu
. "$library/pyxis.bash"
unset SHELL USER LOGNAME
PATH=/login HOME=/home/u
keep_defaults '{file}'
keep_defaults '{file}'""")
    lines = file.read_text().split("\n") if file.exists() else []
    assert [line for line in lines if line] == [*filter(None, (image or "").split("\n")), *added]


@pytest.mark.parametrize(
    ("device", "names"),
    [("gpu", ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"]), ("cpu", ["GLOO_SOCKET_IFNAME"])],
    ids=["gpu", "cpu"],
)
def test_an_interface_reaches_the_ranks_libraries(device: str, names: list[str]) -> None:
    program = f"""
set -euo pipefail
nodes=1 tasks=1 device={device} handed_over=() interface=ib0 node_names=(n1) step=()
. "$library/slurm.bash"
choose_on_interface
printf '%s\\n' "${{handed_over[@]}}"
for name in "${{handed_over[@]}}"; do declare -p "$name"; done
"""
    assert bash(program) == [*names, *(f'declare -x {name}="ib0"' for name in names)]


def test_variables_of_the_caller_with_the_library_s_names_change_nothing(tmp_path: Path) -> None:
    draft = drafted(with_python(reference(tmp_path), tool(tmp_path, "python", RECORDER)))
    names = ("offset", "baseline", "sampling", "interface", "scratch", "caches", "surroundings")
    script = run_script(draft, tmp_path, **dict.fromkeys((*names, "handed_over", "count"), "7"))
    assert script.returncode == 0, script.stderr
    assert [event["event"] for event in events(draft)] == ["start", "step", "step-end", "end"]
    assert str(events(draft)[0]["job"]).endswith("_1")


@pytest.mark.parametrize("file", ["pyxis.bash", "joined.bash"])
@pytest.mark.parametrize(("status", "lines"), [(0, 0), (1, 0), (124, 1), (137, 1)], ids=str)
def test_a_removal_that_was_cut_on_a_node_is_reported(file: str, status: int, lines: int) -> None:
    program = f"""{SETTINGS}device=cpu
. "$library/job.bash"
. "$library/{file}"
step=() SLURM_JOB_NODELIST=n[1-4]
timeout() {{ return {status}; }}
leave 2>&1 || true
"""
    printed = bash(program)
    assert len(printed) == lines
    assert all("removal was cut" in line and "n[1-4]" in line for line in printed)
