"""Check that this machine can do what the site says, one small check at a time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert import scheduler
from hpcbert.checks import containers as doctor_containers
from hpcbert.checks import obstacles
from hpcbert.checks.settings import complaints
from hpcbert.config import places, recipe, trust
from hpcbert.errors import HpcbertError
from hpcbert.finding import Finding
from hpcbert.flows.examination import ExaminationJob
from hpcbert.flows.examination import examine as examine_nodes
from hpcbert.logs import grammar
from hpcbert.model import Shape
from hpcbert.scheduler.base import World
from hpcbert.script import inputs
from hpcbert.script.plan import device_of
from hpcbert.script.prepared import options_for_data

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hpcbert.config.site import Site
    from hpcbert.script.draft import Submitter
    from hpcbert.system.runner import Runner


# If one of these fails, no job is submitted, for this reason.
_NEEDED = {
    "sbatch": "Slurm does not answer",
    "slurmctld": "Slurm does not answer",
    "sbatch --test-only": "sbatch would refuse it",
    "limits": "it would never start",
}


@dataclass(frozen=True)
class Visit:
    """A visit to nodes from inside a job.

    Attributes:
        shape: Nodes, and GPUs of each.
        patience: Seconds to wait for the job to start.
        submitter: The submitter.
    """

    shape: Shape
    patience: float
    submitter: Submitter


def examine(
    site: Site, *, run: Runner, frameworks: Sequence[str] = (), visit: Visit | None = None
) -> Iterator[Finding]:
    """Yield the findings for a site, the cheap checks first.

    Args:
        site: The site to check.
        run: Starts programs.
        frameworks: Names of frameworks to check images and data of.
        visit: A visit to nodes; None: check this machine only.

    Raises:
        UsageError: A framework does not exist.
    """
    where = Path(site.where)
    trust.refuse([where], trust.of_command_line(where if site.named else None))
    folders = places.recipe_folders(where)
    found = [recipe.load(places.find_recipe(name, folders)) for name in frameworks]
    named = [one.for_device(device_of(one, site, "")) for one in found]
    yield Finding("site", "ok", site.where)
    for error in complaints(site):
        yield Finding("site", "fail", str(error), error.hint)
    yield _runs(Path(site.runs))
    for name, folder in places.list_recipes(folders).items():
        yield _recipe(name, folder)
    for one in named:
        lacking = tuple(
            obstacles.of_framework(site, one, inputs.find(site, one, options_for_data(site, one)))
        )
        yield from lacking or (Finding(f"what {one.name} needs", "ok", "all of it is here"),)
    shape = visit.shape if visit else Shape(1, site.nodes.gpus_per_node)
    answered = tuple(scheduler.of(site.scheduler, World(run)).examine(site, nodes=shape.nodes))
    yield from answered
    yield from doctor_containers.examine(site, named, run=run)
    failed = [one.name for one in answered if one.status == "fail" and one.name in _NEEDED]
    if visit and failed:
        hint = "See the reason in the findings above; try again when it is fixed."
        yield Finding("job", "fail", f"not tried: {_NEEDED[failed[0]]}", hint)
    elif visit:
        check = ExaminationJob(site, tuple(found), visit.shape, visit.patience, visit.submitter)
        yield from examine_nodes(check, run=run)


def _runs(runs: Path) -> Finding:
    present = next(path for path in (runs, *runs.parents) if _there(path))
    if present.is_dir() and os.access(present, os.W_OK | os.X_OK):
        return Finding("runs directory", "ok", str(runs))
    return Finding(
        "runs directory",
        "fail",
        f"{present} is not writable" + (f", so {runs} can't be" if present != runs else ""),
        "Set runs in the site.toml to a directory of yours that all nodes share.",
        "site.toml: runs",
        remedy="--runs ~/runs",
    )


def _there(path: Path) -> bool:
    """Return whether a path exists, as far as this user may know."""
    try:
        path.stat()
    except OSError:
        return False
    return True


def _recipe(name: str, folder: Path) -> Finding:
    try:
        found = recipe.load(folder)
        grammar.parse(found.log, where=f"{folder}/recipe.toml")
    except HpcbertError as error:
        return Finding(f"recipe {name}", "fail", str(error), error.hint)
    return Finding(f"recipe {name}", "ok", str(folder))
