"""What a script makes of other repeats' status files: enough ended well, or no baseline did."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hpcbert.commands.submit import write_campaign
from hpcbert.model import Array, Shape
from hpcbert.script.draft import Draft
from hpcbert.slurm.state_sources import JobRecord, reduce_events
from hpcbert.slurm.states import RepeatState, parse_state
from tests.kit import drafts
from tests.kit.drafts import combined
from tests.kit.scripts import slurm_in, tool
from tests.kit.waiting import CEILING

pytestmark = pytest.mark.slow

STEP = '{"event":"step","time":1,"attempt":0}'
WELL = '{"event":"step-end","time":1,"attempt":0,"exit":0,"at":1.5}'
BAD = '{"event":"step-end","time":1,"attempt":0,"exit":7,"at":1.5}'
END = '{"event":"end","time":1,"attempt":0,"exit":0}'
WHY = 'five are "enough": the median\'s interval is 0.8 % wide'


def run(draft: Draft, array: Array, tmp_path: Path, repeat: int = 1) -> int:
    """Run a repeat's script whose ranks do nothing; nobody waits for a file system."""
    tool(tmp_path / "bin", "sleep", "#!/bin/bash\n")
    env = {**os.environ, **slurm_in(tmp_path / "bin"), "RECORD": str(tmp_path / "record")}
    env |= {"NO_RANKS": "1", "SLURM_ARRAY_TASK_ID": str(repeat), "SLURM_ARRAY_JOB_ID": "5"}
    words = ["bash", str(draft.directory / array.script)]
    result = subprocess.run(
        words, env=env, cwd=tmp_path, capture_output=True, check=False, timeout=CEILING
    )
    return result.returncode


def read_events(draft: Draft, array: Array, repeat: int) -> list[dict[str, object]]:
    text = (draft.directory / array.status(repeat)).read_text()
    return [json.loads(line) for line in text.splitlines()]


def end_in_queue(record: JobRecord, state: str, detail: str = "") -> RepeatState:
    return record.complete(RepeatState(state, parse_state(state).kind, "sacct", detail=detail))


@pytest.mark.parametrize("way", ["array", "no scancel", "one job"])
def test_if_five_are_enough_those_after_them_leave_the_queue(tmp_path, way):
    request = combined(Shape(1, 1), ("fp32",), repeats=8, precision_of_median=0.01)
    draft = drafts.drafted(tmp_path, request, options={"together": way == "one job"})
    (array,) = draft.campaign.arrays
    start, _, ending = draft.scripts[array.name].partition("\ndecider=(")
    assert "-B -m hpcbert.campaign.adaptive" in ending
    text = f"{start}\ndecider=({tmp_path}/bin/decide{ending[ending.index(' -B') :]}"
    draft = replace(draft, scripts={array.name: text})
    says = f"echo module loaded\ncat <<'EOF'\n\"why\":{json.dumps(WHY)}\nEOF\n"
    tool(tmp_path / "bin", "decide", f"#!/bin/bash\n{says}exit 0\n")
    cancel = f'echo "$@" >>{tmp_path}/cancelled; exit {int(way == "no scancel")}'
    tool(tmp_path / "bin", "scancel", f"#!/bin/bash\n{cancel}\n")
    write_campaign(draft)
    for number in range(1, 6):
        (draft.directory / array.status(number)).write_text(f"{WELL}\n")
    (draft.directory / array.status(8)).write_text("begun\n" if way == "array" else "")
    run(draft, array, tmp_path, 6)
    kinds, events = ["start", "unneeded", "end"], read_events(draft, array, 6)
    assert [event["event"] for event in events] == kinds
    assert (events[1]["why"], events[2]["exit"]) == (WHY, 0)
    if way == "one job":
        for repeat in array.repeats:
            own = [event["event"] for event in read_events(draft, array, repeat)]
            assert own[-3:] == kinds
        return
    assert (tmp_path / "cancelled").read_text() == "--quiet --state=PENDING 5\n"
    assert (draft.directory / array.status(1)).read_text() == f"{WELL}\n"
    if way == "no scancel":  # they will say it themselves
        assert not (draft.directory / array.status(7)).exists()
        return
    record = reduce_events(read_events(draft, array, 7))
    assert (record.start, record.unneeded) == (None, WHY)
    assert record.end_state
    assert record.end_state.word == "UNNEEDED"
    assert end_in_queue(record, "CANCELLED").word == "UNNEEDED"
    assert (draft.directory / array.status(8)).read_text() == "begun\n"


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
def test_a_repeat_is_held_back_if_none_of_the_baseline_ended_well(tmp_path, repeats, holds):
    draft = drafts.curve(tmp_path, ("fp32",), repeats=2, stop_on_failure=True)
    write_campaign(draft)
    first, last = draft.campaign.arrays
    for number, lines in enumerate(repeats, start=1):
        text = "".join(f"{line}\n" for line in lines)
        (draft.directory / first.status(number)).write_text(text)
    assert run(draft, last, tmp_path) == (125 if holds else 0)
    record = reduce_events(read_events(draft, last, 1))
    assert record.held == (first.point.key if holds else "")
    if holds:
        text = f"held back: baseline {first.point.key} failed"
        assert end_in_queue(record, "FAILED", "exit status 125").detail == text
        assert record.end_state
        assert record.end_state.detail == text


def test_each_precision_has_a_baseline_of_its_own(tmp_path):
    draft = drafts.curve(tmp_path, repeats=2, stop_on_failure=True)
    for array in draft.campaign.arrays:
        base = array.point.key.replace("1n2g", "1n1g")
        waits = f"\nbaseline={base}\n" in draft.scripts[array.name]
        assert waits == (array.point.shape.gpus > 1)
