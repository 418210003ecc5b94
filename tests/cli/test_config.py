"""Which site a command uses, and which campaign stands for one that was refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

SUBMIT = (
    *("submit", "--fw", "pytorch", "--gpus-per-node", "1", "--repeats", "1"),
    *("--scheduler", "local"),
)
COMMANDS = {
    "plan": ("plan", "--fw", "pytorch"),
    "prepare": ("prepare", "--fw", "oneflow", "--dry-run"),
    "dry run": (*SUBMIT, "--nodes", "1", "--dry-run"),
    "refused submit": (*SUBMIT, "--nodes", "99"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_first_line_names_the_site_and_where_things_go(
    run_commands: Callable[..., list[Any]], command: str
) -> None:
    words = [*COMMANDS[command]]
    text, document = run_commands([words, [*words, "--json"]])
    line = text.stderr.splitlines()[0]
    assert line.startswith("site ")
    assert "site.toml" in line
    assert "programs in /" in line if command == "prepare" else "campaigns in /" in line
    assert "site.toml, hpcbert's own" not in document.stderr


@pytest.mark.parametrize("words", [["doctor"], ["collect"], [*COMMANDS["plan"]]], ids=" ".join)
def test_a_lab_that_is_gone_is_named_with_the_remedy(
    run_commands: Callable[..., list[Any]], words: list[str]
) -> None:
    for names in (["HPCBERT_SITE"], ["HPCBERT_SITE", "SLURM_CONF"]):
        (result,) = run_commands([words], **dict.fromkeys(names, "/gone/site.toml"))
        assert result.returncode == 2
        assert "HPCBERT_SITE=/gone/site.toml" in result.stderr
        assert result.stderr.rstrip().endswith(f"unset {' '.join(names)}")


def test_the_newest_campaign_is_not_taken_for_a_refused_one(
    run_commands: Callable[..., list[Any]], tmp_path: Path
) -> None:
    runs = {"HPCBERT_RUNS": str(tmp_path / "runs")}
    rehearse = [*SUBMIT, "--nodes", "1", "--rehearse", "--wait"]
    refused = [*SUBMIT, "--nodes", "99"]
    cancel = ["cancel", "--yes"]
    results = run_commands(
        [rehearse, ["show"], refused, ["show"], cancel, rehearse, ["show"]], **runs
    )
    stopped = results.pop(4)
    assert (stopped.returncode, "Name the campaign" in stopped.stderr) == (2, True)
    notes = ["made no campaign" in result.stderr for result in results[1::2]]
    assert [result.returncode for result in results] == [0, 0, 2, 0, 0, 0]
    assert notes == [False, True, False]
