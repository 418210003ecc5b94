"""Plan: what a submission would cost, what is available, and what is missing."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcbert import scheduler
from hpcbert.campaign import durations
from hpcbert.commands.obstacles import of_submission
from hpcbert.commands.prepare import prepare
from hpcbert.config.adaptive import FEWEST
from hpcbert.errors import CheckError, HpcbertError, SchedulerError
from hpcbert.prepare.parts import Context
from hpcbert.scheduler.base import Start, World
from hpcbert.script import cost
from hpcbert.system.runner import follow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hpcbert.campaign.durations import Campaigns, Earlier
    from hpcbert.finding import Finding
    from hpcbert.model import Point, Protocol
    from hpcbert.scheduler.base import Supply
    from hpcbert.script.cost import Cost
    from hpcbert.script.draft import Draft
    from hpcbert.script.resolve import Resolved
    from hpcbert.system.runner import Runner

# The names of a recipe's needs in `prepare`.
_KINDS = {"python": "environment"}
_HOUR = 3600.0


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
    earlier: Earlier | None
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


def look(draft: Draft, before: Campaigns, *, run: Runner) -> Outlook:
    """Work out what submitting a draft would mean; nothing is written or submitted.

    Args:
        draft: The draft.
        before: Earlier campaigns.
        run: Starts the scheduler's commands.

    Raises:
        HpcbertError: Site and recipe are inconsistent.
    """
    campaign = draft.campaign
    runs_on = scheduler.of(campaign.scheduler, World(run))
    costs = cost.of_arrays(campaign.arrays)
    known = durations.earlier(
        before,
        [one.point for one in costs if not one.preflight],
        iters=campaign.protocol.iters,
        rehearse=campaign.rehearse,
    )
    arrays = {array.point: array for array in reversed(campaign.arrays)}
    starts: dict[Point, Start] = {}
    unanswered: SchedulerError | None = None
    try:
        starts = {
            point: runs_on.forecast(draft.scripts[array.name]) for point, array in arrays.items()
        }
    except SchedulerError as error:
        unanswered = error
    answers = unanswered is None
    findings = of_submission(draft, run=run)
    own = {use.recipe.name: _of_recipe(findings, use) for use in draft.uses}
    others = [
        finding
        for finding in findings
        if not any(finding in those.values() for those in own.values())
    ]
    return Outlook(
        draft=draft,
        points=tuple(
            PointOutlook(
                one, known.get(one.point), starts.get(one.point), _least(campaign.protocol, one)
            )
            for one in costs
        ),
        supplies=runs_on.supply(arrays[costs[-1].point].request) if answers else (),
        lacks=tuple(lack for use in draft.uses for lack in _lacks(use, own[use.recipe.name], run)),
        obstacles=tuple(other for other in others if other.status == "fail"),
        doubts=tuple(other for other in others if other.status != "fail"),
        unanswered=unanswered,
    )


def _least(protocol: Protocol, one: Cost) -> int:
    auto = protocol.precision_of_median is not None and not one.preflight
    return min(FEWEST, one.repeats) if auto else one.repeats


def _of_recipe(findings: Iterable[Finding], resolved: Resolved) -> dict[str, Finding]:
    """Return the findings about what a framework needs, by kind: `data of oneflow`."""
    end = f" of {resolved.recipe.name}"
    return {
        finding.name.removesuffix(end): finding
        for finding in findings
        if finding.name.endswith(end)
    }


def _lacks(resolved: Resolved, findings: Mapping[str, Finding], run: Runner) -> Iterator[Missing]:
    """Yield what is not ready, each kind once."""
    recipe, site, options = resolved.recipe, resolved.site, resolved.options
    unnamed = {_KINDS.get(need, need) for need in resolved.missing}
    wanted = {*findings, *unnamed}
    planned: set[str] = set()
    context = Context(run=run, follow=follow, say=lambda _: None, env=dict(os.environ), dry=True)
    kinds = ["image"] if options.rehearse else []
    for part in prepare(recipe, site, context, only=kinds):
        waits = part.kind == "image" and part.status == "planned"
        if part.kind in wanted or waits:
            planned.add(part.kind)
            finding = findings.get(part.kind)
            yield Missing(
                framework=recipe.name,
                kind=part.kind,
                detail=finding.detail if finding else part.detail,
                command=_command(resolved, part.kind) if part.status == "planned" else "",
                hint=part.hint or (finding.hint if finding else ""),
                blocks=part.kind in unnamed or (finding is not None and finding.status == "fail"),
            )
    for kind, one in findings.items():
        if kind not in planned:
            blocks = one.status == "fail"
            yield Missing(recipe.name, kind, one.detail, "", one.hint, blocks=blocks)


def _command(resolved: Resolved, kind: str) -> str:
    """Return the command that makes one part of a framework ready, as typed here."""
    words = ["hpcbert", "prepare", "--fw", resolved.recipe.name, "--only", kind]
    if resolved.request.device:
        words += ["--device", resolved.device]
    for name, value in resolved.request.settings.items() if kind == "data" else ():
        words += ["--set", f"{name}={value}"]
    return shlex.join(words)


def refusals(outlook: Outlook) -> Iterator[HpcbertError]:
    """Yield why a draft can't run, one sentence and one hint each."""
    blocking = [missing for missing in outlook.lacks if missing.blocks]
    for framework in dict.fromkeys(missing.framework for missing in blocking):
        lacks = [missing for missing in blocking if missing.framework == framework]
        what = " and ".join(missing.kind for missing in lacks)
        ways = [missing.command or missing.hint for missing in lacks]
        yield CheckError(f"{framework} lacks {what}.", hint="; ".join(ways))
    for obstacle in outlook.obstacles:
        yield CheckError(f"{obstacle.name}: {obstacle.detail}", hint=obstacle.hint)
    said = [point.start.refused for point in outlook.points if point.start and point.start.refused]
    for text in dict.fromkeys(said):
        yield CheckError(f"sbatch --test-only: {text}")
    if outlook.unanswered:
        yield outlook.unanswered
