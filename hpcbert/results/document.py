"""Results, wherever they come from, and the JSON documents that hold them.

Numbers are unrounded, None if missing. Those of a document that is read are compared with their
runs: a changed table is refused.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from math import isclose
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

from hpcbert.errors import ConfigError, UsageError, describe_error
from hpcbert.model import (
    Adaptive,
    Group,
    Material,
    Protocol,
    Provenance,
    Row,
    Run,
    ShapeText,
    SpeedupTable,
    Unit,
    valid_throughputs,
)
from hpcbert.results.interval import is_precise, median_limits
from hpcbert.results.metrics import per_device, rate_data
from hpcbert.results.reduce import FOREIGN
from hpcbert.results.wording import describe_adaptive, describe_differences, describe_reasons
from hpcbert.system import files
from hpcbert.system.decode import EncodedAs, IgnoreUnknown, Invalid, TableKeys, decode

# The fields of a group, of a point's place and of its numbers, in the order of all tables.
GROUP = ("framework", "model", "precision", "batch_size_per_device", "variant", "rule", "device")
PLACE = (*GROUP, "nodes", "gpus_per_node", "gpus")
_RATES = ("median", "mean", "min", "max", "cv", "speedup", "efficiency")
NUMBERS = (*_RATES, "ok", "asked")
# hpcbert writes all digits; another program may have dropped the last one.
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class NodeFacts(IgnoreUnknown):
    """The facts of nodes that are equal in everything that can change a number."""

    digest: str
    nodes: tuple[str, ...]
    facts: Mapping[str, str]


@dataclass(frozen=True)
class Source(IgnoreUnknown):
    """The source of points; for logs that hpcbert did not submit, most of it is unknown and empty.

    Attributes:
        created, hpcbert, command, site, scheduler, runtime, image, framework, recipe_digest,
            protocol, materials: As in the campaign.
    """

    kind: Literal["campaign", "logs", "record"]
    name: str
    path: str = ""
    created: str = ""
    hpcbert: str = ""
    command: tuple[str, ...] = ()
    site: str = ""
    scheduler: str = ""
    runtime: str = ""
    image: str = ""
    framework: str = ""
    recipe_digest: str = ""
    protocol: Protocol | None = None
    materials: tuple[Material, ...] = ()
    environments: tuple[NodeFacts, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Table(Group, IgnoreUnknown):
    """A speedup table in a document: the keys of its group lie next to `rows`."""

    baseline: ShapeText | None
    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        base = next((row.median for row in self.rows if row.shape == self.baseline), None)
        for number, row in enumerate(self.rows, 1):
            place = f"rows[{number}]"
            if not row.published:
                _check_runs(row, place)
            if row.speedup is not None and base and row.median:
                speedup = row.median / base
                _check_equal(f"{place}.speedup", row.speedup, speedup)
                _check_equal(f"{place}.efficiency", row.efficiency, speedup / row.shape.gpus)

    def speedup_table(self) -> SpeedupTable:
        """Return the table without the document's layout."""
        group = Group(**{key.name: getattr(self, key.name) for key in fields(Group)})
        return SpeedupTable(group, self.baseline, self.rows)


@dataclass(frozen=True)
class ResultSet(IgnoreUnknown):
    """Tables, wherever they come from.

    Attributes:
        tables: Each row has an `origin`.
        sources: The sources that the origins name, in the same order.
        left_out: Files that were read but are not in a table: each path with the reason.
    """

    tables: tuple[Annotated[SpeedupTable, EncodedAs(_Table, _Table.speedup_table)], ...]
    made: Provenance | None = None
    sources: tuple[Source, ...] = ()
    refused: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    left_out: tuple[Annotated[tuple[str, str], TableKeys("path", "why")], ...] = ()


def _check_runs(row: Row, place: str) -> None:
    """Refuse a row with numbers that do not follow from its runs."""
    for number, run in enumerate(row.runs, 1):
        if run.valid and run.throughput is None:
            key = f"{place}.runs[{number}].throughput"
            raise Invalid("is missing, but the run is valid", key=key)
    speeds = valid_throughputs(row.runs)
    if row.ok != len(speeds):
        text = f"is {row.ok}, but {len(speeds)} of its runs are valid"
        raise Invalid(text, key=f"{place}.repeats.ok")
    if row.median is not None and not speeds:
        text = f"is {row.median:g}, but none of its runs is valid"
        raise Invalid(text, key=f"{place}.median")
    if row.median is not None:
        _check_equal(f"{place}.median", row.median, median(speeds))
        _check_equal(f"{place}.min", row.min, min(speeds))
        _check_equal(f"{place}.max", row.max, max(speeds))


def _check_equal(key: str, stated: float | None, computed: float) -> None:
    if stated is not None and not isclose(stated, computed, rel_tol=_TOLERANCE):
        raise Invalid(f"is {stated!r}, but its runs give {computed!r}", key=key)


# The format that a file of results names. A change that breaks readers increases the schema.
FORMAT = "hpcbert-results"
SCHEMA = 1


def tables_data(
    tables: Iterable[SpeedupTable], provenance: Provenance | None = None
) -> dict[str, Any]:
    """Return `{"tables": […]}` as docs/reference/json.md describes it, with how they were made."""
    data: dict[str, Any] = {"made": asdict(provenance)} if provenance else {}
    return {**data, "tables": [_table_data(table) for table in tables]}


def render_json(tables: Iterable[SpeedupTable], provenance: Provenance, _width: int = 0) -> str:
    """Return tables as the JSON text of a file of results."""
    return _dump(tables_data(tables, provenance))


def _dump(data: Mapping[str, Any]) -> str:
    document = {"format": FORMAT, "schema": SCHEMA, **data}
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)


def _table_data(table: SpeedupTable) -> dict[str, Any]:
    return {
        **{key: value for key, value in asdict(table.group).items() if key != "largest" or value},
        "baseline": str(table.baseline) if table.baseline else None,
        "rows": [_row_data(row, table.unit) for row in table.rows],
    }


def place_data(table: SpeedupTable, row: Row) -> dict[str, Any]:
    """Return what identifies a point, by the names in PLACE."""
    values = {**asdict(table.group), **asdict(row.shape), "gpus": row.shape.gpus}
    return {name: values[name] for name in PLACE}


def point_values(table: SpeedupTable, row: Row) -> dict[str, Any]:
    """Return a point's place, numbers, metrics and words, by the names of columns in all forms."""
    reasons = [f"repeat {run.repeat}: {describe_reasons(run)}" for run in row.runs if not run.valid]
    return {
        **(vars(row.metrics) if row.metrics else {}),
        **place_data(table, row),
        **{name: getattr(row, name) for name in NUMBERS},
        "per_gpu": per_device(row),
        "flags": " ".join(row.flags),
        "reasons": "; ".join(reasons),
        "differences": "; ".join(describe_differences(row)),
        **_origin_values(table, row),
    }


def run_values(table: SpeedupTable, row: Row, run: Run) -> dict[str, Any]:
    """Return a run's place and values, by the names of columns in all forms."""
    return {
        **place_data(table, row),
        **{name: getattr(run, name) for name in ("repeat", "attempt", "throughput", "valid")},
        "flags": " ".join(run.flags),
        "reasons": describe_reasons(run),
        "state": "" if run.state == FOREIGN else run.state,
        "nodelist": " ".join(run.nodes),
        "log": run.log,
        **_origin_values(table, row),
    }


def _origin_values(table: SpeedupTable, row: Row) -> dict[str, str]:
    return {
        "window": row.window.counted if row.window else "",
        "source": row.origin.name if row.origin else "",
        "unit": f"{table.unit}/s",
    }


def _row_data(row: Row, unit: Unit) -> dict[str, Any]:
    window, origin = row.window, row.origin
    last = "end" if window is None or window.iters is None else window.iters
    return {
        "shape": str(row.shape),
        **asdict(row.shape),
        "gpus": row.shape.gpus,
        **{name: getattr(row, name) for name in _RATES},
        "repeats": asdict(row.repeats),
        "adaptive": _adaptive_data(row, row.adaptive) if row.adaptive else None,
        "flags": list(row.flags),
        "unchecked": list(row.unchecked),
        "window": {**asdict(window), "iters": last} if window else None,
        "differences": [
            {
                "fact": difference.fact,
                "scope": difference.scope,
                "values": _name_pairs(difference.values, "value", "of"),
            }
            for difference in row.differences
        ],
        "origin": {"kind": origin.kind, "name": origin.name} if origin else None,
        "facts": dict(row.facts),
        "metrics": {
            **asdict(row.metrics),
            "unknown": _name_pairs(row.metrics.unknown, "metric", "why"),
        }
        if row.metrics
        else None,
        "runs": [
            {
                # asdict copies each name, which costs most of the time for thousands of nodes.
                **asdict(replace(run, nodes=(), environments=())),
                "nodes": run.nodes,
                "environments": _name_pairs(run.environments, "node", "digest"),
            }
            for run in row.runs
        ],
        **({"rates": rate_data(row, unit)} if unit != "samples" else {}),
    }


def _name_pairs(pairs: Iterable[tuple[Any, Any]], *names: str) -> list[dict[str, Any]]:
    return [dict(zip(names, pair, strict=True)) for pair in pairs]


def _adaptive_data(row: Row, adaptive: Adaptive) -> dict[str, Any]:
    speeds = valid_throughputs(row.runs)
    interval = median_limits(speeds) if speeds else None
    return {
        **asdict(adaptive),
        "interval": {**interval._asdict(), "width": interval.width} if interval else None,
        "reached": is_precise(speeds, adaptive.precision_of_median),
        "why": "; ".join(describe_adaptive(row)),
    }


# Versions of the document that `--json` prints; hpcbert.cli.output writes it.
_ENVELOPE_VERSION = 1
MAX_TABLES = 1000
_HINT = "Name a file that hpcbert collect --json or --format json has written."


def render_results(results: ResultSet) -> str:
    """Return the text of a results.json, without its last newline."""
    data = {
        **tables_data(results.tables, results.made),
        "sources": [asdict(source) for source in results.sources],
        "refused": results.refused,
        "warnings": results.warnings,
        "left_out": _name_pairs(results.left_out, "path", "why"),
    }
    return _dump(data)


def read_results(path: Path) -> ResultSet:
    """Read results: a file of `--format json`, or output of `--json` with tables in it.

    Raises:
        UsageError: The file can't be read, is not a file of results, is damaged, or is from a newer
            hpcbert. The error names file and place.
    """
    try:
        text = files.read(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        message = f"The file can't be read: {describe_error(error)}."
        raise UsageError(message, where=str(path), hint=_HINT) from error
    return parse_results(text, file=str(path))


def parse_results(text: str, *, file: str) -> ResultSet:
    """Return the results in a text."""
    data = _load_document(text, file)
    try:
        results = decode(ResultSet, data, file=file)
    except ConfigError as error:
        message = f"The results are damaged: {error.message}"
        raise UsageError(message, where=file, hint=error.hint) from error
    count = len(results.tables)
    if count > MAX_TABLES:
        message = f"The file has {count:,} tables; hpcbert reads at most {MAX_TABLES:,}."
        raise UsageError(message, where=file)
    points = Counter(
        (table.group, row.shape)
        for table in results.tables
        for row in table.rows
        if not row.published
    )
    for (group, shape), number in points.items():
        if number > 1:
            message = f"The results are damaged: {group.framework} {shape} is there {number} times."
            raise UsageError(message, where=file)
    return results


def _load_document(text: str, file: str) -> dict[str, Any]:
    """Return a document with tables, of a version that can be read; refuse others."""
    try:
        data = json.loads(text, object_pairs_hook=_refuse_repeated_keys)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The file is not valid JSON: {error}.", where=file, hint=_HINT) from error
    # What `--json` prints has the document in `data`.
    payload = data.get("data", data) if isinstance(data, dict) else None
    if not isinstance(payload, dict) or "tables" not in payload:
        raise UsageError("These are not results: there are no tables.", where=file, hint=_HINT)
    versions = (("format", FORMAT), ("schema", SCHEMA), ("version", _ENVELOPE_VERSION))
    for key, supported in versions:
        if data.get(key, supported) != supported:
            raise UsageError(
                f"The results have {key} {data[key]!r}; this hpcbert reads {supported!r}.",
                where=file,
                hint="Use the version of hpcbert that wrote them, or a newer one.",
            )
    return payload


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object, and refuse a repeated key: JSON takes the last of several."""
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise ValueError(f"the key {name!r} appears twice")
        members[name] = value
    return members
