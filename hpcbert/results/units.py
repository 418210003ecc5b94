"""Tables in tokens or sequences per second instead of samples. Pure.

docs/explanation/metrics.md says how the rates differ. A row without the size of its samples has no
rate in the other units: it is left empty, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hpcbert.errors import UsageError
from hpcbert.model import Row, SpeedupTable, Unit

_ROUNDING = 1e-9
# The metric with a row's rate in a unit.
_METRICS = {"tokens": "tokens_per_second", "sequences": "sequences_per_second"}


def convert_tables(tables: Iterable[SpeedupTable], unit: Unit) -> tuple[SpeedupTable, ...]:
    """Return tables with their rates in a unit; a row whose samples are of unknown size has none.

    Args:
        tables: In samples per second.

    Raises:
        UsageError: No row with a number has one in that unit.
    """
    tables = tuple(tables)
    if unit == "samples":
        return tables
    converted = tuple(
        replace(table, unit=unit, rows=tuple(_convert_row(row, unit) for row in table.rows))
        for table in tables
    )
    reasons = explain_missing(tables, unit)
    if reasons and not any(row.median for table in converted for row in table.rows):
        reason = reasons[0].partition(": ")[2]
        hint = "--unit samples needs nothing."
        if "padding" not in reason:
            hint = f"--set sequence_length=N says it for logs; {hint}"
        raise UsageError(f"No point has a rate in {unit}/s: {reason}.", hint=hint)
    return converted


def convert_known(tables: Iterable[SpeedupTable], unit: Unit) -> tuple[SpeedupTable, ...]:
    """Return those of some tables that have rates in a unit, in that unit."""
    return tuple(
        convert_tables([table], unit)[0]
        for table in tables
        if unit == "samples" or any(_factor(row, unit) for row in table.rows)
    )


def mark_tables(tables: Iterable[SpeedupTable], unit: Unit) -> tuple[SpeedupTable, ...]:
    """Return tables for documents: in samples per second, to be written with rates in a unit."""
    return tuple(replace(table, unit=unit) for table in tables)


def explain_missing(tables: Iterable[SpeedupTable], unit: Unit) -> tuple[str, ...]:
    """Return a sentence for each row with a number that has none in a unit."""
    return tuple(
        f"{table.group.framework} {row.shape} has no rate in {unit}/s: {_explain(row, unit)}"
        for table in tables
        for row in table.rows
        if unit != "samples" and row.median and _factor(row, unit) is None
    )


def _explain(row: Row, unit: Unit) -> str:
    reasons = dict(row.metrics.unknown) if row.metrics else {}
    return reasons.get(_METRICS[unit], "the saved results do not state it")


def _factor(row: Row, unit: Unit) -> float | None:
    """Return the tokens or sequences of a sample; None if unknown."""
    rate = row_rate(row, unit)
    return rate / row.median if rate and row.median else None


def _convert_row(row: Row, unit: Unit) -> Row:
    factor = _factor(row, unit)
    if factor is None:
        row = replace(row, speedup=None, efficiency=None, cv=None)
    return replace(
        row,
        median=_scale(row.median, factor),
        mean=_scale(row.mean, factor),
        min=_scale(row.min, factor),
        max=_scale(row.max, factor),
        runs=tuple(replace(run, throughput=_scale(run.throughput, factor)) for run in row.runs),
    )


def _scale(value: float | None, factor: float | None) -> float | None:
    return value * factor if value is not None and factor is not None else None


def row_rate(row: Row, unit: Unit) -> float | None:
    """Return a row's median in a unit; None if unknown."""
    return row.median if unit == "samples" else getattr(row.metrics, _METRICS[unit], None)


def real_rate(row: Row, unit: Unit) -> float | None:
    """Return the tokens per second that are not padding; None if unknown, or in other units."""
    return row.metrics.real_tokens_per_second if row.metrics and unit == "tokens" else None


def table_factor(table: SpeedupTable, unit: Unit) -> float:
    """Return the tokens or sequences of a sample, the same in all rows of a table.

    Raises:
        UsageError: It is unknown, or differs between rows.
    """
    if unit == "samples":
        return 1.0
    rows = [row for row in table.rows if row.median]
    factors = [factor for row in rows if (factor := _factor(row, unit))]
    if rows and len(factors) < len(rows):
        raise UsageError(f"{explain_missing([table], unit)[0]}.", hint="Leave --unit out.")
    if factors and max(factors) > min(factors) * (1 + _ROUNDING):
        raise UsageError(
            f"The points of {table.group.framework} differ in the {unit} of a sample, "
            f"{min(factors):g} and {max(factors):g}.",
            hint="Leave --unit out, or name the points of one length.",
        )
    return factors[0] if factors else 1.0


def per_device(row: Row) -> float | None:
    """Return the median over the number of devices."""
    return None if row.median is None else row.median / row.shape.gpus


def rate_data(row: Row, unit: Unit) -> dict[str, Any]:
    """Return a row's rates in a unit, as docs/reference/json.md describes them."""
    converted = _convert_row(row, unit)
    return {
        "unit": f"{unit}/s",
        **{name: getattr(converted, name) for name in ("median", "mean", "min", "max")},
        "per_gpu": per_device(converted),
        "real": real_rate(row, unit),
    }
