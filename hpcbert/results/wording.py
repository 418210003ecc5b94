"""Sentences about tables, rows and runs, with words from logs and paths made safe to show."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from hpcbert.config.options import FEWEST_REPEATS
from hpcbert.errors import format_count
from hpcbert.model import Adaptive, Group, Protocol, Row, Run, SpeedupTable, valid_throughputs
from hpcbert.results.interval import is_precise, median_limits
from hpcbert.results.reduce import FOREIGN
from hpcbert.slurm.hostlist import fold
from hpcbert.system import grouping

_MAX_DIFFERENCES = 3
_NUMBER = re.compile(r"\d+")


def sanitize(text: str) -> str:
    """Return text on one line, with a replacement for each character that is not printable."""
    flat = " ".join(text.split())
    return "".join(char if char.isprintable() else "�" for char in flat)


def cpu_suffix(group: Group) -> str:
    """Return `CPU` behind a blank; empty for a table of GPUs."""
    return " CPU" if group.device == "cpu" else ""


def table_title(group: Group) -> str:
    """Return framework, model and precision of a table, and `CPU` for a table of CPUs."""
    return sanitize(f"{group.framework} {group.model} {group.precision}{cpu_suffix(group)}")


def device_word(group: Group) -> str:
    """Return a table's word for one computing device: `GPU` or `rank`."""
    return "rank" if group.device == "cpu" else "GPU"


def describe_reasons(run: Run) -> str:
    """Return the reasons against a repeat, as one line."""
    return sanitize("; ".join(map(str, run.reasons)))


def invalid_repeats(row: Row) -> tuple[tuple[str, str], ...]:
    """Return the invalid repeats of a row and why; those with the same reason are together.

    `repeat 3`, `5 repeats` for all of the row, `2 repeats (1, 4)` for some of it.
    """
    reasons = grouping.group((describe_reasons(run), run) for run in row.runs if not run.valid)
    return tuple((_name_repeats(runs, row), reason) for reason, runs in reasons.items())


def _name_repeats(runs: list[Run], row: Row) -> str:
    if len(runs) == 1:
        (run,) = runs
        return _name_run(run, row) + (f" (attempt {run.attempt})" if run.attempt else "")
    text = ", ".join(_name_run(run, row).removeprefix("repeat ") for run in runs)
    return f"{len(runs)} repeats" + ("" if len(runs) == len(row.runs) else f" ({text})")


def _name_run(run: Run, row: Row) -> str:
    """Return a run's name: `repeat N`, or its log if the log's name has another number."""
    numbers = _NUMBER.findall(PurePath(run.log).stem)
    if run.state != FOREIGN or not run.log or numbers[-1:] == [str(run.repeat)]:
        return f"repeat {run.repeat}"
    name = PurePath(run.log).name
    same_named = [other_run for other_run in row.runs if PurePath(other_run.log).name == name]
    return sanitize(name if len(same_named) == 1 else run.log)


def describe_window(table: SpeedupTable) -> str:
    """Return the counted part of the runs, as clauses that each end in `; `."""
    parts = dict.fromkeys(row.window.counted for row in table.rows if row.window)
    return "".join(f"{sanitize(part)}; " for part in parts)


def earlier_attempts(run: Run) -> tuple[str, ...]:
    """Return the outcome of a repeat's other attempts, one sentence each."""
    sentences = []
    for attempt in run.attempts:
        if attempt.attempt != run.attempt:
            nodes = f" on {fold(attempt.nodes)}" if attempt.nodes else ""
            detail = f": {attempt.detail}" if attempt.detail else ""
            text = f"repeat {run.repeat} attempt {attempt.attempt}{nodes} was {attempt.state}"
            sentences.append(sanitize(text + detail))
    return tuple(sentences)


def describe_differences(row: Row) -> tuple[str, ...]:
    """Return the first differences between a row's nodes, and the number of the others."""
    shown = [sanitize(str(difference)) for difference in row.differences[:_MAX_DIFFERENCES]]
    remaining = len(row.differences) - len(shown)
    return (*shown, f"{remaining} more: --json has them all") if remaining else tuple(shown)


def describe_adaptive(row: Row) -> tuple[str, ...]:
    """Return the number of repeats and its reason; empty if the number was fixed."""
    if not row.adaptive:
        return ()
    return (describe_sufficiency(valid_throughputs(row.runs), row.adaptive),)


def row_notes(row: Row) -> tuple[str, ...]:
    """Return all sentences about a row except those on its invalid repeats."""
    return describe_adaptive(row) + describe_flags(row) + describe_differences(row)


def describe_sufficiency(numbers: Sequence[float], adaptive: Adaptive) -> str:
    """Return the number of valid repeats, and the width of their interval with its limit."""
    count = f"{len(numbers)} of at most {format_count(adaptive.max_repeats, 'repeat')}"
    if not numbers:
        return count
    interval, max_width = median_limits(numbers), format_percent(adaptive.precision_of_median)
    coverage, width = format_percent(interval.coverage), format_percent(interval.width)
    needs = f"below {max_width} of at least {FEWEST_REPEATS} repeats would be enough"
    if is_precise(numbers, adaptive.precision_of_median):
        needs = f"narrower than {max_width}"
    return f"{count}: the median's {coverage} interval is {width} wide, {needs}"


def describe_repeats(protocol: Protocol) -> str:
    """Return the repeats of a protocol: `5`, or `5 to 15`."""
    fixed = protocol.precision_of_median is None
    return str(protocol.repeats) if fixed else f"{FEWEST_REPEATS} to {protocol.repeats}"


def describe_iterations(protocol: Protocol) -> str:
    """Return the iterations of a run: `120 iterations`, or more for a window in seconds."""
    seconds = protocol.window_seconds
    more = f" or more, until the window takes {seconds} s" if seconds else ""
    return f"{protocol.iters} iterations{more}"


def describe_stop(protocol: Protocol) -> str:
    """Return the condition that ends the repeats of a point; empty if their number is fixed."""
    precision = protocol.precision_of_median
    if precision is None:
        return ""
    return f"until the median's interval is narrower than {format_percent(precision)}"


def format_percent(share: float) -> str:
    """Return a share in the usual form: `1 %`, `93.75 %`, `0.823 %`."""
    return f"{share * 100:.4g} %"


def describe_flags(row: Row) -> tuple[str, ...]:
    """Return the labels that no log of a row confirms, and the flags of its valid repeats.

    Repeats with the same flags are together, as in `invalid_repeats`.
    """
    notes = [f"unchecked: {', '.join(row.unchecked)}"] if row.unchecked else []
    runs = [run for run in row.runs if run.valid and run.flags]
    for flags, marked in grouping.group((_explain_flags(run, row), run) for run in runs).items():
        notes.append(f"{_name_repeats(marked, row)}: {flags}")
    return tuple(notes)


def _explain_flags(run: Run, row: Row) -> str:
    """Return the flags of a run, each with the numbers behind it."""
    texts = []
    for flag in run.flags:
        details = [f" ({note.detail})" for note in run.notes if note.flag == flag]
        if flag == "outlier" and row.median and run.throughput is not None:
            share = run.throughput / row.median - 1
            details.append(f" ({run.throughput:,.2f}, {share:+.1%} from the median)")
        texts.append(flag + "".join(details))
    return sanitize(", ".join(texts))
