"""Parts of the output of `hpcbert collect --json`: its only table, rows, runs and reasons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.kit.cli import CliResult

Document = dict[str, Any]
Collect = Callable[..., CliResult]
CollectJson = Callable[..., Document]


def rows(document: Document) -> list[Document]:
    (table,) = document["data"]["tables"]
    table_rows: list[Document] = table["rows"]
    return table_rows


def first_row(document: Document) -> Document:
    return rows(document)[0]


def runs(document: Document) -> dict[int, Document]:
    """Return the runs of the first row by their repeats."""
    return {run["repeat"]: run for run in first_row(document)["runs"]}


def only_run(document: Document) -> Document:
    (row,) = rows(document)
    (run,) = row["runs"]
    result: Document = run
    return result


def codes(row: Document) -> list[list[str]]:
    """Return the codes of the reasons against each run."""
    return [[reason["code"] for reason in run["reasons"]] for run in row["runs"]]
