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


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    model = Slurm(first=10)
    monkeypatch.setattr(submit_run, "run", model)
    monkeypatch.setattr("hpcbert.cli.retry.run", model)
    return model


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return changed(reference(tmp_path), slurm={"poll_floor": 0.1})


def submit_three(site: Site, *, together: bool = False) -> tuple[list[Draft], Result]:
    """Submit three campaigns of two points each."""
    request = combined(Shape(1, 2), ("fp32",), scaling=True, repeats=1)
    planned, recipe = plan(load(), site, request), load()
    options = replace(OPTIONS, concurrent_points=together)
    submitters = (replace(SUBMITTER, token=token) for token in ("aaa", "bbb", "ccc"))
    drafts = chain_drafts(
        [
            draft(planned, site, recipe, options=options, submitter=submitter)
            for submitter in submitters
        ]
    )
    directories = [member.directory for member in drafts]
    return [*drafts], submit_run.submit_campaigns(directories, site, [*drafts], retries=None)


def list_dependencies(slurm: Slurm) -> list[str]:
    """Return what each sbatch was told to wait for."""
    options = [[word for word in argv if "--dependency" in word] for argv in slurm.called("sbatch")]
    return [words[0].partition(":")[2] if words else "" for words in options]


@pytest.mark.parametrize("together", [False, True], ids=["in a row", "together"])
def test_a_point_waits_for_the_one_before_unless_all_may_run_at_once(
    site: Site, slurm: Slurm, together: bool
) -> None:
    drafts, result = submit_three(site, together=together)
    assert result.exit_code == 0
    expected = [""] * 6 if together else ["", "10", "11", "12", "13", "14"]
    assert list_dependencies(slurm) == expected
    assert len(result.text.split("hpcbert monitor ")[1].splitlines()[0].split("' '")) == 3
    first, second = drafts[0].campaign, drafts[1].campaign
    assert second.after == ("" if together else first.id)
    assert (second.submission, second.position) == (first.id, 1)


def test_what_slurm_refuses_leaves_the_rest_on_disk_to_be_taken_up(
    site: Site, slurm: Slurm
) -> None:
    refusal = failed("sbatch: error: Batch job submission failed: Invalid account")
    slurm.sbatch = [None, None, refusal]
    drafts, result = submit_three(site)
    assert result.exit_code == 3
    assert isinstance(result.data, dict)
    assert [len(campaign["arrays"]) for campaign in result.data["campaigns"]] == [2, 2]
    (warning,) = [warning for warning in result.warnings if "Not submitted" in warning]
    assert "hpcbert submit --resume" in warning
    assert drafts[2].campaign.id in warning
    slurm.sbatch = None
    for member in drafts[1:]:
        submit(member.directory, hurried(slurm))
    arrays = (array for member in drafts for array in store.read_manifest(member.directory).arrays)
    assert {array.state for array in arrays} == {"submitted"}
    assert list_dependencies(slurm)[-4:] == ["11", "12", "13", "14"]


def test_a_cancel_that_fails_midway_names_what_it_cancelled(site: Site, slurm: Slurm) -> None:
    drafts, _ = submit_three(site)
    slurm.scancel = [None, failed("scancel: error: Slurm temporarily unable"), None]
    result = run("cancel", "--yes", "--json", *(member.directory for member in drafts))
    assert result.returncode == 3
    cancelled = [campaign["campaign"] for campaign in result.data["campaigns"]]
    assert cancelled == [drafts[0].campaign.id, drafts[2].campaign.id]
    assert drafts[1].campaign.id in result.error["hint"]
