"""Speedup tables as plain data for JSON: numbers unrounded, None if missing.

`results.saved` reads them back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from hpcbert.model import Adaptive, Metrics, Provenance, Row, Run, SpeedupTable, valid_throughputs
from hpcbert.results.interval import is_precise, median_limits
from hpcbert.results.words import describe_adaptive

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
    """Return the JSON text."""
    data = {"format": FORMAT, "schema": SCHEMA, **tables_data(tables, provenance)}
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)


def _table_data(table: SpeedupTable) -> dict[str, Any]:
    return {
        **{key: value for key, value in asdict(table.group).items() if key != "largest" or value},
        "baseline": str(table.baseline) if table.baseline else None,
        "rows": [_row_data(row) for row in table.rows],
    }


def _row_data(row: Row) -> dict[str, Any]:
    numbers = ("median", "mean", "min", "max", "cv", "speedup", "efficiency")
    window, origin = row.window, row.origin
    last = "end" if window is None or window.iters is None else window.iters
    return {
        "shape": str(row.shape),
        "nodes": row.shape.nodes,
        "gpus_per_node": row.shape.gpus_per_node,
        "gpus": row.shape.gpus,
        **{name: getattr(row, name) for name in numbers},
        "repeats": asdict(row.repeats),
        "adaptive": _adaptive_data(row, row.adaptive) if row.adaptive else None,
        "flags": list(row.flags),
        "unchecked": list(row.unchecked),
        "window": {**asdict(window), "iters": last} if window else None,
        "differences": [
            {
                "fact": difference.fact,
                "scope": difference.scope,
                "values": [
                    {"value": value, "of": list(owners)} for value, owners in difference.values
                ],
            }
            for difference in row.differences
        ],
        "origin": {"kind": origin.kind, "name": origin.name} if origin else None,
        "facts": {name: list(values) for name, values in row.facts},
        "metrics": _metrics_data(row.metrics) if row.metrics else None,
        "runs": [_run_data(run) for run in row.runs],
    }


def _adaptive_data(row: Row, adaptive: Adaptive) -> dict[str, Any]:
    speeds = valid_throughputs(row.runs)
    interval = median_limits(speeds) if speeds else None
    return {
        **asdict(adaptive),
        "interval": {**interval._asdict(), "width": interval.width} if interval else None,
        "reached": is_precise(speeds, adaptive.precision_of_median),
        "why": "; ".join(describe_adaptive(row)),
    }


def _metrics_data(metrics: Metrics) -> dict[str, Any]:
    unknown = [{"metric": name, "why": reason} for name, reason in metrics.unknown]
    return {**asdict(metrics), "unknown": unknown}


def _run_data(run: Run) -> dict[str, Any]:
    environments = [{"node": node, "digest": digest} for node, digest in run.environments]
    return {**asdict(run), "environments": environments}
