"""`accept --each-node` where a process takes processor time from the jobs of one node.

HPCBERT_LOADED_ROUNDS=20 repeats it: a loaded node is named in each round, and none in a round without.
"""

from __future__ import annotations

import os

import pytest

from hpcbert.lab.record import Lab
from tests.kit.cli import Cli
from tests.kit.contention import compete, share_processor
from tests.kit.logs import WORDS, stand_in_log

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

# Read now: the tests' environment has none of hpcbert's variables.
ROUNDS = int(os.environ.get("HPCBERT_LOADED_ROUNDS", "1"))

# Works in each iteration, and prints when and how fast it was.
PROGRAM = """#!/bin/bash
[[ -n $SLURM_PROCID ]] || exit 0
before=${{EPOCHREALTIME/./}}
while IFS= read -r line; do
  if [[ $line != *' time: '* ]]; then echo "$line"; continue; fi
  for ((turn = 0; turn < 16000; turn++)); do :; done
  now=${{EPOCHREALTIME/./}} rate=$((200000000 / (now - before)))
  printf '%s samples/s: %d.%02d time: %s\\n' "${{line%% samples/s*}}" \\
    $((rate / 100)) $((rate % 100)) "${{now::-6}}.${{now: -6}}"
  before=$now
done <<'END'
{log}
END
"""


def test_a_node_with_a_competing_process_is_named(hpcbert: Cli, lab: Lab) -> None:
    program, base = hpcbert.cwd / "program", hpcbert.cwd / "base.json"
    hpcbert.run(["tee", str(program)], stdin=PROGRAM.format(log=stand_in_log()))
    hpcbert.run(["chmod", "755", str(program)])
    options = ("--python", program, "--json")
    slower: dict[str, list[set[str]]] = {"clean": [], "loaded": []}
    losses = []
    with share_processor(lab) as folders:
        hpcbert(*WORDS, *options, "--wait", status=0)
        hpcbert("collect", "--output", base, status=0)
        accept = ("accept", base, "--each-node", "--tolerance", "20%", *options)
        for _ in range(ROUNDS):
            clean = hpcbert(*accept)
            with compete(folders["n2"]):
                loaded = hpcbert(*accept, status=7)
            for kind, result in (("clean", clean), ("loaded", loaded)):
                assert all(entry["runs"] == 5 for entry in result.data["nodes"]), result
                states = {entry["node"]: entry["state"] for entry in result.data["nodes"]}
                slower[kind].append({node for node, state in states.items() if state == "slower"})
            losses += [
                1 - entry["ratio"] for entry in loaded.data["nodes"] if entry["node"] == "n2"
            ]
    rounds = len(losses)
    # If it fails, the losses say whether the machine was too busy for nodes to differ.
    assert slower == {"clean": [set()] * rounds, "loaded": [{"n2"}] * rounds}, losses
