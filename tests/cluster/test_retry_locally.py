"""retry with the local scheduler: the real command, the real queue."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpcbert.campaign import store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.scheduler.local import backend as local
from tests.kit.campaigns import updated
from tests.kit.cli import Cli, runs
from tests.kit.logs import WORDS, stand_in
from tests.kit.waiting import until


@pytest.fixture
def hpcbert(tmp_path: Path) -> Cli:
    return Cli(tmp_path, {"HOME": str(tmp_path), "HPCBERT_RUNS": str(tmp_path / "runs")})


@pytest.fixture
def failing(tmp_path: Path) -> tuple[Path, Path]:
    """The program, and the file that makes its second repeat fail as long as it is there."""
    flag = tmp_path / "flag"
    flag.touch()
    bad = f"if [[ $SLURM_ARRAY_TASK_ID == 2 && -e {flag} ]]; then exit 7; fi"
    return stand_in(tmp_path, bad), flag


def submitted(hpcbert: Cli, program: Path, *words: str) -> Path:
    result = hpcbert(*WORDS, "--python", program, "--scheduler", "local", "--json", *words)
    return Path(result.data["directory"])


def over(directory: Path) -> None:
    tracked = TrackedCampaign(directory, store.read_manifest(directory))

    def ended() -> bool:
        states = local.read_states(tracked).values()
        return not local.find_queue(directory) and all(state.kind.over for state in states)

    until(ended, "it is still running")


@pytest.mark.parametrize("together", [False, True])
def test_only_what_failed_runs_again_and_every_attempt_stays(
    hpcbert: Cli, failing: tuple[Path, Path], together: bool
) -> None:
    program, flag = failing
    one_job = ("--repeats-in", "one-job") if together else ()
    if together:
        program.write_text(
            program.read_text().replace("if [[ $SLURM_ARRAY_TASK_ID == 2 && -e", "if [[ -e")
        )
    directory = submitted(hpcbert, program, "--repeats", "2", *one_job)
    over(directory)
    planned = hpcbert("retry", directory, "--dry-run", "--json")
    bad = [1, 2] if together else [2]
    (array,) = planned.data["campaigns"][0]["arrays"]
    assert [repeat["repeat"] for repeat in array["repeats"]] == bad
    assert {repeat["state"] for repeat in array["repeats"]} == {"FAILED"}
    assert (array["retry"], array["first_attempt"], array["job_id"]) == (1, 1, None)
    assert len(store.read_manifest(directory).arrays) == 1
    flag.unlink()
    result = hpcbert("retry", directory, "--wait", "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    repeats = runs(result.document)
    # A busy machine may spoil an attempt's clock: then there is another.
    assert [number for number, run in repeats.items() if run["attempt"]] == bad
    first, *_, second = repeats[2]["attempts"]
    assert (first["attempt"], first["state"], second["state"]) == (0, "FAILED", "COMPLETED")
    assert "exit status 7" in first["detail"]
    assert first["log"] != second["log"]
    text = hpcbert("collect", directory)
    assert "repeat 2 attempt 0" in text.stdout
    nothing = hpcbert("retry", directory)
    assert (nothing.returncode, "has nothing to retry" in nothing.stdout) == (0, True)


def test_submit_heals_by_itself_until_the_limit(
    hpcbert: Cli, failing: tuple[Path, Path], tmp_path: Path
) -> None:
    program, _ = failing
    words = ("--repeats", "2", "--wait", "--max-retries", "1")
    result = hpcbert(*WORDS, "--python", program, "--scheduler", "local", "--json", *words)
    assert result.returncode == 4
    assert "submitted again as job local-" in result.stderr
    second = runs(result.document)[2]
    assert (second["valid"], [attempt["attempt"] for attempt in second["attempts"]]) == (
        False,
        [0, 1],
    )
    (directory,) = (tmp_path / "runs").iterdir()
    spent = hpcbert("retry", directory, "--max-retries", "1", "--json")
    assert spent.returncode == 4
    assert spent.data["campaigns"][0]["spent"][0]["repeat"] == 2
    assert len(store.read_manifest(directory).arrays) == 2


def test_what_still_runs_is_left_alone(hpcbert: Cli, tmp_path: Path) -> None:
    wait = f"while [[ ! -e {tmp_path}/go ]]; do sleep 0.1; done"
    program = stand_in(tmp_path, f"if [[ $SLURM_ARRAY_TASK_ID == 1 ]]; then exit 7; fi; {wait}")
    directory = submitted(hpcbert, program, "--repeats", "2")
    status = directory / store.read_manifest(directory).arrays[0].status(1)
    until(lambda: status.exists() and "finished" in status.read_text(), "it never finished")
    refused = hpcbert("retry", directory)
    assert refused.returncode == 2
    assert "1 repeat still waits or runs" in refused.stderr
    (tmp_path / "go").touch()
    over(directory)
    assert len(store.read_manifest(directory).arrays) == 1


def test_an_interrupted_submission_is_taken_up_and_a_moved_campaign_is_not_retried(
    hpcbert: Cli, failing: tuple[Path, Path], tmp_path: Path
) -> None:
    directory = submitted(hpcbert, failing[0], "--repeats", "2")
    over(directory)
    campaign = store.read_manifest(directory)
    (array,) = campaign.arrays
    lost = replace(array, state="intended", job_id="", submitted="")
    store.write_manifest(directory, updated(campaign, lost))
    again = hpcbert("submit", "--resume", directory)
    assert again.returncode == 0, again.stderr
    assert store.read_manifest(directory).arrays[0].job_id == array.job_id
    moved = directory.rename(tmp_path / "elsewhere")
    refused = hpcbert("retry", moved)
    assert refused.returncode == 2
    assert "was moved or copied" in refused.stderr
