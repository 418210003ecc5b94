"""From campaigns and directories of logs to tables of speedups."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from hpcbert.campaign.attempts import AskStates
from hpcbert.campaign.fingerprint import NodeSample, compare_points
from hpcbert.campaign.foreign import Framework, Reader, Recipes
from hpcbert.campaign.node_sharing import NearbyCampaigns
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.campaign.user_settings import UserSettings
from hpcbert.config import places
from hpcbert.errors import IncompleteError, UsageError
from hpcbert.logs.layout import LeftOut, LogFile, discover, is_archive, printable_path
from hpcbert.logs.setting import Window
from hpcbert.model import MANIFEST, Group, Measured, Origin, Row, Shape, SpeedupTable
from hpcbert.results.document import ResultSet, Source
from hpcbert.results.reduce import tabulate
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


class CollectResult(NamedTuple):
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
        is_incomplete = any(row.ok < row.asked for table in self.tables for row in table.rows)
        has_omissions = self.refused or any(file.wanted for file in self.left_out)
        return (
            0
            if self.tables and not is_incomplete and not has_omissions
            else IncompleteError.exit_code
        )


# The options that supply what logs don't say.
_OPTION_NAMES = {"framework": "fw", "settings": "set"}


class _MeasuredPoint(NamedTuple):
    """A point, and the fingerprints of its valid runs."""

    point: Measured
    taken: tuple[NodeSample, ...] = ()

    def out_of(self, origin: Origin) -> _MeasuredPoint:
        """Return the point with its origin."""
        return self._replace(point=replace(self.point, origin=origin))


class _CampaignResult(NamedTuple):
    """The result of one campaign.

    Attributes:
        refused: Why it has no points.
    """

    source: Source
    points: Sequence[_MeasuredPoint] = ()
    refused: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def collect(
    paths: Sequence[Path],
    request: CollectRequest,
    *,
    frameworks: Collection[str],
    load: Callable[[str], Framework],
    states: AskStates | None = None,
) -> CollectResult:
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
                from hpcbert.campaign.archive import open_archive  # directories do not need zipfile

                archives[stack.enter_context(open_archive(path))] = path
        unpacked = {path: directory for directory, path in archives.items()}
        directories = [unpacked.get(path, path) for path in paths]
        return _collect_directories(
            directories, request, archives, frameworks=frameworks, load=load, states=states
        )


def _collect_directories(
    paths: Sequence[Path],
    request: CollectRequest,
    archives: Mapping[Path, Path],
    *,
    frameworks: Collection[str],
    load: Callable[[str], Framework],
    states: AskStates | None,
) -> CollectResult:
    discovery = discover(paths, request.pattern)
    if not discovery.logs:
        _refuse_log_options(request)
    campaigns, ownership_notes = _choose_campaigns(discovery.campaigns, paths)
    measured_points: list[_MeasuredPoint] = []
    refused: list[str] = []
    warnings = [*discovery.warnings, *ownership_notes]
    files = list(discovery.left_out)
    result_sources: list[Source] = []
    for source, points, refusals, notes in _collect_campaigns(
        campaigns, request, archives, states or ask_scheduler
    ):
        result_sources.append(source)
        measured_points += points
        refused += refusals
        warnings += notes
    if discovery.logs:
        reader = Reader(
            user_settings=request.known,
            frameworks=frameworks,
            load=load,
            rule=request.rule,
            window=request.window,
            pattern=request.pattern,
            as_repeats=request.as_repeats,
        )
        origin = _origin_of_logs(paths, discovery.logs)
        measured_points += [
            _MeasuredPoint(*measured_point).out_of(origin)
            for measured_point in reader.gather(discovery.logs)
        ]
        result_sources.append(Source(**asdict(origin)))
        warnings += reader.warnings
        files += reader.left_out
    trained_points = [
        measured_point
        for measured_point in measured_points
        if not _is_rehearsal(measured_point.point)
    ]
    refused += [
        f"{point.group.framework} {point.shape}: {len(point.runs)} rehearsed, nothing was trained."
        for point, _ in measured_points
        if _is_rehearsal(point)
    ]
    refuse_duplicates(
        (measured_point.point.group, measured_point.point) for measured_point in trained_points
    )
    tables = tabulate(
        compare_points(
            (measured_point.point, measured_point.taken) for measured_point in trained_points
        ),
        require_all=request.require_all,
    )
    notes = tuple(dict.fromkeys((*warnings, *_warn_of_mixed_windows(trained_points))))
    return CollectResult(tables, tuple(refused), notes, tuple(files), tuple(result_sources))


def _refuse_log_options(request: CollectRequest) -> None:
    """Refuse options that describe logs if a campaign records the same facts itself.

    Raises:
        UsageError: Such an option was given.
    """
    values = {**request.known._asdict(), "pattern": request.pattern}
    values["as_repeats"] = request.as_repeats
    texts = [
        f"--{_OPTION_NAMES.get(name, name).replace('_', '-')}" for name in values if values[name]
    ]
    if texts:
        raise UsageError(
            f"{' and '.join(texts)} {'has' if len(texts) == 1 else 'have'} no effect on campaigns, "
            "which record it themselves.",
            hint=f"Leave {' and '.join(texts)} out.",
        )


def _choose_campaigns(
    campaigns: Sequence[Path], paths: Sequence[Path]
) -> tuple[list[Path], list[str]]:
    """Return the campaigns to collect, and a sentence for each that is left out.

    In a directory that several people share, those are the user's; if none is, everybody's.
    """
    if not campaigns:
        return [], []
    from hpcbert.campaign import store

    owners = {
        campaign: "" if campaign in paths else store.find_foreign_owner(campaign)
        for campaign in campaigns
    }
    if all(owners.values()):
        return list(campaigns), []
    return [campaign for campaign in campaigns if not owners[campaign]], [
        f"{path} is left out because it belongs to {owner}. Name it to collect it."
        for path, owner in owners.items()
        if owner
    ]


def _collect_campaigns(
    directories: Sequence[Path],
    request: CollectRequest,
    archives: Mapping[Path, Path],
    states: AskStates,
) -> Iterator[_CampaignResult]:
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
            tracked_campaign = TrackedCampaign(directory, store.read_manifest(directory), records)
            yield _collect_campaign(
                tracked_campaign, nearby, request, archives.get(directory, directory), states
            )


def _collect_campaign(
    tracked_campaign: TrackedCampaign,
    nearby: NearbyCampaigns,
    request: CollectRequest,
    origin_path: Path,
    states: AskStates,
) -> _CampaignResult:
    from hpcbert.campaign import ends, judge, measurements, preflight, store
    from hpcbert.campaign.measurements import make_source

    directory, campaign = tracked_campaign.directory, tracked_campaign.campaign
    if campaign.rehearse:
        text = f"{campaign.id} is a rehearsal: nothing was trained, so it has no table."
        return _CampaignResult(make_source(origin_path, campaign, ()), refused=(text,))
    judgement = judge.gather(
        tracked_campaign, rule=request.rule, window=request.window, states=states, nearby=nearby
    )
    is_alive = any(repeat.history.newest.kind.alive for repeat in judgement.repeats)
    acceptances = tuple(f"{campaign.id}: {sentence}" for sentence in judgement.comparison.accepted)
    notes = (
        *store.warn_about_writers(origin_path),
        *preflight.warn_about_preflight(tracked_campaign, over=not is_alive),
        *acceptances,
    )
    if origin_path == directory and not store.find_foreign_owner(directory):
        newest_states = {repeat.key: repeat.history.newest for repeat in judgement.repeats}
        ends.write(
            tracked_campaign,
            newest_states,
            {key for key, repeat_state in newest_states.items() if repeat_state.kind.over},
        )
        notes += measurements.write_results(tracked_campaign, judgement, nearby, now=time.time())
    points = [
        _MeasuredPoint(point, node_samples).out_of(
            Origin("campaign", campaign.id, str(origin_path))
        )
        for point, node_samples in zip(judgement.points, judgement.samples, strict=True)
    ]
    refused: tuple[str, ...] = ()
    if judgement.comparison.changed:
        # A changed campaign is not recorded again.
        changes = "; ".join(map(str, judgement.comparison.changed))
        hint = 'Restore it, or accept the change with hpcbert audit --accept "WHY"'
        refused = (f"{campaign.id} was changed since it was collected: {changes}. {hint}.",)
    source = make_source(origin_path, campaign, judgement.repeats)
    return _CampaignResult(source, points, refused, (*judgement.warnings, *notes))


def ask_scheduler(tracked_campaign: TrackedCampaign) -> Mapping[tuple[str, int], RepeatState]:
    """Ask the campaign's scheduler for the states of its repeats."""
    # What asking needs takes longer to import than everything else.
    from hpcbert import scheduler
    from hpcbert.scheduler.base import World
    from hpcbert.system.runner import run

    return scheduler.create_scheduler(tracked_campaign.campaign.scheduler, World(run)).states(
        tracked_campaign
    )


def _is_rehearsal(point: Measured) -> bool:
    return all(any(reason.code == "rehearsal" for reason in run.reasons) for run in point.runs)


def refuse_duplicates(points: Iterable[tuple[Group, Measured | Row]]) -> None:
    """Refuse points that come from several places.

    Raises:
        UsageError: A point does; the message names both places.
    """
    known_places: dict[tuple[Group, Shape], str] = {}
    for group, point in points:
        place = _describe_origin(point.origin)
        if (group, point.shape) in known_places:
            text = f"{group.framework} {group.model} {point.shape} {group.precision}"
            places = f"{known_places[group, point.shape]} and in {place}"
            raise UsageError(
                f"{text} b{group.batch} is in {places}.",
                hint="Collect them separately: runs of two campaigns are not runs of one point.",
            )
        known_places[group, point.shape] = place


def _describe_origin(origin: Origin | None) -> str:
    if origin is None:
        return "a table"
    return origin.path if origin.kind == "campaign" else f"the logs {origin.name}"


def _origin_of_logs(paths: Sequence[Path], logs: Sequence[LogFile]) -> Origin:
    """Return the path of logs, as the user gave it."""
    ancestors: set[Path] = set()
    for log in logs:
        path = log.path
        while path not in ancestors:
            ancestors.add(path)
            path = path.parent
    log_paths = [given_path for given_path in paths if given_path in ancestors] or paths
    more = f" and {len(log_paths) - 1} more" if len(log_paths) > 1 else ""
    return Origin(
        "logs",
        f"{printable_path(log_paths[0])}{more}",
        "" if more else printable_path(log_paths[0]),
    )


def _warn_of_mixed_windows(measured_points: Sequence[_MeasuredPoint]) -> tuple[str, ...]:
    """Return which tables compare numbers that were measured over different iterations."""
    windows: dict[Group, dict[str, Shape]] = {}
    for measured_point in measured_points:
        if measured_point.point.counted:
            shapes = windows.setdefault(measured_point.point.group, {})
            shapes.setdefault(measured_point.point.counted.counted, measured_point.point.shape)
    return tuple(
        f"{group.framework} {group.precision}: the points were measured over different iterations: "
        + ", ".join(
            f"{shape} over {window.removeprefix('iterations ')}" for window, shape in shapes.items()
        )
        for group, shapes in windows.items()
        if len(shapes) > 1
    )


_SAVED = ".json"


@dataclass(frozen=True)
class Places:
    """The places of the user's campaigns and recipes.

    Attributes:
        recipes: The frameworks that logs can belong to.
        site: What `--site` says; empty if not given.
    """

    recipes: Recipes
    site: str = ""

    @property
    def runs(self) -> Path:
        """The directory of campaigns; reads the site."""
        from hpcbert.config.site import load as load_site

        return Path(load_site(self.site).runs)


def find_places(site: str = "", templates: tuple[str, ...] = ()) -> Places:
    """Return the places for this process, from its environment and working directory.

    Args:
        site: What `--site` says; empty if not given.
        templates: Further folders with recipes.

    Raises:
        ConfigError: The site does not exist, or others can change it or its recipes.
    """
    file, _ = places.find_site(site, env=os.environ, cwd=Path.cwd())
    return Places(Recipes(places.recipe_folders(file, templates)), site)


def load_result_set(
    words: Sequence[str],
    user_places: Places,
    request: CollectRequest | None = None,
    *,
    states: AskStates | None = None,
) -> ResultSet:
    """Return the results that words name, all in one.

    A word is the path of a campaign, its id or a part of the id; an archive of one, which ends in
    `.zip`; a directory or a file of logs; a file of results, which ends in `.json`; or a name of
    the published record. Campaigns and logs are collected now, together, as in `collect`. Tables
    keep that order; those of saved results stay tables of their own.

    Args:
        words: Without any, the newest campaign.
        user_places: Where campaigns and recipes are.
        request: How to collect campaigns and logs.
        states: As of `collect`.

    Raises:
        UsageError: A word names nothing, what it names can't be read, or a point appears twice.
    """
    from hpcbert.results import document
    from hpcbert.results.published import record
    from hpcbert.results.published import record as published

    published_names = [
        word for word in words if record.is_record_name(word) and not Path(word).exists()
    ]
    paths = [resolve_word(word, user_places) for word in words if word not in published_names]
    paths = paths or ([] if published_names else [find_newest(user_places)])
    files = [path for path in paths if is_saved(path)]
    collect_paths = [path for path in paths if path not in files]
    result_sets = (
        [_collect_results(collect_paths, user_places, request, states)]
        if collect_paths
        else _refuse_unused_request(request)
    )
    result_sets += [document.read_results(path) for path in files]
    result_sets += [published.published_results(published_names)] if published_names else []
    refuse_duplicates(
        (table.group, row)
        for result_set in result_sets
        for table in result_set.tables
        for row in table.rows
        if not (row.origin and row.origin.kind == "record")
    )
    return ResultSet(
        tables=tuple(table for result_set in result_sets for table in result_set.tables),
        made=result_sets[0].made if len(result_sets) == 1 else None,
        sources=tuple(source for result_set in result_sets for source in result_set.sources),
        refused=tuple(text for result_set in result_sets for text in result_set.refused),
        warnings=tuple(text for result_set in result_sets for text in result_set.warnings),
        left_out=tuple(file for result_set in result_sets for file in result_set.left_out),
    )


def _collect_results(
    paths: Sequence[Path],
    user_places: Places,
    request: CollectRequest | None,
    states: AskStates | None,
) -> ResultSet:
    result = collect(
        paths,
        request or CollectRequest(),
        frameworks=user_places.recipes.names,
        load=user_places.recipes.load,
        states=states,
    )
    files = tuple((printable_path(file.path), file.why) for file in result.left_out)
    return ResultSet(result.tables, None, result.sources, result.refused, result.warnings, files)


def _refuse_unused_request(request: CollectRequest | None) -> list[ResultSet]:
    """Refuse a request if nothing is collected.

    Raises:
        UsageError: It asks for something.
    """
    if request and request != CollectRequest():
        raise UsageError(
            "Options that say how to read logs do not apply to saved results.",
            hint="Leave them out, or name campaigns or logs.",
        )
    return []


def is_saved(path: Path) -> bool:
    """Return whether a file holds results rather than a log, by its name."""
    return path.suffix.lower() == _SAVED and not path.is_dir()


def resolve_word(word: str, user_places: Places) -> Path:
    """Return the path or campaign that a word names; a campaign as `store.resolve` has it.

    Raises:
        UsageError: It names nothing.
    """
    path = Path(word)
    if path.exists() and (os.sep in word or not (path / MANIFEST).exists()):
        return path
    if os.sep in word or is_saved(path):
        raise UsageError("There is no such file or directory.", where=word)
    from hpcbert.campaign import store  # not needed for logs

    return store.find_archive(word, user_places.runs) or store.resolve(word, user_places.runs)


def find_newest(user_places: Places) -> Path:
    """Return the user's newest campaign.

    Raises:
        UsageError: There is none.
    """
    from hpcbert.campaign import store

    return store.find_newest(user_places.runs)
