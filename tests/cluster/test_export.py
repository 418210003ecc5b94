"""What jobs get of their submitter's environment: sbatch's own variables; ranks get nothing."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcbert.lab.record import Lab
from hpcbert.system.runner import run
from tests.kit.cli import Cli
from tests.kit.lab import User
from tests.kit.logs import WORDS, stand_in
from tests.kit.waiting import until

# What a site's own plugin may do to every job.
_FORCED = 'job.environment["SLURM_EXPORT_ENV"] = "NONE"'
_BARE = f'{_FORCED}; job.environment["PATH"] = ""; job.environment["HOME"] = ""'
_DEMANDED = (
    'if job.environment["SLURM_EXPORT_ENV"] ~= "NONE" then '
    'slurm.log_user("submit with --export=NONE") return slurm.ERROR end'
)


def rehearsed(hpcbert: Cli, *words: str, **env: Any) -> dict[str, Any]:
    """Rehearse two ranks on two nodes and return what was submitted."""
    result = hpcbert(
        *("submit", "--fw", "pytorch", "--nodes", "2", "--gpus-per-node", "1", "--repeats", "1"),
        *("--rehearse", *words, "--json"),
        **env,
    )
    assert result.ok, result.output
    data: dict[str, Any] = result.data
    return data


def ranks_of(campaign: dict[str, Any]) -> list[tuple[str, ...]]:
    """Wait for the end of a campaign's repeat and return what each rank said of itself."""
    folder = Path(campaign["directory"])

    def ended() -> list[str]:
        texts = [path.read_text() for path in folder.glob("status/*.jsonl")]
        return [text for text in texts if '"event":"end"' in text]

    def read_files() -> str:
        return "\n".join(path.read_text() for path in folder.rglob("*") if path.is_file())

    (status,) = until(ended, read_files, pause=0.2)
    events = [json.loads(line) for line in status.splitlines()]
    assert [event["exit"] for event in events if event["event"] == "step-end"] == [0], read_files()
    (log,) = folder.rglob("bert_*.log")
    pattern = r"REHEARSAL rank=(\d)/2 .* node=(\d)/2 .* gpus=(\d) master=(\S+) .* reached=(\S+)"
    return sorted(re.findall(pattern, log.read_text()))


@pytest.fixture
def site(work: Path, lab: Any) -> tuple[str, str]:
    """The lab's site, with the interface named: its addresses are asked for by a step."""
    text = lab.layout.site.read_text().replace("[nodes]", '[nodes]\ninterface = "eth0"')
    (work / "site.toml").write_text(text)
    return ("--site", str(work / "site.toml"))


@pytest.mark.site("`--export=NONE`", "`job_submit.lua`")
def test_ranks_need_nothing_of_their_submitters_environment(
    hpcbert: Cli, as_user: Any, site: tuple[str, str], site_rule: Callable[[str], None]
) -> None:
    option = "--sbatch-arg=--export=NONE"
    campaigns = [rehearsed(hpcbert, *site, option), rehearsed(hpcbert, option)]
    campaigns += [rehearsed(hpcbert, *site, "--sbatch-arg=--export=NIL")]
    campaigns += [rehearsed(hpcbert, SBATCH_EXPORT="NONE", SLURM_EXPORT_ENV="NONE")]
    for rule in (_FORCED, _BARE):
        site_rule(rule)
        campaigns.append(rehearsed(hpcbert, *site))
    site_rule(_DEMANDED)
    campaigns.append(rehearsed(hpcbert, *site, option))
    for campaign in campaigns:
        ranks = ranks_of(campaign)
        assert [rank[:2] for rank in ranks] == [("0", "0"), ("1", "1")]
        assert {rank[4] for rank in ranks} == {"2/2"}
        assert len({rank[3] for rank in ranks}) == 1


@pytest.mark.site("`--export=NONE`", "`job_submit.lua`")
def test_a_site_that_demands_it_says_so(
    hpcbert: Cli, site_rule: Callable[[str], None], site: tuple[str, str]
) -> None:
    site_rule(_DEMANDED)
    words = ("--fw", "pytorch", "--nodes", "1", "--gpus-per-node", "1", "--rehearse", "--json")
    result = hpcbert("submit", *words, *site)
    assert result.returncode == 3
    assert "submit with --export=NONE" in result.error["message"]


def test_a_reservation_that_the_shell_names_is_used_and_recorded(
    hpcbert: Cli, work: Path, lab: Lab, user: User
) -> None:
    env = {**os.environ, **lab.environment}
    slots = [f"users={user.name}", "nodes=n2", "starttime=now", "duration=10"]
    assert run(["scontrol", "create", "reservationname=shell", *slots], env=env).ok
    words = ("--repeats", "1", "--python", stand_in(work, ""), "--wait", "--json")
    try:
        result = hpcbert(*WORDS, *words, status=0, SBATCH_RESERVATION="shell", SBATCH_PARTITION="x")
    finally:
        assert run(["scontrol", "delete", "reservationname=shell"], env=env).ok
    (row,) = result.data["tables"][0]["rows"]
    assert row["runs"][0]["nodes"] == ["n2"]
    (directory,) = (hpcbert.cwd / "runs").iterdir()
    lock = (directory / "campaign.lock.toml").read_text()
    assert 'variables."slurm.reservation" = "SBATCH_RESERVATION"' in lock
    # The site has a partition of its own.
    assert "SBATCH_PARTITION" not in lock
