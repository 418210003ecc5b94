"""Plan: what a submission would cost, what is available, and what is missing."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import median

from hpcbert import scheduler
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.commands.checks import find_submission_obstacles
from hpcbert.commands.prepare import prepare
from hpcbert.config.options import FEWEST_REPEATS
from hpcbert.errors import CheckError, HpcbertError, SchedulerError
from hpcbert.finding import Finding
from hpcbert.model import Campaign, Point
from hpcbert.prepare.parts import Context
from hpcbert.scheduler.base import SchedulerContext, Start, Supply
from hpcbert.script.draft import Draft
from hpcbert.script.request import Cost, array_costs
from hpcbert.script.resolve import Resolved
from hpcbert.system.grouping import group
from hpcbert.system.runner import Runner, follow

# The names of a recipe's needs in `prepare`.
_KINDS = {"python": "environment"}
_HOUR = 3600.0
# What makes the times of two campaigns comparable.
_length_of = attrgetter("rehearse", "protocol.iters", "protocol.window_seconds")
# Number of runs of a point after which older campaigns are not read.
_ENOUGH = 25


@dataclass(frozen=True)
class EarlierRuns:
    """Successful runs of a point.

    Attributes:
        seconds: Duration of each, from the job's start to its end.
        campaigns: Ids of their campaigns, newest first.
    """

    seconds: tuple[float, ...]
    campaigns: tuple[str, ...]

    @property
    def typical(self) -> float:
        """Their median, seconds."""
        return median(self.seconds)


@dataclass(frozen=True)
class Missing:
    """Something that a framework needs and that is not ready.

    Attributes:
        kind: `image`, `source`, `environment`, `data` or `python`.
        command: Gets it; empty if no command can.
        hint: What to do if no command is enough.
        blocks: Whether nothing runs without it; otherwise a job makes it, delaying the first run.
    """

    framework: str
    kind: str
    detail: str
    command: str
    hint: str
    blocks: bool


@dataclass(frozen=True)
class PointOutlook:
    """One point of a plan.

    Attributes:
        earlier: Earlier runs of the same point; None: there were none.
        start: When its first job would start if submitted now; None: unknown.
        least: Number of repeats made in any case.
    """

    cost: Cost
    earlier: EarlierRuns | None
    start: Start | None
    least: int

    @property
    def least_hours(self) -> float | None:
        """Hours of all jobs together if the minimum number of repeats is enough."""
        hours = self.cost.hours
        share = self.least / self.cost.repeats if self.cost.jobs > 1 else 1.0
        return None if hours is None else hours * share

    @property
    def expected_hours(self) -> float | None:
        """Hours of all runs together, based on earlier ones; None: there were none."""
        return self.cost.repeats * self.earlier.typical / _HOUR if self.earlier else None


@dataclass(frozen=True)
class Outlook:
    """The cost of submitting one draft, with the resources and the missing parts.

    Attributes:
        doubts: Reasons that it may not run.
        refusals: An error with a hint for each reason that it can't run, as far as known in
            advance.
    """

    draft: Draft
    points: tuple[PointOutlook, ...]
    supplies: tuple[Supply, ...]
    lacks: tuple[Missing, ...]
    doubts: tuple[Finding, ...]
    refusals: tuple[HpcbertError, ...]


def forecast(draft: Draft, earlier_campaigns: Sequence[TrackedCampaign], *, run: Runner) -> Outlook:
    """Estimate what a draft would cost, and find its obstacles; nothing is submitted.

    Raises:
        HpcbertError: Site and recipe are inconsistent.
    """
    campaign = draft.campaign
    backend = scheduler.create_scheduler(campaign.scheduler, SchedulerContext(run))
    costs = array_costs(campaign.arrays)
    arrays = {array.point: array for array in reversed(campaign.arrays)}
    starts: dict[Point, Start] = {}
    supplies: tuple[Supply, ...] = ()
    unanswered: list[HpcbertError] = []
    try:
        starts = {
            point: backend.forecast(draft.scripts[array.name]) for point, array in arrays.items()
        }
        supplies = backend.supply(arrays[costs[-1].point].request)
    except SchedulerError as error:
        unanswered.append(error)
    points = {entry.point for entry in costs if not entry.preflight}
    earlier = find_earlier_runs(earlier_campaigns, points, campaign)
    is_adaptive = campaign.protocol.precision_of_median is not None
    outlooks = []
    for cost in costs:
        can_stop = is_adaptive and not cost.preflight
        least = min(FEWEST_REPEATS, cost.repeats) if can_stop else cost.repeats
        outlooks.append(PointOutlook(cost, earlier.get(cost.point), starts.get(cost.point), least))
    lacks: list[Missing] = []
    findings = find_submission_obstacles(draft, run=run)
    for resolved in draft.uses:
        suffix = f" of {resolved.recipe.name}"
        by_kind = {
            finding.name.removesuffix(suffix): finding
            for finding in findings
            if finding.name.endswith(suffix)
        }
        lacks += _find_missing(resolved, by_kind, run)
        findings = tuple(finding for finding in findings if finding not in by_kind.values())
    obstacles = [finding for finding in findings if finding.status == "fail"]
    return Outlook(
        draft=draft,
        points=tuple(outlooks),
        supplies=supplies,
        lacks=tuple(lacks),
        doubts=tuple(finding for finding in findings if finding not in obstacles),
        refusals=(*_list_refusals(lacks, obstacles, outlooks), *unanswered),
    )


def _find_missing(
    resolved: Resolved, findings: Mapping[str, Finding], run: Runner
) -> Iterator[Missing]:
    """Yield what is not ready, each kind once, with the command that makes it so."""
    recipe, options = resolved.recipe, resolved.options
    unnamed_kinds = {_KINDS.get(need, need) for need in resolved.missing}
    reported_kinds: set[str] = set()
    context = Context(run=run, follow=follow, say=lambda _: None, env=dict(os.environ), dry=True)
    kinds = ["image"] if options.rehearse else []
    for part in prepare(recipe, resolved.site, context, only=kinds):
        is_planned = part.status == "planned"
        is_lacking = part.kind in findings or part.kind in unnamed_kinds
        if not is_lacking and not (part.kind == "image" and is_planned):
            continue
        reported_kinds.add(part.kind)
        words = ["hpcbert", "prepare", "--fw", recipe.name, "--only", part.kind]
        words += ["--device", resolved.device] if resolved.request.device else []
        for name, value in resolved.request.settings.items() if part.kind == "data" else ():
            words += ["--set", f"{name}={value}"]
        finding = findings.get(part.kind, Finding("", "", part.detail))
        yield Missing(
            framework=recipe.name,
            kind=part.kind,
            detail=finding.detail,
            command=shlex.join(words) if is_planned else "",
            hint=part.hint or finding.hint,
            blocks=finding.status == "fail" or part.kind in unnamed_kinds,
        )
    for kind, finding in findings.items():
        if kind not in reported_kinds:
            blocks = finding.status == "fail"
            yield Missing(recipe.name, kind, finding.detail, "", finding.hint, blocks)


def _list_refusals(
    lacks: Iterable[Missing], obstacles: Iterable[Finding], points: Iterable[PointOutlook]
) -> Iterator[HpcbertError]:
    blocking = group((missing.framework, missing) for missing in lacks if missing.blocks)
    for framework, parts in blocking.items():
        kinds = " and ".join(missing.kind for missing in parts)
        remedies = [missing.command or missing.hint for missing in parts]
        yield CheckError(f"{framework} can't run: it lacks its {kinds}.", hint="; ".join(remedies))
    for obstacle in obstacles:
        yield CheckError(f"{obstacle.name}: {obstacle.detail}", hint=obstacle.hint)
    refusals = dict.fromkeys(point.start.refused for point in points if point.start)
    for text in filter(None, refusals):
        yield CheckError(f"sbatch --test-only: {text}")


# --- The durations of earlier runs of a point, from the status files of their campaigns -----------


def find_earlier_runs(
    tracked_campaigns: Sequence[TrackedCampaign], points: Collection[Point], planned: Campaign
) -> dict[Point, EarlierRuns]:
    """Return the run times of earlier campaigns, by point.

    Args:
        tracked_campaigns: The campaigns, newest first.
        planned: Runs of other lengths than its own are not comparable.
    """
    earlier_runs: dict[Point, EarlierRuns] = {}
    for tracked_campaign in tracked_campaigns:
        campaign = tracked_campaign.campaign
        for point in campaign.of_point if _length_of(campaign) == _length_of(planned) else ():
            runs = earlier_runs.get(point, EarlierRuns((), ()))
            if point not in points or len(runs.seconds) >= _ENOUGH:
                continue
            if seconds := tuple(_list_durations(tracked_campaign, point)):
                campaigns = (*runs.campaigns, campaign.id)
                earlier_runs[point] = EarlierRuns((*runs.seconds, *seconds), campaigns)
    return earlier_runs


def _list_durations(watched: TrackedCampaign, point: Point) -> Iterator[float]:
    """Yield the duration of each run of a point that ended with status 0."""
    for array, number in watched.campaign.current:
        if array.point != point:
            continue
        run = watched.record(array, number).newest(first=array.first_attempt)
        if run.exit == 0 and run.start is not None and run.end is not None and run.end > run.start:
            yield run.end - run.start
