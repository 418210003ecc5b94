"""A report's directory: written whole or not at all, without losing anything in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hpcbert.campaign import archive, evidence, store
from hpcbert.campaign.fingerprint import LARGEST, NODES, read_documents
from hpcbert.config import recipe
from hpcbert.config.recipe import Recipe
from hpcbert.errors import ConfigError, HpcbertError, UsageError
from hpcbert.model import ARCHIVE, Provenance, Unit
from hpcbert.results import document
from hpcbert.results.document import ResultSet, Source
from hpcbert.results.metrics import mark_tables
from hpcbert.results.report import figures, formats
from hpcbert.results.report.model import Picture, Report, ReportInput, SourceFiles
from hpcbert.results.report.sections import compose_report
from hpcbert.results.words import LANGUAGES, Words
from hpcbert.system.files import hash_file, read, temporary_for, translate_errors
from hpcbert.system.workers import track

# The file that makes a directory a report: `sha256sum --check` reads it.
SUMS = "SHA256SUMS"
# What UTF-8 can't write becomes JSON's escape for it.
_ESCAPE = "backslashreplace"
_ELSEWHERE = "Name another directory with --output, or move its contents."


def choose_directory(results: ResultSet) -> Path:
    """Return where a report goes by default: into its campaign, else the working directory."""
    places = [source.path for source in results.sources if source.kind == "campaign"]
    if len(results.sources) == len(places) == 1:
        directory = Path(places[0])
        if directory.is_dir() and not store.find_foreign_owner(directory):
            return directory / "report"
    return Path("report")


class WrittenReport(NamedTuple):
    """The written files.

    Attributes:
        files: Names, relative to the directory.
        masked: Logs of logs.zip with masked secrets.
    """

    directory: Path
    files: tuple[str, ...]
    masked: tuple[str, ...]


def write_report(
    results: ResultSet,
    target: Path,
    *,
    provenance: Provenance,
    recipes: Mapping[str, Path],
    title: str,
    language: str,
    size: str,
    with_logs: bool,
    unit: Unit,
) -> WrittenReport:
    """Write the report of some results into a directory.

    Args:
        target: The directory: new, empty, or an earlier report that nobody changed.
        title: Title of the report; empty for the usual one.
        language: Language of the page: one of LANGUAGES. Markdown is written in all of them.
        unit: What the rates count; results.json keeps samples and adds the others.

    Raises:
        UsageError: The directory holds something else, there is no result, or none in the unit.
    """
    if not results.tables:
        raise UsageError("There is no result to report.")
    directory = target.resolve()
    _refuse_to_replace(directory, target)
    with ExitStack() as stack:
        campaigns = _find_campaigns(results, stack)
        inputs = ReportInput(
            title=title,
            provenance=provenance,
            results=results,
            source_files=tuple(
                _read_backing(source, results, campaigns) for source in results.sources
            ),
            recipes=_find_recipes(results, campaigns, recipes),
            unit=unit,
        )
        reports = {code: compose_report(inputs, Words(code, unit)) for code in LANGUAGES}
        temporary = temporary_for(directory)
        with translate_errors("write", target):
            temporary.mkdir(parents=True)
        stack.callback(shutil.rmtree, temporary, ignore_errors=True)
        made, tables = results.made or provenance, mark_tables(results.tables, unit)
        saved = replace(results, tables=tables, made=made)
        for name, content in _render_files(reports, saved, language, size):
            _write_file(temporary / name, content)
        masked = _pack_logs(temporary / "logs.zip", results, campaigns) if with_logs else ()
        names = _list_files(temporary)
        lines = [f"{hash_file(temporary / name)[1]}  {name}\n" for name in names]
        _write_file(temporary / SUMS, "".join(lines).encode(errors=_ESCAPE))
        _publish(temporary, directory, target)
    return WrittenReport(target, (*names, SUMS), masked)


def _render_files(
    reports: Mapping[str, Report], saved: ResultSet, language: str, size: str
) -> Iterator[tuple[str, bytes]]:
    """Yield every file of a report but its logs; `saved` becomes results.json."""
    for code, report in reports.items():
        ending = ".md" if code == LANGUAGES[0] else f".{code}.md"
        yield f"report{ending}", formats.render_markdown(report).encode(errors=_ESCAPE)
    report = reports[language]
    for script in report.scripts:
        yield script.file, script.text.encode(errors=_ESCAPE)
    pictures = track(report.pictures, "drawing figures")
    drawings = {picture.name: figures.draw(picture, size=size) for picture in pictures}
    yield "index.html", formats.render_page(report, drawings).encode(errors=_ESCAPE)
    for name, drawing in drawings.items():
        yield from ((f"figures/{name}.{form}", content) for form, content in drawing.items())
    for grid in track(report.grids, "writing tables"):
        yield f"tables/{grid.name}.csv", formats.render_csv(grid).encode(errors=_ESCAPE)
        tex = formats.render_latex(grid, han=language == "zh")
        yield f"tables/{grid.name}.tex", tex.encode("utf-8", "replace")
    yield "results.json", f"{document.render_results(saved)}\n".encode(errors=_ESCAPE)


def list_pictures(results: ResultSet, provenance: Provenance, language: str) -> list[Picture]:
    """Return the figures that a report of some results has."""
    unit = results.tables[0].unit if results.tables else "samples"
    inputs = ReportInput("", provenance, results, unit=unit)
    return figures.make_pictures(inputs, Words(language, unit))[0]


# --- the sources ---------------------------------------------------------------------------------


def _find_campaigns(results: ResultSet, stack: ExitStack) -> dict[str, Path]:
    """Return the directory of each campaign that still exists, archives unpacked, by its id."""
    paths: dict[str, Path] = {}
    for source in results.sources:
        path = Path(source.path)
        if source.kind != "campaign" or not source.path:
            continue
        if path.is_dir():
            paths[source.name] = path
        elif path.name.endswith(ARCHIVE) and path.is_file():
            with suppress(HpcbertError):
                paths[source.name] = stack.enter_context(archive.open_archive(path))
    return paths


def _read_backing(source: Source, results: ResultSet, campaigns: Mapping[str, Path]) -> SourceFiles:
    """Read what is known of the files behind a source; logs are digested as they are now."""
    if source.kind == "logs":
        digests = {}
        for log in _list_logs(source, results):
            with suppress(OSError):
                digests[log] = hash_file(Path(log))[1]
        return SourceFiles(digests=digests)
    directory = campaigns.get(source.name)
    if directory is None:
        return SourceFiles()
    try:
        campaign = store.read_manifest(directory)
        record = evidence.read_measurements(directory)
    except HpcbertError:
        return SourceFiles()
    files = record[evidence.EVIDENCE]["files"] if record else {}
    largest, script = max(campaign.measured, key=lambda array: array.point.shape.gpus), ("", "")
    with suppress(OSError):
        text = read(directory / largest.script).decode("utf-8", "replace")
        script = largest.script, text
    return SourceFiles(
        script=script,
        topologies=_read_topologies(directory / "env"),
        digests={str(path): str(entry["sha256"]) for path, entry in files.items()},
    )


def _list_logs(source: Source, results: ResultSet) -> Iterator[str]:
    """Yield the paths of the logs behind a source's rows."""
    for row in (row for table in results.tables for row in table.rows):
        if row.origin and (row.origin.kind, row.origin.name) == (source.kind, source.name):
            yield from (run.log for run in row.runs if run.log)


def _read_topologies(folder: Path) -> dict[str, tuple[str, ...]]:
    """Return the output of `nvidia-smi topo -m` on each node, once per node."""
    topologies: dict[str, tuple[str, ...]] = {}
    for path in sorted(folder.glob(f"*{NODES}")):
        with suppress(OSError):
            for nodes, document in read_documents(read(path, max_bytes=LARGEST)):
                host = document.get("host")
                lines = host.get("topology") if isinstance(host, dict) else None
                if isinstance(lines, list):
                    texts = tuple(line for line in lines if isinstance(line, str))
                    for node in nodes:
                        topologies.setdefault(node, texts)
    return topologies


def _find_recipes(
    results: ResultSet, campaigns: Mapping[str, Path], folders: Mapping[str, Path]
) -> tuple[Recipe, ...]:
    """Return the recipe of each framework: the copy that its campaign used, else the one here."""
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


def _pack_logs(target: Path, results: ResultSet, campaigns: Mapping[str, Path]) -> tuple[str, ...]:
    """Write the logs of all runs, each campaign's in its own folder."""
    logs: dict[str, Path] = {}
    foreign_logs: list[Path] = []
    for source in results.sources:
        for log in _list_logs(source, results):
            if source.name in campaigns:
                logs[f"{source.name}/{log}"] = campaigns[source.name] / log
            else:
                foreign_logs.append(Path(log).absolute())
    if foreign_logs:
        base = Path(os.path.commonpath([path.parent for path in foreign_logs]))
        logs |= {f"logs/{path.relative_to(base)}": path for path in foreign_logs}
    paths = {entry: path for entry, path in logs.items() if path.is_file()}
    return archive.pack_logs(target, paths)


# --- the directory -------------------------------------------------------------------------------


def _write_file(path: Path, content: bytes) -> None:
    with translate_errors("write", path):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)


def _list_files(directory: Path) -> tuple[str, ...]:
    paths = (path for path in directory.rglob("*") if path.is_symlink() or not path.is_dir())
    return tuple(sorted(str(path.relative_to(directory)) for path in paths))


def _refuse_to_replace(directory: Path, shown_path: Path) -> None:
    """Refuse a directory if a report would replace something in it that it did not write."""
    with translate_errors("read", shown_path):
        problem = _find_foreign_content(directory) if directory.exists() else ""
    if problem:
        raise UsageError(problem, where=str(shown_path), hint=_ELSEWHERE)


def _find_foreign_content(directory: Path) -> str:
    if not directory.is_dir():
        return "The path is not a directory."
    if not any(directory.iterdir()):
        return ""
    if not (directory / SUMS).is_file():
        return "The directory is neither empty nor a report."
    lines = read(directory / SUMS).decode("utf-8", "replace").splitlines()
    for name in _list_files(directory):
        path = directory / name
        is_file = path.is_file() and not path.is_symlink()
        is_ours = is_file and f"{hash_file(path)[1]}  {name}" in lines
        if name != SUMS and not is_ours:
            return f"{name!r} was changed since the report there was written, and would be lost."
    return ""


def _publish(temporary: Path, directory: Path, shown_path: Path) -> None:
    """Give a finished report its name; who is killed meanwhile leaves an earlier one whole."""
    old_report = temporary.with_suffix(".old")
    with translate_errors("write", shown_path):
        if directory.exists():
            directory.rename(old_report)
        temporary.rename(directory)
    shutil.rmtree(old_report, ignore_errors=True)
