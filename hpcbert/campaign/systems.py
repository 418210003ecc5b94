"""Logs of one point that come from several systems or experiments get tables of their own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hpcbert.campaign.pooling import ReadLog
from hpcbert.logs.layout import LogFile, experiment_folder
from hpcbert.model import Point, Shape

_RESULT = "result"
# MLPerf's name of the benchmark, below a system's folder.
_BENCHMARK = "bert"

_Key = tuple[Point, str]


class Series(NamedTuple):
    """The logs that may be of one experiment: in one folder, of one form."""

    folder: Path
    form: str


def separate_systems(
    points: Mapping[_Key, list[ReadLog]], *, is_one_folder: bool
) -> dict[_Key, list[ReadLog]]:
    """Return points whose logs come from one system each, named in the point's options.

    Logs of DLPerf's names with different numbers, or in folders that the user named, stay together:
    nothing says whether they are one experiment, and numbering refuses them.

    Args:
        points: The logs by point and rule.
        is_one_folder: Whether the user named one folder with all of them.
    """
    separated: dict[_Key, list[ReadLog]] = {}
    for framework in dict.fromkeys(point.framework for point, _ in points):
        own_points = {key: reads for key, reads in points.items() if key[0].framework == framework}
        labels = _label_series(own_points, is_one_folder=is_one_folder)
        for (point, rule), reads in own_points.items():
            for read in reads:
                label = labels.get(_find_series(read.log), "")
                options = (*point.options, ("system", label)) if label else point.options
                system_point = replace(point, options=options)
                separated.setdefault((system_point, rule), []).append(read)
    return separated


def are_tasks(reads: Sequence[ReadLog]) -> bool:
    """Return whether logs whose names have the form `%x_%j_%t` are of one run's tasks.

    Args:
        reads: The logs by number.
    """
    if reads[0].log.task:
        return False
    first_span = reads[0].reading.measured
    spans = [read.reading.measured for read in reads[1:] if read.valid]
    return first_span.end is None or all(map(first_span.overlaps, spans))


def _label_series(
    points: Mapping[_Key, Sequence[ReadLog]], *, is_one_folder: bool
) -> dict[Series, str]:
    """Return a label for each series; none if no point has logs of several."""
    series = dict.fromkeys(_find_series(read.log) for reads in points.values() for read in reads)
    results = [entry for entry in series if entry.form == _RESULT]
    is_shared = any(_is_shared(reads, is_one_folder=is_one_folder) for reads in points.values())
    if len(results) < 2 and not is_shared and not _is_curve_shared(points):  # noqa: PLR2004
        return {}
    folders = {entry.folder for entry in series}
    forms = {
        folder: {entry.form for entry in series if entry.folder == folder} for folder in folders
    }
    root = os.path.commonpath([entry.folder for entry in series])
    labels = {}
    for entry in series:
        words = [entry.folder.name if entry.folder == Path(root) else _relative(entry.folder, root)]
        has_forms = len(forms[entry.folder]) > 1
        words = words if len(folders) > 1 or not has_forms else []
        parts = filter(None, entry.form.replace("#", "").split("_"))
        words += ["_".join(parts)] if has_forms else []
        labels[entry] = "/".join(words).replace(",", "_")
    return labels


def _relative(folder: Path, root: str) -> str:
    """Return a system's folder below the common one, without MLPerf's `results`."""
    return "/".join(part for part in folder.relative_to(root).parts if part != "results")


def _is_curve_shared(points: Mapping[_Key, Sequence[ReadLog]]) -> bool:
    """Return whether a speedup would compare logs of several folders without documented form."""
    folders: dict[_Key, set[Path]] = {}
    for (point, rule), reads in points.items():
        curve = replace(point, shape=Shape(1, 1), accumulation=1), rule
        series = (_find_series(read.log) for read in reads if read.log.name)
        folders.setdefault(curve, set()).update(entry.folder for entry in series)
    return any(len(curve_folders) > 1 for curve_folders in folders.values())


def _is_shared(reads: Sequence[ReadLog], *, is_one_folder: bool) -> bool:
    """Return whether logs of one point are certainly of several experiments."""
    numbers: dict[Series, set[int | None]] = {}
    for read in reads:
        numbers.setdefault(_find_series(read.log), set()).add(read.log.repeat)
    if len(numbers) == 1:
        return False
    all_numbers = [number for group in numbers.values() for number in group]
    is_disjoint = None not in all_numbers and len(set(all_numbers)) == len(all_numbers)
    return (is_one_folder and not is_disjoint) or any(read.log.name for read in reads)


def _find_series(log: LogFile) -> Series:
    folder = experiment_folder(log.path.absolute())
    if log.name is None:
        return Series(folder, "")
    if log.name.form == _RESULT and folder.name.lower().startswith(_BENCHMARK):
        folder = folder.parent
    return Series(folder, log.name.form)
