"""Ends that no job wrote: kept by whichever command learns of them, and read by list and show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpcbert.campaign import attempts, overview, store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.slurm.states import RepeatState, parse_state
from tests.kit.campaigns import Build, Built


def write_ends(built: Built, word: str, *, attempt: int = 0, final: bool = True) -> None:
    """Write down what a command learned of all repeats."""
    watched = TrackedCampaign(built.directory, store.read_manifest(built.directory))
    state = RepeatState(
        word, parse_state(word).kind, "squeue", attempt=attempt, detail="so Slurm says"
    )
    states = {repeat.key: state for repeat in watched.repeats}
    attempts.write_ends(watched, states, states if final else ())


def read_state(built: Built) -> str:
    return overview.read_overview(built.directory).state


@pytest.mark.parametrize(
    "word", ["CANCELLED", "FAILED", "DEADLINE", "LOST", "UNKNOWN", "NODE_FAIL"]
)
def test_a_campaign_whose_jobs_never_started_has_ended(build: Build, word: str) -> None:
    built = build("1n1g", repeats=2)
    assert read_state(built) == "waiting"
    write_ends(built, word)
    assert read_state(built) == "ended"
    (end, _) = attempts.read_ends(built.directory).values()
    assert (end.state, end.detail) == (word, "so Slurm says")


def test_what_is_not_final_or_lives_is_not_an_end(build: Build) -> None:
    built = build("1n1g", repeats=1)
    write_ends(built, "NODE_FAIL", final=False)
    assert read_state(built) == "waiting"
    write_ends(built, "PENDING")
    assert not (built.directory / attempts.ENDS).exists()


def test_an_end_holds_until_slurm_takes_it_back_or_another_attempt_begins(build: Build) -> None:
    built = build("1n1g", repeats=1)
    built.started("1n1g", 1)
    assert read_state(built) == "running"
    write_ends(built, "NODE_FAIL")
    assert read_state(built) == "ended"
    write_ends(built, "PENDING", attempt=1)
    assert read_state(built) == "running"
    write_ends(built, "PREEMPTED")
    built.started("1n1g", 1, attempt=1)
    assert read_state(built) == "running"


def test_a_retry_waits_although_what_it_replaces_has_ended(build: Build) -> None:
    built = build("1n1g", repeats=1)
    write_ends(built, "CANCELLED")
    again = replace(built.campaign.arrays[0], name="again", job_id="99", retry=1, first_attempt=1)
    store.write_manifest(
        built.directory, replace(built.campaign, arrays=(*built.campaign.arrays, again))
    )
    assert read_state(built) == "waiting"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1, "ends": [{"array": 1}]}'])
def test_a_damaged_record_says_nothing(build: Build, text: str) -> None:
    built = build("1n1g", repeats=1)
    (built.directory / attempts.ENDS).write_text(text)
    assert read_state(built) == "waiting"
    write_ends(built, "CANCELLED")
    assert read_state(built) == "ended"


def test_another_users_campaign_stays_as_it_is(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build("1n1g", repeats=1)

    def somebody(_: Path) -> str:
        return "somebody"

    monkeypatch.setattr(store, "find_foreign_owner", somebody)
    write_ends(built, "CANCELLED")
    assert not (built.directory / attempts.ENDS).exists()
