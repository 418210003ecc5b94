"""Watch, retry, watch: what is reported, in which order, and when nothing is submitted again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.campaign.suspects import RetryPolicy
from hpcbert.commands import retry, submit
from hpcbert.commands.monitor import Sinks, View, open_campaign
from hpcbert.commands.retry import RetryPlan
from hpcbert.model import Shape
from tests.kit.drafts import combined, drafted
from tests.kit.slurm import Slurm


class Story:
    """Notes what happens; plans come from a list, and states from nowhere."""

    def __init__(self, campaign: TrackedCampaign, monkeypatch: pytest.MonkeyPatch) -> None:
        self.campaign = campaign
        self.told: list[object] = []
        self.policies: list[RetryPolicy] = []
        array = replace(campaign.campaign.arrays[0], repeats=(2, 4))
        self.plans = [RetryPlan(campaign), RetryPlan(campaign, arrays=(array,))]
        monkeypatch.setattr(retry, "watch", self.watch)
        monkeypatch.setattr(retry, "resubmit", self.resubmit)

    def watch(
        self, _watched: Sequence[TrackedCampaign], _sinks: Sinks, *, once: bool, **_: Any
    ) -> View:
        self.told.append("once" if once else "watch")
        return View((), {}, 0.0)

    def resubmit(self, directory: Path, policy: RetryPolicy, **_: Any) -> RetryPlan:
        assert directory == self.campaign.directory
        self.policies.append(policy)
        return self.plans.pop()

    def watching(self) -> Sinks:
        self.told.append("begin")
        return Sinks()

    def retried(self, plans: Sequence[RetryPlan]) -> None:
        self.told.append([plan.arrays[0].repeats for plan in plans])

    def waiting(self, reason: str) -> None:
        self.told.append(reason)

    def follow(self, policy: RetryPolicy, *, once: bool = False) -> View:
        return retry.watch_and_retry(
            [self.campaign], policy, self, run=Slurm(), floor=1.0, once=once
        )


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Story:
    draft = drafted(tmp_path, combined(Shape(1, 1), ("fp32",), batch_sizes=(2,), model="bert-tiny"))
    submit.write_campaign(draft)
    return Story(open_campaign(draft.directory), monkeypatch)


def test_it_watches_retries_and_watches_on_until_nothing_is_submitted(
    story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    story.follow(RetryPolicy(limit=3, exclude=("n1",)))
    look = ["begin", "watch"]
    assert story.told == [*look, [(2, 4)], *look]
    assert set(story.policies) == {RetryPolicy(limit=3, exclude=("n1",), cancelled=False)}
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("case", ["without a retry allowed", "for one look", "of a rehearsal"])
def test_nothing_is_submitted_again(story: Story, case: str) -> None:
    if case == "of a rehearsal":
        campaign = replace(story.campaign.campaign, rehearse=True)
        store.write_manifest(story.campaign.directory, campaign)
        story.campaign = open_campaign(story.campaign.directory)
    limit = 0 if case == "without a retry allowed" else 3
    story.follow(RetryPolicy(limit=limit), once=case == "for one look")
    assert story.policies == []
    assert story.told in (["begin", "watch"], ["begin", "once"])
