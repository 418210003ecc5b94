"""Status files: the records that jobs write about themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]
STARTED: tuple[Event, ...] = (
    {"event": "start", "job": "7_1", "host": "n1", "nodelist": "n[1-2]", "pid": 4},
    {"event": "step"},
)


def ended(code: int = 0) -> tuple[Event, ...]:
    """Return the events of a job's end."""
    return tuple({"event": event, "exit": code} for event in ("step-end", "end"))


def append(path: Path, *events: Event, **common: Any) -> None:
    """Append events to a status file, as a job does; `common` gives their default values."""
    with path.open("a") as file:
        file.writelines(f"{json.dumps({'attempt': 0, **common, **event})}\n" for event in events)


def read(path: Path) -> list[Event]:
    return [json.loads(line) for line in path.read_text().splitlines()]
