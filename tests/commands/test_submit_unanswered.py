"""Where Slurm can't say what it has: nothing more is submitted, and the error names the command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpcbert.campaign import store
from hpcbert.commands import retry
from hpcbert.commands import submit as flow
from hpcbert.errors import SchedulerError
from hpcbert.scheduler.base import RESUME
from tests.kit.cli import Cli, CliResult
from tests.kit.drafts import curve, hurried
from tests.kit.slurm import AWAY, Programs, Slurm, failed

pytestmark = pytest.mark.slow

FAILURES = {
    "the controller is away": (failed(f"sbatch: error: Batch job submission failed: {AWAY}"), 1),
    "sbatch times out": (failed("sbatch: error: Batch job submission failed: Socket timed out"), 4),
    "sbatch hangs": (failed("sbatch gave no answer within 60 s", 124), 4),
    "sbatch is killed": (failed("", -9), 4),
}


@pytest.mark.parametrize("again", [RESUME, retry.RETRY_COMMAND])
@pytest.mark.parametrize("squeue_works", [False, True], ids=["squeue fails", "squeue works"])
@pytest.mark.parametrize("failure", FAILURES)
def test_the_command_that_goes_on_is_named(
    tmp_path: Path, failure: str, *, squeue_works: bool, again: str
) -> None:
    answer, times = FAILURES[failure]
    draft = curve(tmp_path)
    slurm = Slurm(away=set() if squeue_works else {"squeue", "sacct"}, sbatch=[*[answer] * 4, None])
    means = hurried(slurm)._replace(again=again)
    flow.write_campaign(draft)
    with pytest.raises(SchedulerError) as caught:
        flow.submit(draft.directory, means)
    assert slurm.count("sbatch") == (4 if squeue_works else 1)
    refused = squeue_works and times == 1
    expected = RESUME if refused else again
    assert f"{expected} {draft.campaign.id}" in caught.value.hint
    assert not slurm.jobs
    slurm.away = set()
    flow.submit(draft.directory, means)
    assert len(slurm.jobs) == 4


def test_each_command_names_itself(hpcbert: Cli, slurm: Programs) -> None:
    with slurm.changed() as model:
        model.away = {"sbatch", "squeue", "sacct"}
    words = ("--fw", "pytorch", "--nodes", "1", "--gpus-per-node", "1", "--force", "--json")
    result = hpcbert("submit", *words)
    (directory,) = store.find_campaigns(hpcbert.cwd / "runs")

    def hint(result: CliResult) -> str:
        assert result.returncode == 3, result
        return result.error["hint"]

    assert f"hpcbert submit --resume {directory.name}" in hint(result)
    for command in ("submit --resume", "retry", "cancel"):
        result = hpcbert(*command.split(), directory.name, "--json")
        assert f"hpcbert {command} {directory.name}" in hint(result)
    assert len(slurm.calls("sbatch")) == 1
    campaign = store.read_manifest(directory)
    (array,) = campaign.arrays
    submitted_array = replace(array, state="submitted", job_id="12", submitted=campaign.created)
    store.write_manifest(directory, replace(campaign, arrays=(submitted_array,)))
    assert f"hpcbert retry {directory.name}" in hint(hpcbert("retry", directory.name, "--json"))
