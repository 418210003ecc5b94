"""The one way to results, wherever they are: campaigns, other logs, saved results."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert.campaign.foreign_recipes import Recipes
from hpcbert.commands.collect import CollectRequest, collect, refuse_twice
from hpcbert.config import places
from hpcbert.errors import UsageError
from hpcbert.logs.layout import shown
from hpcbert.model import MANIFEST
from hpcbert.results.resultset import ResultSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcbert.campaign.attempts import AskStates

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


def load(
    words: Sequence[str],
    at: Places,
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
        at: Where campaigns and recipes are.
        request: How to collect campaigns and logs.
        states: As of `collect`.

    Raises:
        UsageError: A word names nothing, what it names can't be read, or a point appears twice.
    """
    from hpcbert.results import saved
    from hpcbert.results.published import record
    from hpcbert.results.published import tables as published

    named = [word for word in words if record.is_name(word) and not Path(word).exists()]
    paths = [meant(word, at) for word in words if word not in named]
    paths = paths or ([] if named else [newest(at)])
    files = [path for path in paths if is_saved(path)]
    rest = [path for path in paths if path not in files]
    result_sets = [_collected(rest, at, request, states)] if rest else _unasked(request)
    result_sets += [saved.read(path) for path in files]
    result_sets += [published.results(named)] if named else []
    refuse_twice(
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


def _collected(
    paths: Sequence[Path], at: Places, request: CollectRequest | None, states: AskStates | None
) -> ResultSet:
    made = collect(
        paths,
        request or CollectRequest(),
        frameworks=at.recipes.names,
        load=at.recipes.load,
        states=states,
    )
    files = tuple((shown(one.path), one.why) for one in made.left_out)
    return ResultSet(made.tables, None, made.sources, made.refused, made.warnings, files)


def _unasked(request: CollectRequest | None) -> list[ResultSet]:
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


def meant(word: str, at: Places) -> Path:
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

    return store.archived(word, at.runs) or store.resolve(word, at.runs)


def newest(at: Places) -> Path:
    """Return the user's newest campaign.

    Raises:
        UsageError: There is none.
    """
    from hpcbert.campaign import store

    return store.newest(at.runs)
