"""A report's directory: written whole or not at all, without losing anything in it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpcbert.errors import ConfigError, HpcbertError, UsageError
from hpcbert.model import ARCHIVE
from hpcbert.results import saved
from hpcbert.results.report import forms
from hpcbert.results.report.model import Backing, ReportInput, Stretch
from hpcbert.results.report.sections import compose
from hpcbert.results.report.words import LANGUAGES, Words
from hpcbert.system.files import read, refusal, temporary_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hpcbert.config.recipe import Recipe
    from hpcbert.model import Campaign, Provenance, Row, SpeedupTable
    from hpcbert.results.report.figures import Drawing
    from hpcbert.results.report.model import Picture, Report
    from hpcbert.results.resultset import ResultSet, Source

# The file that makes a directory a report: `sha256sum --check` reads it.
SUMS = "SHA256SUMS"
# Number of runs to draw the steps of.
_STRETCHES = 2
_BLOCK = 1 << 20


class WrittenReport(NamedTuple):
    """The written files.

    Attributes:
        files: Names, relative to the directory.
        masked: Logs of logs.zip with masked secrets.
    """

    directory: Path
    files: tuple[str, ...]
    masked: tuple[str, ...]


def write(
    results: ResultSet,
    target: Path,
    *,
    made: Provenance,
    recipes: Mapping[str, Path],
    title: str = "",
    language: str = LANGUAGES[0],
    with_logs: bool = False,
) -> WrittenReport:
    """Write the report of some results into a directory.

    Args:
        results: The results to report.
        target: The directory: new, empty, or an earlier report that nobody changed.
        made: The version, the time and the command.
        recipes: The folder of each framework that is known here, by name.
        title: Title of the report; empty for the usual one.
        language: Language of the page: one of LANGUAGES. Markdown is written in all of them.
        with_logs: Whether to write logs.zip.

    Raises:
        UsageError: The directory holds something else, or there is no result.
        HpcbertError: The file system refused.
    """
    if not results.tables:
        raise UsageError("There is no result to report.")
    place = target.resolve()
    _refuse_others(place, target)
    with ExitStack() as stack:
        campaigns = _campaigns(results, stack)
        inputs = ReportInput(
            title=title,
            made=made,
            results=results,
            backings=tuple(_backing(source, results, campaigns) for source in results.sources),
            recipes=_recipes(results, campaigns, recipes),
            stretches=tuple(_stretches(results)),
        )
        temporary = temporary_for(place)
        with refusal("write", target):
            temporary.mkdir(parents=True)
        stack.callback(shutil.rmtree, temporary, ignore_errors=True)
        for name, content in _documents(inputs, language):
            _write(temporary / name, content)
        masked = _pack(temporary / "logs.zip", results, campaigns) if with_logs else ()
        names = _seal(temporary)
        _publish(temporary, place, target)
    return WrittenReport(target, names, masked)


def _documents(inputs: ReportInput, language: str) -> Iterator[tuple[str, bytes]]:
    """Yield every file of a report but its logs."""
    from hpcbert.results.report import figures

    reports = {one: compose(inputs, Words(one)) for one in LANGUAGES}
    for one, report in reports.items():
        ending = ".md" if one == LANGUAGES[0] else f".{one}.md"
        yield f"report{ending}", forms.markdown_report(report).encode(errors=_ESCAPE)
    report = reports[language]
    drawings = {picture.name: figures.draw(picture) for picture in report.pictures}
    yield "index.html", forms.page(report, drawings, Words(language)).encode(errors=_ESCAPE)
    yield from _figures(drawings)
    yield from _tables(report, language)
    result_set = replace(inputs.results, made=inputs.results.made or inputs.made)
    yield "results.json", f"{saved.render(result_set)}\n".encode(errors=_ESCAPE)


def pictures_of(results: ResultSet, provenance: Provenance, language: str) -> tuple[Picture, ...]:
    """Return the figures that a report of some results has."""
    inputs = ReportInput("", provenance, results, stretches=tuple(_stretches(results)))
    return compose(inputs, Words(language)).pictures


def _figures(drawings: Mapping[str, Drawing]) -> Iterator[tuple[str, bytes]]:
    for name, drawing in drawings.items():
        yield f"figures/{name}.svg", drawing.svg.encode(errors=_ESCAPE)
        if drawing.png and drawing.pdf:
            yield f"figures/{name}.png", drawing.png
            yield f"figures/{name}.pdf", drawing.pdf


def _tables(report: Report, language: str) -> Iterator[tuple[str, bytes]]:
    for grid in report.grids:
        yield f"tables/{grid.name}.csv", forms.csv_table(grid).encode(errors=_ESCAPE)
        tex = forms.latex_table(grid, han=language == "zh")
        yield f"tables/{grid.name}.tex", tex.encode("utf-8", "replace")


# --- the sources ---------------------------------------------------------------------------------


def _campaigns(results: ResultSet, stack: ExitStack) -> dict[str, Path]:
    """Return the directory of each campaign that still exists, archives unpacked, by its id."""
    paths: dict[str, Path] = {}
    for source in results.sources:
        path = Path(source.path)
        if source.kind != "campaign" or not source.path:
            continue
        if path.is_dir():
            paths[source.name] = path
        elif path.name.endswith(ARCHIVE) and path.is_file():
            from hpcbert.campaign import archive

            with suppress(HpcbertError):
                paths[source.name] = stack.enter_context(archive.opened(path))
    return paths


def _backing(source: Source, results: ResultSet, campaigns: Mapping[str, Path]) -> Backing:
    directory = campaigns.get(source.name)
    if source.kind == "logs":
        return Backing(digests=_digests(source, results))
    if directory is None:
        return Backing()
    from hpcbert.campaign import evidence, store

    try:
        campaign = store.read_manifest(directory)
        record = evidence.recorded(directory)
    except HpcbertError:
        return Backing()
    files = record[evidence.EVIDENCE]["files"] if record else {}
    return Backing(
        script=_script(directory, campaign),
        topologies=_topologies(directory / "env"),
        digests={str(path): str(entry["sha256"]) for path, entry in files.items()},
    )


def _digests(source: Source, results: ResultSet) -> dict[str, str]:
    """Return digests of logs that hpcbert did not submit, as they are now."""
    runs = (run for row in _rows(source, results) for run in row.runs if run.log)
    found: dict[str, str] = {}
    for run in runs:
        with suppress(OSError):
            found[run.log] = _digest(Path(run.log))
    return found


def _rows(source: Source, results: ResultSet) -> Iterator[Row]:
    for table in results.tables:
        for row in table.rows:
            if row.origin and (row.origin.kind, row.origin.name) == (source.kind, source.name):
                yield row


def _script(directory: Path, campaign: Campaign) -> tuple[str, str]:
    """Return the script of the largest shape."""
    largest = max(campaign.measured, key=lambda array: array.point.shape.gpus)
    with suppress(OSError):
        return largest.script, read(directory / largest.script).decode("utf-8", "replace")
    return "", ""


def _topologies(folder: Path) -> dict[str, tuple[str, ...]]:
    """Return the output of `nvidia-smi topo -m` on each node, once per node."""
    found: dict[str, tuple[str, ...]] = {}
    for path in sorted(folder.glob("*.json")):
        with suppress(OSError, ValueError, RecursionError):
            data = json.loads(read(path))
            host = data.get("host") if isinstance(data, dict) else None
            lines = host.get("topology") if isinstance(host, dict) else None
            if isinstance(lines, list) and isinstance(data.get("node"), str):
                found.setdefault(
                    data["node"], tuple(line for line in lines if isinstance(line, str))
                )
    return found


def _recipes(
    results: ResultSet, campaigns: Mapping[str, Path], folders: Mapping[str, Path]
) -> tuple[Recipe, ...]:
    """Return the recipe of each framework: the copy that its campaign used, else the one here."""
    from hpcbert.campaign import store
    from hpcbert.config import recipe

    recipes: dict[str, Recipe] = {}
    for source in results.sources:
        directory = campaigns.get(source.name)
        if directory and source.framework not in recipes:
            with suppress(ConfigError):
                recipes[source.framework] = recipe.read_recipe(
                    directory / store.RECIPE, name=source.framework, digest=source.recipe_digest
                )
    for table in results.tables:
        name = table.group.framework
        if name not in recipes and name in folders:
            with suppress(ConfigError):
                recipes[name] = recipe.load(folders[name])
    return tuple(recipes.values())


def _stretches(results: ResultSet) -> Iterator[Stretch]:
    """Yield the steps of each table's median run of the largest shape."""
    for table in [
        speedup_table
        for speedup_table in results.tables
        if any(row.steps for row in speedup_table.rows)
    ][:_STRETCHES]:
        row = [one for one in table.rows if one.steps][-1]
        yield _stretch(table, row)


def _stretch(table: SpeedupTable, row: Row) -> Stretch:
    speeds = {run.repeat: run.throughput or 0.0 for run in row.runs}
    middle = row.median or 0.0
    repeat, steps = min(row.steps, key=lambda one: abs(speeds[one[0]] - middle))
    pairs = tuple(zip(steps.iterations, steps.seconds, strict=True))
    return Stretch(table.group, row.shape, repeat, pairs, (steps.after + 1, steps.until))


def _pack(target: Path, results: ResultSet, campaigns: Mapping[str, Path]) -> tuple[str, ...]:
    """Write the logs of all runs, each campaign's in its own folder."""
    from hpcbert.campaign import archive

    logs: dict[str, Path] = {}
    foreign: list[Path] = []
    for source in results.sources:
        for run in (run for row in _rows(source, results) for run in row.runs if run.log):
            if source.name in campaigns:
                logs[f"{source.name}/{run.log}"] = campaigns[source.name] / run.log
            else:
                foreign.append(Path(run.log).absolute())
    if foreign:
        base = Path(os.path.commonpath([path.parent for path in foreign]))
        logs |= {f"logs/{path.relative_to(base)}": path for path in foreign}
    paths = {entry: path for entry, path in logs.items() if path.is_file()}
    return archive.pack_logs(target, paths)


# --- the directory -------------------------------------------------------------------------------


def _write(path: Path, content: bytes) -> None:
    with refusal("write", path):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return found.hexdigest()


def _names(directory: Path) -> tuple[str, ...]:
    paths = (path for path in directory.rglob("*") if path.is_symlink() or not path.is_dir())
    return tuple(sorted(str(path.relative_to(directory)) for path in paths))


def _seal(directory: Path) -> tuple[str, ...]:
    """Record the digest of every file."""
    names = _names(directory)
    lines = [f"{_digest(directory / name)}  {name}\n" for name in names]
    _write(directory / SUMS, "".join(lines).encode(errors=_ESCAPE))
    return (*names, SUMS)


def _refuse_others(place: Path, path: Path) -> None:
    """Refuse a directory if a report would replace something in it that it did not write.

    Raises:
        UsageError: The directory has such a file.
    """
    if not place.exists():
        return
    with refusal("read", path):
        if not place.is_dir():
            raise UsageError("The path is not a directory.", where=str(path), hint=_ELSEWHERE)
        names = _names(place)
        if not names and not any(place.iterdir()):
            return
        if SUMS not in names:
            raise UsageError(
                "The directory is neither empty nor a report.", where=str(path), hint=_ELSEWHERE
            )
        lines = read(place / SUMS).decode("utf-8", "replace").splitlines()
        digests = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
        others = [
            name
            for name in names
            if name != SUMS
            and ((place / name).is_symlink() or digests.get(name) != _digest(place / name))
        ]
    if others:
        text = f"{others[0]!r} was changed since the report there was written, and would be lost."
        raise UsageError(text, where=str(path), hint=_ELSEWHERE)


# What UTF-8 can't write becomes JSON's escape for it.
_ESCAPE = "backslashreplace"
_ELSEWHERE = "Name another directory with --output, or move its contents."


def _publish(temporary: Path, place: Path, path: Path) -> None:
    """Give a finished report its name, replacing an earlier one."""
    with refusal("write", path):
        if not place.exists():
            temporary.rename(place)
            return
        old = temporary.with_suffix(".old")
        place.rename(old)
        try:
            temporary.rename(place)
        except OSError:
            old.rename(place)
            raise
        shutil.rmtree(old, ignore_errors=True)
