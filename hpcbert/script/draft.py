"""Drafting: everything that a submission will write and run, thought out before any of it is."""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcbert import __version__, timelimit
from hpcbert.campaign import store
from hpcbert.config import slurmwords
from hpcbert.config.schedulers import traits
from hpcbert.errors import UsageError
from hpcbert.model import Array, Campaign, Point, Protocol, utc
from hpcbert.script import containers, materials, render
from hpcbert.script.labels import labels
from hpcbert.script.plan import MOST_INDICES, Request, option_values, points, protocol
from hpcbert.system import redact

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcbert.config.inventory import Recipe, Site

_WORKLOADS = Path(__file__).parent.parent / "workloads"
# What every campaign carries: it tells what the nodes are.
_DESCRIBE = "describe.sh"
_MISSING = "/path/to/"


@dataclass(frozen=True)
class How:
    """How a request is to be carried out, beside what it measures.

    Attributes:
        scheduler: Where it shall run.
        concurrent: Repeats of a point that may run at the same time.
        concurrent_points: Whether points may run at the same time.
        together: Whether a point's repeats run in one job, on the same nodes.
        rehearse: Whether ranks replay the sample log instead of training.
        folders: Where recipes and templates are looked for.
        dry: Whether nothing will be run, so that missing paths may stay open.
        most_indices: Repeats that one array may have: the cluster's MaxArraySize less one; None:
            there is no limit.
    """

    scheduler: str
    folders: tuple[Path, ...]
    concurrent: int = 1
    concurrent_points: bool = False
    together: bool = False
    rehearse: bool = False
    dry: bool = False
    most_indices: int | None = MOST_INDICES


@dataclass(frozen=True)
class Who:
    """Who asks, when, and with which words; what makes a campaign's id.

    Attributes:
        user: Login name.
        command: The command line as typed.
        time: Seconds since the epoch.
        token: A few random characters.
    """

    user: str
    command: tuple[str, ...]
    time: float
    token: str


@dataclass(frozen=True)
class Draft:
    """A campaign that is thought out and written nowhere yet.

    Attributes:
        directory: Where it will be.
        campaign: Its manifest, all arrays `intended`.
        scripts: Text of each array's script, by the array's name.
        copies: Files to copy into the campaign: target relative to it, and source.
        minutes: What one repeat may take.
        warnings: What a person should know before running it.
    """

    directory: Path
    campaign: Campaign
    scripts: Mapping[str, str]
    copies: tuple[tuple[str, Path], ...]
    minutes: float
    warnings: tuple[str, ...]


def draft(request: Request, site: Site, recipe: Recipe, *, how: How, who: Who) -> Draft:
    """Think out a campaign: points, scripts, manifest.

    Raises:
        UsageError: Recipe, site and request do not fit together; the hint says what to change.
    """
    site, used = materials.completed(site, recipe)
    site, warnings = _complete(site, recipe, how)
    _check_reach(request, how)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(who.time))
    identity = f"{stamp}-{recipe.name}-{who.token}"
    directory = Path(site.runs) / identity
    _check_path(directory)
    sources = _sources(site, recipe)
    copies = (
        (store.RECIPE, Path(recipe.folder) / store.RECIPE),
        *((f"scripts/{name}", path) for name, path in sources.items()),
        *(((store.SAMPLE, sample_log(recipe)),) if how.rehearse else ()),
    )
    files = {name: str(directory / "scripts" / name) for name in sources}
    arrays, scripts = [], {}
    asked = points(recipe, site, request)
    for point, label in zip(asked, labels(asked), strict=True):
        job = _job(point, site, recipe, request, how, directory=str(directory), files=files)
        job = replace(job, name=f"{label}-hpcbert-{identity}-{point.key}")
        for part in _parts(job, how):
            text = render.render(part, how.folders)
            scripts[part.name] = text
            arrays.append(_array(part, text))
    image = containers.image(site, recipe)
    campaign = Campaign(
        id=identity,
        created=utc(who.time),
        hpcbert=__version__,
        user=who.user,
        uid=os.geteuid(),
        command=redact.command(who.command),
        scheduler=how.scheduler,
        site=site.name,
        runtime=site.container.runtime,
        image=image.uri if image else "",
        framework=recipe.name,
        recipe_digest=recipe.digest,
        protocol=protocol(recipe, request),
        concurrent_repeats=how.concurrent,
        concurrent_points=how.concurrent_points,
        rehearse=how.rehearse,
        arrays=tuple(arrays),
        materials=used,
    )
    return Draft(
        directory, campaign, scripts, copies, minutes(site.slurm.time_limit.text), warnings
    )


def by_hand(
    request: Request, site: Site, recipe: Recipe, *, how: How, words: Sequence[str]
) -> dict[str, str]:
    """Return scripts to submit by hand, by file name; logs go to the directory of submission.

    Args:
        request: What is asked for.
        site: Where it shall run.
        recipe: What shall run.
        how: How it is carried out.
        words: Options that name the site and whatever else the point itself does not tell.

    Raises:
        UsageError: As `draft`.
    """
    if request.repeats > MOST_INDICES:
        raise UsageError(
            f"A script to submit by hand has at most {MOST_INDICES} repeats: "
            f"not {request.repeats}.",
            hint="hpcbert submit makes several arrays of more.",
        )
    site, _ = _complete(site, recipe, replace(how, dry=True))
    here = Path.cwd()
    files = {name: relative(path, here) for name, path in _sources(site, recipe).items()}
    scripts = {}
    for point in points(recipe, site, request):
        job = _job(point, site, recipe, request, how, directory=".", files=files)
        (label,) = labels([point])  # as its header's command, which renders it alone, gives it
        line = ["hpcbert", "render", *_point_words(point, request, job.protocol), *words]
        job = replace(job, name=f"{label}-{recipe.name}-{point.key}", reproduce=shlex.join(line))
        scripts[f"{recipe.name}_{point.key}.sbatch"] = render.render(job, how.folders)
    return scripts


def _sources(site: Site, recipe: Recipe) -> dict[str, Path]:
    """Return the files that a job reads or runs, by name."""
    names = (*recipe.files, _DESCRIBE)
    return {**{name: find_file(recipe, name) for name in names}, **containers.scripts(site)}


def relative(path: Path, here: Path) -> str:
    """Return a path as seen from a directory above it, else as it is."""
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _point_words(point: Point, request: Request, measured: Protocol) -> list[str]:
    words = [
        *("--fw", point.framework, "--model", point.model),
        *("--nodes", str(point.shape.nodes), "--gpus-per-node", str(point.shape.gpus_per_node)),
        *("--precision", point.precision, "--batch-size", str(point.batch_size_per_device)),
        *("--repeats", str(measured.repeats), "--iters", str(measured.iters)),
        *("--skip", str(measured.skip)),
    ]
    words += ["--protocol", point.protocol] if point.protocol else []
    words += ["--accumulation", str(point.accumulation)] if point.accumulation != 1 else []
    words += ["--xla"] if point.xla else []
    for name, value in request.settings.items():
        words += ["--set", f"{name}={value}"]
    return words


def _job(
    point: Point,
    site: Site,
    recipe: Recipe,
    request: Request,
    how: How,
    *,
    directory: str,
    files: Mapping[str, str],
) -> render.Job:
    image = containers.image(site, recipe)
    return render.Job(
        point=point,
        recipe=recipe,
        site=site,
        options=option_values(recipe, site, request.settings),
        protocol=protocol(recipe, request),
        name="",
        directory=directory,
        scheduler=how.scheduler,
        files=files,
        image=image.uri if image else "",
        stem=image.stem if image and image.kind == "docker" else "",
        mounts=containers.specs(site, recipe, directory),
        concurrent=how.concurrent,
        together=how.together,
        rehearse=how.rehearse,
        sample=f"{directory}/{store.SAMPLE}" if how.rehearse else "",
        log=render.log_layout(point),
        reproduce=f"hpcbert {__version__}",
    )


def _parts(job: render.Job, how: How) -> tuple[render.Job, ...]:
    """Return a point's job as one or several arrays, each no larger than the cluster allows."""
    most, total = how.most_indices, job.protocol.repeats
    if how.together or most is None or total <= most:
        return (job,)
    return tuple(
        replace(
            job,
            name=job.name if offset == 0 else f"{job.name}.c{offset + 1}",
            offset=offset,
            count=min(most, total - offset),
        )
        for offset in range(0, total, most)
    )


def _array(job: render.Job, text: str) -> Array:
    count = job.count or job.protocol.repeats
    part = f".c{job.offset + 1}" if job.offset else ""
    return Array(
        point=job.point,
        name=job.name,
        repeats=tuple(range(job.offset + 1, job.offset + count + 1)),
        offset=job.offset,
        script=f"scripts/{job.point.key}{part}.sbatch",
        script_sha256=hashlib.sha256(text.encode()).hexdigest(),
        log=job.log,
        together=job.together,
        cluster=slurmwords.given(job.site.slurm.sbatch_args, "clusters"),
    )


def find_file(recipe: Recipe, name: str) -> Path:
    """Return a file that a recipe names: in its folder, else among hpcbert's workloads.

    Raises:
        UsageError: It is in neither.
    """
    for folder in (Path(recipe.folder), _WORKLOADS):
        if (folder / name).is_file():
            return folder / name
    raise UsageError(f"The recipe's file {name!r} is missing.", where=recipe.folder)


def sample_log(recipe: Recipe) -> Path:
    """Return the recipe's sample log.

    Raises:
        UsageError: It has none, so that nothing can be rehearsed.
    """
    path = Path(recipe.folder) / store.SAMPLE
    if not path.is_file():
        raise UsageError(f"{recipe.name} has no {store.SAMPLE} to rehearse.", where=str(path))
    return path


def minutes(limit: str) -> float:
    """Return a time limit in minutes; the local queue, which has to have one, takes the longest.

    Raises:
        UsageError: It is none.
    """
    try:
        return (timelimit.read(limit) or timelimit.MOST) / 60
    except ValueError as error:
        raise UsageError(str(error), hint=timelimit.FORMS) from error


def _complete(site: Site, recipe: Recipe, how: How) -> tuple[Site, tuple[str, ...]]:
    """Fill in what a dry run may leave open; refuse what a real run can't do without."""
    site = _with_python(site, recipe, how)
    settings = site.settings(recipe.name)
    missing = [need for need in recipe.needs if not getattr(settings, need)]
    if site.container.runtime == "pyxis" and not traits(how.scheduler).srun:
        raise UsageError(
            f"pyxis belongs to srun, which the {how.scheduler} scheduler does without.",
            where=site.where,
            hint='Use container.runtime = "enroot", or "none" on the host.',
        )
    if site.container.runtime != "none" and not containers.image(site, recipe):
        missing.append("image")
    if not missing or (how.rehearse and "image" not in missing):
        return site, ()
    keys = ", ".join(f"frameworks.{recipe.name}.{need}" for need in missing)
    if not how.dry:
        raise UsageError(
            f"{recipe.name} needs {' and '.join(missing)}, and site {site.name!r} names none.",
            where=site.where,
            hint=f"Make it ready: hpcbert prepare --fw {recipe.name}; or set {keys} there, or give "
            f"{' '.join('--' + need for need in missing)}. Without them --rehearse runs all but "
            "the training.",
        )
    stand_in: dict[str, Any] = {need: f"{_MISSING}{recipe.name}/{need}" for need in missing}
    filled = replace(settings, **stand_in)
    warning = f"{site.where} does not set {keys}: the script shows {_MISSING}… instead."
    return site.with_settings(recipe.name, filled), (warning,)


def _with_python(site: Site, recipe: Recipe, how: How) -> Site:
    """Choose the interpreter where the site does not: on this machine the one that runs this."""
    settings = site.settings(recipe.name)
    here = traits(how.scheduler).here and site.container.runtime == "none"
    python = settings.python or (sys.executable if here else "python3")
    return site.with_settings(recipe.name, replace(settings, python=python))


def _check_reach(request: Request, how: How) -> None:
    if traits(how.scheduler).here and request.shape.nodes > 1:
        raise UsageError(
            f"The {how.scheduler} scheduler has one node, {request.shape.nodes} are asked for.",
            hint='Set scheduler = "slurm" in the site.toml, or give --scheduler slurm.',
        )


def _check_path(directory: Path) -> None:
    """Refuse a place whose name Slurm's file name patterns can't express."""
    text = str(directory)
    if "\\" in text or not text.isprintable():
        raise UsageError(
            "Campaigns can't lie in a path with a backslash or a control character.",
            where=text,
            hint="Choose another place with --runs.",
        )
