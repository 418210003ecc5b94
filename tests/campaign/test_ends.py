"""Ends that no job wrote: kept by whichever command learns of them, and read by list and show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpcbert.campaign import ends, overview, store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.slurm.states import RepeatState, parse
from tests.kit.campaigns import Build, Built


def written(one: Built, word: str, *, attempt: int = 0, final: bool = True) -> None:
    """Write down what a command learned of all repeats."""
    watched = TrackedCampaign(one.directory, store.read_manifest(one.directory))
    state = RepeatState(word, parse(word).kind, "squeue", attempt=attempt, detail="so Slurm says")
    states = {repeat.key: state for repeat in watched.repeats}
    ends.write(watched, states, states if final else ())


def state(one: Built) -> str:
    return overview.look(one.directory).state


@pytest.mark.parametrize(
    "word", ["CANCELLED", "FAILED", "DEADLINE", "LOST", "UNKNOWN", "NODE_FAIL"]
)
def test_a_campaign_whose_jobs_never_started_has_ended(build: Build, word: str) -> None:
    one = build("1n1g", repeats=2)
    assert state(one) == "waiting"
    written(one, word)
    assert state(one) == "ended"
    (end, _) = ends.read(one.directory).by_repeat.values()
    assert (end.state, end.detail) == (word, "so Slurm says")


def test_a_job_that_was_killed_without_notice_has_ended(build: Build) -> None:
    one = build("1n1g", repeats=1)
    one.started("1n1g", 1)
    assert state(one) == "running"
    written(one, "NODE_FAIL")
    assert state(one) == "ended"


def test_what_is_not_final_or_lives_is_not_an_end(build: Build) -> None:
    one = build("1n1g", repeats=1)
    written(one, "NODE_FAIL", final=False)
    assert state(one) == "waiting"
    written(one, "PENDING")
    assert not (one.directory / ends.ENDS).exists()


def test_an_end_that_slurm_takes_back_is_removed(build: Build) -> None:
    one = build("1n1g", repeats=1)
    written(one, "PREEMPTED")
    written(one, "PENDING", attempt=1)
    assert state(one) == "waiting"


def test_an_attempt_after_the_end_runs(build: Build) -> None:
    one = build("1n1g", repeats=1)
    written(one, "PREEMPTED")
    one.started("1n1g", 1, attempt=1)
    assert state(one) == "running"


def test_a_retry_waits_although_what_it_replaces_has_ended(build: Build) -> None:
    one = build("1n1g", repeats=1)
    written(one, "CANCELLED")
    again = replace(one.campaign.arrays[0], name="again", job_id="99", retry=1, first_attempt=1)
    store.write_manifest(one.directory, replace(one.campaign, arrays=(*one.campaign.arrays, again)))
    assert state(one) == "waiting"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1, "ends": [{"array": 1}]}'])
def test_a_damaged_record_says_nothing(build: Build, text: str) -> None:
    one = build("1n1g", repeats=1)
    (one.directory / ends.ENDS).write_text(text)
    assert state(one) == "waiting"
    written(one, "CANCELLED")
    assert state(one) == "ended"


def test_another_users_campaign_stays_as_it_is(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = build("1n1g", repeats=1)

    def somebody(_: Path) -> str:
        return "somebody"

    monkeypatch.setattr(store, "stranger", somebody)
    written(one, "CANCELLED")
    assert not (one.directory / ends.ENDS).exists()
