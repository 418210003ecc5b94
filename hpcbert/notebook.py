"""The notebook interface: `hpcbert.load`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert import __version__
from hpcbert.campaign.foreign import CollectRequest, UserSettings, parse_settings
from hpcbert.commands.collect import find_places, load_result_set
from hpcbert.errors import UsageError
from hpcbert.logs.setting import Window
from hpcbert.model import UNITS, Provenance, Unit, format_utc, parse_precision
from hpcbert.results import frame
from hpcbert.results.document import ResultSet
from hpcbert.results.metrics import convert_tables
from hpcbert.system import redact
from hpcbert.system.decode import did_you_mean

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

# The attributes that describe a source.
_SOURCE_ATTRIBUTES = ("kind", "name", "path", "hpcbert", "created", "recipe_digest")
_FRAMES = ("rows", "runs", "steps", "environment")


@dataclass(frozen=True)
class LoadedResult:
    """Results of campaigns, archives, logs or saved results, as data frames.

    Each frame's `attrs` name the version, the time, the command and the sources.
    """

    results: ResultSet
    made: Provenance

    @cached_property
    def rows(self) -> pd.DataFrame:
        """One row per point; columns and units: `hpcbert.results.frame.rows_frame`."""
        return self._with_provenance(frame.rows_frame(self.results.tables))

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row per repeat, valid or not; columns, units: `hpcbert.results.frame.runs_frame`."""
        return self._with_provenance(frame.runs_frame(self.results.tables))

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row per record of a log; columns and units: `hpcbert.results.frame.steps_frame`.

        Saved results have no steps: for them it is empty.
        """
        return self._with_provenance(frame.steps_frame(self.results.tables))

    @cached_property
    def environment(self) -> pd.DataFrame:
        """One row per fact: for a node what its fingerprint says, for a point what its logs say.

        source: the campaign or the logs. node: empty for facts from logs. point: its framework and
        shape, empty for nodes. digest: of the node's fingerprint. fact, value: texts,
        units as the fact's name says.
        """
        import pandas as pd

        facts: list[tuple[str, ...]] = []
        for source in self.results.sources:
            for environment in source.environments:
                for node in environment.nodes:
                    place = source.name, node, "", environment.digest
                    facts += [(*place, fact, value) for fact, value in environment.facts.items()]
        names = {source.name for source in self.results.sources if source.environments}
        for table in self.results.tables:
            for row in table.rows:
                name = row.origin.name if row.origin else ""
                point = f"{table.group.framework} {row.shape}"
                for fact, values in () if name in names else row.facts:
                    facts.append((name, "", point, "", fact, ", ".join(values)))
        columns = ["source", "node", "point", "digest", "fact", "value"]
        return self._with_provenance(pd.DataFrame(facts, columns=columns).astype("string"))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the numbers, one sentence each."""
        return (*self.results.refused, *self.results.warnings)

    def plot(self, name: str = "scaling-1", *, language: str = "en") -> Figure:
        """Return one of the figures in a report of these results.

        Args:
            name: `scaling-1` (throughput and efficiency against GPUs), `beside-1` (frameworks side
                by side), `runs-1` (the runs of every point), `steps-1` (inside one run); higher
                numbers where there are several.
            language: `en` or `zh`.

        Raises:
            UsageError: The figure does not exist; the message names those that do.
        """
        from hpcbert.commands.report import list_pictures
        from hpcbert.results.report.figures import make_figure

        pictures = {
            picture.name: picture for picture in list_pictures(self.results, self.made, language)
        }
        if name not in pictures:
            text = ", ".join(pictures) or "none: no point has a number"
            raise UsageError(f"There is no figure {name!r}.", hint=f"The figures are: {text}.")
        return make_figure(pictures[name])

    def to_parquet(self, folder: str | os.PathLike[str]) -> tuple[Path, ...]:
        """Write each frame to a file of its name in a folder, `rows.parquet`; return the files.

        Raises:
            UsageError: The extra `hpcbert[parquet]` is not installed.
        """
        directory = Path(folder)
        directory.mkdir(parents=True, exist_ok=True)
        files = tuple(directory / f"{name}.parquet" for name in _FRAMES)
        for file in files:
            file.write_bytes(frame.to_parquet(getattr(self, file.stem)))
        return files

    def _with_provenance(self, data_frame: pd.DataFrame) -> pd.DataFrame:
        sources = [
            {name: getattr(source, name) for name in _SOURCE_ATTRIBUTES}
            for source in self.results.sources
        ]
        data_frame.attrs |= {**asdict(self.made), "sources": sources}
        return data_frame


def load(
    *paths: str | os.PathLike[str],
    fw: str = "",
    rule: str = "",
    pattern: str = "",
    model: str = "",
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    batch_size: int | None = None,
    precision: str = "",
    settings: Mapping[str, int] | None = None,
    skip: int | None = None,
    iters: int | None = None,
    require_all: bool = False,
    as_repeats: bool = False,
    templates: tuple[str, ...] = (),
    site: str = "",
    unit: Unit = "samples",
) -> LoadedResult:
    """Return the results of campaigns, archives, logs and saved results, as data frames.

    Args:
        paths: As for `hpcbert collect`; without any, the newest campaign.
        settings: Its `--set`; the other arguments are its options of their names.
        unit: What the rates count: `samples`, `tokens` or `sequences`.
    """
    texts = tuple(f"{name}={value}" for name, value in (settings or {}).items())
    user_settings = UserSettings(
        fw,
        model,
        nodes,
        gpus_per_node,
        batch_size,
        parse_precision(precision) or None,
        parse_settings(texts),
    )
    request = CollectRequest(
        rule, pattern, user_settings, Window(skip, iters), require_all, as_repeats
    )
    words = [str(path) for path in paths]
    results = load_result_set(words, find_places(site, templates), request)
    if unit not in UNITS:
        raise UsageError(f"There is no unit {unit!r}.", hint=did_you_mean(unit, UNITS))
    results = replace(results, tables=convert_tables(results.tables, unit))
    command = f"hpcbert.load({', '.join(map(repr, words))})"
    provenance = Provenance(__version__, format_utc(time.time()), redact.mask_text(command))
    return LoadedResult(results, results.made or provenance)
