"""More repeats than one array, or one person, may have: several arrays, as room becomes available."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from hpcbert import scheduler
from hpcbert.campaign import store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.campaign.suspects import RetryPolicy
from hpcbert.commands import submit as flow
from hpcbert.commands.retry import InvalidRepeat, RetryPlan, plan_retry
from hpcbert.errors import SchedulerError, UsageError
from hpcbert.model import Shape
from hpcbert.scheduler.base import NoRoomError, SchedulerContext
from hpcbert.script.draft import by_hand
from hpcbert.script.plan import MOST_INDICES, plan
from hpcbert.system.runner import Outcome, run
from tests.kit.drafts import OPTIONS, combined, curve, hurried, load, reference
from tests.kit.slurm import Answer, Slurm, failed

POLICY = (
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy "
    "(job submit limit, user's size and/or time limits)"
)


@dataclass
class Limited(Slurm):
    """Takes so many repeats, as MaxSubmitJobs has it."""

    room: int = 3
    limit: str = "sbatch: error: AssocMaxSubmitJobLimit\n"

    def do_sbatch(self, argv: tuple[str, ...], cwd: str) -> Answer:
        before = dict(self.jobs)
        answer = super().do_sbatch(argv, cwd)
        (new,) = self.jobs.keys() - before
        count = len(self.jobs[new].tasks)
        if count > self.room:
            self.jobs = before
            return failed(f"{self.limit}{POLICY}\n")
        self.room -= count
        return answer


@pytest.mark.parametrize(
    "limit", [Limited.limit, "", "sbatch: error: QOSMaxSubmitJobPerUserLimit\n"]
)
def test_an_array_is_submitted_in_parts_as_room_becomes_available(
    tmp_path: Path, limit: str
) -> None:
    draft, slurm = curve(tmp_path, ("fp32",)), Limited(limit=limit)
    flow.write_campaign(draft)
    with pytest.raises(NoRoomError, match="3 repeats are submitted, 7 are not") as caught:
        flow.submit(draft.directory, hurried(slurm))
    assert caught.value.exit_code == 4
    assert f"hpcbert submit --resume {draft.campaign.id}" in caught.value.hint
    rounds = 0
    while rounds < 9:
        slurm.room, rounds = 2, rounds + 1
        try:
            campaign = flow.submit(draft.directory, hurried(slurm))
        except NoRoomError:
            continue
        break
    pairs = [(array.point, number) for array in campaign.arrays for number in array.repeats]
    assert sorted(number for _, number in pairs) == sorted([1, 2, 3, 4, 5] * 2)
    assert len(set(pairs)) == 10
    assert sorted(slurm.names.values()) == sorted(array.name for array in campaign.arrays)
    assert [array.job_id for array in campaign.arrays] == list(slurm.jobs)
    assert store.read_manifest(draft.directory) == campaign
    assert len(campaign.current) == 10


def test_a_limit_that_no_waiting_helps_against_is_a_refusal(tmp_path: Path) -> None:
    for number, limit in enumerate(("sbatch: error: QOSMaxWallDurationPerJobLimit\n", "")):
        draft, slurm = (
            curve(tmp_path / str(number), ("fp32",)),
            Limited(limit=limit, room=0),
        )
        flow.write_campaign(draft)
        with pytest.raises(SchedulerError, match="violates accounting") as caught:
            flow.submit(draft.directory, hurried(slurm))
        assert caught.value.exit_code == 3


def test_more_repeats_than_indices_are_several_arrays(tmp_path: Path) -> None:
    draft = curve(tmp_path, ("fp32",), repeats=2500, most_indices=1000)
    first, *_ = arrays = draft.campaign.arrays[:3]
    assert [(array.offset, len(array.repeats)) for array in arrays] == [
        (0, 1000),
        (1000, 1000),
        (2000, 500),
    ]
    assert len({array.name for array in arrays}) == len({array.script for array in arrays}) == 3
    assert [max(array.indices) for array in arrays] == [1000, 1000, 500]
    assert sorted(number for array in arrays for number in array.repeats) == list(range(1, 2501))
    assert first.request.array == "1-1000%1"
    last = replace(arrays[2], job_id="7")
    assert (last.element(2001), last.element(2500)) == ("7_1", "7_500")
    text = draft.scripts[last.name]
    assert arrays[2].request.array == "1-500%1"
    line = next(line for line in text.splitlines() if line.startswith("repeats="))
    offset = next(line for line in text.splitlines() if line.startswith("offset="))
    outcome = run(
        ["bash", "-c", f'SLURM_ARRAY_TASK_ID=17; {offset}\n{line}\necho "$((repeats + offset))"']
    )
    assert outcome.stdout == "2017\n"
    assert run(["bash", "-n"], stdin=text).ok


def test_the_cluster_says_how_many_indices_it_takes(tmp_path: Path) -> None:
    def answering(text: str, code: int = 0) -> int | None:
        context = SchedulerContext(lambda argv, **_: Outcome(tuple(argv), code, text))
        return scheduler.create_scheduler("slurm", context).most_repeats(reference(tmp_path))

    assert answering("MaxArraySize            = 4\nMaxJobCount = 10000\n") == 3
    assert answering("", 1) == MOST_INDICES
    assert answering("nothing of the kind") == MOST_INDICES


def test_a_script_to_submit_by_hand_has_one_array(tmp_path: Path) -> None:
    request = combined(Shape(1, 2), ("fp32",), repeats=1001)
    site = reference(tmp_path)
    measurement_plan = plan(load(), site, request)
    with pytest.raises(UsageError, match="at most 1000 repeats"):
        by_hand(measurement_plan, site, load(), options=OPTIONS)


def test_a_retry_of_repeats_beyond_an_array_has_indices_within_it(tmp_path: Path) -> None:
    draft = curve(tmp_path, ("fp32",), most_indices=3)
    flow.write_campaign(draft)
    _, second, *_ = draft.campaign.arrays
    watched = TrackedCampaign(draft.directory, draft.campaign)
    invalid = tuple(
        InvalidRepeat(array, number, "FAILED", "x")
        for array in draft.campaign.arrays[:2]
        for number in array.repeats[1:2]
    )
    findings = RetryPlan(watched, invalid)
    made_ = plan_retry(findings, RetryPolicy(suspect=False), run=Slurm())
    assert [(array.repeats, array.offset) for array in made_.arrays] == [((2,), 0), ((5,), 3)]
    assert made_.arrays[1].request.array == "2%1"
    assert made_.arrays[1].script == second.script.removesuffix(".sbatch") + ".t1.sbatch"
