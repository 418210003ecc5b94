"""What a query's silence means for those that ask again."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.slurm.cluster import run_queries
from hpcbert.system.runner import Outcome


@pytest.mark.parametrize(
    ("status", "complaint", "answer"),
    [
        (127, "sacct: not found", "absent"),
        (1, "sacct: fatal: Could not establish a configuration source", "absent"),
        (1, "Slurm accounting storage is disabled", "absent"),
        (1, "SLURM_CONF names /etc/slurm.conf, which is not there", "failed"),
        (124, "", "failed"),
    ],
    ids=["no program", "no cluster", "no accounting", "a file away for a moment", "time-out"],
)
def test_asking_again_is_useless_only_where_nothing_will_answer(
    status: int, complaint: str, answer: str
) -> None:
    def run(argv: Any, **_: Any) -> Outcome:
        return Outcome(tuple(argv), status, "", complaint)

    assert run_queries(SchedulerContext(run), [["sacct"]])[1] == answer
