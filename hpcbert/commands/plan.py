"""Plan: what a submission would cost, what is available, and what is missing."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from hpcbert import scheduler
from hpcbert.campaign import store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.commands.checks import find_submission_obstacles
from hpcbert.commands.prepare import prepare
from hpcbert.config.options import FEWEST_REPEATS
from hpcbert.errors import CheckError, HpcbertError, SchedulerError
from hpcbert.finding import Finding
from hpcbert.model import Campaign, Point, Protocol
from hpcbert.prepare.parts import Context
from hpcbert.scheduler.base import SchedulerContext, Start, Supply
from hpcbert.script import cost
from hpcbert.script.cost import Cost
from hpcbert.script.draft import Draft
from hpcbert.script.resolve import Resolved
from hpcbert.system.runner import Runner, follow

# The names of a recipe's needs in `prepare`.
_KINDS = {"python": "environment"}
_HOUR = 3600.0
Campaigns = tuple[TrackedCampaign, ...]
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
        framework: Name of the recipe.
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
        cost: The maximum cost.
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
        supplies: What its partitions have.
        lacks: What is not ready.
        obstacles: Other reasons that it can't run.
        doubts: Reasons that it may not run.
        unanswered: Why the scheduler could not be asked; None: it could be.
    """

    draft: Draft
    points: tuple[PointOutlook, ...]
    supplies: tuple[Supply, ...]
    lacks: tuple[Missing, ...]
    obstacles: tuple[Finding, ...]
    doubts: tuple[Finding, ...]
    unanswered: SchedulerError | None

    @property
    def can_run(self) -> bool:
        """Whether it would be accepted and could run, as far as known in advance."""
        refused = any(point.start and point.start.refused for point in self.points)
        lacking = any(missing.blocks for missing in self.lacks)
        return not (refused or lacking or self.obstacles or self.unanswered)


def forecast(draft: Draft, earlier_campaigns: Campaigns, *, run: Runner) -> Outlook:
    """Estimate what a draft would cost, and find its obstacles; nothing is submitted.

    Raises:
        HpcbertError: Site and recipe are inconsistent.
    """
    campaign = draft.campaign
    backend = scheduler.create_scheduler(campaign.scheduler, SchedulerContext(run))
    costs = cost.array_costs(campaign.arrays)
    arrays = {array.point: array for array in reversed(campaign.arrays)}
    starts: dict[Point, Start] = {}
    unanswered: SchedulerError | None = None
    try:
        starts = {
            point: backend.forecast(draft.scripts[array.name]) for point, array in arrays.items()
        }
    except SchedulerError as error:
        unanswered = error
    supplies = () if unanswered else backend.supply(arrays[costs[-1].point].request)
    findings = find_submission_obstacles(draft, run=run)
    lacks: list[Missing] = []
    remaining = list(findings)
    for resolved in draft.uses:
        recipe_findings = _filter_by_recipe(findings, resolved)
        lacks += _find_missing(resolved, recipe_findings, run)
        remaining = [finding for finding in remaining if finding not in recipe_findings.values()]
    return Outlook(
        draft=draft,
        points=tuple(_point_outlooks(campaign, costs, earlier_campaigns, starts)),
        supplies=supplies,
        lacks=tuple(lacks),
        obstacles=tuple(finding for finding in remaining if finding.status == "fail"),
        doubts=tuple(finding for finding in remaining if finding.status != "fail"),
        unanswered=unanswered,
    )


def _point_outlooks(
    campaign: Campaign,
    costs: Sequence[Cost],
    earlier_campaigns: Campaigns,
    starts: Mapping[Point, Start],
) -> Iterator[PointOutlook]:
    earlier_runs = find_earlier_runs(
        earlier_campaigns,
        [point_cost.point for point_cost in costs if not point_cost.preflight],
        protocol=campaign.protocol,
        rehearse=campaign.rehearse,
    )
    for point_cost in costs:
        point = point_cost.point
        least = _least_repeats(campaign.protocol, point_cost)
        yield PointOutlook(point_cost, earlier_runs.get(point), starts.get(point), least)


def _least_repeats(protocol: Protocol, point_cost: Cost) -> int:
    is_adaptive = protocol.precision_of_median is not None and not point_cost.preflight
    return min(FEWEST_REPEATS, point_cost.repeats) if is_adaptive else point_cost.repeats


def _filter_by_recipe(findings: Iterable[Finding], resolved: Resolved) -> dict[str, Finding]:
    """Return the findings about what a framework needs, by kind: `data of oneflow`."""
    suffix = f" of {resolved.recipe.name}"
    return {
        finding.name.removesuffix(suffix): finding
        for finding in findings
        if finding.name.endswith(suffix)
    }


def _find_missing(
    resolved: Resolved, findings: Mapping[str, Finding], run: Runner
) -> Iterator[Missing]:
    """Yield what is not ready, each kind once."""
    recipe, site, options = resolved.recipe, resolved.site, resolved.options
    unnamed_kinds = {_KINDS.get(need, need) for need in resolved.missing}
    needed_kinds = {*findings, *unnamed_kinds}
    reported_kinds: set[str] = set()
    context = Context(run=run, follow=follow, say=lambda _: None, env=dict(os.environ), dry=True)
    kinds = ["image"] if options.rehearse else []
    for part in prepare(recipe, site, context, only=kinds):
        is_planned = part.status == "planned"
        if part.kind in needed_kinds or (part.kind == "image" and is_planned):
            reported_kinds.add(part.kind)
            finding = findings.get(part.kind)
            fails = finding is not None and finding.status == "fail"
            yield Missing(
                framework=recipe.name,
                kind=part.kind,
                detail=finding.detail if finding else part.detail,
                command=_prepare_command(resolved, part.kind) if is_planned else "",
                hint=part.hint or (finding.hint if finding else ""),
                blocks=fails or part.kind in unnamed_kinds,
            )
    for kind, finding in findings.items():
        if kind not in reported_kinds:
            blocks = finding.status == "fail"
            yield Missing(recipe.name, kind, finding.detail, "", finding.hint, blocks)


def _prepare_command(resolved: Resolved, kind: str) -> str:
    """Return the command that makes one part of a framework ready, as typed here."""
    words = ["hpcbert", "prepare", "--fw", resolved.recipe.name, "--only", kind]
    if resolved.request.device:
        words += ["--device", resolved.device]
    for name, value in resolved.request.settings.items() if kind == "data" else ():
        words += ["--set", f"{name}={value}"]
    return shlex.join(words)


def list_refusals(outlook: Outlook) -> Iterator[HpcbertError]:
    """Yield an error with a hint for each reason that a draft can't run."""
    blocking_parts = [missing for missing in outlook.lacks if missing.blocks]
    for framework in dict.fromkeys(missing.framework for missing in blocking_parts):
        framework_parts = [missing for missing in blocking_parts if missing.framework == framework]
        kinds = " and ".join(missing.kind for missing in framework_parts)
        verb = "is" if len(framework_parts) == 1 else "are"
        remedies = [missing.command or missing.hint for missing in framework_parts]
        message = f"{framework} can't run: its {kinds} {verb} missing."
        yield CheckError(message, hint="; ".join(remedies))
    for obstacle in outlook.obstacles:
        yield CheckError(f"{obstacle.name}: {obstacle.detail}", hint=obstacle.hint)
    refused_starts = [
        point.start.refused for point in outlook.points if point.start and point.start.refused
    ]
    for text in dict.fromkeys(refused_starts):
        yield CheckError(f"sbatch --test-only: {text}")
    if outlook.unanswered:
        yield outlook.unanswered


# --- The durations of earlier runs of a point, from the status files of their campaigns -----------


def find_own_campaigns(runs: Path) -> tuple[Campaigns, tuple[Path, ...]]:
    """Return the user's own campaigns below a directory, newest first.

    Args:
        runs: The directory; damaged campaigns are skipped.

    Returns:
        The campaigns, and the directories of those with another schema.
    """
    manifests, paths = store.read_manifests(reversed(store.find_campaigns(runs)))
    return tuple(TrackedCampaign(*item) for item in manifests.items()), paths


def find_earlier_runs(
    tracked_campaigns: Campaigns,
    points: Collection[Point],
    *,
    protocol: Protocol,
    rehearse: bool = False,
) -> dict[Point, EarlierRuns]:
    """Return the run times of earlier campaigns, by point.

    Args:
        tracked_campaigns: The campaigns, newest first.
        points: The points; those without earlier runs are not in the result.
        protocol: Its iterations and seconds: runs of other lengths are not comparable.
    """
    lengths = protocol.iters, protocol.window_seconds
    seconds: dict[Point, list[float]] = {point: [] for point in points}
    campaign_ids: dict[Point, list[str]] = {point: [] for point in points}
    for tracked_campaign in tracked_campaigns:
        campaign = tracked_campaign.campaign
        other = campaign.protocol
        if (other.iters, other.window_seconds) != lengths or campaign.rehearse != rehearse:
            continue
        for point in campaign.of_point:
            if point not in seconds or len(seconds[point]) >= _ENOUGH:
                continue
            durations = list(_list_durations(tracked_campaign, point))
            if durations:
                seconds[point] += durations
                campaign_ids[point].append(campaign.id)
    return {
        point: EarlierRuns(tuple(durations), tuple(campaign_ids[point]))
        for point, durations in seconds.items()
        if durations
    }


def _list_durations(watched: TrackedCampaign, point: Point) -> Iterator[float]:
    """Yield the duration of each run of a point that ended with status 0."""
    for array, number in watched.campaign.current:
        if array.point != point:
            continue
        run = watched.record(array, number).newest(first=array.first_attempt)
        if run.exit == 0 and run.start is not None and run.end is not None and run.end > run.start:
            yield run.end - run.start
