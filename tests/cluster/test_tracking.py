"""What the tracker makes of what a real Slurm says."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.commands import submit
from hpcbert.lab.record import Lab
from hpcbert.scheduler.tracker import Tracker
from hpcbert.slurm.states import RepeatState
from hpcbert.system.runner import Outcome, run
from tests.kit import campaigns
from tests.kit.cases import read_constant
from tests.kit.cli import Cli
from tests.kit.lab_faults import start_daemon, start_requeued, stop_slurmdbd
from tests.kit.waiting import until

SCRIPT = read_constant(__file__, "SCRIPT")


@dataclass
class Bench:
    """Submits arrays as the ordinary user and tracks them."""

    lab: Lab
    as_user: Any
    work: Path
    user: str
    commands: list[str] = field(default_factory=list)

    def run(self, argv: Any, *, env: Mapping[str, str] | None = None, **more: Any) -> Outcome:
        self.commands.append(argv[0])
        outcome: Outcome = self.as_user(argv, env=env, **more)
        return outcome

    def as_root(self, *argv: str) -> Outcome:
        return run(argv, env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", **self.lab.environment})

    def submit(self, *jobs: tuple[str, str, list[str]]) -> TrackedCampaign:
        """Submit an array for each (indices, body of the script's case, options)."""
        name = "20261121T100000Z-pytorch-aaaaaa"
        directory = self.work / name
        self.as_user(
            ["mkdir", "-p", *(f"{directory}/{folder}" for folder in ("scripts", "slurm", "status"))]
        )
        arrays = []
        for number, (indices, body, options) in enumerate(jobs, start=1):
            array = campaigns.array(name, f"1n{number}g")
            text = SCRIPT.replace("CAMPAIGN", f"'{directory}'").replace("KEY", array.point.key)
            log = array.log.removesuffix(".log").replace("{repeat}", "$SLURM_ARRAY_TASK_ID")
            script = directory / array.script
            script.write_text(text.replace("LOG", log).replace("BODY", body))
            shutil.chown(script, self.user)
            words = [f"--array={indices}", "-J", array.name, "-o", f"{directory}/slurm/%A_%a.out"]
            outcome = self.as_user(["sbatch", "--parsable", *words, *options, str(script)])
            assert outcome.ok, outcome.stderr
            first, _, last = indices.partition("%")[0].partition("-")
            repeats = tuple(range(int(first), int(last or first) + 1))
            arrays.append(replace(array, repeats=repeats, job_id=outcome.stdout.strip()))
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 5))
        changes = {"created": created, "user": self.user, "concurrent_points": True}
        return TrackedCampaign(directory, campaigns.manifest(name, *arrays, **changes))

    def tracker(self, tracked_campaign: TrackedCampaign) -> Tracker:
        return Tracker([tracked_campaign], run=self.run, environ={}, floor=0.5, chance=lambda: 0.0)

    def follow(
        self, tracker: Tracker, come: Callable[[list[RepeatState]], bool]
    ) -> list[RepeatState]:
        def polled() -> bool:
            tracker.poll()
            return come(list(tracker.states.values()))

        until(polled, lambda: tracker.states, pause=0.5)
        return list(tracker.states.values())


@pytest.fixture
def bench(lab: Lab, as_user: Any, user: Any, work: Path) -> Iterator[Bench]:
    new_bench = Bench(lab, as_user, work, user.name)
    yield new_bench
    as_user(["scancel", f"--user={user.name}"])


def words(states: list[RepeatState]) -> list[str]:
    return [state.word for state in states]


def test_every_end_is_told_as_slurm_tells_it(bench: Bench) -> None:
    ends = "1) true;; 2) (exit 3);; 3) kill -9 $$;; 4) sleep 600;;"
    tracked_campaign = bench.submit(
        ("1-4", ends, []),
        ("1-3%1", "*) sleep 600;;", []),
    )
    first, second = (array.job_id for array in tracked_campaign.campaign.arrays)
    tracker = bench.tracker(tracked_campaign)
    at_once = list(tracker.poll().values())
    assert {state.kind for state in at_once} <= {"waiting", "running", "succeeded", "failed"}
    runs = bench.follow(
        tracker, lambda repeat_states: words(repeat_states)[3:5] == ["RUNNING", "RUNNING"]
    )
    assert words(runs)[5:7] == ["PENDING", "PENDING"]
    assert runs[3].nodes
    assert runs[3].start is not None
    # The middle one leaves the queue before it starts: Slurm 22.05 keeps no record of it.
    bench.as_user(["scancel", f"{first}_4", f"{second}_2"])
    bench.follow(
        tracker,
        lambda repeat_states: (
            words(repeat_states)[6:7] == ["PENDING"] and repeat_states[3].kind.over
        ),
    )
    bench.as_user(["scancel", f"{second}_1"])
    bench.follow(tracker, lambda repeat_states: words(repeat_states)[6] == "RUNNING")
    bench.as_user(["scancel", f"{second}_3"])
    bench.follow(tracker, lambda _: tracker.is_over())
    states = list(tracker.states.values())
    assert words(states) == [
        *("COMPLETED", "FAILED", "FAILED", "CANCELLED"),
        *("CANCELLED", "UNKNOWN", "CANCELLED"),
    ]
    assert [state.exit_code for state in states[:3]] == [0, 3, 137]
    known_states = [state for state in states if state.kind != "unknown"]
    # Where controller and job agree, accounting is not waited for.
    agreed = {"COMPLETED", "FAILED"}
    assert {state.source for state in known_states if state.word in agreed} <= {"sacct", "squeue"}
    assert {state.source for state in known_states if state.word not in agreed} == {"sacct"}
    assert all(state.nodes for state in known_states)
    assert "neither waits nor runs" in states[5].detail
    # At most one question to each a poll; accounting is asked about everything at once.
    polls = bench.commands.count("sacct")
    assert bench.commands.count("squeue") <= polls + 1
    fresh = Tracker([tracked_campaign], run=bench.run, environ={})
    fresh.poll()
    assert words(list(fresh.states.values())) == words(states)


def test_a_lost_node_ends_a_repeat_or_sends_it_back_to_the_queue(bench: Bench) -> None:
    body = "*) sleep 600;;"
    node = ["--nodelist=n4", "--cpus-per-task=1"]
    tracked_campaign = bench.submit(
        ("1", body, [*node, "--no-requeue"]), ("1", body, [*node, "--requeue"])
    )
    tracker = bench.tracker(tracked_campaign)
    bench.follow(tracker, lambda repeat_states: words(repeat_states) == ["RUNNING", "RUNNING"])
    try:
        bench.as_root("scontrol", "update", "nodename=n4", "state=down", "reason=test")
        states = bench.follow(tracker, lambda repeat_states: repeat_states[0].kind.over)
        assert states[0].word == "NODE_FAIL"
        states = bench.follow(tracker, lambda repeat_states: repeat_states[1].attempt == 1)
        assert states[1].kind == "waiting"
        assert not tracker.is_over()
    finally:
        bench.as_root("scontrol", "update", "nodename=n4", "state=resume")
    bench.as_user(["scancel", tracked_campaign.campaign.arrays[1].job_id])
    states = bench.follow(tracker, lambda _: tracker.is_over())
    assert [(state.word, state.attempt) for state in states] == [("NODE_FAIL", 0), ("CANCELLED", 1)]


def test_monitor_lists_a_requeued_campaign_and_follows_it_to_its_end(
    bench: Bench, user: Any, hpcbert: Cli
) -> None:
    # When it runs again, it still runs when a busy machine has started hpcbert.
    slow = "[[ ! -v SLURM_RESTART_COUNT ]] || sleep 6"
    again = f"*) echo attempt ${{SLURM_RESTART_COUNT:-0}} >$log; {slow};;"
    tracked_campaign = bench.submit(("1", again, []))
    runs = tracked_campaign.directory.parent
    array = replace(tracked_campaign.campaign.arrays[0], name="hpcbert-gone", job_id="999999")
    later = replace(
        tracked_campaign.campaign, id="20261121T100001Z-pytorch-bbbbbb", arrays=(array,)
    )
    for campaign in (tracked_campaign.campaign, later):
        (runs / campaign.id).mkdir(exist_ok=True)
        store.write_manifest(runs / campaign.id, campaign)
    run(["chown", "-R", f"{user.uid}:{user.gid}", str(runs)])

    monitor = partial(hpcbert, "monitor", "--json", status=0, HPCBERT_RUNS=str(runs))
    bench.follow(
        bench.tracker(tracked_campaign), lambda repeat_states: words(repeat_states) == ["COMPLETED"]
    )
    job = tracked_campaign.campaign.arrays[0].element(1)
    assert bench.as_root("scontrol", "requeue", job).ok
    result = monitor("--once")
    assert [(event["campaign"], event["kind"]) for event in result.events] == [
        (tracked_campaign.campaign.id, "waiting")
    ]
    assert not result.data["over"]
    start_requeued(bench.as_root, job)
    result = hpcbert("logs", "-f", tracked_campaign.campaign.id, status=0, HPCBERT_RUNS=str(runs))
    assert result.stdout.endswith("attempt 1\n"), result.stderr
    # By its name: it is over.
    result = monitor(tracked_campaign.campaign.id)
    assert (result.events[-1]["state"], result.events[-1]["attempt"]) == ("COMPLETED", 1)
    assert result.data["over"]
    assert monitor().data["campaigns"][0]["campaign"] == later.id


def test_without_accounting_for_a_while_squeue_tells(bench: Bench) -> None:
    tracked_campaign = bench.submit(("1", "*) sleep 2;;", []), ("1", "*) sleep 600;;", []))
    tracker = bench.tracker(tracked_campaign)
    stop_slurmdbd(bench.lab)
    try:
        states = bench.follow(
            tracker, lambda repeat_states: words(repeat_states) == ["COMPLETED", "RUNNING"]
        )
        assert {state.source for state in states} == {"squeue"}
        assert tracker.failures == 0
    finally:
        start_daemon(bench.lab, "slurmdbd", run=run)
    # What the controller and the job agree about is not waited for.
    states = bench.follow(tracker, lambda repeat_states: repeat_states[1].source == "sacct")
    assert words(states) == ["COMPLETED", "RUNNING"]
    assert states[0].exit_code == 0


def test_cancel_takes_the_campaigns_jobs_and_no_others(
    bench: Bench, user: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user.uid)  # only its owner cancels a campaign
    queue = ["squeue", "-h", "-t", "pending,running", "-o", "%A"]
    before = set(bench.as_user(queue).stdout.split())
    tracked_campaign = bench.submit(("1-3%1", "*) sleep 600;;", []))
    other = bench.as_user(["sbatch", "--parsable", "--output=/dev/null", "--wrap", "sleep 600"])
    target = submit.find_living(tracked_campaign, run=bench.run)
    assert target.jobs == (tracked_campaign.campaign.arrays[0].job_id,)
    assert len(target.repeats) == 3
    submit.cancel(tracked_campaign, target, run=bench.run)
    tracker = bench.tracker(tracked_campaign)
    bench.follow(
        tracker, lambda repeat_states: all(state.kind != "running" for state in repeat_states)
    )
    remaining = set(bench.as_user(queue).stdout.split())
    assert remaining - before == {other.stdout.strip()}
    mine = replace(tracked_campaign.campaign.arrays[0], name="hpcbert-another")
    reused = replace(tracked_campaign, campaign=replace(tracked_campaign.campaign, arrays=(mine,)))
    assert submit.find_living(reused, run=bench.run).jobs == ()


def test_a_campaign_is_found_by_name_where_its_job_id_was_lost(bench: Bench) -> None:
    tracked_campaign = bench.submit(("1", "*) sleep 600;;", []))
    lost = replace(tracked_campaign.campaign.arrays[0], job_id="", state="intended")
    campaign = replace(tracked_campaign.campaign, arrays=(lost,))
    tracker = bench.tracker(replace(tracked_campaign, campaign=campaign))
    states = bench.follow(tracker, lambda repeat_states: words(repeat_states) == ["RUNNING"])
    assert states[0].source == "squeue"
