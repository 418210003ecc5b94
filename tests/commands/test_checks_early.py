"""What is begun before it is asked is what is asked, and all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbert import scheduler
from hpcbert.commands import checks
from hpcbert.scheduler.base import SchedulerContext
from tests.kit.drafts import OPTIONS, drafted, load, reference
from tests.kit.slurm import Slurm


@pytest.mark.parametrize("framework", ["pytorch", "ngc-tf1"])
@pytest.mark.parametrize("words", [(), ("--clusters=other",)], ids=["here", "another cluster"])
def test_a_submission_asks_what_was_foreseen(
    framework: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    run, recipe = Slurm(), load(framework)
    site = reference(tmp_path, slurm={"sbatch_args": words})
    backend = scheduler.create_scheduler("slurm", SchedulerContext(run))
    backend.fit(OPTIONS, site, recipe)
    draft = drafted(site, framework_recipe=recipe, options={"dry": True})
    checks.find_submission_obstacles(draft, run=run)
    askings = {
        tuple(argv): dict(backend.query_environment) for argv in backend.list_queries(site, recipe)
    }
    askings |= {tuple(argv): {} for argv in checks.list_queries(draft)}
    assert dict(zip(run.calls, map(dict, run.environments), strict=True)) == askings
