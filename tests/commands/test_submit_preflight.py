"""Submitting with a preflight: what waits for what, who keeps away from which node, what is said."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import preflight, store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.cli.progress import advise
from hpcbert.commands import submit
from hpcbert.errors import SchedulerError
from hpcbert.model import Shape
from hpcbert.script.draft import Draft
from hpcbert.slurm.states import Kind, RepeatState
from tests.kit import cli, drafts
from tests.kit.campaigns import Event, status_file
from tests.kit.slurm import Slurm, sinfo

pytestmark = pytest.mark.slow

AFTER_PREFLIGHT = ["--dependency=afterok:100", "--kill-on-invalid-dep=yes"]
STARTED: Event = {"event": "start", "job": "100_1"}
ENDED: Event = {"event": "end", "exit": 0}
FAILED: Event = {"event": "end", "exit": 1}


def write(where: Path, **options: Any) -> Draft:
    """Write a campaign of three points, after a preflight."""
    request = drafts.combined(Shape(2, 2), ("fp32",), scaling=True, repeats=2, device="cpu")
    draft = drafts.drafted(drafts.reference(where), request, options={"preflight": True, **options})
    submit.write_campaign(draft)
    return draft


def submit_points(directory: Path, slurm: Slurm) -> list[list[str]]:
    """Submit what is left, and return the options of each sbatch."""
    count = slurm.count("sbatch")
    submit.submit(directory, drafts.hurried(slurm))
    return [list(call[2:-1]) for call in slurm.called("sbatch")[count:]]


def track(draft: Draft, *events: Event) -> TrackedCampaign:
    """Let the preflight's job write events, and return the campaign as it is on disk."""
    array = draft.campaign.preflight
    assert array
    path = draft.directory / array.status(1)
    path.unlink(missing_ok=True)
    status_file(path, *events, time=9)
    return TrackedCampaign(draft.directory, store.read_manifest(draft.directory))


def measure(*slow: str) -> list[Event]:
    """Return the events of a preflight that measured four nodes."""
    rates = {name: 9500 if name in slow else 40000 for name in ("n1", "n2", "n3", "n4")}
    events = [
        {"event": "node", "name": name, "inside": 0, "between": rate, "slow": name in slow}
        for name, rate in rates.items()
    ]
    return [STARTED, *events, {"event": "fabric", "inside": 0, "between": 40000, "all": 9500}]


def test_points_wait_for_the_preflight_and_the_next_campaign_for_the_last_point(tmp_path):
    draft, slurm = write(tmp_path / "a"), Slurm()
    after, kill = AFTER_PREFLIGHT
    waits = [f"{after},afterany:{job}" for job in (101, 102)]
    assert submit_points(draft.directory, slurm) == [
        [],
        [after, kill],
        *([wait, kill] for wait in waits),
    ]
    campaign = store.read_manifest(draft.directory)
    assert campaign.preflight
    assert campaign.preflight.job_id == "100"
    assert not any(array.changed for array in campaign.arrays)
    second = draft.directory.with_name("second")
    store.create(second)
    for array in draft.campaign.arrays:
        store.write_text(second / array.script, draft.scripts[array.name])
    manifest = replace(draft.campaign, id="second", after=draft.campaign.id, library=())
    store.write_manifest(second, manifest)
    assert submit_points(second, slurm)[0] == ["--dependency=afterany:103"]
    # Points that may run at once wait for the preflight alone.
    draft = write(tmp_path / "b", concurrent_points=True)
    assert submit_points(draft.directory, Slurm()) == [[], *[AFTER_PREFLIGHT] * 3]


@pytest.mark.parametrize(
    ("events", "nodes", "options"),
    [
        ([*measure("n2"), ENDED], 4, [["--exclude=n2"]] * 3),
        ([*measure(), ENDED], 4, [[]] * 3),
        (measure("n2"), 4, [[*AFTER_PREFLIGHT, "--exclude=n2"]] * 3),
        ([STARTED], 4, [AFTER_PREFLIGHT] * 3),
        # A node that can't be done without stays.
        ([*measure("n2"), ENDED], 2, [["--exclude=n2"], ["--exclude=n2"], []]),
        ([*measure(), FAILED], 4, None),
    ],
    ids=["over", "over, all well", "measured and not over", "running", "two nodes", "failed"],
)
def test_what_is_submitted_later_keeps_away_from_what_it_found(tmp_path, events, nodes, options):
    draft, slurm = write(tmp_path, concurrent_points=True), Slurm()
    slurm.sinfo = sinfo(*(f"n{number}" for number in range(1, nodes + 1)))
    slurm.before = lambda _: slurm.away.update({"sbatch"} if slurm.jobs else ())
    with pytest.raises(SchedulerError):  # the controller is away after the first sbatch
        submit_points(draft.directory, slurm)
    slurm.before, slurm.away = lambda _: None, set()
    track(draft, *events)
    if options is not None:
        assert submit_points(draft.directory, slurm) == options
        return
    with pytest.raises(SchedulerError, match="preflight failed") as refused:
        submit_points(draft.directory, slurm)
    assert "--preflight" in refused.value.hint
    assert list(slurm.jobs) == ["100"]


def test_what_it_found_is_said_in_words(tmp_path):
    draft = write(tmp_path)
    submit_points(draft.directory, Slurm())
    slow = "n2 is far below the others: the preflight measured 9.5 GB/s to others; the median is"
    left_out = {"event": "left-out", "job": "101", "nodes": "n2"}
    spared = {"event": "spared", "job": "103", "why": "it takes 4"}
    for events, expected, warned in (
        ([], ["job 100, has not begun; all points wait"], True),
        ([STARTED], ["job 100, measures the network"], True),
        ([STARTED, FAILED], ["job 100, failed, so no point runs: see "], True),
        ([*measure(), ENDED], ["found none of 4 nodes far below"], False),
        ([*measure("n2"), left_out, ENDED], [slow, "Excluded from 1 job: n2."], True),
        (
            [*measure("n2"), spared, ENDED],
            [slow, "Job 103 runs on them nevertheless: it takes 4."],
            True,
        ),
    ):
        watched = track(draft, *events)
        texts = preflight.describe_preflight(watched)
        assert len(texts) == len(expected)
        assert all(part in text for part, text in zip(expected, texts, strict=True))
        assert bool(preflight.warn_about_preflight(watched, over=False)) == warned
    # That somebody ended it is not said to wait or run.
    for events in ([], [STARTED]):
        (warning,) = preflight.warn_about_preflight(track(draft, *events), over=True)
        assert "job 100, has recorded no end" in warning
    damaged: tuple[Event, ...] = (
        {"event": "node"},
        {"event": "node", "name": 3, "slow": True},
        {"event": "node", "name": "n1", "inside": "x", "between": -1, "slow": "yes"},
        {"event": "left-out"},
        {"event": "spared", "job": []},
    )
    for event in damaged:
        assert preflight.describe_preflight(track(draft, STARTED, event, ENDED))


def test_one_that_failed_gives_the_cause_and_points_lead_to_it(tmp_path):
    draft = write(tmp_path)
    submit_points(draft.directory, Slurm())
    watched = track(draft, STARTED, FAILED)
    array = watched.campaign.preflight
    assert array
    log = preflight.find_log(watched, array)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("job.bash: line 9: all_reduce_perf: command not found\n")
    (text,) = preflight.describe_preflight(watched)
    assert "all_reduce_perf: command not found" in text
    point = next(repeat for repeat in watched.repeats if not repeat.array.preflight)
    assert "preflight failed" in advise(point, RepeatState("CANCELLED", Kind.FAILED, "sacct"))


def test_a_dry_run_shows_it_first_a_plan_counts_it_and_a_cancel_names_it(hpcbert, slurm):
    here = replace(hpcbert, run=cli.run_here)
    words = ("--fw", "pytorch", "--device", "cpu", "--nodes", 4, "--preflight", "--force")
    arrays = here("submit", *words, "--dry-run", "--json").data["arrays"]
    assert [array["name"].startswith("pre4n1g") for array in arrays] == [True, False]
    data = here("plan", *words[:-1], "--json").data
    points = data["campaigns"][0]["points"]
    assert [point["preflight"] for point in points] == [False, True]
    total = data["total"]
    assert (total["points"], total["repeats"], total["jobs"]) == (1, 5, 6)
    assert total["rank_hours"] == 20 + 2
    for job, state, suffix in ((100, "RUNNING", " and the preflight"), (102, "COMPLETED", "")):
        name = here("submit", *words, "--rehearse", "--json", status=0).data["campaign"]
        with slurm.changed() as model:
            model.jobs[str(job)].end(state)
        result = here("cancel", name, "--yes", status=0)
        assert result.stdout.startswith(f"Cancelled 5 repeats{suffix} of {name}")
