"""What a script makes of what hpcbert says on its node about whether its repeat is needed."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hpcbert.commands.submit import write_campaign
from hpcbert.model import Shape
from hpcbert.script.draft import Draft
from hpcbert.slurm.state_sources import reduce_events
from hpcbert.slurm.states import RepeatState, parse_state
from tests.kit import drafts
from tests.kit.drafts import combined
from tests.kit.scripts import slurm_in, tool
from tests.kit.waiting import CEILING

pytestmark = pytest.mark.slow

WELL = '{"event":"step-end","time":1,"attempt":0,"exit":0,"at":1.5}\n'
WHY = 'five are "enough": the median\'s interval is 0.8 % wide'


def make_draft(tmp_path: Path, **options: object) -> Draft:
    request = combined(Shape(1, 1), ("fp32",), repeats=8, precision_of_median=0.01)
    return drafts.drafted(tmp_path, request, options=options)


def run_repeat(
    draft: Draft, tmp_path: Path, decider: str, *, ended: int = 5, repeat: int = 6
) -> list[dict[str, object]]:
    """Run a repeat's script after so many that ended well, with a stand-in for Python and hpcbert."""
    tool(tmp_path / "bin", "decide", f"#!/bin/bash\n{decider}\n")
    for array in draft.campaign.arrays:
        text = draft.scripts[array.name]
        start, _, ending = text.partition("\ndecider=(")
        assert "-B -m hpcbert.campaign.adaptive" in ending
        ending = f"\ndecider=({tmp_path}/bin/decide{ending[ending.index(' -B') :]}"
        draft = replace(draft, scripts={array.name: f"{start}{ending}"})
    write_campaign(draft)
    (array,) = draft.campaign.arrays
    for number in range(1, ended + 1):
        (draft.directory / array.status(number)).write_text(WELL)
    env = {**os.environ, **slurm_in(tmp_path / "bin"), "RECORD": str(tmp_path / "record")}
    env |= {"NO_RANKS": "1", "SLURM_ARRAY_TASK_ID": str(repeat), "SLURM_ARRAY_JOB_ID": "5"}
    subprocess.run(
        ["bash", str(draft.directory / array.script)],
        env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=CEILING,
    )  # fmt: skip
    path = draft.directory / array.status(repeat)
    return [json.loads(line) for line in path.read_text().splitlines()[ended >= repeat :]]


def list_kinds(events: list[dict[str, object]]) -> list[object]:
    return [event["event"] for event in events]


SAYS = f"cat <<'EOF'\n\"why\":{json.dumps(WHY)}\nEOF\n"


def test_those_after_it_leave_the_queue_and_what_has_begun_is_left_alone(tmp_path: Path) -> None:
    draft = make_draft(tmp_path)
    tool(tmp_path / "bin", "scancel", f'#!/bin/bash\necho "$@" >>{tmp_path}/cancelled\n')
    own_events = run_repeat(draft, tmp_path, f"echo module loaded\n{SAYS}exit 0")
    assert list_kinds(own_events) == ["start", "unneeded", "end"]
    assert (own_events[1]["why"], own_events[2]["exit"]) == (WHY, 0)
    assert (tmp_path / "cancelled").read_text() == "--quiet --state=PENDING 5\n"
    (array,) = draft.campaign.arrays
    for repeat in (7, 8):
        text = (draft.directory / array.status(repeat)).read_text().splitlines()
        job_record = reduce_events([json.loads(line) for line in text])
        assert (job_record.start, job_record.unneeded) == (None, WHY)
        assert job_record.end_state
        assert job_record.end_state.word == "UNNEEDED"
        repeat_state = RepeatState("CANCELLED", parse_state("CANCELLED").kind, "sacct")
        assert job_record.complete(repeat_state).word == "UNNEEDED"
    assert (draft.directory / array.status(1)).read_text() == WELL


def test_without_scancel_those_after_it_say_it_themselves(tmp_path: Path) -> None:
    draft = make_draft(tmp_path)
    tool(tmp_path / "bin", "scancel", "#!/bin/bash\nexit 1\n")
    run_repeat(draft, tmp_path, f"{SAYS}exit 0")
    assert not (draft.directory / draft.campaign.arrays[0].status(7)).exists()


def test_in_one_job_what_is_not_needed_is_passed_over(tmp_path: Path) -> None:
    draft = make_draft(tmp_path, together=True)
    run_repeat(draft, tmp_path, f"{SAYS}exit 0")
    (array,) = draft.campaign.arrays
    for repeat in array.repeats:
        text = (draft.directory / array.status(repeat)).read_text().splitlines()
        assert list_kinds([json.loads(line) for line in text])[-3:] == ["start", "unneeded", "end"]
