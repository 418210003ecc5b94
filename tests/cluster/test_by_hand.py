"""Scripts that a person submits with sbatch: rendered ones, and those of a campaign."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hpcbert.script.resolve import PREFLIGHT
from tests.kit.cli import Cli
from tests.kit.logs import WORDS, stand_in

# Of the person who calls sbatch: none may change what runs.
VARIABLES = {
    "PYXIS_CONTAINER_MOUNTS": "/nowhere:/nowhere",
    "PYXIS_CONTAINER_WORKDIR": "/nowhere",
    "PYXIS_CONTAINER_ENV": "PATH",
    **dict.fromkeys(("offset", "interface", "baseline", "sampling", "scratch", "count"), "7"),
}


def events(folder: Path, name: str = "*") -> list[dict[str, Any]]:
    (status,) = folder.glob(f"status/{name}.1.jsonl")
    return [json.loads(line) for line in status.read_text().splitlines()]


def sbatch(as_user: Any, script: str, folder: Path) -> Any:
    return as_user(["sbatch", "--wait", "--array=1", script], cwd=folder, env=VARIABLES)


def texts(folder: Path) -> str:
    return "\n".join(f"{path}\n{path.read_text()}" for path in folder.rglob("*.out"))


def test_a_rendered_script_runs_by_hand(hpcbert: Cli, as_user: Any) -> None:
    folder = hpcbert.cwd / "by hand"
    words = ("--python", stand_in(hpcbert.cwd, ":"), "--repeats", "2", "--output", folder)
    result = hpcbert("render", *WORDS[1:], *words)
    assert result.ok, result.stderr
    (script,) = folder.glob("*.sbatch")
    library = {path.name for path in (folder / "scripts").iterdir()}
    assert {"job.bash", "slurm.bash", "watch.bash", "rank.bash", "describe.sh"} <= library
    assert not library & {"largest.bash", "enough.bash", "bind.bash", "local.bash", PREFLIGHT}
    outcome = sbatch(as_user, script.name, folder)
    assert outcome.ok, outcome.stderr + texts(folder)
    record = events(folder)
    assert [event["event"] for event in record] == ["start", "step", "step-end", "end"]
    assert [event["exit"] for event in record if "exit" in event] == [0, 0]
    assert list(folder.rglob("bert_*_1.log"))


def test_a_script_of_a_campaign_runs_by_hand(hpcbert: Cli, as_user: Any) -> None:
    words = ("--python", stand_in(hpcbert.cwd, ":"), "--repeats", "1", "--wait")
    result = hpcbert(*WORDS, *words)
    assert result.ok, result.stderr
    (script,) = hpcbert.cwd.glob("runs/*/scripts/*.sbatch")
    folder = script.parent.parent
    outcome = sbatch(as_user, f"scripts/{script.name}", folder)
    assert outcome.ok, outcome.stderr + texts(folder)
    ends = [event["exit"] for event in events(folder) if event["event"] == "step-end"]
    assert ends == [0, 0]
