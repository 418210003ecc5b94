"""What a script makes of other repeats' status files: enough ended well, or no baseline did."""

import json
from dataclasses import replace

import pytest

from hpcbert.campaign.record import read_record
from hpcbert.commands.submit import write_campaign
from hpcbert.model import Shape
from hpcbert.slurm.state_sources import reduce_events
from hpcbert.slurm.states import RepeatState, parse_state
from tests.kit.cases import cases
from tests.kit.drafts import combined, curve, drafted
from tests.kit.logs import write_file
from tests.kit.scripts import run_script, tool

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("way", ["array", "no scancel", "one job", "retry"])
def test_if_five_are_enough_those_after_them_leave_the_queue(tmp_path, way):
    why = 'five are "enough": the median\'s interval is 0.8 % wide'
    request = combined(Shape(1, 1), ("fp32",), repeats=8, precision_of_median=0.01)
    draft = drafted(tmp_path, request, options={"together": way == "one job"})
    (array,) = draft.campaign.arrays
    start, _, ending = draft.scripts[array.name].partition("\ndecider=(")
    assert "-B -m hpcbert.campaign.adaptive" in ending
    text = f"{start}\ndecider=({tmp_path}/tools/decide{ending[ending.index(' -B') :]}"
    text = text.replace("first_attempt=0", f"first_attempt={int(way == 'retry')}")
    draft = replace(draft, scripts={array.name: text})
    says = f"echo module loaded\ncat <<'EOF'\n\"why\":{json.dumps(why)}\nEOF\n"
    tool(tmp_path / "tools", "decide", f"#!/bin/bash\n{says}exit 0\n")
    cancelled = write_file(tmp_path, "cancelled", "")
    cancel = f'echo "$@" >>{cancelled}; exit {int(way == "no scancel")}'
    tool(tmp_path / "tools", "scancel", f"#!/bin/bash\n{cancel}\n")
    write_campaign(draft)
    paths = {number: draft.directory / array.status(number) for number in range(1, 9)}
    well = '{"event":"step-end","time":1,"attempt":0,"exit":0,"at":1.5}\n'
    for number in range(1, 6):
        paths[number].write_text(well)
    paths[8].write_text("begun\n" if way == "array" else "")
    job = {"NO_RANKS": "1", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "6"}
    run_script(draft, tmp_path, array, status=0, **job)
    kinds, events = ["start", "unneeded", "end"], read_record(paths[6]).events
    assert [event["event"] for event in events] == kinds
    assert (events[1]["why"], events[2]["exit"]) == (why, 0)
    if way == "one job":
        for path in paths.values():
            assert [event["event"] for event in read_record(path).events][-3:] == kinds
        return
    # Those of a retry are of another array.
    assert cancelled.read_text() == ("" if way == "retry" else "--quiet --state=PENDING 5\n")
    assert paths[1].read_text() == well
    if way in {"no scancel", "retry"}:  # they will say it themselves
        assert not paths[7].exists()
        return
    record = reduce_events(read_record(paths[7]).events)
    assert (record.start, record.unneeded) == (None, why)
    assert record.end_state
    assert record.end_state.word == "UNNEEDED"
    in_queue = RepeatState("CANCELLED", parse_state("CANCELLED").kind, "sacct")
    assert record.complete(in_queue).word == "UNNEEDED"
    assert paths[8].read_text() == "begun\n"


@cases
def test_a_repeat_is_held_back_if_none_of_the_baseline_ended_well(tmp_path, repeats, holds):
    draft = curve(tmp_path, repeats=2, stop_on_failure=True)
    for array in draft.campaign.arrays:  # each precision has its own
        base = array.point.key.replace("1n2g", "1n1g")
        waits = f"\nbaseline={base}\n" in draft.scripts[array.name]
        assert waits == (array.point.shape.gpus > 1)
    write_campaign(draft)
    first, last, *_ = draft.campaign.arrays
    for number, events in enumerate(repeats, start=1):
        (draft.directory / first.status(number)).write_text("\n".join((*events, "")))
    tool(tmp_path / "tools", "sleep", "#!/bin/bash\n")  # nobody waits for a file system
    run_script(draft, tmp_path, last, status=125 if holds else 0, NO_RANKS="1")
    record = reduce_events(read_record(draft.directory / last.status(1)).events)
    assert record.held == (first.point.key if holds else "")
    if holds:
        text = f"held back: baseline {first.point.key} failed"
        in_queue = RepeatState(
            "FAILED", parse_state("FAILED").kind, "sacct", detail="exit status 125"
        )
        assert record.complete(in_queue).detail == text
        assert record.end_state
        assert record.end_state.detail == text
