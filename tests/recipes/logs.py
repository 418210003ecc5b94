"""Logs as programs print them: a head, a line for each iteration, an end (logs.toml)."""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from tests.kit.cases import read_constant
from tests.kit.recipes import HERE, printed

LOGS: Mapping[str, Mapping[str, Any]] = read_constant(__file__, "LOGS")
_BEGIN = datetime(2023, 5, 22, 9, 0, 0, 345000, tzinfo=timezone.utc)


def print_log(name: str, changes: Iterable[tuple[str, str]] = (), **fields: Any) -> str:
    """Return a log of the table, with changes as of re.sub.

    A line may show `n`, the iteration, and `before`, the one before it; `at`, a date, and `epoch`,
    its seconds, which go on by the `pace`, in seconds; and what `values` has: one for each line in
    turn, or a number for each iteration.
    """
    log = {"head": "", "pace": (1.0,), "values": {}, "end": "", **LOGS[name], **fields}
    at, lines = _BEGIN, [printed(log["sample"]).decode()] if "sample" in log else []
    lines += [(HERE / "recorded" / log["file"]).read_text()] if "file" in log else []
    for place, n in enumerate(range(*log["iterations"]) if "line" in log else ()):
        at += timedelta(seconds=log["pace"][place % len(log["pace"])])
        values = {
            key: value[place % len(value)] if isinstance(value, tuple) else value * n
            for key, value in log["values"].items()
        }
        shown = {"n": n, "before": n - 1, "at": at, "ms": at.microsecond // 1000}
        lines.append(log["line"].format(**shown, epoch=at.timestamp(), **values))
    text = "".join([log["head"], *lines, log["end"]])
    for old, new in changes:
        text, count = re.subn(old, new, text, flags=re.MULTILINE)
        assert count, f"{name} has no {old}"
    return text
