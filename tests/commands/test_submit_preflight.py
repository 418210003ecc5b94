"""Submitting with a preflight: what waits for what, who keeps away from which node, what is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import preflight, store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.cli.progress import advise
from hpcbert.commands import submit as flow
from hpcbert.errors import SchedulerError
from hpcbert.model import Campaign, Shape
from hpcbert.script.draft import Draft
from hpcbert.slurm.states import Kind, RepeatState
from tests.kit.cli import Cli, run
from tests.kit.drafts import combined, drafted, hurried, reference
from tests.kit.slurm import Programs, Slurm, sinfo

pytestmark = pytest.mark.slow
NODES = ("n1", "n2", "n3", "n4")


def curve(where: Path, nodes: int = 2, **options: Any) -> Draft:
    """Draft three points, after a preflight."""
    request = combined(Shape(nodes, 2), ("fp32",), scaling=True, repeats=2, device="cpu")
    return drafted(reference(where), request, options={"preflight": True, **options})


def submit_draft(draft: Draft, slurm: Slurm) -> Campaign:
    flow.write_campaign(draft)
    return flow.submit(draft.directory, hurried(slurm))


def submit_preflight(draft: Draft, slurm: Slurm) -> None:
    """Submit the preflight, and no more: then the controller is away."""
    flow.write_campaign(draft)
    slurm.before = lambda _: slurm.away.update({"sbatch"} if slurm.jobs else ())
    with pytest.raises(SchedulerError):
        flow.submit(draft.directory, hurried(slurm))
    slurm.before, slurm.away = lambda _: None, set()


def list_sbatch_options(slurm: Slurm) -> list[list[str]]:
    return [list(call[2:-1]) for call in slurm.called("sbatch")]


def track_events(draft: Draft, *events: dict[str, Any]) -> TrackedCampaign:
    """Let the preflight's job write events, and return the campaign as it is on disk."""
    check = draft.campaign.preflight
    assert check is not None
    path = draft.directory / check.status(1)
    path.write_text(
        "".join(json.dumps({"attempt": 0, "time": 9, **event}) + "\n" for event in events)
    )
    return TrackedCampaign(draft.directory, store.read_manifest(draft.directory))


@pytest.fixture(scope="module")
def queued(tmp_path_factory: pytest.TempPathFactory) -> Draft:
    """A campaign of which everything is submitted, and of which the preflight wrote nothing yet."""
    draft = curve(tmp_path_factory.mktemp("queued"))
    submit_draft(draft, Slurm())
    return draft


STARTED = {"event": "start", "job": "100_1"}
FABRIC = {"event": "fabric", "inside": 0, "between": 40000, "all": 9500}


def measured(*slow: str) -> list[dict[str, Any]]:
    events = [
        {"event": "node", "name": name, "inside": 0, "between": 9500 if name in slow else 40000}
        for name in NODES
    ]
    return [STARTED, *({**event, "slow": event["name"] in slow} for event in events), FABRIC]


def ended(code: int = 0) -> dict[str, Any]:
    return {"event": "end", "exit": code}


def test_all_points_wait_until_the_preflight_has_ended_well(tmp_path: Path) -> None:
    slurm = Slurm()
    campaign = submit_draft(curve(tmp_path), slurm)
    assert campaign.preflight is not None
    assert campaign.preflight.job_id == "100"
    kill = "--kill-on-invalid-dep=yes"
    assert list_sbatch_options(slurm) == [
        [],
        ["--dependency=afterok:100", kill],
        ["--dependency=afterok:100,afterany:101", kill],
        ["--dependency=afterok:100,afterany:102", kill],
    ]
    assert not any(array.changed for array in campaign.arrays)


def test_the_next_campaign_waits_for_the_last_point_and_not_for_the_preflight(
    tmp_path: Path,
) -> None:
    slurm, draft = Slurm(), curve(tmp_path)
    submit_draft(draft, slurm)
    directory = draft.directory.with_name("second")
    store.create(directory)
    for array in draft.campaign.arrays:
        store.write_text(directory / array.script, draft.scripts[array.name])
    second = replace(draft.campaign, id="second", after=draft.campaign.id, library=())
    store.write_manifest(directory, second)
    count = slurm.count("sbatch")
    flow.submit(directory, hurried(slurm))
    assert list_sbatch_options(slurm)[count:][0] == ["--dependency=afterany:103"]


def test_points_that_may_run_at_once_wait_for_it_alone(tmp_path: Path) -> None:
    slurm = Slurm()
    submit_draft(curve(tmp_path, concurrent_points=True), slurm)
    assert {options[0] for options in list_sbatch_options(slurm)[1:]} == {
        "--dependency=afterok:100"
    }


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([*measured("n2"), ended()], ["--exclude=n2"]),
        ([*measured(), ended()], []),
        (
            measured("n2"),
            ["--dependency=afterok:100", "--kill-on-invalid-dep=yes", "--exclude=n2"],
        ),
        ([STARTED], ["--dependency=afterok:100", "--kill-on-invalid-dep=yes"]),
    ],
    ids=["over", "over, all well", "measured and not over", "running"],
)
def test_what_is_submitted_later_keeps_away_from_what_it_found(
    tmp_path: Path, events: Sequence[dict[str, Any]], words: list[str]
) -> None:
    draft, slurm = curve(tmp_path, concurrent_points=True), Slurm()
    slurm.sinfo = sinfo(*NODES)
    submit_preflight(draft, slurm)
    track_events(draft, *events)
    count = slurm.count("sbatch")
    flow.submit(draft.directory, hurried(slurm))
    assert list_sbatch_options(slurm)[count:] == [words] * 3


def test_a_node_that_can_not_be_done_without_stays(tmp_path: Path) -> None:
    draft, slurm = curve(tmp_path, concurrent_points=True), Slurm()
    slurm.sinfo = sinfo("n1", "n2")
    submit_preflight(draft, slurm)
    track_events(draft, *measured("n2"), ended())
    count = slurm.count("sbatch")
    flow.submit(draft.directory, hurried(slurm))
    assert list_sbatch_options(slurm)[count:] == [["--exclude=n2"], ["--exclude=n2"], []]


def test_after_a_preflight_that_failed_nothing_more_is_submitted(tmp_path: Path) -> None:
    draft, slurm = curve(tmp_path), Slurm()
    submit_preflight(draft, slurm)
    track_events(draft, *measured(), ended(1))
    with pytest.raises(SchedulerError, match="preflight failed") as caught:
        flow.submit(draft.directory, hurried(slurm))
    assert "--preflight" in caught.value.hint
    assert list(slurm.jobs) == ["100"]


@pytest.mark.parametrize(
    ("events", "expected", "warned"),
    [
        ([], ["job 100, has not begun; all points wait"], True),
        ([STARTED], ["job 100, measures the network"], True),
        ([STARTED, ended(1)], ["job 100, failed, so no point runs: see "], True),
        ([*measured(), ended()], ["found none of 4 nodes far below"], False),
        (
            [*measured("n2"), {"event": "left-out", "job": "101", "nodes": "n2"}, ended()],
            [
                "n2 is far below the others: the preflight measured 9.5 GB/s to others; the median is",
                "Excluded from 1 job: n2.",
            ],
            True,
        ),
        (
            [*measured("n2"), {"event": "spared", "job": "103", "why": "it takes 4"}, ended()],
            ["n2 is far below", "Job 103 runs on them nevertheless: it takes 4."],
            True,
        ),
    ],
    ids=["waits", "runs", "failed", "all well", "left out", "spared"],
)
def test_what_it_found_is_told_in_words(
    queued: Draft, events: Sequence[dict[str, Any]], expected: list[str], warned: bool
) -> None:
    watched = track_events(queued, *events)
    texts = preflight.describe_preflight(watched)
    assert len(texts) == len(expected)
    assert all(part in text for part, text in zip(expected, texts, strict=True))
    assert bool(preflight.warn_about_preflight(watched, over=False)) == warned


def test_one_that_failed_gives_the_cause_and_points_lead_to_it(queued: Draft) -> None:
    watched = track_events(queued, STARTED, ended(1))
    array = watched.campaign.preflight
    assert array
    log = preflight.find_log(watched, array)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("job.bash: line 9: all_reduce_perf: command not found\n")
    (text,) = preflight.describe_preflight(watched)
    assert "all_reduce_perf: command not found" in text
    point = next(repeat for repeat in watched.repeats if not repeat.array.preflight)
    state = RepeatState("CANCELLED", Kind.FAILED, "sacct")
    assert "preflight failed" in advise(point, state)


@pytest.mark.parametrize("events", [[], [STARTED]], ids=["waited", "ran"])
def test_one_that_somebody_ended_is_not_said_to_wait_or_run(
    queued: Draft, events: Sequence[dict[str, Any]]
) -> None:
    (warning,) = preflight.warn_about_preflight(track_events(queued, *events), over=True)
    assert "job 100, has recorded no end" in warning


@pytest.mark.parametrize(
    "event",
    [
        {"event": "node"},
        {"event": "node", "name": 3, "slow": True},
        {"event": "node", "name": "n1", "inside": "x", "between": -1, "slow": "yes"},
        {"event": "left-out"},
        {"event": "spared", "job": []},
    ],
    ids=str,
)
def test_a_damaged_line_does_no_harm(queued: Draft, event: dict[str, Any]) -> None:
    assert preflight.describe_preflight(track_events(queued, STARTED, event, ended()))


def test_a_dry_run_shows_it_first_and_a_plan_counts_it(empty_directory: None) -> None:
    words = (
        "--scheduler",
        "slurm",
        "--fw",
        "pytorch",
        "--device",
        "cpu",
        "--nodes",
        4,
        "--preflight",
    )
    result = run("submit", *words, "--dry-run", "--json")
    arrays = result.document["data"]["arrays"]
    assert [array["name"].startswith("pre4n1g") for array in arrays] == [True, False]
    data = run("plan", *words, "--json").document["data"]
    points = data["campaigns"][0]["points"]
    assert [point["preflight"] for point in points] == [False, True]
    assert (data["total"]["points"], data["total"]["repeats"], data["total"]["jobs"]) == (1, 5, 6)
    assert data["total"]["rank_hours"] == 20 + 2


@pytest.mark.parametrize(
    ("state", "suffix"), [("RUNNING", " and the preflight"), ("COMPLETED", "")]
)
def test_a_cancel_counts_repeats_and_names_the_preflight(
    tmp_path: Path, hpcbert: Cli, slurm: Programs, state: str, suffix: str
) -> None:
    words = ("--fw", "pytorch", "--device", "cpu", "--nodes", 2, "--preflight", "--force")
    campaign = hpcbert("submit", *words, "--rehearse", "--json", status=0).document["data"]
    with slurm.changed() as model:
        model.jobs["100"].end(state)
    result = hpcbert("cancel", campaign["campaign"], "--yes", status=0)
    assert result.stdout.startswith(f"Cancelled 5 repeats{suffix} of {campaign['campaign']}")
