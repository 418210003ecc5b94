"""The title of a report and its first paragraph: what was measured, and how well; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hpcbert.model import UNFINISHED, Row, SpeedupTable
from hpcbert.results.report.model import ReportInput, Words
from hpcbert.results.report.pictures import label_tables, list_devices
from hpcbert.results.wording import sanitize, table_title

_MAX_NAMES = 6
_DATE = len("2026-11-23")


def make_title(inputs: ReportInput, words: Words) -> str:
    """Return what was measured, on which devices, and when."""
    if not inputs.tables:
        return words("title.none")
    groups = [table.group for table in inputs.tables]
    dates = sorted(
        source.created[:_DATE] for source in inputs.results.sources if len(source.created) >= _DATE
    )
    when = words("title.measured", first=dates[0], last=dates[-1]) if dates else ""
    if dates and dates[0] == dates[-1]:
        when = dates[0]
    text = words(
        "title",
        models=list_names((f"{group.model} {group.precision}" for group in groups), words),
        frameworks=list_names((group.framework for group in groups), words),
        devices=_describe_devices(inputs.tables, words),
    )
    return text + (words("title.date", date=when) if when else "")


def list_names(names: Iterable[str], words: Words) -> str:
    """Return the first names, each once, and the number of the others."""
    unique = list(dict.fromkeys(map(sanitize, names)))
    text = words("comma").join(unique[:_MAX_NAMES])
    remaining = len(unique) - _MAX_NAMES
    return words("more", names=text, count=remaining) if remaining > 0 else text


def _describe_devices(tables: Iterable[SpeedupTable], words: Words) -> str:
    """Return the smallest and the largest number of devices, with their names if known."""
    tables = tuple(tables)
    counts = sorted({row.shape.gpus for table in tables for row in table.rows}) or [0]
    kinds = {table.group.device for table in tables}
    kind = kinds.pop() if len(kinds) == 1 else "mixed"
    span = str(counts[0])
    if len(counts) > 1:
        span = words("span", first=counts[0], last=counts[-1])
    names = list_names(list_devices(tables), words) if kind == "gpu" else ""
    text = _count_devices(kind, span, words)
    return words("devices.named", devices=text, names=names) if names else text


def _count_devices(kind: str, span: str, words: Words) -> str:
    return words(f"devices.{kind}-1") if span == "1" else words(f"devices.{kind}", count=span)


def describe_results(inputs: ReportInput, words: Words) -> str:
    """Return the best throughput, the efficiency, how many runs are valid, and what is wrong."""
    rows = [row for table in inputs.tables for row in table.rows]
    sentences = [*_best_sentences(inputs.tables, words), *_efficiency_sentences(inputs, words)]
    own_rows = [row for row in rows if not row.published]
    asked = sum(row.asked for row in own_rows)
    if own_rows:
        ok = sum(row.ok for row in own_rows)
        sentences.append(words("lead.counts", points=len(own_rows), ok=ok, asked=asked))
    if len(own_rows) < len(rows):
        sentences.append(words("lead.published", count=len(rows) - len(own_rows)))
    return " ".join([*sentences, *_fault_sentences(rows, words)])


def _best_sentences(tables: Iterable[SpeedupTable], words: Words) -> list[str]:
    """Return the highest throughput of each model: numbers of two models don't compare."""
    best: dict[tuple[str, str], tuple[float, SpeedupTable, Row]] = {}
    for table in tables:
        key = table.group.model, table.group.device
        for row in table.rows:
            if row.median and (key not in best or row.median > best[key][0]):
                best[key] = row.median, table, row
    if not best:
        return [words("lead.none")]
    sentences = []
    for median, table, row in best.values():
        batch = words("batch-short", size=table.group.batch)
        name = f"{table_title(table.group)} {batch} {sanitize(table.group.variant)}".rstrip()
        devices = _count_devices(table.group.device, str(row.shape.gpus), words)
        rate, unit = format(median, ",.2f"), words("axis.throughput")
        sentences.append(
            words("lead.best", name=name, rate=rate, unit=unit, devices=devices, shape=row.shape)
        )
    return sentences[:_MAX_NAMES]


def _efficiency_sentences(inputs: ReportInput, words: Words) -> list[str]:
    """Return the efficiency of each table's largest shape; of many tables, the range."""
    ends = []
    for name, table in zip(label_tables(inputs.tables, words), inputs.tables, strict=True):
        rows = [row for row in table.rows if row.efficiency and row.shape.gpus > 1]
        if rows:
            ends.append((rows[-1].efficiency or 0.0, name, rows[-1]))
    if not ends:
        return []
    is_range = len(ends) > _MAX_NAMES
    items = [
        words("lead.efficiency.of", name=name, share=format(share, ".1%"), shape=row.shape)
        for share, name, row in (sorted(ends, key=lambda end: end[0]) if is_range else ends)
    ]
    if is_range:
        return [words("lead.efficiency.range", least=items[0], most=items[-1])]
    return [words("lead.efficiency", items=words("comma").join(items))]


def _fault_sentences(rows: Iterable[Row], words: Words) -> list[str]:
    """Return the reasons of invalid runs and the flags, each with how often it occurs."""
    rows = tuple(rows)
    codes = Counter(
        code
        for row in rows
        for run in row.runs
        if not run.valid
        for code in {reason.code for reason in run.reasons}
    )
    unfinished = codes.pop(UNFINISHED, 0)
    flags = Counter(flag for row in rows if row.median for flag in row.flags)
    sentences = [words("lead.unfinished", count=unfinished)] if unfinished else []
    if codes:
        sentences.append(words("lead.invalid", items=_list_counts(codes, words)))
    if flags:
        sentences.append(words("lead.flags", items=_list_counts(flags, words)))
    return sentences or [words("flags.none")]


def _list_counts(counts: Counter[str], words: Words) -> str:
    return words("comma").join(
        sanitize(f"{name} ({count})") for name, count in counts.most_common()
    )
