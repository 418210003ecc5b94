"""What an earlier collect wrote down about the attempts of a campaign, in measurements.json.

Only a verdict is remembered: the scheduler's word on an attempt that has ended, and for how long it
was suspended. What the job's own files say is read again each time, because a file system may show
them late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcbert.campaign import store
from hpcbert.campaign.evidence import MEASUREMENTS, SEAL, seal
from hpcbert.errors import UsageError
from hpcbert.slurm.states import RepeatState, recalled

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from hpcbert.model import Array

SCHEMA = 1
_SCHEDULERS = ("sacct", "squeue")
Key = tuple[str, str, int, int]


class Memory:
    """The states on record, by array, job, repeat and attempt.

    Args:
        directory: The campaign's. A record that is damaged, or whose seal is broken, is as good as
            none.
    """

    def __init__(self, directory: Path) -> None:
        self._states: dict[Key, RepeatState] = {}
        path = directory / MEASUREMENTS
        try:
            data = store.read_json(path) if path.exists() else {}
            if data.get("schema") == SCHEMA and data.get(SEAL, seal(data)) == seal(data):
                self._states = dict(one for run in data["runs"] for one in _recall(run))
        except (UsageError, KeyError, TypeError, AttributeError):
            self._states = {}
        self._known = {key[:3] for key in self._states}

    def knows(self, array: Array, number: int) -> bool:
        """Say whether any attempt of a repeat is on record."""
        return (array.name, array.job_id, number) in self._known

    def verdict(self, array: Array, number: int, attempt: int) -> RepeatState | None:
        """Return the scheduler's word on an attempt that has ended; None: it is not on record."""
        state = self._states.get((array.name, array.job_id, number, attempt))
        return state if state and state.kind.over and state.source in _SCHEDULERS else None

    def suspended(self, array: Array, number: int, attempt: int) -> float:
        """Return the seconds for which an attempt was suspended, as far as it is on record."""
        state = self._states.get((array.name, array.job_id, number, attempt))
        return state.suspended if state else 0.0


def _recall(run: Mapping[str, Any]) -> Iterator[tuple[Key, RepeatState]]:
    """Yield what is on record of a repeat's attempts; older versions wrote down only one."""
    old = {"array": run["array"], "job_id": run["job_id"], "state": run["scheduler"]}
    for one in run.get("verdicts", [old]):
        state = recalled(one["state"])
        yield (one["array"], one["job_id"], run["repeat"], state.attempt), state
