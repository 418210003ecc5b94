"""Whether a point needs another repeat: `python -m hpcbert.campaign.enough CAMPAIGN POINT`.

Job scripts of `--repeats auto` ask it before they train. The numbers are those that `collect` would
print, by the same rule, window and gate. Only the scheduler is not asked, because its accounts lag
behind: how a repeat ended is read from what its own job wrote.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpcbert.campaign import judge, store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.config.adaptive import FEWEST
from hpcbert.errors import HpcbertError
from hpcbert.logs.setting import Window
from hpcbert.model import Adaptive, throughputs
from hpcbert.results.interval import suffices
from hpcbert.results.words import sufficiency
from hpcbert.slurm.states import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

# Exit statuses, which enough.bash distinguishes: Python itself ends with 1 and 2.
ENOUGH, MORE, FAILED = 0, 3, 4


class Decision(NamedTuple):
    """Whether a point has enough repeats, and why."""

    enough: bool
    why: str


def decide(directory: Path, point: str) -> Decision:
    """Return whether enough repeats of a point have ended.

    Args:
        directory: The campaign.
        point: Key of the point.

    Raises:
        UsageError: The campaign is damaged.
    """
    campaign = store.read_manifest(directory)
    watched = TrackedCampaign(directory, campaign)
    found = judge.gather(watched, rule="", window=Window(), states=lambda _: {}, point=point)
    protocol = campaign.protocol
    if campaign.rehearse:
        well = sum(repeat.known.counted.state.kind is Kind.SUCCEEDED for repeat in found.repeats)
        return Decision(well >= FEWEST, f"{well} repeats were rehearsed")
    numbers = throughputs(repeat.run for repeat in found.repeats)
    precision = protocol.precision_of_median
    adaptive = Adaptive(precision or 0.0, protocol.repeats)
    return Decision(suffices(numbers, precision), sufficiency(numbers, adaptive))


def main(arguments: Sequence[str]) -> int:
    """Print the reason, as a field of an event in a status file; return the exit status."""
    directory, point = arguments
    try:
        decision = decide(Path(directory), point)
    except HpcbertError as error:
        print(f"hpcbert: {error}", file=sys.stderr)  # noqa: T201  not the result of a command
        return FAILED
    print(f'"why":{json.dumps(decision.why)}')  # noqa: T201
    return ENOUGH if decision.enough else MORE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
