"""From campaigns and directories of logs to speedup tables."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from hpcbert.campaign.environment import compared
from hpcbert.errors import IncompleteError, UsageError
from hpcbert.foreign.gather import Reader
from hpcbert.foreign.said import Known
from hpcbert.logs.layout import discover
from hpcbert.logs.setting import Window
from hpcbert.results.reduce import tabulate

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from hpcbert.campaign.fingerprint import Where
    from hpcbert.campaign.repeats import TrackedCampaign
    from hpcbert.campaign.standing import States
    from hpcbert.foreign.gather import Framework
    from hpcbert.logs.layout import LeftOut
    from hpcbert.model import Group, Measured, Shape, SpeedupTable
    from hpcbert.slurm.states import RepeatState


class CollectRequest(NamedTuple):
    """What is to be collected, and how.

    Attributes:
        rule: Name of a rule, empty for each framework's default.
        pattern: How to read the paths of logs; empty for DLPerf's layout.
        require_all: Whether a point with fewer valid runs than asked has no number.
    """

    rule: str = ""
    pattern: str = ""
    known: Known = Known()
    window: Window = Window()
    require_all: bool = False


class Collected(NamedTuple):
    """Tables, and what stands against them.

    Attributes:
        refused: Why something has no table at all, a sentence each.
        left_out: Files that were looked at and are in no table.
    """

    tables: tuple[SpeedupTable, ...]
    refused: tuple[str, ...]
    warnings: tuple[str, ...]
    left_out: tuple[LeftOut, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 if every repeat that was asked for counts and no log was left out, else 4."""
        short = any(row.ok < row.asked for table in self.tables for row in table.rows)
        lost = self.refused or any(one.wanted for one in self.left_out)
        return 0 if self.tables and not short and not lost else IncompleteError.exit_code


# How options are spelled that say what logs don't.
_FLAGS = {"framework": "fw", "settings": "set"}


class _Source(NamedTuple):
    """A point and where it comes from."""

    where: str
    point: Measured
    taken: tuple[Where, ...] = ()


def collect(
    paths: Sequence[Path],
    request: CollectRequest,
    *,
    frameworks: Collection[str],
    load: Callable[[str], Framework],
    states: States | None = None,
) -> Collected:
    """Read campaigns and logs, judge every repeat, reduce what counts.

    What a campaign gave is written into it, unless it is somebody else's; a directory of foreign
    logs is never written to.

    Args:
        paths: Campaigns, directories and files.
        request: What is asked for.
        frameworks: Names of all frameworks.
        load: Returns a framework by name.
        states: Asks the scheduler for a campaign's repeats; its own by default.

    Raises:
        UsageError: A path holds nothing, something about a log is unknown, or the same point
            comes from two places.
    """
    found = discover(paths, request.pattern)
    if not found.logs:
        _refuse_for_logs(request)
    campaigns, left_out = _own_or_named(found.campaigns, paths)
    if found.campaigns and not campaigns and not found.logs:
        raise UsageError(
            left_out[0], where=str(paths[0]), hint="Name the campaigns' own directories."
        )
    sources: list[_Source] = []
    refused: list[str] = []
    warnings = [*found.warnings, *left_out]
    files = list(found.left_out)
    for own, why, notes in _of_campaigns(campaigns, request, states or ask_scheduler):
        sources += own
        refused += why
        warnings += notes
    if found.logs:
        reader = Reader(
            known=request.known,
            frameworks=frameworks,
            load=load,
            rule=request.rule,
            window=request.window,
            pattern=request.pattern,
        )
        sources += [_Source("the logs", *one) for one in reader.gather(found.logs)]
        warnings += reader.warnings
        files += reader.left_out
    trained = [one for one in sources if not _replayed(one.point)]
    refused += [
        f"{point.group.framework} {point.shape}: {len(point.runs)} rehearsed, nothing was trained."
        for _, point, _ in sources
        if _replayed(point)
    ]
    _refuse_twice(trained)
    tables = tabulate(
        compared((one.point, one.taken) for one in trained), require_all=request.require_all
    )
    notes = (*warnings, *_mixed_windows(trained))
    return Collected(tables, tuple(refused), notes, tuple(files))


def _refuse_for_logs(request: CollectRequest) -> None:
    """Refuse what says of foreign logs what a campaign records itself.

    Raises:
        UsageError: Such an option is given.
    """
    values = {**request.known._asdict(), "pattern": request.pattern}
    given = [f"--{_FLAGS.get(name, name).replace('_', '-')}" for name in values if values[name]]
    if given:
        raise UsageError(
            f"{' and '.join(given)} {'has' if len(given) == 1 else 'have'} no effect on campaigns, "
            "which record it themselves.",
            hint=f"Leave {' and '.join(given)} out.",
        )


def _own_or_named(campaigns: Sequence[Path], paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return the campaigns that count, and a sentence for each that does not.

    In a directory of campaigns that several people write to, anybody's may lie.
    """
    if not campaigns:
        return [], []
    from hpcbert.campaign import store

    count, left_out = [], []
    for directory in campaigns:
        who = "" if directory in paths else store.stranger(directory)
        if who:
            left_out.append(f"{directory} is left out: it belongs to {who}. Name it to collect it.")
        else:
            count.append(directory)
    return count, left_out


def _of_campaigns(
    directories: Sequence[Path], request: CollectRequest, states: States
) -> Iterator[tuple[list[_Source], tuple[str, ...], tuple[str, ...]]]:
    """Yield each campaign's points, why it has none, and warnings."""
    if directories:
        # Foreign logs need none of this: manifests, states and their history take time to import.
        from hpcbert.campaign import store
        from hpcbert.campaign.record import Records
        from hpcbert.campaign.repeats import TrackedCampaign

        # Campaigns of one folder look at each other's status files.
        records = Records(keep_unchanged=True)
        for one in directories:
            watched = TrackedCampaign(one, store.read_manifest(one), records)
            yield _of_campaign(watched, request, states)


def _of_campaign(
    watched: TrackedCampaign, request: CollectRequest, states: States
) -> tuple[list[_Source], tuple[str, ...], tuple[str, ...]]:
    from hpcbert.campaign import judge, keeping, store

    directory, campaign = watched.directory, watched.campaign
    if campaign.rehearse:
        return [], (f"{campaign.id} is a rehearsal: nothing was trained, so no table.",), ()
    gathered = judge.gather(watched, rule=request.rule, window=request.window, states=states)
    accepted = tuple(f"{campaign.id}: {one}" for one in gathered.held.accepted)
    notes = (*store.caution(directory), *accepted)
    if not store.stranger(directory):
        notes += keeping.write(watched, gathered, now=time.time())
    own = [
        _Source(str(directory), point, taken)
        for point, taken in zip(gathered.points, gathered.taken, strict=True)
    ]
    refused: tuple[str, ...] = ()
    if gathered.held.changed:
        # Nothing is recorded over it.
        told = "; ".join(map(str, gathered.held.changed))
        how = 'bring it back, or accept it with hpcbert audit --accept "WHY"'
        refused = (f"{campaign.id} was changed since it was collected: {told}. {how}.",)
    return own, refused, (*gathered.warnings, *notes)


def ask_scheduler(watched: TrackedCampaign) -> Mapping[tuple[str, int], RepeatState]:
    """Ask the scheduler that a campaign was submitted to for the states of its repeats."""
    # What asking needs takes longer to import than all else.
    from hpcbert import scheduler
    from hpcbert.scheduler.base import World
    from hpcbert.system.runner import run

    return scheduler.of(watched.campaign.scheduler, World(run)).states(watched)


def _replayed(point: Measured) -> bool:
    return all(any(reason.code == "rehearsal" for reason in run.reasons) for run in point.runs)


def _refuse_twice(sources: Sequence[_Source]) -> None:
    seen: dict[tuple[Group, Shape], str] = {}
    for one in sources:
        group, shape = one.point.group, one.point.shape
        if (group, shape) in seen:
            what = f"{group.framework} {group.model} {shape} {group.precision}"
            places = f"{seen[group, shape]} and in {one.where}"
            raise UsageError(
                f"{what} b{group.batch_size_per_device} is in {places}.",
                hint="Collect the two apart: runs of two campaigns are not runs of one point.",
            )
        seen[group, shape] = one.where


def _mixed_windows(sources: Sequence[_Source]) -> tuple[str, ...]:
    """Say which tables compare numbers that were taken over different iterations."""
    windows: dict[Group, dict[str, Shape]] = {}
    for one in sources:
        if one.point.counted:
            shapes = windows.setdefault(one.point.group, {})
            shapes.setdefault(one.point.counted.what, one.point.shape)
    return tuple(
        f"{group.framework} {group.precision}: the points were measured over different iterations: "
        + ", ".join(
            f"{shape} over {what.removeprefix('iterations ')}" for what, shape in shapes.items()
        )
        for group, shapes in windows.items()
        if len(shapes) > 1
    )
