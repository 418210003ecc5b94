"""As an ordinary user on a real cluster: a machine is accepted or not, and so is each node."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpcbert.lab.record import Lab
from hpcbert.system.runner import run
from tests.kit.cases import read_constant
from tests.kit.cli import Cli, CliResult
from tests.kit.logs import START, WORDS, stand_in_log

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

# Prints a log at 10.4 samples/s, up to 1 % faster; 10 % slower on the node that `load` names.
PROGRAM = read_constant(__file__, "PROGRAM")
# Each node has a GPU; n3 has another driver.
NVIDIA_SMI = read_constant(__file__, "NVIDIA_SMI")


def put(hpcbert: Cli, path: Path, text: str) -> None:
    hpcbert.run(["mkdir", "-p", str(path.parent)])
    hpcbert.run(["tee", str(path)], stdin=text)
    hpcbert.run(["chmod", "755", str(path)])


@pytest.fixture
def program(hpcbert: Cli) -> Path:
    path = hpcbert.cwd / "program"
    load = f"'{hpcbert.cwd}/load'"
    put(hpcbert, path, PROGRAM.format(load=load, start=START, log=stand_in_log()))
    put(hpcbert, hpcbert.cwd / "bin" / "nvidia-smi", NVIDIA_SMI)
    return path


def read_states(result: CliResult) -> dict[str, str]:
    return {entry["node"]: entry["state"] for entry in result.data["nodes"]}


def test_a_loaded_node_and_another_driver_are_named_on_the_lab(
    hpcbert: Cli, program: Path, lab: Lab
) -> None:
    words = ("--device", "gpu", "--python", str(program), "--wait", "--json")
    first = hpcbert(*WORDS, *words)
    assert first.ok, first.output
    base = hpcbert.cwd / "base.json"
    hpcbert("collect", "--output", base, status=0)
    path = f"{hpcbert.cwd}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    accept = ("accept", base, "--each-node", "--python", str(program), "--json")
    clean = hpcbert(*accept, PATH=path)
    assert clean.returncode == 0, clean.output
    assert read_states(clean) == dict.fromkeys(("n1", "n2", "n3", "n4"), "like")
    assert [(odd["node"], odd["fact"], odd["value"]) for odd in clean.data["differences"]] == [
        ("n3", "GPU driver", "550.54")
    ]
    hpcbert.run(["tee", str(hpcbert.cwd / "load")], stdin="n2\n")
    loaded = hpcbert(*accept, "--junit", "accept.xml", PATH=path)
    assert loaded.returncode == 7, loaded.output
    assert read_states(loaded) == {"n1": "like", "n2": "slower", "n3": "like", "n4": "like"}
    # `store.list_submission` looks for ids of one time.
    assert len({Path(path).name.partition("-")[0] for path in loaded.data["results"]}) == 1
    # The jobs are there still: what an interrupted command left is judged later.
    name = json.loads((Path(loaded.data["results"][0]) / "manifest.json").read_text())["name"]
    assert f"--each-node {name}" in loaded.stderr
    again = hpcbert("accept", base, "--each-node", name, "--json", "--tolerance", "50%")
    assert read_states(again) == read_states(loaded)
    history = hpcbert("nodes", "n[2-3]", "--json", status=0)
    assert {entry["node"] for entry in history.data} == {"n2", "n3"}
    ratios = [entry["ratio"] for entry in history.data if entry["node"] == "n2"]
    assert ratios[0] is None
    assert 0.85 < ratios[1] < 0.95
    drain = ["scontrol", "update", "nodename=n4"]
    env = {**os.environ, **lab.environment}
    assert run([*drain, "state=drain", "reason=test"], env=env).ok
    try:
        drained = hpcbert(*accept, "--nodelist", "n1,n4", PATH=path)
    finally:
        assert run([*drain, "state=resume"], env=env).ok
    assert (drained.returncode, read_states(drained)) == (4, {"n1": "unknown"})
    assert "n4 was not measured" in drained.document["errors"][-1]["message"]
