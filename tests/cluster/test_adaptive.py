"""As an ordinary user on a real cluster, jobs that decide by themselves.

The largest batch is found, a failed curve is held back, repeats end when they are enough.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.kit.cli import Cli
from tests.kit.logs import START, WORDS, stand_in_log
from tests.kit.waiting import unqueued, until


def submitted(hpcbert: Cli, *words: str) -> dict[str, Any]:
    """Submit repeats, two by default, of points of the PyTorch reference, and wait until none is queued."""
    result = hpcbert("submit", "--fw", "pytorch", "--repeats", "2", "--json", *words)
    assert result.ok, result.output
    data: dict[str, Any] = result.data
    name = Path(data["directory"]).name

    def over() -> bool:
        return unqueued(hpcbert.run(["squeue", "--noheader", "--format=%j"]), name)

    until(over, "jobs are still queued", pause=0.5)
    return data


def test_the_largest_batch_is_found_on_two_nodes(hpcbert: Cli) -> None:
    words = ("--nodes", "2", "--gpus-per-node", "2", "--device", "gpu", "--precision", "fp32")
    submission = submitted(hpcbert, *words, "--batch-size", "max", "--rehearse")
    (path,) = Path(submission["directory"]).glob("status/*.search.jsonl")
    events = [json.loads(line) for line in path.read_text().splitlines()]
    sizes = [event["size"] for event in events if event["event"] == "probe"]
    assert sizes == [32, 64, 128, 256, 192, 160, 176, 184]
    assert [(event["size"], event["repeat"]) for event in events if event["event"] == "found"] == [
        (176, 1)
    ]
    ran = [file.read_text() for file in path.parent.glob("*_bmax.[12].jsonl")]
    assert ['"batch":176' in text for text in ran] == [True, True]


def test_a_curve_whose_baseline_failed_takes_no_nodes_for_long(hpcbert: Cli) -> None:
    program = hpcbert.cwd / "fails"
    hpcbert.run(["tee", str(program)], stdin="#!/bin/bash\nexit 7\n")
    hpcbert.run(["chmod", "+x", str(program)])
    words = ("--nodes", "2", "--gpus-per-node", "1", "--scaling", "--python", str(program))
    submission = submitted(hpcbert, *words, "--repeats", "1")
    directory = Path(submission["directory"])
    steps = [path.name for path in directory.glob("status/*.jsonl") if '"step"' in path.read_text()]
    assert len(steps) == 1
    assert all("_1n1g_" in step for step in steps)
    output = hpcbert("collect", directory).output
    base, last = (Path(array["script"]).stem for array in submission["arrays"])
    assert "_2n1g_" in last
    assert output.count(f"held back: baseline {base} failed") >= 1


def test_repeats_end_when_the_median_is_known_well_enough(hpcbert: Cli) -> None:
    program = hpcbert.cwd / "steady"
    shown = (
        '#!/bin/bash\necho "$EPOCHREALTIME $BASHPID"\n'
        'exec awk -v now="${EPOCHREALTIME/,/.}" -F \' time: \' \'NF > 1 { printf "%s time: %.6f\\n", '
        f"$1, now + $2 - {START + 1.2}; next }} 1' <<'END'\n{stand_in_log()}\nEND\n"
    )
    hpcbert.run(["tee", str(program)], stdin=shown)
    hpcbert.run(["chmod", "+x", str(program)])
    words = [*WORDS[3:], "--device", "gpu", "--python", str(program)]
    submission = submitted(hpcbert, *words, "--repeats", "auto", "--max-repeats", "9")
    directory = Path(submission["directory"])
    # Accounting may say for a while that a repeat runs that was taken out of the queue.
    assert hpcbert("monitor", directory).ok
    result = hpcbert("collect", directory, "--json")
    assert result.returncode == 0, result.output
    (row,) = result.data["tables"][0]["rows"]
    assert row["repeats"] == {"ok": 5, "asked": 5}
    # Five, and another for each that a busy machine spoilt.
    ran = len(row["runs"])
    assert row["adaptive"]["unneeded"] == list(range(ran + 1, 10))
    assert ran < 9, row["runs"]
    counts = hpcbert("monitor", directory, "--once", "--json").data["repeats"]
    assert (counts["asked"], counts["unneeded"]) == (9, 9 - ran)
    assert "has nothing to retry" in hpcbert("retry", directory, "--dry-run").stdout
