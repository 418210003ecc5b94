"""From campaigns and directories of logs to tables of speedups."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, NamedTuple

from hpcbert.campaign.environment import compared
from hpcbert.campaign.foreign import Reader
from hpcbert.campaign.user_settings import UserSettings
from hpcbert.errors import IncompleteError, UsageError
from hpcbert.logs.layout import discover, is_archive, shown
from hpcbert.logs.setting import Window
from hpcbert.model import Origin
from hpcbert.results.reduce import tabulate
from hpcbert.results.resultset import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from hpcbert.campaign.attempts import AskStates
    from hpcbert.campaign.fingerprint import NodeSample
    from hpcbert.campaign.foreign import Framework
    from hpcbert.campaign.node_sharing import NearbyCampaigns
    from hpcbert.campaign.repeats import TrackedCampaign
    from hpcbert.logs.layout import LeftOut, LogFile
    from hpcbert.model import Group, Measured, Row, Shape, SpeedupTable
    from hpcbert.slurm.states import RepeatState


class CollectRequest(NamedTuple):
    """The runs to collect, and the settings.

    Attributes:
        rule: Name of a rule; empty for each framework's default.
        pattern: How to read the paths of logs; empty for DLPerf's layout.
        require_all: Whether a point with fewer valid runs than requested gets no number.
        as_repeats: Whether all logs of a point are repeats, whatever their names.
    """

    rule: str = ""
    pattern: str = ""
    known: UserSettings = UserSettings()
    window: Window = Window()
    require_all: bool = False
    as_repeats: bool = False


class Collected(NamedTuple):
    """Tables, and their problems.

    Attributes:
        refused: Why something has no table at all, one sentence each.
        left_out: Files that were read but are in no table.
        sources: The campaigns and logs behind the tables.
    """

    tables: tuple[SpeedupTable, ...]
    refused: tuple[str, ...]
    warnings: tuple[str, ...]
    left_out: tuple[LeftOut, ...] = ()
    sources: tuple[Source, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 if every requested repeat is valid and no log was left out, else 4."""
        short = any(row.ok < row.asked for table in self.tables for row in table.rows)
        lost = self.refused or any(one.wanted for one in self.left_out)
        return 0 if self.tables and not short and not lost else IncompleteError.exit_code


# The options that supply what logs don't say.
_FLAGS = {"framework": "fw", "settings": "set"}


class _Point(NamedTuple):
    """A point, and the fingerprints of its valid runs."""

    point: Measured
    taken: tuple[NodeSample, ...] = ()

    def out_of(self, origin: Origin) -> _Point:
        """Return the point with its origin."""
        return self._replace(point=replace(self.point, origin=origin))


class _OfCampaign(NamedTuple):
    """The result of one campaign.

    Attributes:
        refused: Why it has no points.
    """

    source: Source
    points: Sequence[_Point] = ()
    refused: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def collect(
    paths: Sequence[Path],
    request: CollectRequest,
    *,
    frameworks: Collection[str],
    load: Callable[[str], Framework],
    states: AskStates | None = None,
) -> Collected:
    """Read campaigns and logs, judge every repeat, reduce the valid ones.

    The results of a campaign are written into it, unless it belongs to somebody else or is an
    archive; a directory of other logs is never written to.

    Args:
        paths: Campaigns, archives of them, directories and files.
        request: What to collect, and how.
        frameworks: Names of all frameworks.
        load: Returns a framework by name.
        states: Asks the scheduler for a campaign's repeats; its own by default.

    Raises:
        UsageError: A path holds nothing, something about a log is unknown, or the same point
            comes from two places.
    """
    archives: dict[Path, Path] = {}
    with ExitStack() as stack:
        for path in paths:
            if is_archive(path) and path not in archives.values():
                from hpcbert.campaign.archive import opened  # directories do not need zipfile

                archives[stack.enter_context(opened(path))] = path
        unpacked = {path: directory for directory, path in archives.items()}
        meant = [unpacked.get(path, path) for path in paths]
        return _collect(meant, request, archives, frameworks=frameworks, load=load, states=states)


def _collect(
    paths: Sequence[Path],
    request: CollectRequest,
    archives: Mapping[Path, Path],
    *,
    frameworks: Collection[str],
    load: Callable[[str], Framework],
    states: AskStates | None,
) -> Collected:
    discovery = discover(paths, request.pattern)
    if not discovery.logs:
        _refuse_for_logs(request)
    campaigns, left_out = _own_or_named(discovery.campaigns, paths)
    sources: list[_Point] = []
    refused: list[str] = []
    warnings = [*discovery.warnings, *left_out]
    files = list(discovery.left_out)
    known: list[Source] = []
    for source, points, why, notes in _of_campaigns(
        campaigns, request, archives, states or ask_scheduler
    ):
        known.append(source)
        sources += points
        refused += why
        warnings += notes
    if discovery.logs:
        reader = Reader(
            known=request.known,
            frameworks=frameworks,
            load=load,
            rule=request.rule,
            window=request.window,
            pattern=request.pattern,
            as_repeats=request.as_repeats,
        )
        origin = _logs(paths, discovery.logs)
        sources += [_Point(*one).out_of(origin) for one in reader.gather(discovery.logs)]
        known.append(Source(**asdict(origin)))
        warnings += reader.warnings
        files += reader.left_out
    trained = [one for one in sources if not _replayed(one.point)]
    refused += [
        f"{point.group.framework} {point.shape}: {len(point.runs)} rehearsed, nothing was trained."
        for point, _ in sources
        if _replayed(point)
    ]
    refuse_twice((one.point.group, one.point) for one in trained)
    tables = tabulate(
        compared((one.point, one.taken) for one in trained), require_all=request.require_all
    )
    notes = tuple(dict.fromkeys((*warnings, *_mixed_windows(trained))))
    return Collected(tables, tuple(refused), notes, tuple(files), tuple(known))


def _refuse_for_logs(request: CollectRequest) -> None:
    """Refuse options that describe logs if a campaign records the same facts itself.

    Raises:
        UsageError: Such an option was given.
    """
    values = {**request.known._asdict(), "pattern": request.pattern}
    values["as_repeats"] = request.as_repeats
    texts = [f"--{_FLAGS.get(name, name).replace('_', '-')}" for name in values if values[name]]
    if texts:
        raise UsageError(
            f"{' and '.join(texts)} {'has' if len(texts) == 1 else 'have'} no effect on campaigns, "
            "which record it themselves.",
            hint=f"Leave {' and '.join(texts)} out.",
        )


def _own_or_named(campaigns: Sequence[Path], paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return the campaigns to collect, and a sentence for each that is left out.

    In a directory that several people share, those are the user's; if none is, everybody's.
    """
    if not campaigns:
        return [], []
    from hpcbert.campaign import store

    owners = {
        campaign: "" if campaign in paths else store.stranger(campaign) for campaign in campaigns
    }
    if all(owners.values()):
        return list(campaigns), []
    return [campaign for campaign in campaigns if not owners[campaign]], [
        f"{path} is left out because it belongs to {who}. Name it to collect it."
        for path, who in owners.items()
        if who
    ]


def _of_campaigns(
    directories: Sequence[Path],
    request: CollectRequest,
    archives: Mapping[Path, Path],
    states: AskStates,
) -> Iterator[_OfCampaign]:
    """Yield the result of each campaign; for unpacked ones, their archives are known."""
    if directories:
        # Other logs need none of this: manifests, states and their history take time to import.
        from hpcbert.campaign import store
        from hpcbert.campaign.node_sharing import NearbyCampaigns
        from hpcbert.campaign.record import Records
        from hpcbert.campaign.repeats import TrackedCampaign

        # Campaigns of one folder read each other's status files.
        records, nearby = Records(keep_unchanged=True), NearbyCampaigns()
        for directory in directories:
            watched = TrackedCampaign(directory, store.read_manifest(directory), records)
            yield _of_campaign(watched, nearby, request, archives.get(directory, directory), states)


def _of_campaign(
    watched: TrackedCampaign,
    nearby: NearbyCampaigns,
    request: CollectRequest,
    place: Path,
    states: AskStates,
) -> _OfCampaign:
    from hpcbert.campaign import ends, judge, keeping, preflight, store
    from hpcbert.campaign.sources import source_of

    directory, campaign = watched.directory, watched.campaign
    if campaign.rehearse:
        text = f"{campaign.id} is a rehearsal: nothing was trained, so it has no table."
        return _OfCampaign(source_of(place, campaign, ()), refused=(text,))
    gathered = judge.gather(
        watched, rule=request.rule, window=request.window, states=states, nearby=nearby
    )
    alive = any(repeat.known.newest.kind.alive for repeat in gathered.repeats)
    accepted = tuple(f"{campaign.id}: {one}" for one in gathered.held.accepted)
    notes = (*store.caution(place), *preflight.warnings(watched, over=not alive), *accepted)
    if place == directory and not store.stranger(directory):
        newest = {repeat.key: repeat.known.newest for repeat in gathered.repeats}
        ends.write(
            watched, newest, {key for key, repeat_state in newest.items() if repeat_state.kind.over}
        )
        notes += keeping.write(watched, gathered, nearby, now=time.time())
    points = [
        _Point(point, node_samples).out_of(Origin("campaign", campaign.id, str(place)))
        for point, node_samples in zip(gathered.points, gathered.taken, strict=True)
    ]
    refused: tuple[str, ...] = ()
    if gathered.held.changed:
        # A changed campaign is not recorded again.
        told = "; ".join(map(str, gathered.held.changed))
        how = 'Restore it, or accept the change with hpcbert audit --accept "WHY"'
        refused = (f"{campaign.id} was changed since it was collected: {told}. {how}.",)
    source = source_of(place, campaign, gathered.repeats)
    return _OfCampaign(source, points, refused, (*gathered.warnings, *notes))


def ask_scheduler(watched: TrackedCampaign) -> Mapping[tuple[str, int], RepeatState]:
    """Ask the campaign's scheduler for the states of its repeats."""
    # What asking needs takes longer to import than everything else.
    from hpcbert import scheduler
    from hpcbert.scheduler.base import World
    from hpcbert.system.runner import run

    return scheduler.of(watched.campaign.scheduler, World(run)).states(watched)


def _replayed(point: Measured) -> bool:
    return all(any(reason.code == "rehearsal" for reason in run.reasons) for run in point.runs)


def refuse_twice(points: Iterable[tuple[Group, Measured | Row]]) -> None:
    """Refuse points that come from several places.

    Raises:
        UsageError: A point does; the message names both places.
    """
    seen: dict[tuple[Group, Shape], str] = {}
    for group, one in points:
        where = _where(one.origin)
        if (group, one.shape) in seen:
            text = f"{group.framework} {group.model} {one.shape} {group.precision}"
            places = f"{seen[group, one.shape]} and in {where}"
            raise UsageError(
                f"{text} b{group.batch} is in {places}.",
                hint="Collect them separately: runs of two campaigns are not runs of one point.",
            )
        seen[group, one.shape] = where


def _where(origin: Origin | None) -> str:
    if origin is None:
        return "a table"
    return origin.path if origin.kind == "campaign" else f"the logs {origin.name}"


def _logs(paths: Sequence[Path], logs: Sequence[LogFile]) -> Origin:
    """Return the path of logs, as the user gave it."""
    above: set[Path] = set()
    for log in logs:
        path = log.path
        while path not in above:
            above.add(path)
            path = path.parent
    of_logs = [one for one in paths if one in above] or paths
    more = f" and {len(of_logs) - 1} more" if len(of_logs) > 1 else ""
    return Origin("logs", f"{shown(of_logs[0])}{more}", "" if more else shown(of_logs[0]))


def _mixed_windows(sources: Sequence[_Point]) -> tuple[str, ...]:
    """Return which tables compare numbers that were measured over different iterations."""
    windows: dict[Group, dict[str, Shape]] = {}
    for source in sources:
        if source.point.counted:
            shapes = windows.setdefault(source.point.group, {})
            shapes.setdefault(source.point.counted.counted, source.point.shape)
    return tuple(
        f"{group.framework} {group.precision}: the points were measured over different iterations: "
        + ", ".join(
            f"{shape} over {what.removeprefix('iterations ')}" for what, shape in shapes.items()
        )
        for group, shapes in windows.items()
        if len(shapes) > 1
    )
