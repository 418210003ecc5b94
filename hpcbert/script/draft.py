"""Draft: everything that a submission will write and run, worked out before any of it happens."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcbert import __version__
from hpcbert.campaign import store
from hpcbert.config import campaignfile, slurm_arguments
from hpcbert.config.recipe import Recipe
from hpcbert.container import runtimes
from hpcbert.errors import UsageError
from hpcbert.model import Array, Campaign, Point, format_stamp, format_utc
from hpcbert.script.plan import MeasurementPlan
from hpcbert.script.rerun import Lock, make_lock
from hpcbert.script.resolve import (
    Resolved,
    SubmitOptions,
    make_preflight_array,
    resolve,
    resolve_preflight,
)
from hpcbert.slurm.inventory import MOST_INDICES
from hpcbert.system import redact

# Characters of a job's name that squeue shows by default (squeue(1), `--format=%.8j`).
LABEL_LENGTH = 8
# For each precision its letter, and its short name.
_SHORT = {
    "fp32": ("f", "f32"),
    "tf32": ("t", "t32"),
    "fp16": ("h", "f16"),
    "bf16": ("b", "b16"),
    "fp8": ("e", "f8"),
    "mxfp8": ("m", "m8"),
    "nvfp4": ("n", "n4"),
}


@dataclass(frozen=True)
class Submitter:
    """Who submits, when, and with which command; the source of a campaign's id."""

    user: str
    command: tuple[str, ...]
    time: float
    token: str


@dataclass(frozen=True)
class Draft:
    """A campaign that is worked out but not written yet.

    Attributes:
        copies: Files to copy into the campaign: target relative to it, and source.
        preflight: The resolved request of its preflight; None without one.
    """

    resolved: Resolved
    campaign: Campaign
    scripts: Mapping[str, str]
    copies: tuple[tuple[str, Path], ...]
    lock: Lock
    preflight: Resolved | None = None
    note: str = ""

    @property
    def directory(self) -> Path:
        """The directory that it will have."""
        return Path(self.resolved.directory)

    @property
    def uses(self) -> tuple[Resolved, ...]:
        """The resolved requests of its points, and of its preflight."""
        return (self.resolved, *([self.preflight] if self.preflight else []))


def draft(
    measurement_plan: MeasurementPlan, *, options: SubmitOptions, submitter: Submitter
) -> Draft:
    """Work out a campaign: points, scripts, manifest.

    Raises:
        UsageError: Recipe, site and plan do not fit together; the hint says what to change.
    """
    site, recipe = measurement_plan.site, measurement_plan.recipe
    campaign_id = f"{format_stamp(submitter.time)}-{recipe.name}-{submitter.token}"
    resolved = resolve(measurement_plan, options, str(Path(site.runs) / campaign_id))
    array_scripts = list(_render_arrays(resolved))
    sources = dict(resolved.sources)
    preflight_plan = None
    if options.preflight:
        preflight_plan = resolve_preflight(resolved)
        sources = {**preflight_plan.sources, **sources}
        array = make_preflight_array(preflight_plan)
        array_scripts.append(_render_array(preflight_plan, array))
    campaign = Campaign(
        id=campaign_id,
        created=format_utc(submitter.time),
        hpcbert=__version__,
        user=submitter.user,
        uid=os.geteuid(),
        command=redact.mask_command(submitter.command),
        scheduler=options.scheduler,
        site=site.name,
        runtime=site.container.runtime,
        image=runtimes.image_uri(resolved.inputs.image, site.container.runtime),
        framework=recipe.name,
        recipe_digest=recipe.digest,
        protocol=resolved.plan.protocol,
        concurrent_repeats=options.concurrent,
        concurrent_points=options.concurrent_points,
        rehearse=options.rehearse,
        arrays=tuple(array for array, _ in array_scripts),
        materials=resolved.inputs.materials,
        name=options.name,
        library=tuple((name, store.hash_file(path)) for name, path in sources.items()),
        shares_nodes=options.shares_nodes,
    )
    return Draft(
        resolved=resolved,
        campaign=campaign,
        scripts={array.name: text for array, text in array_scripts},
        copies=_list_copies(recipe, options, sources),
        lock=make_lock(resolved, campaign),
        preflight=preflight_plan,
        note=options.note,
    )


def _list_copies(
    recipe: Recipe, options: SubmitOptions, sources: Mapping[str, Path]
) -> tuple[tuple[str, Path], ...]:
    sample = Path(recipe.folder) / store.SAMPLE
    copies = [(store.RECIPE, Path(recipe.folder) / store.RECIPE)]
    copies += [(f"scripts/{name}", path) for name, path in sources.items()]
    if options.rehearse and not sample.is_file():
        raise UsageError(f"{recipe.name} has no {store.SAMPLE} to rehearse.", where=str(sample))
    copies += [(store.SAMPLE, sample)] if options.rehearse else []
    return tuple(copies + ([(campaignfile.NAME, options.file)] if options.file else []))


def by_hand(
    measurement_plan: MeasurementPlan, *, options: SubmitOptions
) -> tuple[dict[str, str], dict[str, Path]]:
    """Return scripts to submit by hand, and the files that they read next to them, by path.

    Logs go to the directory of submission.
    """
    if measurement_plan.protocol.repeats > MOST_INDICES:
        message = f"A script to submit by hand can have at most {MOST_INDICES} repeats."
        hint = "hpcbert submit splits more repeats into several arrays."
        raise UsageError(message, hint=hint)
    resolved = resolve(measurement_plan, options)
    files = {f"scripts/{name}": path for name, path in resolved.sources.items()}
    return {array.script: text for array, text in _render_arrays(resolved)}, files


def _render_arrays(resolved: Resolved) -> Iterator[tuple[Array, str]]:
    points = resolved.plan.points
    labels = label_points(points)
    if resolved.by_hand:  # the same as from its header's command, which renders it alone
        labels = tuple(label for point in points for label in label_points([point]))
    for point, label in zip(points, labels, strict=True):
        for array in _split_arrays(resolved, point, label):
            yield _render_array(resolved, array)


def _render_array(resolved: Resolved, array: Array) -> tuple[Array, str]:
    """Return an array with its request and its script's digest, and the script."""
    from hpcbert.script.render import job_request, render  # imports Jinja: not for --help

    text = render(resolved, array)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return replace(array, request=job_request(resolved, array), script_sha256=digest), text


def label_points(points: Sequence[Point]) -> tuple[str, ...]:
    """Return a label for each point of a campaign, all distinct in squeue's columns.

    Nodes and GPUs with the precision, `4n8gf32`; if that is ambiguous or too long, with a letter,
    `h` for fp16, and the batch size, `4n8gf.64`; else after the point's number, `3.4n8g`.
    """
    schemes = (
        tuple(f"{point.shape}{_SHORT[point.precision][1]}" for point in points),
        tuple(f"{point.shape}{_SHORT[point.precision][0]}.{point.batch}" for point in points),
    )
    for scheme in schemes:
        if len(set(scheme)) == len(points) and max(map(len, scheme)) <= LABEL_LENGTH:
            return scheme
    return tuple(f"{number}.{point.shape}" for number, point in enumerate(points, start=1))


def _split_arrays(resolved: Resolved, point: Point, label: str) -> Iterator[Array]:
    """Yield a point's repeats as one or several arrays, each within the cluster's maximum."""
    options, repeats = resolved.options, resolved.plan.protocol.repeats
    name = f"{label}-hpcbert-{Path(resolved.directory).name}-{point.key}"
    script = f"scripts/{point.key}{{part}}.sbatch"
    if resolved.by_hand:
        name = f"{label}-{resolved.recipe.name}-{point.key}"
        script = f"{point.framework}_{point.key}.sbatch"
    # DLPerf's own layout, so that its extraction scripts read a campaign too
    # (Oneflow-Inc/DLPerf@c89430b, the READMEs' log directories).
    folder = f"logs/{point.framework}/bert/bz{point.batch}/{point.shape}"
    array_size = repeats if options.together else options.most_indices or repeats
    for offset in range(0, repeats, array_size):
        part = f".c{offset + 1}" if offset else ""
        yield Array(
            point=point,
            name=f"{name}{part}",
            repeats=tuple(range(offset + 1, min(offset + array_size, repeats) + 1)),
            offset=offset,
            script=script.format(part=part),
            script_sha256="",
            log=f"{folder}/bert_b{point.batch}_{point.precision}_{{repeat}}.log",
            together=options.together,
            cluster=slurm_arguments.argument_value(resolved.site.slurm.sbatch_args, "clusters"),
        )
