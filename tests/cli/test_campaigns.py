"""The campaigns of one file are one thing: named, listed and taken together."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import pytest

from tests.kit.cases import read_constant
from tests.kit.cli import Cli, run, run_here

FILE = read_constant(__file__, "FILE")
ORDER = [("tf2", "Tree"), ("tf2", "Ring"), ("pytorch", "Tree"), ("pytorch", "Ring")]


@pytest.mark.slow
def test_every_command_takes_the_campaigns_of_a_file_by_their_name(tmp_path: Path) -> None:
    runs, state = str(tmp_path / "runs"), str(tmp_path / "state")
    variables = {"HOME": str(tmp_path), "HPCBERT_RUNS": runs, "XDG_STATE_HOME": state}
    hpcbert = Cli(tmp_path, {**os.environ, **variables}, run=run_here)

    def list_frameworks(*words: str) -> list[str]:
        campaigns = hpcbert(*words, "--json", status=0).data["campaigns"]
        return [entry["campaign"].split("-")[1] for entry in campaigns]

    def list_variants() -> list[tuple[str, str]]:
        entries = hpcbert("list", "--json", status=0).data["campaigns"]
        return [(e["framework"], e["variant"].rpartition("NCCL_ALGO=")[2]) for e in entries]

    frameworks = [name for name, _ in ORDER]
    (tmp_path / "week47.toml").write_text(f'name = "week 47"\n{FILE}')
    hpcbert("submit", "week47.toml", "--rehearse", "--force", "--wait", status=0)
    assert list_variants() == ORDER
    hpcbert("note", "week 47", "all of them", status=0)
    for words in (["monitor", "--once"], ["cancel"], ["show"], ["archive"], ["note"]):
        assert list_frameworks(*words, "week 47") == frameworks, words
    assert list_frameworks("monitor", "--once") == frameworks
    for command in ("collect", "retry", "report"):
        assert "rehearsal" in hpcbert(command, "week 47").stderr
    last = hpcbert("logs", "week 47", "--json", status=0).data
    assert f"of {last['campaign']} {last['point']}, " in hpcbert("logs", "week 47").stderr
    wrong_point = hpcbert("logs", "week 47", "--point", "x", status=2).stderr
    assert wrong_point.count(last["point"]) == 1
    assert "sample:" in hpcbert("logs", "week 47", "--follow", status=0).stdout
    assert "Did you mean week 47?" in hpcbert("show", "week 48", status=2).stderr
    assert "evidence" in hpcbert("audit", "week 47", status=4).stderr
    assert "One file" in hpcbert("archive", "week 47", "--output", "a.zip", status=2).stderr
    ends = hpcbert("monitor", "week 47", "--once", status=0).stdout.splitlines()[-len(ORDER) :]
    assert all(line.startswith("rehearsed; ") for line in ends)
    again = hpcbert("submit", "--resume", "week 47", status=0).stdout
    assert (again.count("campaign "), "monitor 'week 47'" in again) == (len(ORDER), True)
    hpcbert("submit", "--like", "week 47", "--wait", status=0)
    assert list_variants() == ORDER * 2
    copies = hpcbert("list", "--json", status=0).data["campaigns"][: len(ORDER)]
    (name,) = {entry["name"] for entry in copies}
    assert name.startswith("week-47-2")
    assert "several frameworks" in hpcbert("submit", "--like", "week 47", "--python", "x").stderr
    for words in ([name], ["week 47"]):
        hpcbert("rm", *words, "--yes", status=0)
    assert list_variants() == []


def test_the_campaigns_of_a_file_have_one_time_however_long_drafting_takes(
    empty_directory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("week47.toml").write_text(FILE)
    monkeypatch.setattr(time, "time", itertools.count(1_800_000_000, 60).__next__)
    words = ("submit", "week47.toml", "--rehearse", "--force", "--dry-run", "--json")
    campaigns = run(*words).data["campaigns"]
    assert len({entry["campaign"].partition("-")[0] for entry in campaigns}) == 1
    assert len({entry["campaign"] for entry in campaigns}) == len(ORDER)
    (name,) = {entry["name"] for entry in campaigns}
    assert name.startswith("week47-2"), "the file has no name"
