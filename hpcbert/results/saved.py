"""Write `results.json`, and read results: that file, `--format json`, and output of `--json`."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpcbert.errors import ConfigError, UsageError
from hpcbert.model import Group, Shape
from hpcbert.results.document import FORMAT, SCHEMA, tables_data
from hpcbert.results.resultset import Envelope, ResultSet
from hpcbert.system import files
from hpcbert.system.decode import decode

# Versions of the document that `--json` prints; hpcbert.cli.output writes it.
_ENVELOPE_VERSION = 1
MAX_TABLES = 1000
_HINT = "Name a file that hpcbert collect --json or --format json has written."


def render_results(results: ResultSet) -> str:
    """Return the text of a results.json, without its last newline."""
    data = {
        "format": FORMAT,
        "schema": SCHEMA,
        **tables_data(results.tables, results.made),
        "sources": [asdict(source) for source in results.sources],
        "refused": results.refused,
        "warnings": results.warnings,
        "left_out": [{"path": path, "why": reason} for path, reason in results.left_out],
    }
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)


def read_results(path: Path) -> ResultSet:
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
            "These are not results: the file is not UTF-8.", where=str(path), hint=_HINT
        ) from error
    return parse_results(text, file=str(path))


def parse_results(text: str, *, file: str) -> ResultSet:
    """Return the results in a text.

    Args:
        text: The document.
        file: Its name in messages.

    Raises:
        UsageError: As `read_results`.
    """
    data = _load_document(text, file)
    try:
        if "data" in data:
            results = decode(Envelope, data, file=file).data
        else:
            results = decode(ResultSet, data, file=file)
    except ConfigError as error:
        message = f"The results are damaged: {error.message}"
        raise UsageError(message, where=file, hint=error.hint) from error
    count = len(results.tables)
    if count > MAX_TABLES:
        limit_message = f"The file has {count:,} tables; hpcbert reads at most {MAX_TABLES:,}."
        raise UsageError(limit_message, where=file)
    _refuse_repeated_points(results, file)
    return results


def _load_document(text: str, file: str) -> dict[str, Any]:
    """Return a document of a version that can be read.

    Raises:
        UsageError: It has another version.
    """
    try:
        data = json.loads(text, object_pairs_hook=_refuse_repeated_keys)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The file is not valid JSON: {error}.", where=file, hint=_HINT) from error
    if not isinstance(data, dict):
        raise UsageError("These are not results: the file has no table.", where=file, hint=_HINT)
    payload = data.get("data") if "data" in data and "command" in data else data
    if not isinstance(payload, dict) or "tables" not in payload:
        command = data.get("command")
        description = f"what hpcbert {command} printed" if isinstance(command, str) else "JSON"
        raise UsageError(
            f"These are not results: it is {description}, without tables.", where=file, hint=_HINT
        )
    if data.get("format", FORMAT) != FORMAT:
        format_name = data["format"]
        raise UsageError(
            f"These are not results: the format is {format_name!r}.", where=file, hint=_HINT
        )
    for key, supported in (("schema", SCHEMA), ("version", _ENVELOPE_VERSION)):
        if data.get(key, supported) != supported or isinstance(data.get(key), bool):
            raise UsageError(
                f"The results have {key} {data[key]!r}; this hpcbert reads {supported}.",
                where=file,
                hint="Use the version of hpcbert that wrote them, or a newer one.",
            )
    return data


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object if each of its keys appears once; JSON takes the last of several."""
    members = dict(pairs)
    if len(members) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        repeated_key = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"the key {repeated_key!r} appears twice")
    return members


def _refuse_repeated_points(results: ResultSet, file: str) -> None:
    places: dict[tuple[Group, Shape], str] = {}
    for number, table in enumerate(results.tables, 1):
        place = f"tables[{number}]"
        for row in table.rows:
            point = table.group, row.shape
            if point in places and not (row.origin and row.origin.kind == "record"):
                text = f"The results are damaged: {row.shape} is in {places[point]} and in {place}."
                raise UsageError(text, where=file)
            places[point] = place
