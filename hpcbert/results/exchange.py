"""Tables in the formats of other programs: ReFrame's perflog, exaCB's report, JUnit XML.

The perflog has the delimiter, the order (result first, performance variables last) and the columns
of a variable that ReFrame's default configuration writes (reframe-hpc/reframe 4.10.4,
reframe/core/settings.py, handlers_perflog). The report has the outline of exaCB's
(arXiv:2603.22251); its keys are hpcbert's own and were not checked against a schema.
JUnit XML is what Jenkins and GitLab read: testsuites, testsuite, testcase, failure, skipped.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Literal, NamedTuple
from xml.etree import ElementTree as ET

from hpcbert.errors import format_count
from hpcbert.model import Provenance, Row, SpeedupTable
from hpcbert.results.document import PLACE, place_data
from hpcbert.results.units import per_device
from hpcbert.results.wording import describe_reasons, invalid_repeats, sanitize, table_title

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
            place = place_data(table, row)
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
            "parameter": {**place_data(table, row), "window": row.window and row.window.counted},
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


Outcome = Literal["", "failure", "error", "skipped"]
_OUTCOMES = ("failure", "error", "skipped")


class Case(NamedTuple):
    """One test case.

    Attributes:
        suite: The title of its suite.
        group: Its class name.
        outcome: Empty if it passed.
        reason: Why it did not.
        rate: The point's median with its unit; empty if there is none.
    """

    suite: str
    group: str
    name: str
    outcome: Outcome = ""
    reason: str = ""
    rate: str = ""


def render_cases(title: str, cases: Sequence[Case]) -> bytes:
    """Return a file of test cases as JUnit XML, in a suite for each title of one."""
    root = ET.Element("testsuites", name=title)
    for suite in dict.fromkeys(case.suite for case in cases):
        members = [case for case in cases if case.suite == suite]
        counts: Counter[str] = Counter(case.outcome for case in members)
        element = ET.SubElement(root, "testsuite", name=sanitize(suite), tests=str(len(members)))
        names = dict(zip(_OUTCOMES, ("failures", "errors", "skipped"), strict=True))
        element.attrib.update({name: str(counts[outcome]) for outcome, name in names.items()})
        for case in members:
            _add_case(element, case)
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode", xml_declaration=True)
    return f"{text}\n".encode(errors="backslashreplace")


def _add_case(suite: ET.Element, case: Case) -> None:
    names = {"classname": sanitize(case.group), "name": sanitize(case.name)}
    element = ET.SubElement(suite, "testcase", names)
    if case.outcome:
        reason = sanitize(case.reason)
        ET.SubElement(element, case.outcome, message=reason).text = reason
    if case.rate:
        ET.SubElement(element, "system-out").text = sanitize(case.rate)


def list_cases(tables: Iterable[SpeedupTable], unread: Iterable[str]) -> Iterator[Case]:
    """Yield a case for each point, and one for each result that has no table.

    A point fails if a repeat is invalid, and is skipped while one waits or runs.
    """
    for table in tables:
        group = table.group
        words = [table_title(group), f"b{group.batch}", group.variant, group.rule]
        suite = " ".join(filter(None, words))
        for row in table.rows:
            outcome, reason = _judge_row(row)
            median = "" if row.median is None else f"median {row.median!r} {table.unit}/s"
            yield Case(suite, suite, str(row.shape), outcome, reason, median)
    for reason in unread:
        yield Case("no table", "hpcbert collect", reason, "error", reason)


def _judge_row(row: Row) -> tuple[Outcome, str]:
    invalid_count = row.asked - row.ok - row.unfinished
    if not row.asked - row.ok:
        return "", ""
    repeats = format_count(row.asked, "repeat")
    summary = f"{row.ok} of {repeats} valid, {invalid_count} invalid, {row.unfinished} unfinished"
    reasons = "; ".join(f"{name}: {sentence}" for name, sentence in invalid_repeats(row))
    return ("failure" if invalid_count else "skipped"), f"{summary}. {reasons}"
