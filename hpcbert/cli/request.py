"""From the options of submit, plan and render to drafted campaigns, and what prevents them.

A command line with several frameworks, models or precisions makes several campaigns.
"""

from __future__ import annotations

import functools
import os
import pwd
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcbert import scheduler
from hpcbert.campaign import store
from hpcbert.cli.campaigns import find_runs, open_campaigns
from hpcbert.cli.options import is_typed, read_pairs, refuse_typed, split_list
from hpcbert.cli.output import pick
from hpcbert.commands.checks import find_submission_obstacles
from hpcbert.config import campaignfile, places, recipe, site, slurm_arguments
from hpcbert.config.campaignfile import CampaignFile, Selection
from hpcbert.config.options import (
    AUTO_REPEATS,
    DEFAULT_MAX_REPEATS,
    DEFAULT_PRECISION,
    SCALING,
    Options,
    PointOptions,
    RunOptions,
    list_unused,
    option_names,
)
from hpcbert.config.recipe import Recipe
from hpcbert.config.schedulers import SLURM, find_traits
from hpcbert.config.site import Site
from hpcbert.errors import ConfigError, UsageError
from hpcbert.model import Shape, format_stamp, parse_device
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.script import matrix
from hpcbert.script.draft import Draft, Submitter
from hpcbert.script.draft import draft as draft_campaign
from hpcbert.script.plan import MeasurementPlan, Request, choose_device
from hpcbert.script.rerun import Lock, compare_locks, load_lock, plan_rerun, plan_table
from hpcbert.script.resolve import SubmitOptions
from hpcbert.slurm import commands
from hpcbert.system import redact
from hpcbert.system.decode import decode
from hpcbert.system.runner import Runner

if TYPE_CHECKING:  # with all that reads logs
    from hpcbert.results.document import ResultSet


@dataclass(frozen=True)
class CampaignRequest:
    """What one campaign measures, where, and how it is submitted.

    Attributes:
        warnings: Choices made on the user's behalf.
        past: What it measures again.
    """

    plan: MeasurementPlan
    options: SubmitOptions
    warnings: tuple[str, ...]
    past: Lock | None


# What submissions of a file add to their name.
_STAMP = re.compile(r"-\d{8}T\d{6}Z$")
# Options that a campaign.toml replaces, and options of one framework.
_MEASURE_OPTIONS = (*option_names(PointOptions), "nodes", "gpus_per_node")
_FRAMEWORK_OPTIONS = ("image", "data", "source", "python")
# The option that each key of a `Selection` is typed as.
_OPTION_OF_KEY = {
    "frameworks": "--fw",
    "models": "--model",
    "precisions": "--precision",
    "batch_sizes": "--batch-size",
    "shapes": "--shapes",
    "options": "--set",
    "env": "--env",
}
# Options that set the same thing: a typed one wins.
_ALTERNATIVES = {"accumulation": "global_batch_size", "global_batch_size": "accumulation"}
# Options that need an adaptive number of repeats.
_ADAPTIVE = ("max_repeats", "precision_of_median")
# The only options about what to measure, and how, that --like allows.
_OTHER_OPTIONS = {"notify", "max_gpu_hours", "preflight", "stop_on_failure"}
_MEASURED_OPTIONS = (
    "file",
    *option_names(PointOptions),
    *(name for name in option_names(RunOptions) if name not in _OTHER_OPTIONS),
)


def read_requests(
    options: Options,
    *,
    dry: bool = False,
    rehearse: bool = False,
    past: Lock | None = None,
    file: CampaignFile | None = None,
    results: ResultSet | None = None,
) -> tuple[CampaignRequest, ...]:
    """Return a request for each campaign, with its site and recipe.

    Args:
        past: The lock that says what to measure, instead of the options.
    """
    _refuse_unused_options(options)
    if past:
        options, rehearse = _take_past_options(options, past), rehearse or past.rehearse
    selection: Selection = file or _make_selection(options)
    names = {name for axes in (selection, *selection.include) for name in axes.frameworks}
    if results:
        names = {table.group.framework for table in results.tables}
    names = {past.framework} if past else names
    if len(names) > 1:
        remedy = "set it in [frameworks.NAME] of the site.toml"
        refuse_typed(_FRAMEWORK_OPTIONS, f"with several frameworks: {remedy}")
    base = _make_request(options)
    single_framework = "" if len(names) > 1 else "".join(names)
    site_config = site.load(options.site_file, replace(options, fw=single_framework))
    folders = places.recipe_folders(Path(site_config.where), options.templates)

    @functools.cache
    def find(framework: str) -> tuple[Recipe, Site]:
        framework_recipe = recipe.load(places.find_recipe(framework, folders))
        _refuse_unused_paths(framework_recipe, site_config)
        choose_device(framework_recipe, site_config, parse_device(options.device))
        return framework_recipe, site_config

    if past:
        plans: tuple[MeasurementPlan, ...] = (plan_rerun(past, *find(past.framework)),)
    elif results:
        protocols = {source.name: source.protocol for source in results.sources}
        plans = tuple(
            plan_table(table, protocols, *find(table.group.framework)) for table in results.tables
        )
    else:
        plans = matrix.list_plans(selection, base, find, where=file.where if file else "")
    submission = SubmitOptions(
        options.scheduler or site_config.scheduler,
        folders,
        named=tuple(map(Path, options.templates)),
        rehearse=rehearse,
        dry=dry,
        file=Path(file.where) if file else None,
    )
    return tuple(_make_campaign_request(plan, options, submission, past, file) for plan in plans)


def _refuse_unused_options(options: Options) -> None:
    if options.shapes:
        refuse_typed(("scaling",), "with --shapes, which can include it")
        if SCALING not in split_list(options.shapes):
            refuse_typed(("nodes", "gpus_per_node"), "with --shapes")
    if options.accumulation is not None and is_typed("accumulation"):
        refuse_typed(("global_batch_size",), "with --accumulation, of which it follows")
    if options.concurrent_points and options.stop_on_failure:
        refuse_typed(("stop_on_failure",), "with --concurrent-points")
    for program, arguments in (("sbatch", options.sbatch_arg), ("srun", options.srun_arg)):
        if problem := slurm_arguments.explain_refusal(program, arguments):
            option = f"--{program}-arg"
            raise UsageError(f"{option}: {problem}", hint=f"Leave it out of {option}.")


def _open_past(name: str, options: Options) -> tuple[Lock, ...]:
    refuse_typed(_MEASURED_OPTIONS, "with --like, which says what to measure")
    if name.endswith(".toml"):
        return (load_lock(Path(name)),)
    campaigns = open_campaigns([name], find_runs(options.runs, options.site_file))
    for campaign in campaigns:
        store.read_manifest(campaign.directory)  # refuses another schema
    locks = tuple(load_lock(campaign.directory / store.LOCKED) for campaign in campaigns)
    if len({lock.framework for lock in locks}) > 1:
        refuse_typed(_FRAMEWORK_OPTIONS, f"with {name}, which has several frameworks")
    return locks


def _complete_options(options: Options, file: CampaignFile) -> Options:
    """Return the options, completed with the file's settings of how to run; typed options win."""
    refuse_typed(_MEASURE_OPTIONS, f"with {Path(file.where).name}, which says what to measure")
    values = {
        name: value
        for name, value in file.run_options().items()
        if not is_typed(name) and not is_typed(_ALTERNATIVES.get(name, name))
    }
    return replace(options, **values)


def _make_selection(options: Options) -> Selection:
    """Return the points that the options combine to: they are read as a campaign file is."""
    values: dict[str, Any] = {
        "frameworks": [name for words in options.frameworks for name in split_list(words)],
        "models": [*split_list(options.model)],
        "precisions": [*split_list(options.precision)],
        "batch_sizes": _read_batch_sizes(options.batch_size),
        "shapes": [*split_list(options.shapes)] or [SCALING] * options.scaling,
        "options": read_pairs(options.settings),
        "env": read_pairs(options.env, "--env"),
    }
    try:
        typed_values = {key: value for key, value in values.items() if value}
        return decode(Selection, typed_values, file="command line")
    except ConfigError as error:
        place, _, problem = error.message.partition(" ")
        key, _, name = place.partition(".")
        option = _OPTION_OF_KEY.get(key.partition("[")[0], key)
        option = f"{option} {name}" if key in {"options", "env"} else option
        raise UsageError(f"{option} {problem}", hint=error.hint) from None


def _read_batch_sizes(text: str) -> dict[str, list[int | str]]:
    """Read `32,64` or `fp32=32,fp16=64,128`: each number belongs to the precision before it."""
    sizes: dict[str, list[int | str]] = {}
    precision = ""
    for word in split_list(text):
        name, separator, number = word.rpartition("=")
        precision = name if separator else precision
        sizes.setdefault(precision, []).append(int(number) if number.isdecimal() else number)
    return sizes


def _make_request(options: Options) -> Request:
    repeats, precision_of_median = options.repeats, None
    if repeats == AUTO_REPEATS:
        repeats = options.max_repeats or DEFAULT_MAX_REPEATS
        precision_of_median = float(options.precision_of_median or DEFAULT_PRECISION)
    else:
        refuse_typed(_ADAPTIVE, f"without --repeats {AUTO_REPEATS}")
    return Request(
        shape=Shape(options.nodes or 1, options.gpus_per_node or 1),
        preset=options.protocol,
        device=parse_device(options.device),
        accumulation=options.accumulation or 0,
        global_batch_size=options.global_batch_size or 0,
        repeats=int(repeats),
        precision_of_median=precision_of_median,
        **pick(options, "xla iters skip window_seconds"),
    )


def _make_campaign_request(
    plan: MeasurementPlan,
    options: Options,
    submission: SubmitOptions,
    past: Lock | None,
    file: CampaignFile | None,
) -> CampaignRequest:
    """Complete what all campaigns of a submission have in common, for one of them."""
    site_config, scheduler_name = plan.site, submission.scheduler
    warnings: list[str] = []
    is_local = find_traits(scheduler_name).runs_locally
    if submission.dry and is_local and plan.request.shape.nodes > 1:
        note = f"The site's scheduler is {scheduler_name}, with one node: this script is for Slurm."
        warnings, scheduler_name = [note], SLURM
    traits, unused = find_traits(scheduler_name), list_unused(scheduler_name)
    if options.notify and traits.sbatch:
        words = " ".join(commands.parse_mail(options.notify))
        warnings.append(f"Slurm sends mail if this cluster does: {words}.")
    if file:
        keys = [name for name in file.run_options() if name in unused]
        warnings += [f"{file.where}: {key} has no effect with {traits.label}." for key in keys]
    for key, variable in site_config.variables.items() if traits.sbatch else ():
        if key.startswith("slurm."):
            value = getattr(site_config.slurm, key.removeprefix("slurm."))
            warnings.append(f"{variable} sets {key}: {value}.")
    shapes = {point.shape for point in plan.points}
    # A single shape and concurrent points have nothing to hold back.
    has_order = len(shapes) > 1 and not options.concurrent_points
    stops = Shape(1, 1) in shapes if options.stop_on_failure is None else options.stop_on_failure
    in_one_job = options.repeats_in == "one-job"
    submission = replace(
        submission,
        scheduler=scheduler_name,
        concurrent=1 if in_one_job else options.concurrent_repeats,
        together=in_one_job,
        **pick(options, "concurrent_points preflight"),
        stop_on_failure=has_order and stops,
        chosen={
            name: str(Path(value).absolute()) if Path(value).exists() else value
            for name, value in options.site_values("framework").items()
        },
    )
    return CampaignRequest(plan, submission, tuple(warnings), past)


def _take_past_options(options: Options, past: Lock) -> Options:
    shape = past.largest.shape
    # Paths of another machine may be missing: then the site's are used, and the difference is said.
    chosen: dict[str, Any] = {
        name: value
        for name, value in past.chosen.items()
        if not getattr(options, name)
        and redact.MASK not in value
        and (not Path(value).is_absolute() or Path(value).exists())
    }
    return replace(
        options,
        **chosen,
        **pick(shape, "nodes gpus_per_node"),
        **pick(past, "concurrent_repeats concurrent_points"),
        repeats_in="one-job" if past.together else "array",
    )


def _refuse_unused_paths(recipe: Recipe, site_config: Site) -> None:
    if recipe.dataset is None and "data" not in recipe.needs:
        refuse_typed(("data",), f"with {recipe.name}, which reads none")
    if "source" not in recipe.needs and not recipe.source.repository:
        refuse_typed(("source",), f"with {recipe.name}, whose container image has the program")
    if not recipe.modules:
        refuse_typed(("python",), f"with {recipe.name}, whose program is not written in Python")
    if site_config.container.runtime == "none":
        refuse_typed(("image",), "with the container runtime none")


def find_submitter() -> Submitter:
    """Return the effective user, the command line, the time and the random part of ids."""
    try:
        # USER and LOGNAME may name somebody else: in a notebook, after sudo -E.
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    return Submitter(user, tuple(sys.argv), time.time(), os.urandom(3).hex())


class SubmitPlan(NamedTuple):
    """Campaigns of one command line, to run one after the other; options as completed."""

    options: Options
    site: Site
    drafts: tuple[Draft, ...]
    warnings: tuple[str, ...]


def plan_campaigns(
    options: Options,
    *,
    run: Runner,
    file: Path | None = None,
    like: str = "",
    rehearse: bool = False,
    name: str = "",
    note: str = "",
    dry: bool = False,
    planned: bool = False,
    results: ResultSet | None = None,
    nodes: Sequence[str] = ("",),
) -> SubmitPlan:
    """Draft the campaigns of a command line; nothing is written.

    Args:
        results: What to measure again, instead of what the options say.
        nodes: Nodes that each get all campaigns, side by side.
        dry: Whether to draft scripts to read, for Slurm if this machine is too small.
        planned: Whether only the cost is of interest, so that paths may be missing.
    """
    locks: Sequence[Lock | None] = _open_past(like, options) if like else (None,)
    campaign_file = _read_campaign_file(file) if file else None
    if campaign_file:
        options = _complete_options(options, campaign_file)
        name, note = name or campaign_file.name or "", note or campaign_file.note or ""
    note = store.check_note(note)
    values: dict[str, Any] = {"dry": dry, "rehearse": rehearse, "results": results}
    requests = [
        request
        for node in nodes
        for past in locks
        for request in read_requests(
            replace(options, nodelist=node or options.nodelist),
            past=past,
            file=campaign_file,
            **values,
        )
    ]
    points = [point for request in requests for point in request.plan.points]
    if any(nodes) and any(point.shape.nodes > 1 for point in points):
        hint = "Name a campaign.toml with shapes of one node."
        raise UsageError("--each-node measures points of one node.", hint=hint)
    if (file or like) and len(requests) > 1 and not name:
        name = _name_submission(file.stem if file else like)
    texts = {"name": name, "note": note, "dry": dry or planned}
    drafts = _draft_requests(requests, run=run, **texts)
    warnings: list[str] = []
    for request, draft in zip(requests, drafts, strict=True):
        warnings += request.warnings
        warnings += () if planned else draft.resolved.warnings
        warnings += compare_locks(request.past, draft.lock) if request.past else ()
    chained = _chain_drafts(drafts, len(drafts) // len(nodes))
    return SubmitPlan(options, requests[0].plan.site, chained, tuple(dict.fromkeys(warnings)))


def _read_campaign_file(file: Path) -> CampaignFile:
    if not file.exists():
        hint = "hpcbert plan --init writes an example; without a file, options say what to measure."
        raise ConfigError("There is no such file.", where=str(file), hint=hint)
    return campaignfile.read(file)


def _name_submission(source: str) -> str:
    """Return a name for all campaigns of a file or a past one: `week47-20261121T100000Z`."""
    stem = re.sub(r"[^\w.-]+", "-", _STAMP.sub("", source))
    return f"{stem[:40]}-{format_stamp(time.time())}"


def _draft_requests(
    requests: Sequence[CampaignRequest], *, run: Runner, **texts: Any
) -> tuple[Draft, ...]:
    drafts: list[Draft] = []
    submitter = find_submitter()
    for request in requests:
        # One time for all: `store.list_submission` looks for ids that begin with it.
        submitter = replace(submitter, token=os.urandom(3).hex())
        scheduler_name, plan = request.options.scheduler, request.plan
        refuse_typed(list_unused(scheduler_name), f"with {find_traits(scheduler_name).label}")
        backend = scheduler.create_scheduler(scheduler_name, SchedulerContext(run))
        options = replace(backend.fit(request.options, plan.site, plan.recipe), **texts)
        drafts.append(draft_campaign(plan, options=options, submitter=submitter))
    return tuple(drafts)


def _chain_drafts(drafts: Sequence[Draft], row_length: int) -> tuple[Draft, ...]:
    """Return drafts of one submission: those of a row wait for each other, and share a network."""
    if len(drafts) == 1:
        return tuple(drafts)
    chained = []
    for position, draft in enumerate(drafts):
        waits = position % row_length and not draft.campaign.concurrent_points
        campaign = replace(
            draft.campaign,
            after=drafts[position - 1].campaign.id if waits else "",
            submission=drafts[0].campaign.id,
            position=position,
        )
        chained.append(replace(draft, campaign=campaign))
    return tuple(chained)


def find_obstacles(
    drafts: Sequence[Draft], *, force: bool, run: Runner
) -> tuple[tuple[UsageError, ...], tuple[str, ...]]:
    """Return the errors that prevent submitting campaigns; without errors, the warnings."""
    findings = {
        finding: None for draft in drafts for finding in find_submission_obstacles(draft, run=run)
    }
    if not force and all(finding.status != "fail" for finding in findings):
        for draft in drafts:
            backend = scheduler.create_scheduler(draft.campaign.scheduler, SchedulerContext(run))
            tests = backend.impossible(draft.campaign.arrays, draft.scripts)
            findings |= dict.fromkeys(tests)
    failures = [finding for finding in findings if finding.status == "fail"]
    if failures and not force:
        errors = [
            UsageError(f"{finding.name}: {finding.detail}", hint=finding.hint)
            for finding in failures
        ]
        last = UsageError("Nothing was submitted.", hint="--force submits anyway.")
        return (*errors, last), ()
    return (), tuple(f"{finding.detail} {finding.hint}" for finding in findings)
