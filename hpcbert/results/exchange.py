"""Tables in the formats of other benchmark programs: ReFrame's perflog, exaCB's report.

The perflog has the delimiter, the order (result first, performance variables last) and the columns
of a variable that ReFrame's default configuration writes (reframe-hpc/reframe 4.10.4,
reframe/core/settings.py, handlers_perflog). The report has the outline of exaCB's
(arXiv:2603.22251); its keys are hpcbert's own and were not checked against a schema.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from dataclasses import asdict

from hpcbert.model import Provenance, Row, SpeedupTable
from hpcbert.results.document import PLACE
from hpcbert.results.units import per_device
from hpcbert.results.wording import describe_reasons

_VARIABLES = ("throughput", "throughput_min", "throughput_max", "throughput_per_gpu")
_PERFLOG_TITLES = (
    *("result", "job_completion_time", "name", *PLACE, "ok", "asked", "flags", "window"),
    *("hpcbert", "date", "command"),
    *(
        f"{variable}_{part}"
        for variable in _VARIABLES
        for part in ("value", "unit", "ref", "lower_thres", "upper_thres")
    ),
)


def render_perflog(tables: Iterable[SpeedupTable], provenance: Provenance, _width: int = 0) -> str:
    """Return a header and a line for each point, separated by bars.

    A point passes if all of its repeats are valid. Columns for what hpcbert does not know, such as
    thresholds, are empty.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter="|", lineterminator="\n")
    writer.writerow(_PERFLOG_TITLES)
    for table in tables:
        for row in table.rows:
            place = _place(table, row)
            rates = (row.median, row.min, row.max, per_device(row))
            point_name = f"{place['framework']}_{row.shape}_{place['precision']}"
            writer.writerow(
                (
                    *("pass" if row.ok == row.asked else "fail", "", point_name, *place.values()),
                    *(row.ok, row.asked, " ".join(row.flags)),
                    row.window.counted if row.window else "",
                    *(provenance.hpcbert, provenance.date, provenance.command),
                    *(cell for rate in rates for cell in (rate, f"{table.unit}/s", "", "", "")),
                )
            )
    return stream.getvalue().rstrip("\n")


def render_exacb(tables: Iterable[SpeedupTable], provenance: Provenance, _width: int = 0) -> str:
    """Return a report with an entry in `data` for each repeat, invalid ones with their reasons."""
    entries = [
        {
            "success": run.valid,
            "nodes": row.shape.nodes,
            "taskspernode": row.shape.gpus_per_node,
            "nodelist": list(run.nodes),
            "repeat": run.repeat,
            "reasons": describe_reasons(run),
            "flags": list(dict.fromkeys((*row.flags, *run.flags))),
            "parameter": {**_place(table, row), "window": row.window and row.window.counted},
            "metrics": {
                "throughput": run.throughput if run.valid else None,
                "median": row.median,
                "median_per_gpu": per_device(row),
                "unit": f"{table.unit}/s",
            },
        }
        for table in tables
        for row in table.rows
        for run in row.runs
    ]
    document = {
        "reporter": {"tool": "hpcbert", **asdict(provenance)},
        "experiment": {"benchmark": "BERT pre-training", "metric": "throughput"},
        "data": entries,
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1)


def _place(table: SpeedupTable, row: Row) -> dict[str, str | int]:
    values = {**asdict(table.group), **asdict(row.shape), "gpus": row.shape.gpus}
    return {name: values[name] for name in PLACE}
