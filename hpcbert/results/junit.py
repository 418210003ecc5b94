"""JUnit XML, as Jenkins and GitLab read it: testsuites, testsuite, testcase, failure, skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple
from xml.etree import ElementTree as ET

from hpcbert.errors import format_count
from hpcbert.model import Row, SpeedupTable
from hpcbert.results.wording import invalid_repeats, sanitize, table_title

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

    Args:
        tables: The tables.
        unread: Why something has no table.
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
