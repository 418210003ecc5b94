"""The rates of ended repeats and the rows of finished points, while other repeats still run."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from hpcbert.campaign.judge import gather
from hpcbert.campaign.repeats import Key, Repeat, TrackedCampaign
from hpcbert.errors import HpcbertError
from hpcbert.logs.setting import Window
from hpcbert.model import Row, Run
from hpcbert.results.reduce import tabulate
from hpcbert.slurm.states import RepeatState


@dataclass(frozen=True)
class Rates:
    """The numbers of a campaign, as `collect` finds them.

    Attributes:
        ended: The repeats that had ended, each with its attempt.
        runs: Their runs.
        rows: The rows of the points that had finished, by the point's key.
    """

    ended: frozenset[tuple[Key, int]] = frozenset()
    runs: Mapping[Key, Run] = field(default_factory=dict)
    rows: Mapping[str, Row] = field(default_factory=dict)

    def find_run(self, repeat: Repeat, state: RepeatState) -> Run | None:
        """Return the run of a repeat's newest attempt; None if it has not been judged."""
        return self.runs.get(repeat.key) if (repeat.key, state.attempt) in self.ended else None


def list_ended(
    watched: TrackedCampaign, states: Mapping[Key, RepeatState]
) -> frozenset[tuple[Key, int]]:
    """Return the repeats of a campaign that have ended, each with its attempt."""
    return frozenset(
        (repeat.key, states[repeat.key].attempt)
        for repeat in watched.repeats
        if repeat.key in states and states[repeat.key].kind.over
    )


def read_rates(watched: TrackedCampaign, states: Mapping[Key, RepeatState]) -> Rates:
    """Judge the ended repeats of a campaign, and reduce its finished points to rows.

    A campaign that can't be collected, or that is a rehearsal, has no numbers.
    """
    ended = list_ended(watched, states)
    if watched.campaign.rehearse or not ended:
        return Rates(ended)
    with contextlib.suppress(HpcbertError):  # collect reports it.
        gathered = gather(watched, rule="", window=Window(), states=lambda _: states)
        ended_keys = {key for key, _ in ended}
        points = dict.fromkeys(repeat.array.point for repeat in gathered.repeats)
        running_points = {
            repeat.array.point for repeat in watched.repeats if repeat.key not in ended_keys
        }
        finished_points = {
            (measured.group, measured.shape): (point, measured)
            for point, measured in zip(points, gathered.points, strict=True)
            if point not in running_points
        }
        tables = tabulate(measured for _, measured in finished_points.values())
        return Rates(
            ended,
            {repeat.key: repeat.run for repeat in gathered.repeats if repeat.key in ended_keys},
            {
                finished_points[table.group, row.shape][0].key: row
                for table in tables
                for row in table.rows
            },
        )
    return Rates(ended)
