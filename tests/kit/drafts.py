"""Drafts of submissions, from the recipes and the reference site of this checkout."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from hpcbert.campaign import store
from hpcbert.commands import submit as flow
from hpcbert.config import recipe
from hpcbert.config.recipe import Recipe
from hpcbert.config.site import Site, read_site
from hpcbert.model import Campaign, Shape
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.script.draft import Draft, Submitter, draft
from hpcbert.script.plan import Request, RequestCell, list_shapes, plan
from hpcbert.script.resolve import SubmitOptions
from hpcbert.system.runner import Runner
from tests.kit.paths import SITE, TEMPLATES

SUBMITTER = Submitter("someone", ("hpcbert", "submit"), 1763700000.0, "abc123")
OPTIONS = SubmitOptions(scheduler="slurm", folders=(TEMPLATES,))
MINIMAL = 'schema = 1\nname = "x"\nscheduler = "slurm"\n'


def changed(where: Site, **changes: Any) -> Site:
    """Return a site with other values; a dict changes one of its tables."""
    tables = {name: getattr(where, name) for name in ("slurm", "nodes", "container")}
    inner = {name: replace(old, **changes.get(name, {})) for name, old in tables.items()}
    return replace(where, **{**changes, **inner})


def settled(where: Site, framework: str = "pytorch", **settings: Any) -> Site:
    """Return a site with other settings for a framework."""
    framework_settings = replace(where.settings(framework), **settings)
    return replace(where, frameworks={**where.frameworks, framework: framework_settings})


def reference(base: Path, **changes: Any) -> Site:
    """Return the reference site.toml, read below a directory with a space in its name."""
    return changed(read_site(SITE, base=base / "a b", env={}), **changes)


def site(folder: Path, text: str = "", *, start: str = MINIMAL) -> Site:
    """Write a site.toml and read it: one of Slurm unless `start` says otherwise.

    Example: `site(tmp_path, '[slurm]\npartition = "gpu"\n').slurm.partition`.
    """
    path = folder / "site.toml"
    path.write_text(start + text)
    return read_site(path, base=folder, env={})


@cache
def load(name: str = "pytorch") -> Recipe:
    return recipe.load(TEMPLATES / name)


def drafted(
    where: Path | Site, request: Request | None = None, *, framework_recipe: Recipe | None = None,
    options: Mapping[str, Any] | None = None,
) -> Draft:  # fmt: skip
    """Draft a submission of the PyTorch reference on 1 GPU, at a place or a site."""
    base_site = reference(where) if isinstance(where, Path) else where
    own_recipe = framework_recipe or load()
    measurement_plan = plan(own_recipe, base_site, request or combined(Shape(1, 1), ("fp32",)))
    own_options = replace(OPTIONS, **(options or {}))
    return draft(measurement_plan, options=own_options, submitter=SUBMITTER)


def curve(
    where: Path, precisions: tuple[str, ...] = ("fp32", "bf16"), *, repeats: int = 5, **options: Any
) -> Draft:
    request = combined(Shape(1, 2), precisions, scaling=True, repeats=repeats)
    return drafted(where, request, options=options)


def hurried(run: Runner) -> SchedulerContext:
    """Return a context for submitting that never waits."""
    return SchedulerContext(run, pause=lambda _: None)


def submit(draft: Draft, slurm: Runner, **context: Any) -> Campaign:
    """Submit a campaign, which is written first unless it is there."""
    if not draft.directory.exists():
        flow.write_campaign(draft)
    campaign = flow.submit(draft.directory, hurried(slurm)._replace(**context))
    assert campaign == store.read_manifest(draft.directory)
    return campaign


def combined(
    shape: Shape, precisions: Sequence[str] = (), batch_sizes: Sequence[int] = (), *,
    scaling: bool = False, **fields: Any,
) -> Request:  # fmt: skip
    """Return a request for one shape, or for its curve; without a precision, the recipe's first."""
    cells = tuple(
        RequestCell(cell_shape, precision, size)
        for precision in precisions or ("",)
        for size in batch_sizes or (0,)
        for cell_shape in (list_shapes(shape) if scaling else (shape,))
    )
    return Request(shape, cells=cells, **fields)
