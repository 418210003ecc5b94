"""From campaigns, logs and saved results to tables of speedups: the one way to results."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpcbert import scheduler
from hpcbert.campaign import judge, preflight, store
from hpcbert.campaign.archive import open_archive
from hpcbert.campaign.attempts import write_ends
from hpcbert.campaign.fingerprint import NodeSample, compare_points
from hpcbert.campaign.foreign import (
    Assumptions,
    CollectRequest,
    LogExplanation,
    LogReader,
    Recipes,
    explain_log,
)
from hpcbert.campaign.log_collection import LogCollection
from hpcbert.campaign.node_sharing import NearbyCampaigns
from hpcbert.campaign.record import Records
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.config import places
from hpcbert.config.site import load as load_site
from hpcbert.errors import UsageError, refuse_ineffective
from hpcbert.logs.layout import LeftOut, LogFile, discover, is_archive, printable_path
from hpcbert.model import MANIFEST, Group, Measured, Origin, Row, Shape, SpeedupTable
from hpcbert.results import document, record
from hpcbert.results.document import ResultSet, Source
from hpcbert.results.reduce import tabulate
from hpcbert.scheduler.base import SchedulerContext, States
from hpcbert.system.runner import run
from hpcbert.system.workers import track

_Sampled = tuple[Measured, tuple[NodeSample, ...]]


@dataclass
class CollectResult:
    """Tables, and their problems.

    Attributes:
        refused: Why something has no table at all, one sentence each.
        left_out: Files that were read but are in no table.
        sources: The campaigns and logs behind the tables.
        assumptions: What the numbers of logs rest on and neither they nor the user state.
        points: The points, each with the fingerprints of its valid runs.
    """

    refused: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    sources: tuple[Source, ...] = ()
    assumptions: Assumptions = field(default_factory=Assumptions)
    points: list[_Sampled] = field(default_factory=list)
    tables: tuple[SpeedupTable, ...] = ()

    def add(
        self, source: Source, points: Iterable[_Sampled] = (), warnings: Iterable[str] = ()
    ) -> None:
        """Add the points of a source."""
        origin = Origin(source.kind, source.name, source.path)
        self.sources += (source,)
        self.points += [(replace(point, origin=origin), samples) for point, samples in points]
        self.warnings += tuple(warnings)


# The options that supply what logs don't say.
_OPTION_NAMES = {"framework": "fw", "settings": "set"}


def collect(
    paths: Sequence[Path],
    request: CollectRequest,
    recipes: Recipes,
    fresh_states: Mapping[Path, States] | None = None,
) -> CollectResult:
    """Read campaigns and logs, judge every repeat, reduce the valid ones.

    The results of a campaign are written into it, unless it belongs to somebody else or is an
    archive; a directory of other logs is never written to.

    Args:
        fresh_states: States of campaigns that the scheduler gave a moment ago, by directory.

    Raises:
        UsageError: A path holds nothing, something about a log is unknown, or the same point
            comes from two places.
    """
    result = CollectResult()
    # Campaigns of one folder read each other's status files.
    records, nearby = Records(keep_unchanged=True), NearbyCampaigns()
    with ExitStack() as stack:
        archives = dict.fromkeys(filter(is_archive, paths))
        unpacked = {path: stack.enter_context(open_archive(path)) for path in archives}
        directories = [unpacked.get(path, path) for path in paths]
        named_paths = dict(zip(directories, paths, strict=True))
        discovery = discover(directories, request.pattern)
        if not discovery.logs:
            _refuse_log_options(request)
        result.warnings += discovery.warnings
        result.left_out += discovery.left_out
        campaigns = _choose_campaigns(discovery.campaigns, directories, result)
        for directory in track(campaigns, "collecting campaigns"):
            tracked = TrackedCampaign(directory, store.read_manifest(directory), records)
            place = named_paths.get(directory, directory)
            states = (fresh_states or {}).get(directory)
            _collect_campaign(result, tracked, nearby, request, place, fresh_states=states)
        if discovery.logs:
            has_campaigns = bool(campaigns)
            _collect_logs(
                result, directories, discovery.logs, request, recipes, may_be_empty=has_campaigns
            )
    _tabulate_points(result, require_all=request.require_all)
    return result


def _tabulate_points(result: CollectResult, *, require_all: bool) -> None:
    """Make the tables of all points that were trained; a rehearsal is refused."""
    trained = []
    for point, samples in result.points:
        if all(any(reason.code == "rehearsal" for reason in run.reasons) for run in point.runs):
            name = f"{point.group.framework} {point.shape}"
            result.refused += (f"{name}: {len(point.runs)} rehearsed, nothing was trained.",)
        else:
            trained.append((point, samples))
    refuse_duplicates((point.group, point) for point, _ in trained)
    result.tables = tabulate(compare_points(trained), require_all=require_all)
    warnings = (*result.warnings, *_warn_of_mixed_windows(point for point, _ in trained))
    result.warnings = tuple(dict.fromkeys(warnings))


def _refuse_log_options(request: CollectRequest) -> None:
    """Refuse options that describe logs if a campaign records the same facts itself."""
    values = {**request.known._asdict(), "pattern": request.pattern}
    values["as_repeats"] = request.as_repeats
    for name in filter(values.get, values):
        flag = f"--{_OPTION_NAMES.get(name, name).replace('_', '-')}"
        raise refuse_ineffective(flag, "on campaigns, which record it themselves")


def _choose_campaigns(
    campaigns: Sequence[Path], paths: Sequence[Path], result: CollectResult
) -> list[Path]:
    """Return the campaigns to collect, and warn of each that is left out.

    In a directory that several people share, those are the user's; if none is, everybody's.
    """
    owners = {path: "" if path in paths else store.find_foreign_owner(path) for path in campaigns}
    if all(owners.values()):
        return list(campaigns)
    result.warnings += tuple(
        f"{path} is left out because it belongs to {owner}. Name it to collect it."
        for path, owner in owners.items()
        if owner
    )
    return [campaign for campaign in campaigns if not owners[campaign]]


def _collect_campaign(
    result: CollectResult,
    tracked: TrackedCampaign,
    nearby: NearbyCampaigns,
    request: CollectRequest,
    place: Path,
    *,
    fresh_states: States | None,
) -> None:
    """Add a campaign, which was named by its directory or its archive."""
    directory, campaign = tracked.directory, tracked.campaign
    if campaign.rehearse:
        text = f"{campaign.id} is a rehearsal: nothing was trained, so it has no table."
        result.refused += (text,)
        result.add(judge.make_source(place, campaign, ()))
        return
    ask = ask_scheduler if fresh_states is None else lambda _: fresh_states
    judgement = judge.gather(
        tracked, rule=request.rule, window=request.window, states=ask, nearby=nearby
    )
    newest_states = {repeat.key: repeat.history.newest for repeat in judgement.repeats}
    is_alive = any(state.kind.alive for state in newest_states.values())
    warnings = [
        *judgement.warnings,
        *store.warn_about_writers(place),
        *preflight.warn_about_preflight(tracked, over=not is_alive),
        *(f"{campaign.id}: {sentence}" for sentence in judgement.comparison.accepted),
    ]
    if place == directory and not store.find_foreign_owner(directory):
        ended = {key for key, state in newest_states.items() if state.kind.over}
        write_ends(tracked, newest_states, ended)
        warnings += judge.write_results(tracked, judgement, nearby, now=time.time())
    if judgement.comparison.changed:
        # A changed campaign is not recorded again.
        changes = "; ".join(map(str, judgement.comparison.changed))
        hint = 'Restore it, or accept the change with hpcbert audit --accept "WHY"'
        text = f"{campaign.id} was changed since it was collected: {changes}. {hint}."
        result.refused += (text,)
    source = judge.make_source(place, campaign, judgement.repeats)
    result.add(source, zip(judgement.points, judgement.samples, strict=True), warnings)


def _collect_logs(
    result: CollectResult,
    paths: Sequence[Path],
    logs: Sequence[LogFile],
    request: CollectRequest,
    recipes: Recipes,
    *,
    may_be_empty: bool,
) -> None:
    reader = LogReader(request=request, recipes=recipes)
    # A shell names the files of one folder: `logs/*.log`.
    folders = {path.parent if path.is_file() else path for path in paths}
    collection = LogCollection(reader=reader, is_one_folder=len(folders) == 1)
    points = collection.gather(logs, may_be_empty=may_be_empty)
    log_paths = {log.path for log in logs}
    log_folders = {path.parent for path in log_paths}
    ancestors = log_folders.union(log_paths, *(folder.parents for folder in log_folders))
    places = [path for path in paths if path in ancestors] or paths
    name = printable_path(places[0])
    source = Source("logs", name, name)
    if len(places) > 1:
        source = Source("logs", f"{name} and {len(places) - 1} more")
    result.add(source, points, collection.warnings)
    result.left_out += collection.left_out
    result.assumptions = reader.assumptions


def explain_logs(
    paths: Sequence[Path], request: CollectRequest, recipes: Recipes
) -> tuple[LogExplanation, ...]:
    """Return how each log under some paths is read, whether or not it has a number.

    Raises:
        UsageError: A path holds no log.
    """
    logs = discover(paths, request.pattern).logs
    if not logs:
        raise UsageError("There is no log to explain.", where=printable_path(paths[0]))
    reader = LogReader(request=request, recipes=recipes)
    return tuple(explain_log(reader, log) for log in logs)


def ask_scheduler(tracked_campaign: TrackedCampaign) -> States:
    """Ask the campaign's scheduler for the states of its repeats."""
    backend = scheduler.create_scheduler(tracked_campaign.campaign.scheduler, SchedulerContext(run))
    return backend.states(tracked_campaign)


def refuse_duplicates(points: Iterable[tuple[Group, Measured | Row]]) -> None:
    """Refuse points that come from several places.

    Raises:
        UsageError: A point does; the message names both places.
    """
    known_places: dict[tuple[Group, Shape], str] = {}
    for group, point in points:
        origin = point.origin or Origin("logs", "a table")
        place = origin.path if origin.kind == "campaign" else f"the logs {origin.name}"
        if (group, point.shape) in known_places:
            text = f"{group.framework} {group.model} {point.shape} {group.precision}"
            places = f"{known_places[group, point.shape]} and in {place}"
            raise UsageError(
                f"{text} b{group.batch} is in {places}.",
                hint="Collect them separately: runs of two campaigns are not runs of one point.",
            )
        known_places[group, point.shape] = place


def _warn_of_mixed_windows(points: Iterable[Measured]) -> Iterator[str]:
    """Yield a warning for each table whose points were measured over different iterations."""
    windows: dict[Group, dict[str, Shape]] = {}
    for point in points:
        if point.window:
            windows.setdefault(point.group, {}).setdefault(point.window.counted, point.shape)
    for group, shapes in windows.items():
        if len(shapes) > 1:
            texts = (f"{shape} over {window}" for window, shape in shapes.items())
            yield (
                f"{group.framework} {group.precision}: the points were measured over different "
                f"iterations: {', '.join(texts)}"
            )


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
        return Path(load_site(self.site).runs)


def find_places(site: str = "", templates: tuple[str, ...] = ()) -> Places:
    """Return the places for this process, from its environment and working directory.

    Raises:
        ConfigError: The site does not exist, or others can change it or its recipes.
    """
    file, _ = places.find_site(site, env=os.environ, cwd=Path.cwd())
    return Places(Recipes(places.recipe_folders(file, templates)), site)


def load_result_set(
    words: Sequence[str], user_places: Places, request: CollectRequest | None = None
) -> ResultSet:
    """Return the results that words name, all in one.

    A word is the path of a campaign, its id or a part of the id; an archive of one, which ends in
    `.zip`; a directory or a file of logs; a file of results, which ends in `.json`; or a name of
    the published record. Campaigns and logs are collected now, together, as in `collect`. Tables
    keep that order; those of saved results stay tables of their own.

    Args:
        words: Without any, the newest campaign.

    Raises:
        UsageError: A word names nothing, what it names can't be read, or a point appears twice.
    """
    published = [word for word in words if record.is_record_name(word) and not Path(word).exists()]
    campaign_words = [word for word in words if word not in published]
    paths = list(resolve_words(campaign_words, user_places))
    if not words:
        newest = store.find_newest(user_places.runs, measured=True)
        paths = list(store.list_submission(newest))
    files = [path for path in paths if is_saved(path)]
    collect_paths = [path for path in paths if path not in files]
    result_sets = []
    if collect_paths:
        result_sets.append(_collect_results(collect_paths, user_places, request))
    elif request and request != CollectRequest():
        raise UsageError(
            "Options that say how to read logs do not apply to saved results.",
            hint="Leave them out, or name campaigns or logs.",
        )
    result_sets += [document.read_results(path) for path in files]
    result_sets += [record.published_results(published)] if published else []
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
    paths: Sequence[Path], user_places: Places, request: CollectRequest | None
) -> ResultSet:
    result = collect(paths, request or CollectRequest(), user_places.recipes)
    return ResultSet(
        tables=result.tables,
        sources=result.sources,
        refused=result.refused,
        warnings=(*result.warnings, *result.assumptions.texts()),
        left_out=tuple((printable_path(file.path), file.why) for file in result.left_out),
    )


def is_saved(path: Path) -> bool:
    """Return whether a path ends in `.json`, as saved results do, and is not a directory."""
    return path.suffix.lower() == ".json" and not path.is_dir()


def resolve_words(words: Iterable[str], user_places: Places) -> tuple[Path, ...]:
    """Return the paths and campaigns that words name; campaigns as `store.resolve_submission` has.

    Raises:
        UsageError: A word names nothing.
    """
    paths: list[Path] = []
    for word in words:
        path = Path(word)
        if path.exists() and (os.sep in word or not (path / MANIFEST).exists()):
            paths.append(path)
        elif os.sep in word or is_saved(path):
            raise UsageError("There is no such file or directory.", where=word)
        elif packed := store.find_archive(word, user_places.runs):
            paths.append(packed)
        else:
            paths += store.resolve_submission(word, user_places.runs)
    return tuple(paths)
