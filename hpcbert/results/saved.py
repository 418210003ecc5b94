"""Write `results.json`, and read results: that file, `--format json`, and output of `--json`."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hpcbert.errors import ConfigError, UsageError
from hpcbert.results.document import FORMAT, SCHEMA, tables_data
from hpcbert.results.resultset import Envelope, ResultSet
from hpcbert.system import files
from hpcbert.system.decode import decode

if TYPE_CHECKING:
    from pathlib import Path

    from hpcbert.model import Group, Shape

# Versions of the document that `--json` prints; hpcbert.cli.output writes it.
_ENVELOPE = 1
MOST_TABLES = 1000
_HOW = "Name a file that hpcbert collect --json or --format json has written."


def render(results: ResultSet) -> str:
    """Return the text of a results.json, without its last newline."""
    data = {
        "format": FORMAT,
        "schema": SCHEMA,
        **tables_data(results.tables, results.made),
        "sources": [asdict(source) for source in results.sources],
        "refused": results.refused,
        "warnings": results.warnings,
        "left_out": [{"path": path, "why": why} for path, why in results.left_out],
    }
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)


def read(path: Path) -> ResultSet:
    """Read results: a file of `--format json`, or output of `--json` with tables in it.

    Raises:
        UsageError: The file can't be read, is not a file of results, is damaged, or is from a newer
            hpcbert. The error names file and place.
    """
    try:
        text = files.read(path).decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"Can't read the file: {error.strerror}.", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise UsageError(
            "These are not results: the file is not UTF-8.", where=str(path), hint=_HOW
        ) from error
    return parse(text, file=str(path))


def parse(text: str, *, file: str) -> ResultSet:
    """Return the results in a text.

    Args:
        text: The document.
        file: Its name in messages.

    Raises:
        UsageError: As `read`.
    """
    data = _data(text, file)
    try:
        if "data" in data:
            results = decode(Envelope, data, file=file).data
        else:
            results = decode(ResultSet, data, file=file)
    except ConfigError as error:
        wrong = f"The results are damaged: {error.message}"
        raise UsageError(wrong, where=file, hint=error.hint) from error
    count = len(results.tables)
    if count > MOST_TABLES:
        many = f"The file has {count:,} tables; hpcbert reads at most {MOST_TABLES:,}."
        raise UsageError(many, where=file)
    _refuse_doubles(results, file)
    return results


def _data(text: str, file: str) -> dict[str, Any]:
    """Return a document of a version that can be read.

    Raises:
        UsageError: It has another version.
    """
    try:
        data = json.loads(text, object_pairs_hook=_single)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The file is not valid JSON: {error}.", where=file, hint=_HOW) from error
    if not isinstance(data, dict):
        raise UsageError("These are not results: the file has no table.", where=file, hint=_HOW)
    inner = data.get("data") if "data" in data and "command" in data else data
    if not isinstance(inner, dict) or "tables" not in inner:
        command = data.get("command")
        what = f"what hpcbert {command} printed" if isinstance(command, str) else "JSON"
        raise UsageError(
            f"These are not results: it is {what}, without tables.", where=file, hint=_HOW
        )
    if data.get("format", FORMAT) != FORMAT:
        named = data["format"]
        raise UsageError(f"These are not results: the format is {named!r}.", where=file, hint=_HOW)
    for key, known in (("schema", SCHEMA), ("version", _ENVELOPE)):
        if data.get(key, known) != known or isinstance(data.get(key), bool):
            raise UsageError(
                f"The results have {key} {data[key]!r}; this hpcbert reads {known}.",
                where=file,
                hint="Use the version of hpcbert that wrote them, or a newer one.",
            )
    return data


def _single(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object if each of its keys appears once; JSON takes the last of several."""
    made = dict(pairs)
    if len(made) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"the key {twice!r} appears twice")
    return made


def _refuse_doubles(results: ResultSet, file: str) -> None:
    seen: dict[tuple[Group, Shape], str] = {}
    for number, table in enumerate(results.tables, 1):
        place = f"tables[{number}]"
        for row in table.rows:
            point = table.group, row.shape
            if point in seen and not (row.origin and row.origin.kind == "record"):
                text = f"The results are damaged: {row.shape} is in {seen[point]} and in {place}."
                raise UsageError(text, where=file)
            seen[point] = place
