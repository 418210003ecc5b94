"""What a script makes of the status files of its curve's smallest shape, under Slurm."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from hpcbert.commands.submit import write_campaign
from hpcbert.script.draft import Draft
from hpcbert.slurm.state_sources import reduce_events
from hpcbert.slurm.states import RepeatState, parse_state
from tests.kit import drafts
from tests.kit.scripts import slurm_in, tool
from tests.kit.waiting import CEILING

pytestmark = pytest.mark.slow

STEP = '{"event":"step","time":1,"attempt":0}'
WELL = '{"event":"step-end","time":1,"attempt":0,"exit":0,"at":1.5}'
BAD = '{"event":"step-end","time":1,"attempt":0,"exit":7,"at":1.5}'
END = '{"event":"end","time":1,"attempt":0,"exit":0}'


def run_larger(draft: Draft, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run the larger shape's script; nobody waits for a file system."""
    tool(tmp_path / "bin", "sleep", "#!/bin/bash\n")
    env = {**os.environ, **slurm_in(tmp_path / "bin"), "RECORD": str(tmp_path / "record")}
    env |= {"NO_RANKS": "1", "SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_JOB_ID": "5"}
    return subprocess.run(
        ["bash", str(draft.directory / draft.campaign.arrays[-1].script)],
        env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=CEILING,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("repeats", "holds"),
    [
        ([], True),
        ([[STEP, BAD], [STEP, BAD]], True),
        ([[STEP], [STEP, BAD, END]], True),
        ([[STEP, BAD], [STEP, WELL, END]], False),
        ([[STEP, BAD, STEP, WELL]], False),
    ],
    ids=["none ran", "all failed", "no end", "one is well", "well at last"],
)
def test_it_is_held_back_if_no_repeat_of_the_baseline_ended_well(
    tmp_path: Path, repeats: list[list[str]], holds: bool
) -> None:
    draft = drafts.curve(tmp_path, ("fp32",), repeats=2, stop_on_failure=True)
    write_campaign(draft)
    first, last = draft.campaign.arrays
    for number, lines in enumerate(repeats, start=1):
        (draft.directory / first.status(number)).write_text(
            "".join(f"{status_line}\n" for status_line in lines)
        )
    result = run_larger(draft, tmp_path)
    assert ("held back" in result.stderr, result.returncode == 125) == (holds, holds), result.stderr
    path = draft.directory / last.status(1)
    job_record = reduce_events([json.loads(line) for line in path.read_text().splitlines()])
    assert job_record.held == (first.point.key if holds else "")
    if holds:
        state = RepeatState("FAILED", parse_state("FAILED").kind, "sacct", detail="exit status 125")
        text = f"held back: baseline {first.point.key} failed"
        assert job_record.complete(state).detail == text
        assert job_record.end_state
        assert job_record.end_state.detail == text


def test_each_precision_has_a_baseline_of_its_own(tmp_path: Path) -> None:
    draft = drafts.curve(tmp_path, repeats=2, stop_on_failure=True)
    for array in draft.campaign.arrays:
        base = array.point.key.replace("1n2g", "1n1g")
        waits = f"\nbaseline={base}\n" in draft.scripts[array.name]
        assert waits == (array.point.shape.gpus > 1)
