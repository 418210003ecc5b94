"""Campaigns of one submission: each waits for the one before it, and what fails is taken up later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpcbert.campaign import store
from hpcbert.cli import submit_run
from hpcbert.cli.output import Result
from hpcbert.cli.request import chain_drafts
from hpcbert.commands.submit import submit
from hpcbert.config.site import Site
from hpcbert.model import Shape
from hpcbert.script.draft import Draft, draft
from hpcbert.script.plan import plan
from tests.kit.cli import run
from tests.kit.drafts import OPTIONS, SUBMITTER, changed, combined, hurried, load, reference
from tests.kit.slurm import Slurm, failed

REQUEST = combined(Shape(1, 2), ("fp32",), scaling=True, repeats=1)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    model = Slurm(first=10)
    monkeypatch.setattr(submit_run, "run", model)
    return model


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return changed(reference(tmp_path), slurm={"poll_floor": 0.1})


def draft_three(site: Site, *, together: bool = False) -> list[Draft]:
    """Think out three campaigns of two points each."""
    options = replace(OPTIONS, concurrent_points=together)
    drafts = [
        draft(
            plan(load(), site, REQUEST),
            site,
            load(),
            options=options,
            submitter=replace(SUBMITTER, token=token),
        )
        for token in ("aaa", "bbb", "ccc")
    ]
    return [*chain_drafts(drafts)]


def submit_drafts(site: Site, drafts: list[Draft]) -> Result:
    directories = [campaign_draft.directory for campaign_draft in drafts]
    return submit_run.submit_campaigns(directories, site, drafts, retries=None)


def list_dependencies(slurm: Slurm) -> list[str]:
    """Return what each sbatch was told to wait for."""
    return [
        next((word.partition(":")[2] for word in argv if "--dependency" in word), "")
        for argv in slurm.called("sbatch")
    ]


def test_the_first_point_waits_for_the_last_one_of_the_campaign_before(
    site: Site, slurm: Slurm
) -> None:
    result = submit_drafts(site, draft_three(site))
    assert result.exit_code == 0
    assert list_dependencies(slurm) == ["", "10", "11", "12", "13", "14"]
    assert len(result.text.split("hpcbert monitor ")[1].splitlines()[0].split("' '")) == 3


def test_points_that_may_run_at_the_same_time_wait_for_nothing(site: Site, slurm: Slurm) -> None:
    submit_drafts(site, draft_three(site, together=True))
    assert list_dependencies(slurm) == [""] * 6


def test_what_slurm_refuses_leaves_the_rest_on_disk_to_be_taken_up(
    site: Site, slurm: Slurm
) -> None:
    drafts = draft_three(site)
    slurm.sbatch = [
        None,
        None,
        failed("sbatch: error: Batch job submission failed: Invalid account"),
    ]
    result = submit_drafts(site, drafts)
    assert result.exit_code == 3
    assert isinstance(result.data, dict)
    assert [len(campaign["arrays"]) for campaign in result.data["campaigns"]] == [2, 2]
    (not_submitted,) = [warning for warning in result.warnings if "Not submitted" in warning]
    assert "hpcbert submit --resume" in not_submitted
    assert drafts[2].campaign.id in not_submitted
    slurm.sbatch = None
    for campaign_draft in drafts[1:]:
        submit(campaign_draft.directory, hurried(slurm))
    states = {
        array.state
        for campaign_draft in drafts
        for array in store.read_manifest(campaign_draft.directory).arrays
    }
    assert states == {"submitted"}
    assert list_dependencies(slurm)[-4:] == ["11", "12", "13", "14"]


def test_a_cancel_that_fails_midway_names_what_it_cancelled(
    site: Site, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts = draft_three(site)
    submit_drafts(site, drafts)
    monkeypatch.setattr("hpcbert.cli.retry.run", slurm)
    slurm.scancel = [None, failed("scancel: error: Slurm temporarily unable"), None]
    result = run("cancel", "--yes", "--json", *(each.directory for each in drafts))
    assert result.returncode == 3
    cancelled = [campaign["campaign"] for campaign in result.data["campaigns"]]
    assert cancelled == [drafts[0].campaign.id, drafts[2].campaign.id]
    assert drafts[1].campaign.id in result.error["hint"]
