"""As an ordinary user on a real cluster: a machine is accepted or not, and so is each node."""

import json
from pathlib import Path

import pytest

from hpcbert.system.runner import run
from tests.kit.cases import read_constant
from tests.kit.logs import START, WORDS, log
from tests.kit.scripts import tool

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def read_states(result):
    return {entry["node"]: entry["state"] for entry in result.data["nodes"]}


def test_a_loaded_node_and_another_driver_are_named_on_the_lab(hpcbert, lab):
    # It prints a log at 10.4 samples/s, up to 1 % faster; 10 % slower on the node that `load` names.
    load, base = hpcbert.cwd / "load", hpcbert.cwd / "base.json"
    text = read_constant(__file__, "PROGRAM")
    text = text.format(load=f"'{load}'", start=START, log=log("1n1g", 10.0, batch=2))
    program = ("--python", tool(hpcbert.cwd, "program", text))
    # Each node has a GPU; n3 has another driver.
    tool(hpcbert.cwd / "bin", "nvidia-smi", read_constant(__file__, "NVIDIA_SMI"))
    hpcbert(*WORDS, "--device", "gpu", *program, "--wait", "--json", status=0)
    hpcbert("collect", "--output", base, status=0)
    path = f"{hpcbert.cwd}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    accept = ("accept", base, "--each-node", *program, "--json")
    clean = hpcbert(*accept, PATH=path, status=0)
    assert read_states(clean) == dict.fromkeys(("n1", "n2", "n3", "n4"), "like")
    (odd,) = clean.data["differences"]
    assert (odd["node"], odd["fact"], odd["value"]) == ("n3", "GPU driver", "550.54")
    load.write_text("n2\n")
    loaded = hpcbert(*accept, "--junit", "accept.xml", PATH=path, status=7)
    assert read_states(loaded) == {"n1": "like", "n2": "slower", "n3": "like", "n4": "like"}
    # `store.list_submission` looks for ids of one time.
    assert len({Path(result).name.partition("-")[0] for result in loaded.data["results"]}) == 1
    # The jobs are there still: what an interrupted command left is judged later.
    name = json.loads((Path(loaded.data["results"][0]) / "manifest.json").read_text())["name"]
    assert f"--each-node {name}" in loaded.stderr
    again = hpcbert("accept", base, "--each-node", name, "--json", "--tolerance", "50%")
    assert read_states(again) == read_states(loaded)
    history = hpcbert("nodes", "n[2-3]", "--json", status=0).data
    assert {entry["node"] for entry in history} == {"n2", "n3"}
    ratios = [entry["ratio"] for entry in history if entry["node"] == "n2"]
    # The first campaign may have run on another node.
    assert ratios[0] is None
    assert 0.85 < ratios[-1] < 0.95
    drain = ["scontrol", "update", "nodename=n4", "reason=test"]
    assert run([*drain, "state=drain"], env=lab.daemon_environment).ok
    try:
        drained = hpcbert(*accept, "--nodelist", "n1,n4", PATH=path, status=4)
    finally:
        assert run([*drain, "state=resume"], env=lab.daemon_environment).ok
    assert read_states(drained) == {"n1": "unknown"}
    assert "n4 was not measured" in drained.document["errors"][-1]["message"]
