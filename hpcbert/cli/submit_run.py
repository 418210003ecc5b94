"""Submit the campaigns of one command line, watch them, and report the result."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpcbert import scheduler
from hpcbert.campaign import store
from hpcbert.campaign.suspects import RetryPolicy
from hpcbert.cli.campaigns import announce_runs, format_places
from hpcbert.cli.campaigns import run_aloud as run
from hpcbert.cli.output import Result, pick, print_text
from hpcbert.cli.request import find_obstacles, plan_campaigns
from hpcbert.commands.submit import read_interrupted, submit_pending, write_campaign
from hpcbert.config import site
from hpcbert.config.options import Options
from hpcbert.config.site import Site
from hpcbert.errors import CheckError, HpcbertError, Interruption, format_count
from hpcbert.model import Array, Campaign
from hpcbert.scheduler.base import RESUME, SchedulerContext
from hpcbert.script.draft import Draft
from hpcbert.script.request import array_costs, refuse_expensive
from hpcbert.system.runner import MemoRunner
from hpcbert.system.runner import run as plain_run

# Watches campaigns until they are over, and returns what the user gets.
Follow = Callable[[Sequence[Path], RetryPolicy, Site], Result]
_MARKS = {True: "ok  ", False: "FAIL", None: "skip"}


def resume(name: str, options: Options, *, retries: int | None) -> Result:
    """Resume an interrupted submission."""
    site_config = site.load(options.site_file)
    directories = store.resolve_submission(name, Path(options.runs or site_config.runs))
    return submit_campaigns(directories, site_config, retries=retries)


def submit_new(
    options: Options,
    file: Path | None,
    *,
    retries: int | None,
    force: bool,
    dry: bool = False,
    follow: Follow | None = None,
    **request: Any,
) -> Result:
    """Plan what a command line or a file asks for, and submit it unless something prevents it.

    Args:
        retries: Number of retries while watching; None: don't watch.
        follow: As for `submit_campaigns`.
        request: Further arguments of `plan_campaigns`.
    """
    runs = announce_runs(options.runs, options.site_file)
    if not dry:
        store.record_submit(runs)
    asks = MemoRunner(plain_run)
    plan = plan_campaigns(options, file=file, run=asks, dry=dry, **request)
    costs = [cost for draft in plan.drafts for cost in array_costs(draft.campaign.arrays)]
    refuse_expensive(costs, plan.options.max_gpu_hours, tries=1 + (retries or 0))
    errors, doubts = find_obstacles(plan.drafts, force=dry or force, run=asks)
    warnings = (*plan.warnings, *doubts)
    if errors:
        return Result(errors=errors, warnings=warnings)
    if dry:
        return dry_run(plan.drafts, warnings)
    paths = [draft.directory for draft in plan.drafts]
    return submit_campaigns(
        paths, plan.site, plan.drafts, retries=retries, warnings=warnings, follow=follow
    )


def submit_campaigns(
    directories: Sequence[Path],
    site_config: Site,
    drafts: Sequence[Draft] = (),
    *,
    retries: int | None,
    warnings: tuple[str, ...] = (),
    follow: Follow | None = None,
) -> Result:
    """Submit campaigns one after the other, and watch them if asked to.

    All are on disk before the first is submitted, so a failed submission can be resumed.

    Args:
        drafts: Their contents; none if they exist already.
        retries: As for `submit_new`.
        follow: Watches them; None prints a line per change, then collects.
    """
    waiting = None
    if retries is not None:
        from hpcbert.cli.progress import Display, follow_with_retries  # with all that collects

        waiting, follow = Display(err=True).waiting, follow or follow_with_retries
    submitted: list[tuple[Path, Campaign]] = []
    for draft in drafts[1:]:
        write_campaign(draft)
    for number, directory in enumerate(directories):
        first_draft = drafts[0] if drafts and not number else None
        try:
            campaign = submit_pending(
                directory,
                run=run,
                floor=site_config.slurm.poll_floor,
                draft=first_draft,
                waiting=waiting,
            )
        except HpcbertError as error:
            if not submitted and not isinstance(error, Interruption) and len(directories) == 1:
                raise
            pending_campaign = read_interrupted(directory)
            submitted += [(directory, pending_campaign)] if pending_campaign else []
            data = _campaigns_data(submitted) if submitted else None
            later = [shlex.quote(str(path)) for path in directories[number + 1 :]]
            pending = [f"Not submitted: {RESUME} {path}" for path in later]
            return Result(data, errors=(error,), warnings=(*warnings, *pending))
        submitted.append((directory, campaign))
    if retries is not None and follow:
        print_text(_make_result(submitted).text, err=True)
        return follow(directories, RetryPolicy(retries), site_config)
    cautions = (text for directory in directories for text in store.warn_about_writers(directory))
    return _make_result(submitted, (*warnings, *dict.fromkeys(cautions)))


def dry_run(drafts: Sequence[Draft], warnings: tuple[str, ...]) -> Result:
    """Show what would be submitted, with the scripts, and check the scripts."""
    data: list[dict[str, Any]] = []
    lines: list[str] = []
    errors: list[CheckError] = []
    for draft in drafts:
        campaign, scripts = draft.campaign, draft.scripts
        arrays = campaign.in_order
        backend = scheduler.create_scheduler(campaign.scheduler, SchedulerContext(run))
        checks = backend.checks({array.script: scripts[array.name] for array in arrays})
        rows = []
        for array in arrays:
            argv = list(backend.submit_argv(draft.directory, array))
            text = scripts[array.name]
            lines += [f"$ {shlex.join(argv) or f'({campaign.scheduler} queue)'}", text]
            rows.append({**_array_data(array), "argv": argv, "script_text": text})
        for check in checks:
            lines.append(f"{_MARKS[check.ok]} {check.name} {check.detail}".rstrip())
            if check.ok is False:
                errors.append(CheckError(f"{check.name}: {check.detail}"))
        data.append({**_campaign_data(draft.directory, campaign), "arrays": rows, "checks": checks})
    lines.append("Nothing was written, nothing was submitted.")
    return Result(_one_or_all(data), "\n".join(lines), tuple(errors), warnings)


def _one_or_all(campaigns: list[dict[str, Any]]) -> dict[str, Any]:
    return campaigns[0] if len(campaigns) == 1 else {"campaigns": campaigns}


def _campaigns_data(submitted: Sequence[tuple[Path, Campaign]]) -> dict[str, Any]:
    rows = []
    for directory, campaign in submitted:
        arrays = [_array_data(array) for array in campaign.arrays]
        data = _campaign_data(directory, campaign)
        rows.append({**data, "rehearse": campaign.rehearse, "arrays": arrays})
    return _one_or_all(rows)


def _campaign_data(directory: Path, campaign: Campaign) -> dict[str, Any]:
    names = "name scheduler framework"
    return {"campaign": campaign.id, "directory": str(directory), **pick(campaign, names)}


def _array_data(array: Array) -> dict[str, Any]:
    point = array.point
    return {
        **pick(array, "name repeats preflight script script_sha256 state"),
        "shape": str(point.shape),
        **pick(point, "model precision device"),
        "batch_size_per_device": None if point.largest else point.batch_size_per_device,
        "global_batch_size": None if point.largest else point.global_batch_size,
        "options": dict(point.options),
        "env": dict(point.env),
        "job_id": array.job_id or None,
        "cluster": array.cluster or None,
        "doubtful": array.is_doubtful,
        "changed": [
            {"what": setting, "asked": requested, "has": actual}
            for setting, requested, actual in array.changed
        ],
    }


def _make_result(
    submitted: Sequence[tuple[Path, Campaign]], warnings: tuple[str, ...] = ()
) -> Result:
    places = format_places(submitted)
    lines = [line for _, campaign in submitted for line in _format_campaign(campaign)]
    lines += [f"in {directory}" for directory, _ in submitted]
    lines.append(f"watch it:  hpcbert monitor {places}")
    if submitted[0][1].rehearse:
        lines.append("A rehearsal: ranks replay a sample log, so it gives no numbers.")
    else:
        lines.append(f"then:      hpcbert collect {places}")
    doubts, changes = [], []
    for _, campaign in submitted:
        for array in campaign.arrays:
            if array.state == "submitted" and array.is_unconfirmed:
                doubts.append(_format_doubt(campaign, array))
            # A site's plugin may change a job's settings.
            changes += [
                f"Job {array.job_id} has {setting}={actual}, but {requested or 'none'} was "
                "requested: a plugin or site setting changed it."
                for setting, requested, actual in array.changed
            ]
    warnings = (*warnings, *doubts, *changes)
    return Result(_campaigns_data(submitted), "\n".join(lines), warnings=warnings)


def _format_doubt(campaign: Campaign, array: Array) -> str:
    shown = "Slurm does not show that job yet"
    if array.is_doubtful:
        actual = {setting: value for setting, _, value in array.changed}
        workdir = actual.get("WorkDir", array.workdir)
        shown = f"Slurm shows it as {actual['JobName']!r} in {workdir}"
    return (
        f"sbatch printed {array.job_id} for {array.name!r} in {array.workdir}, but {shown}. "
        "hpcbert follows it as this array's job; its start will settle it: "
        f"hpcbert monitor {campaign.id}"
    )


def _format_campaign(campaign: Campaign) -> list[str]:
    points, count = {array.point for array in campaign.measured}, len(campaign.current)
    called = f" ({campaign.name})" if campaign.name else ""
    counts = (
        f"{format_count(len(points), 'point')} (one line each), {format_count(count, 'repeat')}"
    )
    lines = [f"campaign {campaign.id}{called}: {counts} (runs of a point)"]
    if check := campaign.preflight:
        lines.append(f"  preflight of {check.point.shape.nodes} nodes  job {check.job_id}")
    for array in campaign.measured:
        point = array.point
        cpu = " cpu" if point.device == "cpu" else ""
        head = f"  {point.framework} {point.model} {point.shape!s:>6} {point.precision}"
        line = f"{head} b{point.batch}{cpu} {point.variant}".rstrip()
        lines.append(f"{line}  job {array.job_id}")
    return lines
