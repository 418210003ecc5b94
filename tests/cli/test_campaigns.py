"""The campaigns of one file are one thing: named, listed and taken together."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from tests.kit.cases import read_constant
from tests.kit.cli import Cli, run

FILE = read_constant(__file__, "FILE")
ORDER = [("tf2", "Tree"), ("tf2", "Ring"), ("pytorch", "Tree"), ("pytorch", "Ring")]


@pytest.fixture
def hpcbert(tmp_path: Path) -> Cli:
    environment = {
        "HOME": str(tmp_path), "HPCBERT_RUNS": str(tmp_path / "runs"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }  # fmt: skip
    return Cli(tmp_path, environment)


def submit(hpcbert: Cli, text: str = FILE) -> None:
    (hpcbert.cwd / "week47.toml").write_text(text)
    hpcbert("submit", "week47.toml", "--rehearse", "--force", "--wait", status=0)


def list_variants(hpcbert: Cli) -> list[tuple[str, str]]:
    campaigns = hpcbert("list", "--json", status=0).data["campaigns"]
    return [
        (entry["framework"], entry["variant"].rpartition("NCCL_ALGO=")[2]) for entry in campaigns
    ]


@pytest.mark.slow
def test_every_command_takes_the_campaigns_of_a_file_by_their_name(hpcbert: Cli) -> None:
    submit(hpcbert, f'name = "week 47"\n{FILE}')
    assert list_variants(hpcbert) == ORDER
    watched = hpcbert("monitor", "week 47", "--once", "--json", status=0).data["campaigns"]
    assert [entry["campaign"].split("-")[1] for entry in watched] == [name for name, _ in ORDER]
    assert len(hpcbert("monitor", "--once", "--json", status=0).data["campaigns"]) == len(ORDER)
    assert len(hpcbert("cancel", "week 47", "--json", status=0).data["campaigns"]) == len(ORDER)
    for command in ("collect", "retry", "report"):
        assert "rehearsal" in hpcbert(command, "week 47").stderr
    last_log = hpcbert("logs", "week 47", "--json", status=0).data
    assert last_log["campaign"] == watched[-1]["campaign"]
    assert f"of {last_log['campaign']} {last_log['point']}, " in hpcbert("logs", "week 47").stderr
    wrong_point = hpcbert("logs", "week 47", "--point", "x", status=2).stderr
    assert wrong_point.count(last_log["point"]) == 1
    assert "Did you mean week 47?" in hpcbert("show", "week 48", status=2).stderr
    assert "sample:" in hpcbert("logs", "week 47", "--follow", status=0).stdout
    hpcbert("submit", "--like", "week 47", "--wait", status=0)
    copies = hpcbert("list", "--json", status=0).data["campaigns"][: len(ORDER)]
    assert {entry["name"].partition("-2")[0] for entry in copies} == {"week-47"}
    assert list_variants(hpcbert) == ORDER * 2
    assert "several frameworks" in hpcbert("submit", "--like", "week 47", "--python", "x").stderr
    hpcbert("rm", copies[0]["name"], "--yes", status=0)
    assert "evidence" in hpcbert("audit", "week 47", status=4).stderr
    ends = hpcbert("monitor", "week 47", "--once", status=0).stdout.splitlines()[-len(ORDER) :]
    assert all(line.startswith("rehearsed; ") for line in ends)
    hpcbert("note", "week 47", "all of them", status=0)
    for command in ("show", "archive", "note"):
        shown = hpcbert(command, "week 47", "--json", status=0).data["campaigns"]
        assert [entry["campaign"].split("-")[1] for entry in shown] == [name for name, _ in ORDER]
    assert {entry["note"] for entry in shown} == {"all of them"}
    assert "One file" in hpcbert("archive", "week 47", "--output", "a.zip", status=2).stderr
    again = hpcbert("submit", "--resume", "week 47", status=0).stdout
    assert again.count("campaign ") == len(ORDER)
    assert "monitor 'week 47'" in again
    hpcbert("rm", "week 47", "--yes", status=0)
    assert list_variants(hpcbert) == []


def test_the_campaigns_of_a_file_have_one_time_however_long_drafting_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "week47.toml").write_text(FILE)
    monkeypatch.setenv("HPCBERT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(time, "time", itertools.count(1_800_000_000, 60).__next__)
    argv = ("submit", str(tmp_path / "week47.toml"), "--rehearse", "--force", "--dry-run", "--json")
    campaigns = run(*argv).data["campaigns"]
    assert len({entry["campaign"].partition("-")[0] for entry in campaigns}) == 1
    assert len({entry["campaign"] for entry in campaigns}) == len(ORDER)
    (name,) = {entry["name"] for entry in campaigns}
    assert name.startswith("week47-2"), "the file has no name"
