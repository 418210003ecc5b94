"""The one way to results, wherever they are: campaigns, other logs, saved results."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcbert.campaign.attempts import AskStates
from hpcbert.campaign.foreign_recipes import Recipes
from hpcbert.commands.collect import CollectRequest, collect, refuse_duplicates
from hpcbert.config import places
from hpcbert.errors import UsageError
from hpcbert.logs.layout import printable_path
from hpcbert.model import MANIFEST
from hpcbert.results.resultset import ResultSet

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
    from hpcbert.results import saved
    from hpcbert.results.published import record
    from hpcbert.results.published import tables as published

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
    result_sets += [saved.read_results(path) for path in files]
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
