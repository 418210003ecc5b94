"""What a script makes of other repeats' status files: enough ended well, or no baseline did."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.commands.submit import write_campaign
from hpcbert.model import Array, Shape
from hpcbert.script.draft import Draft
from hpcbert.slurm.state_sources import reduce_events
from hpcbert.slurm.states import RepeatState, parse_state
from tests.kit import drafts
from tests.kit.cases import cases
from tests.kit.drafts import combined
from tests.kit.scripts import bash, slurm_in, tool

pytestmark = pytest.mark.slow

WELL = '{"event":"step-end","time":1,"attempt":0,"exit":0,"at":1.5}'
WHY = 'five are "enough": the median\'s interval is 0.8 % wide'


def run(draft: Draft, array: Array, tmp_path: Path, repeat: int = 1, status: int = 0) -> None:
    """Run a repeat's script whose ranks do nothing; nobody waits for a file system."""
    tool(tmp_path / "bin", "sleep", "#!/bin/bash\n")
    env: Any = {**os.environ, **slurm_in(tmp_path / "bin"), "RECORD": str(tmp_path / "record")}
    env |= {"NO_RANKS": "1", "SLURM_ARRAY_TASK_ID": str(repeat), "SLURM_ARRAY_JOB_ID": "5"}
    bash(draft.directory / array.script, status=status, cwd=tmp_path, **env)


def read_events(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


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
    paths = {number: draft.directory / array.status(number) for number in range(1, 9)}
    for number in range(1, 6):
        paths[number].write_text(f"{WELL}\n")
    paths[8].write_text("begun\n" if way == "array" else "")
    run(draft, array, tmp_path, 6)
    kinds, events = ["start", "unneeded", "end"], read_events(paths[6])
    assert [event["event"] for event in events] == kinds
    assert (events[1]["why"], events[2]["exit"]) == (WHY, 0)
    if way == "one job":
        for path in paths.values():
            assert [event["event"] for event in read_events(path)][-3:] == kinds
        return
    assert (tmp_path / "cancelled").read_text() == "--quiet --state=PENDING 5\n"
    assert paths[1].read_text() == f"{WELL}\n"
    if way == "no scancel":  # they will say it themselves
        assert not paths[7].exists()
        return
    record = reduce_events(read_events(paths[7]))
    assert (record.start, record.unneeded) == (None, WHY)
    assert record.end_state
    assert record.end_state.word == "UNNEEDED"
    in_queue = RepeatState("CANCELLED", parse_state("CANCELLED").kind, "sacct")
    assert record.complete(in_queue).word == "UNNEEDED"
    assert paths[8].read_text() == "begun\n"


@cases
def test_a_repeat_is_held_back_if_none_of_the_baseline_ended_well(tmp_path, repeats, holds):
    draft = drafts.curve(tmp_path, ("fp32",), repeats=2, stop_on_failure=True)
    write_campaign(draft)
    first, last = draft.campaign.arrays
    for number, events in enumerate(repeats, start=1):
        (draft.directory / first.status(number)).write_text("\n".join((*events, "")))
    run(draft, last, tmp_path, status=125 if holds else 0)
    record = reduce_events(read_events(draft.directory / last.status(1)))
    assert record.held == (first.point.key if holds else "")
    if holds:
        text = f"held back: baseline {first.point.key} failed"
        failed = parse_state("FAILED").kind
        in_queue = RepeatState("FAILED", failed, "sacct", detail="exit status 125")
        assert record.complete(in_queue).detail == text
        assert record.end_state
        assert record.end_state.detail == text


def test_each_precision_has_a_baseline_of_its_own(tmp_path):
    draft = drafts.curve(tmp_path, repeats=2, stop_on_failure=True)
    for array in draft.campaign.arrays:
        base = array.point.key.replace("1n2g", "1n1g")
        waits = f"\nbaseline={base}\n" in draft.scripts[array.name]
        assert waits == (array.point.shape.gpus > 1)
